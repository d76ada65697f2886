"""Do the AdmissionChecks that are ours work, and can their ReclaimPolicies be followed?

A check that is not Active keeps every ClusterQueue that names it from admitting anything, and a key that both a flavor
and a check set on pods makes Kueue fail the Workload for good. Both are easy to see here, and hard to see there.

Pure: objects in, findings out.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

from scaler.admission.checks import check_policy_of
from scaler.admission.policy import AtLimit, CheckPolicy, Unusable
from scaler.admission.workload import ACTIVE, POLICY_GROUP, POLICY_KIND, is_ours
from scaler.kube.objects.core import condition, is_true
from scaler.kube.objects.idlegpu import ReclaimPolicy
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.scheduling import Taint, untolerated
from scaler.reporting.doctor.findings import Finding, Severity, Topic

_DEFAULTS = CheckPolicy()
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes sets for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckObjects:
    """The objects, as far as AdmissionChecks depend on them."""

    checks: Sequence[AdmissionCheck] = ()
    policies: Sequence[ReclaimPolicy] = ()
    cluster_queues: Sequence[ClusterQueue] = ()
    flavors: Sequence[ResourceFlavor] = ()
    nodes: Sequence[Node] = ()
    workloads: Sequence[Workload] = ()
    unsure: Set[type] = frozenset()
    """Kinds of which not all objects could be read, so that none is said to be missing."""

    def policy_of(self, check: AdmissionCheck) -> CheckPolicy | Unusable | None:
        """What the check's parameters say, or why they cannot be followed; all defaults where it has none.

        None where they could not be read.
        """
        asked = check.spec.parameters
        if asked is None:
            return _DEFAULTS
        if (asked.api_group, asked.kind) != (POLICY_GROUP, POLICY_KIND):
            return Unusable(f"its parameters are a {asked.kind}.{asked.api_group}, not a {POLICY_KIND}.{POLICY_GROUP}")
        found = next((each for each in self.policies if each.metadata.name == asked.name), None)
        if found is None:
            return None if ReclaimPolicy in self.unsure else Unusable(f"there is no {POLICY_KIND} {asked.name!r}")
        return check_policy_of(found)

    def uses_of(self, check: AdmissionCheck) -> list[tuple[ClusterQueue, frozenset[str]]]:
        """The ClusterQueues that name the check, each with the flavors for which it does."""
        return [
            (queue, frozenset(rule.on_flavors) or flavors_of(queue))
            for queue in self.cluster_queues
            for rule in queue.spec.admission_checks_strategy.admission_checks
            if rule.name == check.metadata.name
        ]

    def asks_for_nodes(self) -> bool:
        """Whether any check of ours provisions."""
        policies = (self.policy_of(check) for check in self.checks if is_ours(check))
        return any(isinstance(each, CheckPolicy) and each.provisioning for each in policies)


def flavors_of(queue: ClusterQueue) -> frozenset[str]:
    """The names of all flavors that the queue has quota of."""
    return frozenset(flavor.name for group in queue.spec.resource_groups for flavor in group.flavors)


def check_findings(gates: CheckObjects, *, provisioning_served: bool) -> Iterator[Finding]:
    """What there is to say about AdmissionChecks of ours."""
    for check in sorted((each for each in gates.checks if is_ours(each)), key=lambda each: each.metadata.name):
        found = [*_of_check(check, gates, provisioning_served=provisioning_served)]
        yield from found or [_fine(check, gates)]


def _of_check(check: AdmissionCheck, gates: CheckObjects, *, provisioning_served: bool) -> Iterator[Finding]:
    finding = partial(Finding, topic=Topic.CHECKS, where=f"AdmissionCheck {check.metadata.name}")
    uses, policy = gates.uses_of(check), gates.policy_of(check)
    if isinstance(policy, Unusable):
        yield finding(
            severity=Severity.FAIL,
            check="PolicyUnusable",
            what=policy.reason,
            do="correct its parameters: until then every gang that has the check waits",
        )
    elif policy is not None:
        yield from _of_policy(finding, policy, uses, gates.flavors, provisioning_served=provisioning_served)
        if policy.require_fit:
            yield from _of_taints(finding, gates, frozenset(name for _, names in uses for name in names))
    if not uses and ClusterQueue not in gates.unsure:
        yield finding(
            severity=Severity.WARN,
            check="Unused",
            what="no ClusterQueue names it, so that it has no effect",
            do="add it to spec.admissionChecksStrategy of the ClusterQueues whose gangs it is for",
        )
    yield from _of_activity(finding, check, used=bool(uses))


def _of_activity(finding: "partial[Finding]", check: AdmissionCheck, *, used: bool) -> Iterator[Finding]:
    active = condition(check.status.conditions, ACTIVE)
    if active and active.status == "True":
        return
    said = f"{active.reason}: {active.message}" if active else "it is not Active yet"
    yield finding(
        severity=Severity.FAIL if used else Severity.WARN,
        check="NotActive",
        what=f"{said}; Kueue admits nothing in the ClusterQueues that name it",
        do="correct what it says" if active else "start a replica with --components reconciler, and see its log",
    )


def _of_policy(
    finding: "partial[Finding]",
    policy: CheckPolicy,
    uses: Sequence[tuple[ClusterQueue, Collection[str]]],
    flavors: Sequence[ResourceFlavor],
    *,
    provisioning_served: bool,
) -> Iterator[Finding]:
    if policy.provisioning and not provisioning_served:
        yield finding(
            severity=Severity.FAIL,
            check="ProvisioningNotServed",
            what="its policy asks for nodes, and ProvisioningRequests are not served",
            do="install Cluster Autoscaler's definition (autoscaling.x-k8s.io), or remove spec.provisioning",
        )
    if policy.provisioning and policy.provisioning.at_limit is AtLimit.YIELD:
        yield from _of_yielding(finding, uses)
    for key, flavor in sorted(_shared_keys(policy, uses, flavors)):
        yield finding(
            severity=Severity.FAIL,
            check="KeyOfFlavor",
            what=f"its policy sets node selector {key}, and so does ResourceFlavor {flavor}: where the values differ, "
            "Kueue fails the Workload for good",
            do="use a label that no flavor of these ClusterQueues uses",
        )


def _of_yielding(
    finding: "partial[Finding]", uses: Sequence[tuple[ClusterQueue, Collection[str]]]
) -> Iterator[Finding]:
    queues = sorted({each.metadata.name for each, _ in uses if each.spec.queueing_strategy == "BestEffortFIFO"})
    if queues:
        yield finding(
            severity=Severity.WARN,
            check="YieldTakenBack",
            what=f"its policy lets gangs yield at the limit, but in {', '.join(queues)} (BestEffortFIFO) Kueue looks "
            "at a gang that was just evicted a second before those that wait, so that it takes its quota back unless "
            "they ask for the same",
            do="use queueingStrategy StrictFIFO there, or atLimit: Hold",
        )


def _of_taints(finding: "partial[Finding]", gates: CheckObjects, names: Collection[str]) -> Iterator[Finding]:
    """Taints of a flavor's nodes that neither the flavor nor all pods that wait tolerate."""
    for flavor in sorted(
        (each for each in gates.flavors if each.metadata.name in names), key=lambda f: f.metadata.name
    ):
        nodes = [each for each in gates.nodes if flavor.spec.node_labels.items() <= each.metadata.labels.items()]
        shut = Counter(taint for node in nodes for taint in _untolerated(node, flavor, gates.workloads))
        for (key, effect), count in sorted(shut.items()):
            name = flavor.metadata.name
            yield finding(
                severity=Severity.WARN,
                check="TaintNotTolerated",
                what=f"{count} of {len(nodes)} nodes of ResourceFlavor {name} have the taint {key} ({effect}), which "
                "the flavor does not tolerate: gangs whose pods do not tolerate it either do not fit there",
                do=f"add it to spec.tolerations of ResourceFlavor {name}, if its pods are to go there",
            )


