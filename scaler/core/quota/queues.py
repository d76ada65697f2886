"""Who of a ClusterQueue's waiting Workloads is next, and where does one go that was not admitted?

Workloads wait in one of three places: in line, where they are taken one per cycle; aside, where they stay until
something in their tree has changed (`retry`); or out, where no retry reaches them because the queue does not select
their namespace.

| outcome of the cycle            | BestEffortFIFO                               | StrictFIFO           |
|---------------------------------|----------------------------------------------|----------------------|
| skipped after nomination        | in line                                      | in line              |
| preemption pending              | in line, and first until admitted (sticky)   | in line              |
| no fit                          | aside, with all that are alike               | in line              |
| no candidates for preemption    | aside, with all that are alike               | in line              |
| refused as invalid              | aside                                        | in line              |
| namespace not selected          | out                                          | out                  |
| whatever, but flavors untried   | in line                                      | in line              |

Laws:

* Order: the sticky one, then priority, then age, then uid.
* Who is like one that does not fit is not looked at before the next retry: it would not fit either. Here those alike
  stay in the heap, under a mark that they are aside, so that a retry costs nothing for them.
* What a Workload has found out about flavors is worth something in the next cycle, and after that as long as nothing
  has left its ClusterQueue.

A retry that is asked for while a cycle runs would put a head back in line (Kueue's popCycle). In a simulation nothing
else happens during a cycle, so this rule has no case here.

Source: Kueue, pkg/cache/queue/cluster_queue.go, inadmissible_workloads.go; KEP-168; lastAssignmentOutdated.
"""

from collections.abc import Container, Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from scaler.core.quota.flavors import NOTHING_TRIED, Obstacle, Tried
from scaler.core.quota.model import ClusterQueue, Strategy
from scaler.core.quota.roster import Roster


class Outcome(StrEnum):
    """What a cycle did with a head."""

    ADMITTED = "admitted"
    PENDING_PREEMPTION = "PendingPreemption"
    NO_CANDIDATES = "PreemptionNoCandidates"
    NO_FIT = "NoFit"
    SKIPPED = "FailedAfterNomination"
    INVALID = "Inadmissible"
    NAMESPACE_MISMATCH = "NamespaceMismatch"


_GO_ON_AT_ONCE = frozenset({Outcome.SKIPPED, Outcome.PENDING_PREEMPTION})
_HOLD_FOR_ALL_ALIKE = frozenset({Outcome.NO_FIT, Outcome.NO_CANDIDATES})


class Progress(NamedTuple):
    """How far a Workload's search for flavors has come that ended before the last one."""

    tried: Tried
    generation: int
    """Of its queue, when it was found."""
    cycle: int


