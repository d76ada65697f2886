"""The status that 0.1.0 has written in annotations of a ScaledObject, where its target has none.

It is read until the ScaledObject has a record (`targets/records.py`), and goes with the next version. Tenants may write
it, so of a history no more counts than its last state, without words, and that its suspension was set back, as often as
leaves it alone for an hour. No message is made of it: what is notified of is entered anew.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from scaler.decision.candidate import HistoryLine, quiet_of
from scaler.decision.reasons import CandidateState
from scaler.documents import UNREADABLE
from scaler.kube.objects.core import without_defaults
from scaler.kube.objects.idlegpu import BeforeSuspendStatus, ScalableWorkloadStatus
from scaler.targets.workloads import MARK_PREFIX, annotated_marks, hook_run_of, instant_of

_PREFIX = "idlegpu.io/"
_HISTORY, _WARNED_AT, _HOOK_RUN = f"{_PREFIX}history", f"{_PREFIX}warned-at", f"{_PREFIX}before-suspend"


_BEFORE: Mapping[str, str] = {
    CandidateState.SUSPENDED: str(CandidateState.SUSPENDING),
    CandidateState.WARNED: str(CandidateState.IDLE),
}
"""The states that come before those of which owners are notified."""


def old_annotations(annotations: Mapping[str, str]) -> dict[str, None]:
    """Those that are to be removed."""
    return {key: None for key in annotations if key in (_HISTORY, _WARNED_AT, _HOOK_RUN) or key.startswith(MARK_PREFIX)}


def annotated_status(annotations: Mapping[str, str], now: datetime) -> ScalableWorkloadStatus:
    """Empty where nothing of it can be read."""
    if not old_annotations(annotations):
        return ScalableWorkloadStatus()
    history, warned = _history(annotations.get(_HISTORY, "[]"), now), instant_of(annotations.get(_WARNED_AT, ""))
    quiet = quiet_of(history, until=now)
    return ScalableWorkloadStatus(
        state=history[-1].state if history else "",
        history=tuple(msgspec.Raw(msgspec.json.encode(each)) for each in history),
        warned_at=warned if warned is not None and warned <= now else None,
        idle_since=quiet.since if quiet is not None else None,
        idle_at_least=quiet is not None,
        before_suspend=_hook_run(annotations.get(_HOOK_RUN, "")),
        notified=annotated_marks(annotations),
    )


def as_json(status: ScalableWorkloadStatus) -> dict[str, Any]:
    """What is in it, to be written."""
    found: dict[str, Any] = without_defaults(msgspec.structs.replace(status, history=()))
    history = [msgspec.json.decode(each) for each in status.history]
    return found | ({"history": history} if history else {})


def _history(text: str, now: datetime) -> list[HistoryLine]:
    try:
        lines = msgspec.json.decode(text, type=list[HistoryLine])
    except UNREADABLE:
        return []
    found = [line for line in lines if line.at.tzinfo is not None and line.state in {*CandidateState}]
    kept = [*[line for line in found[:-1] if line.times][-1:], *found[-1:]]
    return [
        HistoryLine(min(line.at, now), _BEFORE.get(line.state, line.state), times=min(line.times, 2)) for line in kept
    ]


def _hook_run(text: str) -> BeforeSuspendStatus | None:
    try:
        found = msgspec.json.decode(text, type=BeforeSuspendStatus) if text else None
    except UNREADABLE:
        return None
    return found if hook_run_of(found) is not None else None
