"""Policies and jobs of namespace `demo`."""

from typing import Any

import msgspec

from scaler.attachment import policy as core
from scaler.attachment.objects import policy_of
from scaler.attachment.policy import Job
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import decode

JOB = Job(
    namespace="demo",
    api_version="batch/v1",
    kind="Job",
    name="train-4711",
    uid="uid-train-4711",
    namespace_labels={"tier": "research"},
    labels={"team": "vision"},
    queue="user-queue",
    priority_class="batch",
    gpu_models=frozenset({"NVIDIA A100-SXM4-80GB"}),
    workloads=("job-train-4711-1a2b3",),
)


def policy(name: str, *, namespace: str = "demo", **spec: Any) -> core.AttachmentPolicy:
    """An IdlePolicy, read as from the API."""
    body = {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}", "generation": 1}, "spec": spec}
    return policy_of(decode(idlegpu.IdlePolicy, msgspec.json.encode(body)))


def cluster_policy(name: str, **spec: Any) -> core.AttachmentPolicy:
    """A ClusterIdlePolicy, read as from the API."""
    return policy(name, namespace="", **spec)
