"""The loop around nodes and pods: register nodes, place what waits, move every pod on, tell the fleet who has what."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import structlog

from scaler.embedded.actions import Action, Create, Patch
from scaler.embedded.client import Client
from scaler.embedded.conditions import parse_time, timestamp
from scaler.embedded.controller import Controller, soonest
from scaler.embedded.fleet import Fleet
from scaler.embedded.kinds import NODE, POD, Json, Resource
from scaler.embedded.kubelet.devices import DEVICES, GPU, devices_of, free_devices, holders, wanted_gpus
from scaler.embedded.kubelet.lifecycle import Stage, finish_stage, length, stage_of
from scaler.embedded.kubelet.placement import Node, plan_placement

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletTiming:
    """How long things take on a node."""

    start_delay: timedelta = timedelta(seconds=3)
    """From the binding until the containers run: an image that is there already."""
    termination: timedelta = timedelta(seconds=5)
    """From being told to stop until being gone, for pods that do not say otherwise."""
    heartbeat: timedelta = timedelta(seconds=10)
    """Between two signs of life of a node. A real node controller gives up on a node after 40 s."""


class Kubelets(Controller):
    """All nodes of the fleet, and the scheduler that fills them."""

    name: ClassVar[str] = "kubelets"
    watched: ClassVar[tuple[Resource, ...]] = (POD, NODE)

    def __init__(
        self, client: Client, fleet: Fleet, timing: KubeletTiming | None = None, *, schedules: bool = True
    ) -> None:
        """`schedules` False leaves placement to a real kube-scheduler."""
        super().__init__(client)
        self._fleet = fleet
        self._timing = timing or KubeletTiming()
        self._schedules = schedules
        self._since: dict[tuple[str, Stage], datetime] = {}

    async def tick(self, now: datetime) -> datetime | None:
        done = await self.act(self._plan_nodes(now))
        if self._schedules:
            pods = self.client.all(POD)
            done += await self.act(plan_placement(pods, self._nodes(), self._fleet.gpus, now_text=timestamp(now)))
        done += await self.act(self._plan_devices())
        done += await self.act(action for pod in self._bound() for action in self._move_on(pod, now))
        self._tell_fleet()
        return now if done else self._next(now)

    # --------------------------------------------------------------------------------------------------------- nodes

    def _plan_nodes(self, now: datetime) -> list[Action]:
        actions: list[Action] = []
        for name, count in self._fleet.config.nodes.items():
            node = self.client.find(NODE, "", name)
            if node is None:
                actions.append(Create(resource=NODE, body=self._node(name, count, now)))
            elif (due := self._beat_due(node)) is None or due <= now:
                body = {"status": {"conditions": [_ready(now)]}}
                actions.append(Patch(resource=NODE, observed=node, body=body, subresource="status"))
        return actions

    def _node(self, name: str, count: int, now: datetime) -> Json:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(count)}
        labels = {
            "kubernetes.io/hostname": name,
            "nvidia.com/gpu.product": self._fleet.config.model.name.replace(" ", "-"),
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [_ready(now)]},
        }

    def _beat_due(self, node: Json) -> datetime | None:
        """When the node's next sign of life is due; None where there has been none."""
        conditions = (node.get("status") or {}).get("conditions") or [{}]
        last = parse_time(conditions[0].get("lastHeartbeatTime"))
        return last + self._timing.heartbeat if last else None

    def _nodes(self) -> list[Node]:
        known = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in self.client.all(NODE)}
        return [Node(name=name, labels=known[name]) for name in self._fleet.config.nodes if name in known]

    # ---------------------------------------------------------------------------------------------------------- pods

    def _bound(self) -> list[Json]:
        nodes = self._fleet.config.nodes
        return [pod for pod in self.client.all(POD) if (pod.get("spec") or {}).get("nodeName") in nodes]

    def _plan_devices(self) -> list[Action]:
        """GPUs for one pod that somebody else has placed, where there still are enough."""
        pods = self._bound()
        for pod in pods:
            missing = wanted_gpus(pod) - len(devices_of(pod))
            free = free_devices(self._fleet.gpus, pods, pod["spec"]["nodeName"])
            if stage_of(pod) is Stage.STARTING and 0 < missing <= len(free):
                body = {"metadata": {"annotations": {DEVICES: ",".join([*devices_of(pod), *free[:missing]])}}}
                return [Patch(resource=POD, observed=pod, body=body)]
        return []

    def _move_on(self, pod: Json, now: datetime) -> list[Action]:
        due = self._due(pod, now)
        return finish_stage(pod, now=now) if due and due <= now else []

    def _due(self, pod: Json, now: datetime) -> datetime | None:
        """When the pod's present stage ends. Stages are timed from when they were first seen."""
        stage = stage_of(pod)
        if stage is Stage.STARTING and wanted_gpus(pod) > len(devices_of(pod)):
            return None
        try:
            lasts = length(pod, start_delay=self._timing.start_delay, termination=self._timing.termination)
        except ValueError as error:
            _log.warning("PodAnnotationIgnored", pod=pod["metadata"]["name"], error=str(error))
            return None
        since = self._since.setdefault((pod["metadata"]["uid"], stage), now)
        return None if lasts is None else since + lasts

    def _next(self, now: datetime) -> datetime | None:
        pods, ours = self._bound(), self._fleet.config.nodes
        alive = {pod["metadata"]["uid"] for pod in pods}
        self._since = {key: since for key, since in self._since.items() if key[0] in alive}
        nodes = [node for node in self.client.all(NODE) if node["metadata"]["name"] in ours]
        return soonest([*(self._due(pod, now) for pod in pods), *(self._beat_due(node) for node in nodes)])

    def _tell_fleet(self) -> None:
        pods = self._bound()
        for node in self._fleet.config.nodes:
            self._fleet.hold(node, holders(pods, node))


def _ready(now: datetime) -> Json:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": timestamp(now),
    }
