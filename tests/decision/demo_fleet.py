"""The demo's fleet for a week: its acts one after the other, day after day, and what an evaluator decides about it.

Taken as they are: the acts of `scaler_sandbox.demo` with their nodes, what their users do (`stories`, whose objects are
those of `deploy/examples` and `job_manifests`), and the GPUs with their noise and their faults (`fleet`). Only the time
is another: a second of the demo is a minute, and every clock is virtual. The cluster is in `demo_cluster`.

An act is told, and then goes on at random until its eight hours are over: people work and rest, wake what is suspended,
withdraw the gang and submit it again, and exporters fail. What all of them find depends on what was decided.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

from builders import NOON, TRUST
from decision.demo_cluster import JOBS, STEP_SECONDS, STRETCH, DemoCluster
from decision.random_fleet import DEFAULTS
from loops_builders import TICK, evaluator_of, stamp
from scaler_sandbox.demo import ACTS
from scaler_sandbox.fleet import Fleet
from scaler_sandbox.fleet.exporter import labels_of
from scaler_sandbox.fleet.gpus import GR_ENGINE_ACTIVE, Reading
from scaler_sandbox.kinds import Json
from scaler_sandbox.stories import gang_story, hand_over, provisioning
from scaler_sandbox.stories.gang_story import GangStory
from virtual_clock import VirtualClock, settle

from scaler.decision.decision import Answer
from scaler.decision.decision_cache import DecisionCache, Evaluation
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import SourceError
from scaler.idleness.gpu import DEFAULT_SIGNALS, Signal
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.samples.source import RawSeries, SignalReading, VectorSample

ACT_SECONDS = 8 * 3600.0
"""From the begin of an act to that of the next."""
_PLAYED = ("first", "second", "third")
"""The acts that there were when weeks were recorded."""
_LEAVING_SECONDS = 600.0
_KEPT_SECONDS = 2 * 3600.0
_METRICS = [signal.metrics[0] for signal in DEFAULT_SIGNALS]
_TURNS = 2
"""How often the cluster is looked after between two ticks."""


@dataclass(frozen=True)
class Exported:
    """Implements RawSeries."""

    text: str
    """Name and labels as the exporter prints them. No value of the demo's has a comma or a quote."""
    points: Sequence[tuple[float, float]]

    @property
    def key(self) -> bytes:
        return self.text.encode()

    def labels(self) -> dict[str, str]:
        name, labels = self.text.removesuffix("}").split("{")
        return {"__name__": name, **dict(each.replace('"', "").split("=", 1) for each in labels.split(","))}

    def samples(self) -> Sequence[tuple[float, float]]:
        return self.points


@dataclass
class DemoSource:
    """What was collected of the fleet's GPUs: a sample of each at every step, some seconds old by its node."""

    fleet: Fleet
    is_down: bool = False
    _points: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    """By metric, and by name and labels."""

    def collect(self, now_s: float) -> None:
        for node in [each for each in self.fleet.machines if each not in self.fleet.faults.down]:
            at_s = now_s - Random(node).randrange(30_000) / 1000
            for reading in self.fleet.readings(node):
                self._take(reading, at_s)
        for kept in self._points.values():
            for text, points in [*kept.items()]:
                del points[: bisect_right(points, (now_s - _KEPT_SECONDS, inf))]
                if not points:
                    del kept[text]

    def _take(self, reading: Reading, at_s: float) -> None:
        labels = labels_of(reading)
        for metric in _METRICS:
            found = self._points.setdefault(metric, {}).setdefault(f"{metric}{{{labels}}}", [])
            found.append((at_s, reading.values[metric]))

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        if self.is_down:
            raise SourceError("down", transient=True)
        series: list[RawSeries] = []
        for text, points in self._points.get(signal.metrics[0], {}).items():
            first, last = (bisect_right(points, (each.timestamp(), inf)) for each in (start, end))
            if first < last:
                series.append(Exported(text, points[first:last]))
        return SignalReading(series, None)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        return []


