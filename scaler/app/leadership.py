"""Who leads: the Lease, and what its holder does.

Replicas that reconcile nothing have a Lease of their own: its holder shows the metrics of the cluster, does not keep
another replica from reconciling, and writes nothing else.
"""

import asyncio
import os
import socket

from scaler.app.controllers import LeaderControllers
from scaler.app.metrics_sink import MetricsSink
from scaler.app.settings.model import FleetReporter, Settings
from scaler.app.wiring import Wiring
from scaler.kube.access import SERVICE_ACCOUNT
from scaler.kube.events import EventRecorder
from scaler.kube.lease import LeaderElector, LeaseTiming
from scaler.reporting.metrics import Metrics
from scaler.suspension.leader_api import LeaderApi


class Leadership:
    """A candidate for the Lease, and the controllers of its holder."""

    def __init__(self, settings: Settings, wiring: Wiring, metrics: Metrics, sink: MetricsSink) -> None:
        self._settings = settings
        self._wiring = wiring
        self._metrics = metrics
        self._sink = sink
        self._elector: LeaderElector | None = None
        self.controllers: LeaderControllers | None = None
        """None unless this process reconciles, and before `run`."""
        self.recorder: EventRecorder | None = None
        """Of Events of the controllers."""
        if not self.has_lease:
            metrics.show_no_leader()

    @property
    def has_lease(self) -> bool:
        """Whether there is a Lease to hold: for reconciling, or for the metrics of the cluster alone."""
        return self._is_reconciling or self._takes_turns

    async def run(self) -> None:
        """Lead whenever it is this replica's turn, until cancelled."""
        if self._is_reconciling:
            await self._reconcile()
        else:
            await self._candidate().run(_until_cancelled)

    def wake(self) -> None:
        """There is a new evaluation."""
        if self.controllers is not None:
            self.controllers.wake()

    def is_reporting(self) -> bool:
        """Whether this process shows the metrics of the cluster."""
        match self._settings.metrics.fleet:
            case FleetReporter.ALWAYS:
                return True
            case None if not self._is_reconciling and not self._takes_turns:
                return True
        return self._elector is not None and self._elector.is_leader

    @property
    def _is_reconciling(self) -> bool:
        return "reconciler" in self._settings.components

    @property
    def _takes_turns(self) -> bool:
        """Whether replicas that reconcile nothing elect one that shows the metrics of the cluster."""
        return self._settings.metrics.fleet is None and bool(self._lease_namespace)

    @property
    def _lease_namespace(self) -> str:
        """Empty where this process is in no cluster, and none is named."""
        kubernetes = self._settings.kubernetes
        return kubernetes.lease.namespace or pod_namespace(has_kubeconfig=kubernetes.kubeconfig is not None)

    def _candidate(self) -> LeaderElector:
        """For the Lease of the settings. Whether it leads is a metric."""
        lease = self._settings.kubernetes.lease
        elector = LeaderElector(
            self._wiring.transport,
            namespace=self._lease_namespace or "default",
            name=self._settings.lease_name,
            identity=os.environ.get("POD_NAME") or socket.gethostname(),
            timing=LeaseTiming(
                lease_duration=lease.duration.total_seconds(),
                renew_deadline=lease.renew_deadline.total_seconds(),
                retry_period=lease.retry_period.total_seconds(),
            ),
        )
        self._metrics.leader.set_function(lambda: float(elector.is_leader))
        self._elector = elector
        return elector

    async def _reconcile(self) -> None:
        elector, wiring = self._candidate(), self._wiring
        recorder = self.recorder = EventRecorder(wiring.transport, instance=elector.identity)
        api = LeaderApi(wiring.transport, is_leader=lambda: elector.is_leader)
        controllers = self.controllers = LeaderControllers(self._settings, wiring, api, recorder, self._sink)
        recording = asyncio.create_task(recorder.run(), name="events")
        try:
            await elector.run(controllers.run)
        finally:
            await recorder.drain(2.0)
            recording.cancel()


def pod_namespace(*, has_kubeconfig: bool) -> str:
    """The namespace of this Pod; empty where the API is not that of the cluster it runs in, or there is no Pod."""
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    file = SERVICE_ACCOUNT / "namespace"
    return file.read_text(encoding="utf-8").strip() if file.is_file() and not has_kubeconfig else ""


async def _until_cancelled() -> None:
    await asyncio.Event().wait()
