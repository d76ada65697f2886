"""A cluster that is not ours: has it all that the suite needs, and how does the suite leave nothing behind?

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
from e2e.e2e_manifests import CONTROLLER, RUN_LABEL, Json
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import parse_time
from scaler_sandbox.keda import Keda
from scaler_sandbox.keda.scaledobjects import FINALIZER
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS

from scaler.errors import KubeError
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    LEASE,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.kube.transport import KubeTransport, PatchType

_NEEDED = {
    CLUSTER_QUEUE: "Kueue, with version v1beta2 of its API",
    WORKLOAD: "Kueue, with version v1beta2 of its API",
    SCALED_OBJECT: "KEDA, or at least its CustomResourceDefinitions",
    PROVISIONING_REQUEST: "the CustomResourceDefinition ProvisioningRequest of Cluster Autoscaler, in version v1",
}
_KEDA_SECONDS = 5.0
"""By then a KEDA that runs has put its finalizer on a new ScaledObject."""
_PATIENCE_SECONDS = 40.0
_FORCE_AFTER_SECONDS = 20.0


class UnfitError(Exception):
    """The suite cannot run in this cluster. The message says why, and what to do."""


async def items(api: KubeTransport, resource: Resource, namespace: str = "", selector: str = "") -> list[Json]:
    """The objects; none where nobody knows such ones."""
    asked = {"labelSelector": selector} if selector else {}
    try:
        pages = api.list_pages(resource.path(namespace), asked)
        return [msgspec.json.decode(item) async for page in pages for item in page.items or ()]
    except KubeError as error:
        if error.status == 404:
            return []
        raise


# ---------------------------------------------------------------------------------------------------------- what it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A cluster that is not ours, and what of its own parts runs. The suite plays what does not."""

    kubeconfig: Path
    schedules: bool
    """Whether a kube-scheduler places pods."""


@asynccontextmanager
async def ground(kubeconfig: Path) -> AsyncIterator[Ground]:
    """The cluster, for one flow at a time: two programs of ours in it would do each other's work.

    Raises: UnfitError where something is missing that the suite does not play.
    """
    with kubeconfig.open("rb") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        async with await KubeTransport.connect(kubeconfig) as api:
            await cleared(api)
            found = await _examined(api, kubeconfig)
        yield found


async def _examined(api: KubeTransport, kubeconfig: Path) -> Ground:
    for resource, what in _NEEDED.items():
        await _require_kind(api, resource, what)
    await _require_webhooks(api)
    leases = await items(api, LEASE)
    _refuse_another_scaler(leases, await items(api, ADMISSION_CHECK))
    schedules = any(each["metadata"]["name"] == "kube-scheduler" and _is_held(each) for each in leases)
    return Ground(kubeconfig=kubeconfig, schedules=schedules)


async def _require_kind(api: KubeTransport, resource: Resource, what: str) -> None:
    try:
        await api.get(resource.path(), {"limit": "1"})
    except KubeError as error:
        if error.status == 404:
            raise UnfitError(
                f"the cluster knows no {resource.qualified_name}/{resource.version}: install {what}"
            ) from error
        raise


async def _require_webhooks(api: KubeTransport) -> None:
    """A flavor whose label is none is let through by the API server's schema, and refused by Kueue's webhook."""
    crooked = {
        "apiVersion": RESOURCE_FLAVOR.api_version,
        "kind": RESOURCE_FLAVOR.kind,
        "metadata": {"name": "e2e-probe"},
        "spec": {"nodeLabels": {"not a label": "x"}},
    }
    path = RESOURCE_FLAVOR.path("", "e2e-probe")
    try:
        await api.patch(path, crooked, content_type=PatchType.APPLY, field_manager="e2e", dry_run=True)
    except KubeError as error:
        if "admission webhook" in str(error):
            return
        raise UnfitError(f"Kueue's webhooks do not answer ({error}): start its manager") from error
    raise UnfitError("Kueue's webhooks are not registered: install Kueue with them, and start its manager")


