from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quota_builders import cluster_queue, cohort, gpu, holding, quota, tree

from scaler.kube.objects.quantity import UNLIMITED
from scaler.quota.model import (
    Quota,
    StopPolicy,
)
from scaler.quota.node import TreeNode
from scaler.quota.tree import Tree

GPU = gpu()

# ------------------------------------------------------------------------------------------------------------- trees


def limited(nominal: int, borrowing: int | None, lending: int | None) -> Quota:
    return quota(nominal, borrowing=borrowing, lending=lending)


LIMITS = st.none() | st.integers(0, 6)
NOMINAL = st.integers(0, 6)
QUOTAS = st.builds(limited, NOMINAL, LIMITS, LIMITS)


@st.composite
def forms(draw: st.DrawFn) -> Tree:
    """A tree of one to four levels with queues at every level, nothing used."""
    depth = draw(st.integers(0, 3))
    cohorts = [
        cohort(f"c{level}", parent=f"c{level - 1}" if level else "", gpus=draw(QUOTAS) if level else draw(NOMINAL))
        for level in range(depth)
    ]
    places = draw(st.lists(st.integers(0, depth - 1), min_size=1, max_size=5)) if depth else [0]
    queues = [
        cluster_queue(f"q{index}", cohort=f"c{place}" if depth else "", gpus=draw(QUOTAS) if depth else draw(NOMINAL))
        for index, place in enumerate(places)
    ]
    return tree(queues, cohorts)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Tree, list[tuple[str, int]]]:
    form = draw(forms())
    return form, draw(st.lists(st.tuples(st.sampled_from(sorted(form.queues)), st.integers(0, 9)), max_size=8))


def nodes(form: Tree) -> Iterator[TreeNode]:
    yield from form.cohorts.values()
    yield from form.queues.values()


def used(form: Tree) -> dict[str, int]:
    return {node.name: node.usage.get(GPU, 0) for node in nodes(form)}


def available(form: Tree) -> dict[str, int]:
    return {node.name: node.available(GPU) for node in nodes(form)}


# -------------------------------------------------------------------------------------------------------------- laws


@given(loads(), st.randoms(use_true_random=False))
def test_what_is_added_and_removed_again_in_any_order_leaves_no_trace(
    given: tuple[Tree, list[tuple[str, int]]], random: Any
) -> None:
    form, load = given
    before = used(form), available(form)
    for queue, gpus in load:
        form.queues[queue].add({GPU: gpus})
    random.shuffle(load)
    for queue, gpus in load:
        form.queues[queue].remove({GPU: gpus})
    assert (used(form), available(form)) == before


@given(loads())
def test_usage_that_was_added_is_the_usage_of_a_tree_built_with_it(given: tuple[Tree, list[tuple[str, int]]]) -> None:
    form, load = given
    for queue, gpus in load:
        form.queues[queue].add({GPU: gpus})
    holders = [holding(f"w{index}", queue=queue, gpus=gpus) for index, (queue, gpus) in enumerate(load)]
    specs = [queue.spec for queue in form.queues.values()], [node.spec for node in form.cohorts.values()]
    assert used(tree(*specs, holders)) == used(form)


@given(loads())
def test_taking_what_is_available_leaves_nothing_over_quota(given: tuple[Tree, list[tuple[str, int]]]) -> None:
    """`available` is no promise that two can take, but one can, and its root owes nothing afterwards."""
    form, load = given
    for queue, _ in load:
        form.queues[queue].add({GPU: form.queues[queue].available(GPU)})
    assert form.root.usage.get(GPU, 0) <= form.root.subtree.get(GPU, 0)


@given(loads())
def test_a_queue_with_quota_of_its_own_left_borrows_nothing(given: tuple[Tree, list[tuple[str, int]]]) -> None:
    form, load = given
    for queue, gpus in load:
        form.queues[queue].add({GPU: gpus})
    for node in form.queues.values():
        left = node.nominal(GPU) - node.usage.get(GPU, 0)
        if left >= 0:
            assert node.lowest_fit(GPU, left)[0] == 0