def _untolerated(node: Node, flavor: ResourceFlavor, workloads: Sequence[Workload]) -> set[tuple[str, str]]:
    """One by the name of a device that the node has is tolerated by all pods that ask for it."""
    borne = flavor.spec.tolerations
    return {
        (taint.key, taint.effect)
        for taint in node.spec.taints
        if taint.key not in node.status.allocatable
        and not taint.key.startswith(_PASSING)
        and untolerated([taint], borne) is not None
        and not _is_borne(taint, workloads)
    }


def _is_borne(taint: Taint, workloads: Sequence[Workload]) -> bool:
    """Whether there are Workloads with checks, and all of their pods tolerate it."""
    pods = [
        pod_set.template.spec.tolerations
        for workload in workloads
        if workload.status.admission_checks and not is_true(workload.status.conditions, "Finished")
        for pod_set in workload.spec.pod_sets
    ]
    return bool(pods) and all(untolerated([taint], each) is None for each in pods)


def _shared_keys(
    policy: CheckPolicy, uses: Sequence[tuple[ClusterQueue, Collection[str]]], flavors: Sequence[ResourceFlavor]
) -> set[tuple[str, str]]:
    """Node labels that the policy and a flavor set on the same pods, with the flavor."""
    keys = {each.key for each in policy.provisioning.node_selector} if policy.provisioning else set[str]()
    keys |= {policy.pin_label} if policy.pin_label else set()
    given: Mapping[str, Mapping[str, str]] = {each.metadata.name: each.spec.node_labels for each in flavors}
    names = {flavor for _, of_check in uses for flavor in of_check}
    return {(key, name) for name in names for key in keys & given.get(name, {}).keys()}


def _fine(check: AdmissionCheck, gates: CheckObjects) -> Finding:
    policy, queues = gates.policy_of(check), sorted({queue.metadata.name for queue, _ in gates.uses_of(check)})
    told = policy.words if isinstance(policy, CheckPolicy) else "its policy could not be read"
    where = f" in {', '.join(queues)}" if queues else ""
    return Finding(
        severity=Severity.OK,
        topic=Topic.CHECKS,
        check="Active",
        where=f"AdmissionCheck {check.metadata.name}",
        what=f"Active{where}: {told}",
    )
