"""One or zero? Verdict × the target's timeline × policy × now → a decision with its reason.

The first gate that has an answer gives it: their order in this file is the order of precedence. The table in
docs/concepts.md is made from them. Only the gates of GPUsIdle and Reclaimed shrink what runs.

Idle GPUs of a target whose own controller has seen activity within `idleAfter` count as busy.

Why a start may take `warmUp` + `idleAfter`: from then on GPUs that run could be idle, and those of a pod that does not
run are as unused. That is said by another reason, and nothing is suspended for it.

Why waiting for quota is 1: no pod exists, so no metric does; an answer of 0 would suspend a workload that was just
resumed before it ever ran.
"""

from collections.abc import Callable
from datetime import MAXYEAR, datetime, timedelta
from typing import NamedTuple, TypeVar

from scaler.decision.decision import (
    Active,
    Answer,
    Case,
    Decision,
    Inactive,
    Quiet,
)
from scaler.decision.reasons import DecisionReason
from scaler.idleness import hooks
from scaler.idleness.durations import format_duration
from scaler.idleness.hooks import HookStage
from scaler.idleness.hours import is_open
from scaler.idleness.policy import EnforcementMode, Policy, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Busy, Unknown, WorkloadVerdict
from scaler.targets.target_state import Phase, TargetState


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
    case = Case.of(target, verdict, policy, now, quiet)
    return Decision(
        answer=next(answer for gate in GATES if (answer := gate.find(case)) is not None),
        target=target,
        policy=policy,
        verdict=verdict,
        idle_since=case.idle_since,
        idle_at_least=case.idle_at_least,
        decided_at=now,
        quiet_before=quiet,
    )


def needs_verdict(target: TargetState) -> bool:
    """Whether the GPUs have to be looked at: only a running target has any."""
    runs = target.phase is Phase.HELD or (target.phase is Phase.RUNNING and target.desired_replicas > 0)
    return target.doubt is None and runs


class Gate(NamedTuple):
    when: str
    """The target to which it answers, as the docs say it."""
    answer: str
    reasons: str
    find: Callable[[Case], Answer | None]
    """The answer; None where one of the gates after it has to answer."""


GATES: list[Gate] = []
"""In the order of precedence, in which they follow here. The last one always has an answer."""
_Find = TypeVar("_Find", bound=Callable[[Case], Answer | None])


def gate(when: str, answer: str, reasons: str) -> Callable[[_Find], _Find]:
    """A gate of `GATES`, after those above it."""

    def add(find: _Find) -> _Find:
        GATES.append(Gate(when, answer, reasons, find))
        return find

    return add


# ------------------------------------------------------------------------------------- what does not run, or not yet


@gate(
    "does not exist, is not supported, or its policy is invalid",
    "error",
    "`TargetNotFound`, `WorkloadMissing`, `UnsupportedWorkload`, `RemoteCopy`, `InvalidPolicy`",
)
def _doubted(case: Case) -> Unknown | None:
    return case.target.doubt


@gate("has finished", "its current replica count", "`Finished`")
def _finished(case: Case) -> Answer | None:
    if case.target.phase is not Phase.FINISHED:
        return None
    as_it_stands = Active if case.target.desired_replicas else Inactive
    return as_it_stands(
        reason=DecisionReason.FINISHED, message="the workload has finished; its replicas stay as they are"
    )


@gate("is at 0, and an annotation, a demand query or `wakeAt` requests a wake-up", "1", "`Waking`")
def _woken(case: Case) -> Active | None:
    request = case.request if case.is_down else None
    return request and Active(reason=DecisionReason.WAKING, message=f"wake-up requested: {request.words}")


@gate("is at 0, and no wake-up is requested", "0", "`Suspended`")
def _suspended(case: Case) -> Inactive | None:
    if not case.is_down:
        return None
    awaits = _AWAITS_ROOM[case.target.is_plannable] if case.when_free else "no wake-up requested"
    return Inactive(reason=DecisionReason.SUSPENDED, message=f"suspended; {awaits}")


