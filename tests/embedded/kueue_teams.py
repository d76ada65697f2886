"""Teams that share quota: a ClusterQueue for each, named like its LocalQueue, in one cohort unless said otherwise."""

from datetime import timedelta
from typing import Any

from kueue_world import GPU, KueueWorld, job

from scaler.embedded.conditions import condition, reason_of
from scaler.embedded.kinds import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Json,
)
from scaler.embedded.kueue import KueueConfig

RECLAIM_ANY = {"reclaimWithinCohort": "Any"}
LOWER_FIRST = {"withinClusterQueue": "LowerPriority"}


def flavor_quota(name: str, gpus: int, **limits: int) -> Json:
    return {"name": name, "resources": [{"name": GPU, "nominalQuota": gpus, **limits}]}


def team(name: str, gpus: int = 4, *, cohort: str = "all", flavors: list[Json] | None = None, **spec: Any) -> Json:
    """Its ClusterQueue. `flavors` come instead of one with so many GPUs."""
    offered = flavors or [flavor_quota("flavor", gpus)]
    groups = [{"coveredResources": [GPU], "flavors": offered}]
    body = {"cohortName": cohort, "namespaceSelector": {}, "resourceGroups": groups, **spec}
    return {"metadata": {"name": name}, "spec": body}


class Teams(KueueWorld):
    """Pods run as soon as their job is started; they end when `stop_pods` says so."""

    def __init__(self, *teams: Json, cohorts: tuple[Json, ...] = (), config: KueueConfig | None = None) -> None:
        super().__init__(config=config)
        for body in cohorts:
            self.client.add(COHORT, body)
        for body in teams:
            name = body["metadata"]["name"]
            self.client.add(CLUSTER_QUEUE, body)
            self.client.add(
                LOCAL_QUEUE, {"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterQueue": name}}
            )
        self.client.add(WORKLOAD_PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 100})

    def add_flavor(self, name: str, **spec: Any) -> None:
        self.client.add(RESOURCE_FLAVOR, {"metadata": {"name": name}, "spec": spec})

    async def start(self, name: str, team: str, gpus: int, *, high: bool = False) -> None:
        """Submit a job of one-GPU pods, a second after whatever was before."""
        self.client.now += timedelta(seconds=1)
        labels = {"kueue.x-k8s.io/priority-class": "high"} if high else {}
        await self.submit_and_run(job(name, pods=gpus, queue=team, labels=labels))

    @property
    def admitted(self) -> set[str]:
        return {name for name in self.names if self.is_admitted(name)}

    @property
    def names(self) -> list[str]:
        return [each["metadata"]["ownerReferences"][0]["name"] for each in self.client.all(WORKLOAD)]

    def why_preempted(self, name: str) -> str:
        return reason_of(self.workload(name), "Preempted")

    def flavors_of(self, name: str) -> list[str]:
        assignments = self.workload(name)["status"]["admission"]["podSetAssignments"]
        return [each["flavors"][GPU] for each in assignments]

    def evicted_message(self, name: str) -> str:
        return str((condition(self.workload(name), "Evicted") or {}).get("message", ""))

    def queue(self, name: str) -> Json:
        found = self.client.find(CLUSTER_QUEUE, "", name)
        assert found is not None
        return dict(found["status"])
