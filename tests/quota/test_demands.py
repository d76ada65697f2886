import pytest
from quota_builders import (
    GPU,
    cluster_queue,
    flavor,
    flavors,
    gpu,
    pod_set,
    quotas,
    requiring,
    selecting,
    taint,
    tolerating,
)

from scaler.kube.scheduling import ANYWHERE, NodeSelection, Operator, Toleration
from scaler.quota.demands import FlavorOptions, QuotaDemand, refusal
from scaler.quota.model import Flavor, FlavorResource, QuotaClusterQueue, QuotaPodSet, QuotaResourceGroup

LABELLED = flavor("a100", node_labels={"gpu": "a100", "zone": "b"})
SPOT = flavor("spot", node_labels={}, taints=(taint(),))
PREFERS = flavor("soft", node_labels={}, taints=(taint(effect="PreferNoSchedule"),))
OWN_TOLERATION = flavor(
    "own", node_labels={}, taints=(taint(),), tolerations=(Toleration(key="spot", operator="Exists"),)
)
TOPOLOGICAL = flavor("tas", topology="rack")


@pytest.mark.parametrize(
    ("given", "nodes", "refused"),
    [
        pytest.param(LABELLED, ANYWHERE, "", id="pods that demand nothing go anywhere"),
        pytest.param(LABELLED, selecting(gpu="a100"), "", id="its label is selected"),
        pytest.param(LABELLED, selecting(gpu="h100"), "node selector or affinity", id="another value is selected"),
        pytest.param(LABELLED, selecting(team="x"), "", id="a key that it does not have says nothing about it"),
        pytest.param(
            LABELLED, selecting([(requiring("gpu", Operator.IN, "h100"),)]), "affinity", id="its affinity names another"
        ),
        pytest.param(
            LABELLED,
            selecting([(requiring("gpu", Operator.IN, "h100"),), (requiring("zone", Operator.IN, "b"),)]),
            "",
            id="one term of several is enough",
        ),
        pytest.param(
            LABELLED,
            selecting([(requiring("gpu", Operator.IN, "h100"),), (requiring("team", Operator.IN, "x"),)]),
            "",
            id="a term about other keys only makes the whole affinity match",
        ),
        pytest.param(
            LABELLED,
            selecting([(requiring("gpu", Operator.IN, "h100"), requiring("team", Operator.EXISTS))]),
            "affinity",
            id="what is left of a term has to match",
        ),
        pytest.param(LABELLED, selecting([()]), "", id="a term about fields, not labels, matches"),
        pytest.param(SPOT, ANYWHERE, "taint spot=true:NoSchedule", id="a taint keeps pods away"),
        pytest.param(SPOT, tolerating(taint()), "", id="a taint that they tolerate does not"),
        pytest.param(SPOT, tolerating(taint(key="other")), "taint", id="another toleration does not help"),
        pytest.param(PREFERS, ANYWHERE, "", id="a taint that only prefers keeps no pod away"),
        pytest.param(OWN_TOLERATION, ANYWHERE, "", id="a flavor's own toleration is given to all its pods"),
        pytest.param(TOPOLOGICAL, ANYWHERE, "topology", id="a flavor with a topology is for those that ask for one"),
        pytest.param(None, ANYWHERE, "does not exist", id="a flavor that does not exist"),
    ],
)
def test_which_flavors_pods_may_use(given: Flavor | None, nodes: NodeSelection, refused: str) -> None:
    reason = refusal("x", given, nodes)
    assert refused in reason
    assert bool(refused) == bool(reason)


def test_a_workload_that_may_ask_for_a_topology_may_use_its_flavor() -> None:
    assert not refusal("tas", TOPOLOGICAL, ANYWHERE, opaque=True)


def demand(queue: QuotaClusterQueue, *pods: QuotaPodSet, ignore_undeclared: bool = False) -> QuotaDemand:
    names = [name for group in queue.groups for name in group.flavors]
    return FlavorOptions(flavors=flavors(*names), ignore_undeclared=ignore_undeclared).demand(pods, queue)


def amounts(found: QuotaDemand) -> list[list[dict[FlavorResource, int]]]:
    """By PodSet and step, what the first flavor would have to give."""
    return [[dict(step.options[0].amounts) if step.options else {} for step in pods.steps] for pods in found.pod_sets]


MIXED = cluster_queue(
    groups=(
        QuotaResourceGroup(resources=frozenset({"cpu", "memory"}), flavors=("default",)),
        QuotaResourceGroup(resources=frozenset({GPU}), flavors=("a100", "h100")),
    ),
)


@pytest.mark.parametrize(
    ("fpgas", "ignored", "undeclared"),
    [
        pytest.param(1, False, ["fpga"], id="it fits nowhere"),
        pytest.param(0, False, [], id="unless nothing of it is asked for"),
        pytest.param(1, True, [], id="unless Kueue ignores it"),
    ],
)
def test_a_resource_without_quota(fpgas: int, ignored: bool, undeclared: list[str]) -> None:
    found = demand(MIXED, pod_set(requests={GPU: 1, "fpga": fpgas}), ignore_undeclared=ignored)
    assert [step.undeclared for step in found.pod_sets[0].steps if step.undeclared] == undeclared
    assert {gpu("a100"): 1} in amounts(found)[0]


def test_pods_are_counted_where_the_queue_has_quota_for_them() -> None:
    counting = cluster_queue(
        groups=(QuotaResourceGroup(resources=frozenset({GPU, "pods"}), flavors=("default",)),),
        quotas=quotas(8) | quotas(3, "pods"),
    )
    found = demand(counting, pod_set(pods=3, gpus=2))
    assert amounts(found) == [[{gpu(): 6, FlavorResource("default", "pods"): 3}]]
    assert amounts(demand(cluster_queue(gpus=8), pod_set(pods=3, gpus=2))) == [[{gpu(): 6}]]


def test_pods_that_may_be_missing_are_missing_evenly() -> None:
    """Of 4 − 2 and 10 − 4 dispensable pods, 4 of 8 are missing: half of each, 1 and 3."""
    found = demand(
        cluster_queue(gpus=20), pod_set("a", pods=4, min_count=2), pod_set("b", pods=10, min_count=4), pod_set("c")
    )
    assert found.dispensable == 8
    assert [pods.count for pods in found.reduced(4).pod_sets] == [3, 7, 1]
    assert amounts(found.reduced(8)) == [[{gpu(): 2}], [{gpu(): 4}], [{gpu(): 1}]]
    assert found.reduced(0) == found
