"""Does KEDA treat the ScaledObjects that name this scaler as it has to?

| setting                          | why it matters                                                                    |
|----------------------------------|-----------------------------------------------------------------------------------|
| fallback                         | turns our errors, which mean "I do not know", into scale-to-zero or into wake-ups |
| minReplicaCount above 0          | the target never reaches 0                                                        |
| maxReplicaCount other than 1     | the HPA may scale on CPU while the scaler is away                                 |
| cooldownPeriod 0                 | one answer that says inactive is enough                                           |
| pollingInterval + cooldownPeriod | a plan's grant ends before KEDA has acted on it                                   |
| reclaim other than Always        | needs a ScalableWorkload, since plans and boosts are about Kueue's Workloads      |

Pure: objects in, findings out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from scaler.decision.evaluation import own_triggers
from scaler.decision.trigger_metadata import parse_metadata
from scaler.decision.workloads import group_of
from scaler.errors import MetadataError
from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Overrides, Policy, Reclaim, resolve
from scaler.keda.call_credentials import split_address
from scaler.kube.objects.core import condition
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, Service, Trigger
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reporting.doctor.findings import Finding, Severity, Topic

_IN_CLUSTER = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)(?:\.svc(?:\.[a-z0-9.-]+)?)?:(?P<port>\d+)")
"""A Service's address as pods of the cluster write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObjectInputs:
    """The objects and settings, as far as the treatment of ScaledObjects depends on them."""

    scaled_objects: Sequence[ScaledObject] = ()
    sees_all: bool = True
    """Whether these are all that there are."""
    scalable_workloads: Sequence[ScalableWorkload] | None = ()
    """None where they could not be read."""
    services: Sequence[Service] | None = ()
    """None where they could not be read."""
    addresses: frozenset[str] = frozenset()
    """`scalerAddress` values that mean this scaler; empty: all external triggers do."""
    defaults: Overrides = field(default_factory=Overrides)
    grant_for: timedelta = timedelta(minutes=10)
    pressure: bool = True
    max_window: timedelta = timedelta(hours=24)
    is_confined: bool = False
    """To some namespaces, so that no plans are made."""

    def ours(self) -> list[tuple[ScaledObject, Trigger]]:
        """The ScaledObjects with a trigger of ours, each with its first one."""
        return [
            (each, found)
            for each in self.scaled_objects
            for found in own_triggers(each.spec.triggers, self.addresses)[:1]
        ]

    def policy_of(self, trigger: Trigger) -> Policy:
        """What the trigger asks for, with the operator's defaults. Raises: MetadataError."""
        return resolve(("settings", self.defaults), ("trigger metadata", parse_metadata(trigger.metadata))).policy


def has_scalable_workload(scaled_object: ScaledObject) -> bool:
    """Whether it scales a Kueue Workload through our own kind."""
    target = scaled_object.spec.scale_target_ref
    return (group_of(target.api_version), target.kind) == (SCALABLE_WORKLOAD.group, SCALABLE_WORKLOAD.kind)


def scaled_object_findings(scaling: ScaledObjectInputs) -> Iterator[Finding]:
    """What there is to say about ScaledObjects, and the addresses that they name."""
    ours = scaling.ours()
    if not ours and scaling.sees_all:
        yield Finding(
            severity=Severity.WARN,
            topic=Topic.SCALED_OBJECTS,
            check="None",
            what="no ScaledObject has a trigger of type external or external-push that names this scaler",
            do="see deploy/examples, or keda.scalerAddresses of the settings",
        )
    fine = 0
    for scaled_object, trigger in ours:
        found = [*_of_scaled_object(scaled_object, trigger, scaling)]
        fine += not found
        yield from found
    yield from _address_findings([trigger for _, trigger in ours], scaling.services)
    if fine:
        what = f"{fine} of {len(ours)} that name this scaler are as they have to be"
        yield Finding(severity=Severity.OK, topic=Topic.SCALED_OBJECTS, check="Fine", what=what)


def _of_scaled_object(scaled_object: ScaledObject, trigger: Trigger, scaling: ScaledObjectInputs) -> Iterator[Finding]:
    where = f"ScaledObject {'/'.join(scaled_object.metadata.key)}"
    finding = partial(Finding, topic=Topic.SCALED_OBJECTS, where=where)
    yield from _of_replicas(finding, scaled_object)
    yield from _of_target(finding, scaled_object, scaling)
    try:
        policy = scaling.policy_of(trigger)
    except MetadataError as error:
        yield finding(
            severity=Severity.FAIL,
            check="InvalidMetadata",
            what=str(error),
            do="correct it: until then KEDA gets errors",
        )
    else:
        yield from _of_policy(finding, scaled_object, policy, scaling)
    yield from _of_readiness(finding, scaled_object)


def _of_replicas(finding: "partial[Finding]", scaled_object: ScaledObject) -> Iterator[Finding]:
    spec = scaled_object.spec
    if spec.fallback is not None:
        yield finding(
            severity=Severity.FAIL,
            check="Fallback",
            what="spec.fallback makes KEDA scale when the scaler does not know, where it has to leave things alone",
            do="remove spec.fallback",
        )
    if spec.min_replica_count > 0 and spec.idle_replica_count != 0:
        yield finding(
            severity=Severity.WARN,
            check="NeverZero",
            what=f"minReplicaCount is {spec.min_replica_count}: it is never suspended",
            do="set minReplicaCount to 0",
        )
    if spec.max_replica_count != 1:
        yield finding(
            severity=Severity.WARN,
            check="MoreThanOne",
            what=f"maxReplicaCount is {spec.max_replica_count}; while the scaler is away KEDA may set its HPA to scale "
            "on CPU",
            do="set maxReplicaCount to 1",
        )
    if spec.cooldown_period == 0:
        yield finding(
            severity=Severity.WARN,
            check="NoCooldown",
            what="cooldownPeriod is 0: KEDA scales to 0 at the first answer that says inactive",
            do="set cooldownPeriod to 30 or more",
        )


