"""Nothing that is enough costs less than its cover; and what the sums and the devices alone decide costs just that."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from quota_builders import holding, pod_set, workload
from reclaim_builders import nodes_with

from scaler.placement.capacity import Capacity
from scaler.placement.fit import fits
from scaler.placement.node_index import NodeDemand, demand_of
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.search.covers import Covers, SlotCosts, covers_of
from scaler.reclaim.search.shortfalls import MissingAmount, missing_slots


def sets_of(keys: Iterable[str]) -> Iterator[frozenset[str]]:
    known = sorted(keys)
    return (frozenset(chosen) for size in range(len(known) + 1) for chosen in combinations(known, size))


def cost_of(keys: Iterable[str], costs: Mapping[str, int]) -> int:
    return sum(costs[key] for key in keys)


def covers_of_slots(
    choices: list[list[NodeDemand]], capacity: Capacity, costs: Mapping[str, int], without: str = ""
) -> Covers:
    missing = missing_slots(choices, capacity, costs)
    return covers_of((), [[SlotCosts(each, costs) for each in shapes] for shapes in missing], costs, without)


def pods(count: int, gpus: int) -> list[NodeDemand]:
    return [demand_of(each) for each in workload(pod_sets=(pod_set(pods=count, gpus=gpus),)).pod_sets]


def test_the_docstrings_example() -> None:
    idle = {name: holding(name, gpus=gpus) for name, gpus in zip("abcde", (2, 2, 2, 4, 4), strict=True)}
    busy = [holding(f"busy{i}", gpus=2) for i in range(1)]
    placements = {
        "n1": {idle["a"]: 2, idle["b"]: 2},
        "n2": {idle["c"]: 2, busy[0]: 2},
        "n3": {idle["d"]: 4},
        "n4": {idle["e"]: 4},
    }
    costs = {f"team/{name}": cost for name, cost in zip("abcde", (1, 1, 1, 5, 9), strict=True)}
    capacity = nodes_with(dict.fromkeys(placements, 4), placements)
    found = covers_of_slots([pods(2, 4)], capacity, costs)
    assert found.floor == 7
    assert [(each.cost, sorted(each.keys)) for each in found.found] == [(7, ["team/a", "team/b", "team/d"])]
    # With a staying, n1 gains none: d and e.
    assert covers_of_slots([pods(2, 4)], capacity, costs, without="team/a").floor == 14


def test_of_several_combinations_any_will_do() -> None:
    """A pod of 8 needs a (4, cost 9) and b (4, cost 5) gone, a pod of 4 either of them."""
    a, b = holding("a", gpus=4), holding("b", gpus=4)
    costs = {"team/a": 9, "team/b": 5}
    capacity = nodes_with({"n1": 8}, {"n1": {a: 4, b: 4}})
    assert [each.cost for each in covers_of_slots([pods(1, 8), pods(1, 4)], capacity, costs).found] == [5, 14]
    assert [each.cost for each in covers_of_slots([pods(1, 8), pods(1, 4)], capacity, costs, "team/b").found] == [9]


@st.composite
def occupied(draw: st.DrawFn, most_nodes: int) -> tuple[Capacity, dict[str, int]]:
    """Nodes with candidates, each on so many nodes at most, and what these cost. A node may have lost devices."""
    nodes = {f"n{i}": 0 for i in range(draw(st.integers(1, 4)))}
    placements: dict[str, dict[QuotaWorkload, int]] = {name: {} for name in nodes}
    costs: dict[str, int] = {}
    for i in range(draw(st.integers(0, 7))):
        on = draw(st.lists(st.sampled_from(sorted(nodes)), min_size=1, max_size=most_nodes, unique=True))
        held = {name: draw(st.integers(1, 4)) for name in on}
        holder = holding(f"h{i}", gpus=sum(held.values()))
        for name, gpus in held.items():
            placements[name][holder] = gpus
            nodes[name] += gpus
        if draw(st.integers(0, 5)):
            costs[holder.key] = draw(st.integers(1, 9))
    sizes = {name: max(0, used + draw(st.sampled_from((0, 0, 0, 1, 2, 3, -1)))) for name, used in nodes.items()}
    return nodes_with(sizes, placements), costs


GANGS = st.builds(pods, st.integers(1, 5), st.integers(1, 4))


@given(occupied(most_nodes=1), GANGS, st.booleans())
def test_slots_on_single_nodes_cost_just_what_their_cover_does(
    given: tuple[Capacity, dict[str, int]], gang: list[NodeDemand], leaves_one_out: bool
) -> None:
    capacity, costs = given
    staying = min(costs, default="") if leaves_one_out else ""
    enough = [keys for keys in sets_of(costs.keys() - {staying}) if fits(gang, capacity.without(keys))]
    found = covers_of_slots([gang], capacity, costs, staying)
    if not enough:
        assert not found.found
    elif frozenset() in enough:
        assert found.floor == 0
    else:
        assert found.floor == min(cost_of(keys, costs) for keys in enough)
        (cover,) = found.found
        assert cover.keys in enough
        assert cost_of(cover.keys, costs) == found.floor


@given(occupied(most_nodes=3), st.lists(GANGS, min_size=1, max_size=2), st.booleans())
def test_nothing_that_is_enough_costs_less_than_the_floor(
    given: tuple[Capacity, dict[str, int]], gangs: list[list[NodeDemand]], is_choice: bool
) -> None:
    capacity, costs = given
    choices = gangs if is_choice else [[each for gang in gangs for each in gang]]
    floor = covers_of_slots(choices, capacity, costs).floor
    for keys in sets_of(costs):
        if any(fits(demands, capacity.without(keys)) for demands in choices):
            assert cost_of(keys, costs) >= floor


amounts = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), max_size=8)


@given(amounts, st.integers(1, 30), st.sampled_from((1, 700)))
def test_a_cover_of_an_amount_is_the_cheapest_set_whose_gains_add_up(
    drawn: list[tuple[int, int]], need: int, scale: int
) -> None:
    """Of large amounts, counted in coarser units, it costs no more than that."""
    gains = {f"o{i}": gain * scale + (gain // 2 if scale > 1 else 0) for i, (gain, _) in enumerate(drawn)}
    costs = {f"o{i}": cost for i, (_, cost) in enumerate(drawn)}
    enough = [keys for keys in sets_of(costs) if sum(gains[key] for key in keys) >= need * scale]
    found = covers_of([MissingAmount(amount=need * scale, gains=gains)], (), costs)
    least = min((cost_of(keys, costs) for keys in enough), default=None)
    if scale == 1:
        assert (found.floor or None) == least
        assert all(each.keys in enough and cost_of(each.keys, costs) == each.cost for each in found.found)
    elif least is not None:
        assert found.floor <= least


@given(amounts, amounts, st.integers(1, 9), st.integers(1, 9))
def test_of_amounts_that_are_all_needed_the_dearest_cover_counts(
    one: list[tuple[int, int]], other: list[tuple[int, int]], first: int, second: int
) -> None:
    costs = {f"o{i}": cost for i, (_, cost) in enumerate(one)}
    needs = [
        MissingAmount(amount=first, gains={f"o{i}": gain for i, (gain, _) in enumerate(one)}),
        MissingAmount(amount=second, gains={f"o{i}": gain for i, (gain, _) in enumerate(other[: len(one)])}),
    ]
    floor = covers_of(needs, (), costs).floor
    for keys in sets_of(costs):
        if all(sum(need.gains.get(key, 0) for key in keys) >= need.amount for need in needs):
            assert cost_of(keys, costs) >= floor
