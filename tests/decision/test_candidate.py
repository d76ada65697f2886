"""In which state is a workload, and what may follow what?"""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest
from builders import BUSY, IDLE, NOON, UNKNOWN, a_target, gpu_evidence, minutes, policy, status_of, verdict, window
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loops_builders import scalable_workload

from scaler.decision.candidate import (
    HISTORY,
    HistoryLine,
    Return,
    candidate_state,
    lines_of,
    next_line,
    return_of,
    suspended_at,
)
from scaler.decision.decision import Active, Answer, Decision, Inactive, Quiet
from scaler.decision.gates import decide
from scaler.decision.reasons import STATES, CandidateState, DecisionReason
from scaler.idleness.hours import parse_day_times
from scaler.idleness.policy import EnforcementMode, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.targets.target_state import Phase, TargetState, WakeCause, WakeRequest

S = CandidateState


def decided(answer: Answer, target: TargetState, idle_since: datetime | None = None) -> Decision:
    return Decision(answer=answer, target=target, policy=policy(), verdict=None, idle_since=idle_since, decided_at=NOON)


AT_0 = (DecisionReason.GPUS_IDLE, DecisionReason.RECLAIMED, DecisionReason.SUSPENDED, DecisionReason.FINISHED)
ANSWERS = [
    *(Active(reason=each, message="") for each in DecisionReason if each not in AT_0[:3]),
    *(Inactive(reason=each, message="") for each in AT_0),
    *(Unknown(reason=each, message="") for each in UnknownReason),
]


def test_every_decision_on_every_target_is_a_state_and_only_what_has_finished_is_none() -> None:
    seen = set()
    for answer, phase, desired, quiet, warned in product(ANSWERS, Phase, (0, 1), (0, 200), (0, 200)):
        target = a_target(phase=phase, desired_replicas=desired)
        found = candidate_state(
            decided(answer, target, NOON - minutes(quiet) if quiet else None),
            warned_at=NOON - minutes(warned) if warned else None,
        )
        is_finished = phase is Phase.FINISHED or answer.reason is DecisionReason.FINISHED
        assert (found is None) == is_finished, (answer, phase)
        seen.add(found)
        if found in (S.BUSY, S.IDLE, S.WARNED, S.KEPT, S.EXCLUDED, S.OBSERVING):
            assert isinstance(answer, Active), (answer, phase)
    assert seen == {None, *CandidateState}


def test_states_in_which_keda_may_get_0_follow_a_warning_a_plan_or_quiet() -> None:
    assert [str(each) for each, row in STATES.items() if row.may_suspend] == ["Granted", "Suspending", "Suspended"]
    assert set(STATES) == set(CandidateState)
    assert S.BUSY not in STATES[S.SUSPENDED].after
    for state, row in STATES.items():
        assert row.after, state


@pytest.mark.parametrize(
    ("answer", "changes", "state"),
    [
        (Active(reason=DecisionReason.GPUS_BUSY, message="m"), {}, S.BUSY),
        (Active(reason=DecisionReason.EXCLUDED, message="m"), {}, S.EXCLUDED),
        (Active(reason=DecisionReason.WAITING_FOR_QUOTA, message="m"), {"phase": Phase.WAITING_FOR_QUOTA}, S.WAKING),
        (Inactive(reason=DecisionReason.SUSPENDED, message="m"), ASLEEP := {"phase": Phase.SUSPENDED}, S.SUSPENDED),
        (Active(reason=DecisionReason.WAKING, message="m"), ASLEEP, S.WAKING),
        (Inactive(reason=DecisionReason.GPUS_IDLE, message="m"), {}, S.SUSPENDING),
        (Inactive(reason=DecisionReason.RECLAIMED, message="m"), {}, S.GRANTED),
        (Active(reason=DecisionReason.BEFORE_SUSPEND, message="m"), {}, S.IDLE),
        (Active(reason=DecisionReason.BEFORE_SUSPEND_FAILED, message="m"), {}, S.IDLE),
        (Unknown(reason=UnknownReason.STALE_SAMPLES, message="m"), {}, S.UNKNOWN),
        (Unknown(reason=UnknownReason.SUSPENDING, message="m"), {"phase": Phase.SUSPENDING}, S.SUSPENDING),
    ],
    ids=str,
)
def test_what_has_a_line_in_the_history(answer: Answer, changes: dict[str, Any], state: CandidateState) -> None:
    target = a_target(desired_replicas=int("Suspend" not in changes.get("phase", "")), **changes)
    line = next_line(None, decided(answer, target), by="anna", now=NOON)
    by = "anna" if state in (S.WAKING, S.KEPT, S.EXCLUDED) else ""
    assert line == HistoryLine(at=NOON, state=state, reason=str(answer.reason), message="m", by=by)
    assert next_line(line, decided(answer, target), now=NOON) is None


