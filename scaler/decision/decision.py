"""What was decided for one trigger, and what follows from it: when it may be suspended, and until when it holds."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from scaler.decision.reasons import FOUND_IDLE, DecisionReason, row_of
from scaler.idleness import hooks
from scaler.idleness.hooks import HookRun, HookStage
from scaler.idleness.hours import first_open, following, latest, next_change
from scaler.idleness.policy import EnforcementMode, Policy, Reclaim, WakeRule
from scaler.idleness.reasons import DOUBTS, About
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
    """The verdict on its GPUs; None where they were not looked at, because the answer does not depend on them."""
    idle_since: datetime | None
    """The time since which the GPUs are quiet, as far as known; None while work is seen or nothing runs."""
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
            # An owner who was not warned yet is warned so early that no time is lost, if it is not too late for that.
            warned_at = _warned_since(self.target, self.idle_since) or max(due - warning, self.decided_at)
            counted_from = _counts_from(self.policy, self.target, warned_at)
            if counted_from is None and warned_at + warning <= self.decided_at:
                return None  # nobody knows when its owner will have been notified
            instants.append((counted_from or warned_at) + warning)
        return _first_allowed(self.policy, max(each for each in instants if each is not None))

    @property
    def when_free(self) -> str:
        """What asks for a suspended target to run again when its quota and nodes are free; empty where nothing does.

        A policy does for what was suspended for being idle, not for what its owner has scaled to 0.
        """
        is_suspended = self.answer.reason is DecisionReason.SUSPENDED and self.target.phase is Phase.SUSPENDED
        return _when_free_by(self.target, self.policy) if is_suspended else ""

    @property
    def noticeable_at(self) -> datetime | None:
        """The time from which a status shows the quiet, if it lasts so long; None where there is none."""
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
        """The time of the policy's warning; None where it is busy, kept, or only observed."""
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
        tells_time = row_of(self.answer.reason).tells_time or (isinstance(verdict, Unknown) and verdict is not doubt)
        if tells_time or warm_at == self.decided_at:  # a moment after the warm-up it counts as quiet
            return self.decided_at
        instants = (warm_at, self.noticeable_at, self.warning_at, *self._instants())
        return min((each for each in instants if each is not None and each > self.decided_at), default=None)

    def _instants(self) -> Iterator[datetime | None]:
        """When what was looked at may be another: keeps, the warning, the hook, activity, and hours."""
        target, policy, now = self.target, self.policy, self.decided_at
        yield from (
            policy.keep_until,
            policy.exclude_until,
            left_alone_until(target, now),
            _too_late_at(target, policy),
        )
        warned_at = None if self.idle_since is None else _warned_since(target, self.idle_since)
        if warned_at is not None and policy.warning is not None:
            yield from (
                warned_at + policy.warning,
                (_counts_from(policy, target, warned_at) or warned_at) + policy.warning,
            )
        if (run := target.hook_run) is not None and run.ended_at is not None:
            yield hooks.again_at(run, policy.window)
        if (seen := target.last_activity) is not None:
            yield seen if seen > now else seen + policy.window
        yield next_change(policy.allowed_during, now) if policy.allowed_during else None
        yield following(policy.wake_at, now) if policy.wake_at and not target.desired_replicas else None

    @property
    def _may_shrink(self) -> bool:
        """Whether quiet time alone makes the answer 0."""
        is_due = self.policy.reclaim is Reclaim.ALWAYS or bool(self.target.grant)
        is_enforced = self.policy.mode is EnforcementMode.ENFORCE
        return is_due and is_enforced and not self.target.demand and not self.cannot_tell

    @property
    def cannot_tell(self) -> bool:
        """Whether it is never suspended, because its policy asks that its owner is notified and nothing does that."""
        return self.policy.require_delivery and not self.target.notified_by

    def if_notified(self, at: datetime) -> "Decision":
        """The decision of the same moment, where its owner is notified of its warning at that moment and was not
        before."""
        return self if self.target.notified_at else replace(self, target=replace(self.target, notified_at=at))

    def quiet_until(self, until: datetime) -> "Quiet | None":
        """What it leaves to know of the quiet for the next one, if it holds until then. None after work.

        What is doubted now may turn out to have been quiet all the time: then what was known before is true again.
        """
        if self.idle_since is not None:
            return Quiet(since=self.idle_since, at_least=self.idle_at_least, until=until)
        return self.quiet_before if is_unknown(self) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """The quiet of GPUs, as was known at an earlier time. Samples are forgotten; this is kept."""

    since: datetime
    at_least: bool
    """Whether it is a bound."""
    until: datetime
    """The time up to which it is known that they stayed quiet."""


