"""Our own objects (idlegpu.io/v1alpha1), by the laws of `core.py`, with the defaults of their definitions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, field

from scaler.idleness.policy import FIELDS, LIMIT, PER_PERIOD
from scaler.idleness.policy_fields import DAY_TIMES, HOURS, NAMES, NUMBER, YES_OR_NO, Kind
from scaler.kube.objects.core import Condition, ConditionedStatus, NameRef, ObjectMeta, Struct
from scaler.kube.objects.kueue_queues import LabelSelector

# ------------------------------------------------------------------------------------------------- ScalableWorkload


class JobRef(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class ScalableWorkloadSpec(Struct, frozen=True):
    replicas: int = 1
    workload_ref: NameRef | None = None
    job_ref: JobRef | None = None
    actuator: str = "KEDA"
    """Who changes `replicas`: KEDA, or Direct for the leader itself; None for one that only has a status."""
    trigger_metadata: dict[str, str] = field(default_factory=dict)
    """What a ScaledObject's trigger would say, of one that is scaled directly."""


class GrantStatus(Struct, frozen=True):
    """The plan that may take the workload for a gang that waits."""

    plan: str = ""
    workload: str = ""
    """`namespace/name` of the gang's Workload."""
    workload_uid: str = field(default="", name="workloadUID")
    victims: tuple[str, ...] = ()
    granted_at: datetime | None = None
    expires_at: datetime | None = None
    seeks: str = "Quota"
    check: str = ""
    """Name of the AdmissionCheck that holds the gang back, of a plan for nodes."""


class ReallocationStatus(Struct, frozen=True):
    """The whereabouts of the GPUs that the workload gave up for a gang."""

    plan: str = ""
    workload: str = ""
    gpus: int = 0
    stage: str = ""
    reclaimable_at: datetime | None = None
    releasing_at: datetime | None = None
    available_at: datetime | None = None
    reserved_at: datetime | None = None
    admitted_at: datetime | None = None
    ended_at: datetime | None = None
    wasted_gpu_seconds: int = 0
    times: int = 0
    """How often plans have suspended the workload, this one included."""


class BeforeSuspendStatus(Struct, frozen=True):
    """The last run of the hook that has to end before the workload is suspended."""

    hook: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str = ""
    message: str = ""
    saved_at: datetime | None = None


class Mark(Struct, frozen=True):
    """The newest line of a history that a notification target has accepted a message of, and when it has."""

    at: datetime
    state: str
    delivered_at: datetime


