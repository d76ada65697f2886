"""Queues, cohorts and flavors as the quota engine sees them, and what cannot be read of them."""

from typing import Any

import msgspec
import pytest

from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import SelectorRequirement
from scaler.kube.scheduling import Selector, Taint
from scaler.quota import model
from scaler.quota.from_objects.queues import (
    check_of,
    cluster_queue_of,
    cohort_of,
    flavor_of,
    selector_of,
)
from scaler.quota.model import FlavorResource, QuotaAdmissionCheck

GPU = "nvidia.com/gpu"


def quota(resource: str = GPU, **amounts: Any) -> dict[str, Any]:
    return {"name": resource, **amounts}


def group(*quotas: dict[str, Any], flavor: str = "a100") -> dict[str, Any]:
    return {"coveredResources": [each["name"] for each in quotas], "flavors": [{"name": flavor, "resources": quotas}]}


def queue(*, metadata: dict[str, Any] | None = None, status: Any = None, **spec: Any) -> kube.ClusterQueue:
    document = {"metadata": {"name": "cq", **(metadata or {})}, "spec": spec, "status": status or {}}
    return msgspec.convert(document, kube.ClusterQueue)


def test_quotas_are_amounts_and_an_absent_limit_is_none() -> None:
    found = cluster_queue_of(
        queue(
            resourceGroups=[
                group(quota(nominalQuota="8", borrowingLimit=0), quota("cpu", nominalQuota="1500m", lendingLimit="1"))
            ]
        )
    )
    assert found.quotas == {
        FlavorResource("a100", GPU): model.Quota(nominal=8, borrowing_limit=0),
        FlavorResource("a100", "cpu"): model.Quota(nominal=1500, lending_limit=1000),
    }
    assert found.groups == (model.QuotaResourceGroup(resources=frozenset({GPU, "cpu"}), flavors=("a100",)),)


def test_a_bare_cluster_queue_has_the_defaults_of_the_api() -> None:
    assert cluster_queue_of(queue()) == model.QuotaClusterQueue(name="cq")


def test_policies_are_read() -> None:
    found = cluster_queue_of(
        queue(
            cohortName="team",
            queueingStrategy="StrictFIFO",
            stopPolicy="HoldAndDrain",
            fairSharing={"weight": "500m"},
            flavorFungibility={
                "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "MayStopSearch",
                "preference": "PreemptionOverBorrowing",
            },
            preemption={
                "withinClusterQueue": "LowerOrNewerEqualPriority",
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 9},
            },
            admissionChecksStrategy={"admissionChecks": [{"name": "x"}, {"name": "y"}]},
        )
    )
    assert (found.cohort, found.fair_weight, found.checks) == ("team", 0.5, frozenset("xy"))
    assert (found.strategy, found.stop_policy) == (model.QueueingStrategy.STRICT_FIFO, model.StopPolicy.HOLD_AND_DRAIN)
    assert found.fungibility == model.Fungibility(
        when_can_borrow=model.FungibilityPolicy.TRY_NEXT,
        when_can_preempt=model.FungibilityPolicy.MAY_STOP,
        preference=model.Preference.PREEMPTION_OVER_BORROWING,
    )
    assert found.preemption == model.Preemption(
        within_cluster_queue=model.PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
        reclaim_within_cohort=model.PreemptionPolicy.ANY,
        borrow_within_cohort=model.PreemptionPolicy.LOWER_PRIORITY,
        max_priority_threshold=9,
    )


def test_no_selector_matches_no_namespace_and_an_empty_one_all() -> None:
    assert cluster_queue_of(queue(namespaceSelector=None)).namespace_selector is None
    assert cluster_queue_of(queue(namespaceSelector={})).namespace_selector == Selector(())


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        ("In", ["red", "blue"], [{"team": "red"}]),
        ("NotIn", ["red"], [{"team": "green"}, {}]),
        ("Exists", [], [{"team": "red"}, {"team": "green"}]),
        ("DoesNotExist", [], [{}]),
    ],
)
def test_selectors_match_as_kubernetes_does(operator: str, values: list[str], matching: list[dict[str, str]]) -> None:
    requirement = SelectorRequirement(key="team", operator=operator, values=tuple(values))
    selector = selector_of(kube.LabelSelector(match_expressions=(requirement,)))
    assert [labels for labels in ({"team": "red"}, {"team": "green"}, {}) if selector.matches(labels)] == matching


