"""Do so many pods fit, and if not, how many more nodes do they need? Counted as the scheduler here places them: in
their order, each on the first node that has room. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaler.embedded.kinds import Json
from scaler.embedded.kubelet.devices import gpus_in
from scaler.embedded.kubelet.placement import Node, suits


@dataclass(kw_only=True)
class Room:
    """What a node has left, counted down while pods are packed."""

    node: Node
    free: int


def pack(pod_specs: Iterable[Json], rooms: Sequence[Room]) -> list[Json]:
    """The pods that find no room. Those that do, take it."""
    return [spec for spec in pod_specs if not _take(spec, rooms)]


def _take(spec: Json, rooms: Sequence[Room]) -> bool:
    gpus = gpus_in(spec)
    room = next((room for room in rooms if room.free >= gpus and suits(room.node, spec)), None)
    if room is None:
        return False
    room.free -= gpus
    return True


def nodes_for(pod_specs: Iterable[Json], node: Node, gpus: int) -> int | None:
    """How many nodes of this kind the pods need; None where one of them fits no such node, however empty."""
    added: list[Room] = []
    for spec in pod_specs:
        if not _take(spec, added):
            added.append(Room(node=node, free=gpus))
            if not _take(spec, added[-1:]):
                return None
    return len(added)
