from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quota_builders import (
    cluster_queue,
    cohort,
    gpu,
    holding,
    preempting,
    preemption_targets,
    quota,
    tree,
    workload,
)

from scaler.quota.cycle import FairSharingOrder
from scaler.quota.model import FlavorResource, PreemptionPolicy, QuotaWorkload, Usage
from scaler.quota.node import QueueNode
from scaler.quota.nomination import NominatedHead
from scaler.quota.preemption.candidates import PreemptionReason
from scaler.quota.preemption.fair_sharing import LOWEST, PreemptionStrategy, dominant_resource_share
from scaler.quota.tree import Tree

NEVER, LOWER, LOWER_OR_NEWER, ANY = PreemptionPolicy
GPU = gpu()
FAIR, RECLAMATION, OWN = (
    PreemptionReason.IN_COHORT_FAIR_SHARING,
    PreemptionReason.IN_COHORT_RECLAMATION,
    PreemptionReason.IN_CLUSTER_QUEUE,
)

# ------------------------------------------------------------------------------------------------------------- shares


def borrower(weight: float = 1.0, *, uses: int = 4, owns: int = 0, lends: int = 8) -> QueueNode:
    """A queue that uses so much, in a cohort with another one that owns the rest."""
    queues = [
        cluster_queue("a", cohort="co", gpus=owns, fair_weight=weight),
        cluster_queue("lender", cohort="co", gpus=lends - owns),
    ]
    return tree(queues, workloads=[holding(gpus=uses)]).queues["a"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(borrower(uses=0), 0.0, id="who uses nothing has no share"),
        pytest.param(borrower(uses=4, owns=4), 0.0, id="nor has who uses what it owns"),
        pytest.param(borrower(uses=4), 500.0, id="1000 · 4 borrowed / 8 that the cohort has"),
        pytest.param(borrower(uses=4, owns=1), 375.0, id="1000 · 3 / 8: the own 1 is not borrowed"),
        pytest.param(borrower(2.0, uses=4), 250.0, id="500 / weight 2"),
        pytest.param(borrower(0.5, uses=4), 1000.0, id="500 / weight 0.5"),
        pytest.param(borrower(0.0, uses=4), inf, id="weight 0 and borrowing is infinite"),
        pytest.param(borrower(0.0, uses=0), 0.0, id="weight 0 without borrowing is not"),
    ],
)
def test_a_share_is_what_is_borrowed_of_what_could_be_by_weight(node: QueueNode, expected: float) -> None:
    assert dominant_resource_share(node).weighted == expected


def test_flavors_of_one_resource_count_together_and_the_greatest_resource_decides() -> None:
    """GPUs: 1 + 1 of 8 in two flavors = 250. CPU: 3 of 4 = 750."""
    cpu = FlavorResource("a100", "cpu")
    amounts = {gpu("a100"): quota(4), gpu("h100"): quota(4), cpu: quota(4)}
    form = tree(
        [
            cluster_queue("lender", cohort="co", quotas=amounts),
            cluster_queue("a", cohort="co", quotas=dict.fromkeys(amounts, quota(0))),
        ]
    )
    form.queues["a"].add({gpu("a100"): 1, gpu("h100"): 1})
    assert dominant_resource_share(form.queues["a"]).weighted == 250.0
    form.queues["a"].add({cpu: 3})
    share = dominant_resource_share(form.queues["a"])
    assert share.weighted == 750.0
    assert share.borrowed == amounts.keys()


def test_what_no_queue_has_is_borrowed_without_a_share() -> None:
    """Over-admitted: no queue owns a GPU and one is in use."""
    form = tree([cluster_queue("a", cohort="co", gpus=0)], workloads=[holding()])
    share = dominant_resource_share(form.queues["a"])
    assert share.weighted == 0.0
    assert share.borrows
    weightless = tree([cluster_queue("a", cohort="co", gpus=0, fair_weight=0.0)], workloads=[holding()]).queues["a"]
    assert dominant_resource_share(weightless).weighted == 0.0


