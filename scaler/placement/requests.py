"""Gangs that request nodes, and what they get: the values of `reservations`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from scaler.placement.capacity import Capacity, PodPlacement
from scaler.placement.node_index import NodeDemand
from scaler.placement.shortage import Misfit

_SHOWN = 3
"""Names in a message."""
_NO_PINS: Mapping[str, "NodePin"] = MappingProxyType({})
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """A gang that has quota, and what it still needs of the nodes."""

    key: str
    """`namespace/name`."""
    uid: str
    demands: tuple[NodeDemand, ...]
    """What the pods demand that are not on a node yet."""
    at: datetime
    """When its quota was reserved."""
    is_booked: bool = False
    """Whether a ProvisioningRequest has booked capacity for it."""
    awaits_nodes: bool = False
    """Whether nodes are being provisioned for what it lacks, and are not late."""
    waits_for_pods: bool = False
    """Whether it keeps its nodes and is not released yet: pods whose quota it got have not terminated."""
    may_ask: bool = False
    """Whether nodes may be provisioned; only then it is counted which pods lack them."""
    pin_label: str = ""
    """The node label by which it may be pinned to its nodes; empty where it may not."""

    @property
    def turn(self) -> tuple[bool, datetime, str]:
        return not self.is_booked, self.at, self.uid


@dataclass(frozen=True, slots=True)
class NodePin:
    """A node label to which the pods of a PodSet are pinned."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    placements: tuple[PodPlacement, ...]
    pins: Mapping[str, NodePin] = field(default_factory=lambda: _NO_PINS)
    """The pins by PodSet."""

    @property
    def message(self) -> str:
        """`fits whole: 2 pods on 2 nodes (a, b)`."""
        pods, nodes = sum(each.pods for each in self.placements), dict.fromkeys(each.node for each in self.placements)
        if not pods:
            return "all of its pods are on nodes"
        return f"fits whole: {_count(pods, 'pod')} on {_count(len(nodes), 'node')} ({listed(nodes)})"


class BlockedReason(StrEnum):
    """What a gang that would fit waits for."""

    PODS_ENDING = "PodsEnding"
    """It fits once the terminating pods have ended."""
    RESERVED_FOR_EARLIER = "ReservedForEarlierWorkload"
    """It fits, but one that reserved quota earlier needs the nodes."""
    PODS_COMING = "PodsComing"
    """It fits, but pods of others are not scheduled yet and may take its nodes."""
    NOT_GUARANTEED = "PlacementNotGuaranteed"
    """All its pods fit in only one arrangement, which kube-scheduler may not choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    why: BlockedReason
    placements: tuple[PodPlacement, ...] = ()
    """The nodes on which it would fit then."""
    others: tuple[str, ...] = ()
    """Keys of the gangs that it waits for."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.node for each in self.placements))

    @property
    def message(self) -> str:
        match self.why:
            case BlockedReason.PODS_ENDING:
                return f"fits once pods have terminated on {listed(self.nodes)}"
            case BlockedReason.RESERVED_FOR_EARLIER:
                return f"fits, but its nodes are reserved for {listed(self.others)}, which reserved quota earlier"
            case BlockedReason.PODS_COMING:
                others = listed(self.others) or "others"
                return f"fits, but pods of {others} are not scheduled yet and may take the same nodes"
            case BlockedReason.NOT_GUARANTEED:
                return (
                    "all pods fit in only one arrangement, which kube-scheduler may not choose; waiting for more free "
                    "capacity (or set spec.pin of the ReclaimPolicy)"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Insufficient:
    because: Misfit
    missing: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """The pods of each PodSet that do not fit when as many as possible do; counted where it matters."""

    @property
    def message(self) -> str:
        return self.because.message


PlacementResult = Fits | Blocked | Insufficient


@dataclass(frozen=True, kw_only=True)
class ReservationQueue:
    """All gangs that request nodes, and what nodes have free."""

    capacity: Capacity
    held: tuple[PlacementRequest, ...] = ()
    """Requests of gangs that were released, for pods that are not scheduled yet."""
    evicted: tuple[PlacementRequest, ...] = ()
    """Requests of gangs that wait once more, for pods from before their eviction that may still be scheduled."""
    waiting: tuple[PlacementRequest, ...] = ()
    overdue: tuple[PodPlacement, ...] = ()
    """What pods hold that are stuck in termination: they are not expected to end."""

    @property
    def in_order(self) -> list[PlacementRequest]:
        return sorted(self.waiting, key=lambda request: request.turn)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
