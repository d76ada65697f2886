"""What is to be written so that every job has what its IdlePolicy says? Pure: jobs × policies × objects → writes.

| the job, and its policy            | it has nothing | a policy has attached it | its author has       |
|------------------------------------|----------------|--------------------------|----------------------|
| followed                           | create both    | bring up to date         | conflict; detach     |
| followed, but it cannot be scaled  | problem        | detach                   | problem              |
| followed, not valid                | –              | mode observe             | –                    |
| excluded, a remote copy, no policy | –              | detach                   | –                    |
| without a Workload, policy there   | –              | –                        | –                    |
| without a Workload, policy gone    | –              | detach                   | –                    |

With actuator Direct there is no ScaledObject; `actuators.py` has how jobs change from one actuator to the other.

Detaching never leaves a job suspended: the ScaledObject is deleted first, by which KEDA restores the replicas; a
ScalableWorkload that is at 0 all the same is set to 1, and deleted once its Workload is active again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from scaler.attachment.actuators import copied, removed
from scaler.attachment.objects import (
    POLICY_ANNOTATION,
    TriggerTarget,
    attached_name,
    has_scale_of_its_own,
    scalable_workload,
    scaled_object,
)
from scaler.attachment.policy import AttachmentPolicy, Followed, Job, PolicyKey, followed_policy, in_order
from scaler.attachment.writes import (
    BY_KEDA,
    DIGEST_ANNOTATION,
    Write,
    created,
    deleted,
    is_direct,
    patched,
    updated,
)
from scaler.documents import UNREADABLE
from scaler.kube.objects.core import Json, ObjectMeta
from scaler.kube.objects.direct_scaling import DIRECT
from scaler.kube.objects.idlegpu import IdlePolicyStatus, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef, scalable_workload_ref
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.targets.cluster_state import ObjectLister
from scaler.targets.target_state import Phase
from scaler.targets.workloads import NO_TARGETS, NOTIFY_ANNOTATION, POLICY_LABEL, NotifyTargets

LISTED = 10
"""Conflicts and problems that a policy's status names."""
COPIED_ANNOTATION = "idlegpu.io/copied-from-job"
"""An annotation of a ScaledObject: the job's annotations as they were last copied to it."""
NOTED = (DIGEST_ANNOTATION, POLICY_ANNOTATION, COPIED_ANNOTATION, NOTIFY_ANNOTATION)
"""The annotations of what is attached that a plan depends on."""
_OWN = frozenset({DIGEST_ANNOTATION, POLICY_ANNOTATION})
_INACTIVE = frozenset({Phase.SUSPENDED, Phase.SUSPENDING, Phase.RESUMING, Phase.HELD, ""})


@dataclass(slots=True)
class PolicyStatus:
    """The status of a policy: counts, and what its status names of conflicts and problems."""

    matched: int = 0
    attached: int = 0
    excluded: int = 0
    suspended: int = 0
    conflicts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    needs_keda: bool = False
    """Whether a job that follows it is scaled by KEDA."""

    def add_problem(self, problem: str) -> None:
        """A problem is listed once, of however many jobs."""
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
    statuses: dict[PolicyKey, PolicyStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attached:
    """The ScalableWorkloads and ScaledObjects that are there."""

    scalable_workloads: ObjectLister[ScalableWorkload]
    scaled_objects: ObjectLister[ScaledObject]

    def ours(self) -> set[tuple[str, str]]:
        """(namespace, name) of what policies have attached."""
        stores = (self.scalable_workloads, self.scaled_objects)
        return {each.metadata.key for store in stores for each in store.by_index("policy", POLICY_LABEL)}

    def keda(self, key: tuple[str, str]) -> ScaledObject | None:
        """KEDA's own, and not what stands for one."""
        found = self.scaled_objects.get(*key)
        return found if found is not None and found.resource == SCALED_OBJECT else None

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
    notified_by: NotifyTargets = NO_TARGETS,
) -> Iterator[Plan]:
    """The plan, over and over, with one job more each time; the last one is whole.

    Without a `target` nothing is attached, and what has been stays as it is. `notified_by`: the targets that notify
    owners."""
    made = Plan(statuses={each.key: PolicyStatus() for each in policies})
    ordered, seen = in_order(policies), set[tuple[str, str]]()
    for job in jobs:
        seen.add((job.namespace, attached_name(job)))
        followed = followed_policy(job, ordered, now)
        made.writes += _for_job(job, followed, attached, target, made.statuses)
        if followed is not None and followed.attaches and _cannot_tell(followed, notified_by):
            made.statuses[followed.policy.key].add_problem(_CANNOT_TELL)
        yield made
    existing = {(each.namespace, str(each)) for each in policies}
    for key in sorted(attached.ours() - seen):
        if any(not {("", each), (key[0], each)} & existing for each in _policies_of(key, attached)):
            made.writes += _detach(key, attached)
        yield made
    yield made


