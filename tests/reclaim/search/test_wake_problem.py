"""A suspended workload comes back only into what is free, and never before a Workload that waits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quota_builders import (
    cluster_queue,
    cohort,
    flavor,
    gpu,
    holding,
    pod_set,
    preempting,
    quota,
    workload,
)
from reclaim.search.search_inputs import requests
from reclaim_builders import nodes_with, planning_tree

from scaler.quota.model import PreemptionPolicy, QuotaClusterQueue, QuotaWorkload, StopPolicy
from scaler.quota.simulation import Simulation, SimulationEnd, SimulationRun
from scaler.reclaim.search.values import PlanningTree, PlanRequest
from scaler.reclaim.search.wake_problem import UnplacedWorkload, as_it_is, why_suspended


def why(
    *others: QuotaWorkload,
    queues: list[QuotaClusterQueue] | None = None,
    unplaced: tuple[UnplacedWorkload, ...] = (),
    wakes: QuotaWorkload | None = None,
    **fields: Any,
) -> str:
    """Of a workload of 2 GPUs in queue `a`, beside these others."""
    suspended = wakes or workload("notebook", gpus=2)
    tree = planning_tree(queues or [cluster_queue(gpus=4)], [suspended, *others], **fields)
    return why_suspended(suspended, tree, unplaced)


A, B = (cluster_queue(name, gpus=4, cohort="team") for name in "ab")
OTHER_FLAVOR = cluster_queue("b", gpus={"h100": 4}, cohort="team")
TAKES_LOWER = preempting(within=PreemptionPolicy.LOWER_PRIORITY)

CASES: Mapping[str, tuple[str, str]] = {
    "nobody is there": (why(), ""),
    "what it needs is free beside those who run": (why(holding(gpus=2)), ""),
    "less is free": (
        why(holding(gpus=3)),
        "it needs 2 nvidia.com/gpu; free for ClusterQueue a: 1 nvidia.com/gpu of default",
    ),
    "more than there is": (
        why(wakes=workload("notebook", gpus=8)),
        "it needs 8 nvidia.com/gpu; free for ClusterQueue a:",
    ),
    "a gang waits that needs more than is free": (
        why(workload("gang", gpus=4), holding(gpus=2)),
        "Workload team/gang waits for nvidia.com/gpu of default",
    ),
    "a gang waits that never fits": (
        why(workload("gang", gpus=400)),
        "Workload team/gang waits for nvidia.com/gpu of default",
    ),
    "a younger and less important one waits": (
        why(workload("gang", gpus=1, priority=-5)),
        "Workload team/gang waits for nvidia.com/gpu of default",
    ),
    "one waits for its backoff to end": (
        why(workload("gang", gpus=1, may_queue=False)),
        "Workload team/gang waits for nvidia.com/gpu of default",
    ),
    "a gang waits in another queue of its cohort": (
        why(workload("gang", gpus=1, queue="b"), queues=[A, B]),
        "Workload team/gang waits for nvidia.com/gpu of default",
    ),
    "a gang waits in its cohort for another flavor": (
        why(workload("gang", gpus=8, queue="b"), queues=[A, OTHER_FLAVOR]),
        "",
    ),
    "a gang waits in a queue that is stopped": (
        why(
            workload("gang", gpus=1, queue="b"),
            queues=[A, replace(B, stop_policy=StopPolicy.HOLD)],
        ),
        "",
    ),
    "what waits cannot be foreseen": (
        why(workload("gang", queue="b", opaque_because="topology"), queues=[A, OTHER_FLAVOR]),
        "Workload team/gang waits for ",
    ),
    "one is refused by Kueue whatever is free": (why(workload("gang", invalid_because="limits")), ""),
    "one is being evicted, and will wait again": (
        why(holding("gang", gpus=1, evicted=True)),
        "Workload team/gang is being evicted, and waits for nvidia.com/gpu of default again",
    ),
    "one is being evicted, and may come back to another flavor": (
        why(
            holding("gang", flavor="h100", evicted=True),
            wakes=workload("notebook", gpus=2, queue="b"),
            queues=[cluster_queue(gpus={"default": 4, "h100": 4}, cohort="team"), B],
        ),
        "Workload team/gang is being evicted, and waits for nvidia.com/gpu of default again",
    ),
    "it would borrow what is free in its cohort": (why(holding(gpus=4), queues=[A, B]), ""),
    "its cohort lends nothing": (
        why(holding(gpus=4), queues=[A, cluster_queue("b", gpus={"default": quota(4, lending=0)}, cohort="team")]),
        "it needs 2 nvidia.com/gpu; free for ClusterQueue a: nothing",
    ),
    "Kueue would preempt others for it": (
        why(
            holding(gpus=3, priority=-1),
            queues=[cluster_queue(gpus=4, preemption=TAKES_LOWER)],
        ),
        "it needs 2 nvidia.com/gpu; free for ClusterQueue a: 1",
    ),
    "its queue is stopped": (
        why(queues=[cluster_queue(gpus=4, stop_policy=StopPolicy.HOLD)]),
        "ClusterQueue a admits nothing: stopPolicy is Hold",
    ),
    "its own scheduling cannot be foreseen": (
        why(wakes=workload("notebook", gpus=2, opaque_because="it asks for a topology")),
        "cannot be foreseen: it asks for a topology",
    ),
    "quota is free for a part of it": (
        why(holding(gpus=2), wakes=workload("notebook", pod_sets=(pod_set(pods=4, gpus=1, min_count=1),))),
        "it needs 4 nvidia.com/gpu; free for ClusterQueue a: 2",
    ),
}


@pytest.mark.parametrize(("found", "expected"), CASES.values(), ids=CASES.keys())
def test_why_it_stays_suspended(found: str, expected: str) -> None:
    assert found.startswith(expected) if expected else found == ""


# -------------------------------------------------------------------------------------------------------------- nodes


def test_its_pods_have_to_fit_on_the_nodes_as_they_are() -> None:
    runs = holding(gpus=2)
    scattered = nodes_with({"n": 2, "m": 2}, {"n": {runs: 1}, "m": {runs: 1}})
    assert "node" in why(runs, capacity=scattered)
    assert why(runs, capacity=nodes_with({"n": 2, "m": 2}, {"n": {runs: 2}})) == ""


def test_pods_that_are_terminating_hold_their_nodes() -> None:
    gone = holding("gone", gpus=2)
    ending = nodes_with({"n": 2}, {"n": {gone: 2}}, terminating=[gone])
    assert "node" in why(capacity=ending)
    assert why(capacity=nodes_with({"n": 2}, {})) == ""


UNPLACED: Mapping[str, tuple[dict[str, Any], bool]] = {
    "for the same flavor": ({"takes": [gpu()]}, True),
    "for a flavor of other nodes": ({"takes": [gpu("h100")]}, False),
    "for a flavor without labels, which is any node": ({"takes": [gpu("anywhere")]}, True),
    "for a flavor that is not known": ({"takes": [gpu("gone")]}, True),
}


@pytest.mark.parametrize(("fields", "blocks"), UNPLACED.values(), ids=UNPLACED.keys())
def test_who_has_quota_and_lacks_nodes_comes_first_in_whatever_tree(fields: dict[str, Any], blocks: bool) -> None:
    known = {"default": flavor(), "h100": flavor("h100"), "anywhere": flavor("anywhere", node_labels={})}
    unplaced = UnplacedWorkload(key="other/gang", why="has quota, and is not admitted yet", **fields)
    found = why(unplaced=(unplaced,), given_flavors=known)
    assert found == ("Workload other/gang has quota, and is not admitted yet" if blocks else "")


# --------------------------------------------------------------------------------------------------------------- law


@settings(max_examples=40, deadline=None)
@given(requests(), st.booleans())
def test_whoever_comes_back_changes_nothing_for_anybody_else(request: PlanRequest, few: bool) -> None:
    """Mostly somebody waits for the same; so of half of the worlds only those are there who wait for other flavors."""
    tree = request.planning_tree
    if few:
        mine = _flavors(tree, request.gang)
        pending = {
            name: [each for each in line if each is request.gang or mine.isdisjoint(_flavors(tree, each))]
            for name, line in tree.pending.items()
        }
        tree = replace(tree, pending=pending)
    if why_suspended(request.gang, tree):
        return
    without, with_it = _run(tree, leaving_out=request.gang), _run(tree)
    assert not [each for cycle in with_it.cycles for each in cycle.preempted]
    assert with_it.ending is SimulationEnd.SETTLED
    assert _admitted(with_it) - {request.gang.key} == _admitted(without)
    assert request.gang.key in _admitted(with_it)


def _flavors(tree: PlanningTree, workload: QuotaWorkload) -> frozenset[str]:
    queue = tree.tree.queues.get(tree.world.cluster_queue_of(workload))
    return queue.spec.flavors if queue is not None else frozenset()


def _run(tree: PlanningTree, *, leaving_out: QuotaWorkload | None = None) -> SimulationRun:
    pending = {name: [each for each in line if each is not leaving_out] for name, line in tree.pending.items()}
    return Simulation(tree.tree, pending, tree.world, now=tree.now, fair_sharing=tree.fair_sharing).run()


def _admitted(run: SimulationRun) -> set[str]:
    return {each.key for cycle in run.cycles for each in cycle.admitted}


def test_nothing_of_the_given_tree_is_changed() -> None:
    runs = holding(gpus=2)
    tree = planning_tree([cluster_queue(gpus=4)], [runs], capacity=nodes_with({"n": 4}, {"n": {runs: 2}}))
    assert tree.capacity is not None
    assert as_it_is(tree).capacity is not tree.capacity
    assert as_it_is(planning_tree([cluster_queue()], [], cohorts=[cohort()])).capacity is None
