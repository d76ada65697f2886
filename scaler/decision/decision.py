"""One or zero? Verdict × the target's timeline × policy × now → a decision with its reason.

The order of the table is the order of precedence. Only the lines that say GPUsIdle and Reclaimed shrink.

| the target is …                                  | answer                       |
|--------------------------------------------------|------------------------------|
| vanished, refused, or its policy cannot be read  | none (error)                 |
| finished                                         | as observed (no change)      |
| at 0, no wake-up requested                       | 0 Suspended                  |
| at 0, its owner, a demand query or `wakeAt` asks for it | 1 Waking              |
| at 0, and its pods run until its plan is carried out | as at 1, from "kept" on  |
| at 1, not admitted yet                           | 1 WaitingFor…                |
| at 1, pods starting, for `warmUp` + `idleAfter` at most | 1 Starting            |
| at 1, and some of its pods do not run for longer | 1 PodsNotRunning             |
| at 1, and for as long no pod of it is known to hold a GPU | none (error)        |
| excluded by an annotation                        | 1 Excluded                   |
| kept, or in demand                               | 1 Kept                       |
| set back by another client, twice in a row       | 1 SetBack                    |
| within warm-up of its newest container           | 1 WarmingUp                  |
| busy                                             | 1 GPUsBusy                   |
| not yet `idleAfter` past its warm-up             | 1 IdleNotLongEnough          |
| idle, mode observe                               | 1 ObserveOnly                |
| idle, outside the hours of `allowedDuring`       | 1 OutsideHours               |
| idle, and held because its hook has failed       | 1 BeforeSuspendFailed        |
| idle, and its warning has not stood long enough, or its owner was not told of it | 1 Warned |
| idle, reclaimed on pressure, no plan takes it    | 1 IdleNotNeeded              |
| idle, left to Kueue by a priority boost          | 1 PriorityLowered            |
| idle, and its hook has not ended                 | 1 BeforeSuspend              |
| idle, reclaimed on pressure, a plan takes it     | 0 Reclaimed                  |
| idle, mode enforce                               | 0 GPUsIdle                   |
| unknown                                          | none (error)                 |

Idle GPUs of a target whose own controller has seen activity within `idleAfter` count as busy.

Why a start may take `warmUp` + `idleAfter`: from then on GPUs that run could be idle, and those of a pod that does not
run are as unused. That is said by another reason, and nothing is suspended for it.

Why waiting for quota is 1: no pod exists, so no metric does; an answer of 0 would suspend a workload that was just
resumed before it ever ran.
"""

from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, datetime, timedelta
from typing import NamedTuple

from scaler.decision.reasons import FOUND_IDLE, DecisionReason, row_of
from scaler.idleness import hooks
from scaler.idleness.durations import format_duration
from scaler.idleness.hooks import HookRun, HookStage
from scaler.idleness.hours import first_open, following, is_open, latest, next_change
from scaler.idleness.policy import EnforcementMode, Policy, Reclaim, WakeRule
from scaler.idleness.reasons import DOUBTS, About, UnknownReason
from scaler.idleness.verdict import Busy, GpuEvidence, Idle, Unknown, WorkloadVerdict
from scaler.targets.target_state import Phase, TargetState, WakeCause, WakeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """KEDA shall run the target."""

    reason: DecisionReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inactive:
    """KEDA shall have the target at 0."""

    reason: DecisionReason
    message: str


