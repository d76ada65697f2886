"""The story that the demo runs and the tests repeat: idle, suspended, the next gang runs, the first comes back.

Two RayClusters of two GPUs each share a quota of two. The scaler runs beside it, in this process or in another;
the story only does what users do (train, stop, wake, end) and reads the Kubernetes API.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scaler.decision.target_state import Phase
from scaler.decision.workloads import WAKE_ANNOTATION
from scaler.errors import KubeError
from scaler.kube.objects.resources import POD, RAY_CLUSTER, SCALABLE_WORKLOAD
from scaler_sandbox.kinds import Json
from scaler_sandbox.sandbox import Sandbox
from scaler_sandbox.stories.facts import (
    ActOutcome,
    Facts,
    Gang,
    News,
    Row,
    Scaled,
    StoryEntry,
    gang,
    news,
    pods_of,
    scaled,
)

NAMESPACE, FIRST, SECOND = "demo", "first-raycluster", "second-raycluster"
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryTiming:
    """How long users train, in seconds, and how long the story waits for controllers."""

    first_trains: float = 5.0
    second_trains: float = 4.0
    stays: float = 3.0
    """How long the first has to stay up at the end, past its warm-up."""
    patience: float = 30.0
    """For each single step."""
    idle_after: str = "6s"
    warm_up: str = "2s"
    cooldown_seconds: int = 2


def manifests(examples: Path, *, scaler_address: str, timing: StoryTiming) -> list[Json]:
    """The objects of the story: those of `deploy/examples`, with short intervals."""
    found: list[Json] = []
    for name in ("queue/queue.yaml", "raycluster/rayclusters.yaml", "raycluster/scaling.yaml"):
        found += list(yaml.safe_load_all((examples / name).read_text(encoding="utf-8")))
    return [_shortened(body, scaler_address, timing) if body["kind"] == "ScaledObject" else body for body in found]


def _shortened(scaled_object: Json, scaler_address: str, timing: StoryTiming) -> Json:
    spec = scaled_object["spec"]
    metadata = {"scalerAddress": scaler_address, "idleAfter": timing.idle_after, "warmUp": timing.warm_up}
    trigger = {**spec["triggers"][0], "metadata": metadata}
    return {**scaled_object, "spec": {**spec, "cooldownPeriod": timing.cooldown_seconds, "triggers": [trigger]}}


@dataclass(kw_only=True)
class Story:
    """One telling. `tell` is given every entry of the timeline as it happens."""

    world: Sandbox
    objects: Iterable[Json]
    tell: Callable[[StoryEntry], None]
    timing: StoryTiming = field(default_factory=StoryTiming)
    began: float | None = None
    """When the first entry's clock began, where that is not this story's begin; on the monotonic clock."""
    facts: Facts = field(init=False)
    _started: float = field(init=False)
    _last_activity: float | None = field(default=None, init=False)
    _next_admitted: float | None = field(default=None, init=False)

    def rows(self) -> Sequence[Row]:
        """Both gangs as they stand, for a picture."""
        if not hasattr(self, "facts"):
            return ()
        first, second = self.facts.first, self.facts.second
        return Row(first.name, self.facts.scaled.desired, first), Row(second.name, 1, second)

    async def run(self) -> ActOutcome:
        """Runs to the end, or to the step that timed out."""
        self._started = time.monotonic() if self.began is None else self.began
        self.facts = self._look(Scaled())
        watching = asyncio.create_task(self._watch(), name="story")
        try:
            await self._play()
        except TimeoutError as error:
            return self._outcome(str(error))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return self._outcome("")

    # ------------------------------------------------------------------------------------------------- what people do

    async def _play(self) -> None:
        first, second, pause = f"RayCluster/{FIRST}", f"RayCluster/{SECOND}", self.timing
        await self._begin()
        self._act(FIRST, 0.85)
        self._say("Trains", first, "Training", "both GPUs work")
        await asyncio.sleep(pause.first_trains)
        await self._until(lambda facts: facts.second.waits_because, "the second gang to wait for quota")
        self._act(FIRST, 0.0)
        self._last_activity = time.monotonic()
        self._say("Stops", first, "Quiet", "the training has ended; the RayCluster stays and holds its GPUs")
        await self._until(lambda facts: facts.scaled.desired == 0, "the first to be scaled to 0")
        await self._until(lambda facts: facts.second.admitted, "the second gang to be admitted")
        await self._until(lambda facts: facts.second.is_running, "the second gang to run whole")
        self._act(SECOND, 0.9)
        self._say("Trains", second, "Training", "both GPUs work")
        await asyncio.sleep(pause.second_trains / 2)
        await self._wake()
        await self._until(lambda facts: facts.scaled.desired == 1, "the first to be asked for again")
        await asyncio.sleep(pause.second_trains / 2)
        await self.world.delete(RAY_CLUSTER, NAMESPACE, SECOND)
        await self._until(lambda facts: facts.first.is_running, "the first to run again")
        self._act(FIRST, 0.85)
        self._say("Trains", first, "Training", "its owner goes on")
        await self._until(lambda facts: facts.scaled.phase == Phase.RUNNING, "its status to say that it runs")
        await self._stay_up()

    async def _begin(self) -> None:
        first = [body for body in self.objects if body["metadata"]["name"] != SECOND]
        await self.world.apply(first)
        await self._until(lambda facts: facts.first.is_running, "the first gang to run")
        await self.world.apply([body for body in self.objects if body["metadata"]["name"] == SECOND])

    def _act(self, name: str, level: float) -> None:
        self.world.fleet.set_activity(NAMESPACE, f"{name}-*", level, noise=0.05)

    async def _wake(self) -> None:
        body = {"metadata": {"annotations": {WAKE_ANNOTATION: "true"}}}
        await self.world.patch(SCALABLE_WORKLOAD, NAMESPACE, FIRST, body)
        self._say(
            "OwnerWakes",
            f"ScalableWorkload/{FIRST}",
            "WakeRequested",
            f"annotation {WAKE_ANNOTATION}: its owner requests a wake-up",
        )

    async def _stay_up(self) -> None:
        """A workload that came back must not be suspended at once."""
        deadline = time.monotonic() + self.timing.stays
        while time.monotonic() < deadline:
            if not self.facts.first.is_running:
                raise TimeoutError("the first gang came back and did not stay")
            await asyncio.sleep(_LOOK_SECONDS)

    # ------------------------------------------------------------------------------------------------- what is seen

    async def _until(self, holds: Callable[[Facts], Any], what: str) -> None:
        await self.world.wait_for(lambda: holds(self.facts), what, within=self.timing.patience)

    async def _watch(self) -> None:
        while True:
            seen = self.facts.scaled
            with suppress(KubeError):
                seen = scaled(await self.world.read(SCALABLE_WORKLOAD, NAMESPACE, FIRST))
            before, self.facts = self.facts, self._look(seen)
            for line in news(before, self.facts):
                self._say(*line)
            if self.facts.second.admitted and self._next_admitted is None:
                self._next_admitted = time.monotonic()
            await asyncio.sleep(_LOOK_SECONDS)

    def _look(self, seen: Scaled) -> Facts:
        return Facts(first=self._gang(FIRST), second=self._gang(SECOND), scaled=seen)

    def _gang(self, name: str) -> Gang:
        return gang(
            name,
            cluster=self.world.find(RAY_CLUSTER, NAMESPACE, name),
            workload=self.world.workload_of(RAY_CLUSTER, NAMESPACE, name),
            pods=pods_of(self.world.all(POD, NAMESPACE), name),
        )

    def _say(self, event: str, about: str, reason: str, message: str) -> None:
        line = News(event, about, reason, message)
        self.tell(StoryEntry(t=round(time.monotonic() - self._started, 2), news=line))

    def _outcome(self, problem: str) -> ActOutcome:
        handover = None
        if self._last_activity is not None and self._next_admitted is not None:
            handover = round(self._next_admitted - self._last_activity, 2)
        return ActOutcome(
            ok=not problem and handover is not None,
            problem=problem,
            figures={"seconds_from_last_activity_to_next_gang_admitted": handover},
            summary=f"From the first gang's last work to the next gang's admission: {handover} s, "
            "of which 6 s are idleAfter.",
        )
