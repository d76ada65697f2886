"""Readings → the text that dcgm-exporter serves: same metric names, same labels in the same order, no timestamps.

A device that is given to no container has no pod labels at all, as in the exporter's later versions.
"""

from collections.abc import Iterable

from scaler.embedded.fleet.faults import SENTINEL
from scaler.embedded.fleet.gpus import FB_USED, GPU_UTIL, GR_ENGINE_ACTIVE, METRICS, POWER_USAGE, Reading

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP = {
    GPU_UTIL: "GPU utilization (in %).",
    POWER_USAGE: "Power draw (in W).",
    FB_USED: "Framebuffer memory used (in MiB).",
    GR_ENGINE_ACTIVE: "Ratio of time the graphics engine is active.",
}
_WHOLE_NUMBERS = frozenset({GPU_UTIL, FB_USED})


def render(readings: Iterable[Reading]) -> str:
    """The exposition text, one block per metric."""
    readings = list(readings)
    return "".join(_block(metric, readings) for metric in METRICS)


def _block(metric: str, readings: list[Reading]) -> str:
    lines = [
        f"{metric}{{{labels_of(reading)}}} {_number(metric, reading.values[metric])}\n"
        for reading in readings
        if metric in reading.values
    ]
    return f"# HELP {metric} {_HELP[metric]}\n# TYPE {metric} gauge\n" + "".join(lines) if lines else ""


def labels_of(reading: Reading) -> str:
    """The label set as it stands between the braces."""
    gpu, holder = reading.gpu, reading.holder
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": gpu.device,
        "modelName": gpu.model.name,
        "Hostname": gpu.node,
    }
    if holder:
        labels |= {"container": holder.container, "namespace": holder.namespace, "pod": holder.pod}
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _number(metric: str, value: float) -> str:
    if value == SENTINEL:
        return "9223372036854775794"  # which a float cannot hold
    return str(int(value)) if metric in _WHOLE_NUMBERS else f"{value:.6f}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
