from collections.abc import Iterable, Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quota_builders import NAMESPACE, cluster_queue, flavors, local_queue, pod_set, tree, workload

from scaler.core.quota.demands import Market
from scaler.core.quota.flavors import NOTHING_TRIED, Obstacle
from scaler.core.quota.model import Strategy, Workload
from scaler.core.quota.queues import Outcome, PendingQueue, Progress
from scaler.core.quota.roster import Roster, World
from scaler.core.selectors import parse_selector

UNTRIED = ({0: 0},)


class Line:
    """The queue `a`, with its Workloads by name."""

    def __init__(
        self,
        *waiting: Workload,
        strategy: Strategy = Strategy.BEST_EFFORT_FIFO,
        selector: str = "",
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        spec = cluster_queue("a", strategy=strategy, namespace_selector=parse_selector(selector))
        world = World(
            market=Market(flavors=flavors()),
            namespaces=namespaces or {NAMESPACE: {}},
            local_queue=lambda *_: local_queue("a"),
        )
        self.roster = Roster(tree([spec]), {"a": waiting}, world)
        self.queue = PendingQueue(spec, self.roster)
        self.queue.fill([self.roster.numbers[each.key] for each in waiting])

    def number(self, name: str) -> int:
        return self.roster.numbers[f"{NAMESPACE}/{name}"]

    def name(self, number: int | None) -> str:
        return "" if number is None else self.roster.waiting(number).name

    def pop(self) -> str:
        return self.name(self.queue.pop())

    def requeue(self, name: str, outcome: Outcome, progress: Progress | None = None) -> bool:
        return self.queue.requeue(self.number(name), outcome, Obstacle.WAITING_FOR_QUOTA, progress)

    def in_line(self) -> list[str]:
        """Everybody who can be taken, in order."""
        queue = self.queue.copy()
        return [self.name(number) for number in iter(queue.pop, None)]


def names(line: Line, numbers: Iterable[int]) -> set[str]:
    return {line.name(number) for number in numbers}


# -------------------------------------------------------------------------------------------------------------- order


def test_priority_goes_before_age() -> None:
    line = Line(workload("old"), workload("young"), workload("important", priority=1))
    assert line.in_line() == ["important", "old", "young"]


def test_of_equals_in_age_the_lower_uid_is_first() -> None:
    one = workload("one", uid="b")
    assert Line(one, workload("other", uid="a", queued_at=one.queued_at)).in_line() == ["other", "one"]


def test_who_waits_for_preemptions_is_first_until_admitted() -> None:
    line = Line(workload("first", gpus=2), workload("second"))
    assert (line.pop(), line.pop()) == ("first", "second")
    assert line.requeue("second", Outcome.PENDING_PREEMPTION)
    assert line.requeue("first", Outcome.SKIPPED)
    assert line.in_line() == ["second", "first"]
    assert line.pop() == "second"
    line.queue.drop(line.number("second"))
    line.queue.push(line.number("second"))
    assert line.in_line() == ["first", "second"]


def test_in_strict_order_nobody_jumps_the_queue() -> None:
    line = Line(workload("first"), workload("second"), strategy=Strategy.STRICT_FIFO)
    assert (line.pop(), line.pop()) == ("first", "second")
    line.requeue("second", Outcome.PENDING_PREEMPTION)
    line.requeue("first", Outcome.NO_FIT)
    assert line.in_line() == ["first", "second"]


# ------------------------------------------------------------------------------------------------------------ requeue


@pytest.mark.parametrize(
    ("outcome", "best_effort", "strict"),
    [
        (Outcome.SKIPPED, True, True),
        (Outcome.PENDING_PREEMPTION, True, True),
        (Outcome.NO_FIT, False, True),
        (Outcome.NO_CANDIDATES, False, True),
        (Outcome.NAMESPACE_MISMATCH, False, False),
    ],
)
def test_who_goes_back_in_line(outcome: Outcome, best_effort: bool, strict: bool) -> None:
    for strategy, expected in ((Strategy.BEST_EFFORT_FIFO, best_effort), (Strategy.STRICT_FIFO, strict)):
        line = Line(workload("gang"), strategy=strategy)
        assert line.pop() == "gang"
        assert line.requeue("gang", outcome) is expected
        assert line.queue.has_head is expected
        assert list(line.queue) == [line.number("gang")], "nobody is lost"


def test_who_has_flavors_left_to_try_goes_back_in_line() -> None:
    line = Line(workload("gang"), workload("alike"))
    line.pop()
    assert line.requeue("gang", Outcome.NO_FIT, Progress(UNTRIED, 0, 0))
    assert line.in_line() == ["gang", "alike"]


def test_who_is_alike_is_set_aside_with_one_that_does_not_fit() -> None:
    line = Line(workload("big", gpus=8), workload("small"), workload("as-big", gpus=8))
    assert line.pop() == "big"
    line.requeue("big", Outcome.NO_FIT)
    assert line.in_line() == ["small"]
    assert line.queue.reason(line.number("as-big")) is Obstacle.WAITING_FOR_QUOTA
    line.queue.retry()
    assert line.in_line() == ["big", "small", "as-big"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(workload("other", gpus=8, priority=-1), id="another priority"),
        pytest.param(workload("other", pod_sets=(pod_set(pods=8),)), id="another number of pods"),
        pytest.param(workload("other", pod_sets=(pod_set("x", gpus=8),)), id="another PodSet"),
        pytest.param(workload("other", gpus=8, extra_shape=1), id="something else that Kueue compares"),
    ],
)
def test_who_is_not_quite_alike_keeps_its_place(other: Workload) -> None:
    line = Line(workload("big", gpus=8, queued_at=other.queued_at - timedelta(days=1)), other)
    assert line.pop() == "big"
    line.requeue("big", Outcome.NO_FIT)
    assert line.in_line() == ["other"]


