"""How would Kueue go on from here, if no object changed?

A simulation owns a copy of one quota tree and of the Workloads that wait there, and runs scheduling cycles, one a
second, until nothing changes any more. Between two cycles everything is instant: preempted Workloads lose their quota
and wait again, at the place that their age gives them, and inadmissible Workloads are retried if quota was released.
In a cluster that takes longer: pods have to end, and retries come up to a second late.

Laws:

* All waiting Workloads start active, as after a restart of Kueue.
* A retry is asked for by every Workload that loses or gives up its quota, if its LocalQueue is not stopped, and reaches
  the whole tree.
* A simulation ends: where nothing changes any more (`SETTLED`), where the caller has seen enough (`REACHED`), where the
  same Workloads preempt each other for ever (`CIRCLING`), or where it has run too long (`CAPPED`).
* `fork` is cheap and independent of its origin, so that a planner can try hundreds of ways from one start.

Worked example: a queue of 2 GPUs, `first` (2) runs, `second` (2) waits. `fork`, `deactivate(["team/first"])` and `run`:
`second` is admitted in cycle 0. Without the deactivation: it is inadmissible after cycle 0, and nothing changes.

Source: Kueue, pkg/controller/core/workload_controller.go (Update), pkg/cache/queue/inadmissible_workloads.go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.quota.cycle import Scheduler, SchedulingCycle
from scaler.quota.demands import PendingReason
from scaler.quota.model import QuotaWorkload
from scaler.quota.node import QueueNode
from scaler.quota.queues import PendingQueue
from scaler.quota.tree import Tree
from scaler.quota.workload_index import SchedulingContext, WorkloadIndex

QUIET_CYCLES = 10
"""The cycles without a decision or a change of a queue after which nothing is expected any more."""


class SimulationEnd(StrEnum):
    SETTLED = "Settled"
    REACHED = "Reached"
    CIRCLING = "Circling"
    CAPPED = "Capped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationLimits:
    preemptions: int
    cycles: int

    @staticmethod
    def of(workloads: int) -> "SimulationLimits":
        """The limits that let every Workload be preempted three times."""
        return SimulationLimits(preemptions=3 * workloads + 10, cycles=15 * workloads + 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    cycles: tuple[SchedulingCycle, ...]
    ending: SimulationEnd


class _Echo:
    """Whether the same cycles come back again and again, in constant time per cycle."""

    def __init__(self) -> None:
        self._signs: list[int] = []
        self._last: dict[int, int] = {}
        self._period = 0
        self._matched = 0

    def has_come_back(self, cycle: SchedulingCycle) -> bool:
        """Whether the cycles up to this one are the same three times over. What the heads did says what all did."""
        heads = tuple((each.workload, each.outcome) for each in cycle.considered)
        gone = tuple((each.workload.key, each.by) for each in cycle.preempted)
        flavors = tuple(tuple(each.held.usage.items()) for each in cycle.admitted)
        sign, number = hash((heads, gone, flavors)), len(self._signs)
        if self._period and self._signs[number - self._period] == sign:
            self._matched += 1
        else:
            last = self._last.get(sign)
            self._period, self._matched = (0, 0) if last is None else (number - last, 1)
        self._signs.append(sign)
        self._last[sign] = number
        return self._matched >= 2 * self._period > 0


class Simulation:
    """One tree as it might become. The given tree is copied, and everything else is only read."""

    def __init__(
        self,
        tree: Tree,
        pending: Mapping[str, Iterable[QuotaWorkload]],
        world: SchedulingContext,
        *,
        now: datetime,
        fair_sharing: bool = False,
    ) -> None:
        """`pending` gives those that wait by ClusterQueue, those of stopped LocalQueues left out."""
        waiting = {name: list(workloads) for name, workloads in pending.items()}
        self._workload_index = WorkloadIndex(tree, waiting, world)
        self.tree = tree.clone()
        """The tree as it is now. Clone it to change it."""
        self._fair_sharing = fair_sharing
        self._at = now
        self._number = 0
        self._lines = {name: PendingQueue(node.spec, self._workload_index) for name, node in tree.queues.items()}
        for name in waiting:
            self._lines[name].fill(self._workload_index.queued(name))
        self._ending = [each for node in self.tree.queues.values() for each in node.workloads.values() if each.evicted]
        self._retry_asked = False
        self._scheduler = self._new_scheduler()

    def fork(self) -> "Simulation":
        other = copy(self)
        other.tree, other._ending = self.tree.clone(), list(self._ending)
        other._lines = {name: line.copy() for name, line in self._lines.items()}
        other._scheduler = other._new_scheduler()
        return other

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.tree, self._lines, self._workload_index, fair_sharing=self._fair_sharing)

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def holders(self) -> Iterator[QuotaWorkload]:
        for queue in self.tree.queues.values():
            yield from queue.workloads.values()

    def holder(self, key: str) -> QuotaWorkload | None:
        """The Workload of that key with its reservation; None for one that holds no quota now."""
        for queue in self.tree.queues.values():
            if key in queue.workloads:
                return queue.workloads[key]
        return None

    def __contains__(self, key: object) -> bool:
        """Whether the Workload has waited or held quota here from the start."""
        return key in self._workload_index.numbers

    def reason(self, workload: QuotaWorkload) -> PendingReason | None:
        """Why the Workload waits, as far as any cycle has found that out."""
        number = self._workload_index.number(workload)
        line = self._lines.get(self._workload_index.cluster_queue_names[number])
        return line.reason(number) if line is not None else None

    def is_inadmissible(self, workload: QuotaWorkload) -> bool:
        """Whether no cycle will consider the waiting Workload before quota is released."""
        number = self._workload_index.number(workload)
        line = self._lines.get(self._workload_index.cluster_queue_names[number])
        return self.holder(workload.key) is None and (line is None or line.is_inadmissible(number))

    # ------------------------------------------------------------------------------------------------- before it runs

    def heads(self) -> dict[str, QuotaWorkload]:
        """The Workload of each ClusterQueue that is the first in line of those that the queue may admit."""
        first = {name: line.first() for name, line in self._lines.items()}
        return {name: self._workload_index.waiting(each) for name, each in first.items() if each is not None}

    def deactivate(self, keys: Iterable[str]) -> None:
        """Take the Workloads out, as Kueue does at once when `spec.active` becomes false: from their queue or quota.

        Raises: ValueError for a key that is not in this tree.
        """
        for key in keys:
            workload = self.holder(key)
            index = self._workload_index
            number = index.number(workload) if workload is not None else index.numbers.get(key)
            if number is None:
                raise ValueError(f"Workload {key} is not in the tree of {self.tree.root.name}")
            if workload is not None:
                self._release(self.tree.queues[workload.held.cluster_queue], workload)
            line = self._lines.get(self._workload_index.cluster_queue_names[number])
            if line is not None:
                line.drop(number)

    # -------------------------------------------------------------------------------------------------------- running

    @property
    def has_heads(self) -> bool:
        return any(self._lines[queue.name].has_head for queue in self.tree.scheduling)

    @property
    def asks_for_retry(self) -> bool:
        return self._retry_asked

    def retry(self) -> None:
        if self._retry_asked:
            self._retry_asked = False
            for line in self._lines.values():
                line.retry()

    def step(self, number: int | None = None) -> SchedulingCycle:
        """One cycle, and the evictions that follow it at once. Retries that these ask for are left to the caller.

        `number` counts the seconds from the start, where it is not just the next one.
        """
        self._number = self._number if number is None else number
        cycle = self._scheduler.cycle(self._number, self._at + timedelta(seconds=self._number))
        self._number += 1
        for workload in cycle.admitted:
            self._changed(workload.held.cluster_queue)
        ending, self._ending = self._ending, []
        for workload in (*(each.workload for each in cycle.preempted), *ending):
            self._evict(workload)
        return cycle

    def run(
        self,
        *,
        until: Callable[[SchedulingCycle], bool] | None = None,
        limits: SimulationLimits | None = None,
    ) -> SimulationRun:
        """Run cycles until nothing changes any more, or `until` says of a cycle that it is enough."""
        limits = limits or SimulationLimits.of(len(self._workload_index))
        cycles: list[SchedulingCycle] = []
        preemptions = quiet = 0
        echo = _Echo()
        while True:
            self.retry()
            if not (self._ending or self.has_heads):
                return SimulationRun(cycles=tuple(cycles), ending=SimulationEnd.SETTLED)
            an_eviction_completes = bool(self._ending)
            cycle = self.step()
            cycles.append(cycle)
            preemptions += len(cycle.preempted)
            quiet = 0 if cycle.decided or cycle.moved or an_eviction_completes else quiet + 1
            if until is not None and until(cycle):
                return SimulationRun(cycles=tuple(cycles), ending=SimulationEnd.REACHED)
            if quiet and not self._retry_asked and (cycle.will_repeat or quiet >= QUIET_CYCLES):
                return SimulationRun(cycles=tuple(cycles), ending=SimulationEnd.SETTLED)
            if echo.has_come_back(cycle) and cycle.preempted:
                return SimulationRun(cycles=tuple(cycles), ending=SimulationEnd.CIRCLING)
            if preemptions >= limits.preemptions or len(cycles) >= limits.cycles:
                return SimulationRun(cycles=tuple(cycles), ending=SimulationEnd.CAPPED)

    # --------------------------------------------------------------------------------------------------------- inside

    def _evict(self, workload: QuotaWorkload) -> None:
        queue = self.tree.queues[workload.held.cluster_queue]
        if workload.key in queue.workloads:
            number = self._release(queue, workload)
            line = self._lines.get(self._workload_index.cluster_queue_names[number])
            if line is not None and workload.may_queue:
                line.push(number)

    def _release(self, queue: QueueNode, workload: QuotaWorkload) -> int:
        queue.release(workload)
        self._changed(queue.name)
        number = self._workload_index.number(workload)
        self._retry_asked = self._retry_asked or self._workload_index.cluster_queue_names[number] in self._lines
        return number

    def _changed(self, queue: str) -> None:
        self._lines[queue].generation += 1
        self._scheduler.nominated.clear()
