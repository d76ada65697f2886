"""Does KEDA treat the ScaledObjects that name this scaler as it has to, and what is scaled without it?"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from scaler.doctor.calls.call_credentials import split_address
from scaler.doctor.facts import DoctorInputs, Listing, ListResult
from scaler.doctor.findings import Finding, Severity, Subject, Topic, Unread
from scaler.doctor.verdicts import Doubted, by_reason, unused
from scaler.errors import MetadataError
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Policy, Reclaim, resolve
from scaler.kube.objects.core import ObjectMeta, condition
from scaler.kube.objects.direct_scaling import DIRECT, KEDA
from scaler.kube.objects.idlegpu import ClusterIdlePolicy, IdlePolicy, ScalableWorkload
from scaler.kube.objects.keda import Lease, ScaledObject, Service, Trigger, is_scalable_workload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.targets.cluster_state import scaled_by_key
from scaler.targets.records import record_owner
from scaler.targets.workloads import owner_key

_IN_CLUSTER = re.compile(
    r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)(?:\.svc(?:\.[a-z0-9.-]+)?)?:(?P<port>\d{1,5})"
)
"""A Service's address as pods of the cluster write it."""
_LISTED = 10


def scaled_object_findings(facts: DoctorInputs, now: datetime) -> Iterator[Finding]:
    ours, about = facts.own_triggers(), Subject(Topic.SCALED_OBJECTS)
    yield from _without_keda(facts)
    yield from (of_keda := [*_of_keda(facts, now)] if ours else [])
    yield from _of_leader(facts, now)
    is_dead = any(each.severity is Severity.FAIL for each in of_keda)
    yield from _of_remote_copies(facts)
    yield from _not_judged(facts, now)
    if not ours and facts.has_all(ScaledObject) and not _direct(facts):
        yield about.warn(
            "None",
            "no ScaledObject has a trigger of type external or external-push that names this scaler",
            "see deploy/examples, or keda.scalerAddresses of the settings",
        )
    fine = 0
    for scaled_object, trigger in ours:
        found = [*_of_scaled_object(scaled_object, trigger, facts)]
        if not is_dead:
            found += _of_readiness(scaled_object, now)
        fine += not found
        yield from found
    for address in dict.fromkeys(trigger.metadata.get("scalerAddress", "") for _, trigger in ours):
        yield from _of_address(address, facts)
    if fine:
        yield about.ok("Fine", f"{fine} of {len(ours)} that name this scaler are as they have to be")


def _not_judged(facts: DoctorInputs, now: datetime) -> Iterator[Finding]:
    """What should run and does not, cannot be judged, or is left alone, as the leader has written last; and pods that
    keep GPUs which nothing uses, of these or of nothing that is scaled."""
    scalable = [each for each in facts.of(ScalableWorkload) if each.status.state or not each.is_record]
    found = [Doubted(each.status.reason, _subject_of(each), each.status.message) for each in scalable]
    defaults = resolve(("settings", facts.wanted.defaults))
    pods = [] if isinstance(facts.gpus, Unread) else unused(facts.gpus, defaults, now)
    yield from by_reason(Topic.SCALED_OBJECTS, found, of=len(scalable), also=pods)


def _subject_of(scalable: ScalableWorkload) -> str:
    if (owner := record_owner(scalable)) is not None and scalable.is_record:
        return f"ScaledObject {'/'.join(owner)}"
    return f"ScalableWorkload {'/'.join(scalable.metadata.key)}"


def _of_remote_copies(facts: DoctorInputs) -> Iterator[Finding]:
    """ScalableWorkloads of Workloads that a hub of MultiKueue runs here."""
    copies = [each for each in facts.of(Workload) if each.is_remote_copy]
    subjects = {each.metadata.key for each in copies} | {key for each in copies if (key := owner_key(each))}
    scalable = (each for each in facts.of(ScalableWorkload) if not each.is_record)
    names = [each.metadata.key for each in scalable if scaled_by_key(each) in subjects]
    for name in names[:_LISTED]:
        what = f"its Workload is a remote copy of MultiKueue{_more(names)}: it is never suspended here"
        do = "suspend it on the hub: a ScalableWorkload and a ScaledObject beside the job there; delete this one"
        yield Subject(Topic.SCALED_OBJECTS, f"ScalableWorkload {'/'.join(name)}").warn("RemoteCopy", what, do)


