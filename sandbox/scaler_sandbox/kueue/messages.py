"""Kueue's messages: why a Workload is pending, and for which one another is preempted.

People and programs read these messages, and no other place has the numbers. So they are Kueue's to the letter, except
where a Workload waits for preemptions on behalf of another one.

Worked example: a gang of 8 in a cohort with 4 GPUs left, one Workload preempted for it:

    couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor a100, 4 more needed.
    Pending the preemption of 1 workload(s)

Source: Kueue, pkg/scheduler/flavorassigner/flavorassigner.go (Assignment.Message), pkg/scheduler/scheduler.go,
pkg/scheduler/preemption/preemption.go (preemptionMessage).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scaler.kube.objects.quantity import CPU
from scaler.kube.scheduling import untolerated
from scaler.quota.cycle import Considered
from scaler.quota.demands import PODS, Assignment, PendingReason, PodSetFlavors, Shortfall
from scaler.quota.model import Flavor, QuotaClusterQueue, QuotaPodSet, QuotaResourceGroup, QuotaWorkload
from scaler.quota.node import QueueNode
from scaler.quota.preemption.candidates import PreemptionReason
from scaler.quota.queues import CycleOutcome
from scaler_sandbox.kinds import Json
from scaler_sandbox.kueue.jobs import JOB_UID

BYPASSED = "Bypassed scheduling evaluation because an equivalent workload recently failed"
NAMESPACE_MISMATCH = "Workload namespace doesn't match ClusterQueue selector"
FAILED_CHECKS = "The workload has failed admission checks"

_TOO_LATE = "Workload no longer fits after processing another workload"
_WAITS_FOR_OTHERS = "Workload fits once preemptions that another workload has asked for are complete"
_BECAUSE = {
    PreemptionReason.IN_CLUSTER_QUEUE: "prioritization in the ClusterQueue",
    PreemptionReason.IN_COHORT_RECLAMATION: "reclamation within the cohort",
    PreemptionReason.IN_COHORT_FAIR_SHARING: "Fair Sharing within the cohort",
    PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a Workload waits: reason and message of its condition QuotaReserved."""

    reason: str
    message: str


def wait(
    considered: Considered, workload: QuotaWorkload, queue: QuotaClusterQueue, flavors: Mapping[str, Flavor]
) -> Wait:
    """Why the head that a cycle has considered was not admitted."""
    match considered.outcome:
        case CycleOutcome.NAMESPACE_MISMATCH:
            message = NAMESPACE_MISMATCH
        case CycleOutcome.INVALID:
            message = f"resources validation failed: {workload.invalid_because}"
        case CycleOutcome.SKIPPED:
            message = _TOO_LATE
        case CycleOutcome.PENDING_PREEMPTION if not considered.victims:
            message = _WAITS_FOR_OTHERS
        case _:
            message = _lacks(considered.assignment, workload, queue, flavors)
    if considered.outcome is CycleOutcome.PENDING_PREEMPTION and considered.victims:
        message += f". Pending the preemption of {considered.victims} workload(s)"
    # No obstacle is found where the queue has no quota at all for a resource: no flavor of it can match.
    return Wait(reason=(considered.obstacle or PendingReason.NO_MATCHING_FLAVOR).value, message=message)


def preempted(preemptor: Json, reason: PreemptionReason, paths: tuple[str, str]) -> str:
    """Why a Workload has to go. The paths are those of the queues that win and lose its quota."""
    metadata, (to, out_of) = preemptor["metadata"], paths
    job_uid = (metadata.get("labels") or {}).get(JOB_UID, "UNKNOWN")
    return (
        f"Preempted to accommodate a workload (UID: {metadata['uid']}, JobUID: {job_uid}) due to {_BECAUSE[reason]}; "
        f"preemptor path: {to}; preemptee path: {out_of}"
    )


def loss(victim: Json, paths: tuple[str, str]) -> str:
    """Which Workload was preempted."""
    metadata = victim["metadata"]
    queue = paths[1].rpartition("/")[2]
    return (
        f"Preempted workload {metadata['namespace']}/{metadata['name']} (UID: {metadata['uid']}) "
        f"in ClusterQueue {queue}"
    )


def compared(preemptor: int, preemptee: int) -> str:
    """The priorities of the two. None is boosted: the gate for that is off."""
    return (
        f"preemptor effective priority: {preemptor} (base: {preemptor}, boost: 0); "
        f"preemptee effective priority: {preemptee} (base: {preemptee}, boost: 0)"
    )


