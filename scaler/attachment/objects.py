"""IdlePolicies as they stand in the API → policies; and the ScalableWorkload and ScaledObject of an attached job.

A ScaledObject of ours is right by construction: it polls, has no fallback (an error must hold the workload, not scale
it), never scales beyond 1, does not suspend what runs when it is created, and restores the replicas when it is deleted.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec

from scaler.attachment.policy import AttachmentPolicy, Criteria, Exclusion, Followed, Job
from scaler.decision.trigger_metadata import SOURCES_ANNOTATION, hook_problem, in_words, parse_metadata
from scaler.errors import MetadataError
from scaler.idleness.policy import FIELDS, NAME_OF_KEY
from scaler.kube.objects import idlegpu
from scaler.kube.objects.core import Json
from scaler.kube.objects.direct_scaling import DIRECT, KEDA
from scaler.kube.objects.kueue_queues import LabelSelector
from scaler.kube.objects.resources import (
    CLUSTER_IDLE_POLICY,
    IDLE_POLICY,
    SCALABLE_WORKLOAD,
    SCALED_KINDS,
    SCALED_OBJECT,
    Resource,
    group_of,
)
from scaler.kube.scheduling import Selector
from scaler.quota.from_objects.queues import selector_of
from scaler.targets.workloads import NOTIFY_ANNOTATION, POLICY_LABEL

POLICY_ANNOTATION = "idlegpu.io/policy"
"""`IdlePolicy/name`: the policy that has attached it."""
_MODES = ("Observe", "Enforce")
_NAME_LENGTH = 54
"""KEDA's HorizontalPodAutoscaler is named `keda-hpa-` and the ScaledObject's name; a label has up to 63 characters."""


def policy_resource(policy: AttachmentPolicy) -> Resource:
    return IDLE_POLICY if policy.namespace else CLUSTER_IDLE_POLICY


def policy_of(found: idlegpu.IdlePolicy, *, hooks: Collection[str] | None = None) -> AttachmentPolicy:
    """The policy; one that is not valid says why in its `problem`, and selects by as much of it as can be read.

    `hooks`: names of those that the settings have; None where that is not known.
    """
    problems: list[str] = []
    spec = found.spec
    if hooks is not None and (problem := hook_problem(_text(_at(found.spec, FIELDS["before_suspend"].place)), hooks)):
        problems.append(f"spec.beforeSuspend: {problem}")
    for name, value, known in (("mode", spec.mode, _MODES), ("actuator", spec.actuator, (KEDA, DIRECT))):
        if value and value not in known:
            problems.append(f"spec.{name}: {value!r} is unknown; write {' or '.join(map(repr, known))}")
    return AttachmentPolicy(
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        precedence=spec.precedence,
        selector=_criteria(spec.selector, "spec.selector", problems, is_namespaced=bool(found.metadata.namespace)),
        exclude=tuple(
            _exclusion(each, f"spec.exclude[{n}]", problems, is_namespaced=bool(found.metadata.namespace))
            for n, each in enumerate(spec.exclude)
        ),
        metadata=_metadata(spec, problems),
        notify=spec.notify,
        actuator=spec.actuator,
        problem="; ".join(problems),
    )


def _exclusion(spec: idlegpu.JobExclusion, where: str, problems: list[str], *, is_namespaced: bool) -> Exclusion:
    criteria, until = _criteria(spec, where, problems, is_namespaced=is_namespaced), spec.until
    if until is not None and until.tzinfo is None:
        problems.append(f"{where}.until: {until.isoformat()} has no zone; write for example {until.isoformat()}Z")
        until = None
    return Exclusion(criteria=criteria, until=until, reason=spec.reason)


def _criteria(spec: idlegpu.JobSelector, where: str, problems: list[str], *, is_namespaced: bool) -> Criteria:
    if is_namespaced and spec.namespaces is not None:
        problems.append(f"{where}.namespaces: an IdlePolicy is about its own namespace; use a ClusterIdlePolicy")
    return Criteria(
        namespaces=None if is_namespaced else _labels(spec.namespaces, f"{where}.namespaces", problems),
        kinds=spec.kinds,
        labels=_labels(spec.labels, f"{where}.labels", problems),
        queues=spec.queues,
        priority_classes=spec.priority_classes,
        gpu_models=spec.gpu_models,
    )


def _labels(selector: LabelSelector | None, where: str, problems: list[str]) -> Selector | None:
    try:
        return None if selector is None else selector_of(selector)
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return None


def _metadata(spec: idlegpu.IdlePolicySpec, problems: list[str]) -> Mapping[str, str]:
    metadata = {each.key: text for each in FIELDS.values() if each.place and (text := _text(_at(spec, each.place)))}
    if spec.mode:
        metadata["mode"] = spec.mode.lower()
    try:
        parse_metadata(metadata)
    except MetadataError as error:
        problems.append(in_words(error.problems, lambda key: f"spec.{'.'.join(FIELDS[NAME_OF_KEY[key]].place)}"))
    return metadata


def _at(spec: Any, place: Sequence[str]) -> Any:
    return reduce(lambda at, part: getattr(at, part, None), place, spec)


def _text(value: Any) -> str:
    """What the spec says, as trigger metadata writes it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return (", " if isinstance(value[:1] and value[0], str) else "; ").join(map(str, value))
    return str(value)


