"""What was measured: GPU identity, signals, and the ring buffer that holds a window of one signal of one GPU.

Laws of this file:

* A slot is one collection interval. However often an exporter is scraped, a slot counts once, so scraping twice per
  collection does not look like twice the evidence.
* A slot keeps its highest sample. Idleness is judged by the peak; a mean hides work.
* A slot without a sample stays empty. It is never filled from its neighbours.

Worked example: interval 30 s, window 2 min at 12:02:00 is the four slots that begin at 12:00:00, 12:00:30, 12:01:00
and 12:01:30. Samples 0 at 12:00:10 and 12:00:25, 0.4 at 12:01:05 give: peak 0.4, covered 2 of 4, longest hole 1.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import isfinite

_EMPTY = -1.0
_EARLIEST_SLOT = -(2**62)


class Unit(StrEnum):
    """The unit in which an exporter reports a signal. It is declared, never inferred from a metric's name."""

    RATIO = "ratio"
    PERCENT = "percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One kind of evidence of work. Every configured signal must be quiet before a GPU is idle."""

    name: str
    """Short name for evidence, logs and metric labels."""
    metrics: tuple[str, ...]
    """Metric names under which exporters publish it; old and new generations of a name stand side by side."""
    unit: Unit
    absent_on_mig: bool = False
    """Whether exporters do not publish it for MIG instances (NVML utilisation), so that none is expected there."""


