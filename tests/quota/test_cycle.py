from collections.abc import Iterable

import pytest
from quota_builders import (
    NOW,
    cluster_queue,
    cohort,
    gpu,
    holding,
    pod_set,
    preempting,
    quota,
    selecting,
    simulation,
    workload,
)

from scaler.kube.scheduling import parse_selector
from scaler.quota.cycle import SchedulingCycle
from scaler.quota.demands import PendingReason
from scaler.quota.model import (
    Fungibility,
    FungibilityPolicy,
    PreemptionPolicy,
    QueueingStrategy,
    QuotaClusterQueue,
    QuotaWorkload,
)
from scaler.quota.preemption.candidates import PreemptionReason
from scaler.quota.queues import CycleOutcome
from scaler.quota.simulation import Simulation

NEVER, LOWER, LOWER_OR_NEWER, ANY = PreemptionPolicy


def outcomes(cycle: SchedulingCycle) -> dict[str, CycleOutcome]:
    return {each.workload.partition("/")[2]: each.outcome for each in cycle.considered}


def first_cycle(
    queues: Iterable[QuotaClusterQueue], *workloads: QuotaWorkload, fair_sharing: bool = False
) -> SchedulingCycle:
    return simulation(queues, workloads, fair_sharing=fair_sharing).step()


def usages(run: Simulation) -> dict[str, dict[str, int]]:
    nodes = [*run.tree.queues.values(), *run.tree.cohorts.values()]
    return {node.name: {str(key): amount for key, amount in node.usage.items() if amount} for node in nodes}


# -------------------------------------------------------------------------------------------------------------- order


# ---------------------------------------------------------------------------------------------------------- admission


def test_an_admitted_workload_holds_what_it_was_assigned() -> None:
    run = simulation([cluster_queue()], [workload("gang", pod_sets=(pod_set(pods=2, gpus=2),))])
    (admitted,) = run.step().admitted
    assert (admitted.held.cluster_queue, admitted.held.at, admitted.held.usage) == ("a", NOW, {gpu(): 4})
    assert [(each.name, each.count, each.flavors) for each in admitted.held.assignments] == [
        ("main", 2, {"nvidia.com/gpu": "default"})
    ]
    assert run.holder("team/gang") is admitted
    assert usages(run) == {"a": {"default/nvidia.com/gpu": 4}}


def test_a_queue_with_checks_reserves_and_does_not_admit_yet() -> None:
    (reserved,) = first_cycle([cluster_queue(checks=frozenset({"prov"}))], workload()).admitted
    assert reserved.reservation
    assert not reserved.admitted


def test_with_fewer_pods_a_gang_starts_small() -> None:
    """6 pods of 1 GPU wanted, 2 are enough, 4 GPUs there: 4 pods."""
    (admitted,) = first_cycle([cluster_queue()], workload(pod_sets=(pod_set(pods=6, min_count=2),))).admitted
    assert [each.count for each in admitted.held.assignments] == [4]
    assert admitted.held.usage == {gpu(): 4}


def test_a_gang_that_may_start_small_rather_does_than_waits_for_nothing() -> None:
    """5 of 6 pods fit beside `runs`, and it cannot be preempted: its priority is higher."""
    runs = holding(gpus=1, priority=9)
    queue = cluster_queue(gpus=6, preemption=preempting(within=LOWER))
    (admitted,) = first_cycle([queue], runs, workload(pod_sets=(pod_set(pods=6, min_count=1),))).admitted
    assert admitted.held.usage == {gpu(): 5}


def test_a_gang_that_is_too_big_in_any_case_preempts_for_what_is_possible() -> None:
    """30 pods wanted, 10 are enough; quota 20, of which a Workload of lower priority uses 10: 20 pods lack 10."""
    queue = cluster_queue(gpus=20, preemption=preempting(within=LOWER))
    gang = workload(priority=4, pod_sets=(pod_set(pods=30, min_count=10),))
    cycle = first_cycle([queue], holding("old", gpus=10, priority=-4), gang)
    assert [each.workload.name for each in cycle.preempted] == ["old"]
    (head,) = cycle.considered
    assert head.assignment is not None
    assert [choice.pods.count for choice in head.assignment.choices] == [20]
    assert [each.lacking for each in head.assignment.shortfalls] == [10]


