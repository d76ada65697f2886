"""What the scheduler can decide on one Workload, and the write that follows from it. Pure.

A write that would change nothing is none: a Workload that still lacks the same is not written, and told, again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from scaler.core.quota.preemption import Reason
from scaler.embedded.actions import Note, Patch, status_patch
from scaler.embedded.kinds import WORKLOAD, Json
from scaler.embedded.kueue import messages, states
from scaler.embedded.kueue.messages import Wait


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
    """The Workload has to go for another one."""

    workload: str
    by: str
    reason: Reason
    paths: tuple[str, str]
    """Of the queue that it goes for, and of the one in which it holds quota."""
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


def reserve(decision: Reserve, workload: Json, *, now: datetime) -> Patch | None:
    """Also one that needs no check is not admitted while it has an entry of one, from its last reservation, say."""
    queue, is_admitted = decision.queue, decision.is_admitted and not states.has_check_to_pass(workload)
    notes = [Note(reason="QuotaReserved", message=f"Quota reserved in ClusterQueue {queue}")]
    if is_admitted:
        notes.append(Note(reason="Admitted", message=f"Admitted by ClusterQueue {queue}"))
    reserved = states.reserved(workload, queue, decision.assignments, checks=not is_admitted, now=now)
    return status_patch(WORKLOAD, workload, reserved, *notes)


def preempt(decision: Preempt, victim: Json, preemptor: Json, *, now: datetime) -> Patch | None:
    message = messages.preempted(preemptor, decision.reason, decision.paths)
    compared = messages.compared(*decision.priorities)
    loss = messages.loss(victim, decision.paths)
    notes = (
        Note(reason="EvictedDueToPreempted", message=message),
        Note(reason="Preempted", message=f"{message}; {compared}"),
        Note(reason="PreemptedWorkload", message=f"{loss}; {compared}", about=preemptor),
    )
    return status_patch(WORKLOAD, victim, states.preempted(victim, decision.reason, message, now=now), *notes)


def postpone(decision: Postpone, workload: Json, *, now: datetime) -> Patch | None:
    reason, message = decision.why.reason, decision.why.message
    waiting = states.waiting(workload, reason, message, requests=decision.requests, now=now)
    return status_patch(WORKLOAD, workload, waiting, Note(reason=reason, message=message, type="Warning"))
