"""What was recorded, and of whom: series, the pods that they name, and the workloads that pods make up. Pure.

Laws of this file:

* A pod's containers start at its first sample, and it ends with its last one.
* A pod has as many GPUs as is recorded of it; where nothing is, as many as have reported for it at the same time.
* Pods of one owner are one workload; a pod of which no owner is recorded is one by itself.
* Time of which nothing at all is recorded, an outage, is no GPU time of anybody.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

from scaler.idleness.gpu import GpuId, GpuSeries
from scaler.idleness.history import PodKey
from scaler.reporting.usage.prices import SECONDS_PER_HOUR


class SeriesSpan(NamedTuple):
    """One signal of one GPU of one pod."""

    signal: str
    gpu: GpuSeries
    first_s: float
    """Unix seconds of its first sample; of its last one."""
    last_s: float
    is_percent: bool = False
    """Whether a metric in percent was recorded for it."""

    @property
    def pod(self) -> PodKey:
        return self.gpu.namespace, self.gpu.pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What is recorded of a pod beside its samples; empty where nothing is."""

    owner: str = ""
    """Its name, or `Kind/name`."""
    queue: str = ""
    """The LocalQueue."""
    team: str = ""
    gpus: int = 0
    """How many its containers request; 0 where that is not known."""

    def updated(self, after: "PodFacts") -> "PodFacts":
        """The facts with what is recorded later, where anything is."""
        return PodFacts(
            owner=after.owner or self.owner,
            queue=after.queue or self.queue,
            team=after.team or self.team,
            gpus=after.gpus or self.gpus,
        )


NO_FACTS = PodFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPod:
    namespace: str
    name: str
    start_s: float
    end_s: float
    gpus: int
    model: str
    devices: tuple[tuple[int, ...], ...]
    """The positions in the recording of the series of each GPU that reported for it."""
    outages: tuple[tuple[float, float], ...] = ()
    """The times in which nothing at all was recorded."""
    series_of_others: tuple[int, ...] = ()
    """Series of other pods for which one of its GPUs reports while it does for this one, or shortly before or after."""

    @property
    def series(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self.devices))

    def gpu_seconds(self, begin_s: float, end_s: float) -> float:
        """Its GPU time between these instants."""
        begin_s, end_s = max(begin_s, self.start_s), min(end_s, self.end_s)
        unseen_s = sum(max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for since_s, until_s in self.outages)
        return self.gpus * max(0.0, end_s - begin_s - unseen_s)


@dataclass(frozen=True, kw_only=True)
class RecordedWorkload:
    namespace: str
    name: str
    kind: str
    queue: str
    team: str
    pods: tuple[RecordedPod, ...]
    """The pods in the order of their start."""

    @cached_property
    def start_s(self) -> float:
        return self.pods[0].start_s

    @cached_property
    def end_s(self) -> float:
        return max(each.end_s for each in self.pods)

    @cached_property
    def models(self) -> frozenset[str]:
        return frozenset(each.model for each in self.pods if each.model)

    @cached_property
    def series(self) -> tuple[int, ...]:
        return tuple(n for each in self.pods for n in each.series)

    @cached_property
    def changes(self) -> tuple[float, ...]:
        """When a pod starts or ends, in order; nothing where it is one pod."""
        return (
            tuple(sorted({at for each in self.pods for at in (each.start_s, each.end_s)})) if len(self.pods) > 1 else ()
        )

    def pods_at(self, at_s: float) -> list[RecordedPod]:
        return [each for each in self.pods if each.start_s <= at_s <= each.end_s]

    def gpu_hours(self, begin_s: float, end_s: float) -> float:
        return sum(each.gpu_seconds(begin_s, end_s) for each in self.pods) / SECONDS_PER_HOUR

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def workloads_of(
    series: Sequence[SeriesSpan],
    facts: Mapping[PodKey, PodFacts],
    *,
    margin_s: float,
    outages: Iterable[tuple[float, float]] = (),
) -> list[RecordedWorkload]:
    """The workloads, by their start. `margin_s`: for how long after its last sample a pod counts as a GPU's holder."""
    by_pod: dict[PodKey, dict[GpuId, list[int]]] = {}
    for position, each in enumerate(series):
        by_pod.setdefault(each.pod, {}).setdefault(each.gpu.gpu, []).append(position)
    of_others, unseen = _series_of_others(series, by_pod, margin_s), tuple(outages)
    by_owner: dict[tuple[str, str], list[RecordedPod]] = {}
    for key, devices in by_pod.items():
        known = facts.get(key, NO_FACTS)
        others = tuple(of_others.get(key, ()))
        pod = replace(_pod(series, devices, known), outages=unseen, series_of_others=others)
        by_owner.setdefault((pod.namespace, known.owner or f"Pod/{pod.name}"), []).append(pod)
    found = [_workload(owner, pods, facts) for (_, owner), pods in by_owner.items()]
    return sorted(found, key=lambda each: (each.start_s, each.namespace, each.name))


