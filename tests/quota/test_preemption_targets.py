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


# -------------------------------------------------------------------------------------------------------------- order


def own_queue(*holders: QuotaWorkload, gpus: int = 4) -> Tree:
    return tree([cluster_queue("a", gpus=gpus, preemption=preempting(within=LOWER))], workloads=holders)


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
def test_targets_are_enough_allowed_and_none_of_them_could_be_spared(
    contest: tuple[Tree, QuotaWorkload, int], fair: bool
) -> None:
    """No queue that borrows nothing loses any, what is foreseen is what is found, and the tree stays as it was."""
    form, preemptor, gpus = contest
    own, allowed, before = form.queues["q0"], form.queues["q0"].spec.preemption, form.clone()
    assume(not own.fits({GPU: gpus}))
    found = targets(form, "q0", preemptor, gpus, fair_sharing=fair)
    gone = [target.workload for target in found]
    left = without(form, gone).queues["q0"]
    assert not gone or left.fits({GPU: gpus})
    for target in found:
        rest = without(form, [one for one in gone if one is not target.workload]).queues["q0"]
        assert not rest.fits({GPU: gpus}) or (not fair and rest.borrows_with(GPU, gpus)), target.workload.name
        holder, is_own = form.queues[target.workload.held.cluster_queue], target.workload.held.cluster_queue == "q0"
        assert is_own == (target.reason is PreemptionReason.IN_CLUSTER_QUEUE)
        policy = allowed.within_cluster_queue if is_own else allowed.reclaim_within_cohort
        assert satisfies(policy, preemptor, target.workload)
        assert is_own or holder.borrows_with(GPU)
    reasons = {target.reason for target in found}
    verdict = FlavorVerdict.PREEMPT if PreemptionReason.IN_CLUSTER_QUEUE in reasons else FlavorVerdict.RECLAIM
    expected = (verdict if found else FlavorVerdict.NO_CANDIDATES), left.lowest_fit(GPU, gpus)[0]
    assert foreseen(form, preemptor, gpus, queue="q0", fair=fair) == expected
    nodes = [(form.queues[name], node) for name, node in before.queues.items()]
    for now, then in [*nodes, *((form.cohorts[name], node) for name, node in before.cohorts.items())]:
        assert now.usage.get(GPU, 0) == then.usage.get(GPU, 0)
