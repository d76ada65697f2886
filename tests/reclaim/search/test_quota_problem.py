"""Head to head: what greedy counting of idle GPUs gets wrong, and who else may be in the way."""

from dataclasses import replace

import pytest
from quota_builders import cluster_queue, cohort, holding, pod_set, quota, requiring, selecting, workload
from reclaim_builders import candidate, names, nodes_with, planned, reasons, refused, request

from scaler.quota.model import QueueingStrategy, QuotaWorkload
from scaler.reclaim.search.values import NoPlanReason

# --------------------------------------------------------------------------------------------------- the peer's cases


def test_four_free_and_four_idle_serve_a_gang_of_eight() -> None:
    idle, gang = holding("idle", gpus=4), workload(gpus=8)
    plan = planned(request(gang, [cluster_queue("a", gpus=8)], [idle], [candidate(idle)]))
    assert names(plan) == {"idle"}
    (key,) = plan.takes
    assert (plan.free_before[key], plan.free_after[key], plan.takes[key]) == (4, 8, 8)
    assert plan.is_exact


def test_one_missing_gpu_does_not_cost_a_job_of_eight() -> None:
    large, small = holding("large", gpus=8), holding("small", gpus=1)
    # The large one has been idle for longer: whoever takes the longest idle first takes all of it.
    idle = [candidate(large, cost=5), candidate(small, cost=4)]
    plan = planned(request(workload(gpus=1), [cluster_queue("a", gpus=9)], [large, small], idle))
    assert names(plan) == {"small"}
    assert ("team/scale-large",) in [each.victims for each in plan.alternatives if each.why_not is None]


def test_scattered_victims_do_not_make_place_for_a_pod_of_eight() -> None:
    small = [holding(f"small-{i}", gpus=1) for i in range(8)]
    rest = [holding(f"rest-{i}", gpus=7) for i in range(8)]
    capacity = nodes_with({f"n{i}": 8 for i in range(8)}, {f"n{i}": {small[i]: 1, rest[i]: 7} for i in range(8)})
    given = request(
        workload(gpus=8),
        [cluster_queue("a", gpus=64)],
        [*small, *rest],
        [candidate(each) for each in small],
        capacity=capacity,
    )
    found = refused(given)
    assert found.why is NoPlanReason.PLACEMENT_IMPOSSIBLE
    assert "8 nvidia.com/gpu are free in total, but no node has 8 free: the most on one node is 1" in found.message
    # The same GPUs do serve eight pods of one.
    eight = workload(pod_sets=(pod_set(pods=8, gpus=1),))
    assert (
        len(
            planned(
                replace(given, gang=eight, planning_tree=replace(given.planning_tree, pending={"a": [eight]}))
            ).victims
        )
        == 8
    )


def test_the_dearer_victim_on_one_node_is_taken_where_the_cheap_ones_are_scattered() -> None:
    small = [holding(f"small-{i}", gpus=4) for i in range(2)]
    large, busy = holding("large", gpus=8), [holding(f"busy-{i}", gpus=4) for i in range(2)]
    capacity = nodes_with(
        {"n0": 8, "n1": 8, "n2": 8},
        {"n0": {small[0]: 4, busy[0]: 4}, "n1": {small[1]: 4, busy[1]: 4}, "n2": {large: 8}},
    )
    idle = [candidate(large, cost=100), *(candidate(each, cost=1) for each in small)]
    given = request(workload(gpus=8), [cluster_queue("a", gpus=24)], [*small, *busy, large], idle, capacity=capacity)
    plan = planned(given)
    assert names(plan) == {"large"}
    assert [each.why_not for each in plan.alternatives if len(each.victims) == 2] == [NoPlanReason.PLACEMENT_IMPOSSIBLE]


# ----------------------------------------------------------------------------------------------------------- the quota


