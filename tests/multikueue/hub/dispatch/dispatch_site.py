"""A hub and its workers in memory, in virtual time, with the dispatcher as it runs on the hub.

    site = Site("w1", "w2")
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    site.nominated("gang"), site.reclaiming()

Kueue and the workers' own idle-gpu-scaler do something only when a test says so. How a real worker is connected is in
test_worker_connections.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

from scaler_sandbox.kinds import Json
from scaler_sandbox.multikueue import Dispatcher, HubConfig, Remedy
from scaler_sandbox.multikueue.webhook import WorkloadAdmission
from sim.client import START, SimClient
from sim.dispatcher_on_hub import OFFER, HubDispatcher

from scaler.kube.objects.core import stamp
from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_OFFER,
    LOCAL_QUEUE,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    WORKLOAD,
    Resource,
)
from scaler.multikueue.hub.dispatch.controller import DispatchReport

NAMESPACE_NAME = "team"
PATIENCE = timedelta(minutes=5)
LIFE = timedelta(minutes=10)
SECOND = timedelta(seconds=1)
_QUIET = 3


class AlwaysHeard(Random):
    """No watch is late."""

    def random(self) -> float:
        return 0.5


class Site:
    """All workers are Active and in the MultiKueueConfig `gpus`. `options` are those of the HubDispatcher."""

    def __init__(self, *workers: str, remedy: Remedy = Remedy.POLICY, **options: Any) -> None:
        self.hub = SimpleNamespace(client=SimClient())
        self.set_remedy(remedy)
        self.workers = {name: SimpleNamespace(client=SimClient()) for name in workers}
        self.links = SimpleNamespace(lost={})
        self.fits: dict[str, dict[str, Mapping[str, Any]]] = {name: {} for name in workers}
        """What each worker answers about Workloads, by name; `*` about any other."""
        self.unreachable: set[str] = set()
        """Workers that were not reached for longer than the patience."""
        self._observed = START
        self.add(MULTIKUEUE_CONFIG, "gpus", spec={"clusters": list(workers)})
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "gpus"}
        spec = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
        self.add(ADMISSION_CHECK, "multikueue", spec=spec)
        self.add(LOCAL_QUEUE, "lq", namespace=NAMESPACE_NAME, spec={"clusterQueue": "cq"})
        for name in workers:
            source = {"kubeConfig": {"location": f"multikueue-{name}", "locationType": "Secret"}}
            self.add(MULTIKUEUE_CLUSTER, name, spec={"clusterSource": source})
            self.is_active(name)
        self.dispatcher = HubDispatcher(self, AlwaysHeard(0), patience=PATIENCE, **options)  # type: ignore[arg-type]

    @property
    def now(self) -> datetime:
        return self.hub.client.now

    # --------------------------------------------------------------------------------------------------------- the hub

    def set_remedy(self, remedy: Remedy) -> None:
        """What Kueue on the hub says from now on to nominations beside a cluster."""
        config = HubConfig(dispatcher=Dispatcher.EXTERNAL, remedy=remedy)
        self.hub.client.admission = WorkloadAdmission(config)

    def add(self, resource: Resource, name: str, *, namespace: str = "", metadata: Json | None = None, **body: Any):
        meta = {"name": name, **({"namespace": namespace} if namespace else {}), **(metadata or {})}
        return self.hub.client.add(resource, {"metadata": meta, **body})

    def change(self, resource: Resource, name: str, body: Json, subresource: str = "") -> None:
        namespace = NAMESPACE_NAME if resource.namespaced else ""
        self.hub.client.change(resource, namespace, name, body, subresource)

    def is_active(self, cluster: str, *, active: bool = True) -> None:
        found = {
            "type": "Active",
            "status": str(active),
            "reason": "Active" if active else "ClientConnectionFailed",
            "message": "Connected" if active else "no route to host",
            "lastTransitionTime": stamp(self.now),
        }
        self.change(MULTIKUEUE_CLUSTER, cluster, {"status": {"conditions": [found]}}, "status")

    def waits(self, name: str, *, gpus: int = 4, **spec: Any) -> None:
        """A gang with quota whose check of MultiKueue is Pending."""
        container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
        pods = {"name": "main", "count": gpus, "template": {"spec": {"containers": [container]}}}
        given = {"active": True, "queueName": "lq", "podSets": [pods], **spec}
        self.add(WORKLOAD, name, namespace=NAMESPACE_NAME, spec=given)
        reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": ""}
        admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main"}]}
        self.has_status(name, conditions=[reserved], admission=admission, admissionChecks=self.checks())

    def checks(self, multikueue: str = "Pending", other: str = "Ready") -> list[Json]:
        states = {"multikueue": multikueue, "other": other}
        at = stamp(self.now)
        return [{"name": name, "state": each, "message": "", "lastTransitionTime": at} for name, each in states.items()]

    def has_status(self, name: str, **status: Any) -> None:
        self.change(WORKLOAD, name, {"status": status}, "status")

    def is_admitted(self, name: str, cluster: str) -> None:
        """As Kueue does it once the copy there is admitted."""
        self.has_status(name, clusterName=cluster, nominatedClusterNames=None, admissionChecks=self.checks("Ready"))

    def is_evicted(self, name: str) -> None:
        self.has_status(name, clusterName=None, nominatedClusterNames=[], admissionChecks=self.checks())

    def nominated(self, name: str) -> list[str]:
        found = self.hub.client.find(WORKLOAD, NAMESPACE_NAME, name)
        return list(found["status"].get("nominatedClusterNames") or ())

    def messages(self, reason: str) -> list[str]:
        """The messages of Events with that reason."""
        return [message for _, found, message in self.dispatcher.events.events if found == reason]

    # ----------------------------------------------------------------------------------------------------- the workers

    def entries(self, worker: str) -> dict[str, Json]:
        """What the spec there asks, by name of the Workload."""
        offers = self.workers[worker].client.all(CLUSTER_OFFER)
        return {each["name"]: each for offer in offers for each in offer["spec"].get("workloads") or ()}

    def reclaiming(self, name: str = "gang") -> list[str]:
        """The workers that may suspend idle workloads for it."""
        return [worker for worker in self.workers if self.entries(worker).get(name, {}).get("reclaim")]

    def publishes(self, worker: str, **more: Any) -> None:
        """Its status is renewed, with answers to everything that the spec asks about."""
        client = self.workers[worker].client
        offer = client.find(CLUSTER_OFFER, "", OFFER)
        if offer is None:
            return
        asked = [each for each in self.entries(worker).values() if "request" in each]
        fits = self.fits[worker]
        answers = [
            {**{key: each[key] for key in ("namespace", "name", "uid")}, **fits.get(each["name"], fits.get("*", {}))}
            for each in asked
        ]
        self._observed = max(self._observed + SECOND, self.now)
        status = {
            "observedGeneration": offer["metadata"]["generation"],
            "observedAt": stamp(self._observed),
            "validUntil": stamp(self._observed + LIFE),
            "workloads": [each for each in answers if "fit" in each],
            **more,
        }
        client.change(CLUSTER_OFFER, "", OFFER, {"status": status}, "status")

    async def answers(self, **fits: str | Mapping[str, Any]) -> DispatchReport:
        """Workers answer this about any Workload, with a status that is renewed, until everything has settled."""
        for name, fit in fits.items():
            self.fits[name] = {"*": {"fit": fit} if isinstance(fit, str) else fit}
        await self.settles()
        return await self.renewed()

    async def renewed(self) -> DispatchReport:
        """All workers publish their status twice, since the first one that is seen may be of any age."""
        for _ in range(2):
            for name, fits in self.fits.items():
                if fits:
                    self.publishes(name)
            await self.settles()
        return self.report

    # ------------------------------------------------------------------------------------------------------------ time

    @property
    def report(self) -> DispatchReport:
        return self.dispatcher.reports[-1]

    def jump(self, duration: timedelta) -> None:
        for each in (self.hub, *self.workers.values()):
            each.client.now += duration

    async def pass_time(self, duration: timedelta = PATIENCE) -> DispatchReport:
        """So much later the workers' statuses are renewed."""
        self.jump(duration)
        return await self.renewed()

    async def settles(self) -> DispatchReport:
        """Looks until nothing changes any more. At most one worker may reclaim for a Workload all the time."""
        quiet = 0
        for _ in range(50):
            before = self._seen
            await self.dispatcher.turn(looks=True)
            quiet = quiet + 1 if self._seen == before else 0
            names = [name for each in self.workers.keys() - self.unreachable for name in self._reclaims(each)]
            assert len(names) == len(set(names)), f"several workers may reclaim: {sorted(names)}"
            if quiet == _QUIET:
                return self.report
        raise AssertionError("the dispatcher never comes to rest")

    def _reclaims(self, worker: str) -> list[str]:
        return [name for name, each in self.entries(worker).items() if each.get("reclaim")]

    @property
    def _seen(self) -> object:
        return [each.client.revision for each in (self.hub, *self.workers.values())]
