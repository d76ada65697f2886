"""How are the worker clusters read and written? One connection to each, by the kubeconfig that Kueue has for it.

Laws:

* Every replica reads; the leader says what the spec of the ClusterOffer is to be (`want`), and the connection's own
  task writes that, or something newer.
* A worker that hangs holds up nothing but its own tasks. Each call has a deadline, and failures are retried with a
  growing wait.
* The kubeconfig is in a Secret that others rotate: it is read again every minute, and twice as often while the worker
  is not reached. What is known of the worker outlives that.

| the MultiKueueCluster's source                | what is done                                              |
|-----------------------------------------------|-----------------------------------------------------------|
| a Secret in Kueue's namespace                 | connected by its key `kubeconfig`, where Kueue would      |
| a path in Kueue's container, a ClusterProfile | not connected: what it answers is not known               |
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.documents import UNREADABLE
from scaler.errors import ConfigurationError, KubeError
from scaler.kube.access import access_of_kubeconfig
from scaler.kube.api_requests import TRANSIENT
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import Secret, decode, without_defaults
from scaler.kube.objects.multikueue import ClusterOffer, MultiKueueCluster, OfferedWorkload
from scaler.kube.objects.resources import CLUSTER_OFFER, SECRET
from scaler.kube.reflector import Absent, Reflecting, Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import Backoff
from scaler.kube.writes import LeaderApi, PatchApi
from scaler.multikueue.hub.worker_offer import OfferEntries, WorkerOffer

log = structlog.get_logger(__name__)

_SECRET_S = 60.0
"""The time between two looks at a Secret."""
_RETRY = Backoff(base=1.0, cap=30.0)
_SOON = Backoff(base=0.05, cap=5.0)
"""The wait after a conflict: the worker renews its status in the same object."""
_MOST_FAILURES = 3
"""Writes that fail in a row before the worker counts as one that cannot be written to."""
_NOT_YET = "not connected yet"


async def kubeconfig_of(cluster: MultiKueueCluster, api: PatchApi, namespace: str) -> bytes:
    """The kubeconfig that Kueue uses. Raises: KubeError, ConfigurationError."""
    source = cluster.spec.cluster_source.kube_config
    if source is None:
        raise ConfigurationError("it is reached by a ClusterProfile, of which only Kueue knows the credentials")
    if source.location_type != "Secret":
        raise ConfigurationError(f"its kubeconfig {source.location} is a file of Kueue's; keep it in a Secret")
    name = f"Secret {namespace}/{source.location}"
    try:
        return decode(Secret, await api.get(SECRET.path(namespace, source.location))).data["kubeconfig"]
    except KeyError:
        raise ConfigurationError(f"{name} has no key kubeconfig") from None
    except UNREADABLE:
        raise ConfigurationError(f"{name} cannot be read") from None


@dataclass(kw_only=True, eq=False)
class WorkerConnection:
    """The connection to one worker. `changed` is called when what is known of it has changed."""

    name: str
    """The name of its MultiKueueCluster."""
    offer_name: str
    kubeconfig: Callable[[], Awaitable[bytes]]
    """Reads it. Raises: KubeError, ConfigurationError."""
    is_leader: Callable[[], bool]
    changed: Callable[[], None]
    clock: Clock = SYSTEM_CLOCK
    offer: WorkerOffer = field(init=False)
    write_problem: str = ""
    """Why its spec cannot be written; empty where it can."""
    _failure: str = field(default=_NOT_YET, init=False)
    """Why there is no reflector."""
    _reflector: Reflector[ClusterOffer] | None = field(default=None, init=False)
    _write: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _is_outdated: bool = field(default=False, init=False)
    """Whether what is known may be of before another replica's last write."""
    _has_failed: bool = field(default=False, init=False)
    """Whether it could not be read or written since."""

    def __post_init__(self) -> None:
        self.offer = WorkerOffer(clock=self.clock)

    # ------------------------------------------------------------------------------------------------------ reading

    @property
    def problem(self) -> str:
        """Why the spec there is not known now; empty where it is."""
        if self._reflector is None:
            return self._failure
        match self._reflector.state:
            case Reflecting():
                return ""
            case Absent():
                return "it has no ClusterOffers: idle-gpu-scaler is not installed there"
            case state:
                return state.message

    @property
    def is_settled(self) -> bool:
        """Whether it has been read, or has failed, since this process runs, and since it leads."""
        if self._is_outdated and not self.problem and not self._has_failed:
            return False
        return self.offer.read_since is not None or self.problem not in ("", *_NOTHING_TRIED)

    def want(self, workloads: Iterable[OfferedWorkload]) -> None:
        """Has the spec written, unless it is so already. What was wanted before is not wanted any more."""
        self.offer.wanted = tuple(workloads)
        if not self.offer.is_written:
            self._write.set()

    def read_anew(self) -> None:
        """This replica begins to lead: a watch may not have shown yet what its predecessor wrote last."""
        self._is_outdated, self._has_failed = True, False
        self._write.set()

    def forget_wanted(self) -> None:
        """This replica does not lead any more."""
        self.offer.wanted = None

    # ------------------------------------------------------------------------------------------------------ the task

    async def run(self) -> None:
        """Keeps the connection until cancelled, as far as it can be."""
        failures = 0
        while True:
            try:
                await self._connected()
                failures = 0
            except (KubeError, ConfigurationError) as error:
                failures += 1
                self._fail(str(error))
            await self.clock.sleep(_RETRY.wait(failures))

    def _fail(self, problem: str) -> None:
        if self._failure != problem:
            log.warning("worker not connected; retried", worker=self.name, error=problem)
            self._failure = problem
            self.changed()

    async def _connected(self) -> None:
        """Returns when the kubeconfig has changed. Raises: KubeError, ConfigurationError."""
        kubeconfig = await self.kubeconfig()
        access = access_of_kubeconfig(kubeconfig, source=f"kubeconfig of MultiKueueCluster {self.name}")
        async with KubeTransport(access) as transport:
            reflector = self._reflector = Reflector(transport, CLUSTER_OFFER, ClusterOffer, clock=self.clock)
            reflector.subscribe(self._heard)
            works = (reflector.run(), self._when_listed(reflector), self._keep_written(transport))
            tasks = [asyncio.create_task(each, name=f"worker {self.name}") for each in works]
            try:
                await self._until_changed(kubeconfig)
            finally:
                self._reflector = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_changed(self, kubeconfig: bytes) -> None:
        """A Secret that cannot be read for a while is no reason to part from a worker."""
        while True:
            await self.clock.sleep(_SECRET_S / 2 if self.problem else _SECRET_S)
            with suppress(KubeError, ConfigurationError):
                if await self.kubeconfig() != kubeconfig:
                    return

    async def _when_listed(self, reflector: Reflector[ClusterOffer]) -> None:
        await reflector.wait_synced()
        if reflector.get("", self.offer_name) is None:
            self.offer.heard(None)
        log.info("worker connected", worker=self.name)
        self._write.set()
        self.changed()

    def _heard(self, change: Change[ClusterOffer]) -> None:
        if change.key[1] == self.offer_name:
            self.offer.heard(change.new)
            if not self.offer.is_written:
                self._write.set()
            self.changed()

    # ------------------------------------------------------------------------------------------------------ writing

    async def _keep_written(self, transport: KubeTransport) -> None:
        api, failures = LeaderApi(transport, is_leader=self.is_leader), 0
        while True:
            await self._write.wait()
            self._write.clear()
            try:
                await self._write_wanted(api)
                failures, self.write_problem = 0, ""
            except KubeError as error:
                failures, self._has_failed = failures + 1, True
                self._not_written(error, failures)
                await self.clock.sleep((_SOON if error.is_conflict else _RETRY).wait(failures))
                self._write.set()

    def _not_written(self, error: KubeError, failures: int) -> None:
        if error.is_not_leading:
            self.forget_wanted()
        if (error.is_conflict or not error.status) and failures < _MOST_FAILURES:
            return
        if not self.write_problem:
            log.warning("ClusterOffer not written; retried", worker=self.name, error=str(error))
        if error.status not in TRANSIENT or failures >= _MOST_FAILURES:
            self.write_problem = str(error)
            self.changed()

    async def _write_wanted(self, api: LeaderApi) -> None:
        """Raises: KubeError."""
        offer = self.offer
        if offer.doubts.open or self._is_outdated:
            await self._read_again(api)
        wanted = offer.wanted
        if wanted is None or self.problem or offer.is_written:
            return
        try:
            with offer.doubts.held(wanted):
                offer.confirmed(decode(ClusterOffer, await self._send(api, wanted)), wanted)
        except KubeError as error:
            if error.is_conflict:
                await self._read_again(api)
            raise
        self.changed()

    async def _send(self, api: LeaderApi, workloads: OfferEntries) -> bytes:
        spec = {"workloads": [without_defaults(each) for each in workloads]}
        if self.offer.offer is None:
            head = {"apiVersion": CLUSTER_OFFER.api_version, "kind": CLUSTER_OFFER.kind}
            return await api.create(CLUSTER_OFFER.path(), {**head, "metadata": {"name": self.offer_name}, "spec": spec})
        metadata = self.offer.offer.metadata
        guard = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        return await api.patch(CLUSTER_OFFER.path(name=self.offer_name), {"metadata": guard, "spec": spec})

    async def _read_again(self, api: LeaderApi) -> None:
        """What is there now. Raises: KubeError."""
        try:
            found = decode(ClusterOffer, await api.get(CLUSTER_OFFER.path(name=self.offer_name)))
        except KubeError as error:
            if not error.is_absent:
                raise
            found = None
        self.offer.read(found)
        self._is_outdated = False
        self.changed()


