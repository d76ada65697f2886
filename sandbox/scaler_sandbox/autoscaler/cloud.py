"""The provider that machines are ordered from. It outlives the autoscaler: killed and started anew, that one finds what
it has ordered, and nothing is ordered twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    """Adds machines to the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._asked: dict[tuple[str, str], list[str]] = {}

    def machines_for(self, uid: str) -> list[Machine]:
        """The machines that were ordered for the request."""
        machines = self.fleet.machines.values()
        return [machine for machine in machines if machine.annotations.get(REQUEST_UID) == uid]

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


def pack(pod_specs: Iterable[Json], free_nodes: Sequence[FreeResources]) -> list[Json]:
    """The pods that fit none of these nodes. Those that do, take what they need."""
    return [spec for spec in pod_specs if not _take(spec, free_nodes)]


def _take(spec: Json, free_nodes: Sequence[FreeResources]) -> bool:
    gpus = gpus_in(spec)
    found = next((each for each in free_nodes if each.free >= gpus and suits(each.node, spec)), None)
    if found is None:
        return False
    found.free -= gpus
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
