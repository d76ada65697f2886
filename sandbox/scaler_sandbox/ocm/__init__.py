"""Open Cluster Management's part of the sandbox: placement."""

from scaler_sandbox.ocm.placements import PlacementController

__all__ = ["PlacementController"]
