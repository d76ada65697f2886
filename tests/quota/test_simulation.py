from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quota_builders import (
    GPU,
    NAMESPACE,
    cluster_queue,
    holding,
    local_queue,
    pod_set,
    preempting,
    quotas,
    simulation,
    workload,
)

from scaler.quota.demands import PendingReason
from scaler.quota.forecast import forecast
from scaler.quota.model import (
    PreemptionPolicy,
    QueueingStrategy,
    QuotaClusterQueue,
    QuotaResourceGroup,
    StopPolicy,
)
from scaler.quota.preemption.fair_sharing import PreemptionStrategy as FairStrategy
from scaler.quota.simulation import Simulation, SimulationEnd, SimulationLimits, SimulationRun

NEVER, LOWER, LOWER_OR_NEWER, ANY = PreemptionPolicy


def admitted(run: Simulation, *, deactivated: str = "") -> dict[str, int]:
    """Names of those that hold quota at the end, and the cycle that admitted them; -1 for those that always did."""
    if deactivated:
        run.deactivate([f"{NAMESPACE}/{deactivated}"])
    cycles = {each.name: cycle.number for cycle in run.run().cycles for each in cycle.admitted}
    return {each.name: cycles.get(each.name, -1) for each in run.holders}


# ---------------------------------------------------- verified by hand against Kueue\'s scheduler


SECOND, HEAD, NEXT = workload("second", gpus=2), workload("head", gpus=4), workload("next", gpus=2)


def full() -> Simulation:
    return simulation([cluster_queue(gpus=2)], [holding("first", gpus=2), SECOND])


def test_02_nothing_happens_by_itself() -> None:
    run = full()
    assert admitted(run) == {"first": -1}
    assert run.reason(SECOND) is PendingReason.WAITING_FOR_QUOTA


def test_05_a_strict_queue_is_blocked_by_its_head() -> None:
    queue = cluster_queue(strategy=QueueingStrategy.STRICT_FIFO)
    run = simulation([queue], [holding(gpus=2), HEAD, NEXT])
    assert admitted(run) == {"runs": -1}
    assert run.reason(NEXT) is None, "never looked at"


# --------------------------------------------------------------------------------------------------- between cycles


def test_one_that_is_evicted_waits_again_at_the_place_of_its_age() -> None:
    """`old` is evicted, and still gets in before `young` when `high` is gone."""
    queue = cluster_queue(preemption=preempting(within=LOWER))
    old, young = holding("old", gpus=4), workload("young", gpus=4)
    run = simulation([queue], [old, young, workload("high", gpus=4, priority=1)])
    assert admitted(run) == {"high": 1}
    run.deactivate(["team/high"])
    assert admitted(run) == {"old": 3}


def test_an_eviction_retries_the_whole_tree() -> None:
    """b's `aside` was set aside. a takes back its own 4 from `eight`, so 4 are left.

    `eight`, being older, still loses the one cycle in which it would have fitted alone, and one in which it does not.
    """
    queues = [cluster_queue("a", cohort="co", preemption=preempting(reclaim=ANY)), cluster_queue("b", cohort="co")]
    holder = holding("eight", queue="b", gpus=8)
    run = simulation(queues, [holder, workload("gang", gpus=4), workload("aside", queue="b", gpus=4)])
    assert admitted(run) == {"gang": 1, "aside": 3}


def test_a_cycle_in_which_one_still_ends_settles_nothing() -> None:
    """Even where nothing asks for a retry, because the LocalQueue is stopped, and the head would be active anyway."""
    ending = holding("ending", queue="held", cluster_queue="a", gpus=4, evicted=True)
    gang = workload("gang", gpus=4, priority=1)
    queue = cluster_queue(strategy=QueueingStrategy.STRICT_FIFO, preemption=preempting(within=LOWER))
    queues = [local_queue("a"), local_queue("held", "a", StopPolicy.HOLD)]
    assert admitted(simulation([queue], [ending, gang], local_queues=queues)) == {"gang": 1}


