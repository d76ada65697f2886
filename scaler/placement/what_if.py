"""Would a gang that waits for nodes fit, were some workloads gone? Asked before any is suspended for it.

A gang has its quota and lacks nodes. `reservations` tells who gets what is free; here the same gangs are placed in the
same order, as they would be if idle workloads had ended.

Laws:

* All earlier gangs have been placed before: those that were released keep their nodes, those that fit get theirs, and
  all others that reserved quota earlier take of what gets free whatever lets them start.
* Pods that are terminating have ended, but for those that are stuck.
* A gang fits only if its AdmissionCheck would become Ready: whole, and wherever the scheduler puts its pods. Where so
  many are before it that this was not computed, it does not.

Worked example: nodes a and b of 8 GPUs, idle workloads x on a and y on b, each with 8. P (16, first) and Q (8) wait.
With x gone Q fits on a. With x and y gone it does not: P fits then, and is before it.
"""

from collections.abc import Iterable, Set
from dataclasses import replace

from scaler.placement.capacity import Capacity, PodPlacement
from scaler.placement.demand import NodeDemand
from scaler.placement.fit import fits, upper_bound
from scaler.placement.requests import (
    Blocked,
    BlockedReason,
    Fits,
    PlacementRequest,
    PlacementResult,
    ReservationQueue,
)
from scaler.placement.reservations import NodeReservations, place_as_many


class WhatIf:
    """The question, for the gang of that key. Raises: KeyError where it does not wait."""

    def __init__(self, queue: ReservationQueue, key: str) -> None:
        self.queue = queue
        self._reservations = NodeReservations.of(queue)
        self._before: list[PlacementRequest] = []
        """Those that reserved quota earlier and do not fit, in their order."""
        for each in queue.in_order:
            if each.key == key:
                self.request = each
                return
            if not isinstance(self._reservations.place(each), Fits):
                self._before.append(each)
        raise KeyError(key)

    @property
    def turns(self) -> int:
        """How many gangs are placed for one answer, this one included."""
        return len(self._before) + 1

    @property
    def left(self) -> Capacity:
        """The most that is left for it, before others take of it that reserved quota earlier."""
        return self._reservations.once_gone(()).left

    def result(self, gone: Set[str]) -> PlacementResult:
        """What its AdmissionCheck would find with these workloads gone."""
        reservations = self._once_gone(gone)
        # What is under way for it has come to its end here.
        found = reservations.place(replace(self.request, awaits_nodes=False, waits_for_pods=False, may_ask=False))
        if reservations.is_spent and isinstance(found, Blocked) and found.why is BlockedReason.PODS_COMING:
            others = tuple(each.key for each in self._before)
            return replace(found, why=BlockedReason.RESERVED_FOR_EARLIER, others=others)
        return found

    def most(self, gone: Set[str]) -> tuple[PodPlacement, ...]:
        """Nodes for as many of its pods as fit with these workloads gone, as provisioning counts them."""
        return place_as_many(self.request.demands, self._once_gone(gone).left)

    def has_room(self, demands: Iterable[NodeDemand], gone: Set[str]) -> bool:
        """Whether these pods fit together with these workloads gone."""
        return fits(tuple(demands), self._once_gone(gone).left)

    def _once_gone(self, gone: Set[str]) -> NodeReservations:
        """The reservations when it is placed."""
        found = self._reservations.once_gone(gone)
        for each in self._before:
            may_fit = all(upper_bound(pods, found.left) >= pods.count for pods in each.demands)
            if each.awaits_nodes or (may_fit and fits(each.demands, found.left)):
                found.place(each)
        return found


def is_placed(result: PlacementResult) -> bool:
    """Whether it fits, or does as soon as pods of others have found their nodes."""
    return isinstance(result, Fits) or (isinstance(result, Blocked) and result.why is BlockedReason.PODS_COMING)
