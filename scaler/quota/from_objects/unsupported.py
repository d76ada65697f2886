"""Can it be foreseen what Kueue will do with a Workload? Pure.

Not where more than quota decides: topology, other clusters, slices of one job that replace each other, variants of one
job, devices; nor while the Workload is being deleted, or an AdmissionCheck keeps it from being nominated. Such a
Workload is opaque: it counts with the quota that it holds, and nothing is planned for it or on it.

Every Job has a `topologyRequest` with a `podIndexLabel`; that alone asks for no topology.

Source: Kueue, pkg/workload/workload.go (IsExplicitlyRequestingTAS), pkg/scheduler/scheduler.go (nominate).
"""

from scaler.kube.objects import kueue_workloads as kube
from scaler.kube.objects.core import is_true

ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
SLICE_ANNOTATION = "kueue.x-k8s.io/workload-slice-replacement-for"
FLAVORS_ANNOTATION = "kueue.x-k8s.io/workload-allowed-resource-flavors"


def unsupported_because(workload: kube.Workload) -> str:
    """Why Kueue's decisions about the Workload cannot be foreseen; empty where they can."""
    annotations = workload.metadata.annotations
    if workload.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if workload.status.cluster_name or workload.status.nominated_cluster_names:
        return "it is dispatched to another cluster by MultiKueue"
    if annotations.get(ELASTIC_ANNOTATION) == "true" or SLICE_ANNOTATION in annotations:
        return "it is a slice of an elastic job"
    if FLAVORS_ANNOTATION in annotations:
        return "it is one of several variants that are admitted concurrently"
    if any(each.template.spec.resource_claims for each in workload.spec.pod_sets):
        return "it claims devices"
    return _topology(workload) or _failed_check(workload)


def _topology(workload: kube.Workload) -> str:
    if any(_asks_for_topology(each.topology_request) for each in workload.spec.pod_sets if each.topology_request):
        return "it asks for a topology"
    admission = workload.status.admission
    placed = admission.pod_set_assignments if admission else ()
    if any(each.topology_assignment or each.delayed_topology_request for each in placed):
        return "it is placed by topology"
    return ""


def _asks_for_topology(request: kube.TopologyRequest) -> bool:
    return bool(
        request.required
        or request.preferred
        or request.unconstrained is not None
        or request.pod_set_group_name
        or request.pod_set_slice_required_topology
        or request.pod_set_slice_size
        or request.podset_slice_required_topology_constraints
    )


def _failed_check(workload: kube.Workload) -> str:
    """A Workload without reservation is not nominated while one of its checks says Retry or Rejected."""
    if is_true(workload.status.conditions, "QuotaReserved"):
        return ""
    failed = [each for each in workload.status.admission_checks if each.state in ("Retry", "Rejected")]
    return f"its check {failed[0].name} is {failed[0].state}" if failed else ""
