"""What has to be gained at least so that a gang fits, and the most that each candidate can add to it.

Needs are counted in quota, resource by resource, and in slots for pods on nodes. They bound the search for
victims: a set that does not cover every need is never accepted.

Laws:

* What the members of an accepted set add to a need is, taken together, at least that need.
* A candidate on a node where nothing could make room for a pod adds no slot, however many GPUs it holds.

Slots: a node has f free GPUs and pods need g each, so it has ⌊f/g⌋ slots, and r = f − g·⌊f/g⌋ are left over. A
candidate that frees d GPUs there adds at most d / (g − r) slots: k more slots take k·g − r GPUs, and
(k·g − r) / (g − r) ≥ k.

Worked example: pods of 8. Node n1 has 4 free, and x holds 4: x adds 4 / (8 − 4) = 1 slot. On n2 y and z hold 4 each:
each adds half a slot. On n3 only v is idle, which holds 4 beside a busy workload: it adds none.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from scaler.placement.capacity import Capacity
from scaler.placement.node_index import NodeDemand, PodShape, demand_of, members, pod_counts
from scaler.quota.demands import FlavorOptions
from scaler.quota.model import QuotaWorkload, Reservation
from scaler.quota.node import QueueNode
from scaler.quota.tree import Tree
from scaler.reclaim.search.problem import Item
from scaler.reclaim.search.requirements import Requirement, fewest, gains
from scaler.reclaim.search.values import Candidate

_COMBINATIONS = 16
"""Ways to combine flavors beyond which nodes are looked at in simulations only."""
SLOT = 5040
"""Parts of a slot: divisible by every number up to 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingAmount:
    """One thing of which more is needed."""

    amount: int
    gains: Mapping[str, int]
    """The most that candidates add, by key of their Workload; nothing where it is not named."""

    def is_within(self, other: "MissingAmount") -> bool:
        """Whether everything that covers the other covers this one too."""
        return self.amount <= other.amount and self.gains == other.gains


def quota_needs(requirement: Requirement, tree: Tree, held: Mapping[str, Reservation]) -> list[MissingAmount]:
    """What is missing of every resource. `held` is what the candidates hold in the tree."""
    return [
        MissingAmount(amount=lack, gains=gains(requirement, held, tree, resource))
        for resource, lack in requirement.missing(tree).items()
    ]


def items_of(
    candidates: Iterable[Candidate], needs: Sequence[MissingAmount], equivalence: Mapping[str, Hashable]
) -> list[Item]:
    """The candidates as a search takes them; `equivalence` is by key of their Workload."""
    return [
        Item(
            key=each.workload,
            cost=each.cost.total,
            gains=tuple([need.gains.get(each.workload, 0) for need in needs]),
            equivalence=equivalence[each.workload],
        )
        for each in candidates
    ]


def missing_slots(
    choices: Sequence[Sequence[NodeDemand]], capacity: Capacity, candidates: Collection[str]
) -> list[list["MissingSlots"]]:
    """The slots that are missing with every combination of flavors; none at all where one of them lacks none."""
    emptier = capacity.without(candidates) if choices else capacity
    lacking = [_lacking(demands, capacity, emptier, candidates) for demands in choices]
    return lacking if all(lacking) else []


def slot_needs(choices: Sequence[Sequence["MissingSlots"]]) -> list[MissingAmount]:
    """The slots that are missing, as amounts; `choices` has them by combination of flavors.

    Of several combinations any will do, so of each only the PodSet that lacks most counts, as a share of what it lacks.
    """
    lacking = [[each.need for each in missing] for missing in choices]
    if len(lacking) <= 1:
        return [need for needs in lacking for need in needs]
    worst = [max(needs, key=lambda need: need.amount) for needs in lacking]
    shares: dict[str, int] = {}
    for need in worst:
        for key, most in need.gains.items():
            shares[key] = max(shares.get(key, 0), -(-most * SLOT // need.amount))
    return [MissingAmount(amount=SLOT, gains=shares)]


def _lacking(
    demands: Sequence[NodeDemand], capacity: Capacity, emptier: Capacity, candidates: Collection[str]
) -> list["MissingSlots"]:
    """What is lacking by shape of pod and device; `emptier` is without all the candidates."""
    found = []
    for shape, count in pod_counts(demands, capacity.index).items():
        for resource, amount in shape.needs:
            if resource in capacity.index.devices:
                slots = MissingSlots(shape, resource, amount, count)
                slots.find(capacity, emptier)
                if slots.count > 0:
                    slots.file(candidates, capacity)
                    found.append(slots)
    return found


class MissingSlots:
    """The slots for pods of one shape that are missing as far as one device decides, and where there could be more."""

    def __init__(self, shape: PodShape, resource: int, amount: int, count: int) -> None:
        self._shape, self._resource = shape, resource
        self.amount = amount
        """Devices that a pod takes."""
        self.count = count
        """Slots that are missing."""
        self.parts: dict[int, tuple[int, int]] = {}
        """The devices that the first slot takes, and how many at most, by node where there could be more slots."""
        self.held: dict[str, list[tuple[int, int]]] = {}
        """The devices that candidates hold on these nodes, node by node, by key of the Workload."""

    def find(self, capacity: Capacity, emptier: Capacity) -> None:
        for node in members(self._shape.eligible):
            free, most = capacity.free[node][self._resource], self._shape.slots_in(emptier.free[node])
            slots = min(most, max(0, free) // self.amount)
            self.count -= slots
            if most > slots:
                self.parts[node] = ((slots + 1) * self.amount - free, most - slots)

    def file(self, candidates: Iterable[str], capacity: Capacity) -> None:
        for key in candidates:
            held = [
                (node, amounts[self._resource])
                for node, amounts in capacity.held_by_workload(key).items()
                if node in self.parts and amounts.get(self._resource)
            ]
            if held:
                self.held[key] = held

    @property
    def need(self) -> MissingAmount:
        return MissingAmount(amount=self.count * SLOT, gains={key: self.gain(key) for key in self.held})

    def gain(self, key: str) -> int:
        """The most that it can add, in parts of a slot.

        A node that has lost devices which are in use needs more for its first slot than for others: these count.
        """
        return sum(
            min(-(-devices * SLOT // min(self.parts[node][0], self.amount)), self.parts[node][1] * SLOT)
            for node, devices in self.held.get(key, ())
        )


def choices_of(gang: QuotaWorkload, queue: QueueNode, flavor_options: FlavorOptions) -> list[list[NodeDemand]]:
    """What the gang's pods need of the nodes, once for every combination of flavors that it might get.

    None at all where there are too many: then nothing is ruled out by nodes before a simulation.
    """
    pod_sets = fewest(gang)
    demand = flavor_options.demand(pod_sets, queue.spec)
    combinations = []
    for pods in demand.pod_sets:
        open_to = [[option.flavor for option in step.options if not option.refusal] for step in pods.steps]
        combinations.append(list(dict.fromkeys(tuple(sorted(set(each))) for each in product(*open_to))))
    if prod(map(len, combinations)) > _COMBINATIONS:
        return []
    flavors = flavor_options.flavors
    return [
        [demand_of(pods, [flavors[name] for name in names]) for pods, names in zip(pod_sets, chosen, strict=True)]
        for chosen in product(*combinations)
    ]
