"""Which GPUs has a pod? Written down on the pod, as a kubelet has a checkpoint, so that a restart changes nothing.

A GPU is a pod's from the binding until the pod is terminal or gone. That it has been told to stop does not free it.
"""

from collections.abc import Iterable, Mapping, Sequence

from scaler.embedded.fleet import Gpu, Holder
from scaler.embedded.kinds import Json
from scaler.embedded.operators.pods import is_terminal, phase
from scaler.embedded.quantities import container_requests

GPU = "nvidia.com/gpu"
DEVICES = "demo.idlegpu.io/gpus"
"""Annotation: the UUIDs of the pod's GPUs."""


def wanted_gpus(pod: Json) -> int:
    """How many GPUs the pod requests."""
    return gpus_in(pod.get("spec") or {})


def gpus_in(pod_spec: Json) -> int:
    """How many GPUs a pod of this spec requests."""
    return sum(_gpus_of(container) for container in _containers(pod_spec))


def _containers(pod_spec: Json) -> list[Json]:
    return list(pod_spec.get("containers") or ())


def _gpus_of(container: Json) -> int:
    return container_requests(container).get(GPU, 0) // 1000


def devices_of(pod: Json) -> list[str]:
    """The UUIDs of the GPUs that the pod was given."""
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES, "")
    return [uuid for uuid in str(text).split(",") if uuid]


def is_holding(pod: Json, node: str) -> bool:
    """Whether the pod has GPUs of the node at the moment."""
    return bool((pod.get("spec") or {}).get("nodeName") == node and not is_terminal(pod))


def free_devices(gpus: Sequence[Gpu], pods: Iterable[Json], node: str) -> list[str]:
    """The UUIDs of the node's GPUs that nobody has."""
    taken = {uuid for pod in pods if is_holding(pod, node) for uuid in devices_of(pod)}
    return [gpu.uuid for gpu in gpus if gpu.node == node and gpu.uuid not in taken]


def holders(pods: Iterable[Json], node: str) -> Mapping[str, Holder]:
    """Which container has which of the node's GPUs."""
    result: dict[str, Holder] = {}
    for pod in pods:
        if is_holding(pod, node):
            result |= _holders_of(pod)
    return result


def _holders_of(pod: Json) -> dict[str, Holder]:
    """The pod's GPUs, dealt out to its containers in order."""
    metadata, uuids, is_running = pod["metadata"], devices_of(pod), phase(pod) == "Running"
    result: dict[str, Holder] = {}
    for container in _containers(pod.get("spec") or {}):
        count = _gpus_of(container)
        mine, uuids = uuids[:count], uuids[count:]
        holder = Holder(
            namespace=metadata["namespace"], pod=metadata["name"], container=container["name"], is_running=is_running
        )
        result |= dict.fromkeys(mine, holder)
    return result
