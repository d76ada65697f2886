"""How long to wait before trying again; and, after a watch has ended, where does the next one start?

Waits are exponential with full jitter, so that many clients do not come back as one.

| how it ended                                   | failures in a row | next                                     |
|------------------------------------------------|-------------------|------------------------------------------|
| in order, or silent, after it had lasted       | 0                 | watch from where it ended, at once       |
| broken, after it had lasted and delivered      | 0                 | the same                                 |
| early, but it had delivered something          | 1                 | watch from where it ended, after a wait  |
| early, with nothing                            | + 1               | the same; or see below                   |
| 410 Expired, as an answer or in the stream     | + 1               | list, after a wait                       |
| the third fruitless one that did reach a server| as above          | list, after a wait                       |

A list that succeeds does not make up for failures: a server that answers every watch with 410 would be listed without
a pause. Nor does an open stream: one that only ever says `ERROR` would be opened again a thousand times a second.
Wherever the next one is to start: where nothing was heard for `quiet` seconds there is a list first, however well the
watch ended. Why is in `watched_list.py`.
"""

import math
import random
from dataclasses import dataclass, field

FRUITLESS_WATCHES = 3
_MANY = 30
"""Doublings after which any sensible base has reached its cap; keeps the power from overflowing a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits after 1, 2, 3, … failures in a row. Both times in seconds.

    With base 0.5 and cap 30 the longest waits are 0.5, 1, 2, 4, 8, 16, 30, 30, …; the mean is half of that.
    """

    base: float = 0.5
    cap: float = 30.0

    def ceiling(self, failures: int) -> float:
        """The longest wait after so many failures in a row; 0 after none."""
        return min(self.cap, self.base * 2.0 ** min(failures - 1, _MANY)) if failures > 0 else 0.0

    def wait(self, failures: int) -> float:
        """A wait drawn evenly from zero to the longest one."""
        return random.uniform(0.0, self.ceiling(failures))  # noqa: S311 (spreads load; keeps no secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """How long a reflector watches and waits. All in seconds."""

    watch: tuple[float, float] = (240.0, 300.0)
    """A watch is asked to end after a time drawn from this range, so that watches do not all reconnect together."""
    unproven: float = 60.0
    """It is asked to end no later than about this while the server has not shown yet that it sends bookmarks."""
    slack: float = 15.0
    """A connection that is silent for this much longer than the watch was asked to last is given up."""
    bookmark_silence: float = 90.0
    """How long a server may be silent that has sent bookmarks. They come about once a minute where etcd reports its
    progress; by default it does every 10 minutes, and where nothing happens none comes in between."""
    quiet: float = 45.0
    """A watch is not opened where nothing was heard for this long before: there is a list first. Together with the
    silence of an open watch that is two and a quarter minutes, which leaves a list its time within `maxViewAge`."""
    lasting: float = 5.0
    """A watch that stood this long was a good one, however it ended."""
    absent: float = 30.0
    """The time between two looks for a resource that the server does not know."""
    backoff: Backoff = field(default_factory=Backoff)

    def watch_seconds(self, *, sends_bookmarks: bool) -> int:
        """How long the next watch is asked to last."""
        seconds = random.uniform(*self.watch)  # noqa: S311 (spreads load; keeps no secret)
        if not sends_bookmarks:
            seconds = min(seconds, self.unproven * random.uniform(0.8, 1.0))  # noqa: S311
        return math.ceil(seconds)

    def silence_seconds(self, watch_seconds: int, *, sends_bookmarks: bool) -> float:
        """How long a watch may be silent before its connection is taken for dead."""
        return self.bookmark_silence if sends_bookmarks else watch_seconds + self.slack


def after_watch(
    failures: int,
    timing: WatchTiming,
    *,
    lasted: float,
    delivered: bool = False,
    in_order: bool = False,
    was_reached: bool = True,
    is_expired: bool = False,
) -> tuple[int, bool]:
    """The failures in a row after a round of list and watch, and whether the version watched from is given up.

    `lasted`: seconds for which the watch was open; 0 where it never was. `delivered`: whether an event or a bookmark
    came. `in_order`: whether the server ended the watch as it was asked to, or was silent until it was given up.
    `was_reached`: whether a server answered.
    """
    has_lasted = lasted >= timing.lasting
    if has_lasted and (delivered or in_order):
        failures = 0
    elif delivered and not is_expired:
        failures = 1
    else:
        failures += 1
    is_fruitless = was_reached and failures >= FRUITLESS_WATCHES
    return failures, is_expired or is_fruitless
