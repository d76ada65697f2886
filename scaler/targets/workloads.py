"""What the objects of the API say: a Kueue Workload, the grant of a plan, the annotations of owners, and whether these
were notified of a warning.

| annotation              | value                                         | meaning                                 |
|-------------------------|-----------------------------------------------|-----------------------------------------|
| `idlegpu.io/wake`       | `true`, or the time of the request (RFC 3339) | come back, once                         |
| `idlegpu.io/wake`       | `WhenFree`                                    | come back, once, when nobody waits      |
| `idlegpu.io/keep-until` | a time (RFC 3339)                             | not suspended for being idle until then |
| `idlegpu.io/keep-for`   | a duration                                    | the same, from when the leader sees it  |
| `idlegpu.io/exclude`    | `true`, or a time                             | not suspended at all, or until then     |

They are read from the ScaledObject, from the ScalableWorkload that it scales, and (but for a wake-up) from its Kueue
Workload. Those of a job that a policy attached are copied to its ScaledObject. A wake-up with a time counts only if
it is younger than the suspension, so that one that was left behind does not undo the next suspension.

Source: kueue.x-k8s.io/v1beta2, conditions QuotaReserved, Admitted, Evicted, Finished.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from scaler.documents import UNREADABLE
from scaler.errors import MetadataError
from scaler.idleness.durations import LONGEST_DURATION, parse_duration
from scaler.idleness.hooks import HookOutcome, HookRun
from scaler.idleness.policy import Overrides
from scaler.kube.objects.core import ObjectMeta, condition, is_true, stamp
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import BeforeSuspendStatus, Mark, ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import group_of
from scaler.targets import target_state
from scaler.targets.target_state import Grant, Seeks, WakeCause, WakeRequest

WAKE_ANNOTATION = "idlegpu.io/wake"
KEEP_UNTIL = "idlegpu.io/keep-until"
KEEP_FOR = "idlegpu.io/keep-for"
EXCLUDE = "idlegpu.io/exclude"
_FOR_GOOD = datetime.max.replace(tzinfo=UTC)
OF_OWNERS = (WAKE_ANNOTATION, KEEP_UNTIL, KEEP_FOR, EXCLUDE, "idlegpu.io/asked-by", "idlegpu.io/owner")
"""Annotations that owners set, which are copied from a job to its ScaledObject."""
ASKED_BY = "idlegpu.io/asked-by"
"""Who has set the annotations above, as the verbs write it. It is a claim: anybody who may set them may set it."""
SUSPEND_AT = "idlegpu.io/suspend-at"
"""An annotation of a pod, which asks with an empty one: the leader writes when its workload is to be suspended."""
NOTIFY_ANNOTATION = "idlegpu.io/notify"
"""An annotation of a ScaledObject: targets of the settings that tell its owner, separated by commas."""
MARK_PREFIX = "idlegpu.io/notified-"
"""The prefix of an annotation with a notification target's mark, where 0.1.0 has written it. JSON."""
POLICY_LABEL = "idlegpu.io/policy-kind"
"""A label of what a policy has attached: the policy's kind. An object without it is its author's and left alone."""
_LONGEST_VALUE = 60
"""Characters of an annotation by which an owner asks for something."""
_LONGEST_NAME = 128
"""Characters of a user's name, as in `keep.users` of a policy."""
_WHEN_FREE = "whenfree"
_NO = frozenset({"", "false", "no", "0"})
_YES = frozenset({"true", "yes", "1"})

SUSPENDED_ANNOTATION = "idlegpu.io/suspended"
"""An annotation of a Workload: written in the patch that deactivates it, removed in the one that activates it again. A
Workload with `spec.active: false` and without it was deactivated by another client."""

GROUP_ANNOTATION = "kueue.x-k8s.io/is-group-workload"
"""`true` on the Workload of a group of Pods, whether the group has one Pod (a StatefulSet's only replica) or many."""


