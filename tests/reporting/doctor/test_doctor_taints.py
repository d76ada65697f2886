"""What `doctor` says of nodes that nobody tolerates."""

from typing import Any

import msgspec
import pytest

from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.reporting.doctor.admission_checks import CheckObjects, check_findings
from scaler.reporting.doctor.findings import Severity

GPU = "nvidia.com/gpu"
BATCH = {"key": "batch", "value": "yes", "effect": "NoSchedule"}
BEARS = {"key": "batch", "operator": "Exists"}


def _made(kind: Any, name: str, **parts: Any) -> Any:
    return msgspec.convert({"metadata": {"name": name, **parts.pop("metadata", {})}, **parts}, kind)


def _node(*taints: dict[str, str], **labels: str) -> Any:
    status = {"allocatable": {"cpu": "8", GPU: "8"}}
    return _made(Node, "node", metadata={"labels": labels}, spec={"taints": list(taints)}, status=status)


def _workload(*tolerations: dict[str, str]) -> Any:
    pod_sets = [{"template": {"spec": {"tolerations": list(tolerations)}}}]
    return _made(Workload, "gang", spec={"podSets": pod_sets}, status={"admissionChecks": [{"name": "gate"}]})


def _told(*nodes: Any, flavor: Any = None, workloads: Any = ()) -> list[str]:
    quotas = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": 8}]}]
    strategy = {"admissionChecks": [{"name": "gate"}]}
    groups = [{"coveredResources": [GPU], "flavors": quotas}]
    active = {"conditions": [{"type": "Active", "status": "True"}]}
    gates = CheckObjects(
        checks=[_made(AdmissionCheck, "gate", spec={"controllerName": "idlegpu.io/reclaim"}, status=active)],
        cluster_queues=[
            _made(ClusterQueue, "cq", spec={"resourceGroups": groups, "admissionChecksStrategy": strategy})
        ],
        flavors=[_made(ResourceFlavor, "h100", spec={"nodeLabels": {"gpu": "h100"}, **(flavor or {})})],
        nodes=nodes,
        workloads=workloads,
    )
    found = check_findings(gates, provisioning_served=False)
    return [each.what for each in found if each.check == "TaintNotTolerated" and each.severity is Severity.WARN]


def test_a_taint_that_nobody_tolerates_is_told_with_its_flavor() -> None:
    [told] = _told(_node(BATCH, gpu="h100"), _node(gpu="h100"), _node(BATCH, gpu="a100"), workloads=[_workload()])
    assert told.startswith("1 of 2 nodes of ResourceFlavor h100 have the taint batch (NoSchedule)")


@pytest.mark.parametrize(
    ("node", "more"),
    [
        pytest.param(_node(gpu="h100"), {}, id="there is none"),
        pytest.param(_node(BATCH, gpu="h100"), {"flavor": {"tolerations": [BEARS]}}, id="its flavor tolerates it"),
        pytest.param(_node(BATCH, gpu="h100"), {"workloads": [_workload(BEARS)]}, id="all pods tolerate it"),
        pytest.param(_node({"key": GPU, "effect": "NoSchedule"}, gpu="h100"), {}, id="it is that of the device"),
        pytest.param(
            _node({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, gpu="h100"), {}, id="it passes"
        ),
        pytest.param(_node({**BATCH, "effect": "PreferNoSchedule"}, gpu="h100"), {}, id="it keeps nobody away"),
    ],
)
def test_no_word_of_a_taint_that_matters_to_nobody(node: Any, more: dict[str, Any]) -> None:
    assert _told(node, **more) == []
