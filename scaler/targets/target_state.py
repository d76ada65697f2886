"""Which phase is a scale target in? ScalableWorkload × Kueue Workload, or replicas × pods → one phase.

Only observed state counts.

Asked to be at 0:

| Workload                            | phase                     |
|-------------------------------------|---------------------------|
| none                                | NoWorkload                |
| finished                            | Finished                  |
| a plain Pod's, or another's already | Refused                   |
| a remote copy of MultiKueue         | Refused                   |
| admitted, its plan not carried out  | HeldForPlan               |
| not admitted, with a plan's grant   | WaitingForQuota           |
| active, with our annotation         | that of one at 1          |
| active                              | Suspending                |
| inactive, not by us                 | Suspending                |
| inactive, quota still reserved      | Suspending                |
| inactive, pods still there          | Suspending                |
| inactive, no pods                   | Suspended                 |

Asked to be at 1:

| Workload                            | phase                     |
|-------------------------------------|---------------------------|
| none                                | NoWorkload                |
| finished                            | Finished                  |
| a plain Pod's, or another's already | Refused                   |
| a remote copy of MultiKueue         | Refused                   |
| inactive by us, quota reserved      | Suspending                |
| inactive by us                      | Resuming                  |
| inactive by another client          | DeactivatedByOther        |
| active, no quota                    | WaitingForQuota           |
| active, quota, not admitted         | WaitingForAdmissionChecks |
| admitted, GPU pods not all running  | Starting                  |
| admitted, all GPU pods running      | Running                   |

Of a Workload that MultiKueue has dispatched the pods are on another cluster: whether they run is what that cluster
says, and while nothing is known of that it is Starting, in doubt.

An object with a switch of its own (`switches`) is a Workload here that has no quota, and is admitted while it is not
stopped.

The patch that suspends writes our annotation, and the one that resumes removes it. So one that is active with it was
started by another client: whatever it is asked to be, its phase is that of one at 1, and at 0 the start is a wake-up.

The hub of MultiKueue undoes a change of a remote copy's spec: it deletes the copy and dispatches the Workload again,
which runs within seconds. So a remote copy is never suspended.

What is done next about a ScalableWorkload follows from its phase: `scaler.suspension.transitions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from scaler.idleness.hooks import HookRun
from scaler.idleness.pods import TERMINAL, GpuPod
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import RemoteAnswer
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.resources import WORKLOAD, Resource


class Phase(StrEnum):
    """How far a target is from what it is asked to be: `status.phase` of a ScalableWorkload.

    Any other kind of target is Suspended, Starting or Running.
    """

    NO_WORKLOAD = "NoWorkload"
    FINISHED = "Finished"
    REFUSED = "Refused"
    HELD = "HeldForPlan"
    """A plan asks it to be at 0, and waits for the others that it asks: all are deactivated together, or none is."""
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMING = "Resuming"
    DEACTIVATED_BY_OTHER = "DeactivatedByOther"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_CHECKS = "WaitingForAdmissionChecks"
    STARTING = "Starting"
    RUNNING = "Running"


class SetBack(NamedTuple):
    """Another client has started what was suspended for being idle, and nothing has asked for that.

    Once is a wish to run. From the second time in a row it is left alone: for an hour, for twice as long each time
    after that, and for a day at most, so that no operator is fought for ever and nobody keeps GPUs by two commands.
    """

    at: datetime
    times: int
    """How often in a row."""
    by: str = ""
    """The client, as the API names it; empty where that is not known."""

    @property
    def left_alone_until(self) -> datetime:
        """The end of the time in which it is left alone; not after `at`, where it is not."""
        return self.at + min(timedelta(hours=2 ** min(self.times, 9) // 4), timedelta(days=1))

    @property
    def words(self) -> str:
        times = f" {self.times} times in a row" if self.times > 1 else ""
        return f"{self.by or 'another client'} has started it{times} after it was suspended for being idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWorkload:
    """A Kueue Workload, or an object with a switch of its own, reduced to what a suspension depends on."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    active: bool
    finished: bool
    quota_reserved: bool
    admitted: bool
    annotations: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    suspended_by_us: bool
    """Whether it carries our annotation, written in the same patch that deactivated it."""
    suspended_at: datetime | None = None
    """When that was, as the annotation says."""
    suspended_because: str = ""
    """Its reason, as the annotation says."""
    eviction_reason: str = ""
    """Reason of the Evicted=True condition; empty where it is not evicted."""
    status_message: str = ""
    """Kueue's own words on why it is not admitted."""
    is_plain_pod: bool = False
    """Whether a Pod without a group owns it: deactivation deletes the pod and nothing is left to come back."""
    is_remote_copy: bool = False
    """Whether a hub of MultiKueue has created it here."""
    expected_gpu_pods: int = 0
    """Pods with GPUs that it was admitted with, less those Kueue knows to be done."""
    queue: str = ""
    cluster_queue: str = ""
    resource: Resource = WORKLOAD
    has_quota: bool = True
    """Whether it is Kueue's. What is not has no quota that plans could free."""
    refusal: str = ""
    """Why it cannot be suspended, in words; empty where it can."""
    cluster: str = ""
    """The cluster to which MultiKueue has dispatched it; empty where its pods are here."""
    admitted_at: datetime | None = None
    """The time since which it is admitted, as Kueue says."""
    has_spent_annotation: bool = False
    """Whether it carries our annotation from a suspension that another client has ended."""
    last_activity: datetime | None = None
    """When its own controller saw it at work last."""


