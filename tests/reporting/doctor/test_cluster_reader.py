"""What a diagnosis reads of a cluster, and what it makes of an API that answers in part."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scaler_sandbox import crds
from scaler_sandbox.kubeapi import KubeApi
from scaler_sandbox.manifests import Applier

from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.transport import KubeTransport
from scaler.reporting.doctor.cluster_reader import ClusterReader, ReviewedUser
from scaler.reporting.doctor.facts import DoctorInputs, DoctorSettings
from scaler.reporting.doctor.findings import Unread

OURS = {"type": "external", "metadata": {"scalerAddress": "scaler:9090"}}
CRON = {"type": "cron", "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *"}}


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    served = KubeApi()
    served.install_crds(crds.load())
    await served.start()
    yield served
    await served.stop()


@pytest.fixture
async def kube(api: KubeApi, tmp_path: Path) -> AsyncIterator[KubeTransport]:
    api.write_kubeconfig(tmp_path / "kubeconfig")
    async with await KubeTransport.connect(tmp_path / "kubeconfig") as transport:
        yield transport


async def read(kube: KubeTransport) -> DoctorInputs:
    reader = ClusterReader(kube, GpuResources(patterns=("nvidia.com/gpu",)), namespaces=(), lease_namespace="default")
    return await reader.take(DoctorSettings(), Unread("there is none"), ReviewedUser(), datetime.now(UTC))


def scaled_object(name: str, kind: str, trigger: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": name}, "triggers": [trigger]},
    }


async def test_nothing_is_asked_about_kinds_that_only_others_scale(kube: KubeTransport) -> None:
    """The program follows the targets of its own triggers, so that no permission for others' is missing."""
    await Applier(kube).apply([scaled_object("ours", "Deployment", OURS), scaled_object("cron", "StatefulSet", CRON)])
    asked = {each.resource for _, of_rule in (await read(kube)).reviews for each in of_rule}
    assert "deployments" in asked
    assert "statefulsets" not in asked


async def test_kinds_that_cannot_be_asked_for_are_not_said_to_be_missing(api: KubeApi, kube: KubeTransport) -> None:
    assert not isinstance((await read(kube)).served, Unread)
    api.faults.fail_next(50, status=500, method="GET", path_part="/apis/kueue.x-k8s.io/v1beta2")
    served = (await read(kube)).served
    assert isinstance(served, Unread)
    assert "/apis/kueue.x-k8s.io/v1beta2" in served.reason
