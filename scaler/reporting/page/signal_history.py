"""What did the GPUs of one workload show over the last hours? From Prometheus, else from the samples in memory.

Laws:

* From either source it is what samples say: nothing is carried on where there are none.
* A series counts only where the rules of the settings say that it is of one of the workload's pods, whatever the query
  has brought.
* Memory reaches back as far as windows do. Pods that are gone are known as long as this process remembers them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import structlog
from numpy.typing import NDArray

from scaler.clock import Turns
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.sampling import Sampler
from scaler.errors import SourceError
from scaler.idleness.gpu import Unit, utilisation_ratios
from scaler.idleness.pods import GpuPod
from scaler.samples.prometheus import PrometheusSource

log = structlog.get_logger(__name__)

_MOST_GPUS = 64
_MOST_PODS = 64
_USUAL_PODS = 8
"""Pods of a workload that has none now."""
_MOST_SAMPLES = 100_000
"""One picture is made of no more: beyond them less time is asked for."""
_MOST_BINS = 120
_PATIENCE_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalBin:
    """A part of the time in which there was a sample: of all GPUs the highest one, and that of the quietest GPU."""

    begin: datetime
    end: datetime
    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTrack:
    name: str
    gpus: int
    bins: Sequence[SignalBin]
    """The bins; those without a sample are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalHistory:
    tracks: Sequence[SignalTrack]
    source: str
    """The source of the history, and what it shows, in words."""


class PodMemory:
    """The pods that each workload had when its GPUs were judged, the newest first; resumed ones may have others.

    Of workloads that are gone nothing is kept.
    """

    def __init__(self) -> None:
        self._pods: dict[Key, tuple[Sequence[GpuPod], tuple[str, ...]]] = {}
        """The pods of the last look, and the names of all that are remembered."""

    def look(self, evaluation: Evaluation) -> None:
        for key, entry in evaluation.entries.items():
            last, names = self._pods.get(key, ((), ()))
            if entry.pods and entry.pods is not last and any(x.verdict is not None for x in entry.triggers.values()):
                self._pods[key] = entry.pods, _newest(entry.pods, names)
        if len(self._pods) > len(evaluation.entries):
            self._pods = {key: pods for key, pods in self._pods.items() if key in evaluation.entries}

    def of(self, key: Key, entry: EvaluatedScaledObject) -> tuple[str, ...]:
        """Names of the pods that it has, and had."""
        return _newest(entry.pods, self._pods.get(key, ((), ()))[1])


def _newest(pods: Sequence[GpuPod], before: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(pod.name for pod in pods), *before]))[:_MOST_PODS]