MAY_SAY = {
    S.BUSY: "GPUsBusy WarmingUp IdleNotLongEnough",
    S.IDLE: "IdleNotLongEnough Warned BeforeSuspend BeforeSuspendFailed OutsideHours IdleNotNeeded PriorityLowered",
    S.GRANTED: "Reclaimed GPUsIdle BeforeSuspend",
    S.SUSPENDING: "GPUsIdle Reclaimed Suspended Suspending",
    S.SUSPENDED: "GPUsIdle Reclaimed Suspended",
    S.WAKING: "Waking Starting WaitingForQuota WaitingForAdmissionChecks WaitingForWorkload",
    S.KEPT: "Kept SetBack",
    S.EXCLUDED: "Excluded",
    S.OBSERVING: "ObserveOnly",
}
MAY_SAY[S.WARNED] = MAY_SAY[S.IDLE]


def test_no_line_says_why_it_is_in_another_state() -> None:
    """Quiet is noticed, and a target is seen at 0, while the answer is still the one from before."""
    before = [
        None,
        *(HistoryLine(at=NOON, state=each, reason="GPUsIdle", message="m") for each in (S.SUSPENDING, S.BUSY)),
    ]
    before.append(HistoryLine(at=NOON, state=S.SUSPENDED, reason="Suspended", message="m"))
    seen = set()
    for answer, phase, desired, quiet, last in product(ANSWERS, Phase, (0, 1), (0, 200), before):
        target = a_target(phase=phase, desired_replicas=desired)
        line = next_line(last, decided(answer, target, NOON - minutes(quiet) if quiet else None), now=NOON)
        if line is not None and line.state != S.UNKNOWN:
            assert line.reason in MAY_SAY[CandidateState(line.state)].split(), (answer, phase, desired, quiet, last)
            seen.add(line.state)
    assert seen == {*MAY_SAY} - {S.WARNED}


def test_quiet_that_is_noticed_before_the_answer_changes_says_since_when() -> None:
    busy = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")
    line = next_line(None, decided(busy, a_target(), NOON - minutes(20)), now=NOON)
    assert line == HistoryLine(
        at=NOON,
        state=S.IDLE,
        reason="IdleNotLongEnough",
        message="its GPUs are idle since 2026-12-01T11:40:00Z",
        idle_since=NOON - minutes(20),
    )


def test_a_warning_that_is_given_does_not_say_what_it_waited_for() -> None:
    """The answer is from before: the warning is given because of it."""
    waits = Active(reason=DecisionReason.WARNED, message="its owner is warned 20m before it may be suspended")
    made = decided(waits, a_target(), NOON - minutes(40))
    assert next_line(None, made, now=NOON) == HistoryLine(
        at=NOON, state=S.IDLE, reason="Warned", message=waits.message, idle_since=NOON - minutes(40)
    )
    line = next_line(None, made, warned_at=NOON, now=NOON)
    assert line is not None
    assert (line.state, line.reason) == (S.WARNED, "Warned")
    assert line.message == "its GPUs are idle since 2026-12-01T11:20:00Z"