def test_a_namespace_that_is_not_selected_is_a_mismatch() -> None:
    queue = cluster_queue(namespace_selector=parse_selector("team=x"))
    (head,) = first_cycle([queue], workload()).considered
    assert (head.outcome, head.obstacle) == (CycleOutcome.NAMESPACE_MISMATCH, PendingReason.MISCONFIGURED)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param(QueueingStrategy.BEST_EFFORT_FIFO, ["next"], id="it is set aside"),
        pytest.param(QueueingStrategy.STRICT_FIFO, [], id="it blocks its queue"),
    ],
)
def test_one_that_is_refused_as_invalid_is_never_nominated(strategy: QueueingStrategy, expected: list[str]) -> None:
    refused = workload("refused", invalid_because="container main requests more cpu than its limit of 1")
    run = simulation([cluster_queue(strategy=strategy)], [refused, workload("next")])
    (head,) = run.step().considered
    assert (head.outcome, head.obstacle, head.assignment) == (CycleOutcome.INVALID, PendingReason.MISCONFIGURED, None)
    run.run()
    assert [each.name for each in run.holders] == expected


# --------------------------------------------------------------------------------------------------------- preemption


def test_victims_hold_their_quota_until_they_are_evicted() -> None:
    run = simulation(
        [cluster_queue(preemption=preempting(within=LOWER))], [holding("low", gpus=4), workload("high", priority=1)]
    )
    (preempted,) = run.step().preempted
    assert (preempted.workload.name, preempted.reason, preempted.by) == (
        "low",
        PreemptionReason.IN_CLUSTER_QUEUE,
        "team/high",
    )
    assert run.holder("team/high") is None


@pytest.mark.parametrize(
    ("reclaim", "outcome"),
    [
        pytest.param(NEVER, CycleOutcome.SKIPPED, id="kept for a, which could not get it back"),
        pytest.param(ANY, CycleOutcome.ADMITTED, id="lent, since a can always reclaim it"),
    ],
)
def test_quota_is_kept_for_a_head_that_waits(reclaim: PreemptionPolicy, outcome: CycleOutcome) -> None:
    """a owns 4, uses 2 and its head wants 4: the 2 that are left are kept, or borrowed by b."""
    queues = [
        cluster_queue("a", cohort="co", preemption=preempting(reclaim=reclaim)),
        cluster_queue("b", gpus=0, cohort="co"),
    ]
    cycle = first_cycle(
        queues, holding("own", gpus=2), workload("waits", gpus=4, priority=1), workload("borrows", queue="b", gpus=2)
    )
    assert outcomes(cycle) == {"waits": CycleOutcome.NO_CANDIDATES, "borrows": outcome}


def preemptors(*, first: int, second: int) -> list[QuotaWorkload]:
    return [
        workload("first", queue="a", gpus=first, priority=2),
        workload("second", queue="b", gpus=second, priority=1),
    ]


def reclaiming(**gpus: int) -> list[QuotaClusterQueue]:
    """Queues that own so much and may reclaim it from any."""
    return [
        cluster_queue(name, gpus=nominal, cohort="co", preemption=preempting(reclaim=ANY))
        for name, nominal in gpus.items()
    ]


def test_a_head_whose_victim_is_taken_finds_another() -> None:
    """c borrows 2 of a's and 2 of b's quota with two Workloads. Both heads would take the newer one."""
    holders = holding("older", queue="c", gpus=2), holding("newer", queue="c", gpus=2)
    cycle = first_cycle(reclaiming(a=2, b=2, c=0), *holders, *preemptors(first=2, second=2))
    assert [(each.workload.name, each.by) for each in cycle.preempted] == [
        ("newer", "team/first"),
        ("older", "team/second"),
    ]


def test_a_head_for_which_the_victims_of_others_are_enough_waits_with_them() -> None:
    """c's one Workload holds 4 of a's 2 and b's 2: once it is gone, both fit."""
    holder = holding("both", queue="c", gpus=4)
    cycle = first_cycle(reclaiming(a=2, b=2, c=0), holder, *preemptors(first=2, second=2))
    assert outcomes(cycle) == {"first": CycleOutcome.PENDING_PREEMPTION, "second": CycleOutcome.PENDING_PREEMPTION}
    assert [(each.workload.name, each.by) for each in cycle.preempted] == [("both", "team/first")]
    assert not any(each.assignment and each.assignment.tried for each in cycle.considered)