class SignalHistoryReader:
    def __init__(self, sampler: Sampler, pods: PodMemory, source: PrometheusSource | None) -> None:
        """There is only memory where `source` is None: no Prometheus, or rules by which it is not known what to ask."""
        self._sampler = sampler
        self._pods = pods
        self._source = source

    async def read(self, key: Key, entry: EvaluatedScaledObject, begin: datetime, end: datetime) -> SignalHistory:
        pods = self._pods.of(key, entry)
        words = _of_pods(len(entry.pods), len(pods))
        if self._source is not None and pods:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    span = self._affordable(end - begin, len(entry.pods) or _USUAL_PODS)
                    tracks = await self._asked(self._source, key[0], pods, (begin, end), span)
                return SignalHistory(tracks=tracks, source=f"samples in Prometheus{words}")
            except (SourceError, TimeoutError) as error:
                log.debug("signals of a workload not read", error=str(error))
        tracks = self._remembered(key[0], pods, begin, end)
        return SignalHistory(tracks=tracks, source=f"samples in this process's memory{words}")

    # -------------------------------------------------------------------------------------------------------- memory

    def _remembered(self, namespace: str, pods: Sequence[str], begin: datetime, end: datetime) -> list[SignalTrack]:
        history = self._sampler.history
        rows = np.array([row for pod in pods for row in history.rows_of(namespace, pod)][:_MOST_GPUS], np.intp)
        if not len(rows):
            return []
        found = []
        for name, (at_s, peaks) in history.peaks(rows, begin, end).items():
            samples = [(at_s[row >= 0], row[row >= 0].astype(np.float64)) for row in peaks]
            found.append(_track(name, samples, begin, end, interval=history.interval))
        return found

    # ---------------------------------------------------------------------------------------------------- Prometheus

    async def _asked(
        self,
        source: PrometheusSource,
        namespace: str,
        pods: Sequence[str],
        shown: tuple[datetime, datetime],
        span: timedelta,
    ) -> list[SignalTrack]:
        """Raises: SourceError."""
        history, turns, tracks = self._sampler.history, Turns(), list[SignalTrack]()
        for signal in history.signals:
            by_gpu: dict[tuple[int, object], _Samples] = {}
            for query in source.query_of_pods(signal, namespace=namespace, pods=pods, span=span):
                for each in await source.ranges(query, at=shown[1]):
                    identity = self._sampler.identify(labels := each.labels())
                    if identity is not None and identity.namespace == namespace and identity.pod in pods:
                        gpu = pods.index(identity.pod), identity.gpu
                        measured = _measured(each.samples(), signal.unit_of(labels.get("__name__", "")))
                        by_gpu[gpu] = _joined(by_gpu.get(gpu, _NO_SAMPLES), measured)
                    await turns.give_way()
            newest = [by_gpu[gpu] for gpu in sorted(by_gpu, key=lambda gpu: gpu[0])]
            tracks.append(_track(signal.name, newest[:_MOST_GPUS], *shown, interval=history.interval))
        return tracks

    def _affordable(self, span: timedelta, pods: int) -> timedelta:
        """The part of the span that makes no more samples than one picture needs, of pods with eight GPUs each."""
        return min(span, max(timedelta(hours=1), _MOST_SAMPLES * self._sampler.history.interval / (8 * pods)))


def _of_pods(now: int, remembered: int) -> str:
    if now:
        return ""
    return " of the pods that it had last" if remembered else "; it has no pods, and which it had is not known"


_Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The samples of one GPU: Unix seconds, ratios."""
_NO_SAMPLES: _Samples = np.zeros(0), np.zeros(0)


def _measured(samples: Sequence[tuple[float, float]], unit: Unit) -> _Samples:
    """The samples that are measurements."""
    flat = np.array(samples, np.float64).reshape(-1, 2)
    ratios = utilisation_ratios(flat[:, 1], unit)
    is_measured = ~np.isnan(ratios)
    return flat[is_measured, 0], ratios[is_measured]


def _joined(one: _Samples, other: _Samples) -> _Samples:
    """The samples of exporters of several generations, or replicas, as one."""
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _track(name: str, gpus: Sequence[_Samples], begin: datetime, end: datetime, *, interval: timedelta) -> SignalTrack:
    """The samples of each GPU, in parts of the time, none of them so short that a sample may be missing by chance."""
    count = min(_MOST_BINS, max(1, int((end - begin) / (2 * interval))))
    begin_s, length_s = begin.timestamp(), (end - begin).total_seconds() / count
    peaks = np.full((max(1, len(gpus)), count), -1.0)
    for row, (at_s, ratios) in enumerate(gpus):
        is_inside = (at_s >= begin_s) & (at_s <= end.timestamp())
        places = np.minimum((at_s[is_inside] - begin_s) // length_s, count - 1).astype(np.intp)
        np.maximum.at(peaks[row], places, ratios[is_inside])
    has_sample = peaks >= 0
    high, low = peaks.max(axis=0), np.where(has_sample, peaks, np.inf).min(axis=0)
    bins = [
        SignalBin(
            begin=datetime.fromtimestamp(begin_s + number * length_s, UTC),
            end=datetime.fromtimestamp(begin_s + (number + 1) * length_s, UTC),
            low_ratio=float(low[number]),
            high_ratio=float(high[number]),
        )
        for number in np.flatnonzero(has_sample.any(axis=0)).tolist()
    ]
    return SignalTrack(name=name, gpus=len(gpus), bins=bins)
