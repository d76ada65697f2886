"""What no object says of itself: that a queue is inactive for want of others, that flavors make a Workload opaque.

Source: Kueue, pkg/cache/scheduler/clusterqueue.go (inactiveReason), pkg/scheduler/flavorassigner
(checkPodSetAndFlavorMatchForTAS).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scaler.core.quota.model import ClusterQueue, Flavor, Workload

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
PROVISIONING = "kueue.x-k8s.io/provisioning-request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An AdmissionCheck as far as the activity of ClusterQueues depends on it."""

    name: str
    controller: str = ""
    active: bool = False


def inactive_because(queue: ClusterQueue, flavors: Mapping[str, Flavor], checks: Mapping[str, Check]) -> str:
    """Kueue's reason why the queue admits nothing; empty where it does. What the queue says of itself comes first."""
    if queue.inactive_because:
        return queue.inactive_because
    if any(flavor not in flavors for flavor in flavors_of(queue)):
        return "FlavorNotFound"
    found = [checks.get(name) for name in queue.checks]
    if None in found:
        return "AdmissionCheckNotFound"
    if any(check and not check.active for check in found):
        return "AdmissionCheckInactive"
    return _clashing_controllers([check.controller for check in found if check])


def _clashing_controllers(controllers: list[str]) -> str:
    if controllers.count(MULTIKUEUE) > 1:
        return "MultipleMultiKueueAdmissionChecks"
    if MULTIKUEUE in controllers and PROVISIONING in controllers:
        return "MultiKueueWithProvisioningRequest"
    return ""


def flavors_of(queue: ClusterQueue) -> set[str]:
    """Names of all flavors that the queue has quota of."""
    return {flavor for group in queue.groups for flavor in group.flavors}


def topology_flavor(workload: Workload, queue: ClusterQueue | None, flavors: Mapping[str, Flavor]) -> str:
    """A flavor with a Topology that the Workload has, or will have since its queue offers no others; empty otherwise.

    `queue` is the one that it waits in. Where a queue offers both, Kueue gives flavors with a Topology only to those
    that ask for one.
    """
    if workload.reservation is not None:
        used = (name for each in workload.reservation.assignments for name in each.flavors.values())
        return next((name for name in used if _has_topology(name, flavors)), "")
    offered = sorted(flavors_of(queue)) if queue else []
    return offered[0] if offered and all(_has_topology(name, flavors) for name in offered) else ""


def _has_topology(name: str, flavors: Mapping[str, Flavor]) -> bool:
    return name in flavors and bool(flavors[name].topology)
