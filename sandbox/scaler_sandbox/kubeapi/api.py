"""The embedded Kubernetes API as the demo and the tests hold it: start, stop, connect."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from aiohttp import web

from scaler_sandbox.kubeapi.access import Permissions, Rbac, Users
from scaler_sandbox.kubeapi.errors import Json, bad_request
from scaler_sandbox.kubeapi.faults import Faults
from scaler_sandbox.kubeapi.schema.resources import Resource, View
from scaler_sandbox.kubeapi.server import Server
from scaler_sandbox.kubeapi.verbs import ApiVerbs
from scaler_sandbox.kubeapi.writes.admission import ResourceAdmission
from scaler_sandbox.kubeapi.writes.garbage import DefaultServiceAccounts, GarbageCollector, Registrar
from scaler_sandbox.kubeapi.writes.typed import WriteOptions

_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_HOST = "127.0.0.1"
_SHUTDOWN_SECONDS = 1.0


class KubeApi:
    """An in-memory Kubernetes API on a loopback port.

    Its state outlives `stop`: started again, it goes on where it was, as after an outage.
    """

    def __init__(
        self,
        *,
        history: int = 20_000,
    ) -> None:
        """`history` is how many past events per resource a watch can resume from."""
        self.faults = Faults()
        self._cluster = ApiVerbs(history=history)
        self.permissions = Permissions(Rbac(self._cluster))
        self._collector = GarbageCollector(self._cluster)
        self._cluster.store.observers += [
            self._collector.observe,
            Registrar(self._cluster).observe,
            DefaultServiceAccounts(self._cluster).observe,
        ]
        users = Users(self._cluster)
        self._server = Server(self._cluster, faults=self.faults, permissions=self.permissions, users=users)
        self._runner: web.AppRunner | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._port = 0
        namespaces = ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in _SYSTEM_NAMESPACES)
        self.load(namespaces)

    @property
    def url(self) -> str:
        """The API's address, also while it is stopped."""
        return f"http://{_HOST}:{self._port}"

    async def start(self) -> str:
        """Serve, and the URL. A restart takes the earlier port again."""
        runner = web.AppRunner(
            self._server.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        site = web.TCPSite(runner, _HOST, self._port, reuse_address=True)
        await site.start()
        self._port = runner.addresses[0][1]
        self._runner = runner
        self._collecting = asyncio.create_task(self._collector.run(), name="embedded-garbage-collector")
        return self.url

    async def stop(self) -> None:
        """Stop serving. Open watches end; the objects stay."""
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
            self._collecting = None
        if self._runner is not None:
            self._server.close_watches()
            await self._runner.cleanup()
            self._runner = None

    def install_crds(self, definitions: Iterable[Json]) -> None:
        """Register parsed CustomResourceDefinitions; those that are there already are replaced. Raises: ApiError."""
        for definition in definitions:
            key = ("", definition["metadata"]["name"])
            view = self._view_of(definition)
            if self._cluster.store.find(view.resource, key) is None:
                self._cluster.create(view, "", definition, WriteOptions())
            else:
                self._cluster.update(view, key, _replacing(definition), WriteOptions())

    def load(self, objects: Iterable[Json]) -> None:
        """Create objects of any served kind, without the detour over HTTP. Raises: ApiError."""
        for body in objects:
            view = self._view_of(body)
            namespace = body["metadata"].get("namespace", "default") if view.resource.namespaced else ""
            self._cluster.create(view, namespace, body, WriteOptions())

    def admit(self, resource: str, admission: ResourceAdmission) -> None:
        """Has writes of the resource (`workloads.kueue.x-k8s.io`) go through these policies and webhooks."""
        self._cluster.admission[resource] = admission

    def _view_of(self, body: Json) -> View:
        view = self._cluster.registry.by_kind(body.get("apiVersion", ""), body.get("kind", ""))
        if view is None:
            raise bad_request(
                f"no kind {body.get('kind')!r} is served in {body.get('apiVersion')!r}; install its CRD first"
            )
        return view

    def served(self) -> list[Resource]:
        """The resources that are served at the moment; their versions tell which CEL rules are not evaluated."""
        return list(self._cluster.registry)

    def kubeconfig(self) -> Json:
        """A kubeconfig for this API, parsed."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url}}],
            "users": [{"name": "embedded", "user": {}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
            "current-context": "embedded",
        }

    def write_kubeconfig(self, path: Path) -> None:
        """The kubeconfig as a file that only its owner can read."""
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(self.kubeconfig()))


def _replacing(definition: Json) -> Callable[[Json], Json]:
    """The change that puts a definition in the place of an older one, whatever its revision."""

    def change(old: Json) -> Json:
        metadata = {**definition["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
        return {**definition, "metadata": metadata}

    return change
