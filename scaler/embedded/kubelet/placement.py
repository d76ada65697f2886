"""Which node takes a pod? The first with enough free GPUs, the labels that the pod asks for, and no taint against it.

A pod is placed whole on one node or waits. CPU and memory are not counted: in this story only GPUs are scarce.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaler.core.nodes import Taint, Toleration, untolerated
from scaler.embedded.actions import Action, Bind, Note, Patch, status_patch
from scaler.embedded.conditions import has, message_of, with_conditions
from scaler.embedded.fleet import Gpu
from scaler.embedded.kinds import POD, Json
from scaler.embedded.kubelet.devices import DEVICES, GPU, free_devices, wanted_gpus
from scaler.embedded.operators.pods import is_ending, is_terminal


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
    """A node for each pod that waits for one, oldest first, or what it is told instead."""
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
    return Bind(pod=pod, node=node, annotations=annotations, notes=(Note(reason="Scheduled", message=message),))


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
    patch = status_patch(POD, pod, wanted, Note(reason="FailedScheduling", message=message, type="Warning"))
    return [patch] if patch else []
