from datetime import timedelta
from typing import Any

import pytest
from builders import (
    BUSY,
    IDLE,
    NOON,
    a_target,
    at,
    decision,
    minutes,
    observed,
    policy,
    unknown,
    verdict,
)
from hypothesis import given
from hypothesis import strategies as st

from scaler.decision.decision import Active, Decision
from scaler.decision.gates import decide
from scaler.decision.reasons import DecisionReason
from scaler.idleness.policy import EnforcementMode, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown, Verdict
from scaler.suspension.priority_boost import (
    PATIENCE,
    Boost,
    BoostIntent,
    BoostOwner,
    BoostStep,
    DesiredBoost,
    desire,
    is_unknown,
    step,
)
from scaler.targets.target_state import Phase, WakeCause, WakeRequest

LEFT = policy(reclaim=Reclaim.PRIORITY_BOOST)


def decided(found: Verdict = IDLE, *, left: Any = LEFT, **standing_fields: Any) -> Decision:
    """What is really decided, so that the tables below meet the answers that there are."""
    return decide(a_target(**standing_fields), verdict(found), policy=left, now=NOON)


IS_IDLE = decided()
IS_BUSY = decided(BUSY)
IS_UNKNOWN = decided(unknown())
WAITS = decided(phase=Phase.WAITING_FOR_QUOTA, running_since=None)
IN_DEMAND = decided(phase=Phase.WAITING_FOR_QUOTA, demand="query notebooks")
WISHED_BACK = decided(phase=Phase.WAITING_FOR_QUOTA, wake_request=WakeRequest(WakeCause.ANNOTATION, "annotation"))
ONLY_OBSERVED = decided(left=policy(reclaim=Reclaim.PRIORITY_BOOST, mode=EnforcementMode.OBSERVE))
KEPT = decided(left=policy(reclaim=Reclaim.PRIORITY_BOOST, keep_until=at(1)))
KEPT_NO_LONGER = decided(left=policy(reclaim=Reclaim.PRIORITY_BOOST, keep_until=at(0)))
OTHERWISE = decided(left=policy())
PREEMPTED: dict[str, Any] = {"quota_reserved": False, "admitted": False, "eviction_reason": "Preempted"}
BEING_EVICTED: dict[str, Any] = {"eviction_reason": "Preempted"}


def wanted(
    *decisions: Decision, unknown_for: timedelta = timedelta(0), doubt: str = "", **workload: Any
) -> DesiredBoost:
    return desire(observed(**workload), decisions, doubt=doubt, unknown_for=unknown_for)


# ------------------------------------------------------------------------------------------------------ what is wanted


@pytest.mark.parametrize(
    ("decisions", "workload", "wish"),
    [
        pytest.param([IS_IDLE], {}, BoostIntent.SET, id="idle"),
        pytest.param([IS_IDLE, IS_IDLE], {}, BoostIntent.SET, id="idle by both triggers"),
        pytest.param([IS_IDLE, IS_BUSY], {}, BoostIntent.CLEAR, id="busy by one of two triggers"),
        pytest.param([IS_BUSY], {}, BoostIntent.CLEAR, id="busy"),
        pytest.param([decided(running_since=at(-60))], {}, BoostIntent.CLEAR, id="warming up"),
        pytest.param([decided(phase=Phase.STARTING)], {}, BoostIntent.CLEAR, id="its pods start"),
        pytest.param([ONLY_OBSERVED], {}, BoostIntent.CLEAR, id="only observed"),
        pytest.param([], {}, BoostIntent.CLEAR, id="no ScaledObject"),
        pytest.param([OTHERWISE], {}, BoostIntent.CLEAR, id="suspended for being idle instead"),
        pytest.param([IS_IDLE, OTHERWISE], {}, BoostIntent.CLEAR, id="one trigger has another policy"),
        pytest.param([IS_IDLE], {"active": False}, BoostIntent.CLEAR, id="deactivated"),
        pytest.param([IS_BUSY], {"finished": True}, BoostIntent.LEAVE, id="finished"),
        pytest.param([WAITS], PREEMPTED, BoostIntent.LEAVE, id="preempted, and no gang asks for it"),
        pytest.param([decided(phase=Phase.STARTING)], BEING_EVICTED, BoostIntent.LEAVE, id="being preempted, pods end"),
        pytest.param([IS_BUSY], BEING_EVICTED, BoostIntent.LEAVE, id="being preempted, work seen a moment ago"),
        pytest.param([WAITS], {"quota_reserved": False, "admitted": False}, BoostIntent.LEAVE, id="never admitted"),
        pytest.param([IN_DEMAND], PREEMPTED, BoostIntent.CLEAR, id="preempted and in demand"),
        pytest.param([WISHED_BACK], PREEMPTED, BoostIntent.CLEAR, id="preempted, and its owner wants it back"),
        pytest.param([KEPT], PREEMPTED, BoostIntent.CLEAR, id="preempted and kept"),
        pytest.param([KEPT], {}, BoostIntent.CLEAR, id="idle and kept"),
        pytest.param([KEPT_NO_LONGER], {}, BoostIntent.SET, id="idle and kept no longer"),
    ],
)
def test_what_is_wanted_when_it_is(decisions: list[Decision], workload: dict[str, Any], wish: BoostIntent) -> None:
    assert wanted(*decisions, **workload).intent is wish


