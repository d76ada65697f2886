"""Which evicted gangs may still get pods scheduled, and what do these pods need?

Kueue sets Evicted on a Workload. Then its job is suspended, and then its pods are deleted, by different controllers and
some tenths of a second apart. Until then kube-scheduler may bind pods that have no node, and the job's controller may
create more. If the reservation of such a gang ended with the eviction, its places would be given to two gangs.

Laws:

* The places of pods that were not on nodes at the eviction stay reserved until Kueue has released the quota (the job is
  suspended then), and a moment longer: watches of Workloads and of pods are never quite in step. Quota that it has
  again within that moment changes nothing about its old pods.
* An existing pod without a node may be scheduled for as long as it exists. A job whose controller does not work any
  more leaves such pods behind; a restart finds them.
* Pods on nodes are not counted here: they hold their node's capacity until they terminate.
* Which run a pod is of, its Workload does not tell, and pods of the earlier run are about to be deleted, which is seen
  only once the copy of pods has caught up. So the gang is not released again within that moment. Where another check
  does that, it is not known how many of its pods are on nodes. To guess too few is as wrong as too many: places that
  its pods might take are places of which others are no longer sure, and what nobody is sure of nobody keeps.
* Unreadable is not nothing: while pods may be created whose demands are not known, free capacity is not known either.

Worked example: a gang of 2 has its check Ready, and one of its pods is on a node, when it is deactivated at 12:00:00.
At 12:00:01 its quota is released: the place of the other pod stays reserved until 12:00:04 and then is free, unless
that pod still waits for a node.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scaler.admission.provisioning.requests import holds_quota
from scaler.admission.workload import PodDemands
from scaler.kube.objects.core import is_true
from scaler.kube.objects.kueue_workloads import Workload
from scaler.placement.node_index import NodeDemand
from scaler.placement.requests import PlacementRequest

RELEASE_DELAY = timedelta(seconds=3)
"""How long places stay reserved after the quota was released, or the Workload was deleted."""


@dataclass(slots=True)
class _Evicted:
    workload: Workload
    """The Workload as it was before its eviction or, after a restart, as it was listed."""
    pending_demands: tuple[NodeDemand, ...] | str
    """What the pods need that were not on nodes then, or why these are not known."""
    since: datetime | None = None
    """When it was first observed without quota, or with that of its next run."""
    is_back: bool = False
    """Whether it is released again, so that its places are its own."""


class EvictedReservations:
    """Gangs evicted after they were released. `needs` gives what their pods need, `waiting` how many wait for nodes."""

    def __init__(
        self,
        *,
        needs: Callable[[Workload], PodDemands | str],
        waiting: Callable[[Workload], Mapping[str, int]],
        afterwards: timedelta = RELEASE_DELAY,
    ) -> None:
        self._needs = needs
        self._waiting = waiting
        self._afterwards = afterwards
        self._evicted: dict[str, _Evicted] = {}
        """The Workloads that were evicted, by uid."""
        self._named: dict[tuple[str, str], _Evicted] = {}
        """The one of these that was evicted last, by the key of the Workload."""

    def note(self, workload: Workload, pending_demands: tuple[NodeDemand, ...] | str = ()) -> None:
        """It is evicted after it was released, or was listed in that state."""
        known = self._evicted.get(workload.metadata.uid)
        if known is None or known.is_back:
            evicted = _Evicted(workload, pending_demands)
            self._evicted[workload.metadata.uid] = self._named[workload.metadata.key] = evicted

    def stays(self, uid: str) -> None:
        """It is released again: its reservation is its own."""
        if (evicted := self._evicted.get(uid)) is not None:
            evicted.is_back = True

    def has_earlier_run(self, workload: Workload, now: datetime) -> bool:
        """Whether the Workload, which has quota, or one before it with its name was evicted a moment ago."""
        evicted = self._named.get(workload.metadata.key)
        return evicted is not None and self._is_recent(evicted, now)

    def requests(self, now: datetime, current: Callable[[str], Workload | None]) -> Iterator[PlacementRequest]:
        """What their pods may still use. `current` gives a Workload by its key."""
        for workload, taken in self._taken(now, current):
            if not isinstance(taken, str):
                yield PlacementRequest(
                    key="/".join(workload.metadata.key), uid=workload.metadata.uid, demands=taken, at=now
                )

    def unread(self, now: datetime, current: Callable[[str], Workload | None]) -> str:
        """Why it is not known what pods may still use; empty where it is."""
        for workload, taken in self._taken(now, current):
            if isinstance(taken, str):
                key = "/".join(workload.metadata.key)
                return (
                    f"{key} is evicted, and the demands of its pods that may still be created cannot be read: {taken}"
                )
        return ""

    def _taken(
        self, now: datetime, current: Callable[[str], Workload | None]
    ) -> Iterator[tuple[Workload, tuple[NodeDemand, ...] | str]]:
        """The Workloads whose pods may still be scheduled, and what these need, or why that is not known. Others go."""
        for uid, evicted in list(self._evicted.items()):
            may_make_pods = self._may_make_pods(evicted, now, current)
            taken = (evicted.pending_demands if may_make_pods else ()) or self._of_pods(evicted.workload)
            if not evicted.is_back and (isinstance(taken, str) or any(each.count for each in taken)):
                yield evicted.workload, taken
            elif not may_make_pods:
                del self._evicted[uid]
                if self._named.get(evicted.workload.metadata.key) is evicted:
                    del self._named[evicted.workload.metadata.key]

    def _may_make_pods(self, evicted: _Evicted, now: datetime, current: Callable[[str], Workload | None]) -> bool:
        """Whether more of its pods may be created."""
        found = current("/".join(evicted.workload.metadata.key))
        is_same = found is not None and found.metadata.uid == evicted.workload.metadata.uid
        if found is not None and is_same and is_true(found.status.conditions, "Admitted") and not holds_quota(found):
            return True
        return self._is_recent(evicted, now)

    def _is_recent(self, evicted: _Evicted, now: datetime) -> bool:
        """Whether the copy of pods may not have caught up."""
        evicted.since = evicted.since or now
        return now - evicted.since < self._afterwards

    def _of_pods(self, workload: Workload) -> tuple[NodeDemand, ...] | str:
        """What its pods without a node need."""
        counts = self._waiting(workload)
        if not counts:
            return ()
        needs = self._needs(workload)
        if isinstance(needs, str):
            return needs
        return tuple(replace(each, count=counts.get(each.pod_set, 0)) for each in needs.demands)