def test_one_that_may_not_queue_after_its_eviction_does_not_come_back() -> None:
    ending = holding("ending", gpus=4, evicted=True, may_queue=False)
    assert admitted(simulation([cluster_queue()], [ending])) == {}


def test_an_admission_ends_the_eviction_that_made_a_workload_young() -> None:
    """Of 2 GPUs one is used, so `wide` (2) is set aside, and `back` (1) gets in, which was evicted after `wide` came.

    With `runs` gone `wide` lacks 1 GPU. `back` would be newer by its eviction, but is older again: it stays.
    """
    queue = cluster_queue(gpus=2, preemption=preempting(within=LOWER_OR_NEWER))
    runs, wide = holding("runs", priority=5), workload("wide", gpus=2)
    back = workload("back", created_at=wide.queued_at - timedelta(hours=1))
    run = simulation([queue], [runs, wide, back])
    assert admitted(run) == {"runs": -1, "back": 1}
    assert admitted(run, deactivated="runs") == {"back": -1}


def test_one_that_is_evicted_from_a_stopped_local_queue_neither_returns_nor_asks_for_retries() -> None:
    queues = [cluster_queue("a", cohort="co", preemption=preempting(reclaim=ANY)), cluster_queue("b", cohort="co")]
    workloads = [
        holding("eight", queue="held", cluster_queue="b", gpus=8),
        workload("gang", gpus=4),
        workload("aside", queue="b", gpus=4),
    ]
    held = local_queue("held", "b", StopPolicy.HOLD)
    run = simulation(queues, workloads, local_queues=[local_queue("a"), local_queue("b"), held])
    assert admitted(run) == {"gang": 1}


# ------------------------------------------------------------------------------------------------------------ endings


def test_a_circle_of_preemptions_is_noticed() -> None:
    """The owner takes its 2 GPUs back, but borrows all CPU, so the shares of both would be 1000. The evicted borrower
    is older: it goes first and takes the GPUs again, and so on. Three rounds are proof enough.
    """
    groups = (
        QuotaResourceGroup(resources=frozenset({GPU}), flavors=("x",)),
        QuotaResourceGroup(resources=frozenset({"cpu"}), flavors=("y",)),
    )

    def queue(name: str, *, gpus: int = 0, cpu: int = 0) -> QuotaClusterQueue:
        own = quotas({"x": gpus}) | quotas({"y": cpu}, "cpu")
        return cluster_queue(name, groups=groups, quotas=own, cohort="co", preemption=preempting(reclaim=ANY))

    queues = [queue("a", gpus=2), queue("b"), queue("c", cpu=1000)]
    borrower = holding("borrower", queue="b", gpus=2, flavor="x")
    owner = workload("owner", pod_sets=(pod_set(requests={GPU: 2, "cpu": 1000}),))
    run = simulation(queues, [borrower, owner], fair_sharing=True).run()
    assert run.ending is SimulationEnd.CIRCLING
    assert [[each.workload.name for each in cycle.preempted] for cycle in run.cycles] == 3 * [["borrower"], []] + [
        ["borrower"]
    ]


def test_a_simulation_ends_at_its_limits() -> None:
    run = simulation([cluster_queue()], [workload(f"w{index}") for index in range(4)])
    assert run.run(limits=SimulationLimits(preemptions=9, cycles=2)).ending is SimulationEnd.CAPPED


def test_a_simulation_ends_when_enough_was_seen() -> None:
    run = simulation([cluster_queue()], [workload(f"w{index}") for index in range(4)])
    outcome = run.run(until=lambda cycle: any(each.name == "w1" for each in cycle.admitted))
    assert (outcome.ending, len(outcome.cycles)) == (SimulationEnd.REACHED, 2)
    assert len(list(run.holders)) == 2


def test_one_that_waits_can_be_deactivated_too() -> None:
    run = simulation([cluster_queue()], [workload("first", gpus=4), workload("second", gpus=4)])
    assert admitted(run, deactivated="first") == {"second": 0}


