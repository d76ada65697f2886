"""What does every GPU do that a pod holds, as of the latest evaluation? Writes nothing.

Laws:

* What a decision rests on is what is shown: a pod's GPUs are judged once, by the policy of its ScaledObject.
* Pods without a ScaledObject are judged by the defaults of the settings, so that what is idle is shown before there is
  a ScaledObject. Nothing is decided by that verdict.
* It is done beside the event loop's other work, a few pods at a time: KEDA gets its answers meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, TypeVar

from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.describe import prevailing
from scaler.decision.evaluation import Evaluator
from scaler.decision.scale_subresources import is_scalable_workload
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Policy, resolve
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, judged_length
from scaler.kube.objects.core import is_true
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.reclaim.candidates import is_scaling_paused
from scaler.reporting.pending_workloads import QueueNames
from scaler.reporting.usage.gpu_states import (
    UNSCALED,
    GpuState,
    GpuStatus,
    StartupLimits,
    doubt_of,
    doubted,
    idle_status,
    states_of,
)
from scaler.reporting.usage.prices import normalized_model

T = TypeVar("T")

_YIELD_EVERY = 64
"""Objects read before other tasks get the event loop again: about a millisecond."""


class GpuOwner(NamedTuple):
    namespace: str
    cluster_queue: str
    model: str


class TargetLabels(NamedTuple):
    namespace: str
    cluster_queue: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetUsage:
    title: TargetLabels
    decision: Decision
    states: Mapping[GpuState, int]
    peaks: Mapping[str, float]
    """Highest sample in the window by signal; 0..1."""
    at: datetime
    is_paused: bool = False
    """Whether KEDA does not scale it to 0, whatever the answer is."""

    @property
    def idle_seconds(self) -> float | None:
        """For how long its GPUs have been quiet."""
        since = self.decision.idle_since
        return None if since is None else (self.at - since).total_seconds()


@dataclass(slots=True, kw_only=True)
class FleetUsage:
    at: datetime
    gpus: Counter[tuple[GpuOwner, GpuStatus]] = field(default_factory=Counter)
    nodes: dict[str, Counter[GpuStatus]] = field(default_factory=dict)
    """By node, as far as GPUs are judged on their own."""
    workloads: list[TargetUsage] = field(default_factory=list)
    paused_scaled_objects: int = 0
    coverage: Mapping[str, float] = field(default_factory=dict)
    """By signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodEvidence:
    pod: GpuPod
    when_idle: GpuStatus
    policy: Policy
    gpus: Sequence[GpuEvidence]
    """On which the decision rests; none where it rests on others."""


@dataclass(kw_only=True)
class _Tally:
    usage: FleetUsage
    queues: Mapping[Key, str]
    models: dict[str, str]
    """Of the GPUs of each node, as far as any has ever reported."""
    by_pod: dict[Key, Counter[GpuState]] = field(default_factory=dict)
    peaks: dict[Key, dict[str, float]] = field(default_factory=dict)
    """Highest sample in the window by signal, of each pod whose GPUs a decision rests on."""
    _covered: Counter[str] = field(default_factory=Counter)
    """Intervals that hold a sample, by signal, over the windows of all GPUs that report for long enough."""
    _slots: Counter[str] = field(default_factory=Counter)
    """All intervals of these windows."""
    _nameless: list[tuple[GpuOwner, GpuStatus, str]] = field(default_factory=list)
    """GPUs that nothing reports for, with the node they are on."""

    def add(self, evidence: _PodEvidence, startup: StartupLimits) -> None:
        pod, at, gpus = evidence.pod, self.usage.at, evidence.gpus
        queue = self.queues.get((pod.namespace, pod.name), "")
        states = self.by_pod[pod.namespace, pod.name] = Counter()
        for number, found in enumerate(states_of(pod, gpus, evidence.when_idle, startup=startup, now=at)):
            gpu = gpus[number] if number < len(gpus) else None
            node = pod.node or (gpu.node if gpu else "")
            self._count(GpuOwner(pod.namespace, queue, normalized_model(gpu.model) if gpu else ""), found, node)
            states[found.state] += 1
        self.peaks[pod.namespace, pod.name] = _peaks(gpus)
        if pod.running_since is not None and at - pod.running_since >= startup.ripe:
            for signal, window in (each for gpu in gpus for each in gpu.windows.items()):
                self._covered[signal] += min(window.covered, window.slots)
                self._slots[signal] += window.slots

    def _count(self, place: GpuOwner, found: GpuStatus, node: str) -> None:
        if place.model:
            self.models[node] = place.model
            self.usage.gpus[place, found] += 1
        else:
            self._nameless.append((place, found, node))
        self.usage.nodes.setdefault(node, Counter())[found] += 1

    def settle(self) -> None:
        """GPUs that do not report are of the model of their node."""
        for place, found, node in self._nameless:
            self.usage.gpus[place._replace(model=self.models.get(node, "")), found] += 1
        self._nameless.clear()
        self.usage.coverage = {signal: self._covered[signal] / count for signal, count in self._slots.items() if count}


