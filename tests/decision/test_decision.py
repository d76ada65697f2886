from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from builders import (
    BUSY,
    IDLE,
    NOON,
    UNKNOWN,
    a_target,
    at,
    gpu_evidence,
    minutes,
    policy,
    unknown,
    verdict,
    window,
)
from hypothesis import example, given
from hypothesis import strategies as st

from scaler.decision.decision import Active, Answer, Case, Decision, Inactive, Quiet, hook_stage, is_outdated
from scaler.decision.gates import GATES, decide, needs_verdict
from scaler.decision.reasons import DecisionReason
from scaler.idleness.hooks import HookOutcome, HookRun, HookStage, OnFailure
from scaler.idleness.hours import is_open, parse_day_times, parse_hours
from scaler.idleness.policy import EnforcementMode, GpuRule, Reclaim, WakeRule
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Idle, Unknown, Verdict, WorkloadVerdict
from scaler.suspension.status import next_warned_at
from scaler.targets.target_state import Phase, TargetState, WakeCause, WakeRequest

DOUBT = unknown(UnknownReason.WORKLOAD_MISSING, "its Kueue Workload has vanished")


def running_for(duration: timedelta) -> TargetState:
    return a_target(running_since=NOON - duration)


def decided(target: TargetState, of: Verdict | WorkloadVerdict | None = None, **changes: Any) -> Decision:
    judged = of if isinstance(of, WorkloadVerdict | None) else verdict(of)
    return decide(target, judged, policy=policy(**changes), now=NOON)


def shown(answer: Answer) -> str:
    """What KEDA gets, 1, 0 or an error, and why: `1 Kept`, `error StaleSamples`."""
    got = {Active: "1", Inactive: "0", Unknown: "error"}[type(answer)]
    return f"{got} {answer.reason}"


# ---------------------------------------------------------------------------------------------------------- the table

NONE: dict[str, Any] = {}
OBSERVE = {"mode": EnforcementMode.OBSERVE}
ON_PRESSURE = {"reclaim": Reclaim.ON_PRESSURE}
PLAN = "plan p1 for Workload team/gang"
BY_OWNER = WakeRequest(WakeCause.ANNOTATION, "annotation idlegpu.io/wake")
BY_DEMAND = WakeRequest(WakeCause.DEMAND, "demand query 'inbox'")
ASLEEP = a_target(desired_replicas=0, phase=Phase.SUSPENDED)
FINISHED_AT_0 = a_target(desired_replicas=0, phase=Phase.FINISHED)
GRANTED = a_target(grant=PLAN)
HELD = a_target(desired_replicas=0, phase=Phase.HELD, grant=PLAN)
WANTED = a_target(demand="demand query 'inbox'")

WARNING = {"warning": minutes(20)}
BOOST = {"reclaim": Reclaim.PRIORITY_BOOST}


UNPLANNABLE = a_target(is_plannable=False)


def during(hours: str) -> dict[str, Any]:
    return {"allowed_during": parse_hours(f"{hours} UTC")}


def wake_at(times: str) -> dict[str, Any]:
    return {"wake_at": parse_day_times(f"{times} UTC")}


SUSPENDED_AT_11 = replace(ASLEEP, suspended_at=at(-3600))


def warned(ago: float) -> TargetState:
    """So many minutes ago. It is quiet since 110 minutes ago."""
    return a_target(warned_at=NOON - minutes(ago))


TAKEN = replace(ASLEEP, suspended_because="Reclaimed")
WHEN_FREE: dict[str, Any] = {
    "wake": WakeRule.WHEN_FREE,
    "reclaim": Reclaim.ON_PRESSURE,
    "sources": {"wake": "IdlePolicy/a"},
}
ASKED = replace(ASLEEP, when_free_request="annotation idlegpu.io/wake on ScaledObject x")
ROOM: dict[str, tuple[TargetState, dict[str, Any], str]] = {
    "a plan took it, and its policy brings it back": (TAKEN, WHEN_FREE, "wake: WhenFree, from IdlePolicy/a"),
    "a plan took it": (TAKEN, {}, ""),
    "its owner scaled it to 0": (replace(ASLEEP, suspended_because="ScaledToZero"), WHEN_FREE, ""),
    "nobody knows why it is at 0": (ASLEEP, WHEN_FREE, ""),
    "its owner asks for it": (ASKED, {}, "annotation idlegpu.io/wake on ScaledObject x"),
    "its owner asks for it, whatever its policy says": (
        replace(ASKED, suspended_because="Reclaimed"),
        WHEN_FREE,
        "annotation idlegpu.io/wake on ScaledObject x",
    ),
    "it is woken already": (replace(ASKED, wake_request=BY_OWNER), {}, ""),
    "its pods still end": (replace(TAKEN, phase=Phase.SUSPENDING), WHEN_FREE, ""),
    "it is not known": (replace(TAKEN, doubt=DOUBT), WHEN_FREE, ""),
    "it runs": (a_target(suspended_because="Reclaimed", when_free_request="annotation"), WHEN_FREE, ""),
}


@pytest.mark.parametrize(("target", "given_policy", "expected"), ROOM.values(), ids=ROOM.keys())
def test_what_asks_for_it_to_come_back_when_there_is_room(
    target: TargetState, given_policy: dict[str, Any], expected: str
) -> None:
    made = decided(target, None, **given_policy)
    assert made.when_free == expected
    if expected:
        assert "it comes back when its quota and nodes are free" in made.answer.message


def test_without_quota_there_is_no_room_to_wait_for_and_it_says_so() -> None:
    made = decided(replace(ASKED, is_plannable=False), None)
    assert made.answer.message == (
        "suspended; WhenFree is for Workloads of Kueue, whose quota is known; set annotation idlegpu.io/wake to true"
    )


