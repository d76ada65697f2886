from datetime import timedelta
from typing import Any

import pytest
from builders import BUSY, IDLE, LONG_AGO, NOON, at, decision, minutes, observed, policy, standing, unknown, verdict
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.boosting import (
    PATIENCE,
    Boost,
    Desire,
    Holder,
    Step,
    Wish,
    cannot_be_boosted,
    desire,
    is_unknown,
    step,
)
from scaler.core.idleness import Verdict
from scaler.core.policy import Mode, Reclaim
from scaler.core.reasons import Because, Unknowable
from scaler.core.replicas import Active, Decision, NoAnswer, Stage, decide

LEFT = policy(reclaim=Reclaim.PRIORITY_BOOST)


def decided(found: Verdict = IDLE, *, left: Any = LEFT, **standing_fields: Any) -> Decision:
    """What is really decided, so that the tables below meet the answers that there are."""
    return decide(standing(**standing_fields), verdict(found), policy=left, now=NOON)


IS_IDLE = decided()
IS_BUSY = decided(BUSY)
IS_UNKNOWN = decided(unknown())
WAITS = decided(stage=Stage.WAITING_FOR_QUOTA, running_since=None)
IN_DEMAND = decided(stage=Stage.WAITING_FOR_QUOTA, demand="query notebooks")
WISHED_BACK = decided(stage=Stage.WAITING_FOR_QUOTA, wake_wish="annotation")
ONLY_OBSERVED = decided(left=policy(reclaim=Reclaim.PRIORITY_BOOST, mode=Mode.OBSERVE))
KEPT = decided(left=policy(reclaim=Reclaim.PRIORITY_BOOST, keep_until=at(1)))
KEPT_NO_LONGER = decided(left=policy(reclaim=Reclaim.PRIORITY_BOOST, keep_until=at(0)))
OTHERWISE = decided(left=policy())
PREEMPTED: dict[str, Any] = {"quota_reserved": False, "admitted": False, "eviction_reason": "Preempted"}
BEING_EVICTED: dict[str, Any] = {"eviction_reason": "Preempted"}


def wanted(*decisions: Decision, unknown_for: timedelta = timedelta(0), doubt: str = "", **workload: Any) -> Desire:
    return desire(observed(**workload), decisions, doubt=doubt, unknown_for=unknown_for)


# ------------------------------------------------------------------------------------------------------ what is wanted


@pytest.mark.parametrize(
    ("decisions", "workload", "wish"),
    [
        pytest.param([IS_IDLE], {}, Wish.SET, id="idle"),
        pytest.param([IS_IDLE, IS_IDLE], {}, Wish.SET, id="idle by both triggers"),
        pytest.param([IS_IDLE, IS_BUSY], {}, Wish.CLEAR, id="busy by one of two triggers"),
        pytest.param([IS_BUSY], {}, Wish.CLEAR, id="busy"),
        pytest.param([decided(running_since=at(-60))], {}, Wish.CLEAR, id="warming up"),
        pytest.param([decided(stage=Stage.STARTING)], {}, Wish.CLEAR, id="its pods start"),
        pytest.param([ONLY_OBSERVED], {}, Wish.CLEAR, id="only observed"),
        pytest.param([], {}, Wish.CLEAR, id="no ScaledObject"),
        pytest.param([OTHERWISE], {}, Wish.CLEAR, id="suspended for being idle instead"),
        pytest.param([IS_IDLE, OTHERWISE], {}, Wish.CLEAR, id="one trigger has another policy"),
        pytest.param([IS_IDLE], {"active": False}, Wish.CLEAR, id="deactivated"),
        pytest.param([IS_BUSY], {"finished": True}, Wish.LEAVE, id="finished"),
        pytest.param([WAITS], PREEMPTED, Wish.LEAVE, id="preempted, and nobody asks for it"),
        pytest.param([decided(stage=Stage.STARTING)], BEING_EVICTED, Wish.LEAVE, id="being preempted, pods end"),
        pytest.param([IS_BUSY], BEING_EVICTED, Wish.LEAVE, id="being preempted, work seen a moment ago"),
        pytest.param([WAITS], {"quota_reserved": False, "admitted": False}, Wish.LEAVE, id="never admitted"),
        pytest.param([IN_DEMAND], PREEMPTED, Wish.CLEAR, id="preempted and in demand"),
        pytest.param([WISHED_BACK], PREEMPTED, Wish.CLEAR, id="preempted, and its owner wants it back"),
        pytest.param([KEPT], PREEMPTED, Wish.CLEAR, id="preempted and kept"),
        pytest.param([KEPT], {}, Wish.CLEAR, id="idle and kept"),
        pytest.param([KEPT_NO_LONGER], {}, Wish.SET, id="idle and kept no longer"),
    ],
)
def test_what_is_wanted_when_it_is(decisions: list[Decision], workload: dict[str, Any], wish: Wish) -> None:
    assert wanted(*decisions, **workload).wish is wish


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
    assert wanted(*decisions, doubt=doubt, unknown_for=PATIENCE - moment).wish is Wish.LEAVE
    cleared = wanted(*decisions, doubt=doubt, unknown_for=PATIENCE)
    assert cleared.wish is Wish.CLEAR
    assert cleared.why == f"nothing is known of it for 5m: {doubt or 'newest sample is 5m old'}"


