"""Simulated GPUs and their exporter."""

from scaler_sandbox.fleet.exporter import Exporter
from scaler_sandbox.fleet.fleet import Fleet, FleetConfig
from scaler_sandbox.fleet.gpus import GPU_UTIL, Gpu, Holder, Machine

__all__ = ["GPU_UTIL", "Exporter", "Fleet", "FleetConfig", "Gpu", "Holder", "Machine"]
