"""Which clusters may take a Workload, and why may the others not?

By the first row that applies:

| the MultiKueueCluster                                       | obstacle         |
|-------------------------------------------------------------|------------------|
| is not named in the MultiKueueConfig of the AdmissionCheck  | `NotInConfig`    |
| is named there, and does not exist                          | `NoSuchCluster`  |
| is not Active: Kueue does not reach it                      | `NotActive`      |
| is not among the decisions of the Placement, if one is named | `NotInPlacement` |
| otherwise                                                   | none: a candidate |

Kueue accepts a nomination of a cluster that does not exist, and says so only in its log; so names are checked here.

A Placement decides on ManagedClusters, whose names are not those of MultiKueueClusters. Which one a MultiKueueCluster
leads to, its source says: the name of its ClusterProfile; or that of its Secret, which Open Cluster Management's addon
for Kueue calls `multikueue-<ManagedCluster>`; otherwise its own name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_OF_THE_ADDON = "multikueue-"


class ClusterObstacle(StrEnum):
    """Why a cluster cannot be nominated."""

    NOT_IN_CONFIG = "NotInConfig"
    NO_SUCH_CLUSTER = "NoSuchCluster"
    NOT_ACTIVE = "NotActive"
    NOT_IN_PLACEMENT = "NotInPlacement"
    NEVER_FITS = "NeverFits"
    """Its own answer: the Workload exceeds all of its quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCluster:
    """A MultiKueueCluster."""

    name: str
    managed_cluster: str
    is_active: bool
    message: str = ""
    """The message of its condition Active."""
    inactive_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChoice:
    """What a Placement has decided."""

    name: str
    """As `namespace/name`."""
    clusters: frozenset[str] = frozenset()
    """Names of ManagedClusters."""
    problem: str = ""
    """Why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEligibility:
    """Whether a cluster may be nominated."""

    cluster: str
    order: int
    """Its place in the MultiKueueConfig."""
    obstacle: ClusterObstacle | None = None
    why: str = ""
    """In words, where there is an obstacle."""


def managed_cluster_name(cluster: str, *, profile: str = "", secret: str = "") -> str:
    """The ManagedCluster that a MultiKueueCluster leads to, by the names in its source."""
    if profile:
        return profile
    named = secret.removeprefix(_OF_THE_ADDON)
    return named if named != secret else cluster


def eligibilities(
    config: str,
    named: Sequence[str] | None,
    clusters: Mapping[str, HubCluster],
    placement: PlacementChoice | None = None,
) -> tuple[ClusterEligibility, ...]:
    """Every cluster that is named or exists: in the order of the MultiKueueConfig, then the others by name.

    `named` are the clusters of the MultiKueueConfig called `config`; None where that does not exist.
    """
    inside = [_named(place, name, clusters.get(name), placement) for place, name in enumerate(named or ())]
    missing = f"is not in MultiKueueConfig {config}" if named is not None else f"MultiKueueConfig {config} is missing"
    outside = [
        ClusterEligibility(cluster=name, order=len(inside), obstacle=ClusterObstacle.NOT_IN_CONFIG, why=missing)
        for name in sorted(clusters.keys() - {*(named or ())})
    ]
    return (*inside, *outside)


def _named(order: int, name: str, cluster: HubCluster | None, placement: PlacementChoice | None) -> ClusterEligibility:
    obstacle, why = _obstacle(cluster, placement)
    return ClusterEligibility(cluster=name, order=order, obstacle=obstacle, why=why)


def _obstacle(cluster: HubCluster | None, placement: PlacementChoice | None) -> tuple[ClusterObstacle | None, str]:
    if cluster is None:
        return ClusterObstacle.NO_SUCH_CLUSTER, "there is no MultiKueueCluster of that name"
    if not cluster.is_active:
        return ClusterObstacle.NOT_ACTIVE, f"the MultiKueueCluster is not Active: {cluster.message or 'not connected'}"
    if placement is not None and cluster.managed_cluster not in placement.clusters:
        decided = placement.problem or f"has not decided for ManagedCluster {cluster.managed_cluster}"
        return ClusterObstacle.NOT_IN_PLACEMENT, f"Placement {placement.name} {decided}"
    return None, ""
