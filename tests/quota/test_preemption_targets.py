from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from quota_builders import (
    cluster_queue,
    cohort,
    foreseen,
    gpu,
    holding,
    preempting,
    preemption_targets,
    quota,
    tree,
    workload,
)

from scaler.quota.flavors import FlavorVerdict
from scaler.quota.model import Preemption, PreemptionPolicy, Quota, QuotaWorkload
from scaler.quota.preemption.candidates import PreemptionReason, PreemptionTarget, satisfies
from scaler.quota.tree import Tree

NEVER, LOWER, LOWER_OR_NEWER, ANY = PreemptionPolicy
GPU = gpu()
NOTHING = FlavorVerdict.NO_CANDIDATES, 1


def targets(
    form: Tree, queue: str, preemptor: QuotaWorkload, gpus: int, *, fair_sharing: bool = False
) -> list[PreemptionTarget]:
    return list(preemption_targets(form, preemptor, gpus, queue=queue, fair=fair_sharing))


def names(found: list[PreemptionTarget]) -> list[str]:
    return [target.workload.name for target in found]


# ------------------------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize(
    ("policy", "lower", "equal_newer", "equal_older", "higher"),
    [
        pytest.param(NEVER, False, False, False, False, id="Never"),
        pytest.param(LOWER, True, False, False, False, id="LowerPriority"),
        pytest.param(LOWER_OR_NEWER, True, True, False, False, id="LowerOrNewerEqualPriority"),
        pytest.param(ANY, True, True, True, True, id="Any"),
    ],
)
def test_a_policy_says_by_priority_and_age_which_may_be_preempted(
    policy: PreemptionPolicy, lower: bool, equal_newer: bool, equal_older: bool, higher: bool
) -> None:
    older, preemptor, newer = holding("older"), workload(), holding("newer")
    assert satisfies(policy, preemptor, replace(older, priority=-1)) is lower
    assert satisfies(policy, preemptor, newer) is equal_newer
    assert satisfies(policy, preemptor, older) is equal_older
    assert satisfies(policy, preemptor, replace(newer, priority=1)) is higher


def test_of_the_same_age_is_not_newer() -> None:
    preemptor = workload()
    assert not satisfies(LOWER_OR_NEWER, preemptor, holding(queued_at=preemptor.queued_at))


# -------------------------------------------------------------------------------------------------------------- order


def own_queue(*holders: QuotaWorkload, gpus: int = 4) -> Tree:
    return tree([cluster_queue("a", gpus=gpus, preemption=preempting(within=LOWER))], workloads=holders)


def test_of_equals_the_one_that_reserved_last_goes() -> None:
    form = own_queue(holding("older", gpus=2), holding("newer", gpus=2))
    assert targets(form, "a", workload(priority=1), 2) == [
        PreemptionTarget(form.queues["a"].workloads["team/newer"], PreemptionReason.IN_CLUSTER_QUEUE)
    ]


def test_the_lowest_priority_goes_first_whatever_its_age() -> None:
    form = own_queue(holding("lowest", gpus=2, priority=-5), holding("newer", gpus=2))
    assert names(targets(form, "a", workload(priority=1), 2)) == ["lowest"]


def test_one_that_is_evicted_already_goes_before_all_others() -> None:
    form = own_queue(holding("leaving", gpus=2, priority=0, evicted=True), holding("lower", gpus=2, priority=-5))
    assert names(targets(form, "a", workload(priority=1), 2)) == ["leaving"]


def test_other_queues_are_taken_from_before_the_preemptors_own() -> None:
    """Both hold 4 of the cohort's 8; b borrows all of its 4 and so goes first, although of higher priority."""
    form = tree(
        [
            cluster_queue("a", cohort="co", gpus=8, preemption=preempting(within=LOWER, reclaim=ANY)),
            cluster_queue("b", cohort="co", gpus=0),
        ],
        workloads=[holding("own", gpus=4, priority=-1), holding("other", gpus=4, queue="b", priority=100)],
    )
    assert targets(form, "a", workload(), 4) == [
        PreemptionTarget(form.queues["b"].workloads["team/other"], PreemptionReason.IN_COHORT_RECLAMATION)
    ]


def test_none_goes_in_vain() -> None:
    """The lowest, of 1 GPU, is taken first and is not enough; with the next, of 3, it is not needed any more."""
    form = own_queue(holding("small", gpus=1, priority=-5), holding("large", gpus=3))
    assert names(targets(form, "a", workload(priority=1), 3)) == ["large"]


