"""Kueue's scheduler while Workloads come and go: who is looked at when, and what is remembered in between."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quota_builders import (
    NAMESPACE,
    NOW,
    cluster_queue,
    cohort,
    flavors,
    holding,
    local_queue,
    preempting,
    quota,
    workload,
)
from scaler_sandbox.kueue.scheduler import ContinuousScheduler

from scaler.quota.cycle import SchedulingCycle
from scaler.quota.demands import PendingReason
from scaler.quota.model import PreemptionPolicy, QueueingStrategy, QuotaClusterQueue, QuotaWorkload
from scaler.quota.simulation import Simulation, SimulationEnd
from scaler.quota.snapshot import Snapshot
from scaler.quota.workload_index import SchedulingContext

BATCH = timedelta(seconds=1)
LOWER_FIRST = preempting(within=PreemptionPolicy.LOWER_PRIORITY)


class Cluster:
    """A scheduler over a snapshot in which its decisions are carried out. Time is in seconds since the start."""

    def __init__(self, *queues: QuotaClusterQueue, batch: timedelta = BATCH, fair_sharing: bool = False) -> None:
        self.snapshot = Snapshot(fair_sharing=fair_sharing)
        for flavor in flavors().values():
            self.snapshot.put(flavor)
        self.snapshot.put_namespace(NAMESPACE, {})
        for queue in queues or (cluster_queue(),):
            self.snapshot.put(queue)
            self.snapshot.put(local_queue(queue.name))
        self.live = ContinuousScheduler(self.snapshot, batch=batch)
        self.seconds = 0.0

    def put(self, *workloads: QuotaWorkload) -> None:
        for each in workloads:
            self.snapshot.put(each)

    def leave(self, *workloads: QuotaWorkload) -> None:
        for each in workloads:
            self.snapshot.drop(QuotaWorkload, each.key)

    def run(self, seconds: float = 0.0) -> list[SchedulingCycle]:
        """Time passes, and cycles run until none would decide anything."""
        self.seconds += seconds
        cycles: list[SchedulingCycle] = []
        while True:
            self.live.notice(NOW + timedelta(seconds=self.seconds))
            found = self.live.cycle(NOW + timedelta(seconds=self.seconds + len(cycles)))
            if not found:
                return cycles
            self._carry_out(found, instant=False)
            cycles += found

    def step(self) -> Sequence[SchedulingCycle]:
        """One second passes, one cycle runs, and whoever is preempted ends at once."""
        self.seconds += 1
        self.live.notice(NOW + timedelta(seconds=self.seconds))
        cycles = self.live.cycle(NOW + timedelta(seconds=self.seconds))
        self._carry_out(cycles, instant=True)
        return cycles

    def _carry_out(self, cycles: Iterable[SchedulingCycle], *, instant: bool) -> None:
        for cycle in cycles:
            self.put(*cycle.admitted)
            for each in cycle.preempted:
                self.put(released(each.workload) if instant else replace(each.workload, evicted=True))

    @property
    def admitted(self) -> set[str]:
        return {each.name for each in self.snapshot.reserved if not each.evicted}

    def find(self, name: str) -> QuotaWorkload:
        return self.snapshot.workloads[f"{NAMESPACE}/{name}"]


def released(held: QuotaWorkload) -> QuotaWorkload:
    """As it waits again, once it has been evicted."""
    return replace(held, reservation=None, admitted=False, evicted=False)


def names(workloads: Iterable[QuotaWorkload]) -> set[str]:
    return {each.name for each in workloads}


def test_inadmissible_workloads_are_retried_a_batch_period_after_quota_was_released() -> None:
    cluster, victim = Cluster(), holding("victim", gpus=4)
    cluster.put(victim, workload("gang", gpus=4))
    cluster.run()
    assert cluster.live.due is None
    cluster.leave(victim)
    cluster.run(5)
    assert cluster.live.due == NOW + timedelta(seconds=6)
    cluster.run(0.9)
    assert cluster.admitted == set()
    cluster.run(0.1)
    assert cluster.admitted == {"gang"}


def test_a_late_comer_of_a_shape_that_has_just_failed_is_set_aside_with_it() -> None:
    cluster, victim = Cluster(), holding("victim", gpus=4)
    cluster.put(victim, workload("gang", gpus=4))
    cluster.run()
    cluster.leave(victim)
    late = workload("late", gpus=4)
    cluster.put(late)
    cluster.run(5)
    assert cluster.live.held_because("a", late.key) is PendingReason.WAITING_FOR_QUOTA
    cluster.run(1)
    assert cluster.admitted == {"gang"}


def test_a_preempted_workload_holds_its_quota_until_it_has_ended_and_its_preemptor_waits() -> None:
    cluster = Cluster(cluster_queue(preemption=LOWER_FIRST))
    cluster.put(holding("victim", gpus=4), workload("urgent", gpus=4, priority=10))
    first, second = cluster.run()
    assert names(each.workload for each in first.preempted) == {"victim"}
    assert (second.preempted, second.considered[0].victims) == ((), 1)  # still the same one, and not told again
    cluster.put(workload("late", gpus=1))
    cluster.run(5)
    assert cluster.admitted == set()
    cluster.put(released(cluster.find("victim")))
    cluster.run()
    assert cluster.admitted == {"urgent"}


def test_a_preemptor_stays_first_while_its_victims_end() -> None:
    cluster = Cluster(cluster_queue(preemption=LOWER_FIRST))
    cluster.put(holding("victim", gpus=4), workload("urgent", gpus=4, priority=10))
    cluster.run()
    cluster.put(workload("more-urgent", gpus=2, priority=20))
    cluster.run()
    cluster.put(released(cluster.find("victim")))
    assert names(cluster.run()[0].admitted) == {"urgent"}


def test_in_a_strict_queue_a_preemptor_does_not_stay_first() -> None:
    cluster = Cluster(cluster_queue(preemption=LOWER_FIRST, strategy=QueueingStrategy.STRICT_FIFO))
    cluster.put(holding("victim", gpus=4), workload("urgent", gpus=4, priority=10))
    cluster.run()
    cluster.put(workload("more-urgent", gpus=2, priority=20))
    cluster.run()
    cluster.put(released(cluster.find("victim")))
    assert names(cluster.run()[0].admitted) == {"more-urgent"}


def test_a_decision_that_could_not_be_carried_out_is_taken_again() -> None:
    cluster, gang = Cluster(), workload("gang", gpus=4)
    cluster.put(gang)
    cluster.live.notice(NOW)
    (cycle,) = cluster.live.cycle(NOW)
    assert names(cycle.admitted) == {"gang"}
    assert not cluster.live.is_busy
    cluster.live.forget(gang.key)
    cluster.run()
    assert cluster.admitted == {"gang"}


def test_an_edited_workload_is_looked_at_anew_and_a_restated_one_is_not() -> None:
    cluster, gang = Cluster(), workload("gang", gpus=5)
    cluster.put(gang)
    cluster.run()
    cluster.put(replace(gang, opaque_because="it is being deleted"))
    assert cluster.run() == []
    smaller = replace(workload("gang", gpus=4), uid=gang.uid, queued_at=gang.queued_at, generation=2)
    cluster.put(smaller)
    cluster.run()
    assert cluster.admitted == {"gang"}


def test_one_that_may_not_queue_is_not_looked_at_before_it_may() -> None:
    cluster, gang = Cluster(), workload("gang", gpus=4, may_queue=False)
    cluster.put(gang)
    assert cluster.run() == []
    cluster.put(replace(gang, may_queue=True))
    cluster.run()
    assert cluster.admitted == {"gang"}


def test_a_queue_that_changes_cohorts_takes_its_waiting_workloads_along_and_asks_for_a_retry() -> None:
    cluster = Cluster(cluster_queue("a", gpus=2), cluster_queue("b", gpus=4, cohort="team"))
    cluster.put(workload("gang", gpus=4))
    cluster.run()
    cluster.snapshot.put(cluster_queue("a", gpus=2, cohort="team"))
    assert cluster.run() == []
    cluster.run(1)
    assert cluster.admitted == {"gang"}


def test_a_retry_reaches_the_whole_tree_and_no_other() -> None:
    cluster = Cluster(
        cluster_queue("a", gpus=2, cohort="team"), cluster_queue("b", gpus=2, cohort="team"), cluster_queue("c", gpus=1)
    )
    cluster.snapshot.put(cohort("team"))
    victim = holding("victim", queue="a", gpus=4)
    cluster.put(victim, workload("waits", queue="b", gpus=4), workload("alone", queue="c", gpus=2))
    cluster.run()
    cluster.leave(victim)
    cluster.run(1)
    cluster.run(1)
    assert cluster.admitted == {"waits"}


def test_after_a_restart_all_workloads_are_queued() -> None:
    cluster, victim = Cluster(), holding("victim", gpus=4)
    cluster.put(victim, workload("gang", gpus=4))
    cluster.run()
    cluster.leave(victim)
    cluster.live = ContinuousScheduler(cluster.snapshot, batch=BATCH)
    cluster.run()
    assert cluster.admitted == {"gang"}


# ------------------------------------------------------------------------------------------------------------------ law


def decided(cycles: Sequence[SchedulingCycle]) -> list[tuple[set[str], set[str]]]:
    found = [(names(each.admitted), names(gone.workload for gone in each.preempted)) for each in cycles]
    return [each for each in found if any(each)]


policies = st.sampled_from([PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY])
teams = st.lists(
    st.builds(
        lambda gpus, lending, reclaim, strategy: (gpus, lending, reclaim, strategy),
        st.integers(0, 6),
        st.none() | st.integers(0, 6),
        policies,
        st.sampled_from(QueueingStrategy),
    ),
    min_size=1,
    max_size=3,
)
gangs = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 2), st.booleans()), min_size=1, max_size=8
)


_NEVER, _LOWER = PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY
_CIRCLE = {
    "teams": [
        (5, None, _NEVER, QueueingStrategy.STRICT_FIFO),
        (2, None, _NEVER, QueueingStrategy.STRICT_FIFO),
        (1, None, _LOWER, QueueingStrategy.BEST_EFFORT_FIFO),
    ],
    "gangs": [(0, 1, 0, False), (0, 3, 0, False), (1, 4, 0, False), (2, 1, 1, False), (2, 4, 2, False)],
}
"""With fair sharing the third queue's first gang preempts the second queue's, and its second one that, for ever."""


@pytest.mark.parametrize("fair_sharing", [False, True])
@example(**_CIRCLE)
@given(teams=teams, gangs=gangs)
@settings(max_examples=60, deadline=None)
def test_with_instant_evictions_and_retries_it_decides_what_a_simulation_does(
    teams: list[tuple[int, int | None, PreemptionPolicy, QueueingStrategy]],
    gangs: list[tuple[int, int, int, bool]],
    fair_sharing: bool,
) -> None:
    queues = [
        cluster_queue(
            "abc"[index],
            gpus=quota(gpus, lending=lending),
            cohort="team",
            strategy=strategy,
            preemption=preempting(within=PreemptionPolicy.LOWER_PRIORITY, reclaim=reclaim),
        )
        for index, (gpus, lending, reclaim, strategy) in enumerate(teams)
    ]
    cluster = Cluster(*queues, batch=timedelta(0), fair_sharing=fair_sharing)
    for number, (team, gpus, priority, holds) in enumerate(gangs):
        queue = queues[team % len(queues)].name
        make = holding if holds else workload
        cluster.put(make(f"gang-{number}", gpus=gpus, queue=queue, priority=priority))
    (tree,) = cluster.snapshot.trees
    pending, world = cluster.snapshot.pending_in(tree), SchedulingContext.of(cluster.snapshot)
    simulation = Simulation(tree, pending, world, now=NOW, fair_sharing=fair_sharing)
    run = simulation.run()
    expected, run_length = decided(run.cycles), len(run.cycles)
    found = decided([cycle for _ in range(run_length + 3) for cycle in cluster.step()])
    assert found[: len(expected)] == expected
    # A simulation ends where it sees a circle; the scheduler goes round and round.
    assert len(found) == len(expected) or run.ending in {SimulationEnd.CAPPED, SimulationEnd.CIRCLING}
