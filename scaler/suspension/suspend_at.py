"""When is a pod's workload suspended? Annotation `idlegpu.io/suspend-at` of pods that have it. Leader only.

| the decision on the pod's workload                | the annotation                        |
|---------------------------------------------------|---------------------------------------|
| not known, or not made yet                        | stays as it is                        |
| KEDA gets 0, or would but for the hook            | since when, once that has been written |
| the warning stands, and a suspension is foreseen  | its time                              |
| else: work, or nothing is foreseen                | empty                                 |

Laws:

* Pods opt in: one without the annotation, however empty, is never written to.
* A pod that has ended, or is being deleted, is left alone.
* Before quiet is noticeable nothing is written. So pauses between two bursts of work cause no writes, and each pod has
  at most two within that time.

Trainers read it from a volume of the downward API, which the kubelet keeps up to date (docs/policies.md).
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from scaler.clock import SYSTEM_CLOCK, Clock, Turns, every
from scaler.decision.decision import Active, Decision, Inactive, valid_warning
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation, Key
from scaler.decision.describe import is_warning_due, prevailing
from scaler.decision.reasons import DecisionReason
from scaler.errors import KubeError
from scaler.idleness.pods import TERMINAL
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import Pod, stamp
from scaler.kube.objects.resources import POD
from scaler.kube.writes import PatchApi, write_all
from scaler.targets.cluster_state import ClusterState
from scaler.targets.workloads import SUSPEND_AT, instant_of

_INTERVAL, _REST = timedelta(seconds=15), timedelta(seconds=3)
"""The times between two ticks, and after one: until then what it has written is seen."""
_AT_ONCE = 8
"""Pods that are written to at the same time: a gang has hundreds."""
_GONE = frozenset(map(str, TERMINAL))


def announced(known: str, decision: Decision, now: datetime) -> str:
    """What the annotation shall say, where it says `known` now."""
    match decision.answer:
        case Unknown():
            return known
        case Inactive(reason=reason) | Active(reason=reason) if _is_due(decision, reason):
            since = instant_of(known)
            return known if since is not None and since <= now else stamp(now)
    foreseen = decision.suspend_at if decision.is_noticeably_quiet and _is_warned(decision) else None
    return "" if foreseen is None else stamp(foreseen)


def _is_due(decision: Decision, reason: DecisionReason) -> bool:
    if reason is DecisionReason.BEFORE_SUSPEND:
        return True
    return isinstance(decision.answer, Inactive) and reason is not DecisionReason.FINISHED


def _is_warned(decision: Decision) -> bool:
    if decision.policy.warning is None:
        return is_warning_due(decision)
    return valid_warning(decision, decision.target.warned_at) is not None


@dataclass(eq=False)
class SuspendAtController:
    name: ClassVar[str] = "suspend-at"
    api: PatchApi
    cluster: ClusterState
    decision_cache: DecisionCache
    _: KW_ONLY
    max_age: timedelta
    """How old decisions may be that pods are annotated with."""
    clock: Clock = SYSTEM_CLOCK
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and after evaluations."""
        await every(_INTERVAL, self.tick, self._wake, name=self.name, rest=_REST, clock=self.clock)

    def wake(self) -> None:
        """There is a new evaluation."""
        self._wake.set()

    async def tick(self, now: datetime) -> None:
        """Raises: KubeError, one of those that came; the next tick writes what is left."""
        evaluation, age = self.decision_cache.evaluation, self.decision_cache.age
        pods = {pod.metadata.key: pod for pod in self.cluster.pods.by_index(SUSPEND_AT, True) if not _is_over(pod)}
        if evaluation is None or age is None or age > self.max_age or not pods:
            return
        wanted = await _wanted(pods, evaluation, now)
        writes = [(pods[key], value) for key, value in wanted.items() if value != _known(pods[key])]
        await write_all(writes, self._write, at_once=_AT_ONCE)

    async def _write(self, write: tuple[Pod, str]) -> None:
        """The annotation is written; nothing where the pod is gone. Raises: KubeError."""
        pod, value = write
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": {SUSPEND_AT: value}}}
        try:
            await self.api.patch(POD.path(*pod.metadata.key), body)
        except KubeError as error:
            if not error.is_outdated:
                raise


def _known(pod: Pod) -> str:
    return pod.metadata.annotations[SUSPEND_AT]


def _is_over(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in _GONE


async def _wanted(pods: Mapping[Key, Pod], evaluation: Evaluation, now: datetime) -> dict[Key, str]:
    """The annotation of each pod. One that belongs to no workload any more has none; where its workload may be one of
    which nothing is known, the annotation stays."""
    namespaces, found, doubted, turns = {namespace for namespace, _ in pods}, dict[Key, str](), set[str](), Turns()
    for (namespace, _), entry in evaluation.entries.items():
        await turns.give_way()
        decision = prevailing(list(entry.triggers.values())) if namespace in namespaces else None
        if decision is not None:
            found |= {key: announced(_known(pods[key]), decision, now) for key in _keys(entry, pods)}
        if namespace in namespaces and not entry.pods:
            doubted.add(namespace)
    return found | {key: "" for key in pods.keys() - found.keys() if key[0] not in doubted}


def _keys(entry: EvaluatedScaledObject, pods: Collection[Key]) -> Iterator[Key]:
    return (key for pod in entry.pods if (key := (pod.namespace, pod.name)) in pods)