def test_an_unknown_workload_cannot_be_deactivated() -> None:
    with pytest.raises(ValueError, match="team/missing is not in the tree of a"):
        full().deactivate(["team/missing"])


# --------------------------------------------------------------------------------------------------------------- laws


def test_a_fork_leaves_its_origin_as_it_was() -> None:
    base = full()
    assert admitted(base.fork(), deactivated="first") == {"second": 0}
    assert admitted(base.fork()) == {"first": -1}
    assert admitted(base, deactivated="first") == {"second": 0}


def test_a_forecast_leaves_the_simulation_as_it_was() -> None:
    base = full()
    assert forecast(base, frozenset({f"{NAMESPACE}/first"})).admitted == {f"{NAMESPACE}/second"}
    assert forecast(base, frozenset()).admitted == frozenset()


def test_a_fork_goes_on_from_where_its_origin_stands() -> None:
    base = simulation([cluster_queue(gpus=2)], [workload(f"w{index}") for index in range(3)])
    base.step()
    other = base.fork()
    assert admitted(base) == admitted(other) == {"w0": -1, "w1": 1}


sizes = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.integers(0, 2)), max_size=8)


def crowd(wanted: list[tuple[int, str, int]], policy: PreemptionPolicy, *, fair_sharing: bool) -> Simulation:
    queues = [
        cluster_queue(name, gpus=3, cohort="co", preemption=preempting(within=LOWER, reclaim=policy)) for name in "ab"
    ]
    waiting = [
        workload(f"w{index}", gpus=gpus, queue=queue, priority=priority)
        for index, (gpus, queue, priority) in enumerate(wanted)
    ]
    return simulation(queues, waiting, fair_sharing=fair_sharing)


crowds = st.builds(crowd, sizes, st.sampled_from([NEVER, LOWER, ANY]), fair_sharing=st.booleans())


@given(crowds)
def test_quota_is_never_exceeded_gangs_are_whole_and_what_has_settled_stays(run: Simulation) -> None:
    other = run.fork()
    one = run.run()
    assert sum(run.tree.root.usage.values()) <= 6
    for queue in run.tree.queues.values():
        held = [each.held for each in queue.workloads.values()]
        assert sum(queue.usage.values()) == sum(sum(each.usage.values()) for each in held)
    for each in run.holders:
        assert [pods.count for pods in each.held.assignments] == [pods.count for pods in each.pod_sets]
    assert decided(one) == decided(other.run()), "simulating twice is simulating once"
    if one.ending is SimulationEnd.SETTLED:
        before = {each.key for each in run.holders}
        assert not any(cycle.decided for cycle in run.run().cycles)
        assert {each.key for each in run.holders} == before


def decided(run: SimulationRun) -> list[tuple[int, str, str]]:
    return [(cycle.number, each.workload, each.outcome) for cycle in run.cycles for each in cycle.considered]


def test_the_strategies_of_fair_sharing_decide_which_is_preempted() -> None:
    # c lends 8, b uses all in one Workload, a wants 5. With them a has the share 625, and b 1000, or 0 without its 8.
    # 625 <= 0 is false, so by the final share none goes; 625 < 1000 is true, so by the initial share b's goes.
    queues = [
        cluster_queue("a", gpus=0, cohort="co", preemption=preempting(reclaim=ANY)),
        cluster_queue("b", gpus=0, cohort="co"),
        cluster_queue("c", gpus=8, cohort="co"),
    ]
    workloads = [holding("large", gpus=8, queue="b"), workload("wants", gpus=5)]

    def preempted(*strategies: FairStrategy) -> list[str]:
        found = simulation(queues, workloads, fair_sharing=True, strategies=strategies).run()
        return [each.workload.name for cycle in found.cycles for each in cycle.preempted]

    assert preempted(FairStrategy.FINAL_SHARE) == []
    assert preempted(FairStrategy.INITIAL_SHARE) == ["large"]