Answer = Active | Inactive | Unknown
"""Unknown: KEDA gets an error and leaves the replicas as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for one trigger at one instant. Every view (RPC, status, Event, `explain`) is a projection."""

    answer: Answer
    target: TargetState
    policy: Policy
    verdict: WorkloadVerdict | None
    """None where the GPUs were not looked at, because the answer does not depend on them."""
    idle_since: datetime | None
    """Since when the GPUs are quiet, as far as known; None while work is seen or nothing runs."""
    idle_at_least: bool = False
    """Whether `idle_since` is a bound: they may be quiet for longer, or may have worked until then unseen."""
    decided_at: datetime
    """It holds from then on, until something changes that it rests on."""
    quiet_before: "Quiet | None" = field(default=None, compare=False, repr=False)
    """What was known of its quiet before it was decided."""

    @property
    def suspend_at(self) -> datetime | None:
        """When the answer will turn 0 if the GPUs stay quiet; None where that is not foreseeable."""
        if not row_of(self.answer.reason).quiet_so_far or self.idle_since is None or not self._may_shrink:
            return None
        due = self.idle_since + self.policy.window
        instants = [due, self.policy.keep_until, left_alone_until(self.target, self.decided_at)]
        if (warning := self.policy.warning) is not None:
            # Who was not warned yet is so early that it costs no time, where that is possible.
            warned_at = _standing(self.target, self.idle_since) or max(due - warning, self.decided_at)
            counted_from = _counted_from(self.policy, self.target, warned_at)
            if counted_from is None and warned_at + warning <= self.decided_at:
                return None  # nobody knows when its owner will have been told
            instants.append((counted_from or warned_at) + warning)
        return _first_allowed(self.policy, max(each for each in instants if each is not None))

    @property
    def when_free(self) -> str:
        """What asks for a suspended target to run again when its quota and nodes are free; empty where nothing does.

        A policy does for what was suspended for being idle, not for what its owner has scaled to 0.
        """
        is_suspended = self.answer.reason is DecisionReason.SUSPENDED and self.target.phase is Phase.SUSPENDED
        return _when_free(self.target, self.policy) if is_suspended else ""

    @property
    def noticeable_at(self) -> datetime | None:
        """From when on quiet is shown in a status, if it lasts so long; None where there is none."""
        return None if self.idle_since is None else self.idle_since + self.policy.window / _NOTICEABLE

    @property
    def is_noticeably_quiet(self) -> bool:
        return self.noticeable_at is not None and self.decided_at >= self.noticeable_at

    @property
    def warning_at(self) -> datetime | None:
        """When its owner is warned of the suspension: a third of `idleAfter` before, 5 minutes at most.

        With a `warning` in the policy that long before it may be suspended, by time alone or by a plan.
        """
        if self.verdict is None or isinstance(self.verdict.verdict, Unknown):
            return None
        if self.policy.warning is not None:
            return self._policy_warns_at
        if self.suspend_at is None:
            return None
        return self.suspend_at - min(_LONGEST_WARNING, self.policy.window / 3)

    @property
    def _policy_warns_at(self) -> datetime | None:
        """None where it is busy, kept, or only observed."""
        warning, since = self.policy.warning, self.idle_since
        if warning is None or since is None or not row_of(self.answer.reason).warns:
            return None
        if self.policy.mode is not EnforcementMode.ENFORCE or self.target.demand:
            return None
        if self.policy.reclaim is not Reclaim.ALWAYS and not self.target.is_plannable:
            return None
        if self.cannot_tell:
            return None
        due = _first_allowed(self.policy, since + self.policy.window)
        return None if due is None else max(since, due - warning)

    def holds_until(self, doubt: Unknown | None = None) -> datetime | None:
        """The next instant at which it, or what is shown of it, may differ although nothing but the time does.

        None where there is none; `decided_at` where its words tell a time, or may do so. Those of `doubt` do not.
        """
        verdict = None if self.verdict is None else self.verdict.verdict
        running_since, policy = self.target.running_since, self.policy
        warm_at = running_since + policy.warm_up if running_since is not None else None
        is_told = row_of(self.answer.reason).tells_time or (isinstance(verdict, Unknown) and verdict is not doubt)
        if is_told or warm_at == self.decided_at:  # a moment later it is quiet since then
            return self.decided_at
        instants = (
            policy.keep_until,
            policy.exclude_until,
            left_alone_until(self.target, self.decided_at),
            warm_at,
            _late_at(self.target, policy),
            self.noticeable_at,
            self.warning_at,
            *self._warned_long_enough_at,
            self._hook_again_at,
            *self._activity_ends_at,
            *self._scheduled_at,
        )
        return min((each for each in instants if each is not None and each > self.decided_at), default=None)

    @property
    def _warned_long_enough_at(self) -> tuple[datetime, ...]:
        """When the policy's time is over, counted from its warning and from when its owner was told of that."""
        standing = None if self.idle_since is None else _standing(self.target, self.idle_since)
        if standing is None or self.policy.warning is None:
            return ()
        counted_from = _counted_from(self.policy, self.target, standing) or standing
        return standing + self.policy.warning, counted_from + self.policy.warning

    @property
    def _hook_again_at(self) -> datetime | None:
        """When a hook that has failed may run again."""
        run = self.target.hook_run
        return None if run is None or run.ended_at is None else hooks.again_at(run, self.policy.window)

    @property
    def _activity_ends_at(self) -> tuple[datetime, ...]:
        """When the activity that its own controller has seen is over, and when it does not count as work any more."""
        seen = self.target.last_activity
        if seen is None or seen > self.decided_at:
            return () if seen is None else (seen,)
        return (seen + self.policy.window,)

    @property
    def _scheduled_at(self) -> tuple[datetime | None, ...]:
        """When the hours of its policy begin or end, and when it is woken."""
        policy = self.policy
        return (
            next_change(policy.allowed_during, self.decided_at) if policy.allowed_during else None,
            following(policy.wake_at, self.decided_at) if policy.wake_at and not self.target.desired_replicas else None,
        )

    @property
    def _may_shrink(self) -> bool:
        """Whether quiet time alone makes the answer 0."""
        is_due = self.policy.reclaim is Reclaim.ALWAYS or bool(self.target.grant)
        is_enforced = self.policy.mode is EnforcementMode.ENFORCE
        return is_due and is_enforced and not self.target.demand and not self.cannot_tell

    @property
    def cannot_tell(self) -> bool:
        """Whether it is never suspended, because its policy asks that its owner is told and nothing does that."""
        return self.policy.require_delivery and not self.target.told_by

    def if_told(self, at: datetime) -> "Decision":
        """The same, where its owner is told of its warning at that moment and was not before."""
        return self if self.target.told_at else replace(self, target=replace(self.target, told_at=at))

    def quiet_until(self, until: datetime) -> "Quiet | None":
        """What it leaves to know of the quiet for the next one, if it holds until then. None after work.

        What is doubted now may turn out to have been quiet all the time: then what was known before is true again.
        """
        if self.idle_since is not None:
            return Quiet(since=self.idle_since, at_least=self.idle_at_least, until=until)
        return self.quiet_before if is_unknown(self) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Since when GPUs are quiet, as was known at an earlier time. Samples are forgotten; this is kept."""

    since: datetime
    at_least: bool
    """Whether it is a bound."""
    until: datetime
    """Up to when it is known that they stayed quiet."""


_LONGEST_WARNING = timedelta(minutes=5)
_NOTICEABLE = 10
"""Quiet is shown when it has lasted for this part of `idleAfter`: three minutes of thirty. Work comes in bursts, and a
status that followed every pause between two samples would be written at every tick, for every busy workload."""


def _first_allowed(policy: Policy, at: datetime) -> datetime | None:
    """The first instant from `at` on at which the policy's hours allow a suspension; None where none is foreseeable."""
    return first_open(policy.allowed_during, at) if policy.allowed_during else at


