"""Every reason why nobody is suspended, with the numbers that an owner needs to believe it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from quota_builders import (
    NOW,
    cluster_queue,
    cohort,
    holding,
    local_queue,
    pod_set,
    preempting,
    quota,
    requiring,
    selecting,
    workload,
)
from reclaim_builders import candidate, forbids, nodes_with, refused, request

from scaler.quota.model import PreemptionPolicy, QueueingStrategy, Reservation, StopPolicy
from scaler.reclaim.search.problem import SearchLimits
from scaler.reclaim.search.values import NoPlanReason, PlanRequest


def free_already() -> PlanRequest:
    idle = holding("idle", gpus=4)
    return request(workload(gpus=4), [cluster_queue("a", gpus=8)], [idle], [candidate(idle)])


def reserved_already() -> PlanRequest:
    reservation = Reservation(cluster_queue="a", at=NOW, assignments=(), usage={})
    return request(workload(gpus=4, reservation=reservation), [cluster_queue("a", gpus=8)], [])


def more_than_all_quota() -> PlanRequest:
    return request(workload(gpus=16), [cluster_queue("a", gpus=quota(8))], [])


def more_than_any_flavor() -> PlanRequest:
    # 6 + 6 = 12 in all, but one PodSet takes its 8 from one flavor.
    return request(workload(gpus=8), [cluster_queue("a", gpus={"x": 6, "y": 6})], [])


def no_flavor_for_it() -> PlanRequest:
    nodes = selecting([(requiring("flavor", "In", "b200"),)])
    return request(workload(pod_sets=(pod_set(gpus=1, nodes=nodes),)), [cluster_queue("a", gpus=8)], [])


def too_little_idle() -> PlanRequest:
    idle, busy = holding("idle", gpus=2), holding("busy", gpus=5)
    return request(workload(gpus=8), [cluster_queue("a", gpus=8)], [idle, busy], [candidate(idle)])


def nobody_idle() -> PlanRequest:
    return request(workload(gpus=8), [cluster_queue("a", gpus=8)], [holding("busy", gpus=5)])


def head_too_large() -> PlanRequest:
    idle, busy = holding("idle", gpus=4), holding("busy", gpus=4)
    strict = cluster_queue("a", gpus=8, strategy=QueueingStrategy.STRICT_FIFO)
    head = workload("head", gpus=8, priority=10)
    return request(workload(gpus=4), [strict], [idle, busy, head], [candidate(idle)])


def head_without_room() -> PlanRequest:
    """The head fits its quota with everybody gone, and then a neighbour takes it."""
    idle = holding("idle", gpus=4)
    queues = [
        cluster_queue("a", gpus=4, cohort="co", strategy=QueueingStrategy.STRICT_FIFO),
        cluster_queue("b", gpus=0, cohort="co"),
    ]
    head, taker = workload("head", gpus=4, priority=1), workload("taker", gpus=1, queue="b", priority=5)
    rival = workload("rival", gpus=3, queue="b", priority=4)
    return request(workload(gpus=1), queues, [idle, head, taker, rival], [candidate(idle)])


def scattered() -> PlanRequest:
    small, busy = [holding(f"s{i}", gpus=1) for i in range(2)], [holding(f"b{i}", gpus=3) for i in range(2)]
    capacity = nodes_with({"n0": 4, "n1": 4}, {f"n{i}": {small[i]: 1, busy[i]: 3} for i in range(2)})
    idle = [candidate(each) for each in small]
    return request(workload(gpus=2), [cluster_queue("a", gpus=8)], [*small, *busy], idle, capacity=capacity)


def forbidden() -> PlanRequest:
    idle = holding("idle", gpus=4)
    queues = [cluster_queue("a", gpus=4)]
    return request(
        workload(gpus=4), queues, [idle], [candidate(idle)], refuse=lambda _: forbids("2 of 2 an hour are spent")
    )


def taken_by_another() -> PlanRequest:
    idle, taker = holding("idle", gpus=4), workload("taker", gpus=4, priority=10)
    queues = [cluster_queue("a", gpus=4, cohort="co"), cluster_queue("b", gpus=0, cohort="co")]
    return request(workload(gpus=4, queue="b"), queues, [idle, taker], [candidate(idle)])


def one_like_it_first() -> PlanRequest:
    idle = holding("idle", gpus=4)
    older = workload("older", gpus=4)
    return request(workload(gpus=4), [cluster_queue("a", gpus=4)], [idle, older], [candidate(idle)])


def reclaimed_at_once() -> PlanRequest:
    """The gang borrows what b's idle workload frees, and b's owner takes it back."""
    idle = holding("idle", gpus=4, queue="b")
    owner = workload("owner", gpus=2, queue="b", priority=-5)
    reclaiming = preempting(reclaim=PreemptionPolicy.ANY)
    queues = [cluster_queue("a", gpus=0, cohort="co"), cluster_queue("b", gpus=4, cohort="co", preemption=reclaiming)]
    first = workload("first", gpus=5, queue="b", priority=9)
    return request(workload(gpus=4, priority=20), queues, [idle, owner, first], [candidate(idle)])


def at_the_cost_of_a_third() -> PlanRequest:
    """As before, but b's owner takes it back from low, which has borrowed elsewhere and has the lowest priority."""
    given = reclaimed_at_once()
    low = holding("low", gpus=2, queue="d", priority=-9)
    waiting = [each for pending in given.planning_tree.pending.values() for each in pending if each is not given.gang]
    holders = [each for queue in given.planning_tree.tree.queues.values() for each in queue.workloads.values()]
    queues = [queue.spec for queue in given.planning_tree.tree.queues.values()]
    return request(
        given.gang,
        [*queues, cluster_queue("d", gpus=0, cohort="co")],
        [*holders, low, *waiting],
        given.candidates,
        cohorts=[cohort("co", gpus=2)],
    )


