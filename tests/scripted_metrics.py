"""What a cluster's GPUs showed, as functions of time, and what went wrong on the way into Prometheus. No I/O.

    metrics = Metrics([*gpu("GPU-1", pod="train-0", ratio=lambda at_s: 0.9 if at_s < noon else 0.0)])
    metrics.distortions.append(during(noon, noon + 60, vanish, of=node("node-a")))

A *distortion* is a function on one sample: it gives the sample as it was stored, or None where it never was. So a fault
that has passed stays in the data, as it does in a real Prometheus.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from scaler.errors import SourceError
from scaler.idleness.gpu import Signal
from scaler.samples.source import SignalReading, VectorSample

GR_ENGINE_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL"
EXPORTER_INTERVAL_S = 30.0


class Point(NamedTuple):
    """One sample of one series."""

    metric: str
    labels: Mapping[str, str]
    at_s: float
    value: float

    def labelled(self, **labels: str) -> "Point":
        return self._replace(labels={**self.labels, **labels})


Distortion = Callable[[Point], Point | None]
Which = Callable[[Point], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series: a sample every interval, its value a function of Unix time."""

    metric: str
    labels: Mapping[str, str]
    value: Callable[[float], float]
    interval_s: float = EXPORTER_INTERVAL_S
    phase_s: float = 7.0

    def samples(self, after_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        """(Unix seconds, value) of those in (after, until]."""
        step = int((after_s - self.phase_s) // self.interval_s) + 1
        while (at_s := step * self.interval_s + self.phase_s) <= until_s:
            yield at_s, self.value(at_s)
            step += 1


def gpu(
    device: str,
    *,
    pod: str,
    namespace: str = "demo",
    node: str = "node-a",
    ratio: Callable[[float], float] = lambda _: 0.0,
    phase_s: float = 7.0,
) -> list[Series]:
    """The two default signals of one GPU as Prometheus stores them where it sets its target's labels itself."""
    labels = {
        "UUID": device,
        "Hostname": node,
        "modelName": "NVIDIA A100",
        "namespace": "gpu-operator",
        "pod": f"dcgm-exporter-{node}",
        "container": "exporter",
        "exported_namespace": namespace,
        "exported_pod": pod,
        "exported_container": "main",
    }
    return [
        Series(metric=GR_ENGINE_ACTIVE, labels=labels, value=ratio, phase_s=phase_s),
        Series(metric=GPU_UTIL, labels=labels, value=lambda at_s: 100 * ratio(at_s), phase_s=phase_s),
    ]


# ---------------------------------------------------------------------------------------------------------- distortions


def during(begin: datetime, end: datetime, distortion: Distortion, *, of: Which = lambda _: True) -> Distortion:
    """The distortion, of the samples that were taken in [begin, end) and that `of` names."""
    begin_s, end_s = begin.timestamp(), end.timestamp()
    return lambda point: distortion(point) if begin_s <= point.at_s < end_s and of(point) else point


def vanish(_: Point) -> None:
    """Never stored."""


def reads(value: float) -> Distortion:
    """Stored with this value."""
    return lambda point: point._replace(value=value)


def shifted(seconds: float) -> Distortion:
    """Stored with the time of a clock that is ahead by so much. Range: up to two minutes."""
    return lambda point: point._replace(at_s=point.at_s + seconds)


def of_node(name: str) -> Which:
    return lambda point: point.labels.get("Hostname") == name


def of_device(uuid: str) -> Which:
    return lambda point: point.labels.get("UUID") == uuid


def of_metric(name: str) -> Which:
    return lambda point: point.metric == name


def without_workload(point: Point) -> Point:
    """Only the exporter's own pod is named, as where the exporter has no access to the kubelet."""
    return point._replace(labels={name: v for name, v in point.labels.items() if not name.startswith("exported_")})


def swapped(one: str, other: str) -> Distortion:
    """The GPUs of two pods each carry the other's name."""
    names = {one: other, other: one}

    def swap(point: Point) -> Point:
        pod = point.labels.get("exported_pod", "")
        return point.labelled(exported_pod=names.get(pod, pod))

    return swap


# ------------------------------------------------------------------------------------------------------------- the data

_SELECTOR = re.compile(r"(?P<name>[a-zA-Z_:]\w*)?(?:\{(?P<conditions>.*)\})?\[(?P<amount>\d+)(?P<unit>ms|s)\]")
_LONGEST_SHIFT_S = 120.0
_CONDITION = re.compile(r'(\w+)(=~|=)"((?:[^"\\]|\\.)*)"')
Labelled = tuple[dict[str, str], list[tuple[float, float]]]
"""A label set, metric name included, and its (Unix seconds, value)."""


class UnknownQueryError(Exception):
    """Neither a range selector nor a demand query that a test scripted."""


@dataclass(kw_only=True)
class Metrics:
    """The data of one Prometheus."""

    series: list[Series]
    distortions: list[Distortion] = field(default_factory=list)
    demands: dict[str, list[VectorSample]] = field(default_factory=dict)
    arrives_at_s: Callable[[Point], float] | None = None
    """When a sample can be read: as soon as it is taken, or later where it is sent on by remote write."""

    def select(self, promql: str, *, at_s: float, now_s: float) -> list[Labelled]:
        """What a range selector gives at `at_s` by Prometheus' own clock. Raises: UnknownQueryError."""
        match = _SELECTOR.fullmatch(promql)
        if match is None:
            raise UnknownQueryError(promql)
        span_s = int(match["amount"]) * (0.001 if match["unit"] == "ms" else 1)
        conditions = [*_CONDITION.findall(match["conditions"] or ""), ("__name__", "=", match["name"] or "")]
        names = [_matches(*condition[1:]) for condition in conditions if condition[0] == "__name__" and condition[2]]
        metrics = {each.metric for each in self.series if all(holds(each.metric) for holds in names)}
        found = self.range(metrics, after_s=at_s - span_s, until_s=at_s, now_s=now_s)
        labels = [(label, _matches(*others)) for label, *others in conditions if label != "__name__"]
        return [each for each in found if all(holds(each[0].get(label, "")) for label, holds in labels)]

    def range(self, metrics: Collection[str], *, after_s: float, until_s: float, now_s: float) -> list[Labelled]:
        """All samples of these metrics that can be read now and whose stored time is in (after, until]."""
        asked = [each for each in self.series if each.metric in metrics]
        if not self.distortions and self.arrives_at_s is None:
            until_s = min(until_s, now_s)
            return _merged((each.metric, each.labels, [*each.samples(after_s, until_s)]) for each in asked)
        found: dict[tuple[str, int], tuple[str, Mapping[str, str], list[tuple[float, float]]]] = {}
        for point in self._stored(asked, after_s, until_s, now_s):
            _, _, samples = found.setdefault((point.metric, id(point.labels)), (point.metric, point.labels, []))
            samples.append((point.at_s, point.value))
        return _merged(found.values())

    def _stored(self, asked: Iterable[Series], after_s: float, until_s: float, now_s: float) -> Iterator[Point]:
        slack_s = _LONGEST_SHIFT_S if self.distortions else 0.0
        for series in asked:
            for sample in series.samples(after_s - slack_s, until_s + slack_s):
                taken = Point(series.metric, series.labels, *sample)
                arrives_at_s = taken.at_s if self.arrives_at_s is None else self.arrives_at_s(taken)
                stored = _distorted(taken, self.distortions) if arrives_at_s <= now_s else None
                if stored is not None and after_s < stored.at_s <= until_s:
                    yield stored


def _merged(found: Iterable[tuple[str, Mapping[str, str], list[tuple[float, float]]]]) -> list[Labelled]:
    """Series that a distortion has given equal labels are one."""
    merged: dict[tuple[str, frozenset[tuple[str, str]]], Labelled] = {}
    for metric, labels, samples in found:
        if samples:
            key = metric, frozenset(labels.items())
            merged.setdefault(key, ({"__name__": metric, **labels}, []))[1].extend(samples)
    return [(labels, sorted(samples)) for labels, samples in merged.values()]


def _distorted(point: Point | None, distortions: Iterable[Distortion]) -> Point | None:
    for distortion in distortions:
        if point is not None:
            point = distortion(point)
    return point


def _matches(operator: str, value: str) -> Callable[[str], bool]:
    pattern = re.compile(value if operator == "=~" else re.escape(value))
    return lambda given: pattern.fullmatch(given) is not None


# --------------------------------------------------------------------------------------------------- without HTTP


@dataclass(frozen=True, slots=True)
class ScriptedSeries:
    """Implements ports.RawSeries."""

    all_labels: dict[str, str]
    all_samples: list[tuple[float, float]]

    @property
    def key(self) -> bytes:
        return repr(sorted(self.all_labels.items())).encode()

    def labels(self) -> dict[str, str]:
        return dict(self.all_labels)

    def samples(self) -> Sequence[tuple[float, float]]:
        return self.all_samples


@dataclass(kw_only=True)
class ScriptedSource:
    """Implements ports.SignalSource and ports.DemandSource without a network, and writes down what was asked."""

    metrics: Metrics
    clock: Callable[[], datetime]
    failing: dict[str, SourceError] = field(default_factory=dict)
    """By the name of a signal, or the text of a demand query: what is raised in place of an answer."""
    asked: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """(signal or demand query, start, end) of each read."""

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        self.asked.append((signal.name, start, end))
        if signal.name in self.failing:
            raise self.failing[signal.name]
        found = self.metrics.range(
            signal.metrics,
            after_s=start.timestamp(),
            until_s=end.timestamp(),
            now_s=self.clock().timestamp(),
        )
        return SignalReading([ScriptedSeries(*each) for each in found], None)

    async def demand(self, promql: str, *, at: datetime) -> Sequence[VectorSample]:
        self.asked.append((promql, at, at))
        if promql in self.failing:
            raise self.failing[promql]
        return self.metrics.demands[promql]
