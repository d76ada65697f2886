"""The loop around nodes and pods: register nodes, bind pending pods, advance every pod, assign GPUs in the fleet.

Machines come and go. The Node of one that is gone is deleted with the pods on it, as cloud providers and the garbage
collector of pods do, though at once. Pods that had ended stay, since Jobs count them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import ClassVar

import structlog

from scaler.kube.objects.resources import NODE, POD, Resource
from scaler_sandbox.actions import Action, Create, Delete, Patch
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import parse_time, timestamp, with_conditions
from scaler_sandbox.controller import Controller, soonest
from scaler_sandbox.fleet import Fleet, Machine
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet.pod_lifecycle import PodStage, finish_stage, length, pod_stage_of
from scaler_sandbox.kubelet.scheduler import (
    DEVICES,
    Node,
    devices_of,
    free_devices,
    holders,
    node_of,
    plan_placement,
    wanted_gpus,
)
from scaler_sandbox.operators.pods import GPU, is_ending, is_terminal

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletTiming:
    """How long things take on a node."""

    start_delay: timedelta = timedelta(seconds=3)
    """The time from the binding until the containers run: an image that is there already."""
    termination: timedelta = timedelta(seconds=5)
    """The time from the deletion of a pod until it is removed, for pods without the annotation."""
    heartbeat: timedelta = timedelta(seconds=10)
    """The time between two heartbeats of a node. A real node controller marks a node unknown after 40 s."""
    stuck: Mapping[str, timedelta] = field(default_factory=dict)
    """How long pods take to end, by pattern of `namespace/name`, whose processes no kill reaches, as of one that hangs
    in a driver: neither their annotation nor their grace shortens that. The first pattern that matches counts."""

    def stuck_for(self, pod: Json) -> timedelta | None:
        """How long the pod takes to end whatever is done; None where it ends as it should."""
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        return next((lasts for pattern, lasts in self.stuck.items() if fnmatchcase(name, pattern)), None)


class Kubelets(Controller):
    """All nodes of the fleet, and the scheduler that fills them."""

    name: ClassVar[str] = "kubelets"
    watched: ClassVar[tuple[Resource, ...]] = (POD, NODE)

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        timing: KubeletTiming | None = None,
        *,
        schedules: bool = True,
        namespaces: Collection[str] = (),
    ) -> None:
        """`schedules` False leaves placement to a real kube-scheduler; `namespaces`: only their pods are placed."""
        super().__init__(client)
        self._fleet = fleet
        self._timing = timing or KubeletTiming()
        self._schedules = schedules
        self._namespaces = frozenset(namespaces)
        self._since: dict[tuple[str, PodStage], datetime] = {}

    async def run(self) -> None:
        with self._fleet.listening(self._wake.set):
            await super().run()

    async def tick(self, now: datetime) -> datetime | None:
        done = await self.act([*self._plan_nodes(now), *self._plan_losses(now)])
        if self._schedules:
            pods = [pod for pod in self.client.all(POD) if self._is_considered(pod)]
            done += await self.act(plan_placement(pods, self._nodes(), self._fleet.gpus, now_text=timestamp(now)))
        done += await self.act(self._plan_devices())
        done += await self.act(action for pod in self._bound() for action in self._move_on(pod, now))
        self._update_fleet()
        return now if done else self._next(now)

    # --------------------------------------------------------------------------------------------------------- nodes

    def _plan_nodes(self, now: datetime) -> list[Action]:
        actions: list[Action] = []
        for machine in self._fleet.machines.values():
            node = self.client.find(NODE, "", machine.name)
            if node is None:
                actions.append(Create(resource=NODE, body=self._node(machine, now)))
            elif (due := self._beat_due(node)) is None or due <= now:
                conditions = with_conditions((node.get("status") or {}).get("conditions"), _ready(now))
                body = {"status": {**_amounts(machine), "conditions": conditions}}
                actions.append(Patch(resource=NODE, observed=node, body=body, subresource="status"))
        return actions

    def _plan_losses(self, now: datetime) -> list[Action]:
        """What goes with machines that are gone: their Nodes, and the pods that were on them."""
        gone = self._fleet.gone
        if not gone:
            return []
        nodes = (node for name in gone if (node := self.client.find(NODE, "", name)))
        actions: list[Action] = [Delete(resource=NODE, observed=node) for node in nodes]
        lost = (pod for pod in self.client.all(POD) if (pod.get("spec") or {}).get("nodeName") in gone)
        return actions + [action for pod in lost for action in _lose(pod, now)]

    def _node(self, machine: Machine, now: datetime) -> Json:
        labels = {
            "kubernetes.io/hostname": machine.name,
            "nvidia.com/gpu.product": self._fleet.config.model.name.replace(" ", "-"),
            **machine.labels,
        }
        taints = [{"key": each.key, "value": each.value, "effect": each.effect} for each in machine.taints]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": machine.name, "labels": labels, "annotations": dict(machine.annotations)},
            "spec": {"taints": taints} if taints else {},
            "status": {**_amounts(machine), "conditions": [_ready(now)]},
        }

    def _beat_due(self, node: Json) -> datetime | None:
        """When the node's next heartbeat is due; None where there has been none."""
        conditions = (node.get("status") or {}).get("conditions") or [{}]
        last = parse_time(conditions[0].get("lastHeartbeatTime"))
        return last + self._timing.heartbeat if last else None

    def _nodes(self) -> list[Node]:
        """The nodes that take pods, in the order in which they came."""
        bodies = (self.client.find(NODE, "", name) for name in self._fleet.machines)
        return [node for body in bodies if body is not None and (node := node_of(body))]

    # ---------------------------------------------------------------------------------------------------------- pods

    def _is_considered(self, pod: Json) -> bool:
        """Whether placement considers the pod: it is to be bound, or may hold GPUs."""
        is_placed = bool((pod.get("spec") or {}).get("nodeName"))
        return is_placed or not self._namespaces or pod["metadata"]["namespace"] in self._namespaces

    def _bound(self) -> list[Json]:
        nodes = self._fleet.machines
        return [pod for pod in self.client.all(POD) if (pod.get("spec") or {}).get("nodeName") in nodes]

    def _plan_devices(self) -> list[Action]:
        """GPUs for one pod that another scheduler has bound, where enough are free."""
        pods = self._bound()
        for pod in pods:
            missing = wanted_gpus(pod) - len(devices_of(pod))
            free = free_devices(self._fleet.gpus, pods, pod["spec"]["nodeName"])
            if pod_stage_of(pod) is PodStage.STARTING and 0 < missing <= len(free):
                body = {"metadata": {"annotations": {DEVICES: ",".join([*devices_of(pod), *free[:missing]])}}}
                return [Patch(resource=POD, observed=pod, body=body)]
        return []

    def _move_on(self, pod: Json, now: datetime) -> list[Action]:
        due = self._due(pod, now)
        return finish_stage(pod, now=now) if due and due <= now else []

    def _due(self, pod: Json, now: datetime) -> datetime | None:
        """When the pod's present stage ends. Stages are timed from when they were first seen."""
        stage = pod_stage_of(pod)
        if stage is PodStage.STARTING and wanted_gpus(pod) > len(devices_of(pod)):
            return None
        stuck = self._timing.stuck_for(pod) if stage is PodStage.TERMINATING else None
        try:
            lasts = stuck or length(pod, start_delay=self._timing.start_delay, termination=self._timing.termination)
        except ValueError as error:
            _log.warning("PodAnnotationIgnored", pod=pod["metadata"]["name"], error=str(error))
            return None
        since = self._since.setdefault((pod["metadata"]["uid"], stage), now)
        return None if lasts is None else since + lasts

    def _next(self, now: datetime) -> datetime | None:
        pods, own = self._bound(), self._fleet.machines
        alive = {pod["metadata"]["uid"] for pod in pods}
        self._since = {key: since for key, since in self._since.items() if key[0] in alive}
        nodes = [node for node in self.client.all(NODE) if node["metadata"]["name"] in own]
        return soonest([*(self._due(pod, now) for pod in pods), *(self._beat_due(node) for node in nodes)])

    def _update_fleet(self) -> None:
        pods = self._bound()
        for node in self._fleet.machines:
            self._fleet.hold(node, holders(pods, node))


def _amounts(machine: Machine) -> Json:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(machine.gpus)}
    return {"capacity": amounts, "allocatable": amounts}


def _lose(pod: Json, now: datetime) -> list[Action]:
    """What becomes of a pod without a machine. One that a finalizer keeps is made to fail."""
    if is_ending(pod):
        return finish_stage(pod, now=now)
    return [] if is_terminal(pod) else [Delete(resource=POD, observed=pod, grace_seconds=0)]


def _ready(now: datetime) -> Json:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": timestamp(now),
    }
