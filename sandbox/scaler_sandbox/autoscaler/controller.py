"""The loop around ProvisioningRequests: accept them, find free capacity or order nodes, keep what is booked.

Laws:

* All or nothing: a request is provisioned when nodes have free capacity for all its pods, or it is not.
* What is booked for one request is not free for another, until its pods are there or its booking expires.
* Nodes follow from statuses: with CapacityRevoked, whichever client writes it, the nodes of that request are removed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count, islice
from typing import ClassVar

from scaler.kube.objects.resources import NODE, POD, POD_TEMPLATE, PROVISIONING_REQUEST, Resource
from scaler_sandbox.actions import Action
from scaler_sandbox.autoscaler import requests as answers
from scaler_sandbox.autoscaler.cloud import GROUP, REQUEST, REQUEST_UID, Cloud, FreeResources, nodes_for, pack
from scaler_sandbox.autoscaler.requests import (
    MissingTemplate,
    RequestStage,
    class_of,
    consumers,
    is_booked,
    name_of,
    pods_of,
    request_stage_of,
)
from scaler_sandbox.autoscaler.scenarios import AutoscalerConfig, Scenario, Shape, filled_in
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has
from scaler_sandbox.controller import Controller, soonest
from scaler_sandbox.fleet import Machine
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet.scheduler import Node, free_devices, node_of


class Autoscaler(Controller):
    """Answers ProvisioningRequests as its scenarios say."""

    name: ClassVar[str] = "autoscaler"
    watched: ClassVar[tuple[Resource, ...]] = (PROVISIONING_REQUEST, POD_TEMPLATE, NODE, POD)

    def __init__(self, client: Client, cloud: Cloud, config: AutoscalerConfig | None = None) -> None:
        super().__init__(client)
        self._cloud = cloud
        self._config = config or AutoscalerConfig()
        self._since: dict[tuple[str, str], datetime] = {}
        self._running: dict[tuple[str, str], datetime] = {}
        """The timers that were asked for in this tick, and when each ends."""

    async def tick(self, now: datetime) -> datetime | None:
        self._running = {}
        requests = self._requests()
        done = sum([await self.act(self._answer(each, now)) for each in requests])
        self._since = {key: since for key, since in self._since.items() if key in self._running}
        if done:
            return now
        return soonest(ends for ends in self._running.values() if ends > now)

    def _requests(self) -> list[Json]:
        """All of them, the oldest first."""
        return sorted(self.client.all(PROVISIONING_REQUEST), key=lambda each: each["metadata"]["creationTimestamp"])

    def _is_over(self, what: str, which: str, lasts: timedelta | None, now: datetime) -> bool:
        """Whether so long has passed since this was first asked. A timer that a tick does not ask for is forgotten."""
        if lasts is None:
            return False
        ends = self._since.setdefault((what, which), now) + lasts
        self._running[what, which] = ends
        return ends <= now

    # ------------------------------------------------------------------------------------------------------- answers

    def _answer(self, request: Json, now: datetime) -> list[Action]:
        """What is to be said of the request now."""
        uid, scenario = request["metadata"]["uid"], self._config.scenario(class_of(request), name_of(request))
        if scenario is None or request["metadata"].get("deletionTimestamp"):
            return []
        match request_stage_of(request):
            case RequestStage.NEW:
                return self._accept(request, scenario, now)
            case RequestStage.ACCEPTED if self._is_over(uid, "accepted", scenario.provisioned_after, now):
                return self._try(request, scenario, now)
            case RequestStage.PROVISIONED:
                return self._keep(request, scenario, now)
            case RequestStage.OVER if has(request, "CapacityRevoked"):
                self._take_away(uid)
        return []

    def _accept(self, request: Json, scenario: Scenario, now: datetime) -> list[Action]:
        if not self._is_over(request["metadata"]["uid"], "new", scenario.accepted_after, now):
            return []
        takes = scenario.provisioned_after if scenario.tells_eta else None
        return answers.accepted(request, eta=now + takes if takes is not None else None, now=now)

    def _try(self, request: Json, scenario: Scenario, now: datetime) -> list[Action]:
        if self._cloud.turn(scenario.key, request["metadata"]["uid"]) <= scenario.failures:
            return answers.failed(request, "OutOfResources", scenario.failure, now=now)
        specs = pods_of(request, self._template)
        if isinstance(specs, MissingTemplate):
            message = f"Couldn't create pods, err: PodTemplate {specs.name} is not there"
            return answers.failed(request, "FailedToCreatePods", message, now=now)
        return self._provision(request, scenario, specs, now)

    def _provision(self, request: Json, scenario: Scenario, specs: list[Json], now: datetime) -> list[Action]:
        uid = request["metadata"]["uid"]
        wanted = self._nodes_wanted(request, scenario, specs)
        if wanted is None:
            return answers.not_found(request, now=now)
        for machine in wanted:
            self._cloud.fleet.add(machine)
        mine = self._cloud.machines_for(uid)
        if not all(self.client.find(NODE, "", each.name) for each in mine):
            return []
        details = filled_in(scenario.details, _id_of(request))
        return answers.provisioned(request, added=bool(mine), details=details, now=now)

    def _keep(self, request: Json, scenario: Scenario, now: datetime) -> list[Action]:
        uid = request["metadata"]["uid"]
        if has(request, "BookingExpired"):
            return []
        asked = sum(pod_set["count"] for pod_set in request["spec"]["podSets"])
        if consumers(request, self.client.all(POD)) >= asked:
            return answers.consumed(request, now=now)
        is_over = self._is_over(uid, "booked", scenario.booked_for, now)
        return answers.expired(request, now=now) if is_over else []

    # ------------------------------------------------------------------------------------------------- free capacity

    def _nodes_wanted(self, request: Json, scenario: Scenario, specs: list[Json]) -> list[Machine] | None:
        """The machines that are missing; None where no node can be added."""
        mine = {machine.name for machine in self._cloud.machines_for(request["metadata"]["uid"])}
        free_nodes = [each for each in self._free_nodes(request) if scenario.counts_free or each.node.name in mine]
        unplaced = pack(specs, free_nodes)
        if not unplaced:
            return []
        if scenario.shape is None:
            return None
        shape = scenario.shape.of(_id_of(request))
        more = nodes_for(unplaced, _like(shape), shape.gpus)
        return None if more is None else list(islice(self._new_machines(request, shape), more))

    def _free_nodes(self, request: Json) -> list[FreeResources]:
        """What all nodes have free without what is booked for others."""
        pods, fleet = self.client.all(POD), self._cloud.fleet
        free_nodes = [
            FreeResources(node=node, free=len(free_devices(fleet.gpus, pods, node.name)))
            for machine in fleet.machines.values()
            if (node := self._node(machine))
        ]
        for other in self._requests():
            if other["metadata"]["uid"] != request["metadata"]["uid"] and self._holds_capacity(other):
                self._book(other, free_nodes, pods)
        return free_nodes

    def _holds_capacity(self, request: Json) -> bool:
        """Whether it has booked capacity, or waits for nodes that are on their way."""
        is_coming = request_stage_of(request) is RequestStage.ACCEPTED and self._cloud.machines_for(
            request["metadata"]["uid"]
        )
        return is_booked(request) or bool(is_coming)

    def _book(self, request: Json, free_nodes: Sequence[FreeResources], pods: Iterable[Json]) -> None:
        """Takes the capacity of the pods that are still to come, where the scheduler would put them."""
        specs = pods_of(request, self._template)
        if not isinstance(specs, MissingTemplate):
            pack(specs[consumers(request, pods) :], free_nodes)

    def _node(self, machine: Machine) -> Node | None:
        """The node as it has registered, or as it will."""
        body = self.client.find(NODE, "", machine.name)
        return _bare(machine) if body is None else node_of(body)

    def _template(self, namespace: str, name: str) -> Json | None:
        return self.client.find(POD_TEMPLATE, namespace, name)

    # ---------------------------------------------------------------------------------------------------------- nodes

    def _new_machines(self, request: Json, shape: Shape) -> Iterator[Machine]:
        """Machines for the request, with names that none has had."""
        fleet = self._cloud.fleet
        taken = fleet.gone | fleet.machines.keys()
        names = (f"{shape.name}-{_id_of(request)}-{number}" for number in count(1))
        for name in (name for name in names if name not in taken):
            annotations = {GROUP: shape.name, REQUEST: name_of(request), REQUEST_UID: request["metadata"]["uid"]}
            yield Machine(name=name, gpus=shape.gpus, labels=shape.labels, taints=shape.taints, annotations=annotations)

    def _take_away(self, uid: str) -> None:
        for machine in self._cloud.machines_for(uid):
            self._cloud.fleet.remove(machine.name)


def _id_of(request: Json) -> str:
    """Something that only this request has, and that a label may hold."""
    uid = str(request["metadata"]["uid"])
    return hashlib.sha1(uid.encode(), usedforsecurity=False).hexdigest()[:5]


def _bare(machine: Machine) -> Node:
    """The node of a machine that has not registered yet."""
    return Node(
        name=machine.name, labels={"kubernetes.io/hostname": machine.name, **machine.labels}, taints=machine.taints
    )


def _like(shape: Shape) -> Node:
    """Any node of that shape."""
    return Node(name="", labels=shape.labels, taints=shape.taints)
