import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from builders import ACTIVE, INACTIVE, NO_ANSWER, NOON, SCALED_OBJECT, TARGET, entry, evaluation, minutes

from scaler.decision.decision import Answer, Inactive
from scaler.decision.decision_cache import DecisionCache, Evaluation
from scaler.decision.reasons import DecisionReason
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.keda import ScaleTargetRef

MAX_AGE = timedelta(seconds=45)
ANY = Overrides()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def decisions(clock: Clock) -> DecisionCache:
    return DecisionCache(max_age=MAX_AGE, clock=clock)


def ask(decisions: DecisionCache, trigger: Overrides = ANY) -> Answer:
    return decisions.answer(*SCALED_OBJECT, trigger)


def reason(answer: Answer) -> UnknownReason:
    assert isinstance(answer, Unknown)
    return answer.reason


# ------------------------------------------------------------------------------------------------------------- answers


def test_the_answer_is_that_of_the_latest_evaluation(decisions: DecisionCache) -> None:
    decisions.publish(evaluation(ACTIVE))
    assert ask(decisions) == ACTIVE
    decisions.publish(evaluation(INACTIVE))
    assert ask(decisions) == INACTIVE
    decisions.publish(Evaluation.of({("demo", "other"): entry(ACTIVE)}, at=NOON))
    assert reason(ask(decisions)) is UnknownReason.TARGET_NOT_FOUND, "an evaluation replaces the one before whole"


def test_before_the_first_evaluation_the_answer_is_unknown_and_says_why(decisions: DecisionCache) -> None:
    assert not decisions.is_ready
    assert reason(ask(decisions)) is UnknownReason.COLD_START
    decisions.explain_cold_start("gpu_util: connection refused")
    assert ask(decisions).message == "the first evaluation is not complete: gpu_util: connection refused"


async def test_a_stale_evaluation_is_no_answer_and_opens_no_stream(decisions: DecisionCache, clock: Clock) -> None:
    decisions.publish(evaluation(INACTIVE))
    clock.advance(45)
    assert ask(decisions) == INACTIVE
    clock.advance(0.5)
    assert reason(ask(decisions)) is UnknownReason.COLD_START
    assert ask(decisions).message == "the last evaluation is 45s old; the next one is due"
    opened = stream(decisions)
    assert await opened.settled() == []
    decisions.publish(evaluation(ACTIVE))
    assert ask(decisions) == ACTIVE, "and recovers by itself"
    assert await opened.settled() == [ACTIVE]


def test_a_stale_evaluation_can_still_be_shown_with_its_age(decisions: DecisionCache, clock: Clock) -> None:
    assert (decisions.evaluation, decisions.age) == (None, None)
    decisions.publish(evaluation(INACTIVE))
    clock.advance(600)
    assert decisions.age == timedelta(minutes=10)
    assert decisions.evaluation is not None
    assert decisions.is_ready, "it was complete once; that it is stale is another matter"


def test_a_scaled_object_that_was_not_evaluated_has_no_answer(decisions: DecisionCache) -> None:
    decisions.publish(evaluation(ACTIVE))
    answer = decisions.answer("demo", "third", ANY)
    assert reason(answer) is UnknownReason.TARGET_NOT_FOUND
    assert "demo/third" in answer.message
    assert "scalerAddress" in answer.message
    assert reason(decisions.answer("prod", SCALED_OBJECT[1], ANY)) is UnknownReason.TARGET_NOT_FOUND


def test_each_trigger_has_the_answer_of_its_own_metadata(decisions: DecisionCache) -> None:
    other = Overrides(idle_after=minutes(1))
    decisions.publish(evaluation(ACTIVE, INACTIVE))
    assert (ask(decisions), ask(decisions, other)) == (ACTIVE, INACTIVE)


def test_metadata_that_was_not_evaluated_has_no_answer(decisions: DecisionCache) -> None:
    changed = Overrides(idle_after=minutes(7))
    decisions.publish(evaluation(ACTIVE))
    assert reason(ask(decisions, changed)) is UnknownReason.INVALID_POLICY
    assert ask(decisions, changed).message == "the trigger's metadata changed since the last evaluation"
    decisions.publish(evaluation(ACTIVE, problems=("idleAfter: too long", "gpus: what?")))
    assert ask(decisions, changed).message == "idleAfter: too long; gpus: what?"


