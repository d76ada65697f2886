"""How is a field of a policy written as text? Each one of `Policy` carries its `PolicyField`.

Trigger metadata, the definitions of IdlePolicies, `explain` and the docs' tables are made of these. Every reader raises
ValueError, saying what is wrong and what to write.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from scaler.idleness.durations import LONGEST_DURATION, format_duration, parse_duration
from scaler.idleness.hours import parse_day_times, parse_hours

LONGEST_VALUE = 60
"""Characters. No sensible value is longer, and an error that repeats it has to fit a gRPC trailer and an Event."""
LONGEST_LIST = 500
"""Characters of a value with several parts."""


@dataclass(frozen=True, slots=True)
class Kind:
    parse: Callable[[str], Any]
    written: str
    """What may be written, for the docs."""
    longest: int = LONGEST_VALUE
    words: type[StrEnum] | None = None
    """All that may be written."""


@dataclass(frozen=True, slots=True)
class PolicyField:
    key: str
    """The key in trigger metadata."""
    kind: Kind
    example: str
    path: str | None = None
    """The path in the spec of an IdlePolicy, if it is not the key; empty where it is not there."""

    def read(self, text: str) -> Any:
        """Raises: ValueError."""
        if not text:
            raise ValueError(f"the value is empty; write for example {self.example!r} or leave the key out")
        if len(text) > self.kind.longest:
            raise ValueError(f"{clipped(text)} is too long to be a value; write for example {self.example!r}")
        return self.kind.parse(text)

    @property
    def place(self) -> list[str]:
        """The names on the way to it in the spec; none where it is not there."""
        return (self.key if self.path is None else self.path).split(".") if self.path != "" else []


def written(key: str, kind: Kind, example: str, path: str | None = None) -> Mapping[str, PolicyField]:
    """The metadata of a field that is written so."""
    return {"written": PolicyField(key, kind, example, path)}


def clipped(text: str) -> str:
    return repr(text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…")


# ------------------------------------------------------------------------------------------------------ what is read


def duration(text: str) -> timedelta:
    try:
        found = parse_duration(text)
    except OverflowError:
        found = timedelta.max
    if found > LONGEST_DURATION:
        raise ValueError(f"{text!r} is too long; write at most '{format_duration(LONGEST_DURATION)}'")
    return found


def positive_duration(text: str) -> timedelta:
    found = duration(text)
    if not found:
        raise ValueError(f"{text!r} leaves no time to be idle in; write a duration above 0, for example '30m'")
    return found


_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)(\s*%)?")


def percentage(text: str) -> float:
    """The ratio 0..1 that a percentage means."""
    match = _NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a percentage; write for example '1%'")
    share, sign = match.groups()
    if not sign:
        raise ValueError(f"{text!r} is ambiguous without a % sign; write for example '1%'")
    ratio = float(share) / 100
    if not 0 < ratio <= 1:
        raise ValueError(f"{text!r} is out of range; write a percentage above 0% and up to 100%")
    return ratio


def number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,2}", text):
        raise ValueError(f"{text!r} is not a number up to 99; write for example '3'")
    return int(text)


def yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is unknown; write 'true' or 'false'")
    return text == "true"


def names(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(","))
    if not all(found):
        raise ValueError(f"{text!r} has an empty name; write for example '*@example.com, alice'")
    return found


def hook_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", text):
        raise ValueError(f"{text!r} is no name of a hook; write one of the settings' hooks, such as 'checkpoint'")
    return text


def one_of(words: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        try:
            return words(text)
        except ValueError:
            raise ValueError(f"{text!r} is unknown; write {' or '.join(repr(str(each)) for each in words)}") from None

    return parse


_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE
)


def instant(text: str) -> datetime:
    """The instant in UTC, so that however it is written it is one and the same policy."""
    try:
        if _RFC3339.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is not an RFC 3339 time with a zone; write for example '2026-12-01T18:00:00Z'")


# ------------------------------------------------------------------------------------------------------------- kinds

DURATION = Kind(duration, "a duration; `0s` for none")
LASTING = Kind(positive_duration, "a duration above 0: `30m`, `1h30m`")
PERCENTAGE = Kind(percentage, "a percentage above 0 %, with its sign")
NUMBER = Kind(number, "a number up to 99")
NAMES = Kind(names, "names separated by commas, `*` for any text: `*@example.com, anna`", LONGEST_LIST)
YES_OR_NO = Kind(yes_or_no, "`true`, `false`")
HOOK = Kind(hook_name, "the name of a hook: `checkpoint`")
INSTANT = Kind(instant, "RFC 3339 with a zone: `2026-12-24T18:00:00Z`")
HOURS = Kind(parse_hours, "hours with their time zone, several by `;`: `Mon-Fri 19:00-07:00 UTC`", LONGEST_LIST)
DAY_TIMES = Kind(parse_day_times, "times of day with their time zone: `Mon-Fri 08:00 Europe/Berlin`", LONGEST_LIST)


def words(known: type[StrEnum]) -> Kind:
    """One of these."""
    return Kind(one_of(known), ", ".join(f"`{each}`" for each in known), words=known)