def test_a_head_that_is_assigned_anew_keeps_to_its_flavors() -> None:
    """c's `both` has borrowed a's 2 a100, b's own 2 are used. Both heads would take a100 from it.

    The first gets it; for the second a100 then has no candidates, and its own free h100 is not looked at.
    """
    policies = preempting(reclaim=ANY, borrowing=LOWER)
    stops = Fungibility(when_can_preempt=FungibilityPolicy.MAY_STOP)
    queues = [
        cluster_queue(name, gpus={"a100": own, "h100": own}, cohort="co", preemption=policies, fungibility=stops)
        for name, own in (("a", 2), ("b", 2), ("c", 0))
    ]
    holders = (
        holding("own", queue="b", gpus=2, flavor="a100", priority=9),
        holding("both", queue="c", gpus=2, flavor="a100"),
    )
    cycle = first_cycle(queues, *holders, *preemptors(first=2, second=2))
    assert outcomes(cycle) == {"first": CycleOutcome.PENDING_PREEMPTION, "second": CycleOutcome.NO_CANDIDATES}


def test_after_a_preemption_all_flavors_are_looked_at_again() -> None:
    """The search stopped at a100, before h100; it gets the a100 that its victim left."""
    queue = cluster_queue(
        gpus={"a100": 2, "h100": 2},
        preemption=preempting(within=LOWER),
        fungibility=Fungibility(when_can_preempt=FungibilityPolicy.MAY_STOP),
    )
    run = simulation([queue], [holding("low", gpus=2, flavor="a100"), workload("high", gpus=2, priority=1)])
    assert run.step().preempted
    (admitted,) = run.step().admitted
    assert admitted.held.usage == {gpu("a100"): 2}


def test_a_victim_that_ends_already_is_not_preempted_again() -> None:
    queue = cluster_queue(preemption=preempting(within=LOWER))
    cycle = first_cycle([queue], holding("ending", gpus=4, evicted=True), workload("high", priority=1))
    assert outcomes(cycle) == {"high": CycleOutcome.PENDING_PREEMPTION}
    assert not cycle.preempted


def test_one_that_was_skipped_for_quota_that_is_only_kept_goes_on_too() -> None:
    """Nothing changes in the tree: a's head waits for a100 that `own` uses, and b's finds h100 a cycle later."""
    queues = [
        cluster_queue("a", gpus={"a100": 4, "h100": 0}, cohort="co", strategy=QueueingStrategy.STRICT_FIFO),
        cluster_queue("b", gpus={"a100": 0, "h100": 2}, cohort="co"),
    ]
    waits = workload("waits", priority=1, pod_sets=(pod_set(gpus=4, nodes=selecting(flavor="a100")),))
    run = simulation(queues, [holding("own", gpus=2, flavor="a100"), waits, workload("goes-on", queue="b", gpus=2)])
    run.run()
    holder = run.holder("team/goes-on")
    assert holder is not None
    assert holder.held.usage == {gpu("h100"): 2}


def test_quota_kept_beyond_the_own_ends_at_the_borrowing_limit() -> None:
    """a may use 2 + 3 and uses 1, so 4 are kept for its head that wants 5. Of 2 + 6 in all, 3 are left for b."""
    policies = preempting(within=LOWER, reclaim=LOWER, borrowing=LOWER)
    queues = [
        cluster_queue("a", gpus=quota(2, borrowing=3), cohort="co", preemption=policies),
        cluster_queue("b", gpus=0, cohort="co"),
    ]
    for wanted, outcome in ((3, CycleOutcome.ADMITTED), (4, CycleOutcome.SKIPPED)):
        workloads = [
            holding("runs", gpus=1, priority=5),
            workload("waits", gpus=5, priority=1),
            workload("borrows", queue="b", gpus=wanted),
        ]
        run = simulation(queues, workloads, [cohort("co", gpus=6)])
        assert outcomes(run.step())["borrows"] is outcome, wanted