def _cannot_tell(followed: Followed, notified_by: NotifyTargets) -> bool:
    """Whether owners have to be notified before a suspension, and nothing does that."""
    annotations = {NOTIFY_ANNOTATION: ", ".join(followed.notify)} if followed.notify else {}
    return followed.metadata.get("requireDelivery") == "true" and not notified_by.of(annotations)


_CANNOT_TELL = (
    "requireDelivery: no target tells owners by messages, so jobs are never suspended; name one in spec.notify, or in "
    "notifications.defaultTargets of the settings"
)


def _for_job(
    job: Job,
    followed: Followed | None,
    attached: Attached,
    target: TriggerTarget | None,
    statuses: Mapping[PolicyKey, PolicyStatus],
) -> list[Write]:
    key = job.namespace, attached_name(job)
    if followed is None:
        return _detach(key, attached)
    status = statuses[followed.policy.key]
    status.matched += 1
    if followed.problem:
        return _observe(job, followed, attached, target, status)
    if _is_kept_from(job, followed, attached, status):
        return _detach(key, attached)
    status.needs_keda |= followed.actuator != DIRECT
    if followed.actuator == DIRECT:
        status.attached += 1
        return list(_attach_directly(job, followed, attached, status))
    status.attached += target is not None or attached.has(job)
    if target is None:
        return []
    return list(_attach(job, followed, attached, target, status))


def _observe(
    job: Job, followed: Followed, attached: Attached, target: TriggerTarget | None, status: PolicyStatus
) -> list[Write]:
    """What has been attached stays so, in mode Observe."""
    if not followed.policy.problem:
        status.problems.append(f"{job}: {followed.problem}")
    key, writes = (job.namespace, attached_name(job)), list[Write]()
    ours, direct = attached.keda(key), attached.scalable_workloads.get(*key)
    status.attached += attached.has(job)
    status.suspended += direct is not None and is_ours(direct.metadata) and direct.spec.replicas == 0
    if target is not None and ours is not None and is_ours(ours.metadata):
        writes += updated(ours, scaled_object(job, followed, target))
    if direct is not None and is_ours(direct.metadata) and direct.spec.actuator == DIRECT:
        writes += updated(direct, scalable_workload(job, replace(followed, actuator=DIRECT)))
    return writes


def _is_kept_from(job: Job, followed: Followed, attached: Attached, status: PolicyStatus) -> bool:
    """Whether anything keeps the job from being attached, which is counted."""
    if followed.excluded is not None:
        status.excluded += 1
        return True
    if problem := unscalable(job, followed):
        status.problems.append(f"{job}: {problem}")
        return True
    if taken := attached.conflict(job):
        status.conflicts.append(f"{job}: {taken}")
        return True
    return False


def unscalable(job: Job, followed: Followed) -> str:
    """Why it cannot be scaled between 1 and 0, in words; empty where it can."""
    if followed.actuator == DIRECT and has_scale_of_its_own(job):
        return f"actuator Direct scales no {job.kind}, which has replicas of its own: it needs KEDA"
    return job.problem


