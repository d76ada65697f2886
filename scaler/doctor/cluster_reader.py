"""Reads everything that a diagnosis needs, once, and writes nothing. What cannot be read is a value with a reason.

Access reviews are the one thing that is created, and no server stores them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from scaler.admission.workload import is_ours
from scaler.doctor.api_resources import REQUIRED_KINDS, Served
from scaler.doctor.facts import TYPES_READ, DoctorInputs, DoctorSettings, Listing, ListResult
from scaler.doctor.findings import Unread, read_or_why
from scaler.doctor.permissions import Reviews, attributes_of, required_rules
from scaler.doctor.signals import Read, Series, SourceSeries
from scaler.doctor.verdicts import SPAN, Gpus
from scaler.documents import UNREADABLE
from scaler.errors import SourceError
from scaler.idleness.gpu import BOARD_POWER, ENERGY, Signal
from scaler.idleness.history import PodKey
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.relabel import RelabelRules
from scaler.kube.discovery import Discovery
from scaler.kube.object_cache import identity_of
from scaler.kube.objects import resources as kinds
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.gpu_pods import GpuResources, gpu_pod
from scaler.kube.objects.keda import Lease, Service
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.nodes import Node, allocatable
from scaler.kube.objects.resources import Resource, group_version_path
from scaler.kube.reviews import AuthenticatedUser, ResourceAttributes, is_allowed
from scaler.kube.transport import KubeTransport
from scaler.samples.source import SignalSource

_AT_ONCE = 8
"""Requests under way at the same time."""
_SHARED = frozenset(
    {
        kinds.ADMISSION_CHECK,
        kinds.CLUSTER_IDLE_POLICY,
        kinds.RECLAIM_POLICY,
        kinds.CLUSTER_QUEUE,
        kinds.COHORT,
        kinds.LOCAL_QUEUE,
        kinds.RESOURCE_FLAVOR,
    }
)
"""What belongs to the whole cluster, which there are none of where only some namespaces are watched."""

_OF_KEDA = {"fieldSelector": "metadata.name=operator.keda.sh"}
"""The Lease of KEDA's operator, in whatever namespace."""

T = TypeVar("T")


def account_namespace(user: str) -> str:
    """The namespace of a ServiceAccount; empty for other users."""
    match user.split(":"):
        case ["system", "serviceaccount", namespace, _]:
            return namespace
    return ""


