"""Do the AdmissionChecks of a ClusterQueue work together, and is what plans free there safe from others?

On a flavor with a Topology no check of ours ever asks for nodes: there Kueue reserves no quota before it has found
places for all pods, unless its own check is there, too.

Kueue's own check creates its ProvisioningRequest while ours is still Pending, and one that fails evicts the gang that
ours holds: so ours never comes first in asking for nodes beside it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import StrEnum
from itertools import combinations, permutations
from typing import NamedTuple, TypeAlias

from scaler.admission.policy import CheckPolicy
from scaler.admission.workload import is_ours
from scaler.doctor.admission_checks import flavors_of, policy_of
from scaler.doctor.facts import DoctorInputs
from scaler.doctor.findings import Finding, Severity, Subject, Topic
from scaler.errors import MetadataError
from scaler.idleness.policy import Reclaim
from scaler.kube.objects.core import condition
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import is_scalable_workload
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota.model import MULTIKUEUE, PROVISIONING
from scaler.reclaim.planner import Unprotected
from scaler.targets.cluster_state import scaled_by_key
from scaler.targets.workloads import owner_key

_Checks: TypeAlias = Sequence[tuple[AdmissionCheck, frozenset[str]]]
"""The checks that a queue names and that exist, each with the flavors for which it does."""


_Scaled: TypeAlias = Sequence[bool]
"""The workloads that may be suspended in queues that share quota, each with whether only a plan may take it."""


def queue_findings(facts: DoctorInputs) -> Iterator[Finding]:
    scaled = _scaled_by_root(facts)
    for queue in sorted(facts.of(ClusterQueue), key=lambda each: each.metadata.name):
        about = Subject(Topic.QUEUES, f"ClusterQueue {queue.metadata.name}")
        found = [*_of_queue(about, queue, scaled.get(_root(queue, facts), ()), facts)]
        yield from found
        if all(each.severity is Severity.OK for each in found):
            yield _fine(about, queue, facts)


def _of_queue(about: Subject, queue: ClusterQueue, scaled: _Scaled, facts: DoctorInputs) -> Iterator[Finding]:
    checks = _checks_of(queue, facts)
    yield from _of_activity(about, queue)
    yield from _of_checks(about, queue, checks, facts)
    if scaled or any(is_ours(check) for check, _ in checks):
        yield from _of_topology(about, queue, checks, facts)
    yield from _of_freed_quota(about, queue, checks, scaled, facts)


def _fine(about: Subject, queue: ClusterQueue, facts: DoctorInputs) -> Finding:
    ours = [check.metadata.name for check, _ in _checks_of(queue, facts) if is_ours(check)]
    guard = f"guarded by {', '.join(ours)}" if ours else "has no check of ours, and no workload that is scaled"
    if not ours and _may_have_more_checks(queue, facts):
        guard = "its checks could not be read"
    return about.ok("Fine", f"{queue.spec.queueing_strategy}, {guard}")


def _of_activity(about: Subject, queue: ClusterQueue) -> Iterator[Finding]:
    active = condition(queue.status.conditions, "Active")
    if active is None or active.status == "True":
        return
    what = f"it admits nothing: {active.reason}: {active.message}"
    if queue.spec.stop_policy != "None":
        yield about.warn("Inactive", what, "set spec.stopPolicy to None when it is to admit again")
    else:
        yield about.fail("Inactive", what, "correct what Kueue says")


# ------------------------------------------------------------------------------------------------- checks, in pairs


class CheckKind(StrEnum):
    """What a check does, as far as it matters to another one beside it."""

    PODS = "ours, waiting for pods only"
    FIT = "ours, waiting until the pods fit"
    NODES = "ours, requesting nodes"
    KUEUE = "Kueue's provisioning"
    MULTIKUEUE = "MultiKueue"


class _Says(NamedTuple):
    severity: Severity
    check: str
    what: str
    do: str = ""


_TWO_ASK = _Says(
    Severity.FAIL,
    "TwoAskForNodes",
    "both request nodes for the same gang: twice as many are created, and a request that fails releases the quota "
    "that the other needs",
    "remove spec.provisioning from the ReclaimPolicy of one, or the other check from the ClusterQueue",
)
_DISPATCHED = _Says(
    Severity.OK,
    "PreGate",
    "MultiKueue dispatches a gang once ours is Ready, which waits for pods of this cluster to end",
)
_TOGETHER: Mapping[frozenset[CheckKind], _Says] = {
    frozenset({CheckKind.PODS, CheckKind.KUEUE}): _Says(
        Severity.OK,
        "PreGate",
        "Kueue requests nodes as soon as quota is reserved, while ours waits for victims' pods to end; the gang starts "
        "when both are Ready",
    ),
    frozenset({CheckKind.FIT, CheckKind.KUEUE}): _Says(
        Severity.WARN,
        "NodesBeforeReuse",
        "Kueue requests nodes as soon as quota is reserved, so that idle GPUs that a plan would free are too late; "
        "and a request that fails evicts the gang that waits for ours",
        "let ours request nodes (spec.provisioning of its ReclaimPolicy) in place of Kueue's check, or let it wait for "
        "pods only (requireFit: false, reuse.enabled: false)",
    ),
    frozenset({CheckKind.NODES, CheckKind.KUEUE}): _TWO_ASK,
    frozenset({CheckKind.NODES}): _TWO_ASK,
    frozenset({CheckKind.PODS, CheckKind.MULTIKUEUE}): _DISPATCHED,
    frozenset({CheckKind.FIT, CheckKind.MULTIKUEUE}): _DISPATCHED,
    frozenset({CheckKind.NODES, CheckKind.MULTIKUEUE}): _DISPATCHED,
    frozenset({CheckKind.KUEUE, CheckKind.MULTIKUEUE}): _Says(
        Severity.FAIL,
        "MultiKueueWithProvisioning",
        "a ClusterQueue with both is not Active",
        "put Kueue's provisioning check into the ClusterQueues of the worker clusters",
    ),
    frozenset({CheckKind.MULTIKUEUE}): _Says(
        Severity.FAIL,
        "MultiKueueTwice",
        "a ClusterQueue with two of them is not Active",
        "keep one, with all clusters in its MultiKueueConfig",
    ),
}
"""What two checks do to each other; pairs that are not here do nothing."""


def _of_checks(about: Subject, queue: ClusterQueue, checks: _Checks, facts: DoctorInputs) -> Iterator[Finding]:
    for missing in _unlisted(queue, facts) if facts.has_all(AdmissionCheck) else ():
        yield about.fail(
            "CheckNotFound",
            f"there is no AdmissionCheck {missing}; Kueue admits nothing in this queue",
            "create it, or remove it from spec.admissionChecksStrategy",
        )
    for (one, for_one), (other, for_other) in combinations(checks, 2):
        kinds = [kind for each in (one, other) if (kind := _kind_of(each, facts))]
        says = _TOGETHER.get(frozenset(kinds)) if len(kinds) == 2 else None
        if says and (CheckKind.MULTIKUEUE in kinds or _meet(for_one, for_other, queue)):
            names = f"{one.metadata.name} and {other.metadata.name}"
            yield about.finding(says.severity, says.check, f"{names}: {says.what}", says.do)


def _checks_of(queue: ClusterQueue, facts: DoctorInputs) -> _Checks:
    by_name = {check.metadata.name: check for check in facts.of(AdmissionCheck)}
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


def _unlisted(queue: ClusterQueue, facts: DoctorInputs) -> list[str]:
    known = {check.metadata.name for check in facts.of(AdmissionCheck)}
    return [rule.name for rule in queue.spec.admission_checks_strategy.admission_checks if rule.name not in known]


def _may_have_more_checks(queue: ClusterQueue, facts: DoctorInputs) -> bool:
    """Whether it names checks that could not be read, and that may be ours."""
    return not facts.has_all(AdmissionCheck) and bool(_unlisted(queue, facts))


def _kind_of(check: AdmissionCheck, facts: DoctorInputs) -> CheckKind | None:
    """What the check does; None of those of other controllers, and of ours whose policy cannot be followed."""
    known = {PROVISIONING: CheckKind.KUEUE, MULTIKUEUE: CheckKind.MULTIKUEUE}.get(check.spec.controller_name)
    policy = policy_of(check, facts) if is_ours(check) else None
    if known is not None or not isinstance(policy, CheckPolicy):
        return known
    if policy.provisioning:
        return CheckKind.NODES
    return CheckKind.FIT if policy.require_fit else CheckKind.PODS


# --------------------------------------------------------------------------------------------- what is freed, and where


def _of_topology(about: Subject, queue: ClusterQueue, checks: _Checks, facts: DoctorInputs) -> Iterator[Finding]:
    flavors = {each.metadata.name for each in facts.of(ResourceFlavor) if each.spec.topology_name} & flavors_of(queue)
    if not flavors:
        return
    names, kinds = ", ".join(sorted(flavors)), {check.metadata.name: _kind_of(check, facts) for check, _ in checks}
    yield about.warn(
        "Topology",
        f"flavor {names} has a Topology, which plans do not foresee: no plan is made for gangs on it",
        "use flavors without spec.topologyName for gangs that are to get idle GPUs",
    )
    requesting = [
        check.metadata.name for check, on in checks if kinds[check.metadata.name] is CheckKind.NODES and on & flavors
    ]
    if requesting and CheckKind.KUEUE not in kinds.values():
        yield about.warn(
            "TopologyAsksForNothing",
            f"{', '.join(requesting)} asks for nodes, but on flavor {names} Kueue reserves quota only once places for "
            "all pods are there",
            f"use Kueue's own check ({PROVISIONING}) for nodes of that flavor",
        )


def _of_freed_quota(
    about: Subject, queue: ClusterQueue, checks: _Checks, scaled: _Scaled, facts: DoctorInputs
) -> Iterator[Finding]:
    if any(scaled) and queue.spec.queueing_strategy == "BestEffortFIFO":
        refused = "no plan is made for its gangs"
        taken = "it may be admitted into freed quota, and the gang keeps waiting"
        is_refused = facts.wanted.reclaim.unprotected is Unprotected.REFUSE
        yield about.warn(
            "FreedQuotaNotReserved",
            "BestEffortFIFO lets a smaller workload overtake the gang for which idle workloads were suspended: "
            f"{refused if is_refused else taken}",
            "set spec.queueingStrategy to StrictFIFO",
        )
    is_dispatched = any(check.spec.controller_name == MULTIKUEUE for check, _ in checks)  # its pods run elsewhere
    is_guarded = is_dispatched or any(is_ours(check) for check, _ in checks) or _may_have_more_checks(queue, facts)
    if scaled and not is_guarded:
        yield about.warn(
            "Unguarded",
            "Kueue admits the next gang about a second after a suspension, while the pods on its GPUs still end",
            "add an AdmissionCheck whose controllerName is idlegpu.io/reclaim",
        )


_Root: TypeAlias = tuple[type, str]


def _root(queue: ClusterQueue, facts: DoctorInputs) -> _Root:
    """The topmost Cohort, or the queue itself where it is in none. A ring of Cohorts ends where it began."""
    parents = {each.metadata.name: each.spec.parent_name for each in facts.of(Cohort)}
    name, passed = queue.spec.cohort_name, set[str]()
    while parents.get(name) and name not in passed:
        passed.add(name)
        name = parents[name]
    return (Cohort, name) if name else (ClusterQueue, queue.metadata.name)


def _scaled_by_root(facts: DoctorInputs) -> Mapping[_Root, _Scaled]:
    roots = {each.metadata.name: _root(each, facts) for each in facts.of(ClusterQueue)}
    found = defaultdict[_Root, list[bool]](list)
    for queue, is_reclaimed in _scaled_in(facts):
        found[roots.get(queue, (ClusterQueue, queue))].append(is_reclaimed)
    return found


def _scaled_in(facts: DoctorInputs) -> Iterator[tuple[str, bool]]:
    """The ClusterQueue of every Workload that is scaled, and whether only a plan may take it."""
    queues = {each.metadata.key: each.spec.cluster_queue for each in facts.of(LocalQueue)}
    scalable = {each.metadata.key: each for each in facts.of(ScalableWorkload)}
    workloads: dict[tuple[str, ...], Workload] = {
        key: each for each in facts.of(Workload) for key in (owner_key(each), each.metadata.key) if key
    }
    for scaled_object, trigger in facts.own_triggers():
        ref = scaled_object.spec.scale_target_ref
        target = scalable.get((scaled_object.metadata.namespace, ref.name)) if is_scalable_workload(ref) else None
        workload = workloads.get(scaled_by_key(target)) if target else None
        queue = queues.get((workload.metadata.namespace, workload.spec.queue_name)) if workload else None
        if queue:
            try:
                yield queue, facts.wanted.policy_of(trigger).reclaim is Reclaim.ON_PRESSURE
            except MetadataError:
                continue