class ScalableWorkloadStatus(Struct, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    selector: str = ""
    workload_name: str = ""
    workload_uid: str = field(default="", name="workloadUID")
    phase: str = ""
    verdict: str = ""
    reason: str = ""
    message: str = ""
    idle_since: datetime | None = None
    idle_at_least: bool = False
    """Whether that is a bound: of the time before it is not known."""
    warned_at: datetime | None = None
    suspend_at: datetime | None = None
    suspended_at: datetime | None = None
    resumed_at: datetime | None = None
    keep_until: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    evidence: tuple[Raw, ...] = ()
    """The evidence by GPU, as it stands in the API: only its writer passes it on."""
    state: str = ""
    history: tuple[Raw, ...] = ()
    """The states before, the newest last, as they stand in the API."""
    notified: dict[str, Mark] = field(default_factory=dict)
    """The line up to which each notification target has notified its owner."""
    before_suspend: BeforeSuspendStatus | None = None
    grant: GrantStatus | None = None
    reallocation: ReallocationStatus | None = None


class ScalableWorkload(Struct, frozen=True):
    """A workload that the leader suspends; a record with actuator None: the status of what a ScaledObject scales."""

    metadata: ObjectMeta
    spec: ScalableWorkloadSpec = ScalableWorkloadSpec()
    status: ScalableWorkloadStatus = ScalableWorkloadStatus()

    @property
    def is_record(self) -> bool:
        return self.spec.actuator == "None"


# --------------------------------------------------------------------------------------------------- ReclaimPolicy


class ReuseSpec(Struct, frozen=True):
    enabled: bool = True


class PinSpec(Struct, frozen=True):
    enabled: bool = False
    node_label: str = "kubernetes.io/hostname"


class NodeSelectorFromDetail(Struct, frozen=True):
    key: str = ""
    value_from_provisioning_class_detail: str = ""


class PodSetUpdates(Struct, frozen=True):
    node_selector: tuple[NodeSelectorFromDetail, ...] = ()


class RetryStrategy(Struct, frozen=True):
    limit: int = 3
    base: str = "60s"
    max: str = "30m"


class ProvisioningSpec(Struct, frozen=True):
    class_name: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    managed_resources: tuple[str, ...] = ()
    amount: str = "Gang"
    pod_set_merge_policy: str = ""
    pod_set_updates: PodSetUpdates = PodSetUpdates()
    after: str = "0s"
    withdraw: str = "WhenFree"
    retry: RetryStrategy = RetryStrategy()
    at_limit: str = "Hold"
    on_capacity_revoked: str = "Evict"


class ReclaimPolicySpec(Struct, frozen=True):
    wait_for_pods_gone: bool = True
    require_fit: bool = True
    reuse: ReuseSpec = ReuseSpec()
    pin: PinSpec = PinSpec()
    provisioning: ProvisioningSpec | None = None


class ReclaimPolicy(Struct, frozen=True):
    metadata: ObjectMeta
    spec: ReclaimPolicySpec = ReclaimPolicySpec()
    status: ConditionedStatus = ConditionedStatus()


# ------------------------------------------------------------------------------- IdlePolicy and ClusterIdlePolicy


class JobSelector(Struct, frozen=True):
    namespaces: LabelSelector | None = None
    """Namespaces by their labels, for a ClusterIdlePolicy only."""
    kinds: tuple[str, ...] = ()
    labels: LabelSelector | None = None
    queues: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()


class JobExclusion(JobSelector, frozen=True):
    until: datetime | None = None
    reason: str = ""


class WeeklyHours(Struct, frozen=True):
    """Hours on some days of the week, or a time of day."""

    days: tuple[str, ...] = ()
    begin: str = field(default="00:00", name="from")
    to: str = "24:00"
    time: str = ""
    """The time of day, in place of both."""
    time_zone: str = ""

    def __str__(self) -> str:
        """The period as trigger metadata writes it."""
        days = f"{','.join(self.days)} " if self.days else ""
        return f"{days}{self.time or f'{self.begin}-{self.to}'} {self.time_zone}"


class PerPeriodLimit(Struct, frozen=True):
    count: int | str = 0
    period: str = ""

    def __str__(self) -> str:
        """The limit as trigger metadata writes it."""
        return f"{self.count} per {self.period}"


_JSON: Mapping[Kind, Any] = {
    LIMIT: int | str,
    NUMBER: int,
    YES_OR_NO: bool,
    NAMES: tuple[str, ...],
    HOURS: tuple[WeeklyHours, ...],
    DAY_TIMES: tuple[WeeklyHours, ...],
    PER_PERIOD: PerPeriodLimit,
}
"""What is no text in the spec."""


def _struct(name: str, given: Mapping[str, Any]) -> Any:
    """A struct with these fields; what is left out is None, and a text empty."""
    fields = [(key, kind, "") if kind is str else (key, kind | None, None) for key, kind in given.items()]
    return msgspec.defstruct(name, fields, bases=(msgspec.Struct,), frozen=True, kw_only=True, gc=False)


def _fields_of_policies() -> Any:
    below: dict[str, dict[str, Any]] = {"": {}}
    for each in FIELDS.values():
        for *above, name in [each.place] * bool(each.place):
            below.setdefault("".join(above), {})[name] = _JSON.get(each.kind, str)
    return _struct("Fields", below.pop("") | {name: _struct(name, given) for name, given in below.items()})


_PolicyFields = _fields_of_policies()


class IdlePolicySpec(_PolicyFields, frozen=True, rename="camel", kw_only=True):  # type: ignore[misc, call-arg, valid-type]
    """The spec of a policy, with the fields of the definitions beside these; None for what the policy does not say."""

    precedence: int = 0
    selector: JobSelector = JobSelector()
    exclude: tuple[JobExclusion, ...] = ()
    notify: tuple[str, ...] = ()
    actuator: str = ""


class IdlePolicyStatus(Struct, frozen=True):
    """All of it but its conditions."""

    observed_generation: int = 0
    matched: int = 0
    attached: int = 0
    excluded: int = 0
    suspended: int = 0
    conflicts: int = 0
    conflicting: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class IdlePolicy(Struct, frozen=True):
    """A ClusterIdlePolicy is one without a namespace."""

    metadata: ObjectMeta
    spec: IdlePolicySpec = IdlePolicySpec()
    status: IdlePolicyStatus = IdlePolicyStatus()


class ClusterIdlePolicy(IdlePolicy, frozen=True):
    """The policy of all namespaces, a type of its own for code that reads both kinds."""