class WakeCause(StrEnum):
    """What a suspended workload comes back for."""

    ANNOTATION = "Annotation"
    LINK = "Link"
    """A link in a message to its owner."""
    HTTP = "HTTP"
    WHEN_FREE = "WhenFree"
    DEMAND = "Demand"
    SCHEDULE = "Schedule"
    OTHER = "Other"
    """`kubectl scale`, another trigger of KEDA's, or its own switch."""


class WakeRequest(NamedTuple):
    """A request that a suspended target runs again."""

    cause: WakeCause
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTarget:
    desired_replicas: int
    workload: ObservedWorkload | None
    pods: Sequence[GpuPod] = ()
    was_bound: bool = False
    """Whether a Workload was found for it before."""
    wake_request: WakeRequest | None = None
    when_free_request: str = ""
    warned_at: datetime | None = None
    """When its owner was warned last that it will be suspended."""
    hook_run: HookRun | None = None
    """The last run of the hook that has to end before it is suspended."""
    wakes_foreign: bool = False
    """Whether its owner explicitly asked to run again what another client deactivated."""
    grant: str = ""
    """The plan that may take it for a gang that waits, in words."""
    is_held: bool = False
    """Whether it has a grant, even one that has expired or cannot be read: the PlanExecutor removes that."""
    taken_by: str = ""
    """The older ScalableWorkload that scales the same Workload; empty where there is none."""
    suspended_at: datetime | None = None
    """When it was suspended last, as its status says."""
    unseen: Unknown | None = None
    """Why there is no `workload`, where that is known of an object with a switch of its own."""
    remote: RemoteAnswer | Unknown | None = None
    """What the cluster says to which it is dispatched, or why that is not known; None where its pods are here."""

    @property
    def is_started_by_other(self) -> bool:
        """Whether it was suspended by us, and another client has started it: it is active with our annotation."""
        workload = self.workload
        return workload is not None and workload.active and workload.suspended_by_us and self.desired_replicas == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A target as observed: how far it is, since when it runs, and what its owner requests."""

    desired_replicas: int
    phase: Phase
    message: str = ""
    """The phase in words, such as Kueue's own on why it waits."""
    running_since: datetime | None = None
    """When the newest of its GPU pods' containers started running; never the creation time."""
    warned_at: datetime | None = None
    """When its owner was warned last that it will be suspended. One from before its last work counts for nothing."""
    notified_by: tuple[str, ...] = ()
    """The targets that tell its owner by messages, each of which is accepted or not."""
    notified_at: datetime | None = None
    """When the first of them had notified its owner of that warning; None where none has."""
    wake_request: WakeRequest | None = None
    """What asks for a suspended target to run again; None where nothing does."""
    when_free_request: str = ""
    """What asks for it to run again when its quota and nodes are free, in words; the policy is not meant."""
    suspended_because: str = ""
    """The reason of the suspension by this scaler; empty where there is none."""
    demand: str = ""
    """What asks for it to run for as long as the demand lasts, in words. Suspending it would only wake it again."""
    grant: str = ""
    """The plan that may take it for a gang that waits, in words; empty where none may."""
    doubt: Unknown | None = None
    """Why the target itself cannot be known: it vanished, is refused, or its policy is invalid."""
    is_plannable: bool = True
    """Whether plans can take it: they are about quota, and only that of a Kueue Workload is known."""
    last_activity: datetime | None = None
    """When its own controller saw it at work last: it may make the target busier, never idle."""
    starting_since: datetime | None = None
    """The time since which not all of its GPU pods run, as far as that is known; None where they do."""
    has_gpu_pods: bool = True
    """Whether there is, or shall be, a pod of which it is known that it holds GPUs."""
    suspended_at: datetime | None = None
    """When it was suspended last; None where that is not known."""
    hook_run: HookRun | None = None
    """The last run of the hook that has to end before it is suspended."""
    is_started_by_other: bool = False
    """Whether another client has started it by its own switch, which is what `wake_request` says then."""
    set_back: SetBack | None = None
    """When its suspension was set back last, as its history says."""

    @property
    def admitted_replicas(self) -> int:
        """`status.replicas` of a ScalableWorkload: 1 only while Kueue has it admitted."""
        return int(self.phase in {Phase.RUNNING, Phase.STARTING, Phase.HELD})


