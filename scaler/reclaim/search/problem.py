"""What a search chooses from, how it asks about the sets that it chooses, and the best set so far."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

_PATIENCE = 4
"""The part of all questions after which nothing better is expected of sets that are refused one after the other."""


class SearchLimitError(Exception):
    """The search has reached a limit. It never leaves `cheapest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that can be chosen."""

    key: str
    cost: int
    """Above 0, or sets with needless items would cost the same."""
    gains: tuple[int, ...]
    """Most that it can add to what is missing, amount by amount."""
    equivalence: Hashable
    """Equal for items that can replace each other in every set."""


class Problem(Protocol):
    """Which sets are enough. It hears every change of the chosen and the excluded items, so that it can count along."""

    def choose(self, item: Item) -> None: ...

    def unchoose(self, item: Item) -> None: ...

    def exclude(self, item: Item) -> None:
        """It will not be chosen in what follows. Until then every undecided item may be."""

    def readmit(self, item: Item) -> None: ...

    def permits(self) -> bool:
        """Whether the chosen items may be taken together. Where they may not, no set with all of them may."""

    def fits(self) -> bool:
        """Whether the chosen items could be enough: a quick count. Never False for a set that would be accepted."""

    def could_fit(self) -> bool:
        """Whether the chosen and the undecided items together could be enough."""

    def accepts(self, keys: frozenset[str]) -> bool:
        """Whether exactly these, which are the chosen items, are enough. Costly."""

    def is_spent(self) -> bool:
        """Whether its answers so far have taken as long as one search may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """How much may be searched for one answer."""

    steps: int = 20_000
    questions: int = 200
    """Sets that `accepts` is asked about; a few more to leave out what a set found does without."""
    members: int = 64
    """Items in one set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The outcome of a search."""

    keys: frozenset[str] | None
    """None where no set was accepted."""
    cost: int
    is_exact: bool
    """Whether everything was searched: no cheaper set exists, or none at all."""
    steps: int = 0
    questions: int = 0


@dataclass
class Incumbent:
    """The best set so far, and what was asked to find it."""

    problem: Problem
    limits: SearchLimits
    best: frozenset[str] | None = None
    best_cost: int = 0
    steps: int = 0
    is_cut: bool = False
    """Whether a set was not looked at because it has too many members."""
    known: dict[frozenset[str], bool] = field(default_factory=dict)
    _refused_in_a_row: int = 0

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
        """The same, until too many were refused in a row. Raises: SearchLimitError."""
        is_enough = self.ask(chosen)
        self._refused_in_a_row = 0 if is_enough else self._refused_in_a_row + 1
        if self._refused_in_a_row * _PATIENCE > self.limits.questions:
            raise SearchLimitError
        return is_enough

    def keep(self, chosen: Collection[Item]) -> None:
        """Remember an accepted set if it is the best one, and not too large."""
        cost = sum(item.cost for item in chosen)
        if len(chosen) > self.limits.members:
            self.is_cut = True
        elif self.best is None or cost < self.best_cost:
            self.best, self.best_cost = frozenset(item.key for item in chosen), cost
