"""Pods that have quota and no node yet are counted as taking nodes."""

from collections.abc import Mapping

import pytest
from quota_builders import GPU, flavors, holding, pod_set
from reclaim_builders import nodes_with

from scaler.multikueue.worker.unplaced_pods import with_unplaced_pods
from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeInfo
from scaler.quota.model import QuotaWorkload


def free(capacity: Capacity) -> dict[str, int]:
    at = capacity.index.resource_position[GPU]
    return {node.name: amounts[at] for node, amounts in zip(capacity.index.nodes, capacity.free, strict=True)}


def left(capacity: Capacity, *holders: QuotaWorkload) -> dict[str, int]:
    return free(with_unplaced_pods(capacity, holders, flavors(), lambda name: name == GPU))


def nodes(*pods: BoundPod, gpus: Mapping[str, int]) -> Capacity:
    labels = {"flavor": "default"}
    return capacity_of(
        [NodeInfo(name=name, labels=labels, allocatable={GPU: count, "pods": 9}) for name, count in gpus.items()], pods
    )


def test_where_all_pods_have_nodes_nothing_changes() -> None:
    runs = holding("runs", gpus=4)
    capacity = nodes_with({"n": 8}, {"n": {runs: 4}})
    assert with_unplaced_pods(capacity, [runs], flavors(), lambda name: name == GPU) is capacity


def test_one_without_any_pod_takes_nodes_for_all_of_them() -> None:
    gang = holding("gang", pod_sets=(pod_set(pods=3, gpus=2),))
    assert left(nodes(gpus={"n": 8}), gang) == {"n": 2}


def test_one_with_some_pods_takes_nodes_for_the_others() -> None:
    gang = holding("gang", pod_sets=(pod_set(pods=3, gpus=2),))
    bound = BoundPod(pod="team/gang-0", node="n", workload=gang.key, requests={GPU: 2})
    assert left(nodes(bound, gpus={"n": 8}), gang) == {"n": 2}  # 8 - 2 bound - 2 × 2


def test_of_several_pod_sets_the_largest_pods_are_taken_to_be_missing() -> None:
    sets = (pod_set("small", pods=1, gpus=1), pod_set("large", pods=1, gpus=4))
    gang = holding("gang", pod_sets=sets)
    bound = BoundPod(pod="team/gang-0", node="n", workload=gang.key, requests={GPU: 1})
    assert left(nodes(bound, gpus={"n": 8}), gang) == {"n": 3}


@pytest.mark.parametrize("count", [1, 3])
def test_what_fits_nowhere_takes_nothing(count: int) -> None:
    wide = holding("wide", pod_sets=(pod_set(pods=count, gpus=16),))
    assert left(nodes(gpus={"n": 8}), wide) == {"n": 8}


def test_other_resources_are_not_waited_for() -> None:
    cpu = holding("cpu", pod_sets=(pod_set(requests={"pods": 1}),))
    capacity = nodes(gpus={"n": 8})
    assert with_unplaced_pods(capacity, [cpu], flavors(), lambda name: name == GPU) is capacity
