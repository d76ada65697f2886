"""Wakes suspended workloads when their quota and nodes are free. Leader only.

It writes what an owner would write: annotation `idlegpu.io/wake` with the time, and `idlegpu.io/asked-by`. Everything
after that is as with any other wake-up.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

import structlog

from scaler.clock import every
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.kube.writes import PatchApi, is_written
from scaler.reclaim.wake_planner import Key, SuspendedWorkload, WakePlan, WakePlanner
from scaler.targets.target_state import WakeCause
from scaler.targets.workloads import ASKED_BY, WAKE_ANNOTATION, Asker, wake_time

log = structlog.get_logger(__name__)

_INTERVAL = timedelta(seconds=5)
_HEARD_WITHIN = timedelta(minutes=1)
"""The time after which the copies that it reads hold its own write."""


@dataclass
class WakeController:
    name: ClassVar[str] = "when free"
    planner: WakePlanner
    api: PatchApi
    _woken: dict[Key, datetime] = field(default_factory=dict, init=False)
    """What it has woken lately, by ScaledObject."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Tick until cancelled."""
        await every(_INTERVAL, self.tick, self._wake, name=self.name)

    def wake(self) -> None:
        """An evaluation alone frees nothing: the next tick is soon enough."""

    async def tick(self, now: datetime) -> WakePlan:
        self._woken = {key: at for key, at in self._woken.items() if now - at < _HEARD_WITHIN}
        plan = await self.planner.plan(now, self._woken.keys())
        for each in plan.woken:
            key = "/".join(each.key)
            if not await is_written(self._write(each, now), log, "workload not woken; retried", scaled_object=key):
                break  # those after it were found with this one counted
        return plan

    async def _write(self, found: SuspendedWorkload, now: datetime) -> None:
        """Raises: KubeError; 409 where the object is no more the one that was decided on."""
        on = found.by_owner or found.scaled_object
        resource = SCALABLE_WORKLOAD if isinstance(on, ScalableWorkload) else on.resource
        annotations = {WAKE_ANNOTATION: wake_time(now), ASKED_BY: _asked_by(found)}
        body = {"metadata": {"resourceVersion": on.metadata.resource_version, "annotations": annotations}}
        await self.api.patch(resource.path(*on.metadata.key), body)
        self._woken[found.key] = now
        log.info(
            "woken: its quota and nodes are free", scaled_object="/".join(found.key), request=found.decision.when_free
        )


def _asked_by(found: SuspendedWorkload) -> str:
    name = found.decision.policy.source_of("wake")
    if (on := found.by_owner) is not None:
        name = Asker.of(on.metadata.annotations).name or "its owner"
    return str(Asker(name, WakeCause.WHEN_FREE))
