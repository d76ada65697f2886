"""Which of a ClusterQueue's pending Workloads is next, and where does one go that was not admitted?

A pending Workload is active, and one per cycle is taken; or inadmissible until something in its tree has changed
(`retry`); or excluded, where no retry reaches it because the queue does not select its namespace.

| outcome of the cycle            | BestEffortFIFO                               | StrictFIFO           |
|---------------------------------|----------------------------------------------|----------------------|
| skipped after nomination        | active                                       | active               |
| preemption pending              | active, and first until admitted (sticky)    | active               |
| no fit                          | inadmissible, with all that are alike        | active               |
| no candidates for preemption    | inadmissible, with all that are alike        | active               |
| refused as invalid              | inadmissible                                 | active               |
| namespace not selected          | excluded                                     | excluded             |
| whatever, but flavors untried   | active                                       | active               |

Laws:

* Order: the sticky one, then priority, then age, then uid.
* A Workload that is alike one that does not fit is not considered before the next retry: it would not fit either. Here
  those alike stay in the heap, marked as inadmissible, so that a retry costs nothing for them.
* What a Workload has found out about flavors is worth something in the next cycle, and after that as long as nothing
  has left its ClusterQueue.

A retry that is asked for while a cycle runs would make a head active again (Kueue's popCycle). In a simulation nothing
else happens during a cycle, so this rule has no case here.

Source: Kueue, pkg/cache/queue/cluster_queue.go, inadmissible_workloads.go; KEP-168; lastAssignmentOutdated.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from scaler.quota.demands import NOTHING_TRIED, PendingReason, Tried
from scaler.quota.model import QueueingStrategy, QuotaClusterQueue
from scaler.quota.workload_index import WorkloadIndex


class CycleOutcome(StrEnum):
    ADMITTED = "admitted"
    PENDING_PREEMPTION = "PendingPreemption"
    NO_CANDIDATES = "PreemptionNoCandidates"
    NO_FIT = "NoFit"
    SKIPPED = "FailedAfterNomination"
    INVALID = "Inadmissible"
    NAMESPACE_MISMATCH = "NamespaceMismatch"


_GO_ON_AT_ONCE = frozenset({CycleOutcome.SKIPPED, CycleOutcome.PENDING_PREEMPTION})
_HOLD_FOR_ALL_ALIKE = frozenset({CycleOutcome.NO_FIT, CycleOutcome.NO_CANDIDATES})


class FlavorProgress(NamedTuple):
    """How far a Workload's search for flavors has come that ended before the last one."""

    tried: Tried
    generation: int
    """The generation of its queue when it was found."""
    cycle: int