def _of_target(
    finding: "partial[Finding]", scaled_object: ScaledObject, scaling: ScaledObjectInputs
) -> Iterator[Finding]:
    if not has_scalable_workload(scaled_object) or scaling.scalable_workloads is None:
        return
    key = scaled_object.metadata.namespace, scaled_object.spec.scale_target_ref.name
    if not any(each.metadata.key == key for each in scaling.scalable_workloads):
        yield finding(
            severity=Severity.FAIL,
            check="TargetNotFound",
            what=f"it scales ScalableWorkload {key[1]}, which does not exist",
            do="create it in the same namespace, or correct scaleTargetRef",
        )


def _of_policy(
    finding: "partial[Finding]", scaled_object: ScaledObject, policy: Policy, scaling: ScaledObjectInputs
) -> Iterator[Finding]:
    if policy.idle_after > scaling.max_window:
        yield finding(
            severity=Severity.FAIL,
            check="WindowTooLong",
            what=f"idleAfter is {format_duration(policy.idle_after)}, and evaluation.maxWindow of the settings "
            f"{format_duration(scaling.max_window)}: KEDA gets errors",
            do="ask for less, or raise evaluation.maxWindow",
        )
    if policy.reclaim is Reclaim.ALWAYS:
        return
    if not has_scalable_workload(scaled_object):
        yield finding(
            severity=Severity.WARN,
            check="NotReclaimable",
            what=f"reclaim is {policy.reclaim}, and it scales a {scaled_object.spec.scale_target_ref.kind}, which "
            "has no Workload whose GPUs a plan could take: it is never suspended",
            do="let it scale a ScalableWorkload, or set reclaim to Always",
        )
    if policy.reclaim is Reclaim.ON_PRESSURE:
        yield from _of_pressure(finding, scaled_object, scaling)


def _of_pressure(
    finding: "partial[Finding]", scaled_object: ScaledObject, scaling: ScaledObjectInputs
) -> Iterator[Finding]:
    if scaling.is_confined:
        yield finding(
            severity=Severity.WARN,
            check="NoPlans",
            what="reclaim is OnPressure, and where only some namespaces are watched no plans are made: "
            "it is never suspended",
            do="set reclaim to Always, or watch all namespaces",
        )
    elif not scaling.pressure:
        yield finding(
            severity=Severity.WARN,
            check="PressureOff",
            what="reclaim is OnPressure, and reclaim.pressure of the settings is off: it is never suspended",
            do="set reclaim.pressure to true",
        )
    spec = scaled_object.spec
    takes = timedelta(seconds=spec.polling_interval + spec.cooldown_period)
    if takes >= scaling.grant_for:
        yield finding(
            severity=Severity.WARN,
            check="SlowerThanGrants",
            what=f"KEDA takes up to {format_duration(takes)} (pollingInterval + cooldownPeriod) to reach 0, and a "
            f"plan's grant ends after {format_duration(scaling.grant_for)}: it may never be taken",
            do="lower cooldownPeriod, to 30 for example, or raise reclaim.grantFor of the settings",
        )


def _of_readiness(finding: "partial[Finding]", scaled_object: ScaledObject) -> Iterator[Finding]:
    ready = condition(scaled_object.status.conditions, "Ready")
    if ready and ready.status == "False":
        yield finding(
            severity=Severity.WARN,
            check="NotReady",
            what=f"KEDA says {ready.reason}: {ready.message}",
            do="see its Events; as long as the scaler answers with errors, KEDA leaves the target as it is",
        )


# ------------------------------------------------------------------------------------------------------------ addresses


def _address_findings(triggers: Sequence[Trigger], services: Sequence[Service] | None) -> Iterator[Finding]:
    """About each address once, however many ScaledObjects name it."""
    for address in dict.fromkeys(trigger.metadata.get("scalerAddress", "") for trigger in triggers):
        finding = partial(Finding, topic=Topic.SCALED_OBJECTS, where=f"scalerAddress {address or '(none)'}")
        try:
            split_address(address)
        except ValueError:
            yield finding(
                severity=Severity.FAIL,
                check="NoAddress",
                what="it is not HOST:PORT, so that KEDA calls no scaler",
                do="write for example idle-gpu-scaler.idle-gpu-scaler.svc.cluster.local:9090",
            )
            continue
        if services is not None and (found := _IN_CLUSTER.fullmatch(address)):
            yield from _of_service(finding, found, services)


def _of_service(
    finding: "partial[Finding]", address: "re.Match[str]", services: Sequence[Service]
) -> Iterator[Finding]:
    key = address["namespace"], address["name"]
    service = next((each for each in services if each.metadata.key == key), None)
    if service is None:
        yield finding(
            severity=Severity.FAIL,
            check="NoService",
            what=f"there is no Service {'/'.join(key)}",
            do="correct scalerAddress, or create the Service",
        )
        return
    if int(address["port"]) not in {each.port for each in service.spec.ports}:
        yield finding(
            severity=Severity.FAIL,
            check="NoPort",
            what=f"Service {'/'.join(key)} has no port {address['port']}",
            do="use the Service's gRPC port",
        )
    if service.spec.cluster_ip != "None":
        yield finding(
            severity=Severity.WARN,
            check="NotHeadless",
            what=f"Service {'/'.join(key)} has a cluster IP: KEDA keeps one connection, and so asks one replica only",
            do="make it headless (spec.clusterIP: None)",
        )
