"""What would one scheduling cycle of Kueue do?

One head of every queue is nominated: it gets the flavors that it would have if it were alone. Then the heads have their
turns (`turns`), and whoever was not admitted goes back to its queue (`queues`).

Order: without fair sharing, who borrows from nearer goes first, then priority, then age; with it, by tournament.

Laws:

* The tree is left with what was admitted, and otherwise as it was: what is kept or taken for those that wait is
  forgotten at the end of the cycle. Preempted Workloads still hold their quota; ending them is the caller's.
* Heads whose namespace their queue does not select are not nominated, nor are those that Kueue refuses as invalid.

Source: Kueue, pkg/scheduler/scheduler.go (schedule, nominate, makeClassicalIterator, requeueAndUpdate).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from scaler.core.quota.flavors import Assignment, Obstacle, Tried
from scaler.core.quota.model import Workload
from scaler.core.quota.preemption import Target
from scaler.core.quota.queues import Outcome, PendingQueue, Progress
from scaler.core.quota.roster import Roster
from scaler.core.quota.tournament import Tournament
from scaler.core.quota.tree import QueueNode, Tree
from scaler.core.quota.turns import Head, Preempted, Turns

__all__ = ["Considered", "Cycle", "Preempted", "Scheduler"]


class Considered(NamedTuple):
    """One head, and what became of it."""

    workload: str
    cluster_queue: str
    outcome: Outcome
    obstacle: Obstacle | None
    """Why it was not admitted."""
    assignment: Assignment | None
    """None where it was not even nominated."""
    victims: int = 0
    """How many Workloads have to go for it, those included that are evicted already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What one cycle has decided, in the order of the decisions."""

    number: int
    at: datetime
    admitted: tuple[Workload, ...]
    """With their reservations."""
    preempted: tuple[Preempted, ...]
    considered: tuple[Considered, ...]
    moved: bool
    """Whether any of the others went elsewhere than back in line."""
    will_repeat: bool
    """Whether the next cycle will do the same as this one, if nothing happens in between."""

    @property
    def decided(self) -> bool:
        return bool(self.admitted or self.preempted)


Nomination = tuple[Tried, Assignment, tuple[Target, ...]]
"""Where the search for flavors began, and what it found."""


class Scheduler:
    """The scheduler of one tree. `lines` hold the waiting Workloads of its queues, by name.

    `nominations` keeps, by number, what heads were nominated with: a StrictFIFO queue nominates the same blocked head
    in every cycle. The caller clears it whenever the tree has changed.
    """

    def __init__(self, tree: Tree, lines: Mapping[str, PendingQueue], roster: Roster, *, fair_sharing: bool) -> None:
        self._tree = tree
        self._lines = lines
        self._roster = roster
        self._fair_sharing = fair_sharing
        self._queues = [queue for queue in tree.scheduling if queue.name in lines]
        self.nominations: dict[int, Nomination] = {}

    def cycle(self, number: int, at: datetime) -> Cycle:
        """Run one cycle: take a head from every queue, admit what may be, put back the others."""
        strategies = self._roster.world.strategies
        turns = Turns(self._tree, number, at, fair_sharing=self._fair_sharing, strategies=strategies)
        heads, refused = self._heads(turns)
        for head in self._ordered(heads):
            turns.process(head)
        turns.forget_reserved()
        moved, goes_on = any(not back for _, back in refused), False
        for head in turns.done:
            moved = not self._put_back(head, number) or moved
            goes_on = goes_on or head.progress != head.tried
        return Cycle(
            number=number,
            at=at,
            admitted=tuple(turns.admitted),
            preempted=tuple(turns.preempted),
            considered=(*(_considered(head) for head in turns.done), *(each for each, _ in refused)),
            moved=moved,
            will_repeat=not (turns.admitted or turns.preempted or moved or goes_on),
        )

    def _heads(self, turns: Turns) -> tuple[list[Head], list[tuple[Considered, bool]]]:
        """The heads that are nominated, and those that are not; of these, whether they are back in line."""
        heads, refused = [], []
        for queue in self._queues:
            line = self._lines[queue.name]
            number = line.pop()
            if number is None:
                continue
            refusal = self._refusal(number)
            if refusal is None:
                heads.append(self._nominate(turns, number, queue, line))
                continue
            back = line.requeue(number, refusal, Obstacle.MISCONFIGURED)
            key = self._roster.waiting(number).key
            refused.append((Considered(key, queue.name, refusal, Obstacle.MISCONFIGURED, None), back))
        return heads, refused

    def _refusal(self, number: int) -> Outcome | None:
        """Why the head is not nominated."""
        if number in self._roster.strangers:
            return Outcome.NAMESPACE_MISMATCH
        return Outcome.INVALID if self._roster.waiting(number).invalid_because else None

    def _nominate(self, turns: Turns, number: int, queue: QueueNode, line: PendingQueue) -> Head:
        workload, demand = self._roster.waiting(number), self._roster.demand(number)
        tried = line.tried(number, turns.number)
        known = self.nominations.get(number)
        if known is None or known[0] != tried:
            known = self.nominations[number] = (tried, *turns.assign(queue, workload, demand, tried))
        _, assignment, targets = known
        return Head(number, workload, queue, line, demand, tried, assignment, targets)

    def _ordered(self, heads: list[Head]) -> Iterator[Head]:
        if self._fair_sharing:
            tournament = Tournament(heads)
            while (head := tournament.pop()) is not None:
                yield head
        else:
            yield from sorted(heads, key=lambda head: (head.assignment.borrows, head.number))

    def _put_back(self, head: Head, cycle: int) -> bool:
        """Put the head where it belongs now. False where others of its queue may be next."""
        if head.outcome is Outcome.ADMITTED:
            head.line.drop(head.number)
            return False
        progress = Progress(head.progress, head.line.generation, cycle) if head.progress else None
        return head.line.requeue(head.number, head.outcome, head.obstacle, progress)


def _considered(head: Head) -> Considered:
    return Considered(
        head.workload.key, head.queue.name, head.outcome, head.obstacle, head.assignment, len(head.targets)
    )