def state_of(target: ObservedTarget) -> TargetState:
    phase, message = _phase(target)
    return TargetState(
        desired_replicas=target.desired_replicas,
        phase=phase,
        message=message,
        running_since=_running_since(target),
        starting_since=starting_since(target.pods) if phase is Phase.STARTING else None,
        warned_at=target.warned_at,
        wake_request=target.wake_request or _start_of_other(target),
        when_free_request=target.when_free_request,
        suspended_because=target.workload.suspended_because if target.workload else "",
        grant=target.grant,
        doubt=_doubt(target, phase, message),
        is_plannable=target.workload is None or target.workload.has_quota,
        last_activity=target.workload.last_activity if target.workload else None,
        suspended_at=(target.workload.suspended_at if target.workload else None) or target.suspended_at,
        hook_run=target.hook_run,
        is_started_by_other=target.is_started_by_other and not target.wake_request,
    )


def _running_since(target: ObservedTarget) -> datetime | None:
    match target.remote:
        case None:
            return running_since(target.pods)
        case RemoteAnswer(running_since=since):
            return since
        case Unknown():
            return None


def _start_of_other(target: ObservedTarget) -> WakeRequest | None:
    workload = target.workload if target.is_started_by_other else None
    return WakeRequest(WakeCause.OTHER, f"{workload.resource.kind} {workload.name} was started") if workload else None


_Found = tuple[Phase, str]
"""A phase and what it means, in words."""


def _phase(target: ObservedTarget) -> _Found:
    workload = target.workload
    if workload is None and target.unseen is not None:
        return Phase.NO_WORKLOAD, target.unseen.message
    if workload is None:
        return Phase.NO_WORKLOAD, f"its Kueue Workload {'has vanished' if target.was_bound else 'does not exist (yet)'}"
    if target.taken_by:
        taken = f"ScalableWorkload {target.taken_by} scales {_named(workload)} already; delete one of the two"
        return Phase.REFUSED, taken
    if workload.finished:
        return Phase.FINISHED, f"{_named(workload)} has finished"
    if refusal := _refusal(workload):
        return Phase.REFUSED, refusal
    is_at_zero = target.desired_replicas == 0 and not target.is_started_by_other
    return (_phase_at_zero if is_at_zero else _phase_at_one)(target, workload)


def _refusal(workload: ObservedWorkload) -> str:
    """Why it is not suspended, whatever it is asked to be; empty where it may be."""
    if workload.is_remote_copy:
        return _REMOTE_COPY
    return workload.refusal or (_PLAIN_POD if workload.is_plain_pod else "")


def _named(workload: ObservedWorkload) -> str:
    return f"{workload.resource.kind} {workload.name}"


_REMOTE_COPY = (
    "the Workload is a remote copy of MultiKueue: the hub undoes its suspension and dispatches it again; suspend it on "
    "the hub, with a ScalableWorkload beside the job there"
)
_PLAIN_POD = (
    "the Workload belongs to a plain Pod: deactivating it would delete the pod with nothing left to resume; "
    "point the ScaledObject at the Deployment or StatefulSet that owns the pod"
)


def _phase_at_zero(target: ObservedTarget, workload: ObservedWorkload) -> _Found:
    if workload.active and target.is_held and workload.has_quota:
        return _phase_held(workload)
    if workload.active:
        return Phase.SUSPENDING, f"deactivating the {workload.resource.kind}"
    if not workload.suspended_by_us:
        return Phase.SUSPENDING, "was inactive already; recording that it stays inactive"
    if workload.quota_reserved:
        return Phase.SUSPENDING, "deactivated; Kueue still holds its quota"
    if ending := [pod for pod in target.pods if pod.phase not in TERMINAL]:
        done = "quota released" if workload.has_quota else "stopped"
        return Phase.SUSPENDING, f"{done}; {len(ending)} pod(s) still end"
    return Phase.SUSPENDED, "deactivated, quota released, no pod left" if workload.has_quota else "stopped, no pod left"


