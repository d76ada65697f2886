"""The samples of the whole cluster, found by pod: which GPUs reported for it, and what each signal showed.

Laws of this file:

* A series belongs to the pod that its labels name at the time of the sample. A GPU that changed hands has one history
  per pod, so that one pod's work is never another's.
* What several exporters or replicas say about the same GPU and pod is merged by the highest sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from scaler.idleness.gpu import GpuId, GpuSeries, Signal, utilisation_ratio
from scaler.idleness.window import NO_WINDOW, Ring, Window

PodKey = tuple[str, str]
"""(namespace, pod name)"""


class DeviceHistory:
    """One GPU as one pod held it: a ring per signal that ever reported."""

    __slots__ = ("last_sample_s", "rings", "series")

    def __init__(self, series: GpuSeries) -> None:
        self.series = series
        self.rings: dict[str, Ring] = {}
        self.last_sample_s = float("-inf")
        """Unix time of the newest sample of any signal."""

    def window(self, signal: str, *, end: datetime, length: timedelta) -> Window:
        ring = self.rings.get(signal)
        return ring.window(end, length) if ring else NO_WINDOW

    def last_active_at(self, above_ratio: float) -> datetime | None:
        found = [at for ring in self.rings.values() if (at := ring.last_active_at(above_ratio))]
        return max(found, default=None)


class History:
    """Rings for every GPU of every pod, over `span`."""

    def __init__(self, *, signals: Sequence[Signal], interval: timedelta, span: timedelta) -> None:
        self.signals = tuple(signals)
        self.interval = interval
        self.span = span
        self._by_pod: dict[PodKey, dict[GpuId, DeviceHistory]] = {}
        self._holders: dict[GpuId, set[PodKey]] = {}

    @property
    def slots(self) -> int:
        """Slots per ring: the span in intervals, one for the interval in progress and one for rounding down."""
        return -int(-self.span // self.interval) + 2

    def record(self, signal: Signal, series: GpuSeries, samples: Iterable[tuple[float, float]]) -> int:
        """Add samples of one series; returns how many were no measurements (blanks, sentinels, another unit).

        Units: (Unix seconds, value in the signal's own unit).
        """
        taken, unit = list(samples), signal.unit
        measured = [(at_s, ratio) for at_s, value in taken if (ratio := utilisation_ratio(value, unit)) is not None]
        device = self._device(series)
        ring = self._ring(device, signal)
        ring.extend(measured)
        device.last_sample_s = max(device.last_sample_s, ring.last_sample_s)
        return len(taken) - len(measured)

    def _device(self, series: GpuSeries) -> DeviceHistory:
        pod = (series.namespace, series.pod)
        devices = self._by_pod.setdefault(pod, {})
        device = devices.get(series.gpu)
        if device is None:
            device = devices[series.gpu] = DeviceHistory(series)
            self._holders.setdefault(series.gpu, set()).add(pod)
        return device

    def _ring(self, device: DeviceHistory, signal: Signal) -> Ring:
        ring = device.rings.get(signal.name)
        if ring is None:
            ring = device.rings[signal.name] = Ring(slots=self.slots, interval=self.interval)
        return ring

    def devices_of(self, namespace: str, pod: str) -> Mapping[GpuId, DeviceHistory]:
        return self._by_pod.get((namespace, pod), {})

    def other_holders(self, gpu: GpuId, pod: PodKey, *, since_s: float) -> list[PodKey]:
        """Other pods for which the same device reported at or after `since_s` (Unix seconds)."""
        others = self._holders.get(gpu, set()) - {pod} if len(self._holders.get(gpu, ())) > 1 else ()
        return sorted(other for other in others if self._by_pod[other][gpu].last_sample_s >= since_s)

    def forget_before(self, at: datetime) -> None:
        at_s = at.timestamp()
        for pod, devices in list(self._by_pod.items()):
            for gpu in [gpu for gpu, device in devices.items() if device.last_sample_s < at_s]:
                del devices[gpu]
                self._holders[gpu].discard(pod)
                if not self._holders[gpu]:
                    del self._holders[gpu]
            if not devices:
                del self._by_pod[pod]

    def __len__(self) -> int:
        """How many (pod, GPU) pairs are held."""
        return sum(len(devices) for devices in self._by_pod.values())

    def __iter__(self) -> Iterator[DeviceHistory]:
        for devices in self._by_pod.values():
            yield from devices.values()
