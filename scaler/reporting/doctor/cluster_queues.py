"""Do the AdmissionChecks of a ClusterQueue work together, and is what plans free there safe from others?

What is combined, for Workloads that have to pass both (they get the same flavor, or one of each resource group):

| checks                                           | works                                                            |
|--------------------------------------------------|------------------------------------------------------------------|
| ours                                             | yes                                                              |
| ours twice                                       | yes, if at most one of them asks for nodes                       |
| ours, waiting for pods only + Kueue provisioning | yes: ours is a pre-gate                                          |
| ours, waiting for room + Kueue provisioning      | in a way: Kueue asks for nodes at once, reuse comes too late     |
| ours, asking for nodes + Kueue provisioning      | no: both ask for the same nodes                                  |
| ours + MultiKueue                                | yes: ours is a pre-gate, the gang is dispatched when it is Ready |
| Kueue provisioning + MultiKueue                  | no: Kueue takes the queue out of service                         |

On a flavor with a Topology no check of ours ever asks for nodes: there Kueue reserves no quota before it has found
places for all pods, unless its own check is there, too.

Kueue's own check creates its ProvisioningRequest while ours is still Pending, and one that fails evicts the gang that
ours holds: so ours never comes first in asking for nodes beside it.

Pure: objects in, findings out.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import combinations, permutations
from typing import NamedTuple

from scaler.admission.policy import CheckPolicy
from scaler.admission.workload import is_ours
from scaler.kube.objects.core import condition
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort
from scaler.quota.model import MULTIKUEUE, PROVISIONING
from scaler.reporting.doctor.admission_checks import CheckObjects, flavors_of
from scaler.reporting.doctor.findings import Finding, Severity, Topic

_BEST_EFFORT = "BestEffortFIFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueObjects:
    """The objects, as far as ClusterQueues depend on them."""

    gates: CheckObjects
    cohorts: Sequence[Cohort] = ()
    scaled: Mapping[str, int] = field(default_factory=dict)
    """By ClusterQueue, how many workloads there may be suspended."""
    reclaimed: Mapping[str, int] = field(default_factory=dict)
    """How many of these only a plan may take (`reclaim: OnPressure`)."""
    refuses_unprotected: bool = False
    """Whether the settings refuse plans whose freed quota others may take."""


def queue_findings(quota: QueueObjects) -> Iterator[Finding]:
    """What there is to say about ClusterQueues."""
    for queue in sorted(quota.gates.cluster_queues, key=lambda each: each.metadata.name):
        found = [*_of_queue(queue, quota)]
        yield from found
        if all(each.severity is Severity.OK for each in found):
            yield _fine(queue, quota.gates)


def _of_queue(queue: ClusterQueue, quota: QueueObjects) -> Iterator[Finding]:
    finding = partial(Finding, topic=Topic.QUEUES, where=f"ClusterQueue {queue.metadata.name}")
    yield from _of_activity(finding, queue)
    yield from _of_checks(finding, queue, quota.gates)
    yield from _of_topology(finding, queue, quota)
    yield from _of_freed_quota(finding, queue, quota)


def _fine(queue: ClusterQueue, gates: CheckObjects) -> Finding:
    ours = [check.metadata.name for check, _ in _checks_of(queue, gates) if is_ours(check)]
    guard = f"guarded by {', '.join(ours)}" if ours else "has no check of ours, and no workload that is scaled"
    if not ours and _unknown(queue, gates):
        guard = "its checks could not be read"
    return Finding(
        severity=Severity.OK,
        topic=Topic.QUEUES,
        check="Fine",
        where=f"ClusterQueue {queue.metadata.name}",
        what=f"{queue.spec.queueing_strategy}, {guard}",
    )


def _of_activity(finding: "partial[Finding]", queue: ClusterQueue) -> Iterator[Finding]:
    active = condition(queue.status.conditions, "Active")
    if active is None or active.status == "True":
        return
    is_wanted = queue.spec.stop_policy != "None"
    yield finding(
        severity=Severity.WARN if is_wanted else Severity.FAIL,
        check="Inactive",
        what=f"it admits nothing: {active.reason}: {active.message}",
        do="set spec.stopPolicy to None when it is to admit again" if is_wanted else "correct what Kueue says",
    )


# ------------------------------------------------------------------------------------------------- checks, in pairs


class CheckKind(StrEnum):
    """What a check does, as far as it matters to another one beside it."""

    PODS = "ours, waiting for pods only"
    ROOM = "ours, waiting for room"
    NODES = "ours, asking for nodes"
    KUEUE = "Kueue's provisioning"
    MULTIKUEUE = "MultiKueue"


class _Says(NamedTuple):
    severity: Severity
    check: str
    what: str
    do: str = ""


def _pair(one: CheckKind, other: CheckKind) -> frozenset[CheckKind]:
    return frozenset({one, other})


_TWO_ASK = _Says(
    Severity.FAIL,
    "TwoAskForNodes",
    "both ask for nodes for the same gang: twice as many are made, and a request of one that fails takes the quota "
    "from the other",
    "let one of them ask: remove spec.provisioning from the ReclaimPolicy, or the other check from the ClusterQueue",
)
_DISPATCHED = _Says(
    Severity.OK,
    "PreGate",
    "MultiKueue dispatches a gang once ours is Ready, which waits for pods of this cluster to end",
)
_TOGETHER: Mapping[frozenset[CheckKind], _Says] = {
    _pair(CheckKind.PODS, CheckKind.KUEUE): _Says(
        Severity.OK,
        "PreGate",
        "Kueue asks for nodes as soon as quota is reserved, while ours waits for victims' pods to end; the gang starts "
        "when both are Ready",
    ),
    _pair(CheckKind.ROOM, CheckKind.KUEUE): _Says(
        Severity.WARN,
        "NodesBeforeReuse",
        "Kueue asks for nodes as soon as quota is reserved, so that idle GPUs that ours would hand over are too late; "
        "and a request that fails evicts the gang that ours holds",
        "let ours ask for nodes (spec.provisioning of its ReclaimPolicy) in place of Kueue's check, or let it wait for "
        "pods only (requireFit: false, reuse.enabled: false)",
    ),
    _pair(CheckKind.NODES, CheckKind.KUEUE): _TWO_ASK,
    _pair(CheckKind.NODES, CheckKind.NODES): _TWO_ASK,
    _pair(CheckKind.PODS, CheckKind.MULTIKUEUE): _DISPATCHED,
    _pair(CheckKind.ROOM, CheckKind.MULTIKUEUE): _DISPATCHED,
    _pair(CheckKind.NODES, CheckKind.MULTIKUEUE): _DISPATCHED,
    _pair(CheckKind.KUEUE, CheckKind.MULTIKUEUE): _Says(
        Severity.FAIL,
        "MultiKueueWithProvisioning",
        "Kueue takes a ClusterQueue with both out of service",
        "put Kueue's provisioning check into the ClusterQueues of the worker clusters",
    ),
    _pair(CheckKind.MULTIKUEUE, CheckKind.MULTIKUEUE): _Says(
        Severity.FAIL,
        "MultiKueueTwice",
        "Kueue takes a ClusterQueue with two of them out of service",
        "keep one, with all clusters in its MultiKueueConfig",
    ),
}
"""What two checks do to each other; pairs that are not here do nothing."""


def _of_checks(finding: "partial[Finding]", queue: ClusterQueue, gates: CheckObjects) -> Iterator[Finding]:
    found = _checks_of(queue, gates)
    for missing in _missing(queue, gates):
        yield finding(
            severity=Severity.FAIL,
            check="CheckNotFound",
            what=f"there is no AdmissionCheck {missing}; Kueue admits nothing in this queue",
            do="create it, or remove it from spec.admissionChecksStrategy",
        )
    for (one, for_one), (other, for_other) in combinations(found, 2):
        kinds = [kind for each in (one, other) if (kind := kind_of(each, gates))]
        says = _TOGETHER.get(frozenset(kinds)) if len(kinds) == 2 else None
        if says and (CheckKind.MULTIKUEUE in kinds or _meet(for_one, for_other, queue)):
            names = f"{one.metadata.name} and {other.metadata.name}"
            yield finding(severity=says.severity, check=says.check, what=f"{names}: {says.what}", do=says.do)


def _checks_of(queue: ClusterQueue, gates: CheckObjects) -> list[tuple[AdmissionCheck, frozenset[str]]]:
    """The checks that the queue names and that there are, each with the flavors for which it does."""
    by_name = {check.metadata.name: check for check in gates.checks}
    return [
        (by_name[rule.name], frozenset(rule.on_flavors) or flavors_of(queue))
        for rule in queue.spec.admission_checks_strategy.admission_checks
        if rule.name in by_name
    ]


def _meet(for_one: Set[str], for_other: Set[str], queue: ClusterQueue) -> bool:
    """Whether a Workload may have to pass both: it gets a flavor of every group."""
    groups = [frozenset(flavor.name for flavor in group.flavors) for group in queue.spec.resource_groups]
    in_two_groups = any(one & for_one and other & for_other for one, other in permutations(groups, 2))
    return bool(for_one & for_other) or in_two_groups


def _missing(queue: ClusterQueue, gates: CheckObjects) -> list[str]:
    """Names of checks that there are not."""
    return [] if AdmissionCheck in gates.unsure else _unseen(queue, gates)


def _unknown(queue: ClusterQueue, gates: CheckObjects) -> list[str]:
    """Names of checks that there may be, and that may be ours."""
    return _unseen(queue, gates) if AdmissionCheck in gates.unsure else []


def _unseen(queue: ClusterQueue, gates: CheckObjects) -> list[str]:
    known = {check.metadata.name for check in gates.checks}
    return [rule.name for rule in queue.spec.admission_checks_strategy.admission_checks if rule.name not in known]


def kind_of(check: AdmissionCheck, gates: CheckObjects) -> CheckKind | None:
    """What the check does; None of those of other controllers, and of ours whose policy cannot be followed."""
    match check.spec.controller_name:
        case str(name) if name == PROVISIONING:
            return CheckKind.KUEUE
        case str(name) if name == MULTIKUEUE:
            return CheckKind.MULTIKUEUE
    policy = gates.policy_of(check) if is_ours(check) else None
    if not isinstance(policy, CheckPolicy):
        return None
    if policy.provisioning:
        return CheckKind.NODES
    return CheckKind.ROOM if policy.require_fit else CheckKind.PODS


# --------------------------------------------------------------------------------------------- what is freed, and where


def _of_topology(finding: "partial[Finding]", queue: ClusterQueue, quota: QueueObjects) -> Iterator[Finding]:
    checks = _checks_of(queue, quota.gates)
    if not any(is_ours(check) for check, _ in checks) and not _in_tree(queue, quota, quota.scaled):
        return
    flavors = {each.metadata.name for each in quota.gates.flavors if each.spec.topology_name} & flavors_of(queue)
    if not flavors:
        return
    names = ", ".join(sorted(flavors))
    yield finding(
        severity=Severity.WARN,
        check="Topology",
        what=f"flavor {names} has a Topology, which plans do not foresee: no plan is made for gangs on it",
        do="use flavors without spec.topologyName for gangs that are to get idle GPUs",
    )
    asking = [
        check.metadata.name for check, on in checks if kind_of(check, quota.gates) is CheckKind.NODES and on & flavors
    ]
    if asking and not any(kind_of(check, quota.gates) is CheckKind.KUEUE for check, _ in checks):
        yield finding(
            severity=Severity.WARN,
            check="TopologyAsksForNothing",
            what=f"{', '.join(asking)} asks for nodes, but on flavor {names} Kueue reserves quota only once places for "
            "all pods are there",
            do=f"use Kueue's own check ({PROVISIONING}) for nodes of that flavor",
        )


def _of_freed_quota(finding: "partial[Finding]", queue: ClusterQueue, quota: QueueObjects) -> Iterator[Finding]:
    if _in_tree(queue, quota, quota.reclaimed) and queue.spec.queueing_strategy == _BEST_EFFORT:
        result = (
            "no plan is made for its gangs"
            if quota.refuses_unprotected
            else "it may be admitted into freed quota, and the gang keeps waiting"
        )
        yield finding(
            severity=Severity.WARN,
            check="FreedQuotaNotReserved",
            what="BestEffortFIFO lets a smaller workload overtake the gang for which idle workloads were suspended: "
            f"{result}",
            do="set spec.queueingStrategy to StrictFIFO",
        )
    may_be_guarded = any(is_ours(check) for check, _ in _checks_of(queue, quota.gates)) or _unknown(queue, quota.gates)
    if _in_tree(queue, quota, quota.scaled) and not may_be_guarded:
        yield finding(
            severity=Severity.WARN,
            check="Unguarded",
            what="Kueue admits the next gang about a second after a suspension, while the pods on its GPUs still end",
            do="add an AdmissionCheck whose controllerName is idlegpu.io/reclaim",
        )


def _in_tree(queue: ClusterQueue, quota: QueueObjects, amounts: Mapping[str, int]) -> int:
    """The sum over all queues that share quota with this one, itself included."""
    root = _root(queue, quota.cohorts)
    relatives = (
        each.metadata.name
        for each in quota.gates.cluster_queues
        if each is queue or (root and _root(each, quota.cohorts) == root)
    )
    return sum(amounts.get(name, 0) for name in relatives)


def _root(queue: ClusterQueue, cohorts: Sequence[Cohort]) -> str:
    """The topmost cohort; empty where the queue is in none. A ring of cohorts ends where it began."""
    parents = {each.metadata.name: each.spec.parent_name for each in cohorts}
    name, seen = queue.spec.cohort_name, set[str]()
    while parents.get(name) and name not in seen:
        seen.add(name)
        name = parents[name]
    return name
