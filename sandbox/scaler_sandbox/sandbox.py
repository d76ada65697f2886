"""A small cluster with everything around the scaler in it: API, GPUs, nodes, operators, Kueue and KEDA.

    async with World(WorldConfig.fast()) as world:
        world.write_kubeconfig(path)
        await world.apply(manifests)
        world.fleet.set_activity("demo", "first-raycluster-*", 0.9)
        await world.wait_for(lambda: world.condition(WORKLOAD, "demo", "…", "Admitted"), "its admission", within=10)

Each part is a task of its own and can be killed and started anew at any moment: what it has to know is in the API.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import yaml

from scaler.errors import KubeError
from scaler.kube.objects.resources import CUSTOM_RESOURCE_DEFINITION, WORKLOAD, Resource
from scaler.kube.scheduling import Taint
from scaler.kube.transport import KubeTransport
from scaler_sandbox import crds
from scaler_sandbox.autoscaler import Autoscaler, AutoscalerConfig, Cloud
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has
from scaler_sandbox.controller import Controller
from scaler_sandbox.fleet import Exporter, Fleet, FleetConfig, Machine
from scaler_sandbox.keda import Keda, KedaTiming
from scaler_sandbox.kinds import SERVICE_ACCOUNT, Json
from scaler_sandbox.kubeapi import KubeApi
from scaler_sandbox.kubelet import Kubelets, KubeletTiming
from scaler_sandbox.kueue import Kueue, KueueConfig
from scaler_sandbox.manifests import Applier, Manifest
from scaler_sandbox.multikueue import KubeconfigWorkers, MultiKueue
from scaler_sandbox.multikueue.webhook import WorkloadAdmission
from scaler_sandbox.ocm import PlacementController
from scaler_sandbox.operators import DeploymentController, JobController, PodOwners, RayClusterOperator, RayJobOperator

T = TypeVar("T")


class Component(StrEnum):
    """The controllers of a world. Whichever a real cluster has of its own is left out."""

    KUEUE = "kueue"
    RAY_CLUSTERS = "raycluster-operator"
    RAY_JOBS = "rayjob-operator"
    JOBS = "job-controller"
    DEPLOYMENTS = "deployment-controller"
    KUBELETS = "kubelets"
    KEDA = "keda"
    AUTOSCALER = "autoscaler"
    MULTIKUEUE = "multikueue"
    PLACEMENTS = "placement-controller"


HUB_PARTS = frozenset({Component.MULTIKUEUE, Component.PLACEMENTS})
"""The parts of a hub alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """A world. The defaults take as long as the real thing would; `fast` makes a story of half a minute of it."""

    fleet: FleetConfig = field(default_factory=lambda: FleetConfig(nodes={"node-a": 1, "node-b": 1}))
    kueue: KueueConfig = field(default_factory=KueueConfig)
    kubelet: KubeletTiming = field(default_factory=KubeletTiming)
    keda: KedaTiming = field(default_factory=KedaTiming)
    autoscaler: AutoscalerConfig = field(default_factory=AutoscalerConfig)
    parts: frozenset[Component] = frozenset(Component) - HUB_PARTS
    follows: tuple[Resource, ...] = ()
    """Kinds to look at (`World.find`, `World.all`) beyond those that the parts need."""
    schedules: bool = True
    """Whether pods are placed here, and not by a kube-scheduler."""
    namespaces: frozenset[str] = frozenset()
    """The namespaces whose pods alone are bound here; empty: all. For a shared, real cluster."""
    defines: bool = True
    """Whether CustomResourceDefinitions that are missing are installed."""
    kubeconfig: Path | None = None
    """A Kubernetes API to play in; None starts the embedded one."""

    @classmethod
    def fast(
        cls, nodes: Mapping[str, int] | None = None, *, collect: timedelta = timedelta(seconds=1)
    ) -> "SandboxConfig":
        """Short waits, for a demo and for tests. Kueue keeps its own second, which is part of its behaviour."""
        base = cls()
        return replace(
            base,
            fleet=FleetConfig(nodes=dict(nodes or base.fleet.nodes), collect_seconds=collect.total_seconds()),
            kubelet=KubeletTiming(start_delay=timedelta(seconds=0.3), termination=timedelta(seconds=1)),
            keda=KedaTiming(polling=timedelta(seconds=0.5), push_backoff=timedelta(seconds=0.5)),
            autoscaler=AutoscalerConfig.fast(),
        )


