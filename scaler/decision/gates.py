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
        answer=next(answer for gate in GATES if (answer := gate.answer(case)) is not None),
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
    reasons: tuple[DecisionReason | UnknownReason, ...]
    kind: type[Answer]
    find: Callable[[Case], str | Answer | None]
    """The words of the answer, or the answer; nothing where one of the gates after it has to give it."""

    def answer(self, case: Case) -> Answer | None:
        found = self.find(case)
        return self.kind(reason=self.reasons[0], message=found) if found and isinstance(found, str) else found or None  # type: ignore[arg-type]


GATES: list[Gate] = []
"""The gates in the order of precedence, in which they follow here. The last one always has an answer."""
_Find = TypeVar("_Find", bound=Callable[[Case], str | Answer | None])


def gate(when: str, *reasons: DecisionReason | UnknownReason, kind: type[Answer] = Active) -> Callable[[_Find], _Find]:
    """A gate of `GATES`, after those above it."""

    def add(find: _Find) -> _Find:
        GATES.append(Gate(when, reasons, kind, find))
        return find

    return add


_R = DecisionReason

# ------------------------------------------------------------------------------------- what does not run, or not yet


@gate(
    "does not exist, is not supported, or its policy is invalid",
    UnknownReason.TARGET_NOT_FOUND,
    UnknownReason.WORKLOAD_MISSING,
    UnknownReason.UNSUPPORTED_WORKLOAD,
    UnknownReason.REMOTE_COPY,
    UnknownReason.INVALID_POLICY,
    kind=Unknown,
)
def _doubted(case: Case) -> Unknown | None:
    return case.target.doubt


_FINISHED = "the workload has finished; its replicas stay as they are"


@gate("has finished at 1", _R.FINISHED)
def _finished(case: Case) -> str:
    return _FINISHED if case.target.phase is Phase.FINISHED and case.target.desired_replicas else ""


@gate("has finished at 0", _R.FINISHED, kind=Inactive)
def _finished_at_zero(case: Case) -> str:
    return _FINISHED if case.target.phase is Phase.FINISHED else ""


@gate("is at 0, and an annotation, a demand query or `wakeAt` requests a wake-up", _R.WAKING)
def _woken(case: Case) -> str:
    return f"wake-up requested: {case.request.words}" if case.request is not None else ""


@gate("is at 0, and no wake-up is requested", _R.SUSPENDED, kind=Inactive)
def _suspended(case: Case) -> str:
    awaits = _AWAITS_ROOM[case.target.is_plannable] if case.when_free else "no wake-up requested"
    return f"suspended; {awaits}" if case.is_down else ""


_AWAITS_ROOM = {
    True: "it comes back when its quota and nodes are free and no Workload waits for them (WhenFree)",
    False: "WhenFree is for Workloads of Kueue, whose quota is known; set annotation idlegpu.io/wake to true",
}
"""Why it waits for room, by whether the target is plannable."""


@gate(
    "is at 1, and for `warmUp` + `idleAfter` none of its pods is known to hold GPUs",
    UnknownReason.NO_GPU_PODS,
    kind=Unknown,
)
def _without_gpu_pods(case: Case) -> Answer | None:
    if case.target.has_gpu_pods or not _is_late(case):
        return None
    return Unknown(reason=UnknownReason.NO_GPU_PODS, message=case.target.message)


@gate("is at 1, and for `warmUp` + `idleAfter` some of its pods do not run", _R.PODS_NOT_RUNNING)
def _pods_not_running(case: Case) -> Answer | None:
    return Active(reason=_R.PODS_NOT_RUNNING, message=case.target.message) if _is_late(case) else None


def _is_late(case: Case) -> bool:
    """Whether it is no start any more that not all of its pods run."""
    return case.target.phase in _NOT_RUNNING_YET and case.late_at is not None and case.now >= case.late_at


@gate(
    "is at 1, and has no Workload, no quota, checks that are not ready, or pods that do not run yet",
    _R.WAITING_FOR_WORKLOAD,
    _R.WAITING_FOR_QUOTA,
    _R.WAITING_FOR_CHECKS,
    _R.STARTING,
)
def _waits(case: Case) -> Answer | None:
    if case.target.phase not in _NOT_RUNNING_YET:
        return None
    (reason, message), more = _NOT_RUNNING_YET[case.target.phase], case.target.message
    return Active(reason=reason, message=f"{message}: {more}" if more else message)