class PendingQueue:
    """The Workloads that wait in one ClusterQueue, by their numbers in the roster."""

    __slots__ = (
        "_aside",
        "_held",
        "_line",
        "_out",
        "_progress",
        "_reasons",
        "_roster",
        "_sticky",
        "_strict",
        "generation",
    )

    def __init__(self, spec: ClusterQueue, roster: Roster) -> None:
        self._roster = roster
        self._strict = spec.strategy is Strategy.STRICT_FIFO
        self._line: list[int] = []
        self._aside: list[int] = []
        self._out: set[int] = set()
        self._held: dict[int, Obstacle] = {}
        """Shapes of which all that are in line count as aside, and why."""
        self._sticky: int | None = None
        self._progress: dict[int, Progress] = {}
        self._reasons: dict[int, Obstacle] = {}
        self.generation = 0
        """Another one whenever a Workload has come to hold quota here or holds it no longer."""

    def copy(self) -> "PendingQueue":
        """One that can go on without this one noticing."""
        other = PendingQueue.__new__(PendingQueue)
        other._roster, other._strict = self._roster, self._strict
        other._line, other._aside, other._out = self._line.copy(), self._aside.copy(), self._out.copy()
        other._held, other._sticky = self._held.copy(), self._sticky
        other._progress, other._reasons = self._progress.copy(), self._reasons.copy()
        other.generation = self.generation
        return other

    def moved(self, spec: ClusterQueue, roster: Roster, staying: Container[str]) -> "PendingQueue":
        """The same Workloads at the same places, under the numbers of another roster; those not in `staying` are gone.

        Both rosters number shapes alike. Who was out, and belongs here now, waits aside for the next retry.
        """
        numbers = {
            number: roster.numbers[key] for number in self if (key := self._roster.waiting(number).key) in staying
        }
        other = PendingQueue(spec, roster)
        other._line = sorted(numbers[each] for each in self._line if each in numbers)
        other._aside = [numbers[each] for each in self._aside if each in numbers]
        out = {numbers[each] for each in self._out if each in numbers}
        other._out = out & roster.strangers
        other._aside += sorted(out - roster.strangers)
        other._held = self._held.copy()
        other._sticky = numbers.get(self._sticky) if self._sticky is not None else None
        other._progress = {numbers[each]: found for each, found in self._progress.items() if each in numbers}
        other._reasons = {numbers[each]: found for each, found in self._reasons.items() if each in numbers}
        other.generation = self.generation
        return other

    # ------------------------------------------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[int]:
        """All that wait."""
        yield from self._line
        yield from self._aside
        yield from self._out

    @property
    def has_head(self) -> bool:
        self._set_aside_held()
        return bool(self._line)

    def is_aside(self, number: int) -> bool:
        """Whether no cycle will come to the Workload before the next retry, if it waits here at all."""
        return number not in self._line or self._is_held(number)

    def held_because(self, number: int) -> Obstacle | None:
        """Why one that is alike was put aside, for which this one is not looked at; None where there is none."""
        return self._held.get(self._roster.shapes[number])

    def tried(self, number: int, cycle: int) -> Tried:
        """The flavors that need not be tried again in this cycle."""
        known = self._progress.get(number)
        if known is None or (cycle - known.cycle > 1 and self.generation > known.generation):
            return NOTHING_TRIED
        return known.tried

    def reason(self, number: int) -> Obstacle | None:
        """Why the Workload waits, as far as that was found: for itself, or for one that is alike."""
        own = self._reasons.get(number)
        if own is None or own is Obstacle.PENDING_EVALUATION:
            return self._held.get(self._roster.shapes[number], own)
        return own

    # ------------------------------------------------------------------------------------------------------ changing

    def push(self, number: int) -> None:
        """Put a Workload in line that was evicted."""
        self._reasons[number] = Obstacle.PENDING_EVALUATION
        if number in self._roster.strangers and self._roster.shapes[number] in self._held:
            self._out.add(number)
        else:
            heappush(self._line, number)

    def fill(self, numbers: list[int]) -> None:
        """Put all these in line, as after a restart of Kueue."""
        self._line = sorted(numbers)

    def pop(self) -> int | None:
        """Take the next one out of line."""
        self._set_aside_held()
        if not self._line:
            return None
        sticky = self._sticky
        if sticky is not None and sticky != self._line[0] and sticky in self._line and not self._is_held(sticky):
            self._take(sticky)
            return sticky
        return heappop(self._line)

    def requeue(
        self, number: int, outcome: Outcome, obstacle: Obstacle | None = None, progress: Progress | None = None
    ) -> bool:
        """Put a head back that was not admitted. Whether it is in line again."""
        self._keep(number, obstacle, progress)
        if outcome is Outcome.PENDING_PREEMPTION and not self._strict:
            self._sticky = number
        if outcome is Outcome.NAMESPACE_MISMATCH:
            self._out.add(number)
            return False
        if self._strict or outcome in _GO_ON_AT_ONCE or progress is not None:
            heappush(self._line, number)
            return True
        self._aside.append(number)
        if outcome in _HOLD_FOR_ALL_ALIKE:
            self._hold(self._roster.shapes[number], obstacle)
        return False

    def retry(self) -> None:
        """Put in line again all that were set aside."""
        self._held.clear()
        if self._aside:
            self._line += self._aside
            heapify(self._line)
            self._aside.clear()

    def drop(self, number: int) -> None:
        """Forget a Workload that was admitted, or that waits no longer."""
        if number in self._line:
            self._take(number)
        elif number in self._aside:
            self._aside.remove(number)
        self._out.discard(number)
        self._progress.pop(number, None)
        self._reasons.pop(number, None)
        if self._sticky == number:
            self._sticky = None

    def _keep(self, number: int, obstacle: Obstacle | None, progress: Progress | None) -> None:
        if obstacle is not None:
            self._reasons[number] = obstacle
        if progress is not None:
            self._progress[number] = progress
        else:
            self._progress.pop(number, None)

    def _hold(self, shape: int, obstacle: Obstacle | None) -> None:
        """Count all of that shape as aside. Strangers among them do not come back with the next retry."""
        self._held[shape] = obstacle or Obstacle.PENDING_EVALUATION
        if not self._roster.strangers:
            return
        for number in [each for each in self._line if each in self._roster.strangers and self._is_held(each)]:
            self._take(number)
            self._out.add(number)

    def _is_held(self, number: int) -> bool:
        return self._roster.shapes[number] in self._held

    def _set_aside_held(self) -> None:
        """Clear the head of the line of those that are only there under the mark."""
        if self._held:
            while self._line and self._is_held(self._line[0]):
                self._aside.append(heappop(self._line))

    def _take(self, number: int) -> None:
        self._line.remove(number)
        heapify(self._line)
