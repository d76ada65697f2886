"""What a search chooses from, which sets are enough, and the best set so far."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from scaler.reclaim.budget import BudgetCheck, BudgetedWorkload

_PATIENCE = 4
"""The part of all questions after which nothing better is expected of sets that are refused one after the other."""
_BUDGET_QUESTIONS = 1_000
"""Questions to budgets for one plan: some 0.3 s where a dozen budgets look at hundreds of suspensions."""


class SearchLimitError(Exception):
    """The search has reached a limit. It never leaves `cheapest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    key: str
    cost: int
    """The cost is above 0: without one, sets with needless items would cost the same."""
    gains: tuple[int, ...]
    """Most that it can add to what is missing, amount by amount."""
    equivalence: Hashable
    """Equal for items that can replace each other in every set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    steps: int = 20_000
    questions: int = 200
    """Sets that `accepts` is asked about; a few more to leave out what a set found does without."""
    members: int = 64


DEFAULT_LIMITS = SearchLimits(questions=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    keys: frozenset[str] | None
    """The keys of the set that was accepted; None where none was."""
    cost: int
    is_exact: bool
    """Whether everything was searched: no cheaper set exists, or none at all."""
    steps: int = 0


class FreeCapacity(Protocol):
    """Quota or nodes with some candidates gone, counted along."""

    def remove_workload(self, key: str) -> None: ...

    def restore_workload(self, key: str) -> None: ...

    @property
    def could_fit(self) -> bool:
        """Whether the gang could fit, by a quick count. Never False where it would be admitted."""


class Acceptance(Protocol):
    """Tells whether a set is enough. Costly."""

    @property
    def are_spent(self) -> bool:
        """Whether its answers so far have taken as long as one search may."""

    def accept(self, keys: frozenset[str]) -> bool: ...


_Names = tuple[str, ...]
"""The budgets that a workload has."""


class BudgetAnswers:
    """Whether budgets let the chosen ones be suspended.

    Laws of budgets: a set that is refused is refused with more members, too; and members with the same budgets can
    replace each other. So a budget is only asked about a set when that follows from no earlier answer.
    """

    def __init__(self, members: Mapping[str, BudgetedWorkload], refuse: BudgetCheck) -> None:
        """`members` has the candidates by key of their Workload."""
        self._members = members
        self._refuse = refuse
        self._known: dict[frozenset[tuple[_Names, int]], bool] = {}
        self._refused: dict[_Names, list[Counter[_Names]]] = {}
        """What was refused, by the budgets of the member that was one too many."""
        self._asked = 0

    @property
    def have_refused(self) -> bool:
        return bool(self._refused)

    @property
    def are_spent(self) -> bool:
        return self._asked >= _BUDGET_QUESTIONS

    def permit(self, keys: Sequence[str]) -> bool:
        """Whether these may all be suspended; of these, all but the last were permitted before."""
        members = [self._members[key] for key in keys]
        alike = Counter(each.budgets for each in members)
        sign = frozenset(alike.items())
        known = self._known.get(sign)
        if known is None:
            known = self._known[sign] = not alike or self._is_new_and_permitted(members, alike)
        return known

    def _is_new_and_permitted(self, members: Sequence[BudgetedWorkload], alike: Counter[_Names]) -> bool:
        refused = self._refused.get(members[-1].budgets, [])
        if any(each <= alike for each in refused):
            return False
        self._asked += 1
        if not self._refuse(members):
            return True
        self._refused.setdefault(members[-1].budgets, []).append(alike)
        return False


class Problem:
    """Which sets are enough: by what is free with the chosen items gone, and with all gone that may be chosen.

    Without `acceptance` a set is enough that is by the counts, without `budgets` every set may be suspended.
    """

    def __init__(
        self,
        free: Callable[[], FreeCapacity],
        candidates: Collection[str],
        acceptance: Acceptance | None = None,
        budgets: BudgetAnswers | None = None,
    ) -> None:
        """`free` makes what there is with all candidates in place."""
        self._free = free
        self._candidates = candidates
        self._chosen = free()
        self._acceptance = acceptance
        self.budgets = budgets
        self._keys: list[str] = []

    @cached_property
    def _hopeful(self) -> FreeCapacity:
        hopeful = self._free()
        for key in self._candidates:
            hopeful.remove_workload(key)
        return hopeful

    def choose(self, item: Item) -> None:
        self._keys.append(item.key)
        self._chosen.remove_workload(item.key)

    def unchoose(self, item: Item) -> None:
        self._keys.remove(item.key)
        self._chosen.restore_workload(item.key)

    def exclude(self, item: Item) -> None:
        """It will not be chosen in what follows. Until then every undecided item may be."""
        self._hopeful.restore_workload(item.key)

    def readmit(self, item: Item) -> None:
        self._hopeful.remove_workload(item.key)

    def permits(self) -> bool:
        """Whether the chosen items may be taken together. Where they may not, no set with all of them may."""
        return self.budgets is None or self.budgets.permit(self._keys)

    def fits(self) -> bool:
        return self._chosen.could_fit

    def could_fit(self) -> bool:
        """Whether the chosen and the undecided items together could be enough."""
        return self._hopeful.could_fit

    def accepts(self, keys: frozenset[str]) -> bool:
        return self._acceptance.accept(keys) if self._acceptance is not None else bool(keys) and self.fits()

    def is_spent(self) -> bool:
        acceptance, budgets = self._acceptance, self.budgets
        return (acceptance is not None and acceptance.are_spent) or (budgets is not None and budgets.are_spent)


@dataclass
class Incumbent:
    problem: Problem
    limits: SearchLimits
    floor: int = 0
    """No set that is enough costs less."""
    best: frozenset[str] | None = None
    best_cost: int = 0
    steps: int = 0
    is_cut: bool = False
    """Whether a set was not looked at because it has too many members."""
    known: dict[frozenset[str], bool] = field(default_factory=dict)
    _refused_in_a_row: int = 0

    @property
    def is_proven(self) -> bool:
        """Whether nothing can be cheaper than the best, as no set is."""
        return self.best is not None and self.best_cost <= self.floor

    def step(self) -> None:
        """Raises: SearchLimitError."""
        self.steps += 1
        if self.steps > self.limits.steps or self.problem.is_spent():
            raise SearchLimitError

    def ask(self, chosen: Sequence[Item], *, is_bounded: bool = True) -> bool:
        """Whether the chosen items, which could be enough by all counts, are. Raises: SearchLimitError."""
        keys = frozenset(item.key for item in chosen)
        known = self.known.get(keys)
        if known is None:
            if is_bounded and (len(self.known) >= self.limits.questions or self.problem.is_spent()):
                raise SearchLimitError
            known = self.known[keys] = self.problem.accepts(keys)
        return known

    def ask_patiently(self, chosen: Sequence[Item]) -> bool:
        """Whether the set is enough. Raises: SearchLimitError where too many were refused in a row."""
        is_enough = self.ask(chosen)
        self._refused_in_a_row = 0 if is_enough else self._refused_in_a_row + 1
        if self._refused_in_a_row * _PATIENCE > self.limits.questions:
            raise SearchLimitError
        return is_enough

    def keep(self, chosen: Collection[Item]) -> None:
        cost = sum(item.cost for item in chosen)
        if len(chosen) > self.limits.members:
            self.is_cut = True
        elif self.best is None or cost < self.best_cost:
            self.best, self.best_cost = frozenset(item.key for item in chosen), cost

    def result(self, *, is_exact: bool) -> SearchResult:
        return SearchResult(keys=self.best, cost=self.best_cost, is_exact=is_exact, steps=self.steps)