HOOK = {"before_suspend": "checkpoint"}
GO_ON = {"before_suspend_on_failure": OnFailure.CONTINUE}


def run(ago: float, outcome: HookOutcome | None = None, hook: str = "checkpoint") -> HookRun:
    """Begun so many minutes ago, and ended 5 minutes later. It is quiet since 110 minutes ago."""
    ended_at = None if outcome is None else NOON - minutes(ago - 5)
    return HookRun(hook=hook, started_at=NOON - minutes(ago), ended_at=ended_at, outcome=outcome)


def after(ran: HookRun, **more: Any) -> TargetState:
    return a_target(hook_run=ran, **more)


DONE, FAILED, LATE = HookOutcome.SUCCEEDED, HookOutcome.FAILED, HookOutcome.TIMED_OUT

TABLE: dict[str, tuple[TargetState, Verdict | None, dict[str, Any], str]] = {
    "vanished": (a_target(doubt=DOUBT), IDLE, NONE, "error WorkloadMissing"),
    "vanished at 0": (replace(ASLEEP, doubt=DOUBT), None, NONE, "error WorkloadMissing"),
    "finished at 1 stays at 1": (a_target(phase=Phase.FINISHED), IDLE, NONE, "1 Finished"),
    "finished at 0 stays at 0": (FINISHED_AT_0, None, NONE, "0 Finished"),
    "finished is not woken": (replace(FINISHED_AT_0, wake_request=BY_OWNER), None, NONE, "0 Finished"),
    "at 0, no wake-up": (ASLEEP, None, NONE, "0 Suspended"),
    "at 0, a wake-up": (replace(ASLEEP, wake_request=BY_DEMAND), None, NONE, "1 Waking"),
    "at 0, keeping does not wake": (ASLEEP, None, {"keep_until": at(3600)}, "0 Suspended"),
    "no Workload yet": (a_target(phase=Phase.NO_WORKLOAD), None, NONE, "1 WaitingForWorkload"),
    "no quota yet, whatever GPUs say": (a_target(phase=Phase.WAITING_FOR_QUOTA), IDLE, NONE, "1 WaitingForQuota"),
    "checks not ready": (a_target(phase=Phase.WAITING_FOR_CHECKS), None, NONE, "1 WaitingForAdmissionChecks"),
    "pods starting": (a_target(phase=Phase.STARTING), IDLE, NONE, "1 Starting"),
    "running, GPUs not looked at": (a_target(), None, NONE, "1 Starting"),
    "no container said since when it runs": (a_target(running_since=None), IDLE, NONE, "1 Starting"),
    "kept for another second": (a_target(), IDLE, {"keep_until": at(1)}, "1 Kept"),
    "kept, whatever is unknown": (a_target(), UNKNOWN, {"keep_until": at(1)}, "1 Kept"),
    "no longer kept": (a_target(), IDLE, {"keep_until": NOON}, "0 GPUsIdle"),
    "9 of 10 min warm-up": (running_for(minutes(9)), IDLE, NONE, "1 WarmingUp"),
    "unknown during warm-up": (running_for(minutes(9)), UNKNOWN, NONE, "1 WarmingUp"),
    "started in future": (running_for(minutes(-1)), IDLE, {"warm_up": timedelta(0)}, "1 WarmingUp"),
    "busy after warm-up": (running_for(minutes(10)), BUSY, NONE, "1 GPUsBusy"),
    "busy": (a_target(), BUSY, NONE, "1 GPUsBusy"),
    "39 of 10 + 30 min": (running_for(minutes(39)), IDLE, NONE, "1 IdleNotLongEnough"),
    "young and unknown": (running_for(minutes(39)), UNKNOWN, NONE, "1 IdleNotLongEnough"),
    "40 of 10 + 30 min": (running_for(minutes(40)), IDLE, NONE, "0 GPUsIdle"),
    "old enough and unknown": (running_for(minutes(40)), UNKNOWN, NONE, "error StaleSamples"),
    "idle, mode observe": (a_target(), IDLE, OBSERVE, "1 ObserveOnly"),
    "unknown, mode observe": (a_target(), UNKNOWN, OBSERVE, "error StaleSamples"),
    "idle, mode enforce": (a_target(), IDLE, NONE, "0 GPUsIdle"),
    "a wake-up does not keep": (a_target(wake_request=BY_OWNER), IDLE, NONE, "0 GPUsIdle"),
    "idle, and in demand": (WANTED, IDLE, NONE, "1 Kept"),
    "unknown, and in demand": (WANTED, UNKNOWN, NONE, "1 Kept"),
    "idle, and not warned": (a_target(), IDLE, WARNING, "1 Warned"),
    "warned 19 of 20 min": (warned(19), IDLE, WARNING, "1 Warned"),
    "warned 20 of 20 min": (warned(20), IDLE, WARNING, "0 GPUsIdle"),
    "warned before its last work": (warned(111), IDLE, WARNING, "1 Warned"),
    "warned, and busy": (warned(20), BUSY, WARNING, "1 GPUsBusy"),
    "warned, and unknown": (warned(20), UNKNOWN, WARNING, "error StaleSamples"),
    "not warned, mode observe": (a_target(), IDLE, WARNING | OBSERVE, "1 ObserveOnly"),
    "not warned is no candidate": (a_target(), IDLE, WARNING | ON_PRESSURE, "1 Warned"),
    "no plan takes what Kueue does not know": (UNPLANNABLE, IDLE, WARNING | ON_PRESSURE, "1 IdleNotNeeded"),
    "nor is taken by a plan": (GRANTED, IDLE, WARNING | ON_PRESSURE, "1 Warned"),
    "warned is a candidate": (warned(20), IDLE, WARNING | ON_PRESSURE, "1 IdleNotNeeded"),
    "and is taken": (replace(warned(20), grant=PLAN), IDLE, WARNING | ON_PRESSURE, "0 Reclaimed"),
    "not warned keeps its priority": (a_target(), IDLE, WARNING | BOOST, "1 Warned"),
    "idle, and it is time": (a_target(), IDLE, during("12:00-13:00"), "0 GPUsIdle"),
    "idle, a minute too late": (a_target(), IDLE, during("11:00-12:00"), "1 OutsideHours"),
    "busy, outside hours": (a_target(), BUSY, during("11:00-12:00"), "1 GPUsBusy"),
    "unknown, outside hours": (a_target(), UNKNOWN, during("11:00-12:00"), "error StaleSamples"),
    "no candidate outside hours": (a_target(), IDLE, during("11:00-12:00") | ON_PRESSURE, "1 OutsideHours"),
    "no plan takes it outside hours": (GRANTED, IDLE, during("11:00-12:00") | ON_PRESSURE, "1 OutsideHours"),
    "priority stays outside hours": (a_target(), IDLE, during("11:00-12:00") | BOOST, "1 OutsideHours"),
    "held, and hours end: back to 1": (HELD, IDLE, during("11:00-12:00") | ON_PRESSURE, "1 OutsideHours"),
    "idle, its hook has not begun": (a_target(), IDLE, HOOK, "1 BeforeSuspend"),
    "idle, its hook runs": (after(run(3)), IDLE, HOOK, "1 BeforeSuspend"),
    "idle, its hook has ended": (after(run(6, DONE)), IDLE, HOOK, "0 GPUsIdle"),
    "its hook has ended before its last work": (after(run(111, DONE)), IDLE, HOOK, "1 BeforeSuspend"),
    "work may have followed its hook": (after(run(6, HookOutcome.OUTDATED)), IDLE, HOOK, "1 BeforeSuspend"),
    "another hook has ended": (after(run(6, DONE, "old")), IDLE, HOOK, "1 BeforeSuspend"),
    "its hook has failed": (after(run(6, FAILED)), IDLE, HOOK, "1 BeforeSuspendFailed"),
    "its hook has timed out": (after(run(6, LATE)), IDLE, HOOK, "1 BeforeSuspendFailed"),
    "its hook has failed 29 of 30 min ago": (after(run(34, FAILED)), IDLE, HOOK, "1 BeforeSuspendFailed"),
    "its hook has failed 30 min ago": (after(run(35, FAILED)), IDLE, HOOK, "1 BeforeSuspend"),
    "its hook has failed, Continue": (after(run(6, FAILED)), IDLE, HOOK | GO_ON, "0 GPUsIdle"),
    "its hook has timed out, Continue": (after(run(6, LATE)), IDLE, HOOK | GO_ON, "0 GPUsIdle"),
    "its hook runs, Continue": (after(run(3)), IDLE, HOOK | GO_ON, "1 BeforeSuspend"),
    "its hook has ended, and it is busy": (after(run(6, DONE)), BUSY, HOOK, "1 GPUsBusy"),
    "its hook has ended, and it is unknown": (after(run(6, DONE)), UNKNOWN, HOOK, "error StaleSamples"),
    "its hook has ended, mode observe": (after(run(6, DONE)), IDLE, HOOK | OBSERVE, "1 ObserveOnly"),
    "its hook has failed, outside hours": (
        after(run(6, FAILED)),
        IDLE,
        HOOK | during("11:00-12:00"),
        "1 OutsideHours",
    ),
    "not warned, and its hook does not begin": (a_target(), IDLE, HOOK | WARNING, "1 Warned"),
    "warned, and its hook begins": (warned(20), IDLE, HOOK | WARNING, "1 BeforeSuspend"),
    "its hook has failed, and nobody is warned": (after(run(6, FAILED)), IDLE, HOOK | WARNING, "1 BeforeSuspendFailed"),
    "no plan, no hook": (a_target(), IDLE, HOOK | ON_PRESSURE, "1 IdleNotNeeded"),
    "a plan, and its hook has not begun": (GRANTED, IDLE, HOOK | ON_PRESSURE, "1 BeforeSuspend"),
    "a plan, and its hook has ended": (after(run(6, DONE), grant=PLAN), IDLE, HOOK | ON_PRESSURE, "0 Reclaimed"),
    "no candidate while its hook has failed": (
        after(run(6, FAILED)),
        IDLE,
        HOOK | ON_PRESSURE,
        "1 BeforeSuspendFailed",
    ),
    "a plan, and its hook has failed": (
        after(run(6, FAILED), grant=PLAN),
        IDLE,
        HOOK | ON_PRESSURE,
        "1 BeforeSuspendFailed",
    ),
    "at 0 for its plan, and its hook is outdated": (
        replace(HELD, hook_run=run(6, HookOutcome.OUTDATED)),
        IDLE,
        HOOK | ON_PRESSURE,
        "1 BeforeSuspend",
    ),
    "Kueue waits for no hook": (a_target(), IDLE, HOOK | BOOST, "1 PriorityLowered"),
    "at 0 by hand": (ASLEEP, None, HOOK, "0 Suspended"),
    "at 0 at its hour": (SUSPENDED_AT_11, None, wake_at("12:00"), "1 Waking"),
    "at 0 since before its hour": (SUSPENDED_AT_11, None, wake_at("11:30"), "1 Waking"),
    "at 0 since its hour": (SUSPENDED_AT_11, None, wake_at("11:00"), "0 Suspended"),
    "at 0 before its hour": (SUSPENDED_AT_11, None, wake_at("12:01"), "0 Suspended"),
    "at 0, nobody knows since when": (ASLEEP, None, wake_at("12:00"), "0 Suspended"),
    "at 0, and it comes back when there is room": (TAKEN, None, WHEN_FREE, "0 Suspended"),
    "vanished at its hour": (replace(SUSPENDED_AT_11, doubt=DOUBT), None, wake_at("12:00"), "error WorkloadMissing"),
    "idle, and no plan takes it": (a_target(), IDLE, ON_PRESSURE, "1 IdleNotNeeded"),
    "idle, and a plan takes it": (GRANTED, IDLE, ON_PRESSURE, "0 Reclaimed"),
    "a plan takes nothing that works": (GRANTED, BUSY, ON_PRESSURE, "1 GPUsBusy"),
    "nor what is not known": (GRANTED, UNKNOWN, ON_PRESSURE, "error StaleSamples"),
    "what time takes needs no plan": (GRANTED, IDLE, NONE, "0 GPUsIdle"),
    "left to Kueue, plan or not": (GRANTED, IDLE, {"reclaim": Reclaim.PRIORITY_BOOST}, "1 PriorityLowered"),
    "observed, plan or not": (GRANTED, IDLE, ON_PRESSURE | OBSERVE, "1 ObserveOnly"),
    "in demand, plan or not": (replace(WANTED, grant=PLAN), IDLE, ON_PRESSURE, "1 Kept"),
    "at 0 and still idle: its plan goes on": (HELD, IDLE, ON_PRESSURE, "0 Reclaimed"),
    "at 0 and working again: back to 1": (HELD, BUSY, ON_PRESSURE, "1 GPUsBusy"),
    "at 0 and unknown: nothing moves": (HELD, UNKNOWN, ON_PRESSURE, "error StaleSamples"),
    "at 0 and its plan ended": (replace(HELD, grant=""), IDLE, ON_PRESSURE, "1 IdleNotNeeded"),
    "at 0, held, and a wake-up": (replace(HELD, wake_request=BY_OWNER), IDLE, ON_PRESSURE, "1 Waking"),
}