@dataclass(frozen=True, kw_only=True)
class GpuUsageReader:
    cluster: ClusterState
    evaluator: Evaluator
    queues: QueueNames
    _models: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """By node. Remembered while no pod reports there: the model of a node does not change."""

    async def take(self, evaluation: Evaluation) -> FleetUsage:
        """What the GPUs are doing as of the evaluation, with the pods that are there now."""
        tally = _Tally(usage=FleetUsage(at=evaluation.at), queues=await self._queues(), models=self._models)
        known = await self._evidence(evaluation)
        async for key, pod in in_steps(self._holders(known)):
            evidence = self._judged(pod, known.get(key), evaluation.at)
            tally.add(evidence, self._startup(evidence.policy))
        tally.settle()
        tally.usage.workloads = await self._workloads(evaluation, tally)
        tally.usage.paused_scaled_objects = sum(self._is_paused(key) for key in evaluation.entries)
        return tally.usage

    def _holders(self, known: Mapping[Key, _PodEvidence]) -> Iterator[tuple[Key, GpuPod]]:
        """All pods with GPUs, those included that request none: by a claim, or a resource that is not configured."""
        for pod in self.cluster.gpu_pods():
            yield (pod.namespace, pod.name), pod
        for key, evidence in known.items():
            if evidence.gpus and not evidence.pod.gpus:
                yield key, evidence.pod

    # -------------------------------------------------------------------------------------------------- what is known

    async def _queues(self) -> dict[Key, str]:
        """The ClusterQueue of every pod of a Workload, also while it ends after Kueue has taken its quota back."""
        found: dict[Key, str] = {}
        async for workload in in_steps(self.cluster.workloads.items()):
            pods = () if is_true(workload.status.conditions, "Finished") else self.cluster.pods_of_workload(workload)
            queue = self.queues.of(workload) if pods else ""
            for pod in pods:
                found[pod.namespace, pod.name] = queue
        return found

    async def _evidence(self, evaluation: Evaluation) -> dict[Key, _PodEvidence]:
        """By pod. Of several ScaledObjects of one pod the one that judges its GPUs."""
        found: dict[Key, _PodEvidence] = {}
        async for key, entry in in_steps(evaluation.entries.items()):
            for pod, evidence in self._evidence_of(key, entry):
                if evidence.gpus or pod not in found:
                    found[pod] = evidence
        return found

    def _evidence_of(self, key: Key, entry: EvaluatedScaledObject) -> Iterator[tuple[Key, _PodEvidence]]:
        decision = prevailing(list(entry.triggers.values()))
        by_pod: dict[str, list[GpuEvidence]] = {}
        for gpu in decision.verdict.gpus if decision and decision.verdict else ():
            by_pod.setdefault(gpu.pod, []).append(gpu)
        policy, when_idle = self._default, doubted(UnknownReason.INVALID_POLICY)
        if decision is not None:
            policy, when_idle = decision.policy, idle_status(decision, is_paused=self._is_paused(key))
        for pod in entry.pods:
            evidence = _PodEvidence(pod=pod, when_idle=when_idle, policy=policy, gpus=by_pod.get(pod.name, []))
            yield (pod.namespace, pod.name), evidence

    def _is_paused(self, key: Key) -> bool:
        scaled_object = self.cluster.scaled_objects.get(*key)
        return scaled_object is not None and is_scaling_paused(scaled_object)

    @property
    def _default(self) -> Policy:
        return resolve(("settings", self.evaluator.config.defaults))

    def _judged(self, pod: GpuPod, evidence: _PodEvidence | None, at: datetime) -> _PodEvidence:
        """The evidence with the pod's GPUs, which are judged now where no decision has."""
        if evidence is not None and evidence.gpus:
            return replace(evidence, pod=pod)
        verdict = self.evaluator.judge_by_default(pod, at) if pod.is_running else None
        doubt, gpus = doubt_of(verdict), verdict.gpus if verdict is not None else ()
        when_idle = evidence.when_idle if evidence is not None else UNSCALED
        if doubt is not None:
            when_idle = doubted(doubt)
        return _PodEvidence(pod=pod, when_idle=when_idle, policy=self._default, gpus=gpus)

    def _startup(self, policy: Policy) -> StartupLimits:
        trust = self.evaluator.config.trust
        late = 2 * trust.interval
        return StartupLimits(ripe=judged_length(policy=policy, trust=trust) + late, shown=trust.max_age + late)

    async def _workloads(self, evaluation: Evaluation, tally: _Tally) -> list[TargetUsage]:
        """One for each scale target, whichever of its ScaledObjects prevails."""
        found: dict[tuple[str, ScaleTargetRef], TargetUsage] = {}
        async for key, entry in in_steps(evaluation.entries.items()):
            namespace = key[0]
            decision = prevailing(evaluation.decisions_on(namespace, entry.target))
            if decision is not None and (namespace, entry.target) not in found:
                queue, kind, name = self._queue_of(namespace, entry.target), entry.target.kind, entry.target.name
                keys = [(pod.namespace, pod.name) for pod in entry.pods]
                judged = keys if decision.verdict is not None else []
                found[namespace, entry.target] = TargetUsage(
                    title=TargetLabels(namespace, queue, kind, name),
                    decision=decision,
                    states=sum((tally.by_pod.get(each, Counter()) for each in keys), Counter[GpuState]()),
                    peaks=_highest(tally.peaks.get(each, {}) for each in judged),
                    at=evaluation.at,
                    is_paused=self._is_paused(key),
                )
        return [*found.values()]

    def _queue_of(self, namespace: str, target: ScaleTargetRef) -> str:
        """Whether or not it runs; empty for what Kueue does not manage, or not as one Workload."""
        scalable = self.cluster.scalable_workloads.get(namespace, target.name)
        if not is_scalable_workload(target) or scalable is None:
            return ""
        workload = self.cluster.workload_of(scalable)
        return self.queues.of(workload) if workload is not None else ""


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; other tasks get the event loop now and then."""
    for count, each in enumerate(items, start=1):
        yield each
        if count % _YIELD_EVERY == 0:
            await asyncio.sleep(0)


def _peaks(gpus: Sequence[GpuEvidence]) -> dict[str, float]:
    windows = ({signal: window.peak_ratio for signal, window in gpu.windows.items()} for gpu in gpus)
    return _highest({signal: peak for signal, peak in each.items() if peak is not None} for each in windows)


def _highest(peaks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in peaks:
        for signal, peak in each.items():
            found[signal] = max(peak, found.get(signal, 0.0))
    return found