def active(status: str, reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Active", "status": status, "reason": reason}]}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(queue(status=active("True", "Ready")), "", id="active"),
        pytest.param(queue(), "", id="Kueue has not said yet"),
        pytest.param(queue(status=active("False", "TopologyNotFound")), "TopologyNotFound", id="Kueue knows better"),
        pytest.param(
            queue(status=active("False", "FlavorNotFound")),
            "",
            id="what the flavors tell at once, its status tells late",
        ),
        pytest.param(
            queue(metadata={"deletionTimestamp": "2026-12-01T12:00:00Z"}, status=active("True", "Ready")),
            "Terminating",
            id="being deleted",
        ),
    ],
)
def test_a_queue_is_inactive_for_reasons_that_only_kueue_knows(found: kube.ClusterQueue, reason: str) -> None:
    assert cluster_queue_of(found).inactive_because == reason


def test_a_cohort_has_a_parent_a_weight_and_quota_of_its_own() -> None:
    document = {
        "metadata": {"name": "team"},
        "spec": {
            "parentName": "root",
            "fairSharing": {"weight": 0},
            "resourceGroups": [group(quota(nominalQuota=4, lendingLimit=1))],
        },
    }
    assert cohort_of(msgspec.convert(document, kube.Cohort)) == model.QuotaCohort(
        name="team",
        parent="root",
        fair_weight=0.0,
        quotas={FlavorResource("a100", GPU): model.Quota(nominal=4, lending_limit=1)},
    )


def test_a_flavor_has_labels_taints_tolerations_and_maybe_a_topology() -> None:
    document = {
        "metadata": {"name": "a100"},
        "spec": {
            "nodeLabels": {"gpu": "a100"},
            "nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "topologyName": "racks",
        },
    }
    found = flavor_of(msgspec.convert(document, kube.ResourceFlavor))
    assert (found.name, found.node_labels, found.topology) == ("a100", {"gpu": "a100"}, "racks")
    assert found.taints == (Taint(key="spot", value="true", effect="NoSchedule"),)
    assert found.tolerations[0].covers(found.taints[0])


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_a_check_is_active_when_its_controller_says_so(status: str) -> None:
    document = {
        "metadata": {"name": "x"},
        "spec": {"controllerName": "idlegpu.io/reclaim"},
        "status": active(status, "Running"),
    }
    found = check_of(msgspec.convert(document, kube.AdmissionCheck))
    assert found == QuotaAdmissionCheck(name="x", controller="idlegpu.io/reclaim", active=status == "True")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"resourceGroups": [group(quota(nominalQuota="many"))]},
            r"flavor a100: nominalQuota of nvidia.com/gpu: 'many' is not a resource quantity",
        ),
        (
            {"resourceGroups": [group(quota(nominalQuota=1, lendingLimit="x"))]},
            "flavor a100: lendingLimit of nvidia.com/gpu: 'x' is not",
        ),
        ({"fairSharing": {"weight": "heavy"}}, "fairSharing.weight: 'heavy' is not"),
        ({"stopPolicy": "Pause"}, "stopPolicy: 'Pause' is not one of None, Hold, HoldAndDrain"),
        ({"queueingStrategy": "Lottery"}, "queueingStrategy: 'Lottery' is not one of StrictFIFO, BestEffortFIFO"),
        (
            {"preemption": {"reclaimWithinCohort": "Sometimes"}},
            "reclaimWithinCohort: 'Sometimes' is not one of Never, LowerPriority, LowerOrNewerEqualPriority, Any",
        ),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Like"}]}},
            "namespaceSelector: 'Like' is not one of In, NotIn, Exists, DoesNotExist",
        ),
    ],
)
def test_what_cannot_be_read_is_named(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cluster_queue_of(queue(**spec))


def test_checks_are_for_the_flavors_that_their_rules_name() -> None:
    rules = [{"name": "all"}, {"name": "spot", "onFlavors": ["spot"]}, {"name": "both", "onFlavors": ["spot", "fixed"]}]
    flavors = [{"name": name, "resources": [quota(nominalQuota=1)]} for name in ("spot", "fixed")]
    groups = [{"coveredResources": [GPU], "flavors": flavors}]
    found = cluster_queue_of(queue(resourceGroups=groups, admissionChecksStrategy={"admissionChecks": rules}))
    assert found.checks == {"all", "spot", "both"}
    assert found.checks_on({"fixed"}) == {"all", "both"}
    assert found.checks_on({"spot", "other"}) == {"all", "spot", "both"}
    assert found.checks_on({"other"}) == frozenset()
    assert found.checks_on(()) == frozenset(), "one that asks for nothing of the queue's passes none"