def inactive() -> PlanRequest:
    return request(workload(gpus=4), [cluster_queue("a", gpus=4, inactive_because="AdmissionCheckNotFound")], [])


def on_hold() -> PlanRequest:
    return request(workload(gpus=4), [cluster_queue("a", gpus=4, stop_policy=StopPolicy.HOLD)], [])


def foreign_namespace() -> PlanRequest:
    return request(workload(gpus=4), [cluster_queue("a", gpus=4, namespace_selector=None)], [])


def stopped_local_queue() -> PlanRequest:
    given = request(workload(gpus=4), [cluster_queue("a", gpus=4)], [])
    stopped = local_queue("a", stop_policy=StopPolicy.HOLD)
    world = replace(given.planning_tree.world, local_queue=lambda *_: stopped)
    return replace(given, planning_tree=replace(given.planning_tree, world=world))


def opaque() -> PlanRequest:
    return request(workload(gpus=4, opaque_because="it asks for a topology"), [cluster_queue("a", gpus=4)], [])


def in_backoff() -> PlanRequest:
    return request(workload(gpus=4, may_queue=False), [cluster_queue("a", gpus=4)], [])


def gone_meanwhile() -> PlanRequest:
    return replace(free_already(), gang=workload("other", gpus=4))


def out_of_steps() -> PlanRequest:
    idle = holding("idle", gpus=4)
    limits = SearchLimits(steps=0, questions=0, members=64)
    return replace(request(workload(gpus=4), [cluster_queue("a", gpus=4)], [idle], [candidate(idle)]), limits=limits)


