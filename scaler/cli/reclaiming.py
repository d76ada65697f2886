"""The parts of one process that hand idle quota to gangs that wait: quota's view, plans, the leader's loop."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from scaler.cli.observers import Observers
from scaler.core.placement import Capacity
from scaler.core.reclaim_policy import ReclaimPolicy, Switch
from scaler.kube.kueue_objects import Workload
from scaler.kube.nodes import Node
from scaler.kube.objects import Pod
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.loops.board import Board
from scaler.loops.boosting import Boosting
from scaler.loops.cluster import Cluster
from scaler.loops.gate import Gate
from scaler.loops.leadership import Api
from scaler.loops.nodes_view import NodesView, node_reflector
from scaler.loops.planning import Planning
from scaler.loops.pressure import Pressure
from scaler.loops.quota_view import Blind, QuotaReflectors, QuotaView
from scaler.loops.reallocation import Reallocation
from scaler.loops.reconciliation import Announcer, Reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaiming:
    """What every replica has of it."""

    reflectors: QuotaReflectors
    nodes: Reflector[Node]
    capacity: Callable[[], Capacity | Blind]
    """What nodes have free."""
    planning: Planning
    is_confined: bool
    """To some namespaces: then quota cannot be seen, and nothing is watched for it."""

    @classmethod
    def of(
        cls,
        transport: KubeTransport,
        cluster: Cluster,
        board: Board,
        policy: ReclaimPolicy,
        *,
        workloads: Reflector[Workload],
        pods: Reflector[Pod],
        namespaces: Collection[str],
        max_view_age: timedelta,
        max_verdict_age: timedelta,
    ) -> "Reclaiming":
        reflectors = QuotaReflectors.of(transport)
        view = QuotaView(
            reflectors,
            workloads,
            clock=lambda: datetime.now(UTC),
            max_age=max_view_age,
            fair_sharing=policy.fair_sharing,
            boosts=policy.boost.enabled is not Switch.OFF,
            confined_to=namespaces,
        )
        nodes = node_reflector(transport)
        free = NodesView(nodes, pods, workloads, max_age=max_view_age, confined_to=namespaces)
        planning = Planning(cluster, board, view, policy, max_age=max_verdict_age, capacity=free.capacity)
        return cls(
            reflectors=reflectors,
            nodes=nodes,
            capacity=free.capacity,
            planning=planning,
            is_confined=bool(namespaces),
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run on every replica, so that a new leader, or anybody who asks, can plan at once."""
        return [] if self.is_confined else [*self.reflectors.tasks(), self.nodes.run()]

    async def wait_listed(self, seconds: float) -> None:
        """Returns once everything is listed, or after so many seconds: what is missing then tells by itself."""
        if self.is_confined:
            return
        copies = [*self.reflectors.all, self.nodes]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(copy.wait_synced() for copy in copies))

    def boosting(
        self, api: Api, announcer: Announcer, board: Board, *, max_age: timedelta, observers: Observers
    ) -> Boosting:
        """The leader's loop over priority boosts."""
        policy = self.planning.policy.boost
        return Boosting(
            api, self.planning.cluster, board, announcer, policy, max_age=max_age, observe=observers.boosted
        )

    def pressure(
        self,
        api: Api,
        reconciler: Reconciler,
        announcer: Announcer,
        board: Board,
        observers: Observers,
        *,
        gate: Gate,
    ) -> Pressure:
        """The leader's loop. The gate tells who lacks nodes, lets thieves stand back, and asks whether idle GPUs do."""
        cluster = self.planning.cluster
        pressure = Pressure(
            planning=self.planning,
            board=board,
            reconciler=reconciler,
            reallocation=Reallocation(api, cluster.scalable_workloads.get, announcer, finished=observers.reallocated),
            gate=gate,
            stand_back=gate.stand_back,
            observe=observers.planned,
        )
        gate.considers = pressure.considers
        return pressure
