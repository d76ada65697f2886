"""Whose pods may still take GPUs although their gang was told to go?

Kueue writes that a Workload is evicted. Then its job is suspended, and then its pods are deleted, each by somebody else
and some tenths of a second later. Until then pods of it that have no node may get one, and pods that were not even made
may be made. Whoever takes the places of such a gang for free at the first word of its end gives them away twice.

Laws:

* The places of pods that were not on nodes when their gang had to go stay taken until Kueue has released its quota (its
  job has stopped then), and a moment longer: copies of Workloads and of pods are never quite in step.
* A pod that is there and waits for a node may get one, for as long as it is there. A job whose controller has stopped
  working leaves such pods behind, and a restart finds them.
* Pods that are on nodes are not counted here: they hold what they hold until they are gone.
* What cannot be read is not nothing: for as long as pods may come whose needs nobody knows, nobody knows what is free.

Worked example: a gang of 2 is let go, and one of its pods is on a node when it is deactivated at 12:00:00. At 12:00:01
its quota is released: the place of the other pod stays taken until 12:00:04, and then is free, unless that pod still
waits for a node.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scaler.core.claims import Claim
from scaler.core.placement import Demand
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import is_true
from scaler.kueue.gangs import Needs
from scaler.kueue.provisioning_requests import holds_quota

AFTERWARDS = timedelta(seconds=3)
"""How long places stay taken after the quota was released, or the Workload has vanished."""


@dataclass(slots=True)
class _Leaver:
    workload: Workload
    """As it was when it was let go or, after a restart, as it was found."""
    owed: tuple[Demand, ...] | str
    """For the pods that were not on nodes then, or why nobody knows what they need."""
    since: datetime | None = None
    """When it was first seen without quota."""


class Leaving:
    """Gangs that had been let go and have to go. `needs` tells what their pods need, `waiting` which wait for nodes."""

    def __init__(
        self,
        *,
        needs: Callable[[Workload], Needs | str],
        waiting: Callable[[Workload], Mapping[str, int]],
        afterwards: timedelta = AFTERWARDS,
    ) -> None:
        self._needs = needs
        self._waiting = waiting
        self._afterwards = afterwards
        self._leavers: dict[str, _Leaver] = {}
        """By uid."""

    def note(self, workload: Workload, owed: tuple[Demand, ...] | str = ()) -> None:
        """It had been let go and has to go now, or that is how it was found."""
        self._leavers.setdefault(workload.metadata.uid, _Leaver(workload, owed))

    def stays(self, uid: str) -> None:
        """It was let go again: its places are its own."""
        self._leavers.pop(uid, None)

    def claims(self, now: datetime, current: Callable[[str], Workload | None]) -> Iterator[Claim]:
        """What their pods may still take. `current` gives a Workload by its key."""
        for workload, taken in self._taken(now, current):
            if not isinstance(taken, str):
                yield Claim(key="/".join(workload.metadata.key), uid=workload.metadata.uid, demands=taken, at=now)

    def unread(self, now: datetime, current: Callable[[str], Workload | None]) -> str:
        """Whose pods may still take nobody knows what; empty where that is nobody."""
        for workload, taken in self._taken(now, current):
            if isinstance(taken, str):
                key = "/".join(workload.metadata.key)
                return f"{key} has to go, and what its pods need that may still come cannot be read: {taken}"
        return ""

    def _taken(
        self, now: datetime, current: Callable[[str], Workload | None]
    ) -> Iterator[tuple[Workload, tuple[Demand, ...] | str]]:
        """Those with pods that may still come, and what these need, or why nobody knows. All others are forgotten."""
        for uid, leaver in list(self._leavers.items()):
            may_make_pods = self._may_make_pods(leaver, now, current)
            taken = (leaver.owed if may_make_pods else ()) or self._of_pods(leaver.workload)
            if isinstance(taken, str) or any(each.count for each in taken):
                yield leaver.workload, taken
            elif not may_make_pods:
                del self._leavers[uid]

    def _may_make_pods(self, leaver: _Leaver, now: datetime, current: Callable[[str], Workload | None]) -> bool:
        """Whether more pods of it may come than those that are there."""
        found = current("/".join(leaver.workload.metadata.key))
        if found is not None and found.metadata.uid == leaver.workload.metadata.uid:
            if holds_quota(found):
                return False  # It has stopped in between, and waits once more.
            if is_true(found.status.conditions, "Admitted"):
                return True
        leaver.since = leaver.since or now
        return now - leaver.since < self._afterwards

    def _of_pods(self, workload: Workload) -> tuple[Demand, ...] | str:
        """What its pods need that wait for nodes."""
        counts = self._waiting(workload)
        if not counts:
            return ()
        needs = self._needs(workload)
        if isinstance(needs, str):
            return needs
        return tuple(replace(each, count=counts.get(each.pod_set, 0)) for each in needs.demands)
