"""The state of a search for victims: quota and nodes, counted along while candidates are chosen and excluded."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from scaler.placement.capacity import Capacity
from scaler.placement.demand import NodeDemand
from scaler.placement.pod_slots import PodSlots
from scaler.quota.model import Reservation
from scaler.quota.tree import Tree
from scaler.reclaim.budgets.scopes import BudgetedWorkload, BudgetLocation
from scaler.reclaim.search.problem import Item
from scaler.reclaim.search.quota_requirement import Requirement
from scaler.reclaim.search.values import BudgetCheck, Candidate


class FreeCapacity(Protocol):
    """What is free with some candidates gone."""

    def remove_workload(self, key: str) -> None: ...

    def restore_workload(self, key: str) -> None: ...

    @property
    def could_fit(self) -> bool:
        """Whether the gang could fit, by a quick count."""


class Acceptance(Protocol):
    """Tells whether a set is enough."""

    @property
    def are_spent(self) -> bool: ...

    def accept(self, keys: frozenset[str]) -> bool: ...


_ASKED = 1_000
"""Questions to budgets for one plan: some 0.3 s where a dozen budgets look at hundreds of suspensions."""


class SearchState:
    """Quota and nodes, with some candidates gone."""

    def __init__(
        self,
        tree: Tree,
        held: Mapping[str, Reservation],
        requirements: Sequence[Requirement],
        capacity: Capacity | None = None,
        choices: Sequence[Sequence[NodeDemand]] = (),
    ) -> None:
        """`held` is what the candidates hold in the tree. One that may go in any case is counted as gone already.

        `choices` are the gang's pods with every combination of flavors; none where nodes decide nothing yet.
        """
        self._tree = tree.clone()
        self._held = held
        self._requirements = requirements
        self._slots = [PodSlots(each, capacity) for each in choices] if capacity is not None else []

    def remove_workload(self, key: str) -> None:
        """Count as if it were gone."""
        if key in self._held:
            self._tree.queues[self._held[key].cluster_queue].remove(self._held[key].usage)
        for slots in self._slots:
            slots.remove_workload(key)

    def restore_workload(self, key: str) -> None:
        if key in self._held:
            self._tree.queues[self._held[key].cluster_queue].add(self._held[key].usage)
        for slots in self._slots:
            slots.restore_workload(key)

    @property
    def could_fit(self) -> bool:
        """Whether quota and, with at least one choice of flavors, nodes have room."""
        if not all(each.fits(self._tree) for each in self._requirements):
            return False
        return not self._slots or any(slots.could_fit for slots in self._slots)

    @property
    def missing(self) -> list[Mapping[str, int]]:
        """What is missing of quota, by resource, requirement by requirement."""
        return [each.missing(self._tree) for each in self._requirements]


class BudgetAnswers:
    """Whether budgets let the chosen ones be suspended.

    Laws of budgets: a set that is refused is refused with more members, too; and members of one place can replace each
    other. So a budget is only asked about a set when that follows from no earlier answer.
    """

    def __init__(self, candidates: Collection[Candidate], refuse: BudgetCheck) -> None:
        self._members = {each.workload: each.member for each in candidates}
        self._refuse = refuse
        self._known: dict[frozenset[tuple[BudgetLocation, int]], bool] = {}
        self._refused: dict[BudgetLocation, list[Counter[BudgetLocation]]] = {}
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

    def _is_new_and_permitted(self, members: Sequence[BudgetedWorkload], places: Counter[BudgetLocation]) -> bool:
        refused = self._refused.get(members[-1].place, [])
        if any(each <= places for each in refused):
            return False
        self._asked += 1
        if not self._refuse(members):
            return True
        self._refused.setdefault(members[-1].place, []).append(places)
        return False


class VictimProblem:
    """The `Problem` of a search: the state with the chosen ones gone, and the one with the undecided gone too.

    Without `acceptance` a set is enough that is by the counts, without `budgets` every set may be suspended.
    """

    def __init__(
        self,
        chosen: FreeCapacity,
        hopeful: FreeCapacity,
        candidates: Collection[str],
        acceptance: Acceptance | None = None,
        budgets: BudgetAnswers | None = None,
    ) -> None:
        self._chosen, self._hopeful = chosen, hopeful
        self._acceptance = acceptance
        self.budgets = budgets
        self._keys: list[str] = []
        for key in candidates:
            hopeful.remove_workload(key)

    def choose(self, item: Item) -> None:
        self._keys.append(item.key)
        self._chosen.remove_workload(item.key)

    def unchoose(self, item: Item) -> None:
        self._keys.remove(item.key)
        self._chosen.restore_workload(item.key)

    def exclude(self, item: Item) -> None:
        self._hopeful.restore_workload(item.key)

    def readmit(self, item: Item) -> None:
        self._hopeful.remove_workload(item.key)

    def permits(self) -> bool:
        return self.budgets is None or self.budgets.permit(self._keys)

    def fits(self) -> bool:
        return self._chosen.could_fit

    def could_fit(self) -> bool:
        return self._hopeful.could_fit

    def accepts(self, keys: frozenset[str]) -> bool:
        """The search asks about the chosen ones only."""
        return self._acceptance.accept(keys) if self._acceptance is not None else bool(keys) and self.fits()

    def is_spent(self) -> bool:
        acceptance, budgets = self._acceptance, self.budgets
        return (acceptance is not None and acceptance.are_spent) or (budgets is not None and budgets.are_spent)
