"""The cheapest set of options that is enough, or the knowledge that there is none. Branch and bound.

What "enough" means is somebody else's question (`Ground`): a gang that Kueue would admit and that fits the nodes. It
costs much to answer, so it is asked only of sets that could be enough by a quick count, cheapest first.

Laws:

* What is returned was accepted whole. Nothing in it can be left out, and where `is_exact` is true nothing is cheaper.
* A branch is cut only where no set in it can be accepted (`permits`, `could_fit`), or none can be cheaper: what it
  costs at least to cover each need is looked up in a table (`core/covers.py`).
* Of twins, which differ in nothing but their cost, the cheaper goes first; sets that prefer the dearer are skipped.
* Bounded by counts of steps and of costly questions, never by a clock, so that the same input has the same output.
  When a bound is met, the best set found so far stands and is not called exact. Greedy sets are tried before anything
  is searched, so there mostly is one.

Worked example: 4 more GPUs are needed; options a (2 GPUs, cost 3), b (2, 3), c (8, 10). By cost per GPU that is of use
a and b come first (1.5, c 2.5); greedy takes a and b for 6. Covering 4 GPUs costs 6 at least, so nothing is cheaper.
Had a been refused: without a, 4 GPUs cost 10 at least.

The tempting alternative, taking the longest idle until the sum is reached, overshoots by up to the size of the largest
option, and never asks whether the rest of the cluster lets the gang have it.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scaler.core.covers import Cover


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Something that could be taken."""

    key: str
    cost: int
    """Above 0, or sets with needless members would cost the same."""
    gains: tuple[int, ...]
    """Most that taking it can add to what is needed, need by need."""
    twin: Hashable
    """Equal for options that can stand for each other in every set."""


class Ground(Protocol):
    """The world in which options are taken. It is told every change, so that it can count along."""

    def choose(self, option: Option) -> None:
        """It is taken from now on."""

    def unchoose(self, option: Option) -> None: ...

    def exclude(self, option: Option) -> None:
        """It will not be taken in what follows. Until then every undecided option may be."""

    def readmit(self, option: Option) -> None: ...

    def permits(self) -> bool:
        """Whether the chosen ones may be taken together. Where they may not, they may not with more besides either."""

    def fits(self) -> bool:
        """Whether the chosen ones could be enough; a quick count. Never False for a set that would be accepted."""

    def could_fit(self) -> bool:
        """Whether the chosen and the undecided together could be enough."""

    def accepts(self, keys: frozenset[str]) -> bool:
        """Whether exactly these are enough. Costly."""

    def is_spent(self) -> bool:
        """Whether the answers so far have cost as much as one search may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be searched for one answer."""

    steps: int = 20_000
    questions: int = 200
    """Sets that `accepts` is asked about; a few more to leave out what a set found does without."""
    members: int = 64
    """Options in one set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome of a search."""

    keys: frozenset[str] | None
    """None where no set was accepted."""
    cost: int
    is_exact: bool
    """Whether everything was searched: no cheaper set exists, or none at all."""
    steps: int = 0
    questions: int = 0


def cheapest(
    options: Iterable[Option],
    need: tuple[int, ...],
    ground: Ground,
    *,
    limits: Limits,
    seeds: Sequence[Sequence[str]] = (),
) -> Found:
    """The cheapest accepted set. `need` is what must be gained at least, need by need.

    `seeds` are orders of keys that greedy tries besides its own.
    """
    return _Search(list(options), need, ground, limits).run(seeds)


class _OutOfStepsError(Exception):
    """The search has used up what it may."""


