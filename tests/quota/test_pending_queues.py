from collections.abc import Iterable, Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quota_builders import NAMESPACE, cluster_queue, flavors, local_queue, pod_set, tree, workload

from scaler.kube.scheduling import parse_selector
from scaler.quota.demands import NOTHING_TRIED, FlavorOptions, PendingReason
from scaler.quota.model import QueueingStrategy, QuotaWorkload
from scaler.quota.queues import CycleOutcome, FlavorProgress, PendingQueue
from scaler.quota.workload_index import SchedulingContext, WorkloadIndex

UNTRIED = ({0: 0},)


class Line:
    """The queue `a`, with its Workloads by name."""

    def __init__(
        self,
        *waiting: QuotaWorkload,
        strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
        selector: str = "",
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        spec = cluster_queue("a", strategy=strategy, namespace_selector=parse_selector(selector))
        world = SchedulingContext(
            flavor_options=FlavorOptions(flavors=flavors()),
            namespaces=namespaces or {NAMESPACE: {}},
            local_queue=lambda *_: local_queue("a"),
        )
        self.workload_index = WorkloadIndex(tree([spec]), {"a": waiting}, world)
        self.queue = PendingQueue(spec, self.workload_index)
        self.queue.fill([self.workload_index.numbers[each.key] for each in waiting])

    def number(self, name: str) -> int:
        return self.workload_index.numbers[f"{NAMESPACE}/{name}"]

    def name(self, number: int | None) -> str:
        return "" if number is None else self.workload_index.waiting(number).name

    def pop(self) -> str:
        return self.name(self.queue.pop())

    def requeue(self, name: str, outcome: CycleOutcome, progress: FlavorProgress | None = None) -> bool:
        return self.queue.requeue(self.number(name), outcome, PendingReason.WAITING_FOR_QUOTA, progress)

    def in_line(self) -> list[str]:
        """All that can be taken, in order."""
        queue = self.queue.copy()
        return [self.name(number) for number in iter(queue.pop, None)]


def names(line: Line, numbers: Iterable[int]) -> set[str]:
    return {line.name(number) for number in numbers}


def test_of_equals_in_age_the_lower_uid_is_first() -> None:
    one = workload("one", uid="b")
    assert Line(one, workload("other", uid="a", queued_at=one.queued_at)).in_line() == ["other", "one"]


# -------------------------------------------------------------------------------------------------------------- order


def test_one_that_waits_for_preemptions_is_first_until_admitted() -> None:
    line = Line(workload("first", gpus=2), workload("second"))
    assert (line.pop(), line.pop()) == ("first", "second")
    assert line.requeue("second", CycleOutcome.PENDING_PREEMPTION)
    assert line.requeue("first", CycleOutcome.SKIPPED)
    assert line.in_line() == ["second", "first"]
    assert line.pop() == "second"
    line.queue.drop(line.number("second"))
    line.queue.push(line.number("second"))
    assert line.in_line() == ["first", "second"]


def test_in_strict_order_none_overtakes() -> None:
    line = Line(workload("first"), workload("second"), strategy=QueueingStrategy.STRICT_FIFO)
    assert (line.pop(), line.pop()) == ("first", "second")
    line.requeue("second", CycleOutcome.PENDING_PREEMPTION)
    line.requeue("first", CycleOutcome.NO_FIT)
    assert line.in_line() == ["first", "second"]


# ------------------------------------------------------------------------------------------------------------ requeue


@pytest.mark.parametrize(
    ("outcome", "best_effort", "strict"),
    [
        (CycleOutcome.SKIPPED, True, True),
        (CycleOutcome.PENDING_PREEMPTION, True, True),
        (CycleOutcome.NO_FIT, False, True),
        (CycleOutcome.NO_CANDIDATES, False, True),
        (CycleOutcome.NAMESPACE_MISMATCH, False, False),
    ],
)
def test_one_that_is_active_again(outcome: CycleOutcome, best_effort: bool, strict: bool) -> None:
    for strategy, expected in (
        (QueueingStrategy.BEST_EFFORT_FIFO, best_effort),
        (QueueingStrategy.STRICT_FIFO, strict),
    ):
        line = Line(workload("gang"), strategy=strategy)
        assert line.pop() == "gang"
        assert line.requeue("gang", outcome) is expected
        assert line.queue.has_head is expected
        assert list(line.queue) == [line.number("gang")], "none is lost"


def test_one_that_has_flavors_left_to_try_is_active_again() -> None:
    line = Line(workload("gang"), workload("alike"))
    line.pop()
    assert line.requeue("gang", CycleOutcome.NO_FIT, FlavorProgress(UNTRIED, 0, 0))
    assert line.in_line() == ["gang", "alike"]


def test_one_that_is_alike_is_inadmissible_with_one_that_does_not_fit() -> None:
    line = Line(workload("big", gpus=8), workload("small"), workload("as-big", gpus=8))
    assert line.pop() == "big"
    line.requeue("big", CycleOutcome.NO_FIT)
    assert line.in_line() == ["small"]
    assert line.queue.reason(line.number("as-big")) is PendingReason.WAITING_FOR_QUOTA
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
def test_one_that_is_not_quite_alike_keeps_its_place(other: QuotaWorkload) -> None:
    line = Line(workload("big", gpus=8, queued_at=other.queued_at - timedelta(days=1)), other)
    assert line.pop() == "big"
    line.requeue("big", CycleOutcome.NO_FIT)
    assert line.in_line() == ["other"]


def test_one_that_comes_back_while_those_alike_are_inadmissible_is_too() -> None:
    line = Line(workload("one"), workload("evicted"))
    line.queue.drop(line.number("evicted"))
    line.pop()
    line.requeue("one", CycleOutcome.NO_CANDIDATES)
    line.queue.push(line.number("evicted"))
    assert line.in_line() == []
    line.queue.retry()
    assert line.in_line() == ["one", "evicted"]


def test_excluded_ones_are_not_retried() -> None:
    """Their namespace is not selected, so no retry helps them, not even one for those alike."""
    namespaces = {NAMESPACE: {"team": "x"}, "other": {}}
    line = Line(workload("mine"), workload("alike", namespace="other"), selector="team=x", namespaces=namespaces)
    assert line.pop() == "mine"
    line.requeue("mine", CycleOutcome.NO_FIT)
    line.queue.retry()
    assert line.in_line() == ["mine"]
    assert names(line, line.queue) == {"mine", "alike"}


def test_a_queue_without_selector_admits_from_nowhere() -> None:
    spec = cluster_queue("a", namespace_selector=None)
    world = SchedulingContext(
        flavor_options=FlavorOptions(flavors={}), namespaces={NAMESPACE: {}}, local_queue=lambda *_: None
    )
    assert WorkloadIndex(tree([spec]), {"a": [workload()]}, world).namespace_mismatches == {0}


# ----------------------------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize(
    ("cycles_later", "some_left", "kept"),
    [
        pytest.param(1, False, True, id="in the next cycle"),
        pytest.param(1, True, True, id="in the next cycle, whatever has happened"),
        pytest.param(2, False, True, id="later, while none has left"),
        pytest.param(2, True, False, id="later, after one has left"),
    ],
)
def test_how_long_progress_counts(cycles_later: int, some_left: bool, kept: bool) -> None:
    line = Line(workload("gang"))
    line.pop()
    line.requeue("gang", CycleOutcome.SKIPPED, FlavorProgress(UNTRIED, line.queue.generation, 5))
    line.queue.generation += some_left
    tried = line.queue.tried(line.number("gang"), 5 + cycles_later)
    assert tried == (UNTRIED if kept else NOTHING_TRIED)


# --------------------------------------------------------------------------------------------------------------- laws


@given(st.lists(st.sampled_from(["pop", "retry", *CycleOutcome]), max_size=30), st.integers(0, 6))
def test_none_is_lost_or_doubled(actions: list[str], kinds: int) -> None:
    line = Line(*(workload(f"w{index}", gpus=1 + index % (kinds + 1)) for index in range(6)))
    all_of_them = set(line.queue)
    popped: list[int] = []
    for action in actions:
        if action == "retry":
            line.queue.retry()
        elif action == "pop":
            popped += [number for number in [line.queue.pop()] if number is not None]
        elif popped:
            line.queue.requeue(
                popped.pop(), CycleOutcome(action) if action != CycleOutcome.ADMITTED else CycleOutcome.SKIPPED
            )
        assert sorted([*line.queue, *popped]) == sorted(all_of_them)


def test_a_copy_goes_its_own_way() -> None:
    line = Line(workload("first"), workload("second", gpus=2))
    copy = line.queue.copy()
    copy.requeue(copy.pop() or 0, CycleOutcome.NO_FIT)
    assert line.in_line() == ["first", "second"]
    assert len(list(copy)) == 2
