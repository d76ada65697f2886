"""Objects of MultiKueue, of Open Cluster Management, and our own ClusterOffer, by the laws of `core.py`."""

from datetime import datetime

from msgspec import Raw

from scaler.kube.objects.core import ConditionedStatus, NameRef, ObjectMeta, Struct
from scaler.kube.objects.kueue_workloads import PodSet

# ------------------------------------------------------------------------------------------------------- MultiKueue


class MultiKueueConfigSpec(Struct, frozen=True):
    clusters: tuple[str, ...] = ()
    """Names of MultiKueueClusters, in the order of preference."""


class MultiKueueConfig(Struct, frozen=True):
    metadata: ObjectMeta
    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()


class KubeConfigSource(Struct, frozen=True):
    location: str = ""
    """Name of a Secret in Kueue's namespace with the key `kubeconfig`, or a path in Kueue's container."""
    location_type: str = "Secret"


class ClusterSource(Struct, frozen=True):
    """Exactly one of both."""

    kube_config: KubeConfigSource | None = None
    cluster_profile_ref: NameRef | None = None


class MultiKueueClusterSpec(Struct, frozen=True):
    cluster_source: ClusterSource = ClusterSource()


class MultiKueueCluster(Struct, frozen=True):
    metadata: ObjectMeta
    spec: MultiKueueClusterSpec = MultiKueueClusterSpec()
    status: ConditionedStatus = ConditionedStatus()


# ---------------------------------------------------------------- Open Cluster Management, and multicluster.x-k8s.io


class ClusterDecision(Struct, frozen=True):
    cluster_name: str = ""
    """Name of a ManagedCluster."""
    cluster_profile_ref: NameRef = NameRef()


class PlacementDecisionStatus(Struct, frozen=True):
    decisions: tuple[ClusterDecision, ...] = ()


class PlacementDecision(Struct, frozen=True):
    """A part of a Placement's decisions, at most 100; a Placement has as many of these as it needs, by their label.

    In Open Cluster Management the status has them and a Placement is known by its name; in `multicluster.x-k8s.io` they
    stand beside the metadata, the decision is known by its key, and one that is whole may go by its own name.
    """

    metadata: ObjectMeta
    decisions: tuple[ClusterDecision, ...] = ()
    status: PlacementDecisionStatus = PlacementDecisionStatus()

    @property
    def clusters(self) -> frozenset[str]:
        """Names of ManagedClusters and ClusterProfiles."""
        found = (*self.decisions, *self.status.decisions)
        return frozenset(each.cluster_name or each.cluster_profile_ref.name for each in found) - {""}


class ScoreCoordinate(Struct, frozen=True):
    type: str = "BuiltIn"
    """BuiltIn or AddOn: an AddOnPlacementScore."""


class PrioritizerConfig(Struct, frozen=True):
    score_coordinate: ScoreCoordinate = ScoreCoordinate()


class PrioritizerPolicy(Struct, frozen=True):
    configurations: tuple[PrioritizerConfig, ...] = ()


class PlacementSpec(Struct, frozen=True):
    number_of_clusters: int | None = None
    """The number of clusters to select; None: all that meet its requirements."""
    prioritizer_policy: PrioritizerPolicy = PrioritizerPolicy()


class ClusterPlacement(Struct, frozen=True):
    """A Placement."""

    metadata: ObjectMeta
    spec: PlacementSpec = PlacementSpec()

    @property
    def chooses_by_scores(self) -> bool:
        """Whether AddOnPlacementScores decide which clusters it leaves out."""
        coordinates = (each.score_coordinate for each in self.spec.prioritizer_policy.configurations)
        return self.spec.number_of_clusters is not None and any(each.type == "AddOn" for each in coordinates)


# ------------------------------------------------------------------------------------------------------ ClusterOffer


class OfferRequest(Struct, frozen=True, omit_defaults=True):
    """What a Workload of the hub requests that is not here."""

    queue_name: str = ""
    priority: int = 0
    created_at: datetime | None = None
    pod_sets: tuple[PodSet, ...] = ()


class OfferPolicy(Struct, frozen=True, omit_defaults=True):
    """The policy by which the GPUs of a Workload are judged."""

    idle_after: str = ""
    warm_up: str = ""
    active_above: float | None = None
    gpus: str = ""


class OfferedWorkload(Struct, frozen=True, omit_defaults=True):
    """A Workload that the hub asks about, or has dispatched here."""

    namespace: str
    name: str
    uid: str
    """Uid of the hub's object."""
    reclaim: bool = False
    """Whether idle workloads of this cluster may be suspended for it; at most one cluster has this."""
    nominated_at: datetime | None = None
    request: OfferRequest | None = None
    policy: OfferPolicy | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class ClusterOfferSpec(Struct, frozen=True):
    workloads: tuple[OfferedWorkload, ...] = ()


class FlavorOffer(Struct, frozen=True, omit_defaults=True):
    name: str
    resource: str
    models: tuple[str, ...] = ()
    nominal: int = 0
    free: int = 0
    """What a Workload could get now, borrowing included."""
    idle: int = 0
    reclaimable: int = 0


class LargestGang(Struct, frozen=True):
    """GPUs of the largest gang of pods with one GPU each."""

    now: int = 0
    after_reclaim: int = 0


class ClusterQueueOffer(Struct, frozen=True):
    name: str
    flavors: tuple[FlavorOffer, ...] = ()
    largest_gang: LargestGang = LargestGang()


class WorkloadOffer(Struct, frozen=True, omit_defaults=True):
    """What the worker says about one Workload of the spec: how it fits, or how it runs."""

    namespace: str
    name: str
    uid: str
    fit: str = ""
    """Free, Reclaim, Nodes, Wait, Never or Unknown; empty where that was not asked."""
    cost: int | None = None
    """Cost of the plan, in thousandths."""
    victims: tuple[str, ...] = ()
    free_after: int | None = None
    """GPUs that remain free in its ClusterQueue once it has started."""
    message: str = ""
    verdict: str = ""
    """Idle, Busy or Unknown; empty where that was not asked."""
    reason: str = ""
    verdict_message: str = ""
    judged_by: OfferPolicy | None = None
    idle_since: datetime | None = None
    idle_at_least: bool = False
    """Whether that is a bound."""
    running_since: datetime | None = None
    """The time since which all of its GPU pods run; None where one does not."""
    gpus: int = 0
    evidence: tuple[Raw, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class ClusterOfferStatus(Struct, frozen=True):
    observed_generation: int = 0
    observed_at: datetime | None = None
    valid_until: datetime | None = None
    message: str = ""
    """Why nothing is known; empty where it is."""
    cluster_queues: tuple[ClusterQueueOffer, ...] = ()
    workloads: tuple[WorkloadOffer, ...] = ()


class ClusterOffer(Struct, frozen=True):
    """A worker's offer, in its own API; the hub's dispatcher writes the spec, and the worker's leader the status."""

    metadata: ObjectMeta
    spec: ClusterOfferSpec = ClusterOfferSpec()
    status: ClusterOfferStatus = ClusterOfferStatus()
