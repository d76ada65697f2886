"""Why does a gang wait? Every reason that holds, the first of them being the one that counts. Pure.

Quota is counted as in `reclaim.search.quota_requirement`: by the sums, with the fewest pods that it starts with.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from scaler.admission.controller import AdmissionReport
from scaler.decision.describe import timestamp
from scaler.kube.objects.core import condition
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.quantity import UNLIMITED, as_text
from scaler.quota.cycle import Considered
from scaler.quota.from_objects.workloads import ADMISSION_GATED_BY_ANNOTATION, requeue_at_of
from scaler.quota.model import FlavorResource, QueueingStrategy, QuotaWorkload, StopPolicy
from scaler.quota.node import QueueNode
from scaler.quota.queues import CycleOutcome
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.search.requirements import QuotaRequirement
from scaler.reclaim.search.values import NoPlan, NoPlanReason, ReclaimPlan
from scaler.reporting.views.snapshot import ViewSnapshot


class WaitingReason(StrEnum):
    """Reasons of its own; those about plans and queues are `NoPlanReason`."""

    PLAN_UNDER_WAY = "PlanUnderWay"
    EVICTED = "Evicted"
    CHECKS = "WaitingForAdmissionChecks"
    NOT_QUEUED = "NotQueued"
    QUOTA = "WaitingForQuota"
    KEPT = "QuotaReservedForOther"
    QUEUED = "Queued"


class ReportedReasons:
    """Why each Workload waits, as the controllers of this replica have reported last, by `namespace/name`.

    `diagnose` finds the same more precisely, for one Workload; this costs nothing for thousands.
    """

    def __init__(self) -> None:
        self._plans: dict[str, str] = {}
        """The plans' messages, of which earlier ones hold: not every report of plans is about every Workload."""
        self._checks: dict[str, str] = {}

    def planned(self, report: ReclaimReport) -> None:
        under_way = WaitingReason.PLAN_UNDER_WAY
        self._plans = {key: reason for key, reason in self._plans.items() if reason != under_way}
        self._plans |= {each.gang: str(each.why) for each in report.refused}
        self._plans |= {plan.grant.gang: under_way for plan in report.active}
        self._plans |= {plan.gang: under_way for plan in report.made}

    def checked(self, report: AdmissionReport) -> None:
        self._checks = {each.key: str(change.because) for each, change in report.plan.changes if each.is_pending}

    def forget(self) -> None:
        self._plans, self._checks = {}, {}

    def keep(self, keys: Collection[str]) -> None:
        self._plans = {key: reason for key, reason in self._plans.items() if key in keys}

    def of(self, key: str, *, has_quota: bool) -> str:
        if has_quota:
            return self._checks.get(key, WaitingReason.CHECKS)
        return self._plans.get(key, WaitingReason.QUOTA)


class ReasonMessage(NamedTuple):
    reason: WaitingReason | NoPlanReason
    message: str


class FlavorShortage(NamedTuple):
    """What one flavor has of what the gang needs."""

    key: FlavorResource
    wanted: int
    """What all its pods want that may use the flavor."""
    available: int
    most: int
    """The most that its queue could ever get, borrowing included."""
    refusal: str
    """Why its pods may not use the flavor; empty where they may."""

    @property
    def lacking(self) -> int:
        return max(0, self.wanted - self.available)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    reasons: Sequence[ReasonMessage]
    """The first one is the one that counts."""
    lines: Sequence[FlavorShortage] = ()
    position: int | None = None
    """Its place in its ClusterQueue, from 1; None where it is not queued."""
    before: Sequence[QuotaWorkload] = ()
    """The Workloads before it there, in order."""
    queue: QueueNode | None = None


