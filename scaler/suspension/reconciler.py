"""Drives `Workload.spec.active` from `ScalableWorkload.spec.replicas`, and writes down what was observed. Leader only.

Laws:

* Read → next step (pure, `transitions`) → re-check → act → observe, one ScalableWorkload at a time, level-triggered:
  whatever was missed is seen at the next round.
* Every write carries the resourceVersion that was decided upon; a conflict means looking again.
* A deactivation is re-checked against the API itself, not a copy: a scale-up of a moment ago wins.
* Nothing is announced that did not happen: the Event follows the patch.
* Of several ScalableWorkloads of one Workload only the oldest acts. Two that disagree would start and stop it for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
import structlog

from scaler.decision.annotations import WAKE_ANNOTATION, wake_request
from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision import Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, Key
from scaler.decision.describe import evidence, prevailing, timestamp
from scaler.decision.scale_subresources import scalable_workload_ref
from scaler.decision.target_state import ObservedTarget, ObservedWorkload, Phase, TargetState, state_of
from scaler.decision.workloads import observe
from scaler.errors import KubeError
from scaler.idleness.reasons import DecisionReason, SuspensionEventReason, UnknownReason
from scaler.kube.events import ObjectReference
from scaler.kube.objects.core import ObjectMeta, decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, WORKLOAD
from scaler.suspension.leader_api import PatchApi
from scaler.suspension.patches import activate, deactivate
from scaler.suspension.status import desired_status, is_worth_writing
from scaler.suspension.transitions import SuspensionStep, next_step

log = structlog.get_logger(__name__)

_ATTEMPTS = 4
_CONFLICT = 409

_CAUSE_GPUS = 8
"""GPUs listed in the annotation that says why a Workload was deactivated."""


class EventSink(Protocol):
    """Records Events on objects. An EventRecorder is one."""

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        """Never blocks and never fails the caller."""


_ANNOUNCED_PHASES: Mapping[Phase, tuple[str, bool]] = {
    Phase.REFUSED: (UnknownReason.UNSUPPORTED_WORKLOAD, True),
    Phase.DEACTIVATED_BY_OTHER: (SuspensionEventReason.DEACTIVATED_BY_OTHER, True),
    Phase.FINISHED: (DecisionReason.FINISHED, False),
    Phase.SUSPENDED: (SuspensionEventReason.PODS_GONE, False),
    Phase.WAITING_FOR_QUOTA: (DecisionReason.WAITING_FOR_QUOTA, False),
    Phase.RUNNING: (SuspensionEventReason.RUNNING, False),
}
"""Phases whose begin is an Event: (reason, whether a warning)."""


class SuspensionReconciler:
    """Reconciles one ScalableWorkload at a time."""

    def __init__(
        self,
        api: PatchApi,
        cluster: ClusterState,
        board: DecisionCache,
        announcer: EventSink,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._board = board
        self._announcer = announcer
        self._clock = clock

    async def reconcile(self, key: Key) -> Phase | None:
        """Take the next step for the ScalableWorkload and write its status; returns the phase that was found.

        None for one that is gone or going. Raises: KubeError; try again later.
        """
        scalable = self._cluster.scalable_workloads.get(*key)
        if scalable is None or scalable.metadata.deletion_timestamp is not None:
            return None
        if unlisted := self._cluster.unlisted_in(key[0]):
            raise KubeError(f"namespace {key[0]} cannot be seen whole, so nothing is done in it: {unlisted}")
        situation, decision = self._situation(scalable), self._decision(scalable)
        state = state_of(situation)
        step = next_step(situation, state)
        if step is not None and situation.workload is not None:
            is_outdated = not await self._take(step, scalable, situation.workload, decision)
            if is_outdated:
                return state.phase
        await self._write_status(scalable, state, situation.workload, decision)
        await self._remove_wake(scalable, state, decision)
        return state.phase

    def _decision(self, scalable: ScalableWorkload) -> Decision | None:
        evaluation = self._board.evaluation
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
                return await self._deactivate(scalable, workload, decision)
            case SuspensionStep.ADOPT:
                cause = self._cause(scalable, decision, SuspensionEventReason.SCALED_TO_ZERO, "it was inactive already")
                await self._patch_workload(workload, deactivate(workload, cause=cause))
            case SuspensionStep.RELEASE_OWNERSHIP:
                await self._patch_workload(workload, activate(workload))
            case SuspensionStep.ACTIVATE:
                await self._patch_workload(workload, activate(workload))
                self._tell_both(
                    scalable,
                    workload,
                    SuspensionEventReason.RESUMED,
                    f"activated Workload {workload.name}: replicas is 1",
                )
        return True

    async def suspend(self, key: Key) -> None:
        """Deactivate the Workload of a plan's victim now; the plan has made sure that it is still wanted at 0.

        A conflict is answered by looking again, at once and a few times: every moment in which one victim of a plan
        is deactivated and another is not, others may take what was freed. Raises: KubeError after that.
        """
        for attempt in range(_ATTEMPTS):
            scalable = self._cluster.scalable_workloads.get(*key)
            workload = self._cluster.situation(scalable).workload if scalable is not None else None
            if scalable is None or workload is None or not workload.active:
                return
            try:
                fresh = await self._fresh(workload) if attempt else workload
                if not fresh.active:
                    return
                await self._deactivate_now(scalable, fresh, self._decision(scalable))
            except KubeError as error:
                if error.status != _CONFLICT or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _fresh(self, workload: ObservedWorkload) -> ObservedWorkload:
        """The same as the API has it now. Raises: KubeError."""
        found = decode(KueueWorkload, await self._api.get(WORKLOAD.path(workload.namespace, workload.name)))
        if found.metadata.uid != workload.uid:
            raise KubeError(f"Workload {workload.namespace}/{workload.name} was replaced by another", status=404)
        return observe(found, self._cluster.gpus)

    async def _deactivate(
        self, scalable: ScalableWorkload, workload: ObservedWorkload, decision: Decision | None
    ) -> bool:
        if not await self.is_wanted_at_zero(scalable):
            log.info("suspension called off: replicas is no longer 0", scalable_workload=scalable.metadata.key)
            return False
        await self._deactivate_now(scalable, workload, decision)
        return True

    async def _deactivate_now(
        self, scalable: ScalableWorkload, workload: ObservedWorkload, decision: Decision | None
    ) -> None:
        reason, message = _why(scalable, decision)
        cause = self._cause(scalable, decision, reason, message)
        await self._patch_workload(workload, deactivate(workload, cause=cause))
        again = " again (Kueue had recreated it as active)" if scalable.status.phase == Phase.SUSPENDED else ""
        self._tell_both(scalable, workload, reason, f"deactivated Workload {workload.name}{again}: {message}")

    async def is_wanted_at_zero(self, scalable: ScalableWorkload) -> bool:
        """Whether the API itself, and not a copy, has it at replicas 0. Raises: KubeError."""
        path = SCALABLE_WORKLOAD.path(*scalable.metadata.key)
        fresh = decode(ScalableWorkload, await self._api.get(path))
        return fresh.metadata.uid == scalable.metadata.uid and fresh.spec.replicas == 0

    async def _patch_workload(self, workload: ObservedWorkload, body: Mapping[str, Any]) -> None:
        await self._api.patch(WORKLOAD.path(workload.namespace, workload.name), body)

    def _cause(self, scalable: ScalableWorkload, decision: Decision | None, reason: str, message: str) -> str:
        """The annotation on a Workload that says when, by what and why it was deactivated. JSON."""
        gpus = evidence(decision.verdict) if decision else []
        cause = {
            "at": timestamp(self._clock()),
            "by": f"ScalableWorkload/{scalable.metadata.name}",
            "reason": reason,
            "message": message,
            "idleSince": timestamp(scalable.status.idle_since),
            "evidence": gpus[:_CAUSE_GPUS] or _remembered(scalable)[:_CAUSE_GPUS],
        }
        return msgspec.json.encode({name: value for name, value in cause.items() if value}).decode()

    def _tell_both(self, scalable: ScalableWorkload, workload: ObservedWorkload, reason: str, message: str) -> None:
        observed = ObjectMeta(name=workload.name, namespace=workload.namespace, uid=workload.uid)
        self._announcer.record(ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata), reason, message)
        self._announcer.record(ObjectReference.of(WORKLOAD, observed), reason, message)

    # -------------------------------------------------------------------------------------------------------- status

    async def _write_status(
        self,
        scalable: ScalableWorkload,
        state: TargetState,
        workload: ObservedWorkload | None,
        decision: Decision | None,
    ) -> None:
        is_evaluated = self._board.evaluation is not None
        status = desired_status(scalable, state, workload, decision, is_evaluated=is_evaluated, now=self._clock())
        if not is_worth_writing(scalable.status, status):
            return
        body = {"metadata": {"resourceVersion": scalable.metadata.resource_version}, "status": status}
        await self._api.patch(SCALABLE_WORKLOAD.path(*scalable.metadata.key, "status"), body)
        self._announce_changes(scalable, state, status)

    def _announce_changes(self, scalable: ScalableWorkload, state: TargetState, status: Mapping[str, Any]) -> None:
        def tell(reason: str, message: str, *, warning: bool) -> None:
            self._announcer.record(about, reason, message, warning=warning)

        about = ObjectReference.of(SCALABLE_WORKLOAD, scalable.metadata)
        if status["warnedAt"] and status["warnedAt"] != timestamp(scalable.status.warned_at):
            tell(
                SuspensionEventReason.SUSPEND_SOON,
                f"GPUs idle since {status['idleSince']}; suspended at {status['suspendAt']}",
                warning=True,
            )
        if state.phase == scalable.status.phase:
            return
        if state.phase is Phase.NO_WORKLOAD and scalable.status.workload_uid:
            tell(UnknownReason.WORKLOAD_MISSING, state.message, warning=True)
        elif state.phase in _ANNOUNCED_PHASES:
            reason, is_warning = _ANNOUNCED_PHASES[state.phase]
            tell(reason, state.message, warning=is_warning)

    async def _remove_wake(self, scalable: ScalableWorkload, state: TargetState, decision: Decision | None) -> None:
        """Remove a wake annotation that has taken effect, so that it does not undo the next suspension.

        One that is made while the workload is being suspended is not granted yet, although replicas is still 1.
        """
        is_wake_requested = bool(wake_request(scalable.metadata.annotations, where="", suspended_at=None))
        runs = scalable.spec.replicas == 1 and state.phase not in _WAKE_PENDING
        if not (is_wake_requested and runs) or self._is_about_to_suspend(decision):
            return
        body = {"metadata": {"annotations": {WAKE_ANNOTATION: None}, "uid": scalable.metadata.uid}}
        await self._api.patch(SCALABLE_WORKLOAD.path(*scalable.metadata.key), body)

    def _is_about_to_suspend(self, decision: Decision | None) -> bool:
        """Whether KEDA may have got an answer of 0 for it, as far as is known."""
        return self._board.evaluation is None or (decision is not None and isinstance(decision.answer, Inactive))


_WAKE_PENDING = frozenset({Phase.DEACTIVATED_BY_OTHER, Phase.RESUMING, Phase.SUSPENDING, Phase.NO_WORKLOAD})


_FOUND_IDLE = frozenset({DecisionReason.GPUS_IDLE, DecisionReason.RECLAIMED})


def _why(scalable: ScalableWorkload, decision: Decision | None) -> tuple[str, str]:
    """The reason and the words for a suspension: GPUs that were judged idle, or another client that scaled it to 0.

    The decision that KEDA acted on is either still in the DecisionCache, or was written to the status before; a
    restart in between loses nothing.
    """
    if decision is not None and isinstance(decision.answer, Inactive) and decision.answer.reason in _FOUND_IDLE:
        return str(decision.answer.reason), decision.answer.message
    if scalable.status.reason in _FOUND_IDLE:
        return scalable.status.reason, scalable.status.message
    return (
        SuspensionEventReason.SCALED_TO_ZERO,
        "replicas was set to 0 (kubectl scale, another trigger, or an annotation of KEDA's)",
    )


def _remembered(scalable: ScalableWorkload) -> list[Any]:
    """The evidence in the status, from the time when there were pods to look at."""
    return list(scalable.status.evidence)


def is_conflict(error: KubeError) -> bool:
    """Whether another client changed the object first: not an error, read it again."""
    return error.status in {404, 409}
