"""What an owner reads: which workload, since when, on what evidence, what happens when, and how to answer. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scaler.decision.describe import timestamp
from scaler.decision.reasons import CandidateState
from scaler.notifications.evidence import Sparkline, evidence_lines
from scaler.notifications.notice import Notice
from scaler.notifications.schedule import Message
from scaler.notifications.senders import Content

_IN_FULL = 20
"""Notices of a message with evidence and answers; of all others there is a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What is known of a workload when its owner is notified."""

    idle_since: datetime | None = None
    idle_at_least: bool = False
    """Whether that is a bound."""
    suspend_at: datetime | None = None
    gpus: int = 0
    signals: tuple[Sparkline, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    """The links by what they do: `keep`, `exclude` or `wake`."""


DetailsOf = Mapping[str, Details]
"""The details by the id of the notice."""


def content(message: Message, details: DetailsOf) -> Content:
    return Content(
        id=message.id,
        owner=message.owner,
        subject=_subject(message),
        text=_text(message, details),
        json={
            "id": message.id,
            "owner": message.owner,
            "notices": [_json(each, details.get(each.id, Details())) for each in message.notices],
        },
    )


def _subject(message: Message) -> str:
    first, more = message.notices[0], len(message.notices) - 1
    return f"[idle GPUs] {_headline(first)}" + (f" and {more} more" if more else "")


_HEADLINES = {
    CandidateState.WARNED: "{} will be suspended",
    CandidateState.SUSPENDED: "{} is suspended",
    CandidateState.WAKING: "{} resumes",
}


def _headline(notice: Notice) -> str:
    return _HEADLINES[CandidateState(notice.line.state)].format(notice.workload)


def _text(message: Message, details: DetailsOf) -> str:
    full = [_paragraph(each, details.get(each.id, Details())) for each in message.notices[:_IN_FULL]]
    short = [f"{timestamp(each.line.at)} {_headline(each)}" for each in message.notices[_IN_FULL:]]
    return "\n\n".join([*full, *(["\n".join(short)] if short else []), f"Owner: {message.owner}", ""])


def _paragraph(notice: Notice, known: Details) -> str:
    return "\n".join([f"{timestamp(notice.line.at)} {_headline(notice)}", *_lines(notice, known)])


def _lines(notice: Notice, known: Details) -> Iterable[str]:
    workload, line = notice.workload, notice.line
    yield f"  {line.reason}: {line.message}" if line.message else f"  {line.reason}"
    if line.by:
        yield f"  asked for by {line.by}"
    gpus = f"{known.gpus} GPUs " if known.gpus else "GPUs "
    if known.idle_since is not None and line.state != CandidateState.WAKING:
        yield f"  {gpus}idle {'at least ' * known.idle_at_least}since {timestamp(known.idle_since)}"
    yield from (f"  {each}" for each in evidence_lines(known.signals))
    name = f"{workload.namespace}/{workload.name}"
    if line.state == CandidateState.WARNED:
        due = timestamp(known.suspend_at)
        yield f"  suspended at {due} unless its GPUs work before" if due else "  suspended when its GPUs are needed"
        yield f"  to keep it: {known.links.get('keep') or f'kubectl idlegpu keep {name} --for 4h'}"
        yield f"  to exclude it from suspension: {known.links.get('exclude') or f'kubectl idlegpu exclude {name}'}"
    elif line.state == CandidateState.SUSPENDED:
        yield f"  to resume it: {known.links.get('wake') or f'kubectl idlegpu wake {name}'}"


def _json(notice: Notice, known: Details) -> dict[str, Any]:
    workload, line = notice.workload, notice.line
    shown = {
        "id": notice.id,
        "state": line.state,
        "at": timestamp(line.at),
        "reason": line.reason,
        "message": line.message,
        "by": line.by or None,
        "namespace": workload.namespace,
        "scaledObject": workload.name,
        "kind": workload.kind,
        "name": workload.target_name,
        "uid": workload.uid,
        "idleSince": timestamp(known.idle_since),
        "idleAtLeast": known.idle_at_least,
        "suspendAt": timestamp(known.suspend_at),
        "gpus": known.gpus or None,
        "links": dict(known.links) or None,
        "signals": [
            {
                "name": each.name,
                "begin": timestamp(each.begin),
                "end": timestamp(each.end),
                "floorPercent": round(100 * each.floor_ratio, 3),
                "peakPercents": [None if peak is None else round(100 * peak, 2) for peak in each.peaks],
                "bars": each.bars,
            }
            for each in known.signals
        ]
        or None,
    }
    return {key: value for key, value in shown.items() if value is not None}