def _standing(target: TargetState, idle_since: datetime) -> datetime | None:
    """When its owner was warned; None where that was before its last work, or may have been, or never."""
    return target.warned_at if target.warned_at is not None and target.warned_at >= idle_since else None


def _counted_from(policy: Policy, target: TargetState, standing: datetime) -> datetime | None:
    """From when the time of the policy's warning counts; None where its owner has yet to be told of it."""
    if not policy.require_delivery:
        return standing
    return None if target.told_at is None else max(standing, target.told_at)


def standing_warning(decision: Decision, warned_at: datetime | None) -> datetime | None:
    """When its owner was warned, if that stands; None while work is seen."""
    if decision.idle_since is None:
        return None
    return _standing(replace(decision.target, warned_at=warned_at), decision.idle_since)


def hook_stage(decision: Decision, run: HookRun | None) -> HookStage | None:
    """How far its hook is, by that run; None where it has none."""
    return _stage(run, decision.idle_since, decision.policy, decision.decided_at)


def _stage(run: HookRun | None, since: datetime | None, policy: Policy, now: datetime) -> HookStage | None:
    if not policy.before_suspend:
        return None
    if since is None:
        return HookStage.DUE
    on_failure = policy.before_suspend_on_failure
    return hooks.stage_of(run, policy.before_suspend, on_failure, since=since, rest=policy.window, now=now)


