"""A hub and its workers, each an embedded Kubernetes API, with the dispatcher as it runs on the hub.

Kueue and the workers' own idle-gpu-scaler do something only when a test says so. What the hub's API server and Kueue's
webhook say to the dry run, the hub's transport says here.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml
from builders import GPUS
from scaler_sandbox import crds
from scaler_sandbox.kubeapi import KubeApi

from scaler.clock import Clock
from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.access import access_of_kubeconfig
from scaler.kube.events import EventRecorder
from scaler.kube.object_cache import Index
from scaler.kube.objects.core import stamp
from scaler.kube.objects.kueue_queues import AdmissionCheck, LocalQueue
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import MultiKueueCluster, MultiKueueConfig, PlacementDecision
from scaler.kube.objects.resources import (
    ADD_ON_PLACEMENT_SCORE,
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    EVENT,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    NAMESPACE,
    PLACEMENT_DECISION,
    PROFILE_DECISION,
    SECRET,
    WORKLOAD,
    Resource,
)
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.writes import LeaderApi
from scaler.multikueue.hub.dispatch.controller import Dispatcher, DispatchReport
from scaler.multikueue.hub.dispatch.plan import DispatchPlanner, JudgedWorkloads
from scaler.multikueue.hub.dispatch.scores import PlacementScores
from scaler.multikueue.hub.dispatch.waiting import HubObjects, dispatch_indexes
from scaler.multikueue.hub.worker_connections import WorkerConnection, WorkerConnections

Json = dict[str, Any]
NAMESPACE_NAME = "team"
PATIENCE = timedelta(minutes=5)
LIFE = timedelta(minutes=10)
OFFER = "hub"


def crd(resource: Resource) -> Json:
    """A definition that takes everything."""
    names = {"plural": resource.plural, "kind": resource.kind, "singular": resource.kind.lower()}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {**anything, "properties": {"spec": anything, "status": anything}}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.qualified_name},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {**names, "listKind": f"{resource.kind}List"},
            "versions": [version],
        },
    }


HUB_KINDS = (MULTIKUEUE_CONFIG, MULTIKUEUE_CLUSTER, PLACEMENT_DECISION, PROFILE_DECISION, ADD_ON_PLACEMENT_SCORE)
_FOLDER = Path(__file__).parents[4] / "deploy" / "crds"
OWN_CRDS = [
    yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in sorted(_FOLDER.glob("idlegpu.io_*.yaml"))
]


_SLOWER = 20


class JumpingClock(Clock):
    """A clock that a test puts forward. By itself it is slow, so that nothing is over because the machine is busy."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)
        self._began, self._started_s = super().now(), super().monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self._passed_s()) + self.ahead

    def monotonic(self) -> float:
        return self._started_s + self._passed_s() + self.ahead.total_seconds()

    def _passed_s(self) -> float:
        return (super().monotonic() - self._started_s) / _SLOWER


