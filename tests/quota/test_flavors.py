from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quota_builders import (
    GPU,
    cluster_queue,
    cohort,
    flavors,
    gpu,
    holding,
    pod_set,
    preempting,
    quotas,
    selecting,
    tree,
    workload,
)

from scaler.quota.demands import (
    NOTHING_TRIED,
    Assignment,
    AssignmentMode,
    FlavorOptions,
    PendingReason,
    Shortfall,
    Tried,
)
from scaler.quota.flavors import FlavorVerdict, assign_flavors, largest_that_fits
from scaler.quota.model import (
    FlavorResource,
    Fungibility,
    FungibilityPolicy,
    PreemptionPolicy,
    Preference,
    QuotaClusterQueue,
    QuotaCohort,
    QuotaPodSet,
    QuotaResourceGroup,
    QuotaWorkload,
)
from scaler.quota.nomination import foresee
from scaler.quota.preemption.candidates import PreemptionRequest
from scaler.quota.preemption.fair_sharing import DEFAULT_STRATEGIES

LOWER, ANY = PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY
NO_FIT, PREEMPT, _, FIT = AssignmentMode


def assigned(
    queue: QuotaClusterQueue,
    *pods: QuotaPodSet,
    holders: tuple[QuotaWorkload, ...] = (),
    others: tuple[QuotaClusterQueue, ...] = (),
    tried: Tried = NOTHING_TRIED,
    pins: tuple[Mapping[str, str], ...] | None = None,
    priority: int = 0,
    cohorts: tuple[QuotaCohort, ...] = (),
    fair_sharing: bool = False,
) -> Assignment:
    """What the PodSets would get in the queue, with these Workloads holding quota."""
    form = tree([queue, *others], cohorts, holders)
    node, asking = form.queues[queue.name], workload(pod_sets=pods, priority=priority)

    def look_ahead(key: FlavorResource, amount: int) -> tuple[FlavorVerdict, int]:
        request = PreemptionRequest(node, asking, {key: amount}, frozenset({key}))
        return foresee(form, request, DEFAULT_STRATEGIES if fair_sharing else None)

    names = [name for group in queue.groups for name in group.flavors]
    demand = FlavorOptions(flavors=flavors(*names)).demand(pods, queue)
    return assign_flavors(node, demand, look_ahead, tried=tried, pins=pins, fair_sharing=fair_sharing)


def chosen(assignment: Assignment) -> list[dict[str, str]]:
    return [dict(choice.flavors) for choice in assignment.choices]


TWO = {"a100": 4, "h100": 8}


# ----------------------------------------------------------------------------------------------------- fit or no fit


def test_a_gang_is_judged_as_a_whole() -> None:
    """1 × 1 and 3 × 2 are 7 of a quota of 6; with 2 × 2 they are 5."""
    queue = cluster_queue(gpus=6)
    seven = assigned(queue, pod_set("head"), pod_set("workers", pods=3, gpus=2))
    assert (seven.mode, seven.obstacle) == (NO_FIT, PendingReason.EXCEEDS_MAX_QUOTA)
    assert seven.shortfalls == (Shortfall("workers", "default", PendingReason.EXCEEDS_MAX_QUOTA, GPU, 7, 6),)
    five = assigned(queue, pod_set("head"), pod_set("workers", pods=2, gpus=2))
    assert (five.mode, five.usage) == (FIT, {gpu(): 5})


@pytest.mark.parametrize(
    ("pods", "obstacle"),
    [
        pytest.param(pod_set(gpus=7), PendingReason.EXCEEDS_MAX_QUOTA, id="more than there ever is: 2 + 4"),
        pytest.param(
            pod_set(gpus=3), PendingReason.WAITING_FOR_QUOTA, id="more than its own 2, and b uses all of its 4"
        ),
        pytest.param(pod_set(nodes=selecting(flavor="x")), PendingReason.NO_MATCHING_FLAVOR, id="no flavor matches"),
        pytest.param(pod_set(requests={"fpga": 1}), PendingReason.NO_MATCHING_FLAVOR, id="no quota for the resource"),
    ],
)
def test_why_nothing_fits(pods: QuotaPodSet, obstacle: PendingReason) -> None:
    a, b = cluster_queue("a", gpus=2, cohort="co"), cluster_queue("b", cohort="co")
    found = assigned(a, pods, others=(b,), holders=(holding(queue="b", gpus=4),))
    assert (found.mode, found.obstacle) == (NO_FIT, obstacle)