def _attach(
    job: Job, followed: Followed, attached: Attached, target: TriggerTarget, status: PolicyStatus
) -> Iterable[Write]:
    key = job.namespace, attached_name(job)
    found, scaled, wanted = (
        attached.scalable_workloads.get(*key),
        attached.keda(key),
        scaled_object(job, followed, target),
    )
    if not has_scale_of_its_own(job):
        status.suspended += found is not None and found.spec.replicas == 0
        yield from _scalable_by_keda(found, scaled, scalable_workload(job, followed))
    if scaled is None:
        carried = copied(found.metadata.annotations, {}, own=_OWN) if found is not None and is_direct(found) else {}
        yield created(SCALED_OBJECT, wanted, carried)
    else:
        yield from (*updated(scaled, wanted), *_copy_requests(scaled, job))


def _scalable_by_keda(found: ScalableWorkload | None, scaled: ScaledObject | None, wanted: Json) -> list[Write]:
    """One that is scaled directly stays so until its ScaledObject is there."""
    if found is None:
        return [created(SCALABLE_WORKLOAD, wanted)]
    if not is_direct(found):
        return updated(found, wanted)
    if scaled is None:
        return []
    return updated(found, wanted, removed(found.metadata.annotations, scaled.metadata.annotations, own=_OWN))


def _attach_directly(job: Job, followed: Followed, attached: Attached, status: PolicyStatus) -> list[Write]:
    key = job.namespace, attached_name(job)
    found, scaled, wanted = attached.scalable_workloads.get(*key), attached.keda(key), scalable_workload(job, followed)
    status.suspended += found is not None and found.spec.replicas == 0
    if found is None:
        return [created(SCALABLE_WORKLOAD, wanted)]
    return updated(found, wanted) or (_copy_requests(found, job) if scaled is None else _take_over(found, scaled))


def _take_over(found: ScalableWorkload, scaled: ScaledObject) -> list[Write]:
    """The next step from KEDA, which would restore replicas that it has not seen as they are now."""
    metadata = scaled.metadata
    if annotations := copied(metadata.annotations, found.metadata.annotations, own=_OWN):
        return [patched(found, {"metadata": {"annotations": annotations}})]
    if metadata.deletion_timestamp is not None:
        return []
    if scaled.spec.advanced.restore_to_original_replica_count:
        return [patched(scaled, {"spec": {"advanced": {"restoreToOriginalReplicaCount": False}}})]
    return [deleted(SCALED_OBJECT, metadata)]


def _copy_requests(found: ScalableWorkload | ScaledObject, job: Job) -> list[Write]:
    """What the job's owner asks for by annotations, once for each change: the leader acts on them and changes them."""
    metadata = found.metadata
    try:
        before = msgspec.json.decode(metadata.annotations.get(COPIED_ANNOTATION, "{}"), type=dict[str, str])
    except UNREADABLE:
        before = {}
    if before == job.annotations or metadata.deletion_timestamp is not None:
        return []
    keys = sorted({*before, *job.annotations})
    changed = {key: job.annotations.get(key) for key in keys if before.get(key) != job.annotations.get(key)}
    noted = msgspec.json.encode(dict(job.annotations), order="sorted").decode()
    return [patched(found, {"metadata": {"annotations": {**changed, COPIED_ANNOTATION: noted}}})]


def _policies_of(key: tuple[str, str], attached: Attached) -> set[str]:
    found = (attached.scalable_workloads.get(*key), attached.scaled_objects.get(*key))
    return {each.metadata.annotations.get(POLICY_ANNOTATION, "") for each in found if each and is_ours(each.metadata)}


def _detach(key: tuple[str, str], attached: Attached) -> list[Write]:
    scaled, scalable = attached.keda(key), attached.scalable_workloads.get(*key)
    if scaled is not None and is_ours(scaled.metadata):
        return [deleted(SCALED_OBJECT, scaled.metadata)] if scaled.metadata.deletion_timestamp is None else []
    if scalable is None or not is_ours(scalable.metadata) or scalable.metadata.deletion_timestamp is not None:
        return []
    metadata, status = scalable.metadata, scalable.status
    if scalable.spec.replicas == 0:
        by_keda = BY_KEDA if is_direct(scalable) else {}
        return [patched(scalable, {"spec": {"replicas": 1, **by_keda}})]
    is_resumed = status.observed_generation == metadata.generation and status.phase not in _INACTIVE
    return [deleted(SCALABLE_WORKLOAD, metadata)] if is_resumed else []