_WAITS_FOR_WORKLOAD = (_R.WAITING_FOR_WORKLOAD, "spec.replicas is 1; no Workload yet")
_WAITS_FOR_QUOTA = (_R.WAITING_FOR_QUOTA, "spec.replicas is 1; not admitted yet")
_NOT_RUNNING_YET = {
    Phase.NO_WORKLOAD: _WAITS_FOR_WORKLOAD,
    Phase.REFUSED: _WAITS_FOR_WORKLOAD,
    Phase.SUSPENDING: _WAITS_FOR_QUOTA,
    Phase.RESUMING: _WAITS_FOR_QUOTA,
    Phase.DEACTIVATED_BY_OTHER: _WAITS_FOR_QUOTA,
    Phase.WAITING_FOR_QUOTA: _WAITS_FOR_QUOTA,
    Phase.WAITING_FOR_CHECKS: (_R.WAITING_FOR_CHECKS, "quota reserved; admission checks are not all ready"),
    Phase.STARTING: (_R.STARTING, "not all of its GPU pods run yet"),
}


# -------------------------------------------------------------------------------- what runs, whatever its GPUs do


@gate("is excluded by the annotation `idlegpu.io/exclude`", _R.EXCLUDED)
def _excluded(case: Case) -> str:
    until = case.policy.exclude_until
    return f"excluded {_until(until)}" if until is not None and case.now < until else ""


@gate("is kept (`keep-until`), or a demand query has a value above 0 for it", _R.KEPT)
def _kept(case: Case) -> str:
    until, demand = case.policy.keep_until, case.target.demand
    if until is not None and case.now < until:
        return f"kept {_until(until)}"
    return demand and f"requested by {demand}"


@gate("was started by another client after its suspension, twice in a row", _R.SET_BACK)
def _set_back(case: Case) -> str:
    until, set_back = case.left_alone_until, case.target.set_back
    return f"{set_back.words}: it is left alone until {until:%Y-%m-%dT%H:%M:%SZ}" if set_back and until else ""


@gate("runs, and the start time of its containers is not known", _R.STARTING)
def _unheard(case: Case) -> str:
    is_heard = case.target.running_since is not None and case.verdict is not None
    return "" if is_heard else "its containers have not reported when they started running"


@gate("is within `warmUp` of its newest container's start", _R.WARMING_UP)
def _warming_up(case: Case) -> str:
    warm_up = case.policy.warm_up
    return f"running for {_rough(case.ran)} of {format_duration(warm_up)} warm-up" if case.ran < warm_up else ""


# --------------------------------------------------------------------------------------------- what its GPUs show


@gate("has the verdict Busy", _R.GPUS_BUSY)
def _busy(case: Case) -> str:
    is_busy = isinstance(case.verdict, Busy)
    return f"work seen within the last {format_duration(case.policy.window)}" if is_busy else ""


@gate("is not idle for `idleAfter` yet; `warmUp` does not count", _R.IDLE_NOT_LONG_ENOUGH)
def _too_short(case: Case) -> str:
    policy = case.policy
    if case.ran >= policy.warm_up + policy.window:
        return ""
    warm_up, window = format_duration(policy.warm_up), format_duration(policy.window)
    return f"running for {_rough(case.ran)}: not yet {window} past its warm-up of {warm_up}"


@gate("has the verdict Unknown", kind=Unknown)
def _unknown(case: Case) -> Unknown | None:
    return case.verdict if isinstance(case.verdict, Unknown) else None


@gate("is idle, and its own controller has seen activity within `idleAfter`", _R.GPUS_BUSY)
def _active_by_its_controller(case: Case) -> str:
    seen, window = case.target.last_activity, case.policy.window
    if seen is None or case.now - seen >= window:
        return ""
    return f"GPUs idle, but activity reported at {seen:%Y-%m-%dT%H:%M:%SZ}, within the last {format_duration(window)}"


# --------------------------------------------------------------------------------- between idle and suspended: 0


@gate("is idle, with `mode: observe`", _R.OBSERVE_ONLY)
def _only_observed(case: Case) -> str:
    why = case.policy.observed_because and f": {case.policy.observed_because}"
    is_observed = case.policy.mode is EnforcementMode.OBSERVE
    return f"{_quiet(case)}; mode observe only reports it{why}" if is_observed else ""


@gate("is idle, with a `reclaim` that is only for Workloads of Kueue, and is not one", _R.IDLE_NOT_NEEDED)
def _not_plannable(case: Case) -> str:
    if case.policy.reclaim is Reclaim.ALWAYS or case.target.is_plannable:
        return ""
    return (
        f"{_quiet(case)}; reclaim OnPressure and PriorityBoost are for ScalableWorkloads of Kueue Workloads, whose "
        "quota is known; scale one, or set reclaim to Always"
    )


@gate("is idle, outside the hours of `allowedDuring`", _R.OUTSIDE_HOURS)
def _outside_hours(case: Case) -> str:
    hours = case.policy.allowed_during
    is_outside = hours and not is_open(hours, case.now)
    return f"{_quiet(case)}; suspended only during {'; '.join(map(str, hours))}" if is_outside else ""


