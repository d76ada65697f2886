"""A small, honest Kubernetes API over HTTP, in memory: what controllers and kubectl rely on, and nothing that lies.

It is held to a real kube-apiserver by `tests/contract`, which passes against both. What it leaves out on purpose:
admission webhooks, RBAC, built-in field validation, binding, quotas, protobuf, and version conversion by webhook.
"""

from scaler.embedded.kubeapi.api import KubeApi
from scaler.embedded.kubeapi.faults import Faults
from scaler.embedded.kubeapi.status import ApiError

__all__ = ["ApiError", "Faults", "KubeApi"]