_AWAITS_ROOM = {
    True: "it comes back when its quota and nodes are free and no Workload waits for them (WhenFree)",
    False: "WhenFree is for Workloads of Kueue, whose quota is known; set annotation idlegpu.io/wake to true",
}
"""By whether the target is plannable."""


def _is_late(case: Case) -> bool:
    """Whether it is no start any more that not all of its pods run."""
    return case.target.phase in _NOT_RUNNING_YET and case.late_at is not None and case.now >= case.late_at


@gate("is at 1, and for `warmUp` + `idleAfter` none of its pods holds GPUs that are known", "error", "`NoGPUPods`")
def _without_gpu_pods(case: Case) -> Unknown | None:
    if not _is_late(case) or case.target.has_gpu_pods:
        return None
    return Unknown(reason=UnknownReason.NO_GPU_PODS, message=case.target.message)


@gate("is at 1, and for `warmUp` + `idleAfter` some of its pods do not run", "1", "`PodsNotRunning`")
def _pods_not_running(case: Case) -> Active | None:
    return Active(reason=DecisionReason.PODS_NOT_RUNNING, message=case.target.message) if _is_late(case) else None


@gate(
    "is at 1, and has no Workload, no quota, checks that are not ready, or pods that do not run yet",
    "1",
    "`WaitingForWorkload`, `WaitingForQuota`, `WaitingForAdmissionChecks`, `Starting`",
)
def _waits(case: Case) -> Active | None:
    if case.target.phase not in _NOT_RUNNING_YET:
        return None
    (reason, message), more = _NOT_RUNNING_YET[case.target.phase], case.target.message
    return Active(reason=reason, message=f"{message}: {more}" if more else message)


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


# -------------------------------------------------------------------------------- what runs, whatever its GPUs do


@gate("is excluded by the annotation `idlegpu.io/exclude`", "1", "`Excluded`")
def _excluded(case: Case) -> Active | None:
    until = case.policy.exclude_until
    if until is None or case.now >= until:
        return None
    return Active(reason=DecisionReason.EXCLUDED, message=f"excluded {_until(until)}")


@gate("is kept (`keep-until`), or a demand query has a value above 0 for it", "1", "`Kept`")
def _kept(case: Case) -> Active | None:
    until, demand = case.policy.keep_until, case.target.demand
    if until is not None and case.now < until:
        return Active(reason=DecisionReason.KEPT, message=f"kept {_until(until)}")
    return Active(reason=DecisionReason.KEPT, message=f"requested by {demand}") if demand else None


@gate("was started by another client after its suspension, twice in a row", "1", "`SetBack`")
def _set_back(case: Case) -> Active | None:
    until, set_back = case.left_alone_until, case.target.set_back
    if until is None or set_back is None:
        return None
    message = f"{set_back.words}: it is left alone until {until:%Y-%m-%dT%H:%M:%SZ}"
    return Active(reason=DecisionReason.SET_BACK, message=message)


@gate("runs, and its containers have not said since when", "1", "`Starting`")
def _unheard(case: Case) -> Active | None:
    if case.target.running_since is not None and case.verdict is not None:
        return None
    message = "its containers have not reported when they started running"
    return Active(reason=DecisionReason.STARTING, message=message)


@gate("is within `warmUp` of its newest container's start", "1", "`WarmingUp`")
def _warming_up(case: Case) -> Active | None:
    if case.ran >= case.policy.warm_up:
        return None
    message = f"running for {_rough(case.ran)} of {format_duration(case.policy.warm_up)} warm-up"
    return Active(reason=DecisionReason.WARMING_UP, message=message)


# --------------------------------------------------------------------------------------------- what its GPUs show


