"""The quota tree: one root Cohort with all below it, or one ClusterQueue without a Cohort.

Different trees share no quota, so each can be simulated alone. `clone` gives a simulation its own copy.

Source: Kueue, pkg/cache/hierarchy, pkg/cache/scheduler/snapshot.go.
"""

from collections.abc import Iterable, Iterator

from scaler.core.quota.model import ClusterQueue, Cohort, Workload
from scaler.core.quota.node import CohortNode, Node, QueueNode

__all__ = ["CohortNode", "Node", "QueueNode", "Root", "Tree", "build_trees"]

Root = CohortNode | QueueNode


class Tree:
    """One root with everything below it."""

    __slots__ = ("cohorts", "queues", "root")

    def __init__(self, root: Root, cohorts: dict[str, CohortNode], queues: dict[str, QueueNode]) -> None:
        self.root = root
        self.cohorts = cohorts
        self.queues = queues
        """All ClusterQueues by name; those that do not schedule count in their cohorts and are otherwise invisible."""

    @property
    def scheduling(self) -> list[QueueNode]:
        """The ClusterQueues that the scheduler sees."""
        return [queue for queue in self.queues.values() if queue.spec.schedules]

    def clone(self) -> "Tree":
        """A copy whose usage and Workloads can change without this one noticing. Specifications are shared."""
        queues: dict[str, QueueNode] = {}
        cohorts: dict[str, CohortNode] = {}
        root: Root
        if isinstance(self.root, CohortNode):
            root = _cloned_cohort(self.root, cohorts, queues)
        else:
            root = _cloned_queue(self.root, queues)
        return Tree(root, cohorts, {name: queues[name] for name in self.queues})


def _cloned_queue(node: QueueNode, queues: dict[str, QueueNode]) -> QueueNode:
    queue = queues[node.name] = node.detached()
    return queue


def _cloned_cohort(node: CohortNode, cohorts: dict[str, CohortNode], queues: dict[str, QueueNode]) -> CohortNode:
    cohort = cohorts[node.name] = node.detached()
    for below in node.cohorts:
        _adopt(cohort, _cloned_cohort(below, cohorts, queues))
    for queue in node.queues:
        _adopt(cohort, _cloned_queue(queue, queues))
    return cohort


def _adopt(parent: CohortNode, child: Root) -> None:
    child.parent = parent
    if isinstance(child, QueueNode):
        parent.queues.append(child)
    else:
        parent.cohorts.append(child)


def build_trees(queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort], reserved: Iterable[Workload]) -> list[Tree]:
    """The trees that the objects form, with the usage of the Workloads that hold reservations.

    A cohort that is only named exists without quota of its own. Members of a cycle of cohorts are left out: Kueue does
    not schedule them. A reservation in a ClusterQueue that does not exist is not counted.
    """
    nodes = {cohort.name: CohortNode(cohort) for cohort in cohorts}
    leaves = {queue.name: QueueNode(queue) for queue in queues}
    for workload in reserved:
        if workload.reservation and (leaf := leaves.get(workload.reservation.cluster_queue)):
            leaf.workloads[workload.key] = workload
    named = {leaf.spec.cohort for leaf in leaves.values()} | {node.spec.parent for node in nodes.values()}
    nodes |= {name: CohortNode(Cohort(name=name)) for name in sorted(named - nodes.keys() - {""})}
    for node in nodes.values():
        if node.spec.parent:
            _adopt(nodes[node.spec.parent], node)
    for leaf in leaves.values():
        if leaf.spec.cohort:
            _adopt(nodes[leaf.spec.cohort], leaf)
    roots: list[Root] = [*nodes.values(), *leaves.values()]
    return [_tree(root) for root in roots if root.parent is None]


def _tree(root: Root) -> Tree:
    root.settle()
    if isinstance(root, QueueNode):
        return Tree(root, {}, {root.name: root})
    cohorts = {node.name: node for node in _cohorts(root)}
    return Tree(root, cohorts, {queue.name: queue for node in cohorts.values() for queue in node.queues})


def _cohorts(node: CohortNode) -> Iterator[CohortNode]:
    yield node
    for below in node.cohorts:
        yield from _cohorts(below)