def test_a_share_is_of_what_the_parent_can_get_and_not_of_the_whole_tree() -> None:
    """Left borrows at most 2 of root's 8: a's parent can have 2, of which a uses 1."""
    form = tree(
        [cluster_queue("a", cohort="left", gpus=0)],
        [cohort("root", gpus=8), cohort("left", parent="root", gpus=quota(0, borrowing=2))],
        [holding()],
    )
    assert dominant_resource_share(form.queues["a"]).weighted == 500.0
    assert dominant_resource_share(form.cohorts["left"]).weighted == 125.0


def test_infinite_shares_are_above_all_others_and_compared_by_what_is_borrowed() -> None:
    shares = [dominant_resource_share(borrower(weight, uses=uses)) for weight, uses in ((0, 4), (1, 8), (0, 2), (0, 0))]
    assert sorted(shares) == [shares[3], shares[1], shares[2], shares[0]]
    assert all(share > LOWEST for share in shares)
    assert shares[0] > shares[2]


# --------------------------------------------------------------------------------------------------------- preemption


def found(
    form: Tree,
    gpus: int,
    *,
    queue: str = "a",
    strategies: Sequence[PreemptionStrategy] = (PreemptionStrategy.FINAL_SHARE, PreemptionStrategy.INITIAL_SHARE),
    **preemptor: Any,
) -> dict[str, PreemptionReason]:
    """Whom a Workload of the queue that wants so many GPUs would preempt, and why."""
    targets = preemption_targets(form, workload("preemptor", **preemptor), gpus, queue=queue, fair=strategies)
    return {target.workload.name: target.reason for target in targets}


def lent(*holders: QuotaWorkload, lends: int = 8, weights: tuple[float, float] = (1.0, 1.0), own: int = 0) -> Tree:
    """Queue c lends all it has; a and b own little or nothing. a may take back from any."""
    queues = [
        cluster_queue(
            "a", cohort="co", gpus=own, fair_weight=weights[0], preemption=preempting(within=LOWER, reclaim=ANY)
        ),
        cluster_queue("b", cohort="co", gpus=0, fair_weight=weights[1]),
        cluster_queue("c", cohort="co", gpus=lends - own),
    ]
    return tree(queues, workloads=holders)


def of_b(count: int, gpus: int = 2) -> list[QuotaWorkload]:
    """The higher the number, the newer."""
    return [holding(f"b{number}", queue="b", gpus=gpus) for number in range(count)]


def test_one_that_has_as_much_as_the_preemptor_will_have_gives_nothing() -> None:
    """b and d hold 4 of 8 each, in one piece: 500. a would be at 500 with 4: not below either."""
    form = contested(holding("of-b", queue="b", gpus=4), holding("of-d", queue="d", gpus=4))
    assert found(form, 4) == {}
    assert found(form, 4, strategies=[PreemptionStrategy.INITIAL_SHARE]) == {}
    assert found(form, 3) != {}


def test_the_second_strategy_lets_one_large_workload_go_that_had_more_than_the_preemptor_will() -> None:
    """b holds all 8 in one piece. Without it b is at 0, below a's 250: the first strategy spares it; but 250 < 1000."""
    form = lent(holding("large", queue="b", gpus=8))
    assert found(form, 2) == {"large": FAIR}
    assert found(form, 2, strategies=[PreemptionStrategy.FINAL_SHARE]) == {}
    assert found(form, 2, strategies=[PreemptionStrategy.INITIAL_SHARE]) == {"large": FAIR}
    assert found(form, 2, strategies=[]) == {"large": FAIR}, "none named means both"


def test_the_second_strategy_takes_one_of_each_queue_at_most() -> None:
    """b has two of 4. By the first rule neither goes for 6 (750 > 500); by the second one does, as 750 < 1000, and
    then b is at 500."""
    form = lent(*of_b(2, gpus=4))
    assert found(form, 6) == {}
    assert found(form, 4) == {"b1": FAIR}


