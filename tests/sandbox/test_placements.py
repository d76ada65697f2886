"""What a Placement of Open Cluster Management selects in the embedded clusters."""

from datetime import timedelta
from typing import Any, cast

import pytest
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import reason_of, timestamp
from scaler_sandbox.kinds import MANAGED_CLUSTER, PLACEMENT, Json
from scaler_sandbox.ocm import PlacementController
from sim.client import START, SimClient

from scaler.kube.objects.resources import ADD_ON_PLACEMENT_SCORE, PLACEMENT_DECISION

A_TAINT = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
TAINTED = {"three": [A_TAINT]}


def labels(**wanted: str) -> Json:
    return {"requiredClusterSelector": {"labelSelector": {"matchLabels": wanted}}}


def by_score(name: str = "gpu-free", weight: int = 1) -> Json:
    coordinate = {"type": "AddOn", "addOn": {"resourceName": "idle-gpu-scaler", "scoreName": name}}
    return {"mode": "Exact", "configurations": [{"scoreCoordinate": coordinate, "weight": weight}]}


class Hub:
    """Clusters `one` (a100), `two` (a100) and `three` (h100)."""

    def __init__(self, taints: dict[str, list[Json]] | None = None) -> None:
        self.client = SimClient()
        self.controller = PlacementController(cast(Client, self.client))
        for name, model in (("one", "a100"), ("two", "a100"), ("three", "h100")):
            spec = {"hubAcceptsClient": True, "taints": (taints or {}).get(name, [])}
            self.client.add(MANAGED_CLUSTER, {"metadata": {"name": name, "labels": {"gpu": model}}, "spec": spec})

    async def place(self, **spec: Any) -> list[str]:
        self.client.add(PLACEMENT, {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": spec})
        await self.client.settle(self.controller)
        return self.decisions

    @property
    def decisions(self) -> list[str]:
        found = self.client.find(PLACEMENT_DECISION, "ml", "gpus-decision-1")
        assert found is not None
        return [each["clusterName"] for each in found["status"]["decisions"]]

    def score(self, cluster: str, value: int, *, valid: timedelta = timedelta(minutes=1)) -> None:
        status = {"scores": [{"name": "gpu-free", "value": value}], "validUntil": timestamp(START + valid)}
        metadata = {"name": "idle-gpu-scaler", "namespace": cluster}
        self.client.add(ADD_ON_PLACEMENT_SCORE, {"metadata": metadata, "status": status})


@pytest.mark.parametrize(
    ("spec", "taints", "expected"),
    [
        pytest.param({}, {}, ["one", "three", "two"], id="all, by name"),
        pytest.param({"predicates": [labels(gpu="a100")]}, {}, ["one", "two"], id="those with the labels"),
        pytest.param({"predicates": [labels(gpu="a100"), labels(gpu="h100")]}, {}, ["one", "three", "two"], id="any"),
        pytest.param({"predicates": [labels(gpu="b200")]}, {}, [], id="none"),
        pytest.param({"numberOfClusters": 2}, {}, ["one", "three"], id="no more than asked for"),
        pytest.param({}, TAINTED, ["one", "two"], id="not a tainted one"),
        pytest.param({"tolerations": [{"key": A_TAINT["key"]}]}, TAINTED, ["one", "three", "two"], id="tolerated"),
    ],
)
async def test_a_placement_selects(spec: Json, taints: dict[str, list[Json]], expected: list[str]) -> None:
    assert await Hub(taints).place(**spec) == expected


@pytest.mark.parametrize(("weight", "expected"), [(1, ["three", "two"]), (-1, ["one", "three"])])
async def test_the_best_by_score_are_selected_and_shown_by_name(weight: int, expected: list[str]) -> None:
    hub = Hub()
    for cluster, value in (("one", -50), ("two", 80), ("three", 20)):
        hub.score(cluster, value)
    assert await hub.place(numberOfClusters=2, prioritizerPolicy=by_score(weight=weight)) == expected


async def test_a_score_that_has_expired_counts_as_none() -> None:
    hub = Hub()
    hub.score("two", 80)
    assert await hub.place(numberOfClusters=1, prioritizerPolicy=by_score()) == ["two"]
    await hub.client.settle(hub.controller, after=timedelta(minutes=1))
    assert hub.decisions == ["one"]


async def test_a_placement_without_a_cluster_says_so() -> None:
    hub = Hub()
    await hub.place(predicates=[labels(gpu="b200")])
    placement = hub.client.find(PLACEMENT, "ml", "gpus")
    assert placement is not None
    assert reason_of(placement, "PlacementSatisfied") == "NoManagedClusterMatched"