def _more(names: list[tuple[str, str]]) -> str:
    return f" ({len(names)} are)" if len(names) > _LISTED else ""


def _direct(facts: DoctorInputs) -> list[ScalableWorkload]:
    return [each for each in facts.of(ScalableWorkload) if each.spec.actuator == DIRECT]


def _without_keda(facts: DoctorInputs) -> Iterator[Finding]:
    direct = _direct(facts)
    for each in direct:
        found = condition(each.status.conditions, DIRECT)
        if found is not None and found.status == "False":
            about = Subject(Topic.SCALED_OBJECTS, f"ScalableWorkload {'/'.join(each.metadata.key)}")
            yield about.warn(found.reason, found.message, "correct what it says")
    if direct:
        yield Subject(Topic.SCALED_OBJECTS).ok(
            "Direct", f"{len(direct)} ScalableWorkloads are to be scaled without KEDA"
        )
    listed = facts.listings.get(ScaledObject)
    if isinstance(listed, Unread) and listed.is_absent:
        yield from _needs_keda(facts)


def _needs_keda(facts: DoctorInputs) -> Iterator[Finding]:
    """What is not scaled. An IdlePolicy that does not say by what may be completed by a ClusterIdlePolicy that does."""
    of_cluster = facts.of(ClusterIdlePolicy)
    said = {"", KEDA} if not any(each.spec.actuator == DIRECT for each in of_cluster) else {KEDA}
    needing: dict[str, list[ObjectMeta]] = {
        "ScalableWorkloads": [each.metadata for each in facts.of(ScalableWorkload) if each.spec.actuator == KEDA],
        "IdlePolicies": [each.metadata for each in facts.of(IdlePolicy) if each.spec.actuator in said],
        "ClusterIdlePolicies": [each.metadata for each in of_cluster if each.spec.actuator != DIRECT],
    }
    for kinds, found in needing.items():
        if found:
            names = ", ".join("/".join(filter(None, each.key)) for each in found[:_LISTED])
            more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
            what = f"KEDA is not installed, and their actuator is KEDA: {names}{more}"
            do = "set actuator to Direct, or install KEDA"
            yield Subject(Topic.SCALED_OBJECTS, kinds).fail("NeedsKEDA", what, do)


def _of_scaled_object(scaled_object: ScaledObject, trigger: Trigger, facts: DoctorInputs) -> Iterator[Finding]:
    about = Subject(Topic.SCALED_OBJECTS, f"ScaledObject {'/'.join(scaled_object.metadata.key)}")
    yield from _of_replicas(about, scaled_object)
    yield from _of_target(about, scaled_object, facts)
    try:
        policy = facts.wanted.policy_of(trigger)
    except MetadataError as error:
        yield about.fail("InvalidMetadata", str(error), "correct it: until then KEDA gets errors")
    else:
        yield from _of_policy(about, scaled_object, policy, facts)


def _of_readiness(scaled_object: ScaledObject, now: datetime) -> Iterator[Finding]:
    """What KEDA says of it. While KEDA does not run it says nothing new."""
    about = Subject(Topic.SCALED_OBJECTS, f"ScaledObject {'/'.join(scaled_object.metadata.key)}")
    ready, created = condition(scaled_object.status.conditions, "Ready"), scaled_object.metadata.creation_timestamp
    if ready and ready.status == "False":
        do = "see its Events; as long as the scaler answers with errors, KEDA leaves the target as it is"
        yield about.fail("NotReady", f"KEDA says {ready.reason}: {ready.message}", do)
    elif not scaled_object.status.conditions and created is not None and now - created > _SOON:
        do = "see whether KEDA's operator runs, and whether it watches this namespace"
        yield about.fail("NotSeenByKEDA", "KEDA has set no condition of it since it was created", do)