def path(queue: QueueNode) -> str:
    """The ClusterQueue with the cohorts above it: `/root/team/queue`."""
    return "/" + "/".join(reversed([queue.name, *(cohort.name for cohort in queue.ancestors())]))


# ------------------------------------------------------------------------------------------------ what flavors lack


def _lacks(
    assignment: Assignment | None, workload: QuotaWorkload, queue: QuotaClusterQueue, flavors: Mapping[str, Flavor]
) -> str:
    """What every PodSet lacks, up to the first one that gets no flavor at all."""
    if assignment is None:
        return ""
    lacks = []
    for pods, choice in zip(workload.pod_sets, [*assignment.choices, None], strict=False):
        lacking = [each for each in assignment.shortfalls if each.pod_set == pods.name]
        reasons = sorted({_reason(each, pods, flavors) for each in _telling(lacking, choice, queue)})
        if choice is None and not reasons:
            reasons = _undeclared(pods, queue)
        if reasons:
            lacks.append(f"couldn't assign flavors to pod set {pods.name}: {', '.join(reasons)}")
    return "; ".join(lacks)


def _telling(lacking: list[Shortfall], choice: PodSetFlavors | None, queue: QuotaClusterQueue) -> Iterator[Shortfall]:
    """What keeps the PodSet from being admitted: not what one flavor lacks where the next one fits."""
    if choice is None:
        groups = [_group_of(each, queue) for each in lacking[-1:]]
    else:
        groups = [queue.group_of(key.resource) for key in choice.contested]
    return (each for each in lacking if _group_of(each, queue) in groups)


def _group_of(shortfall: Shortfall, queue: QuotaClusterQueue) -> QuotaResourceGroup | None:
    if shortfall.resource:
        return queue.group_of(shortfall.resource)
    return next((group for group in queue.groups if shortfall.flavor in group.flavors), None)


def _undeclared(pods: QuotaPodSet, queue: QuotaClusterQueue) -> list[str]:
    missing = sorted(name for name, amount in pods.requests.items() if amount and queue.group_of(name) is None)
    return [f"resource {name} unavailable in ClusterQueue" for name in missing[:1]]


def _reason(shortfall: Shortfall, pods: QuotaPodSet, flavors: Mapping[str, Flavor]) -> str:
    resource, flavor = shortfall.resource, shortfall.flavor
    match shortfall.obstacle:
        case PendingReason.NO_MATCHING_FLAVOR:
            return _mismatch(flavor, flavors.get(flavor), pods)
        case PendingReason.EXCEEDS_MAX_QUOTA:
            wanted = pods.count if resource == PODS else pods.requests.get(resource, 0) * pods.count
            return (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests "
                f"({as_quantity(resource, shortfall.wanted - wanted)}) + current podset request "
                f"({as_quantity(resource, wanted)}) > maximum capacity ({as_quantity(resource, shortfall.available)})"
            )
        case _:
            lacking = as_quantity(resource, shortfall.lacking)
            return f"insufficient unused quota for {resource} in flavor {flavor}, {lacking} more needed"


def _mismatch(name: str, flavor: Flavor | None, pods: QuotaPodSet) -> str:
    if flavor is None:
        return f"flavor {name} not found"
    taint = untolerated(flavor.taints, (*pods.nodes.tolerations, *flavor.tolerations))
    if taint is not None:
        return f"untolerated taint {{{taint.key} {taint.value} {taint.effect} <nil>}} in flavor {name}"
    return f"flavor {name} doesn't match node affinity"


# ------------------------------------------------------------------------------------------------------------ amounts

_IN_BYTES = ("memory", "ephemeral-storage")


def as_quantity(resource: str, amount: int) -> str:
    """The amount as Kueue shows it: CPU in cores, bytes in powers of 1024, all else in powers of 1000.

    Source: Kueue, pkg/resources/requests.go (ResourceQuantity); apimachinery's canonical form of quantities.
    """
    if resource == CPU:
        return f"{amount}m" if amount % 1000 else _scaled(amount // 1000, 1000, "kMGTPE")
    if resource in _IN_BYTES or resource.startswith("hugepages-"):
        scaled = _scaled(amount, 1024, "KMGTPE")
        return f"{scaled}i" if scaled[-1].isalpha() else scaled
    return _scaled(amount, 1000, "kMGTPE")


def as_quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """All of them, by resource."""
    return {resource: as_quantity(resource, amount) for resource, amount in sorted(amounts.items())}


def _scaled(number: int, base: int, letters: str) -> str:
    """The number with the greatest suffix that leaves it whole."""
    suffix = ""
    for letter in letters:
        if not number or number % base:
            break
        number, suffix = number // base, letter
    return f"{number}{suffix}"