class Case(NamedTuple):
    """What an answer is found from."""

    target: TargetState
    policy: Policy
    now: datetime
    verdict: Idle | Busy | Unknown | None
    """The verdict on its GPUs; None where they were not looked at."""
    is_down: bool
    """Whether it is at 0; but one whose pods run until its plan is carried out is decided on as it runs."""
    ran: timedelta
    idle_since: datetime | None
    idle_at_least: bool
    hook: HookStage | None
    request: WakeRequest | None
    """What asks for one that is down to run again."""
    when_free: str
    """What asks for that when there is room, in words."""
    late_at: datetime | None
    """When it is no start any more that not all of its pods run."""
    left_alone_until: datetime | None
    warned_at: datetime | None
    """When its owner was warned, if that stands."""
    warning_counts_from: datetime | None

    @classmethod
    def of(
        cls, target: TargetState, verdict: WorkloadVerdict | None, policy: Policy, now: datetime, quiet: Quiet | None
    ) -> "Case":
        """`quiet`: what was known before of its quiet."""
        since, at_least = _idle_since(target, verdict, policy=policy, now=now, quiet=quiet) or (None, False)
        warned_at = None if since is None else _warned_since(target, since)
        is_down = not target.desired_replicas and (target.phase is not Phase.HELD or target.wake_request is not None)
        return cls(
            target=target,
            policy=policy,
            now=now,
            verdict=None if verdict is None else verdict.verdict,
            is_down=is_down,
            ran=now - (target.running_since or now),
            idle_since=since,
            idle_at_least=at_least,
            hook=_stage_of_hook(target.hook_run, since, policy, now),
            request=_request_to_wake(target, policy, now) if is_down else None,
            when_free=_when_free_by(target, policy) if is_down else "",
            late_at=_too_late_at(target, policy),
            left_alone_until=left_alone_until(target, now),
            warned_at=warned_at,
            warning_counts_from=None if warned_at is None else _counts_from(policy, target, warned_at),
        )


_LONGEST_WARNING = timedelta(minutes=5)
_NOTICEABLE = 10
"""Quiet is shown when it has lasted for this part of `idleAfter`: three minutes of thirty. Work comes in bursts, and a
status that followed every pause between two samples would be written at every tick, for every busy workload."""


def _first_allowed(policy: Policy, at: datetime) -> datetime | None:
    """The first instant from `at` on at which the policy's hours allow a suspension; None where none is foreseeable."""
    return first_open(policy.allowed_during, at) if policy.allowed_during else at


def _warned_since(target: TargetState, idle_since: datetime) -> datetime | None:
    """When its owner was warned; None where that was before its last work, or may have been, or never."""
    return target.warned_at if target.warned_at is not None and target.warned_at >= idle_since else None


def _counts_from(policy: Policy, target: TargetState, warned_at: datetime) -> datetime | None:
    """The time from which the policy's warning counts; None where its owner has yet to be notified."""
    if not policy.require_delivery:
        return warned_at
    return None if target.notified_at is None else max(warned_at, target.notified_at)


def valid_warning(decision: Decision, warned_at: datetime | None) -> datetime | None:
    """When its owner was warned, if that is valid still; None while work is seen."""
    if decision.idle_since is None:
        return None
    return _warned_since(replace(decision.target, warned_at=warned_at), decision.idle_since)


def hook_stage(decision: Decision, run: HookRun | None) -> HookStage | None:
    """How far its hook is, by that run; None where it has none."""
    return _stage_of_hook(run, decision.idle_since, decision.policy, decision.decided_at)


def _stage_of_hook(run: HookRun | None, since: datetime | None, policy: Policy, now: datetime) -> HookStage | None:
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


def _too_late_at(target: TargetState, policy: Policy) -> datetime | None:
    """When it is no start any more that not all of its pods run; None where they do, or it is not known since when."""
    since = target.starting_since
    return None if since is None else since + policy.warm_up + policy.idle_after


def _when_free_by(target: TargetState, policy: Policy) -> str:
    """What asks for it, also while its pods still end."""
    is_meant = policy.wake is WakeRule.WHEN_FREE and target.suspended_because in FOUND_IDLE
    by_policy = f"wake: WhenFree, from {policy.source_of('wake')}" if is_meant else ""
    return target.when_free_request or by_policy


def _request_to_wake(target: TargetState, policy: Policy, now: datetime) -> WakeRequest | None:
    """What asks for it to run again: its owner, demand, or a `wakeAt` that has passed since it was suspended."""
    return target.wake_request or _schedule(target, policy, now)


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
    request = _request_to_wake(decision.target, decision.policy, decision.decided_at)
    return request.cause if request is not None else None


def left_alone_until(target: TargetState, now: datetime) -> datetime | None:
    """The time up to which it is not suspended because another client sets that back; None where it is not left alone.

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


# ------------------------------------------------------------------------------------- since when is it quiet


def _idle_since(
    target: TargetState, verdict: WorkloadVerdict | None, *, policy: Policy, now: datetime, quiet: Quiet | None
) -> tuple[datetime, bool] | None:
    """The time since which enough GPUs are quiet, and whether that is a bound: the end of their last work, or the
    activity that its own controller has seen last, and not before the warm-up ended.

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
    """The time since which it is quiet by its samples, and whether that is a bound."""
    ended_at, unseen_until = gpu.last_active_at or running_since, gpu.unseen_until
    return (ended_at, False) if unseen_until is None or ended_at >= unseen_until else (unseen_until, True)
