"""What would one scheduling cycle of Kueue do?

One head of every queue is nominated: it gets the flavors that it would have if it were alone. Then the heads are
processed one by one (`nomination`), and those that were not admitted go back to their queues (`queues`).

Order: by how far a head borrows, then by priority, then by age; with fair sharing by share (`FairSharingOrder`).

Laws:

* The tree is left with what was admitted, and otherwise as it was: what is kept or taken for those that wait is
  forgotten at the end of the cycle. Preempted Workloads still hold their quota; ending them is the caller's.
* Heads whose namespace their queue does not select are not nominated, nor are those that Kueue refuses as invalid.

Source: Kueue, pkg/scheduler/scheduler.go (schedule, nominate, makeClassicalIterator, requeueAndUpdate).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from scaler.quota.demands import Assignment, PendingReason, Tried
from scaler.quota.flavors import never_preempts
from scaler.quota.model import QuotaWorkload, Usage
from scaler.quota.node import CohortNode, QueueNode, TreeNode
from scaler.quota.nomination import NominatedHead, Nominations, Preempted
from scaler.quota.preemption.candidates import PreemptionTarget
from scaler.quota.preemption.fair_sharing import Share, dominant_resource_share
from scaler.quota.queues import CycleOutcome, FlavorProgress, PendingQueue
from scaler.quota.tree import Tree
from scaler.quota.workload_index import WorkloadIndex


class Considered(NamedTuple):
    workload: str
    cluster_queue: str
    outcome: CycleOutcome
    obstacle: PendingReason | None
    """Why it was not admitted."""
    assignment: Assignment | None
    """Its flavors; None where it was not even nominated."""
    victims: int = 0
    """How many Workloads have to go for it, those included that are evicted already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingCycle:
    number: int
    at: datetime
    admitted: tuple[QuotaWorkload, ...]
    """The Workloads that were admitted, with their reservations."""
    preempted: tuple[Preempted, ...]
    considered: tuple[Considered, ...]
    moved: bool
    """Whether any of the others is no longer active."""
    will_repeat: bool
    """Whether the next cycle will do the same as this one, if nothing happens in between."""

    @property
    def decided(self) -> bool:
        return bool(self.admitted or self.preempted)


Nomination = tuple[Tried, Assignment, tuple[PreemptionTarget, ...]]
"""The begin of the search for flavors, and what it found."""


class Scheduler:
    """The scheduler of one tree. `lines` hold the waiting Workloads of its queues, by name.

    `nominated` keeps, by number, what heads were nominated with: a StrictFIFO queue nominates the same blocked head
    in every cycle. The caller clears it whenever the tree has changed.
    """

    def __init__(
        self, tree: Tree, lines: Mapping[str, PendingQueue], workload_index: WorkloadIndex, *, fair_sharing: bool
    ) -> None:
        self._tree = tree
        self._lines = lines
        self._workload_index = workload_index
        self._fair_sharing = fair_sharing
        self._queues = [queue for queue in tree.scheduling if queue.name in lines]
        self.nominated: dict[int, Nomination] = {}

    def cycle(self, number: int, at: datetime) -> SchedulingCycle:
        strategies = self._workload_index.world.strategies if self._fair_sharing else None
        nominations = Nominations(self._tree, number, at, strategies)
        heads, refused = self._heads(nominations)
        for head in self._ordered(heads):
            nominations.process(head)
        nominations.forget_reserved()
        moved, goes_on = any(not back for _, back in refused), False
        for head in nominations.done:
            moved = not self._put_back(head, number) or moved
            goes_on = goes_on or head.progress != head.tried
        considered = [
            Considered(
                each.workload.key, each.queue.name, each.outcome, each.obstacle, each.assignment, len(each.targets)
            )
            for each in nominations.done
        ]
        return SchedulingCycle(
            number=number,
            at=at,
            admitted=tuple(nominations.admitted),
            preempted=tuple(nominations.preempted),
            considered=(*considered, *(each for each, _ in refused)),
            moved=moved,
            will_repeat=not (nominations.admitted or nominations.preempted or moved or goes_on),
        )

    def _heads(self, nominations: Nominations) -> tuple[list[NominatedHead], list[tuple[Considered, bool]]]:
        heads, refused = [], []
        for queue in self._queues:
            line = self._lines[queue.name]
            number = line.pop()
            if number is None:
                continue
            refusal = self._refusal(number)
            if refusal is None:
                heads.append(self._nominate(nominations, number, queue, line))
                continue
            back = line.requeue(number, refusal, PendingReason.MISCONFIGURED)
            key = self._workload_index.waiting(number).key
            refused.append((Considered(key, queue.name, refusal, PendingReason.MISCONFIGURED, None), back))
        return heads, refused

    def _refusal(self, number: int) -> CycleOutcome | None:
        if number in self._workload_index.namespace_mismatches:
            return CycleOutcome.NAMESPACE_MISMATCH
        return CycleOutcome.INVALID if self._workload_index.waiting(number).invalid_because else None

    def _nominate(self, nominations: Nominations, number: int, queue: QueueNode, line: PendingQueue) -> NominatedHead:
        workload, demand = self._workload_index.waiting(number), self._workload_index.demand(number)
        tried = line.tried(number, nominations.number)
        known = self.nominated.get(number)
        if known is None or known[0] != tried:
            known = self.nominated[number] = (tried, *self._assign(nominations, queue, number, tried))
        _, assignment, targets = known
        return NominatedHead(number, workload, queue, line, demand, tried, assignment, targets)

    def _assign(
        self, nominations: Nominations, queue: QueueNode, number: int, tried: Tried
    ) -> tuple[Assignment, tuple[PreemptionTarget, ...]]:
        """The flavors for the head, and its targets. Found once in a cycle for heads alike in queues alike."""
        index = self._workload_index
        workload, demand = index.waiting(number), index.demand(number)
        if tried or not never_preempts(queue.spec):
            return nominations.assign(queue, workload, demand, tried)
        usage = tuple(map(queue.usage.get, queue.quotas))
        alike = index.shapes[number], index.queue_kinds[queue.name], usage, queue.parent
        found = nominations.assigned.get(alike)
        if found is None:
            found = nominations.assigned[alike] = nominations.assign(queue, workload, demand)
        return found

    def _ordered(self, heads: list[NominatedHead]) -> Iterator[NominatedHead]:
        if self._fair_sharing:
            order = FairSharingOrder(heads)
            while (head := order.pop()) is not None:
                yield head
        else:
            yield from sorted(heads, key=lambda head: (head.assignment.borrows, head.workload.place))

    def _put_back(self, head: NominatedHead, cycle: int) -> bool:
        """Put the head where it belongs now. False where others of its queue may be next."""
        if head.outcome is CycleOutcome.ADMITTED:
            head.line.drop(head.number)
            return False
        progress = FlavorProgress(head.progress, head.line.generation, cycle) if head.progress else None
        return head.line.requeue(head.number, head.outcome, head.obstacle, progress)


