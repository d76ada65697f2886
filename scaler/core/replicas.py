"""One or zero? Verdict × the target's timeline × policy × now → a decision with its reason.

The order of the table is the order of precedence. Only the lines that say GPUsIdle and Reclaimed shrink.

| the target is …                                  | answer                       |
|--------------------------------------------------|------------------------------|
| vanished, refused, or its policy cannot be read  | none (error)                 |
| finished                                         | as it stands (nothing moves) |
| at 0, nobody asks for it                         | 0 Suspended                  |
| at 0, its owner or a demand query asks for it    | 1 Waking                     |
| at 0, and its pods run until its plan is carried out | as at 1, from "kept" on  |
| at 1, not admitted yet                           | 1 WaitingFor…                |
| at 1, pods starting                              | 1 Starting                   |
| kept, or in demand                               | 1 Kept                       |
| within warm-up of its newest container           | 1 WarmingUp                  |
| busy                                             | 1 GPUsBusy                   |
| not yet `idleAfter` past its warm-up             | 1 IdleNotLongEnough          |
| idle, mode observe                               | 1 ObserveOnly                |
| idle, reclaimed on pressure, no plan takes it    | 1 NobodyWaits                |
| idle, reclaimed on pressure, a plan takes it     | 0 Reclaimed                  |
| idle, left to Kueue by a priority boost          | 1 LeftToKueue                |
| idle, mode enforce                               | 0 GPUsIdle                   |
| unknown                                          | none (error)                 |

Why waiting for quota is 1: no pod exists, so no metric does; an answer of 0 would put a workload that was just
woken back to sleep before it ever ran.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.core.durations import format_duration
from scaler.core.idleness import Busy, Idle, Unknown, WorkloadVerdict
from scaler.core.policy import Mode, Policy, Reclaim
from scaler.core.reasons import Because, Unknowable


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """KEDA shall run the target."""

    because: Because
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inactive:
    """KEDA shall have the target at 0."""

    because: Because
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """No usable decision: KEDA gets an error and leaves the replicas as they are."""

    reason: Unknowable
    message: str


Answer = Active | Inactive | NoAnswer


def answer_reason(answer: Answer) -> str:
    """The PascalCase reason of any answer."""
    return str(answer.reason if isinstance(answer, NoAnswer) else answer.because)


class Stage(StrEnum):
    """Where a target stands between asked-for and running, as observed."""

    SUSPENDED = "Suspended"
    HELD = "HeldForPlan"
    """Asked to be at 0 by a plan and still running, until all of its plan's workloads are asked to be at 0."""
    WAITING_FOR_WORKLOAD = "WaitingForWorkload"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_CHECKS = "WaitingForAdmissionChecks"
    STARTING = "Starting"
    RUNNING = "Running"
    FINISHED = "Finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A target as observed: how far it is, since when it runs, and what its owner asked for."""

    desired_replicas: int
    stage: Stage
    running_since: datetime | None = None
    """When the newest of its GPU pods' containers started running; never the creation time."""
    wake_wish: str = ""
    """Who asks for a suspended target to come back, in words; empty where nobody does."""
    demand: str = ""
    """Who asks for it to run for as long as the demand lasts, in words. Suspending it would only wake it again."""
    grant: str = ""
    """The plan that may take it for a gang that waits, in words; empty where none may."""
    doubt: Unknown | None = None
    """Why the target itself cannot be known: it vanished, is refused, or its policy is invalid."""
    is_plannable: bool = True
    """Whether plans can take it: they are about quota, and only a ScalableWorkload's is known."""
    note: str = ""
    """What is observed about it in words, such as Kueue's own message on why it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for one trigger at one instant. Every view (RPC, status, Event, `explain`) is a projection."""

    answer: Answer
    standing: Standing
    policy: Policy
    verdict: WorkloadVerdict | None
    """None where the GPUs were not looked at, because the answer does not depend on them."""
    idle_since: datetime | None
    """Since when the GPUs are quiet, as far as known; None while work is seen or nothing runs."""
    decided_at: datetime

    @property
    def suspend_at(self) -> datetime | None:
        """When the answer will turn 0 if the GPUs stay quiet; None where that is not foreseeable."""
        waits = isinstance(self.answer, Active) and self.answer.because in _QUIET_SO_FAR
        if not waits or self.idle_since is None or not self._may_shrink:
            return None
        due = self.idle_since + self.policy.window
        return max(due, self.policy.keep_until) if self.policy.keep_until else due

    @property
    def _may_shrink(self) -> bool:
        """Whether quiet time alone makes the answer 0."""
        is_due = self.policy.reclaim is Reclaim.ALWAYS or bool(self.standing.grant)
        return is_due and self.policy.mode is Mode.ENFORCE and not self.standing.demand


_QUIET_SO_FAR = frozenset({Because.IDLE_NOT_LONG_ENOUGH, Because.WARMING_UP, Because.KEPT, Because.GPUS_BUSY})

_NOT_RUNNING_YET = {
    Stage.WAITING_FOR_WORKLOAD: (Because.WAITING_FOR_WORKLOAD, "asked to run; no Workload yet"),
    Stage.WAITING_FOR_QUOTA: (Because.WAITING_FOR_QUOTA, "asked to run; not admitted yet"),
    Stage.WAITING_FOR_CHECKS: (Because.WAITING_FOR_CHECKS, "quota reserved; admission checks are not all ready"),
    Stage.STARTING: (Because.STARTING, "not all of its GPU pods run yet"),
}