def is_outdated(decision: Decision, run: HookRun) -> bool:
    """Whether work was seen, or may have been, since the run began. While nothing of it runs there is none."""
    if decision.verdict is None:
        return False
    if decision.idle_since is None:
        return may_hide_work(decision) or not is_unknown(decision)
    return run.started_at < decision.idle_since


def is_unknown(decision: Decision) -> bool:
    """Whether it is unknown what the GPUs do: Unknown is not Busy."""
    is_doubted = decision.verdict is not None and isinstance(decision.verdict.verdict, Unknown)
    return is_doubted or isinstance(decision.answer, Unknown)


def may_hide_work(decision: Decision) -> bool:
    """Whether its own samples are lacking. What all of them are doubted for, they are read again after."""
    found = decision.verdict.verdict if decision.verdict is not None else None
    return isinstance(found, Unknown) and DOUBTS[found.reason].about is not About.SOURCE


_WAITS_FOR_WORKLOAD = (DecisionReason.WAITING_FOR_WORKLOAD, "spec.replicas is 1; no Workload yet")
_WAITS_FOR_QUOTA = (DecisionReason.WAITING_FOR_QUOTA, "spec.replicas is 1; not admitted yet")
_NOT_RUNNING_YET = {
    Phase.NO_WORKLOAD: _WAITS_FOR_WORKLOAD,
    Phase.REFUSED: _WAITS_FOR_WORKLOAD,
    Phase.SUSPENDING: _WAITS_FOR_QUOTA,
    Phase.RESUMING: _WAITS_FOR_QUOTA,
    Phase.DEACTIVATED_BY_OTHER: _WAITS_FOR_QUOTA,
    Phase.WAITING_FOR_QUOTA: _WAITS_FOR_QUOTA,
    Phase.WAITING_FOR_CHECKS: (
        DecisionReason.WAITING_FOR_CHECKS,
        "quota reserved; admission checks are not all ready",
    ),
    Phase.STARTING: (DecisionReason.STARTING, "not all of its GPU pods run yet"),
}


def decide(
    target: TargetState,
    verdict: WorkloadVerdict | None,
    *,
    policy: Policy,
    now: datetime,
    quiet: Quiet | None = None,
) -> Decision:
    """The decision for one trigger. `verdict` may be None for a target that does not run.

    `quiet`: what was known before of its quiet.
    """
    since, at_least = _idle_since(target, verdict, policy=policy, now=now, quiet=quiet) or (None, False)
    before = _Before(
        warning=_waits_for_warning(target, since, policy, now),
        hook=_stage(target.hook_run, since, policy, now),
    )
    return Decision(
        answer=_answer(target, verdict, policy=policy, now=now, before=before),
        target=target,
        policy=policy,
        verdict=verdict,
        idle_since=since,
        idle_at_least=at_least,
        decided_at=now,
        quiet_before=quiet,
    )


def needs_verdict(target: TargetState) -> bool:
    """Whether the GPUs have to be looked at: only a running target has any."""
    runs = target.phase is Phase.HELD or (target.phase is Phase.RUNNING and target.desired_replicas > 0)
    return target.doubt is None and runs


class _Before(NamedTuple):
    """What has to be done before it may be suspended."""

    warning: str
    """Why a warning keeps it, in words; empty where none does."""
    hook: HookStage | None


def _answer(
    target: TargetState, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime, before: _Before
) -> Answer:
    if target.doubt is not None:
        return target.doubt
    if target.phase is Phase.FINISHED:
        as_it_stands = Active if target.desired_replicas else Inactive
        return as_it_stands(
            reason=DecisionReason.FINISHED, message="the workload has finished; its replicas stay as they are"
        )
    if target.desired_replicas == 0 and (target.phase is not Phase.HELD or target.wake_request):
        return _answer_at_zero(target, policy, now)
    if target.phase in _NOT_RUNNING_YET:
        return _answer_not_running(target, policy, now)
    return _answer_running(target, verdict, policy=policy, now=now, before=before)


def _answer_not_running(target: TargetState, policy: Policy, now: datetime) -> Answer:
    late_at = _late_at(target, policy)
    if late_at is not None and now >= late_at:
        if not target.has_gpu_pods:
            return Unknown(reason=UnknownReason.NO_GPU_PODS, message=target.message)
        return Active(reason=DecisionReason.PODS_NOT_RUNNING, message=target.message)
    reason, message = _NOT_RUNNING_YET[target.phase]
    return Active(reason=reason, message=f"{message}: {target.message}" if target.message else message)


