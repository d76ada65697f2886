"""An autoscaler that answers ProvisioningRequests, by scenarios that a test or a demo chooses."""

from scaler_sandbox.autoscaler.cloud import Cloud
from scaler_sandbox.autoscaler.controller import Autoscaler
from scaler_sandbox.autoscaler.scenarios import (
    BEST_EFFORT_ATOMIC,
    CHECK_CAPACITY,
    QUEUED_PROVISIONING,
    AutoscalerConfig,
    Scenario,
    Shape,
)

__all__ = [
    "BEST_EFFORT_ATOMIC",
    "CHECK_CAPACITY",
    "QUEUED_PROVISIONING",
    "Autoscaler",
    "AutoscalerConfig",
    "Cloud",
    "Scenario",
    "Shape",
]
