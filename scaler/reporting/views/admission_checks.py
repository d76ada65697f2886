"""How Workloads stand with our AdmissionChecks and what was asked of autoscalers for them, as JSON. Pure.

`state` and `message` are those of the API. `reason` and `finds` are computed now: the API follows within seconds, and
only the leader writes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice

from scaler.admission.check import CheckChange, CheckEntry, Yielded
from scaler.admission.plan import CheckedWorkload
from scaler.admission.provisioning.lifecycle import LOST, ObservedRequest, ProvisioningStep, StepKind
from scaler.decision.describe import timestamp
from scaler.idleness.durations import format_duration
from scaler.kube.objects.core import Condition
from scaler.kube.objects.nodes import ProvisioningRequest
from scaler.reporting.views import Json

SHOWN = 5
"""Gangs before one that are named."""


@dataclass(frozen=True)
class CheckViews:
    """Workloads that have quota and a check of ours, whether they wait or were released."""

    workloads: Sequence[CheckedWorkload] = ()
    unknown_requests: str = ""
    """Why ProvisioningRequests are not known; empty where they are."""

    @cached_property
    def _by_key(self) -> Mapping[str, Sequence[CheckedWorkload]]:
        found: dict[str, list[CheckedWorkload]] = {}
        for each in self.workloads:
            found.setdefault(each.key, []).append(each)
        return found

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """The places of Workloads that wait for nodes, in the order of reservation (`PlacementRequest.turn`)."""
        waiting = (each for each in self.workloads if each.is_pending and each.placement is not None)
        ordered = sorted(waiting, key=lambda each: (not each.step.is_booked, each.reserved_at, each.uid))
        return {key: place for place, key in enumerate(dict.fromkeys(each.key for each in ordered))}

    def reasons(self, key: str) -> Mapping[str, str]:
        found = {each.check: _change(each) for each in self._by_key.get(key, ())}
        return {check: str(change.because) for check, change in found.items() if change is not None}

    def of(self, key: str, now: datetime) -> list[Json]:
        return [self._view(each, now) for each in self._by_key.get(key, ())]

    def _view(self, checked: CheckedWorkload, now: datetime) -> Json:
        change = _change(checked)
        entry = checked.reserved.entry or CheckEntry(state="")
        is_in_line = checked.is_pending and checked.placement is not None
        place = self._places.get(checked.key, 0) if is_in_line else 0
        return {
            "check": checked.check,
            "policy": checked.policy_name or None,
            "state": entry.state or "Pending",
            "message": entry.message or None,
            "since": timestamp(entry.since),
            "heldSince": timestamp(checked.reserved_at),
            "reason": str(change.because) if change is not None else None,
            "finds": change.message if change is not None else None,
            "before": list(islice(self._places, min(place, SHOWN))),
            "beforeOmitted": max(0, place - SHOWN),
            "yielded": _yielded(checked.reserved.yielded),
            "provisioning": _provisioning(checked, now, unknown_requests=self.unknown_requests),
        }


def _change(checked: CheckedWorkload) -> CheckChange | None:
    """What its check state is to be, of one that waits; None of one that is released at this moment."""
    change = checked.change if checked.is_pending else None
    return change if isinstance(change, CheckChange) else None


def _yielded(yielded: Yielded | None) -> Json | None:
    """It gave its quota back, and keeps what it has until `notAgainBefore`."""
    if yielded is None:
        return None
    return {
        "to": yielded.to,
        "at": timestamp(yielded.at),
        "times": yielded.times,
        "notAgainBefore": timestamp(yielded.until),
    }


# -------------------------------------------------------------------------------------------------- asking for nodes


def _provisioning(planned: CheckedWorkload, now: datetime, *, unknown_requests: str) -> Json | None:
    """The view of its requests; None where nodes are not asked for, and never were."""
    policy = planned.provisioning_policy
    if policy is None and not planned.requests:
        return None
    read = sorted(planned.observed, key=lambda each: (each.attempt, each.name))
    newest = read[-1] if read else None
    step = planned.step if planned.is_pending else None
    eta = newest.eta if newest is not None else None
    return {
        "className": policy.provisioning_class if policy else newest and newest.spec.provisioning_class,
        "state": str(step.kind) if step is not None else None,
        "message": (step.message if step is not None else "") or unknown_requests or None,
        "attempt": newest.attempt if newest is not None else 0,
        "attemptsAllowed": policy.retry.limit + 1 if policy else None,
        "nextAttemptAt": timestamp(_next_attempt_at(step, newest)),
        "atLimit": ("Yield" if policy.yields_at_limit else "Hold") if policy else None,
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