@pytest.mark.parametrize(
    ("decisions", "doubt"),
    [
        pytest.param([IS_UNKNOWN], "", id="nothing known"),
        pytest.param([IS_UNKNOWN, IS_IDLE], "", id="one trigger knows nothing"),
        pytest.param([IS_IDLE], "the latest verdicts are 400 s old", id="old verdicts"),
    ],
)
def test_the_unknown_is_left_as_it_is_for_a_while(decisions: list[Decision], doubt: str) -> None:
    moment = timedelta(seconds=1)
    assert wanted(*decisions, doubt=doubt, unknown_for=PATIENCE - moment).intent is BoostIntent.LEAVE
    cleared = wanted(*decisions, doubt=doubt, unknown_for=PATIENCE)
    assert cleared.intent is BoostIntent.CLEAR
    assert cleared.why == f"nothing is known of it for 5m: {doubt or 'newest sample is 5m old'}"


def test_work_that_is_seen_wins_over_what_is_not_known() -> None:
    assert wanted(IS_UNKNOWN, IS_BUSY).intent is BoostIntent.CLEAR
    assert wanted(IS_BUSY, doubt="the latest verdicts are 400 s old").intent is BoostIntent.CLEAR
    assert not is_unknown([IS_UNKNOWN, IS_BUSY])
    assert is_unknown([IS_UNKNOWN, IS_IDLE])
    assert not is_unknown([IS_IDLE])


def test_it_says_why() -> None:
    assert wanted(IS_BUSY).why == "GPUsBusy: work seen within the last 30m"
    assert wanted(IS_IDLE).why.startswith("every required GPU stayed below 1 % for 30m")
    assert wanted(decided(demand="query notebooks")).why == "it is requested by query notebooks"


ANSWERS = st.sampled_from(
    [Active(reason=because, message="") for because in DecisionReason]
    + [Unknown(reason=reason, message="") for reason in UnknownReason]
)
ANY_DECISION = st.builds(
    lambda answer, reclaim: decision(answer, policy=policy(reclaim=reclaim)), ANSWERS, st.sampled_from(Reclaim)
)
DECISIONS = st.one_of(st.just(IS_IDLE), st.just(IS_UNKNOWN), ANY_DECISION)


@given(
    st.lists(DECISIONS, max_size=3),
    st.fixed_dictionaries({name: st.booleans() for name in ("active", "finished", "admitted")}),
    st.timedeltas(timedelta(0), minutes(20)),
)
def test_only_idle_is_boosted(decisions: list[Decision], workload: dict[str, Any], unknown_for: timedelta) -> None:
    if wanted(*decisions, unknown_for=unknown_for, **workload).intent is BoostIntent.SET:
        reasons = {each.answer.reason if isinstance(each.answer, Active) else "" for each in decisions}
        assert reasons == {DecisionReason.PRIORITY_LOWERED}
        assert {each.policy.reclaim for each in decisions} == {Reclaim.PRIORITY_BOOST}
        assert workload["active"]
        assert workload["admitted"]


# -------------------------------------------------------------------------------------------------------- what is done

NONE, OURS = Boost(), Boost(holder=BoostOwner.US, value="-1000")
THEIRS, REPLACED = Boost(holder=BoostOwner.OTHER, value="7"), Boost(holder=BoostOwner.REPLACED, value="7")
TAKEN_OFF = Boost(holder=BoostOwner.TAKEN_OFF)


@pytest.mark.parametrize(
    ("now", "when_set", "when_left", "when_cleared"),
    [
        pytest.param(NONE, BoostStep.WRITE, None, None, id="no client's"),
        pytest.param(OURS, None, None, BoostStep.REMOVE, id="ours"),
        pytest.param(
            Boost(holder=BoostOwner.US, value="-5"),
            BoostStep.WRITE,
            None,
            BoostStep.REMOVE,
            id="ours, by other settings",
        ),
        pytest.param(THEIRS, None, None, None, id="another client's"),
        pytest.param(
            REPLACED,
            BoostStep.RELEASE_OWNERSHIP,
            BoostStep.RELEASE_OWNERSHIP,
            BoostStep.RELEASE_OWNERSHIP,
            id="another client's in the place of ours",
        ),
        pytest.param(TAKEN_OFF, None, None, BoostStep.RELEASE_OWNERSHIP, id="ours, taken off by hand"),
    ],
)
def test_what_is_done_about_a_boost_that_is(
    now: Boost, when_set: BoostStep | None, when_left: BoostStep | None, when_cleared: BoostStep | None
) -> None:
    assert [step(now, wish, value=-1000) for wish in BoostIntent] == [when_set, when_left, when_cleared]


AFTER = {BoostStep.WRITE: OURS, BoostStep.REMOVE: NONE}


@given(st.sampled_from([NONE, OURS, THEIRS, REPLACED, TAKEN_OFF]), st.sampled_from(BoostIntent))
def test_a_step_is_taken_once_and_never_to_a_boost_of_somebody_else(now: Boost, wish: BoostIntent) -> None:
    taken = step(now, wish, value=-1000)
    if taken is BoostStep.RELEASE_OWNERSHIP:
        left = Boost(holder=BoostOwner.OTHER, value=now.value) if now.value else NONE
        assert step(left, wish, value=-1000) in {None, BoostStep.WRITE}
    elif taken is not None:
        assert now.holder in {BoostOwner.NONE, BoostOwner.US}
        assert step(AFTER[taken], wish, value=-1000) is None
