"""The world in which the search for victims takes candidates and puts them back: quota and nodes, counted along."""

from collections.abc import Collection, Mapping, Sequence

from scaler.core.placement import Capacity, Demand, Rooms
from scaler.core.quota.model import Reservation
from scaler.core.quota.tree import Tree
from scaler.core.reclaim.count import Count
from scaler.core.reclaim.trial import Trials
from scaler.core.reclaim.values import Candidate, Refusal
from scaler.core.victims import Option


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
    """What budgets say of the chosen ones. Whoever is refused is refused with others, too."""

    def __init__(self, candidates: Collection[Candidate], refuse: Refusal) -> None:
        self._members: Mapping[str, Candidate] = {each.workload: each for each in candidates}
        self._refuse = refuse
        self.has_refused = False

    def permit(self, keys: Collection[str]) -> bool:
        is_refused = bool(keys) and bool(self._refuse([self._members[key].member for key in keys]))
        self.has_refused = self.has_refused or is_refused
        return not is_refused


class SumsGround:
    """The world with the chosen ones gone, and the hopeful one, in which the undecided are gone too.

    Here a set is enough if it is by the sums.
    """

    def __init__(self, chosen: World, hopeful: World, candidates: Collection[str]) -> None:
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
        self, chosen: World, hopeful: World, candidates: Collection[str], trials: Trials, budgets: Budgets | None
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
        return self._trials.of(keys).why is None

    def is_spent(self) -> bool:
        return self._trials.are_spent
