"""Which quota trees do the ClusterQueues and Cohorts form, while both change one at a time?

Laws:

* Trees are built when they are asked for: a thousand objects that arrive one after the other cost one building.
* A change of an object touches only the trees that it was in and is in now; all others stay the very same value.
* Members of a cycle of cohorts are in no tree, until a change breaks the cycle.
* `version` of a tree never comes back: whoever keeps results of a tree may keep them for as long as it stays the same.

Why a set of touched names is enough: an edge that came or went has touched both of its ends, so from the touched names
every object of every forgotten tree can be reached again, over the edges as they are now.
"""

from collections.abc import Callable, Iterable, Sequence

from scaler.core.quota.model import ClusterQueue, Cohort, Workload
from scaler.core.quota.tree import QueueNode, Tree, build_trees


class Forest:
    """`holders` gives the Workloads that hold quota in a ClusterQueue, by its name."""

    def __init__(self, holders: Callable[[str], Iterable[Workload]]) -> None:
        self._holders = holders
        self._queues: dict[str, ClusterQueue] = {}
        self._cohorts: dict[str, Cohort] = {}
        self._queues_in: dict[str, set[str]] = {}
        self._cohorts_in: dict[str, set[str]] = {}
        self._of_queue: dict[str, Tree] = {}
        self._of_cohort: dict[str, Tree] = {}
        self._versions: dict[Tree, int] = {}
        self._last_version = 0
        self._touched_cohorts: set[str] = set()
        self._touched_queues: set[str] = set()

    # ------------------------------------------------------------------------------------------------------ reading

    @property
    def trees(self) -> Sequence[Tree]:
        """All trees, in no particular order."""
        self._build()
        return tuple(self._versions)

    def tree_of(self, queue: str) -> Tree | None:
        """The tree that the ClusterQueue is in; None for one that does not exist or is part of a cycle."""
        self._build()
        return self._of_queue.get(queue)

    def version(self, tree: Tree) -> int:
        """A number that another state of the tree never has; 0 for a tree that is no longer one."""
        return self._versions.get(tree, 0)

    # ------------------------------------------------------------------------------------------------------ changing

    def put_queue(self, queue: ClusterQueue) -> None:
        self.drop_queue(queue.name)
        self._queues[queue.name] = queue
        self._touched_queues.add(queue.name)
        if queue.cohort:
            self._queues_in.setdefault(queue.cohort, set()).add(queue.name)
            self._touch_cohort(queue.cohort)

    def drop_queue(self, name: str) -> None:
        old = self._queues.pop(name, None)
        if old is None:
            return
        self._forget(self._of_queue.get(name))
        self._touched_queues.discard(name)
        if old.cohort:
            self._queues_in[old.cohort].discard(name)
            self._touch_cohort(old.cohort)

    def put_cohort(self, cohort: Cohort) -> None:
        self.drop_cohort(cohort.name)
        self._cohorts[cohort.name] = cohort
        self._touch_cohort(cohort.name)
        if cohort.parent:
            self._cohorts_in.setdefault(cohort.parent, set()).add(cohort.name)
            self._touch_cohort(cohort.parent)

    def drop_cohort(self, name: str) -> None:
        """Forget the object; the cohort goes on to exist while anything names it."""
        old = self._cohorts.pop(name, None)
        self._touch_cohort(name)
        if old is not None and old.parent:
            self._cohorts_in[old.parent].discard(name)
            self._touch_cohort(old.parent)

    def leaf(self, queue: str) -> QueueNode | None:
        """The ClusterQueue in its tree as far as that is built: what is not will count all holders when it is."""
        tree = self._of_queue.get(queue)
        return tree.queues[queue] if tree is not None else None

    def bump(self, queue: str) -> None:
        """Something that matters to the ClusterQueue has changed."""
        tree = self._of_queue.get(queue)
        if tree is not None:
            self._versions[tree] = self._next_version()

    # ------------------------------------------------------------------------------------------------------ building

    def _next_version(self) -> int:
        self._last_version += 1
        return self._last_version

    def _touch_cohort(self, name: str) -> None:
        self._touched_cohorts.add(name)
        self._forget(self._of_cohort.get(name))

    def _forget(self, tree: Tree | None) -> None:
        if tree is None:
            return
        del self._versions[tree]
        for queue in tree.queues:
            del self._of_queue[queue]
        for cohort in tree.cohorts:
            del self._of_cohort[cohort]

    def _build(self) -> None:
        """Build what was touched since the last time."""
        if not (self._touched_cohorts or self._touched_queues):
            return
        cohorts = self._connected(self._touched_cohorts)
        names = self._touched_queues.union(*(self._queues_in.get(cohort, ()) for cohort in cohorts))
        self._touched_cohorts, self._touched_queues = set(), set()
        queues = sorted(names)
        for tree in build_trees(
            [self._queues[name] for name in queues],
            [self._cohorts[name] for name in sorted(cohorts & self._cohorts.keys())],
            [workload for name in queues for workload in self._holders(name)],
        ):
            self._versions[tree] = self._next_version()
            self._of_queue |= dict.fromkeys(tree.queues, tree)
            self._of_cohort |= dict.fromkeys(tree.cohorts, tree)

    def _connected(self, cohorts: set[str]) -> set[str]:
        """The cohorts and all that are above or below them, by whatever way."""
        found, open_ends = set(cohorts), list(cohorts)
        while open_ends:
            name = open_ends.pop()
            own = self._cohorts.get(name)
            near = self._cohorts_in.get(name, set()) | ({own.parent} if own and own.parent else set())
            open_ends.extend(near - found)
            found |= near
        return found
