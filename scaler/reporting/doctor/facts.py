"""Everything that a diagnosis needs, as it was read, and the findings that follow. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from scaler.admission.workload import is_ours
from scaler.decision.workloads import group_of, owner_key
from scaler.errors import MetadataError
from scaler.idleness.policy import Overrides, Reclaim
from scaler.kube.objects.idlegpu import ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, Service
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA
from scaler.reporting.doctor.admission_checks import CheckObjects, check_findings
from scaler.reporting.doctor.api_resources import Served, is_served, kind_findings
from scaler.reporting.doctor.cluster_queues import QueueObjects, queue_findings
from scaler.reporting.doctor.findings import (
    Finding,
    Listing,
    ListResult,
    Severity,
    Topic,
    Unread,
    is_whole,
    items_of,
    unread_findings,
)
from scaler.reporting.doctor.permissions import RequiredRule, ResourceAttributes, RuleUser, permission_findings
from scaler.reporting.doctor.scaled_objects import ScaledObjectInputs, has_scalable_workload, scaled_object_findings
from scaler.reporting.doctor.signal_series import SourceSeries
from scaler.reporting.doctor.signals import metrics_findings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """What the settings ask for, as far as it depends on the cluster."""

    addresses: frozenset[str] = frozenset()
    """`scalerAddress` values that mean this scaler; empty: all external triggers do."""
    defaults: Overrides = Overrides()  # noqa: RUF009 - frozen
    grant_for: timedelta = timedelta(minutes=10)
    pressure: bool = True
    max_window: timedelta = timedelta(hours=24)
    refuses_unprotected: bool = False
    reconciles: bool = True
    """Whether anything is to be written: with `components: [scaler]`, as in mode observe, nothing is."""
    namespaces: tuple[str, ...] = ()
    """The only ones that are watched; empty: all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObjects:
    """The objects of the cluster."""

    checks: ListResult[AdmissionCheck] = Listing()  # noqa: RUF009 - frozen
    policies: ListResult[ReclaimPolicy] = Listing()  # noqa: RUF009 - frozen
    cluster_queues: ListResult[ClusterQueue] = Listing()  # noqa: RUF009 - frozen
    cohorts: ListResult[Cohort] = Listing()  # noqa: RUF009 - frozen
    local_queues: ListResult[LocalQueue] = Listing()  # noqa: RUF009 - frozen
    flavors: ListResult[ResourceFlavor] = Listing()  # noqa: RUF009 - frozen
    workloads: ListResult[Workload] = Listing()  # noqa: RUF009 - frozen
    scaled_objects: ListResult[ScaledObject] = Listing()  # noqa: RUF009 - frozen
    scalable_workloads: ListResult[ScalableWorkload] = Listing()  # noqa: RUF009 - frozen
    services: ListResult[Service] = Listing()  # noqa: RUF009 - frozen
    nodes: ListResult[Node] = Listing()  # noqa: RUF009 - frozen
    """Only read where one of our checks needs them."""

    @property
    def gates(self) -> CheckObjects:
        named: Mapping[type, ListResult[Any]] = {
            AdmissionCheck: self.checks,
            ReclaimPolicy: self.policies,
            ClusterQueue: self.cluster_queues,
        }
        return CheckObjects(
            checks=items_of(self.checks),
            policies=items_of(self.policies),
            cluster_queues=items_of(self.cluster_queues),
            flavors=items_of(self.flavors),
            nodes=items_of(self.nodes),
            workloads=items_of(self.workloads),
            unsure=frozenset(kind for kind, found in named.items() if not is_whole(found)),
        )

    def scaling(self, wanted: DoctorSettings) -> ScaledObjectInputs:
        return ScaledObjectInputs(
            scaled_objects=items_of(self.scaled_objects),
            sees_all=is_whole(self.scaled_objects),
            scalable_workloads=_or_none(self.scalable_workloads),
            services=_or_none(self.services),
            addresses=wanted.addresses,
            defaults=wanted.defaults,
            grant_for=wanted.grant_for,
            pressure=wanted.pressure,
            max_window=wanted.max_window,
            is_confined=bool(wanted.namespaces),
        )

    def unread(self) -> Iterator[Finding]:
        """What of it could not be read."""
        yield from unread_findings(Topic.CHECKS, "AdmissionCheck", self.checks)
        yield from unread_findings(Topic.CHECKS, "ReclaimPolicy", self.policies)
        yield from unread_findings(Topic.QUEUES, "ClusterQueue", self.cluster_queues)
        yield from unread_findings(Topic.QUEUES, "Cohort", self.cohorts)
        yield from unread_findings(Topic.QUEUES, "LocalQueue", self.local_queues)
        yield from unread_findings(Topic.QUEUES, "ResourceFlavor", self.flavors)
        yield from unread_findings(Topic.QUEUES, "Workload", self.workloads)
        yield from unread_findings(Topic.SCALED_OBJECTS, "ScaledObject", self.scaled_objects)
        yield from unread_findings(Topic.SCALED_OBJECTS, "ScalableWorkload", self.scalable_workloads)
        yield from unread_findings(Topic.CHECKS, "Node", self.nodes)
        yield from self._unread_services()

    def _unread_services(self) -> Iterator[Finding]:
        """Only this diagnosis reads them, and the chart's roles leave them out: nothing has to be done."""
        if not isinstance(self.services, Unread):
            yield from unread_findings(Topic.SCALED_OBJECTS, "Service", self.services)
        elif not self.services.is_absent:
            what = "Services were not read: whether addresses lead to one shows only in calls"
            yield Finding(severity=Severity.OK, topic=Topic.SCALED_OBJECTS, check="NotRead", what=what)


