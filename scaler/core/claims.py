"""A gang's claim on nodes, and what became of it: the values of `promises`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from scaler.core.placement import Demand, Misfit, Seat, Unproven

_SHOWN = 3
"""Names in a message."""
_NO_PINS: Mapping[str, "Pin"] = MappingProxyType({})
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A gang that has quota, and what it still needs of the nodes."""

    key: str
    """`namespace/name`."""
    uid: str
    demands: tuple[Demand, ...]
    """Of the pods that are not on a node yet."""
    at: datetime
    """When its quota was reserved."""
    is_booked: bool = False
    """Whether a ProvisioningRequest has booked capacity for it."""
    awaits_nodes: bool = False
    """Whether nodes are on their way for what it lacks, and are not late."""
    waits_for_pods: bool = False
    """Whether it keeps its places, and is not let go yet: pods of those that gave up quota for it have not ended."""
    may_ask: bool = False
    """Whether nodes may be asked for; only then it is counted which pods lack them."""
    pin_label: str = ""
    """The node label by which it may be tied to its places; empty where it may not."""

    @property
    def turn(self) -> tuple[bool, datetime, str]:
        """Its place in line."""
        return not self.is_booked, self.at, self.uid


@dataclass(frozen=True, slots=True)
class Pin:
    """A label by which a PodSet is tied to the nodes of its places."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """It is promised places for all of its pods."""

    seats: tuple[Seat, ...]
    pins: Mapping[str, Pin] = field(default_factory=lambda: _NO_PINS)
    """By PodSet."""

    @property
    def message(self) -> str:
        """`fits whole: 2 pods on 2 nodes (a, b)`."""
        pods, nodes = sum(seat.pods for seat in self.seats), dict.fromkeys(seat.node for seat in self.seats)
        if not pods:
            return "all of its pods are on nodes"
        return f"fits whole: {_count(pods, 'pod')} on {_count(len(nodes), 'node')} ({listed(nodes)})"


class Why(StrEnum):
    """What a gang that would fit waits for."""

    PODS_ENDING = "PodsEnding"
    """It fits once pods have ended that end now."""
    GANGS_BEFORE = "GangsBefore"
    """It fits, but one that has waited longer needs the places."""
    PODS_COMING = "PodsComing"
    """It fits, but pods of others are on their way and may take its places."""
    SCATTERED = "OnlyOneWayToFit"
    """It fits only if every pod goes where it must, which nobody can promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """It would fit, and waits for something that passes."""

    why: Why
    seats: tuple[Seat, ...] = ()
    """Where it would fit then."""
    others: tuple[str, ...] = ()
    """Keys of the gangs that it waits for."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(seat.node for seat in self.seats))

    @property
    def message(self) -> str:
        match self.why:
            case Why.PODS_ENDING:
                return f"fits once pods have ended on {listed(self.nodes)}"
            case Why.GANGS_BEFORE:
                return f"fits, but would delay {listed(self.others)}, which got quota first"
            case Why.PODS_COMING:
                return f"fits, but pods of {listed(self.others) or 'others'} are on their way to the same nodes"
            case Why.SCATTERED:
                return (
                    "fits only if every pod goes to one certain node, which the scheduler does not know; it waits for "
                    "more room (spec.pin of the ReclaimPolicy can tie pods to nodes)"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """It does not fit, and nothing that ends now changes that."""

    because: Misfit | Unproven
    missing: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """By PodSet, the pods for which there is no place when as many as possible have one; counted where it matters."""

    @property
    def message(self) -> str:
        return self.because.message


Verdict = Seated | Waits | Lacks


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