def observe(workload: Workload, gpus: GpuResources) -> target_state.ObservedWorkload:
    """The Workload reduced to what a suspension depends on."""
    conditions = workload.status.conditions
    evicted, admitted = condition(conditions, "Evicted"), condition(conditions, "Admitted")
    cause = suspended_annotation(workload.metadata)
    return target_state.ObservedWorkload(
        namespace=workload.metadata.namespace,
        name=workload.metadata.name,
        uid=workload.metadata.uid,
        resource_version=workload.metadata.resource_version,
        active=workload.spec.active,
        finished=is_true(conditions, "Finished"),
        quota_reserved=is_true(conditions, "QuotaReserved"),
        admitted=is_true(conditions, "Admitted"),
        annotations=workload.metadata.annotations,
        suspended_by_us=SUSPENDED_ANNOTATION in workload.metadata.annotations,
        suspended_at=cause.at if cause is not None else None,
        suspended_because=cause.reason if cause is not None else "",
        eviction_reason=evicted.reason if evicted and evicted.status == "True" else "",
        status_message=_why_not_admitted(workload),
        is_plain_pod=_is_plain_pod(workload),
        is_remote_copy=workload.is_remote_copy,
        cluster=workload.status.cluster_name,
        admitted_at=admitted.last_transition_time if admitted is not None and admitted.status == "True" else None,
        expected_gpu_pods=expected_gpu_pods(workload, gpus),
        queue=workload.spec.queue_name,
        cluster_queue=workload.status.admission.cluster_queue if workload.status.admission else "",
    )


def metadata_of(workload: target_state.ObservedWorkload) -> ObjectMeta:
    """The metadata that is observed."""
    return ObjectMeta(
        name=workload.name,
        namespace=workload.namespace,
        uid=workload.uid,
        resource_version=workload.resource_version,
        annotations=workload.annotations,
    )


class SuspendedAnnotation(msgspec.Struct, frozen=True, rename="camel"):
    at: datetime | None = None
    reason: str = ""
    idle_since: datetime | None = None
    restore: dict[str, int | None] | None = None
    """What has to be as it was again, of kinds with a switch of their own; None where nothing was changed."""


def suspended_annotation(metadata: ObjectMeta) -> SuspendedAnnotation | None:
    """The annotation; None where there is none, and an empty one where it cannot be read."""
    annotation = metadata.annotations.get(SUSPENDED_ANNOTATION)
    if annotation is None:
        return None
    try:
        cause = msgspec.json.decode(annotation, type=SuspendedAnnotation)
        return msgspec.structs.replace(cause, at=_in_utc(cause.at), idle_since=_in_utc(cause.idle_since))
    except (*UNREADABLE, OverflowError):
        return SuspendedAnnotation()


def _in_utc(instant: datetime | None) -> datetime | None:
    """The instant in UTC; None where it has no zone. Raises: OverflowError."""
    return instant.astimezone(UTC) if instant and instant.tzinfo else None


def _why_not_admitted(workload: Workload) -> str:
    """Kueue's own words: on quota, or on the admission checks that are not ready."""
    conditions = workload.status.conditions
    if is_true(conditions, "QuotaReserved"):
        waiting = [f"{c.name}: {c.message or c.state}" for c in workload.status.admission_checks if c.state != "Ready"]
        return "; ".join(waiting)
    reserved = condition(conditions, "QuotaReserved")
    return reserved.message if reserved else ""


def _is_plain_pod(workload: Workload) -> bool:
    owners = [(owner.api_version, owner.kind) for owner in workload.metadata.owner_references]
    return owners == [("v1", "Pod")] and workload.metadata.annotations.get(GROUP_ANNOTATION) != "true"


def expected_gpu_pods(workload: Workload, gpus: GpuResources) -> int:
    """Pods with GPUs that the Workload runs as admitted, less those that Kueue knows to be done."""
    admitted = (
        {each.name: each.count for each in workload.status.admission.pod_set_assignments if each.count is not None}
        if workload.status.admission
        else {}
    )
    done = {each.name: each.count for each in workload.status.reclaimable_pods}
    return sum(
        max(0, admitted.get(pod_set.name, pod_set.count) - done.get(pod_set.name, 0))
        for pod_set in workload.spec.pod_sets
        if gpus.of_pod(pod_set.template.spec) > 0
    )


def owner_key(workload: Workload) -> tuple[str, str, str, str] | None:
    """(namespace, API group, kind, name) of the job that owns the Workload; None where nothing does."""
    owner = workload.metadata.controller_owner
    if owner is None:
        return None
    return workload.metadata.namespace, group_of(owner.api_version), owner.kind, owner.name


