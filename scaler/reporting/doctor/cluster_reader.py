"""Reads everything that a diagnosis needs, once, and writes nothing. What cannot be read is a value with a reason.

Access reviews are the one thing that is created, and no server stores them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from scaler.admission.workload import is_ours
from scaler.errors import KubeError, SourceError
from scaler.idleness.gpu import Signal
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import RelabelRules
from scaler.kube.discovery import Discovery
from scaler.kube.object_cache import identity_of
from scaler.kube.objects.core import UNREADABLE, Pod, decode
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, Service
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node, allocatable
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    SERVICE,
    WORKLOAD,
    Resource,
    group_version_path,
)
from scaler.kube.transport import KubeTransport
from scaler.reporting.doctor.api_resources import REQUIRED_KINDS, Served
from scaler.reporting.doctor.facts import ClusterObjects, DoctorInputs, DoctorSettings
from scaler.reporting.doctor.findings import Listing, ListResult, Unread, items_of
from scaler.reporting.doctor.permissions import RequiredRule, ResourceAttributes, attributes_of, required_rules
from scaler.reporting.doctor.signal_series import Gpus, PodKey, Read, Series, SourceSeries
from scaler.samples.source import SignalSource

_AT_ONCE = 8
"""Requests under way at the same time."""
_SHARED = frozenset({ADMISSION_CHECK, RECLAIM_POLICY, CLUSTER_QUEUE, COHORT, LOCAL_QUEUE, RESOURCE_FLAVOR})
"""What only plans and checks need, which there are none of where only some namespaces are watched."""
_SPAN = timedelta(minutes=10)
"""How far back samples are read: enough to see at which intervals they come."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedUser:
    """Whose permissions are asked about; without a user, the caller's own."""

    user: str = ""

    @property
    def groups(self) -> list[str]:
        """What the API server adds for a ServiceAccount, and for every authenticated user."""
        match self.user.split(":"):
            case ["system", "serviceaccount", namespace, _]:
                return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        return ["system:authenticated"]

    def review(self, ask: ResourceAttributes) -> tuple[str, dict[str, Any]]:
        """The path and the body of the question."""
        attributes = {
            "verb": ask.verb,
            "group": ask.group,
            "resource": ask.resource,
            "subresource": ask.subresource,
            "namespace": ask.namespace,
            "name": ask.name,
        }
        kind = "SubjectAccessReview" if self.user else "SelfSubjectAccessReview"
        who = {"user": self.user, "groups": self.groups} if self.user else {}
        spec = {"resourceAttributes": {name: value for name, value in attributes.items() if value}, **who}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec}
        return f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The metrics source, and how its answers are understood."""

    source: SignalSource
    signals: Sequence[Signal]
    rules: RelabelRules
    trust: Trust


class ClusterReader:
    """Reads a cluster, or the namespaces that are watched where these are not all.

    Nothing that is the whole cluster's is read then, as the program itself does not.
    """

    def __init__(
        self,
        transport: KubeTransport,
        gpus: GpuResources,
        *,
        namespaces: Collection[str],
        lease_namespace: str,
        lease_name: str = "",
    ) -> None:
        self._transport = transport
        self._discovery = Discovery(transport)
        self._gpus = gpus
        self._namespaces = namespaces
        self._lease = {"lease_namespace": lease_namespace, "lease_name": lease_name}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def take(
        self, wanted: DoctorSettings, telemetry: Telemetry | Unread, subject: ReviewedUser, now: datetime
    ) -> DoctorInputs:
        """What there is to be seen. Raises nothing that has to do with the cluster."""
        version, served = await asyncio.gather(self._version(), self._served())
        if isinstance(version, Unread):
            return DoctorInputs(version=version, served=served, objects=ClusterObjects(), wanted=wanted)
        objects = await self._objects()
        targets = await self._targets([each for each, _ in objects.scaling(wanted).ours()])
        asked = [(need, self._asks(need, targets)) for need in self._needs(wanted)]
        answers, metrics = await asyncio.gather(
            self._reviews({ask for _, asks in asked for ask in asks}, subject), self._metrics(telemetry, now)
        )
        return DoctorInputs(
            version=version,
            served=served,
            objects=objects,
            asked=asked,
            allowed=answers,
            metrics=metrics,
            wanted=wanted,
            unborn=[each for each in self._namespaces if await self._is_missing(each)],
        )

    def _needs(self, wanted: DoctorSettings) -> Sequence[RequiredRule]:
        return required_rules(reconciles=wanted.reconciles, is_confined=bool(self._namespaces))

    def _asks(self, need: RequiredRule, targets: frozenset[Resource]) -> list[ResourceAttributes]:
        return attributes_of(need, targets=targets, namespaces=self._namespaces, **self._lease)

    # ---------------------------------------------------------------------------------------------------------- the API

    async def _version(self) -> str | Unread:
        body = await self._get("/version")
        if isinstance(body, Unread):
            return body
        return f"{self._transport.server} is {msgspec.json.decode(body).get('gitVersion', 'of unknown version')}"

    async def _served(self) -> Served | Unread:
        groups = sorted({wanted.group for wanted in REQUIRED_KINDS})
        listings = await asyncio.gather(*(self._versions(group) for group in groups))
        problem = next((each for each in listings if isinstance(each, Unread)), None)
        return problem or {group: each for group, each in zip(groups, listings, strict=True) if isinstance(each, dict)}

    async def _versions(self, group: str) -> dict[str, frozenset[str]] | Unread:
        body = await self._get(f"/apis/{group}")
        if isinstance(body, Unread):
            return {} if body.is_absent else body
        versions = [each["version"] for each in msgspec.json.decode(body)["versions"]]
        listings = await asyncio.gather(*(self._kinds(f"{group}/{version}") for version in versions))
        problem = next((each for each in listings if isinstance(each, Unread)), None)
        found = zip(versions, listings, strict=True)
        return problem or {version: each for version, each in found if not isinstance(each, Unread)}

    async def _kinds(self, api_version: str) -> frozenset[str] | Unread:
        body = await self._get(group_version_path(api_version))
        if isinstance(body, Unread):
            return frozenset() if body.is_absent else body
        return frozenset(each["kind"] for each in msgspec.json.decode(body)["resources"])

    async def _is_missing(self, namespace: str) -> bool:
        """Whether it is known that there is no such namespace; without the permission it is not known."""
        found = await self._get(NAMESPACE.path(name=namespace))
        return isinstance(found, Unread) and found.is_absent

    async def _get(self, path: str) -> bytes | Unread:
        return await self._or_why(lambda: self._transport.get(path))

    async def _or_why(self, ask: Callable[[], Awaitable[T]]) -> T | Unread:
        try:
            async with self._slots:
                return await ask()
        except KubeError as error:
            return Unread(str(error), is_absent=error.status == 404)

    # ---------------------------------------------------------------------------------------------------------- objects

    async def _objects(self) -> ClusterObjects:
        found = await asyncio.gather(
            self._all(ADMISSION_CHECK, AdmissionCheck),
            self._all(RECLAIM_POLICY, ReclaimPolicy),
            self._all(CLUSTER_QUEUE, ClusterQueue),
            self._all(COHORT, Cohort),
            self._all(LOCAL_QUEUE, LocalQueue),
        )
        others = await asyncio.gather(
            self._all(RESOURCE_FLAVOR, ResourceFlavor),
            self._all(WORKLOAD, Workload),
            self._all(SCALED_OBJECT, ScaledObject),
            self._all(SCALABLE_WORKLOAD, ScalableWorkload),
        )
        checks, policies, cluster_queues, cohorts, local_queues = found
        flavors, workloads, scaled_objects, scalable_workloads = others
        return ClusterObjects(
            checks=checks,
            policies=policies,
            cluster_queues=cluster_queues,
            cohorts=cohorts,
            local_queues=local_queues,
            flavors=flavors,
            workloads=workloads,
            scaled_objects=scaled_objects,
            scalable_workloads=scalable_workloads,
            services=await self._all(SERVICE, Service, everywhere=True),
            nodes=await self._all(NODE, Node) if any(is_ours(each) for each in items_of(checks)) else Listing(),
        )

    async def _all(self, resource: Resource, kind: type[T], *, everywhere: bool = False) -> ListResult[T]:
        if everywhere or not self._namespaces:
            return await self._or_why(lambda: self._listed(resource.path(), kind))
        if resource in _SHARED:
            return Listing()
        found = [await self._or_why(partial(self._listed, resource.path(each), kind)) for each in self._namespaces]
        return _joined(dict(zip(self._namespaces, found, strict=True)))

    async def _listed(self, path: str, kind: type[T]) -> Listing[T]:
        """Raises: KubeError."""
        items, unreadable = list[T](), list[tuple[str, str]]()
        async for page in self._transport.list_pages(path):
            for raw in page.items or ():
                try:
                    items.append(decode(kind, raw))
                except UNREADABLE as error:
                    unreadable.append(("/".join(filter(None, identity_of(raw).key)), str(error)))
        return Listing(items=items, unreadable=unreadable)

    async def _targets(self, scaled_objects: Sequence[ScaledObject]) -> frozenset[Resource]:
        """The kinds that these scale, but for our own, of which everything is asked anyway."""
        kinds = {(each.spec.scale_target_ref.api_version, each.spec.scale_target_ref.kind) for each in scaled_objects}
        found = await asyncio.gather(
            *(self._or_why(partial(self._discovery.resolve_kind, *kind)) for kind in sorted(kinds))
        )
        return frozenset(each for each in found if isinstance(each, Resource)) - {SCALABLE_WORKLOAD}

    # ------------------------------------------------------------------------------------------------------ permissions

    async def _reviews(
        self, asks: Collection[ResourceAttributes], subject: ReviewedUser
    ) -> dict[ResourceAttributes, bool | Unread]:
        wanted = sorted(asks, key=str)
        answers = await asyncio.gather(*(self._review(ask, subject) for ask in wanted))
        return dict(zip(wanted, answers, strict=True))

    async def _review(self, ask: ResourceAttributes, subject: ReviewedUser) -> bool | Unread:
        path, body = subject.review(ask)
        answer = await self._or_why(lambda: self._transport.create(path, body))
        if isinstance(answer, Unread):
            return answer
        return bool((msgspec.json.decode(answer).get("status") or {}).get("allowed"))

    # ---------------------------------------------------------------------------------------------------------- metrics

    async def _metrics(self, telemetry: Telemetry | Unread, now: datetime) -> SourceSeries | Unread:
        if isinstance(telemetry, Unread):
            return telemetry
        signals = telemetry.signals
        reads = await asyncio.gather(*(_read(telemetry.source, signal, now) for signal in signals))
        return SourceSeries(
            reads={signal.name: read for signal, read in zip(signals, reads, strict=True)},
            rules=telemetry.rules,
            trust=telemetry.trust,
            gpus=await self._all_gpus(),
            span=_SPAN,
        )

    async def _all_gpus(self) -> Gpus | Unread:
        pods = await self._or_why(self._gpu_pods)
        if isinstance(pods, Unread) or self._namespaces:
            return pods if isinstance(pods, Unread) else Gpus(allocatable=None, pods=pods)
        nodes = await self._all(NODE, Node)
        if isinstance(nodes, Unread):
            return nodes
        ready = [node for node in nodes.items if node.is_ready]
        return Gpus(
            allocatable=sum(self._offered(node) for node in ready),
            shared_nodes=sorted(node.metadata.name for node in ready if _is_shared(node)),
            pods=pods,
        )

    def _offered(self, node: Node) -> int:
        return sum(amount for name, amount in allocatable(node).items() if self._gpus.matches(name))

    async def _gpu_pods(self) -> frozenset[PodKey]:
        """Pods that hold GPUs and run. Page by page: of most pods nothing is kept. Raises: KubeError."""
        found = set[PodKey]()
        for namespace in self._namespaces or ("",):
            pages = self._transport.list_pages(POD.path(namespace), {"fieldSelector": "status.phase=Running"})
            async for page in pages:
                found.update(pod.metadata.key for pod in _readable(page.items or ()) if self._gpus.of_pod(pod.spec))
        return frozenset(found)


def _joined(found: Mapping[str, ListResult[T]]) -> ListResult[T]:
    """What was read of each namespace as one; why nothing was where it is so of all."""
    listings = [each for each in found.values() if isinstance(each, Listing)]
    hidden = [(namespace, each.reason) for namespace, each in found.items() if isinstance(each, Unread)]
    if not listings:
        return next(each for each in found.values() if isinstance(each, Unread))
    return Listing(
        items=[item for each in listings for item in each.items],
        unreadable=[name for each in listings for name in each.unreadable],
        hidden=hidden,
    )


def _readable(items: Sequence[msgspec.Raw]) -> Iterator[Pod]:
    for raw in items:
        try:
            yield decode(Pod, raw)
        except UNREADABLE:
            continue


def _is_shared(node: Node) -> bool:
    """Whether GPUs are offered more than once, as NVIDIA's feature discovery labels it."""
    replicas = node.metadata.labels.get("nvidia.com/gpu.replicas", "")
    return replicas.isdecimal() and int(replicas) > 1


async def _read(source: SignalSource, signal: Signal, now: datetime) -> Read | Unread:
    try:
        reading = await source.read(signal, start=now - _SPAN, end=now)
        series = [Series(labels=each.labels(), samples=each.samples()) for each in reading.series]
    except SourceError as error:
        return Unread(str(error))
    return Read(signal=signal, series=series, server_time=reading.server_time)
