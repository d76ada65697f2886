"""What was measured: which GPU, which signal, and is the value a measurement at all?

Exporters of several generations spell labels, units and blanks differently; past this file there is one spelling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from sys import intern

import numpy as np
from numpy.typing import NDArray


class Unit(StrEnum):
    """The unit in which an exporter reports a signal. It is declared, never inferred from a metric's name."""

    RATIO = "ratio"
    PERCENT = "percent"
    WATT = "watt"
    COUNT = "count"
    """A counter, of which only matters whether it grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One kind of evidence of work. Every configured signal must be quiet before a GPU is idle."""

    name: str
    """Short name for evidence, logs and metric labels."""
    metrics: tuple[str, ...]
    """Metric names under which exporters publish it; old and new generations of a name are listed side by side."""
    unit: Unit
    """The unit of all of these metrics, or of the first one."""
    absent_on_mig: bool = False
    """Whether exporters do not publish it for MIG instances (NVML utilisation), so that none is expected there."""
    units: tuple[Unit, ...] = ()
    """The unit of each metric, where they differ."""

    @property
    def by_unit(self) -> "Sequence[Signal]":
        """The signal itself, or where its metrics have several units, one signal of its name for each unit."""
        if not self.units:
            return (self,)
        return [
            replace(self, metrics=tuple(x for x in self.metrics if self.unit_of(x) is unit), unit=unit, units=())
            for unit in dict.fromkeys(self.units)
        ]

    def unit_of(self, metric: str) -> Unit:
        return dict(zip(self.metrics, self.units, strict=False)).get(metric, self.unit)


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

ENERGY = Signal(
    name="energy",
    metrics=(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "nvidia_smi_energy_joules_total",
        "gpu_energy_consumed",
        "amd_gpu_energy_consumed",
        "xpum_energy_joules",
        "hw_energy_joules_total",
    ),
    unit=Unit.COUNT,
)
"""What a GPU has drawn since its driver was loaded. It draws power while it is idle, too: where the counter stands
still, so does the exporter's page. Source: the exporters' lists of metrics; DCGM field 156."""

BOARD_POWER = Signal(name="board_power", metrics=("DCGM_FI_DEV_POWER_USAGE",), unit=Unit.WATT)
"""What a board with MIG instances draws, all of them together. Source: DCGM field 155."""

_UNIT_SCALE = {Unit.RATIO: 1.0, Unit.PERCENT: 100.0, Unit.WATT: 1.0}
_HIGHEST_MEASUREMENT = 1e9
"""The highest measurement in a signal's unit. All of DCGM's blanks lie above, and no utilisation does."""


def utilisation_ratio(value: float, unit: Unit) -> float | None:
    """The sample as a ratio 0..1, or None where the value is no measurement.

    NaN, infinities, negative values and DCGM's blanks (9.22e18 and 1.4e14 with their not-found, not-supported and
    no-permission neighbours; 2147483632..35) are no measurements. 57 where a ratio was declared is one: to drop it
    would leave the quiet samples around it as the only evidence. As 5700 % it is work, and easy to see in `explain`.
    """
    is_measurement = 0 <= value <= _HIGHEST_MEASUREMENT  # never true of NaN
    return value / _UNIT_SCALE[unit] if is_measurement else None


def utilisation_ratios(values: NDArray[np.float64], unit: Unit) -> NDArray[np.float64]:
    """The ratios of many samples, with NaN for those that are no measurements."""
    return np.where((values >= 0) & (values <= _HIGHEST_MEASUREMENT), values / _UNIT_SCALE[unit], np.nan)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GpuId:
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
    """Both empty where the series speaks of the device, and of no pod that holds it."""
    node: str = ""
    """The host that it names: a Node, an exporter's pod, or a host of another cluster."""
    hosts: tuple[str, ...] = ()
    """All that its labels name, where they name several, that one first."""
    model: str = ""
    exporter: str = ""
    """The exporter whose page it stands on, as Prometheus names targets; empty where nothing says so."""


_HOST_LABELS = (
    *("Hostname", "hostname", "node", "exported_node"),
    *("kubernetes_node", "node_name", "nodename", "k8s_node_name", "host_name"),
)
"""The exporters' own, then what scrape configurations and OpenTelemetry call it. A series with none of these is taken
for one of the pod's Node."""

_LONGEST_LABEL = 2**16
"""Characters. Kubernetes' names and labels have 253, its annotations 256 KiB in all."""


def _first(labels: Mapping[str, str], *names: str) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def identify(labels: Mapping[str, str]) -> GpuSeries | None:
    """The GPU and pod that a relabelled series speaks of, or None where it names no device or no pod."""
    found = identify_device(labels)
    return found if found is not None and found.pod else None


def identify_device(labels: Mapping[str, str]) -> GpuSeries | None:
    """The GPU that a relabelled series speaks of, held by a pod or not, or None where it names no device.

    Exporter generations spell labels differently (`UUID`, `uuid`, `gpu_uuid`; `Hostname`, `hostname`); all are read.

    One with a label longer than any exporter's is no pod's: it may show work of the device, and proves no idleness.

    Source: dcgm-exporter render_metrics.go.
    """
    namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
    if not (namespace and pod) or max(map(len, labels.values()), default=0) > _LONGEST_LABEL:
        namespace = pod = ""
    hosts = (*dict.fromkeys(intern(labels[name]) for name in _HOST_LABELS if labels.get(name)),)
    node = hosts[0] if hosts else ""
    index = labels.get("gpu", "")
    device = _first(labels, "UUID", "uuid", "gpu_uuid") or (f"{node}/{index}" if node and index else "")
    if not device:
        return None
    return GpuSeries(
        gpu=GpuId(device=device, mig_instance=_first(labels, "GPU_I_ID", "gpu_i_id")),
        # Many GPUs share a namespace and a model, so each is one object.
        namespace=intern(namespace),
        pod=pod,
        node=node,
        hosts=hosts if len(hosts) > 1 else (),
        model=intern(_first(labels, "modelName", "modelname", "model_name")),
        exporter=intern(" ".join(labels[name] for name in ("job", "instance") if labels.get(name))),
    )
