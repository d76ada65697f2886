import pytest
from quota_builders import (
    cluster_queue,
    cohort,
    holding,
    preempting,
    preemption_targets,
    tree,
    workload,
)

from scaler.quota.model import (
    Preemption,
    PreemptionPolicy,
    QuotaWorkload,
    StopPolicy,
)
from scaler.quota.preemption.candidates import PreemptionReason
from scaler.quota.tree import Tree

NEVER, LOWER, LOWER_OR_NEWER, ANY = PreemptionPolicy
RECLAMATION, WHILE_BORROWING = (
    PreemptionReason.IN_COHORT_RECLAMATION,
    PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
)


def found(form: Tree, gpus: int, priority: int = 0) -> dict[str, PreemptionReason]:
    """Whom a Workload of queue a that wants so many GPUs would preempt, and why."""
    targets = preemption_targets(form, workload(priority=priority), gpus)
    return {target.workload.name: target.reason for target in targets}


def flat(policies: Preemption, *holders: QuotaWorkload, own: int = 4, other: int = 4) -> Tree:
    """Queues a and b of one cohort."""
    queues = [
        cluster_queue("a", cohort="co", gpus=own, preemption=policies),
        cluster_queue("b", cohort="co", gpus=other),
    ]
    return tree(queues, workloads=holders)


def test_a_queue_keeps_what_it_owns_once_it_borrows_no_more() -> None:
    """b owns 4 and uses 4 × 2. Of the 6 wanted, a owns 4, and only 2 × 2 can be taken before b is within its own."""
    holders = [holding(f"other-{index}", queue="b", gpus=2) for index in range(4)]
    assert found(flat(preempting(reclaim=ANY), *holders), 6) == {}
    assert found(flat(preempting(reclaim=ANY), *holders), 4) == {"other-3": RECLAMATION, "other-2": RECLAMATION}


# ---------------------------------------------------------------------------------------------------------- two queues


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        pytest.param(preempting(reclaim=ANY), {}, id="not allowed"),
        pytest.param(preempting(reclaim=ANY, borrowing=LOWER), {"other": WHILE_BORROWING}, id="from lower priorities"),
        pytest.param(
            preempting(reclaim=ANY, borrowing=LOWER, threshold=5), {"other": WHILE_BORROWING}, id="at the threshold"
        ),
        pytest.param(preempting(reclaim=ANY, borrowing=LOWER, threshold=4), {}, id="above the threshold"),
        pytest.param(preempting(reclaim=NEVER, borrowing=LOWER), {}, id="without reclaim there is nothing to allow"),
    ],
)
def test_to_borrow_by_preemption_has_to_be_allowed(policies: Preemption, expected: dict[str, PreemptionReason]) -> None:
    """a owns 2 and wants 4, b owns 2 and uses 6 of the cohort's 6: a would borrow 2."""
    form = tree(
        [cluster_queue("a", cohort="co", gpus=2, preemption=policies), cluster_queue("b", cohort="co", gpus=2)],
        [cohort("co", gpus=2)],
        [holding("other", queue="b", gpus=4, priority=5), holding("high", queue="b", gpus=2, priority=50)],
    )
    assert found(form, 4, priority=10) == expected


def test_equal_priorities_do_not_yield_to_a_borrower() -> None:
    form = flat(preempting(reclaim=ANY, borrowing=LOWER), holding("other", queue="b", gpus=8, priority=10), own=2)
    assert found(form, 4, priority=10) == {}
    assert found(form, 4, priority=11) == {"other": WHILE_BORROWING}


def test_without_borrowing_more_may_go_than_with_it() -> None:
    """What a wants it owns. b's Workload, of higher priority, is not to be had while a borrows: but a need not."""
    form = flat(preempting(reclaim=ANY, borrowing=LOWER), holding("high", queue="b", gpus=8, priority=100))
    assert found(form, 4) == {"high": RECLAMATION}


def test_own_workloads_go_after_those_of_others_and_only_as_far_as_needed() -> None:
    """a owns 4 and uses 2, b uses 6 of its 4. For 4, b's 2 and the own 2 have to go."""
    form = flat(
        preempting(within=LOWER, reclaim=ANY),
        holding("own", gpus=2),
        *(holding(f"other-{index}", queue="b", gpus=2) for index in range(3)),
    )
    assert found(form, 2, priority=1) == {"other-2": RECLAMATION}
    assert found(form, 4, priority=1) == {"other-2": RECLAMATION, "own": PreemptionReason.IN_CLUSTER_QUEUE}


def test_a_queue_that_does_not_schedule_is_out_of_reach() -> None:
    held = cluster_queue("b", cohort="co", gpus=0, stop_policy=StopPolicy.HOLD)
    form = tree(
        [cluster_queue("a", cohort="co", preemption=preempting(reclaim=ANY)), held], workloads=[holding(queue="b")]
    )
    assert found(form, 4) == {}


def test_to_reclaim_comes_before_own_workloads_where_nothing_may_be_borrowed() -> None:
    """a owns 4 and uses 3, b owns 4 and uses 5. For 2, one has to come back, and one of the own has to make room.

    Two of the own would be enough as well, if a might end up borrowing: that is tried last.
    """
    form = flat(
        preempting(within=LOWER, reclaim=ANY),
        *(holding(f"own-{index}") for index in range(3)),
        *(holding(f"other-{index}", queue="b") for index in range(5)),
    )
    assert found(form, 2, priority=1) == {"other-4": RECLAMATION, "own-2": PreemptionReason.IN_CLUSTER_QUEUE}