@pytest.mark.parametrize("between", [[], [S.SUSPENDING]])
def test_what_is_suspended_says_why_and_since_when_its_gpus_were_idle(between: list[CandidateState]) -> None:
    """By then its GPUs are gone, and the answer knows no more than that nobody wakes it."""
    idle = Inactive(reason=DecisionReason.GPUS_IDLE, message="every required GPU stayed below 5 % for 30m; hook: x")
    line = next_line(None, replace(decided(idle, a_target(), NOON - minutes(40)), idle_at_least=True), now=NOON)
    at_zero = Inactive(reason=DecisionReason.SUSPENDED, message="suspended; no wake-up requested")
    for state in (*between, S.SUSPENDED):
        phase = Phase.SUSPENDING if state is S.SUSPENDING else Phase.SUSPENDED
        made = decided(at_zero, a_target(phase=phase, desired_replicas=0))
        line = next_line(line, made, now=NOON + minutes(1)) or line
    assert line == HistoryLine(
        at=NOON + minutes(1),
        state=S.SUSPENDED,
        reason="GPUsIdle",
        message="suspended: its GPUs are idle at least since 2026-12-01T11:20:00Z",
        idle_since=NOON - minutes(40),
        idle_at_least=True,
    )


def test_while_the_hook_of_a_plans_victim_runs_it_is_granted() -> None:
    granted = a_target(grant="plan p1")
    prepares = Active(reason=DecisionReason.BEFORE_SUSPEND, message="m")
    made = replace(decided(prepares, granted), policy=policy(reclaim=Reclaim.ON_PRESSURE))
    assert candidate_state(made) is S.GRANTED
    assert candidate_state(decided(prepares, granted)) is S.IDLE, "time alone takes it"


@pytest.mark.parametrize("reason", ["SourceUnavailable", "ClockSkew", "ColdStart", "StaleClusterView"])
def test_what_is_unknown_of_everything_is_no_state_of_a_workload(reason: str) -> None:
    """Or an outage of Prometheus would be written to every workload, and its end as well."""
    doubt = Unknown(reason=UnknownReason(reason), message="m")
    assert next_line(None, decided(doubt, a_target()), now=NOON) is None


def lines(*states: str, cause: str = "Annotation") -> list[HistoryLine]:
    """One each minute."""
    return [
        HistoryLine(at=NOON + minutes(number), state=state, cause=cause if state == "Waking" else "")
        for number, state in enumerate(states)
    ]


HOUR = {"wake_at": parse_day_times("Mon-Sun 11:59 UTC"), "suspended_at": NOON - minutes(60)}
WOKEN: dict[str, tuple[dict[str, Any], WakeCause]] = {
    **{str(each): ({"wake_request": WakeRequest(each, "words")}, each) for each in WakeCause},
    "its hour": (HOUR, WakeCause.SCHEDULE),
    "its hour, and before that its owner": (
        {**HOUR, "wake_request": WakeRequest(WakeCause.LINK, "words")},
        WakeCause.LINK,
    ),
    "kubectl scale": ({"desired_replicas": 1, "phase": Phase.WAITING_FOR_QUOTA}, WakeCause.OTHER),
}


@pytest.mark.parametrize(("changes", "cause"), WOKEN.values(), ids=WOKEN.keys())
def test_what_a_workload_came_back_for_is_in_its_history(changes: dict[str, Any], cause: WakeCause) -> None:
    wake_at = changes.get("wake_at", ())
    target = a_target(
        **{"desired_replicas": 0, "phase": Phase.SUSPENDED, **{k: v for k, v in changes.items() if k != "wake_at"}}
    )
    woken = decide(target, None, policy=policy(wake_at=wake_at), now=NOON)
    line = next_line(HistoryLine(NOON - minutes(9), "Suspended"), woken, now=NOON)
    assert line is not None
    assert line.cause == ("" if cause is WakeCause.OTHER and target.desired_replicas else cause)
    history = [HistoryLine(NOON - minutes(9), "Suspended"), line, HistoryLine(NOON + minutes(1), "Busy")]
    assert return_of(history) == Return(cause, minutes(1))


@pytest.mark.parametrize("cause", ["", "Else"])
def test_a_line_whose_cause_is_not_known_came_back_for_something_else(cause: str) -> None:
    """Lines of before there were causes, whatever their message says."""
    assert return_of(lines("Suspended", "Waking", "Busy", cause=cause)) == Return(WakeCause.OTHER, minutes(1))


