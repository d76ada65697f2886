"""A real cluster: does it have all that the suite needs, and how does the suite leave nothing behind?

Laws:

* Nothing is deleted that does not carry the suite's label.
* Whatever is missing is said in one sentence, before anything is made.
* What a run has left that was killed is removed by the next one.
"""

import asyncio
import fcntl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from e2e.e2e_manifests import RUN_LABEL, Json
from e2e.e2e_multikueue_manifests import CLEARS_NOMINATIONS, MUTATING_POLICY_BINDING
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import parse_time
from scaler_sandbox.keda import Keda
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS

from scaler.admission.workload import CONTROLLER
from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    CLUSTER_QUEUE,
    DEPLOYMENT,
    IDLE_POLICY,
    JOB,
    LEASE,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    NAMESPACE,
    NODE,
    PLACEMENT_DECISION,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    RAY_JOB,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    SECRET,
    WORKLOAD,
    Resource,
)
from scaler.kube.transport import KubeTransport

_NEEDED = {
    CLUSTER_QUEUE: "Kueue, with version v1beta2 of its API",
    WORKLOAD: "Kueue, with version v1beta2 of its API",
    SCALED_OBJECT: "KEDA, or at least its CustomResourceDefinitions",
    PROVISIONING_REQUEST: "the CustomResourceDefinition ProvisioningRequest of Cluster Autoscaler, in version v1",
}
_NEEDED_ON_HUB = {
    MULTIKUEUE_CLUSTER: "Kueue, with version v1beta2 of its API",
    MULTIKUEUE_CONFIG: "Kueue, with version v1beta2 of its API",
    PLACEMENT_DECISION: "the CustomResourceDefinitions of Open Cluster Management's Placement",
}
_KUEUE_LEASE, _KUEUE_NAMESPACE = "c1f6bfd2.kueue.x-k8s.io", "kueue-system"
_CLEANUP_SECONDS = 40.0
_FORCE_AFTER_SECONDS = 20.0
_FINALIZED_SECONDS = 5.0


class UnsuitableClusterError(Exception):
    """The suite cannot run in this cluster. The message says why, and what to do."""


async def items(api: KubeTransport, resource: Resource, namespace: str = "", selector: str = "") -> list[Json]:
    """The objects; none where the cluster does not have the kind."""
    parameters = {"labelSelector": selector} if selector else {}
    try:
        pages = api.list_pages(resource.path(namespace), parameters)
        return [msgspec.json.decode(item) async for page in pages for item in page.items or ()]
    except KubeError as error:
        if error.status == 404:
            return []
        raise


# --------------------------------------------------------------------------------------------------------- requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class RealCluster:
    """A cluster, and which of these components run in it. The suite brings those that do not."""

    kubeconfig: Path
    has_scheduler: bool
    has_keda: bool
    has_ray: bool
    """Whether it has the kinds of KubeRay, of which the suite brings the controllers."""
    kueue_namespace: str
    """Where Kueue runs."""


@asynccontextmanager
async def real_cluster(kubeconfig: Path) -> AsyncIterator[RealCluster]:
    """The cluster, for one flow at a time: two instances of the program in it would do each other's work.

    Raises: UnsuitableClusterError where something is missing that the suite does not bring.
    """
    with kubeconfig.open("rb") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        async with await KubeTransport.connect(kubeconfig) as api:
            await delete_labelled(api)
            found = await _check_requirements(api, kubeconfig)
        yield found


async def _check_requirements(api: KubeTransport, kubeconfig: Path) -> RealCluster:
    for resource, what in _NEEDED.items():
        await _require_kind(api, resource, what)
    await _require_webhooks(api)
    leases = await items(api, LEASE)
    _refuse_another_scaler(leases, await items(api, ADMISSION_CHECK))
    where = {each["metadata"]["name"]: each["metadata"]["namespace"] for each in leases if _is_held(each)}
    return RealCluster(
        kubeconfig=kubeconfig,
        has_scheduler="kube-scheduler" in where,
        has_keda="operator.keda.sh" in where,
        has_ray=await _is_served(api, RAY_CLUSTER) and await _is_served(api, RAY_JOB),
        kueue_namespace=where.get(_KUEUE_LEASE, _KUEUE_NAMESPACE),
    )


async def check_hub(hub: RealCluster) -> None:
    """Raises: UnsuitableClusterError where it lacks what a hub of MultiKueue needs beyond that."""
    async with await KubeTransport.connect(hub.kubeconfig) as api:
        for resource, what in _NEEDED_ON_HUB.items():
            await _require_kind(api, resource, what)
        if not [each for each in await items(api, MUTATING_POLICY_BINDING) if CLEARS_NOMINATIONS in _name(each)]:
            raise UnsuitableClusterError(
                f"the hub has no MutatingAdmissionPolicyBinding {CLEARS_NOMINATIONS}: install Kueue's workload-map.yaml"
            )


async def _require_kind(api: KubeTransport, resource: Resource, what: str) -> None:
    if not await _is_served(api, resource):
        raise UnsuitableClusterError(f"the cluster has no {resource.qualified_name}/{resource.version}: install {what}")


async def _is_served(api: KubeTransport, resource: Resource) -> bool:
    try:
        await api.get(resource.path(), {"limit": "1"})
    except KubeError as error:
        if error.status == 404:
            return False
        raise
    return True


