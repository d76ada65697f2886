"""What a search for flavors comes to, as values: the assignment, and what stood in the way of others.

An assignment fits, or fits after preemptions, or does not fit. Its shortfalls say what every flavor lacked that was
tried and was not enough: "4 more needed" is `lacking == 4`.

Source: Kueue, pkg/scheduler/flavorassigner/flavorassigner.go (Assignment, PodSetAssignment, FlavorAssignmentMode).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from scaler.core.quota.amounts import FlavorResource, Usage
from scaler.core.quota.demands import PODS, PodSetDemand
from scaler.core.quota.model import PodSetAssignment


class Mode(IntEnum):
    """What an assignment needs before the Workload can be admitted with it; of several PodSets the lowest counts."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED_FIT = 2
    """It fits once preemptions for others, asked for in the same cycle, are complete."""
    FIT = 3


class Obstacle(StrEnum):
    """Why a Workload waits: Kueue's reasons of the condition QuotaReserved=False.

    Assignments have the first three only.
    """

    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    WAITING_FOR_PREEMPTED_WORKLOADS = "WaitingForPreemptedWorkloads"
    PENDING_EVALUATION = "PendingEvaluation"
    MISCONFIGURED = "Misconfigured"


_SEVERITIES = {Obstacle.WAITING_FOR_QUOTA: 1, Obstacle.EXCEEDS_MAX_QUOTA: 2, Obstacle.NO_MATCHING_FLAVOR: 3}


def severity(obstacle: Obstacle | None) -> int:
    """How bad it is, as an obstacle of an assignment; that of none is 0."""
    return 0 if obstacle is None else _SEVERITIES[obstacle]


class Shortfall(NamedTuple):
    """What one flavor lacks for one PodSet."""

    pod_set: str
    flavor: str
    obstacle: Obstacle
    resource: str = ""
    wanted: int = 0
    """With what PodSets before this one would take."""
    available: int = 0
    """What there is now; of what exceeds the quota, the most that there could ever be."""
    detail: str = ""
    """Why the pods may not use the flavor."""

    @property
    def lacking(self) -> int:
        """How much more is needed."""
        return max(0, self.wanted - self.available)


Tried = tuple[Mapping[int, int], ...]
"""For every PodSet the last flavor tried by resource group, where there are more; empty where all were tried."""

NOTHING_TRIED: Tried = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The flavors of one PodSet."""

    pods: PodSetDemand
    flavors: Mapping[str, str]
    """By resource."""
    contested: frozenset[FlavorResource]
    """Where it fits only after preemptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The flavors that a Workload would get."""

    mode: Mode
    borrows: int
    """Height of the smallest subtree whose quota it would use; 0 where it stays within its queue's own."""
    usage: Usage
    choices: tuple[Choice, ...]
    tried: Tried
    shortfalls: tuple[Shortfall, ...] = ()
    obstacle: Obstacle | None = None
    """Of one that does not fit."""

    @property
    def contested(self) -> frozenset[FlavorResource]:
        return frozenset[FlavorResource]().union(*(choice.contested for choice in self.choices))

    @property
    def claim(self) -> dict[FlavorResource, int]:
        """What has to be freed for it. Kueue does not count `pods` here."""
        return {key: amount for key, amount in self.usage.items() if amount and key.resource != PODS}

    @property
    def pod_sets(self) -> tuple[PodSetAssignment, ...]:
        """As it will stand in the Workload's status."""
        return tuple(
            PodSetAssignment(
                name=choice.pods.name,
                count=choice.pods.count,
                flavors=choice.flavors,
                usage={resource: choice.pods.requests[resource] for resource in choice.flavors},
            )
            for choice in self.choices
        )

    @property
    def pins(self) -> tuple[Mapping[str, str], ...]:
        """For every PodSet its flavors by resource, to which another search in the same cycle is held."""
        return tuple(choice.flavors for choice in self.choices)
