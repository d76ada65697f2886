"""Which messages are due now? Grouped for each owner, limited for each owner, tried again within bounds. Pure.

| of one (target, owner)                                       | is sent                                     |
|--------------------------------------------------------------|---------------------------------------------|
| its oldest pending notice is younger than `group_for`        | nothing yet: others may join it             |
| `per_owner_per_hour` messages were delivered within the hour | nothing until one of them is an hour old    |
| the last attempt has failed                                  | nothing until `retry_base` × 2ⁿ, at most `retry_max` |
| else                                                         | one message with all that is pending        |

Whatever waits joins the next message, in the order in which it happened, so nothing is lost by a limit. The hour is
counted by the marks in the API as well, so a restart does not begin it anew.

Worked example: groupFor 1m, 6 an hour. 200 workloads of a team are warned between 10:00:00 and 10:00:40: one message at
10:01:00 has all of them. Its receiver fails: tried again at 10:01:30, 10:02:30, 10:04:30 …, with whatever has happened
since.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from scaler.notifications.notice import Notice, message_id

COUNTED = timedelta(hours=1)
"""How long a delivery counts for the limit of its owner."""
_MOST_DOUBLINGS = 30

Channel = tuple[str, str]
"""(target, owner)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    group_for: timedelta
    per_owner_per_hour: int
    retry_base: timedelta
    retry_max: timedelta
    give_up_after: timedelta
    """No message is sent of older lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one message of one target to one owner has."""

    target: str
    owner: str
    notices: tuple[Notice, ...]
    """The oldest first."""

    @property
    def id(self) -> str:
        return message_id(self.notices)

    @property
    def channel(self) -> Channel:
        return self.target, self.owner


@dataclass(frozen=True, slots=True)
class _Failure:
    attempts: int
    again_at: datetime


class Schedule:
    """Remembers attempts and deliveries of this process; what must outlive it is in the API."""

    def __init__(self, limits: DeliveryLimits) -> None:
        self._limits = limits
        self._failures: dict[Channel, _Failure] = {}
        self._delivered: dict[Channel, set[datetime]] = {}

    def due(self, notices: Iterable[Notice], now: datetime) -> list[Message]:
        """The messages that are to be sent now."""
        by_channel = groupby(sorted(notices, key=_place), key=lambda each: each.channel)
        found = [(channel, tuple(group)) for channel, group in by_channel]
        waiting = {channel for channel, _ in found}
        self._failures = {each: failure for each, failure in self._failures.items() if each in waiting}
        self._forget_before(now - COUNTED)
        return [
            Message(target=channel[0], owner=channel[1], notices=group)
            for channel, group in found
            if self._is_due(channel, group, now)
        ]

    def _is_due(self, channel: Channel, group: Sequence[Notice], now: datetime) -> bool:
        failure = self._failures.get(channel)
        return (
            now - group[0].line.at >= self._limits.group_for
            and (failure is None or now >= failure.again_at)
            and len(self._delivered.get(channel, ())) < self._limits.per_owner_per_hour
        )

    def count(self, channel: Channel, delivered_at: datetime) -> None:
        """A message of that moment was delivered, by this process or by one before."""
        self._delivered.setdefault(channel, set()).add(delivered_at.astimezone(UTC).replace(microsecond=0))

    def delivered(self, channel: Channel, now: datetime) -> None:
        self._failures.pop(channel, None)
        self.count(channel, now)

    def failed(self, channel: Channel, now: datetime, *, retry_after: timedelta = timedelta(0)) -> datetime:
        """When it is tried again. What the receiver asks for is respected up to the longest wait."""
        attempts = self._failures[channel].attempts + 1 if channel in self._failures else 1
        limits, doublings = self._limits, min(attempts - 1, _MOST_DOUBLINGS)
        wait = min(limits.retry_max, max(limits.retry_base * (1 << doublings), retry_after))
        self._failures[channel] = _Failure(attempts, now + wait)
        return now + wait

    def _forget_before(self, at: datetime) -> None:
        kept = {channel: {each for each in times if each > at} for channel, times in self._delivered.items()}
        self._delivered = {channel: times for channel, times in kept.items() if times}


def _place(notice: Notice) -> tuple[Channel, datetime]:
    """Sorting is stable: lines of one workload within one second stay in their order."""
    return notice.channel, notice.line.at