class PendingQueue:
    """The Workloads that wait in one ClusterQueue, by their numbers in the index."""

    __slots__ = (
        "_excluded",
        "_held",
        "_inadmissible",
        "_line",
        "_progress",
        "_reasons",
        "_sticky",
        "_strict",
        "_workload_index",
        "generation",
    )

    def __init__(self, spec: QuotaClusterQueue, workload_index: WorkloadIndex) -> None:
        self._workload_index = workload_index
        self._strict = spec.strategy is QueueingStrategy.STRICT_FIFO
        self._line: list[int] = []
        self._inadmissible: list[int] = []
        self._excluded: set[int] = set()
        self._held: dict[int, PendingReason] = {}
        """Shapes of which all that are active count as inadmissible, and why."""
        self._sticky: int | None = None
        self._progress: dict[int, FlavorProgress] = {}
        self._reasons: dict[int, PendingReason] = {}
        self.generation = 0
        """Another one whenever a Workload has come to hold quota here or holds it no longer."""

    def copy(self) -> "PendingQueue":
        other = PendingQueue.__new__(PendingQueue)
        other._workload_index, other._strict = self._workload_index, self._strict
        other._line, other._inadmissible = self._line.copy(), self._inadmissible.copy()
        other._excluded, other._held = self._excluded.copy(), self._held.copy()
        other._progress, other._reasons = self._progress.copy(), self._reasons.copy()
        other._sticky, other.generation = self._sticky, self.generation
        return other

    # ------------------------------------------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[int]:
        yield from self._line
        yield from self._inadmissible
        yield from self._excluded

    def first(self) -> int | None:
        """The first one whose namespace the queue selects, as long as none was taken."""
        return next((each for each in self._line if each not in self._workload_index.namespace_mismatches), None)

    @property
    def has_head(self) -> bool:
        self._drop_held()
        return bool(self._line)

    def is_inadmissible(self, number: int) -> bool:
        """Whether no cycle will come to the Workload before the next retry, if it waits here at all."""
        return number not in self._line or self._is_held(number)

    def tried(self, number: int, cycle: int) -> Tried:
        """The flavors that need not be tried again in this cycle."""
        known = self._progress.get(number)
        if known is None or (cycle - known.cycle > 1 and self.generation > known.generation):
            return NOTHING_TRIED
        return known.tried

    def reason(self, number: int) -> PendingReason | None:
        """Why the Workload waits, as far as that was found: for itself, or for one that is alike."""
        own = self._reasons.get(number)
        if own is None or own is PendingReason.PENDING_EVALUATION:
            return self._held.get(self._workload_index.shapes[number], own)
        return own

    # ------------------------------------------------------------------------------------------------------ changing

    def push(self, number: int) -> None:
        self._reasons[number] = PendingReason.PENDING_EVALUATION
        if number in self._workload_index.namespace_mismatches and self._workload_index.shapes[number] in self._held:
            self._excluded.add(number)
        else:
            heappush(self._line, number)

    def fill(self, numbers: Iterable[int]) -> None:
        self._line = sorted(numbers)

    def pop(self) -> int | None:
        self._drop_held()
        if not self._line:
            return None
        sticky = self._sticky
        if sticky is not None and sticky != self._line[0] and sticky in self._line and not self._is_held(sticky):
            self._take(sticky)
            return sticky
        return heappop(self._line)

    def requeue(
        self,
        number: int,
        outcome: CycleOutcome,
        obstacle: PendingReason | None = None,
        progress: FlavorProgress | None = None,
    ) -> bool:
        """Put a head back that was not admitted. Whether it is active again."""
        self._keep(number, obstacle, progress)
        if outcome is CycleOutcome.PENDING_PREEMPTION and not self._strict:
            self._sticky = number
        if outcome is CycleOutcome.NAMESPACE_MISMATCH:
            self._excluded.add(number)
            return False
        if self._strict or outcome in _GO_ON_AT_ONCE or progress is not None:
            heappush(self._line, number)
            return True
        self._inadmissible.append(number)
        if outcome in _HOLD_FOR_ALL_ALIKE:
            self._hold(self._workload_index.shapes[number], obstacle)
        return False

    def retry(self) -> None:
        self._held.clear()
        if self._inadmissible:
            self._line += self._inadmissible
            heapify(self._line)
            self._inadmissible.clear()

    def drop(self, number: int) -> None:
        if number in self._line:
            self._take(number)
        elif number in self._inadmissible:
            self._inadmissible.remove(number)
        self._excluded.discard(number)
        self._progress.pop(number, None)
        self._reasons.pop(number, None)
        if self._sticky == number:
            self._sticky = None

    def _keep(self, number: int, obstacle: PendingReason | None, progress: FlavorProgress | None) -> None:
        if obstacle is not None:
            self._reasons[number] = obstacle
        if progress is not None:
            self._progress[number] = progress
        else:
            self._progress.pop(number, None)

    def _hold(self, shape: int, obstacle: PendingReason | None) -> None:
        """Count all of that shape as inadmissible. Those whose namespace is not selected are excluded."""
        self._held[shape] = obstacle or PendingReason.PENDING_EVALUATION
        if not self._workload_index.namespace_mismatches:
            return
        for number in [
            each for each in self._line if each in self._workload_index.namespace_mismatches and self._is_held(each)
        ]:
            self._take(number)
            self._excluded.add(number)

    def _is_held(self, number: int) -> bool:
        return self._workload_index.shapes[number] in self._held

    def _drop_held(self) -> None:
        """Clear the line of those that are only there under the mark, once one of them is its head."""
        if self._held and self._line and self._is_held(self._line[0]):
            shapes, held, line = self._workload_index.shapes, self._held, self._line
            self._inadmissible += [each for each in line if shapes[each] in held]
            self._line = [each for each in line if shapes[each] not in held]
            heapify(self._line)

    def _take(self, number: int) -> None:
        self._line.remove(number)
        heapify(self._line)
