"""Do the AdmissionChecks that are ours work, and can their ReclaimPolicies be followed?

A check that is not Active keeps every ClusterQueue that names it from admitting anything, and a key that both a flavor
and a check set on pods makes Kueue fail the Workload for good. Both are easy to see here, and hard to see there.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

from scaler.admission.checks import check_policy_of
from scaler.admission.policy import CheckPolicy, Unusable
from scaler.admission.workload import ACTIVE, POLICY_GROUP, POLICY_KIND, is_ours
from scaler.doctor.api_resources import is_served
from scaler.doctor.facts import DoctorInputs
from scaler.doctor.findings import Finding, Severity, Subject, Topic
from scaler.kube.objects.core import condition, is_true
from scaler.kube.objects.idlegpu import ReclaimPolicy
from scaler.kube.objects.kueue_queues import AdmissionCheck, ClusterQueue, ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA
from scaler.kube.scheduling import Taint, untolerated

_DEFAULTS = CheckPolicy()
_TEMPORARY = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes sets for a while."""

_Uses: TypeAlias = Sequence[tuple[ClusterQueue, frozenset[str]]]
"""ClusterQueues that name a check, each with the flavors for which it does."""


def policy_of(check: AdmissionCheck, facts: DoctorInputs) -> CheckPolicy | Unusable | None:
    """What the check's parameters say, or why they cannot be followed; all defaults where it has none.

    None where they could not be read.
    """
    ref = check.spec.parameters
    if ref is None:
        return _DEFAULTS
    if (ref.api_group, ref.kind) != (POLICY_GROUP, POLICY_KIND):
        return Unusable(f"its parameters are a {ref.kind}.{ref.api_group}, not a {POLICY_KIND}.{POLICY_GROUP}")
    found = next((each for each in facts.of(ReclaimPolicy) if each.metadata.name == ref.name), None)
    if found is None:
        return Unusable(f"there is no {POLICY_KIND} {ref.name!r}") if facts.has_all(ReclaimPolicy) else None
    return check_policy_of(found)


def requests_nodes(facts: DoctorInputs) -> bool:
    policies = (policy_of(check, facts) for check in facts.of(AdmissionCheck) if is_ours(check))
    return any(isinstance(each, CheckPolicy) and each.provisioning for each in policies)


def flavors_of(queue: ClusterQueue) -> frozenset[str]:
    return frozenset(flavor.name for group in queue.spec.resource_groups for flavor in group.flavors)


def _uses_of(check: AdmissionCheck, facts: DoctorInputs) -> _Uses:
    return [
        (queue, frozenset(rule.on_flavors) or flavors_of(queue))
        for queue in facts.of(ClusterQueue)
        for rule in queue.spec.admission_checks_strategy.admission_checks
        if rule.name == check.metadata.name
    ]


def check_findings(facts: DoctorInputs) -> Iterator[Finding]:
    checks = (each for each in facts.of(AdmissionCheck) if is_ours(each))
    for check in sorted(checks, key=lambda each: each.metadata.name):
        about = Subject(Topic.CHECKS, f"AdmissionCheck {check.metadata.name}")
        uses, policy = _uses_of(check, facts), policy_of(check, facts)
        found = [*_of_check(about, check, policy, uses, facts)]
        yield from found or [_fine(about, policy, uses)]


def _of_check(
    about: Subject, check: AdmissionCheck, policy: CheckPolicy | Unusable | None, uses: _Uses, facts: DoctorInputs
) -> Iterator[Finding]:
    if isinstance(policy, Unusable):
        do = "correct its parameters: until then every gang that has the check waits"
        yield about.fail("PolicyUnusable", policy.reason, do)
    elif policy is not None:
        yield from _of_policy(about, policy, uses, facts)
        if policy.require_fit:
            yield from _of_taints(about, facts, frozenset(name for _, names in uses for name in names))
    if not uses and facts.has_all(ClusterQueue):
        yield about.warn(
            "Unused",
            "no ClusterQueue names it, so that it has no effect",
            "add it to spec.admissionChecksStrategy of the ClusterQueues whose gangs it is for",
        )
    active = condition(check.status.conditions, ACTIVE)
    if not active or active.status != "True":
        said = f"{active.reason}: {active.message}" if active else "it is not Active yet"
        yield about.finding(
            Severity.FAIL if uses else Severity.WARN,
            "NotActive",
            f"{said}; Kueue admits nothing in the ClusterQueues that name it",
            "correct what it says" if active else "start a replica with --components reconciler, and see its log",
        )


