"""What can be taken, in what world it is taken, and what comes of a search."""

from collections.abc import Hashable
from dataclasses import dataclass
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

    def permits(self) -> bool:
        """Whether the chosen ones may be taken together. Where they may not, they may not with more besides either."""

    def fits(self) -> bool:
        """Whether the chosen ones could be enough; a quick count. Never False for a set that would be accepted."""

    def could_fit(self) -> bool:
        """Whether the chosen and the undecided together could be enough."""

    def accepts(self, keys: frozenset[str]) -> bool:
        """Whether exactly these, which are the chosen ones, are enough. Costly."""

    def is_spent(self) -> bool:
        """Whether its answers so far have taken as long as one search may."""


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