# ---------------------------------------------------------------------------------------------- answers of 0 age sooner


@pytest.fixture
def strict(clock: Clock) -> DecisionCache:
    return DecisionCache(max_age=MAX_AGE, max_zero_age=timedelta(seconds=20), clock=clock)


def test_an_answer_of_0_expires_before_the_others(strict: DecisionCache, clock: Clock) -> None:
    """Work, or a wish, may have come since; no workload is suspended by an error."""
    suspended = Inactive(reason=DecisionReason.SUSPENDED, message="suspended")
    for answer, after_s, expected in (
        (INACTIVE, 20, INACTIVE),
        (INACTIVE, 21, UnknownReason.SOURCE_UNAVAILABLE),
        (ACTIVE, 21, ACTIVE),
        (suspended, 20, suspended),
        (suspended, 21, UnknownReason.SOURCE_UNAVAILABLE),
        (NO_ANSWER, 21, NO_ANSWER),
        (ACTIVE, 46, UnknownReason.COLD_START),
    ):
        strict.publish(evaluation(answer))
        clock.advance(after_s)
        found = ask(strict)
        assert found == expected if not isinstance(expected, UnknownReason) else reason(found) is expected


# ------------------------------------------------------------------------------------------- amending single entries


def test_an_entry_can_be_replaced_between_evaluations_and_the_others_stay(decisions: DecisionCache) -> None:
    decisions.publish(Evaluation.of({SCALED_OBJECT: entry(INACTIVE), ("demo", "other"): entry(ACTIVE)}, at=NOON))
    decisions.amend({SCALED_OBJECT: entry(ACTIVE)})
    assert ask(decisions) == ACTIVE
    assert decisions.answer("demo", "other", ANY) == ACTIVE
    assert decisions.evaluation is not None
    assert [each.answer for each in decisions.evaluation.decisions_on("demo", TARGET)] == [ACTIVE, ACTIVE]


def test_an_amended_evaluation_is_no_younger(decisions: DecisionCache, clock: Clock) -> None:
    decisions.publish(evaluation(ACTIVE))
    clock.advance(40)
    decisions.amend({SCALED_OBJECT: entry(ACTIVE)})
    clock.advance(6)
    assert reason(ask(decisions)) is UnknownReason.COLD_START


def test_there_is_nothing_to_amend_before_the_first_evaluation(decisions: DecisionCache) -> None:
    decisions.amend({SCALED_OBJECT: entry(ACTIVE)})
    assert reason(ask(decisions)) is UnknownReason.COLD_START
    assert not decisions.is_ready


async def test_an_amended_entry_reaches_its_own_streams_only(decisions: DecisionCache) -> None:
    decisions.publish(Evaluation.of({SCALED_OBJECT: entry(INACTIVE), ("demo", "other"): entry(INACTIVE)}, at=NOON))
    own, other = stream(decisions), Stream(decisions.activations("demo", "other", ANY))
    await asyncio.gather(own.settled(), other.settled())
    decisions.amend({SCALED_OBJECT: entry(ACTIVE)})
    assert (await own.settled(), await other.settled()) == ([INACTIVE, ACTIVE], [INACTIVE])


def test_all_decisions_on_one_target_are_found_by_it() -> None:
    made = Evaluation.of({("demo", "a"): entry(ACTIVE, INACTIVE), ("demo", "b"): entry(NO_ANSWER)}, at=NOON)
    assert [each.answer for each in made.decisions_on("demo", TARGET)] == [ACTIVE, INACTIVE, NO_ANSWER]
    assert made.decisions_on("prod", TARGET) == ()
    assert made.decisions_on("demo", ScaleTargetRef(api_version="apps/v1", kind="Deployment", name="x")) == ()


# ------------------------------------------------------------------------------------------------------------- streams