@pytest.mark.parametrize(
    ("states", "after"),
    [
        ("Suspended Waking Busy", 1),
        ("Suspending Waking Kept", 1),
        ("Busy Suspended Waking Unknown Idle", 2),
        ("Suspended Unknown Waking Unknown Unknown Busy", 3),
        ("Suspended Waking", None),
        ("Suspended Waking Unknown", None),
        ("Suspended Waking Suspended", None),
        ("Suspended Waking Busy Idle", None),
        ("Idle Waking Busy", None),
        ("Waking Busy", None),
        ("Busy", None),
        ("", None),
    ],
)
def test_a_return_is_counted_when_it_runs_and_once(states: str, after: float | None) -> None:
    found = return_of(lines(*states.split()))
    assert found == (Return(WakeCause.ANNOTATION, minutes(after)) if after is not None else None)


@pytest.mark.parametrize(
    ("states", "of_what_is_up", "of_what_is_at_0"),
    [
        (["Suspending", "Suspended"], 1, 1),
        (["Suspended", "Waking"], 0, 0),
        (["Suspended", "Unknown"], 0, 0),
        (["Suspended", "Waking", "Busy"], 0, None),
        (["Suspended", "Waking", "Busy", "Unknown"], 0, None),
        (["Busy"], None, None),
        ([], None, None),
    ],
    ids=str,
)
def test_a_suspension_that_nobody_has_written_yet_is_not_the_one_before(
    states: list[str], of_what_is_up: int | None, of_what_is_at_0: int | None
) -> None:
    lines = [HistoryLine(at=NOON + minutes(n), state=state) for n, state in enumerate(states)]
    found = [suspended_at(lines, is_down=is_down) for is_down in (False, True)]
    assert found == [None if n is None else NOON + minutes(n) for n in (of_what_is_up, of_what_is_at_0)]


@pytest.mark.parametrize("text", ["", "[", "[]", "[" * 100_000, '{"at": "2026-12-01T12:00:00", "state": "Suspended"}'])
def test_a_line_that_cannot_be_read_is_left_out(text: str) -> None:
    line = HistoryLine(at=NOON, state="Busy")
    assert lines_of([text.encode(), msgspec.json.encode(line)]) == [line]


# ------------------------------------------------------------------------------------------------- one life at random

WINDOW, WARNING = 10, 6
HELD = WINDOW + WARNING