async def _require_webhooks(api: KubeTransport) -> None:
    """A flavor with an invalid label is admitted by the API server's schema, and refused by Kueue's webhook."""
    invalid = {
        "apiVersion": RESOURCE_FLAVOR.api_version,
        "kind": RESOURCE_FLAVOR.kind,
        "metadata": {"name": "e2e-probe"},
        "spec": {"nodeLabels": {"not a label": "x"}},
    }
    path = RESOURCE_FLAVOR.path("", "e2e-probe")
    try:
        await api.patch(path, invalid, apply_as="e2e", dry_run=True)
    except KubeError as error:
        if "admission webhook" in str(error):
            return
        raise UnsuitableClusterError(f"Kueue's webhooks do not answer ({error}): start its manager") from error
    raise UnsuitableClusterError("Kueue's webhooks are not registered: install Kueue with them, and start its manager")


def _refuse_another_scaler(leases: Iterable[Json], checks: Iterable[Json]) -> None:
    for lease in leases:
        if lease["metadata"]["name"] == "idle-gpu-scaler" and _is_held(lease):
            where = lease["metadata"]["namespace"]
            raise UnsuitableClusterError(
                f"another idle-gpu-scaler leads (Lease {where}/idle-gpu-scaler): stop it, or take another cluster"
            )
    for check in checks:
        if check["spec"]["controllerName"] == CONTROLLER and RUN_LABEL not in (check["metadata"].get("labels") or {}):
            name = check["metadata"]["name"]
            raise UnsuitableClusterError(
                f"AdmissionCheck {name} is for {CONTROLLER}, too, and not of the suite: take another cluster"
            )


def _is_held(lease: Json) -> bool:
    spec = lease.get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    lasts = timedelta(seconds=2 * (spec.get("leaseDurationSeconds") or 15))
    return bool(spec.get("holderIdentity")) and renewed is not None and datetime.now(UTC) < renewed + lasts


# ------------------------------------------------------------------------------------------------------------- clean-up


async def delete_labelled(api: KubeTransport) -> None:
    """Deletes every object with the suite's label. Raises: UnsuitableClusterError where one stays."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while left := await _left(api):
        waited = loop.time() - began
        if waited > _CLEANUP_SECONDS:
            names = sorted(f"{resource.kind} {_name(body)}" for resource, body in left)
            raise UnsuitableClusterError(f"these objects of the suite cannot be deleted: {', '.join(names)}")
        for resource, body in left:
            await _delete(api, resource, body, by_force=waited > _FORCE_AFTER_SECONDS)
        await asyncio.sleep(0.3)


_INSIDE = (
    IDLE_POLICY,
    SCALED_OBJECT,
    SCALABLE_WORKLOAD,
    *(JOB, RAY_JOB, RAY_CLUSTER, DEPLOYMENT),
    *(POD, WORKLOAD, PROVISIONING_REQUEST, POD_TEMPLATE, LOCAL_QUEUE),
)
"""Kinds of objects in the suite's namespaces, which are all deleted before any other object."""
_OUTSIDE = (
    CLUSTER_QUEUE,
    RESOURCE_FLAVOR,
    ADMISSION_CHECK,
    RECLAIM_POLICY,
    WORKLOAD_PRIORITY_CLASS,
    *(MULTIKUEUE_CONFIG, MULTIKUEUE_CLUSTER, SECRET, CLUSTER_OFFER),
    NODE,
    NAMESPACE,
    *(
        Resource(
            group="rbac.authorization.k8s.io",
            version="v1",
            plural=f"{kind.lower()}s",
            kind=kind,
            namespaced=not kind.startswith("Cluster"),
        )
        for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    ),
)


async def _left(api: KubeTransport) -> list[tuple[Resource, Json]]:
    """What is to be deleted next."""
    inside = [
        (resource, body)
        for each in await items(api, NAMESPACE, selector=RUN_LABEL)
        for resource in _INSIDE
        for body in await items(api, resource, each["metadata"]["name"])
    ]
    if inside:
        return inside
    return [(resource, body) for resource in _OUTSIDE for body in await items(api, resource, selector=RUN_LABEL)]


async def _delete(api: KubeTransport, resource: Resource, body: Json, *, by_force: bool) -> None:
    metadata = body["metadata"]
    path = resource.path(metadata.get("namespace", ""), metadata["name"])
    try:
        if by_force and metadata.get("finalizers"):
            await api.patch(path, {"metadata": {"finalizers": None}})
        if resource == POD:
            await api.delete(f"{path}?gracePeriodSeconds=0")
        elif not metadata.get("deletionTimestamp"):
            # Without a policy, deleting a Job leaves its pods.
            await api.delete(f"{path}?propagationPolicy=Background")
    except KubeError as error:
        if error.status not in (404, 409):
            raise


def _name(body: Json) -> str:
    metadata = body["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


# ----------------------------------------------------------------------------------------------------------------- KEDA


@asynccontextmanager
async def embedded_keda(api: KubeTransport) -> AsyncIterator[None]:
    """A KEDA for a cluster without one. At the end it removes the suite's ScaledObjects, which wait for a KEDA to go.

    Raises: UnsuitableClusterError where others have ScaledObjects: it would scale these, too.
    """
    for each in await items(api, SCALED_OBJECT):
        if RUN_LABEL not in (each["metadata"].get("labels") or {}):
            raise UnsuitableClusterError(
                f"no KEDA runs, and the suite's own would scale ScaledObject {_name(each)}, too: delete it"
            )
    async with Client(api, Keda.watched) as client:
        running = asyncio.create_task(Keda(client).run())
        try:
            yield
        finally:
            await _delete_scaled_objects(api)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _delete_scaled_objects(api: KubeTransport) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _FINALIZED_SECONDS
    while (left := await items(api, SCALED_OBJECT, selector=RUN_LABEL)) and loop.time() < until:
        for each in left:
            await _delete(api, SCALED_OBJECT, each, by_force=False)
        await asyncio.sleep(0.2)