def _phase_held(workload: ObservedWorkload) -> _Found:
    """A Workload that Kueue has preempted meanwhile waits for quota like any other, and its plan does without it."""
    if workload.admitted:
        return Phase.HELD, "waiting until all workloads of its plan are scaled to 0"
    return Phase.WAITING_FOR_QUOTA, _why_it_waits(workload)


def _phase_at_one(target: ObservedTarget, workload: ObservedWorkload) -> _Found:
    if not workload.active:
        return _phase_inactive(target, workload)
    if not workload.quota_reserved:
        return Phase.WAITING_FOR_QUOTA, _why_it_waits(workload)
    if not workload.admitted:
        return Phase.WAITING_FOR_CHECKS, workload.status_message or "waiting for admission checks"
    if target.remote is not None:
        return _phase_elsewhere(workload, target.remote)
    running = running_gpu_pods(target.pods)
    if len(running) < workload.expected_gpu_pods or len(running) < len(gpu_pods(target.pods)):
        expected = max(workload.expected_gpu_pods, len(gpu_pods(target.pods)))
        return Phase.STARTING, f"{len(running)} of {expected} GPU pods run{causes(target.pods)}"
    admitted = f"admitted by {workload.cluster_queue or 'its ClusterQueue'}; " if workload.has_quota else ""
    return Phase.RUNNING, f"{admitted}all GPU pods run"


def _phase_elsewhere(workload: ObservedWorkload, remote: RemoteAnswer | Unknown) -> _Found:
    if isinstance(remote, Unknown):
        return Phase.STARTING, remote.message
    if remote.running_since is None:
        return Phase.STARTING, remote.message or f"not all of its GPU pods run on cluster {workload.cluster}"
    admitted = f"admitted by {workload.cluster_queue or 'its ClusterQueue'}"
    return Phase.RUNNING, f"{admitted}; all GPU pods run on cluster {workload.cluster}"


def _phase_inactive(target: ObservedTarget, workload: ObservedWorkload) -> _Found:
    if not (workload.suspended_by_us or target.wakes_foreign):
        if not workload.has_quota:
            stopped = f"another client stopped it; start {_named(workload)}, or set annotation idlegpu.io/wake"
            return Phase.DEACTIVATED_BY_OTHER, stopped
        why = f" ({workload.eviction_reason})" if workload.eviction_reason else ""
        message = f"another client set spec.active to false{why}; set annotation idlegpu.io/wake to run it again"
        return Phase.DEACTIVATED_BY_OTHER, message
    if workload.quota_reserved:
        return Phase.SUSPENDING, "scaled to 1 again; waiting until Kueue has released its quota"
    return Phase.RESUMING, f"activating the {workload.resource.kind}"


def _why_it_waits(workload: ObservedWorkload) -> str:
    if workload.eviction_reason.startswith("DeactivatedDueTo"):
        return (
            f"Kueue deactivated it ({workload.eviction_reason}) and does not queue it again by itself; stop and resume "
            "its LocalQueue (stopPolicy Hold, then None), or set condition Requeued=True with reason Reactivated"
        )
    return workload.status_message or "waiting for quota"


def _doubt(target: ObservedTarget, phase: Phase, message: str) -> Unknown | None:
    workload = target.workload
    if workload is None and target.unseen is not None:
        return target.unseen
    if isinstance(target.remote, Unknown) and phase in (Phase.STARTING, Phase.HELD):
        return target.remote
    reason, message = _reason_to_doubt(target, phase, message)
    return Unknown(reason=reason, message=message) if reason is not None else None


def _reason_to_doubt(target: ObservedTarget, phase: Phase, message: str) -> tuple[UnknownReason | None, str]:
    workload = target.workload
    is_active, kind = workload is not None and workload.active, workload.resource.kind if workload is not None else ""
    match phase:
        case Phase.REFUSED:
            is_copy = workload is not None and workload.is_remote_copy and not target.taken_by
            return UnknownReason.REMOTE_COPY if is_copy else UnknownReason.UNSUPPORTED_WORKLOAD, message
        case Phase.NO_WORKLOAD if target.was_bound:
            return UnknownReason.WORKLOAD_MISSING, message
        case Phase.SUSPENDING if is_active:
            return UnknownReason.SUSPENDING, f"scaled to 0; its {kind} is still active"
        case Phase.RUNNING if target.desired_replicas and target.remote is None and not gpu_pods(target.pods):
            return UnknownReason.NO_GPU_PODS, f"no pod of the {kind} requests a GPU{causes(target.pods)}"
    return None, ""