@pytest.mark.parametrize(("target", "of", "given_policy", "expected"), TABLE.values(), ids=TABLE.keys())
def test_a_target_is_answered_by_the_first_row_that_applies(
    target: TargetState, of: Verdict | None, given_policy: dict[str, Any], expected: str
) -> None:
    assert shown(decided(target, of, **given_policy).answer) == expected


def test_every_stage_of_a_target_at_one_but_running_is_active_whatever_is_measured() -> None:
    for phase in Phase:
        for of in (None, IDLE, BUSY, UNKNOWN):
            answer = decided(a_target(phase=phase, running_since=None), of).answer
            assert isinstance(answer, Active), (phase, of)


def test_a_woken_workload_is_not_put_to_sleep_before_it_ran_warm_up_and_idle_after_again() -> None:
    """Asked to run, admitted, started, and quiet all the time, as it was when it was suspended."""
    steps = [
        a_target(phase=Phase.WAITING_FOR_QUOTA, running_since=None),
        a_target(phase=Phase.STARTING, running_since=None),
        running_for(timedelta(0)),
        running_for(minutes(39.9)),
        running_for(minutes(40)),
    ]
    assert [type(decided(step, IDLE).answer) for step in steps] == [Active, Active, Active, Active, Inactive]


QUOTA = a_target(phase=Phase.WAITING_FOR_QUOTA, message="2 more needed")


