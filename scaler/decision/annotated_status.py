"""The status that 0.1.0 has written in annotations of a ScaledObject, where its target has none.

It is read until the ScaledObject has a record (`targets/records.py`), and goes with the next version. Tenants may write
it, so of a history no more counts than its last state, without words. No message is made of it: what is notified of is
entered anew. What cannot be read, or has no place in a record, is left out.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
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


_MOST_MARKS, _LONGEST_NAME, _LONGEST_MESSAGE = 64, 40, 200
"""What the definition of a record has room for."""
_BEFORE: Mapping[str, str] = {
    CandidateState.SUSPENDED: str(CandidateState.SUSPENDING),
    CandidateState.WARNED: str(CandidateState.IDLE),
}
"""The states that come before those of which owners are notified."""


def old_annotations(annotations: Mapping[str, str]) -> dict[str, None]:
    """The annotations that are to be removed."""
    return {key: None for key in annotations if key in (_HISTORY, _WARNED_AT, _HOOK_RUN) or key.startswith(MARK_PREFIX)}


def annotated_status(annotations: Mapping[str, str], now: datetime) -> ScalableWorkloadStatus:
    """Empty where nothing of it can be read."""
    if not old_annotations(annotations):
        return ScalableWorkloadStatus()
    line, warned = _last_line(annotations.get(_HISTORY, "[]"), now), instant_of(annotations.get(_WARNED_AT, ""))
    quiet = quiet_of([line], until=now) if line is not None else None
    return ScalableWorkloadStatus(
        state=line.state if line is not None else "",
        history=(msgspec.Raw(msgspec.json.encode(line)),) if line is not None else (),
        warned_at=warned if warned is not None and warned <= now else None,
        idle_since=quiet.since if quiet is not None else None,
        idle_at_least=quiet is not None,
        before_suspend=_hook_run(annotations.get(_HOOK_RUN, ""), now),
        notified=dict([*annotated_marks(annotations).items()][:_MOST_MARKS]),
    )


def as_json(status: ScalableWorkloadStatus) -> dict[str, Any]:
    """What is in it, to be written."""
    found: dict[str, Any] = without_defaults(msgspec.structs.replace(status, history=(), evidence=()))
    raw = {"history": status.history, "evidence": status.evidence}
    return found | {name: [msgspec.json.decode(each) for each in lines] for name, lines in raw.items() if lines}


def _last_line(text: str, now: datetime) -> HistoryLine | None:
    try:
        last = msgspec.json.decode(text, type=list[HistoryLine])[-1:]
    except UNREADABLE:
        return None
    for line in last:
        if (at := _past(line.at, now)) is not None and line.state in {*CandidateState}:
            return HistoryLine(at, _BEFORE.get(line.state, line.state))
    return None


def _hook_run(text: str, now: datetime) -> BeforeSuspendStatus | None:
    try:
        found = msgspec.json.decode(text, type=BeforeSuspendStatus) if text else None
        run = hook_run_of(found)
    except (*UNREADABLE, OverflowError):
        return None
    if found is None or run is None or run.started_at > now or len(run.hook) > _LONGEST_NAME:
        return None
    return msgspec.structs.replace(found, message=found.message[:_LONGEST_MESSAGE])


def _past(at: datetime, now: datetime) -> datetime | None:
    """The time in UTC, and not after now; None where it has no zone, or is beyond the calendar."""
    try:
        return min(at.astimezone(UTC), now) if at.tzinfo is not None else None
    except OverflowError:
        return None
