"""What owners write on their objects: keep it, wake it. Pure.

| annotation             | value                                             | meaning                               |
|------------------------|---------------------------------------------------|---------------------------------------|
| `idlegpu.io/wake`      | `true`, or the time of the request (RFC 3339)     | come back, once                       |
| `idlegpu.io/keep-until`| a time (RFC 3339)                                 | not suspended for being idle until then |

Both are read from the ScaledObject and from the ScalableWorkload that it scales. A wake-up with a time counts only if
it is younger than the suspension, so that one that was left behind does not undo the next suspension.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from scaler.errors import MetadataError
from scaler.idleness.policy import Overrides

WAKE_ANNOTATION = "idlegpu.io/wake"
KEEP_UNTIL = "idlegpu.io/keep-until"

_NO = frozenset({"", "false", "no", "0"})


def wake_request(annotations: Mapping[str, str], *, where: str, suspended_at: datetime | None) -> str:
    """What requests the wake-up, in words; empty where nothing does."""
    value = annotations.get(WAKE_ANNOTATION, "").strip()
    if value.lower() in _NO:
        return ""
    asked_at = _time(value)
    if asked_at is not None and suspended_at is not None and asked_at <= suspended_at:
        return ""
    return f"annotation {WAKE_ANNOTATION} on {where}"


def keep_overrides(annotations: Mapping[str, str], *, where: str) -> Overrides:
    """The policy field that the keep annotation sets.

    Raises: MetadataError for a value that is no time. A typo in a keep annotation must not suspend the workload,
    so the caller must not decide without it.
    """
    value = annotations.get(KEEP_UNTIL, "").strip()
    if not value:
        return Overrides()
    until = _time(value)
    if until is None:
        raise MetadataError(
            f"annotation {KEEP_UNTIL} on {where}: {value!r} is not a time; "
            "write it with its zone, such as '2026-12-24T18:00:00Z'"
        )
    return Overrides(keep_until=until)


def _time(text: str) -> datetime | None:
    """The instant in UTC, or None for what is no instant: neither time nor zone are guessed."""
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else None
    except (ValueError, OverflowError):
        return None
