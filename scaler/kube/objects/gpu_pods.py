"""Which pods hold GPUs, how many, since when their containers run, and why not.

| a container with GPUs                 | counts as one that                                            |
|---------------------------------------|---------------------------------------------------------------|
| runs                                  | runs since it started                                         |
| has ended, and is never started again | runs since it has ended: its GPUs stay the pod's, and unused  |
| waits, crashes, was not created       | does not run, and the pod says why                            |

Nothing is idle for having ended: its GPUs have to be seen quiet for as long as those of any other container.
Source: Kubernetes, pkg/kubelet/container/helpers.go (ShouldContainerBeRestarted).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import ceil
from textwrap import shorten

from scaler.idleness import pods as core
from scaler.idleness.policy import is_any_of
from scaler.kube.objects import core as objects
from scaler.kube.objects.quantity import exact


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

    def may_be_held_by(self, spec: objects.PodSpec) -> bool:
        """Whether the pod holds GPUs, or devices of which it is not known what they are."""
        return bool(self.of_pod(spec) or self.not_counted(spec))

    def not_counted(self, spec: objects.PodSpec) -> str:
        """Devices that the pod holds and that count as no GPUs here, in words; empty where there are none."""
        containers = [*spec.containers, *spec.init_containers]
        names = {name for each in containers for name in each.resources.requests | each.resources.limits}
        others = ", ".join(sorted(name for name in names if is_extended(name) and not self.matches(name)))
        claims = ", ".join(each.name for each in spec.resource_claims)
        of_init = ", ".join(each.name for each in spec.init_containers if self.of_container(each))
        found = {
            f"requests {others}, not among gpuResources of the settings": others,
            f"claims devices ({claims}) by resourceClaims, which are not judged": claims,
            f"requests GPUs for init container {of_init}, which are not judged": of_init,
        }
        return " and ".join(words for words, names in found.items() if names)


def is_extended(resource: str) -> bool:
    """Whether it is a device plugin's. Source: Kubernetes, pkg/apis/core/v1/helper (IsExtendedResourceName)."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


@lru_cache(maxsize=1024)
def _matches(resource: str, patterns: tuple[str, ...]) -> bool:
    return is_any_of(resource, patterns)


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
    holders = [container for container in _lasting(pod.spec) if resources.of_container(container)]
    states = {each.name: each.state for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    cause = _cause(pod, holders, states) if holders else resources.not_counted(pod.spec)
    return core.GpuPod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        phase=core.PodPhase(pod.status.phase) if pod.status.phase in set(core.PodPhase) else core.PodPhase.PENDING,
        gpus=resources.of_pod(pod.spec),
        running_since=_running_since(pod.spec, holders, states),
        terminating=pod.metadata.deletion_timestamp is not None,
        node=pod.spec.node_name,
        cause=cause,
        ended=_ended(pod, holders, states),
        started_at=pod.status.start_time or pod.metadata.creation_timestamp,
    )


_States = Mapping[str, objects.ContainerState]
"""States by the container's name, without those that have not been created."""


def _running_since(spec: objects.PodSpec, holders: Sequence[objects.Container], states: _States) -> datetime | None:
    """When the newest of the GPU-holding containers started running; None while any of them does not."""
    starts = [start for each in holders if (start := _started(spec, each, states)) is not None]
    return max(starts) if starts and len(starts) == len(holders) else None


def _started(spec: objects.PodSpec, container: objects.Container, states: _States) -> datetime | None:
    """When it started running; of one that has ended for good, when it did."""
    state = states.get(container.name, objects.ContainerState())
    if state.running is not None:
        return state.running.started_at
    ended, policy = state.terminated, container.restart_policy or spec.restart_policy
    is_over = policy == "Never" or (policy == "OnFailure" and ended is not None and ended.exit_code == 0)
    return ended.finished_at if ended is not None and is_over and not container.restart_policy_rules else None


def _cause(pod: objects.Pod, holders: Sequence[objects.Container], states: _States) -> str:
    """Why not all of its containers with GPUs run, in words; empty where they do."""
    if pod.metadata.deletion_timestamp is not None:
        return "is being deleted"
    if not pod.spec.node_name:
        placed = objects.condition(pod.status.conditions, "PodScheduled")
        why = f": {placed.message}" if placed and placed.message else ""
        return shorten(f"is not scheduled{why}", 200, placeholder=" …")
    held_up = [each for each in pod.spec.init_containers if _has_failed(states.get(each.name))]
    held_up += [each for each in holders if _started(pod.spec, each, states) is None]
    if held_up:
        return f"container {held_up[0].name} {_words(states.get(held_up[0].name))}"
    return "" if pod.status.phase == core.PodPhase.RUNNING else f"is {pod.status.phase or core.PodPhase.PENDING}"


def _ended(pod: objects.Pod, holders: Sequence[objects.Container], states: _States) -> str:
    """Which of its containers with GPUs has ended and is not started again, in words; empty where none has."""
    over = (x for x in holders if (state := states.get(x.name)) and state.terminated and _started(pod.spec, x, states))
    return next((f"container {each.name} {_words(states[each.name])}" for each in over), "")


def _has_failed(state: objects.ContainerState | None) -> bool:
    return state is not None and bool(state.waiting or (state.terminated and state.terminated.exit_code))


def _words(state: objects.ContainerState | None) -> str:
    """What the container does instead of running."""
    if state is not None and state.waiting is not None:
        return f"waits: {state.waiting.reason or 'no reason is given'}"
    if state is not None and state.terminated is not None:
        return f"has ended: {state.terminated.reason or 'no reason is given'}, exit code {state.terminated.exit_code}"
    return "has not been created"
