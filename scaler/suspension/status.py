"""The status of a ScalableWorkload: what it shall be, and whether that is worth a write. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from scaler.decision.candidate import HISTORY, HistoryLine, lines_of, shortened
from scaler.decision.decision import Decision, is_unknown, may_hide_work
from scaler.decision.describe import decision_status, is_warning_due, timestamp
from scaler.decision.reasons import CandidateState, row_of
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import MetadataError
from scaler.idleness.reasons import UnknownReason
from scaler.kube.objects.core import condition
from scaler.kube.objects.direct_scaling import DIRECT, DirectScaling
from scaler.kube.objects.idlegpu import ScalableWorkload, ScalableWorkloadStatus
from scaler.kube.objects.keda import ScaledObject
from scaler.targets.target_state import ObservedWorkload, Phase, TargetState

_SETTLED = {Phase.RUNNING: 1, Phase.SUSPENDED: 0}
"""Phases in which a ScalableWorkload is where it was asked to be, if it was asked to be at that number."""

_WORTH_A_WRITE = (
    *("observedGeneration", "replicas", "selector", "workloadName", "workloadUID", "phase", "verdict", "reason"),
    *("idleSince", "idleAtLeast", "suspendAt", "warnedAt", "suspendedAt", "resumedAt", "keepUntil", "state"),
)
"""Fields whose change is written at once. Message and evidence change with every tick and travel along."""


def selector_without_pods(scalable: ScalableWorkload) -> str:
    """A label selector that is not empty and matches no pod; empty for a record, which nothing scales.

    The HorizontalPodAutoscaler that KEDA creates refuses an empty one, and refuses the pods' own one where another
    autoscaler already selects them.
    """
    return "" if scalable.is_record else f"idlegpu.io/scalable-workload={scalable.metadata.uid}"


def desired_status(
    scalable: ScalableWorkload,
    state: TargetState,
    workload: ObservedWorkload | None,
    decision: Decision | None,
    *,
    line: HistoryLine | None,
    warned_at: datetime | None,
    is_evaluated: bool = True,
    scaled_by: ScaledObject | None = None,
    now: datetime,
) -> dict[str, Any]:
    """The whole status. An absent field is None, so that a merge patch removes it.

    `line` is what is added to its history, and `warned_at` when its owner was warned (`next_warned_at`). Before the
    first evaluation of this process nothing is said about a decision, so that the one in the status stays: it is the
    last of the process before, which KEDA may be acting on.
    """
    return {
        "observedGeneration": scalable.metadata.generation,
        "replicas": state.admitted_replicas,
        "selector": selector_without_pods(scalable) or None,
        "phase": str(state.phase),
        **_binding(scalable.status, workload),
        **(_decided(decision) if is_evaluated else {}),
        **_times(scalable, state, workload, now=now),
        "warnedAt": timestamp(warned_at),
        **(_entered(line, scalable.status.history) if line is not None else {}),
        "conditions": [_ready(scalable, state, now=now), *_direct(scalable, scaled_by, now=now)],
    }


def _entered(line: HistoryLine, known: Sequence[msgspec.Raw]) -> dict[str, Any]:
    """The state that it has entered, and the history with it."""
    lines = shortened([*lines_of(known), line], HISTORY)
    return {"state": line.state, "history": [msgspec.to_builtins(each) for each in lines]}


def last_line(history: Sequence[msgspec.Raw]) -> HistoryLine | None:
    """The last line; None where there is none that can be read."""
    return next(iter(lines_of(history[-1:])), None)


def _decided(decision: Decision | None) -> dict[str, Any]:
    idle_since, suspend_at = _quiet_times(decision)
    shown = decision_status(decision) | {"idleSince": timestamp(idle_since), "suspendAt": timestamp(suspend_at)}
    return shown if idle_since is not None else shown | {"idleAtLeast": None}


def _quiet_times(decision: Decision | None) -> tuple[datetime | None, datetime | None]:
    """The times from which its GPUs are quiet and until which they may be; both None before that is noticeable."""
    if decision is None or not decision.is_noticeably_quiet:
        return None, None
    return decision.idle_since, decision.suspend_at


def status_digest(decision: Decision | None) -> Hashable:
    """What of a decision is worth a write as soon as it changes; the rest travels along."""
    if decision is None:
        return None
    reason, keep_until = str(decision.answer.reason), decision.policy.keep_until
    return reason, _quiet_times(decision), is_warning_due(decision), keep_until


def _binding(status: ScalableWorkloadStatus, workload: ObservedWorkload | None) -> dict[str, Any]:
    """The Workload it is bound to; the last one stays named when it vanished, so that its absence means something."""
    if workload is None:
        return {"workloadName": status.workload_name or None, "workloadUID": status.workload_uid or None}
    return {"workloadName": workload.name, "workloadUID": workload.uid}


def _times(
    scalable: ScalableWorkload, state: TargetState, workload: ObservedWorkload | None, *, now: datetime
) -> dict[str, str | None]:
    suspended_at, resumed_at = state.suspended_at, scalable.status.resumed_at
    # An active Workload at 0 was recreated by Kueue, and is about to be deactivated again.
    is_active = scalable.is_record or (workload is not None and workload.active)
    if state.desired_replicas > 0 and is_active and suspended_at and (resumed_at is None or resumed_at < suspended_at):
        resumed_at = now
    return {"suspendedAt": timestamp(suspended_at), "resumedAt": timestamp(resumed_at)}


def next_warned_at(known: datetime | None, decision: Decision | None, *, now: datetime) -> datetime | None:
    """When its owner was warned of the suspension that is near, `now` where that is due; None as soon as work is seen.

    A warning that is a condition is also forgotten where work may not have been seen, and one that takes from a budget
    where it leads to nothing.
    """
    if decision is None:
        return known
    if decision.idle_since is None and is_unknown(decision):
        return None if decision.policy.warning is not None and may_hide_work(decision) else known
    if decision.idle_since is None:
        return None
    if decision.policy.has_budget and (row_of(decision.answer.reason).holds or decision.cannot_tell):
        return None
    if known and known >= decision.idle_since:
        return known
    return now.replace(microsecond=0) if is_warning_due(decision) else None


def _ready(scalable: ScalableWorkload, state: TargetState, *, now: datetime) -> dict[str, Any]:
    settled = _SETTLED.get(state.phase) == state.desired_replicas
    return _condition(scalable, "Ready", settled, str(state.phase), state.message, now=now)


def _direct(scalable: ScalableWorkload, scaled_by: ScaledObject | None, *, now: datetime) -> list[dict[str, Any]]:
    """Whether the leader scales one with `actuator: Direct`, or KEDA all the same; empty for any other."""
    if scalable.spec.actuator != DIRECT:
        return []
    if isinstance(scaled_by, DirectScaling):
        if problem := _problem(scaled_by):
            return [_condition(scalable, DIRECT, False, UnknownReason.INVALID_POLICY, problem, now=now)]
        return [_condition(scalable, DIRECT, True, "NoScaledObject", "replicas follow triggerMetadata", now=now)]
    which = scaled_by.metadata.name if scaled_by is not None else f"{scalable.metadata.name}, of the same name,"
    message = f"ScaledObject {which} exists: KEDA scales it, and triggerMetadata has no effect; delete one of the two"
    return [_condition(scalable, DIRECT, False, "ScaledByKEDA", message, now=now)]


def _problem(scaling: DirectScaling) -> str:
    """Why its metadata cannot be read; empty where it can."""
    try:
        parse_metadata(scaling.spec.triggers[0].metadata)
    except MetadataError as error:
        return str(error)
    return ""


def _condition(
    scalable: ScalableWorkload, name: str, is_true: bool, reason: str, message: str, *, now: datetime
) -> dict[str, Any]:
    word = "True" if is_true else "False"
    before = condition(scalable.status.conditions, name)
    since = before.last_transition_time if before and before.status == word else None
    return {
        "type": name,
        "status": word,
        "reason": str(reason),
        "message": message,
        "observedGeneration": scalable.metadata.generation,
        "lastTransitionTime": timestamp(since or now),
    }


def is_worth_writing(current: ScalableWorkloadStatus, desired: Mapping[str, Any]) -> bool:
    """Whether a field changed that is written without delay."""
    before = condition(current.conditions, DIRECT)
    direct = next((each["status"] for each in desired.get("conditions", ()) if each["type"] == DIRECT), None)
    is_other = direct != (before.status if before else None) or _is_warned_again(current, desired)
    return is_other or any(
        _written(current, name) != (desired[name] or None) for name in _WORTH_A_WRITE if name in desired
    )


def _is_warned_again(current: ScalableWorkloadStatus, desired: Mapping[str, Any]) -> bool:
    """Whether its owner is to be notified of a warning that is given again, which changes no state."""
    added, before = desired.get("history", [])[-1:], last_line(current.history)
    is_same = before is not None and added and before.state == added[0]["state"] == CandidateState.WARNED
    return bool(is_same) and before is not None and timestamp(before.at) != added[0]["at"]


def _written(status: ScalableWorkloadStatus, name: str) -> Any:
    value = getattr(status, _ATTRIBUTES[name])
    return timestamp(value) if isinstance(value, datetime) else value or None


_ATTRIBUTES = {
    name: "workload_uid" if name == "workloadUID" else "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    for name in _WORTH_A_WRITE
}
