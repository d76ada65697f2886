"""Kueue's scheduler while Workloads come and go: who is looked at when, and what is remembered in between."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from quota_builders import (
    NAMESPACE,
    NOW,
    cluster_queue,
    cohort,
    flavors,
    holding,
    local_queue,
    preempting,
    workload,
)
from scaler_sandbox.kueue.scheduler import ContinuousScheduler

from scaler.quota.cycle import SchedulingCycle
from scaler.quota.demands import PendingReason
from scaler.quota.model import PreemptionPolicy, QueueingStrategy, QuotaClusterQueue, QuotaWorkload
from scaler.quota.snapshot import Snapshot

BATCH = timedelta(seconds=1)
LOWER_FIRST = preempting(within=PreemptionPolicy.LOWER_PRIORITY)


class Cluster:
    """A scheduler over a snapshot in which its decisions are carried out. Time is in seconds since the start."""

    def __init__(self, *queues: QuotaClusterQueue) -> None:
        self.snapshot = Snapshot()
        for flavor in flavors().values():
            self.snapshot.put(flavor)
        self.snapshot.put_namespace(NAMESPACE, {})
        for queue in queues or (cluster_queue(),):
            self.snapshot.put(queue)
            self.snapshot.put(local_queue(queue.name))
        self.live = ContinuousScheduler(self.snapshot, batch=BATCH)
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
            self._carry_out(found)
            cycles += found

    def _carry_out(self, cycles: Iterable[SchedulingCycle]) -> None:
        for cycle in cycles:
            self.put(*cycle.admitted)
            for each in cycle.preempted:
                self.put(replace(each.workload, evicted=True))

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
    assert (second.preempted, second.considered[0].victims) == ((), 1)  # still the same one, and not reported again
    cluster.put(workload("late", gpus=1))
    cluster.run(5)
    assert cluster.admitted == set()
    cluster.put(released(cluster.find("victim")))
    cluster.run()
    assert cluster.admitted == {"urgent"}


@pytest.mark.parametrize(
    ("strategy", "first"),
    [(QueueingStrategy.BEST_EFFORT_FIFO, "urgent"), (QueueingStrategy.STRICT_FIFO, "more-urgent")],
)
def test_a_preemptor_stays_first_while_its_victims_end_unless_the_queue_is_strict(
    strategy: QueueingStrategy, first: str
) -> None:
    cluster = Cluster(cluster_queue(preemption=LOWER_FIRST, strategy=strategy))
    cluster.put(holding("victim", gpus=4), workload("urgent", gpus=4, priority=10))
    cluster.run()
    cluster.put(workload("more-urgent", gpus=2, priority=20))
    cluster.run()
    cluster.put(released(cluster.find("victim")))
    assert names(cluster.run()[0].admitted) == {first}


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
