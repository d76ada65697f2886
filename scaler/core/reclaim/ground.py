"""The world in which the search for victims takes candidates and puts them back: quota and nodes, counted along."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from scaler.core.placement import Capacity, Demand, Rooms
from scaler.core.quota.model import Reservation
from scaler.core.quota.tree import Tree
from scaler.core.reclaim.count import Count
from scaler.core.reclaim.values import Candidate, Refusal
from scaler.core.scopes import Member, Place
from scaler.core.victims import Option


class Side(Protocol):
    """What is free with some candidates gone. It is told every change."""

    def leave(self, key: str) -> None: ...

    def come_back(self, key: str) -> None: ...

    @property
    def could_hold_it(self) -> bool:
        """Whether the gang could fit, by a quick count."""


class Judge(Protocol):
    """Who knows whether a set is enough. None is looked at twice."""

    @property
    def are_spent(self) -> bool: ...

    def accept(self, keys: frozenset[str]) -> bool: ...


_ASKED = 1_000
"""Questions to budgets for one plan: some 0.3 s where a dozen budgets look at hundreds of suspensions."""


class World:
    """Quota and nodes, with some candidates gone."""

    def __init__(
        self,
        tree: Tree,
        held: Mapping[str, Reservation],
        count: Count,
        capacity: Capacity | None,
        choices: Sequence[Sequence[Demand]],
    ) -> None:
        """`held` is what the candidates hold in the tree. One that may go in any case is counted as gone already.

        `choices` are the gang's pods with every combination of flavors; none where nodes decide nothing yet.
        """
        self._tree = tree.clone()
        self._held = held
        self._count = count
        self._rooms = [Rooms(each, capacity) for each in choices] if capacity is not None else []

    def leave(self, key: str) -> None:
        """Count as if it were gone."""
        if key in self._held:
            self._tree.queues[self._held[key].cluster_queue].remove(self._held[key].usage)
        for rooms in self._rooms:
            rooms.leave(key)

    def come_back(self, key: str) -> None:
        if key in self._held:
            self._tree.queues[self._held[key].cluster_queue].add(self._held[key].usage)
        for rooms in self._rooms:
            rooms.come_back(key)

    @property
    def could_hold_it(self) -> bool:
        return self._count.fits(self._tree) and self.has_room

    @property
    def has_room(self) -> bool:
        """Whether nodes have room with at least one choice of flavors."""
        return not self._rooms or any(rooms.is_possible for rooms in self._rooms)


class Budgets:
    """What budgets say of the chosen ones.

    Laws of budgets: whoever is refused is refused with others, too; and members of one place are all the same to them.
    So no more is asked of them than is new.
    """

    def __init__(self, candidates: Collection[Candidate], refuse: Refusal) -> None:
        self._members = {each.workload: each.member for each in candidates}
        self._refuse = refuse
        self._known: dict[frozenset[tuple[Place, int]], bool] = {}
        self._refused: dict[Place, list[Counter[Place]]] = {}
        """What was refused, by the place of the member that was one too many."""
        self._asked = 0

    @property
    def have_refused(self) -> bool:
        return bool(self._refused)

    @property
    def are_spent(self) -> bool:
        """Whether they have taken as long to answer as they may for one plan."""
        return self._asked >= _ASKED

    def permit(self, keys: Sequence[str]) -> bool:
        """Whether these may all be suspended; of these, all but the last were permitted before."""
        members = [self._members[key] for key in keys]
        places = Counter(each.place for each in members)
        sign = frozenset(places.items())
        known = self._known.get(sign)
        if known is None:
            known = self._known[sign] = not places or self._is_new_and_permitted(members, places)
        return known

    def _is_new_and_permitted(self, members: Sequence[Member], places: Counter[Place]) -> bool:
        refused = self._refused.get(members[-1].place, [])
        if any(each <= places for each in refused):
            return False
        self._asked += 1
        if not self._refuse(members):
            return True
        self._refused.setdefault(members[-1].place, []).append(places)
        return False


class SumsGround:
    """The world with the chosen ones gone, and the hopeful one, in which the undecided are gone too.

    Here a set is enough if it is by the sums.
    """

    def __init__(self, chosen: Side, hopeful: Side, candidates: Collection[str]) -> None:
        self._chosen, self._hopeful = chosen, hopeful
        for key in candidates:
            hopeful.leave(key)

    def choose(self, option: Option) -> None:
        self._chosen.leave(option.key)

    def unchoose(self, option: Option) -> None:
        self._chosen.come_back(option.key)

    def exclude(self, option: Option) -> None:
        self._hopeful.come_back(option.key)

    def readmit(self, option: Option) -> None:
        self._hopeful.leave(option.key)

    def permits(self) -> bool:
        return True

    def fits(self) -> bool:
        return self._chosen.could_hold_it

    def could_fit(self) -> bool:
        return self._hopeful.could_hold_it

    def accepts(self, keys: frozenset[str]) -> bool:
        """The search asks about the chosen ones only."""
        return bool(keys) and self.fits()

    def is_spent(self) -> bool:
        return False


class VictimGround(SumsGround):
    """The same, but whether a set is enough is found on trial, and budgets have a say."""

    def __init__(
        self, chosen: Side, hopeful: Side, candidates: Collection[str], trials: Judge, budgets: Budgets | None
    ) -> None:
        """Without `budgets` nobody is refused."""
        super().__init__(chosen, hopeful, candidates)
        self._trials = trials
        self._budgets = budgets
        self._keys: list[str] = []

    def choose(self, option: Option) -> None:
        self._keys.append(option.key)
        super().choose(option)

    def unchoose(self, option: Option) -> None:
        self._keys.remove(option.key)
        super().unchoose(option)

    def permits(self) -> bool:
        return self._budgets is None or self._budgets.permit(self._keys)

    def accepts(self, keys: frozenset[str]) -> bool:
        return self._trials.accept(keys)

    def is_spent(self) -> bool:
        return self._trials.are_spent or (self._budgets is not None and self._budgets.are_spent)
