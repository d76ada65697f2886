from typing import Any

import pytest
from multikueue.hub.dispatch.dispatch_builders import cluster, placement

from scaler.multikueue.hub.dispatch.candidates import ClusterObstacle, eligibilities, managed_cluster_name

W1, W2 = cluster("w1"), cluster("w2")


def obstacles(named: Any, *clusters: Any, **more: Any) -> dict[str, ClusterObstacle | None]:
    return {each.name: each.obstacle for each in eligibilities("gpus", named, {c.name: c for c in clusters}, **more)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, None, id="a cluster that is named and Active is a candidate"),
        pytest.param({"is_active": False}, ClusterObstacle.NOT_ACTIVE, id="one that is not Active is not reached"),
        pytest.param(
            {"managed_cluster": "other"},
            ClusterObstacle.NOT_IN_PLACEMENT,
            id="the Placement decides on ManagedClusters",
        ),
    ],
)
def test_a_cluster_is_a_candidate_where_it_is_active_and_decided_for(changes: Any, expected: Any) -> None:
    assert obstacles(["w1"], cluster("w1", **changes), placement=placement("w1")) == {"w1": expected}


def test_without_a_placement_every_active_cluster_of_the_config_is_a_candidate() -> None:
    assert obstacles(["w2", "w1"], W1, W2) == {"w2": None, "w1": None}


def test_names_without_a_cluster_and_clusters_outside_of_the_config_are_shown_with_the_reason() -> None:
    found = eligibilities("gpus", ["gone", "w1"], {"w1": W1, "w2": W2})
    assert [(each.name, each.order, each.obstacle) for each in found] == [
        ("gone", 0, ClusterObstacle.NO_SUCH_CLUSTER),
        ("w1", 1, None),
        ("w2", 2, ClusterObstacle.NOT_IN_CONFIG),
    ]
    assert found[2].why == "is not in MultiKueueConfig gpus"


def test_without_the_config_there_is_no_candidate() -> None:
    [found] = eligibilities("gpus", None, {"w1": W1})
    assert (found.obstacle, found.why) == (ClusterObstacle.NOT_IN_CONFIG, "MultiKueueConfig gpus is missing")


def test_a_placement_without_decisions_leaves_no_candidate_and_says_why() -> None:
    [found] = eligibilities("gpus", ["w1"], {"w1": W1}, placement=placement(problem="has no PlacementDecisions"))
    assert found.why == "Placement team/gpus has no PlacementDecisions"
    assert found.obstacle is ClusterObstacle.NOT_IN_PLACEMENT


def test_what_kueue_says_of_a_cluster_that_is_not_active_is_passed_on() -> None:
    [found] = eligibilities("gpus", ["w1"], {"w1": cluster("w1", is_active=False, message="no route to host")})
    assert found.why == "the MultiKueueCluster is not Active: no route to host"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param({}, "w1", id="without a source that names one, its own name"),
        pytest.param({"profile": "prod-1"}, "prod-1", id="the ClusterProfile of the source"),
        pytest.param({"secret": "multikueue-prod-1"}, "prod-1", id="the Secret, as the addon for Kueue names it"),
        pytest.param({"secret": "kubeconfig-of-w1"}, "w1", id="a Secret of another name says nothing"),
    ],
)
def test_the_managed_cluster_is_found_through_the_source(source: Any, expected: str) -> None:
    assert managed_cluster_name("w1", **source) == expected