@pytest.mark.parametrize(
    ("target", "of", "given_policy", "message"),
    [
        (QUOTA, None, {}, "spec.replicas is 1; not admitted yet: 2 more needed"),
        (a_target(phase=Phase.STARTING), None, {}, "not all of its GPU pods run yet"),
        (running_for(timedelta(seconds=61.7)), IDLE, {}, "running for 1m1s of 10m warm-up"),
        (running_for(timedelta(seconds=-2)), IDLE, {}, "running for 0s of 10m warm-up"),
        (running_for(timedelta(seconds=-2)), IDLE, {"warm_up": timedelta(0)}, "running for 0s of 0s warm-up"),
        (running_for(minutes(20)), IDLE, {}, "running for 20m: not yet 30m past its warm-up of 10m"),
        (a_target(), IDLE, {"active_above_ratio": 0.05}, "every required GPU stayed below 5 % for 30m"),
        (a_target(), BUSY, {}, "work seen within the last 30m"),
        (a_target(), UNKNOWN, {}, "newest sample is 5m old"),
        (replace(ASLEEP, wake_request=BY_DEMAND), None, {}, "wake-up requested: demand query 'inbox'"),
        (SUSPENDED_AT_11, None, wake_at("11:30"), "wake-up requested: wakeAt 2026-12-01T11:30:00Z"),
        (
            a_target(),
            IDLE,
            HOOK,
            "every required GPU stayed below 1 % for 30m; hook checkpoint has to end first, and has not begun",
        ),
        (
            after(run(3)),
            IDLE,
            HOOK,
            "every required GPU stayed below 1 % for 30m; hook checkpoint runs since 2026-12-01T11:57:00Z",
        ),
        (
            after(replace(run(6, FAILED), message="it answers HTTP 403")),
            IDLE,
            HOOK,
            "every required GPU stayed below 1 % for 30m; hook checkpoint has failed: it answers HTTP 403; again from "
            "2026-12-01T12:29:00Z on",
        ),
        (after(run(6, DONE)), IDLE, HOOK, "every required GPU stayed below 1 % for 30m; hook checkpoint has succeeded"),
        (
            after(run(6, LATE)),
            IDLE,
            HOOK | GO_ON,
            "every required GPU stayed below 1 % for 30m; hook checkpoint has timed out",
        ),
        (
            a_target(),
            IDLE,
            during("Sat,Sun 00:00-24:00"),
            "every required GPU stayed below 1 % for 30m; suspended only during Sat,Sun 00:00-24:00 UTC",
        ),
    ],
)
def test_an_answer_says_why_in_words(
    target: TargetState, of: Verdict | None, given_policy: dict[str, Any], message: str
) -> None:
    assert decided(target, of, **given_policy).answer.message == message