def test_work_that_is_seen_wins_over_what_is_not_known() -> None:
    assert wanted(IS_UNKNOWN, IS_BUSY).wish is Wish.CLEAR
    assert wanted(IS_BUSY, doubt="the latest verdicts are 400 s old").wish is Wish.CLEAR
    assert not is_unknown([IS_UNKNOWN, IS_BUSY])
    assert is_unknown([IS_UNKNOWN, IS_IDLE])
    assert not is_unknown([IS_IDLE])


def test_it_says_why() -> None:
    assert wanted(IS_BUSY).why == "GPUsBusy: work seen within the last 30m"
    assert wanted(IS_IDLE).why.startswith("every required GPU stayed below 1 % for 30m")
    assert wanted(decided(demand="query notebooks")).why == "it is asked for: query notebooks"


ANSWERS = st.sampled_from(
    [Active(because=because, message="") for because in Because]
    + [NoAnswer(reason=reason, message="") for reason in Unknowable]
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
    if wanted(*decisions, unknown_for=unknown_for, **workload).wish is Wish.SET:
        reasons = {each.answer.because if isinstance(each.answer, Active) else "" for each in decisions}
        assert reasons == {Because.LEFT_TO_KUEUE}
        assert {each.policy.reclaim for each in decisions} == {Reclaim.PRIORITY_BOOST}
        assert workload["active"]
        assert workload["admitted"]


# -------------------------------------------------------------------------------------------------------- what is done

NONE, OURS = Boost(), Boost(holder=Holder.US, value="-1000")
THEIRS, REPLACED = Boost(holder=Holder.OTHER, value="7"), Boost(holder=Holder.REPLACED, value="7")
TAKEN_OFF = Boost(holder=Holder.TAKEN_OFF)


@pytest.mark.parametrize(
    ("now", "when_set", "when_left", "when_cleared"),
    [
        pytest.param(NONE, Step.WRITE, None, None, id="nobody's"),
        pytest.param(OURS, None, None, Step.REMOVE, id="ours"),
        pytest.param(Boost(holder=Holder.US, value="-5"), Step.WRITE, None, Step.REMOVE, id="ours, by other settings"),
        pytest.param(THEIRS, None, None, None, id="somebody else's"),
        pytest.param(REPLACED, Step.DISOWN, Step.DISOWN, Step.DISOWN, id="somebody else's in the place of ours"),
        pytest.param(TAKEN_OFF, None, None, Step.DISOWN, id="ours, taken off by hand"),
    ],
)
def test_what_is_done_about_a_boost_that_is(
    now: Boost, when_set: Step | None, when_left: Step | None, when_cleared: Step | None
) -> None:
    assert [step(now, wish, value=-1000) for wish in Wish] == [when_set, when_left, when_cleared]


AFTER = {Step.WRITE: OURS, Step.REMOVE: NONE}


@given(st.sampled_from([NONE, OURS, THEIRS, REPLACED, TAKEN_OFF]), st.sampled_from(Wish))
def test_a_step_is_taken_once_and_never_to_a_boost_of_somebody_else(now: Boost, wish: Wish) -> None:
    taken = step(now, wish, value=-1000)
    if taken is Step.DISOWN:
        left = Boost(holder=Holder.OTHER, value=now.value) if now.value else NONE
        assert step(left, wish, value=-1000) in {None, Step.WRITE}
    elif taken is not None:
        assert now.holder in {Holder.NOBODY, Holder.US}
        assert step(AFTER[taken], wish, value=-1000) is None


def test_a_target_without_a_workload_is_told_what_to_write() -> None:
    assert cannot_be_boosted("Deployment/web").startswith("'reclaim: PriorityBoost' does nothing for Deployment/web: ")


def test_the_decisions_of_these_tests_are_what_they_say() -> None:
    assert LONG_AGO < NOON
    assert [each.answer.because for each in (IS_IDLE, IS_BUSY, WAITS) if isinstance(each.answer, Active)] == [
        Because.LEFT_TO_KUEUE,
        Because.GPUS_BUSY,
        Because.WAITING_FOR_QUOTA,
    ]
    assert isinstance(IS_UNKNOWN.answer, NoAnswer)