def gpu_pods(pods: Sequence[GpuPod]) -> list[GpuPod]:
    """The pods on whose GPUs the workload runs or is about to."""
    return [pod for pod in pods if pod.is_member]


def running_gpu_pods(pods: Sequence[GpuPod]) -> list[GpuPod]:
    return [pod for pod in gpu_pods(pods) if pod.is_running]


def running_since(pods: Sequence[GpuPod]) -> datetime | None:
    """When the newest container of the newest GPU pod started running; None while any of them does not run."""
    starts = [pod.running_since for pod in gpu_pods(pods) if pod.is_running and pod.running_since]
    return max(starts) if starts and len(starts) == len(gpu_pods(pods)) else None


_NAMED = 3
"""Pods that a message names; a gang may have thousands that wait for one and the same."""


def causes(pods: Sequence[GpuPod]) -> str:
    """Why GPUs of the pods cannot be judged, after a colon; empty where that is not known of any."""
    found = [f"pod {each.name} {each.cause}" for each in _caused(pods)]
    more = [f"and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return ": " + "; ".join([*found[:_NAMED], *more]) if found else ""


def starting_since(pods: Sequence[GpuPod]) -> datetime | None:
    """The time from which the first of the pods that do not run might have; None where that is known of none."""
    return min((at for each in _caused(pods) if (at := each.starting_since) is not None), default=None)


def _caused(pods: Sequence[GpuPod]) -> list[GpuPod]:
    """Members whose GPUs cannot be judged; where there is no member, any pods that are there."""
    found = gpu_pods(pods) or [each for each in pods if each.phase not in TERMINAL]
    return sorted((each for each in found if each.cause), key=lambda each: each.name)


def state_of_scale(
    *,
    replicas: int,
    pods: Sequence[GpuPod],
    wake_request: WakeRequest | None = None,
    when_free_request: str = "",
    warned_at: datetime | None = None,
    suspended_at: datetime | None = None,
    hook_run: HookRun | None = None,
) -> TargetState:
    """The state of a Deployment, StatefulSet or any other kind that scales its own pods.

    A target of which no pod with GPUs is seen counts as starting: that holds it.
    """
    holders, running = gpu_pods(pods), running_gpu_pods(pods)
    phase = Phase.RUNNING if len(running) == len(holders) >= max(1, replicas) else Phase.STARTING
    if holders:
        message = f"{len(running)} of {max(replicas, len(holders))} GPU pods run"
    else:
        message = "no pod of it requests a GPU" if replicas else "it is scaled to 0"
    return TargetState(
        desired_replicas=replicas,
        phase=phase if replicas else Phase.SUSPENDED,
        message=message + causes(pods),
        running_since=running_since(pods),
        starting_since=starting_since(pods) if phase is Phase.STARTING else None,
        has_gpu_pods=bool(holders),
        warned_at=warned_at,
        wake_request=wake_request,
        when_free_request=when_free_request,
        is_plannable=False,
        suspended_at=suspended_at,
        hook_run=hook_run,
    )


# ---- grants of reclaim plans


class Seeks(StrEnum):
    """What a plan frees for its gang."""

    QUOTA = "Quota"
    NODES = "Nodes"
    """Places on nodes: the gang holds its quota, and this program's AdmissionCheck is Pending until the gang fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The grant in the status of every victim of one plan, the same on each."""

    plan: str
    """Its id: the same plan made twice is the same grant."""
    gang: str
    """`namespace/name` of the Workload it is for."""
    gang_uid: str
    victims: tuple[str, ...]
    """`namespace/name` of all its ScalableWorkloads."""
    granted_at: datetime
    expires_at: datetime
    """The end of the grant; not after `granted_at`: it was withdrawn."""
    seeks: Seeks = Seeks.QUOTA
    check: str = ""
    """Name of the AdmissionCheck that holds the gang back, of one that seeks nodes."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether it suspends nothing any more. It stays for a moment all the same: KEDA may still act on an answer of
        0 that was given while the grant was active, and without any grant that 0 would look like an owner's request."""
        return self.expires_at <= self.granted_at

    @property
    def words(self) -> str:
        return f"plan {self.plan} for Workload {self.gang}"
