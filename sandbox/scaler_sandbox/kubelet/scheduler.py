"""Which node takes a pod? The first with enough free GPUs, the labels that the pod asks for, and no taint against it.

A pod is placed whole on one node or waits. CPU and memory are not counted: only GPUs are scarce here.
Its GPUs are written into an annotation, as into a kubelet's checkpoint, and are its own until it is terminal or gone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaler.kube.objects.resources import POD
from scaler.kube.scheduling import Taint, Toleration, untolerated
from scaler_sandbox.actions import Action, Bind, Patch, RecordEvent, status_patch
from scaler_sandbox.conditions import has, message_of, with_conditions
from scaler_sandbox.fleet import Gpu, Holder
from scaler_sandbox.kinds import Json
from scaler_sandbox.operators.pods import GPU, gpus_in, gpus_of, is_ending, is_terminal, phase

DEVICES = "demo.idlegpu.io/gpus"
"""Annotation: the UUIDs of the pod's GPUs."""


def wanted_gpus(pod: Json) -> int:
    """How many GPUs the pod requests."""
    return gpus_in(pod.get("spec") or {})


def devices_of(pod: Json) -> list[str]:
    """The UUIDs of the GPUs that the pod was given."""
    text = (pod["metadata"].get("annotations") or {}).get(DEVICES, "")
    return [uuid for uuid in str(text).split(",") if uuid]


def is_holding(pod: Json, node: str) -> bool:
    """Whether the pod has GPUs of the node at the moment."""
    return bool((pod.get("spec") or {}).get("nodeName") == node and not is_terminal(pod))


def free_devices(gpus: Sequence[Gpu], pods: Iterable[Json], node: str) -> list[str]:
    """The UUIDs of the node's GPUs that no pod holds."""
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
    for container in (pod.get("spec") or {}).get("containers") or ():
        count = gpus_of(container)
        mine, uuids = uuids[:count], uuids[count:]
        holder = Holder(
            namespace=metadata["namespace"], pod=metadata["name"], container=container["name"], is_running=is_running
        )
        result |= dict.fromkeys(mine, holder)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as far as placement goes."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()


def node_of(body: Json) -> Node | None:
    """The Node object as far as placement goes; None for one that takes no pods, since it is cordoned or ends."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    if spec.get("unschedulable") or metadata.get("deletionTimestamp"):
        return None
    taints = (_named(each, "key", "value", "effect") for each in spec.get("taints") or ())
    return Node(
        name=metadata["name"], labels=metadata.get("labels") or {}, taints=tuple(Taint(**each) for each in taints)
    )


def _named(body: Json, *keys: str) -> dict[str, str]:
    return {key: str(body[key]) for key in keys if body.get(key)}


def is_unplaced(pod: Json) -> bool:
    """Whether the pod waits for a node."""
    spec = pod.get("spec") or {}
    return not (spec.get("nodeName") or spec.get("schedulingGates") or is_ending(pod) or is_terminal(pod))


def plan_placement(pods: Sequence[Json], nodes: Sequence[Node], gpus: Sequence[Gpu], *, now_text: str) -> list[Action]:
    """A binding for each pending pod, oldest first, or the condition that says why it is unschedulable."""
    free = {node.name: free_devices(gpus, pods, node.name) for node in nodes}
    waiting = sorted(filter(is_unplaced, pods), key=lambda pod: pod["metadata"]["creationTimestamp"])
    actions: list[Action] = []
    for pod in waiting:
        count = wanted_gpus(pod)
        node = next((node for node in nodes if suits(node, pod["spec"]) and len(free[node.name]) >= count), None)
        if node is None:
            actions += _unschedulable(pod, nodes, now_text=now_text)
        else:
            mine, free[node.name] = free[node.name][:count], free[node.name][count:]
            actions.append(_bind(pod, node.name, mine))
    return actions


def suits(node: Node, pod_spec: Json) -> bool:
    """Whether a pod of this spec may run there, as far as labels and taints go."""
    return _is_selected(node, pod_spec) and _repels(node, pod_spec) is None


def _is_selected(node: Node, pod_spec: Json) -> bool:
    selector = pod_spec.get("nodeSelector") or {}
    return all(node.labels.get(key) == value for key, value in selector.items())


def _repels(node: Node, pod_spec: Json) -> Taint | None:
    tolerations = (_named(each, "key", "operator", "value", "effect") for each in pod_spec.get("tolerations") or ())
    return untolerated(node.taints, [Toleration(**each) for each in tolerations])


def _bind(pod: Json, node: str, uuids: Sequence[str]) -> Bind:
    metadata = pod["metadata"]
    message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
    annotations = {DEVICES: ",".join(uuids)} if uuids else {}
    return Bind(pod=pod, node=node, annotations=annotations, notes=(RecordEvent(reason="Scheduled", message=message),))


def _unschedulable(pod: Json, nodes: Sequence[Node], *, now_text: str) -> list[Patch]:
    selected = [node for node in nodes if _is_selected(node, pod["spec"])]
    repelled = Counter((taint.key, taint.value) for node in selected if (taint := _repels(node, pod["spec"])))
    lacking, unselected = len(selected) - repelled.total(), len(nodes) - len(selected)
    reasons = [f"{lacking} Insufficient {GPU}"] if lacking else []
    if unselected:
        reasons.append(f"{unselected} node(s) didn't match Pod's node affinity/selector")
    reasons += [f"{count} node(s) had untolerated taint {{{key}: {value}}}" for (key, value), count in repelled.items()]
    shown = ", ".join(reasons) or "no nodes available to schedule pods"
    message = f"0/{len(nodes)} nodes are available: {shown}."
    if has(pod, "PodScheduled", "False", "Unschedulable") and message_of(pod, "PodScheduled") == message:
        return []
    made = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": now_text,
    }
    status = pod.get("status") or {}
    wanted = {**status, "conditions": with_conditions(status.get("conditions"), made)}
    patch = status_patch(POD, pod, wanted, RecordEvent(reason="FailedScheduling", message=message, type="Warning"))
    return [patch] if patch else []
