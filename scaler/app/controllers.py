"""Who leads: the Lease, and the controllers that its holder runs, constructed from the wiring.

Whatever they write goes through one `LeaderApi`, which asks before every write whether the Lease is held. Replicas that
reconcile nothing have a Lease of their own: its holder shows the metrics of the cluster, does not keep another replica
from reconciling, and writes nothing else.
"""

import asyncio
import math
import os
import socket
from typing import Protocol

from scaler.admission.checks import AdmissionChecks
from scaler.admission.controller import AdmissionCheckController
from scaler.admission.planner import ReclaimAnswers
from scaler.admission.provisioning.controller import ProvisioningController
from scaler.app.metrics_sink import MetricsSink
from scaler.app.settings.model import FleetReporter, Settings
from scaler.app.wiring import Wiring, max_evaluation_age, trigger_target
from scaler.attachment.controller import AttachmentController
from scaler.kube.access import SERVICE_ACCOUNT
from scaler.kube.events import EventRecorder
from scaler.kube.lease import LeaderElector, LeaseTiming
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.multikueue import ClusterOffer
from scaler.kube.writes import LeaderApi
from scaler.multikueue.hub.dispatch.controller import Dispatcher
from scaler.multikueue.hub.judged import judged_workloads
from scaler.reclaim.controller import ReclaimController
from scaler.reclaim.wake_controller import WakeController
from scaler.reclaim.wake_planner import WakePlanner
from scaler.reclaim.writer import PlanWriter
from scaler.reporting.metric_declarations import set_series
from scaler.suspension.boost_controller import PriorityBoostController
from scaler.suspension.controller import SuspensionController
from scaler.suspension.keep_record import SUFFIX
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.suspension.suspend_at import SuspendAtController
from scaler.targets.scale_subresources import spec_or_annotations_changed