@gate("is idle, its hook has failed, and its policy says `Hold`", _R.BEFORE_SUSPEND_FAILED)
def _held_by_hook(case: Case) -> str:
    is_held = case.hook is HookStage.HELD and case.policy.reclaim is not Reclaim.PRIORITY_BOOST
    return _quiet_and_hook(case) if is_held else ""


@gate("is idle, and its `warning` has not ended yet", _R.WARNED)
def _warned(case: Case) -> str:
    waits = _waits_for_warning(case, case.policy.warning) if case.policy.warning is not None else ""
    return waits and f"{_quiet(case)}; {waits}"


@gate("is idle, with `reclaim: OnPressure`, and is in no plan", _R.IDLE_NOT_NEEDED)
def _not_needed(case: Case) -> str:
    is_needed = case.policy.reclaim is not Reclaim.ON_PRESSURE or case.target.grant
    return "" if is_needed else f"{_quiet(case)}; no waiting gang needs its GPUs"


@gate("is idle, with `reclaim: PriorityBoost`", _R.PRIORITY_LOWERED)
def _priority_lowered(case: Case) -> str:
    is_boost = case.policy.reclaim is Reclaim.PRIORITY_BOOST
    return f"{_quiet(case)}; Kueue preempts it first where it must" if is_boost else ""


@gate("is idle, and the hook of its policy has not ended", _R.BEFORE_SUSPEND)
def _hook_runs(case: Case) -> str:
    return "" if case.hook in (None, HookStage.DONE) else _quiet_and_hook(case)


@gate("is idle, and has a grant of a plan", _R.RECLAIMED, kind=Inactive)
def _reclaimed(case: Case) -> str:
    is_taken = case.policy.reclaim is Reclaim.ON_PRESSURE
    return f"{_quiet_and_hook(case)}; taken by {case.target.grant}" if is_taken else ""


@gate("is idle", _R.GPUS_IDLE, kind=Inactive)
def _idle(case: Case) -> str:
    return _quiet_and_hook(case)


# ---------------------------------------------------------------------------------------------- in words


def _until(instant: datetime) -> str:
    return "for good" if instant.year == MAXYEAR else f"until {instant.isoformat()}"


def _rough(duration: timedelta) -> str:
    """The duration in whole seconds, so that a message does not change with every millisecond; never below 0, where the
    clock of a node is ahead."""
    return format_duration(timedelta(seconds=max(0, int(duration.total_seconds()))))


def _waits_for_warning(case: Case, warning: timedelta) -> str:
    """Why it must not be suspended yet; empty where its warning has stood long enough."""
    policy, target, warned_at = case.policy, case.target, case.warned_at
    if policy.require_delivery and not target.notified_by:
        return (
            "its owner cannot be notified: none of its targets sends messages (notifications.targets of the settings)"
        )
    if warned_at is None and policy.has_budget and policy.reclaim is Reclaim.ALWAYS:
        limits = (policy.suspended_at_once, "at once"), (policy.suspended_per_period, "")
        words = " and ".join(f"{limit} {what}".rstrip() for limit, what in limits if limit is not None)
        return f"no room yet in its policy's budget, by which at most {words} are suspended"
    if warned_at is None:
        return f"its owner is warned {format_duration(warning)} before it may be suspended"
    if (since := case.warning_counts_from) is None:
        targets = ", ".join(target.notified_by)
        return f"the warning of {warned_at:%Y-%m-%dT%H:%M:%SZ} counts once its owner has it from {targets}"
    if case.now >= since + warning:
        return ""
    did = "notified" if policy.require_delivery else "warned"
    return f"its owner was {did} at {since:%Y-%m-%dT%H:%M:%SZ}, {format_duration(warning)} before it may be suspended"


def _quiet(case: Case) -> str:
    floor, window = f"{100 * case.policy.active_above_ratio:g} %", format_duration(case.policy.window)
    return f"every required GPU stayed below {floor} for {window}"


def _quiet_and_hook(case: Case) -> str:
    return _quiet(case) if case.hook is None else f"{_quiet(case)}; {_hook_words(case)}"


def _hook_words(case: Case) -> str:
    """What has come of its hook, and what follows from that."""
    run, policy = case.target.hook_run, case.policy
    if run is None or case.hook is HookStage.DUE:
        return f"hook {policy.before_suspend} has to end first, and has not begun"
    if case.hook is HookStage.HELD:
        return f"{hooks.words(run)}; again from {hooks.again_at(run, policy.window):%Y-%m-%dT%H:%M:%SZ} on"
    return hooks.words(run)
