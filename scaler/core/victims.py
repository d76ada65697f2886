"""The cheapest set of options that is enough, or the knowledge that there is none. Branch and bound.

What "enough" means is somebody else's question (`Ground`): a gang that Kueue would admit and that fits the nodes. It
costs much to answer, so it is asked only of sets that could be enough by a quick count, cheapest first.

Laws:

* What is returned was accepted whole. Nothing in it can be left out, and where `is_exact` is true nothing is cheaper.
* A branch is cut only where no set in it can be accepted (`could_fit`), or none can be cheaper (the fractional cover of
  what is still needed, which no choice of whole options undercuts).
* Of twins, which differ in nothing but their cost, the cheaper goes first; sets that prefer the dearer are skipped.
* Bounded by counts of steps and of costly questions, never by a clock, so that the same input has the same output.
  When a bound is met, the best set found so far stands and is not called exact. Greedy sets are tried before anything
  is searched, so there mostly is one.

Worked example: 4 more GPUs are needed; options a (2 GPUs, cost 3), b (2, 3), c (8, 10). By cost per GPU c comes first
(1.25, the others 1.5); greedy takes c for 10. The cover of 4 GPUs costs at least 5, so a cheaper set may exist: without
c, a and b cover 4 for 6. Without c and a nothing covers 4: cut. The answer is a and b.

The tempting alternative, taking the longest idle until the sum is reached, overshoots by up to the size of the largest
option, and never asks whether the rest of the cluster lets the gang have it.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


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

    def fits(self) -> bool:
        """Whether the chosen ones could be enough; a quick count. Never False for a set that would be accepted."""

    def could_fit(self) -> bool:
        """Whether the chosen and the undecided together could be enough."""

    def accepts(self, keys: frozenset[str]) -> bool:
        """Whether exactly these are enough. Costly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be searched for one answer."""

    steps: int = 20_000
    questions: int = 200
    """Sets that `accepts` is asked about."""
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
    alternatives: tuple[frozenset[str], ...] = ()
    """Other sets that were accepted, dearer ones, cheapest first."""
    steps: int = 0
    questions: int = 0


Ordering = Callable[[Sequence[Option]], Sequence[Option]]
"""An order in which greedy takes options."""


def cheapest(
    options: Iterable[Option],
    need: tuple[int, ...],
    ground: Ground,
    *,
    limits: Limits,
    seeds: Sequence[Sequence[str]] = (),
) -> Found:
    """The cheapest accepted set. `need` is what must be gained at least, need by need; the first is the scarce one.

    `seeds` are orders of keys that greedy tries besides its own, such as all options of one node first.
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
    answers: dict[frozenset[str], bool] = field(default_factory=dict)
    chosen: list[Option] = field(default_factory=list)

    def run(self, seeds: Sequence[Sequence[str]]) -> Found:
        self.options.sort(key=self._rank)
        is_exact = True
        try:
            self._seed([option.key for option in self.options])
            for order in seeds:
                self._seed(order)
            self._descend(0, 0, self.need)
        except _OutOfStepsError:
            is_exact = False
        if self.best is not None and not is_exact:
            self._thin(self.best)
        return self._found(is_exact)

    def _rank(self, option: Option) -> tuple[float, int, str]:
        """Cheapest per unit of the scarce need first."""
        gain = option.gains[0] if option.gains else 0
        return (option.cost / gain if gain > 0 else float("inf")), option.cost, option.key

    def _found(self, is_exact: bool) -> Found:
        costs = {option.key: option.cost for option in self.options}
        others = [keys for keys, accepted in self.answers.items() if accepted and keys != self.best]
        others.sort(key=lambda keys: (sum(costs[key] for key in keys), sorted(keys)))
        return Found(
            keys=self.best,
            cost=self.best_cost,
            is_exact=is_exact,
            alternatives=tuple(others[:_ALTERNATIVES]),
            steps=self.steps,
            questions=len(self.answers),
        )

    # ------------------------------------------------------------------------------------------------------ questions

    def _asks(self, options: Iterable[Option]) -> bool:
        keys = frozenset(option.key for option in options)
        known = self.answers.get(keys)
        if known is None:
            if len(self.answers) >= self.limits.questions:
                raise _OutOfStepsError
            known = self.answers[keys] = self.ground.accepts(keys)
        return known

    def _keep(self, options: Sequence[Option]) -> None:
        cost = sum(option.cost for option in options)
        if self.best is None or cost < self.best_cost:
            self.best, self.best_cost = frozenset(option.key for option in options), cost

    # --------------------------------------------------------------------------------------------------------- greedy

    def _seed(self, order: Sequence[str]) -> None:
        """Take options in that order until they are enough, then leave out what is not needed."""
        by_key = {option.key: option for option in self.options}
        taken: list[Option] = []
        try:
            for key in order[: self.limits.members]:
                taken.append(by_key[key])
                self.ground.choose(by_key[key])
                if self._covers(taken) and self.ground.fits() and self._asks(taken):
                    self._thin(frozenset(option.key for option in taken))
                    return
        finally:
            for option in reversed(taken):
                self.ground.unchoose(option)

    def _thin(self, keys: frozenset[str]) -> None:
        """Leave out one after the other, the dearest first, what the set does without."""
        kept = sorted(
            (option for option in self.options if option.key in keys), key=lambda each: (-each.cost, each.key)
        )
        for option in list(kept):
            rest = [each for each in kept if each is not option]
            try:
                is_enough = self._covers(rest) and self._asks(rest)
            except _OutOfStepsError:
                break
            if is_enough:
                kept = rest
        self._keep(kept)

    def _covers(self, options: Sequence[Option]) -> bool:
        return all(sum(each.gains[i] for each in options) >= need for i, need in enumerate(self.need))

    # --------------------------------------------------------------------------------------------------------- search

    def _descend(self, start: int, cost: int, left: tuple[int, ...]) -> None:
        """Search every set that has the chosen ones and otherwise only options from `start` on."""
        if max(left, default=0) <= 0 and self.ground.fits() and self._asks(self.chosen):
            self._keep(self.chosen)
            return
        if len(self.chosen) >= self.limits.members:
            return
        excluded: list[Option] = []
        try:
            self._branch(start, cost, left, excluded)
        finally:
            for option in reversed(excluded):
                self.ground.readmit(option)

    def _branch(self, start: int, cost: int, left: tuple[int, ...], excluded: list[Option]) -> None:
        passed_over: set[Hashable] = set()
        for place in range(start, len(self.options)):
            option = self.options[place]
            if self.best is not None and cost + self._bound(place, left) >= self.best_cost:
                return
            if option.twin not in passed_over and not self._is_too_dear(cost + option.cost):
                self._with(place, cost, left)
            passed_over.add(option.twin)
            self.ground.exclude(option)
            excluded.append(option)
            if not self.ground.could_fit():
                return

    def _with(self, place: int, cost: int, left: tuple[int, ...]) -> None:
        self.steps += 1
        if self.steps > self.limits.steps:
            raise _OutOfStepsError
        option = self.options[place]
        self.chosen.append(option)
        self.ground.choose(option)
        try:
            remaining = tuple(need - gain for need, gain in zip(left, option.gains, strict=True))
            self._descend(place + 1, cost + option.cost, remaining)
        finally:
            self.ground.unchoose(option)
            self.chosen.pop()

    def _is_too_dear(self, cost: int) -> bool:
        return self.best is not None and cost >= self.best_cost

    def _bound(self, start: int, left: tuple[int, ...]) -> float:
        """What covering the scarce need from here on costs at least: a part of the last option counts as a part.

        Options are in the order of cost per gain, so this is the optimum of the relaxed problem. At least one more
        option is needed in any case.
        """
        missing, cost = (left[0] if left else 0), 0.0
        if missing <= 0:
            return 0.0
        for option in self.options[start : start + self.limits.members]:
            gain = option.gains[0]
            if gain <= 0:
                return float("inf")
            if gain >= missing:
                return cost + option.cost * missing / gain
            missing -= gain
            cost += option.cost
        return float("inf")


_ALTERNATIVES = 5