DEFAULT_SIGNALS = (
    Signal(
        name="gr_engine_active",
        metrics=("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
        unit=Unit.RATIO,
    ),
    # DCGM 4.6 renamed field 203 to ..._RATIO and kept its 0-100 range.
    Signal(
        name="gpu_util",
        metrics=("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        unit=Unit.PERCENT,
        absent_on_mig=True,
    ),
)

_UNIT_SCALE = {Unit.RATIO: 1.0, Unit.PERCENT: 100.0}
_HIGHEST_PLAUSIBLE_RATIO = 1.5
"""Utilisation is 0..1; exporters overshoot by rounding. Beyond this the value is a sentinel, a blank, or another unit."""


def utilisation_ratio(value: float, unit: Unit) -> float | None:
    """The sample as a ratio 0..1, or None where the value is no measurement.

    NaN, infinities, negative values and DCGM's blanks (9.22e18 and 1.4e14 with their not-found, not-supported and
    no-permission neighbours; 2147483632..35) are no measurements. Neither is 57 where a ratio was declared.
    """
    ratio = value / _UNIT_SCALE[unit]
    if not isfinite(ratio) or ratio < 0 or ratio > _HIGHEST_PLAUSIBLE_RATIO:
        return None
    return ratio


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GpuId:
    """A schedulable device: a whole GPU, or one MIG instance of it."""

    device: str
    """The GPU's UUID, or `node/index` where the exporter publishes none."""
    mig_instance: str = ""

    @property
    def is_mig(self) -> bool:
        return bool(self.mig_instance)

    def __str__(self) -> str:
        return f"{self.device}/mig-{self.mig_instance}" if self.mig_instance else self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeries:
    """The identity of one series after relabelling: which device, held by which pod."""

    gpu: GpuId
    namespace: str
    pod: str
    container: str = ""
    node: str = ""
    model: str = ""


def _first(labels: Mapping[str, str], *names: str) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def identify(labels: Mapping[str, str]) -> GpuSeries | None:
    """The GPU and pod that a relabelled series speaks of, or None where it names no device or no pod.

    Exporter generations spell the labels differently (`UUID`, `uuid`, `gpu_uuid`; `Hostname`, `hostname`); all are read.

    Source: dcgm-exporter render_metrics.go.
    """
    namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
    node = _first(labels, "Hostname", "hostname", "node")
    index = labels.get("gpu", "")
    device = _first(labels, "UUID", "uuid", "gpu_uuid") or (f"{node}/{index}" if node and index else "")
    if not (namespace and pod and device):
        return None
    return GpuSeries(
        gpu=GpuId(device=device, mig_instance=labels.get("GPU_I_ID", "")),
        namespace=namespace,
        pod=pod,
        container=labels.get("container", ""),
        node=node,
        model=_first(labels, "modelName", "modelname", "model_name"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one signal of one GPU showed over a span of whole collection intervals."""

    slots: int
    """Collection intervals that the window spans."""
    covered: int
    """Intervals that hold at least one sample."""
    longest_gap: int
    """Length in intervals of the longest run without a sample, the window's edges included."""
    peak_ratio: float | None
    """Highest sample, or None where there is none."""
    last_sample_at: datetime | None
    """Time of the newest sample the ring holds, inside the window or not."""

    @property
    def coverage_ratio(self) -> float:
        return self.covered / self.slots if self.slots else 0.0


class Ring:
    """A ring buffer over the newest collection intervals of one signal of one GPU, four bytes an interval.

    Values are kept as 32-bit floats. Rounding is monotone, so comparing against a floor that was rounded the same
    way (`as_stored`) never turns a sample at the floor into one below it.
    """

    __slots__ = ("_head", "_interval_s", "_last_sample_s", "_values")

    def __init__(self, *, slots: int, interval: timedelta) -> None:
        if slots < 1 or interval <= timedelta(0):
            raise ValueError(f"a ring needs at least one slot and a positive interval, not {slots} × {interval}")
        self._interval_s = interval.total_seconds()
        self._values = array("f", [_EMPTY]) * slots
        self._head = _EARLIEST_SLOT
        self._last_sample_s = float("-inf")

    @property
    def slots(self) -> int:
        return len(self._values)

    @property
    def last_sample_s(self) -> float:
        """Unix time of the newest sample, -inf where there is none."""
        return self._last_sample_s

    def add(self, at_s: float, ratio: float) -> None:
        """Record one sample. The order of arrival does not matter; a sample older than the ring is dropped.

        Units: `at_s` Unix seconds, `ratio` 0..1.
        """
        slot = int(at_s // self._interval_s)
        values, size = self._values, len(self._values)
        if slot > self._head:
            self._advance_to(slot)
        elif slot <= self._head - size:
            return
        position = slot % size
        values[position] = max(values[position], ratio)
        self._last_sample_s = max(self._last_sample_s, at_s)

    def _advance_to(self, slot: int) -> None:
        values, size = self._values, len(self._values)
        if slot - self._head >= size:
            self._values = array("f", [_EMPTY]) * size
        else:
            for passed in range(self._head + 1, slot + 1):
                values[passed % size] = _EMPTY
        self._head = slot

    def _between(self, first: int, last: int) -> array[float]:
        """The values of slots first..last, oldest first; slots that the ring does not hold are empty."""
        size = len(self._values)
        held_first, held_last = max(first, self._head - size + 1), min(last, self._head)
        if held_last < held_first:
            return array("f", [_EMPTY]) * (last - first + 1)
        start, count = held_first % size, held_last - held_first + 1
        held = self._values[start : start + count]
        held.extend(self._values[: count - len(held)])
        return array("f", [_EMPTY]) * (held_first - first) + held + array("f", [_EMPTY]) * (last - held_last)

    def window(self, end: datetime, length: timedelta) -> Window:
        """The window of `length` that ends at `end`, in whole collection intervals.

        The interval in which `end` falls is still being collected: it belongs to the window when it already holds a
        sample and is not missed when it does not.
        """
        newest = self._slot_in_progress(end)
        count = max(1, round(length.total_seconds() / self._interval_s))
        values = self._between(newest - count + 1, newest)
        covered = count - values.count(_EMPTY)
        return Window(
            slots=count,
            covered=covered,
            longest_gap=_longest_run_of_empty(values) if covered < count else 0,
            peak_ratio=max(values) if covered else None,
            last_sample_at=self.last_sample_at,
        )

    def _slot_in_progress(self, end: datetime) -> int:
        slot = int(end.timestamp() // self._interval_s)
        in_progress = self._between(slot, slot)[0] != _EMPTY
        return slot if in_progress else slot - 1

    @property
    def last_sample_at(self) -> datetime | None:
        if self._head == _EARLIEST_SLOT:
            return None
        return datetime.fromtimestamp(self._last_sample_s, UTC)

    def last_active_at(self, above_ratio: float) -> datetime | None:
        """The end of the newest interval whose peak reached the floor, or None where the ring holds none."""
        floor = as_stored(above_ratio)
        values, size = self._values, len(self._values)
        for slot in range(self._head, self._head - size, -1):
            if values[slot % size] >= floor:
                return datetime.fromtimestamp((slot + 1) * self._interval_s, UTC)
        return None


def as_stored(ratio: float) -> float:
    """The ratio as a ring keeps it (32-bit), for comparisons with a window's peak."""
    return array("f", [ratio])[0]


def _longest_run_of_empty(values: array[float]) -> int:
    longest = run = 0
    for value in values:
        run = run + 1 if value == _EMPTY else 0
        longest = max(longest, run)
    return longest