def _or_none(found: ListResult[T]) -> Sequence[T] | None:
    """None where it is not known of every object whether it is there."""
    return found.items if isinstance(found, Listing) and is_whole(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorInputs:
    """What was read."""

    version: str | Unread
    """Where the API server is and what it calls itself."""
    served: Served | Unread
    objects: ClusterObjects
    asked: Sequence[tuple[RequiredRule, Sequence[ResourceAttributes]]] = ()
    """What was asked about permissions; empty where permissions are not to be checked."""
    allowed: Mapping[ResourceAttributes, bool | Unread] = field(default_factory=dict)
    metrics: SourceSeries | Unread = Unread("no metrics source is configured")  # noqa: RUF009 - frozen
    wanted: DoctorSettings = DoctorSettings()
    unborn: Sequence[str] = ()
    """Namespaces that are to be watched and do not exist."""


def diagnose(facts: DoctorInputs, now: datetime) -> list[Finding]:
    """All findings, by topic, in the order in which things depend on each other."""
    objects, gates = facts.objects, facts.objects.gates
    quota = quota_of(objects, facts.wanted)
    provisioning_served = any(
        is_served(each, facts.served) for each in (PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA)
    )
    findings = [
        *kind_findings(facts.version, facts.served),
        *_confinement_findings(facts),
        *permission_findings(facts.asked, facts.allowed, parts_in_use(facts)),
        *objects.unread(),
        *check_findings(gates, provisioning_served=provisioning_served),
        *queue_findings(quota),
        *scaled_object_findings(objects.scaling(facts.wanted)),
        *metrics_findings(facts.metrics, now),
    ]
    order = list(Topic)
    return sorted(findings, key=lambda each: order.index(each.topic))


def _confinement_findings(facts: DoctorInputs) -> Iterator[Finding]:
    """What follows from looking after some namespaces only."""
    if not facts.wanted.namespaces:
        return
    names = ", ".join(facts.wanted.namespaces)
    yield Finding(
        severity=Severity.OK,
        topic=Topic.PERMISSIONS,
        check="Confined",
        where=names,
        what="nothing else is watched: quota and nodes are not known, so no plans are made and no AdmissionChecks "
        "are answered, and nothing is asked about them here",
    )
    for each in facts.unborn:
        yield Finding(
            severity=Severity.FAIL,
            topic=Topic.PERMISSIONS,
            check="NoSuchNamespace",
            where=f"Namespace {each}",
            what="it is to be watched and does not exist; the others are watched meanwhile",
            do="create it with its Roles, or take it out of kubernetes.namespaces of the settings (namespaces of the "
            "chart)",
        )


def parts_in_use(facts: DoctorInputs) -> frozenset[RuleUser]:
    """The parts of the program that do something on this cluster."""
    gates = facts.objects.gates
    return frozenset(
        {
            RuleUser.SCALER,
            RuleUser.RECONCILER,
            *([RuleUser.PLANS] if facts.wanted.pressure else []),
            *([RuleUser.CHECKS] if any(is_ours(check) for check in gates.checks) else []),
            *([RuleUser.PROVISIONING] if gates.asks_for_nodes() else []),
        }
    )


# --------------------------------------------------------------------------------------- which queue a workload is in


def quota_of(objects: ClusterObjects, wanted: DoctorSettings) -> QueueObjects:
    """The ClusterQueues, with how many workloads there are scaled by us."""
    scaled, reclaimed = Counter[str](), Counter[str]()
    for queue, is_reclaimed in _scaled_in(objects, objects.scaling(wanted)):
        scaled[queue] += 1
        reclaimed[queue] += is_reclaimed
    return QueueObjects(
        gates=objects.gates,
        cohorts=items_of(objects.cohorts),
        scaled=scaled,
        reclaimed=reclaimed,
        refuses_unprotected=wanted.refuses_unprotected,
    )


def _scaled_in(objects: ClusterObjects, scaling: ScaledObjectInputs) -> Iterator[tuple[str, bool]]:
    """The ClusterQueue of every Workload that is scaled, and whether only a plan may take it."""
    scalable = {each.metadata.key: each for each in items_of(objects.scalable_workloads)}
    workloads = _Workloads(items_of(objects.workloads))
    queues = {each.metadata.key: each.spec.cluster_queue for each in items_of(objects.local_queues)}
    for scaled_object, trigger in scaling.ours():
        target = scalable.get((scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref.name))
        workload = workloads.of(target) if target and has_scalable_workload(scaled_object) else None
        queue = queues.get((workload.metadata.namespace, workload.spec.queue_name)) if workload else None
        if queue:
            try:
                reclaim = scaling.policy_of(trigger).reclaim
            except MetadataError:
                continue
            yield queue, reclaim is Reclaim.ON_PRESSURE


class _Workloads:
    """Workloads by their name and by the job that owns them."""

    def __init__(self, workloads: Sequence[Workload]) -> None:
        self._by_name = {each.metadata.key: each for each in workloads}
        self._by_owner = {key: each for each in workloads if (key := owner_key(each))}

    def of(self, scalable: ScalableWorkload) -> Workload | None:
        namespace, spec = scalable.metadata.namespace, scalable.spec
        if spec.workload_ref:
            return self._by_name.get((namespace, spec.workload_ref.name))
        if spec.job_ref:
            job = spec.job_ref
            return self._by_owner.get((namespace, group_of(job.api_version), job.kind, job.name))
        return None