class LifeOfAWorkload(RuleBasedStateMachine):
    """Minute by minute: its GPUs, its owner, KEDA, and a scaler that is restarted and does not always lead."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.worked = 0, list[int]()
        self.scalable = scalable_workload("notebook")
        self.read_since = -HELD
        self.quiet: Quiet | None = None
        self.is_leading, self.is_known, self.led_at = True, True, 0
        self.keep_until: datetime | None = None
        self.exclude_until: datetime | None = None
        self.wakes = False
        self.running_since = -60
        self.warned: list[tuple[int, datetime]] = []
        """When warnings were written, and what was written."""

    @initialize(observes=st.booleans())
    def apply_policy(self, observes: bool) -> None:
        self.mode = EnforcementMode.OBSERVE if observes else EnforcementMode.ENFORCE

    def at(self, minute: int) -> datetime:
        return NOON + minutes(minute)

    def decide(self) -> Decision:
        seen = [n for n in self.worked if max(self.now - HELD, self.read_since) <= n <= self.now]
        found = BUSY if seen and self.now - seen[-1] < WINDOW else IDLE
        found = found if self.is_known else UNKNOWN
        replicas = self.scalable.spec.replicas
        target = a_target(
            desired_replicas=replicas,
            phase=Phase.RUNNING if replicas else Phase.SUSPENDED,
            running_since=self.at(self.running_since),
            warned_at=self.scalable.status.warned_at,
            wake_request=WakeRequest(WakeCause.ANNOTATION, "annotation") if self.wakes else None,
        )
        asked = policy(
            idle_after=minutes(WINDOW),
            warm_up=timedelta(0),
            warning=minutes(WARNING),
            mode=self.mode,
            keep_until=self.keep_until,
            exclude_until=self.exclude_until,
        )
        windows = {"gpu_util": window(last=self.at(self.now))}
        evidence = gpu_evidence(
            found,
            last_active_at=self.at(seen[-1]) if seen else None,
            unseen_until=self.at(max(self.now - HELD, self.read_since)) if found == IDLE else None,
            windows=windows,
        )
        judged = verdict(found, evidence) if replicas else None
        made = decide(target, judged, policy=asked, now=self.at(self.now), quiet=self.quiet)
        self.quiet = made.quiet_until(self.at(self.now))
        return made

    # ---- what happens

    @rule(count=st.integers(1, 12))
    def rest(self, count: int) -> None:
        for _ in range(count):
            self.pass_a_minute()

    @rule()
    def work(self) -> None:
        self.pass_a_minute(works=bool(self.scalable.spec.replicas))

    def pass_a_minute(self, *, works: bool = False) -> None:
        self.now += 1
        if works:
            self.worked.append(self.now)
        # Somebody leads once in a window: what is left is named in docs/policies.md.
        if self.is_leading or self.now - self.led_at >= WINDOW - 1:
            self.lead()

    def lead(self) -> None:
        self.led_at, decision = self.now, self.decide()
        before, now = self.scalable.status, self.at(self.now)
        status = status_of(self.scalable, decision.target, None, decision, now=now)
        merged = msgspec.json.decode(msgspec.json.encode(before)) | status
        body = {
            "metadata": msgspec.to_builtins(self.scalable.metadata),
            "spec": {"replicas": self.scalable.spec.replicas},
            "status": {name: value for name, value in merged.items() if value is not None},
        }
        self.scalable = decode(ScalableWorkload, msgspec.json.encode(body))
        now_warned = self.scalable.status.warned_at
        if now_warned is not None and now_warned != before.warned_at:
            self.warned.append((self.now, now_warned))

    @rule(leads=st.booleans())
    def elect(self, leads: bool) -> None:
        self.is_leading = leads

    @rule(away=st.integers(0, 40))
    def restart(self, away: int) -> None:
        """Every replica; its GPUs may work meanwhile."""
        self.now += away
        self.read_since, self.quiet = self.now - HELD, None

    @rule(away=st.integers(2, 40))
    @precondition(lambda self: self.scalable.spec.replicas)
    def work_unseen(self, away: int) -> None:
        self.worked.append(self.now + 1)
        self.restart(away)

    @rule(is_known=st.booleans())
    def report(self, is_known: bool) -> None:
        self.is_known = is_known

    @rule(count=st.integers(1, 30))
    def keep(self, count: int) -> None:
        self.keep_until = self.at(self.now + count)

    @rule(count=st.integers(0, 30))
    def exclude(self, count: int) -> None:
        self.exclude_until = self.at(self.now + count)

    @rule()
    def wake(self) -> None:
        self.wakes = True

    @rule()
    def poll(self) -> None:
        """KEDA asks and does as it is told."""
        answer = self.decide().answer
        replicas = self.scalable.spec.replicas
        if isinstance(answer, Inactive) and replicas:
            self.check_suspension()
            self.scale(0)
        elif isinstance(answer, Active) and not replicas:
            assert self.wakes
            self.wakes, self.running_since = False, self.now
            self.scale(1)

    def scale(self, replicas: int) -> None:
        spec = msgspec.structs.replace(self.scalable.spec, replicas=replicas)
        self.scalable = msgspec.structs.replace(self.scalable, spec=spec)

    # ---- what must hold

    def check_suspension(self) -> None:
        assert self.is_known
        assert self.mode is EnforcementMode.ENFORCE
        assert self.keep_until is None or self.keep_until <= self.at(self.now)
        assert self.exclude_until is None or self.exclude_until <= self.at(self.now)
        assert not any(self.now - WINDOW < n <= self.now for n in self.worked)
        assert self.warned, "suspended without a warning"
        since, _ = self.warned[-1]
        assert self.now - since >= WARNING
        assert not any(since < n <= self.now for n in self.worked), "it worked after its warning"

    @invariant()
    def a_suspension_follows_a_warning_in_its_history(self) -> None:
        states = [msgspec.json.decode(each)["state"] for each in self.scalable.status.history]
        assert len(states) <= HISTORY
        assert all(one != two or one == S.WARNED for one, two in pairwise(states)), "only a warning is given again"
        # What lies before may have been cut off.
        for n, state in enumerate(states):
            if state == S.SUSPENDING and len(states) < HISTORY:
                assert S.WARNED in states[:n]


TestLifeOfAWorkload = LifeOfAWorkload.TestCase
TestLifeOfAWorkload.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
