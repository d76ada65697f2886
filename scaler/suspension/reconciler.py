"""Drives `Workload.spec.active`, or the switch of a kind that has its own, from `ScalableWorkload.spec.replicas`, and
writes down what was observed. Leader only.

Laws:

* Read → next step (pure, `transitions`) → re-check → act → observe, one ScalableWorkload at a time, level-triggered:
  whatever was missed is seen at the next round.
* Every write carries the resourceVersion that was decided upon; a conflict means looking again.
* A deactivation is re-checked against the API itself, not a copy: a scale-up of a moment ago wins.
* Nothing is announced that did not happen: the Event follows the patch.
* The spec of a remote copy of MultiKueue is never written.
* Of several ScalableWorkloads of one Workload only the oldest acts. Two that disagree would start and stop it for ever.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from scaler.decision.annotated_status import annotated_status, as_json, old_annotations
from scaler.decision.candidate import (
    HistoryLine,
    lines_of,
    next_set_back,
)
from scaler.decision.decision import Active, Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Key
from scaler.decision.describe import evidence, prevailing, timestamp
from scaler.decision.reasons import FOUND_IDLE, STATES, CandidateState, DecisionReason, SuspensionEventReason
from scaler.errors import KubeError
from scaler.idleness.policy import Policy
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import ObjectMeta, decode, last_writer
from scaler.kube.objects.idlegpu import ScalableWorkload, ScalableWorkloadStatus
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD, Resource
from scaler.kube.writes import WriteApi, log_refusal
from scaler.suspension.direct import DirectActuator
from scaler.suspension.keep_record import SUFFIX, KeepRecord
from scaler.suspension.keeps import KEEPS_ANNOTATION, Settled, encode_keeps, settle
from scaler.suspension.status import desired_status, is_worth_writing
from scaler.suspension.transitions import SuspensionStep, next_step, switch_patch, workload_patch
from scaler.targets.cluster_state import ClusterState
from scaler.targets.records import is_of_other_target, job_ref, record_body
from scaler.targets.scale_subresources import ScaleSubresources, is_scalable_workload, scalable_workload_ref
from scaler.targets.target_state import ObservedTarget, ObservedWorkload, Phase, SetBack, TargetState, state_of
from scaler.targets.workloads import (
    EXCLUDE,
    KEEP_FOR,
    KEEP_UNTIL,
    WAKE_ANNOTATION,
    Asker,
    is_when_free,
    observe,
    wake_request,
)

log = structlog.get_logger(__name__)

_ATTEMPTS = 4
_CONFLICT = 409
_STALE = UnknownReason.STALE_CLUSTER_VIEW

_CAUSE_GPUS = 8
"""GPUs listed in the annotation that says why a Workload was deactivated."""


_ANNOUNCED_PHASES: Mapping[Phase, tuple[str, bool]] = {
    Phase.REFUSED: (UnknownReason.UNSUPPORTED_WORKLOAD, True),
    Phase.DEACTIVATED_BY_OTHER: (SuspensionEventReason.DEACTIVATED_BY_OTHER, True),
    Phase.FINISHED: (DecisionReason.FINISHED, False),
    Phase.SUSPENDED: (SuspensionEventReason.PODS_GONE, False),
    Phase.WAITING_FOR_QUOTA: (DecisionReason.WAITING_FOR_QUOTA, False),
    Phase.RUNNING: (SuspensionEventReason.RUNNING, False),
    Phase.NO_WORKLOAD: (UnknownReason.WORKLOAD_MISSING, True),
}
"""Phases whose begin is an Event: (reason, whether a warning). NoWorkload is one only where there was a Workload."""


class WarningBudgets(Protocol):
    """How many workloads may be warned of a suspension. PolicyBudgets are such."""

    def lead(self) -> None:
        """This replica leads from now on."""

    def permits_warning(self, key: Key) -> bool:
        """Whether the budgets of the ScaledObject have room; if so, the warning counts from now on."""

    def next_in_line(self) -> list[Key]:
        """ScaledObjects that were refused, and would not be now."""


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
        self.budgets = budgets
        self._entered = entered
        """Called with the history of a workload, whose last line is the state that it has entered."""
        self._clock, self._scales = clock, scales
        self._keeps = KeepRecord(api, *keeps_in, lambda key: cluster.scaled_objects.get(*key) is not None)
        self._actuator = DirectActuator(api, cluster, decision_cache)

    def lead(self) -> None:
        """This replica leads from now on; others have written until then."""
        self._keeps.forget()
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
        situation, decision = self._situation(scalable), self._decision(scalable)
        if await self._settle_keeps(self._cluster.scaled_object_of(scalable), self._annotated(scalable), decision):
            return None
        if (unseen := situation.unseen) is not None and situation.was_bound and unseen.reason is _STALE:
            raise KubeError(f"its status stays as it is: {unseen.message}")
        state = state_of(situation)
        step = next_step(situation, state)
        if step is not None and situation.workload is not None:
            is_outdated = not await self._take(step, scalable, situation.workload, decision)
            if is_outdated:
                return state.phase
        await self._write_status(scalable, state, situation.workload, decision)
        await self._remove_wake(scalable, state, decision)
        await self._actuator.scale(scalable)
        return state.phase

    def _decision(self, scalable: ScalableWorkload) -> Decision | None:
        evaluation = self._decision_cache.evaluation
        if evaluation is None:
            return None
        target = scalable_workload_ref(scalable.metadata.name)
        return prevailing(evaluation.decisions_on(scalable.metadata.namespace, target))

    def _situation(self, scalable: ScalableWorkload) -> ObservedTarget:
        situation = self._cluster.situation(scalable)
        if state_of(situation).phase is Phase.DEACTIVATED_BY_OTHER and self._is_wake_requested(scalable):
            return replace(situation, wakes_foreign=True)
        return situation

    def _is_wake_requested(self, scalable: ScalableWorkload) -> bool:
        """Whether its owner has set the wake annotation on a ScaledObject that scales it."""
        target = scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name)
        suspended_at = scalable.status.suspended_at
        return any(
            wake_request(each.metadata.annotations, where="", suspended_at=suspended_at)
            for each in self._cluster.scaled_objects.by_index("target", target)
        )

    # --------------------------------------------------------------------------------------------------------- steps

    async def _take(
        self, step: SuspensionStep, scalable: ScalableWorkload, workload: ObservedWorkload, decision: Decision | None
    ) -> bool:
        """Whether the step was taken; False where it turned out not to be wanted any more."""
        match step:
            case SuspensionStep.DEACTIVATE:
                if not await self.is_wanted_at_zero(scalable):
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
                message = f"activated {workload.kind} {workload.name}: replicas is 1"
                self._record_on_both(scalable, workload, SuspensionEventReason.RESUMED, message)
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
        what = f"deactivated {workload.kind} {workload.name}{again}: {message}"
        self._record_on_both(scalable, workload, reason, what)

    async def is_wanted_at_zero(self, scalable: ScalableWorkload) -> bool:
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
        switched = self._cluster.switched_of(scalable)
        if switched is None:
            path, body = WORKLOAD.path(workload.namespace, workload.name), workload_patch(workload, cause=cause)
        else:
            switch, found = switched
            if isinstance(found, Unknown) or found.metadata.resource_version != workload.resource_version:
                raise KubeError(f"{workload.kind} {workload.namespace}/{workload.name} has changed", status=_CONFLICT)
            path = switch.resource.path(workload.namespace, workload.name)
            body = switch_patch(step, switch, found, cause=cause or {})
        await self._api.patch(path, body)

    def _record_on_both(
        self, scalable: ScalableWorkload, workload: ObservedWorkload, reason: str, message: str
    ) -> None:
        switched = self._cluster.switched_of(scalable)
        resource = WORKLOAD if switched is None else switched[0].resource
        record_on_both(self._announcer, scalable, workload, reason, message, resource=resource)

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

    # -------------------------------------------------------------------------------------------------------- status

    async def _write_status(
        self,
        scalable: ScalableWorkload,
        state: TargetState,
        workload: ObservedWorkload | None,
        decision: Decision | None,
    ) -> None:
        scaled_by = self._cluster.scaled_object_of(scalable)
        status = desired_status(
            scalable,
            state,
            workload,
            decision,
            is_evaluated=self._decision_cache.evaluation is not None,
            asked_by=self._asked_by(scalable, decision),
            now=self._clock(),
            scaled_by=scaled_by,
            set_back=await self._set_back(scalable, workload, decision),
            permits_warning=lambda: self._permits_warning(scaled_by),
        )
        if await self._is_written(scalable, status):
            about = [(SCALABLE_WORKLOAD, scalable.metadata), *self._annotated(scalable)[1:]]
            also = [] if scaled_by is None else [(scaled_by.resource, scaled_by.metadata)]
            self._announce_changes(scalable.status, status, [*about, *also])
            self._announce_phase(scalable, state)

    async def _is_written(self, scalable: ScalableWorkload, status: Mapping[str, Any]) -> bool:
        """Whether anything of it was worth a write. Raises: KubeError."""
        if not is_worth_writing(scalable.status, status):
            return False
        body = {"metadata": {"resourceVersion": scalable.metadata.resource_version}, "status": status}
        await self._api.patch(SCALABLE_WORKLOAD.path(*scalable.metadata.key, "status"), body)
        return True

    def _announce_changes(
        self, before: ScalableWorkloadStatus, status: Mapping[str, Any], objects: Sequence[tuple[Resource, ObjectMeta]]
    ) -> None:
        """The Events of what is new in the status: on the first of the objects, and some on all."""
        if status["warnedAt"] and status["warnedAt"] != timestamp(before.warned_at):
            message = _warning(status["idleSince"], status["suspendAt"], at_least=bool(status.get("idleAtLeast")))
            about = ObjectReference.of(*objects[0])
            self._announcer.record(about, SuspensionEventReason.SUSPEND_SOON, message, warning=True)
        if "history" in status:
            self._announce_state(lines_of(map(msgspec.json.encode, status["history"])), *objects)

    def _announce_phase(self, scalable: ScalableWorkload, state: TargetState) -> None:
        is_known = state.phase is not Phase.NO_WORKLOAD or scalable.status.workload_uid
        if state.phase != scalable.status.phase and is_known and state.phase in _ANNOUNCED_PHASES:
            reason, is_warning = _ANNOUNCED_PHASES[state.phase]
            if state.phase is Phase.REFUSED and state.doubt is not None:
                reason = state.doubt.reason
            about = ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata)
            self._announcer.record(about, reason, state.message, warning=is_warning)

    def _announce_state(self, history: Sequence[HistoryLine], *objects: tuple[Resource, ObjectMeta]) -> None:
        """The Event of a state that was entered, unless another Event of the same moment tells of it.

        It is on the first object; that a suspension was set back is on all.
        """
        line = history[-1]
        row, is_set_back = STATES[CandidateState(line.state)], line.reason == DecisionReason.SET_BACK
        self._entered(history)
        event, is_warning = (line.reason, line.times != 1) if is_set_back else (row.event, row.is_warning)
        about = tuple(dict.fromkeys(ObjectReference.of(*each) for each in objects))
        for each in about if is_set_back else about[: bool(event)]:
            self._announcer.record(each, event, line.message, warning=is_warning)

    async def _set_back(
        self, scalable: ScalableWorkload, workload: ObservedWorkload | None, decision: Decision | None
    ) -> SetBack | None:
        """The client that has set its replicas, or activated its Workload; who removes annotations is not known.

        What a plan gives back when its grant ends is started by this scaler.
        """
        is_given_back = scalable.status.grant is not None and not (decision and decision.target.grant)
        if decision is None or workload is None or is_given_back:
            return None
        history, down_since = lines_of(scalable.status.history), workload.suspended_at or scalable.status.suspended_at
        found = next_set_back(history, decision, down_since=down_since, now=self._clock())
        if found is None or not (scalable.spec.replicas or workload.has_quota):
            return found
        path, field = SCALABLE_WORKLOAD.path(*scalable.metadata.key), "replicas"
        if not scalable.spec.replicas:
            path, field = WORKLOAD.path(workload.namespace, workload.name), "active"
        try:
            return _by(found, last_writer(await self._api.get(path), field))
        except KubeError:
            return found

    def _permits_warning(self, scaled_object: ScaledObject | None) -> bool:
        return self.budgets is None or scaled_object is None or self.budgets.permits_warning(scaled_object.metadata.key)

    def _asked_by(self, scalable: ScalableWorkload, decision: Decision | None) -> str:
        """Who has asked for what it is kept or woken for, as far as annotations beside that request say so."""
        target = scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name)
        objects = [scalable.metadata, *(x.metadata for x in self._cluster.scaled_objects.by_index("target", target))]
        is_woken = decision is not None and decision.answer.reason is DecisionReason.WAKING
        requests = {WAKE_ANNOTATION} if is_woken else {KEEP_UNTIL, KEEP_FOR, EXCLUDE}
        asking = [each for each in objects if each.annotations.keys() & requests] or objects
        return next((by for each in asking if (by := str(Asker.of(each.annotations)))), "")

    # ------------------------------------------------------------------------------------------------ wake annotations

    async def _remove_wake(self, scalable: ScalableWorkload, state: TargetState, decision: Decision | None) -> None:
        """Remove a wake annotation that has taken effect, so that it does not undo the next suspension.

        One that is made while the workload is being suspended is not granted yet, although replicas is still 1.
        """
        runs = scalable.spec.replicas == 1 and state.phase not in _WAKE_PENDING
        # Whether KEDA may have got an answer of 0 for it, as far as is known.
        may_suspend = self._decision_cache.evaluation is None or (decision and isinstance(decision.answer, Inactive))
        if has_wake_annotation(scalable.metadata) and runs and not may_suspend:
            await self._remove_annotation(SCALABLE_WORKLOAD, scalable.metadata)

    async def reconcile_scaled_object(self, key: Key) -> None:
        """Write what is owed to a ScaledObject: its record, limits of its keeps, the end of a wake-up.

        Raises: KubeError; try again later.
        """
        scaled_object, entry = self._cluster.scaled_objects.get(*key), self._entry_of(key)
        if scaled_object is None:
            return
        decision = _prevailing(entry) if entry is not None else None
        if await self._settle_keeps(scaled_object, [(SCALED_OBJECT, scaled_object.metadata)], decision):
            return
        if entry is not None and not is_scalable_workload(scaled_object.spec.scale_target_ref):
            await self._write_record(scaled_object, entry)
        if has_wake_annotation(scaled_object.metadata) and self._has_taken_effect(scaled_object, entry):
            await self._remove_annotation(SCALED_OBJECT, scaled_object.metadata)

    def _annotated(self, scalable: ScalableWorkload) -> list[tuple[Resource, ObjectMeta]]:
        """The ScalableWorkload and what it scales: objects whose annotations keep it."""
        found, switched = [(SCALABLE_WORKLOAD, scalable.metadata)], self._cluster.switched_of(scalable)
        if (scaled := self._cluster.scaled_metadata(scalable)) is not None:
            found.append((WORKLOAD if switched is None else switched[0].resource, scaled[1]))
        return found

    def _entry_of(self, key: Key) -> EvaluatedScaledObject | None:
        evaluation = self._decision_cache.evaluation
        return evaluation.entries.get(key) if evaluation is not None else None

    async def _settle_keeps(
        self,
        scaled_object: ScaledObject | None,
        annotated: Iterable[tuple[Resource, ObjectMeta]],
        decision: Decision | None,
    ) -> bool:
        """Limit what owners ask to be kept, as the policy says; whether anything was written."""
        recorded = scaled_object.metadata if scaled_object is not None else ObjectMeta()
        policy = decision.policy if decision is not None and scaled_object is not None else None
        for resource, metadata in annotated:
            settled = await self._settled(recorded.key, metadata, f"{resource.kind} {metadata.name}", policy)
            written = {resource.path(*metadata.key): (metadata, dict(settled.annotations))}
            if settled.keeps and scaled_object is not None:
                path = scaled_object.resource.path(*recorded.key)
                annotations = written.get(path, (recorded, {}))[1] | {KEEPS_ANNOTATION: encode_keeps(settled.keeps)}
                written[path] = recorded, annotations
            for path, (on, annotations) in written.items():
                if annotations:
                    body = {"metadata": {"annotations": annotations, "resourceVersion": on.resource_version}}
                    await self._api.patch(path, body)
            if settled.refused:
                about = ObjectReference.of(resource, metadata)
                self._announcer.record(about, SuspensionEventReason.KEEP_REFUSED, settled.refused, warning=True)
            if settled.keeps or settled.annotations:
                return True
        return False

    async def _settled(self, key: Key, metadata: ObjectMeta, where: str, policy: Policy | None) -> Settled:
        """What becomes of the annotations, with each new use recorded. Without the record nothing is limited."""
        now, unlimited = self._clock(), settle(metadata.annotations, where, keeps=(), policy=None, now=self._clock())
        is_kept = metadata.annotations.keys() & {KEEP_UNTIL, KEEP_FOR, EXCLUDE}
        if policy is None or not policy.limits_keeps or not is_kept:
            return unlimited
        try:
            async with self._keeps.lock:
                keeps = await self._keeps.of(key)
                settled = (limit := partial(settle, metadata.annotations, where, keeps=keeps, policy=policy, now=now))()
                if settled.keeps and not await self._keeps.write(key, settled.keeps, now):
                    settled = limit(is_full=True)
        except KubeError as error:
            log_refusal(log, "keeps are not limited yet", error, about=where, namespace=metadata.namespace)
            return unlimited
        return settled

    async def _write_record(self, scaled_object: ScaledObject, entry: EvaluatedScaledObject) -> None:
        """The status of what it scales, where that has none of its own, and the Events of it. Raises: KubeError."""
        decision, metadata, target = _prevailing(entry), scaled_object.metadata, scaled_object.spec.scale_target_ref
        if decision is None or not self._cluster.has_records(metadata.namespace):
            return
        record = self._cluster.record_of(scaled_object) or await self._create_record(scaled_object)
        if is_of_other_target(record, target):
            body = {"metadata": {"uid": record.metadata.uid}, "spec": {"jobRef": job_ref(target)}}
            await self._api.patch(SCALABLE_WORKLOAD.path(*record.metadata.key), body)
            return
        known, annotated = record, ScalableWorkloadStatus()
        if not record.status.state:
            annotated = annotated_status(metadata.annotations, self._clock())
            known = msgspec.structs.replace(record, status=annotated)
        status = as_json(annotated) | desired_status(
            known,
            decision.target,
            None,
            decision,
            asked_by=str(Asker.of(metadata.annotations)),
            now=self._clock(),
            set_back=await self._set_back_of_scale(known, entry, decision),
            permits_warning=partial(self._permits_warning, scaled_object),
        )
        if await self._is_written(record, status):
            seen = self._scales.object_of(metadata.namespace, target) if self._scales is not None else None
            objects = [(SCALED_OBJECT, metadata), *([seen] if seen is not None else [])]
            self._announce_changes(known.status, status, objects)
        elif record.status.state and (old := old_annotations(metadata.annotations)):
            await self._api.patch(SCALED_OBJECT.path(*metadata.key), {"metadata": {"annotations": old}})

    async def _create_record(self, scaled_object: ScaledObject) -> ScalableWorkload:
        """Raises: KubeError; 409 where it is there, and not seen yet."""
        namespace = scaled_object.metadata.namespace
        body = record_body(
            scaled_object, is_taken=lambda name: self._cluster.scalable_workloads.get(namespace, name) is not None
        )
        return decode(ScalableWorkload, await self._api.create(SCALABLE_WORKLOAD.path(namespace), body))

    async def _set_back_of_scale(
        self, record: ScalableWorkload, entry: EvaluatedScaledObject, decision: Decision
    ) -> SetBack | None:
        pods = [each.started_at for each in entry.pods if each.is_member and each.started_at]
        history, down_since = lines_of(record.status.history), min(pods, default=None)
        found = next_set_back(history, decision, down_since=down_since, now=self._clock())
        if found is None or self._scales is None:
            return found
        return _by(found, await self._scales.scaled_last_by(record.metadata.namespace, entry.target))

    def _has_taken_effect(self, scaled_object: ScaledObject, entry: EvaluatedScaledObject | None) -> bool:
        """Whether its wake-up has taken effect: KEDA gets 1 for the target, and the target is scaled to 1.

        One that is set while its target is being suspended stays, and counts from when it is suspended.
        """
        decisions = list(entry.triggers.values()) if entry is not None else []
        return bool(decisions) and all(map(_runs, decisions)) and not self._is_still_needed(scaled_object)

    def _is_still_needed(self, scaled_object: ScaledObject) -> bool:
        """Whether its target is scaled to 1, and yet only this annotation can activate its Workload."""
        scalable = self._cluster.target_of(scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref)
        return scalable is not None and state_of(self._cluster.situation(scalable)).phase is Phase.DEACTIVATED_BY_OTHER

    async def _remove_annotation(self, resource: Resource, metadata: ObjectMeta) -> None:
        body = {"metadata": {"annotations": {WAKE_ANNOTATION: None}, "uid": metadata.uid}}
        await self._api.patch(resource.path(*metadata.key), body)


def _may_be_deactivated(workload: ObservedWorkload) -> bool:
    return workload.active and not workload.is_remote_copy


def _by(set_back: SetBack, client: str) -> SetBack | None:
    """None where KEDA has started it, as another trigger of the ScaledObject asks for it, or this scaler."""
    return None if client.startswith(("keda", "idle-gpu-scaler")) else set_back._replace(by=client)


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


def _warning(idle_since: str | None, suspend_at: str | None, *, at_least: bool) -> str:
    then = f"suspended at {suspend_at}" if suspend_at else "may be suspended for a pending Workload that needs them"
    return f"GPUs idle {'at least ' * at_least}since {idle_since}; {then}"


def _prevailing(entry: EvaluatedScaledObject) -> Decision | None:
    return prevailing(list(entry.triggers.values()))


def _runs(decision: Decision) -> bool:
    return isinstance(decision.answer, Active) and decision.target.desired_replicas > 0


def has_wake_annotation(metadata: ObjectMeta) -> bool:
    """Whether a wake-up is requested, for now or for when there is room; the value `false` requests none, and stays."""
    annotations = metadata.annotations
    return is_when_free(annotations) or bool(wake_request(annotations, where="", suspended_at=None))


def record_on_both(
    announcer: EventSink,
    scalable: ScalableWorkload | None,
    workload: ObservedWorkload,
    reason: str,
    message: str,
    *,
    resource: Resource = WORKLOAD,
) -> None:
    """One Event is recorded on what is scaled and on its ScalableWorkload, where there is one."""
    if scalable is not None:
        announcer.record(ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata), reason, message)
    observed = ObjectMeta(name=workload.name, namespace=workload.namespace, uid=workload.uid)
    announcer.record(ObjectReference.of(resource, observed), reason, message)