def test_the_last_target_moves_to_the_place_of_one_that_is_spared() -> None:
    """Taken in order 1, 1, 2, 3 for a request of 6: without the first 1, 1 + 2 + 3 = 6 are still enough."""
    holders = [holding(f"of-{gpus}", gpus=gpus, priority=gpus) for gpus in (1, 2, 3)]
    form = own_queue(holding("first", gpus=1), *holders, gpus=7)
    # In reverse: 2 needed (7 - 2 < 6), of-1 not (7 - 1 = 6), then `first` is needed. of-3 takes the place of of-1.
    assert names(targets(form, "a", workload(priority=9), 6)) == ["first", "of-3", "of-2"]


def test_none_goes_where_it_would_not_be_enough() -> None:
    form = own_queue(holding("low", gpus=2), holding("high", gpus=2, priority=9))
    assert targets(form, "a", workload(priority=1), 3) == []


def test_only_holders_of_what_is_contested_are_candidates() -> None:
    form = tree(
        [cluster_queue("a", gpus={"a100": 2, "h100": 2}, preemption=preempting(within=LOWER))],
        workloads=[
            holding("on-h100", gpus=2, flavor="h100", priority=-5),
            holding("on-a100", gpus=2, flavor="a100"),
        ],
    )
    a100 = gpu("a100")
    assert names(list(preemption_targets(form, workload(priority=1), {a100: 1}))) == ["on-a100"]


# ------------------------------------------------------------------------------------------------------------ foresee


@pytest.mark.parametrize("fair_sharing", [False, True])
@pytest.mark.parametrize(
    ("policies", "gpus", "expected"),
    [
        # 2 + 4 are beyond the own 4, and 8 + 4 beyond all 8: the borrow level is that of the whole tree.
        pytest.param(preempting(), 4, NOTHING, id="none may go"),
        pytest.param(preempting(reclaim=ANY), 2, (FlavorVerdict.RECLAIM, 0), id="others may: 2 + 2 are the own 4"),
        pytest.param(preempting(within=LOWER), 2, (FlavorVerdict.PREEMPT, 0), id="own ones may: 2 are in their place"),
        pytest.param(preempting(within=LOWER), 3, NOTHING, id="own ones may, of 2 where 3 lack"),
    ],
)
def test_what_preemption_could_do_is_given_with_the_borrow_level_after_it(
    policies: Preemption, gpus: int, expected: tuple[FlavorVerdict, int], fair_sharing: bool
) -> None:
    """a owns 4 and uses 2, b owns 2 and uses 6, the cohort owns 2: 8 of 8 are used."""
    form = tree(
        [cluster_queue("a", cohort="co", preemption=policies), cluster_queue("b", cohort="co", gpus=2)],
        [cohort("co", gpus=2)],
        [holding("own", gpus=2), *(holding(f"other-{index}", queue="b") for index in range(6))],
    )
    assert foreseen(form, workload(priority=1), gpus, fair=fair_sharing) == expected


def test_one_that_needs_one_of_its_own_to_go_preempts_and_one_that_does_not_reclaims() -> None:
    """a owns 4 and uses 2, b owns nothing and uses 2. For 2 more b's are enough, for 4 the own have to go as well."""
    form = tree(
        [
            cluster_queue("a", cohort="co", preemption=preempting(within=LOWER, reclaim=ANY)),
            cluster_queue("b", cohort="co", gpus=0),
        ],
        workloads=[holding("own", gpus=2), holding("other", gpus=2, queue="b")],
    )
    found = [foreseen(form, workload(priority=1), gpus) for gpus in (2, 4, 5)]
    assert found == [(FlavorVerdict.RECLAIM, 0), (FlavorVerdict.PREEMPT, 0), NOTHING]


# --------------------------------------------------------------------------------------------------------------- laws

LIMIT = st.none() | st.integers(0, 4)
QUOTA = st.builds(lambda own, borrow, lend: quota(own, borrowing=borrow, lending=lend), st.integers(0, 4), LIMIT, LIMIT)
WEIGHT = st.sampled_from([0.0, 0.5, 1.0, 2.0])


@st.composite
def policies(draw: st.DrawFn) -> Preemption:
    reclaim = draw(st.sampled_from(PreemptionPolicy))
    return preempting(
        within=draw(st.sampled_from([NEVER, LOWER, LOWER_OR_NEWER])),
        reclaim=reclaim,
        borrowing=NEVER if reclaim is NEVER else draw(st.sampled_from([NEVER, LOWER])),
        threshold=draw(st.none() | st.integers(-1, 1)),
    )


