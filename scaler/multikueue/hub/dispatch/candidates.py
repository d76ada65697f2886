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

from scaler.multikueue.cluster_offer import Fit

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
    """The Placement as `namespace/name`."""
    clusters: frozenset[str] = frozenset()
    """Names of ManagedClusters."""
    problem: str = ""
    """Why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnswer:
    """What a cluster says about a Workload."""

    fit: Fit = Fit.UNKNOWN
    cost: int | None = None
    """Cost of its plan, in thousandths."""
    free_after: int | None = None
    victims: tuple[str, ...] = ()
    message: str = ""
    is_awaited: bool = False
    """Whether it has been asked and is going to answer soon."""
    is_given_away: bool = False
    """Whether the same room was given to another Workload since."""

    @property
    def is_under_way(self) -> bool:
        """Whether it fits once suspensions and evictions have ended that are under way."""
        return self.fit is Fit.RECLAIM and self.cost == 0


NO_ANSWER = ClusterAnswer(message="it was not asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOption:
    """A cluster with its answer, and why it can or cannot be nominated."""

    name: str
    order: int
    """Its place in the MultiKueueConfig."""
    obstacle: ClusterObstacle | None = None
    why: str = ""
    """The obstacle in words, where there is one."""
    answer: ClusterAnswer = NO_ANSWER

    @property
    def is_candidate(self) -> bool:
        return self.obstacle is None

    @property
    def words(self) -> str:
        """Its answer, or why it cannot be nominated."""
        answer = self.answer
        if not self.is_candidate:
            return self.why
        said = [f"cost {answer.cost / 1000:g}"] if answer.cost is not None else []
        said += [f"suspends {len(answer.victims)}"] if answer.victims else []
        said += [answer.message] if answer.message else []
        said += ["its room was given to another Workload since"] if answer.is_given_away else []
        return f"{answer.fit}: {', '.join(said)}" if said else str(answer.fit)


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
) -> tuple[ClusterOption, ...]:
    """Every cluster that is named or exists: in the order of the MultiKueueConfig, then the others by name.

    `named` are the clusters of the MultiKueueConfig called `config`; None where that does not exist.
    """
    inside = [_named(place, name, clusters.get(name), placement) for place, name in enumerate(named or ())]
    missing = f"is not in MultiKueueConfig {config}" if named is not None else f"MultiKueueConfig {config} is missing"
    outside = [
        ClusterOption(name=name, order=len(inside), obstacle=ClusterObstacle.NOT_IN_CONFIG, why=missing)
        for name in sorted(clusters.keys() - {*(named or ())})
    ]
    return (*inside, *outside)


def _named(order: int, name: str, cluster: HubCluster | None, placement: PlacementChoice | None) -> ClusterOption:
    obstacle, why = _obstacle(cluster, placement)
    return ClusterOption(name=name, order=order, obstacle=obstacle, why=why)


def _obstacle(cluster: HubCluster | None, placement: PlacementChoice | None) -> tuple[ClusterObstacle | None, str]:
    if cluster is None:
        return ClusterObstacle.NO_SUCH_CLUSTER, "there is no MultiKueueCluster of that name"
    if not cluster.is_active:
        return ClusterObstacle.NOT_ACTIVE, f"the MultiKueueCluster is not Active: {cluster.message or 'not connected'}"
    if placement is not None and cluster.managed_cluster not in placement.clusters:
        decided = placement.problem or f"has not decided for ManagedCluster {cluster.managed_cluster}"
        return ClusterObstacle.NOT_IN_PLACEMENT, f"Placement {placement.name} {decided}"
    return None, ""
