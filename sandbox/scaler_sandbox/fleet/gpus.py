"""Which machines and GPUs are there, who holds them, and what do they do? Values only; clock and noise are given.

The figures follow an A100 with 80 GB: some 60 W doing nothing, 400 W at full load. Memory stays allocated while a
framework is loaded, busy or not, which is why memory says nothing about idleness.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scaler.kube.scheduling import Taint

GIB = 1024
"""Framebuffer sizes are in MiB."""

Level = float | Callable[[float], float]
"""How busy a GPU is, 0..1: constant, or a function of the seconds since the fleet was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """What one type of GPU looks like from outside."""

    name: str = "NVIDIA A100-SXM4-80GB"
    memory_mib: int = 80 * GIB
    idle_watts: float = 63.0
    full_watts: float = 400.0


A100 = GpuModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device on one node."""

    node: str
    index: int
    uuid: str
    model: GpuModel

    @property
    def pci_bus_id(self) -> str:
        return f"00000000:{0x07 + 0x08 * self.index:02X}:00.0"

    @property
    def device(self) -> str:
        return f"nvidia{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The container that a device is given to."""

    namespace: str
    pod: str
    container: str
    is_running: bool = True
    """Whether its program runs. Devices are given to it before that, and are quiet until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one device showed when it was last looked at."""

    gpu: Gpu
    holder: Holder | None
    values: Mapping[str, float]
    """The values by metric name, in the metric's own unit. A blank is a metric that is not in here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. Its kubelet registers it as the Node of the same name."""

    name: str
    gpus: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


def gpus_of(nodes: Mapping[str, int], *, model: GpuModel, seed: int) -> tuple[Gpu, ...]:
    """The devices of nodes with so many GPUs each. The same seed gives the same UUIDs, whatever the other nodes are."""
    return tuple(
        Gpu(node=node, index=index, uuid=_uuid(seed, node, index), model=model)
        for node, count in nodes.items()
        for index in range(count)
    )


def _uuid(seed: int, node: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{seed}/{node}/{index}')}"


GR_ENGINE_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL"
POWER_USAGE = "DCGM_FI_DEV_POWER_USAGE"
FB_USED = "DCGM_FI_DEV_FB_USED"
SENTINEL = 9223372036854775794.0
"""What exporters have printed for a field that the driver does not support: DCGM's int64 "not supported"."""
METRICS = (GPU_UTIL, POWER_USAGE, FB_USED, GR_ENGINE_ACTIVE)


def values_at(model: GpuModel, activity: float, *, is_held: bool) -> dict[str, float]:
    """What a device shows at this activity.

    GPU_UTIL is the share of time in which any kernel ran, in whole percent: something that runs at all shows as 1, so
    that the two signals never contradict each other on a healthy device.
    """
    return {
        GR_ENGINE_ACTIVE: round(activity, 6),
        GPU_UTIL: float(max(round(activity * 100), 1 if activity > 0 else 0)),
        POWER_USAGE: round(model.idle_watts + (model.full_watts - model.idle_watts) * activity, 3),
        FB_USED: float(model.memory_mib * 6 // 10 if is_held else 4),
    }