CASES: dict[Callable[[], PlanRequest], tuple[NoPlanReason, str]] = {
    free_already: (NoPlanReason.FITS_ALREADY, "it fits into free quota"),
    reserved_already: (NoPlanReason.FITS_ALREADY, "it holds quota in ClusterQueue a already"),
    more_than_all_quota: (
        NoPlanReason.NEVER_FITS,
        "it needs 16 nvidia.com/gpu of at most 8 that ClusterQueue a could ever get",
    ),
    more_than_any_flavor: (
        NoPlanReason.NEVER_FITS,
        "it needs 8 nvidia.com/gpu of at most 12 that ClusterQueue a could ever get, borrowing included, and a PodSet "
        "takes each resource from one flavor",
    ),
    no_flavor_for_it: (NoPlanReason.NEVER_FITS, "no flavor of ClusterQueue a is open to the pods of team/gang"),
    too_little_idle: (
        NoPlanReason.NOT_ENOUGH_IDLE,
        "it needs 8 nvidia.com/gpu; available to ClusterQueue a: 1 nvidia.com/gpu of default; with every idle workload "
        "suspended: 3 nvidia.com/gpu of default",
    ),
    nobody_idle: (
        NoPlanReason.NOT_ENOUGH_IDLE,
        "available to ClusterQueue a: 3 nvidia.com/gpu of default; no workload is idle",
    ),
    head_too_large: (
        NoPlanReason.HEAD_OF_LINE_BLOCKED,
        "ClusterQueue a is StrictFIFO and Workload team/head is queued before the gang: together they need 12 "
        "nvidia.com/gpu; available with every idle workload suspended: 4 nvidia.com/gpu of default",
    ),
    head_without_room: (
        NoPlanReason.HEAD_OF_LINE_BLOCKED,
        "ClusterQueue a is StrictFIFO and Workload team/head is queued before",
    ),
    scattered: (
        NoPlanReason.PLACEMENT_IMPOSSIBLE,
        "PodSet main: 1 of 1 pods does not fit: 2 nvidia.com/gpu are free in total, but no node has 2 free: the "
        "most on one node is 1",
    ),
    forbidden: (NoPlanReason.BUDGET_EXHAUSTED, "2 of 2 an hour are spent"),
    taken_by_another: (NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, "what is freed would go to team/taker first"),
    one_like_it_first: (
        NoPlanReason.WOULD_BE_TAKEN_BY_OTHER,
        "equal Workloads are queued before it in ClusterQueue a: together they need 8 nvidia.com/gpu; available with "
        "every idle workload suspended: 4 nvidia.com/gpu of default",
    ),
    reclaimed_at_once: (
        NoPlanReason.WOULD_BE_TAKEN_BY_OTHER,
        "Kueue would take the quota back from the gang, for team/owner",
    ),
    at_the_cost_of_a_third: (NoPlanReason.WOULD_PREEMPT_OTHERS, "Kueue would preempt team/low for team/owner"),
    inactive: (NoPlanReason.QUEUE_STOPPED, "ClusterQueue a admits nothing: AdmissionCheckNotFound"),
    on_hold: (NoPlanReason.QUEUE_STOPPED, "ClusterQueue a admits nothing: stopPolicy is Hold"),
    foreign_namespace: (NoPlanReason.QUEUE_STOPPED, "ClusterQueue a does not select namespace team"),
    stopped_local_queue: (NoPlanReason.QUEUE_STOPPED, "LocalQueue a is stopped, or its ClusterQueue does not exist"),
    opaque: (NoPlanReason.UNFORESEEABLE, "cannot be foreseen: it asks for a topology"),
    in_backoff: (NoPlanReason.UNFORESEEABLE, "it is not queued: its requeue backoff"),
    gone_meanwhile: (NoPlanReason.UNFORESEEABLE, "it does not wait in ClusterQueue a any more"),
    out_of_steps: (NoPlanReason.NOT_FOUND, "the search reached its limit before it found a set of victims"),
}


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_a_refusal_says_why_with_the_numbers(build: Callable[[], PlanRequest]) -> None:
    why, words = CASES[build]
    found = refused(build())
    assert found.why is why, found
    assert words in found.message
    assert found.is_exact == (build is not out_of_steps)


def test_every_reason_is_given_somewhere() -> None:
    """That a plan cannot be protected is for whoever carries it out to say: it depends on settings."""
    assert {why for why, _ in CASES.values()} == set(NoPlanReason) - {NoPlanReason.UNPROTECTED}
