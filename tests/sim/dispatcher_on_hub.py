"""The program as it runs on a hub of MultiKueue, in virtual time: the dispatcher, and its connections to the workers.

    hub = HubDispatcher(clusters, dice)
    await hub.turn()

Everything that it writes may fail, or be its last act (`rates`). Another one then begins with nothing in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, cast

import msgspec
from builders import GPUS
from sim.api import FaultRates, FaultyApi, ProcessKilled, SimEvents, SimStore
from sim.client import START, SimClient
from sim.multikueue_clusters import DispatchedClusters

from scaler.clock import Clock
from scaler.errors import KubeError
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_queues import AdmissionCheck, LocalQueue
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import ClusterOffer, MultiKueueCluster, MultiKueueConfig, PlacementDecision
from scaler.kube.objects.resources import (
    ADD_ON_PLACEMENT_SCORE,
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    PLACEMENT_DECISION,
    PROFILE_DECISION,
    WORKLOAD,
    Resource,
)
from scaler.kube.writes import LeaderApi
from scaler.multikueue.hub.dispatch.controller import Dispatcher, DispatchReport
from scaler.multikueue.hub.dispatch.plan import DispatchPlanner, JudgedWorkloads
from scaler.multikueue.hub.dispatch.scores import PlacementScores
from scaler.multikueue.hub.dispatch.waiting import HubObjects, dispatch_indexes
from scaler.multikueue.hub.worker_connections import WorkerConnection

OFFER = "hub"
PATIENCE = timedelta(seconds=60)
_LOOKS_EVERY = timedelta(seconds=5)
_RETRIES_AFTER = timedelta(seconds=2)
_KINDS: Mapping[Resource, type[Any]] = {
    WORKLOAD: Workload,
    ADMISSION_CHECK: AdmissionCheck,
    MULTIKUEUE_CONFIG: MultiKueueConfig,
    MULTIKUEUE_CLUSTER: MultiKueueCluster,
    PLACEMENT_DECISION: PlacementDecision,
    PROFILE_DECISION: PlacementDecision,
    LOCAL_QUEUE: LocalQueue,
}


class HubClock(Clock):
    """The time of the hub."""

    def __init__(self, client: SimClient) -> None:
        self._client = client

    def now(self) -> datetime:
        return self._client.now

    def monotonic(self) -> float:
        return (self._client.now - START).total_seconds()


@dataclass(kw_only=True)
class Lifetime:
    """How many writes the leader has made, and after which it is killed."""

    writes: int = 0
    ends_after: int | None = None


class LeadersApi(FaultyApi):
    """An API as the leader writes to it."""

    lifetime: Lifetime

    def _after(self, path: str, answer: bytes) -> bytes:
        answer = super()._after(path, answer)
        self.lifetime.writes += 1
        if self.lifetime.writes == self.lifetime.ends_after:
            raise ProcessKilled
        return answer


class LinkedApi(LeadersApi):
    """An API on the other side of a link that may be cut."""

    is_cut = False

    async def get(self, path: str) -> bytes:
        self._check_link(path)
        return await super().get(path)

    def _before(self, path: str) -> None:
        self._check_link(path)
        super()._before(path)

    def _check_link(self, path: str) -> None:
        if self.is_cut:
            raise KubeError(f"{path}: connection refused", reason="Unreachable")


@dataclass(kw_only=True, eq=False)
class SimConnection(WorkerConnection):
    """The program's connection to a worker, which has its turns instead of a task."""

    api: LinkedApi
    client: SimClient
    _retry_at: datetime = START
    _failures: int = 0
    _shown: object = None

    @property
    def problem(self) -> str:
        if self.api.is_cut:
            return "connection refused"
        return "" if self.offer.read_since is not None else "not listed yet"

    async def turn(self, *, hears: bool) -> None:
        """What its watch tells, unless it is late; and a write that is due. Raises: ProcessKilled."""
        if self.api.is_cut:
            return
        if hears:
            self._listen()
        if not self.problem and not self.offer.is_written and self.clock.now() >= self._retry_at:
            await self._write_once()

    def _listen(self) -> None:
        found = self.client.find(CLUSTER_OFFER, "", self.offer_name)
        shown = found["metadata"]["resourceVersion"] if found is not None else None
        if self.offer.read_since is None or shown != self._shown:
            self._shown = shown
            self.offer.heard(decode(ClusterOffer, msgspec.json.encode(found)) if found is not None else None)

    async def _write_once(self) -> None:
        try:
            await self._write_wanted(LeaderApi(cast(Any, self.api), is_leader=self.is_leader))
            self._failures, self.write_problem = 0, ""
        except KubeError as error:
            self._failures += 1
            self._not_written(error, self._failures)
            self._retry_at = self.clock.now() + _RETRIES_AFTER