def decide(standing: Standing, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime) -> Decision:
    """The decision for one trigger. `verdict` may be None for a target that does not run."""
    idle_since = _idle_since(standing, verdict, policy=policy, now=now)
    return Decision(
        answer=_answer(standing, verdict, policy=policy, now=now),
        standing=standing,
        policy=policy,
        verdict=verdict,
        idle_since=idle_since,
        decided_at=now,
    )


def needs_verdict(standing: Standing) -> bool:
    """Whether the GPUs have to be looked at: only a running target has any."""
    runs = standing.stage is Stage.HELD or (standing.stage is Stage.RUNNING and standing.desired_replicas > 0)
    return standing.doubt is None and runs


def _answer(standing: Standing, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime) -> Answer:
    if standing.doubt is not None:
        return NoAnswer(reason=standing.doubt.reason, message=standing.doubt.message)
    if standing.stage is Stage.FINISHED:
        as_it_stands = Active if standing.desired_replicas else Inactive
        return as_it_stands(
            because=Because.FINISHED, message="the workload has finished; its replicas stay as they are"
        )
    if standing.desired_replicas == 0 and (standing.stage is not Stage.HELD or standing.wake_wish):
        return _answer_at_zero(standing)
    if standing.stage in _NOT_RUNNING_YET:
        because, message = _NOT_RUNNING_YET[standing.stage]
        return Active(because=because, message=f"{message}: {standing.note}" if standing.note else message)
    return _answer_running(standing, verdict, policy=policy, now=now)


def _answer_at_zero(standing: Standing) -> Answer:
    if standing.wake_wish:
        return Active(because=Because.WAKING, message=f"asked to come back: {standing.wake_wish}")
    return Inactive(because=Because.SUSPENDED, message="suspended; nobody has asked for it to come back")


def _answer_running(standing: Standing, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime) -> Answer:
    if policy.keep_until is not None and now < policy.keep_until:
        return Active(because=Because.KEPT, message=f"kept until {policy.keep_until.isoformat()}")
    if standing.demand:
        return Active(because=Because.KEPT, message=f"asked for: {standing.demand}")
    if standing.running_since is None or verdict is None:
        return Active(because=Because.STARTING, message="its containers have not reported when they started running")
    return _answer_measured(now - standing.running_since, verdict, policy, standing)


def _answer_measured(ran: timedelta, verdict: WorkloadVerdict, policy: Policy, standing: Standing) -> Answer:
    warm_up, window = format_duration(policy.warm_up), format_duration(policy.window)
    if ran < policy.warm_up:
        return Active(because=Because.WARMING_UP, message=f"running for {_rough(ran)} of {warm_up} warm-up")
    match verdict.verdict:
        case Busy():
            return Active(because=Because.GPUS_BUSY, message=f"work seen within the last {window}")
        case _ if ran < policy.warm_up + policy.window:
            too_short = f"running for {_rough(ran)}: not yet {window} past its warm-up of {warm_up}"
            return Active(because=Because.IDLE_NOT_LONG_ENOUGH, message=too_short)
        case Unknown(reason=reason, message=message):
            return NoAnswer(reason=reason, message=message)
        case Idle():
            return _answer_idle(policy, standing)


def _rough(duration: timedelta) -> str:
    """The duration in whole seconds, so that a message does not change with every millisecond."""
    return format_duration(timedelta(seconds=int(duration.total_seconds())))


def _answer_idle(policy: Policy, standing: Standing) -> Answer:
    floor, window = f"{100 * policy.active_above_ratio:g} %", format_duration(policy.window)
    quiet = f"every required GPU stayed below {floor} for {window}"
    if policy.mode is Mode.OBSERVE:
        return Active(because=Because.OBSERVE_ONLY, message=f"{quiet}; mode observe only reports it")
    if policy.reclaim is not Reclaim.ALWAYS and not standing.is_plannable:
        return Active(because=Because.NOBODY_WAITS, message=f"{quiet}; {_NOT_PLANNABLE}")
    match policy.reclaim:
        case Reclaim.ALWAYS:
            return Inactive(because=Because.GPUS_IDLE, message=quiet)
        case Reclaim.ON_PRESSURE if standing.grant:
            return Inactive(because=Because.RECLAIMED, message=f"{quiet}; taken by {standing.grant}")
        case Reclaim.ON_PRESSURE:
            return Active(because=Because.NOBODY_WAITS, message=f"{quiet}; no waiting gang needs its GPUs")
        case Reclaim.PRIORITY_BOOST:
            return Active(because=Because.LEFT_TO_KUEUE, message=f"{quiet}; Kueue preempts it first where it must")


_NOT_PLANNABLE = (
    "reclaim OnPressure and PriorityBoost are for ScalableWorkloads, whose quota is known; scale one, or set reclaim "
    "to Always"
)


def _idle_since(
    standing: Standing, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime
) -> datetime | None:
    """Since when enough GPUs are quiet: the end of their last work, and not before the warm-up ended.

    None while too few of them are, and while one is unknown.
    """
    if standing.running_since is None or verdict is None or not verdict.gpus:
        return None
    if any(isinstance(gpu.verdict, Unknown) for gpu in verdict.gpus):
        return None
    quiet = sorted(gpu.last_active_at or standing.running_since for gpu in verdict.gpus if gpu.is_quiet)
    needed = policy.gpus.idle_gpus_needed(len(verdict.gpus))
    if len(quiet) < needed:
        return None
    since = max(standing.running_since + policy.warm_up, quiet[needed - 1])
    return since if since < now else None