def _of_policy(about: Subject, policy: CheckPolicy, uses: _Uses, facts: DoctorInputs) -> Iterator[Finding]:
    if policy.provisioning and not any(
        is_served(each, facts.served) for each in (PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA)
    ):
        yield about.fail(
            "ProvisioningNotServed",
            "its policy asks for nodes, and ProvisioningRequests are not served",
            "install Cluster Autoscaler's definition (autoscaling.x-k8s.io), or remove spec.provisioning",
        )
    best_effort = sorted({each.metadata.name for each, _ in uses if each.spec.queueing_strategy == "BestEffortFIFO"})
    if policy.provisioning and policy.provisioning.yields_at_limit and best_effort:
        yield about.warn(
            "YieldTakenBack",
            f"its policy lets gangs yield at the limit, but in {', '.join(best_effort)} (BestEffortFIFO) Kueue looks "
            "at a gang that was just evicted a second before those that wait, so that it takes its quota back unless "
            "they ask for the same",
            "use queueingStrategy StrictFIFO there, or atLimit: Hold",
        )
    for key, flavor in sorted(_shared_keys(policy, uses, facts.of(ResourceFlavor))):
        yield about.fail(
            "KeyOfFlavor",
            f"its policy sets node selector {key}, and so does ResourceFlavor {flavor}: where the values differ, "
            "Kueue fails the Workload for good",
            "use a label that no flavor of these ClusterQueues uses",
        )


def _shared_keys(policy: CheckPolicy, uses: _Uses, flavors: Sequence[ResourceFlavor]) -> set[tuple[str, str]]:
    """Node labels that the policy and a flavor set on the same pods, with the flavor."""
    keys = {*policy.provisioning.node_selector} if policy.provisioning else set[str]()
    keys |= {policy.pin_label} if policy.pin_label else set()
    names = {flavor for _, of_check in uses for flavor in of_check}
    used = (each for each in flavors if each.metadata.name in names)
    return {(key, each.metadata.name) for each in used for key in keys & each.spec.node_labels.keys()}


def _of_taints(about: Subject, facts: DoctorInputs, names: Collection[str]) -> Iterator[Finding]:
    """Taints of a flavor's nodes that neither the flavor nor all pods that wait tolerate."""
    used = (each for each in facts.of(ResourceFlavor) if each.metadata.name in names)
    for flavor in sorted(used, key=lambda each: each.metadata.name):
        name, labels = flavor.metadata.name, flavor.spec.node_labels.items()
        nodes = [each for each in facts.of(Node) if labels <= each.metadata.labels.items()]
        closed = Counter(taint for node in nodes for taint in _untolerated(node, flavor, facts.of(Workload)))
        for (key, effect), count in sorted(closed.items()):
            yield about.warn(
                "TaintNotTolerated",
                f"{count} of {len(nodes)} nodes of ResourceFlavor {name} have the taint {key} ({effect}), which "
                "the flavor does not tolerate: gangs whose pods do not tolerate it either do not fit there",
                f"add it to spec.tolerations of ResourceFlavor {name}, if its pods are to go there",
            )


def _untolerated(node: Node, flavor: ResourceFlavor, workloads: Sequence[Workload]) -> set[tuple[str, str]]:
    """A taint by the name of a device that the node has is tolerated by all pods that request it."""
    return {
        (taint.key, taint.effect)
        for taint in node.spec.taints
        if taint.key not in node.status.allocatable
        and not taint.key.startswith(_TEMPORARY)
        and untolerated([taint], flavor.spec.tolerations) is not None
        and not _tolerated_by_all(taint, workloads)
    }


def _tolerated_by_all(taint: Taint, workloads: Sequence[Workload]) -> bool:
    """Whether there are Workloads with checks, and all of their pods tolerate it."""
    pods = [
        pod_set.template.spec.tolerations
        for workload in workloads
        if workload.status.admission_checks and not is_true(workload.status.conditions, "Finished")
        for pod_set in workload.spec.pod_sets
    ]
    return bool(pods) and all(untolerated([taint], each) is None for each in pods)


def _fine(about: Subject, policy: CheckPolicy | Unusable | None, uses: _Uses) -> Finding:
    words = policy.words if isinstance(policy, CheckPolicy) else "its policy could not be read"
    queues = ", ".join(sorted({queue.metadata.name for queue, _ in uses}))
    return about.ok("Active", f"Active{f' in {queues}' if queues else ''}: {words}")
