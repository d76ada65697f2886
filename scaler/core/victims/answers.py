"""What a search knows so far: the sets that were asked about, the best one, and whether it may go on."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from scaler.core.victims.options import Ground, Limits, Option

_PATIENCE = 4
"""The part of all questions after which nothing better is expected of sets that are refused one after the other."""


class OutOfStepsError(Exception):
    """The search has used up what it may."""


@dataclass
class Answers:
    """The best set, and how it was found."""

    ground: Ground
    limits: Limits
    best: frozenset[str] | None = None
    best_cost: int = 0
    steps: int = 0
    is_cut: bool = False
    """Whether a set was not looked at because it has too many members."""
    known: dict[frozenset[str], bool] = field(default_factory=dict)
    _refused_in_a_row: int = 0

    def step(self) -> None:
        """Raises: OutOfStepsError."""
        self.steps += 1
        if self.steps > self.limits.steps or self.ground.is_spent():
            raise OutOfStepsError

    def ask(self, chosen: Sequence[Option], *, is_bounded: bool = True) -> bool:
        """Whether the chosen ones, which should be enough by all counts, are. Raises: OutOfStepsError."""
        keys = frozenset(option.key for option in chosen)
        known = self.known.get(keys)
        if known is None:
            if is_bounded and (len(self.known) >= self.limits.questions or self.ground.is_spent()):
                raise OutOfStepsError
            known = self.known[keys] = self.ground.accepts(keys)
        return known

    def ask_patiently(self, chosen: Sequence[Option]) -> bool:
        """The same, for as long as there is hope. Raises: OutOfStepsError."""
        is_enough = self.ask(chosen)
        self._refused_in_a_row = 0 if is_enough else self._refused_in_a_row + 1
        if self._refused_in_a_row * _PATIENCE > self.limits.questions:
            raise OutOfStepsError
        return is_enough

    def keep(self, chosen: Collection[Option]) -> None:
        """Remember an accepted set if it is the best one, and not too large."""
        cost = sum(option.cost for option in chosen)
        if len(chosen) > self.limits.members:
            self.is_cut = True
        elif self.best is None or cost < self.best_cost:
            self.best, self.best_cost = frozenset(option.key for option in chosen), cost
