"""The quota tree: one root Cohort with all below it, or one ClusterQueue without a Cohort.

Different trees share no quota, so each can be simulated alone. `clone` gives a simulation its own copy.

`CohortTrees` keeps all trees while ClusterQueues and Cohorts change one at a time. Its laws:

* Trees are built when they are asked for: a thousand objects that arrive one after the other cost one building.
* A change of an object touches only the trees that it was in and is in now; all others stay the very same value.
* ClusterQueues with their Workloads are kept and put into the trees that are built, so that building one costs the sums
  of its ClusterQueues, and not those of their Workloads.
* Members of a cycle of cohorts are in no tree, until a change breaks the cycle.
* `version` of a tree never comes back: results of a tree may be kept for as long as it stays the same.

Why a set of touched names is enough: an edge that came or went has touched both of its ends, so from the touched names
every object of every forgotten tree can be reached again, over the edges as they are now.

Source: Kueue, pkg/cache/hierarchy, pkg/cache/scheduler/snapshot.go.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from scaler.quota.model import QuotaClusterQueue, QuotaCohort, QuotaWorkload
from scaler.quota.node import CohortNode, QueueNode

Root = CohortNode | QueueNode


class Tree:
    def __init__(self, root: Root, cohorts: dict[str, CohortNode], queues: dict[str, QueueNode]) -> None:
        self.root = root
        self.cohorts = cohorts
        self.queues = queues
        """All ClusterQueues by name; those that do not schedule count in their cohorts and are otherwise invisible."""

    @property
    def scheduling(self) -> list[QueueNode]:
        return [queue for queue in self.queues.values() if queue.spec.schedules]

    def clone(self) -> "Tree":
        """A copy whose usage and Workloads can change without this one noticing. Specifications are shared."""
        queues: dict[str, QueueNode] = {}
        cohorts: dict[str, CohortNode] = {}
        root = _cloned(self.root, cohorts, queues)
        return Tree(root, cohorts, {name: queues[name] for name in self.queues})


def _cloned(node: Root, cohorts: dict[str, CohortNode], queues: dict[str, QueueNode]) -> Root:
    if isinstance(node, QueueNode):
        queue = queues[node.name] = node.detached()
        return queue
    cohort = cohorts[node.name] = node.detached()
    children: list[Root] = [*node.cohorts, *node.queues]
    for below in children:
        _adopt(cohort, _cloned(below, cohorts, queues))
    return cohort


def _adopt(parent: CohortNode, child: Root) -> None:
    child.parent = parent
    if isinstance(child, QueueNode):
        parent.queues.append(child)
    else:
        parent.cohorts.append(child)


def build_trees(
    queues: Iterable[QuotaClusterQueue], cohorts: Iterable[QuotaCohort], reserved: Iterable[QuotaWorkload]
) -> list[Tree]:
    """The trees that the objects form, with the usage of the Workloads that hold reservations.

    A cohort that is only named exists without quota of its own. Members of a cycle of cohorts are left out: Kueue does
    not schedule them. A reservation in a ClusterQueue that does not exist is not counted.
    """
    holders: dict[str, list[QuotaWorkload]] = {}
    for workload in reserved:
        if workload.reservation:
            holders.setdefault(workload.reservation.cluster_queue, []).append(workload)
    return _linked([_leaf(queue, holders.get(queue.name, ())) for queue in queues], cohorts)


def _leaf(queue: QuotaClusterQueue, holders: Iterable[QuotaWorkload]) -> QueueNode:
    leaf = QueueNode(queue)
    leaf.workloads = {workload.key: workload for workload in holders}
    leaf.settle()
    return leaf


def _linked(leaves: Sequence[QueueNode], cohorts: Iterable[QuotaCohort]) -> list[Tree]:
    """The trees of these ClusterQueues, which are settled and in no tree. Those below a cycle stay in none."""
    nodes = {cohort.name: CohortNode(cohort) for cohort in cohorts}
    named = {leaf.spec.cohort for leaf in leaves} | {node.spec.parent for node in nodes.values()}
    nodes |= {name: CohortNode(QuotaCohort(name=name)) for name in sorted(named - nodes.keys() - {""})}
    for node in nodes.values():
        if node.spec.parent:
            _adopt(nodes[node.spec.parent], node)
    for leaf in leaves:
        if leaf.spec.cohort:
            _adopt(nodes[leaf.spec.cohort], leaf)
    roots: list[Root] = [*nodes.values(), *leaves]
    trees = [_tree(root) for root in roots if root.parent is None]
    linked = {id(queue) for tree in trees for queue in tree.queues.values()}
    for leaf in leaves:
        if id(leaf) not in linked:
            leaf.detach()
    return trees


def _tree(root: Root) -> Tree:
    if isinstance(root, QueueNode):
        return Tree(root, {}, {root.name: root})
    root.settle()
    cohorts = {node.name: node for node in _cohorts(root)}
    return Tree(root, cohorts, {queue.name: queue for node in cohorts.values() for queue in node.queues})


def _cohorts(node: CohortNode) -> Iterator[CohortNode]:
    yield node
    for below in node.cohorts:
        yield from _cohorts(below)


class CohortTrees:
    """`holders` gives the Workloads that hold quota in a ClusterQueue, by its name."""

    def __init__(self, holders: Callable[[str], Iterable[QuotaWorkload]]) -> None:
        self._holders = holders
        self._queues: dict[str, QuotaClusterQueue] = {}
        self._leaves: dict[str, QueueNode] = {}
        """The queues that were in a tree already, with all their holders at any time."""
        self._cohorts: dict[str, QuotaCohort] = {}
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
        self._build()
        return tuple(self._versions)

    def tree_of(self, queue: str) -> Tree | None:
        """The tree that the ClusterQueue is in; None for one that does not exist or is part of a cycle."""
        self._build()
        return self._of_queue.get(queue)

    def version(self, tree: Tree) -> int:
        """Another number whenever anything has changed that scheduling depends on; 0 for a tree that is no more."""
        return self._versions.get(tree, 0)

    # ------------------------------------------------------------------------------------------------------ changing

    def put_queue(self, queue: QuotaClusterQueue) -> None:
        old, leaf = self._queues.get(queue.name), self._leaves.get(queue.name)
        if old is None or old.cohort != queue.cohort:
            self._put_elsewhere(queue)
        else:
            self._queues[queue.name] = queue
            if leaf is not None and leaf.specify(queue):
                self._touch_queue(queue)
        self.bump(queue.name)

    def _put_elsewhere(self, queue: QuotaClusterQueue) -> None:
        leaf = self._leaves.get(queue.name)
        self.drop_queue(queue.name)
        self._queues[queue.name] = queue
        if queue.cohort:
            self._queues_in.setdefault(queue.cohort, set()).add(queue.name)
        self._touch_queue(queue)
        if leaf is not None:
            leaf.specify(queue)
            self._leaves[queue.name] = leaf

    def drop_queue(self, name: str) -> None:
        old = self._queues.pop(name, None)
        self._leaves.pop(name, None)
        if old is None:
            return
        self._forget(self._of_queue.get(name))
        self._touched_queues.discard(name)
        if old.cohort:
            self._queues_in[old.cohort].discard(name)
            self._touch_cohort(old.cohort)

    def put_cohort(self, cohort: QuotaCohort) -> None:
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
        """The ClusterQueue, if it was in a tree already: one that was not will count all holders when it is."""
        return self._leaves.get(queue)

    def bump(self, queue: str) -> None:
        tree = self._of_queue.get(queue)
        if tree is not None:
            self._versions[tree] = self._next_version()

    # ------------------------------------------------------------------------------------------------------ building

    def _next_version(self) -> int:
        self._last_version += 1
        return self._last_version

    def _touch_queue(self, queue: QuotaClusterQueue) -> None:
        self._touched_queues.add(queue.name)
        self._forget(self._of_queue.get(queue.name))
        if queue.cohort and queue.cohort not in self._touched_cohorts:
            self._touch_cohort(queue.cohort)

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
        if not (self._touched_cohorts or self._touched_queues):
            return
        cohorts = self._connected(self._touched_cohorts)
        names = self._touched_queues.union(*(self._queues_in.get(cohort, ()) for cohort in cohorts))
        self._touched_cohorts, self._touched_queues = set(), set()
        queues = sorted(names)
        cohorts_there = [self._cohorts[name] for name in sorted(cohorts & self._cohorts.keys())]
        for tree in _linked([self._unlinked(name) for name in queues], cohorts_there):
            self._versions[tree] = self._next_version()
            self._of_queue |= dict.fromkeys(tree.queues, tree)
            self._of_cohort |= dict.fromkeys(tree.cohorts, tree)

    def _unlinked(self, name: str) -> QueueNode:
        leaf = self._leaves.get(name)
        if leaf is None:
            leaf = self._leaves[name] = _leaf(self._queues[name], self._holders(name))
        leaf.detach()
        return leaf

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
