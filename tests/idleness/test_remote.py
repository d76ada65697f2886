"""What another cluster says of GPUs → the verdict here, or why there is none."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import BUSY, IDLE, at, policy, unknown
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.policy import GpuRule, Policy, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import JudgedBy, RemoteAnswer, judged_by
from scaler.idleness.verdict import Idle, Unknown

ASKED = policy()
SAYS = RemoteAnswer(
    cluster="w1", verdict=IDLE, by=judged_by(ASKED), idle_since=at(-3600), idle_for=timedelta(hours=1), gpus=4
)
MISSING = UnknownReason.REMOTE_VERDICT_MISSING

CASES: dict[str, tuple[RemoteAnswer, Any]] = {
    "idle": (SAYS, IDLE),
    "busy": (replace(SAYS, verdict=BUSY), BUSY),
    "unknown there": (replace(SAYS, verdict=unknown()), unknown()),
    "idle, and not since when": (replace(SAYS, idle_since=None), MISSING),
    "idle, and not for how long": (replace(SAYS, idle_for=None), MISSING),
    "idle for less than the window": (replace(SAYS, idle_for=timedelta(minutes=29)), MISSING),
    "idle for just the window": (replace(SAYS, idle_for=timedelta(minutes=30)), IDLE),
    "judged by nothing that can be read": (replace(SAYS, by=None), MISSING),
    "judged by another window": (replace(SAYS, by=judged_by(policy(idle_after=timedelta(minutes=5)))), MISSING),
    "judged by another warm-up": (replace(SAYS, by=judged_by(policy(warm_up=timedelta(0)))), MISSING),
    "judged by another threshold": (replace(SAYS, by=judged_by(policy(active_above_ratio=0.5))), MISSING),
    "judged by another rule for GPUs": (replace(SAYS, by=judged_by(policy(gpus=GpuRule(share=0.0)))), MISSING),
    "busy by another policy": (replace(SAYS, verdict=BUSY, by=None), MISSING),
}


@pytest.mark.parametrize(("answer", "expected"), CASES.values(), ids=CASES)
def test_an_answer_counts_only_by_the_policy_that_is_asked_about(answer: RemoteAnswer, expected: Any) -> None:
    found = answer.verdict_by(ASKED)
    if expected is MISSING:
        assert isinstance(found.verdict, Unknown)
        assert found.verdict.reason is MISSING
        assert "cluster w1" in found.verdict.message
    else:
        assert found.verdict == expected
    assert (found.remote, found.gpu_count) == (answer, 4)


def test_what_a_verdict_does_not_depend_on_is_no_other_policy() -> None:
    warned = policy(warning=timedelta(minutes=10), keep_until=at(60))
    assert SAYS.verdict_by(warned).verdict == IDLE
    pressed = policy(reclaim=Reclaim.ON_PRESSURE, idle_after_under_pressure=timedelta(minutes=5))
    assert isinstance(SAYS.verdict_by(pressed).verdict, Unknown), "its window is another one"


POLICIES = st.builds(
    Policy,
    idle_after=st.timedeltas(timedelta(minutes=1), timedelta(days=1)),
    warm_up=st.timedeltas(timedelta(0), timedelta(hours=1)),
    active_above_ratio=st.floats(0.001, 1.0),
    gpus=st.sampled_from([GpuRule(share=1.0), GpuRule(share=0.0), GpuRule(share=0.8)]),
)


@given(POLICIES, POLICIES)
def test_idle_is_believed_by_exactly_the_policy_it_was_judged_by(by: Policy, asked: Policy) -> None:
    found = replace(SAYS, by=judged_by(by), idle_for=by.window).verdict_by(asked)
    is_same = JudgedBy(*judged_by(by)) == judged_by(asked)
    assert isinstance(found.verdict, Idle if is_same else Unknown)
