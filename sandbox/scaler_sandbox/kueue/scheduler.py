"""What does Kueue's scheduler decide next, while Workloads come, change and go one by one?

A simulation computes how a fixed snapshot develops; here the snapshot changes between cycles. The scheduler reads a
snapshot that `QuotaMirror` keeps up to date, keeps between two cycles what Kueue keeps (Workloads queued, inadmissible
or out, shapes that need not be tried, pending preemptions, flavor search state), and decides cycle by cycle.
Decisions take effect only when they come back in the snapshot: a preempted Workload holds its quota until it is filed
without, however long its pods take, and until then its preemptor waits at the head of its line.

| what is seen                                               | what follows                                          |
|------------------------------------------------------------|-------------------------------------------------------|
| a Workload that waits, new or changed                      | in line at once; aside if its shape has just failed   |
| a Workload that holds less quota than before, or none      | a retry for its whole tree, a batch period later      |
| a Workload that waited and is deactivated, finished, gone  | the same; it is forgotten                             |
| another queue, cohort, flavor, check or namespace          | the same                                              |

So a Workload created while a retry is due is tried before inadmissible ones: freed quota is not reserved.

Laws:

* Nothing is kept that could not be lost: made anew, with all Workloads queued, it makes decisions that Kueue would make
  after a restart.
* With a batch period of none, and evictions that are complete before the next cycle, it decides what a simulation does.
* Cycles end: where one would repeat the last, or after `QUIET_CYCLES` without a decision, until something changes.

Worked example: a queue of 2 GPUs, `first` (2) runs, `gang` (2) is aside. `first` is deactivated at 0.0 s, so it is gone
from the snapshot: a retry is due at 1.0 s. `late` (1) comes at 0.3 s and is admitted. At 1.0 s `gang` is tried: 1 more
needed.

Source: Kueue, pkg/cache/queue (manager.go, cluster_queue.go, inadmissible_workloads.go), pkg/scheduler/scheduler.go.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.quota.cycle import Scheduler, SchedulingCycle
from scaler.quota.demands import PendingReason
from scaler.quota.model import QuotaClusterQueue, QuotaWorkload, Usage, WorkloadShape
from scaler.quota.node import CohortNode
from scaler.quota.queues import PendingQueue
from scaler.quota.simulation import QUIET_CYCLES
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree
from scaler.quota.workload_index import SchedulingContext, WorkloadIndex

_Root = tuple[bool, str]
"""Whether it is a cohort, and its name."""
_MATTERS = ("uid", "generation", "priority", "queued_at", "pod_sets")


@dataclass(slots=True, kw_only=True)
class _TreeState:
    """One tree, as it was last seen."""

    tree: Tree
    version: int
    workload_index: WorkloadIndex
    settled: bool = False
    quiet: int = 0
    """Cycles without decision or movement since anything has changed."""

    def wake(self) -> None:
        self.settled, self.quiet = False, 0


@dataclass(slots=True)
class _Memory:
    """What is remembered of one ClusterQueue beside its line."""

    waiting: dict[str, QuotaWorkload] = field(default_factory=dict)
    holding: dict[str, Usage] = field(default_factory=dict)


class ContinuousQueue(PendingQueue):
    """A line that outlives the index of its Workloads."""

    def moved(
        self, spec: QuotaClusterQueue, workload_index: WorkloadIndex, staying: Container[str]
    ) -> "ContinuousQueue":
        """These Workloads at their places, under the numbers of another index; those not in `staying` are gone.

        Both indexes number shapes alike. One that was excluded and is selected now is inadmissible until a retry.
        """
        numbers = {
            number: workload_index.numbers[key]
            for number in self
            if (key := self._workload_index.waiting(number).key) in staying
        }
        other = type(self)(spec, workload_index)
        other._line = sorted(numbers[each] for each in self._line if each in numbers)
        other._inadmissible = [numbers[each] for each in self._inadmissible if each in numbers]
        excluded = {numbers[each] for each in self._excluded if each in numbers}
        other._excluded = excluded & workload_index.namespace_mismatches
        other._inadmissible += sorted(excluded - workload_index.namespace_mismatches)
        other._held = self._held.copy()
        other._sticky = numbers.get(self._sticky) if self._sticky is not None else None
        other._progress = {numbers[each]: found for each, found in self._progress.items() if each in numbers}
        other._reasons = {numbers[each]: found for each, found in self._reasons.items() if each in numbers}
        other.generation = self.generation
        return other

    def held_because(self, number: int) -> PendingReason | None:
        """Why one that is alike is inadmissible, for which this one is not considered; None where there is none."""
        return self._held.get(self._workload_index.shapes[number])


class ContinuousScheduler:
    """The scheduler of all trees of the snapshot. `ignore_undeclared` is Kueue's `quotaCheckStrategy`."""

    def __init__(self, snapshot: Snapshot, *, batch: timedelta, ignore_undeclared: bool = False) -> None:
        self._snapshot = snapshot
        self._batch = batch
        self._ignore_undeclared = ignore_undeclared
        self._number = 0
        self._states: dict[_Root, _TreeState] = {}
        self._lines: dict[str, ContinuousQueue] = {}
        self._memories: dict[str, _Memory] = {}
        self._retries: dict[_Root, datetime] = {}
        self._shapes: dict[WorkloadShape, int] = {}
        self._namespaces: Mapping[str, Mapping[str, str]] = {}

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def due(self) -> datetime | None:
        """When those set aside are looked at again; None where nothing has asked for it."""
        return min(self._retries.values(), default=None)

    @property
    def is_busy(self) -> bool:
        """Whether another cycle may decide something although nothing changes."""
        return any(self._has_turn(state) for state in self._states.values())

    def held_because(self, cluster_queue: str, key: str) -> PendingReason | None:
        """Why one that is alike was put aside, for which the Workload is not looked at; None where there is none."""
        line, state = self._lines.get(cluster_queue), self._state_of(cluster_queue)
        number = state.workload_index.numbers.get(key) if state is not None else None
        return line.held_because(number) if line is not None and number is not None else None

    def _state_of(self, cluster_queue: str) -> _TreeState | None:
        return next((state for state in self._states.values() if cluster_queue in state.tree.queues), None)

    def _has_turn(self, state: _TreeState) -> bool:
        return not state.settled and any(self._lines[queue.name].has_head for queue in state.tree.scheduling)

    # ------------------------------------------------------------------------------------------------ what has changed

    def notice(self, now: datetime) -> None:
        """Apply the changes of the snapshot, and queue Workloads again whose retry is due."""
        namespaces = dict(self._snapshot.namespaces)
        anywhere, self._namespaces = namespaces != self._namespaces, namespaces
        before, self._states = self._states, {}
        for tree in self._snapshot.trees:
            root, version = _root_of(tree), self._snapshot.version(tree)
            known = before.get(root)
            if known is None or known.version != version:
                differs = anywhere or known is None or known.tree is not tree
                if self._take_in(tree) or (differs and not self._lines.keys().isdisjoint(tree.queues)):
                    self._retries.setdefault(root, now + self._batch)
                known = _TreeState(tree=tree, version=version, workload_index=self._settle(tree))
            self._states[root] = known
        self._forget_queues()
        self._retry(now)

    def forget(self, key: str) -> None:
        """The decision on the Workload could not be carried out: it is in line again from the next look on."""
        for name, memory in self._memories.items():
            if memory.waiting.pop(key, None) is not None and (state := self._state_of(name)) is not None:
                state.version = 0

    def _take_in(self, tree: Tree) -> bool:
        """Compare usage with that of the last look. Whether quota was released, or a Workload left without it."""
        released = False
        for name, queue in tree.queues.items():
            memory = self._memories.setdefault(name, _Memory())
            before, after = memory.holding, {key: each.held.usage for key, each in queue.workloads.items()}
            memory.holding = after
            if before != after and name in self._lines:
                self._lines[name].generation += 1
            gone = any(self._snapshot.workload(key) is None for key in memory.waiting)
            released = released or gone or any(after.get(key) != usage for key, usage in before.items())
        return released

    def _settle(self, tree: Tree) -> WorkloadIndex:
        """Queue all pending Workloads: known ones keep their places, all others are pushed."""
        pending = self._snapshot.pending_in(tree)
        waiting = {name: [each for each in workloads if each.may_queue] for name, workloads in pending.items()}
        world = SchedulingContext.of(self._snapshot, ignore_undeclared=self._ignore_undeclared)
        workload_index = WorkloadIndex(tree, waiting, world, self._shapes)
        for name, queue in tree.queues.items():
            here = {each.key: each for each in waiting.get(name, ())}
            known = self._memories[name].waiting
            staying = {key for key, each in here.items() if key in known and _keeps_its_place(known[key], each)}
            line = self._lines.get(name)
            line = (
                ContinuousQueue(queue.spec, workload_index)
                if line is None
                else line.moved(queue.spec, workload_index, staying)
            )
            for number in sorted(workload_index.numbers[key] for key in here if key not in staying):
                line.push(number)
            self._lines[name], self._memories[name].waiting = line, here
        return workload_index

    def _forget_queues(self) -> None:
        """Forget what is in no tree any more."""
        queues: Collection[str] = {name for state in self._states.values() for name in state.tree.queues}
        for gone in self._memories.keys() - queues:
            del self._memories[gone]
            self._lines.pop(gone, None)
        for root in self._retries.keys() - self._states.keys():
            del self._retries[root]

    def _retry(self, now: datetime) -> None:
        for root in [root for root, at in self._retries.items() if at <= now]:
            del self._retries[root]
            state = self._states[root]
            state.wake()
            for name in state.tree.queues:
                self._lines[name].retry()

    # --------------------------------------------------------------------------------------------------------- cycles

    def cycle(self, now: datetime) -> Sequence[SchedulingCycle]:
        """One cycle of every tree that has a head and something to decide. Nothing of it is in the snapshot yet."""
        turns = [state for state in self._states.values() if self._has_turn(state)]
        cycles = [self._run(state, now) for state in turns]
        self._number += bool(cycles)
        return cycles

    def _run(self, state: _TreeState, now: datetime) -> SchedulingCycle:
        scheduler = Scheduler(
            state.tree.clone(), self._lines, state.workload_index, fair_sharing=self._snapshot.fair_sharing
        )
        cycle = scheduler.cycle(self._number, now)
        state.quiet = 0 if cycle.decided or cycle.moved else state.quiet + 1
        state.settled = bool(state.quiet) and (cycle.will_repeat or state.quiet >= QUIET_CYCLES)
        return cycle


def _keeps_its_place(before: QuotaWorkload, now: QuotaWorkload) -> bool:
    """Whether nothing of the Workload has changed for which Kueue looks at it anew."""
    return before is now or all(getattr(before, name) == getattr(now, name) for name in _MATTERS)


def _root_of(tree: Tree) -> _Root:
    return isinstance(tree.root, CohortNode), tree.root.name