class Controller(Protocol):
    """What the holder of the Lease runs."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None:
        """Repeats its tick until it is cancelled."""

    def wake(self) -> None:
        """There is something new: the next tick is due at once."""


_LEADERLESS_SECONDS = 120.0
"""The time without a leader after which no replica is ready: after a crash nobody holds the Lease for some seconds."""


class LeaderControllers:
    """What runs while this replica leads. Subscribes, so it is to be constructed once."""

    def __init__(
        self, settings: Settings, wiring: Wiring, api: LeaderApi, recorder: EventRecorder, sink: MetricsSink
    ) -> None:
        shared = wiring.cluster_reflectors
        reconciler = SuspensionReconciler(
            api,
            wiring.cluster,
            wiring.decision_cache,
            recorder,
            keeps_in=(lease_namespace(settings) or "default", settings.lease_name + SUFFIX),
            budgets=wiring.planner.policy_budgets,
            scales=wiring.scales,
            entered=sink.entered,
        )
        answers = ReclaimAnswers(is_planning=settings.reclaim.pressure)
        writer = PlanWriter(api, wiring.cluster.scalable_workloads.get, recorder, finished=sink.reallocated)
        checks = _admission_checks(wiring, api, recorder, sink, answers)
        self.reflectors = wiring.reflectors
        self.suspension = SuspensionController(
            reconciler=reconciler,
            scaled_objects=wiring.reflectors.scaling,
            scalable_workloads=wiring.reflectors.scalable_workloads,
            workloads=wiring.reflectors.workloads,
            pods=wiring.reflectors.pods,
            switched=wiring.reflectors.switched,
            decision_cache=wiring.decision_cache,
            observe=sink.reconciled,
        )
        self.reclaim = ReclaimController(
            planning=wiring.planner,
            reconciler=reconciler,
            writer=writer,
            admission=wiring.admission,
            answers=answers,
            observe=sink.planned,
        )
        boosts = PriorityBoostController(
            api,
            wiring.cluster,
            wiring.decision_cache,
            recorder,
            wiring.planner.policy.boost,
            max_age=max_evaluation_age(settings),
            spares=wiring.planner.spared_queues,
            observe=sink.metrics.boosted_workloads.set,
        )
        self.attachment = _attachment(settings, wiring, api)
        self._notifications = wiring.notifications(api, sink)
        before_suspend = wiring.before_suspend(api, recorder, sink)
        suspend_at = SuspendAtController(
            api, wiring.cluster, wiring.decision_cache, max_age=max_evaluation_age(settings)
        )
        suspend_ats = (suspend_at,) if settings.suspend_at else ()
        self._checks = checks
        offer = wiring.offer(api, sink, is_due=self.reclaim.executor.backoff.is_due)
        offered = () if shared.is_confined else (offer,)
        self._woken: tuple[Controller, ...] = (
            self.suspension,
            self.reclaim,
            boosts,
            before_suspend,
            *suspend_ats,
            *offered,
        )
        """The controllers that act on evaluations."""
        when_free = WakeController(WakePlanner(wiring.planner), api)
        self._others: tuple[Controller, ...] = (
            self.attachment,
            *(() if shared.is_confined else (checks, when_free)),
        )
        wiring.reflectors.scalable_workloads.subscribe(self._scalable_workload_changed)
        shared.offers.subscribe(self._offer_changed)

    async def run(self) -> None:
        """Run until cancelled, and not before everything is listed."""
        await self.reflectors.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            for each in (*self._woken, *self._others):
                tasks.create_task(each.run(), name=each.name)
            tasks.create_task(self._notifications.run(), name=self._notifications.name)

    def wake(self) -> None:
        for each in self._woken:
            each.wake()

    def _scalable_workload_changed(self, change: Change[ScalableWorkload]) -> None:
        """A victim of a plan may be on its way to 0, or back."""
        if spec_or_annotations_changed(change):
            self.reclaim.wake()

    def _offer_changed(self, change: Change[ClusterOffer]) -> None:
        """There may be a plan for a remote copy now, or none any more."""
        old, new = change.old, change.new
        if old is None or new is None or old.spec != new.spec:
            self.reclaim.wake()
            self._checks.wake()


def _attachment(settings: Settings, wiring: Wiring, api: LeaderApi) -> AttachmentController:
    woken, watched = asyncio.Event(), wiring.reflectors
    controller = AttachmentController(
        api=api,
        cluster=wiring.cluster,
        policies=wiring.idle_policies,
        jobs=wiring.jobs(changed=woken.set),
        target=trigger_target(settings),
        notified_by=settings.notifications.notify_targets(),
        max_age=settings.kubernetes.max_view_age,
        woken=woken,
    )
    wiring.idle_policies.subscribe(woken.set)
    for each in (watched.scaled_objects, watched.scalable_workloads, watched.workloads):
        each.subscribe(controller.heard)
    if wiring.namespaces is not None:
        wiring.namespaces.subscribe(controller.heard)
    return controller


def _admission_checks(
    wiring: Wiring, api: LeaderApi, recorder: EventRecorder, sink: MetricsSink, reclaim: ReclaimAnswers
) -> AdmissionCheckController:
    shared = wiring.cluster_reflectors
    controller = AdmissionCheckController(
        api,
        wiring.admission,
        AdmissionChecks(api, shared.policies, recorder),
        ProvisioningController(api, shared.requests, shared.flavor, recorder, observe=sink.provisioned),
        recorder,
        answers=reclaim,
        observe=sink.checked,
    )
    shared.requests.subscribe(lambda _: controller.wake())
    shared.policies.subscribe(lambda _: controller.wake())
    return controller


class Leadership:
    """A candidate for the Lease, and the controllers of its holder."""

    def __init__(self, settings: Settings, wiring: Wiring, sink: MetricsSink) -> None:
        self._settings = settings
        self._wiring = wiring
        self._sink = sink
        self._elector: LeaderElector | None = None
        self.controllers: LeaderControllers | None = None
        """The controllers of this process; None unless it reconciles, and before `run`."""
        self.dispatcher: Dispatcher | None = None
        """The dispatcher of this process; None unless it dispatches, and before `run`."""
        if not self.has_lease:
            sink.metrics.show_no_leader()

    @property
    def has_lease(self) -> bool:
        """Whether there is a Lease to hold: for reconciling, or for the metrics of the cluster alone."""
        return self._settings.writes or self._takes_turns

    async def run(self) -> None:
        """Lead whenever it is this replica's turn, until cancelled."""
        if self._settings.writes:
            await self._lead()
        else:
            await self._candidate().run(asyncio.Event().wait)

    def leaderless(self) -> list[str]:
        """Why nothing is reconciled: no replica leads yet, or none has for long. Empty where none is to reconcile."""
        lease, elector = self._settings.kubernetes.lease, self._elector
        seconds = math.inf if elector is None else elector.leaderless_seconds
        if not self._settings.writes or seconds < max(_LEADERLESS_SECONDS, 2 * lease.duration.total_seconds()):
            return []
        why = elector.problem if elector is not None and elector.problem else "it was not tried yet"
        since = "yet" if math.isinf(seconds) else f"for {seconds:.0f} s"
        return [f"no replica has held Lease {lease.name} {since}, so that nothing is reconciled: {why}"]

    def wake(self) -> None:
        if self.controllers is not None:
            self.controllers.wake()

    def is_reporting(self) -> bool:
        match self._settings.metrics.fleet:
            case FleetReporter.ALWAYS:
                return True
            case None if not self.has_lease:
                return True
        return self._elector is not None and self._elector.is_leader

    def show_upkeep(self) -> None:
        if self.controllers is not None:
            queue = self.controllers.suspension.queue
            keys = {("Waiting",): len(queue), ("Failing",): queue.failing}
            set_series(self._sink.metrics.reconcile_queue_keys, keys)

    @property
    def _takes_turns(self) -> bool:
        """Whether replicas that reconcile nothing elect one that shows the metrics of the cluster."""
        return self._settings.metrics.fleet is None and bool(lease_namespace(self._settings))

    def _candidate(self) -> LeaderElector:
        """A candidate for the Lease of the settings. Whether it leads is a metric."""
        lease = self._settings.kubernetes.lease
        elector = LeaderElector(
            self._wiring.transport,
            namespace=lease_namespace(self._settings) or "default",
            name=self._settings.lease_name,
            identity=os.environ.get("POD_NAME") or socket.gethostname(),
            timing=LeaseTiming(
                lease_duration=lease.duration.total_seconds(),
                renew_deadline=lease.renew_deadline.total_seconds(),
                retry_period=lease.retry_period.total_seconds(),
            ),
        )
        self._sink.metrics.leader.set_function(lambda: float(elector.is_leader))
        self._elector = elector
        return elector

    async def _lead(self) -> None:
        elector, wiring = self._candidate(), self._wiring
        lost = self._sink.metrics.events_lost_total.inc
        recorder = EventRecorder(wiring.transport, instance=elector.identity, lost=lost)
        api = LeaderApi(wiring.transport, is_leader=lambda: elector.is_leader, copies=wiring.copies())
        wiring.evaluator.led_until = lambda: elector.led_until
        if "reconciler" in self._settings.components:
            self.controllers = LeaderControllers(self._settings, wiring, api, recorder, self._sink)
        if wiring.hub is not None:
            wiring.hub.connections.is_leader = lambda: elector.is_leader
            decisions, cluster = wiring.decision_cache, wiring.cluster
            self.dispatcher = wiring.hub.dispatcher(
                api, recorder, self._sink, judged=lambda: judged_workloads(decisions.evaluation, cluster)
            )
        recording = asyncio.create_task(recorder.run(), name="events")
        try:
            await elector.run(self._run_controllers)
        finally:
            await recorder.drain(2.0)
            recording.cancel()

    async def _run_controllers(self) -> None:
        """The controllers run while this replica leads."""
        async with asyncio.TaskGroup() as tasks:
            for each in (self.controllers, self.dispatcher):
                if each is not None:
                    tasks.create_task(each.run(), name="leading")


def lease_namespace(settings: Settings) -> str:
    """Empty where this process is in no cluster, and none is named."""
    kubernetes = settings.kubernetes
    return kubernetes.lease.namespace or pod_namespace(has_kubeconfig=kubernetes.kubeconfig is not None)


def pod_namespace(*, has_kubeconfig: bool) -> str:
    """The namespace of this Pod; empty where the API is not that of the cluster it runs in, or there is no Pod."""
    if namespace := os.environ.get("POD_NAMESPACE"):
        return namespace
    file = SERVICE_ACCOUNT / "namespace"
    return file.read_text(encoding="utf-8").strip() if file.is_file() and not has_kubeconfig else ""
