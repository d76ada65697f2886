"""How Workloads stand with our AdmissionChecks and what was asked of autoscalers for them, as JSON. Pure.

What the entry says is what stands in the API, for everybody to see. `reason` and `finds` are what is found at this
moment: the entry follows within seconds, and only the leader writes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from scaler.core.durations import format_duration
from scaler.core.gate_policy import GatePolicy, ProvisioningPolicy
from scaler.core.gate_values import Yielded
from scaler.core.provisioning import LOST, Kind, Request
from scaler.kube.kueue_objects import CheckState
from scaler.kube.objects import Condition
from scaler.kube.provisioning_objects import ProvisioningRequest
from scaler.kueue.provisioning_requests import request_of
from scaler.loops.gate_cases import Standing
from scaler.loops.gate_checks import Policy
from scaler.loops.projection import timestamp
from scaler.loops.provisioning import Progress

Json = dict[str, Any]

SHOWN = 5
"""Gangs before one that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """A Workload that holds quota, with one of our checks."""

    check: str
    entry: CheckState
    reserved_at: datetime | None
    policy_name: str
    """The ReclaimPolicy; empty where the check names none."""
    policy: Policy
    yielded: Yielded | None = None
    standing: Standing | None = None
    """None of one that does not wait, or that is let go at this moment."""
    before: Sequence[str] = ()
    """Keys of the first of those that wait for nodes and come before it, in their order."""
    more_before: int = 0
    requests: Sequence[ProvisioningRequest] = ()
    trouble: str = ""
    """Why nobody sees requests; empty where they are seen."""

    @property
    def reason(self) -> str:
        """What it waits for; empty where it is not known to wait."""
        return str(self.standing.answer.because) if self.standing is not None else ""

    @property
    def asking(self) -> ProvisioningPolicy | None:
        """How nodes are asked for; None where they are not."""
        return self.policy.provisioning if isinstance(self.policy, GatePolicy) else None


Gates = Mapping[str, Sequence[Gated]]
"""By key of the Workload, with one for each of our checks that it has an entry of."""


class Gatekeepers(Protocol):
    """Who knows. An Onlooker does."""

    async def look(self, now: datetime) -> Gates:
        """All Workloads that have quota and an entry of ours, whether they wait or were let go."""


def gate_view(gated: Gated, now: datetime) -> Json:
    """One check of one Workload."""
    entry, standing = gated.entry, gated.standing
    return {
        "check": gated.check,
        "policy": gated.policy_name or None,
        "state": entry.state or "Pending",
        "message": entry.message or None,
        "since": timestamp(entry.last_transition_time),
        "heldSince": timestamp(gated.reserved_at),
        "reason": gated.reason or None,
        "finds": standing.answer.message if standing is not None else None,
        "before": list(gated.before),
        "beforeOmitted": gated.more_before,
        "yielded": _yielded(gated.yielded),
        "provisioning": _provisioning(gated, now),
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


def _provisioning(gated: Gated, now: datetime) -> Json | None:
    """None where nodes are not asked for, and never were."""
    asking = gated.asking
    if asking is None and not gated.requests:
        return None
    read = sorted(
        ((request_of(each), each) for each in gated.requests), key=lambda pair: (pair[0].attempt, pair[0].name)
    )
    newest = read[-1][0] if read else None
    progress = gated.standing.progress if gated.standing is not None else None
    eta = newest.eta if newest is not None else None
    return {
        "className": asking.provisioning_class if asking else newest and newest.ask.provisioning_class,
        "state": str(progress.kind) if progress is not None else None,
        "message": (progress.message if progress is not None else "") or gated.trouble or None,
        "attempt": newest.attempt if newest is not None else 0,
        "attemptsAllowed": asking.retry.limit + 1 if asking else None,
        "nextAttemptAt": timestamp(_next_attempt_at(progress, newest)),
        "atLimit": str(asking.at_limit) if asking else None,
        "eta": timestamp(eta),
        "etaIn": format_duration(timedelta(seconds=int((eta - now).total_seconds()))) if eta and eta > now else None,
        "requests": [_request(*each) for each in read],
    }


def _next_attempt_at(progress: Progress | None, newest: Request | None) -> datetime | None:
    """When a pause is over; None where nothing is paused, or there is no further attempt."""
    if progress is None or progress.kind not in (Kind.BACK_OFF, Kind.WAIT):
        return None
    return progress.until if newest is None or newest.state in LOST else None


def _request(request: Request, found: ProvisioningRequest) -> Json:
    return {
        "name": request.name,
        "className": request.ask.provisioning_class,
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