def grant_of(scalable: ScalableWorkload) -> Grant | None:
    """The grant in the status; None where there is none, or one that cannot be read."""
    found = scalable.status.grant
    if found is None or not found.plan or found.granted_at is None or found.expires_at is None:
        return None
    if found.seeks not in set(Seeks):
        return None
    return Grant(
        plan=found.plan,
        gang=found.workload,
        gang_uid=found.workload_uid,
        victims=found.victims,
        granted_at=found.granted_at,
        expires_at=found.expires_at,
        seeks=Seeks(found.seeks),
        check=found.check,
    )


def wake_request(annotations: Mapping[str, str], *, where: str, suspended_at: datetime | None) -> WakeRequest | None:
    """What requests the wake-up now; None where nothing does."""
    if not has_wake_annotation(annotations) or is_when_free(annotations):
        return None
    asked_at = instant_of(annotations[WAKE_ANNOTATION].strip())
    if asked_at is not None and suspended_at is not None and asked_at <= suspended_at:
        return None
    return WakeRequest(Asker.of(annotations).through, f"annotation {WAKE_ANNOTATION} on {where}")


def has_wake_annotation(annotations: Mapping[str, str]) -> bool:
    """Whether a wake-up is requested, for now or for when there is room; the value `false` requests none, and stays."""
    return annotations.get(WAKE_ANNOTATION, "").strip().lower() not in _NO


def is_when_free(annotations: Mapping[str, str]) -> bool:
    """Whether a wake-up is requested for when its quota and nodes are free."""
    return annotations.get(WAKE_ANNOTATION, "").strip().lower() == _WHEN_FREE


def when_free_request(annotations: Mapping[str, str], *, where: str) -> str:
    """What is requested, in words; empty where nothing is."""
    return f"annotation {WAKE_ANNOTATION} on {where}" if is_when_free(annotations) else ""


def wake_time(now: datetime) -> str:
    """A wake-up that is requested now, as the annotation's value: not before now, in whole seconds, or one of the
    second of its suspension would not count."""
    return stamp((now + timedelta(seconds=1, microseconds=-1)).replace(microsecond=0))


# ---- how owners are notified


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTargets:
    """Targets of the settings that may notify owners."""

    names: tuple[str, ...] = ()
    default: tuple[str, ...] = ()
    """The targets of workloads whose policy and annotation name none."""

    def of(self, annotations: Mapping[str, str]) -> tuple[str, ...]:
        """The targets that notify the owner of a ScaledObject with these annotations."""
        named = annotations.get(NOTIFY_ANNOTATION)
        wanted = self.default if named is None else [each.strip() for each in named.split(",")]
        return tuple(each for each in dict.fromkeys(wanted) if each in self.names)


NO_TARGETS = NotifyTargets()
"""The settings where no target notifies owners."""


def marks_of(scalable: ScalableWorkload) -> dict[str, Mark]:
    """The marks by notification target, also those that 0.1.0 has written; it knew no records."""
    annotated = {} if scalable.is_record else annotated_marks(scalable.metadata.annotations)
    return annotated | scalable.status.notified


def annotated_marks(annotations: Mapping[str, str]) -> dict[str, Mark]:
    """The marks that 0.1.0 has written. One that cannot be read is none: a message twice is better than none."""
    found = {}
    for key, value in annotations.items():
        if key.startswith(MARK_PREFIX):
            try:
                mark = msgspec.json.decode(value, type=Mark)
                at, delivered_at = _in_utc(mark.at), _in_utc(mark.delivered_at)
            except (*UNREADABLE, OverflowError):
                continue
            if at is not None and delivered_at is not None:
                found[key.removeprefix(MARK_PREFIX)] = Mark(at=at, state=mark.state, delivered_at=delivered_at)
    return found


def notified_at(marks: Mapping[str, Mark], warned_at: datetime | None, targets: Collection[str]) -> datetime | None:
    """When the first of the targets had notified the owner of the warning of `warned_at`; None where none has.

    A mark says so whose line is Warned and not older than the warning: one of an earlier warning is.
    """
    delivered = (mark.delivered_at for name, mark in marks.items() if name in targets and _is_of(mark, warned_at))
    return min(delivered, default=None)