def test_in_strict_order_nobody_is_set_aside_for_being_alike() -> None:
    line = Line(workload("one"), workload("alike"), strategy=Strategy.STRICT_FIFO)
    line.pop()
    line.requeue("one", Outcome.NO_FIT)
    assert line.in_line() == ["one", "alike"]


def test_who_comes_back_while_those_alike_are_aside_is_aside_too() -> None:
    line = Line(workload("one"), workload("evicted"))
    line.queue.drop(line.number("evicted"))
    line.pop()
    line.requeue("one", Outcome.NO_CANDIDATES)
    line.queue.push(line.number("evicted"))
    assert line.in_line() == []
    line.queue.retry()
    assert line.in_line() == ["one", "evicted"]


def test_strangers_are_not_retried() -> None:
    """Their namespace is not selected, so no retry helps them, not even one for those alike."""
    namespaces = {NAMESPACE: {"team": "x"}, "other": {}}
    line = Line(workload("mine"), workload("alike", namespace="other"), selector="team=x", namespaces=namespaces)
    assert line.pop() == "mine"
    line.requeue("mine", Outcome.NO_FIT)
    line.queue.retry()
    assert line.in_line() == ["mine"]
    assert names(line, line.queue) == {"mine", "alike"}


def test_a_queue_without_selector_admits_from_nowhere() -> None:
    spec = cluster_queue("a", namespace_selector=None)
    world = World(market=Market(flavors={}), namespaces={NAMESPACE: {}}, local_queue=lambda *_: None)
    assert Roster(tree([spec]), {"a": [workload()]}, world).strangers == {0}


# ----------------------------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize(
    ("cycles_later", "somebody_left", "kept"),
    [
        pytest.param(1, False, True, id="in the next cycle"),
        pytest.param(1, True, True, id="in the next cycle, whatever has happened"),
        pytest.param(2, False, True, id="later, while nobody has left"),
        pytest.param(2, True, False, id="later, after somebody has left"),
    ],
)
def test_how_long_progress_counts(cycles_later: int, somebody_left: bool, kept: bool) -> None:
    line = Line(workload("gang"))
    line.pop()
    line.requeue("gang", Outcome.SKIPPED, Progress(UNTRIED, line.queue.generation, 5))
    line.queue.generation += somebody_left
    tried = line.queue.tried(line.number("gang"), 5 + cycles_later)
    assert tried == (UNTRIED if kept else NOTHING_TRIED)


# --------------------------------------------------------------------------------------------------------------- laws


@given(st.lists(st.sampled_from(["pop", "retry", *Outcome]), max_size=30), st.integers(0, 6))
def test_nobody_is_lost_or_doubled(actions: list[str], kinds: int) -> None:
    line = Line(*(workload(f"w{index}", gpus=1 + index % (kinds + 1)) for index in range(6)))
    everybody = set(line.queue)
    popped: list[int] = []
    for action in actions:
        if action == "retry":
            line.queue.retry()
        elif action == "pop":
            popped += [number for number in [line.queue.pop()] if number is not None]
        elif popped:
            line.queue.requeue(popped.pop(), Outcome(action) if action != Outcome.ADMITTED else Outcome.SKIPPED)
        assert sorted([*line.queue, *popped]) == sorted(everybody)


def test_a_copy_goes_its_own_way() -> None:
    line = Line(workload("first"), workload("second", gpus=2))
    copy = line.queue.copy()
    copy.requeue(copy.pop() or 0, Outcome.NO_FIT)
    assert line.in_line() == ["first", "second"]
    assert len(list(copy)) == 2
