"""The world in which the search for victims takes candidates and puts them back: quota and nodes, counted along."""

from collections.abc import Mapping, Sequence
from itertools import product

from scaler.core.placement import Capacity, Demand, Rooms, demand_of
from scaler.core.quota.model import Workload
from scaler.core.quota.tree import Tree
from scaler.core.reclaim.count import Count
from scaler.core.reclaim.trial import Trials, free_capacity
from scaler.core.reclaim.values import Candidate, Request
from scaler.core.victims import Option

_COMBINATIONS = 16
"""Ways to combine flavors beyond which nodes are looked at in trials only."""


class _World:
    """Quota and nodes, with some candidates gone."""

    def __init__(
        self, tree: Tree, count: Count, capacity: Capacity | None, demands: Sequence[Sequence[Demand]]
    ) -> None:
        self._tree = tree
        self._count = count
        self._rooms = [Rooms(each, capacity) for each in demands] if capacity is not None else []
        self._holders = {key: queue for queue in tree.queues.values() for key in queue.workloads}
        self._gone: dict[str, Workload] = {}

    def leave(self, key: str) -> None:
        holder = self._holders[key]
        self._gone[key] = holder.workloads[key]
        holder.release(self._gone[key])
        for rooms in self._rooms:
            rooms.leave(key)

    def come_back(self, key: str) -> None:
        self._holders[key].reserve(self._gone.pop(key))
        for rooms in self._rooms:
            rooms.come_back(key)

    @property
    def could_hold_it(self) -> bool:
        return self._count.fits(self._tree) and self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether nodes have room with at least one choice of flavors."""
        return not self._rooms or any(rooms.is_possible for rooms in self._rooms)


class VictimGround:
    """The world with the chosen ones gone, and the hopeful one, in which the undecided are gone too."""

    def __init__(self, request: Request, count: Count, tree: Tree, trials: Trials) -> None:
        """`tree` is the gang's without those who leave anyway; it is not changed."""
        capacity = free_capacity(request)
        demands = _demands(request, count, tree) if capacity is not None else []
        self._trials = trials
        self._chosen = _World(tree.clone(), count, capacity, demands)
        self._hopeful = _World(tree.clone(), count, capacity, demands)
        for candidate in request.candidates:
            self._hopeful.leave(candidate.workload)

    def choose(self, option: Option) -> None:
        self._chosen.leave(option.key)

    def unchoose(self, option: Option) -> None:
        self._chosen.come_back(option.key)

    def exclude(self, option: Option) -> None:
        self._hopeful.come_back(option.key)

    def readmit(self, option: Option) -> None:
        self._hopeful.leave(option.key)

    def fits(self) -> bool:
        return self._chosen.could_hold_it

    def could_fit(self) -> bool:
        return self._hopeful.could_hold_it

    def accepts(self, keys: frozenset[str]) -> bool:
        return self._trials.of(keys).why is None


def _demands(request: Request, count: Count, tree: Tree) -> list[list[Demand]]:
    """What the gang's pods need of the nodes, once for every combination of flavors that it might get.

    None at all where there are too many: then nothing is ruled out by nodes before a trial. Nor with partial admission,
    where fewer pods than all would do.
    """
    gang, market = request.gang, request.scene.world.market
    if any(each.min_count is not None and each.min_count < each.count for each in gang.pod_sets):
        return []
    demand = market.demand(gang.pod_sets, tree.queues[count.queue].spec)
    choices: list[list[tuple[str, ...]]] = []
    for pods in demand.pod_sets:
        open_to = [[option.flavor for option in step.options if not option.refusal] for step in pods.steps]
        choices.append([tuple(sorted(set(each))) for each in product(*open_to)])
    if _size(choices) > _COMBINATIONS:
        return []
    flavors = market.flavors
    return [
        [demand_of(pods, [flavors[name] for name in names]) for pods, names in zip(gang.pod_sets, chosen, strict=True)]
        for chosen in product(*choices)
    ]


def _size(choices: Sequence[Sequence[object]]) -> int:
    size = 1
    for each in choices:
        size *= max(1, len(each))
    return size


def options_of(
    candidates: Sequence[Candidate], count: Count, tree: Tree, missing: Mapping[str, int], capacity: Capacity | None
) -> list[Option]:
    """The candidates as the search sees them: what each can add to what is missing, and who is like whom."""
    holders = {key: each for queue in tree.queues.values() for key, each in queue.workloads.items()}
    options = []
    for candidate in candidates:
        holder = holders[candidate.workload]
        seats = capacity.gain([candidate.workload]) if capacity is not None else ()
        usage = tuple(sorted(holder.held.usage.items()))
        options.append(
            Option(
                key=candidate.workload,
                cost=candidate.cost.total,
                gains=tuple(count.gain(holder, tree, resource) for resource in missing),
                twin=(holder.held.cluster_queue, usage, holder.priority, seats, candidate.member.place),
            )
        )
    return options