def _is_of(mark: Mark, warned_at: datetime | None) -> bool:
    return mark.state == _WARNED and warned_at is not None and mark.at >= warned_at.replace(microsecond=0)


_WARNED = "Warned"
"""The state of `candidate`, which is made of decisions."""


# ---- the hook that ends before a suspension


def hook_run_of(found: BeforeSuspendStatus | None) -> HookRun | None:
    """The run; None where there is none, or one that cannot be read: then the hook runs anew."""
    started_at = _in_utc(found.started_at) if found is not None else None
    if found is None or started_at is None or found.outcome not in {"", *HookOutcome}:
        return None
    return HookRun(
        hook=found.hook,
        started_at=started_at,
        ended_at=_in_utc(found.ended_at),
        outcome=HookOutcome(found.outcome) if found.outcome else None,
        message=found.message,
        saved_at=_in_utc(found.saved_at),
    )


# ---- what owners ask for


def keep_overrides(annotations: Mapping[str, str], *, where: str) -> Overrides:
    """The policy fields that annotations set.

    Raises: MetadataError for a value that cannot be read. A typo in a keep annotation must not suspend the workload,
    so the caller must not decide without it.
    """
    values = {key: _value(annotations, key) for key in (KEEP_UNTIL, KEEP_FOR, EXCLUDE)}
    keep_until = _instant(values[KEEP_UNTIL], f"annotation {KEEP_UNTIL} on {where}")
    if values[KEEP_FOR]:
        keep_for(annotations, where=where)
        keep_until = _FOR_GOOD  # until the leader has written the end
    if values[EXCLUDE].lower() in _NO:
        return Overrides(keep_until=keep_until)
    if values[EXCLUDE].lower() in _YES:
        return Overrides(keep_until=keep_until, exclude_until=_FOR_GOOD)
    exclude_until = _instant(values[EXCLUDE], f"annotation {EXCLUDE} on {where}", "'true' or ")
    return Overrides(keep_until=keep_until, exclude_until=exclude_until)


class Asker(NamedTuple):
    """Who has set the annotations of an owner, by their own words, and through what: the value of `ASKED_BY`."""

    name: str = ""
    through: WakeCause = WakeCause.ANNOTATION

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> "Asker":
        """Who asked, with as much of the words as a name has."""
        text = annotations.get(ASKED_BY, "")
        for through, (begin, end) in _WRITTEN.items():
            if text.startswith(begin) and text.endswith(end):
                return cls(text[len(begin) : len(text) - len(end)][:_LONGEST_NAME], through)
        return cls(text[:_LONGEST_NAME])

    def __str__(self) -> str:
        begin, end = _WRITTEN.get(self.through, ("", ""))
        return f"{begin}{self.name}{end}"


_WRITTEN = {
    WakeCause.LINK: ("link to ", ""),
    WakeCause.HTTP: ("", " over HTTP"),
    WakeCause.WHEN_FREE: ("", ", WhenFree"),
}
"""How it begins and ends where it was not the one named there who wrote the annotation."""


def keep_for(annotations: Mapping[str, str], *, where: str) -> timedelta | None:
    """How long it shall be kept from now on; None where nobody asks for that. Raises: MetadataError."""
    value = _value(annotations, KEEP_FOR)
    if not value:
        return None
    try:
        found: timedelta = parse_duration(value)
    except (ValueError, OverflowError) as error:
        raise MetadataError(f"annotation {KEEP_FOR} on {where}: {error}") from None
    return min(found, LONGEST_DURATION)


def _value(annotations: Mapping[str, str], key: str) -> str:
    """The value as it is written, up to a length that none has which can be read: errors repeat it."""
    value = annotations.get(key, "").strip()
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"


def _instant(value: str, where: str, otherwise: str = "") -> datetime | None:
    if value and (found := instant_of(value)) is None:
        raise MetadataError(
            f"{where}: {value!r} is not a time; write {otherwise}it with its zone, such as '2026-12-24T18:00:00Z'"
        )
    return found if value else None


def instant_of(text: str) -> datetime | None:
    """The instant in UTC, or None for what is no instant: neither time nor zone are guessed."""
    try:
        return _in_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None
