"""Which workloads are candidates, in which order, and what may be asked of lists."""

from datetime import datetime

import pytest
from builders import IDLE, NOON, a_target, at, decision, minutes, pod, unknown, verdict
from builders import policy as a_policy
from page_builders import KEPT, NOT_NEEDED, QUIET, SUSPENDED, WORKS

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation
from scaler.decision.reasons import DecisionReason
from scaler.errors import QueryError
from scaler.idleness.policy import Overrides, Policy
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.reporting.page.workloads import (
    Filter,
    Paged,
    WorkloadLine,
    WorkloadLines,
    by_state,
    candidates,
    line_of,
)

QUIET_SINCE = at(-1200)
OBSERVED = Active(reason=DecisionReason.OBSERVE_ONLY, message="")
TAKEN = Inactive(reason=DecisionReason.RECLAIMED, message="")
FOR_TIME = Inactive(reason=DecisionReason.GPUS_IDLE, message="")


def line(
    name: str = "one",
    answer: Answer = QUIET,
    *,
    since: datetime | None = QUIET_SINCE,
    policy: Policy = a_policy(),  # noqa: B008 (immutable)
    warned_at: datetime | None = None,
    desired: int = 1,
) -> WorkloadLine:
    target = a_target(warned_at=warned_at, desired_replicas=desired)
    found = decision(answer, idle_since=since, policy=policy, target=target, verdict=verdict(IDLE))
    return line_of(("team", name), entry(name, found))


def entry(name: str, *decisions: object, problems: tuple[str, ...] = ()) -> EvaluatedScaledObject:
    triggers = dict(zip([Overrides(), Overrides(gpus=None, keeps_per_week=1)], decisions, strict=False))
    return EvaluatedScaledObject(
        target=scalable_workload_ref(name),
        triggers=triggers,  # type: ignore[arg-type]
        problems=problems,
        pods=[pod(gpus=4)],
    )


@pytest.mark.parametrize(
    ("shown", "state", "is_candidate", "prospect"),
    [
        (line(), "Idle", True, ""),
        (line(since=None), "Busy", False, ""),
        (line(since=at(-60)), "Busy", False, ""),  # a pause between two samples
        (line(policy=a_policy(warning=minutes(15)), warned_at=at(-300)), "Warned", True, ""),
        (line(answer=TAKEN), "Granted", True, "by its plan"),
        (line(answer=FOR_TIME), "Suspending", True, "now"),
        (line(answer=NOT_NEEDED), "Idle", True, "when a gang needs it"),
        (line(answer=OBSERVED), "Observing", True, "not in mode Observe"),
        (line(answer=KEPT), "Kept", True, "not while kept"),
        (line(answer=KEPT, since=None), "Kept", False, ""),
        (line(answer=SUSPENDED, since=None, desired=0), "Suspended", False, ""),
        (line(answer=unknown(), since=None), "Unknown", False, ""),
        (line(answer=Active(reason=DecisionReason.FINISHED, message=""), since=None), "Finished", False, ""),
    ],
)
def test_candidates_are_quiet_while_they_run(
    shown: WorkloadLine, state: str, is_candidate: bool, prospect: str
) -> None:
    assert (shown.state, shown.is_candidate, shown.prospect) == (state, is_candidate, prospect)


def test_one_without_a_usable_trigger_says_so() -> None:
    shown = line_of(("team", "typo"), entry("typo", problems=("unknown key 'idelAfter'",)))
    assert (shown.state, shown.reason, shown.message) == ("Invalid", "InvalidPolicy", "unknown key 'idelAfter'")


async def test_the_next_to_be_suspended_is_first_and_of_others_the_one_that_is_idle_longest() -> None:
    # Suspended 30 minutes after the last work.
    lines = [
        line("never", NOT_NEEDED, since=at(-600)),
        line("longest", NOT_NEEDED, since=at(-9000)),
        line("works", WORKS, since=None),
        line("later", since=at(-600)),
        line("next", since=at(-1700)),
    ]
    assert [each.name for each in await candidates(lines)] == ["next", "later", "longest", "never"]


async def test_states_are_counted_in_the_order_of_their_life() -> None:
    lines = [line(), line("two", NOT_NEEDED), line("three", WORKS, since=None)]
    assert await by_state(lines) == [("Busy", 1, 1), ("Idle", 2, 2)]


async def test_lines_are_in_order_and_stand_as_long_as_their_entries_do() -> None:
    lines, first, second = WorkloadLines(), entry("b", decision(QUIET)), entry("a", decision(QUIET))
    before = await lines.of(Evaluation.of({("x", "b"): first, ("x", "a"): second}, at=NOON))
    changed = entry("a", decision(NOT_NEEDED))
    after = await lines.of(Evaluation.of({("x", "b"): first, ("x", "a"): changed}, at=at(15)))
    assert [each.name for each in before] == [each.name for each in after] == ["a", "b"]
    assert (after[0].reason, after[1] is before[1]) == ("IdleNotNeeded", True)
    assert await lines.of(None) == ()
    assert await lines.of(Evaluation.of({}, at=at(30))) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"state": "Asleep"}, "no state 'Asleep'"),
        ({"page": "0"}, "no number of a page"),
        ({"page": "-1"}, "no number of a page"),
        ({"page": "²"}, "no number of a page"),
        ({"page": "9" * 5000}, "no number of a page"),
        ({"namespace": ".*"}, "no name of a namespace"),
        ({"namespace": 'a"}'}, "no name of a namespace"),
        ({"namespace": "a" * 64}, "no name of a namespace"),
    ],
)
def test_what_makes_no_sense_is_refused(query: dict[str, str], words: str) -> None:
    with pytest.raises(QueryError, match=words) as refused:
        Filter.of(query)
    assert refused.value.status == 400


def test_a_filter_chooses_by_namespace_and_state() -> None:
    shown = line(answer=NOT_NEEDED)
    for query, matches in [
        ({}, True),
        ({"namespace": " team "}, True),
        ({"namespace": "tea"}, False),
        ({"state": "Idle"}, True),
        ({"state": "Candidates"}, True),
        ({"state": "Busy"}, False),
        ({"state": "Idle", "namespace": "other"}, False),
    ]:
        assert Filter.of(query).matches(shown) is matches, query


@pytest.mark.parametrize(
    ("page", "items", "more"), [(1, [0, 1, 2], 4), (2, [3, 4, 5], 1), (3, [6], 0), (4, [], 0), (10**8, [], 0)]
)
def test_long_lists_come_in_pages(page: int, items: list[int], more: int) -> None:
    paged = Paged.of(range(7), page, per_page=3)
    assert (list(paged.items), paged.more, paged.pages, paged.total) == (items, more, 3, 7)
