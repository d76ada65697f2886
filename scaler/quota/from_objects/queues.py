"""ClusterQueues, Cohorts, flavors, LocalQueues and checks as the quota engine sees them. Pure.

Every function raises ValueError, naming the field, for what cannot be read: a quantity that is none, a policy that this
version does not know. Nothing is guessed there; the caller decides what an unreadable one means.

Source: kueue.x-k8s.io/v1beta2; Kueue, pkg/cache/scheduler (clusterqueue.go, resource.go).
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.core import Quantity, SelectorRequirement, condition, is_true
from scaler.kube.objects.quantity import amount, exact
from scaler.kube.scheduling import NodeRequirement, Operator, Selector
from scaler.quota import model
from scaler.quota.model import FlavorResource, QuotaAdmissionCheck

Choice = TypeVar("Choice", bound=StrEnum)

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")

_FOUND_FROM_OBJECTS = frozenset({"", "Stopped", "FlavorNotFound", "AdmissionCheckNotFound", "AdmissionCheckInactive"})
"""Reasons of the condition Active that the snapshot finds itself: the condition lags behind by up to a second."""


def flavor_of(flavor: kube.ResourceFlavor) -> model.Flavor:
    return model.Flavor(
        name=flavor.metadata.name,
        node_labels=flavor.spec.node_labels,
        taints=flavor.spec.node_taints,
        tolerations=flavor.spec.tolerations,
        topology=flavor.spec.topology_name,
    )


def cohort_of(cohort: kube.Cohort) -> model.QuotaCohort:
    return model.QuotaCohort(
        name=cohort.metadata.name,
        parent=cohort.spec.parent_name,
        quotas=_quotas(cohort.spec.resource_groups),
        fair_weight=_weight(cohort.spec.fair_sharing),
    )


def cluster_queue_of(queue: kube.ClusterQueue) -> model.QuotaClusterQueue:
    spec = queue.spec
    rules = spec.admission_checks_strategy.admission_checks
    return model.QuotaClusterQueue(
        name=queue.metadata.name,
        cohort=spec.cohort_name,
        groups=tuple(
            model.QuotaResourceGroup(frozenset(each.covered_resources), tuple(flavor.name for flavor in each.flavors))
            for each in spec.resource_groups
        ),
        quotas=_quotas(spec.resource_groups),
        strategy=_choice(model.QueueingStrategy.BEST_EFFORT_FIFO, spec.queueing_strategy, "queueingStrategy"),
        namespace_selector=selector_of(spec.namespace_selector) if spec.namespace_selector else None,
        fungibility=_fungibility(spec.flavor_fungibility),
        preemption=_preemption(spec.preemption),
        stop_policy=_choice(model.StopPolicy.NONE, spec.stop_policy, "stopPolicy"),
        inactive_because=_inactive_because(queue),
        fair_weight=_weight(spec.fair_sharing),
        checks=frozenset(each.name for each in rules),
        check_flavors={each.name: frozenset(each.on_flavors) for each in rules if each.on_flavors},
    )


def local_queue_of(queue: kube.LocalQueue) -> model.QuotaLocalQueue:
    return model.QuotaLocalQueue(
        namespace=queue.metadata.namespace,
        name=queue.metadata.name,
        cluster_queue=queue.spec.cluster_queue,
        stop_policy=_choice(model.StopPolicy.NONE, queue.spec.stop_policy, "stopPolicy"),
    )


def check_of(check: kube.AdmissionCheck) -> QuotaAdmissionCheck:
    return QuotaAdmissionCheck(
        name=check.metadata.name,
        controller=check.spec.controller_name,
        active=is_true(check.status.conditions, "Active"),
    )


def selector_of(selector: kube.LabelSelector) -> Selector:
    """Raises: ValueError for an operator that is none."""
    exactly = (
        NodeRequirement(key=key, operator=Operator.IN, values=(value,)) for key, value in selector.match_labels.items()
    )
    return Selector((*exactly, *(_requirement(each) for each in selector.match_expressions)))


def _requirement(requirement: SelectorRequirement) -> NodeRequirement:
    if requirement.operator not in _OPERATORS:
        raise ValueError(f"namespaceSelector: {requirement.operator!r} is not one of {', '.join(_OPERATORS)}")
    return NodeRequirement(
        key=requirement.key, operator=Operator(requirement.operator), values=tuple(requirement.values)
    )


def _quotas(groups: Iterable[kube.ResourceGroup]) -> dict[FlavorResource, model.Quota]:
    return {
        FlavorResource(flavor.name, each.name): _quota(each, f"flavor {flavor.name}")
        for group in groups
        for flavor in group.flavors
        for each in flavor.resources
    }


def _quota(quota: kube.ResourceQuota, where: str) -> model.Quota:
    return model.Quota(
        nominal=_amount(quota.name, quota.nominal_quota, f"{where}: nominalQuota") or 0,
        borrowing_limit=_amount(quota.name, quota.borrowing_limit, f"{where}: borrowingLimit"),
        lending_limit=_amount(quota.name, quota.lending_limit, f"{where}: lendingLimit"),
    )


def _amount(resource: str, quantity: Quantity | None, where: str) -> int | None:
    try:
        return None if quantity is None else amount(resource, quantity)
    except ValueError as error:
        raise ValueError(f"{where} of {resource}: {error}") from None


def _weight(sharing: kube.FairSharing) -> float:
    try:
        return float(exact(sharing.weight))
    except ValueError as error:
        raise ValueError(f"fairSharing.weight: {error}") from None


def _fungibility(fungibility: kube.FlavorFungibility) -> model.Fungibility:
    bare = model.Fungibility()
    return model.Fungibility(
        when_can_borrow=_choice(bare.when_can_borrow, fungibility.when_can_borrow, "whenCanBorrow"),
        when_can_preempt=_choice(bare.when_can_preempt, fungibility.when_can_preempt, "whenCanPreempt"),
        preference=_choice(bare.preference, fungibility.preference, "preference"),
    )


def _preemption(preemption: kube.ClusterQueuePreemption) -> model.Preemption:
    borrow, never = preemption.borrow_within_cohort, model.PreemptionPolicy.NEVER
    return model.Preemption(
        within_cluster_queue=_choice(never, preemption.within_cluster_queue, "withinClusterQueue"),
        reclaim_within_cohort=_choice(never, preemption.reclaim_within_cohort, "reclaimWithinCohort"),
        borrow_within_cohort=_choice(never, borrow.policy, "borrowWithinCohort.policy"),
        max_priority_threshold=borrow.max_priority_threshold,
    )


def _choice(default: Choice, text: str, where: str) -> Choice:
    try:
        return type(default)(text) if text else default
    except ValueError:
        raise ValueError(f"{where}: {text!r} is not one of {', '.join(type(default))}") from None


def _inactive_because(queue: kube.ClusterQueue) -> str:
    """What only Kueue knows, or what the object says of its end."""
    if queue.metadata.deletion_timestamp is not None:
        return "Terminating"
    active = condition(queue.status.conditions, "Active")
    if active is None or active.status != "False" or active.reason in _FOUND_FROM_OBJECTS:
        return ""
    return active.reason
