"""Which node takes a pod? The first that has enough free GPUs and the labels that the pod asks for.

A pod is placed whole on one node or waits. CPU and memory are not counted: in this story only GPUs are scarce.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        node = next((node for node in nodes if _suits(node, pod) and len(free[node.name]) >= count), None)
        if node is None:
            actions += _unschedulable(pod, nodes, now_text=now_text)
        else:
            mine, free[node.name] = free[node.name][:count], free[node.name][count:]
            actions.append(_bind(pod, node.name, mine))
    return actions


def _suits(node: Node, pod: Json) -> bool:
    selector = (pod.get("spec") or {}).get("nodeSelector") or {}
    return all(node.labels.get(key) == value for key, value in selector.items())


def _bind(pod: Json, node: str, uuids: Sequence[str]) -> Bind:
    metadata = pod["metadata"]
    message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
    annotations = {DEVICES: ",".join(uuids)} if uuids else {}
    return Bind(pod=pod, node=node, annotations=annotations, notes=(Note(reason="Scheduled", message=message),))


def _unschedulable(pod: Json, nodes: Sequence[Node], *, now_text: str) -> list[Patch]:
    unsuited = sum(1 for node in nodes if not _suits(node, pod))
    reasons = [f"{len(nodes) - unsuited} Insufficient {GPU}"] if unsuited < len(nodes) else []
    if unsuited:
        reasons.append(f"{unsuited} node(s) didn't match Pod's node affinity/selector")
    message = f"0/{len(nodes)} nodes are available: {', '.join(reasons)}."
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
