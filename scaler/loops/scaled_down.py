"""Suspensions and returns of what KEDA scales itself: Deployments, StatefulSets, and other kinds with a scale.

Nothing is written on these by us, so what is known of them is what evaluations show, one after the other: asked to run,
and at the next not any more. Who was at 0 already when this process began is not known to have been suspended by us.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from scaler.core.replicas import Inactive
from scaler.kube.resources import SCALABLE_WORKLOAD
from scaler.loops.handovers import FOUND_IDLE, Event, Resumed, Suspended
from scaler.loops.reconciliation import SCALED_TO_ZERO
from scaler.loops.usage import Title, Usage, WorkloadUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awake:
    gpus: int
    """That its pods held when they were last seen."""
    idle_since: datetime | None
    reason: str
    """Why it was told to go; empty where it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asleep:
    gpus: int
    since: datetime
    reason: str


@dataclass(kw_only=True)
class ScaledDown:
    """What the evaluations before have shown."""

    _awake: dict[Title, _Awake] = field(default_factory=dict, init=False)
    _asleep: dict[Title, _Asleep] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Somebody else follows evaluations now."""
        self._awake, self._asleep = {}, {}

    def gpus(self) -> Mapping[tuple[str, str], int]:
        """GPUs that those which sleep would hold, by namespace and ClusterQueue."""
        found: Counter[tuple[str, str]] = Counter()
        for title, asleep in self._asleep.items():
            found[title.namespace, title.cluster_queue] += asleep.gpus
        return found

    def follow(self, usage: Usage) -> Sequence[Event]:
        """What has happened since the usage before."""
        scaled = [each for each in usage.workloads if each.title.kind != SCALABLE_WORKLOAD.kind]
        there = {each.title for each in scaled}
        self._awake = {title: each for title, each in self._awake.items() if title in there}
        self._asleep = {title: each for title, each in self._asleep.items() if title in there}
        return [event for each in scaled for event in self._follow(each, usage.at)]

    def _follow(self, workload: WorkloadUsage, at: datetime) -> Iterator[Event]:
        title = workload.title
        awake, asleep = self._awake.get(title), self._asleep.get(title)
        if workload.decision.standing.desired_replicas:
            self._awake[title] = _seen(workload, awake)
            if self._asleep.pop(title, None) is not None and asleep is not None:
                yield Resumed(namespace=title.namespace, reason=asleep.reason, after=at - asleep.since)
        elif awake is not None:
            del self._awake[title]
            reason = awake.reason or SCALED_TO_ZERO
            self._asleep[title] = _Asleep(gpus=awake.gpus, since=at, reason=reason)
            idle_for = at - awake.idle_since if awake.reason and awake.idle_since is not None else None
            yield Suspended(namespace=title.namespace, reason=reason, gpus=awake.gpus, idle_for=idle_for)


def _seen(workload: WorkloadUsage, before: _Awake | None) -> _Awake:
    """One that runs. Between two samples nobody may know what it holds: then it is what it held before."""
    answer = workload.decision.answer
    told = isinstance(answer, Inactive) and answer.because in FOUND_IDLE
    gpus = sum(workload.states.values())
    return _Awake(
        gpus=gpus or (before.gpus if before is not None else 0),
        idle_since=workload.decision.idle_since,
        reason=str(answer.because) if isinstance(answer, Inactive) and told else "",
    )
