"""Is the API there, and does it serve what this program talks about, in versions that it speaks?

Pure: what discovery said in, findings out. A missing kind (KEDA's, Kueue's) is a finding about what does not work
without it; Kueue is not needed where only Deployments and the like are scaled.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    PROVISIONING_REQUEST,
    PROVISIONING_REQUEST_BETA,
    RECLAIM_POLICY,
    RESOURCE_FLAVOR,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.reporting.doctor.findings import Finding, Severity, Topic, Unread

Served = Mapping[str, Mapping[str, Set[str]]]
"""Kinds by version by API group, as discovery lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredKind:
    """A kind, in the versions that this program speaks, the best one first."""

    resources: tuple[Resource, ...]
    severity: Severity
    """Of its absence."""
    without: str
    """What does not work without it."""
    do: str

    @property
    def group(self) -> str:
        return self.resources[0].group

    @property
    def kind(self) -> str:
        return self.resources[0].kind


_OWN_CRDS = "kubectl apply --server-side -f deploy/crds"
_KUEUE = "install a Kueue that serves kueue.x-k8s.io/v1beta2, or go without: Deployments and the like need none"


def _of_kueue(resource: Resource, without: str) -> RequiredKind:
    return RequiredKind(resources=(resource,), severity=Severity.WARN, without=without, do=_KUEUE)


REQUIRED_KINDS: Sequence[RequiredKind] = (
    RequiredKind(
        resources=(SCALED_OBJECT,),
        severity=Severity.FAIL,
        without="no ScaledObject calls the scaler",
        do="install KEDA 2.18 or newer",
    ),
    RequiredKind(
        resources=(SCALABLE_WORKLOAD,),
        severity=Severity.FAIL,
        without="no Kueue Workload can be scaled",
        do=_OWN_CRDS,
    ),
    RequiredKind(
        resources=(RECLAIM_POLICY,),
        severity=Severity.FAIL,
        without="AdmissionChecks of ours cannot have parameters",
        do=_OWN_CRDS,
    ),
    _of_kueue(WORKLOAD, "there is nothing that a ScalableWorkload could suspend"),
    _of_kueue(CLUSTER_QUEUE, "no plan can be made for gangs that wait"),
    _of_kueue(LOCAL_QUEUE, "no plan can be made for gangs that wait"),
    _of_kueue(COHORT, "ClusterQueues with a cohortName have no quota in common but by that name"),
    _of_kueue(RESOURCE_FLAVOR, "no plan can be made for gangs that wait"),
    _of_kueue(ADMISSION_CHECK, "nothing keeps a gang from starting on GPUs whose pods still end"),
    RequiredKind(
        resources=(PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA),
        severity=Severity.OK,
        without="nodes cannot be asked for",
        do="install Cluster Autoscaler's definition, with an autoscaler that answers it, if nodes are to be asked for",
    ),
)


def kind_findings(version: str | Unread, served: Served | Unread) -> Iterator[Finding]:
    """What there is to say about the API and its kinds."""
    if isinstance(version, Unread):
        yield Finding(severity=Severity.FAIL, topic=Topic.API, check="Unreachable", what=version.reason)
    else:
        yield Finding(severity=Severity.OK, topic=Topic.API, check="Reachable", what=version)
    if isinstance(served, Unread):
        yield Finding(severity=Severity.FAIL, topic=Topic.KINDS, check="NotRead", what=served.reason)
        return
    yield from (_kind(wanted, served) for wanted in REQUIRED_KINDS)


def _kind(wanted: RequiredKind, served: Served) -> Finding:
    versions = versions_of(wanted.group, wanted.kind, served)
    spoken = [each.version for each in wanted.resources if each.version in versions]
    if spoken:
        return Finding(
            severity=Severity.OK,
            topic=Topic.KINDS,
            check="Served",
            where=wanted.kind,
            what=f"{wanted.group}/{spoken[0]}" + _others([each for each in versions if each != spoken[0]]),
        )
    if versions:
        needed = " or ".join(each.version for each in wanted.resources)
        return Finding(
            severity=Severity.FAIL,
            topic=Topic.KINDS,
            check="VersionNotServed",
            where=wanted.kind,
            what=f"served as {wanted.group}/{', '.join(versions)} only, and {needed} is needed: {wanted.without}",
            do=f"upgrade to a release that serves {wanted.group}/{wanted.resources[0].version}",
        )
    return Finding(
        severity=wanted.severity,
        topic=Topic.KINDS,
        check="NotServed",
        where=wanted.kind,
        what=f"not served: {wanted.without}",
        do=wanted.do,
    )


def _others(versions: Sequence[str]) -> str:
    return f", also served: {', '.join(versions)}" if versions else ""


def versions_of(group: str, kind: str, served: Served) -> list[str]:
    """The versions in which the kind is served."""
    return [version for version, kinds in served.get(group, {}).items() if kind in kinds]


def is_served(resource: Resource, served: Served | Unread) -> bool:
    """Whether the kind is served in that very version."""
    return not isinstance(served, Unread) and resource.kind in served.get(resource.group, {}).get(
        resource.version, frozenset()
    )