_SOON = timedelta(minutes=2)
"""KEDA sets conditions within seconds; its operator starts within a minute."""


def _of_keda(facts: DoctorInputs, now: datetime) -> Iterator[Finding]:
    """Whether KEDA's operator runs. Without it nothing is scaled, and no ScaledObject says so."""
    about, leases = Subject(Topic.SCALED_OBJECTS, "KEDA"), facts.keda_leases
    if isinstance(leases, Unread):
        yield about.ok("NotRead", "whether its operator runs shows in its Lease, which may not be read here")
        return
    if not any(each.spec.renew_time for each in leases.items):
        yield about.ok("NotKnown", "there is no Lease operator.keda.sh, by which to see whether its operator runs")
    elif silent := _silent_for(leases, now):
        where = ", ".join(each.metadata.namespace for each in leases.items)
        what = f"its operator in namespace {where} has not renewed its Lease for {silent}: nothing is scaled"
        yield about.fail("NotRunning", what, "see whether its pods run")


def _of_leader(facts: DoctorInputs, now: datetime) -> Iterator[Finding]:
    """Whether a replica of this scaler leads, where one ever has."""
    if silent := _silent_for(facts.own_leases, now):
        what = f"no replica has renewed its Lease for {silent}: nothing is suspended, resumed or attached"
        yield Subject(Topic.SCALED_OBJECTS, "the scaler").fail(
            "NotRunning", what, "see whether its pods run, and its log"
        )


def _silent_for(leases: ListResult[Lease], now: datetime) -> str:
    """How long none of the Leases was renewed; empty where that is as it has to be, or not known."""
    renewed = (
        [each.spec.renew_time for each in leases.items if each.spec.renew_time] if isinstance(leases, Listing) else []
    )
    silent = now - max(renewed, default=now)
    return format_duration(_whole(silent)) if silent > _SOON else ""


def _whole(duration: timedelta) -> timedelta:
    return timedelta(seconds=int(duration.total_seconds()))


def _of_replicas(about: Subject, scaled_object: ScaledObject) -> Iterator[Finding]:
    spec = scaled_object.spec
    if spec.fallback is not None:
        what = "spec.fallback makes KEDA scale when the scaler does not know, where it has to leave things alone"
        yield about.fail("Fallback", what, "remove spec.fallback")
    if spec.min_replica_count > 0 and spec.idle_replica_count != 0:
        what = f"minReplicaCount is {spec.min_replica_count}: it is never suspended"
        yield about.warn("NeverZero", what, "set minReplicaCount to 0")
    if spec.max_replica_count != 1:
        cpu = "while the scaler is away KEDA may set its HPA to scale on CPU"
        yield about.warn(
            "MoreThanOne", f"maxReplicaCount is {spec.max_replica_count}; {cpu}", "set maxReplicaCount to 1"
        )
    if spec.cooldown_period == 0:
        what = "cooldownPeriod is 0: KEDA scales to 0 at the first answer that says inactive"
        yield about.warn("NoCooldown", what, "set cooldownPeriod to 30 or more")


def _of_target(about: Subject, scaled_object: ScaledObject, facts: DoctorInputs) -> Iterator[Finding]:
    target, namespace = scaled_object.spec.scale_target_ref, scaled_object.metadata.namespace
    is_served = isinstance(facts.listings.get(ScalableWorkload, Listing()), Listing)
    if not (is_scalable_workload(target) and is_served and facts.has_all(ScalableWorkload)):
        return
    found = (each for each in facts.of(ScalableWorkload) if not each.is_record)
    if not any(each.metadata.key == (namespace, target.name) for each in found):
        what = f"it scales ScalableWorkload {target.name}, which does not exist"
        yield about.fail("TargetNotFound", what, "create it in the same namespace, or correct scaleTargetRef")