def diagnose(
    snapshot: ViewSnapshot,
    gang: QuotaWorkload,
    observed: KueueWorkload | None,
    found: ReclaimPlan | NoPlan | None = None,
    heads: Sequence[Considered] = (),
) -> Diagnosis:
    """`found` is what the planner says of it, where it was asked; `heads` what Kueue's next cycle does in its tree."""
    queue = snapshot.queue(snapshot.cluster_queue_of(gang))
    why: dict[WaitingReason | NoPlanReason, str] = {}
    if plan := snapshot.plan_for(gang):
        why[WaitingReason.PLAN_UNDER_WAY] = f"plan {plan.grant.plan} suspends {', '.join(plan.grant.victims)}"
    if gang.reservation is not None:
        why[WaitingReason.EVICTED if gang.evicted else WaitingReason.CHECKS] = _with_quota(snapshot, gang, observed)
        return Diagnosis(reasons=_holding(why), queue=queue)
    if queue is not None and not gang.may_queue:
        why[WaitingReason.NOT_QUEUED] = f"Kueue keeps it out of its queue: {_why_out(observed)}"
    why[NoPlanReason.QUEUE_STOPPED] = _why_stopped(snapshot, gang, queue)
    remote = snapshot.remote_copies.get(gang.key, "")
    if queue is None:
        return Diagnosis(reasons=_holding(why))
    line = list(snapshot.lines.get(queue.name, ()))
    position = next((place for place, each in enumerate(line, start=1) if each.key == gang.key), None)
    before = line[: position - 1] if position else []
    count, tree = QuotaRequirement.of(gang, queue, snapshot.world.flavor_options), snapshot.tree_by_queue[queue.name]
    lines = flavor_shortages(snapshot, gang, queue)
    if not count.could_ever_fit(tree):
        why[NoPlanReason.NEVER_FITS] = _why_never(snapshot, gang, queue, lines)
    else:
        is_short = not count.fits(tree)
        why[NoPlanReason.REMOTE_COPY] = remote if isinstance(remote, str) and is_short else ""
        why[NoPlanReason.HEAD_OF_LINE_BLOCKED] = _why_blocked(queue, before)
        short = [_in_words(line) for line in lines if line.refusal or line.lacking]
        short += _apart([(line, line.available) for line in lines])
        why[WaitingReason.QUOTA] = "; ".join(short) if is_short else ""
    reasons = _holding(why) or [_though_it_fits(gang, queue, found, position, heads)]
    return Diagnosis(reasons=reasons, lines=lines, position=position, before=before, queue=queue)


def _holding(messages: Mapping[WaitingReason | NoPlanReason, str]) -> list[ReasonMessage]:
    """The reasons that hold: the others have no message."""
    return [ReasonMessage(reason, message) for reason, message in messages.items() if message]


# ------------------------------------------------------------------------------------------------ while it holds quota


def _with_quota(snapshot: ViewSnapshot, gang: QuotaWorkload, observed: KueueWorkload | None) -> str:
    if gang.evicted:
        return _words_of(observed, "Evicted") or "it loses its quota"
    checks, ours = observed.status.admission_checks if observed is not None else (), snapshot.checks.reasons(gang.key)
    # A check of ours is shown by its reason here, and its message beside this.
    why = {each.name: ours.get(each.name) or each.message for each in checks if each.state != "Ready"}
    open_checks = [
        f"check {each.name} is {each.state or 'Pending'}{f': {why[each.name]}' if why[each.name] else ''}"
        for each in checks
        if each.name in why
    ]
    waits = "; ".join(open_checks) or _words_of(observed, "Admitted") or "Kueue has not admitted it yet"
    return f"quota of {gang.held.cluster_queue} is reserved since {timestamp(gang.held.at)}; {waits}"


def _words_of(observed: KueueWorkload | None, kind: str) -> str:
    found = condition(observed.status.conditions, kind) if observed is not None else None
    return found.message if found is not None else ""


# ------------------------------------------------------------------------------------------------ before it is queued-


def _why_out(observed: KueueWorkload | None) -> str:
    if observed is None:
        return "for a reason that is not known"
    gate, until = observed.metadata.annotations.get(ADMISSION_GATED_BY_ANNOTATION), requeue_at_of(observed)
    if gate:
        return f"annotation {ADMISSION_GATED_BY_ANNOTATION}: {gate}"
    requeued = condition(observed.status.conditions, "Requeued")
    if requeued is not None and requeued.status == "False":
        return f"Requeued is False ({requeued.reason}): {requeued.message}"
    if until is not None:
        return f"it backs off until {timestamp(until)}"
    return _words_of(observed, "QuotaReserved") or _words_of(observed, "WaitingForReplacementPods") or "it is on hold"


def _why_stopped(snapshot: ViewSnapshot, gang: QuotaWorkload, queue: QueueNode | None) -> str:
    local = snapshot.world.local_queue(gang.namespace, gang.queue)
    if local is None:
        return f"there is no LocalQueue {gang.namespace}/{gang.queue}" if gang.queue else "it names no LocalQueue"
    if queue is None:
        return f"LocalQueue {local.name} leads to ClusterQueue {local.cluster_queue}, which cannot be scheduled"
    if local.stop_policy is not StopPolicy.NONE:
        return f"LocalQueue {local.name} is stopped ({local.stop_policy})"
    if not queue.spec.schedules:
        why = queue.spec.inactive_because or f"stopPolicy is {queue.spec.stop_policy}"
        return f"ClusterQueue {queue.name} admits nothing: {why}"
    if not snapshot.world.admits_namespace(queue.spec, gang.namespace):
        return f"ClusterQueue {queue.name} does not select namespace {gang.namespace}"
    return ""


# ------------------------------------------------------------------------------------------------------ while queued-


def _why_blocked(queue: QueueNode, before: Sequence[QuotaWorkload]) -> str:
    if queue.spec.strategy is not QueueingStrategy.STRICT_FIFO or not before:
        return ""
    others = f", and {len(before) - 1} more are before it" if len(before) > 1 else ""
    head = f"Workload {before[0].key} (priority {before[0].priority}) is its head{others}"
    return f"ClusterQueue {queue.name} is StrictFIFO; {head}"


