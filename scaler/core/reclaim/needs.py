"""What has to be gained at least so that a gang fits, and the most that each candidate can add to it.

Needs are counted in quota, resource by resource, and in rooms: places for pods on nodes. They bound the search for
victims: a set that does not cover every need is never accepted.

Laws:

* What the members of an accepted set add to a need is, taken together, at least that need.
* A candidate on a node where nothing could make room for a pod adds no room, however many GPUs it holds.

Rooms: a node has f free GPUs and pods need g each, so it has ⌊f/g⌋ rooms, and r = f − g·⌊f/g⌋ are left over. Whoever
frees d GPUs there adds at most d / (g − r) rooms: to free k more rooms takes k·g − r GPUs, and (k·g − r) / (g − r) ≥ k.

Worked example: pods of 8. Node n1 has 4 free, and x holds 4: x adds 4 / (8 − 4) = 1 room. On n2 y and z hold 4 each:
each adds half a room. On n3 nobody else is idle but v, which holds 4 beside somebody busy: it adds none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from scaler.core.placement import Capacity, Demand, demand_of
from scaler.core.placement.index import Shape, members
from scaler.core.quota.demands import Market
from scaler.core.quota.model import Reservation, Workload
from scaler.core.quota.tree import QueueNode, Tree
from scaler.core.reclaim.count import Count, fewest

_COMBINATIONS = 16
"""Ways to combine flavors beyond which nodes are looked at in trials only."""
_ROOM = 5040
"""Units of a room: divisible by every number up to 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing of which more is needed."""

    amount: int
    gains: Mapping[str, int]
    """The most that candidates add, by key of their Workload; nothing where it is not named."""
    of_quota: bool = False
    """Of quota, or else of rooms."""


def quota_needs(count: Count, tree: Tree, held: Mapping[str, Reservation]) -> list[Need]:
    """What is missing of every resource. `held` is what the candidates hold in the tree."""
    return [
        Need(
            amount=lack,
            of_quota=True,
            gains={key: gain for key, each in held.items() if (gain := count.gain(each, tree, resource)) > 0},
        )
        for resource, lack in count.missing(tree).items()
    ]


def room_needs(choices: Sequence[Sequence[Demand]], capacity: Capacity, candidates: Collection[str]) -> list[Need]:
    """The rooms that are missing; `choices` are the gang's pods with every combination of flavors.

    Of several combinations any will do, so of each only the PodSet that lacks most counts, as a share of what it lacks.
    """
    lacking = [_lacking(demands, capacity, candidates) for demands in choices]
    if not lacking or not all(lacking):
        return []
    if len(lacking) == 1:
        return lacking[0]
    worst = [max(needs, key=lambda need: need.amount) for needs in lacking]
    shares: dict[str, int] = {}
    for need in worst:
        for key, gain in need.gains.items():
            shares[key] = max(shares.get(key, 0), -(-gain * _ROOM // need.amount))
    return [Need(amount=_ROOM, gains=shares)]


def _lacking(demands: Sequence[Demand], capacity: Capacity, candidates: Collection[str]) -> list[Need]:
    """The rooms that are missing for pods of every shape that needs devices."""
    wanted: dict[Shape, int] = {}
    for demand in demands:
        shape = capacity.index.shape(demand.requests, demand.nodes)
        wanted[shape] = wanted.get(shape, 0) + demand.count
    emptier = capacity.without(candidates)
    found = []
    for shape, count in wanted.items():
        for resource, amount in shape.needs:
            if resource in capacity.index.devices:
                rooms = _Rooms(shape, resource, amount, capacity, emptier)
                if rooms.there < count:
                    gains = {key: gain for key in candidates if (gain := rooms.gain(key)) > 0}
                    found.append(Need(amount=(count - rooms.there) * _ROOM, gains=gains))
    return found


class _Rooms:
    """The rooms for pods of one shape as far as one device decides about them, and who could make more."""

    def __init__(self, shape: Shape, resource: int, amount: int, capacity: Capacity, emptier: Capacity) -> None:
        """`emptier` is without all the candidates."""
        self._resource = resource
        self._capacity = capacity
        self.there = 0
        self._parts: dict[int, tuple[int, int]] = {}
        """By node, where there could be more rooms: the devices that one more takes, and how many more at most."""
        for node in members(shape.eligible):
            # A node that has lost devices which are in use has less than none free.
            free, most = max(0, capacity.free[node][resource]), shape.room_in(emptier.free[node])
            rooms = min(most, free // amount)
            self.there += rooms
            if most > rooms:
                self._parts[node] = (amount - (free - rooms * amount), most - rooms)

    def gain(self, key: str) -> int:
        """The most that the candidate's going adds."""
        return sum(
            min(-(-held[self._resource] * _ROOM // self._parts[node][0]), self._parts[node][1] * _ROOM)
            for node, held in self._capacity.held_by((key,)).items()
            if node in self._parts and self._resource in held
        )


def choices_of(gang: Workload, queue: QueueNode, market: Market) -> list[list[Demand]]:
    """What the gang's pods need of the nodes, once for every combination of flavors that it might get.

    None at all where there are too many: then nothing is ruled out by nodes before a trial.
    """
    pod_sets = fewest(gang)
    demand = market.demand(pod_sets, queue.spec)
    combinations = []
    for pods in demand.pod_sets:
        open_to = [[option.flavor for option in step.options if not option.refusal] for step in pods.steps]
        combinations.append(list(dict.fromkeys(tuple(sorted(set(each))) for each in product(*open_to))))
    if prod(map(len, combinations)) > _COMBINATIONS:
        return []
    flavors = market.flavors
    return [
        [demand_of(pods, [flavors[name] for name in names]) for pods, names in zip(pod_sets, chosen, strict=True)]
        for chosen in product(*combinations)
    ]