def _pod(series: Sequence[SeriesSpan], devices: Mapping[GpuId, Sequence[int]], known: PodFacts) -> RecordedPod:
    found = [series[n] for positions in devices.values() for n in positions]
    return RecordedPod(
        namespace=found[0].gpu.namespace,
        name=found[0].gpu.pod,
        start_s=min(each.first_s for each in found),
        end_s=max(each.last_s for each in found),
        gpus=known.gpus or most_at_once((*span, 1) for span in _spans(found).values()),
        model=next((each.gpu.model for each in found if each.gpu.model), ""),
        devices=tuple(map(tuple, devices.values())),
    )


def _workload(owner: str, pods: Sequence[RecordedPod], facts: Mapping[PodKey, PodFacts]) -> RecordedWorkload:
    pods = sorted(pods, key=lambda each: (each.start_s, each.name))
    kind, _, name = owner.rpartition("/")
    known = [facts.get((each.namespace, each.name), NO_FACTS) for each in pods]
    return RecordedWorkload(
        namespace=pods[0].namespace,
        name=name,
        kind=kind,
        queue=next((each.queue for each in known if each.queue), ""),
        team=next((each.team for each in known if each.team), pods[0].namespace),
        pods=tuple(pods),
    )


def _spans(series: Iterable[SeriesSpan]) -> dict[tuple[GpuId, PodKey], tuple[float, float]]:
    """The time from when to when each GPU reported for each pod, by any signal."""
    spans: dict[tuple[GpuId, PodKey], tuple[float, float]] = {}
    for each in series:
        key = each.gpu.gpu, each.pod
        first_s, last_s = spans.get(key, (each.first_s, each.last_s))
        spans[key] = min(first_s, each.first_s), max(last_s, each.last_s)
    return spans


def most_at_once(spans: Iterable[tuple[float, float, int]]) -> int:
    """The largest sum of GPUs at any instant, of spans from when to when so many were there."""
    turns = sorted(turn for begin_s, end_s, gpus in spans for turn in ((begin_s, 0, gpus), (end_s, 1, -gpus)))
    # One that begins at the very end of another is there with it.
    return max(accumulate((gpus for *_, gpus in turns), initial=0))


def _series_of_others(
    series: Sequence[SeriesSpan], by_pod: Mapping[PodKey, Mapping[GpuId, Sequence[int]]], margin_s: float
) -> dict[PodKey, list[int]]:
    by_gpu: dict[GpuId, list[tuple[float, float, PodKey]]] = {}
    for (gpu, pod), (first_s, last_s) in _spans(series).items():
        by_gpu.setdefault(gpu, []).append((first_s, last_s, pod))
    found: dict[PodKey, list[int]] = {}
    for gpu, spans in by_gpu.items():
        for pod, other in _overlapping(spans, margin_s):
            found.setdefault(pod, []).extend(by_pod[other][gpu])
            found.setdefault(other, []).extend(by_pod[pod][gpu])
    return found


def _overlapping(spans: list[tuple[float, float, PodKey]], margin_s: float) -> Iterator[tuple[PodKey, PodKey]]:
    spans.sort()
    for number, (_, last_s, pod) in enumerate(spans):
        for first_s, _, other in spans[number + 1 :]:
            if first_s > last_s + margin_s:
                break
            yield pod, other