# ---------------------------------------------------------------------------------------------------------- hierarchy


def hierarchy(policies: Preemption, *holders: QuotaWorkload, left: int = 4) -> Tree:
    """Root (nothing) with cohort left (some quota of its own), queue c (0); left with queues a (0) and b (0)."""
    queues = [
        cluster_queue("a", cohort="left", gpus=0, preemption=policies),
        cluster_queue("b", cohort="left", gpus=0),
        cluster_queue("c", cohort="root", gpus=0),
    ]
    return tree(queues, [cohort("root"), cohort("left", parent="root", gpus=left)], holders)


def test_the_subtree_that_owns_the_quota_has_the_advantage_over_all_outside_of_it() -> None:
    """a owns nothing, and borrows within left, which owns the 4 that c holds: c's priority is no protection."""
    form = hierarchy(preempting(reclaim=ANY), holding("outside", queue="c", gpus=4, priority=100))
    assert found(form, 4) == {"outside": RECLAMATION}


def test_the_advantage_counts_what_the_subtree_uses_already() -> None:
    """Left owns 4, of which b uses 2. It holds 2 more but not 4: then a has no right over c, of priority 100."""
    near, far = holding("near", queue="b", gpus=2), holding("far", queue="c", gpus=2, priority=100)
    form = hierarchy(preempting(reclaim=ANY, borrowing=LOWER), near, far)
    assert found(form, 2, priority=1) == {"far": RECLAMATION}
    assert found(form, 4, priority=1) == {}


def test_those_without_the_advantage_go_after_those_with_it() -> None:
    """Left owns 6, of which b uses 2 and c 2 + 2. For 4 more, c's lower one goes by right, then b's by priority."""
    near, far = holding("near", queue="b", gpus=2), holding("far", queue="c", gpus=2)
    policies = preempting(reclaim=LOWER, borrowing=LOWER)
    form = hierarchy(policies, near, far, holding("high", queue="c", gpus=2, priority=100), left=6)
    assert found(form, 2, priority=1) == {"far": RECLAMATION}
    assert found(form, 4, priority=1) == {"far": RECLAMATION, "near": WHILE_BORROWING}


def test_one_that_is_evicted_goes_first_even_without_the_advantage() -> None:
    policies = preempting(reclaim=ANY, borrowing=LOWER)
    form = hierarchy(policies, holding("leaving", queue="b", gpus=2, evicted=True), holding("far", queue="c", gpus=2))
    assert found(form, 2, priority=1) == {"leaving": WHILE_BORROWING}


def test_a_cohort_that_comes_back_to_its_quota_on_the_way_keeps_the_rest() -> None:
    """Right owns 2 and uses 3 × 2 in queues that own nothing; 4 of these are root's, which a owns all of.

    With two of them gone right is within its quota, so for 6 the third is not to be had.
    """
    queues = [
        cluster_queue("a", cohort="root", gpus=4, preemption=preempting(reclaim=ANY)),
        *(cluster_queue(name, cohort="right", gpus=0) for name in "xyz"),
    ]
    cohorts = [cohort("root"), cohort("right", parent="root", gpus=2)]
    form = tree(queues, cohorts, [holding(f"of-{name}", queue=name, gpus=2) for name in "xyz"])
    assert found(form, 4) == {"of-z": RECLAMATION, "of-y": RECLAMATION}
    assert found(form, 6) == {}


def test_with_the_advantage_in_its_subtree_a_queue_borrows_before_its_own_have_to_go() -> None:
    """a owns 4 and uses 2, left owns 4 more, of which b uses 2. Left could hold the 3 that a wants; c has 4 of it."""
    queues = [
        cluster_queue("a", cohort="left", preemption=preempting(within=LOWER, reclaim=ANY)),
        cluster_queue("b", cohort="left", gpus=0),
        cluster_queue("c", cohort="root", gpus=0),
    ]
    cohorts = [cohort("root"), cohort("left", parent="root", gpus=4)]
    holders = [holding("own", gpus=2), holding("near", queue="b", gpus=2)]
    form = tree(queues, cohorts, [*holders, *(holding(f"far-{index}", queue="c") for index in range(4))])
    assert found(form, 3, priority=1) == dict.fromkeys(["far-3", "far-2", "far-1"], RECLAMATION)


def test_an_advantage_is_not_lost_further_up() -> None:
    """a owns 4, root 4; b of left uses 6, c of root 2. a has a right to its 4 over both: the lower priority goes."""
    queues = [
        cluster_queue("a", cohort="left", preemption=preempting(reclaim=ANY)),
        cluster_queue("b", cohort="left", gpus=0),
        cluster_queue("c", cohort="root", gpus=0),
    ]
    cohorts = [cohort("root", gpus=4), cohort("left", parent="root")]
    form = tree(queues, cohorts, [holding("near", queue="b", gpus=6, priority=5), holding("far", queue="c", gpus=2)])
    assert found(form, 2) == {"far": RECLAMATION}
