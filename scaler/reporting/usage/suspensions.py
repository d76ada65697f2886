"""Suspensions and returns of workloads, and the GPUs that plans gave to gangs, as observed.

| of                                 | a suspension is                       | a return is                     |
|------------------------------------|---------------------------------------|---------------------------------|
| a ScalableWorkload                 | its Workload inactive, with our note  | that Workload active again      |
| what KEDA scales itself; Notebooks | desired replicas 0 at an evaluation   | desired replicas 1 again        |
| and InferenceServices              |                                       |                                 |

Laws:

* Only what was observed counts, never what was decided.
* One suspension counts once, however often Kueue recreates the Workload and it is deactivated again.
* Which gang got the GPUs is known only of those that a plan took: its ledger says so. A gang that is admitted after a
  suspension by policy may have got GPUs that were free anyway.
* Of Deployments, Notebooks and the like, what was at 0 when this process began is not known to have been suspended by
  us.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from scaler.decision.decision import Inactive
from scaler.decision.reasons import FOUND_IDLE, SuspensionEventReason
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reclaim.active_plans import entry_of
from scaler.reclaim.transitions import LedgerEntry, LedgerStage
from scaler.reporting.pending_workloads import QueueNames, is_admitted, requested_gpus
from scaler.reporting.usage.fleet_metrics import FleetMetrics, QuotaTransfer
from scaler.reporting.usage.gpu_usage import FleetUsage, TargetLabels, TargetUsage
from scaler.targets.cluster_state import ClusterState
from scaler.targets.workloads import SuspendedAnnotation, suspended_annotation

_REASONS = {str(each): str(each) for each in (*FOUND_IDLE, SuspensionEventReason.SCALED_TO_ZERO)}
"""Our own. An annotation with any other one, which other writers may set, must not become a label."""


@dataclass(kw_only=True)
class SuspensionWatch:
    """Counts suspensions of ScalableWorkloads, from the watches of them and of Workloads. Subscribe its methods."""

    cluster: ClusterState
    queues: QueueNames
    metrics: FleetMetrics
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def transfers(self) -> Iterator[QuotaTransfer]:
        """What gangs that run have now of workloads that are suspended."""
        for scalable in self.cluster.scalable_workloads.items():
            transfer = None if scalable.spec.replicas else self._transfer(scalable)
            if transfer is not None:
                yield transfer

    def workload_heard(self, change: Change[Workload]) -> None:
        """The change is counted; it never raises."""
        old, new = change.old, change.new
        if old is None or new is None or old.spec.active == new.spec.active:
            return
        if new.spec.active:
            self._activated(old, new)
        else:
            self._deactivated(new)

    def _deactivated(self, workload: Workload) -> None:
        note, scalable = suspended_annotation(workload.metadata), self.cluster.scaler_of(workload)
        if note is None or scalable is None or _was_suspended(scalable):
            return
        self.metrics.suspended(
            workload.metadata.namespace,
            _REASONS.get(note.reason, ""),
            gpus=requested_gpus(workload, self.cluster.gpus),
            idle_for=_idle_for(note, note.at or self.clock()),
        )

    def _activated(self, old: Workload, workload: Workload) -> None:
        note, scalable = suspended_annotation(old.metadata), self.cluster.scaler_of(workload)
        if note is None or scalable is None:
            return
        now = self.clock()
        after = max(timedelta(0), now - note.at) if note.at is not None else None
        self.metrics.resumed(workload.metadata.namespace, _REASONS.get(note.reason, ""), after=after)

    def scalable_heard(self, change: Change[ScalableWorkload]) -> None:
        """The change is counted; it never raises."""
        old, new = change.old, change.new
        # What was there before this process began has been counted.
        is_new = old is not None and not _is_given(entry_of(old))
        if new is not None and is_new and (transfer := self._transfer(new)) is not None:
            self.metrics.transferred(transfer)

    def _transfer(self, scalable: ScalableWorkload) -> QuotaTransfer | None:
        """What its ledger says was given; None where the gang does not run."""
        entry = entry_of(scalable) if scalable.status.reallocation else None
        if entry is None or not _is_given(entry):
            return None
        namespace, _, name = entry.gang.partition("/")
        gang = self.cluster.workloads.get(namespace, name)
        if gang is None or not is_admitted(gang):
            return None
        return QuotaTransfer(scalable.metadata.namespace, namespace, self.queues.of(gang), entry.gpus)


def _is_given(entry: LedgerEntry | None) -> bool:
    return entry is not None and entry.stage is LedgerStage.ADMITTED and entry.releasing_at is not None


def _was_suspended(scalable: ScalableWorkload) -> bool:
    """Whether its status has this suspension already, which has not ended."""
    status = scalable.status
    return status.suspended_at is not None and (status.resumed_at is None or status.resumed_at < status.suspended_at)


def _idle_for(note: SuspendedAnnotation, at: datetime) -> timedelta | None:
    if note.idle_since is None or note.reason not in FOUND_IDLE:
        return None
    return max(timedelta(0), at - note.idle_since)


# ------------------------------------------------------------------------------------------ what has no Workload


class _Seen(NamedTuple):
    """A target that runs, or is at 0."""

    gpus: int
    """The GPUs that its pods held when they were last seen."""
    since: datetime | None
    """The time since which it is idle, of one that runs; else since which it is at 0."""
    reason: str
    """Reason of the answer 0 to KEDA; empty where there was none."""


@dataclass(kw_only=True)
class ScaledDown:
    """Suspensions and returns of what has no Kueue Workload that shows them, from one evaluation to the next."""

    _running: dict[TargetLabels, _Seen] = field(default_factory=dict, init=False)
    _at_zero: dict[TargetLabels, _Seen] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Another replica counts now."""
        self._running, self._at_zero = {}, {}

    def gpus(self) -> Mapping[tuple[str, str], int]:
        """GPUs that those at 0 would hold, by namespace and ClusterQueue."""
        found: Counter[tuple[str, str]] = Counter()
        for title, at_zero in self._at_zero.items():
            found[title.namespace, title.cluster_queue] += at_zero.gpus
        return found

    def count(self, usage: FleetUsage, metrics: FleetMetrics) -> None:
        """Count what has happened since the usage before."""
        scaled = [each for each in usage.workloads if each.is_switched or each.title.kind != SCALABLE_WORKLOAD.kind]
        there = {each.title for each in scaled}
        self._running = {title: each for title, each in self._running.items() if title in there}
        self._at_zero = {title: each for title, each in self._at_zero.items() if title in there}
        for each in scaled:
            self._count(each, usage.at, metrics)

    def _count(self, workload: TargetUsage, at: datetime, metrics: FleetMetrics) -> None:
        title = workload.title
        running, at_zero = self._running.get(title), self._at_zero.get(title)
        if workload.decision.target.desired_replicas:
            self._running[title] = _seen(workload, running)
            if self._at_zero.pop(title, None) is not None and at_zero is not None and at_zero.since is not None:
                metrics.resumed(title.namespace, at_zero.reason, after=at - at_zero.since)
        elif running is not None:
            del self._running[title]
            reason = running.reason or SuspensionEventReason.SCALED_TO_ZERO
            self._at_zero[title] = _Seen(gpus=running.gpus, since=at, reason=reason)
            idle_for = at - running.since if running.reason and running.since is not None else None
            metrics.suspended(title.namespace, reason, gpus=running.gpus, idle_for=idle_for)


def _seen(workload: TargetUsage, before: _Seen | None) -> _Seen:
    """One that runs. Where its GPUs are not known for a moment, they are those of before."""
    answer = workload.decision.answer
    is_idle = isinstance(answer, Inactive) and answer.reason in FOUND_IDLE
    gpus = sum(workload.states.values())
    return _Seen(
        gpus=gpus or (before.gpus if before is not None else 0),
        since=workload.decision.idle_since,
        reason=str(answer.reason) if isinstance(answer, Inactive) and is_idle else "",
    )