def test_a_queue_that_does_not_lend_frees_nothing_for_others() -> None:
    idle = holding("idle", gpus=4, queue="b")
    queues = [
        cluster_queue("a", gpus=4, cohort="co"),
        cluster_queue("b", gpus=quota(8, lending=2), cohort="co"),
    ]
    # b lends 2 of 8 and holds 4: a can get 4 + 2, whether or not b's idle workload goes.
    found = refused(request(workload(gpus=8), queues, [idle], [candidate(idle)]))
    assert found.why is NoPlanReason.NEVER_FITS
    busy = holding("busy", gpus=4, queue="b")
    full = [idle, busy, holding("own", gpus=1)]
    # With b full, 8 - 6 = 2 of its usage stand above it; only 2 of the 4 that idle holds are seen by a.
    plan = planned(request(workload(gpus=5), queues, full, [candidate(idle)]))
    (key,) = plan.takes
    assert (plan.free_before[key], plan.free_after[key]) == (3, 5)
    found = refused(request(workload(gpus=6), queues, full, [candidate(idle)]))
    assert found.why is NoPlanReason.NOT_ENOUGH_IDLE
    assert "available to ClusterQueue a: 3 nvidia.com/gpu of default" in found.message
    assert "with every idle workload suspended: 5 nvidia.com/gpu of default" in found.message


def test_what_is_free_already_costs_nobody_anything() -> None:
    idle = holding("idle", gpus=4)
    found = refused(request(workload(gpus=4), [cluster_queue("a", gpus=8)], [idle], [candidate(idle)]))
    assert found.why is NoPlanReason.FITS_ALREADY


def test_what_is_on_its_way_out_counts_as_free() -> None:
    idle, going = holding("idle", gpus=4), holding("going", gpus=4)
    queues, gang = [cluster_queue("a", gpus=8)], workload(gpus=4)
    found = refused(request(gang, queues, [idle, going], [candidate(idle)], leaving=[going.key]))
    assert found.why is NoPlanReason.FITS_ALREADY
    larger = workload(gpus=8)
    assert names(planned(request(larger, queues, [idle, going], [candidate(idle)], leaving=[going.key]))) == {"idle"}


def test_a_gang_beyond_all_quota_never_fits() -> None:
    idle = holding("idle", gpus=4)
    found = refused(request(workload(gpus=16), [cluster_queue("a", gpus=8)], [idle], [candidate(idle)]))
    assert found.why is NoPlanReason.NEVER_FITS
    assert "it needs 16 nvidia.com/gpu of at most 8 that ClusterQueue a" in found.message


def test_the_flavor_that_the_pods_select_is_the_one_that_must_be_freed() -> None:
    old, new = holding("old", gpus=4, flavor="a100"), holding("new", gpus=4, flavor="h100")
    gang = workload(pod_sets=(pod_set(gpus=4, nodes=selecting(flavor="h100")),))
    queues = [cluster_queue("a", gpus={"a100": 4, "h100": 4})]
    idle = [candidate(old, cost=1), candidate(new, cost=50)]
    assert names(planned(request(gang, queues, [old, new], idle))) == {"new"}
    unknown = workload(pod_sets=(pod_set(gpus=4, nodes=selecting([(requiring("flavor", "In", "b200"),)])),))
    assert refused(request(unknown, queues, [old, new], idle)).why is NoPlanReason.NEVER_FITS


# ------------------------------------------------------------------------------------------------------------ cautions


@pytest.mark.parametrize(
    ("strategy", "neighbour", "is_exposed"),
    [
        (QueueingStrategy.STRICT_FIFO, False, False),
        (QueueingStrategy.BEST_EFFORT_FIFO, False, True),
        (QueueingStrategy.STRICT_FIFO, True, True),
    ],
)
def test_a_plan_says_where_a_newcomer_could_take_a_piece(
    strategy: QueueingStrategy, neighbour: bool, is_exposed: bool
) -> None:
    idle = holding("idle", gpus=4)
    queues = [cluster_queue("a", gpus=4, strategy=strategy, cohort="co")]
    if neighbour:
        queues.append(cluster_queue("b", gpus=0, cohort="co"))
    plan = planned(request(workload(gpus=4), queues, [idle], [candidate(idle)], cohorts=[cohort("co")]))
    assert ("Unprotected" in reasons(plan)) == is_exposed


def test_the_same_plan_has_the_same_id_and_another_has_another() -> None:
    one, other = holding("one", gpus=4), holding("other", gpus=4)
    gang, queues = workload(gpus=4), [cluster_queue("a", gpus=8)]

    def id_of(*idle: QuotaWorkload) -> str:
        return planned(request(gang, queues, [one, other], [candidate(each) for each in idle])).id

    assert id_of(one) == id_of(one) != id_of(other)
