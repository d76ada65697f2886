"""What a diagnosis reads of a cluster, and what it makes of an API that answers in part."""

from datetime import UTC, datetime
from typing import Any
from unittest.mock import ANY

from scaler_sandbox.job_manifests import manifest
from scaler_sandbox.manifests import Applier
from small_cluster import SmallCluster

from scaler.doctor.cluster_reader import ClusterReader
from scaler.doctor.facts import DoctorInputs, DoctorSettings, Listing
from scaler.doctor.findings import Unread
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.resources import LEASE, SCALED_OBJECT
from scaler.kube.transport import KubeTransport

OURS = {"type": "external", "metadata": {"scalerAddress": "scaler:9090"}}
CRON = {"type": "cron", "metadata": {"timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *"}}


async def read(kube: KubeTransport) -> DoctorInputs:
    reader = ClusterReader(
        kube, GpuResources(patterns=("nvidia.com/gpu",)), namespaces=(), lease_namespace="default", lease_name="ours"
    )
    return await reader.take(DoctorSettings(), Unread("there is none"), None, datetime.now(UTC))


def scaled_object(name: str, kind: str, trigger: dict[str, Any]) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    return manifest(SCALED_OBJECT, name, "default", spec={"scaleTargetRef": target, "triggers": [trigger]})


async def test_nothing_is_asked_about_kinds_that_only_others_scale(cluster: SmallCluster) -> None:
    """The program follows the targets of its own triggers, so that no permission for others' is missing."""
    ours, cron = scaled_object("ours", "Deployment", OURS), scaled_object("cron", "StatefulSet", CRON)
    await Applier(cluster.kube).apply([ours, cron])
    reviews = [each for _, of_rule in (await read(cluster.kube)).reviews for each in of_rule]
    assert {each.resource for each in reviews if each.subresource == "scale"} == {"deployments"}


async def test_kinds_that_cannot_be_asked_for_are_not_said_to_be_missing(cluster: SmallCluster) -> None:
    assert not isinstance((await read(cluster.kube)).served, Unread)
    cluster.api.faults.fail_next(50, status=500, method="GET", path_part="/apis/kueue.x-k8s.io/v1beta2")
    served = (await read(cluster.kube)).served
    assert isinstance(served, Unread)
    assert "/apis/kueue.x-k8s.io/v1beta2" in served.reason


async def test_the_lease_of_the_scaler_is_read_by_its_name_which_is_what_its_account_may_do(
    cluster: SmallCluster,
) -> None:
    assert (await read(cluster.kube)).own_leases == Unread(ANY, is_absent=True)
    spec = {"renewTime": "2026-11-20T12:00:00.000000Z"}
    await Applier(cluster.kube).apply([manifest(LEASE, name, "default", spec=spec) for name in ("ours", "theirs")])
    cluster.api.permissions.deny("list", "leases.coordination.k8s.io")
    found = (await read(cluster.kube)).own_leases
    assert isinstance(found, Listing)
    assert [(each.metadata.name, each.spec.renew_time) for each in found.items] == [
        ("ours", datetime(2026, 11, 20, 12, tzinfo=UTC))
    ]