# ------------------------------------------------------------------------------------------------------------ the laws

phases = st.sampled_from(Phase)
instants = st.one_of(st.none(), st.integers(-7200, 600).map(at))
wholes = st.integers(0, 3600).map(lambda s: timedelta(seconds=s))
policies = st.builds(
    policy,
    idle_after=st.integers(1, 3600).map(lambda s: timedelta(seconds=s)),
    warm_up=wholes,
    mode=st.sampled_from(EnforcementMode),
    reclaim=st.sampled_from(Reclaim),
    idle_after_under_pressure=st.one_of(st.none(), wholes),
    keep_until=instants,
    allowed_during=st.sampled_from([(), parse_hours("12:00-13:00 UTC"), parse_hours("11:00-12:00 UTC")]),
    wake_at=st.sampled_from([(), parse_day_times("12:00 UTC"), parse_day_times("13:00 UTC")]),
    before_suspend=st.sampled_from(["", "checkpoint"]),
    before_suspend_on_failure=st.sampled_from(OnFailure),
    gpus=st.sampled_from([0.0, 0.5, 1.0]).map(lambda share: GpuRule(share=share)),
)
gpus = st.builds(
    gpu_evidence,
    st.sampled_from([IDLE, BUSY, UNKNOWN]),
    last_active_at=st.one_of(st.none(), st.integers(-7200, 60).map(at)),
)
verdicts = st.one_of(
    st.none(),
    st.builds(
        lambda of, evidence: WorkloadVerdict(verdict=of, gpus=tuple(evidence)),
        st.sampled_from([IDLE, BUSY, UNKNOWN]),
        st.lists(gpus, max_size=3),
    ),
)
standings = st.builds(
    TargetState,
    desired_replicas=st.integers(0, 2),
    phase=phases,
    running_since=instants,
    wake_request=st.sampled_from([None, BY_OWNER]),
    demand=st.sampled_from(["", "demand query 'inbox'"]),
    grant=st.sampled_from(["", "plan p1 for Workload team/gang"]),
    doubt=st.sampled_from([None, None, None, DOUBT]),
    suspended_at=instants,
    hook_run=st.one_of(
        st.none(),
        st.builds(
            HookRun,
            hook=st.sampled_from(["checkpoint", "checkpoint", "old"]),
            started_at=st.integers(-7200, 0).map(at),
            ended_at=instants,
            outcome=st.one_of(st.none(), st.sampled_from(HookOutcome)),
        ),
    ),
)


@given(target=standings, of=verdicts, given_policy=policies)
def test_a_target_at_one_shrinks_only_on_an_idle_verdict_enforced_unkept_and_long_enough(
    target: TargetState, of: WorkloadVerdict | None, given_policy: Any
) -> None:
    answer = decide(target, of, policy=given_policy, now=NOON).answer
    assert target.doubt is None or isinstance(answer, Unknown)
    if target.desired_replicas > 0 and isinstance(answer, Inactive):
        takers = {Reclaim.ALWAYS: DecisionReason.GPUS_IDLE, Reclaim.ON_PRESSURE: DecisionReason.RECLAIMED}
        assert answer.reason is takers[given_policy.reclaim]
        assert answer.reason is not DecisionReason.RECLAIMED or target.grant
        assert of is not None
        assert isinstance(of.verdict, Idle)
        assert given_policy.mode is EnforcementMode.ENFORCE
        assert given_policy.keep_until is None or given_policy.keep_until <= NOON
        assert not target.demand
        assert target.running_since is not None
        assert NOON - target.running_since >= given_policy.warm_up + given_policy.window
        assert not given_policy.allowed_during or is_open(given_policy.allowed_during, NOON)
        assert not given_policy.before_suspend or target.hook_run is not None


@given(target=standings, of=verdicts, given_policy=policies)
def test_with_a_hook_nothing_shrinks_before_that_has_ended_well_or_its_policy_goes_on(
    target: TargetState, of: WorkloadVerdict | None, given_policy: Any
) -> None:
    made = decide(target, of, policy=given_policy, now=NOON)
    if made.answer.reason in (DecisionReason.GPUS_IDLE, DecisionReason.RECLAIMED) and given_policy.before_suspend:
        ran = target.hook_run
        assert ran is not None
        assert made.idle_since is not None
        assert ran.hook == given_policy.before_suspend
        assert ran.started_at >= made.idle_since
        goes_on = given_policy.before_suspend_on_failure is OnFailure.CONTINUE
        assert ran.outcome is DONE or (goes_on and ran.outcome in (FAILED, LATE))


@given(target=standings, of=verdicts, given_policy=policies)
def test_the_first_gate_that_has_an_answer_gives_it_and_says_so_in_the_docs(
    target: TargetState, of: WorkloadVerdict | None, given_policy: Any
) -> None:
    made = decide(target, of, policy=given_policy, now=NOON)
    case = Case.of(target, of, given_policy, NOON, None)
    gate = next(each for each in GATES if each.answer(case) is not None)
    assert gate.answer(case) == made.answer
    assert isinstance(made.answer, gate.kind)
    assert isinstance(made.answer, Unknown) or made.answer.reason in gate.reasons