def contested(*holders: QuotaWorkload, lends: int = 8, **fields: Any) -> Tree:
    """a, b and d own nothing, c lends all it has."""
    queues = [
        cluster_queue("a", cohort="co", gpus=0, preemption=preempting(reclaim=ANY)),
        cluster_queue("b", cohort="co", gpus=0),
        cluster_queue("d", cohort="co", gpus=0, **fields),
        cluster_queue("c", cohort="co", gpus=lends),
    ]
    return tree(queues, workloads=holders)


def of_d(count: int, gpus: int = 1) -> list[QuotaWorkload]:
    return [holding(f"d{number}", queue="d", gpus=gpus) for number in range(count)]


def test_the_greater_share_is_looked_for_anew_after_every_step() -> None:
    """b uses 4 of 7, d 3. After one of b's both have 3, and the newest, which is d's, goes next: 2 ≤ 2."""
    assert found(contested(*of_b(4, gpus=1), *of_d(3), lends=7), 2) == {"b3": FAIR, "d2": FAIR}


def test_of_equal_shares_the_better_candidate_goes_first() -> None:
    holders = [holding(f"b{number}", queue="b", gpus=2, priority=1) for number in range(2)]
    assert found(contested(*of_d(2, gpus=2), *holders), 2) == {"d1": FAIR}


def test_of_equal_shares_a_cohort_gives_before_a_queue() -> None:
    queues = [
        cluster_queue("a", cohort="root", gpus=0, preemption=preempting(reclaim=ANY)),
        cluster_queue("d", cohort="right", gpus=0),
        cluster_queue("b", cohort="root", gpus=0),
    ]
    cohorts = [cohort("root", gpus=8), cohort("right", parent="root")]
    assert found(tree(queues, cohorts, [*of_d(2, gpus=2), *of_b(2)]), 2) == {"d1": FAIR}


def test_shares_are_compared_below_the_cohort_that_both_are_in() -> None:
    """Root lends 8. Left holds a and b, right holds d. a has nothing, b 2 and d 6: right is at 750 and left at 250.

    With 2 more left is at 500, right without one of d's at 500: d's newest goes, although b's share of left is 1000.
    """
    queues = [
        cluster_queue("a", cohort="left", gpus=0, preemption=preempting(reclaim=ANY)),
        cluster_queue("b", cohort="left", gpus=0),
        cluster_queue("d", cohort="right", gpus=0),
    ]
    cohorts = [cohort("root", gpus=8), cohort("left", parent="root"), cohort("right", parent="root")]
    form = tree(queues, cohorts, [*of_b(1), *(holding(f"d{number}", queue="d", gpus=2) for number in range(3))])
    assert found(form, 2) == {"d2": FAIR}


def test_within_a_cohort_that_borrows_nothing_shares_are_evened_out_too() -> None:
    """Left owns 8: b has 4, and c of root 4, of higher priority. With a's 2 left uses 6 of its own: 0. b has 500."""
    queues = [
        cluster_queue("a", cohort="left", gpus=0, preemption=preempting(reclaim=LOWER)),
        cluster_queue("b", cohort="left", gpus=0),
        cluster_queue("c", cohort="root", gpus=0),
    ]
    cohorts = [cohort("root"), cohort("left", parent="root", gpus=8)]
    form = tree(queues, cohorts, [*of_b(2), holding("far", queue="c", gpus=4, priority=100)])
    assert found(form, 2, priority=1) == {"b1": FAIR}


def test_a_queue_without_cohort_preempts_its_own_by_priority() -> None:
    form = tree([cluster_queue("a", preemption=preempting(within=LOWER))], workloads=[holding("low", gpus=4)])
    assert found(form, 2, priority=1) == {"low": OWN}
    assert found(form, 2) == {}


# --------------------------------------------------------------------------------------------------------- tournament