@st.composite
def contests(draw: st.DrawFn) -> tuple[Tree, QuotaWorkload, int]:
    """Queues in two cohorts of one tree, loaded, and a Workload of queue q0 that wants some GPUs."""
    shape = draw(st.lists(st.sampled_from(["root", "left"]), min_size=1, max_size=4))
    queues = [
        cluster_queue(f"q{index}", cohort=name, gpus=draw(QUOTA), preemption=draw(policies()), fair_weight=draw(WEIGHT))
        for index, name in enumerate(shape)
    ]
    left: Quota = draw(QUOTA)
    cohorts = [cohort("root", gpus=draw(st.integers(0, 4))), cohort("left", parent="root", gpus=left)]
    loads = draw(st.lists(st.tuples(st.sampled_from(queues), st.integers(1, 3), st.integers(-1, 1)), max_size=10))
    holders = [
        holding(f"w{index}", queue=queue.name, gpus=gpus, priority=priority, evicted=draw(st.booleans()))
        for index, (queue, gpus, priority) in enumerate(loads)
    ]
    preemptor = workload("preemptor", queue="q0", priority=draw(st.integers(-1, 2)))
    if draw(st.booleans()):
        preemptor = replace(preemptor, queued_at=preemptor.queued_at - timedelta(hours=1))
    return tree(queues, cohorts, holders), preemptor, draw(st.integers(1, 6))


def without(form: Tree, gone: list[QuotaWorkload]) -> Tree:
    other = form.clone()
    for one in gone:
        other.queues[one.held.cluster_queue].release(one)
    return other


@given(contests(), st.booleans())
def test_targets_are_enough_and_none_of_them_could_be_spared(
    contest: tuple[Tree, QuotaWorkload, int], fair: bool
) -> None:
    form, preemptor, gpus = contest
    assume(not form.queues["q0"].fits({GPU: gpus}))
    gone = [target.workload for target in targets(form, "q0", preemptor, gpus, fair_sharing=fair)]
    if gone:
        assert without(form, gone).queues["q0"].fits({GPU: gpus})
    for spared in gone:
        others = [one for one in gone if one is not spared]
        own = without(form, others).queues["q0"]
        assert not own.fits({GPU: gpus}) or (not fair and own.borrows_with(GPU, gpus)), spared.name


@given(contests(), st.booleans())
def test_a_search_leaves_the_tree_as_it_was(contest: tuple[Tree, QuotaWorkload, int], fair: bool) -> None:
    form, preemptor, gpus = contest
    before = form.clone()
    targets(form, "q0", preemptor, gpus, fair_sharing=fair)
    foreseen(form, preemptor, gpus, queue="q0", fair=fair)
    for old, new in zip(before.queues.values(), form.queues.values(), strict=True):
        assert old.usage.get(GPU, 0) == new.usage.get(GPU, 0)
        assert old.workloads == new.workloads
    for name, node in before.cohorts.items():
        assert node.usage.get(GPU, 0) == form.cohorts[name].usage.get(GPU, 0)


@given(contests(), st.booleans())
def test_none_is_preempted_against_the_queues_policies(contest: tuple[Tree, QuotaWorkload, int], fair: bool) -> None:
    form, preemptor, gpus = contest
    allowed = form.queues["q0"].spec.preemption
    for target in targets(form, "q0", preemptor, gpus, fair_sharing=fair):
        own = target.workload.held.cluster_queue == "q0"
        assert own == (target.reason is PreemptionReason.IN_CLUSTER_QUEUE)
        policy = allowed.within_cluster_queue if own else allowed.reclaim_within_cohort
        assert satisfies(policy, preemptor, target.workload)


@given(contests(), st.booleans())
def test_a_queue_that_borrows_nothing_loses_nothing_to_others(
    contest: tuple[Tree, QuotaWorkload, int], fair: bool
) -> None:
    form, preemptor, gpus = contest
    for target in targets(form, "q0", preemptor, gpus, fair_sharing=fair):
        holder = form.queues[target.workload.held.cluster_queue]
        assert holder.name == "q0" or holder.borrows_with(GPU)


@given(contests(), st.booleans())
def test_what_is_foreseen_is_what_would_be_found(contest: tuple[Tree, QuotaWorkload, int], fair: bool) -> None:
    form, preemptor, gpus = contest
    found = targets(form, "q0", preemptor, gpus, fair_sharing=fair)
    own = any(target.reason is PreemptionReason.IN_CLUSTER_QUEUE for target in found)
    possibility, level = foreseen(form, preemptor, gpus, queue="q0", fair=fair)
    if found:
        assert possibility is (FlavorVerdict.PREEMPT if own else FlavorVerdict.RECLAIM)
    else:
        assert possibility is FlavorVerdict.NO_CANDIDATES
    gone = without(form, [target.workload for target in found])
    assert level == gone.queues["q0"].lowest_fit(GPU, gpus)[0]