_CONTROLLERS: dict[Component, type[Controller]] = {
    Component.KUEUE: Kueue,
    Component.RAY_CLUSTERS: RayClusterOperator,
    Component.RAY_JOBS: RayJobOperator,
    Component.JOBS: JobController,
    Component.DEPLOYMENTS: DeploymentController,
    Component.KUBELETS: Kubelets,
    Component.KEDA: Keda,
    Component.AUTOSCALER: Autoscaler,
    Component.MULTIKUEUE: MultiKueue,
    Component.PLACEMENTS: PlacementController,
}
_QUEUED: dict[Component, type[PodOwners]] = {
    Component.RAY_CLUSTERS: RayClusterOperator,
    Component.RAY_JOBS: RayJobOperator,
    Component.JOBS: JobController,
}
"""The owners of kinds that Kueue suspends."""
KUEUE_NAMESPACE = "kueue-system"
"""The namespace of Kueue, and on a hub of the kubeconfigs of its workers."""
_LONGEST_PAUSE_SECONDS = 0.05
_CRD_SECONDS = 20.0


class Sandbox:
    """Start it with `async with`; everything it has started ends with it."""

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.fleet = Fleet(self.config.fleet)
        self.cloud = Cloud(self.fleet)
        """The cloud that nodes are ordered from."""
        self.api = KubeApi()
        """The embedded API. Not started where the configuration names another one."""
        if Component.KUEUE in self.config.parts:
            self.api.admit(WORKLOAD.qualified_name, WorkloadAdmission(self.config.kueue.hub))
        self._exporter = Exporter(self.fleet)
        self._exits = AsyncExitStack()
        self._workers: KubeconfigWorkers
        self._tasks: dict[Component, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._transport: KubeTransport
        self._client: Client
        self._applier: Applier

    # --------------------------------------------------------------------------------------------------- life and death

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def _start(self) -> None:
        folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-")))
        if self.config.kubeconfig is None:
            await self.api.start()
            self._exits.push_async_callback(self.api.stop)
            self.write_kubeconfig(folder / "kubeconfig")
        self._transport = await KubeTransport.connect(self.config.kubeconfig or folder / "kubeconfig")
        await self._exits.enter_async_context(self._transport)
        self._applier = Applier(self._transport)
        if self.config.defines:
            await self._install_crds()
        needed = {each: None for part in self.config.parts for each in _CONTROLLERS[part].watched}
        followed = [*(needed | dict.fromkeys(self.config.follows))]
        self._client = await self._exits.enter_async_context(Client(self._transport, followed))
        self._exits.callback(self._client.listen(followed, self._news.set))
        await self._exits.enter_async_context(self._exporter)
        self._workers = await self._exits.enter_async_context(KubeconfigWorkers(self._transport, KUEUE_NAMESPACE))
        self._exits.push_async_callback(self._kill_all)
        for part in self.config.parts:
            self.start(part)

    async def _install_crds(self) -> None:
        """The definitions that are missing. Those that are there are the cluster's own, and better."""
        for definition in crds.load():
            try:
                await self._transport.create(CUSTOM_RESOURCE_DEFINITION.path(), definition)
            except KubeError as error:
                if error.status != 409:
                    raise
        async with asyncio.timeout(_CRD_SECONDS):
            for definition in crds.load():
                await self._until_served(definition)

    async def _until_served(self, definition: Json) -> None:
        spec = definition["spec"]
        while True:
            for version in spec["versions"]:
                try:
                    await self._transport.get(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}")
                    return
                except KubeError as error:
                    if error.status != 404:
                        raise
            await asyncio.sleep(_LONGEST_PAUSE_SECONDS)

    def start(self, part: Component) -> None:
        """Starts a part of this world that is not running."""
        if part in self.config.parts and part not in self._tasks:
            self._tasks[part] = asyncio.create_task(self._make(part).run(), name=f"world-{part}")

    async def kill(self, part: Component) -> None:
        """Ends a part as SIGKILL would, with all that it had in memory."""
        task = self._tasks.pop(part, None)
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def restart(self, part: Component) -> None:
        """Kills a part and starts it anew."""
        await self.kill(part)
        self.start(part)

    async def _kill_all(self) -> None:
        for part in list(self._tasks):
            await self.kill(part)

    def _make(self, part: Component) -> Controller:
        config, kind = self.config, _CONTROLLERS[part]
        options: dict[Component, dict[str, Any]] = {
            Component.KUEUE: {"config": config.kueue},
            Component.KUBELETS: {
                "fleet": self.fleet,
                "timing": config.kubelet,
                "schedules": config.schedules,
                "namespaces": config.namespaces,
            },
            Component.KEDA: {"timing": config.keda},
            Component.AUTOSCALER: {"cloud": self.cloud, "config": config.autoscaler},
            Component.MULTIKUEUE: {"workers": self._workers, "config": config.kueue.hub},
        }
        if part in _QUEUED:
            return _QUEUED[part](self._client, waits_for_kueue=Component.KUEUE in config.parts)
        return kind(self._client, **options.get(part, {}))

    # --------------------------------------------------------------------------------------------------------- nodes

    def add_node(
        self, name: str, gpus: int, *, labels: Mapping[str, str] | None = None, taints: Sequence[Taint] = ()
    ) -> None:
        """A machine with so many GPUs is there from now on, and its kubelet registers it. Raises: ValueError."""
        self.fleet.add(Machine(name=name, gpus=gpus, labels=labels or {}, taints=tuple(taints)))

    def remove_node(self, name: str) -> None:
        """The machine's power is cut: its Node goes, and so do the pods on it. Raises: ValueError."""
        self.fleet.remove(name)

    # ------------------------------------------------------------------------------------------------------- outside

    @property
    def api_url(self) -> str:
        """The address of the Kubernetes API."""
        return self._transport.server

    @property
    def exporter_urls(self) -> dict[str, str]:
        """The metrics URL of every node that is there."""
        return self._exporter.node_urls

    @property
    def exporter_url(self) -> str:
        """The metrics URL of all nodes together, of those that come later, too."""
        return f"{self._exporter.url}/metrics"

    def write_kubeconfig(self, path: Path, *, token: str = "") -> None:
        """A kubeconfig for the API, as a file; with a token, for its user."""
        if self.config.kubeconfig is None:
            self.api.write_kubeconfig(path)
        else:
            path.touch(mode=0o600)
            path.write_bytes(self.config.kubeconfig.read_bytes())
        if token:
            config = yaml.load(path.read_text(), yaml.CSafeLoader)
            in_use = next(each for each in config["contexts"] if each["name"] == config["current-context"])
            in_use["context"]["user"] = "token"
            path.write_text(yaml.safe_dump(config | {"users": [{"name": "token", "user": {"token": token}}]}))

    async def token_of(self, namespace: str, service_account: str) -> str:
        """A token with which the ServiceAccount does what roles allow it. Raises: KubeError."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = SERVICE_ACCOUNT.path(namespace, service_account, "token")
        answer = msgspec.json.decode(await self._transport.create(path, request))
        return str(answer["status"]["token"])

    async def apply(self, manifest: Manifest) -> list[Json]:
        """Applies YAML text or objects; what `all` and `find` show is of kinds that are served by then.

        Raises: KubeError, ConfigurationError; TimeoutError for a definition whose kind is not served.
        """
        applied = await self._applier.apply(manifest)
        defined = {body["metadata"]["name"] for body in applied if body["kind"] == CUSTOM_RESOURCE_DEFINITION.kind}
        if defined:
            async with asyncio.timeout(_CRD_SECONDS):
                await self._client.wait_listed(defined)
        return applied

    async def patch(self, resource: Resource, namespace: str, name: str, body: Json, subresource: str = "") -> Json:
        """A JSON merge patch, as by a user. Raises: KubeError."""
        path = resource.path(namespace, name, subresource)
        patched: Json = msgspec.json.decode(await self._transport.patch(path, body))
        return patched

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Deletes the object. Raises: KubeError."""
        await self._transport.delete(resource.path(namespace, name))

    async def read(self, resource: Resource, namespace: str, name: str) -> Json:
        """The object, asked for. Of kinds that the world does not follow by itself, too. Raises: KubeError."""
        body: Json = msgspec.json.decode(await self._transport.get(resource.path(namespace, name)))
        return body

    async def read_all(self, resource: Resource, namespace: str = "") -> list[Json]:
        """The objects, asked for. Raises: KubeError."""
        pages = self._transport.list_pages(resource.path(namespace))
        return [msgspec.json.decode(item) async for page in pages for item in page.items or ()]

    # ------------------------------------------------------------------------------------------------------- looking

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object as last seen, of the kinds that the world's parts follow."""
        return self._client.find(resource, namespace, name)

    def all(self, resource: Resource, namespace: str = "") -> list[Json]:
        """The objects as last seen, of one namespace or of all."""
        found = self._client.all(resource)
        return [each for each in found if not namespace or each["metadata"].get("namespace") == namespace]

    def condition(self, resource: Resource, namespace: str, name: str, kind: str, status: str = "True") -> bool:
        """Whether the object is there with that condition."""
        found = self.find(resource, namespace, name)
        return found is not None and has(found, kind, status)

    def workload_of(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The Workload of the job, by its owner."""
        for workload in self.all(WORKLOAD, namespace):
            for owner in workload["metadata"].get("ownerReferences") or ():
                if (owner["kind"], owner["name"]) == (resource.kind, name):
                    return workload
        return None

    async def wait_for(self, predicate: Callable[[], T], what: str = "it", *, within: float = 120.0) -> T:
        """The predicate's value as soon as it is true.

        Units: `within` in seconds. Raises: TimeoutError that says what was waited for.
        """
        try:
            async with asyncio.timeout(within):
                while not (value := predicate()):
                    self._news.clear()
                    await self._next_news()
                return value
        except TimeoutError:
            raise TimeoutError(f"waited {within:g} s for {what} in vain") from None

    async def _next_news(self) -> None:
        """Returns when anything has changed, and soon in any case: not all that is waited for is in the API."""
        try:
            async with asyncio.timeout(_LONGEST_PAUSE_SECONDS):
                await self._news.wait()
        except TimeoutError:
            pass
