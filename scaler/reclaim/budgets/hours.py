"""Is it within these hours, and when does that change? Weekdays and times of day, as a clock on the wall shows them.

Laws:

* A window is open while a clock in its time zone shows a time in it, from `begin` on and up to but not including `end`.
  Nothing else counts: the night on which clocks go forward shortens it or leaves it out, the night on which they go
  back may open it twice, and it is never open at an hour that it does not name.
* An `end` at or before `begin` is the next day's, and the weekday is the one on which it began.
* A time zone that cannot be read is an error and neither "open" nor "closed".

Worked example: Sat 22:00-06:00 in Europe/Berlin is open from Saturday 21:00 UTC to Sunday 05:00 UTC in winter, and on
28 March 2026 only to 04:00 UTC: clocks go forward in that night, and 06:00 comes an hour earlier.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo


class Weekday(StrEnum):
    """In the order of `date.weekday`."""

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
        days = "" if len(self.days) == len(_WEEK) else ",".join(day for day in _WEEK if day in self.days) + " "
        end = f"{self.end:%H:%M}" if self.end > time(0) else "24:00"
        return f"{days}{self.begin:%H:%M}-{end} {self.zone}"


def is_open(windows: Sequence[Hours], at: datetime) -> bool:
    """Whether any of them is open. Raises: ValueError where a time zone cannot be read."""
    # All are asked: a zone that cannot be read must show at every hour, and not only while the others are closed.
    answers = [window.is_open(at) for window in windows]
    return any(answers)


def next_change(windows: Sequence[Hours], at: datetime) -> datetime | None:
    """The first instant after `at` at which they open, or close; None where that is not within two weeks."""
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
    # A name that is unknown, that leads out of the database, or that is a folder there: each is another error.
    except (KeyError, ValueError, OSError):
        raise ValueError(f"time zone {name!r} cannot be read; write an IANA name such as 'Europe/Berlin'") from None
