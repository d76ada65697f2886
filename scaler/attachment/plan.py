"""What is to be written so that every job has what its IdlePolicy says? Pure: jobs × policies × objects → writes.

| the job, and its policy            | it has nothing | a policy has attached it | its author has       |
|------------------------------------|----------------|--------------------------|----------------------|
| followed                           | create both    | bring up to date         | conflict; detach     |
| followed, but it cannot be scaled  | problem        | detach                   | problem              |
| followed, not valid                | –              | mode observe             | –                    |
| excluded, or no policy             | –              | detach                   | –                    |
| without a Workload, policy there   | –              | –                        | –                    |
| without a Workload, policy gone    | –              | detach                   | –                    |

Detaching never leaves a job suspended: the ScaledObject is deleted first, by which KEDA restores the replicas; a
ScalableWorkload that is at 0 all the same is set to 1, and deleted once its Workload is active again.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from scaler.attachment.objects import (
    POLICY_ANNOTATION,
    TriggerTarget,
    attached_name,
    has_scale_of_its_own,
    scalable_workload,
    scaled_object,
)
from scaler.attachment.policy import AttachmentPolicy, Followed, Job, PolicyKey, followed, in_order
from scaler.decision.cluster_state import ObjectLister
from scaler.decision.scale_subresources import scalable_workload_ref
from scaler.decision.target_state import Phase
from scaler.decision.workloads import NO_TARGETS, NOTIFY_ANNOTATION, POLICY_LABEL, NotifyTargets
from scaler.kube.objects.core import Json, ObjectMeta
from scaler.kube.objects.idlegpu import IdlePolicyStatus, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource

LISTED = 10
"""Conflicts and problems that a policy's status names."""
DIGEST_ANNOTATION = "idlegpu.io/policy-digest"
"""On what a policy has attached: of the object as it was last written."""
COPIED_ANNOTATION = "idlegpu.io/copied-from-job"
"""On a ScaledObject: the job's annotations as they were last copied to it."""
NOTED = (DIGEST_ANNOTATION, POLICY_ANNOTATION, COPIED_ANNOTATION, NOTIFY_ANNOTATION)
"""The annotations of what is attached that a plan depends on."""
_INACTIVE = frozenset({Phase.SUSPENDED, Phase.SUSPENDING, Phase.RESUMING, Phase.HELD, ""})


