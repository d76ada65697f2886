"""What doctor says of checks that are for different flavors, and of gangs that yield in vain."""

from typing import Any, TypeVar

import msgspec
import pytest

from scaler.kube.objects.idlegpu import ReclaimPolicy
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue
from scaler.reporting.doctor.admission_checks import CheckObjects, check_findings
from scaler.reporting.doctor.cluster_queues import QueueObjects, queue_findings

T = TypeVar("T")
ASKS = {"className": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}
GPU, CPU = ("nvidia.com/gpu", ("spot", "fixed")), ("cpu", ("small", "big"))


def made(kind: type[T], name: str, spec: dict[str, Any]) -> T:
    active = {"conditions": [{"type": "Active", "status": "True"}]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": active}, kind)


def queue(*rules: tuple[str, tuple[str, ...]], strategy: str = "StrictFIFO") -> ClusterQueue:
    """It has quota of GPUs and of processors, each of two flavors."""
    groups = [
        {
            "coveredResources": [resource],
            "flavors": [{"name": each, "resources": [{"name": resource, "nominalQuota": 8}]} for each in flavors],
        }
        for resource, flavors in (GPU, CPU)
    ]
    checks = [{"name": name, "onFlavors": list(flavors)} for name, flavors in rules]
    strategies = {"queueingStrategy": strategy, "admissionChecksStrategy": {"admissionChecks": checks}}
    return made(ClusterQueue, "gpus", {"resourceGroups": groups, **strategies})


def gates(of: ClusterQueue, **provisioning: Any) -> CheckObjects:
    """`ours` asks for nodes, and so does `kueues`."""
    parameters = {"apiGroup": "idlegpu.io", "kind": "ReclaimPolicy", "name": "policy"}
    return CheckObjects(
        checks=(
            made(AdmissionCheck, "ours", {"controllerName": "idlegpu.io/reclaim", "parameters": parameters}),
            made(AdmissionCheck, "kueues", {"controllerName": "kueue.x-k8s.io/provisioning-request"}),
        ),
        policies=(made(ReclaimPolicy, "policy", {"provisioning": {**ASKS, **provisioning}}),),
        cluster_queues=(of,),
    )


PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {
    # flavors that ours is for, flavors that Kueue's is for, and whether both may ask for nodes for the same gang
    "both for all": ((), (), True),
    "ours for one, the other for all": (("spot",), (), True),
    "each for a flavor of the same resource": (("spot",), ("fixed",), False),
    "each for a flavor of another resource: gangs get one of each": (("spot",), ("big",), True),
    "ours for flavors of both resources": (("spot", "small"), ("big",), True),
    "flavors that the queue does not have": (("other",), ("fixed",), False),
}


@pytest.mark.parametrize(("ours", "kueues", "clash"), PAIRS.values(), ids=PAIRS)
def test_two_checks_that_the_same_gang_may_have_to_pass_are_told_of(
    ours: tuple[str, ...], kueues: tuple[str, ...], clash: bool
) -> None:
    found = queue_findings(QueueObjects(gates=gates(queue(("ours", ours), ("kueues", kueues)))))
    assert ("TwoAskForNodes" in [each.check for each in found]) is clash


YIELDS: dict[str, tuple[str, str, bool]] = {
    "it holds": ("Hold", "BestEffortFIFO", False),
    "it yields, and the next in line is looked at first": ("Yield", "StrictFIFO", False),
    "it yields, and is looked at before those that wait": ("Yield", "BestEffortFIFO", True),
}


@pytest.mark.parametrize(("at_limit", "strategy", "is_told"), YIELDS.values(), ids=YIELDS)
def test_a_gang_that_yields_where_it_gets_its_quota_back_at_once_is_told_of(
    at_limit: str, strategy: str, is_told: bool
) -> None:
    found = check_findings(gates(queue(("ours", ()), strategy=strategy), atLimit=at_limit), provisioning_served=True)
    assert ("YieldTakenBack" in [each.check for each in found]) is is_told