# --------------------------------------------------------------------------------------------- order of the heads

_Rank = tuple[bool, Share, int, datetime]
"""The rank of a contender at a cohort: of two, the lower one wins."""


class FairSharingOrder:
    """Heads of one cycle, one for a queue. They meet at every cohort, where the best of its children's goes on upwards.

    Each head stands for the child of the cohort through which it comes, with the share that this child would have with
    the head admitted. Better is, in this order:

    1. whose child borrows nothing of what the head asks for;
    2. the lower share;
    3. the higher priority;
    4. the earlier one in the queue.

    After every winner the others are compared again, since an admission has changed the shares: what was found is kept
    except above the nodes whose usage has changed. Heads of different trees never meet: any of them may be next.
    Source: Kueue, pkg/scheduler/fair_sharing_iterator.go.
    """

    def __init__(self, entries: Iterable[NominatedHead]) -> None:
        self._entries = {entry.queue: entry for entry in entries}
        self._seen: dict[TreeNode, Usage] = {}
        """The usage with which ranks were found. That of a root does not matter."""
        self._ranks: dict[TreeNode, dict[QueueNode, _Rank]] = {}
        """Ranks by the child through which contenders come to their cohort, and by the contenders' queues."""
        self._winners: dict[CohortNode, NominatedHead | None] = {}
        for queue in self._entries:
            self._seen |= {node: node.usage.copy() for node in _way(queue) if node not in self._seen}

    def pop(self) -> NominatedHead | None:
        """The head that is next, as the tree stands now; None where all were taken."""
        queue = next(iter(self._entries), None)
        if queue is None:
            return None
        self._forget_what_changed()
        *_, root = (queue, *queue.ancestors())
        winner = self._winner(root) if isinstance(root, CohortNode) else None
        entry = self._entries.pop(winner.queue if winner else queue)
        self._forget(entry.queue)
        return entry

    def _forget_what_changed(self) -> None:
        for node, before in self._seen.items():
            if node.usage != before:
                self._seen[node] = node.usage.copy()
                self._forget(node)

    def _forget(self, node: TreeNode) -> None:
        """Find anew what depends on the node."""
        self._ranks.pop(node, None)
        for cohort in node.ancestors():
            self._ranks.pop(cohort, None)
            self._winners.pop(cohort, None)

    def _winner(self, cohort: CohortNode) -> NominatedHead | None:
        """The cohort's best; the first child's where equals meet, which Kueue leaves to chance."""
        if cohort not in self._winners:
            contenders: list[tuple[TreeNode, NominatedHead]]
            contenders = [(below, winner) for below in cohort.cohorts if (winner := self._winner(below))]
            contenders += [(queue, self._entries[queue]) for queue in cohort.queues if queue in self._entries]
            best = min(contenders, key=lambda contender: self._rank(*contender), default=None)
            self._winners[cohort] = best[1] if best else None
        return self._winners[cohort]

    def _rank(self, child: TreeNode, entry: NominatedHead) -> _Rank:
        """How good the contender is as the one that comes through this child."""
        known = self._ranks.setdefault(child, {})
        rank = known.get(entry.queue)
        if rank is None:
            entry.queue.add(entry.usage)
            share = dominant_resource_share(child)
            entry.queue.remove(entry.usage)
            borrows = share.borrows_any_of(entry.usage)
            rank = known[entry.queue] = borrows, share, -entry.workload.priority, entry.workload.queued_at
        return rank


def _way(queue: QueueNode) -> Iterable[TreeNode]:
    """The nodes from the queue upwards, without the root."""
    *way, _ = (queue, *queue.ancestors())
    return way