@gate("has the verdict Busy", "1", "`GPUsBusy`")
def _busy(case: Case) -> Active | None:
    if not isinstance(case.verdict, Busy):
        return None
    message = f"work seen within the last {format_duration(case.policy.window)}"
    return Active(reason=DecisionReason.GPUS_BUSY, message=message)


@gate("is not idle for `idleAfter` yet, warm-up not counted", "1", "`IdleNotLongEnough`")
def _too_short(case: Case) -> Active | None:
    policy = case.policy
    if case.ran >= policy.warm_up + policy.window:
        return None
    warm_up, window = format_duration(policy.warm_up), format_duration(policy.window)
    message = f"running for {_rough(case.ran)}: not yet {window} past its warm-up of {warm_up}"
    return Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message=message)


@gate("has the verdict Unknown", "error", "the reason of the verdict")
def _unknown(case: Case) -> Unknown | None:
    return case.verdict if isinstance(case.verdict, Unknown) else None


@gate("is idle, and its own controller has seen activity within `idleAfter`", "1", "`GPUsBusy`")
def _active_by_its_controller(case: Case) -> Active | None:
    seen, window = case.target.last_activity, case.policy.window
    if seen is None or case.now - seen >= window:
        return None
    within = f"within the last {format_duration(window)}"
    message = f"GPUs idle, but activity reported at {seen:%Y-%m-%dT%H:%M:%SZ}, {within}"
    return Active(reason=DecisionReason.GPUS_BUSY, message=message)


# --------------------------------------------------------------------------------- between idle and suspended: 0


@gate("is idle, with `mode: observe`", "1", "`ObserveOnly`")
def _only_observed(case: Case) -> Active | None:
    policy = case.policy
    if policy.mode is not EnforcementMode.OBSERVE:
        return None
    why = f": {policy.observed_because}" if policy.observed_because else ""
    return _stays(case, DecisionReason.OBSERVE_ONLY, f"mode observe only reports it{why}")


@gate("is idle, with a `reclaim` that is for Workloads of Kueue, and is none", "1", "`IdleNotNeeded`")
def _not_plannable(case: Case) -> Active | None:
    if case.policy.reclaim is Reclaim.ALWAYS or case.target.is_plannable:
        return None
    return _stays(case, DecisionReason.IDLE_NOT_NEEDED, _NOT_PLANNABLE)


_NOT_PLANNABLE = (
    "reclaim OnPressure and PriorityBoost are for ScalableWorkloads of Kueue Workloads, whose quota is known; scale "
    "one, or set reclaim to Always"
)


@gate("is idle, outside the hours of `allowedDuring`", "1", "`OutsideHours`")
def _outside_hours(case: Case) -> Active | None:
    hours = case.policy.allowed_during
    if not hours or is_open(hours, case.now):
        return None
    return _stays(case, DecisionReason.OUTSIDE_HOURS, f"suspended only during {'; '.join(map(str, hours))}")


@gate("is idle, its hook has failed, and its policy says `Hold`", "1", "`BeforeSuspendFailed`")
def _held_by_hook(case: Case) -> Active | None:
    if case.hook is not HookStage.HELD or case.policy.reclaim is Reclaim.PRIORITY_BOOST:
        return None
    return _stays(case, DecisionReason.BEFORE_SUSPEND_FAILED, _hook_words(case))


@gate("is idle, with a `warning` in its policy that has not stood so long", "1", "`Warned`")
def _warned(case: Case) -> Active | None:
    waits = _waits_for_warning(case, case.policy.warning) if case.policy.warning is not None else ""
    return _stays(case, DecisionReason.WARNED, waits) if waits else None


@gate("is idle, with `reclaim: OnPressure`, and is in no plan", "1", "`IdleNotNeeded`")
def _not_needed(case: Case) -> Active | None:
    if case.policy.reclaim is not Reclaim.ON_PRESSURE or case.target.grant:
        return None
    return _stays(case, DecisionReason.IDLE_NOT_NEEDED, "no waiting gang needs its GPUs")