def _refuse_another_scaler(leases: Iterable[Json], checks: Iterable[Json]) -> None:
    for lease in leases:
        if lease["metadata"]["name"] == "idle-gpu-scaler" and _is_held(lease):
            where = lease["metadata"]["namespace"]
            raise UnfitError(
                f"another idle-gpu-scaler leads (Lease {where}/idle-gpu-scaler): stop it, or take another cluster"
            )
    for check in checks:
        if check["spec"]["controllerName"] == CONTROLLER and RUN_LABEL not in (check["metadata"].get("labels") or {}):
            name = check["metadata"]["name"]
            raise UnfitError(f"AdmissionCheck {name} is this program's, too, and not the suite's: take another cluster")


def _is_held(lease: Json) -> bool:
    spec = lease.get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    lasts = timedelta(seconds=2 * (spec.get("leaseDurationSeconds") or 15))
    return bool(spec.get("holderIdentity")) and renewed is not None and datetime.now(UTC) < renewed + lasts


# ------------------------------------------------------------------------------------------------------------- clearing


async def cleared(api: KubeTransport) -> None:
    """Delete whatever carries the suite's label. Raises: UnfitError where something stays."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while left := await _left(api):
        waited = loop.time() - began
        if waited > _PATIENCE_SECONDS:
            names = sorted(f"{resource.kind} {_name(body)}" for resource, body in left)
            raise UnfitError(f"these objects of the suite's do not go: {', '.join(names)}")
        for resource, body in left:
            await _delete(api, resource, body, by_force=waited > _FORCE_AFTER_SECONDS)
        await asyncio.sleep(0.3)


_INSIDE = (SCALED_OBJECT, SCALABLE_WORKLOAD, JOB, POD, WORKLOAD, PROVISIONING_REQUEST, POD_TEMPLATE, LOCAL_QUEUE)
"""Kinds of objects in the suite's namespaces, which all go before anything else does."""
_OUTSIDE = (
    CLUSTER_QUEUE,
    RESOURCE_FLAVOR,
    ADMISSION_CHECK,
    RECLAIM_POLICY,
    WORKLOAD_PRIORITY_CLASS,
    NODE,
    NAMESPACE,
    *(
        Resource(
            group="rbac.authorization.k8s.io", version="v1", plural=f"{kind.lower()}s", kind=kind, namespaced=False
        )
        for kind in ("ClusterRole", "ClusterRoleBinding")
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
            # Deleted without a word on it, Jobs leave their pods alone.
            await api.delete(f"{path}?propagationPolicy=Background")
    except KubeError as error:
        if error.status not in (404, 409):
            raise


def _name(body: Json) -> str:
    metadata = body["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


# ----------------------------------------------------------------------------------------------------------------- KEDA


@asynccontextmanager
async def keda_for(api: KubeTransport, scaled_object: Json) -> AsyncIterator[None]:
    """The cluster's own KEDA, where one takes care of this ScaledObject, and one that is played where none does.

    Raises: UnfitError where others have ScaledObjects and no KEDA: the one that is played would scale these, too.
    """
    if await _is_taken_care_of(api, scaled_object):
        yield
        return
    if others := [
        each for each in await items(api, SCALED_OBJECT) if RUN_LABEL not in each["metadata"].get("labels", {})
    ]:
        raise UnfitError(
            f"no KEDA runs, and the suite's own would scale ScaledObject {_name(others[0])}, too: delete it"
        )
    async with Client(api, Keda.watched) as client:
        playing = asyncio.create_task(Keda(client).run())
        try:
            yield
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)


async def _is_taken_care_of(api: KubeTransport, scaled_object: Json) -> bool:
    metadata = scaled_object["metadata"]
    loop = asyncio.get_running_loop()
    until = loop.time() + _KEDA_SECONDS
    while loop.time() < until:
        body = msgspec.json.decode(await api.get(SCALED_OBJECT.path(metadata["namespace"], metadata["name"])))
        if FINALIZER in (body["metadata"].get("finalizers") or ()):
            return True
        await asyncio.sleep(0.2)
    return False