def test_of_flavors_that_would_each_do_the_mildest_obstacle_counts() -> None:
    """a100 would be too small for ever, h100 is only used by others now: it is worth waiting."""
    a, b = (
        cluster_queue("a", gpus={"a100": 1, "h100": 1}, cohort="co"),
        cluster_queue("b", gpus={"h100": 4}, cohort="co"),
    )
    found = assigned(a, pod_set(gpus=3), others=(b,), holders=(holding(queue="b", gpus=4, flavor="h100"),))
    assert found.obstacle is PendingReason.WAITING_FOR_QUOTA


# -------------------------------------------------------------------------------------------------- cohorts, borrowing


def fungible(**choices: FungibilityPolicy | Preference) -> QuotaClusterQueue:
    """a100: 2 of its own, h100: 4 of its own; the cohort has 4 more of a100."""
    return cluster_queue(gpus={"a100": 2, "h100": 4}, cohort="co", fungibility=Fungibility(**choices))  # type: ignore[arg-type]


LENDER = cluster_queue("b", gpus={"a100": 4}, cohort="co")


def test_a_flavor_that_has_to_be_borrowed_is_taken_unless_the_search_goes_on() -> None:
    stops = assigned(fungible(when_can_borrow=FungibilityPolicy.MAY_STOP), pod_set(gpus=3), others=(LENDER,))
    goes_on = assigned(fungible(when_can_borrow=FungibilityPolicy.TRY_NEXT), pod_set(gpus=3), others=(LENDER,))
    assert (chosen(stops), stops.borrows) == ([{GPU: "a100"}], 1)
    assert (chosen(goes_on), goes_on.borrows) == ([{GPU: "h100"}], 0)


@pytest.mark.parametrize(
    ("preference", "flavor", "mode"),
    [
        pytest.param(Preference.BORROWING_OVER_PREEMPTION, "h100", FIT, id="rather borrows"),
        pytest.param(Preference.PREEMPTION_OVER_BORROWING, "a100", PREEMPT, id="rather preempts"),
    ],
)
def test_whether_preemption_or_borrowing_is_worse_is_the_queues_choice(
    preference: Preference, flavor: str, mode: AssignmentMode
) -> None:
    """a100: own quota of 2, used by a Workload of lower priority; h100: 4, all lent by b."""
    queue = cluster_queue(
        gpus={"a100": 2, "h100": 0},
        cohort="co",
        preemption=preempting(within=LOWER),
        fungibility=Fungibility(when_can_borrow=FungibilityPolicy.TRY_NEXT, preference=preference),
    )
    lender = cluster_queue("b", gpus={"h100": 4}, cohort="co")
    low = holding(gpus=2, flavor="a100")
    found = assigned(queue, pod_set(gpus=2), holders=(low,), others=(lender,), priority=1)
    assert (chosen(found), found.mode) == ([{GPU: flavor}], mode)


def test_what_could_be_preempted_is_better_than_what_could_not() -> None:
    """Both flavors are full; only h100 is held by a Workload of lower priority."""
    queue = cluster_queue(gpus={"a100": 4, "h100": 4}, preemption=preempting(within=LOWER))
    holders = (holding("peer", gpus=4, flavor="a100", priority=1), holding("low", gpus=4, flavor="h100"))
    found = assigned(queue, pod_set(gpus=2), holders=holders, priority=1)
    assert (chosen(found), found.contested) == ([{GPU: "h100"}], frozenset({gpu("h100")}))


def test_a_candidate_is_better_than_none_however_far_the_quota() -> None:
    """Less borrowing comes first: its own a100 is lent to a peer; h100, of b, is used by one of lower priority."""
    queue = cluster_queue(
        gpus={"a100": 2, "h100": 0},
        cohort="co",
        preemption=preempting(within=LOWER, reclaim=LOWER, borrowing=LOWER),
        fungibility=Fungibility(preference=Preference.PREEMPTION_OVER_BORROWING),
    )
    lender = cluster_queue("b", gpus={"a100": 0, "h100": 2}, cohort="co")
    holders = holding("peer", queue="b", gpus=2, flavor="a100", priority=1), holding("low", gpus=2, flavor="h100")
    found = assigned(queue, pod_set(gpus=2), holders=holders, others=(lender,), priority=1)
    assert (chosen(found), found.borrows) == ([{GPU: "h100"}], 1)


def test_quota_of_a_cohort_below_the_root_can_be_reclaimed() -> None:
    """a owns nothing, but `left` above it owns 4, which b of `right` has borrowed."""
    cohorts = cohort("root"), cohort("left", parent="root", gpus=4), cohort("right", parent="root")
    a = cluster_queue("a", gpus=0, cohort="left", preemption=preempting(reclaim=ANY))
    b = cluster_queue("b", gpus=0, cohort="right")
    held = holding(queue="b", gpus=4)
    assert assigned(a, pod_set(gpus=4), others=(b,), holders=(held,), cohorts=cohorts).mode is PREEMPT
    # Were `left` the root, 4 of it could only be had while borrowing, for which none may be preempted.
    flat = cohort("left", gpus=4), cohort("right", parent="left")
    assert assigned(a, pod_set(gpus=4), others=(b,), holders=(held,), cohorts=flat).mode is NO_FIT