@dataclass
class _Search:
    options: list[Option]
    need: tuple[int, ...]
    ground: Ground
    limits: Limits
    best: frozenset[str] | None = None
    best_cost: int = 0
    steps: int = 0
    disappointments: int = 0
    """Sets refused in a row that should have been enough by all counts."""
    is_cut: bool = False
    """Whether a set was not looked at because it has too many members."""
    answers: dict[frozenset[str], bool] = field(default_factory=dict)
    chosen: list[Option] = field(default_factory=list)
    excluded: dict[Hashable, int] = field(default_factory=dict)
    """How many twins of each kind are excluded."""

    def run(self, seeds: Sequence[Sequence[str]]) -> Found:
        self.options.sort(key=self._rank)
        self.covers = [
            Cover(need, [(each.gains[i], each.cost) for each in self.options]) for i, need in enumerate(self.need)
        ]
        is_exact = True
        try:
            self._seed(self.options)
            by_key = {option.key: option for option in self.options}
            for order in seeds:
                self._seed([by_key[key] for key in order])
            self._descend(0, 0, tuple(cover.need for cover in self.covers))
        except _OutOfStepsError:
            is_exact = False
        is_exact = is_exact and not self.is_cut
        if self.best is not None and not is_exact:
            self._make_necessary()
        return Found(
            keys=self.best,
            cost=self.best_cost,
            is_exact=is_exact,
            steps=self.steps,
            questions=len(self.answers),
        )

    def _rank(self, option: Option) -> tuple[float, int, str]:
        """Cheapest per share of the needs first. More than is needed of anything is of no use."""
        share = sum(min(gain, need) / need for gain, need in zip(option.gains, self.need, strict=True) if need > 0)
        return (option.cost / share if share > 0 else float("inf")), option.cost, option.key

    # ------------------------------------------------------------------------------------------------------ questions

    def _asks(self, options: Iterable[Option], *, is_bounded: bool = True) -> bool:
        keys = frozenset(option.key for option in options)
        known = self.answers.get(keys)
        if known is None:
            if is_bounded and (len(self.answers) >= self.limits.questions or self.ground.is_spent()):
                raise _OutOfStepsError
            known = self.answers[keys] = self.ground.accepts(keys)
        return known

    def _keep(self, options: Sequence[Option]) -> None:
        cost = sum(option.cost for option in options)
        if len(options) > self.limits.members:
            self.is_cut = True
        elif self.best is None or cost < self.best_cost:
            self.best, self.best_cost = frozenset(option.key for option in options), cost

    # --------------------------------------------------------------------------------------------------------- greedy

    def _seed(self, order: Sequence[Option]) -> None:
        """Take options in that order until they are enough, then leave out what is not needed.

        Where they should be enough and are not, somebody else gets something of it. How much is not known, so more and
        more options are taken before it is asked again.
        """
        taken: list[Option] = []
        left = list(self.need)
        patience = step = 0
        try:
            for option in order:
                if any(need > 0 for need in left) and not _adds(option, left):
                    continue
                if not self._takes(option, taken, left) or any(need > 0 for need in left) or not self.ground.fits():
                    continue
                patience -= 1
                if patience < 0:
                    if self._asks(taken):
                        self._thin(taken)
                        return
                    step = 2 * step + 1
                    patience = step
                if len(taken) >= _GREEDY * self.limits.members:
                    break
            if taken and all(need <= 0 for need in left) and self.ground.fits() and self._asks(taken):
                self._thin(taken)
        finally:
            for option in reversed(taken):
                self.ground.unchoose(option)

    def _takes(self, option: Option, taken: list[Option], left: list[int]) -> bool:
        self.ground.choose(option)
        if not self.ground.permits():
            self.ground.unchoose(option)
            return False
        taken.append(option)
        for i, gain in enumerate(option.gains):
            left[i] -= gain
        return True

    def _thin(self, taken: list[Option]) -> None:
        """Leave out what the accepted set does without: first many at once, then one after the other, dearest first."""
        try:
            size = len(taken) // 2
            while size > 1:
                self._leave_out(taken, size)
                size //= 2
            while self._leave_out(taken, 1):
                pass
        finally:
            self._keep(taken)

    def _leave_out(self, taken: list[Option], size: int, *, is_bounded: bool = True) -> bool:
        """Leave out so many at once wherever it can be done. Whether it was done anywhere."""
        dearest_first = sorted(taken, key=lambda each: (-each.cost, each.key))
        was_done = False
        for start in range(0, len(dearest_first), size):
            few = dearest_first[start : start + size]
            for option in few:
                self.ground.unchoose(option)
                taken.remove(option)
            is_enough = False
            try:
                is_enough = self._could_be_enough(taken) and self._asks(taken, is_bounded=is_bounded)
            finally:
                if not is_enough:
                    for option in few:
                        self.ground.choose(option)
                        taken.append(option)
            was_done = was_done or is_enough
        return was_done

    def _could_be_enough(self, options: Sequence[Option]) -> bool:
        return bool(options) and self.ground.fits()

    def _make_necessary(self) -> None:
        """Leave out of the best set what it does without, however many questions that takes."""
        taken = [option for option in self.options if self.best and option.key in self.best]
        for option in taken:
            self.ground.choose(option)
        while self._leave_out(taken, 1, is_bounded=False):
            pass
        for option in taken:
            self.ground.unchoose(option)
        self._keep(taken)

    # --------------------------------------------------------------------------------------------------------- search

    def _descend(self, start: int, cost: int, left: tuple[int, ...]) -> None:
        """Search every set that has the chosen ones and otherwise only options from `start` on."""
        if all(need <= 0 for need in left) and self.ground.fits():
            if self._asks(self.chosen):
                self.disappointments = 0
                self._keep(self.chosen)
                return
            self.disappointments += 1
            if self.disappointments * _PATIENCE > self.limits.questions:
                raise _OutOfStepsError
        if len(self.chosen) >= self.limits.members:
            self.is_cut = self.is_cut or start < len(self.options)
            return
        excluded: list[Option] = []
        try:
            self._branch(start, cost, left, excluded)
        finally:
            for option in reversed(excluded):
                self.excluded[option.twin] -= 1
                self.ground.readmit(option)

    def _branch(self, start: int, cost: int, left: tuple[int, ...], excluded: list[Option]) -> None:
        for place in range(start, len(self.options)):
            if self._is_too_dear(place, cost, left):
                return
            self._count_step()
            option = self.options[place]
            if not self.excluded.get(option.twin):
                self._with(place, cost, left)
            self.excluded[option.twin] = self.excluded.get(option.twin, 0) + 1
            self.ground.exclude(option)
            excluded.append(option)
            if not self.ground.could_fit():
                return

    def _with(self, place: int, cost: int, left: tuple[int, ...]) -> None:
        option = self.options[place]
        remaining = tuple(need - cover.gains[place] for need, cover in zip(left, self.covers, strict=True))
        if self._is_too_dear(place + 1, cost + option.cost, remaining):
            return
        self.chosen.append(option)
        self.ground.choose(option)
        try:
            if self.ground.permits():
                self._descend(place + 1, cost + option.cost, remaining)
        finally:
            self.ground.unchoose(option)
            self.chosen.pop()

    def _is_too_dear(self, start: int, cost: int, left: tuple[int, ...]) -> bool:
        """Whether covering what is left with options from `start` on is impossible, or no cheaper than the best set."""
        least = cost + max((cover.least(start, need) for cover, need in zip(self.covers, left, strict=True)), default=0)
        return least == float("inf") or (self.best is not None and least >= self.best_cost)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self.limits.steps:
            raise _OutOfStepsError


def _adds(option: Option, left: Sequence[int]) -> bool:
    """Whether it adds to anything that is still needed."""
    return any(gain > 0 and need > 0 for gain, need in zip(option.gains, left, strict=True))


_PATIENCE = 4
"""The part of all questions after which nothing better is expected of sets that are refused one after the other."""
_GREEDY = 4
"""Times as many options as a set may have are taken before greedy gives up: most can be left out again."""