def test_every_reason_has_a_gate_and_only_what_is_idle_shrinks() -> None:
    assert {each for gate in GATES for each in gate.reasons} >= set(DecisionReason)
    at_1 = [gate.reasons for gate in GATES if gate.kind is Inactive and "at 0" not in gate.when]
    assert at_1 == [(DecisionReason.RECLAIMED,), (DecisionReason.GPUS_IDLE,)]


def test_with_a_hook_nothing_shrinks_while_it_is_not_known_since_when_it_is_quiet() -> None:
    """One of two GPUs is enough to be idle; what the other one did, nobody knows."""
    half_known = WorkloadVerdict(verdict=IDLE, gpus=(gpu_evidence(IDLE), gpu_evidence(UNKNOWN)))
    made = decided(after(run(6, DONE)), half_known, share=0.0, **HOOK)
    assert (made.idle_since, shown(made.answer)) == (None, "1 BeforeSuspend")


@given(target=standings, of=verdicts, given_policy=policies)
def test_a_target_at_zero_is_woken_only_by_a_request(
    target: TargetState, of: WorkloadVerdict | None, given_policy: Any
) -> None:
    answer = decide(target, of, policy=given_policy, now=NOON).answer
    if target.desired_replicas == 0 and target.phase is not Phase.HELD and isinstance(answer, Active):
        assert answer.reason is DecisionReason.WAKING
        is_its_hour = given_policy.wake_at == parse_day_times("12:00 UTC")
        assert target.wake_request or (is_its_hour and target.suspended_at and target.suspended_at < NOON)


def test_a_target_without_a_workload_is_never_taken_by_a_plan_and_says_so() -> None:
    answer = decided(a_target(is_plannable=False, grant="plan"), IDLE, **ON_PRESSURE).answer
    assert shown(answer) == "1 IdleNotNeeded"
    assert "for ScalableWorkloads" in answer.message


def test_under_pressure_the_shorter_window_counts() -> None:
    ran = running_for(minutes(16))  # 10 of warm-up, 6 since
    short = {"idle_after_under_pressure": minutes(5), **ON_PRESSURE}
    assert shown(decided(replace(ran, grant="plan"), IDLE, **short).answer) == "0 Reclaimed"
    assert shown(decided(ran, IDLE).answer) == "1 IdleNotLongEnough"


@given(target=standings, of=verdicts, given_policy=policies)
def test_a_foreseen_suspension_lies_after_everything_that_forbids_it(
    target: TargetState, of: WorkloadVerdict | None, given_policy: Any
) -> None:
    made = decide(target, of, policy=given_policy, now=NOON)
    if made.suspend_at is not None:
        assert isinstance(made.answer, Active)
        assert made.idle_since is not None
        assert target.running_since is not None
        assert made.suspend_at >= target.running_since + given_policy.warm_up + given_policy.window
        assert made.suspend_at >= made.idle_since + given_policy.window
        assert given_policy.keep_until is None or made.suspend_at >= given_policy.keep_until
        assert not given_policy.allowed_during or is_open(given_policy.allowed_during, made.suspend_at)
        assert given_policy.mode is EnforcementMode.ENFORCE


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(a_target(), True, id="running"),
        pytest.param(a_target(phase=Phase.STARTING), False, id="starting"),
        pytest.param(a_target(doubt=DOUBT), False, id="doubted"),
        pytest.param(a_target(desired_replicas=0), False, id="at 0"),
    ],
)
def test_only_a_running_target_has_gpus_to_look_at(target: TargetState, expected: bool) -> None:
    assert needs_verdict(target) is expected


# ---------------------------------------------------------------------------------------------- since when, until when


def evidence(*last_active_s: float | None, of: Verdict = BUSY, newest_s: float = 0) -> WorkloadVerdict:
    """GPUs that worked last so many seconds from noon, and whose newest samples were taken at `newest_s`."""
    windows = {"gr_engine_active": window(last=at(newest_s)), "gpu_util": window(last=at(newest_s))}
    made = [
        gpu_evidence(of, gpu=f"GPU-{n}", last_active_at=None if s is None else at(s), windows=windows)
        for n, s in enumerate(last_active_s)
    ]
    return WorkloadVerdict(verdict=of, gpus=tuple(made))


@pytest.mark.parametrize(
    ("ran", "of", "given_policy", "expected"),
    [
        pytest.param(minutes(120), evidence(-600), {}, at(-600), id="since its last work"),
        pytest.param(minutes(120), evidence(-600, -300), {}, at(-300), id="since the last work of any GPU"),
        pytest.param(minutes(120), evidence(None), {}, at(-110 * 60), id="never worked: since its warm-up ended"),
        pytest.param(minutes(15), evidence(-600), {}, at(-300), id="work during warm-up: since warm-up ended"),
        pytest.param(minutes(5), evidence(None), {}, None, id="still warming up"),
        pytest.param(minutes(10), evidence(None), {}, None, id="warmed up this instant"),
        pytest.param(minutes(120), evidence(0, newest_s=-1), {}, None, id="work in the interval in progress"),
        pytest.param(minutes(120), evidence(-600, of=UNKNOWN), {}, None, id="unknown"),
        pytest.param(minutes(120), WorkloadVerdict(verdict=UNKNOWN), {}, None, id="no GPU"),
        pytest.param(
            minutes(120), evidence(-600, -20, newest_s=-30), {"share": 0.5}, at(-600), id="half of 2 suffices"
        ),
        pytest.param(minutes(120), evidence(-20, -20, newest_s=-30), {"share": 0.5}, None, id="half of 2 is not quiet"),
        pytest.param(minutes(120), evidence(-900, -600, -300), {"share": 0.6}, at(-600), id="0.6 × 3 = 1.8, so 2 of 3"),
        pytest.param(minutes(120), evidence(-900, -600, -300), {"share": 0.0}, at(-900), id="any one"),
    ],
)
def test_quiet_counts_from_the_last_work_of_the_gpus_that_are_needed(
    ran: timedelta, of: WorkloadVerdict, given_policy: dict[str, Any], expected: datetime | None
) -> None:
    assert decided(running_for(ran), of, **given_policy).idle_since == expected


