"""What becomes of GPUs that workloads were suspended for: who gave, who got them, who came back, and how soon?

Read off the watches of Workloads and ScalableWorkloads, on every replica; whoever counts is told of what was seen.

Laws:

* Only what was observed counts. A suspension is a Workload that has become inactive with our note on it, a return is
  one that is active again; neither is what anybody has decided.
* One suspension counts once, however often Kueue makes the Workload anew and it is deactivated again.
* What is remembered is only what cannot be read off objects: gifts by order (`core/handovers.py`) end with the process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from scaler.core.handovers import Flow, Gift, Handovers, Receiver, Through
from scaler.core.ledger import Entry, Stage
from scaler.core.reasons import Because
from scaler.core.suspension import Phase
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import ScalableWorkload
from scaler.kueue.workloads import Cause, cause_of
from scaler.loops.cluster import Cluster
from scaler.loops.granted import entry_of, grant_of
from scaler.loops.queue_names import QueueNames
from scaler.loops.reconciliation import SCALED_TO_ZERO
from scaler.loops.waits import Admitted, gpus_asked, is_admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """A ScalableWorkload's Workload was deactivated."""

    namespace: str
    reason: str
    gpus: int
    idle_for: timedelta | None
    """None where it was not found idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """It was asked for again."""

    namespace: str
    reason: str
    """For which it had been suspended."""
    after: timedelta | None
    """None where nobody knows since when it was suspended."""

    @property
    def was_found_idle(self) -> bool:
        """Whether its GPUs were the reason. Who was scaled to 0 by hand is not missed."""
        return self.reason in FOUND_IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """All of its GPU pods run again."""

    after: timedelta
    """Since it was asked for."""


Event = Suspended | Resumed | Running | Gift

FOUND_IDLE = frozenset({Because.GPUS_IDLE, Because.RECLAIMED})
"""Reasons of suspensions that rest on a verdict."""
_REASONS = {str(each): str(each) for each in (*FOUND_IDLE, SCALED_TO_ZERO)}
"""Those that are ours. Whoever may write on a Workload may write another one, and must not make labels with it."""


@dataclass(kw_only=True)
class HandoverWatch:
    """Subscribe its methods to the copies. `cohort_of` gives the name of the tree that a ClusterQueue is in."""

    cluster: Cluster
    queues: QueueNames
    cohort_of: Callable[[str], str]
    observe: Callable[[Event], None] = lambda _: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _handovers: Handovers = field(default_factory=Handovers, init=False)
    _resumed: dict[str, datetime] = field(default_factory=dict, init=False)
    """When ScalableWorkloads were asked for again that do not run yet, by uid."""

    def gpus_in_use(self) -> Mapping[Flow, int]:
        """GPUs that gangs have now of workloads that are suspended."""
        return self._handovers.in_use()

    # -------------------------------------------------------------------------------------------------- Workloads

    def workload_heard(self, change: Change[Workload]) -> None:
        """Never raises."""
        old, new, key = change.old, change.new, "/".join(change.key)
        if new is None or not is_admitted(new):
            self._handovers.end(key)
        if new is None:
            self._handovers.take_back(key)
        elif old is not None and old.spec.active and not new.spec.active:
            self._deactivated(new)
        elif old is not None and not old.spec.active and new.spec.active:
            self._activated(old, new)

    def _deactivated(self, workload: Workload) -> None:
        cause, scalable = cause_of(workload), self.cluster.scaler_of(workload)
        if cause is None or scalable is None:
            return  # somebody else's doing
        gpus = gpus_asked(workload, self.cluster.gpus)
        at = cause.at or self.clock()
        if not _is_for_a_plan(scalable):
            queue = self.queues.of(workload)
            self._handovers.give_up(
                "/".join(workload.metadata.key),
                namespace=workload.metadata.namespace,
                cohort=self.cohort_of(queue),
                gpus=gpus,
                at=at,
            )
        if not _was_suspended(scalable):
            self.observe(
                Suspended(
                    namespace=workload.metadata.namespace,
                    reason=_REASONS.get(cause.reason, ""),
                    gpus=gpus,
                    idle_for=_idle_for(cause, at),
                )
            )

    def _activated(self, old: Workload, workload: Workload) -> None:
        cause, scalable = cause_of(old), self.cluster.scaler_of(workload)
        self._handovers.take_back("/".join(workload.metadata.key))
        if cause is None or scalable is None:
            return
        now = self.clock()
        self._resumed[scalable.metadata.uid] = now
        after = max(timedelta(0), now - cause.at) if cause.at is not None else None
        self.observe(Resumed(namespace=workload.metadata.namespace, reason=_REASONS.get(cause.reason, ""), after=after))

    def admitted(self, admitted: Admitted) -> None:
        """A gang was admitted: what it has of others, beside what a plan gave it."""
        workload = admitted.workload
        key, queue = "/".join(workload.metadata.key), self.queues.of(workload)
        planned = sum(entry.gpus for _, entry in self._entries() if entry.gang == key and not _is_lost(entry))
        receiver = Receiver(key=key, namespace=workload.metadata.namespace, cluster_queue=queue)
        left = max(0, admitted.gpus - planned)
        for gift in self._handovers.admit(receiver, cohort=self.cohort_of(queue), gpus=left, at=admitted.at):
            self.observe(gift)

    # ------------------------------------------------------------------------------------------ ScalableWorkloads

    def scalable_heard(self, change: Change[ScalableWorkload]) -> None:
        """Never raises."""
        old, new = change.old, change.new
        if new is None:
            if old is not None:
                self._resumed.pop(old.metadata.uid, None)
            return
        self._follow_ledger(old, new)
        asked_at = self._resumed.get(new.metadata.uid)
        if asked_at is not None and new.status.phase == Phase.RUNNING:
            del self._resumed[new.metadata.uid]
            self.observe(Running(after=max(timedelta(0), self.clock() - asked_at)))

    def _follow_ledger(self, old: ScalableWorkload | None, new: ScalableWorkload) -> None:
        before, entry = entry_of(old) if old is not None else None, entry_of(new)
        if entry is None or entry.stage is not Stage.ADMITTED or (before is not None and before.stage is entry.stage):
            return
        gift = self._gift(new, entry)
        if gift is None:
            return
        if not new.spec.replicas:
            self._handovers.hand(gift)
        if old is not None:  # what was there before this process was has been counted
            self.observe(gift)

    def _gift(self, scalable: ScalableWorkload, entry: Entry) -> Gift | None:
        """What the ledger says was given; None where the gang is gone, or nothing was given up for it."""
        namespace, _, name = entry.gang.partition("/")
        gang = self.cluster.workloads.get(namespace, name)
        giver = self.cluster.workload_of(scalable)
        if gang is None or giver is None or entry.releasing_at is None or entry.admitted_at is None:
            return None
        return Gift(
            giver="/".join(giver.metadata.key),
            receiver=entry.gang,
            flow=Flow(scalable.metadata.namespace, namespace, self.queues.of(gang), Through.PLAN),
            gpus=entry.gpus,
            after=entry.admitted_at - entry.releasing_at,
        )

    def _entries(self) -> list[tuple[ScalableWorkload, Entry]]:
        scalables = self.cluster.scalable_workloads.items()
        return [(each, entry) for each in scalables if each.status.reallocation and (entry := entry_of(each))]


def _is_for_a_plan(scalable: ScalableWorkload) -> bool:
    grant = grant_of(scalable)
    return grant is not None and not grant.is_withdrawn


def _was_suspended(scalable: ScalableWorkload) -> bool:
    """Whether its status knows of a suspension already that has not ended."""
    status = scalable.status
    return status.suspended_at is not None and (status.resumed_at is None or status.resumed_at < status.suspended_at)


def _idle_for(cause: Cause, at: datetime) -> timedelta | None:
    if cause.idle_since is None or cause.reason not in FOUND_IDLE:
        return None
    return max(timedelta(0), at - cause.idle_since)


def _is_lost(entry: Entry) -> bool:
    return entry.stage in {Stage.TAKEN, Stage.CANCELLED} or entry.releasing_at is None
