"""Is the API there, and does it serve what this program talks about, in versions that it speaks?

Pure: what discovery said in, findings out. A missing kind (KEDA's, Kueue's) is a finding about what does not work
without it; Kueue is not needed where only Deployments and the like are scaled.
"""

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from scaler.doctor.findings import Finding, Severity, Subject, Topic, Unread
from scaler.kube.objects import resources as kinds
from scaler.kube.objects.resources import Resource

Served = Mapping[str, Mapping[str, Set[str]]]
"""Kinds by version by API group, as discovery lists them."""


class RequiredKind(NamedTuple):
    """A kind, in the versions that this program speaks, the best one first."""

    resources: tuple[Resource, ...]
    severity: Severity
    without: str
    do: str

    @property
    def group(self) -> str:
        return self.resources[0].group

    @property
    def kind(self) -> str:
        return self.resources[0].kind


_OK, _WARN, _FAIL = Severity
_OWN_CRDS = "kubectl apply --server-side -f deploy/crds"
_KUEUE = "install a Kueue that serves kueue.x-k8s.io/v1beta2, or go without: Deployments and the like need none"
_NO_KEDA = "only ScalableWorkloads with actuator Direct are scaled"
_KEDA = "install KEDA 2.18 or newer, or go without: set actuator to Direct in IdlePolicies and ScalableWorkloads"
_AUTOSCALER = (
    "install Cluster Autoscaler's definition, with an autoscaler that answers it, if nodes are to be asked for"
)
_PROVISIONING = (kinds.PROVISIONING_REQUEST, kinds.PROVISIONING_REQUEST_BETA)
_NO_PLANS = "no plan can be made for gangs that wait"
_NO_QUOTA_IN_COMMON = "ClusterQueues with a cohortName have no quota in common but by that name"
_NO_CHECK = "nothing keeps a gang from starting on GPUs whose pods still end"
REQUIRED_KINDS = (
    RequiredKind((kinds.SCALED_OBJECT,), _WARN, _NO_KEDA, _KEDA),
    RequiredKind((kinds.SCALABLE_WORKLOAD,), _FAIL, "no Kueue Workload can be scaled", _OWN_CRDS),
    RequiredKind((kinds.RECLAIM_POLICY,), _FAIL, "AdmissionChecks of ours cannot have parameters", _OWN_CRDS),
    RequiredKind((kinds.WORKLOAD,), _WARN, "there is nothing that a ScalableWorkload could suspend", _KUEUE),
    RequiredKind((kinds.CLUSTER_QUEUE,), _WARN, _NO_PLANS, _KUEUE),
    RequiredKind((kinds.LOCAL_QUEUE,), _WARN, _NO_PLANS, _KUEUE),
    RequiredKind((kinds.COHORT,), _WARN, _NO_QUOTA_IN_COMMON, _KUEUE),
    RequiredKind((kinds.RESOURCE_FLAVOR,), _WARN, _NO_PLANS, _KUEUE),
    RequiredKind((kinds.ADMISSION_CHECK,), _WARN, _NO_CHECK, _KUEUE),
    RequiredKind(_PROVISIONING, _OK, "nodes cannot be asked for", _AUTOSCALER),
)


def kind_findings(version: str | Unread, served: Served | Unread) -> Iterator[Finding]:
    api = Subject(Topic.API)
    yield api.fail("Unreachable", version.reason) if isinstance(version, Unread) else api.ok("Reachable", version)
    if isinstance(served, Unread):
        yield Subject(Topic.KINDS).fail("NotRead", served.reason)
        return
    yield from (_kind(wanted, served) for wanted in REQUIRED_KINDS)


def _kind(wanted: RequiredKind, served: Served) -> Finding:
    about, group = Subject(Topic.KINDS, wanted.kind), wanted.group
    versions = [version for version, found in served.get(group, {}).items() if wanted.kind in found]
    spoken = [each.version for each in wanted.resources if each.version in versions]
    if spoken:
        others = ", ".join(each for each in versions if each != spoken[0])
        return about.ok("Served", f"{group}/{spoken[0]}{f', also served: {others}' if others else ''}")
    if versions:
        needed = " or ".join(each.version for each in wanted.resources)
        return about.fail(
            "VersionNotServed",
            f"served as {group}/{', '.join(versions)} only, and {needed} is needed: {wanted.without}",
            f"upgrade to a release that serves {group}/{wanted.resources[0].version}",
        )
    return about.finding(wanted.severity, "NotServed", f"not served: {wanted.without}", wanted.do)


def is_served(resource: Resource, served: Served | Unread) -> bool:
    return not isinstance(served, Unread) and resource.kind in served.get(resource.group, {}).get(
        resource.version, frozenset()
    )