class StoryTime:
    """What stories have `asyncio` and `time` for."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(STRETCH * seconds)

    def monotonic(self) -> float:
        return self._clock.monotonic() / STRETCH


@contextmanager
def virtual_stories(clock: VirtualClock) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name in (
            (gang_story, "asyncio"),
            (gang_story, "time"),
            (hand_over, "asyncio"),
            (hand_over, "time"),
            (provisioning, "asyncio"),
        ):
            stack.enter_context(patch.object(module, name, StoryTime(clock)))
        yield


class DemoFleet:
    """Use as an async context manager."""

    def __init__(self, seed: int = 1) -> None:
        self.random, self.clock = Random(seed), VirtualClock(NOON)
        self.cluster = DemoCluster(self.clock)
        self.source = DemoSource(self.cluster.fleet)
        self.decision_cache = DecisionCache(max_age=3 * TICK, clock=self.clock.monotonic)
        self.evaluator = evaluator_of(
            self.cluster.copies, self.source, self.decision_cache, lambda: self.now, trust=TRUST, defaults=DEFAULTS
        )
        self.told = 0
        """Acts that were told to the end."""
        self.reasons: Counter[str] = Counter()
        """Of all decisions of ticks."""
        self._story: GangStory | None = None
        self._is_told = self._is_new = False
        self._stack = ExitStack()

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(virtual_stories(self.clock))
        self._people = asyncio.create_task(self._live())
        await settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._people.cancel()
        await asyncio.gather(self._people, return_exceptions=True)
        self._stack.close()

    # ---------------------------------------------------------------------------------------------------- what happens

    async def _live(self) -> None:
        for number in count():
            act = ACTS[_PLAYED[number % len(_PLAYED)]]
            self.cluster.begin(act.nodes)
            stage: Any = SimpleNamespace(world=self.cluster, scaler_address="scaler:9090")
            story: Any = act.story(stage, lambda _: None, 0.0)
            self._story, self._is_told = story, False
            self._later(5, 60, self._fail)
            await story.play()
            self._is_told = True
            self.told += 1
            end = (number + 1) * ACT_SECONDS - _LEAVING_SECONDS
            while self.clock.monotonic() < end:
                await self.clock.sleep(60 * self.random.uniform(5, 40))
                if self.clock.monotonic() < end:
                    await self._happen()
            self._mend()
            await self.cluster.end()
            await self.clock.sleep((number + 1) * ACT_SECONDS - self.clock.monotonic())

    async def _happen(self) -> None:
        match self.random.randrange(8):
            case 0 | 1 | 2:
                self._work()
            case 3 | 4:
                self._wake()
            case 5:
                await self._come_or_go()
            case 6 | 7:
                self._fail()

    def _work(self) -> None:
        """Somebody begins to work, or stops."""
        namespace, name = self.random.choice([_key(each) for kind in JOBS for each in self.cluster.all(kind)])
        level, noise = self.random.choice([(0.0, 0.0), (0.0, 0.0), (0.02, 0.0), (0.85, 0.05), (_bursts, 0.05)])
        self.cluster.fleet.set_activity(namespace, f"{name}-*", level, noise=noise)

    def _wake(self) -> None:
        if asleep := self.cluster.asleep():
            resource, value = self.random.choice((SCALABLE_WORKLOAD, SCALED_OBJECT)), ("true", stamp(self.now))
            self.cluster.request_wake(resource, self.random.choice(asleep), self.random.choice(value))

    async def _come_or_go(self) -> None:
        """The gang is withdrawn, or submitted again."""
        assert self._story is not None
        gang = self._story.owner, self._story.namespace, self._story.gang
        if self.cluster.find(*gang) is None:
            await self.cluster.again(*gang)
        else:
            await self.cluster.delete(*gang)

    def _fail(self) -> None:
        """An exporter, a GPU or the metrics server fails, for some minutes."""
        faults, gpu = self.cluster.fleet.faults, self.random.choice(self.cluster.fleet.gpus)
        match self.random.randrange(6):
            case 0 | 1:
                faults.exporter_down(gpu.node)
            case 2:
                faults.vanish(gpu.uuid)
            case 3 | 4:
                faults.blank(GR_ENGINE_ACTIVE, uuid=gpu.uuid)
            case 5:
                self.source.is_down = True
        self._later(1, 20, self._mend)

    def _mend(self) -> None:
        self.cluster.fleet.faults.clear()
        self.source.is_down = False

    def _later(self, least: float, most: float, what: Callable[[], None]) -> None:
        """It happens after so many minutes."""
        self.clock.call_later(60 * self.random.uniform(least, most), what)

    # ---------------------------------------------------------------------------------------------------- what follows

    async def pass_time(self) -> Sequence[Evaluation | None]:
        """Until something is published, by a tick or because something has changed since the last. Returns that."""
        while True:
            await self.clock.advance(STEP_SECONDS / _TURNS)
            if self._people.done():
                self._people.result()
            self._is_new |= await self.cluster.settle(self._answer)
            if self.clock.monotonic() % STEP_SECONDS == 0:
                return [await self._tick()]
            if self._is_new and self.decision_cache.is_ready:
                self._is_new = False
                await self.evaluator.redecide([_key(each) for each in self.cluster.all(SCALED_OBJECT)])
                return [self.decision_cache.evaluation]

    async def _tick(self) -> Evaluation | None:
        self.source.collect(self.now.timestamp())
        evaluation = await self.evaluator.tick(self.now)
        if evaluation is not None:
            self._count(evaluation)
        self._is_new = await self.cluster.settle(self._answer, is_decided=True)
        self.cluster.poll(self._answer)
        if self._story is not None and not self._is_told:
            self._story.look()
        return evaluation

    def _answer(self, scaled_object: Json) -> Answer:
        """What KEDA gets for it."""
        trigger = parse_metadata(scaled_object["spec"]["triggers"][0]["metadata"])
        return self.decision_cache.answer(*_key(scaled_object), trigger)

    def _count(self, evaluation: Evaluation) -> None:
        for entry in evaluation.entries.values():
            self.reasons.update(str(each.answer.reason) for each in entry.triggers.values())


def _bursts(seconds: float) -> float:
    """Two minutes of work in twenty-five."""
    return 0.5 if seconds % 1500 < 120 else 0.0


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]