def _late_at(target: TargetState, policy: Policy) -> datetime | None:
    """When it is no start any more that not all of its pods run; None where they do, or it is not known since when."""
    since = target.starting_since
    return None if since is None else since + policy.warm_up + policy.idle_after


def _answer_at_zero(target: TargetState, policy: Policy, now: datetime) -> Answer:
    request = target.wake_request or _schedule(target, policy, now)
    if request is not None:
        return Active(reason=DecisionReason.WAKING, message=f"wake-up requested: {request.words}")
    if _when_free(target, policy):
        return Inactive(reason=DecisionReason.SUSPENDED, message=f"suspended; {_AWAITS_ROOM[target.is_plannable]}")
    return Inactive(reason=DecisionReason.SUSPENDED, message="suspended; no wake-up requested")


_AWAITS_ROOM = {
    True: "it comes back when its quota and nodes are free and no Workload waits for them (WhenFree)",
    False: "WhenFree is for Workloads of Kueue, whose quota is known; set annotation idlegpu.io/wake to true",
}
"""By whether the target is plannable."""


def _when_free(target: TargetState, policy: Policy) -> str:
    """What asks for it, also while its pods still end."""
    is_meant = policy.wake is WakeRule.WHEN_FREE and target.suspended_because in FOUND_IDLE
    by_policy = f"wake: WhenFree, from {policy.source_of('wake')}" if is_meant else ""
    return target.when_free_request or by_policy


def _schedule(target: TargetState, policy: Policy, now: datetime) -> WakeRequest | None:
    """The `wakeAt` of its policy that has passed since it was suspended; None where none has."""
    due = latest(policy.wake_at, now) if policy.wake_at and target.suspended_at else None
    if due is None or target.suspended_at is None or due <= target.suspended_at:
        return None
    return WakeRequest(WakeCause.SCHEDULE, f"wakeAt {due:%Y-%m-%dT%H:%M:%SZ}")


def wake_cause(decision: Decision) -> WakeCause | None:
    """What it comes back for, where its answer says that a wake-up is requested."""
    if decision.answer.reason is not DecisionReason.WAKING:
        return None
    request = decision.target.wake_request or _schedule(decision.target, decision.policy, decision.decided_at)
    return request.cause if request is not None else None


def _answer_running(
    target: TargetState, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime, before: _Before
) -> Answer:
    if policy.exclude_until is not None and now < policy.exclude_until:
        return Active(reason=DecisionReason.EXCLUDED, message=f"excluded {_until(policy.exclude_until)}")
    if policy.keep_until is not None and now < policy.keep_until:
        return Active(reason=DecisionReason.KEPT, message=f"kept {_until(policy.keep_until)}")
    if target.demand:
        return Active(reason=DecisionReason.KEPT, message=f"requested by {target.demand}")
    if target.set_back is not None and (until := left_alone_until(target, now)) is not None:
        message = f"{target.set_back.words}: it is left alone until {until:%Y-%m-%dT%H:%M:%SZ}"
        return Active(reason=DecisionReason.SET_BACK, message=message)
    if target.running_since is None or verdict is None:
        return Active(
            reason=DecisionReason.STARTING, message="its containers have not reported when they started running"
        )
    return _answer_measured(now, verdict, policy, target, before)


def left_alone_until(target: TargetState, now: datetime) -> datetime | None:
    """Until when it is not suspended because another client sets that back; None where it is not left alone.

    Its history may be in an annotation: a time that is yet to come counts for nothing.
    """
    if (set_back := target.set_back) is None or not set_back.at <= now < set_back.left_alone_until:
        return None
    return set_back.left_alone_until


def asked_for(decision: Decision, now: datetime) -> bool:
    """Whether its owner, demand, or its policy asks for it to run."""
    target, policy = decision.target, decision.policy
    is_woken = target.wake_request is not None and not target.is_started_by_other
    return is_woken or bool(target.demand or target.when_free_request or _schedule(target, policy, now))


def _until(instant: datetime) -> str:
    return "for good" if instant.year == MAXYEAR else f"until {instant.isoformat()}"