@pytest.mark.parametrize("newest_s", [-1, -10, -29])
def test_a_working_gpu_is_not_quiet_between_two_of_its_samples(newest_s: float) -> None:
    """The interval of 11:59:30 saw work and is over at noon; no sample of the next one is there yet."""
    working = decided(a_target(), evidence(0, newest_s=newest_s)).idle_since
    later = decide(a_target(), evidence(0, newest_s=newest_s), policy=policy(), now=at(15))
    assert (working, later.idle_since, later.suspend_at) == (None, None, None)


def test_one_quiet_signal_is_not_enough_to_call_a_gpu_quiet() -> None:
    windows = {"gr_engine_active": window(last=at(10)), "gpu_util": window(last=at(-20))}
    half = gpu_evidence(BUSY, last_active_at=NOON, windows=windows)
    both = gpu_evidence(BUSY, last_active_at=NOON, windows={**windows, "gpu_util": window(last=at(1))})
    at_once = gpu_evidence(BUSY, last_active_at=NOON, windows={"gr_engine_active": window(last=NOON)})
    assert (half.is_quiet, both.is_quiet, at_once.is_quiet) == (False, True, True)


@pytest.mark.parametrize(
    ("ran", "of", "given_policy", "expected"),
    [
        pytest.param(minutes(120), evidence(-600), {}, at(1200), id="30 min after the work of 10 min ago"),
        pytest.param(minutes(20), evidence(None, of=IDLE), {}, at(1200), id="ran 20 of 10 + 30 min"),
        pytest.param(minutes(120), evidence(-600), {"keep_until": at(7200)}, at(7200), id="kept beyond that"),
        pytest.param(minutes(120), evidence(-600), {"keep_until": at(60)}, at(1200), id="kept, but not as long"),
        pytest.param(minutes(120), evidence(None, of=IDLE), {"keep_until": at(60)}, at(60), id="only kept"),
        pytest.param(
            minutes(120), evidence(-600), {"mode": EnforcementMode.OBSERVE}, None, id="never, when only observed"
        ),
        pytest.param(minutes(120), evidence(None, of=IDLE), during("15:00-16:00"), at(3 * 3600), id="from 15:00 on"),
        pytest.param(minutes(120), evidence(-600), during("12:00-12:20"), at(24 * 3600), id="tomorrow: 12:20 is late"),
        pytest.param(minutes(120), evidence(-600), during("12:00-12:21"), at(1200), id="a minute left"),
        pytest.param(minutes(120), evidence(None, of=IDLE), {}, None, id="it has come: the answer is 0"),
        pytest.param(minutes(120), evidence(-600, of=UNKNOWN), {}, None, id="unknown"),
    ],
)
def test_the_suspension_is_foreseen_where_it_can_be(
    ran: timedelta, of: WorkloadVerdict, given_policy: dict[str, Any], expected: datetime | None
) -> None:
    assert decided(running_for(ran), of, **given_policy).suspend_at == expected


def test_a_foreseen_suspension_happens_at_that_very_instant() -> None:
    """So that a warning tells the truth: one second before it the answer is 1, at it it is 0."""
    foreseen = decided(running_for(minutes(20)), evidence(None, of=IDLE)).suspend_at
    assert foreseen == at(1200)
    before, then = (
        decide(running_for(minutes(20)), evidence(None, of=IDLE), policy=policy(), now=at(seconds)).answer
        for seconds in (1199, 1200)
    )
    assert (type(before), type(then)) == (Active, Inactive)


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        pytest.param("15:00-16:00", at(2 * 3600 + 2400), id="20 min before hours begin"),
        pytest.param("00:00-24:00", at(0), id="at all hours: 20 min before it has been idle for 30"),
    ],
)
def test_its_owner_is_warned_before_the_hours_at_which_it_may_be_suspended(hours: str, expected: datetime) -> None:
    made = decided(a_target(), evidence(-600), **during(hours), **WARNING)
    assert made.warning_at == expected


@pytest.mark.parametrize(
    ("target", "given_policy", "expected"),
    [
        pytest.param(a_target(), during("15:00-16:00"), at(3 * 3600 - 300), id="five minutes before hours begin"),
        pytest.param(a_target(), during("12:03-16:00"), at(180), id="hours begin"),
        pytest.param(a_target(), OBSERVE | during("11:00-12:30"), at(1800), id="hours end"),
        pytest.param(SUSPENDED_AT_11, wake_at("13:00"), at(3600), id="it is woken"),
        pytest.param(a_target(), OBSERVE | wake_at("13:00"), None, id="what runs is not woken"),
    ],
)
def test_a_decision_holds_until_hours_change(
    target: TargetState, given_policy: dict[str, Any], expected: datetime | None
) -> None:
    of = IDLE if target.desired_replicas else None
    assert decided(target, of, **given_policy).holds_until() == expected


def test_while_it_is_in_demand_no_suspension_is_foreseen() -> None:
    wanted, unwanted = (
        decide(a_target(demand=d), verdict(IDLE), policy=policy(keep_until=at(3600)), now=NOON) for d in ("q", "")
    )
    assert unwanted.suspend_at is not None
    assert wanted.suspend_at is None


# ------------------------------------------------------------------------------------------------------------- warnings