class Cluster:
    """An API, and what others than the program under test do there."""

    def __init__(self, name: str, api: KubeApi, kube: KubeTransport) -> None:
        self.name, self.api, self.kube = name, api, kube

    async def create(self, resource: Resource, name: str, *, namespace: str = "", **fields: Any) -> Json:
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        status = fields.pop("status", None)
        metadata = {"name": name, **fields.pop("metadata", {})}
        created = _json(await self.kube.create(resource.path(namespace), {**head, "metadata": metadata, **fields}))
        if status is None:
            return created
        return await self.change(resource, name, {"status": status}, "status", namespace=namespace)

    async def change(
        self, resource: Resource, name: str, patch: Mapping[str, Any], subresource: str = "", *, namespace: str = ""
    ) -> Json:
        return _json(await self.kube.patch(resource.path(namespace, name, subresource), patch))

    async def read(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        return _json(await self.kube.get(resource.path(namespace, name)))

    def versions(self, resource: Resource) -> set[str]:
        """The resourceVersions of all objects at this very moment."""
        return {str(each.revision) for each in _stored(self.api, resource)}

    async def all(self, resource: Resource, *, namespace: str = "") -> list[Json]:
        return list(_json(await self.kube.get(resource.path(namespace)))["items"])


def _stored(api: KubeApi, resource: Resource) -> Sequence[Any]:
    """The objects at this very moment."""
    known = api._cluster.registry.resource(resource.group, resource.plural)
    return api._cluster.store.collection(known).ordered() if known is not None else ()


def _json(raw: bytes) -> Json:
    found: Json = json.loads(raw)
    return found


class Worker(Cluster):
    """A worker cluster whose idle-gpu-scaler answers as it is told."""

    clock: Clock
    fits: dict[str, Mapping[str, Any]]
    """What it answers about Workloads, by name; `*` about any other."""

    async def publishes(self, **more: Any) -> None:
        """Its status is renewed, with answers to everything that the spec asks about."""
        offer = (await self.all(CLUSTER_OFFER))[0]
        entries = [each for each in (offer.get("spec") or {}).get("workloads") or () if "request" in each]
        answers = [
            {**{key: each[key] for key in ("namespace", "name", "uid")}, **self._fit(each["name"])} for each in entries
        ]
        self._observed = max(self._observed + timedelta(seconds=1), self.clock.now())
        status = {
            "observedGeneration": offer["metadata"]["generation"],
            "observedAt": stamp(self._observed),
            "validUntil": stamp(self._observed + LIFE),
            "workloads": [each for each in answers if "fit" in each],
            **more,
        }
        await self.change(CLUSTER_OFFER, OFFER, {"status": status}, "status")

    _observed = datetime(2020, 1, 1, tzinfo=UTC)

    def _fit(self, name: str) -> Mapping[str, Any]:
        return self.fits.get(name) or self.fits.get("*") or {}

    async def entries(self) -> dict[str, Json]:
        """Of the spec, by name of the Workload."""
        offers = await self.all(CLUSTER_OFFER)
        return {each["name"]: each for offer in offers for each in (offer.get("spec") or {}).get("workloads") or ()}

    def reclaims(self) -> list[str]:
        """For which Workloads idle workloads may be suspended at this very moment."""
        stored = _stored(self.api, CLUSTER_OFFER)
        entries = (entry for each in stored for entry in (each.body.get("spec") or {}).get("workloads") or ())
        return [each["name"] for each in entries if each.get("reclaim")]


class HubTransport(KubeTransport):
    """What Kueue's policy and webhook say to a dry run, and who has written fields, by `remedy`."""

    remedy = "policy"
    nominates = "idle-gpu-scaler"

    async def patch(self, path: str, body: Any, *, apply_as: str = "", dry_run: bool = False) -> bytes:
        if not dry_run:
            return await super().patch(path, body, apply_as=apply_as)
        if self.remedy == "policy":
            raise KubeError("denied: it must be one of the nominatedClusterNames", status=403, reason="Forbidden")
        message = "status: Invalid value: clusterName and nominatedClusterNames are mutually exclusive"
        raise KubeError(message, status=422, reason="Invalid")

    async def get(self, path: str, *args: Any, **more: Any) -> bytes:
        raw = await super().get(path, *args, **more)
        if "/workloads/" not in path:
            return raw
        body = _json(raw)
        owners = {"f:admission": "kueue" if self.remedy == "gate" else "kueue-admission"}
        if body.get("status", {}).get("nominatedClusterNames"):
            owners["f:nominatedClusterNames"] = self.nominates
        body["metadata"]["managedFields"] = [
            {
                "manager": manager,
                "operation": "Apply" if manager == "kueue-admission" else "Update",
                "fieldsV1": {"f:status": {field: {}}},
            }
            for field, manager in owners.items()
        ]
        return msgspec.json.encode(body)


class Hub(Cluster):
    kube: HubTransport

    async def connects(self, worker: Cluster, *, config: str = "gpus") -> None:
        """A MultiKueueCluster of the worker's name, Active, at the end of the config."""
        kubeconfig = base64.b64encode(yaml.safe_dump(worker.api.kubeconfig()).encode()).decode()
        await self.create(
            SECRET, f"multikueue-{worker.name}", namespace="kueue-system", data={"kubeconfig": kubeconfig}
        )
        source = {"kubeConfig": {"location": f"multikueue-{worker.name}", "locationType": "Secret"}}
        await self.create(MULTIKUEUE_CLUSTER, worker.name, spec={"clusterSource": source})
        await self.is_active(worker.name)
        clusters = (await self.read(MULTIKUEUE_CONFIG, config))["spec"]["clusters"]
        await self.change(MULTIKUEUE_CONFIG, config, {"spec": {"clusters": [*clusters, worker.name]}})

    async def decides_on_profiles(self, name: str, labels: Mapping[str, str], *profiles: str) -> None:
        """A PlacementDecision of multicluster.x-k8s.io."""
        decisions = [{"clusterProfileRef": {"name": each, "namespace": "fleet"}} for each in profiles]
        metadata = {"labels": dict(labels)}
        await self.create(PROFILE_DECISION, name, namespace=NAMESPACE_NAME, metadata=metadata, decisions=decisions)

    async def is_active(self, cluster: str, *, active: bool = True, since: datetime | None = None) -> None:
        found = {
            "type": "Active",
            "status": str(active),
            "reason": "Active" if active else "ClientConnectionFailed",
            "message": "Connected" if active else "no route to host",
            "lastTransitionTime": stamp(since or datetime.now(UTC)),
        }
        await self.change(MULTIKUEUE_CLUSTER, cluster, {"status": {"conditions": [found]}}, "status")

    async def waits(self, name: str, *, gpus: int = 4, **spec: Any) -> Json:
        """A gang with quota whose check of MultiKueue is Pending."""
        container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
        pods = {"name": "main", "count": gpus, "template": {"spec": {"containers": [container]}}}
        admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main"}]}
        status = {
            "conditions": [condition("QuotaReserved")],
            "admission": admission,
            "admissionChecks": [check("multikueue"), check("other", "Ready")],
        }
        given = {"queueName": "lq", "podSets": [pods], **spec}
        return await self.create(WORKLOAD, name, namespace=NAMESPACE_NAME, spec=given, status=status)

    async def has_status(self, name: str, **status: Any) -> None:
        await self.change(WORKLOAD, name, {"status": status}, "status", namespace=NAMESPACE_NAME)

    async def is_admitted(self, name: str, cluster: str) -> None:
        """As Kueue does it once the copy there is admitted."""
        ready = [check("multikueue", "Ready"), check("other", "Ready")]
        await self.has_status(name, clusterName=cluster, nominatedClusterNames=None, admissionChecks=ready)

    async def is_evicted(self, name: str) -> None:
        pending = [check("multikueue"), check("other", "Ready")]
        await self.has_status(name, clusterName=None, nominatedClusterNames=[], admissionChecks=pending)

    async def nominated(self, name: str) -> list[str]:
        found = await self.read(WORKLOAD, name, namespace=NAMESPACE_NAME)
        return list(found["status"].get("nominatedClusterNames") or ())

    async def events(self) -> list[tuple[str, str, str]]:
        found = await self.all(EVENT, namespace=NAMESPACE_NAME)
        return [(each["involvedObject"]["name"], each["reason"], each["message"]) for each in found]


def condition(kind: str, status: str = "True") -> Json:
    since = stamp(datetime.now(UTC))
    return {"type": kind, "status": status, "reason": kind, "message": "", "lastTransitionTime": since}


def check(name: str, state: str = "Pending") -> Json:
    return {"name": name, "state": state, "message": "", "lastTransitionTime": stamp(datetime.now(UTC))}


class Process:
    """The dispatcher in one process of the hub: its live copies, connections, and ticks when a test says so."""

    def __init__(
        self,
        hub: Hub,
        workers: Mapping[str, "Worker"],
        clock: JumpingClock,
        *,
        writes: int | None,
        requests: int = 64,
        scores: bool = False,
    ) -> None:
        self.clock = clock
        self._hub, self.workers = hub, workers
        self._writes = writes
        self.written = 0
        """Writes that were asked for, dry runs included."""
        self.before_write: Callable[[], None] = lambda: None
        self.reports: list[DispatchReport] = []
        self.judged: JudgedWorkloads = {}
        self.hanging: set[str] = set()
        """Workers that do not answer, which nothing is waited for."""

        def reflect(resource: Resource, kind: Any, indexes: Mapping[str, Index[Any]] | None = None) -> Reflector[Any]:
            return Reflector(hub.kube, resource, kind, indexes=indexes, clock=clock)

        self.objects = HubObjects(
            workloads=reflect(WORKLOAD, Workload, dispatch_indexes()),
            checks=reflect(ADMISSION_CHECK, AdmissionCheck),
            configs=reflect(MULTIKUEUE_CONFIG, MultiKueueConfig),
            clusters=reflect(MULTIKUEUE_CLUSTER, MultiKueueCluster),
            decisions=tuple(reflect(each, PlacementDecision) for each in (PLACEMENT_DECISION, PROFILE_DECISION)),
            local_queues=reflect(LOCAL_QUEUE, LocalQueue),
        )
        self.connections = WorkerConnections(
            api=hub.kube,
            clusters=self.objects.clusters,  # type: ignore[arg-type]
            namespace="kueue-system",
            offer_name=OFFER,
            is_leader=self.leads,
            clock=clock,
        )
        api = LeaderApi(hub.kube, is_leader=self.leads)
        self.recorder = EventRecorder(hub.kube)
        self.dispatcher = Dispatcher(
            api=api,
            objects=self.objects,
            connections=self.connections,
            planner=DispatchPlanner(patience=PATIENCE, requests=requests, gpus=GPUS),
            recorder=self.recorder,
            judged=lambda: self.judged,
            scores=PlacementScores(api=api, maximum=64) if scores else None,
            observe=self.reports.append,
            clock=clock,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def leads(self) -> bool:
        """Asked before every write. After so many the process is dead."""
        if self._writes is not None and self.written >= self._writes:
            return False
        self.written += 1
        self.before_write()
        return True

    @property
    def is_dead(self) -> bool:
        return self._writes is not None and self.written >= self._writes

    async def start(self) -> None:
        objects: Any = self.objects
        copies: Iterable[Reflector[Any]] = [*objects.essential.values(), *objects.decisions]
        works = [*(each.run() for each in copies), self.connections.run(), self.recorder.run()]
        self._tasks = [asyncio.create_task(work) for work in works]
        await asyncio.gather(*(each.wait_synced() for each in copies))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tick(self) -> DispatchReport | None:
        """One tick on current copies; None where this process does not lead any more."""
        try:
            return await self.dispatcher.tick(self.clock.now())
        except KubeError as error:
            if error.reason != NOT_LEADING:
                raise
            return None

    async def settles(self) -> DispatchReport:
        """Ticks until nothing changes any more."""
        quiet, report = 0, None
        async with asyncio.timeout(60):
            while quiet < _QUIET:
                before = self._seen()
                report = await self.tick() or report
                await asyncio.sleep(0.01)
                quiet = quiet + 1 if before == self._seen() and self._is_at_rest() else 0
        return report or DispatchReport(at=self.clock.now(), problem="it does not lead")

    def _is_at_rest(self) -> bool:
        """Whether everything is written that can be, and heard."""
        if self.is_dead:
            return True
        is_decided = bool(self.reports) and not self.reports[-1].problem
        return is_decided and self._is_current() and all(map(self._is_written, self.connections.connections.values()))

    def _is_current(self) -> bool:
        copies = (self.objects.workloads, self.objects.clusters, self.objects.configs, self.objects.local_queues)
        for copy, resource in zip(copies, (WORKLOAD, MULTIKUEUE_CLUSTER, MULTIKUEUE_CONFIG, LOCAL_QUEUE), strict=True):
            if {each.metadata.resource_version for each in copy.items()} != self._hub.versions(resource):
                return False
        return True

    def _is_written(self, connection: WorkerConnection) -> bool:
        if connection.name in self.hanging or connection.problem or connection.write_problem:
            return True
        offer = connection.offer.offer
        heard = {offer.metadata.resource_version} if offer is not None else set()
        return connection.offer.is_written and heard == self.workers[connection.name].versions(CLUSTER_OFFER)

    def _seen(self) -> Sequence[object]:
        """What it knows."""
        workloads = [each.metadata.resource_version for each in self.objects.workloads.items()]
        others = [
            (name, each.problem, each.write_problem, each.offer.is_written, each.offer.is_in_doubt, each.offer.offer)
            for name, each in self.connections.connections.items()
        ]
        return [workloads, others, self.written]


_QUIET = 3


class Site:
    """The hub, its workers, and the processes of the dispatcher that were started."""

    def __init__(self, hub: Hub, workers: Mapping[str, Worker], clock: JumpingClock) -> None:
        self.hub, self.workers, self.clock = hub, workers, clock
        self.lost: set[str] = set()
        """Workers that were not reached for longer than the patience."""

    @asynccontextmanager
    async def process(self, *, writes: int | None = None, **more: Any) -> AsyncIterator[Process]:
        """A process that dies after so many writes."""
        process = Process(self.hub, self.workers, self.clock, writes=writes, **more)
        process.before_write = self.check
        await process.start()
        try:
            yield process
        finally:
            await process.stop()

    def check(self) -> None:
        """At most one worker may reclaim for a Workload."""
        reached = (each for name, each in self.workers.items() if name not in self.lost)
        found = [name for each in reached for name in each.reclaims()]
        assert len(found) == len(set(found)), f"several workers may reclaim: {sorted(found)}"

    async def answers(self, process: Process, **fits: str | Mapping[str, Any]) -> DispatchReport:
        """Workers answer this about any Workload, with a status that is renewed, until everything has settled."""
        for name, fit in fits.items():
            self.workers[name].fits = {"*": {"fit": fit} if isinstance(fit, str) else fit}
        await process.settles()
        return await self.renewed(process)

    async def renewed(self, process: Process) -> DispatchReport:
        """All workers publish their status twice, since the first one that is seen may be of any age."""
        for _ in range(2):
            for each in self.workers.values():
                if each.fits and await each.all(CLUSTER_OFFER):
                    await each.publishes()
            await process.settles()
        self.check()
        return await process.settles()

    async def pass_time(self, process: Process, duration: timedelta = PATIENCE) -> DispatchReport:
        """The patience is over; the workers' statuses are renewed then."""
        self.clock.ahead += duration
        return await self.renewed(process)

    async def state(self) -> Json:
        """Nominations and what the workers are told, without times."""
        names = [each["metadata"]["name"] for each in await self.hub.all(WORKLOAD, namespace=NAMESPACE_NAME)]
        entries = {
            worker: {
                name: (bool(each.get("reclaim")), "nominatedAt" in each, "request" in each)
                for name, each in (await cluster.entries()).items()
            }
            for worker, cluster in self.workers.items()
        }
        return {"nominated": {name: await self.hub.nominated(name) for name in names}, "workers": entries}


@asynccontextmanager
async def site(*workers: str) -> AsyncIterator[Site]:
    """A hub with these workers, all Active and in the MultiKueueConfig `gpus`."""
    clock = JumpingClock()
    async with AsyncExitStack() as stack:

        async def started(kind: type[Any], name: str, definitions: Iterable[Json], transport: type[Any]) -> Any:
            api = KubeApi()
            await api.start()
            stack.push_async_callback(api.stop)
            api.install_crds(definitions)
            content = yaml.safe_dump(api.kubeconfig()).encode()
            kube = await stack.enter_async_context(transport(access_of_kubeconfig(content, source=name)))
            return kind(name, api, kube)

        hub: Hub = await started(Hub, "hub", [*crds.load(), *OWN_CRDS, *map(crd, HUB_KINDS)], HubTransport)
        found: dict[str, Worker] = {}
        for name in workers:
            found[name] = await started(Worker, name, OWN_CRDS, KubeTransport)
            found[name].clock, found[name].fits = clock, {}
        await _set_up(hub, found.values())
        yield Site(hub, found, clock)


async def _set_up(hub: Hub, workers: Iterable[Worker]) -> None:
    for namespace in (NAMESPACE_NAME, "kueue-system"):
        await hub.create(NAMESPACE, namespace)
    await hub.create(MULTIKUEUE_CONFIG, "gpus", spec={"clusters": []})
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "gpus"}
    spec = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    await hub.create(ADMISSION_CHECK, "multikueue", spec=spec)
    await hub.create(LOCAL_QUEUE, "lq", namespace=NAMESPACE_NAME, spec={"clusterQueue": "cq"})
    for each in workers:
        await hub.connects(each)
