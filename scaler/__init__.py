"""idle-gpu-scaler: suspend GPU workloads that are really idle, hand their GPUs to the gangs that wait."""

__version__ = "0.1.0"