def _waits_for_warning(target: TargetState, since: datetime | None, policy: Policy, now: datetime) -> str:
    """Why it must not be suspended yet, in words; empty where the policy asks for no warning, or one has stood."""
    if policy.warning is None:
        return ""
    warning, standing = format_duration(policy.warning), since and _standing(target, since)
    if policy.require_delivery and not target.told_by:
        return (
            "its owner cannot be notified: none of its targets sends messages (notifications.targets of the settings)"
        )
    if standing is None and policy.has_budget and policy.reclaim is Reclaim.ALWAYS:
        limits = (policy.suspended_at_once, "at once"), (policy.suspended_per_period, "")
        words = " and ".join(f"{limit} {what}".rstrip() for limit, what in limits if limit is not None)
        return f"no room yet in its policy's budget, by which at most {words} are suspended"
    if standing is None:
        return f"its owner is warned {warning} before it may be suspended"
    return _waits_for_time(policy, _counted_from(policy, target, standing), standing, now, ", ".join(target.told_by))


def _waits_for_time(
    policy: Policy, counted_from: datetime | None, standing: datetime, now: datetime, targets: str
) -> str:
    if counted_from is None:
        return f"the warning of {standing:%Y-%m-%dT%H:%M:%SZ} counts once its owner has it from {targets}"
    warning, did = policy.warning or timedelta(0), "notified" if policy.require_delivery else "warned"
    if now >= counted_from + warning:
        return ""
    since = f"{counted_from:%Y-%m-%dT%H:%M:%SZ}"
    return f"its owner was {did} at {since}, {format_duration(warning)} before it may be suspended"


def _answer_measured(
    now: datetime, verdict: WorkloadVerdict, policy: Policy, target: TargetState, before: _Before
) -> Answer:
    warm_up, window = format_duration(policy.warm_up), format_duration(policy.window)
    ran, seen = now - (target.running_since or now), target.last_activity
    if ran < policy.warm_up:
        return Active(reason=DecisionReason.WARMING_UP, message=f"running for {_rough(ran)} of {warm_up} warm-up")
    match verdict.verdict:
        case Busy():
            return Active(reason=DecisionReason.GPUS_BUSY, message=f"work seen within the last {window}")
        case _ if ran < policy.warm_up + policy.window:
            too_short = f"running for {_rough(ran)}: not yet {window} past its warm-up of {warm_up}"
            return Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message=too_short)
        case Unknown() as unknown:
            return unknown
        case Idle() if seen is not None and now - seen < policy.window:
            message = f"GPUs idle, but activity reported at {seen:%Y-%m-%dT%H:%M:%SZ}, within the last {window}"
            return Active(reason=DecisionReason.GPUS_BUSY, message=message)
        case Idle():
            return _answer_idle(policy, target, now, before)


def _rough(duration: timedelta) -> str:
    """The duration in whole seconds, so that a message does not change with every millisecond; never below 0, where the
    clock of a node is ahead."""
    return format_duration(timedelta(seconds=max(0, int(duration.total_seconds()))))


def _answer_idle(policy: Policy, target: TargetState, now: datetime, before: _Before) -> Answer:
    floor, window = f"{100 * policy.active_above_ratio:g} %", format_duration(policy.window)
    quiet = f"every required GPU stayed below {floor} for {window}"
    if policy.mode is EnforcementMode.OBSERVE:
        why = f": {policy.observed_because}" if policy.observed_because else ""
        return Active(reason=DecisionReason.OBSERVE_ONLY, message=f"{quiet}; mode observe only reports it{why}")
    if policy.reclaim is not Reclaim.ALWAYS and not target.is_plannable:
        return Active(reason=DecisionReason.IDLE_NOT_NEEDED, message=f"{quiet}; {_NOT_PLANNABLE}")
    if policy.allowed_during and not is_open(policy.allowed_during, now):
        hours = "; ".join(map(str, policy.allowed_during))
        return Active(reason=DecisionReason.OUTSIDE_HOURS, message=f"{quiet}; suspended only during {hours}")
    if before.hook is HookStage.HELD and policy.reclaim is not Reclaim.PRIORITY_BOOST:
        failed = f"{quiet}; {_hook_words(target.hook_run, policy, before.hook)}"
        return Active(reason=DecisionReason.BEFORE_SUSPEND_FAILED, message=failed)
    if before.warning:
        return Active(reason=DecisionReason.WARNED, message=f"{quiet}; {before.warning}")
    return _answer_enforced(policy, target, quiet, before.hook)


