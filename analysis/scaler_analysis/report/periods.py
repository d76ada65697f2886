"""Which periods is a range of time cut into, and what of it is known? Pure.

Periods are hours, quarters of a day, or days in UTC, whatever the range begins with: the same day is asked about in the
same words whoever asks, and a day that is over is asked about once. Prometheus is never asked for more than a day.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LONGEST_RANGE = 400 * DAY
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, order=True)
class Period:
    begin: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        return self.end - self.begin

    @property
    def is_round(self) -> bool:
        """Whether other ranges have it as well: it begins at a multiple of its own length, such as a day at 0:00."""
        return (self.begin - _EPOCH) % self.length == timedelta(0)


def range_until(end: datetime, since: timedelta) -> Period:
    """The range in whole minutes. Raises: ValueError for one that is too short or too long."""
    if not HOUR <= since <= LONGEST_RANGE:
        raise ValueError("a report is about at least 1h and at most 400d")
    end = _EPOCH + (end - _EPOCH) // MINUTE * MINUTE
    return Period(end - since // MINUTE * MINUTE, end)


def periods_of(whole: Period) -> list[Period]:
    """
    | the range lasts | periods begin at                  |
    |-----------------|-----------------------------------|
    | up to 12 hours  | every hour                        |
    | up to 3 days    | 0:00, 6:00, 12:00 and 18:00       |
    | longer          | 0:00                              |

    and where the range begins.
    """
    step = HOUR if whole.length <= 12 * HOUR else 6 * HOUR if whole.length <= 3 * DAY else DAY
    begins = [whole.begin, *_multiples(whole, step)]
    return [Period(begin, end) for begin, end in zip(begins, [*begins[1:], whole.end], strict=True)]


def _multiples(whole: Period, step: timedelta) -> Iterator[datetime]:
    at = _EPOCH + ((whole.begin - _EPOCH) // step + 1) * step
    while at < whole.end:
        yield at
        at += step


def gaps_in(period: Period, known: Iterable[datetime], *, step: timedelta = MINUTE) -> list[Period]:
    """The times of which nothing is known; each known instant stands for the step that begins with it."""
    gaps, at = list[Period](), period.begin
    for instant in sorted(known):
        if instant > at:
            gaps.append(Period(at, instant))
        at = instant + step
    return gaps if at >= period.end else [*gaps, Period(at, period.end)]


def joined(gaps: Sequence[Period]) -> list[Period]:
    """The gaps in order, those that follow each other as one."""
    found: list[Period] = []
    for each in sorted(gaps):
        if found and each.begin <= found[-1].end:
            found[-1] = Period(found[-1].begin, max(found[-1].end, each.end))
        else:
            found.append(each)
    return found
