"""Which pods hold GPUs, how many, and since when their containers run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import ceil

from scaler.idleness import pods as core
from scaler.kube.objects import core as objects
from scaler.kube.quantity import exact


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResources:
    """The extended resources that count as GPUs, such as `nvidia.com/gpu` and `nvidia.com/mig-*`."""

    patterns: tuple[str, ...]

    def matches(self, resource: str) -> bool:
        return _matches(resource, self.patterns)

    def of_container(self, container: objects.Container) -> int:
        amounts = container.resources.requests | container.resources.limits
        return sum(_whole(amount) for name, amount in amounts.items() if self.matches(name))

    def of_pod(self, spec: objects.PodSpec) -> int:
        """GPUs that the pod holds while it runs: containers and sidecars, not the init containers that have ended."""
        return sum(self.of_container(container) for container in _lasting(spec))


@lru_cache(maxsize=1024)
def _matches(resource: str, patterns: tuple[str, ...]) -> bool:
    return any(resource.startswith(each[:-1]) if each.endswith("*") else resource == each for each in patterns)


@lru_cache(maxsize=256)
def _whole(amount: objects.Quantity) -> int:
    """The amount in whole GPUs, rounded up; 1 where it cannot be read, because it asks for some.

    The API server lets only whole numbers into pods, but anything into the pod templates of custom resources, and one
    of those must not end the evaluation of all.
    """
    try:
        value = exact(amount)
    except ValueError:
        return 1
    return ceil(value) if value >= 0 else 1


def _lasting(spec: objects.PodSpec) -> list[objects.Container]:
    """The containers that run as long as the pod does: the ordinary ones and the sidecars."""
    return [*spec.containers, *(init for init in spec.init_containers if init.restart_policy == "Always")]


def gpu_pod(pod: objects.Pod, resources: GpuResources) -> core.GpuPod:
    holders = [container.name for container in _lasting(pod.spec) if resources.of_container(container)]
    return core.GpuPod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        phase=core.PodPhase(pod.status.phase) if pod.status.phase in set(core.PodPhase) else core.PodPhase.PENDING,
        gpus=resources.of_pod(pod.spec),
        running_since=_running_since(pod.status, holders),
        terminating=pod.metadata.deletion_timestamp is not None,
        node=pod.spec.node_name,
    )


def _running_since(status: objects.PodStatus, holders: Sequence[str]) -> datetime | None:
    """When the newest of the GPU-holding containers started running; None while any of them does not."""
    states = {each.name: each.state.running for each in [*status.container_statuses, *status.init_container_statuses]}
    starts = [running.started_at for name in holders if (running := states.get(name)) and running.started_at]
    return max(starts) if starts and len(starts) == len(holders) else None
