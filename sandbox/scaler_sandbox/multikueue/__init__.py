"""MultiKueue's part of the sandbox: the controller of a hub, and a hub with its workers."""

from scaler_sandbox.kueue.nominations import Dispatcher, HubConfig, Remedy
from scaler_sandbox.multikueue.controller import MultiKueue
from scaler_sandbox.multikueue.workers import GivenWorkers, KubeconfigWorkers, Workers

__all__ = ["Dispatcher", "GivenWorkers", "HubConfig", "KubeconfigWorkers", "MultiKueue", "Remedy", "Workers"]