class Verb(StrEnum):
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    verb: Verb
    resource: Resource
    namespace: str
    name: str
    body: Json = field(default_factory=dict)
    uid: str = ""
    """Of what is deleted."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource.kind} {self.namespace}/{self.name}"


@dataclass(slots=True)
class Standing:
    """How a policy stands: counts, and what its status names of conflicts and problems."""

    matched: int = 0
    attached: int = 0
    excluded: int = 0
    suspended: int = 0
    conflicts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        """One that is said once, of however many jobs."""
        if problem not in self.problems:
            self.problems.append(problem)

    def as_status(self, problem: str, generation: int) -> IdlePolicyStatus:
        problems = [*filter(None, [problem]), *sorted(self.problems)]
        return IdlePolicyStatus(
            observed_generation=generation,
            matched=self.matched,
            attached=self.attached,
            excluded=self.excluded,
            suspended=self.suspended,
            conflicts=len(self.conflicts),
            problems=tuple(problems[:LISTED]),
            conflicting=tuple(sorted(self.conflicts)[:LISTED]),
        )


@dataclass(slots=True)
class Plan:
    writes: list[Write] = field(default_factory=list)
    standings: dict[PolicyKey, Standing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attached:
    """The ScalableWorkloads and ScaledObjects that are there."""

    scalable_workloads: ObjectLister[ScalableWorkload]
    scaled_objects: ObjectLister[ScaledObject]

    def ours(self) -> set[tuple[str, str]]:
        """(namespace, name) of what policies have attached."""
        stores = (self.scalable_workloads, self.scaled_objects)
        return {each.metadata.key for store in stores for each in store.by_index("policy", POLICY_LABEL)}

    def has(self, job: Job) -> bool:
        """Whether a policy has attached it."""
        key = job.namespace, attached_name(job)
        known = self.scalable_workloads.get(*key), self.scaled_objects.get(*key)
        return any(each is not None and is_ours(each.metadata) for each in known)

    def conflict(self, job: Job) -> str:
        """What scales the job already, other than a policy; empty where nothing does."""
        namespace, name = job.namespace, attached_name(job)
        for subject in (job.key, *((namespace, workload) for workload in job.workloads)):
            for scalable in self.scalable_workloads.by_index("subject", subject):
                if not is_ours(scalable.metadata):
                    return f"ScalableWorkload {scalable.metadata.name}"
        target = ScaleTargetRef(api_version=job.api_version, kind=job.kind, name=job.name)
        for each in (target, scalable_workload_ref(name)):
            for scaled in self.scaled_objects.by_index("target", (namespace, each)):
                if not is_ours(scaled.metadata):
                    return f"ScaledObject {scaled.metadata.name}"
        for same in (self.scalable_workloads.get(namespace, name), self.scaled_objects.get(namespace, name)):
            if same is not None and not is_ours(same.metadata):
                return f"the name {name}, which is taken"
        return ""


def is_ours(metadata: ObjectMeta) -> bool:
    """Whether a policy has attached it."""
    return POLICY_LABEL in metadata.labels


def plan_steps(
    jobs: Iterable[Job],
    policies: Sequence[AttachmentPolicy],
    attached: Attached,
    target: TriggerTarget | None,
    now: datetime,
    *,
    told_by: NotifyTargets = NO_TARGETS,
) -> Iterator[Plan]:
    """The plan, over and over, with one job more each time; the last one is whole.

    Without a `target` nothing is attached, and what has been stays as it is. `told_by`: what tells owners by messages.
    """
    made = Plan(standings={each.key: Standing() for each in policies})
    ordered, seen = in_order(policies), set[tuple[str, str]]()
    for job in jobs:
        seen.add((job.namespace, attached_name(job)))
        said = followed(job, ordered, now)
        made.writes += _for_job(job, said, attached, target, made.standings)
        if said is not None and said.attaches and _cannot_tell(said, told_by):
            made.standings[said.policy.key].add_problem(_CANNOT_TELL)
        yield made
    existing = {(each.namespace, str(each)) for each in policies}
    for key in sorted(attached.ours() - seen):
        if any(not {("", each), (key[0], each)} & existing for each in _policies_of(key, attached)):
            made.writes += _detach(key, attached)
        yield made
    yield made


def _cannot_tell(said: Followed, told_by: NotifyTargets) -> bool:
    """Whether owners have to be told before a suspension, and nothing does that."""
    annotations = {NOTIFY_ANNOTATION: ", ".join(said.notify)} if said.notify else {}
    return said.metadata.get("requireDelivery") == "true" and not told_by.of(annotations)


_CANNOT_TELL = (
    "requireDelivery: no target tells owners by messages, so jobs are never suspended; name one in spec.notify, or in "
    "notifications.defaultTargets of the settings"
)


def _for_job(
    job: Job,
    said: Followed | None,
    attached: Attached,
    target: TriggerTarget | None,
    standings: Mapping[PolicyKey, Standing],
) -> list[Write]:
    key = job.namespace, attached_name(job)
    if said is None:
        return _detach(key, attached)
    standing = standings[said.policy.key]
    standing.matched += 1
    if said.problem:
        return _observe(job, said, attached, target, standing)
    if _is_kept_from(job, said, attached, standing):
        return _detach(key, attached)
    if target is None:
        return []
    standing.attached += 1
    return list(_attach(job, said, attached, target, standing))


def _observe(
    job: Job, said: Followed, attached: Attached, target: TriggerTarget | None, standing: Standing
) -> list[Write]:
    """What has been attached stays so, in mode Observe."""
    if not said.policy.problem:
        standing.problems.append(f"{job}: {said.problem}")
    ours = attached.scaled_objects.get(job.namespace, attached_name(job))
    if target is None or ours is None or not is_ours(ours.metadata):
        return []
    return _update(ours, scaled_object(job, said, target))


def _is_kept_from(job: Job, said: Followed, attached: Attached, standing: Standing) -> bool:
    """Whether anything keeps the job from being attached, which is counted."""
    if said.excluded is not None:
        standing.excluded += 1
        return True
    if job.problem:
        standing.problems.append(f"{job}: {job.problem}")
        return True
    if taken := attached.conflict(job):
        standing.conflicts.append(f"{job}: {taken}")
        return True
    return False


def _attach(job: Job, said: Followed, attached: Attached, target: TriggerTarget, standing: Standing) -> Iterable[Write]:
    key = job.namespace, attached_name(job)
    if not has_scale_of_its_own(job):
        found = attached.scalable_workloads.get(*key)
        standing.suspended += found is not None and found.spec.replicas == 0
        yield from _ensure(found, SCALABLE_WORKLOAD, scalable_workload(job, said))
    scaled = attached.scaled_objects.get(*key)
    writes = _ensure(scaled, SCALED_OBJECT, scaled_object(job, said, target))
    yield from writes if scaled is None else [*writes, *_copy_requests(scaled, job)]


def _ensure(found: ScalableWorkload | ScaledObject | None, resource: Resource, body: Json) -> list[Write]:
    if found is not None:
        return _update(found, body)
    metadata = body["metadata"]
    digested = {**body, "metadata": _digested(metadata, body)}
    return [
        Write(
            verb=Verb.CREATE,
            resource=resource,
            namespace=metadata["namespace"],
            name=metadata["name"],
            body=digested,
        )
    ]


def _update(found: ScalableWorkload | ScaledObject, body: Json) -> list[Write]:
    """Nothing where it is as it was last written, and as far as that can be seen nobody has changed it since."""
    metadata = found.metadata
    if metadata.deletion_timestamp is not None:
        return []
    wanted = _digested(body["metadata"], body)
    changed = metadata.annotations.get(DIGEST_ANNOTATION) != wanted["annotations"][DIGEST_ANNOTATION]
    if not changed and not (isinstance(found, ScaledObject) and _is_changed(found, body["spec"])):
        return []
    # The replicas of a ScalableWorkload are KEDA's once it exists.
    resource, spec = (
        (SCALED_OBJECT, {**body["spec"], "fallback": None})
        if isinstance(found, ScaledObject)
        else (SCALABLE_WORKLOAD, {"jobRef": body["spec"]["jobRef"]})
    )
    header = {each: wanted[each] for each in ("labels", "annotations", "ownerReferences")}
    if NOTIFY_ANNOTATION in metadata.annotations:  # perhaps of a policy that says so no more
        header["annotations"] = {NOTIFY_ANNOTATION: None, **header["annotations"]}
    patch = {"metadata": header, "spec": spec}
    return [Write(verb=Verb.PATCH, resource=resource, namespace=metadata.namespace, name=metadata.name, body=patch)]


def _copy_requests(found: ScaledObject, job: Job) -> list[Write]:
    """What the job's owner asks for by annotations, once for each change: the leader acts on them and changes them."""
    metadata = found.metadata
    try:
        before = msgspec.json.decode(metadata.annotations.get(COPIED_ANNOTATION, "{}"), type=dict[str, str])
    except msgspec.DecodeError:
        before = {}
    if before == job.annotations or metadata.deletion_timestamp is not None:
        return []
    keys = sorted({*before, *job.annotations})
    changed = {key: job.annotations.get(key) for key in keys if before.get(key) != job.annotations.get(key)}
    copied = msgspec.json.encode(dict(job.annotations), order="sorted").decode()
    body = {"metadata": {"annotations": {**changed, COPIED_ANNOTATION: copied}}}
    return [Write(verb=Verb.PATCH, resource=SCALED_OBJECT, namespace=metadata.namespace, name=metadata.name, body=body)]


