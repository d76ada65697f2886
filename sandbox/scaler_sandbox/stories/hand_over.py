"""The first act: idle, suspended, the next gang runs, the first comes back.

Two RayClusters of two GPUs each share a quota of two.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import yaml

from scaler.decision.reasons import DecisionReason
from scaler.kube.objects.resources import RAY_CLUSTER, SCALABLE_WORKLOAD, Resource
from scaler.targets.target_state import Phase
from scaler.targets.workloads import WAKE_ANNOTATION
from scaler_sandbox.kinds import Json
from scaler_sandbox.stories.facts import ActOutcome, Gang
from scaler_sandbox.stories.gang_story import GangStory

FIRST, SECOND = "first-raycluster", "second-raycluster"
_FIRST_TRAINS, _SECOND_TRAINS = 5.0, 4.0
"""Seconds."""
_STAYS = 3.0
"""Seconds for which the first has to stay up at the end, past its warm-up."""
_SHORT = {"idleAfter": "6s", "warmUp": "2s"}
_COOLDOWN_SECONDS = 2
_VERDICTS = {
    DecisionReason.GPUS_BUSY: "Busy",
    DecisionReason.GPUS_IDLE: "Idle",
    DecisionReason.WAKING: "Waking",
    DecisionReason.WARMING_UP: "WarmingUp",
}


def manifests(examples: Path, *, scaler_address: str) -> list[Json]:
    """The objects of the act: those of `deploy/examples`, with short intervals."""
    found: list[Json] = []
    for name in ("queue/queue.yaml", "raycluster/rayclusters.yaml", "raycluster/scaling.yaml"):
        found += list(yaml.load_all((examples / name).read_text(encoding="utf-8"), yaml.CSafeLoader))
    return [_shortened(body, scaler_address) if body["kind"] == "ScaledObject" else body for body in found]


def _shortened(scaled_object: Json, scaler_address: str) -> Json:
    spec = scaled_object["spec"]
    trigger = {**spec["triggers"][0], "metadata": {"scalerAddress": scaler_address, **_SHORT}}
    return {**scaled_object, "spec": {**spec, "cooldownPeriod": _COOLDOWN_SECONDS, "triggers": [trigger]}}


@dataclass(kw_only=True)
class HandOverStory(GangStory):
    """One telling."""

    gang: ClassVar[str] = SECOND
    owner: ClassVar[Resource] = RAY_CLUSTER
    namespace: ClassVar[str] = "demo"

    objects: Iterable[Json]
    _shown: Json = field(default_factory=dict, init=False)
    """The status of the first's ScalableWorkload."""

    def outcome(self, took: float) -> ActOutcome:
        return ActOutcome(
            ok=True,
            figures={"seconds_from_last_activity_to_next_gang_admitted": took},
            summary=f"From the first gang's last work to the next gang's admission: {took} s, "
            "of which 6 s are idleAfter.",
        )

    async def play(self) -> None:
        await self.world.apply([body for body in self.objects if body["metadata"]["name"] != SECOND])
        await self.run_of(FIRST)
        await self.world.apply([body for body in self.objects if body["metadata"]["name"] == SECOND])
        self._trains(FIRST, 0.85, "both GPUs work")
        await asyncio.sleep(_FIRST_TRAINS)
        await self.wait_for_quota()
        self.world.fleet.set_activity(self.namespace, f"{FIRST}-*", 0.0)
        self.waiting_since = time.monotonic()
        message = "the training has ended; the RayCluster stays and holds its GPUs"
        self.say("Stops", f"RayCluster/{FIRST}", "Quiet", message)
        await self.until(lambda: self.desired(FIRST) == 0, "the first to be scaled to 0")
        await self.until(lambda: self.state(SECOND).admitted, "the second gang to be admitted")
        await self.run_of(SECOND)
        self._trains(SECOND, 0.9, "both GPUs work")
        await asyncio.sleep(_SECOND_TRAINS / 2)
        await self._come_back()

    async def _come_back(self) -> None:
        body = {"metadata": {"annotations": {WAKE_ANNOTATION: "true"}}}
        await self.world.patch(SCALABLE_WORKLOAD, self.namespace, FIRST, body)
        message = f"annotation {WAKE_ANNOTATION}: its owner requests a wake-up"
        self.say("OwnerWakes", f"ScalableWorkload/{FIRST}", "WakeRequested", message)
        await self.until(lambda: self.desired(FIRST) == 1, "the first to be asked for again")
        await asyncio.sleep(_SECOND_TRAINS / 2)
        await self.world.delete(RAY_CLUSTER, self.namespace, SECOND)
        await self.run_of(FIRST)
        self._trains(FIRST, 0.85, "its owner goes on")
        await self.until(lambda: self._shown.get("phase") == Phase.RUNNING, "its status to say that it runs")
        deadline = time.monotonic() + _STAYS
        while time.monotonic() < deadline:
            if self.stopped([FIRST]):
                raise TimeoutError("the first gang came back and did not stay")
            await asyncio.sleep(0.05)

    def _trains(self, name: str, level: float, message: str) -> None:
        self.world.fleet.set_activity(self.namespace, f"{name}-*", level, noise=0.05)
        self.say("Trains", f"RayCluster/{name}", "Training", message)

    # ------------------------------------------------------------------------------------------------- what is seen

    def look(self) -> None:
        found = self.world.find(SCALABLE_WORKLOAD, self.namespace, FIRST) or {}
        before, self._shown = self._shown, found.get("status") or {}
        where, reason = f"ScalableWorkload/{FIRST}", self._shown.get("reason", "")
        if reason != before.get("reason", "") and reason in _VERDICTS:
            self.say(_VERDICTS[DecisionReason(reason)], where, reason, self._shown.get("message", ""))
        if self._shown.get("warnedAt", "") not in ("", before.get("warnedAt", "")):
            self.say("SuspendSoon", where, "SuspendSoon", "its owner is warned by an Event")
        super().look()

    def changed(self, before: Gang, now: Gang) -> None:
        super().changed(before, now)
        where = f"RayCluster/{now.name}"
        if now.active and not before.active:
            self.say("Reactivated", where, "Reactivated", "its Workload is active again")
        if now.name == FIRST:
            self.starts(before, now, where)
