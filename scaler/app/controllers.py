"""The controllers of the leader, constructed from the wiring.

Whatever they write goes through one `LeaderApi`, which asks before every write whether the Lease is held.
"""

import asyncio
from typing import Protocol

from scaler.admission.checks import AdmissionChecks
from scaler.admission.controller import AdmissionCheckController
from scaler.admission.planner import ReclaimAnswers
from scaler.admission.provisioning.controller import ProvisioningController
from scaler.app.metrics_sink import MetricsSink
from scaler.app.settings.model import Settings
from scaler.app.wiring import Wiring, max_evaluation_age
from scaler.decision.scale_subresources import spec_or_annotations_changed
from scaler.kube.events import EventRecorder
from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.reclaim.controller import ReclaimController
from scaler.reclaim.writer import PlanWriter
from scaler.suspension.boost_controller import PriorityBoostController
from scaler.suspension.controller import SuspensionController
from scaler.suspension.leader_api import LeaderApi
from scaler.suspension.reconciler import SuspensionReconciler


class Controller(Protocol):
    """Reconciles one kind of object while this replica leads."""

    @property
    def name(self) -> str:
        """For logs and tasks."""

    async def run(self) -> None:
        """Reconcile until cancelled."""

    def wake(self) -> None:
        """Reconcile soon."""


class LeaderControllers:
    """What runs while this replica leads. Subscribes, so it is to be constructed once."""

    def __init__(
        self, settings: Settings, wiring: Wiring, api: LeaderApi, recorder: EventRecorder, sink: MetricsSink
    ) -> None:
        shared = wiring.cluster_reflectors
        reconciler = SuspensionReconciler(api, wiring.cluster, wiring.decision_cache, recorder)
        answers = ReclaimAnswers(is_planning=settings.reclaim.pressure)
        writer = PlanWriter(api, wiring.cluster.scalable_workloads.get, recorder, finished=sink.reallocated)
        checks = _admission_checks(wiring, api, recorder, sink, answers)
        self.reflectors = wiring.reflectors
        self.suspension = _suspension(wiring, reconciler, sink)
        self.reclaim = _reclaim(wiring, reconciler, writer, answers, sink)
        boosts = PriorityBoostController(
            api,
            wiring.cluster,
            wiring.decision_cache,
            recorder,
            wiring.planner.policy.boost,
            max_age=max_evaluation_age(settings),
            observe=sink.boosted,
        )
        self._woken: tuple[Controller, ...] = (self.suspension, self.reclaim, boosts)
        """Those that act on evaluations."""
        self._admission: tuple[Controller, ...] = () if shared.is_confined else (checks,)

    async def run(self) -> None:
        """Run until cancelled, and not before everything is listed."""
        await self.reflectors.wait_synced()
        async with asyncio.TaskGroup() as tasks:
            for each in (*self._woken, *self._admission):
                tasks.create_task(each.run(), name=each.name)

    def wake(self) -> None:
        """There is a new evaluation."""
        for each in self._woken:
            each.wake()


def _suspension(wiring: Wiring, reconciler: SuspensionReconciler, sink: MetricsSink) -> SuspensionController:
    reflectors = wiring.reflectors
    return SuspensionController(
        reconciler=reconciler,
        scaled_objects=reflectors.scaled_objects,
        scalable_workloads=reflectors.scalable_workloads,
        workloads=reflectors.workloads,
        pods=reflectors.pods,
        decision_cache=wiring.decision_cache,
        observe=sink.reconciled,
    )


def _reclaim(
    wiring: Wiring, reconciler: SuspensionReconciler, writer: PlanWriter, answers: ReclaimAnswers, sink: MetricsSink
) -> ReclaimController:
    controller = ReclaimController(
        planning=wiring.planner,
        decisions=wiring.decision_cache,
        reconciler=reconciler,
        writer=writer,
        admission=wiring.admission,
        answers=answers,
        observe=sink.planned,
    )

    def scalable_workload_changed(change: Change[ScalableWorkload]) -> None:
        """A victim of a plan may be on its way to 0, or back."""
        if spec_or_annotations_changed(change):
            controller.wake()

    wiring.reflectors.scalable_workloads.subscribe(scalable_workload_changed)
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
        observe=sink.gated,
    )
    shared.requests.subscribe(lambda _: controller.wake())
    shared.policies.subscribe(lambda _: controller.wake())
    return controller