def _of_policy(about: Subject, scaled_object: ScaledObject, policy: Policy, facts: DoctorInputs) -> Iterator[Finding]:
    max_window = facts.wanted.max_window
    if policy.idle_after > max_window:
        yield about.fail(
            "WindowTooLong",
            f"idleAfter is {format_duration(policy.idle_after)}, and evaluation.maxWindow of the settings "
            f"{format_duration(max_window)}: KEDA gets errors",
            "ask for less, or raise evaluation.maxWindow",
        )
    if policy.reclaim is not Reclaim.ALWAYS and not is_scalable_workload(scaled_object.spec.scale_target_ref):
        yield about.warn(
            "NotReclaimable",
            f"reclaim is {policy.reclaim}, and it scales a {scaled_object.spec.scale_target_ref.kind}, which "
            "has no Workload whose GPUs a plan could take: it is never suspended",
            "let it scale a ScalableWorkload, or set reclaim to Always",
        )
    if policy.require_delivery and not facts.wanted.notified_by.of(scaled_object.metadata.annotations):
        yield about.warn(
            "OwnerNotTold",
            "requireDelivery is true, and no target of the settings' notifications tells its owner by messages: it is "
            "never suspended",
            "name one in spec.notify of its policy, in annotation idlegpu.io/notify, or in defaultTargets",
        )
    if policy.reclaim is Reclaim.ON_PRESSURE:
        yield from _of_pressure(about, scaled_object, facts)


def _of_pressure(about: Subject, scaled_object: ScaledObject, facts: DoctorInputs) -> Iterator[Finding]:
    if facts.wanted.namespaces:
        yield about.warn(
            "NoPlans",
            "reclaim is OnPressure, and where only some namespaces are watched no plans are made: "
            "it is never suspended",
            "set reclaim to Always, or watch all namespaces",
        )
    elif not facts.wanted.reclaim.pressure:
        what = "reclaim is OnPressure, and reclaim.pressure of the settings is off: it is never suspended"
        yield about.warn("PressureOff", what, "set reclaim.pressure to true")
    grant_for = facts.wanted.reclaim.grant_for
    takes = timedelta(seconds=scaled_object.spec.polling_interval + scaled_object.spec.cooldown_period)
    if takes >= grant_for:
        yield about.warn(
            "SlowerThanGrants",
            f"KEDA takes up to {format_duration(takes)} (pollingInterval + cooldownPeriod) to reach 0, and a "
            f"plan's grant ends after {format_duration(grant_for)}: it may never be taken",
            "lower cooldownPeriod, to 30 for example, or raise reclaim.grantFor of the settings",
        )


# ------------------------------------------------------------------------------------------------------------ addresses


def _of_address(address: str, facts: DoctorInputs) -> Iterator[Finding]:
    about = Subject(Topic.SCALED_OBJECTS, f"scalerAddress {address or '(none)'}")
    try:
        split_address(address)
    except ValueError:
        do = "write for example idle-gpu-scaler.idle-gpu-scaler.svc.cluster.local:9090"
        yield about.fail("NoAddress", "it is not HOST:PORT, so that KEDA calls no scaler", do)
        return
    in_cluster = _IN_CLUSTER.fullmatch(address)
    if in_cluster and facts.has_all(Service):
        yield from _of_service(about, in_cluster, facts)


def _of_service(about: Subject, address: "re.Match[str]", facts: DoctorInputs) -> Iterator[Finding]:
    key = address["namespace"], address["name"]
    name = f"Service {'/'.join(key)}"
    service = next((each for each in facts.of(Service) if each.metadata.key == key), None)
    if service is None:
        yield about.fail("NoService", f"there is no {name}", "correct scalerAddress, or create the Service")
        return
    if int(address["port"]) not in {each.port for each in service.spec.ports}:
        yield about.fail("NoPort", f"{name} has no port {address['port']}", "use the Service's gRPC port")
    if service.spec.cluster_ip != "None":
        what = f"{name} has a cluster IP: KEDA keeps one connection, and so asks one replica only"
        yield about.warn("NotHeadless", what, "make it headless (spec.clusterIP: None)")
