"""The ScaledObject controller: notices what is new or changed, checks the target, and runs a scale loop for each.

| what changed                          | what is done                                                       |
|---------------------------------------|--------------------------------------------------------------------|
| new, or its specification             | reconciled, and its loop is started (anew), with a poll at once     |
| `paused` appears or disappears        | the loop ends, or starts with a poll at once                        |
| another annotation                    | reconciled; the loop goes on and reads it at its next poll          |
| deleted                               | the loop ends; original replicas restored where that is asked for   |
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import structlog

from scaler.errors import ConfigurationError, KubeError
from scaler.kube.objects.resources import SCALED_OBJECT, Resource
from scaler_sandbox.actions import Patch, RecordEvent, status_patch
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import condition, has, with_conditions
from scaler_sandbox.controller import Controller, soonest
from scaler_sandbox.keda.external import Channels, ExternalScaler, ScalerFailed
from scaler_sandbox.keda.rules import READY, made
from scaler_sandbox.keda.scale_loop import LoopTiming, ScaleLoop
from scaler_sandbox.keda.scaledobjects import (
    FINALIZER,
    NAME_LABEL,
    PauseAnnotations,
    ScaledObjectSpec,
    Scales,
    read_pause_annotations,
    read_scaled_object,
)
from scaler_sandbox.kinds import Json

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaTiming:
    """What differs from KEDA where a story has to be short."""

    polling: timedelta | None = None
    """The time between two polls of every ScaledObject, whose own can only be whole seconds. None: its own."""
    push_backoff: timedelta = timedelta(seconds=2)
    retry: timedelta = timedelta(seconds=1)
    """The pause before a failed reconciliation is tried again; doubled up to 30 times as long."""


@dataclass(slots=True)
class _Handled:
    """What is known and running of one ScaledObject."""

    signature: Hashable = None
    """What it looked like when it was last reconciled; None before that."""
    generation: int = 0
    """Which specification the loop runs for."""
    loop: asyncio.Task[None] | None = None
    reconciling: asyncio.Task[None] | None = None
    failures: int = 0
    retry_at: datetime | None = None


class Keda(Controller):
    """Watches ScaledObjects; asks their scalers; scales their targets."""

    name: ClassVar[str] = "keda"
    watched: ClassVar[tuple[Resource, ...]] = (SCALED_OBJECT,)

    def __init__(self, client: Client, timing: KedaTiming | None = None) -> None:
        super().__init__(client)
        self._timing = timing or KedaTiming()
        self._scales = Scales(client.transport)
        self._channels = Channels()
        self._handled: dict[str, _Handled] = {}

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            tasks = [task for each in self._handled.values() for task in (each.loop, each.reconciling) if task]
            await _end(*tasks)
            await self._channels.close()

    async def tick(self, now: datetime) -> datetime | None:
        present = {each["metadata"]["uid"]: each for each in self.client.all(SCALED_OBJECT)}
        for uid in [uid for uid in self._handled if uid not in present]:
            gone = self._handled.pop(uid)
            await _end(*(task for task in (gone.loop, gone.reconciling) if task))
        for uid, scaled_object in present.items():
            self._follow(self._handled.setdefault(uid, _Handled()), scaled_object, now)
        return soonest(each.retry_at for each in self._handled.values())

    def _follow(self, handled: _Handled, scaled_object: Json, now: datetime) -> None:
        """Starts a reconciliation where one is due and none is under way."""
        is_busy = handled.reconciling is not None and not handled.reconciling.done()
        is_early = handled.retry_at is not None and handled.retry_at > now
        if not is_busy and not is_early and handled.signature != _signature(scaled_object):
            handled.reconciling = asyncio.create_task(self._reconcile(handled, scaled_object))

    async def _reconcile(self, handled: _Handled, scaled_object: Json) -> None:
        try:
            await self._settle(handled, scaled_object)
            handled.signature, handled.failures, handled.retry_at = _signature(scaled_object), 0, None
        except (KubeError, ConfigurationError) as error:
            handled.failures += 1
            delay = min(self._timing.retry * 2 ** (handled.failures - 1), self._timing.retry * 30)
            handled.retry_at = datetime.now().astimezone() + delay
            _log.warning("ScaledObjectNotReconciled", scaled_object=scaled_object["metadata"]["name"], error=str(error))
        except Exception:
            _log.exception("ScaledObjectReconciliationBroke", scaled_object=scaled_object["metadata"]["name"])
        finally:
            self._wake.set()

    # ------------------------------------------------------------------------------------------------ reconciliation

    async def _settle(self, handled: _Handled, scaled_object: Json) -> None:
        """Makes what runs for the ScaledObject what it shall be. Raises: KubeError, ConfigurationError."""
        if scaled_object["metadata"].get("deletionTimestamp"):
            await self._finalize(handled, scaled_object)
            return
        pauses = read_pause_annotations(scaled_object)
        if pauses.paused:
            await self._stop_loop(handled, scaled_object)
            await self._show(scaled_object, [_paused_condition(scaled_object, pauses)])
            return
        await self._add_finalizer(scaled_object)
        scaling = await self._checked(scaled_object)
        scalers = self._scalers(scaling)
        names = await self._metric_names(scalers)
        await self._show(scaled_object, [READY, _paused_condition(scaled_object, pauses)], externalMetricNames=names)
        generation = scaled_object["metadata"].get("generation", 1)
        if handled.loop is None or handled.loop.done() or handled.generation != generation:
            await self._start_loop(handled, scaled_object, scaling, scalers)
            handled.generation = generation

    async def _add_finalizer(self, scaled_object: Json) -> None:
        """The finalizer and the label that KEDA puts on what it has taken care of."""
        metadata = scaled_object["metadata"]
        finalizers, labels = metadata.get("finalizers") or [], metadata.get("labels") or {}
        if FINALIZER not in finalizers or NAME_LABEL not in labels:
            wanted = {
                "finalizers": [*finalizers, *([] if FINALIZER in finalizers else [FINALIZER])],
                "labels": {NAME_LABEL: metadata["name"]},
            }
            await self._change(scaled_object, lambda latest: _metadata_patch(latest, wanted))

    async def _checked(self, scaled_object: Json) -> ScaledObjectSpec:
        """The specification, after its target has been looked at. Raises: KubeError, ConfigurationError."""
        try:
            scaling = read_scaled_object(scaled_object)
            resource = await self._scales.resource(scaling.target)
            replicas = await self._scales.replicas(scaling.namespace, scaling.target)
        except (KubeError, ConfigurationError) as error:
            message = f"ScaledObject doesn't have correct scaleTargetRef specification: {error}"
            await self.client.record(
                scaled_object, RecordEvent(reason="ScaledObjectCheckFailed", message=message, type="Warning")
            )
            failed = made("Ready", "False", "ScaledObjectCheckFailed", message)
            await self._show(
                scaled_object, [failed, made("Active", "Unknown", "UnknownState", "ScaledObject check failed")]
            )
            raise
        known = scaled_object.get("status") or {}
        gvkr = {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
            "resource": resource.plural,
        }
        await self._show(
            scaled_object,
            [],
            scaleTargetKind=scaling.target.kind_text,
            scaleTargetGVKR=gvkr,
            originalReplicaCount=known.get("originalReplicaCount", replicas),
            triggersTypes=",".join(trigger.type for trigger in scaling.triggers),
            authenticationsTypes="",
        )
        return scaling

    def _scalers(self, scaling: ScaledObjectSpec) -> list[ExternalScaler]:
        return [
            ExternalScaler(self._channels, scaling.namespace, scaling.name, trigger) for trigger in scaling.triggers
        ]

    @staticmethod
    async def _metric_names(scalers: list[ExternalScaler]) -> list[str]:
        """The names under which an HPA would find the metrics; none of a scaler that does not answer."""
        names = []
        for scaler in scalers:
            try:
                names += [f"s{scaler.trigger.index}-{name}" for name in await scaler.metric_names()]
            except ScalerFailed as failure:
                _log.info("MetricSpecMissing", address=scaler.trigger.address, failure=str(failure))
        return names

    async def _finalize(self, handled: _Handled, scaled_object: Json) -> None:
        await self._stop_loop(handled, scaled_object)
        metadata = scaled_object["metadata"]
        if FINALIZER not in (metadata.get("finalizers") or []):
            return
        await self._restore(scaled_object)
        rest = {"finalizers": [each for each in metadata["finalizers"] if each != FINALIZER]}
        note = RecordEvent(reason="ScaledObjectDeleted", message="ScaledObject was deleted", type="Warning")
        await self._change(scaled_object, lambda latest: _metadata_patch(latest, rest, note))

    async def _restore(self, scaled_object: Json) -> None:
        """The target as it was when it was first seen, where that is asked for. Like KEDA, logs a failure only."""
        original = (scaled_object.get("status") or {}).get("originalReplicaCount")
        try:
            scaling = read_scaled_object(scaled_object)
            if scaling.restores and original is not None:
                await self._scales.set(scaling.namespace, scaling.target, original)
        except (KubeError, ConfigurationError) as error:
            _log.warning("ReplicasNotRestored", scaled_object=scaled_object["metadata"]["name"], error=str(error))

    async def _start_loop(
        self, handled: _Handled, scaled_object: Json, scaling: ScaledObjectSpec, scalers: list[ExternalScaler]
    ) -> None:
        if handled.loop is not None:
            await _end(handled.loop)
        polling = self._timing.polling or scaling.polling
        timing = LoopTiming(polling=polling, push_backoff=self._timing.push_backoff)
        loop = ScaleLoop(self.client, self._scales, scaling, scalers, timing)
        handled.loop = asyncio.create_task(loop.run(), name=f"keda-{scaling.namespace}-{scaling.name}")
        for reason, message in (
            ("KEDAScalersStarted", "Started scalers watch"),
            ("ScaledObjectReady", "ScaledObject is ready for scaling"),
        ):
            await self.client.record(scaled_object, RecordEvent(reason=reason, message=message))

    async def _stop_loop(self, handled: _Handled, scaled_object: Json) -> None:
        if handled.loop is not None:
            await _end(handled.loop)
            handled.loop = None
            await self.client.record(
                scaled_object, RecordEvent(reason="KEDAScalersStopped", message="Stopped scalers watch")
            )

    async def _show(self, scaled_object: Json, conditions: list[Json], **fields: object) -> None:
        """Writes into the status, on what is there by now."""

        def plan(latest: Json) -> Patch | None:
            status = {**(latest.get("status") or {}), **fields}
            status["conditions"] = with_conditions(status.get("conditions") or _unknown(), *conditions)
            return status_patch(SCALED_OBJECT, latest, status)

        await self._change(scaled_object, plan)

    async def _change(self, scaled_object: Json, plan: Callable[[Json], Patch | None]) -> None:
        """Raises: KubeError where others change the ScaledObject all the time."""
        if not await self.client.apply_latest(SCALED_OBJECT, scaled_object, plan):
            name = scaled_object["metadata"]["name"]
            raise KubeError(f"ScaledObject {name} changes too often to be written; trying again", reason="Conflict")


def _metadata_patch(latest: Json, metadata: Json, *notes: RecordEvent) -> Patch:
    return Patch(resource=SCALED_OBJECT, observed=latest, body={"metadata": metadata}, notes=notes)


def _signature(scaled_object: Json) -> Hashable:
    """What a reconciliation depends on."""
    metadata = scaled_object["metadata"]
    return metadata.get("generation", 1), bool(metadata.get("deletionTimestamp")), read_pause_annotations(scaled_object)


def _unknown() -> list[Json]:
    unknown: list[Json] = [{"type": kind, "status": "Unknown"} for kind in ("Ready", "Active", "Fallback")]
    return [*unknown, {"type": "Paused", "status": "False"}]


def _paused_condition(scaled_object: Json, pauses: PauseAnnotations) -> Json:
    if pauses.is_any_pause:
        return made("Paused", "True", "ScaledObjectPaused", "ScaledObject is paused")
    if has(scaled_object, "Paused"):
        return made("Paused", "False", "ScaledObjectUnpaused", "pause annotation removed for ScaledObject")
    return condition(scaled_object, "Paused") or {"type": "Paused", "status": "False"}


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
