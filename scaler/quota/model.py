"""Kueue's objects as far as quota depends on them: queues, cohorts, flavors and Workloads, as values.

A Workload here is what the scheduler keeps of one: what it asks for, how it stands in its queue, and the reservation
that it holds, if any. One that is deactivated or finished holds nothing and waits for nothing: it is not in a snapshot.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, NamedTuple
from weakref import WeakValueDictionary

from scaler.kube.objects.quantity import Requests
from scaler.kube.scheduling import ANYWHERE, NodeSelection, Selector, Taint, Toleration

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
PROVISIONING = "kueue.x-k8s.io/provisioning-request"
"""Controllers of AdmissionChecks that cannot be combined at will."""

EMPTY: Mapping[str, str] = MappingProxyType({})


class FlavorResource(NamedTuple):
    """What quota is counted in: one resource of one flavor."""

    flavor: str
    resource: str

    def __str__(self) -> str:
        return f"{self.flavor}/{self.resource}"


Usage = Mapping[FlavorResource, int]
"""Amounts by flavor and resource."""


class QueueingStrategy(StrEnum):
    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class StopPolicy(StrEnum):
    """The policy by which a ClusterQueue or LocalQueue is stopped. Draining also evicts what runs."""

    NONE = "None"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"


class PreemptionPolicy(StrEnum):
    """Which Workloads may be preempted, by priority."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    ANY = "Any"


class FungibilityPolicy(StrEnum):
    """`flavorFungibility.whenCanBorrow` and `whenCanPreempt`."""

    MAY_STOP = "MayStopSearch"
    TRY_NEXT = "TryNextFlavor"


