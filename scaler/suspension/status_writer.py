"""Writes the status of every workload: of a ScalableWorkload, and the record of what has no status of its own.

Laws:

* The Events of what is new follow the write that says it.
* A record is created when its ScaledObject is decided about for the first time; what 0.1.0 has written in annotations
  is read into it once, and removed from the ScaledObject after that.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from scaler.decision.annotated_status import annotated_status, as_json, old_annotations
from scaler.decision.candidate import (
    HistoryLine,
    lines_of,
    next_line,
    next_set_back,
)
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Key
from scaler.decision.describe import prevailing, timestamp
from scaler.decision.reasons import STATES, CandidateState, DecisionReason, SuspensionEventReason
from scaler.errors import KubeError
from scaler.idleness.reasons import UnknownReason
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import ObjectMeta, decode, last_writer
from scaler.kube.objects.idlegpu import ScalableWorkload, ScalableWorkloadStatus
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD, Resource
from scaler.kube.writes import WriteApi
from scaler.suspension.status import desired_status, is_worth_writing, last_line, next_warned_at
from scaler.targets.cluster_state import ClusterState
from scaler.targets.records import is_of, job_ref, record_body
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.target_state import ObservedWorkload, Phase, SetBack, TargetState
from scaler.targets.workloads import (
    EXCLUDE,
    KEEP_FOR,
    KEEP_UNTIL,
    WAKE_ANNOTATION,
    Asker,
)


class WarningBudgets(Protocol):
    """How many workloads may be warned of a suspension. PolicyBudgets are such."""

    def lead(self) -> None:
        """This replica leads from now on."""

    def permits_warning(self, key: Key) -> bool:
        """Whether the budgets of the ScaledObject have room; if so, the warning counts from now on."""

    def next_in_line(self) -> list[Key]:
        """ScaledObjects that were refused, and would not be now."""


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


class StatusWriter:
    """`entered` is called with the history of a workload, whose last line is the state that it has entered."""

    def __init__(
        self,
        api: WriteApi,
        cluster: ClusterState,
        decision_cache: DecisionCache,
        announcer: EventSink,
        *,
        budgets: WarningBudgets | None = None,
        scales: ScaleSubresources | None = None,
        entered: Callable[[Sequence[HistoryLine]], None] = lambda _history: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._cluster, self._decision_cache = api, cluster, decision_cache
        self._announcer, self._scales, self._entered, self._clock = announcer, scales, entered, clock
        self._budgets = budgets
        self._written: dict[str, ScalableWorkloadStatus] = {}
        """What records have said, by uid of the ScaledObject: who deletes a record gains nothing by it."""

    def lead(self) -> None:
        """This replica leads from now on; others have written until then."""
        self._written.clear()

    def forget(self, uid: str) -> None:
        """The ScaledObject is gone."""
        self._written.pop(uid, None)

    # ------------------------------------------------------------------------------------------- of ScalableWorkloads

    async def write(
        self,
        scalable: ScalableWorkload,
        state: TargetState,
        workload: ObservedWorkload | None,
        decision: Decision | None,
        *,
        scaled_by: Sequence[ScaledObject],
        annotated: Sequence[tuple[Resource, ObjectMeta]],
    ) -> None:
        """`annotated`: the objects that its Events are on, beside the first of `scaled_by`. Raises: KubeError."""
        scaler, set_back = next(iter(scaled_by), None), await self._set_back(scalable, workload, decision)
        by = _asked_by([scalable.metadata, *(each.metadata for each in scaled_by)], decision)
        status = self._desired(scalable, state, workload, decision, scaled_by=scaler, set_back=set_back, by=by)
        if await self._is_written(scalable, status):
            on_scaler = [(each.resource, each.metadata) for each in scaled_by[:1]]
            self._announce_changes(scalable.status, status, [*annotated, *on_scaler])
            self._announce_phase(scalable, state)

    def _desired(
        self,
        scalable: ScalableWorkload,
        state: TargetState,
        workload: ObservedWorkload | None,
        decision: Decision | None,
        *,
        scaled_by: ScaledObject | None,
        set_back: SetBack | None,
        by: str,
    ) -> dict[str, Any]:
        """What the status shall be. A warning that is due is not given without room in the budgets."""
        now, before = self._clock(), scalable.status
        warned_at = next_warned_at(before.warned_at, decision, now=now)
        is_new = warned_at not in (None, before.warned_at)
        if is_new and scaled_by and self._budgets and not self._budgets.permits_warning(scaled_by.metadata.key):
            warned_at = None
        last = last_line(before.history)
        line = next_line(last, decision, target=state, warned_at=warned_at, by=by, set_back=set_back, now=now)
        return desired_status(
            scalable,
            state,
            workload,
            decision,
            line=line,
            warned_at=warned_at,
            is_evaluated=self._decision_cache.evaluation is not None,
            scaled_by=scaled_by,
            now=now,
        )

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

    # ------------------------------------------------------------------------------------------------------ of records

    async def write_record(self, scaled_object: ScaledObject, entry: EvaluatedScaledObject) -> None:
        """The status of what it scales, where that has none of its own, and the Events of it. Raises: KubeError."""
        decision = prevailing(list(entry.triggers.values()))
        metadata, target = scaled_object.metadata, scaled_object.spec.scale_target_ref
        is_of_before = entry.target != target  # it is evaluated again soon
        if decision is None or is_of_before or not self._cluster.has_records(metadata.namespace):
            return
        record = self._cluster.own_record(scaled_object) or await self._create_record(scaled_object)
        if not is_of(record, target):
            await self.clear_record(scaled_object)
            body = {"metadata": {"uid": record.metadata.uid}, "spec": {"jobRef": job_ref(target)}}
            await self._api.patch(SCALABLE_WORKLOAD.path(*record.metadata.key), body)
            return
        known, before = record, ScalableWorkloadStatus()
        if not record.status.state:
            before = self._written.get(metadata.uid) or annotated_status(metadata.annotations, self._clock())
            known = msgspec.structs.replace(record, status=before)
        set_back, by = await self._set_back_of_scale(known, entry, decision), str(Asker.of(metadata.annotations))
        status = as_json(before) | self._desired(
            known, decision.target, None, decision, scaled_by=scaled_object, set_back=set_back, by=by
        )
        if await self._is_written(record, status):
            seen = self._scales.object_of(metadata.namespace, target) if self._scales is not None else None
            objects = [(SCALED_OBJECT, metadata), *([seen] if seen is not None else [])]
            self._announce_changes(known.status, status, objects)
        elif record.status.state:
            self._written[metadata.uid] = record.status
            if old := old_annotations(metadata.annotations):
                await self._api.patch(SCALED_OBJECT.path(*metadata.key), {"metadata": {"annotations": old}})

    async def clear_record(self, scaled_object: ScaledObject) -> None:
        """Empties a record about which nothing is decided: what it says will not stay true. Raises: KubeError."""
        record = self._cluster.own_record(scaled_object)
        self._written.pop(scaled_object.metadata.uid, None)
        if record is None or record.status == ScalableWorkloadStatus():
            return
        names = msgspec.structs.fields(ScalableWorkloadStatus)
        body = {
            "metadata": {"resourceVersion": record.metadata.resource_version},
            "status": {each.encode_name: None for each in names},
        }
        await self._api.patch(SCALABLE_WORKLOAD.path(*record.metadata.key, "status"), body)

    async def _create_record(self, scaled_object: ScaledObject) -> ScalableWorkload:
        path = SCALABLE_WORKLOAD.path(scaled_object.metadata.namespace)
        return decode(ScalableWorkload, await self._api.create(path, record_body(scaled_object)))

    async def _set_back_of_scale(
        self, record: ScalableWorkload, entry: EvaluatedScaledObject, decision: Decision
    ) -> SetBack | None:
        pods = [each.started_at for each in entry.pods if each.is_member and each.started_at]
        history, down_since = lines_of(record.status.history), min(pods, default=None)
        found = next_set_back(history, decision, down_since=down_since, now=self._clock())
        if found is None or self._scales is None:
            return found
        return _by(found, await self._scales.scaled_last_by(record.metadata.namespace, entry.target))


def _asked_by(objects: Sequence[ObjectMeta], decision: Decision | None) -> str:
    """Who has asked for what it is kept or woken for, as far as annotations beside that request say so."""
    is_woken = decision is not None and decision.answer.reason is DecisionReason.WAKING
    requests = {WAKE_ANNOTATION} if is_woken else {KEEP_UNTIL, KEEP_FOR, EXCLUDE}
    asking = [each for each in objects if each.annotations.keys() & requests] or objects
    return next((by for each in asking if (by := str(Asker.of(each.annotations)))), "")


def _by(set_back: SetBack, client: str) -> SetBack | None:
    """The change with its client; None where KEDA has started it, as another trigger asks for it, or this scaler."""
    return None if client.startswith(("keda", "idle-gpu-scaler")) else set_back._replace(by=client)


def _warning(idle_since: str | None, suspend_at: str | None, *, at_least: bool) -> str:
    then = f"suspended at {suspend_at}" if suspend_at else "may be suspended for a pending Workload that needs them"
    return f"GPUs idle {'at least ' * at_least}since {idle_since}; {then}"
