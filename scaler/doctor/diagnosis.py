"""All findings of a diagnosis. Pure: what was read in, findings out."""

from collections.abc import Iterator
from datetime import datetime

from scaler.admission.workload import is_ours
from scaler.doctor.admission_checks import check_findings, requests_nodes
from scaler.doctor.api_resources import kind_findings
from scaler.doctor.cluster_queues import queue_findings
from scaler.doctor.facts import DoctorInputs, unread_findings
from scaler.doctor.findings import Finding, Subject, Topic
from scaler.doctor.permissions import RuleUser, permission_findings
from scaler.doctor.scaled_objects import scaled_object_findings
from scaler.doctor.signals import metrics_findings
from scaler.kube.objects.idlegpu import ClusterIdlePolicy, IdlePolicy, ScalableWorkload
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.targets.switches import switch_of


def diagnose(facts: DoctorInputs, now: datetime) -> list[Finding]:
    """The findings by topic, in the order in which things depend on each other."""
    findings = [
        *kind_findings(facts.version, facts.served),
        *_namespace_findings(facts),
        *permission_findings(facts.reviews, components_in_use(facts)),
        *unread_findings(facts),
        *check_findings(facts),
        *queue_findings(facts),
        *scaled_object_findings(facts, now),
        *metrics_findings(facts.metrics, now),
    ]
    order = list(Topic)
    return sorted(findings, key=lambda each: order.index(each.topic))


def _namespace_findings(facts: DoctorInputs) -> Iterator[Finding]:
    if not facts.wanted.namespaces:
        return
    yield Subject(Topic.PERMISSIONS, ", ".join(facts.wanted.namespaces)).ok(
        "Confined",
        "nothing else is watched: quota and nodes are not known, so no plans are made and no AdmissionChecks "
        "are answered, and nothing is asked about them here",
    )
    for each in facts.missing_namespaces:
        yield Subject(Topic.PERMISSIONS, f"Namespace {each}").fail(
            "NoSuchNamespace",
            "it is to be watched and does not exist; the others are watched meanwhile",
            "create it with its Roles, or take it out of kubernetes.namespaces of the settings (namespaces of the "
            "chart)",
        )


def components_in_use(facts: DoctorInputs) -> frozenset[RuleUser]:
    found = {RuleUser.SCALER, RuleUser.RECONCILER, *facts.wanted.optional}
    if facts.of(IdlePolicy) or facts.of(ClusterIdlePolicy):
        found.add(RuleUser.POLICIES)
    if facts.of(ClusterIdlePolicy):
        found.add(RuleUser.CLUSTER_POLICIES)
    if any(switch_of(each.spec.job_ref) is not None for each in facts.of(ScalableWorkload)):
        found.add(RuleUser.SWITCHES)
    if facts.wanted.reclaim.pressure:
        found.add(RuleUser.PLANS)
    if any(is_ours(check) for check in facts.of(AdmissionCheck)):
        found.add(RuleUser.CHECKS)
    if requests_nodes(facts):
        found.add(RuleUser.PROVISIONING)
    return frozenset(found)
