"""How a metric is declared: its name, unit and labels, and which replicas of the scaler show it.

A declaration makes the metric and remembers how it was made, so that the page of all metrics in the documentation is
made from the very same lines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "idle_gpu_scaler"


class Shown(StrEnum):
    """Which replicas show a metric, and so how those of several are put together."""

    BY_EACH = "each"
    """Every replica shows its own: a sum over replicas is that of all."""
    BY_ALL = "all"
    """Every replica shows the same, because it looks at the same: the highest is taken, never the sum."""
    BY_ONE = "leader"
    """Only the leader shows it: a sum over replicas is the leader's, and goes on when another one leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One metric as it is declared."""

    name: str
    """As in the exposition; of a histogram without `_bucket`, `_sum` and `_count`."""
    type: str
    unit: str
    labels: tuple[str, ...]
    shown: Shown
    section: str
    meaning: str


class Declaring:
    """Makes metrics in one registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []
        self.forget_of_one: list[Callable[[], None]] = []
        """What empties the gauges that only the leader shows."""
        self._section = ""
        self._shown = Shown.BY_EACH

    def begin(self, section: str, shown: Shown) -> None:
        """What follows is documented under this heading, and shown by these replicas unless it says otherwise."""
        self._section, self._shown = section, shown

    def gauge(self, name: str, meaning: str, *labels: str, unit: str = "", shown: Shown | None = None) -> Gauge:
        self._note(name, "gauge", meaning, labels=labels, unit=unit, shown=shown)
        gauge = Gauge(f"{PREFIX}_{name}", meaning, labels, registry=self.registry)
        if (shown or self._shown) is Shown.BY_ONE:
            # One without labels has a series always, so it is 0 then.
            self.forget_of_one.append(partial(show, gauge, {}) if labels else partial(gauge.set, 0))
        return gauge

    def counter(self, name: str, meaning: str, *labels: str, unit: str = "", shown: Shown | None = None) -> Counter:
        """`name` ends in `_total`."""
        self._note(name, "counter", meaning, labels=labels, unit=unit, shown=shown)
        return Counter(f"{PREFIX}_{name}", meaning, labels, registry=self.registry)

    def histogram(
        self, name: str, meaning: str, *labels: str, buckets: Sequence[float], shown: Shown | None = None
    ) -> Histogram:
        """Of durations; `name` ends in `_seconds`."""
        self._note(name, "histogram", meaning, labels=labels, unit="", shown=shown)
        return Histogram(f"{PREFIX}_{name}", meaning, labels, buckets=buckets, registry=self.registry)

    def _note(
        self, name: str, kind: str, meaning: str, *, labels: Sequence[str], unit: str, shown: Shown | None
    ) -> None:
        self.declared.append(
            Declared(
                name=f"{PREFIX}_{name}",
                type=kind,
                unit=unit or _unit_in(name),
                labels=tuple(labels),
                shown=shown or self._shown,
                section=self._section,
                meaning=meaning,
            )
        )


_UNITS = {
    "timestamp_seconds": "seconds since 1970",
    "gpu_seconds": "GPU-seconds",
    "gpus": "GPUs",
}


def _unit_in(name: str) -> str:
    """The unit that a name ends in."""
    counted = name.removesuffix("_total")
    return next((unit for end, unit in _UNITS.items() if counted.endswith(end)), counted.rpartition("_")[2])


_Labels = TypeVar("_Labels", bound=tuple[str, ...])


def show(gauge: Gauge, rows: Mapping[_Labels, float]) -> None:
    """Replace everything that the gauge shows. Rows are keyed by the values of its labels, in their order.

    A series that stays is kept: to make thousands anew every few seconds would hold up the answers to KEDA.
    """
    before = _SHOWN.get(gauge, frozenset())
    for labels in before - rows.keys():
        gauge.remove(*labels)
    for labels, value in rows.items():
        gauge.labels(*labels).set(value)
    _SHOWN[gauge] = frozenset(rows)


_SHOWN: WeakKeyDictionary[Gauge, frozenset[tuple[str, ...]]] = WeakKeyDictionary()
"""The series of each gauge, by the values of their labels."""
