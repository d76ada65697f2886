"""Does a Node offer its GPUs to several pods? By the labels that those set who make it do so."""

import pytest

from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.nodes import Node, offers_shared

SINGLE = {"nvidia.com/mig.strategy": "single"}
MIXED = {"nvidia.com/mig.strategy": "mixed"}
GPU, MIG = "nvidia.com/gpu.replicas", "nvidia.com/mig-1g.10gb.replicas"
GKE = "cloud.google.com/gke-max-shared-clients-per-gpu"


@pytest.mark.parametrize(
    ("labels", "of_gpus", "of_instances"),
    [
        pytest.param({}, False, False, id="none"),
        pytest.param({GPU: "4"}, True, False, id="whole GPUs"),
        pytest.param({GPU: "1", MIG: "1"}, False, False, id="each once"),
        pytest.param({MIG: "2"}, False, True, id="MIG instances"),
        pytest.param({GPU: "4", **MIXED}, True, False, id="instances are resources of their own"),
        pytest.param({GPU: "4", **SINGLE}, True, True, id="instances are offered as whole GPUs"),
        pytest.param({GPU: "1", **SINGLE}, False, False, id="instances are offered as whole GPUs, each once"),
        pytest.param({GKE: "3"}, True, True, id="by GKE, whatever a client gets"),
        pytest.param({GKE: "1"}, False, False, id="by GKE to one client"),
        pytest.param({GPU: "many", GKE: "-1"}, False, False, id="no numbers"),
    ],
)
def test_what_labels_of_a_node_say_of_sharing(labels: dict[str, str], of_gpus: bool, of_instances: bool) -> None:
    node = Node(metadata=ObjectMeta(name="node-a", labels=labels))
    assert (offers_shared(node, is_mig=False), offers_shared(node, is_mig=True)) == (of_gpus, of_instances)