_NOTHING_TRIED = (_NOT_YET, "not listed yet")


@dataclass(kw_only=True, eq=False)
class WorkerConnections:
    """A connection to every MultiKueueCluster. `api` reads Secrets of the hub."""

    api: PatchApi
    clusters: Reflector[MultiKueueCluster]
    namespace: str
    offer_name: str
    is_leader: Callable[[], bool] = lambda: False
    """Set where this process may lead."""
    clock: Clock = SYSTEM_CLOCK
    connections: dict[str, WorkerConnection] = field(default_factory=dict, init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _subscribers: list[Callable[[], None]] = field(default_factory=list, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """It is called when anything that is known of a worker has changed."""
        self._subscribers.append(callback)

    def get(self, name: str) -> WorkerConnection | None:
        """The connection to the MultiKueueCluster of that name."""
        return self.connections.get(name)

    async def run(self) -> None:
        """Keeps the connections to all of them until cancelled."""
        self.clusters.subscribe(lambda _: self._woken.set())
        try:
            await self.clusters.wait_synced()
            while True:
                self._woken.clear()
                await self._adjust({each.metadata.name for each in self.clusters.items()})
                await self._woken.wait()
        finally:
            await self._adjust(set())

    async def _adjust(self, names: set[str]) -> None:
        """One for each of these, and no other."""
        ended = [self._tasks.pop(name) for name in self._tasks.keys() - names]
        for name in self.connections.keys() - names:
            del self.connections[name]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        for name in names - self._tasks.keys():
            connection = self.connections[name] = self._connection(name)
            self._tasks[name] = asyncio.create_task(connection.run(), name=f"worker {name}")

    def _connection(self, name: str) -> WorkerConnection:
        async def kubeconfig() -> bytes:
            cluster = self.clusters.get("", name)
            if cluster is None:
                raise ConfigurationError(f"MultiKueueCluster {name} is not there any more")
            return await kubeconfig_of(cluster, self.api, self.namespace)

        return WorkerConnection(
            name=name,
            offer_name=self.offer_name,
            kubeconfig=kubeconfig,
            is_leader=self._leads,
            changed=self._changed,
            clock=self.clock,
        )

    def _leads(self) -> bool:
        return self.is_leader()

    def _changed(self) -> None:
        for each in self._subscribers:
            each()
