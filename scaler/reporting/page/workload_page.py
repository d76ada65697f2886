"""Everything about one workload on a page: where it stands, its history, and its time line. Pure.

What cannot be read is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from scaler.decision.candidate import HistoryLine, lines_of
from scaler.decision.decision_cache import EvaluatedScaledObject
from scaler.errors import QueryError
from scaler.idleness.durations import format_duration, parse_duration
from scaler.idleness.policy import Policy
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.suspension.keeps import Keep, keeps_of

_MOST_KEEPS = 8
_SHORTEST, _LONGEST = timedelta(seconds=10), timedelta(days=2)
_WINDOWS = 12
"""Windows that are shown at first: of half an hour, six hours."""


def history_lines(record: ScalableWorkload | None, mask: Callable[[str], str] = str) -> list[HistoryLine]:
    """The oldest first. `mask` takes out of texts what may not be seen."""
    found = lines_of(record.status.history) if record is not None else []
    return [replace(each, message=mask(each.message)) for each in found]


def recorded_keeps(scaled_object: ScaledObject | None) -> list[Keep]:
    """Uses of a policy that limits them, the newest first."""
    found: Iterable[Keep] = ()
    if scaled_object is not None:
        found = keeps_of(scaled_object.metadata.annotations)
    usable = [each for each in found if 1970 < each.at.year < 9999]
    return sorted(usable[-_MOST_KEEPS:], key=lambda each: each.at, reverse=True)


# ------------------------------------------------------------------------------------------------------ what is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpans:
    """How much of the time is shown, and what else there is to choose."""

    shown: timedelta
    offered: Sequence[timedelta]

    @classmethod
    def of(cls, text: str, policy: Policy) -> "TimeSpans":
        """Raises: QueryError for what is no duration, or too short or too long."""
        usual = min(_LONGEST, max(timedelta(minutes=1), _WINDOWS * policy.window))
        offered = dict.fromkeys(min(_LONGEST, each) for each in (usual / 4, usual, 4 * usual))
        return cls(shown=_span(text) if text else usual, offered=list(offered))


def _span(text: str) -> timedelta:
    try:
        span = parse_duration(text[:20])
    except (ValueError, OverflowError):
        raise QueryError(f"span={text[:20]!r} is not a duration; write for example '6h'", status=400) from None
    if not _SHORTEST <= span <= _LONGEST:
        limits = f"from {format_duration(_SHORTEST)} to {format_duration(_LONGEST)}"
        raise QueryError(f"span={text[:20]!r}: write a duration {limits}", status=400)
    return span


def owner_of(
    entry: EvaluatedScaledObject, scaled_object: ScaledObject | None, scalable: ScalableWorkload | None
) -> str:
    """The job that owns the ScaledObject, or that is scaled, or else its target, by kind and name."""
    owners = scaled_object.metadata.owner_references if scaled_object is not None else ()
    job = scalable.spec.job_ref if scalable is not None else None
    for each in (*owners[:1], *([job] if job is not None else ())):
        return f"{each.kind}/{each.name}"
    return str(entry.target)
