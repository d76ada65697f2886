"""ScalableWorkload × Kueue Workload → where it stands, and the one thing to do next.

Everything that drives `Workload.spec.active` is decided in this file, from observed state only, as two tables.

Laws:

* Only `spec.active` is ever toggled. The DeactivationTarget condition is never used: once set it is not removed and
  turns every reactivation back.
* A Workload is not reactivated before `QuotaReserved=False`: until then Kueue still counts it and may over-commit.
* Kueue may recreate a Workload, and then it comes back active. Asking again every time (level-triggered) re-asserts.
* What somebody else deactivated is theirs to reactivate; it is reported, not fought. So is what finished or vanished.

Asked to be at 0:

| Workload                            | phase            | next       |
|-------------------------------------|------------------|------------|
| none                                | NoWorkload       | –          |
| finished                            | Finished         | –          |
| a plain Pod's, or another's already | Refused          | –          |
| admitted, its plan not carried out  | HeldForPlan      | wait       |
| not admitted, with a plan's grant   | WaitingForQuota  | wait       |
| active                              | Suspending       | deactivate |
| inactive, not by us                 | Suspending       | adopt      |
| inactive, quota still reserved      | Suspending       | wait       |
| inactive, pods still there          | Suspending       | wait       |
| inactive, no pods                   | Suspended        | –          |

Asked to be at 1:

| Workload                            | phase            | next       |
|-------------------------------------|------------------|------------|
| none                                | NoWorkload       | –          |
| finished                            | Finished         | –          |
| inactive by us, quota reserved      | Suspending       | wait       |
| inactive by us                      | Resuming         | activate   |
| inactive by somebody else           | DeactivatedByOther | –        |
| active, no quota                    | WaitingForQuota  | –          |
| active, quota, not admitted         | WaitingForAdmissionChecks | – |
| admitted, GPU pods not all running  | Starting         | –          |
| admitted, all GPU pods running      | Running          | –          |
| active with our note still on it    | as above         | disown     |
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from scaler.core.idleness import Unknown
from scaler.core.pods import TERMINAL, Pod
from scaler.core.reasons import Unknowable
from scaler.core.replicas import Stage, Standing


class Phase(StrEnum):
    """`status.phase` of a ScalableWorkload."""

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


class Step(StrEnum):
    """What to do to the Workload. Waiting and having nothing to do are both no step."""

    ACTIVATE = "Activate"
    DEACTIVATE = "Deactivate"
    ADOPT = "Adopt"
    """Note on an inactive Workload that it is wanted inactive, so that asking for 1 later activates it."""
    DISOWN = "Disown"
    """Take that note off an active Workload that somebody else has activated, or his next deactivation seems ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A Kueue Workload as observed, reduced to what a suspension depends on."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    active: bool
    finished: bool
    quota_reserved: bool
    admitted: bool
    suspended_by_us: bool
    """Whether it carries our annotation, written in the same patch that deactivated it."""
    suspended_at: datetime | None = None
    """When that was, as the annotation says."""
    eviction_reason: str = ""
    """Reason of the Evicted=True condition; empty where it is not evicted."""
    status_message: str = ""
    """Kueue's own words on why it is not admitted."""
    is_plain_pod: bool = False
    """Owned by a Pod that is not part of a group: deactivation deletes the pod and nothing is left to come back."""
    expected_gpu_pods: int = 0
    """Pods with GPUs that it was admitted with, less those Kueue knows to be done."""
    queue: str = ""
    cluster_queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything observed about one ScalableWorkload."""

    desired_replicas: int
    workload: Workload | None
    pods: Sequence[Pod] = ()
    was_bound: bool = False
    """Whether a Workload was found for it before."""
    wake_wish: str = ""
    resumes_foreign: bool = False
    """Whether its owner explicitly asked to run again what somebody else deactivated."""
    grant: str = ""
    """The plan that may take it for a gang that waits, in words."""
    is_held: bool = False
    """Whether it has a grant, even one whose time is up or that nobody can read: whoever follows plans ends that."""
    taken_by: str = ""
    """The older ScalableWorkload that scales the same Workload; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where it stands and the next step, if any. Valid only for the observed `resource_version`."""

    phase: Phase
    message: str
    step: Step | None = None

    @property
    def admitted_replicas(self) -> int:
        """`status.replicas`: 1 only while Kueue has it admitted."""
        return int(self.phase in {Phase.RUNNING, Phase.STARTING, Phase.HELD})


def plan(situation: Situation) -> Plan:
    """Where the ScalableWorkload stands and the one thing to do next."""
    workload = situation.workload
    if workload is None:
        gone = "has vanished" if situation.was_bound else "does not exist (yet)"
        return Plan(phase=Phase.NO_WORKLOAD, message=f"its Kueue Workload {gone}")
    if situation.taken_by:
        taken = f"ScalableWorkload {situation.taken_by} scales Workload {workload.name} already; delete one of the two"
        return Plan(phase=Phase.REFUSED, message=taken)
    if workload.finished:
        return Plan(phase=Phase.FINISHED, message=f"Workload {workload.name} has finished")
    if workload.is_plain_pod:
        return Plan(phase=Phase.REFUSED, message=_REFUSAL)
    return (
        _plan_for_zero(situation, workload) if situation.desired_replicas == 0 else _plan_for_one(situation, workload)
    )


_REFUSAL = (
    "the Workload belongs to a plain Pod: deactivating it would delete the pod with nothing left to resume; "
    "point the ScaledObject at the Deployment or StatefulSet that owns the pod"
)


def _plan_for_zero(situation: Situation, workload: Workload) -> Plan:
    if workload.active and situation.is_held:
        return _plan_held(workload)
    if workload.active:
        return Plan(phase=Phase.SUSPENDING, message="deactivating the Workload", step=Step.DEACTIVATE)
    if not workload.suspended_by_us:
        return Plan(phase=Phase.SUSPENDING, message="was inactive already; noting that it shall be", step=Step.ADOPT)
    if workload.quota_reserved:
        return Plan(phase=Phase.SUSPENDING, message="deactivated; Kueue still holds its quota")
    ending = [pod for pod in situation.pods if pod.phase not in TERMINAL]
    if ending:
        return Plan(phase=Phase.SUSPENDING, message=f"quota released; {len(ending)} pod(s) still end")
    return Plan(phase=Phase.SUSPENDED, message="deactivated, quota released, no pod left")


def _plan_held(workload: Workload) -> Plan:
    """One that Kueue has taken the quota from meanwhile waits for quota like any other, and its plan lets go of it."""
    if workload.admitted:
        return Plan(phase=Phase.HELD, message="waits until every workload of its plan is asked to be at 0")
    return Plan(phase=Phase.WAITING_FOR_QUOTA, message=_why_it_waits(workload))


def _plan_for_one(situation: Situation, workload: Workload) -> Plan:
    if not workload.active:
        return _plan_resumption(situation, workload)
    planned = _plan_active(situation, workload)
    return replace(planned, step=Step.DISOWN) if workload.suspended_by_us else planned


def _plan_active(situation: Situation, workload: Workload) -> Plan:
    if not workload.quota_reserved:
        return Plan(phase=Phase.WAITING_FOR_QUOTA, message=_why_it_waits(workload))
    if not workload.admitted:
        return Plan(phase=Phase.WAITING_FOR_CHECKS, message=workload.status_message or "waiting for admission checks")
    running = running_gpu_pods(situation.pods)
    if len(running) < workload.expected_gpu_pods or len(running) < len(gpu_pods(situation.pods)):
        return Plan(phase=Phase.STARTING, message=f"{len(running)} of {workload.expected_gpu_pods} GPU pods run")
    return Plan(
        phase=Phase.RUNNING, message=f"admitted by {workload.cluster_queue or 'its ClusterQueue'}; all GPU pods run"
    )


def _why_it_waits(workload: Workload) -> str:
    if workload.eviction_reason.startswith("DeactivatedDueTo"):
        return (
            f"Kueue deactivated it ({workload.eviction_reason}) and does not queue it again by itself; stop and resume "
            "its LocalQueue (stopPolicy Hold, then None), or set condition Requeued=True with reason Reactivated"
        )
    return workload.status_message or "waiting for quota"


def _plan_resumption(situation: Situation, workload: Workload) -> Plan:
    if not (workload.suspended_by_us or situation.resumes_foreign):
        why = f" ({workload.eviction_reason})" if workload.eviction_reason else ""
        message = f"somebody else set spec.active to false{why}; set annotation idlegpu.io/wake to run it again"
        return Plan(phase=Phase.DEACTIVATED_BY_OTHER, message=message)
    if workload.quota_reserved:
        return Plan(phase=Phase.SUSPENDING, message="asked to run again; waits until Kueue has released its quota")
    return Plan(phase=Phase.RESUMING, message="activating the Workload", step=Step.ACTIVATE)


def gpu_pods(pods: Sequence[Pod]) -> list[Pod]:
    """The pods on whose GPUs the workload runs or is about to."""
    return [pod for pod in pods if pod.is_member]


def running_gpu_pods(pods: Sequence[Pod]) -> list[Pod]:
    """The GPU pods all of whose containers run."""
    return [pod for pod in gpu_pods(pods) if pod.is_running]


def running_since(pods: Sequence[Pod]) -> datetime | None:
    """When the newest container of the newest GPU pod started running; None while any of them does not run."""
    starts = [pod.running_since for pod in gpu_pods(pods) if pod.is_running and pod.running_since]
    return max(starts) if starts and len(starts) == len(gpu_pods(pods)) else None


_STAGES = {
    Phase.FINISHED: Stage.FINISHED,
    Phase.HELD: Stage.HELD,
    Phase.SUSPENDING: Stage.WAITING_FOR_QUOTA,
    Phase.SUSPENDED: Stage.SUSPENDED,
    Phase.RESUMING: Stage.WAITING_FOR_QUOTA,
    Phase.DEACTIVATED_BY_OTHER: Stage.WAITING_FOR_QUOTA,
    Phase.WAITING_FOR_QUOTA: Stage.WAITING_FOR_QUOTA,
    Phase.WAITING_FOR_CHECKS: Stage.WAITING_FOR_CHECKS,
    Phase.STARTING: Stage.STARTING,
    Phase.RUNNING: Stage.RUNNING,
}
"""How a decision sees a phase. Asked to run and not yet admitted is waiting, whatever keeps it."""


def standing(situation: Situation) -> Standing:
    """The situation as a decision needs it."""
    planned = plan(situation)
    return Standing(
        desired_replicas=situation.desired_replicas,
        stage=_stage(situation, planned),
        running_since=running_since(situation.pods),
        wake_wish=situation.wake_wish,
        grant=situation.grant,
        doubt=_doubt(situation, planned),
        note=planned.message,
    )


def _stage(situation: Situation, planned: Plan) -> Stage:
    if planned.phase is Phase.NO_WORKLOAD or planned.phase is Phase.REFUSED:
        return Stage.WAITING_FOR_WORKLOAD
    if planned.phase is Phase.SUSPENDING and situation.desired_replicas == 0:
        return Stage.SUSPENDED
    return _STAGES[planned.phase]


def _doubt(situation: Situation, planned: Plan) -> Unknown | None:
    if planned.phase is Phase.REFUSED:
        return Unknown(reason=Unknowable.UNSUPPORTED_WORKLOAD, message=planned.message)
    if planned.phase is Phase.NO_WORKLOAD and situation.was_bound:
        return Unknown(reason=Unknowable.WORKLOAD_MISSING, message=planned.message)
    if planned.step is Step.DEACTIVATE:
        return Unknown(reason=Unknowable.SUSPENDING, message="asked to be at 0; its Workload is still active")
    if planned.phase is Phase.RUNNING and not gpu_pods(situation.pods):
        return Unknown(reason=Unknowable.NO_GPU_PODS, message="no pod of the Workload requests a GPU")
    return None


def standing_of_scale(*, replicas: int, pods: Sequence[Pod], wake_wish: str = "") -> Standing:
    """The standing of a Deployment, StatefulSet or any other kind that scales its own pods.

    A target of which no pod with GPUs is seen counts as starting, for ever if need be: that holds it.
    """
    holders, running = gpu_pods(pods), running_gpu_pods(pods)
    stage = Stage.RUNNING if len(running) == len(holders) >= max(1, replicas) else Stage.STARTING
    return Standing(
        desired_replicas=replicas,
        stage=stage if replicas else Stage.SUSPENDED,
        running_since=running_since(pods),
        wake_wish=wake_wish,
        is_plannable=False,
        note=f"{len(running)} of {max(replicas, len(holders))} GPU pods run"
        if holders
        else "it has no pod that requests a GPU",
    )