def _is_changed(found: ScaledObject, wanted: Mapping[str, Any]) -> bool:
    """Whether what of it is read differs from what it should be."""
    spec = found.spec
    is_same = (
        spec.max_replica_count == wanted["maxReplicaCount"]
        and spec.min_replica_count == wanted["minReplicaCount"]
        and spec.fallback is None
        and [(each.type, each.metadata) for each in spec.triggers]
        == [(each["type"], each["metadata"]) for each in wanted["triggers"]]
    )
    return not is_same


def _digested(metadata: Json, body: Json) -> dict[str, Any]:
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]
    return {**metadata, "annotations": {**metadata["annotations"], DIGEST_ANNOTATION: digest}}


def _policies_of(key: tuple[str, str], attached: Attached) -> set[str]:
    found = (attached.scalable_workloads.get(*key), attached.scaled_objects.get(*key))
    return {each.metadata.annotations.get(POLICY_ANNOTATION, "") for each in found if each and is_ours(each.metadata)}


def _detach(key: tuple[str, str], attached: Attached) -> list[Write]:
    scaled, scalable = attached.scaled_objects.get(*key), attached.scalable_workloads.get(*key)
    if scaled is not None and is_ours(scaled.metadata):
        return [_deleted(SCALED_OBJECT, scaled.metadata)] if scaled.metadata.deletion_timestamp is None else []
    if scalable is None or not is_ours(scalable.metadata) or scalable.metadata.deletion_timestamp is not None:
        return []
    metadata, status = scalable.metadata, scalable.status
    if scalable.spec.replicas == 0:
        body = {"spec": {"replicas": 1}}
        verb = Verb.PATCH
        return [Write(verb=verb, resource=SCALABLE_WORKLOAD, namespace=key[0], name=key[1], body=body)]
    is_resumed = status.observed_generation == metadata.generation and status.phase not in _INACTIVE
    return [_deleted(SCALABLE_WORKLOAD, metadata)] if is_resumed else []


def _deleted(resource: Resource, metadata: ObjectMeta) -> Write:
    return Write(
        verb=Verb.DELETE, resource=resource, namespace=metadata.namespace, name=metadata.name, uid=metadata.uid
    )
