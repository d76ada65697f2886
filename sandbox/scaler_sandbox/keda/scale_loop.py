"""The scale loop of one ScaledObject: poll at once and then at every interval, and act on every push.

The interval runs from the beginning of a poll, so a slow poll does not delay the next one by its own length. Polls and
pushes exclude each other: while a poll hangs, a pushed activation waits, as in KEDA.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from scaler.errors import KubeError
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler_sandbox.actions import Patch, RecordEvent, status_patch
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import timestamp, with_conditions
from scaler_sandbox.keda.external import ExternalScaler, TriggerState
from scaler_sandbox.keda.rules import Effect, Poll, conditions_after, effect_of, replicas_wanted
from scaler_sandbox.keda.scaledobjects import (
    PauseAnnotations,
    ScaledObjectSpec,
    ScaledObjectTimes,
    Scales,
    read_pause_annotations,
)
from scaler_sandbox.kinds import Json

_log = structlog.get_logger(__name__)

_LONGEST_BACKOFF = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTiming:
    """When the loop acts."""

    polling: timedelta
    push_backoff: timedelta
    """The first wait before a stream is reopened."""


class ScaleLoop:
    """Polls, listens and scales for one version of one ScaledObject's specification."""

    def __init__(
        self,
        client: Client,
        scales: Scales,
        scaling: ScaledObjectSpec,
        scalers: list[ExternalScaler],
        timing: LoopTiming,
    ) -> None:
        self._client = client
        self._scales = scales
        self._scaling = scaling
        self._scalers = scalers
        self._timing = timing
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for scaler in self._scalers:
                if scaler.trigger.is_push:
                    group.create_task(self._listen(scaler))
            group.create_task(self._poll_forever())

    async def _poll_forever(self) -> None:
        while True:
            started = asyncio.get_running_loop().time()
            async with self._one_at_a_time:
                await self._guarded(self._poll)
            spent = asyncio.get_running_loop().time() - started
            await asyncio.sleep(max(0.0, self._timing.polling.total_seconds() - spent))

    async def _listen(self, scaler: ExternalScaler) -> None:
        """Keeps a stream open. Only one that ended well makes the next wait short again."""
        wait = self._timing.push_backoff
        while True:
            if await scaler.listen(self._pushed):
                wait = self._timing.push_backoff
            await asyncio.sleep(wait.total_seconds())
            wait = min(wait * 2, _LONGEST_BACKOFF)

    async def _pushed(self) -> None:
        async with self._one_at_a_time:
            await self._guarded(lambda: self._request_scale(Poll(is_active=True, is_error=False)))

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except KubeError as error:
            _log.warning("ScaledObjectNotHandled", scaled_object=self._scaling.name, error=str(error))
        except Exception:
            _log.exception("ScaledObjectLoopBroke", scaled_object=self._scaling.name)

    # --------------------------------------------------------------------------------------------------- one poll

    async def _poll(self) -> None:
        states = await asyncio.gather(*(scaler.poll() for scaler in self._scalers))
        scaled_object = self._read()
        if scaled_object is None:
            return
        for state in states:
            if state.failure:
                await self._client.record(
                    scaled_object, RecordEvent(reason="KEDAScalerFailed", message=state.failure, type="Warning")
                )
        await self._request_scale(self._together(states))

    def _together(self, states: list[TriggerState]) -> Poll:
        """Active if any trigger is; an error if any trigger failed."""
        active = [scaler for scaler, state in zip(self._scalers, states, strict=True) if state.is_active]
        by = active[0].trigger.name or "externalScaler" if active else ""
        return Poll(is_active=bool(active), is_error=any(state.failure for state in states), by=by)

    def _read(self) -> Json | None:
        return self._client.find(SCALED_OBJECT, self._scaling.namespace, self._scaling.name)

    async def _request_scale(self, poll: Poll) -> None:
        scaled_object = self._read()
        if scaled_object is None:
            return
        replicas = await self._scales.replicas(self._scaling.namespace, self._scaling.target)
        pauses, now = read_pause_annotations(scaled_object), datetime.now(UTC)
        memory = ScaledObjectTimes.of(scaled_object)
        effect = effect_of(poll, self._scaling, pauses, memory, replicas=replicas, now=now)
        conditions = conditions_after(effect, poll, pauses, scaled_object)
        if await self._scale(scaled_object, effect, poll, pauses, replicas=replicas):
            refreshes = effect in (Effect.ACTIVATE, Effect.REFRESH)
            await self._write_status(conditions, pauses, refreshed_at=now if refreshes else None)

    async def _scale(
        self, scaled_object: Json, effect: Effect, poll: Poll, pauses: PauseAnnotations, *, replicas: int
    ) -> bool:
        """Whether the target is as the effect wants it."""
        wanted = replicas_wanted(effect, self._scaling, pauses)
        if wanted is None or wanted == replicas:
            return True
        try:
            before = await self._scales.set(self._scaling.namespace, self._scaling.target, wanted)
        except KubeError as error:
            _log.warning("ScaleTargetNotScaled", scaled_object=self._scaling.name, error=str(error))
            await self._client.record(scaled_object, self._failure_note(effect))
            return False
        note = self._success_note(effect, poll, before, wanted)
        if note:
            await self._client.record(scaled_object, note)
        return True

    def _success_note(self, effect: Effect, poll: Poll, before: int, wanted: int) -> RecordEvent | None:
        change = f"{self._target_text} from {before} to {wanted}"
        if effect is Effect.DEACTIVATE:
            return RecordEvent(reason="KEDAScaleTargetDeactivated", message=f"Deactivated {change}")
        if effect is Effect.ACTIVATE:
            cause = f"triggered by {poll.by}" if poll.is_active else "caused by forced activation annotation"
            return RecordEvent(reason="KEDAScaleTargetActivated", message=f"Scaled {change}, {cause}")
        return None

    def _failure_note(self, effect: Effect) -> RecordEvent:
        if effect is Effect.DEACTIVATE:
            reason, message = "KEDAScaleTargetDeactivationFailed", f"Failed to deactivate {self._target_text}"
        else:
            reason, message = "KEDAScaleTargetActivationFailed", f"Failed to scale {self._target_text}"
        return RecordEvent(reason=reason, message=message, type="Warning")

    @property
    def _target_text(self) -> str:
        target = self._scaling.target
        return f"{target.kind_text} {self._scaling.namespace}/{target.name}"

    async def _write_status(
        self, conditions: list[Json], pauses: PauseAnnotations, *, refreshed_at: datetime | None
    ) -> None:
        def plan(latest: Json) -> Patch | None:
            return _status_patch(latest, conditions, pauses, refreshed_at)

        scaled_object = self._read()
        if scaled_object is not None:
            await self._client.apply_latest(SCALED_OBJECT, scaled_object, plan)


def _status_patch(
    scaled_object: Json, conditions: list[Json], pauses: PauseAnnotations, refreshed_at: datetime | None
) -> Patch | None:
    status = dict(scaled_object.get("status") or {})
    status["conditions"] = with_conditions(status.get("conditions"), *conditions)
    if refreshed_at is not None:
        status["lastActiveTime"] = timestamp(refreshed_at)
    if pauses.paused_replicas is None:
        status.pop("pausedReplicaCount", None)
    else:
        status["pausedReplicaCount"] = pauses.paused_replicas
    return status_patch(SCALED_OBJECT, scaled_object, status)
