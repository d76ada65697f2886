"""How Workloads stand with our AdmissionChecks and what was asked of autoscalers for them, as JSON. Pure.

What the entry says is what stands in the API, for everybody to see. `reason` and `finds` are what is found at this
moment: the entry follows within seconds, and only the leader writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from scaler.admission.check import CheckChange, Yielded
from scaler.admission.plan import AdmissionPlan, CheckedWorkload
from scaler.admission.provisioning.lifecycle import LOST, ObservedRequest, ProvisioningStep, StepKind
from scaler.admission.provisioning.requests import entry_of
from scaler.decision.describe import timestamp
from scaler.idleness.durations import format_duration
from scaler.kube.objects.core import Condition
from scaler.kube.objects.kueue_workloads import AdmissionCheckState
from scaler.kube.objects.nodes import ProvisioningRequest

Json = dict[str, Any]

SHOWN = 5
"""Gangs before one that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """A Workload that holds quota, with one of our checks."""

    planned: CheckedWorkload
    before: Sequence[str] = ()
    """Keys of the first of those that wait for nodes and come before it, in their order."""
    more_before: int = 0
    unknown_requests: str = ""
    """Why ProvisioningRequests are not known; empty where they are."""

    @property
    def check(self) -> str:
        return self.planned.check

    @property
    def waiting(self) -> CheckedWorkload | None:
        """None of one that does not wait, or that is released at this moment."""
        return self.planned if self.planned.is_pending else None

    @property
    def change(self) -> CheckChange | None:
        """What its check state is to be, of one that waits."""
        change = self.planned.change
        return change if self.planned.is_pending and isinstance(change, CheckChange) else None

    @property
    def reason(self) -> str:
        """What it waits for; empty where it is not known to wait."""
        return str(self.change.because) if self.change is not None else ""


ChecksByWorkload = Mapping[str, Sequence[CheckView]]
"""By key of the Workload, with one for each of our checks that it has."""


def checks_by_workload(plan: AdmissionPlan) -> ChecksByWorkload:
    """All Workloads that have quota and a check of ours, whether they wait or were released."""
    line = _line(plan.pending)
    found: dict[str, list[CheckView]] = {}
    for each in plan.workloads:
        place = line.get(each.key, 0) if each.is_pending and each.placement is not None else 0
        view = CheckView(
            planned=each,
            before=list(islice(line, min(place, SHOWN))),
            more_before=max(0, place - SHOWN),
            unknown_requests=plan.unknown_requests,
        )
        found.setdefault(each.key, []).append(view)
    return found


def _line(waiting: Iterable[CheckedWorkload]) -> Mapping[str, int]:
    """Those that wait for nodes, in the order in which nodes are reserved, each with how many come before it."""
    ordered = sorted((each for each in waiting if each.placement is not None), key=_turn)
    return {key: place for place, key in enumerate(dict.fromkeys(each.key for each in ordered))}


def _turn(each: CheckedWorkload) -> tuple[bool, datetime | None, str]:
    """As in `PlacementRequest.turn`."""
    return not each.step.is_booked, each.reserved_at, each.uid


def check_view(view: CheckView, now: datetime) -> Json:
    """One check of one Workload."""
    planned, change = view.planned, view.change
    entry = entry_of(planned.workload, planned.check) or AdmissionCheckState(name=planned.check)
    return {
        "check": view.check,
        "policy": planned.policy_name or None,
        "state": entry.state or "Pending",
        "message": entry.message or None,
        "since": timestamp(entry.last_transition_time),
        "heldSince": timestamp(planned.reserved_at),
        "reason": view.reason or None,
        "finds": change.message if change is not None else None,
        "before": list(view.before),
        "beforeOmitted": view.more_before,
        "yielded": _yielded(planned.reserved.yielded),
        "provisioning": _provisioning(view, now),
    }


def _yielded(yielded: Yielded | None) -> Json | None:
    """That it gave its quota back, and until when it keeps what it has."""
    if yielded is None:
        return None
    return {
        "to": yielded.to,
        "at": timestamp(yielded.at),
        "times": yielded.times,
        "notAgainBefore": timestamp(yielded.until),
    }


# -------------------------------------------------------------------------------------------------- asking for nodes


def _provisioning(view: CheckView, now: datetime) -> Json | None:
    """None where nodes are not asked for, and never were."""
    planned = view.planned
    asking = planned.provisioning_policy
    if asking is None and not planned.requests:
        return None
    read = sorted(planned.observed, key=lambda each: (each.attempt, each.name))
    newest = read[-1] if read else None
    step = planned.step if planned.is_pending else None
    eta = newest.eta if newest is not None else None
    return {
        "className": asking.provisioning_class if asking else newest and newest.spec.provisioning_class,
        "state": str(step.kind) if step is not None else None,
        "message": (step.message if step is not None else "") or view.unknown_requests or None,
        "attempt": newest.attempt if newest is not None else 0,
        "attemptsAllowed": asking.retry.limit + 1 if asking else None,
        "nextAttemptAt": timestamp(_next_attempt_at(step, newest)),
        "atLimit": str(asking.at_limit) if asking else None,
        "eta": timestamp(eta),
        "etaIn": format_duration(timedelta(seconds=int((eta - now).total_seconds()))) if eta and eta > now else None,
        "requests": [_request(each, planned.requests[each.name]) for each in read],
    }


def _next_attempt_at(step: ProvisioningStep | None, newest: ObservedRequest | None) -> datetime | None:
    """When a pause is over; None where nothing is paused, or there is no further attempt."""
    if step is None or step.kind not in (StepKind.BACK_OFF, StepKind.WAIT):
        return None
    return step.until if newest is None or newest.state in LOST else None


def _request(request: ObservedRequest, found: ProvisioningRequest) -> Json:
    return {
        "name": request.name,
        "className": request.spec.provisioning_class,
        "attempt": request.attempt,
        "pods": sum(each.count for each in found.spec.pod_sets),
        "createdAt": timestamp(found.metadata.creation_timestamp),
        "state": str(request.state),
        "since": timestamp(request.since),
        "reason": request.reason or None,
        "message": request.message or None,
        "eta": timestamp(request.eta),
        "isEnding": request.is_ending,
        "details": dict(found.status.provisioning_class_details),
        "conditions": [_condition(each) for each in found.status.conditions],
    }


def _condition(found: Condition) -> Json:
    return {
        "type": found.type,
        "status": found.status,
        "reason": found.reason or None,
        "message": found.message or None,
        "since": timestamp(found.last_transition_time),
    }