@given(
    works=st.lists(st.booleans(), min_size=150, max_size=150),
    leads=st.lists(st.booleans(), min_size=150, max_size=150),
    outage=st.tuples(st.integers(0, 149), st.integers(0, 120)),
    length=st.integers(1, 30),
    warning=st.integers(1, 40),
)
@example(works=[True] * 150, leads=[n < 44 for n in range(150)], outage=(44, 40), length=10, warning=20)
def test_nothing_is_suspended_without_a_warning_that_stood_through_quiet(
    works: list[bool], leads: list[bool], outage: tuple[int, int], length: int, warning: int
) -> None:
    """Minute by minute, with leaders that come and go, and no process at all for a while. Work is rare.

    What is held of the samples goes back by window and warning, also after a start. Somebody leads once in that time.
    """
    known: datetime | None = None
    given_policy = policy(idle_after=minutes(length), warm_up=timedelta(0), warning=minutes(warning))
    worked_at = [n for n, works_now in enumerate(works) if works_now and n % 45 < 3]
    warned_since: int | None = None
    held = length + warning
    read_since, ends = -held, sum(outage)
    quiet: Quiet | None = None
    for now in range(150):
        if outage[0] <= now < ends:
            read_since, quiet = ends - held, None
            continue
        last = max((n for n in worked_at if max(now - held, read_since) <= n <= now), default=None)
        last_at = None if last is None else at(60 * last)
        found = BUSY if last is not None and now - last < length else IDLE
        target = a_target(running_since=at(-60), warned_at=known)
        windows = {"gpu_util": window(last=at(60 * now))}
        unseen = at(60 * max(now - held, read_since)) if found == IDLE else None
        seen = verdict(found, gpu_evidence(found, last_active_at=last_at, unseen_until=unseen, windows=windows))
        decision = decide(target, seen, policy=given_policy, now=at(60 * now), quiet=quiet)
        quiet = decision.quiet_until(at(60 * now))
        if isinstance(decision.answer, Inactive):
            assert warned_since is not None
            assert now - warned_since >= warning
            assert not any(warned_since <= n <= now for n in worked_at)
        if leads[now] or now % held == 0:
            before, known = known, next_warned_at(known, decision, now=at(60 * now))
            if known != before:
                warned_since = now if known is not None else None


def test_a_warning_that_work_may_have_followed_unseen_is_given_again() -> None:
    before, since = NOON - minutes(60), NOON - minutes(50)
    seen = verdict(IDLE, gpu_evidence(IDLE, unseen_until=since))
    decision = decide(a_target(warned_at=before), seen, policy=policy(**WARNING), now=NOON)
    assert shown(decision.answer) == "1 Warned"
    assert next_warned_at(before, decision, now=NOON) == NOON
    assert next_warned_at(since, decision, now=NOON) == since


@pytest.mark.parametrize("reclaim", [Reclaim.ON_PRESSURE, Reclaim.PRIORITY_BOOST])
def test_nobody_is_warned_of_what_cannot_happen(reclaim: Reclaim) -> None:
    def warned_of(target: TargetState) -> datetime | None:
        return decided(target, IDLE, warning=minutes(20), reclaim=reclaim).warning_at

    assert warned_of(a_target()) is not None
    assert warned_of(UNPLANNABLE) is None


def test_a_warning_costs_no_time_where_it_can_be_given_early() -> None:
    warning_at, suspend_at = [], []
    for warning in (10, 30, 50):
        quiet = verdict(BUSY, gpu_evidence(BUSY, last_active_at=NOON - minutes(1)))
        decision = decided(a_target(), quiet, warning=minutes(warning))
        warning_at.append(decision.warning_at)
        suspend_at.append(decision.suspend_at)
    since = NOON - minutes(1)
    assert warning_at == [since + minutes(20), since, since]
    assert suspend_at == [since + minutes(30), NOON + minutes(30), NOON + minutes(50)]


# ---------------------------------------------------------------------------------------------------------------- hooks


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        pytest.param(run(3), None, id="in progress: what comes of it is written"),
        pytest.param(run(6, FAILED), at(29 * 60), id="half an hour after it has failed"),
    ],
)
def test_a_decision_holds_until_the_hook_may_run_again(ran: HookRun, expected: datetime | None) -> None:
    assert decided(after(ran), IDLE, **HOOK).holds_until() == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(decided(after(run(3)), IDLE, **HOOK), False, id="quiet since before it began"),
        pytest.param(decided(after(run(3)), evidence(-60), **HOOK), True, id="work since it began"),
        pytest.param(decided(after(run(3)), evidence(0, newest_s=-1), **HOOK), True, id="work now"),
        pytest.param(decided(after(run(3)), evidence(-600, of=UNKNOWN), **HOOK), True, id="samples are missing"),
        pytest.param(
            decided(after(run(3)), evidence(-600, of=unknown(UnknownReason.SOURCE_UNAVAILABLE)), **HOOK),
            False,
            id="all samples are doubted, and read again later",
        ),
        pytest.param(decided(after(run(3), phase=Phase.STARTING), None, **HOOK), False, id="nothing runs"),
    ],
)
def test_a_run_is_outdated_by_work_after_its_begin_or_by_samples_that_may_hide_some(
    made: Decision, expected: bool
) -> None:
    assert is_outdated(made, run(3)) is expected


def test_a_run_is_outdated_after_which_work_may_have_gone_unseen() -> None:
    seen = verdict(IDLE, gpu_evidence(IDLE, unseen_until=NOON - minutes(2)))
    made = decide(after(run(3)), seen, policy=policy(**HOOK), now=NOON)
    assert is_outdated(made, run(3))
    assert hook_stage(made, run(3)) is HookStage.DUE
