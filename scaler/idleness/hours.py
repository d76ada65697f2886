"""Is it within these hours, and when does that change? Weekdays and times of day, as a clock on the wall shows them.

Written `Mon,Tue 19:00-07:00 Europe/Berlin`, or `Mon-Fri 08:00 Europe/Berlin` for a time of day; several are separated
by `;`. Without days it is every day.

Laws:

* A window is open while a clock in its time zone shows a time in it, from `begin` on and up to but not including `end`.
  Nothing else counts: the night on which clocks go forward shortens it or leaves it out, the night on which they go
  back may open it twice, and it is never open at an hour that it does not name.
* An `end` at or before `begin` is the next day's, and the weekday is the one on which it began.
* A time zone that cannot be read is an error and neither "open" nor "closed".

Worked example: Sat 22:00-06:00 in Europe/Berlin is open from Saturday 21:00 UTC to Sunday 05:00 UTC in winter, and on
28 March 2026 only to 04:00 UTC: clocks go forward in that night, and 06:00 comes an hour earlier.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo


class Weekday(StrEnum):
    """The days in the order of `date.weekday`."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


_WEEK = tuple(Weekday)
_DAY = timedelta(days=1)
_HORIZON_DAYS = 15
"""Days looked ahead for a change: two weeks, because clocks that go forward can leave out a window of once a week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """One window. From 00:00 to 00:00 is the whole day."""

    days: frozenset[Weekday] = frozenset(Weekday)
    begin: time = time(0)
    end: time = time(0)
    zone: str = "UTC"
    """IANA name."""

    def is_open(self, at: datetime) -> bool:
        """Raises: ValueError where the time zone cannot be read."""
        wall = at.astimezone(read_zone(self.zone))
        shown, today = wall.time(), wall.date()
        if self.begin < self.end:
            return self.begin <= shown < self.end and self._begins_on(today)
        return (shown >= self.begin and self._begins_on(today)) or (shown < self.end and self._begins_on(today - _DAY))

    def _begins_on(self, day: date) -> bool:
        return _WEEK[day.weekday()] in self.days

    def __str__(self) -> str:
        end = f"{self.end:%H:%M}" if self.end > time(0) else "24:00"
        return f"{_shown(self.days)}{self.begin:%H:%M}-{end} {self.zone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTime:
    """A time of day on some days. One that the clock leaves out is as much later; one shown twice is the first."""

    days: frozenset[Weekday] = frozenset(Weekday)
    at: time
    zone: str = "UTC"
    """IANA name."""

    def instants(self, around: datetime) -> Iterator[datetime]:
        """The instants of eight days before and after, in order. Raises: ValueError for an unreadable time zone."""
        zone = read_zone(self.zone)
        today = around.astimezone(zone).date()
        for day in (today + n * _DAY for n in range(-8, 9)):
            if _WEEK[day.weekday()] in self.days:
                yield datetime.combine(day, self.at, zone).astimezone(UTC)

    def __str__(self) -> str:
        return f"{_shown(self.days)}{self.at:%H:%M} {self.zone}"


def _shown(days: Collection[Weekday]) -> str:
    return "" if len(days) == len(_WEEK) else ",".join(day for day in _WEEK if day in days) + " "


@lru_cache(maxsize=256)
def latest(times: tuple[DayTime, ...], now: datetime) -> datetime | None:
    """The last of them that is not after `now`. Raises: ValueError where a time zone cannot be read."""
    return max((at for each in times for at in each.instants(now) if at <= now), default=None)


@lru_cache(maxsize=256)
def following(times: tuple[DayTime, ...], now: datetime) -> datetime | None:
    """The first of them after `now`. Raises: ValueError where a time zone cannot be read."""
    return min((at for each in times for at in each.instants(now) if at > now), default=None)


def parse_hours(text: str) -> tuple[Hours, ...]:
    """Raises: ValueError saying what is wrong and what to write."""
    return tuple(_parse_hours(each) for each in _parts(text, "Mon-Fri 19:00-07:00 Europe/Berlin"))


def parse_day_times(text: str) -> tuple[DayTime, ...]:
    """Raises: ValueError saying what is wrong and what to write."""
    return tuple(_parse_day_time(each) for each in _parts(text, "Mon-Fri 08:00 Europe/Berlin"))


_CLOCK = r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9]"
_HOURS = re.compile(rf"(?:(?P<days>[A-Z]\S*) )?(?P<begin>{_CLOCK})-(?P<end>{_CLOCK}|24:00) (?P<zone>\S+)")
_DAY_TIME = re.compile(rf"(?:(?P<days>[A-Z]\S*) )?(?P<at>{_CLOCK}) (?P<zone>\S+)")


def _parts(text: str, example: str) -> list[str]:
    parts = [" ".join(each.split()) for each in text.split(";")]
    if not all(parts):
        raise ValueError(f"{text!r} has an empty part; write for example {example!r}")
    return parts


def _parse_hours(text: str) -> Hours:
    found = _HOURS.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} are no hours; write for example 'Mon-Fri 19:00-07:00 Europe/Berlin'")
    begin, end = parse_time(found["begin"]), parse_time("0:00" if found["end"] == "24:00" else found["end"])
    if begin == end != time(0):
        raise ValueError(f"{text!r} begins and ends at the same time; write '00:00-24:00' for whole days")
    read_zone(found["zone"])
    return Hours(days=_parse_days(found["days"]), begin=begin, end=end, zone=found["zone"])


def _parse_day_time(text: str) -> DayTime:
    found = _DAY_TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time of day; write for example 'Mon-Fri 08:00 Europe/Berlin'")
    read_zone(found["zone"])
    return DayTime(days=_parse_days(found["days"]), at=parse_time(found["at"]), zone=found["zone"])


def parse_time(text: str) -> time:
    """The time of day that `9:00` means. Raises: ValueError."""
    if not re.fullmatch(_CLOCK, text):
        raise ValueError(f"{text!r} is not a time of day; write for example '22:00', with quotes")
    hour, _, minute = text.partition(":")
    return time(int(hour), int(minute))


def _parse_days(text: str | None) -> frozenset[Weekday]:
    """The days of `Mon,Wed-Fri`, which may go on over the end of the week."""
    if text is None:
        return frozenset(Weekday)
    days: set[Weekday] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            begin, end = _WEEK.index(Weekday(first)), _WEEK.index(Weekday(last or first))
        except ValueError:
            raise ValueError(f"{part!r} is no day; write Mon, Tue, Wed, Thu, Fri, Sat, Sun, or Mon-Fri") from None
        days |= {_WEEK[(begin + n) % len(_WEEK)] for n in range((end - begin) % len(_WEEK) + 1)}
    return frozenset(days)


def is_open(windows: Sequence[Hours], at: datetime) -> bool:
    """Whether any of them is open. Raises: ValueError where a time zone cannot be read."""
    # All are asked: a zone that cannot be read must show at every hour, and not only while the others are closed.
    answers = [window.is_open(at) for window in windows]
    return any(answers)


def first_open(windows: Sequence[Hours], at: datetime) -> datetime | None:
    """`at` while one is open, or else when the first one opens; None where that is not within two weeks."""
    return at if is_open(windows, at) else next_change(windows, at)


def next_change(windows: Sequence[Hours], at: datetime) -> datetime | None:
    """The first instant after `at` at which they open, or close; None where that is not within two weeks."""
    return _next_change(tuple(windows), at)


@lru_cache(maxsize=256)
def _next_change(windows: tuple[Hours, ...], at: datetime) -> datetime | None:
    now_open = is_open(windows, at)
    instants = {instant for window in windows for instant in _possible_changes(window, at)}
    return next((each for each in sorted(instants) if each > at and is_open(windows, each) is not now_open), None)


def _possible_changes(window: Hours, at: datetime) -> Iterator[datetime]:
    """Every instant at which the clock shows its begin or end, or is itself changed."""
    zone = read_zone(window.zone)
    first = at.astimezone(zone).date()
    for day in (first + n * _DAY for n in range(_HORIZON_DAYS)):
        for shown in (window.begin, window.end):
            for fold in (0, 1):
                yield datetime.combine(day, shown, zone).replace(fold=fold).astimezone(UTC)
        noon = datetime.combine(day, time(12), zone).astimezone(UTC)
        yield from _clock_changes(zone, noon - _DAY, noon)


def _clock_changes(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    """When the clock is put forward or back between the two instants, to the second."""
    offset = begin.astimezone(zone).utcoffset()
    if offset == end.astimezone(zone).utcoffset():
        return
    while end - begin > timedelta(seconds=1):
        middle = begin + timedelta(seconds=(end - begin) // timedelta(seconds=2))
        begin, end = (middle, end) if middle.astimezone(zone).utcoffset() == offset else (begin, middle)
    yield end


def read_zone(name: str) -> ZoneInfo:
    """The time zone. Raises: ValueError for a name that no time zone database here knows."""
    try:
        return ZoneInfo(name)
    # An unknown name, one that leads out of the database and one that is a folder there raise different errors.
    except (KeyError, ValueError, OSError):
        raise ValueError(f"time zone {name!r} cannot be read; write an IANA name such as 'Europe/Berlin'") from None
