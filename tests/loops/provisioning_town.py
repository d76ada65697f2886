"""Gangs at the gate that also ask for nodes, in virtual time: beside all of `GateTown` the real provisioning, and the
embedded cluster's kubelets and autoscaler.

    town = ProvisioningTown({"a": 8}, provisioning={"retry": {"limit": 1, "base": "10s"}})
    town.submit("gang", pods=2, gpus=8)
    await town.passes(10)
    town.requests("gang"), town.is_running("gang")

A process that is told that it no longer leads dies, and the next one starts at once.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

from gate_town import GateTown, LiveStore, MemoryApi

from scaler.embedded.actions import Create, Delete
from scaler.embedded.autoscaler import BEST_EFFORT_ATOMIC, Autoscaler, AutoscalerConfig, Scenario, Shape
from scaler.embedded.autoscaler.cloud import Cloud
from scaler.embedded.client import Client
from scaler.embedded.conditions import make, timestamp, with_conditions
from scaler.embedded.fleet import Fleet, FleetConfig, Machine
from scaler.embedded.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    NODE,
    POD,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    PROVISIONING_REQUEST_CONFIG,
    RAY_CLUSTER,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Json,
    Resource,
)
from scaler.embedded.kubelet import Kubelets, KubeletTiming
from scaler.embedded.kueue import ProvisioningCheck
from scaler.errors import KubeError
from scaler.kube.provisioning_objects import ProvisioningRequest
from scaler.kube.resources import RECLAIM_POLICY, SCALABLE_WORKLOAD
from scaler.kueue.provisioning_requests import MANAGED_LABEL, WORKLOAD_UID_LABEL, workload_uid_of
from scaler.loops.leadership import NOT_LEADING
from scaler.loops.provisioning import Case, Happening, Progress, Provisioning

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


class WritingApi(MemoryApi):
    """A `MakingApi` over the same objects. `after_write` may raise: what was written stays written."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, _WRITTEN)
        self.writes: list[str] = []
        """As `create provisioningrequests/job-gang-gate-1`."""
        self.after_write: Callable[[str], None] = lambda _: None

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        answer = await super().patch(path, body, dry_run=dry_run)
        self._wrote("patch", path)
        return answer

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        name, namespace = body["metadata"]["name"], body["metadata"].get("namespace", "")
        resource = next(each for each in _WRITTEN if each.path(namespace) == path)
        if (
            not await self._client.apply(Create(resource=resource, body=json.loads(json.dumps(body))))
            or (found := self._client.find(resource, namespace, name)) is None
        ):
            raise KubeError(f"create {path}/{name}: exists already", status=409, reason="AlreadyExists")
        self._wrote("create", f"{path}/{name}")
        return json.dumps(found).encode()

    async def delete(self, path: str, *, uid: str = "") -> bytes:
        resource, found = self._object(path)
        if uid and found["metadata"]["uid"] != uid:
            raise KubeError(f"delete {path}: another uid", status=409, reason="Conflict")
        if found["metadata"].get("finalizers"):
            going = {"metadata": {"deletionTimestamp": timestamp(self._client.now)}}
            self._client.change(resource, found["metadata"]["namespace"], found["metadata"]["name"], going)
        else:
            self._client.remove(resource, found["metadata"].get("namespace", ""), found["metadata"]["name"])
        self._wrote("delete", path)
        return json.dumps(found).encode()

    def _wrote(self, verb: str, path: str) -> None:
        plural, name = path.removesuffix("/status").split("/")[-2:]
        self.writes.append(f"{verb} {plural}/{name}")
        self.after_write(self.writes[-1])


class Requests(LiveStore[ProvisioningRequest]):
    """The copy of our ProvisioningRequests, always in step."""

    resource: Resource | None = PROVISIONING_REQUEST
    trouble = ""

    def __init__(self) -> None:
        super().__init__(ProvisioningRequest, {"workload": workload_uid_of})

    def of_workload(self, uid: str) -> list[ProvisioningRequest]:
        return list(self.by_index("workload", uid))


class Followed:
    """The real provisioning, and what it has said of each job."""

    def __init__(self, provisioning: Provisioning, heard: dict[str, list[Progress]]) -> None:
        self._provisioning = provisioning
        self._heard = heard

    async def follow(self, case: Case, now: datetime) -> Progress:
        progress = await self._provisioning.follow(case, now)
        self._heard[case.workload.metadata.owner_references[0].name].append(progress)
        return progress

    async def sweep(self, followed: Collection[str], now: datetime) -> None:
        await self._provisioning.sweep(followed, now)


