"""The controllers that turn workloads into pods: KubeRay's, and kube-controller-manager's for Jobs and Deployments.

On a cluster whose controller manager runs, only the first is needed.
"""

from scaler_sandbox.operators.controller import DeploymentController, JobController, RayClusterOperator

__all__ = ["DeploymentController", "JobController", "RayClusterOperator"]
