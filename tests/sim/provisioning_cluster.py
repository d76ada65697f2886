"""Gangs for which nodes are requested, in virtual time: beside all of `SimCluster` the real provisioning, and the
embedded cluster's kubelets and autoscaler.

    cluster = ProvisioningCluster({"a": 8}, provisioning={"retry": {"limit": 1, "base": "10s"}})
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(10)
    cluster.requests("gang"), cluster.is_running("gang")

A process that loses the Lease dies, and the next one starts at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from scaler_sandbox.actions import Delete
from scaler_sandbox.autoscaler import BEST_EFFORT_ATOMIC, Autoscaler, AutoscalerConfig, Scenario, Shape
from scaler_sandbox.autoscaler.cloud import Cloud
from scaler_sandbox.client import Client
from scaler_sandbox.conditions import make, with_conditions
from scaler_sandbox.fleet import Fleet, FleetConfig, Machine
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet import Kubelets, KubeletTiming
from sim.api import SimApi, is_managed
from sim.cluster import SimCluster

from scaler.admission.provisioning.requests import WORKLOAD_UID_LABEL
from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RAY_CLUSTER,
    RECLAIM_POLICY,
    SCALABLE_WORKLOAD,
    WORKLOAD,
)

QUICK = Scenario(
    provisioning_class=BEST_EFFORT_ATOMIC,
    accepted_after=timedelta(seconds=1),
    provisioned_after=timedelta(seconds=3),
    shape=Shape(name="new", gpus=8),
)
"""Accepted after 1 s, and its nodes are there 3 s later."""
NOBODY: tuple[Scenario, ...] = ()
"""No autoscaler knows the class: a test answers requests itself."""
_WRITTEN = (
    WORKLOAD,
    JOB,
    ADMISSION_CHECK,
    RECLAIM_POLICY,
    SCALABLE_WORKLOAD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    CLUSTER_QUEUE,
)


class ProvisioningCluster(SimCluster):
    """`provisioning` is that of the ReclaimPolicy; the class and quick retries are given unless it says otherwise."""

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        policy: Json | None = None,
        provisioning: Json | None = None,
        scenarios: Sequence[Scenario] = (QUICK,),
        **more: Any,
    ) -> None:
        asks = {"className": BEST_EFFORT_ATOMIC, "retry": {"limit": 2, "base": "10s"}, **(provisioning or {})}
        self.deaths = 0
        self.fleet = Fleet(FleetConfig(nodes=dict(nodes)), clock=lambda: 0.0)
        self._stuck: dict[str, timedelta] = {}
        super().__init__({}, policy={"provisioning": asks, **(policy or {})}, **more)
        self.api = SimApi(self.client, _WRITTEN)
        client = cast(Client, self.client)
        timing = KubeletTiming(start_delay=timedelta(0), heartbeat=timedelta(days=1), stuck=self._stuck)
        self.kubelets = Kubelets(client, self.fleet, timing)
        config = AutoscalerConfig(scenarios=tuple(scenarios))
        self.cloud = Autoscaler(client, Cloud(self.fleet), config)
        self.controllers: Any = (*self.controllers, self.cloud, self.kubelets)
        self.restart()

    # ----------------------------------------------------------------------------------------------------------- time

    async def _settle(self, *, ticks: bool) -> None:
        while True:
            try:
                return await super()._settle(ticks=ticks)
            except KubeError as error:
                if error.reason != NOT_LEADING:
                    raise
                self.deaths += 1
                self.restart()

    def schedule(self) -> None:
        """Kubelets do that. How long pods take to end is set here, and what has no owner any more is deleted."""
        ends = {f"ns/{job}-*": timedelta(seconds=seconds) for job, seconds in self.termination.items()}
        self._stuck.clear()
        self._stuck.update({**ends, "*": timedelta(seconds=1)})
        self._collect_garbage()

    def _end_pods(self) -> None:
        """Kubelets do that, too."""

    def _versions(self) -> list[str]:
        kinds = (PROVISIONING_REQUEST, POD_TEMPLATE, NODE)
        return super()._versions() + [
            body["metadata"]["resourceVersion"] for kind in kinds for body in self.client.all(kind)
        ]

    def _collect_garbage(self) -> None:
        """Removes what has owners, none of which is there any more."""
        kinds = (JOB, RAY_CLUSTER, WORKLOAD, POD_TEMPLATE, PROVISIONING_REQUEST, POD)
        there = {body["metadata"]["uid"] for kind in kinds for body in self.client.all(kind)}
        for kind in kinds:
            for body in self.client.all(kind):
                owners = {each["uid"] for each in body["metadata"].get("ownerReferences") or ()}
                if owners and not owners & there and not body["metadata"].get("deletionTimestamp"):
                    assert self.client._do(Delete(resource=kind, observed=body))

    # -------------------------------------------------------------------------------------------------------- objects

    def add_node(self, name: str, gpus: int, **labels: str) -> None:
        self.fleet.add(Machine(name=name, gpus=gpus, labels=labels))

    def delete(self, job: str) -> None:
        """Its owner deletes the job; the rest goes with it."""
        self.client.remove(JOB, "ns", job)

    def grant(self, victim: str, *, to: str) -> None:
        """A plan is to take the victim for the gang, and has not begun."""
        workload = self.workload(victim)["metadata"]["name"]
        self.client.add(SCALABLE_WORKLOAD, self._scalable(victim, workload, to, is_granted=True))

    def hold_pods(self, held: bool = True) -> None:
        """The scheduler sleeps, or wakes up."""
        self.kubelets._schedules = not held

    def set_policy(self, **provisioning: Any) -> None:
        self.change_policy({"provisioning": provisioning})

    def change_policy(self, spec: Json) -> None:
        self.change(RECLAIM_POLICY, "policy", {"spec": spec})

    def answer(self, request: str, kind: str, message: str = "", *, ago: float = 0.0, **status: Any) -> None:
        """The autoscaler says so of the request."""
        body = self.client.find(PROVISIONING_REQUEST, "ns", request)
        assert body is not None, request
        now = self.client.now - timedelta(seconds=ago)
        before = (body.get("status") or {}).get("conditions")
        conditions = with_conditions(before, make(kind, "True", kind, message, now=now))
        self.change(PROVISIONING_REQUEST, request, {"status": {"conditions": conditions, **status}}, "status")

    # -------------------------------------------------------------------------------------------------------- looking

    def requests(self, job: str = "") -> list[str]:
        """The names of requests that are there, with what was last said of each; of one job or of all."""
        return self.requests_of(self.workload(job)["metadata"]["uid"] if job else "")

    def requests_of(self, uid: str) -> list[str]:
        """The same by uid of the Workload."""
        found = [each for each in self.client.all(PROVISIONING_REQUEST) if is_managed(each)]
        return [_told(each) for each in found if uid in ("", each["metadata"]["labels"][WORKLOAD_UID_LABEL])]

    def newest(self, job: str) -> str:
        """The name of the newest request."""
        uid = self.workload(job)["metadata"]["uid"]
        found = [each for each in self.client.all(PROVISIONING_REQUEST) if is_managed(each)]
        return max(
            (int(each["metadata"]["annotations"]["idlegpu.io/attempt"]), str(each["metadata"]["name"]))
            for each in found
            if each["metadata"]["labels"][WORKLOAD_UID_LABEL] == uid
        )[1]

    def templates(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.client.all(POD_TEMPLATE)]

    def written(self, verb: str, plural: str = "") -> list[str]:
        return [each for each in self.api.writes if each.startswith(f"{verb} {plural}")]


def _told(body: Json) -> str:
    annotations, conditions = body["metadata"]["annotations"], (body.get("status") or {}).get("conditions") or []
    true = [each["type"] for each in conditions if each["status"] == "True"]
    return f"{annotations['idlegpu.io/attempt']}: {true[-1] if true else 'New'}"


def failing(times: int, **more: Any) -> Scenario:
    """The first requests fail."""
    return replace(QUICK, failures=times, **more)
