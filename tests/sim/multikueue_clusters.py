"""A hub and its workers in memory: MultiKueue on the hub, and on every cluster a Kueue of its own. One virtual clock.

    clusters = DispatchedClusters({"w1": 4, "w2": 0})
    clusters.submit("gang", pods=4)
    await clusters.passes(3)
    clusters.cluster_of("gang"), clusters.says("gang")

Everything is in namespace `ns`: LocalQueue `lq` of ClusterQueue `cq`, on every cluster. Pods run as soon as they are
made, and end a second after they were told to.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from scaler_sandbox.client import Client
from scaler_sandbox.conditions import has, reason_of, timestamp
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue import Kueue, KueueConfig
from scaler_sandbox.kueue.jobs import MULTIKUEUE
from scaler_sandbox.multikueue import Dispatcher, GivenWorkers, HubConfig, MultiKueue, Remedy
from scaler_sandbox.multikueue.webhook import WorkloadAdmission
from scaler_sandbox.operators import JobController
from sim.client import SimClient
from sim.kueue_cluster import cluster_queue, job

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    NAMESPACE,
    POD,
    RESOURCE_FLAVOR,
    WORKLOAD,
)

CHECK = "dispatch"
STEP = timedelta(milliseconds=100)
ALL_AT_ONCE = HubConfig()
EXTERNAL = HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=Remedy.POLICY)


class MemberCluster:
    """One cluster: its objects, its Kueue and its Jobs. Its clock may differ from that of the hub."""

    def __init__(
        self,
        gpus: int,
        config: HubConfig,
        *,
        checks: tuple[str, ...] = (),
        ahead: timedelta = timedelta(0),
        **queue: Any,
    ) -> None:
        self.client = SimClient()
        self.client.now += ahead
        self.client.admission = WorkloadAdmission(config)
        self._config = KueueConfig(hub=config)
        self._ends: dict[str, datetime] = {}
        self.start_controllers()
        add = self.client.add
        add(NAMESPACE, {"metadata": {"name": "ns", "labels": {"kubernetes.io/metadata.name": "ns"}}})
        add(RESOURCE_FLAVOR, {"metadata": {"name": "flavor"}, "spec": {}})
        add(CLUSTER_QUEUE, cluster_queue(gpus=gpus, checks=checks, **queue))
        add(LOCAL_QUEUE, {"metadata": {"name": "lq", "namespace": "ns"}, "spec": {"clusterQueue": "cq"}})

    def start_controllers(self) -> None:
        """Kueue anew, with nothing in memory."""
        client = cast(Client, self.client)
        self.controllers = (Kueue(client, self._config), JobController(client))
        self._due: dict[int, datetime | None] = {}
        self._seen: object = None

    async def step(self) -> None:
        """What follows from what is there, once. Nothing is done where nothing has changed and nothing is due."""
        if self._seen == self.client.revision and not self._is_due():
            return
        self._seen = self.client.revision
        for number, controller in enumerate(self.controllers):
            self._due[number] = await controller.tick(self.client.now)
        self.client.collect_garbage()
        self._run_pods()

    def _is_due(self) -> bool:
        times = [*self._due.values(), *self._ends.values()]
        return any(each is not None and each <= self.client.now for each in times)

    def _run_pods(self) -> None:
        now = self.client.now
        for pod in self.client.all(POD):
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if pod["metadata"].get("deletionTimestamp"):
                if now >= self._ends.setdefault(pod["metadata"]["uid"], now + timedelta(seconds=1)):
                    self.client.remove(POD, namespace, name)
                    del self._ends[pod["metadata"]["uid"]]
            elif pod["status"]["phase"] == "Pending":
                self.client.change(POD, namespace, name, {"spec": {"nodeName": "node-a"}})
                self.client.change(POD, namespace, name, {"status": _running(now)}, "status")

    # ---------------------------------------------------------------------------------------------------------- looking

    def workload(self, of_job: str) -> Json | None:
        """The Workload of the job, or the copy of its Workload, by its name."""
        found = [each for each in self.client.all(WORKLOAD) if each["metadata"]["name"].startswith(f"job-{of_job}-")]
        return found[0] if found else None

    def existing(self, of_job: str) -> Json:
        found = self.workload(of_job)
        assert found is not None, f"{of_job} has no Workload"
        return found

    def job(self, name: str) -> Json | None:
        return self.client.find(JOB, "ns", name)

    def pods(self, of_job: str) -> list[Json]:
        return [each for each in self.client.all(POD) if each["metadata"]["ownerReferences"][0]["name"] == of_job]

    def has(self, of_job: str, kind: str, status: str = "True") -> bool:
        found = self.workload(of_job)
        return found is not None and has(found, kind, status)

    def runs(self, name: str) -> bool:
        """Whether the job was admitted here and has pods."""
        found = self.job(name)
        return (
            self.has(name, "Admitted") and found is not None and not found["spec"]["suspend"] and bool(self.pods(name))
        )


def _running(now: datetime) -> Json:
    state = {"running": {"startedAt": timestamp(now)}}
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "ready": True, "state": state}],
    }


class DispatchedClusters:
    """A hub and its workers."""

    def __init__(
        self,
        workers: Mapping[str, int],
        *,
        hub: int = 100,
        config: HubConfig = HubConfig(),  # noqa: B008 (immutable)
        checks: Sequence[str] = (),
        ahead: Mapping[str, timedelta] | None = None,
        **queue: Any,
    ) -> None:
        """`workers`: GPUs of quota by name, `ahead` by how much their clocks are, `queue` more of their ClusterQueues.
        `checks` are further AdmissionChecks on the hub, of somebody else."""
        self.config = config
        self.hub = MemberCluster(hub, config, checks=(CHECK, *checks))
        apart = {name: (ahead or {}).get(name, timedelta(0)) for name in workers}
        self.workers = {name: MemberCluster(gpus, config, ahead=apart[name], **queue) for name, gpus in workers.items()}
        self.links = GivenWorkers({name: cast(Client, each.client) for name, each in self.workers.items()})
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": MULTIKUEUE_CONFIG.kind, "name": "workers"}
        add = self.hub.client.add
        add(
            ADMISSION_CHECK,
            {"metadata": {"name": CHECK}, "spec": {"controllerName": MULTIKUEUE, "parameters": parameters}},
        )
        for check in checks:
            active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
            body = {"metadata": {"name": check}, "spec": {"controllerName": "x/y"}, "status": {"conditions": [active]}}
            add(ADMISSION_CHECK, body)
        for name in workers:
            source = {"kubeConfig": {"location": f"{name}-kubeconfig", "locationType": "Secret"}}
            add(MULTIKUEUE_CLUSTER, {"metadata": {"name": name}, "spec": {"clusterSource": source}})
        add(MULTIKUEUE_CONFIG, {"metadata": {"name": "workers"}, "spec": {"clusters": list(workers)}})
        self.start_dispatching()

    def start_dispatching(self) -> None:
        """MultiKueue anew, with nothing in memory."""
        self.multikueue = MultiKueue(cast(Client, self.hub.client), self.links, self.config)
        self._seen: object = None
        self._due: datetime | None = None

    @property
    def members(self) -> list[MemberCluster]:
        return [self.hub, *self.workers.values()]

    @property
    def now(self) -> datetime:
        return self.hub.client.now

    # ------------------------------------------------------------------------------------------------------------- time

    async def passes(self, seconds: float = 0.0, *, step: timedelta = STEP) -> None:
        """Time passes in steps, and all that follows from it happens."""
        await self.settle()
        for _ in range(round(seconds / step.total_seconds())):
            for each in self.members:
                each.client.now += step
            await self.settle()

    async def settle(self) -> None:
        """All that follows from what is there happens."""
        for _ in range(100):
            before = self._state
            if before != self._seen or (self._due is not None and self._due <= self.now):
                self._seen, self._due = before, await self.multikueue.tick(self.now)
            for each in self.members:
                await each.step()
            if self._state == before:
                return
        raise AssertionError("the clusters never come to rest")

    @property
    def _state(self) -> object:
        return [each.client.revision for each in self.members], tuple(self.links.lost)

    # ------------------------------------------------------------------------------------------------------- happenings

    def submit(self, name: str, *, pods: int = 4, at: str = "", **spec: Any) -> None:
        """A Job, on the hub or at one of the workers."""
        member = self.workers[at] if at else self.hub
        member.client.add(JOB, job(name, pods=pods, **spec))

    def nominate(self, name: str, *clusters: str) -> None:
        """As an external dispatcher does. Raises: KubeError."""
        body = {"status": {"nominatedClusterNames": list(clusters)}}
        self.hub.client.change(WORKLOAD, "ns", self.hub.existing(name)["metadata"]["name"], body, "status")

    def set_active(self, name: str, active: bool, *, at: str = "") -> None:
        member = self.workers[at] if at else self.hub
        member.client.change(WORKLOAD, "ns", member.existing(name)["metadata"]["name"], {"spec": {"active": active}})

    def configure(self, *clusters: str) -> None:
        """The MultiKueueConfig has these clusters from now on."""
        self.hub.client.change(MULTIKUEUE_CONFIG, "", "workers", {"spec": {"clusters": list(clusters)}})

    def delete_job(self, name: str, *, at: str = "") -> None:
        member = self.workers[at] if at else self.hub
        member.client.remove(JOB, "ns", name)

    # ---------------------------------------------------------------------------------------------------------- looking

    def on_hub(self, name: str) -> Json:
        return self.hub.existing(name)

    def entry(self, name: str, check: str = CHECK) -> Json:
        (entry,) = [each for each in self.on_hub(name)["status"]["admissionChecks"] if each["name"] == check]
        return dict(entry)

    def says(self, name: str) -> str:
        """State and message of the check."""
        return f"{self.entry(name)['state']}: {self.entry(name)['message']}"

    def cluster_of(self, name: str) -> str:
        return str(self.on_hub(name)["status"].get("clusterName", ""))

    def nominated(self, name: str) -> list[str] | None:
        """None where the field is absent."""
        found: list[str] | None = self.on_hub(name)["status"].get("nominatedClusterNames")
        return found

    def holders(self, name: str) -> list[str]:
        """The workers with a copy of the Workload."""
        return [each for each, member in self.workers.items() if member.workload(name) is not None]

    def runners(self, name: str) -> list[str]:
        """The workers on which the job runs."""
        return [each for each, member in self.workers.items() if member.runs(name)]

    def active_pods(self, name: str) -> int:
        """As the hub's Job says it."""
        found = self.hub.job(name)
        return int(((found or {}).get("status") or {}).get("active") or 0)

    def state(self, name: str) -> str:
        """`reserved evicted/Deactivated`: what is true of the hub's Workload."""
        workload = self.on_hub(name)
        words = {"QuotaReserved": "reserved", "Admitted": "admitted", "Evicted": "evicted", "Finished": "finished"}
        told = [
            f"{word}/{reason_of(workload, kind)}" if kind in ("Evicted", "Finished") else word
            for kind, word in words.items()
            if has(workload, kind)
        ]
        return " ".join(told)


async def started(workers: Mapping[str, int], config: HubConfig = EXTERNAL, **more: Any) -> DispatchedClusters:
    """Connected, and with nothing to do."""
    clusters = DispatchedClusters(workers, config=config, **more)
    await clusters.passes(1)
    return clusters


async def submitted(workers: Mapping[str, int], config: HubConfig = EXTERNAL, **more: Any) -> DispatchedClusters:
    """With a gang of four pods on the hub."""
    clusters = await started(workers, config, **more)
    clusters.submit("gang")
    await clusters.passes(0.5)
    return clusters


async def running_on_w1(config: HubConfig = EXTERNAL) -> DispatchedClusters:
    """The gang runs on the first of two workers, which both have room for it."""
    clusters = await submitted({"w1": 4, "w2": 4}, config)
    if config.dispatcher is Dispatcher.EXTERNAL:
        clusters.nominate("gang", "w1")
    await clusters.passes(3)
    assert clusters.runners("gang") == ["w1"]
    return clusters