class ProvisioningTown(GateTown):
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
        self.heard: dict[str, list[Progress]] = defaultdict(list)
        """By job, what provisioning said of it at every look."""
        self.happened: list[Happening] = []
        self.deaths = 0
        self._store = Requests()
        self._is_built = False
        self.fleet = Fleet(FleetConfig(nodes=dict(nodes)), clock=lambda: 0.0)
        self._stuck: dict[str, timedelta] = {}
        super().__init__({}, policy={"provisioning": asks, **(policy or {})}, **more)
        self.api: WritingApi = WritingApi(self.client)
        client = cast(Client, self.client)
        timing = KubeletTiming(start_delay=timedelta(0), heartbeat=timedelta(days=1), stuck=self._stuck)
        self.kubelets = Kubelets(client, self.fleet, timing)
        config = AutoscalerConfig(scenarios=tuple(scenarios), unneeded_after=None)
        self.cloud = Autoscaler(client, Cloud(self.fleet), config)
        self.controllers: Any = (*self.controllers, self.cloud, self.kubelets)
        self._is_built = True
        self.restart()

    def restart(self) -> None:
        if self._is_built:
            self._store = Requests()
            flavors = self._flavor
            real = Provisioning(self.api, self._store, flavors, self.told, observe=self.happened.append)
            self.autoscaler: Any = Followed(real, self.heard)
        super().restart()

    def _flavor(self, name: str) -> Any:
        return self.copies[RESOURCE_FLAVOR].get("", name)

    def follow(self) -> None:
        super().follow()
        ours = [each for each in self.client.all(PROVISIONING_REQUEST) if _is_managed(each)]
        self._store.follow(ours)

    # ----------------------------------------------------------------------------------------------------------- time

    async def _settle(self, *, gate: bool) -> None:
        while True:
            try:
                return await super()._settle(gate=gate)
            except KubeError as error:
                if error.reason != NOT_LEADING:
                    raise
                self.deaths += 1
                self.restart()

    def schedule(self) -> None:
        """Kubelets do that. How long pods take to end is told them here, and what is nobody's any more goes."""
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

    def run_kueues_check(self, name: str, **config: Any) -> None:
        """Kueue's own check for ProvisioningRequests, and the controller that looks after it."""
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "config"}
        spec = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
        self.add(PROVISIONING_REQUEST_CONFIG, "config", spec={"provisioningClassName": BEST_EFFORT_ATOMIC, **config})
        self.add(ADMISSION_CHECK, name, spec=spec)
        self.controllers = (*self.controllers, ProvisioningCheck(cast(Client, self.client)))

    def requests_of_kueue(self) -> list[str]:
        """Names of the requests that are not ours."""
        return [each["metadata"]["name"] for each in self.client.all(PROVISIONING_REQUEST) if not _is_managed(each)]

    # -------------------------------------------------------------------------------------------------------- looking

    def requests(self, job: str = "") -> list[str]:
        """The names of requests that are there, with what was last said of each; of one job or of all."""
        return self.requests_of(self.workload(job)["metadata"]["uid"] if job else "")

    def requests_of(self, uid: str) -> list[str]:
        """The same by uid of the Workload."""
        found = [each for each in self.client.all(PROVISIONING_REQUEST) if _is_managed(each)]
        return [_told(each) for each in found if uid in ("", each["metadata"]["labels"][WORKLOAD_UID_LABEL])]

    def open_requests(self) -> list[str]:
        """The names of those that are new or accepted."""
        found = [each for each in self.client.all(PROVISIONING_REQUEST) if _is_managed(each)]
        return [each["metadata"]["name"] for each in found if _told(each).endswith(("New", "Accepted"))]

    def newest(self, job: str) -> str:
        """The name of the newest request."""
        uid = self.workload(job)["metadata"]["uid"]
        found = [each for each in self.client.all(PROVISIONING_REQUEST) if _is_managed(each)]
        return max(
            (int(each["metadata"]["annotations"]["idlegpu.io/attempt"]), str(each["metadata"]["name"]))
            for each in found
            if each["metadata"]["labels"][WORKLOAD_UID_LABEL] == uid
        )[1]

    def templates(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.client.all(POD_TEMPLATE)]

    def written(self, verb: str, plural: str = "") -> list[str]:
        return [each for each in self.api.writes if each.startswith(f"{verb} {plural}")]


def _is_managed(body: Json) -> bool:
    return (body["metadata"].get("labels") or {}).get(MANAGED_LABEL) == "true"


def _told(body: Json) -> str:
    annotations, conditions = body["metadata"]["annotations"], (body.get("status") or {}).get("conditions") or []
    true = [each["type"] for each in conditions if each["status"] == "True"]
    return f"{annotations['idlegpu.io/attempt']}: {true[-1] if true else 'New'}"


def failing(times: int, **more: Any) -> Scenario:
    """The first requests fail."""
    return replace(QUICK, failures=times, **more)
