"""Which Workloads of the hub wait for a cluster, in which order, and which clusters are in question for each?

A Workload waits for a cluster while it has quota, is not finished, its check of MultiKueue is Pending, all its other
checks are Ready, and it has no cluster. Whether it is active or evicted is no part of that: without a nomination Kueue
would release the quota of neither.

Its clusters are those of the MultiKueueConfig that the AdmissionCheck names. The annotation `idlegpu.io/placement` of
the Workload, or else of its LocalQueue, names a Placement of Open Cluster Management (`name`, or `namespace/name`);
only clusters among its PlacementDecisions are in question then, which may also be those of `multicluster.x-k8s.io` by
their decision key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from scaler.kube.object_cache import Index
from scaler.kube.objects.core import ObjectMeta, condition, is_true
from scaler.kube.objects.kueue_queues import AdmissionCheck, LocalQueue
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import MultiKueueCluster, MultiKueueConfig, PlacementDecision
from scaler.kube.reflector import Absent, Reflecting
from scaler.multikueue.hub.dispatch.candidates import (
    ClusterOption,
    HubCluster,
    PlacementChoice,
    eligibilities,
    managed_cluster_name,
)
from scaler.multikueue.hub.dispatch.ranking import Ranking, rank
from scaler.targets.cluster_state import ObjectLister

MULTIKUEUE_CONTROLLER = "kueue.x-k8s.io/multikueue"
PLACEMENT_ANNOTATION = "idlegpu.io/placement"
PLACEMENT_LABEL = "cluster.open-cluster-management.io/placement"
"""The label of a PlacementDecision with the name of its Placement."""
DECISION_KEY_LABEL = "multicluster.x-k8s.io/decision-key"
"""The label of a PlacementDecision of that API that its slices have in common."""
_WAITS = "checks"
_LONG_AGO = datetime.fromtimestamp(0, UTC)


def dispatch_indexes() -> dict[str, Index[Workload]]:
    """Indexes that find the Workloads that have quota and a check that is Pending."""

    return {_WAITS: lambda workload: [_WAITS] if waits_for_check(workload) else []}


def waits_for_check(workload: Workload) -> bool:
    """Whether a check is Pending, of a Workload that has no cluster."""
    status = workload.status
    return any(each.state == "Pending" for each in status.admission_checks) and not status.cluster_name


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWorkload:
    """A Workload that waits for a cluster."""

    workload: Workload
    config: str
    """Name of its MultiKueueConfig."""
    placement: str = ""
    """The Placement that decides, as `namespace/name`."""

    @property
    def uid(self) -> str:
        return self.workload.metadata.uid

    @property
    def cluster_queue(self) -> str:
        admission = self.workload.status.admission
        return admission.cluster_queue if admission is not None else ""

    @property
    def created_at(self) -> datetime:
        return self.workload.metadata.creation_timestamp or _LONG_AGO

    @property
    def turn(self) -> tuple[int, datetime, str]:
        """Its place in the line: priority, then age."""
        return -(self.workload.spec.priority or 0), self.created_at, self.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class HubObjects:
    """The live copies that say who waits, and for what."""

    workloads: ObjectLister[Workload]
    """The Workloads with `dispatch_indexes`."""
    checks: ObjectLister[AdmissionCheck]
    configs: ObjectLister[MultiKueueConfig]
    clusters: ObjectLister[MultiKueueCluster]
    decisions: tuple[ObjectLister[PlacementDecision], ...]
    """The PlacementDecisions of every API that has some."""
    local_queues: ObjectLister[LocalQueue]

    @property
    def essential(self) -> Mapping[str, ObjectLister[object]]:
        """The kinds without which nothing is decided, by name."""
        return {
            "Workloads": self.workloads,
            "AdmissionChecks": self.checks,
            "MultiKueueConfigs": self.configs,
            "MultiKueueClusters": self.clusters,
            "LocalQueues": self.local_queues,
        }

    def waiting(self) -> list[WaitingWorkload]:
        """The Workloads that wait for a cluster, in their order."""
        configs = _configs_by_check(self.checks.items())
        if not configs:
            return []
        found = (self._waiting(each, configs) for each in self.workloads.by_index(_WAITS, _WAITS))
        return sorted((each for each in found if each is not None), key=lambda each: each.turn)

    def _waiting(self, workload: Workload, configs: Mapping[str, str]) -> WaitingWorkload | None:
        check = check_that_waits(workload, configs)
        if not check:
            return None
        return WaitingWorkload(workload=workload, config=configs[check], placement=self._placement(workload))

    def _placement(self, workload: Workload) -> str:
        namespace = workload.metadata.namespace
        named = workload.metadata.annotations.get(PLACEMENT_ANNOTATION, "")
        if not named:
            queue = self.local_queues.get(namespace, workload.spec.queue_name)
            named = queue.metadata.annotations.get(PLACEMENT_ANNOTATION, "") if queue is not None else ""
        return named if "/" in named or not named else f"{namespace}/{named}"


def _configs_by_check(checks: Iterable[AdmissionCheck]) -> dict[str, str]:
    """Names of the MultiKueueConfigs, by AdmissionCheck."""
    ours = (each for each in checks if each.spec.controller_name == MULTIKUEUE_CONTROLLER)
    return {each.metadata.name: each.spec.parameters.name if each.spec.parameters else "" for each in ours}


def check_that_waits(workload: Workload, configs: Mapping[str, str]) -> str:
    """The check of MultiKueue that waits for a cluster; empty where none does."""
    status = workload.status
    if status.cluster_name or workload.metadata.deletion_timestamp is not None:
        return ""
    if not is_true(status.conditions, "QuotaReserved") or is_true(status.conditions, "Finished"):
        return ""
    ours = next((each for each in status.admission_checks if each.name in configs), None)
    if ours is None or ours.state != "Pending":
        return ""
    return ours.name if all(each is ours or each.state == "Ready" for each in status.admission_checks) else ""


_Question: TypeAlias = tuple[str, str]
"""A MultiKueueConfig and a Placement."""


@dataclass(frozen=True, kw_only=True)
class ClusterEligibilities:
    """What clusters answer at one moment: every question is answered once, since thousands of Workloads ask few
    different ones."""

    objects: HubObjects
    clusters: Mapping[str, HubCluster]
    _known: dict[_Question, tuple[ClusterOption, ...]] = field(default_factory=dict)
    _unanswered: dict[_Question, Ranking] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: HubObjects) -> "ClusterEligibilities":
        return cls(
            objects=objects, clusters={each.metadata.name: hub_cluster(each) for each in objects.clusters.items()}
        )

    def of_workload(self, waiting: WaitingWorkload) -> tuple[ClusterOption, ...]:
        question = waiting.config, waiting.placement
        if question not in self._known:
            config = self.objects.configs.get("", waiting.config)
            named = config.spec.clusters if config is not None else None
            self._known[question] = eligibilities(waiting.config, named, self.clusters, self._choice(waiting.placement))
        return self._known[question]

    def unanswered(self, waiting: WaitingWorkload) -> Ranking:
        """The clusters of a Workload about which they are not asked."""
        question = waiting.config, waiting.placement
        if question not in self._unanswered:
            self._unanswered[question] = rank(self.of_workload(waiting), {})
        return self._unanswered[question]

    def _choice(self, placement: str) -> PlacementChoice | None:
        if not placement:
            return None
        return placement_choice(placement, self.objects.decisions)


def placement_choice(placement: str, decisions: Sequence[ObjectLister[PlacementDecision]]) -> PlacementChoice:
    """What the Placement has decided, of all its PlacementDecisions."""
    namespace, _, name = placement.partition("/")
    served = [each for each in decisions if not isinstance(each.state, Absent)]
    if not served:
        return PlacementChoice(name=placement, problem="cannot decide: no PlacementDecisions are served here")
    found = (each for lister in served for each in lister.items() if _is_of(each.metadata, namespace, name))
    clusters = frozenset[str]().union(*(each.clusters for each in found))
    are_known = all(isinstance(each.state, Reflecting) for each in served)
    problem = "has decided for no cluster" if are_known else "is not known at the moment"
    return PlacementChoice(name=placement, clusters=clusters, problem="" if clusters else problem)


def _is_of(decision: ObjectMeta, namespace: str, name: str) -> bool:
    labels = decision.labels
    known_by = labels.get(PLACEMENT_LABEL) or labels.get(DECISION_KEY_LABEL) or decision.name
    return (decision.namespace, known_by) == (namespace, name)


def hub_cluster(cluster: MultiKueueCluster) -> HubCluster:
    source, active = cluster.spec.cluster_source, condition(cluster.status.conditions, "Active")
    is_active = active is not None and active.status == "True"
    kubeconfig, profile = source.kube_config, source.cluster_profile_ref
    return HubCluster(
        name=cluster.metadata.name,
        managed_cluster=managed_cluster_name(
            cluster.metadata.name,
            profile=profile.name if profile is not None else "",
            secret=kubeconfig.location if kubeconfig is not None else "",
        ),
        is_active=is_active,
        message=active.message if active is not None else "",
        inactive_since=active.last_transition_time if active is not None and not is_active else None,
    )
