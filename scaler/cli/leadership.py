"""The part of one process that leads, or waits for its turn: the Lease, and the loops of whoever holds it.

Laws:

* Whatever these loops write goes through one `LeaderApi`, which asks before every write whether the Lease is held.
* Replicas that reconcile nothing have a Lease of their own: who holds it shows what is counted about the cluster, keeps
  nobody from reconciling, and writes nothing besides.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from scaler.cli.observers import Observers
from scaler.cli.parts import Parts, patience
from scaler.cli.reflectors import Reflectors
from scaler.kube.access import SERVICE_ACCOUNT
from scaler.kube.copies import Change
from scaler.kube.events import EventRecorder
from scaler.kube.lease import LeaderElector
from scaler.kube.objects import ScalableWorkload
from scaler.loops.board import Evaluation
from scaler.loops.boosting import Boosting
from scaler.loops.gate import Gate
from scaler.loops.granting import Granter
from scaler.loops.leadership import LeaderApi
from scaler.loops.leading import Leading
from scaler.loops.policy_status import PolicyStatus
from scaler.loops.pressure import Pressure
from scaler.loops.reconciliation import Reconciler
from scaler.loops.scales import is_asked_for_anew
from scaler.settings.metrics import Fleet
from scaler.settings.model import Settings
from scaler.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """What the leader does while it leads."""

    reflectors: Reflectors
    leading: Leading
    pressure: Pressure
    boosting: Boosting
    gate: Gate
    policy_status: PolicyStatus
    is_confined: bool
    """To some namespaces: then AdmissionChecks and their parameters, which are the cluster's, are not looked after."""

    @classmethod
    def of(
        cls, settings: Settings, parts: Parts, api: LeaderApi, recorder: EventRecorder, observers: Observers
    ) -> "Loops":
        """Subscribes, so it is to be made once."""
        reflectors, cluster, board, reclaiming = parts.reflectors, parts.cluster, parts.board, parts.reclaiming
        reconciler = Reconciler(api, cluster, board, recorder)
        gate = parts.gating.gate(api, recorder, observers)
        return cls(
            reflectors=reflectors,
            leading=Leading(
                reconciler=reconciler,
                granter=Granter(api, cluster, board),
                scaled_objects=reflectors.scaled_objects,
                scalable_workloads=reflectors.scalable_workloads,
                workloads=reflectors.workloads,
                pods=reflectors.pods,
                observe=observers.reconciled,
            ),
            pressure=reclaiming.pressure(api, reconciler, recorder, board, observers, gate=gate),
            boosting=reclaiming.boosting(api, recorder, board, max_age=patience(settings), observers=observers),
            gate=gate,
            policy_status=parts.gating.policy_status(api),
            is_confined=reclaiming.is_confined,
        )

    async def run(self) -> None:
        """Lead until cancelled, and not before everything is listed."""
        await self.reflectors.wait_synced()
        async with asyncio.TaskGroup() as work:
            work.create_task(self.leading.run())
            work.create_task(self.pressure.run())
            work.create_task(self.boosting.run())
            if not self.is_confined:
                work.create_task(self.gate.run())
                work.create_task(self.policy_status.run())

    def evaluated(self, evaluation: Evaluation) -> None:
        """There is another evaluation."""
        self.leading.evaluated(evaluation)
        self.pressure.wake()
        self.boosting.wake()

    def scalable_workload_changed(self, change: Change[ScalableWorkload]) -> None:
        """Somebody may be on the way to 0 for a plan, or back."""
        if is_asked_for_anew(change):
            self.pressure.wake()


class Leadership:
    """`begin` once, and run what it gives."""

    def __init__(self, settings: Settings, parts: Parts, metrics: Metrics, observers: Observers) -> None:
        self._settings = settings
        self._parts = parts
        self._metrics = metrics
        self._observers = observers
        self._elector: LeaderElector | None = None
        self.loops: Loops | None = None
        """None where this process reconciles nothing, and before it begins."""
        self.recorder: EventRecorder | None = None
        """Of the Events that the loops tell."""

    def begin(self) -> Coroutine[Any, Any, None] | None:
        """What is to run as long as the process does; None where there is nothing to lead."""
        if self._is_reconciling:
            return self._reconcile()
        if self._takes_turns:
            return self._report_in_turn()
        self._metrics.show_no_leader()
        return None

    def is_reporting(self) -> bool:
        """Whether this process shows what is counted about the cluster."""
        match self._settings.metrics.fleet:
            case Fleet.ALWAYS:
                return True
            case None if not self._is_reconciling and not self._takes_turns:
                return True
        return self._elector is not None and self._elector.is_leader

    @property
    def _is_reconciling(self) -> bool:
        return "reconciler" in self._settings.components

    @property
    def _takes_turns(self) -> bool:
        """Whether replicas that reconcile nothing agree on who shows what is counted about the cluster."""
        return self._settings.metrics.fleet is None and bool(self._lease_namespace)

    @property
    def _lease_namespace(self) -> str:
        """Empty where this process is in no cluster, and none is named."""
        kubernetes = self._settings.kubernetes
        return kubernetes.lease.namespace or own_namespace(has_kubeconfig=kubernetes.kubeconfig is not None)

    def _candidate(self) -> LeaderElector:
        """For the Lease that its settings name. Whether it leads is a metric."""
        lease = self._settings.kubernetes.lease
        elector = LeaderElector(
            self._parts.transport,
            namespace=self._lease_namespace or "default",
            name=self._settings.lease_name,
            identity=os.environ.get("POD_NAME") or socket.gethostname(),
            lease_duration=lease.duration.total_seconds(),
            renew_deadline=lease.renew_deadline.total_seconds(),
            retry_period=lease.retry_period.total_seconds(),
        )
        self._metrics.leader.set_function(lambda: float(elector.is_leader))
        self._elector = elector
        return elector

    async def _report_in_turn(self) -> None:
        await self._candidate().run(_until_cancelled)

    async def _reconcile(self) -> None:
        elector, parts = self._candidate(), self._parts
        recorder = self.recorder = EventRecorder(parts.transport, instance=elector.identity)
        api = LeaderApi(parts.transport, is_leader=lambda: elector.is_leader)
        loops = self.loops = Loops.of(self._settings, parts, api, recorder, self._observers)
        parts.reflectors.scalable_workloads.subscribe(loops.scalable_workload_changed)
        recording = asyncio.create_task(recorder.run(), name="events")
        try:
            await elector.run(loops.run)
        finally:
            await recorder.drain(2.0)
            recording.cancel()


def own_namespace(*, has_kubeconfig: bool) -> str:
    """The namespace of this Pod; empty where the API is not that of the cluster it runs in, or there is no Pod."""
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    file = SERVICE_ACCOUNT / "namespace"
    return file.read_text(encoding="utf-8").strip() if file.is_file() and not has_kubeconfig else ""


async def _until_cancelled() -> None:
    await asyncio.Event().wait()
