"""What does it cost at least to cover a need with some of the options? A table, made once for one search.

Laws:

* The answer is never more than the cheapest set costs whose gains add up to the need. For a need of up to 512 units it
  is that cost exactly; larger needs are counted in coarser units, gains rounded up.
* Options are in the order of the search: `least(start, …)` is about those from `start` on.

Worked example: 4 are needed; options (gain, cost): (2, 3), (2, 3), (8, 10). From 0 on the least cost is 6, from 1 on it
is 10 (2 and 8 cost 13), from 3 on there is none. If 1 is still needed: 3, 3, 10.

The tempting alternative, taking fractions of options, needs no table, but stays so far below the cost of whole ones
that a search looks at thousands of sets to prove what this proves at once.

How: with c(i, n) the least cost of covering n from option i on, c(i, n) = min(c(i+1, n), cost_i + c(i+1, n − gain_i)).
"""

from collections.abc import Sequence
from math import gcd

_UNITS = 512

Amount = int | float
"""A cost; infinite where a need cannot be covered."""


class LowerBound:
    """One need, and the options that add to it as (gain, cost)."""

    def __init__(self, need: int, options: Sequence[tuple[int, int]]) -> None:
        common = gcd(*(gain for gain, _ in options)) or 1
        unit = max(1, -(-need // common) // _UNITS)
        self.need = max(0, -(-need // common)) // unit
        """In units."""
        self.gains = [-(-gain // (common * unit)) for gain, _ in options]
        """In units, option by option."""
        self._rows = _table(self.need, list(zip(self.gains, (cost for _, cost in options), strict=True)))

    def least(self, start: int, need: int) -> Amount:
        """What covering so many units with options from `start` on costs at least."""
        return self._rows[start][need] if need > 0 else 0


def _table(need: int, options: Sequence[tuple[int, int]]) -> list[list[Amount]]:
    """By start and need. Options without gain share the row of the next one."""
    row: list[Amount] = [0] + [float("inf")] * need
    rows = [row]
    for gain, cost in reversed(options):
        if gain > 0:
            shifted = [0] * min(gain, need + 1) + row[: need + 1 - min(gain, need + 1)]
            row = [
                without if without <= cost + rest else cost + rest for without, rest in zip(row, shifted, strict=True)
            ]
            row[0] = 0
        rows.append(row)
    rows.reverse()
    return rows
