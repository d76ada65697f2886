"""Drives `Workload.spec.active`, or the switch of a kind that has its own, from `ScalableWorkload.spec.replicas`, and
has written down what was observed (`status_writer.py`) and what is kept (`keep_record.py`). Leader only.

Laws:

* Read → next step (pure, `transitions`) → re-check → act → observe, one ScalableWorkload at a time, level-triggered:
  whatever was missed is seen at the next round.
* Every write carries the resourceVersion that was decided upon; a conflict means looking again.
* A deactivation is re-checked against the API itself, not a copy: a scale-up of a moment ago wins.
* Nothing is announced that did not happen: the Event follows the patch.
* The annotation that says that we suspended it travels in the same patch, so the two never disagree.
* The spec of a remote copy of MultiKueue is never written.
* Of several ScalableWorkloads of one Workload only the oldest acts. Two that disagree would start and stop it for ever.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from scaler.decision.candidate import (
    HistoryLine,
)
from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Key
from scaler.decision.describe import evidence, prevailing, timestamp
from scaler.decision.reasons import FOUND_IDLE, SuspensionEventReason
from scaler.decision.trigger_metadata import own_triggers
from scaler.errors import KubeError
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import ObjectMeta, decode
from scaler.kube.objects.direct_scaling import DIRECT
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, is_scalable_workload, scalable_workload_ref
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD, Resource
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.kube.writes import WriteApi
from scaler.suspension.direct import scale_directly
from scaler.suspension.keep_record import SUFFIX, KeepLimiter
from scaler.suspension.status_writer import StatusWriter, WarningBudgets
from scaler.suspension.transitions import SuspensionStep, next_step
from scaler.targets.cluster_state import ClusterState
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.switches import SWITCHES, Patch
from scaler.targets.target_state import ObservedTarget, ObservedWorkload, Phase, TargetState, state_of
from scaler.targets.workloads import (
    SUSPENDED_ANNOTATION,
    WAKE_ANNOTATION,
    has_wake_annotation,
    metadata_of,
    observe,
    wake_request,
)

log = structlog.get_logger(__name__)

_ATTEMPTS = 4
_CONFLICT = 409
_STALE = UnknownReason.STALE_CLUSTER_VIEW

_CAUSE_GPUS = 8
"""GPUs listed in the annotation that says why a Workload was deactivated."""


class SuspensionReconciler:
    def __init__(
        self,
        api: WriteApi,
        cluster: ClusterState,
        decision_cache: DecisionCache,
        announcer: EventSink,
        *,
        keeps_in: tuple[str, str] = ("default", f"idle-gpu-scaler{SUFFIX}"),
        budgets: WarningBudgets | None = None,
        scales: ScaleSubresources | None = None,
        entered: Callable[[Sequence[HistoryLine]], None] = lambda _history: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._decision_cache = decision_cache
        self._announcer = announcer
        self._clock = clock
        self.budgets = budgets
        self.statuses = StatusWriter(
            api, cluster, decision_cache, announcer, budgets=budgets, scales=scales, entered=entered, clock=clock
        )
        self._keeps = KeepLimiter(
            api=api,
            announcer=announcer,
            record=keeps_in,
            exists=lambda key: cluster.scaled_objects.get(*key) is not None,
            clock=clock,
        )

    def lead(self) -> None:
        """This replica leads from now on; others have written until then."""
        self._keeps.lead()
        self.statuses.lead()
        if self.budgets is not None:
            self.budgets.lead()

    async def reconcile(self, key: Key) -> Phase | None:
        """Take the next step for the ScalableWorkload and write its status; returns the phase that was found.

        None for one that is gone or going. Raises: KubeError; try again later.
        """
        scalable = self._cluster.scalable_workloads.get(*key)
        if scalable is None or scalable.metadata.deletion_timestamp is not None:
            return None
        if unlisted := self._cluster.unlisted(key[0]):
            raise KubeError(f"namespace {key[0]} cannot be seen whole, so nothing is done in it: {unlisted}")
        scaled_by, decision = self._cluster.scaled_objects_of(scalable), self._decision(scalable)
        situation = self._situation(scalable, scaled_by)
        workload, annotated = situation.workload, [(SCALABLE_WORKLOAD, scalable.metadata)]
        annotated += [(workload.resource, metadata_of(workload))] if workload is not None else []
        if await self._keeps.settle(next(iter(scaled_by), None), annotated, decision):
            return None
        if (unseen := situation.unseen) is not None and situation.was_bound and unseen.reason is _STALE:
            raise KubeError(f"its status stays as it is: {unseen.message}")
        state = state_of(situation)
        step = next_step(situation, state)
        if step is not None and workload is not None and not await self._take(step, scalable, workload, decision):
            return state.phase
        await self.statuses.write(scalable, state, workload, decision, scaled_by=scaled_by, annotated=annotated)
        await self._remove_wake(scalable, state, decision)
        if scalable.spec.actuator == DIRECT:
            await scale_directly(self._api, self._cluster, self._decision_cache, scalable)
        return state.phase

    def _decision(self, scalable: ScalableWorkload) -> Decision | None:
        evaluation = self._decision_cache.evaluation
        if evaluation is None:
            return None
        target = scalable_workload_ref(scalable.metadata.name)
        return prevailing(evaluation.decisions_on(scalable.metadata.namespace, target))

    def _situation(self, scalable: ScalableWorkload, scaled_by: Sequence[ScaledObject]) -> ObservedTarget:
        """The target as observed; a wake annotation on a ScaledObject of it also ends what another client has begun."""
        situation, suspended_at = self._cluster.situation(scalable), scalable.status.suspended_at
        requests = (wake_request(each.metadata.annotations, where="", suspended_at=suspended_at) for each in scaled_by)
        return replace(situation, wakes_foreign=situation.wakes_foreign or any(requests))

    # --------------------------------------------------------------------------------------------------------- steps

    async def _take(
        self, step: SuspensionStep, scalable: ScalableWorkload, workload: ObservedWorkload, decision: Decision | None
    ) -> bool:
        """Whether the step was taken; False where it turned out not to be wanted any more."""
        match step:
            case SuspensionStep.DEACTIVATE:
                if not await self._is_wanted_at_zero(scalable):
                    log.info("suspension called off: replicas is no longer 0", scalable_workload=scalable.metadata.key)
                    return False
                await self._deactivate(scalable, workload, decision)
            case SuspensionStep.ADOPT:
                cause = self._cause(scalable, decision, SuspensionEventReason.SCALED_TO_ZERO, "it was inactive already")
                await self._patch(step, scalable, workload, cause)
            case SuspensionStep.RELEASE_OWNERSHIP:
                await self._patch(step, scalable, workload, None)
            case SuspensionStep.ACTIVATE:
                await self._patch(step, scalable, workload, None)
                message = f"activated {workload.resource.kind} {workload.name}: replicas is 1"
                record_on_both(self._announcer, scalable, workload, SuspensionEventReason.RESUMED, message)
        return True

    async def suspend(self, key: Key) -> None:
        """Deactivate the Workload of a plan's victim now; the plan has made sure that it is still wanted at 0.

        A conflict is answered by looking again, at once and a few times: every moment in which one victim of a plan
        is deactivated and another is not, others may take what was freed. Raises: KubeError after that.
        """
        for attempt in range(_ATTEMPTS):
            scalable = self._cluster.scalable_workloads.get(*key)
            workload = self._cluster.situation(scalable).workload if scalable is not None else None
            if scalable is None or workload is None or not _may_be_deactivated(workload) or not workload.has_quota:
                return
            try:
                fresh = await self._fresh(workload) if attempt else workload
                if not _may_be_deactivated(fresh):
                    return
                await self._deactivate(scalable, fresh, self._decision(scalable))
            except KubeError as error:
                if not error.is_conflict or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _fresh(self, workload: ObservedWorkload) -> ObservedWorkload:
        """The object as the API has it now. Raises: KubeError."""
        found = decode(KueueWorkload, await self._api.get(WORKLOAD.path(workload.namespace, workload.name)))
        if found.metadata.uid != workload.uid:
            raise KubeError(f"Workload {workload.namespace}/{workload.name} was replaced by another", status=404)
        return observe(found, self._cluster.gpus)

    async def _deactivate(
        self, scalable: ScalableWorkload, workload: ObservedWorkload, decision: Decision | None
    ) -> None:
        reason, message = _why(scalable, decision)
        cause = self._cause(scalable, decision, reason, message)
        await self._patch(SuspensionStep.DEACTIVATE, scalable, workload, cause)
        again = " again (Kueue had recreated it as active)" if scalable.status.phase == Phase.SUSPENDED else ""
        what = f"deactivated {workload.resource.kind} {workload.name}{again}: {message}"
        record_on_both(self._announcer, scalable, workload, reason, what)

    async def _is_wanted_at_zero(self, scalable: ScalableWorkload) -> bool:
        """Whether the API itself, and not a copy, has it at replicas 0. Raises: KubeError."""
        path = SCALABLE_WORKLOAD.path(*scalable.metadata.key)
        fresh = decode(ScalableWorkload, await self._api.get(path))
        return fresh.metadata.uid == scalable.metadata.uid and fresh.spec.replicas == 0

    async def _patch(
        self,
        step: SuspensionStep,
        scalable: ScalableWorkload,
        workload: ObservedWorkload,
        cause: Mapping[str, Any] | None,
    ) -> None:
        """Raises: KubeError; 409 where the object is no more the one that was decided on."""
        path = workload.resource.path(workload.namespace, workload.name)
        _, switched = self._cluster.switched_of(scalable) or (None, None)
        if isinstance(switched, Unknown):
            raise KubeError(switched.message, status=_CONFLICT)
        await self._api.patch(path, step_patch(step, workload, switched, cause=cause))

    def _cause(
        self, scalable: ScalableWorkload, decision: Decision | None, reason: str, message: str
    ) -> Mapping[str, Any]:
        """The annotation that says when, by what and why an object was deactivated."""
        gpus = (evidence(decision.verdict) if decision else []) or scalable.status.evidence
        cause = {
            "at": timestamp(self._clock()),
            "by": f"ScalableWorkload/{scalable.metadata.name}",
            "reason": reason,
            "message": message,
            "idleSince": timestamp(scalable.status.idle_since),
            "evidence": gpus[:_CAUSE_GPUS],
        }
        return {name: value for name, value in cause.items() if value}

    # ------------------------------------------------------------------------------------------------ wake annotations

    async def _remove_wake(self, scalable: ScalableWorkload, state: TargetState, decision: Decision | None) -> None:
        """Remove a wake annotation that has taken effect, so that it does not undo the next suspension.

        One that is made while the workload is being suspended is not granted yet, although replicas is still 1.
        """
        runs = scalable.spec.replicas == 1 and state.phase not in _WAKE_PENDING
        # Whether KEDA may have got an answer of 0 for it, as far as is known.
        may_suspend = self._decision_cache.evaluation is None or (decision and isinstance(decision.answer, Inactive))
        if has_wake_annotation(scalable.metadata.annotations) and runs and not may_suspend:
            await self._remove_annotation(SCALABLE_WORKLOAD, scalable.metadata)

    async def reconcile_scaled_object(self, key: Key) -> None:
        """Write what is owed to a ScaledObject: its record, limits of its keeps, the end of a wake-up.

        Raises: KubeError; try again later.
        """
        scaled_object, evaluation = self._cluster.scaled_objects.get(*key), self._decision_cache.evaluation
        entry = evaluation.entries.get(key) if evaluation is not None else None
        if scaled_object is None:
            return
        decision = prevailing(list(entry.triggers.values())) if entry is not None else None
        if await self._keeps.settle(scaled_object, [(SCALED_OBJECT, scaled_object.metadata)], decision):
            return
        is_scalable = is_scalable_workload(scaled_object.spec.scale_target_ref)
        if is_scalable or not own_triggers(scaled_object.spec.triggers, ()):  # it is another scaler's
            await self.statuses.clear_record(scaled_object)
        elif entry is not None:
            await self.statuses.write_record(scaled_object, entry)
        if has_wake_annotation(scaled_object.metadata.annotations) and self._has_taken_effect(scaled_object, entry):
            await self._remove_annotation(SCALED_OBJECT, scaled_object.metadata)

    def _has_taken_effect(self, scaled_object: ScaledObject, entry: EvaluatedScaledObject | None) -> bool:
        """Whether its wake-up has taken effect: KEDA gets 1 for the target, and the target is scaled to 1.

        One that is set while its target is being suspended stays, and counts from when it is suspended; so does one
        that alone can activate what another client has deactivated.
        """
        decisions = list(entry.triggers.values()) if entry is not None else []
        if not decisions or not all(map(_runs, decisions)):
            return False
        scalable = self._cluster.target_of(scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref)
        return scalable is None or state_of(self._cluster.situation(scalable)).phase is not Phase.DEACTIVATED_BY_OTHER

    async def _remove_annotation(self, resource: Resource, metadata: ObjectMeta) -> None:
        body = {"metadata": {"annotations": {WAKE_ANNOTATION: None}, "uid": metadata.uid}}
        await self._api.patch(resource.path(*metadata.key), body)


def step_patch(
    step: SuspensionStep,
    workload: ObservedWorkload,
    switched: SwitchedObject | None,
    *,
    cause: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    """The JSON merge patch by which it takes the step; `switched`: the object, of one with a switch of its own.

    `cause` is written as JSON, for people and for a later reader; where there is none our annotation is removed.
    """
    changes, restore = _changes(step, workload, switched, at=cause["at"] if cause is not None else "")
    mark = None if cause is None else msgspec.json.encode({**cause, **restore}).decode()
    annotations = {**changes.get("metadata", {}).get("annotations", {}), SUSPENDED_ANNOTATION: mark}
    metadata = {"uid": workload.uid, "resourceVersion": workload.resource_version, "annotations": annotations}
    return {**changes, "metadata": metadata}


def _changes(
    step: SuspensionStep, workload: ObservedWorkload, switched: SwitchedObject | None, *, at: str
) -> tuple[Patch, Mapping[str, Any]]:
    """What the step changes beside our annotation, and what that says besides: what the start has to restore."""
    if switched is None:
        return {"spec": {"active": step in (SuspensionStep.ACTIVATE, SuspensionStep.RELEASE_OWNERSHIP)}}, {}
    switch = SWITCHES[workload.resource.group, workload.resource.kind]
    match step:
        case SuspensionStep.DEACTIVATE:
            saved = switch.saved(switched)
            return switch.stop(switched, at), {} if saved is None else {"restore": saved}
        case SuspensionStep.ACTIVATE:
            return switch.start(switched), {}
    return {}, {}


def _may_be_deactivated(workload: ObservedWorkload) -> bool:
    return workload.active and not workload.is_remote_copy


_WAKE_PENDING = frozenset({Phase.DEACTIVATED_BY_OTHER, Phase.RESUMING, Phase.SUSPENDING, Phase.NO_WORKLOAD})


def _why(scalable: ScalableWorkload, decision: Decision | None) -> tuple[str, str]:
    """The reason and the words for a suspension: GPUs that were judged idle, or another client that scaled it to 0.

    The decision that KEDA acted on is either still in the DecisionCache, or was written to the status before; a
    restart in between loses nothing.
    """
    if decision is not None and isinstance(decision.answer, Inactive) and decision.answer.reason in FOUND_IDLE:
        return str(decision.answer.reason), decision.answer.message
    if scalable.status.reason in FOUND_IDLE:
        return scalable.status.reason, scalable.status.message
    return (
        SuspensionEventReason.SCALED_TO_ZERO,
        "replicas was set to 0 (kubectl scale, another trigger, or an annotation of KEDA's)",
    )


def _runs(decision: Decision) -> bool:
    return isinstance(decision.answer, Active) and decision.target.desired_replicas > 0


def record_on_both(
    announcer: EventSink,
    scalable: ScalableWorkload | None,
    workload: ObservedWorkload,
    reason: str,
    message: str,
) -> None:
    """One Event is recorded on what is scaled and on its ScalableWorkload, where there is one."""
    if scalable is not None:
        announcer.record(ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata), reason, message)
    announcer.record(ObjectReference.of(workload.resource, metadata_of(workload)), reason, message)