@pytest.mark.parametrize(("fair_sharing", "mode"), [(False, NO_FIT), (True, PREEMPT)])
def test_with_fair_sharing_preemption_may_end_in_borrowing(fair_sharing: bool, mode: AssignmentMode) -> None:
    """a owns nothing and wants 2 of the 4 that b has borrowed from c."""
    a = cluster_queue("a", gpus=0, cohort="co", preemption=preempting(reclaim=ANY))
    others = cluster_queue("b", gpus=0, cohort="co"), cluster_queue("c", cohort="co")
    holders = holding("one", queue="b", gpus=2), holding("two", queue="b", gpus=2)
    found = assigned(a, pod_set(gpus=2), others=others, holders=holders, fair_sharing=fair_sharing)
    assert found.mode is mode


def test_a_group_whose_farthest_borrower_fits_counts_as_fitting() -> None:
    """The cycle finds out that it does not: the GPUs, within the own quota, are held by a Workload of lower priority.

    With less borrowing first, the CPU (free, borrowed) is worse than the GPUs (contested, not borrowed).
    """
    groups = (QuotaResourceGroup(resources=frozenset({GPU, "cpu"}), flavors=("default",)),)
    queue = cluster_queue(
        groups=groups,
        quotas=quotas(4) | quotas(0, "cpu"),
        cohort="co",
        preemption=preempting(within=LOWER),
        fungibility=Fungibility(preference=Preference.PREEMPTION_OVER_BORROWING),
    )
    lender = cluster_queue("b", groups=groups, quotas=quotas(1000, "cpu"), cohort="co")
    found = assigned(
        queue, pod_set(requests={GPU: 2, "cpu": 1000}), holders=(holding(gpus=4),), others=(lender,), priority=1
    )
    assert found.mode is FIT
    assert found.contested == {gpu()}


# ------------------------------------------------------------------------------------------------ progress and pins


def test_a_search_goes_on_after_the_flavor_where_it_stopped() -> None:
    """a100 fits and is taken; next time, after it was lost, h100 is the first to be tried."""
    first = assigned(cluster_queue(gpus=TWO), pod_set())
    again = assigned(cluster_queue(gpus=TWO), pod_set(), tried=first.tried)
    assert (chosen(first), chosen(again)) == ([{GPU: "a100"}], [{GPU: "h100"}])
    assert first.tried == ({0: 0},)


def test_a_search_that_reached_the_last_flavor_begins_again() -> None:
    last = assigned(cluster_queue(gpus=TWO), pod_set(gpus=5))
    assert (chosen(last), last.tried) == ([{GPU: "h100"}], NOTHING_TRIED)


def test_a_search_that_failed_keeps_what_pod_sets_before_have_found() -> None:
    """The first PodSet could still try h100, so it is worth going on, although the second lacks something."""
    found = assigned(cluster_queue(gpus=TWO), pod_set("first"), pod_set("second", gpus=99))
    assert (found.mode, found.tried) == (NO_FIT, ({0: 0},))


def test_pods_count_as_usage_but_not_as_what_has_to_be_freed() -> None:
    """As in Kueue, which adds the virtual resource to a copy of the requests only."""
    queue = cluster_queue(
        groups=(QuotaResourceGroup(resources=frozenset({GPU, "pods"}), flavors=("default",)),),
        quotas=quotas(8) | quotas(3, "pods"),
    )
    found = assigned(queue, pod_set(pods=3, gpus=2))
    assert found.usage == {gpu(): 6, FlavorResource("default", "pods"): 3}
    assert found.claim == {gpu(): 6}
    assert assigned(queue, pod_set(pods=4, gpus=1)).obstacle is PendingReason.EXCEEDS_MAX_QUOTA


# -------------------------------------------------------------------------------------------------- partial admission


@given(most=st.integers(0, 30), dispensable=st.integers(1, 20), fixed=st.integers(0, 10))
def test_as_many_pods_as_fit_are_kept(most: int, dispensable: int, fixed: int) -> None:
    pods = pod_set(pods=fixed + dispensable, min_count=fixed)
    demand = FlavorOptions(flavors=flavors()).demand([pods], cluster_queue(gpus=99))
    found = largest_that_fits(demand, lambda some: some.pod_sets[0].count, lambda count: count <= most)
    assert found == (min(most, fixed + dispensable) if most >= fixed else None)