class Stream:
    """Collects what a stream of activations yields, without waiting for time."""

    def __init__(self, activations: AsyncIterator[Answer]) -> None:
        self.received: list[Answer] = []
        self.has_ended = False
        self._task = asyncio.create_task(self._collect(activations))

    async def _collect(self, activations: AsyncIterator[Answer]) -> None:
        async for answer in activations:
            self.received.append(answer)
        self.has_ended = True

    async def settled(self) -> list[Answer]:
        """What was received once everything that can happen now has happened."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.received

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def stream(decisions: DecisionCache, trigger: Overrides = ANY) -> Stream:
    return Stream(decisions.activations(*SCALED_OBJECT, trigger))


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        pytest.param([INACTIVE, ACTIVE], [INACTIVE, ACTIVE], id="a change to active is sent"),
        pytest.param([ACTIVE, INACTIVE], [ACTIVE], id="a change to inactive is not: KEDA learns it by polling"),
        pytest.param([ACTIVE, ACTIVE, ACTIVE], [ACTIVE], id="no change, nothing sent"),
        pytest.param([ACTIVE, INACTIVE, ACTIVE], [ACTIVE, ACTIVE], id="each change to active is sent"),
        pytest.param([ACTIVE, NO_ANSWER, ACTIVE], [ACTIVE], id="no answer in between repeats nothing"),
        pytest.param([INACTIVE, NO_ANSWER, ACTIVE], [INACTIVE, ACTIVE], id="no answer in between hides no change"),
        pytest.param([ACTIVE, NO_ANSWER, INACTIVE, ACTIVE], [ACTIVE, ACTIVE], id="nor one from inactive"),
        pytest.param([NO_ANSWER, NO_ANSWER], [], id="nothing usable, nothing sent"),
        pytest.param([NO_ANSWER, INACTIVE], [INACTIVE], id="the first usable answer is sent"),
    ],
)
async def test_a_stream_tells_the_first_usable_answer_and_then_only_changes_to_active(
    decisions: DecisionCache, published: list[Answer], expected: list[Answer]
) -> None:
    opened = stream(decisions)
    await opened.settled()
    for answer in published:
        decisions.publish(evaluation(answer))
        await opened.settled()
    assert opened.received == expected


async def test_an_answer_reaches_every_stream_of_its_trigger_and_no_other(decisions: DecisionCache) -> None:
    one, two, other = stream(decisions), stream(decisions), stream(decisions, Overrides(idle_after=minutes(9)))
    await asyncio.gather(one.settled(), two.settled(), other.settled())
    decisions.publish(evaluation(ACTIVE))
    assert await one.settled() == await two.settled() == [ACTIVE]
    assert await other.settled() == []


async def test_closing_ends_every_stream_and_those_that_are_opened_after_it(decisions: DecisionCache) -> None:
    decisions.publish(evaluation(ACTIVE))
    opened = stream(decisions)
    await opened.settled()
    decisions.close()
    late = stream(decisions)
    assert (await opened.settled(), await late.settled()) == ([ACTIVE], [])
    assert opened.has_ended
    assert late.has_ended
    assert ask(decisions) == ACTIVE, "calls in flight are answered to the end"


async def test_what_was_queued_before_closing_is_sent_before_the_end(decisions: DecisionCache) -> None:
    decisions.publish(evaluation(INACTIVE))
    opened = stream(decisions)
    await opened.settled()
    decisions.publish(evaluation(ACTIVE))
    decisions.close()
    assert await opened.settled() == [INACTIVE, ACTIVE]
    assert opened.has_ended


async def test_a_cancelled_stream_receives_no_more_and_disturbs_no_other(decisions: DecisionCache) -> None:
    decisions.publish(evaluation(ACTIVE))
    gone, stays = stream(decisions), stream(decisions)
    await asyncio.gather(gone.settled(), stays.settled())
    await gone.cancel()
    decisions.publish(evaluation(INACTIVE))
    decisions.publish(evaluation(ACTIVE))
    assert await stays.settled() == [ACTIVE, ACTIVE]
    assert gone.received == [ACTIVE]