class SimConnections:
    """Stands in for the program's WorkerConnections."""

    def __init__(self, connections: Mapping[str, SimConnection]) -> None:
        self.connections = dict(connections)

    def get(self, name: str) -> SimConnection | None:
        return self.connections.get(name)


class HubDispatcher:
    """The program on the hub."""

    def __init__(
        self,
        clusters: DispatchedClusters,
        dice: Random,
        *,
        patience: timedelta = PATIENCE,
        requests: int = 64,
        with_scores: bool = False,
    ) -> None:
        self._clusters, self._dice = clusters, dice
        self._planner = DispatchPlanner(patience=patience, requests=requests, gpus=GPUS)
        self._with_scores = with_scores
        self._clock = HubClock(clusters.hub.client)
        self.api = LeadersApi(clusters.hub.client, [WORKLOAD, ADD_ON_PLACEMENT_SCORE])
        self._links = {name: LinkedApi(each.client, [CLUSTER_OFFER]) for name, each in clusters.workers.items()}
        self.lifetime = Lifetime()
        for api in (self.api, *self._links.values()):
            api.lifetime = self.lifetime
        self.deaths = 0
        self.reports: list[DispatchReport] = []
        self.judged: JudgedWorkloads = {}
        self.set_rates(FaultRates())
        self.starts()

    def set_rates(self, rates: FaultRates) -> None:
        """How often calls go wrong from now on."""
        for api in (self.api, *self._links.values()):
            api.rates, api.chance = rates, self._dice

    def starts(self) -> None:
        """Another leader, which remembers nothing."""
        self._copies = {
            resource: SimStore(kind, dispatch_indexes() if resource is WORKLOAD else {})
            for resource, kind in _KINDS.items()
        }
        copies: Any = self._copies
        self.connections = SimConnections({name: self._connection(name, link) for name, link in self._links.items()})
        self._look_at = self._clock.now()
        self._shown: object = None
        self.events = SimEvents()
        api: Any = LeaderApi(self.api, is_leader=lambda: True, copies=self._copies)
        self.dispatcher = Dispatcher(
            api=api,
            objects=HubObjects(
                workloads=copies[WORKLOAD],
                checks=copies[ADMISSION_CHECK],
                configs=copies[MULTIKUEUE_CONFIG],
                clusters=copies[MULTIKUEUE_CLUSTER],
                decisions=(copies[PLACEMENT_DECISION], copies[PROFILE_DECISION]),
                local_queues=copies[LOCAL_QUEUE],
            ),
            connections=cast(Any, self.connections),
            planner=self._planner,
            recorder=cast(Any, self.events),
            judged=lambda: self.judged,
            scores=PlacementScores(api=api, maximum=64) if self._with_scores else None,
            observe=self.reports.append,
            clock=self._clock,
        )

    def _connection(self, name: str, link: LinkedApi) -> SimConnection:
        async def kubeconfig() -> bytes:
            raise AssertionError("nothing is connected here")

        return SimConnection(
            name=name,
            offer_name=OFFER,
            kubeconfig=kubeconfig,
            is_leader=lambda: True,
            changed=lambda: self.dispatcher.wake(),
            clock=self._clock,
            api=link,
            client=self._clusters.workers[name].client,
        )

    async def turn(self, *, looks: bool = False) -> None:
        """What is due now, in any order; `looks`: and a look whatever has changed. It may die of it."""
        try:
            for name in self._dice.sample([*self._links], len(self._links)):
                self._links[name].is_cut = name in self._clusters.links.lost
                await self.connections.connections[name].turn(hears=self._dice.random() < 0.9)
            if self._follow() or looks or self.dispatcher.woken.is_set() or self._clock.now() >= self._look_at:
                self._look_at = self._clock.now() + _LOOKS_EVERY
                self.dispatcher.woken.clear()
                await self.dispatcher.tick(self._clock.now())
        except ProcessKilled:
            self.deaths += 1
            self.starts()

    def _follow(self) -> bool:
        """The copies show what is there, unless their watch is late. Whether anything has changed."""
        revision = self._clusters.hub.client.revision
        if revision == self._shown or self._dice.random() < 0.1:
            return False
        self._shown = revision
        for resource, copy in self._copies.items():
            copy.follow(self._clusters.hub.client.all(resource))
        return True
