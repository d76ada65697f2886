"""The law of `inputs`: a decision that was not made again is the one that would be made now.

Two evaluators look at the same cluster and the same samples, both of which change at random. One of them forgets at
every tick what its decisions rest on, and so makes all of them anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from builders import GPU_UTIL, GR_ENGINE, NOON, TRUST, WorkloadJson
from loops_builders import (
    DEPLOYMENT_KIND,
    NAMESPACE,
    MemoryCluster,
    evaluator_of,
    pod,
    scalable_workload,
    scaled_object,
    stamp,
)

from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.describe import decision_status, prevailing
from scaler.decision.evaluation import Evaluator
from scaler.decision.inputs import DecisionInputs
from scaler.decision.wake_queries import WakeQuery
from scaler.errors import SourceError
from scaler.idleness.gpu import Signal
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Scale
from scaler.samples.source import RawSeries, SignalReading, VectorSample
from scaler.suspension.status import status_digest

NAMES = [f"job-{number}" for number in range(6)]
NAMESPACES = (NAMESPACE, "other")
SIGNALS = (GR_ENGINE, GPU_UTIL)
METADATA = ({"idleAfter": "5m", "warmUp": "1m"}, {"idleAfter": "5m", "warmUp": "3m", "gpus": "any"}, {})
LONG_IDLE = {"idleAfter": "12m", "warmUp": "0s", "activeAbove": "30%", "reclaim": "OnPressure"}
BOOST = {"idleAfter": "4m", "warmUp": "0s", "mode": "observe", "reclaim": "PriorityBoost"}


@dataclass(frozen=True)
class Series:
    """Implements RawSeries."""

    all_labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def key(self) -> bytes:
        return repr(sorted(self.all_labels.items())).encode()

    def labels(self) -> dict[str, str]:
        return dict(self.all_labels)

    def samples(self) -> Sequence[tuple[float, float]]:
        return self.points


@dataclass
class RandomSource:
    """GPUs that work, rest, fall silent and change hands, and a server that fails now and then."""

    random: Random
    points: dict[tuple[str, str, str, str], list[tuple[float, float]]] = field(default_factory=dict)
    """By namespace, pod, device and signal."""
    works: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """What a GPU of a pod does: by namespace, pod and device."""
    is_down: bool = False
    demanded: tuple[str, str] | None = None

    def report(self, since_s: float, until_s: float) -> None:
        for (namespace, name, device), work in self.works.items():
            for signal in SIGNALS:
                found = self.points.setdefault((namespace, name, device, signal.name), [])
                for at_s in range(int(since_s) // 30 * 30 + 30, int(until_s) + 1, 30):
                    if (value := self._value(work, signal)) is not None:
                        found.append((at_s + self.random.choice((0.0, 7.25, 29.999)), value))

    def _value(self, work: str, signal: Signal) -> float | None:
        scale, chance = (100 if signal is GPU_UTIL else 1), self.random.random()
        match work:
            case "busy":
                return 0.9 * scale
            case "bursts":
                return (0.5 if chance < 0.1 else 0.0) * scale
            case "holes":
                return None if chance < 0.3 else 0.0
            case "one signal":
                return 0.9 if signal is GR_ENGINE else 0.0
            case "blank":
                return 9.2e18 if chance < 0.5 else 0.0
            case "silent":
                return None
        return 0.0

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        if self.is_down:
            raise SourceError("down", transient=True)
        series: list[RawSeries] = []
        for (namespace, name, device, of), points in sorted(self.points.items()):
            labels = {"namespace": namespace, "pod": name, "UUID": device, "__name__": of}
            found = [each for each in points if start.timestamp() < each[0] <= end.timestamp()]
            if of == signal.name and found:
                series.append(Series(labels, found))
        return SignalReading(series, None)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        if self.is_down:
            raise SourceError("down", transient=True)
        found = {"namespace": self.demanded[0], "scaledobject": self.demanded[1]} if self.demanded else None
        return [VectorSample(labels=found, value=1.0)] if found else []


class RandomHistory:
    def __init__(self, seed: int) -> None:
        self.random, self.now = Random(seed), NOON
        self.cluster, self.source = MemoryCluster(), RandomSource(Random(seed + 1))
        self.evaluators = [self._evaluator() for _ in range(2)]
        for namespace in NAMESPACES:
            for name in NAMES:
                self.submit(namespace, name)
        self.source.report(self.now.timestamp() - 3600, self.now.timestamp())

    def _evaluator(self) -> Evaluator:
        cache = DecisionCache(max_age=timedelta(hours=2), clock=lambda: self.now.timestamp())
        query = WakeQuery(name="asked", promql="asked", namespaces=frozenset({NAMESPACE}))
        found = evaluator_of(self.cluster, self.source, cache, lambda: self.now, trust=TRUST, wake_queries=[query])
        found._inputs = DecisionInputs(found._own, fewest=1)
        return found

    # ---------------------------------------------------------------------------------------------------- what happens

    def submit(self, namespace: str, name: str) -> None:
        self.ask(namespace, name)
        if self.is_scaled(name):
            self.scale(namespace, name)
        else:
            self.admit(namespace, name)
            self.grant(namespace, name)
        self.start(namespace, name)

    def is_scaled(self, name: str) -> bool:
        return NAMES.index(name) % 2 == 1

    def ask(self, namespace: str, name: str) -> None:
        """A ScaledObject with other triggers, and with or without annotations."""
        pick, soon = self.random.choice, stamp(self.now + timedelta(seconds=self.random.randrange(-60, 900)))
        notes: list[dict[str, str]] = [{}, {}, {"idlegpu.io/keep-until": soon}, {"idlegpu.io/wake": "true"}]
        triggers = [pick((*METADATA, LONG_IDLE, BOOST))]
        if self.random.random() < 0.1:
            triggers = [*triggers, pick(METADATA)] if self.random.random() < 0.5 else [{"idelAfter": "1m"}]
        kind: dict[str, Any] = {"kind": DEPLOYMENT_KIND} if self.is_scaled(name) else {}
        found = scaled_object(name, namespace=namespace, triggers=triggers, annotations=pick(notes), **kind)
        self.cluster.scaled_objects.put(found)

    def touch(self, namespace: str, name: str) -> None:
        """KEDA writes into the status."""
        if found := self.cluster.scaled_objects.get(namespace, name):
            metadata = msgspec.structs.replace(found.metadata, resource_version=str(self.random.random()))
            self.cluster.scaled_objects.put(msgspec.structs.replace(found, metadata=metadata))

    def withdraw(self, namespace: str, name: str) -> None:
        self.cluster.scaled_objects.drop(name, namespace)

    def scale(self, namespace: str, name: str) -> None:
        missing = Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message="it is gone")
        found: Scale | Unknown = Scale(replicas=self.random.choice((0, 1, 1, 1)), selector=f"app={name}")
        self.cluster.scales.scales[name] = missing if self.random.random() < 0.1 else found

    def admit(self, namespace: str, name: str) -> None:
        json = WorkloadJson(f"{name}-workload", pods=1, gpus_per_pod=2)
        json.json["metadata"]["namespace"] = namespace
        json.json["metadata"]["resourceVersion"] = str(self.random.random())
        state = self.random.random()
        if state < 0.8:
            json.admitted()
        if 0.7 < state < 0.9:
            json.deactivated()
        if state > 0.95:
            self.cluster.workloads.drop(f"{name}-workload", namespace)
        else:
            self.cluster.workloads.put(json.decoded())

    def grant(self, namespace: str, name: str) -> None:
        """A ScalableWorkload with other replicas, and with or without a plan's grant."""
        granted_at, seconds = self.now - timedelta(seconds=30), self.random.choice((-30, 45, 200, 900))
        grant = {
            "plan": "p1",
            "workload": "demo/gang",
            "victims": [f"{namespace}/{name}"],
            "grantedAt": stamp(granted_at),
            "expiresAt": stamp(self.now + timedelta(seconds=seconds)),
        }
        status = {"grant": grant} if self.random.random() < 0.5 else {}
        replicas = self.random.choice((1, 1, 1, 0))
        found = scalable_workload(name, namespace=namespace, replicas=replicas, workload=f"{name}-workload", **status)
        self.cluster.scalable_workloads.put(found)

    def start(self, namespace: str, name: str) -> None:
        """Another pod, or the same one in another phase."""
        number = self.random.randrange(2)
        started = self.random.choice((None, self.now, self.now - timedelta(minutes=30)))
        phase = self.random.choice(("Running", "Running", "Running", "Pending", "Succeeded"))
        found = pod(
            f"{name}-pod-{number}",
            namespace=namespace,
            gpus=self.random.choice((1, 2, 2, 3)),
            started=started,
            phase=phase,
            labels={"app": name},
            workload="" if self.is_scaled(name) else f"{name}-workload",
        )
        self.cluster.pods.put(found)
        for _ in range(2):
            self.work(namespace, f"{name}-pod-{number}")

    def end(self, namespace: str, name: str) -> None:
        self.cluster.pods.drop(f"{name}-pod-{self.random.randrange(2)}", namespace)

    def work(self, namespace: str, pod_name: str) -> None:
        """A GPU does something else, which may be one that another pod has, too."""
        device = f"GPU-{self.random.randrange(3)}-of-{pod_name if self.random.random() < 0.9 else 'all'}"
        doing = ("busy", "idle", "idle", "idle", "bursts", "holes", "one signal", "blank", "silent")
        self.source.works[namespace, pod_name, device] = self.random.choice(doing)

    def happen(self) -> None:
        namespace, name = self.random.choice(NAMESPACES), self.random.choice(NAMES)
        match self.random.randrange(12):
            case 0:
                self.ask(namespace, name)
            case 1 | 2:
                self.touch(namespace, name)
            case 3:
                self.withdraw(namespace, name)
            case 4:
                self.submit(namespace, name)
            case 5:
                self.scale(namespace, name) if self.is_scaled(name) else self.admit(namespace, name)
            case 6:
                self.grant(namespace, name)
            case 7:
                self.start(namespace, name)
            case 8:
                self.end(namespace, name)
            case 9:
                self.work(namespace, f"{name}-pod-{self.random.randrange(2)}")
            case 10:
                self.source.demanded = self.random.choice((None, (namespace, name)))
            case 11:
                self.source.is_down = self.random.random() < 0.2
                self.cluster.go_silent(300.0 if self.random.random() < 0.1 else 0.0)

    # ---------------------------------------------------------------------------------------------------- what follows

    async def pass_time(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 3))):
            self.happen()
        if self.random.random() < 0.5:
            self.source.is_down = False
            self.cluster.go_silent(0.0)
        before, self.now = self.now, self.now + timedelta(seconds=self.random.choice((30, 30, 30, 45, 150)))
        self.source.report(before.timestamp(), self.now.timestamp())
        if self.random.random() < 0.2:
            self.happen()
            keys = [(namespace, name) for namespace in NAMESPACES for name in self.random.sample(NAMES, 2)]
            for each in self.evaluators:
                await each.redecide(keys)
        lazy, thorough = self.evaluators
        thorough._inputs = DecisionInputs(thorough._own)
        found, expected = await lazy.tick(self.now), await thorough.tick(self.now)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert all_shown(found) == all_shown(expected)

    def reasons(self) -> set[str]:
        evaluation = self.evaluators[0].decision_cache.evaluation
        entries = evaluation.entries.values() if evaluation else ()
        return {str(each.answer.reason) for entry in entries for each in entry.triggers.values()}


def all_shown(evaluation: Evaluation) -> dict[tuple[str, str], Any]:
    return {key: (shown(entry), on_target(evaluation, key[0], entry)) for key, entry in evaluation.entries.items()}


def shown(entry: EvaluatedScaledObject) -> Any:
    decisions = {
        trigger: (
            each.answer,
            each.target,
            each.policy,
            each.verdict and (each.verdict.verdict, [*each.verdict.gpus]),
            each.idle_since,
            each.suspend_at,
        )
        for trigger, each in entry.triggers.items()
    }
    return entry.target, decisions, entry.problems, entry.ignored, entry.pods


def on_target(evaluation: Evaluation, namespace: str, entry: EvaluatedScaledObject) -> Any:
    prevails = prevailing(evaluation.decisions_on(namespace, entry.target))
    return status_digest(prevails), decision_status(prevails)


@pytest.mark.parametrize("seed", range(12))
async def test_a_decision_that_stands_is_the_one_that_would_be_made_now(seed: int) -> None:
    history, reasons = RandomHistory(seed), set[str]()
    for _ in range(40):
        await history.pass_time()
        reasons |= history.reasons()
    assert len(reasons) > 8
