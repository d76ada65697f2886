"""Which workloads does a budget cover? By namespace, by the namespace's labels, by ClusterQueue.

Laws:

* The conditions of a scope must all hold. One without conditions covers the cluster.
* What is not known (a ClusterQueue, a namespace's labels) makes the answer unknown, unless another condition excludes
  the workload anyway. The caller decides what an unknown answer costs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from scaler.kube.scheduling import parse_selector

Labels = Mapping[str, str]
Key = tuple[str, str]
"""Namespace and name."""


class BudgetLocation(NamedTuple):
    """Where a workload is, as far as budgets tell workloads apart."""

    namespace: str
    cluster_queue: str | None = None
    """Empty: none, since Kueue does not admit it. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedWorkload:
    """A GPU workload that is, or may be, suspended."""

    namespace: str
    name: str
    cluster_queue: str | None = None
    """Empty: none, since Kueue does not admit it. None: not known."""

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def place(self) -> BudgetLocation:
        return BudgetLocation(self.namespace, self.cluster_queue)


class Each(StrEnum):
    """What a budget gives its own limit to, each."""

    NAMESPACE = "Namespace"
    CLUSTER_QUEUE = "ClusterQueue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which workloads a budget covers: all of the cluster, less what any of its conditions excludes."""

    namespaces: frozenset[str] = frozenset()
    """Empty: all."""
    namespace_selector: str = ""
    """Labels that the namespace must have: `team=a,stage in (dev, test)`. Empty: any."""
    cluster_queues: frozenset[str] = frozenset()
    """Empty: all, and what has none."""
    each: Each | None = None
    """Whether every namespace or ClusterQueue has the limit for itself; None: all that is covered, together."""

    def covers(self, place: BudgetLocation, labels: Mapping[str, Labels]) -> bool | None:
        """Whether it covers what is there; None: unknown. Raises: ValueError for an unreadable selector."""
        answers = (
            not self.namespaces or place.namespace in self.namespaces,
            self._selects(labels.get(place.namespace)),
            self._has_queue(place.cluster_queue),
        )
        return None if None in answers and False not in answers else all(answers)

    def _selects(self, labels: Labels | None) -> bool | None:
        if not self.namespace_selector:
            return True
        selector = parse_selector(self.namespace_selector)
        return None if labels is None else selector.matches(labels)

    def _has_queue(self, name: str | None) -> bool | None:
        if not self.cluster_queues and self.each is not Each.CLUSTER_QUEUE:
            return True
        if name is None:
            return None
        return name in self.cluster_queues if self.cluster_queues else name != ""

    def group_of(self, place: BudgetLocation) -> str | None:
        """What is counted together with what is there, by name; None where that is unknown."""
        match self.each:
            case Each.NAMESPACE:
                return place.namespace
            case Each.CLUSTER_QUEUE:
                return place.cluster_queue
            case None:
                return ""

    def part(self, group: str) -> "Scope":
        """The part of it that is counted together, as a scope."""
        match self.each:
            case Each.NAMESPACE:
                return replace(self, namespaces=frozenset({group}), each=None)
            case Each.CLUSTER_QUEUE:
                return replace(self, cluster_queues=frozenset({group}), each=None)
            case None:
                return self

    def __str__(self) -> str:
        parts = [_plural("ClusterQueue", self.cluster_queues)] if self.cluster_queues else []
        parts += [_plural("namespace", self.namespaces)] if self.namespaces else []
        parts += [f"namespaces with {self.namespace_selector}"] if self.namespace_selector else []
        return " and ".join(parts) or "the cluster"


EVERYTHING = Scope()


def _plural(word: str, names: Collection[str]) -> str:
    return f"{word}{'s' if len(names) > 1 else ''} {', '.join(sorted(names))}"