@given(loads())
def test_a_clone_goes_its_own_way(given: tuple[Tree, list[tuple[str, int]]]) -> None:
    form, load = given
    before = used(form), available(form)
    other = form.clone()
    for index, (queue, gpus) in enumerate(load):
        other.queues[queue].reserve(holding(f"w{index}", queue=queue, gpus=gpus))
    assert (used(form), available(form)) == before
    assert not any(queue.workloads for queue in form.queues.values())
    assert sum(len(queue.workloads) for queue in other.queues.values()) == len(load)
    assert all(node.parent is None or node.parent is other.cohorts[node.parent.name] for node in nodes(other))


# ---------------------------------------------------------------------------------------------------------- examples


def test_a_lending_limit_keeps_the_rest_for_its_owner() -> None:
    """Queue a owns 4; b owns 4 and lends at most 1: 4 + 1 = 5 for a, 4 + 4 = 8 for b."""
    form = tree([cluster_queue("a", cohort="co"), cluster_queue("b", cohort="co", gpus=quota(4, lending=1))])
    assert available(form) == {"co": 5, "a": 5, "b": 8}
    form.queues["b"].add({GPU: 3})
    assert available(form) == {"co": 5, "a": 5, "b": 5}, "3 of b's 4 are its own affair"
    form.queues["b"].add({GPU: 1})
    assert available(form) == {"co": 4, "a": 4, "b": 4}


@pytest.mark.parametrize(
    ("lending", "expected"),
    [
        pytest.param(None, UNLIMITED, id="all of it is lent"),
        pytest.param(3, 4, id="unlimited less 3 is unlimited: a has its own 4"),
        pytest.param(UNLIMITED, UNLIMITED, id="an unlimited limit is none"),
    ],
)
def test_unlimited_quota_is_lent_whole_or_not_at_all(lending: int | None, expected: int) -> None:
    endless = cluster_queue("b", cohort="co", gpus=quota(UNLIMITED, lending=lending))
    form = tree([cluster_queue("a", cohort="co"), endless])
    assert min(form.queues["a"].available(GPU), UNLIMITED) == expected
    assert form.root.subtree[GPU] == expected


def test_limits_of_a_cohort_count_for_all_below_it() -> None:
    """Root owns 4; left has a (2); right has b (2), borrows at most 2 and lends nothing.

    b: 2 + min(2, …) = 4. a: its 2 and the root's 4 = 6, none of b's.
    """
    form = tree(
        [cluster_queue("a", cohort="left", gpus=2), cluster_queue("b", cohort="right", gpus=2)],
        [
            cohort("root", gpus=4),
            cohort("left", parent="root"),
            cohort("right", parent="root", gpus=quota(0, borrowing=2, lending=0)),
        ],
    )
    assert {name: queue.available(GPU) for name, queue in form.queues.items()} == {"a": 6, "b": 4}
    form.queues["b"].add({GPU: 4})
    # 2 of b's 4 stay in `right`, 2 come from the root: 4 - 2 = 2 of the root's, and a's own 2.
    assert form.queues["a"].available(GPU) == 4
    assert form.queues["b"].available(GPU) == 0


def test_more_used_than_there_is_leaves_nothing_and_says_by_how_much() -> None:
    form = tree([cluster_queue("a", gpus=2)], workloads=[holding(gpus=5)])
    assert form.queues["a"].available(GPU) == 0
    assert form.queues["a"].raw_available(GPU) == -3


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        pytest.param(2, (0, True), id="its own quota holds 2"),
        pytest.param(4, (1, True), id="with the other queue of its cohort, 4"),
        pytest.param(7, (2, False), id="with all of the tree, 7"),
        pytest.param(9, (2, False), id="nothing holds 9: as high as the tree is"),
    ],
)
def test_the_lowest_subtree_that_holds_a_request_tells_how_far_it_borrows(
    gpus: int, expected: tuple[int, bool]
) -> None:
    form = tree(
        [
            cluster_queue("a", cohort="left", gpus=2),
            cluster_queue("b", cohort="left", gpus=2),
            cluster_queue("c", cohort="root", gpus=3),
        ],
        [cohort("root"), cohort("left", parent="root")],
    )
    assert form.queues["a"].lowest_fit(GPU, gpus) == expected


