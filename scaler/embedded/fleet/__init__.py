"""Simulated GPUs and the exporter that tells of them."""

from scaler.embedded.fleet.exporter import Exporter
from scaler.embedded.fleet.faults import SENTINEL, Faults, Outage, uuids_on
from scaler.embedded.fleet.fleet import Fleet, FleetConfig
from scaler.embedded.fleet.gpus import FB_USED, GPU_UTIL, GR_ENGINE_ACTIVE, POWER_USAGE, Gpu, GpuModel, Holder, Reading
from scaler.embedded.fleet.machines import Machine

__all__ = [
    "FB_USED",
    "GPU_UTIL",
    "GR_ENGINE_ACTIVE",
    "POWER_USAGE",
    "SENTINEL",
    "Exporter",
    "Faults",
    "Fleet",
    "FleetConfig",
    "Gpu",
    "GpuModel",
    "Holder",
    "Machine",
    "Outage",
    "Reading",
    "uuids_on",
]