class Preference(StrEnum):
    """`flavorFungibility.preference`."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    name: str
    node_labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str = ""
    """Name of its Topology; Workloads on such a flavor are placed by topology-aware scheduling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of one flavor resource in one queue or cohort. A limit of None is no limit."""

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaResourceGroup:
    """Resources that one flavor serves together, and the flavors in the order in which they are tried."""

    resources: frozenset[str]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fungibility:
    when_can_borrow: FungibilityPolicy = FungibilityPolicy.MAY_STOP
    when_can_preempt: FungibilityPolicy = FungibilityPolicy.TRY_NEXT
    preference: Preference = Preference.BORROWING_OVER_PREEMPTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    within_cluster_queue: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within_cohort: PreemptionPolicy = PreemptionPolicy.NEVER
    """NEVER or LOWER_PRIORITY."""
    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaCohort:
    """A Cohort object, or one that exists only as a name."""

    name: str
    parent: str = ""
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=lambda: MappingProxyType({}))
    fair_weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaClusterQueue:
    name: str
    cohort: str = ""
    groups: tuple[QuotaResourceGroup, ...] = ()
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=lambda: MappingProxyType({}))
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    namespace_selector: Selector | None = None
    """The namespaces that may use it; None matches none, a Selector without requirements every one."""
    fungibility: Fungibility = Fungibility()
    preemption: Preemption = Preemption()
    stop_policy: StopPolicy = StopPolicy.NONE
    inactive_because: str = ""
    """Kueue's reason why the queue admits nothing (a check or a flavor is missing); empty where it is active."""
    fair_weight: float = 1.0
    checks: frozenset[str] = frozenset()
    """Names of the AdmissionChecks that its Workloads have to pass."""
    check_flavors: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    """The flavors of each check that is for Workloads with certain flavors only."""

    @property
    def schedules(self) -> bool:
        """Whether the scheduler sees the queue at all."""
        return self.stop_policy is StopPolicy.NONE and not self.inactive_because

    @property
    def flavors(self) -> frozenset[str]:
        return frozenset(flavor for group in self.groups for flavor in group.flavors)

    def checks_on(self, flavors: Collection[str]) -> frozenset[str]:
        """The checks that a Workload has to pass which was given these flavors.

        Source: Kueue, pkg/workload, AdmissionChecksForWorkload. One without any flavor passes none.
        """
        offered = self.flavors
        return frozenset(name for name in self.checks if not self.check_flavors.get(name, offered).isdisjoint(flavors))

    def group_of(self, resource: str) -> QuotaResourceGroup | None:
        return next((group for group in self.groups if resource in group.resources), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAdmissionCheck:
    name: str
    controller: str = ""
    active: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLocalQueue:
    namespace: str
    name: str
    cluster_queue: str
    stop_policy: StopPolicy = StopPolicy.NONE

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPodSet:
    name: str
    count: int
    requests: Requests
    """What one pod requests."""
    min_count: int | None = None
    """The fewest pods with which the gang may start (partial admission); None where all are needed."""
    nodes: NodeSelection = ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPodSetAssignment:
    """The flavors that one PodSet's quota comes from."""

    name: str
    count: int
    flavors: Mapping[str, str]
    """Flavor by resource."""
    usage: Requests
    """What all its pods use together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    cluster_queue: str
    at: datetime
    """When it was reserved: of equals, the newest is preempted first."""
    assignments: tuple[QuotaPodSetAssignment, ...]
    usage: Usage


def usage_of(assignments: tuple[QuotaPodSetAssignment, ...]) -> dict[FlavorResource, int]:
    """The quota that the assignments take together. A resource that no flavor serves takes none."""
    usage: Counter[FlavorResource] = Counter()
    for each in assignments:
        for resource, amount in each.usage.items():
            if amount and resource in each.flavors:
                usage[FlavorResource(each.flavors[resource], resource)] += amount
    return dict(usage)


class WorkloadShape:
    """What makes two Workloads the same for the scheduler. Equal ones are mostly one object, which costs less to
    compare; it is made once for a Workload and hashed once."""

    __slots__ = ("__weakref__", "_hash", "_value")
    _known: ClassVar[WeakValueDictionary[Hashable, "WorkloadShape"]] = WeakValueDictionary()

    def __init__(self, value: Hashable) -> None:
        self._value, self._hash = value, hash(value)

    @classmethod
    def of(cls, value: Hashable) -> "WorkloadShape":
        return cls._known.setdefault(value, cls(value))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, WorkloadShape) and self._value == other._value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuotaWorkload:
    """A Workload that waits for quota or holds some. Compared by identity; a changed one is another value."""

    namespace: str
    name: str
    uid: str
    queue: str
    """Its LocalQueue."""
    priority: int = 0
    """The effective one: with Kueue's priority boost where that gate is on."""
    queued_at: datetime
    """Its place among equals: when it was created, or evicted where Kueue orders by that."""
    created_at: datetime | None = None
    """Its place among equals once it is admitted again; None where that is the same."""
    pod_sets: tuple[QuotaPodSet, ...] = ()
    reservation: Reservation | None = None
    admitted: bool = False
    evicted: bool = False
    """Eviction has been asked for and is not complete: it still holds its reservation, and goes first."""
    may_queue: bool = True
    """False while a backoff runs or an eviction has not been followed by a requeue: it waits outside its queue.

    Also False of one that still holds quota and is evicted for a reason that brings it back later, if at all.
    """
    opaque_because: str = ""
    """Why its scheduling cannot be foreseen, such as a topology request; empty where it can."""
    invalid_because: str = ""
    """Why Kueue refuses it whatever quota is free, such as requests above their limits; empty where it does not."""
    generation: int = 1
    extra_shape: Hashable = field(default=())
    """What else Kueue counts when it asks whether two Workloads are alike."""
    key: str = field(init=False, repr=False)
    """`namespace/name`."""
    place: tuple[int, datetime, str] = field(init=False, repr=False)
    """Its place in the ClusterQueue where it waits: by priority, then age, then uid. The lowest is first."""
    _shape: WorkloadShape | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")
        object.__setattr__(self, "place", (-self.priority, self.queued_at, self.uid))
        object.__setattr__(self, "_shape", None)

    @property
    def held(self) -> Reservation:
        """The reservation of a Workload that is known to have one. Raises: ValueError where it has none."""
        if self.reservation is None:
            raise ValueError(f"Workload {self.key} holds no reservation")
        return self.reservation

    @property
    def requests(self) -> tuple[Requests, ...]:
        """What every PodSet asks for, all its pods together."""
        return tuple(MappingProxyType({r: a * each.count for r, a in each.requests.items()}) for each in self.pod_sets)

    @property
    def shape(self) -> WorkloadShape:
        """Equal exactly where Kueue's scheduling hash would be: priority and, of every PodSet, what it asks for.

        The namespace is no part of it. Found once. Source: Kueue, pkg/workload/workload.go (computeSchedulingHash).
        """
        if self._shape is None:
            pod_sets = tuple(map(_shape_of_pods, self.pod_sets))
            shape = WorkloadShape.of((self.priority, bool(self.opaque_because), self.extra_shape, pod_sets))
            object.__setattr__(self, "_shape", shape)
            return shape
        return self._shape


def _shape_of_pods(pods: QuotaPodSet) -> Hashable:
    return pods.name, pods.count, pods.min_count, tuple(sorted(pods.requests.items())), _shape_of_nodes(pods.nodes)


def _shape_of_nodes(nodes: NodeSelection) -> Hashable:
    return tuple(sorted(nodes.labels.items())), nodes.terms, nodes.tolerations
