"""One replica's reconciling half, built of the real parts, with a note of everything it writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from builders import GPUS, NOON, minutes
from small_cluster import NAME, NAMESPACE_NAME, WORKLOAD_NAME, SmallCluster, until

from scaler.app.kept_objects import kept_pods
from scaler.app.reflectors import Reflectors
from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.idleness.policy import Overrides
from scaler.kube.api_requests import ApiRequest
from scaler.kube.events import EventRecorder
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD, Resource
from scaler.kube.transport import KubeTransport
from scaler.suspension.controller import SuspensionController
from scaler.suspension.reconciler import SuspensionReconciler

TARGET = ScaleTargetRef(api_version=SCALABLE_WORKLOAD.api_version, kind=SCALABLE_WORKLOAD.kind, name=NAME)
_KEPT = kept_pods(GPUS, with_nodes=True)


class RecordingTransport(KubeTransport):
    """A transport that remembers what was patched, also where the API refused it."""

    patches: list[tuple[str, Any]]

    async def patch(self, path: str, body: Any, **more: Any) -> bytes:
        self.patches.append((path, body))
        return await super().patch(path, body, **more)


class Replica:
    """What one process reconciles with. Its copies are live; nothing is written before a test says so."""

    def __init__(
        self, cluster: SmallCluster, transport: RecordingTransport, calls: list[ApiRequest], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.kube = cluster
        self.transport = transport
        self.calls = calls
        self.reflectors = Reflectors(transport, GPUS, ())
        self.copies = self.reflectors.cluster(GPUS)
        self.decision_cache = DecisionCache(max_age=minutes(10))
        self.recorder = EventRecorder(transport)
        self.now: datetime | None = None
        """What the reconciler takes for now; None: what it is."""
        self.reconciler = SuspensionReconciler(
            transport, self.copies, self.decision_cache, self.recorder, clock=lambda: self.now or datetime.now(UTC)
        )
        self.rounds: list[Exception | None] = []
        self.leading = SuspensionController(
            reconciler=self.reconciler,
            scaled_objects=self.reflectors.scaling,
            scalable_workloads=self.reflectors.scalable_workloads,
            workloads=self.reflectors.workloads,
            pods=self.reflectors.pods,
            switched=self.reflectors.switched,
            decision_cache=self.decision_cache,
            observe=lambda _, error: self.rounds.append(error),
            clock=clock,
        )

    # ------------------------------------------------------------------------------------------------- looking

    @property
    def patches(self) -> list[tuple[str, Any]]:
        return self.transport.patches

    def patches_of(self, resource: Resource, name: str, subresource: str = "") -> list[Any]:
        """The bodies of all patches of that object, in order."""
        wanted = resource.path(NAMESPACE_NAME, name, subresource)
        return [body for path, body in self.patches if path == wanted]

    @property
    def workload_patches(self) -> list[Any]:
        return self.patches_of(WORKLOAD, WORKLOAD_NAME)

    async def events(self, kind: str = "ScalableWorkload") -> list[str]:
        """`reason: message` of the Events on objects of that kind, oldest first."""
        assert await self.recorder.drain(5)
        return [f"{reason}: {message}" for about, reason, message in await self.kube.events() if about == kind]

    async def reasons(self, kind: str = "ScalableWorkload") -> list[str]:
        return [event.partition(":")[0] for event in await self.events(kind)]

    async def is_current(self) -> bool:
        """Whether the copies hold what the API holds, and of pods what is kept of them."""
        for copy in self.reflectors.all:
            there = {
                each["metadata"]["name"]: each["metadata"]["resourceVersion"]
                for each in await self.kube.all(copy.resource)
                if copy is not self.reflectors.pods or _KEPT(decode(Pod, msgspec.json.encode(each)))
            }
            if there != {each.metadata.name: each.metadata.resource_version for each in copy.items()}:
                return False
        return True

    # -------------------------------------------------------------------------------------------------- acting

    def decides(self, *decisions: Decision, target: ScaleTargetRef = TARGET, name: str = NAME) -> Evaluation:
        """Publish an evaluation with these decisions on the target, and wake the leader's loop."""
        triggers = {Overrides(idle_after=minutes(1 + number)): each for number, each in enumerate(decisions)}
        entries = {(NAMESPACE_NAME, name): EvaluatedScaledObject(target=target, triggers=triggers)} if decisions else {}
        evaluation = Evaluation.of(entries, at=NOON)
        self.decision_cache.publish(evaluation)
        self.leading.wake()
        return evaluation

    async def reconciles(self, times: int = 1, *, name: str = NAME) -> None:
        """One round on current copies, or several."""
        for _ in range(times):
            await until(self.is_current)
            await self.reconciler.reconcile((NAMESPACE_NAME, name))

    @asynccontextmanager
    async def leads(self) -> AsyncIterator[asyncio.Task[None]]:
        """The leader's loop runs, and is cancelled in the end."""
        await until(self.is_current)
        task = asyncio.create_task(self.leading.run())
        await asyncio.sleep(0)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def replica(cluster: SmallCluster, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[Replica]:
    """A replica whose copies follow the cluster and whose Events are sent."""
    calls: list[ApiRequest] = []
    transport = await RecordingTransport.connect(cluster.kubeconfig, observe=calls.append)
    transport.patches = []
    async with transport:
        one = Replica(cluster, transport, calls, clock)
        tasks = [asyncio.create_task(work) for work in (*one.reflectors.tasks(), one.recorder.run())]
        try:
            yield one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
