"""A good set quickly: items are taken in an order until they are enough, then what is not needed is left out.

What the counts do without is left out before anything is asked, as every question is costly. Where a set should be
enough and is not, another Workload gets something of it. How much is not known, so more and more items are taken before
the next question.
"""

from collections.abc import Iterable, Sequence

from scaler.reclaim.search.problem import Incumbent, Item

_MOST = 4
"""Times as many items as a set may have are taken before greedy gives up: most can be left out again."""


def take_in_order(order: Iterable[Item], missing: Sequence[int], incumbent: Incumbent) -> None:
    """Let the incumbent know the set that comes of it. Raises: SearchLimitError."""
    greedy = _Greedy(missing, incumbent)
    try:
        if greedy.take(order):
            leave_out_needless(greedy.taken, incumbent)
    finally:
        for item in reversed(greedy.taken):
            incumbent.problem.unchoose(item)


class _Greedy:
    def __init__(self, missing: Sequence[int], incumbent: Incumbent) -> None:
        self._incumbent = incumbent
        self._problem = incumbent.problem
        self._missing = list(missing)
        self.taken: list[Item] = []
        """They are chosen in the problem."""

    def take(self, order: Iterable[Item]) -> bool:
        """Whether enough was taken."""
        pause = skipped = 0
        for item in order:
            if len(self.taken) >= _MOST * self._incumbent.limits.members:
                break
            if not (self._is_of_use(item) and self._choose(item) and self._should_be_enough()):
                continue
            if skipped < pause:
                skipped += 1
                continue
            if self._is_enough():
                return True
            pause, skipped = 2 * pause + 1, 0
        return bool(self.taken) and self._should_be_enough() and self._is_enough()

    def _is_of_use(self, item: Item) -> bool:
        """Whether it adds to anything that is still missing, if anything is."""
        useful = [gain for gain, missing in zip(item.gains, self._missing, strict=True) if missing > 0]
        return not useful or any(gain > 0 for gain in useful)

    def _choose(self, item: Item) -> bool:
        """Take it, if it may be taken."""
        self._problem.choose(item)
        if not self._problem.permits():
            self._problem.unchoose(item)
            return False
        self.taken.append(item)
        self._missing = [missing - gain for gain, missing in zip(item.gains, self._missing, strict=True)]
        return True

    def _should_be_enough(self) -> bool:
        return all(missing <= 0 for missing in self._missing) and self._problem.fits()

    def _is_enough(self) -> bool:
        """Whether those that the counts ask for are enough, or else all that were taken. Only these stay taken."""
        left_out = self._left_out_by_counts()
        if self._incumbent.ask(self.taken):
            return True
        for item in left_out:
            self._problem.choose(item)
            self.taken.append(item)
        return bool(left_out) and self._incumbent.ask(self.taken)

    def _left_out_by_counts(self) -> list[Item]:
        """Leave out what the quick count does without, the dearest first."""
        left_out = []
        for item in sorted(self.taken, key=lambda each: (-each.cost, each.key)):
            self._problem.unchoose(item)
            if len(self.taken) > 1 and self._problem.fits():
                self.taken.remove(item)
                left_out.append(item)
            else:
                self._problem.choose(item)
        return left_out


def leave_out_needless(taken: list[Item], incumbent: Incumbent, *, is_bounded: bool = True) -> None:
    """Leave out of an accepted set what it does without: many at once first, then one by one, the dearest first.

    The taken items are chosen in the problem, and what is left out is not any more. Raises: SearchLimitError, unless
    the questions are not bounded; what is left is an accepted set in any case.
    """
    try:
        size = len(taken) // 2
        while size > 1:
            _leave_out(taken, size, incumbent, is_bounded=is_bounded)
            size //= 2
        while _leave_out(taken, 1, incumbent, is_bounded=is_bounded):
            pass
    finally:
        incumbent.keep(taken)


def _leave_out(taken: list[Item], size: int, incumbent: Incumbent, *, is_bounded: bool) -> bool:
    """Leave out so many at once wherever that is possible. Whether it was anywhere."""
    dearest_first = sorted(taken, key=lambda each: (-each.cost, each.key))
    parts = [dearest_first[start : start + size] for start in range(0, len(taken), size)]
    left_out = [part for part in parts if _does_without(part, taken, incumbent, is_bounded=is_bounded)]
    return bool(left_out)


def _does_without(part: Sequence[Item], taken: list[Item], incumbent: Incumbent, *, is_bounded: bool) -> bool:
    """Leave these out if the rest is enough."""
    for item in part:
        incumbent.problem.unchoose(item)
        taken.remove(item)
    is_enough = False
    try:
        is_enough = bool(taken) and incumbent.problem.fits() and incumbent.ask(taken, is_bounded=is_bounded)
    finally:
        if not is_enough:
            for item in part:
                incumbent.problem.choose(item)
                taken.append(item)
    return is_enough
