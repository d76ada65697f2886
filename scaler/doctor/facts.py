"""Everything that a diagnosis needs, as it was read. Pure values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from scaler.decision.trigger_metadata import own_triggers, parse_metadata
from scaler.doctor.api_resources import Served
from scaler.doctor.findings import Finding, Subject, Topic, Unread
from scaler.doctor.permissions import Reviews, RuleUser
from scaler.doctor.signals import SourceSeries
from scaler.doctor.verdicts import Gpus
from scaler.idleness.policy import Overrides, Policy, resolve
from scaler.kube.objects import resources as kinds
from scaler.kube.objects.idlegpu import ClusterIdlePolicy, IdlePolicy, ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.keda import Lease, ScaledObject, Service, Trigger
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import Resource
from scaler.reclaim.planner import ReclaimConfig
from scaler.targets.workloads import NO_TARGETS, NotifyTargets

T = TypeVar("T")

TYPES_READ: Mapping[type, tuple[Resource, Topic]] = {
    AdmissionCheck: (kinds.ADMISSION_CHECK, Topic.CHECKS),
    ReclaimPolicy: (kinds.RECLAIM_POLICY, Topic.CHECKS),
    ClusterQueue: (kinds.CLUSTER_QUEUE, Topic.QUEUES),
    Cohort: (kinds.COHORT, Topic.QUEUES),
    LocalQueue: (kinds.LOCAL_QUEUE, Topic.QUEUES),
    ResourceFlavor: (kinds.RESOURCE_FLAVOR, Topic.QUEUES),
    Workload: (kinds.WORKLOAD, Topic.QUEUES),
    ScaledObject: (kinds.SCALED_OBJECT, Topic.SCALED_OBJECTS),
    ScalableWorkload: (kinds.SCALABLE_WORKLOAD, Topic.SCALED_OBJECTS),
    IdlePolicy: (kinds.IDLE_POLICY, Topic.SCALED_OBJECTS),
    ClusterIdlePolicy: (kinds.CLUSTER_IDLE_POLICY, Topic.SCALED_OBJECTS),
    Service: (kinds.SERVICE, Topic.SCALED_OBJECTS),
    Node: (kinds.NODE, Topic.CHECKS),
}
"""The objects that are listed, and under which topic it is said that they could not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    addresses: frozenset[str] = frozenset()
    """`scalerAddress` values that mean this scaler; empty: all external triggers do."""
    defaults: Overrides = Overrides()  # noqa: RUF009 - frozen
    reclaim: ReclaimConfig = ReclaimConfig()  # noqa: RUF009 - frozen
    max_window: timedelta = timedelta(hours=24)
    reconciles: bool = True
    """Whether anything is to be written: with `components: [scaler]` nothing is."""
    optional: frozenset[RuleUser] = frozenset()
    """What is on of what is off by default."""
    namespaces: tuple[str, ...] = ()
    """The only ones that are watched; empty: all are."""
    notified_by: NotifyTargets = NO_TARGETS
    """The targets that notify owners."""

    def policy_of(self, trigger: Trigger) -> Policy:
        """The policy of the trigger, with the operator's defaults. Raises: MetadataError."""
        return resolve(("settings", self.defaults), ("trigger metadata", parse_metadata(trigger.metadata)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """The objects of one kind: all of them, or those of the watched namespaces."""

    items: Sequence[T] = ()
    unreadable: Sequence[tuple[str, str]] = ()
    """`namespace/name` of those that cannot be decoded, and why."""
    hidden: Sequence[tuple[str, str]] = ()
    """Namespaces that could not be read, where they are read one by one, and why."""


ListResult: TypeAlias = Listing[T] | Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorInputs:
    version: str | Unread
    """The API server's address and what it calls itself."""
    served: Served | Unread
    listings: Mapping[type, ListResult[Any]] = field(default_factory=dict)
    """What was listed by type, as in `TYPES_READ`; Nodes are only listed where one of our AdmissionChecks needs
    them."""
    reviews: Reviews = ()
    metrics: SourceSeries | Unread = Unread("no metrics source is configured")  # noqa: RUF009 - frozen
    gpus: Gpus | Unread = Unread("pods were not read")  # noqa: RUF009 - frozen
    wanted: DoctorSettings = DoctorSettings()
    missing_namespaces: Sequence[str] = ()
    keda_leases: ListResult[Lease] = Unread("it was not asked for")  # noqa: RUF009 - frozen
    """Leases of KEDA's operators."""
    own_leases: ListResult[Lease] = Listing()
    """The Lease of this scaler, in one element; none where there is none."""

    def of(self, kind: type[T]) -> Sequence[T]:
        """The objects; none where they could not be read, which is a finding of its own."""
        found = self.listings.get(kind)
        return found.items if isinstance(found, Listing) else ()

    def has_all(self, kind: type) -> bool:
        """Whether what is not among the objects does not exist: all of them could be read, or there is no such kind."""
        found = self.listings.get(kind, Listing())
        return found.is_absent if isinstance(found, Unread) else not (found.hidden or found.unreadable)

    def own_triggers(self) -> list[tuple[ScaledObject, Trigger]]:
        """The ScaledObjects with a trigger of ours, each with its first one."""
        return [
            (each, found)
            for each in self.of(ScaledObject)
            for found in own_triggers(each.spec.triggers, self.wanted.addresses)[:1]
        ]


def unread_findings(facts: DoctorInputs) -> Iterator[Finding]:
    """What could not be read. A kind that is not served is a finding about kinds."""
    for kind, found in facts.listings.items():
        resource, topic = TYPES_READ[kind]
        if isinstance(found, Listing):
            for namespace, why in found.hidden:
                yield Subject(topic, f"all of {resource.kind} in namespace {namespace}").fail("NotRead", why)
            for name, why in found.unreadable:
                do = "correct it: what cannot be read is left out of every decision"
                yield Subject(topic, f"{resource.kind} {name}").warn("Unreadable", f"it cannot be read: {why}", do)
        elif found.is_absent:
            continue
        elif kind is Service:  # only this diagnosis reads them, and the chart's roles leave them out
            what = "Services were not read: whether addresses lead to one shows only in calls"
            yield Subject(topic).ok("NotRead", what)
        else:
            yield Subject(topic, f"all of {resource.kind}").fail("NotRead", found.reason)
