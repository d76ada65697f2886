"""What must hold at every moment of a hub and its workers, whatever happens to them.

* At most one worker may reclaim for a Workload. One that is not Active for longer than the patience does not count, nor
  until this is taken back from it when it is reached again.
* With our dispatcher a Workload is nominated for one cluster at a time.
* What is suspended for a gang of the hub is suspended where the gang is nominated, and may be reclaimed for.
* No gang runs on two clusters that the hub reaches. What runs on one that it has lost nobody can stop, and Kueue may
  give it to another one: when it has recorded the wrong cluster, at once.
* `spec.active` of a remote copy is never written by the program.

That a gang is nominated for one cluster, which suspends for it, and starts on another one that has room meanwhile, is
no breach.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler_sandbox.conditions import condition, parse_time
from scaler_sandbox.kinds import Json
from scaler_sandbox.multikueue import Dispatcher
from sim.multikueue_clusters import DispatchedClusters
from sim.scaler_on_worker import WorkerScaler

from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN
from scaler.kube.objects.resources import CLUSTER_OFFER, MULTIKUEUE_CLUSTER, SCALABLE_WORKLOAD, WORKLOAD

_TAKEN_BACK_WITHIN = timedelta(seconds=15)
"""From when a worker is reached again: what it must not have any more is gone."""


class MultiKueueLawError(Exception):
    """A law does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A job that was suspended for a gang."""

    cluster: str
    job: str
    gang: str
    """Of its Workload: `namespace/name`."""
    at: datetime


class MultiKueueLaws:
    """Of one hub with its workers. Suspensions are seen as they are written."""

    def __init__(
        self, clusters: DispatchedClusters, scalers: Mapping[str, WorkerScaler], *, patience: timedelta
    ) -> None:
        self._clusters, self._scalers, self._patience = clusters, scalers, patience
        self.suspensions: list[Suspension] = []
        self.broken = ""
        self._seen: object = None
        self._nominated: defaultdict[str, set[str]] = defaultdict(set)
        """By key of a gang, the clusters that it has ever been nominated for."""
        self._lost_until: dict[str, datetime] = {}
        self._cut_until: dict[str, datetime] = {}
        for name, scaler in scalers.items():
            scaler.api.watch = lambda path, body, name=name: self._written(name, path, body)

    def look(self) -> None:
        """Raises: MultiKueueLawError."""
        for name in self._clusters.workers:
            # Also while nothing is written: that it is lost has to be seen for as long as it is.
            self._is_reached(name)
            self._is_lost(name)
        state = [each.client.revision for each in self._clusters.members]
        if state == self._seen and not self.broken:
            return
        self._seen = state
        for workload in self._clusters.hub.client.all(WORKLOAD):
            nominated = workload["status"].get("nominatedClusterNames") or ()
            self._nominated[_key(workload)] |= {*nominated}
            if len(nominated) > 1 and self._clusters.config.dispatcher is Dispatcher.EXTERNAL:
                self.broken = f"{_key(workload)} is nominated for {' and '.join(nominated)}"
            self._look_at(workload)
        if self.broken:
            raise MultiKueueLawError(self.broken)

    def _look_at(self, workload: Json) -> None:
        job = workload["metadata"]["ownerReferences"][0]["name"]
        running = [name for name in self._clusters.workers if self._runs(name, job) and self._is_reached(name)]
        if len(running) > 1:
            self.broken = f"{job} runs on {' and '.join(running)}"
        holders = [name for name in self._clusters.workers if self._may_reclaim(name, workload)]
        if len(counted := [name for name in holders if not self._is_lost(name)]) > 1:
            self.broken = f"{' and '.join(counted)} may reclaim for {job}"

    def _runs(self, cluster: str, job: str) -> bool:
        member = self._clusters.workers[cluster]
        found = member.job(job)
        if found is None or found["spec"].get("suspend"):
            return False
        return any(not each["metadata"].get("deletionTimestamp") for each in member.pods(job))

    def _is_reached(self, cluster: str) -> bool:
        """Whether the hub reaches it, and has for a moment."""
        now = self._clusters.now
        if cluster in self._clusters.links.lost:
            self._cut_until[cluster] = now + _TAKEN_BACK_WITHIN
        return now >= self._cut_until.get(cluster, now)

    def _may_reclaim(self, cluster: str, workload: Json) -> bool:
        offers = self._clusters.workers[cluster].client.all(CLUSTER_OFFER)
        entries = [each for offer in offers for each in offer["spec"].get("workloads") or ()]
        return any(each.get("reclaim") and each["uid"] == workload["metadata"]["uid"] for each in entries)

    def _is_lost(self, cluster: str) -> bool:
        """Whether it is not Active for longer than the patience, or was until a moment ago."""
        found = self._clusters.hub.client.find(MULTIKUEUE_CLUSTER, "", cluster)
        active, now = condition(found or {}, "Active"), self._clusters.now
        since = parse_time(active["lastTransitionTime"]) if active and active["status"] != "True" else None
        if since is not None and now - since > self._patience:
            self._lost_until[cluster] = now + _TAKEN_BACK_WITHIN
        return now < self._lost_until.get(cluster, now)

    # ------------------------------------------------------------------------------------------------ what is suspended

    def _written(self, cluster: str, path: str, body: Json) -> None:
        if "/workloads/" not in path or (body.get("spec") or {}).get("active") is not False:
            return
        name = path.rsplit("/", 1)[1]
        workload = self._clusters.workers[cluster].client.find(WORKLOAD, "ns", name)
        if workload is None:
            return
        if MULTIKUEUE_ORIGIN in (workload["metadata"].get("labels") or {}):
            self.broken = f"the program deactivates the remote copy {name} on {cluster}"
            return
        job = workload["metadata"]["ownerReferences"][0]["name"]
        scalable = self._clusters.workers[cluster].client.find(SCALABLE_WORKLOAD, "ns", job)
        grant = ((scalable or {}).get("status") or {}).get("grant")
        if grant is not None:
            found = Suspension(cluster=cluster, job=job, gang=grant["workload"], at=self._clusters.now)
            self.suspensions.append(found)
            self._judge(found)

    def _judge(self, found: Suspension) -> None:
        hub = self._clusters.hub.client.find(WORKLOAD, *found.gang.split("/"))
        copy = self._clusters.workers[found.cluster].client.find(WORKLOAD, *found.gang.split("/"))
        if copy is not None and MULTIKUEUE_ORIGIN not in (copy["metadata"].get("labels") or {}):
            return
        what = f"{found.job} is suspended on {found.cluster} for {found.gang}"
        if hub is None:
            return
        if found.cluster not in self._nominated[found.gang] | {*(hub["status"].get("nominatedClusterNames") or ())}:
            self.broken = f"{what}, which was never nominated for it"
        elif not self._may_reclaim(found.cluster, hub):
            self.broken = f"{what}, and may not be reclaimed for there"


def _key(workload: Json) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"
