"""How long to wait before trying again: exponential with full jitter, so that many clients do not come back as one."""

import random
from dataclasses import dataclass

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
