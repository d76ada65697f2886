"""What a scheduling cycle has decided on each Workload, and the write that follows from it. Pure.

A write that would change nothing is none: a Workload that is pending for the same reason gets no further Event.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from scaler.kube.objects.resources import WORKLOAD
from scaler.quota.cycle import Considered, SchedulingCycle
from scaler.quota.model import QuotaPodSetAssignment, QuotaWorkload
from scaler.quota.node import QueueNode
from scaler.quota.nomination import Preempted
from scaler.quota.preemption.candidates import PreemptionReason
from scaler.quota.queues import CycleOutcome
from scaler.quota.snapshot import Snapshot
from scaler_sandbox.actions import Patch, RecordEvent, status_patch
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import messages, workload_status
from scaler_sandbox.kueue.messages import Wait, as_quantities, path, wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """The Workload gets quota."""

    workload: str
    """`namespace/name`."""
    queue: str
    assignments: tuple[Json, ...]
    is_admitted: bool
    """Whether that is all it needs, there being no checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """The Workload is preempted for another one."""

    workload: str
    by: str
    reason: PreemptionReason
    paths: tuple[str, str]
    """The paths of the preemptor's queue, and of the one in which it holds quota."""
    priorities: tuple[int, int]
    """The preemptor's and its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postpone:
    """The Workload was looked at and waits."""

    workload: str
    why: Wait
    requests: Mapping[str, Mapping[str, str]]
    """What it asks for, by pod set."""


Decision = Reserve | Preempt | Postpone


# ---------------------------------------------------------------------------------------------------- what was decided


def decisions_of(cycle: SchedulingCycle, snapshot: Snapshot) -> Iterator[Decision]:
    """What follows from the cycle, in the order in which it is to be written."""
    for gone in cycle.preempted:
        yield _preempted(gone, snapshot)
    for admitted in cycle.admitted:
        yield _reserved(admitted)
    for considered in cycle.considered:
        if considered.outcome is not CycleOutcome.ADMITTED:
            yield _postponed(considered, snapshot)


def _preempted(gone: Preempted, snapshot: Snapshot) -> Preempt:
    victim, preemptor = gone.workload, snapshot.workloads[gone.by]
    queues = snapshot.cluster_queue_of(preemptor), victim.held.cluster_queue
    to, out_of = (path(_node(name, snapshot)) for name in queues)
    return Preempt(
        workload=victim.key,
        by=gone.by,
        reason=gone.reason,
        paths=(to, out_of),
        priorities=(preemptor.priority, victim.priority),
    )


def _postponed(considered: Considered, snapshot: Snapshot) -> Postpone:
    workload = snapshot.workloads[considered.workload]
    queue = _node(considered.cluster_queue, snapshot)
    requests = zip(workload.pod_sets, workload.requests, strict=True)
    return Postpone(
        workload=workload.key,
        why=wait(considered, workload, queue.spec, snapshot.flavors),
        requests={pods.name: as_quantities(amounts) for pods, amounts in requests},
    )


def _node(queue: str, snapshot: Snapshot) -> QueueNode:
    tree = snapshot.tree_of(queue)
    if tree is None:
        raise ValueError(f"ClusterQueue {queue} is in no tree although a cycle has looked at it")
    return tree.queues[queue]


def _reserved(workload: QuotaWorkload) -> Reserve:
    return Reserve(
        workload=workload.key,
        queue=workload.held.cluster_queue,
        assignments=tuple(_assignment(each) for each in workload.held.assignments),
        is_admitted=workload.admitted,
    )


def _assignment(assignment: QuotaPodSetAssignment) -> Json:
    return {
        "name": assignment.name,
        "count": assignment.count,
        "flavors": dict(assignment.flavors),
        "resourceUsage": as_quantities(assignment.usage),
    }


# ------------------------------------------------------------------------------------------------- what is written then


def reserve(decision: Reserve, workload: Json, *, now: datetime) -> Patch | None:
    """The patch; a Workload that needs no check is not admitted while it has an entry of one, from before, say."""
    queue, is_admitted = decision.queue, decision.is_admitted and not workload_status.has_check_to_pass(workload)
    notes = [RecordEvent(reason="QuotaReserved", message=f"Quota reserved in ClusterQueue {queue}")]
    if is_admitted:
        notes.append(RecordEvent(reason="Admitted", message=f"Admitted by ClusterQueue {queue}"))
    reserved = workload_status.reserved(workload, queue, decision.assignments, checks=not is_admitted, now=now)
    return status_patch(WORKLOAD, workload, reserved, *notes)


def preempt(decision: Preempt, victim: Json, preemptor: Json, *, now: datetime) -> Patch | None:
    message = messages.preempted(preemptor, decision.reason, decision.paths)
    compared = messages.compared(*decision.priorities)
    loss = messages.loss(victim, decision.paths)
    notes = (
        RecordEvent(reason="EvictedDueToPreempted", message=message),
        RecordEvent(reason="Preempted", message=f"{message}; {compared}"),
        RecordEvent(reason="PreemptedWorkload", message=f"{loss}; {compared}", about=preemptor),
    )
    return status_patch(WORKLOAD, victim, workload_status.preempted(victim, decision.reason, message, now=now), *notes)


def postpone(decision: Postpone, workload: Json, *, now: datetime) -> Patch | None:
    reason, message = decision.why.reason, decision.why.message
    waiting = workload_status.waiting(workload, reason, message, requests=decision.requests, now=now)
    return status_patch(WORKLOAD, workload, waiting, RecordEvent(reason=reason, message=message, type="Warning"))