# ---- what a job gets


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerTarget:
    """How KEDA reaches this scaler, and how often it asks."""

    scaler_address: str
    authentication: Mapping[str, str] | None = None
    """The `authenticationRef` of the trigger: kind and name."""
    enable_tls: bool = False
    polling_interval_s: int = 30
    cooldown_s: int = 300


_SCALED = frozenset((each.group, each.kind) for each in SCALED_KINDS)


def has_scale_of_its_own(job: Job) -> bool:
    """Whether KEDA scales it directly: its Kueue Workloads, if any, are of single pods or groups."""
    return (group_of(job.api_version), job.kind) in _SCALED


def attached_name(job: Job) -> str:
    """The name of its ScalableWorkload and ScaledObject: `job-train-4711`, short enough for KEDA, and one job's
    alone."""
    name = f"{job.kind.lower()}-{job.name}"
    if len(name) <= _NAME_LENGTH:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _NAME_LENGTH - 9].rstrip('-.')}-{mark}"


def scalable_workload(job: Job, followed: Followed) -> Json:
    reference = {"apiVersion": job.api_version, "kind": job.kind, "name": job.name}
    if followed.actuator != DIRECT:
        return {**_header(SCALABLE_WORKLOAD, job, followed), "spec": {"replicas": 1, "jobRef": reference}}
    spec = {"replicas": 1, "jobRef": reference, "actuator": DIRECT, "triggerMetadata": dict(followed.metadata)}
    return {**_header(SCALABLE_WORKLOAD, job, followed, _of_trigger(followed)), "spec": spec}


def scaled_object(job: Job, followed: Followed, target: TriggerTarget) -> Json:
    return {
        **_header(SCALED_OBJECT, job, followed, _of_trigger(followed)),
        "spec": {
            "scaleTargetRef": scale_target(job),
            "minReplicaCount": 0,
            "maxReplicaCount": 1,
            "pollingInterval": target.polling_interval_s,
            "cooldownPeriod": target.cooldown_s,
            "initialCooldownPeriod": target.cooldown_s,
            "advanced": {"restoreToOriginalReplicaCount": True},
            "triggers": [_trigger(followed, target)],
        },
    }


def _of_trigger(followed: Followed) -> dict[str, str]:
    """Annotations of what has the trigger metadata."""
    notify = {NOTIFY_ANNOTATION: ", ".join(followed.notify)} if followed.notify else {}
    return {SOURCES_ANNOTATION: _json(followed.sources), **notify}


def scale_target(job: Job) -> dict[str, str]:
    """What the ScaledObject scales: the job, or the ScalableWorkload of the job."""
    if has_scale_of_its_own(job):
        return {"apiVersion": job.api_version, "kind": job.kind, "name": job.name}
    return {
        "apiVersion": SCALABLE_WORKLOAD.api_version,
        "kind": SCALABLE_WORKLOAD.kind,
        "name": attached_name(job),
    }


def _trigger(followed: Followed, target: TriggerTarget) -> dict[str, Any]:
    tls = {"enableTLS": "true"} if target.enable_tls else {}
    trigger: dict[str, Any] = {
        "type": "external-push",
        "name": "gpu-idle",
        "metadata": {"scalerAddress": target.scaler_address, **tls, **followed.metadata},
    }
    if target.authentication is not None:
        trigger["authenticationRef"] = dict(target.authentication)
    return trigger


def _header(
    resource: Resource, job: Job, followed: Followed, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.uid}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "namespace": job.namespace,
            "name": attached_name(job),
            "labels": {POLICY_LABEL: str(followed.policy.kind)},
            "annotations": {POLICY_ANNOTATION: str(followed.policy), **(annotations or {})},
            "ownerReferences": [owner],
        },
    }


def _json(value: Mapping[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(value.items()))).decode()