@gate("is idle, with `reclaim: PriorityBoost`", "1", "`PriorityLowered`")
def _priority_lowered(case: Case) -> Active | None:
    if case.policy.reclaim is not Reclaim.PRIORITY_BOOST:
        return None
    return _stays(case, DecisionReason.PRIORITY_LOWERED, "Kueue preempts it first where it must")


@gate("is idle, and the hook of its policy has not ended", "1", "`BeforeSuspend`")
def _hook_runs(case: Case) -> Active | None:
    if case.hook in (None, HookStage.DONE):
        return None
    return _stays(case, DecisionReason.BEFORE_SUSPEND, _hook_words(case))


@gate("is idle, and has a grant of a plan", "**0**", "`Reclaimed`")
def _reclaimed(case: Case) -> Inactive | None:
    if case.policy.reclaim is not Reclaim.ON_PRESSURE:
        return None
    return Inactive(reason=DecisionReason.RECLAIMED, message=f"{_done(case)}; taken by {case.target.grant}")


@gate("is idle", "**0**", "`GPUsIdle`")
def _idle(case: Case) -> Inactive:
    return Inactive(reason=DecisionReason.GPUS_IDLE, message=_done(case))


# ---------------------------------------------------------------------------------------------- in words


def _until(instant: datetime) -> str:
    return "for good" if instant.year == MAXYEAR else f"until {instant.isoformat()}"


def _rough(duration: timedelta) -> str:
    """The duration in whole seconds, so that a message does not change with every millisecond; never below 0, where the
    clock of a node is ahead."""
    return format_duration(timedelta(seconds=max(0, int(duration.total_seconds()))))


def _waits_for_warning(case: Case, warning: timedelta) -> str:
    """Why it must not be suspended yet; empty where its warning has stood long enough."""
    policy, target, standing = case.policy, case.target, case.warned_at
    if policy.require_delivery and not target.told_by:
        return (
            "its owner cannot be notified: none of its targets sends messages (notifications.targets of the settings)"
        )
    if standing is None and policy.has_budget and policy.reclaim is Reclaim.ALWAYS:
        limits = (policy.suspended_at_once, "at once"), (policy.suspended_per_period, "")
        words = " and ".join(f"{limit} {what}".rstrip() for limit, what in limits if limit is not None)
        return f"no room yet in its policy's budget, by which at most {words} are suspended"
    if standing is None:
        return f"its owner is warned {format_duration(warning)} before it may be suspended"
    if (since := case.warning_counts_from) is None:
        targets = ", ".join(target.told_by)
        return f"the warning of {standing:%Y-%m-%dT%H:%M:%SZ} counts once its owner has it from {targets}"
    if case.now >= since + warning:
        return ""
    did = "notified" if policy.require_delivery else "warned"
    return f"its owner was {did} at {since:%Y-%m-%dT%H:%M:%SZ}, {format_duration(warning)} before it may be suspended"


def _stays(case: Case, reason: DecisionReason, why: str) -> Active:
    """Idle, and at 1 all the same."""
    return Active(reason=reason, message=f"{_quiet(case.policy)}; {why}")


def _quiet(policy: Policy) -> str:
    floor, window = f"{100 * policy.active_above_ratio:g} %", format_duration(policy.window)
    return f"every required GPU stayed below {floor} for {window}"


def _done(case: Case) -> str:
    return _quiet(case.policy) if case.hook is None else f"{_quiet(case.policy)}; {_hook_words(case)}"


def _hook_words(case: Case) -> str:
    """What has come of its hook, and what follows from that."""
    run, policy = case.target.hook_run, case.policy
    if run is None or case.hook is HookStage.DUE:
        return f"hook {policy.before_suspend} has to end first, and has not begun"
    if case.hook is HookStage.HELD:
        return f"{hooks.words(run)}; again from {hooks.again_at(run, policy.window):%Y-%m-%dT%H:%M:%SZ} on"
    return hooks.words(run)
