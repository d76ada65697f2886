"""Durations as people write them: `30m`, `1h30m`, `90s`, `500ms`, `2d`."""

import re
from datetime import timedelta
from functools import lru_cache

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


LONGEST_DURATION = timedelta(days=30)
"""The samples kept in memory reach back as far as the longest `idleAfter` of any tenant, so there has to be a limit."""


def parse_duration(text: str) -> timedelta:
    """The duration that the text means.

    Raises: ValueError with an example of how to write it; OverflowError for one that no calendar holds. A bare number
    is refused because its unit is a guess.
    """
    compact = text.strip()
    if not _WHOLE.fullmatch(compact):
        raise ValueError(f"{text!r} is not a duration; {_suggestion(compact)}")
    milliseconds = sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(compact))
    return timedelta(milliseconds=milliseconds)


def _suggestion(text: str) -> str:
    words = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if not words:
        return "write for example '30m', '90s' or '1h30m'"
    number, unit = words.groups()
    letter = "ms" if unit.startswith(("ms", "milli")) else unit[:1] if unit[:1] in _UNITS_MS else "s"
    return f"write '{number}{letter}'"


@lru_cache(maxsize=1024)
def format_duration(duration: timedelta) -> str:
    """The duration in the largest units that express it, at most two of them: `1h30m`, `45s`, `1d2h`, `250ms`."""
    milliseconds = round(duration.total_seconds() * 1000)
    if milliseconds == 0:
        return "0s"
    sign, milliseconds = ("-", -milliseconds) if milliseconds < 0 else ("", milliseconds)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts[:2])
