"""What is needed at least: whatever makes the gang fit covers every need, in quota and in rooms on nodes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_builders import cluster_queue, cohort, flavors, gpu, holding, pod_set, quota, tree, workload
from reclaim.search.search_inputs import requests
from reclaim_builders import nodes_with

from scaler.placement.fit import fits
from scaler.placement.node_index import demand_of
from scaler.quota.demands import FlavorOptions
from scaler.quota.forecast import without
from scaler.quota.model import QueueingStrategy, QuotaWorkload
from scaler.reclaim.budget import no_budgets
from scaler.reclaim.search.context import SearchContext
from scaler.reclaim.search.requirements import QuotaRequirement, certainly_before, gain
from scaler.reclaim.search.shortfalls import MissingAmount, missing_slots, quota_needs, slot_needs
from scaler.reclaim.search.values import PlanRequest

ROOM = 5040


def rooms(
    pods: QuotaWorkload, nodes: dict[str, int], placements: dict[str, dict[QuotaWorkload, int]], *idle: QuotaWorkload
) -> list[tuple[int, dict[str, int]]]:
    """The needs of the gang's only PodSet: the rooms that are missing, and what the idle ones add, in 5040ths."""
    demands = [demand_of(each) for each in pods.pod_sets]
    found = slot_needs(missing_slots([demands], nodes_with(nodes, placements), [each.key for each in idle]))
    return [(need.amount, {key.removeprefix("team/"): most for key, most in need.gains.items()}) for need in found]


def test_the_docstrings_example() -> None:
    x, y, z, v = (holding(name, gpus=4) for name in "xyzv")
    busy = [holding(name, gpus=4) for name in ("busy1", "busy3")]
    # n1: 4 free, x holds 4. n2: y and z hold 4 each. n3: v holds 4 beside busy3.
    placements = {"n1": {x: 4}, "n2": {y: 4, z: 4}, "n3": {v: 4, busy[1]: 4}}
    (need,) = rooms(workload(gpus=8), {"n1": 8, "n2": 8, "n3": 8}, placements, x, y, z, v)
    assert need == (ROOM, {"x": ROOM, "y": ROOM // 2, "z": ROOM // 2})


def test_rooms_that_are_there_are_not_needed() -> None:
    x = holding("x", gpus=4)
    assert rooms(workload(gpus=4), {"n1": 8}, {"n1": {x: 4}}, x) == []
    two = workload(pod_sets=(pod_set(pods=2, gpus=4),))
    assert rooms(two, {"n1": 8}, {"n1": {x: 4}}, x) == [(ROOM, {"x": ROOM})]


def test_nobody_adds_more_rooms_than_there_could_be() -> None:
    large = holding("large", gpus=8)
    # A node of 9 has room for one pod of 6, however much is freed.
    (need,) = rooms(workload(pod_sets=(pod_set(pods=2, gpus=6),)), {"n1": 9}, {"n1": {large: 8}}, large)
    assert need == (2 * ROOM, {"large": ROOM})


def test_devices_that_a_node_has_lost_are_freed_first() -> None:
    one, other = holding("one", gpus=4), holding("other", gpus=4)
    # The node declares 6 GPUs and 8 are in use: after 4 are freed 2 are free, after 8 all 6.
    (need,) = rooms(workload(gpus=2), {"n1": 6}, {"n1": {one: 4, other: 4}}, one, other)
    assert need[0] == ROOM
    assert min(need[1].values()) >= ROOM


@settings(max_examples=40)
@given(requests(), st.data())
def test_a_set_with_which_the_gang_fits_covers_every_need(request: PlanRequest, data: st.DataObject) -> None:
    field = SearchContext(replace(request, refuse=no_budgets))
    chosen = frozenset(data.draw(st.sets(st.sampled_from(sorted(field.by_key))))) if field.by_key else frozenset()
    after = without(field.forecast.most_available, chosen)
    for requirement in (field.wanted, field.in_cohort):
        if requirement.fits(after):
            covered(quota_needs(requirement, field.forecast.most_available, field.held), chosen)
    if field.nodes is not None:
        emptier = field.nodes.without(chosen)
        if any(fits(demands, emptier) for demands in field.choices):
            covered(slot_needs(missing_slots(field.choices, field.nodes, field.by_key)), chosen)


def covered(needs: list[MissingAmount], chosen: frozenset[str]) -> None:
    for need in needs:
        assert sum(need.gains.get(key, 0) for key in chosen) >= need.amount


# ------------------------------------------------------------------------------------------------------------ the count

MARKET = FlavorOptions(flavors=flavors())


@pytest.mark.parametrize(
    ("strategy", "names"),
    [(QueueingStrategy.STRICT_FIFO, ["older", "other"]), (QueueingStrategy.BEST_EFFORT_FIFO, ["older"])],
)
def test_in_a_strict_queue_all_are_certainly_before_elsewhere_only_those_alike(
    strategy: QueueingStrategy, names: list[str]
) -> None:
    older, other, taken = workload("older", gpus=4), workload("other", gpus=2), workload("taken", gpus=4)
    gang = workload(gpus=4)
    found = certainly_before(gang, [older, other, taken], strategy, {taken.key})
    assert [each.name for each in found] == names


def test_quota_that_a_neighbour_does_not_lend_is_no_gain() -> None:
    idle = holding("idle", gpus=4, queue="b")
    queues = [cluster_queue("a", gpus=4, cohort="co"), cluster_queue("b", gpus=quota(6, lending=2), cohort="co")]
    world = tree(queues, [cohort("co")], [idle])
    count = QuotaRequirement.of(workload(gpus=8), world.queues["a"], MARKET)
    # b keeps 4 of its 6 for itself: its 4 are none of them a's.
    assert gain(count, idle.held, world, gpu().resource) == 0
    assert count.missing(world) == {gpu().resource: 8 - 6}
    full = tree(queues, [cohort("co")], [idle, holding("busy", gpus=1, queue="b")])
    assert gain(count, idle.held, full, gpu().resource) == 1
