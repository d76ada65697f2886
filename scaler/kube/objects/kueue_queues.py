"""The parts of Kueue's quota objects (kueue.x-k8s.io/v1beta2) that this program reads, by the laws of `core.py`.

Where the API has a default, the field has the same one: objects that an API server has not completed (in tests, in
files) mean what they would mean to Kueue.
"""

from msgspec import field

from scaler.kube.objects.core import ConditionedStatus, ObjectMeta, Quantity, SelectorRequirement, Struct
from scaler.kube.scheduling import Taint, Toleration

# ------------------------------------------------------------------------------------------------ what is in several


class ResourceQuota(Struct, frozen=True):
    name: str = ""
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(Struct, frozen=True):
    name: str = ""
    resources: tuple[ResourceQuota, ...] = ()


class ResourceGroup(Struct, frozen=True):
    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class FairSharing(Struct, frozen=True):
    weight: Quantity = 1


class LabelSelector(Struct, frozen=True):
    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


# ------------------------------------------------------------------------------------------------------ ClusterQueue


class FlavorFungibility(Struct, frozen=True):
    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str = "BorrowingOverPreemption"


class BorrowWithinCohort(Struct, frozen=True):
    policy: str = "Never"
    max_priority_threshold: int | None = None


class ClusterQueuePreemption(Struct, frozen=True):
    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()


class AdmissionCheckRule(Struct, frozen=True):
    name: str = ""
    on_flavors: tuple[str, ...] = ()
    """The flavors whose Workloads need the check; empty means all."""


class AdmissionChecksStrategy(Struct, frozen=True):
    admission_checks: tuple[AdmissionCheckRule, ...] = ()


class ClusterQueueSpec(Struct, frozen=True):
    resource_groups: tuple[ResourceGroup, ...] = ()
    cohort_name: str = ""
    queueing_strategy: str = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = None
    """The namespaces that may use it; None matches none of them, an empty selector all."""
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    preemption: ClusterQueuePreemption = ClusterQueuePreemption()
    admission_checks_strategy: AdmissionChecksStrategy = AdmissionChecksStrategy()
    stop_policy: str = "None"
    fair_sharing: FairSharing = FairSharing()


class ClusterQueue(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ConditionedStatus = ConditionedStatus()


# ------------------------------------------------------------------------------------------------------- the others


class CohortSpec(Struct, frozen=True):
    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    fair_sharing: FairSharing = FairSharing()


class Cohort(Struct, frozen=True):
    metadata: ObjectMeta
    spec: CohortSpec = CohortSpec()


class ResourceFlavorSpec(Struct, frozen=True):
    node_labels: dict[str, str] = field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class LocalQueueSpec(Struct, frozen=True):
    cluster_queue: str = ""
    stop_policy: str = "None"


class LocalQueue(Struct, frozen=True):
    metadata: ObjectMeta
    spec: LocalQueueSpec = LocalQueueSpec()


class CheckParameters(Struct, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class AdmissionCheckSpec(Struct, frozen=True):
    controller_name: str = ""
    parameters: CheckParameters | None = None


class AdmissionCheck(Struct, frozen=True):
    metadata: ObjectMeta
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: ConditionedStatus = ConditionedStatus()


class Namespace(Struct, frozen=True):
    metadata: ObjectMeta
