"""The controllers that turn workloads into pods: KubeRay's, and kube-controller-manager's for Jobs and Deployments.

On a cluster whose controller manager runs, only KubeRay's are needed.
"""

from scaler_sandbox.operators.controller import (
    DeploymentController,
    JobController,
    PodOwners,
    RayClusterOperator,
    RayJobOperator,
)

__all__ = ["DeploymentController", "JobController", "PodOwners", "RayClusterOperator", "RayJobOperator"]
