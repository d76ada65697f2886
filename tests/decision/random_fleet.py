"""ScaledObjects, their objects and their GPUs, which change at random, and what evaluators decide about them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from random import Random
from typing import Any

import msgspec
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
from scaler.errors import SourceError
from scaler.idleness.gpu import Signal
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, Unknown
from scaler.kube.discovery import Scale
from scaler.samples.source import RawSeries, SignalReading, VectorSample
from scaler.samples.wake_queries import WakeQuery
from scaler.suspension.status import status_digest
from scaler.targets.target_state import TargetState

NAMES = [f"job-{number}" for number in range(6)]
NAMESPACES = (NAMESPACE, "other")
SIGNALS = (GR_ENGINE, GPU_UTIL)
METADATA = ({"idleAfter": "5m", "warmUp": "1m"}, {"idleAfter": "5m", "warmUp": "3m", "gpus": "any"}, {})
DEFAULTS = Overrides(idle_after=timedelta(minutes=30))
"""As they were when weeks were recorded."""
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
    unshown: str = ""
    """Name of those without an element of the demand query."""

    def report(self, since_s: float, until_s: float) -> None:
        for (namespace, name, device), work in self.works.items():
            for signal in SIGNALS:
                found = self.points.setdefault((namespace, name, device, signal.name), [])
                del found[: bisect_right(found, (since_s - 2 * 3600, inf))]
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
            if of != signal.name:
                continue
            first, last = (bisect_right(points, (each.timestamp(), inf)) for each in (start, end))
            ahead = [(end.timestamp() + 3600, 0.0)] if self.works.get((namespace, name, device)) == "ahead" else []
            if first < last or ahead:
                labels = {"namespace": namespace, "pod": name, "UUID": device, "__name__": of}
                series.append(Series(labels, [*points[first:last], *ahead]))
        return SignalReading(series, None)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        if self.is_down:
            raise SourceError("down", transient=True)
        keys = [(namespace, name) for namespace in NAMESPACES for name in NAMES if name != self.unshown]
        return [
            VectorSample({"namespace": key[0], "scaledobject": key[1]}, 1.0 if key == self.demanded else 0.0)
            for key in keys
        ]


class RandomFleet:
    def __init__(self, seed: int, *, evaluators: int = 1) -> None:
        self.random, self.now = Random(seed), NOON
        self.cluster, self.source = MemoryCluster(), RandomSource(Random(seed + 1))
        self.evaluators = [self._evaluator() for _ in range(evaluators)]
        for namespace in NAMESPACES:
            for name in NAMES:
                self.submit(namespace, name)
        self.source.report(self.now.timestamp() - 3600, self.now.timestamp())

    def _evaluator(self) -> Evaluator:
        cache = DecisionCache(max_age=timedelta(hours=2), clock=lambda: self.now.timestamp())
        query = WakeQuery(name="asked", promql="asked", namespaces=frozenset({NAMESPACE}))
        return evaluator_of(
            self.cluster, self.source, cache, lambda: self.now, trust=TRUST, wake_queries=[query], defaults=DEFAULTS
        )

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
        doing = ("busy", "idle", "idle", "idle", "bursts", "holes", "one signal", "blank", "silent", "ahead")
        self.source.works[namespace, pod_name, device] = self.random.choice(doing)

    def somebody(self) -> tuple[str, str]:
        return self.random.choice(NAMESPACES), self.random.choice(NAMES)

    def happen(self) -> None:
        namespace, name = self.somebody()
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
                self.source.unshown = "" if self.source.demanded else name
            case 11:
                self.source.is_down = self.random.random() < 0.2
                self.cluster.go_silent(300.0 if self.random.random() < 0.1 else 0.0)

    # ---------------------------------------------------------------------------------------------------- what follows

    async def pass_time(self) -> Sequence[Evaluation | None]:
        """Something happens, or nothing; then every evaluator ticks. Returns what each has published."""
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
        return [await each.tick(self.now) for each in self.evaluators]


def all_shown(evaluation: Evaluation) -> dict[tuple[str, str], Any]:
    """Everything that is told of each ScaledObject: decisions, what they rest on, and the status of its target."""
    return {
        key: (_shown(entry), _on_target(evaluation, key[0], entry)) for key, entry in sorted(evaluation.entries.items())
    }


def _shown(entry: EvaluatedScaledObject) -> Any:
    decisions = [
        (
            trigger,
            each.answer,
            _words_alone(each.target),
            each.policy,
            each.verdict and (each.verdict.verdict, [_gpu(gpu) for gpu in each.verdict.gpus]),
            each.idle_since,
            each.suspend_at,
        )
        for trigger, each in entry.triggers.items()
    ]
    pods = sorted(entry.pods, key=lambda each: each.name)
    return entry.target, decisions, entry.problems, entry.ignored, pods


def _words_alone(target: TargetState) -> TargetState:
    """With the words of what requests a wake-up in the place of the request, which is newer than what is recorded."""
    request: Any = target.wake_request.words if target.wake_request is not None else ""
    return replace(target, wake_request=request)


def _gpu(gpu: GpuEvidence) -> Any:
    return gpu.gpu, gpu.pod, gpu.node, gpu.verdict, dict(gpu.windows), gpu.last_active_at, gpu.is_quiet


def _on_target(evaluation: Evaluation, namespace: str, entry: EvaluatedScaledObject) -> Any:
    prevails = prevailing(evaluation.decisions_on(namespace, entry.target))
    return status_digest(prevails), decision_status(prevails)