def _answer_enforced(policy: Policy, target: TargetState, quiet: str, hook: HookStage | None) -> Answer:
    match policy.reclaim:
        case Reclaim.ON_PRESSURE if not target.grant:
            return Active(reason=DecisionReason.IDLE_NOT_NEEDED, message=f"{quiet}; no waiting gang needs its GPUs")
        case Reclaim.PRIORITY_BOOST:
            return Active(
                reason=DecisionReason.PRIORITY_LOWERED, message=f"{quiet}; Kueue preempts it first where it must"
            )
    done = quiet if hook is None else f"{quiet}; {_hook_words(target.hook_run, policy, hook)}"
    if hook not in (None, HookStage.DONE):
        return Active(reason=DecisionReason.BEFORE_SUSPEND, message=done)
    if policy.reclaim is Reclaim.ON_PRESSURE:
        return Inactive(reason=DecisionReason.RECLAIMED, message=f"{done}; taken by {target.grant}")
    return Inactive(reason=DecisionReason.GPUS_IDLE, message=done)


def _hook_words(run: HookRun | None, policy: Policy, stage: HookStage) -> str:
    """What has come of its hook, and what follows from that."""
    if run is None or stage is HookStage.DUE:
        return f"hook {policy.before_suspend} has to end first, and has not begun"
    if stage is HookStage.HELD:
        return f"{hooks.words(run)}; again from {hooks.again_at(run, policy.window):%Y-%m-%dT%H:%M:%SZ} on"
    return hooks.words(run)


_NOT_PLANNABLE = (
    "reclaim OnPressure and PriorityBoost are for ScalableWorkloads of Kueue Workloads, whose quota is known; scale "
    "one, or set reclaim to Always"
)


def _idle_since(
    target: TargetState, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime, quiet: Quiet | None
) -> tuple[datetime, bool] | None:
    """Since when enough GPUs are quiet, and whether that is a bound: the end of their last work, or the activity that
    its own controller has seen last, and not before the warm-up ended.

    None while too few of them are, and while one is unknown.
    """
    if target.running_since is None or verdict is None:
        return None
    if verdict.remote is None:
        found = _quiet_here(target.running_since, verdict, policy, quiet)
    else:
        found = _quiet_there(verdict)
    if found is None:
        return None
    since = max(target.running_since + policy.warm_up, found[0], target.last_activity or target.running_since)
    return (since, found[1] and since == found[0]) if since < now else None


def _quiet_there(verdict: WorkloadVerdict) -> tuple[datetime, bool] | None:
    """What the cluster says where it runs, unless it does not know."""
    if verdict.remote is None or verdict.remote.idle_since is None or isinstance(verdict.verdict, Unknown):
        return None
    return verdict.remote.idle_since, verdict.remote.idle_at_least


def _quiet_here(
    running_since: datetime, verdict: WorkloadVerdict, policy: Policy, known: Quiet | None
) -> tuple[datetime, bool] | None:
    """What is known from before goes further back than the samples where these go on without a hole from then.

    Only further back: whoever may write that it worked until a moment ago gains nothing.
    """
    if not verdict.gpus or any(isinstance(gpu.verdict, Unknown) for gpu in verdict.gpus):
        return None
    quiet = sorted(_quiet_since(running_since, gpu) for gpu in verdict.gpus if gpu.is_quiet)
    needed = policy.gpus.idle_gpus_needed(len(verdict.gpus))
    if len(quiet) < needed:
        return None
    since, at_least = quiet[needed - 1]
    if at_least and known and known.until >= since >= known.since >= running_since:
        return known.since, known.at_least
    return since, at_least


def _quiet_since(running_since: datetime, gpu: GpuEvidence) -> tuple[datetime, bool]:
    """Since when it is quiet by its samples, and whether that is a bound."""
    ended_at, unseen_until = gpu.last_active_at or running_since, gpu.unseen_until
    return (ended_at, False) if unseen_until is None or ended_at >= unseen_until else (unseen_until, True)
