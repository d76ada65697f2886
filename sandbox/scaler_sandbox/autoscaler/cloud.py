"""The provider that machines are ordered from. It outlives the autoscaler: killed and started anew, that one finds what
it has ordered, and nothing is ordered twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from scaler_sandbox.fleet import Fleet, Machine
from scaler_sandbox.kinds import Json
from scaler_sandbox.kubelet.scheduler import Node, suits
from scaler_sandbox.operators.pods import gpus_in

REQUEST = "demo.idlegpu.io/provisioning-request"
"""Annotation of a Node: `namespace/name` of the request that it was added for."""
REQUEST_UID = "demo.idlegpu.io/provisioning-request-uid"
GROUP = "demo.idlegpu.io/node-group"
"""Annotation: the node group that it belongs to."""


class Cloud:
    """Turns orders into machines of the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._orders: dict[str, tuple[datetime, Machine]] = {}
        self._asked: dict[tuple[str, str], list[str]] = {}

    def order(self, machine: Machine, *, at: datetime) -> None:
        """The machine, of a name that no other has, will be there at that time."""
        self._orders[machine.name] = at, machine

    def deliver(self, now: datetime) -> None:
        """What is due is there."""
        for name, (at, machine) in list(self._orders.items()):
            if at <= now:
                del self._orders[name]
                self.fleet.add(machine)

    @property
    def due(self) -> datetime | None:
        """When the next machine comes; None where none was ordered."""
        return min((at for at, _ in self._orders.values()), default=None)

    @property
    def ordered(self) -> list[Machine]:
        """Machines that are still to come."""
        return [machine for _, machine in self._orders.values()]

    def cancel(self, uid: str) -> None:
        """What was ordered for that request, and has not come yet, never comes."""
        mine = [name for name, (_, machine) in self._orders.items() if machine.annotations.get(REQUEST_UID) == uid]
        for name in mine:
            del self._orders[name]

    def machines_for(self, uid: str) -> list[Machine]:
        """The machines that were ordered for the request, whether they are there or not."""
        known = [*self.fleet.machines.values(), *self.ordered]
        return [machine for machine in known if machine.annotations.get(REQUEST_UID) == uid]

    def turn(self, scenario: tuple[str, str], uid: str) -> int:
        """Which of the scenario's requests this is, counted from 1 in the order in which they are asked for."""
        asked = self._asked.setdefault(scenario, [])
        if uid not in asked:
            asked.append(uid)
        return asked.index(uid) + 1


@dataclass(kw_only=True)
class FreeResources:
    """What a node has left, counted down while pods are packed."""

    node: Node
    free: int


def pack(pod_specs: Iterable[Json], rooms: Sequence[FreeResources]) -> list[Json]:
    """The pods that find no room. Those that do, take it."""
    return [spec for spec in pod_specs if not _take(spec, rooms)]


def _take(spec: Json, rooms: Sequence[FreeResources]) -> bool:
    gpus = gpus_in(spec)
    room = next((room for room in rooms if room.free >= gpus and suits(room.node, spec)), None)
    if room is None:
        return False
    room.free -= gpus
    return True


def nodes_for(pod_specs: Iterable[Json], node: Node, gpus: int) -> int | None:
    """How many nodes of this kind the pods need; None where one of them fits no such node, however empty."""
    added: list[FreeResources] = []
    for spec in pod_specs:
        if not _take(spec, added):
            added.append(FreeResources(node=node, free=gpus))
            if not _take(spec, added[-1:]):
                return None
    return len(added)
