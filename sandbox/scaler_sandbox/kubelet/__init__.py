"""Nodes, the scheduler and the kubelets: pods find GPUs, start, run, and take their time to stop."""

from scaler_sandbox.kubelet.controller import Kubelets, KubeletTiming

__all__ = ["KubeletTiming", "Kubelets"]