@dataclass(eq=False)
class Head:
    workload: QuotaWorkload
    queue: QueueNode
    usage: Usage


def head(form: Tree, queue: str, gpus: int, **fields: Any) -> NominatedHead:
    return cast(NominatedHead, Head(workload(f"of-{queue}", queue=queue, **fields), form.queues[queue], {GPU: gpus}))


def admitted_in_turn(heads: list[NominatedHead]) -> list[str]:
    """The order of the turns, where every head is admitted in its turn."""
    tournament, order = FairSharingOrder(heads), []
    while (winner := tournament.pop()) is not None:
        winner.queue.add(winner.usage)
        order.append(winner.queue.name)
    return order


def flat(**owned: int) -> Tree:
    queues = [cluster_queue(name, cohort="co", gpus=gpus) for name, gpus in owned.items()]
    return tree([*queues, cluster_queue("lender", cohort="co", gpus=8)])


def test_one_that_borrows_of_something_else_borrows_nothing_that_counts() -> None:
    """a is over its CPUs, at 1000, and asks for a GPU of its own; b would be at 125 with the GPU that it borrows."""
    cpu = FlavorResource("default", "cpu")
    queues = [
        cluster_queue("a", cohort="co", quotas={GPU: quota(1), cpu: quota(0)}),
        cluster_queue("b", cohort="co", quotas={GPU: quota(0), cpu: quota(0)}),
        cluster_queue("lender", cohort="co", quotas={GPU: quota(7), cpu: quota(4)}),
    ]
    form = tree(queues)
    form.queues["a"].add({cpu: 4})
    assert admitted_in_turn([head(form, "b", 1), head(form, "a", 1)]) == ["a", "b"]


def test_of_equal_shares_priority_decides_and_then_age() -> None:
    form = flat(a=0, b=0, d=0)
    heads = [head(form, "a", 1), head(form, "b", 1), head(form, "d", 1, priority=1)]
    assert admitted_in_turn(heads) == ["d", "a", "b"]


def test_a_head_stands_for_its_cohort_against_those_of_others() -> None:
    """Left uses 4 of root's 8 in b, right 1 in d. With one more a has 125 and d 250, but left 625 and right 250."""
    queues = [
        cluster_queue("a", cohort="left", gpus=0),
        cluster_queue("b", cohort="left", gpus=0),
        cluster_queue("d", cohort="right", gpus=0),
    ]
    cohorts = [cohort("root", gpus=8), cohort("left", parent="root"), cohort("right", parent="root")]
    form = tree(queues, cohorts, [*of_b(2), holding("d0", queue="d")])
    assert admitted_in_turn([head(form, "a", 1), head(form, "d", 1)]) == ["d", "a"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from(["root", "left", "right"]), st.integers(0, 3)), min_size=6, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=6, max_size=6),
)
def test_every_head_is_the_first_of_those_that_are_left(
    wanted: list[tuple[int, int]], places: list[tuple[str, int]], meanwhile: list[tuple[int, int]]
) -> None:
    """What is remembered of earlier turns changes nothing, whatever happens between them."""
    queues = [
        cluster_queue(f"q{index}", cohort=name, gpus=quota(owned, lending=owned // 2))
        for index, (name, owned) in enumerate(places)
    ]
    cohorts = [cohort("root", gpus=4), *(cohort(name, parent="root", gpus=1) for name in ("left", "right"))]
    form = tree(queues, cohorts)
    heads = [head(form, f"q{index}", gpus, priority=priority) for index, (priority, gpus) in enumerate(wanted)]
    tournament, left = FairSharingOrder(heads), list(heads)
    for index, gpus in meanwhile:
        winner = tournament.pop()
        assert winner is FairSharingOrder(left).pop()
        if winner is not None:
            left.remove(winner)
            winner.queue.add(winner.usage)
        form.queues[f"q{index}"].add({GPU: gpus})
    assert left == []
