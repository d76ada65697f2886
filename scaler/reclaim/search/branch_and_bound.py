"""The cheapest set of items that is enough, or the proof that there is none. Branch and bound.

What "enough" means is the `Problem`'s business: a gang that Kueue would admit and that fits the nodes. The answer costs
much, so it is asked only for sets that could be enough by a quick count, cheapest first.

Laws:

* What is returned was accepted whole. Nothing in it can be left out, and where `is_exact` is true nothing is cheaper.
* A branch is cut only where no set in it can be accepted (`permits`, `could_fit`), or none can be cheaper: what it
  costs at least to cover each missing amount is looked up in a table (`LowerBound`).
* Of equivalent items, which differ in nothing but their cost, the cheaper goes first; sets that prefer the dearer are
  skipped.
* Bounded by counts of steps and of costly questions, never by a clock, so that the same input has the same output.
  When a bound is met, the best set found so far stands and is not called exact. Covers (`covers.py`) and greedy sets
  are tried before anything is searched, so there mostly is one.

Worked example: 4 more GPUs are needed; items a (2 GPUs, cost 3), b (2, 3), c (8, 10). By cost per GPU that is of use
a and b come first (1.5, c 2.5); greedy takes a and b for 6. Covering 4 GPUs costs 6 at least, so nothing is cheaper.
Had a been refused: without a, 4 GPUs cost 10 at least.

The tempting alternative, taking the longest idle until the sum is reached, overshoots by up to the size of the largest
item, and never asks whether the rest of the cluster lets the gang have it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import gcd

from scaler.reclaim.search.problem import Incumbent, Item, SearchLimitError, SearchResult

_INFINITE = float("inf")
_UNITS = 512
_MOST = 4
"""Times as many items as a set may have are taken before greedy gives up: most can be left out again."""

Amount = int | float
"""A cost; infinite where a need cannot be covered."""


def cheapest(items: Iterable[Item], missing: tuple[int, ...], incumbent: Incumbent) -> SearchResult:
    """The cheapest accepted set. `missing` is what has to be gained at least, amount by amount.

    The incumbent may know a set already.
    """
    ranked = sorted(items, key=lambda each: _rank(each, missing))
    is_exact = True
    try:
        _take_in_order(ranked, missing, incumbent)
        _Branches(ranked, missing, incumbent).search()
    except SearchLimitError:
        is_exact = False
    is_exact = incumbent.is_proven or (is_exact and not incumbent.is_cut)
    if incumbent.best is not None and not is_exact:
        _make_necessary([item for item in ranked if item.key in incumbent.best], incumbent)
    return incumbent.result(is_exact=is_exact)


def ask_about(sets: Iterable[Sequence[Item]], incumbent: Incumbent) -> None:
    """Let the incumbent know those of the sets that are enough, as long as nothing cheaper is known."""
    try:
        for chosen in sets:
            if not incumbent.is_proven and len(chosen) <= incumbent.limits.members:
                _ask_about(chosen, incumbent)
    except SearchLimitError:
        return


def _ask_about(chosen: Sequence[Item], incumbent: Incumbent) -> None:
    problem, taken = incumbent.problem, list[Item]()
    try:
        for item in chosen:
            problem.choose(item)
            taken.append(item)
            if not problem.permits():
                return
        if problem.fits() and incumbent.ask(taken):
            incumbent.keep(taken)
    finally:
        for item in taken:
            problem.unchoose(item)


def _rank(item: Item, missing: tuple[int, ...]) -> tuple[float, int, str]:
    """The rank: the cheapest per share of what is missing first. More than is missing of anything is of no use."""
    share = sum(min(gain, amount) / amount for gain, amount in zip(item.gains, missing, strict=True) if amount > 0)
    return (item.cost / share if share > 0 else _INFINITE), item.cost, item.key


def _make_necessary(best: list[Item], incumbent: Incumbent) -> None:
    for item in best:
        incumbent.problem.choose(item)
    _leave_out_needless(best, incumbent, is_bounded=False)
    for item in best:
        incumbent.problem.unchoose(item)


class _Branches:
    """All sets, as a tree: every item is chosen, or it is not."""

    def __init__(self, items: list[Item], missing: tuple[int, ...], incumbent: Incumbent) -> None:
        self._items = items
        self._incumbent = incumbent
        self._problem = incumbent.problem
        self._bounds = [
            LowerBound(amount, [(each.gains[i], each.cost) for each in items]) for i, amount in enumerate(missing)
        ]
        self._chosen: list[Item] = []
        self._passed: Counter[Hashable] = Counter()
        """How many items of each equivalence are passed over."""

    def search(self) -> None:
        """Raises: SearchLimitError."""
        self._descend(0, 0, tuple(bound.need for bound in self._bounds))

    def _descend(self, start: int, cost: int, missing: tuple[int, ...]) -> None:
        """Search every set that has the chosen items and otherwise only items from `start` on."""
        if all(need <= 0 for need in missing) and self._problem.fits() and self._incumbent.ask_patiently(self._chosen):
            self._incumbent.keep(self._chosen)
            return
        if len(self._chosen) >= self._incumbent.limits.members:
            self._incumbent.is_cut = self._incumbent.is_cut or start < len(self._items)
            return
        passed: list[Item] = []
        excluded: list[Item] = []
        try:
            self._branch(start, cost, missing, passed, excluded)
        finally:
            self._passed.subtract(item.equivalence for item in passed)
            for item in reversed(excluded):
                self._problem.readmit(item)

    def _branch(
        self, start: int, cost: int, missing: tuple[int, ...], passed: list[Item], excluded: list[Item]
    ) -> None:
        """Choose one item after the other. The problem hears of those passed over only when that matters to it."""
        for place in range(start, len(self._items)):
            if self._costs_too_much(place, cost, missing):
                return
            self._incumbent.step()
            item = self._items[place]
            rest = tuple(need - bound.gains[place] for need, bound in zip(missing, self._bounds, strict=True))
            is_new = not self._passed[item.equivalence]
            if is_new and not self._costs_too_much(place + 1, cost + item.cost, rest):
                for each in passed[len(excluded) :]:
                    self._problem.exclude(each)
                    excluded.append(each)
                if excluded and not self._problem.could_fit():
                    return
                self._choose(place, cost, rest)
            self._passed[item.equivalence] += 1
            passed.append(item)

    def _choose(self, place: int, cost: int, rest: tuple[int, ...]) -> None:
        item = self._items[place]
        self._chosen.append(item)
        self._problem.choose(item)
        try:
            if self._problem.permits():
                self._descend(place + 1, cost + item.cost, rest)
        finally:
            self._problem.unchoose(item)
            self._chosen.pop()

    def _costs_too_much(self, start: int, cost: int, missing: tuple[int, ...]) -> bool:
        """Whether covering what is missing with items from `start` on is impossible, or costs as much as the best."""
        if self._incumbent.is_proven:
            return True
        has_best = self._incumbent.best is not None
        left = self._incumbent.best_cost - cost if has_best else _INFINITE
        if left <= 0:
            return True
        return any(bound.least(start, need) >= left for bound, need in zip(self._bounds, missing, strict=True))


def _take_in_order(order: Iterable[Item], missing: Sequence[int], incumbent: Incumbent) -> None:
    """Let the incumbent know the set that comes of it. Raises: SearchLimitError."""
    greedy = _Greedy(missing, incumbent)
    try:
        if greedy.take(order):
            _leave_out_needless(greedy.taken, incumbent)
    finally:
        for item in reversed(greedy.taken):
            incumbent.problem.unchoose(item)


class _Greedy:
    """Items are taken in an order until they are enough, then what is not needed is left out.

    What the counts do without is left out before anything is asked, as every question is costly. Where a set should be
    enough and is not, another Workload gets something of it. How much is not known, so more and more items are taken
    before the next question.
    """

    def __init__(self, missing: Sequence[int], incumbent: Incumbent) -> None:
        self._incumbent = incumbent
        self._problem = incumbent.problem
        self._missing = list(missing)
        self.taken: list[Item] = []
        """They are chosen in the problem."""

    def take(self, order: Iterable[Item]) -> bool:
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


def _leave_out_needless(taken: list[Item], incumbent: Incumbent, *, is_bounded: bool = True) -> None:
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


class LowerBound:
    """What it costs at least to cover a need with some of the options, which are (gain, cost). Made once for a search.

    * It is never more than the cheapest set costs whose gains add up to the need. For a need of up to 512 units it is
      that cost exactly; larger needs are counted in coarser units, gains rounded up.
    * Options are in the order of the search: `least(start, …)` is about those from `start` on.

    Worked example: 4 are needed; options (2, 3), (2, 3), (8, 10). From 0 on the least cost is 6, from 1 on it is 10 (2
    and 8 cost 13), from 3 on there is none. If 1 is still needed: 3, 3, 10.

    The tempting alternative, taking fractions of options, needs no table, but stays so far below the cost of whole ones
    that a search looks at thousands of sets to prove what this proves at once.
    """

    def __init__(self, need: int, options: Sequence[tuple[int, int]]) -> None:
        common = gcd(*(gain for gain, _ in options)) or 1
        unit = max(1, -(-need // common) // _UNITS)
        self.need = max(0, -(-need // common)) // unit
        """The need in units."""
        self.gains = [-(-gain // (common * unit)) for gain, _ in options]
        """The gains in units, option by option."""
        self._rows = _table(self.need, list(zip(self.gains, (cost for _, cost in options), strict=True)))

    def least(self, start: int, need: int) -> Amount:
        return self._rows[start][need] if need > 0 else 0


def _table(need: int, options: Sequence[tuple[int, int]]) -> list[list[Amount]]:
    """c(i, n), the least cost of covering n from option i on: min(c(i+1, n), cost_i + c(i+1, n − gain_i)).

    Options without gain share the row of the next one.
    """
    row: list[Amount] = [0] + [_INFINITE] * need
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