def reviewed_user(user: str) -> AuthenticatedUser | None:
    """The user whose permissions are asked about, with the groups that the API server adds; None: the caller itself."""
    namespace = account_namespace(user)
    of_account = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}") if namespace else ()
    return AuthenticatedUser(name=user, groups=(*of_account, "system:authenticated")) if user else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    source: SignalSource
    signals: Sequence[Signal]
    rules: RelabelRules
    trust: Trust
    policy: Policy
    asked_every: timedelta | None = None
    """How often samples are asked for, as in `SourceSeries`."""


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
        kueue_namespace: str = "kueue-system",
    ) -> None:
        self._transport = transport
        self._discovery = Discovery(transport)
        self._gpus = gpus
        self._namespaces = namespaces
        self._own = {
            "lease_namespace": lease_namespace,
            "lease_name": lease_name,
            "kueue_namespace": kueue_namespace,
        }
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def take(
        self, wanted: DoctorSettings, telemetry: Telemetry | Unread, subject: AuthenticatedUser | None, now: datetime
    ) -> DoctorInputs:
        """What there is to be read. Raises nothing that has to do with the cluster."""
        version, served = await asyncio.gather(self._version(), self._served())
        found = DoctorInputs(version=version, served=served, wanted=wanted)
        if isinstance(version, Unread):
            return found
        found = replace(found, listings=await self._listings())
        gpus = await self._all_gpus()
        reviews, metrics, missing, leases, own = await asyncio.gather(
            self._reviews(found, subject),
            source_series(telemetry, gpus, now),
            self._missing_namespaces(),
            self._or_why(lambda: self._listed(kinds.LEASE.path(), Lease, _OF_KEDA)),
            self._own_leases(),
        )
        found = replace(found, reviews=reviews, metrics=metrics, missing_namespaces=missing)
        return replace(found, gpus=gpus, keda_leases=leases, own_leases=own)

    async def _own_leases(self) -> ListResult[Lease]:
        """The own Leases, read by `get`, which is what the scaler's account may do itself."""
        path = kinds.LEASE.path(self._own["lease_namespace"], self._own["lease_name"])

        async def read() -> Listing[Lease]:
            return Listing(items=[decode(Lease, await self._transport.get(path))])

        return await self._or_why(read)

    # ---------------------------------------------------------------------------------------------------------- the API

    async def _version(self) -> str | Unread:
        body = await self._get("/version")
        if isinstance(body, Unread):
            return body
        return f"{self._transport.server} is {msgspec.json.decode(body).get('gitVersion', 'of unknown version')}"

    async def _served(self) -> Served | Unread:
        groups = sorted({wanted.group for wanted in REQUIRED_KINDS})
        return await _by_name(groups, self._versions)

    async def _versions(self, group: str) -> Mapping[str, frozenset[str]] | Unread:
        body = await self._get(f"/apis/{group}")
        if isinstance(body, Unread):
            return {} if body.is_absent else body
        versions = [each["version"] for each in msgspec.json.decode(body)["versions"]]
        return await _by_name(versions, lambda version: self._kinds(f"{group}/{version}"))

    async def _kinds(self, api_version: str) -> frozenset[str] | Unread:
        body = await self._get(group_version_path(api_version))
        if isinstance(body, Unread):
            return frozenset() if body.is_absent else body
        return frozenset(each["kind"] for each in msgspec.json.decode(body)["resources"])

    async def _missing_namespaces(self) -> Sequence[str]:
        """The watched namespaces that are known not to exist; without the permission it is not known."""
        found = {each: await self._get(kinds.NAMESPACE.path(name=each)) for each in self._namespaces}
        return [each for each, namespace in found.items() if isinstance(namespace, Unread) and namespace.is_absent]

    async def _get(self, path: str) -> bytes | Unread:
        return await self._or_why(lambda: self._transport.get(path))

    async def _or_why(self, ask: Callable[[], Awaitable[T]]) -> T | Unread:
        async with self._slots:
            return await read_or_why(ask())

    # ---------------------------------------------------------------------------------------------------------- objects

    async def _listings(self) -> Mapping[type, ListResult[Any]]:
        types = [kind for kind in TYPES_READ if kind is not Node]
        found: dict[type, ListResult[Any]] = dict(
            zip(types, await asyncio.gather(*(self._all(each) for each in types)), strict=True)
        )
        checks = found[AdmissionCheck]
        if isinstance(checks, Listing) and any(is_ours(each) for each in checks.items):
            found[Node] = await self._all(Node)
        return found

    async def _all(self, kind: type[T]) -> ListResult[T]:
        resource, _ = TYPES_READ[kind]
        if kind is Service or not self._namespaces:
            return await self._or_why(lambda: self._listed(resource.path(), kind))
        if resource in _SHARED:
            return Listing()
        found = [await self._or_why(partial(self._listed, resource.path(each), kind)) for each in self._namespaces]
        return _joined(dict(zip(self._namespaces, found, strict=True)))

    async def _listed(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> Listing[T]:
        """Raises: KubeError."""
        items, unreadable = list[T](), list[tuple[str, str]]()
        async for raw, item in self._decoded(path, kind, query):
            if isinstance(item, Unread):
                unreadable.append(("/".join(filter(None, identity_of(raw).key)), item.reason))
            else:
                items.append(item)
        return Listing(items=items, unreadable=unreadable)

    async def _decoded(
        self, path: str, kind: type[T], query: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[msgspec.Raw, T | Unread]]:
        """Page by page. Raises: KubeError."""
        async for page in self._transport.list_pages(path, query):
            for raw in page.items or ():
                try:
                    yield raw, decode(kind, raw)
                except UNREADABLE as error:
                    yield raw, Unread(str(error))

    # ------------------------------------------------------------------------------------------------------ permissions

    async def _reviews(self, found: DoctorInputs, subject: AuthenticatedUser | None) -> Reviews:
        """Each question is asked once, however many rules it is of."""
        wanted, is_confined = found.wanted, bool(self._namespaces)
        rules = required_rules(reconciles=wanted.reconciles, is_confined=is_confined, optional=wanted.optional)
        targets, namespaces = await self._targets(found), self._namespaces
        asked = [(rule, attributes_of(rule, targets=targets, namespaces=namespaces, **self._own)) for rule in rules]
        each_once = [*{attributes: None for _, of_rule in asked for attributes in of_rule}]
        answers = await asyncio.gather(*(self._review(each, subject) for each in each_once))
        known = dict(zip(each_once, answers, strict=True))
        return [(rule, {each: known[each] for each in of_rule}) for rule, of_rule in asked]

    async def _targets(self, found: DoctorInputs) -> frozenset[Resource]:
        """The kinds that our triggers scale, but for our own, of which everything is asked anyway."""
        refs = (scaled_object.spec.scale_target_ref for scaled_object, _ in found.own_triggers())
        names = sorted({(each.api_version, each.kind) for each in refs})
        resolved = await asyncio.gather(*(self._or_why(partial(self._discovery.resolve_kind, *each)) for each in names))
        return frozenset(each for each in resolved if isinstance(each, Resource)) - {kinds.SCALABLE_WORKLOAD}

    async def _review(self, attributes: ResourceAttributes, subject: AuthenticatedUser | None) -> bool | Unread:
        return await self._or_why(lambda: is_allowed(self._transport, attributes, subject))

    # ------------------------------------------------------------------------------------------------------------- GPUs

    async def _all_gpus(self) -> Gpus | Unread:
        pods = await self._or_why(self._gpu_pods)
        if isinstance(pods, Unread) or self._namespaces:
            return pods if isinstance(pods, Unread) else Gpus(allocatable=None, pods=pods)
        nodes = await self._all(Node)
        if isinstance(nodes, Unread):
            return nodes
        offered = (each for node in nodes.items if node.is_ready for each in allocatable(node).items())
        return Gpus(
            allocatable=sum(amount for name, amount in offered if self._gpus.matches(name)),
            nodes={node.metadata.name: node for node in nodes.items},
            pods=pods,
        )

    async def _gpu_pods(self) -> Mapping[PodKey, GpuPod]:
        """Pods that may hold GPUs and have not ended. Of most pods nothing is kept. Raises: KubeError."""
        found, lasting = dict[PodKey, GpuPod](), {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        for namespace in self._namespaces or ("",):
            async for _, pod in self._decoded(kinds.POD.path(namespace), Pod, lasting):
                if not isinstance(pod, Unread) and self._gpus.may_be_held_by(pod.spec):
                    found[pod.metadata.key] = gpu_pod(pod, self._gpus)
        return found


async def _by_name(names: Sequence[str], ask: Callable[[str], Awaitable[T | Unread]]) -> Mapping[str, T] | Unread:
    """The answer for each name, or the first one that there is none."""
    answers = await asyncio.gather(*map(ask, names))
    problem = next((each for each in answers if isinstance(each, Unread)), None)
    return problem or {name: each for name, each in zip(names, answers, strict=True) if not isinstance(each, Unread)}


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


async def source_series(telemetry: Telemetry | Unread, gpus: Gpus | Unread, now: datetime) -> SourceSeries | Unread:
    if isinstance(telemetry, Unread):
        return telemetry
    signals, boards = telemetry.signals, (ENERGY, BOARD_POWER)
    reads = await asyncio.gather(*(_read(telemetry.source, signal, now) for signal in (*signals, *boards)))
    return SourceSeries(
        reads={signal.name: read for signal, read in zip(signals, reads, strict=False)},
        boards={signal.name: read for signal, read in zip(boards, reads[len(signals) :], strict=True)},
        rules=telemetry.rules,
        trust=telemetry.trust,
        policy=telemetry.policy,
        gpus=gpus,
        asked_every=telemetry.asked_every,
    )


async def _read(source: SignalSource, signal: Signal, now: datetime) -> Read | Unread:
    try:
        readings = [await source.read(each, start=now - SPAN, end=now) for each in signal.by_unit]
        series = [Series(labels=x.labels(), samples=x.samples()) for each in readings for x in each.series]
    except SourceError as error:
        return Unread(str(error))
    return Read(signal=signal, series=series, server_time=readings[0].server_time)