def test_what_a_subtree_keeps_for_itself_need_not_be_found_further_up() -> None:
    """a wants 7. Left owns 4 and lends nothing, so 3 are wanted of mid, which owns them."""
    cohorts = [
        cohort("root"),
        cohort("mid", parent="root", gpus=3),
        cohort("left", parent="mid", gpus=quota(4, lending=0)),
    ]
    form = tree([cluster_queue("a", cohort="left", gpus=0)], cohorts)
    assert form.queues["a"].lowest_fit(GPU, 7) == (2, True)


def test_a_queue_that_does_not_schedule_counts_in_the_sums_and_not_in_the_height() -> None:
    held = cluster_queue("held", cohort="co", gpus=3, stop_policy=StopPolicy.HOLD)
    form = tree([held], workloads=[holding("runs", queue="held")])
    assert form.cohorts["co"].subtree == {GPU: 3}
    assert form.cohorts["co"].usage == {GPU: 1}
    assert form.cohorts["co"].height == 0
    assert form.scheduling == []


def test_a_cohort_can_lend_of_a_resource_what_all_its_flavors_could() -> None:
    """The parent of `left` could take 4 + 3 of the one flavor and 1 of the other: 8 GPUs in all."""
    form = tree(
        [
            cluster_queue("a", cohort="left", gpus={"a100": 4}),
            cluster_queue("b", cohort="root", gpus={"a100": 3, "h100": 1}),
        ],
        [cohort("root"), cohort("left", parent="root")],
    )
    assert form.cohorts["left"].lendable() == {GPU.resource: 8}


# -------------------------------------------------------------------------------------------------- order of preemption


def test_those_that_go_first_are_evicted_then_lower_in_priority_then_newer() -> None:
    older, newer = holding("older"), holding("newer")
    lower, leaving = holding("lower", priority=-1), holding("leaving", priority=9, evicted=True)
    form = tree([cluster_queue("a")], workloads=[older, newer, lower, leaving])
    assert [one.name for _, one in form.queues["a"].holders_of(frozenset({GPU}))] == [
        "leaving",
        "lower",
        "newer",
        "older",
    ]


def test_only_one_that_was_assigned_some_of_it_holds_it_even_if_that_is_none() -> None:
    nothing = replace(holding("none"), reservation=replace(holding("none", gpus=0).held, usage={}))
    form = tree([cluster_queue("a", gpus={"default": 4, "h100": 4})], workloads=[nothing, holding("on", flavor="h100")])
    assert [one.name for _, one in form.queues["a"].holders_of(frozenset({GPU}))] == ["none"]
    assert [one.name for _, one in form.queues["a"].holders_of(frozenset({gpu("h100")}))] == ["on"]
    assert [one.name for _, one in form.queues["a"].holders_of(frozenset({GPU, gpu("h100")}))] == ["on", "none"]


def test_of_equals_the_uid_decides() -> None:
    first = holding("first", uid="1")
    second = replace(first, name="second", uid="2")
    form = tree([cluster_queue("a")], workloads=[second, first])
    assert [one.name for _, one in form.queues["a"].holders_of(frozenset({GPU}))] == ["first", "second"]


def test_the_order_follows_what_is_reserved_and_released() -> None:
    runs, comes = holding("runs"), holding("comes")
    queue = tree([cluster_queue("a")], workloads=[runs]).queues["a"]
    assert [one for _, one in queue.holders_of(frozenset({GPU}))] == [runs]
    queue.reserve(comes)
    assert [one for _, one in queue.holders_of(frozenset({GPU}))] == [comes, runs]
    queue.release(runs)
    assert [one for _, one in queue.holders_of(frozenset({GPU}))] == [comes]