def _why_never(snapshot: ViewSnapshot, gang: QuotaWorkload, queue: QueueNode, lines: Sequence[FlavorShortage]) -> str:
    demand = snapshot.world.flavor_options.demand(gang.pod_sets, queue.spec)
    undeclared = sorted({step.undeclared for pods in demand.pod_sets for step in pods.steps if step.undeclared})
    without = [f"ClusterQueue {queue.name} has no quota for {resource}" for resource in undeclared]
    short = [_never_in_words(line) for line in lines if line.refusal or line.wanted > line.most]
    return "; ".join([*without, *short, *_apart([(line, line.most) for line in lines])])


def _never_in_words(line: FlavorShortage) -> str:
    most, wanted = (as_text(line.key.resource, each) for each in (line.most, line.wanted))
    needs = f"flavor {line.key.flavor} could give {most} of {wanted} {line.key.resource} at most, borrowing included"
    return line.refusal or needs


def _apart(amounts: Iterable[tuple[FlavorShortage, int]]) -> list[str]:
    """What is to be said where all flavors together have as much of everything as is needed."""
    wanted: dict[str, int] = {}
    had: dict[str, int] = {}
    for line, amount in amounts:
        resource = line.key.resource
        wanted[resource] = max(wanted.get(resource, 0), line.wanted)
        had[resource] = had.get(resource, 0) + (0 if line.refusal else amount)
    return [_FROM_ONE] if all(had[resource] >= amount for resource, amount in wanted.items()) else []


_FROM_ONE = "together they have enough, but a PodSet takes each resource from one flavor"


def _in_words(line: FlavorShortage) -> str:
    if line.refusal:
        return line.refusal
    amounts = (line.wanted, line.available, line.lacking)
    wanted, available, lacking = (as_text(line.key.resource, each) for each in amounts)
    return f"flavor {line.key.flavor} lacks {lacking} of {wanted} {line.key.resource} ({available} available)"


def _though_it_fits(
    gang: QuotaWorkload,
    queue: QueueNode,
    found: ReclaimPlan | NoPlan | None,
    position: int | None,
    heads: Sequence[Considered],
) -> ReasonMessage:
    """Why it is not in although the sums say that it could be."""
    keepers = _keepers(gang, heads)
    if keepers:
        message = f"what it needs is available, but Kueue keeps it for {', '.join(keepers)}"
        return ReasonMessage(WaitingReason.KEPT, message)
    if isinstance(found, NoPlan) and found.why is not NoPlanReason.FITS_ALREADY:
        return ReasonMessage(found.why, found.message)
    place = f"it is number {position} in {queue.name}" if position else f"Kueue has not taken it into {queue.name} yet"
    return ReasonMessage(WaitingReason.QUEUED, f"what it needs is available; {place}")


def _keepers(gang: QuotaWorkload, heads: Sequence[Considered]) -> list[str]:
    """The heads that have their turn before it, and for which Kueue keeps quota that they do not get yet."""
    place = next((place for place, each in enumerate(heads) if each.workload == gang.key), 0)
    if not heads or heads[place].workload != gang.key or heads[place].outcome is not CycleOutcome.SKIPPED:
        return []
    return [each.workload for each in heads[:place] if each.outcome in _KEEPING]


_KEEPING = frozenset({CycleOutcome.NO_CANDIDATES, CycleOutcome.PENDING_PREEMPTION, CycleOutcome.ADMITTED})


def flavor_shortages(snapshot: ViewSnapshot, gang: QuotaWorkload, queue: QueueNode) -> list[FlavorShortage]:
    """GPUs by flavor, and of other resources those that lack something."""
    fewest = [replace(each, count=each.min_count or each.count) for each in gang.pod_sets]
    wanted: dict[FlavorResource, int] = {}
    refusals: dict[FlavorResource, str] = {}
    for pods in snapshot.world.flavor_options.demand(fewest, queue.spec).pod_sets:
        for option in (option for step in pods.steps for option in step.options):
            for key, amount in option.amounts:
                wanted[key] = wanted.get(key, 0) + (0 if option.refusal else amount)
                refusals.setdefault(key, option.refusal)
                if not option.refusal:
                    refusals[key] = ""
    found = [
        FlavorShortage(key, amount, queue.available(key), min(max(0, queue.potential(key)), UNLIMITED), refusals[key])
        for key, amount in wanted.items()
    ]
    return [line for line in found if snapshot.gpus.matches(line.key.resource) or line.lacking]


def pending_since(gang: QuotaWorkload) -> datetime:
    """It waits for quota since it was queued, for checks since it holds quota."""
    return gang.queued_at if gang.reservation is None else gang.held.at
