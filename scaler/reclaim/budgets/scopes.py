"""Which workloads does a budget cover, and how many of them were suspended?

Laws:

* The conditions of a scope must all hold. One without conditions covers the cluster.
* What is not known (a ClusterQueue, a namespace's labels) makes the answer unknown, unless another condition excludes
  the workload anyway. A suspension that might be covered counts, a workload that might be there does not.
* Suspensions are read from the API, so they outlive this process. Active grants count as suspensions: their workloads
  are about to be suspended. A suspension at an unknown time counts for ever.
* Workloads are counted, not suspensions. One that was suspended, woken and suspended again within a period is one:
  more is not to be seen on it, and a number that is sometimes too small is no limit.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property
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
    pools: tuple[str, ...] = ()
    """The budgets that it has from IdlePolicies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedWorkload:
    """A GPU workload that is, or may be, suspended. Its ClusterQueue and pools as in `BudgetLocation`."""

    namespace: str
    name: str
    cluster_queue: str | None = None
    pools: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def place(self) -> BudgetLocation:
        return BudgetLocation(self.namespace, self.cluster_queue, self.pools)


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
    pool: str = ""
    """The budget of an IdlePolicy that the workload must have; empty: any or none."""
    each: Each | None = None
    """Whether every namespace or ClusterQueue has the limit for itself; None: all that is covered, together."""

    def covers(self, place: BudgetLocation, labels: Mapping[str, Labels]) -> bool | None:
        """Whether it covers what is there; None: unknown. Raises: ValueError for an unreadable selector."""
        answers = (
            not self.namespaces or place.namespace in self.namespaces,
            not self.pool or self.pool in place.pools,
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
        groups = {Each.NAMESPACE: place.namespace, Each.CLUSTER_QUEUE: place.cluster_queue}
        return groups[self.each] if self.each else ""

    def part(self, group: str) -> "Scope":
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
        return " and ".join(parts) or ("the policy" if self.pool else "the cluster")


EVERYTHING = Scope()


def _plural(word: str, names: Collection[str]) -> str:
    return f"{word}{'s' if len(names) > 1 else ''} {', '.join(sorted(names))}"


NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """One that was suspended, or to whose suspension a grant still stands."""

    member: BudgetedWorkload
    at: datetime | None
    """When; None: not known."""
    is_over: bool = False
    """Whether it has come back since. It still counts within its period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionHistory:
    suspensions: tuple[Suspension, ...] = ()
    population: Mapping[BudgetLocation, int] = field(default_factory=dict)
    """GPU workloads by place, suspended ones included."""
    namespace_labels: Mapping[str, Labels] = field(default_factory=dict)
    """Labels by namespace; those of a namespace that is not in it are not known."""

    def after(self, victims: Iterable[BudgetedWorkload], now: datetime) -> "SuspensionHistory":
        """The same once these were suspended, too: for the next plan of the same tick."""
        new = tuple(Suspension(member=victim, at=now) for victim in sorted(victims, key=lambda victim: victim.key))
        return replace(self, suspensions=self.suspensions + new)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    scope: Scope
    suspensions: Collection[Suspension]
    population: int
    asleep: frozenset[Key]

    def expiries(self, period: timedelta, now: datetime, *, but: Collection[Key]) -> list[datetime]:
        """When each that was suspended within the period stops counting, in order; those of `but` left out."""
        latest: dict[Key, datetime] = {}
        for each in self.suspensions:
            expiry = NEVER if each.at is None else each.at + period
            if expiry > now and each.member.key not in but:
                latest[each.member.key] = max(expiry, latest.get(each.member.key, expiry))
        return sorted(latest.values())


class ScopeUsage:
    """What a scope covers of the spending, group by group. Counted once, and only if asked for."""

    def __init__(self, scope: Scope, spending: SuspensionHistory) -> None:
        self.scope = scope
        self._spending = spending
        self.covers = cache(lambda place: scope.covers(place, spending.namespace_labels))
        """Whether it covers the BudgetLocation. Raises: ValueError for a selector that cannot be read."""
        self.of = cache(self._of)

    def _of(self, group: str) -> GroupUsage:
        """A workload of an unknown group counts in each."""
        suspensions = self._suspensions.get(group, []) + self._suspensions.get(None, [])
        return GroupUsage(
            scope=self.scope.part(group),
            suspensions=suspensions,
            population=self._population[group],
            asleep=frozenset(each.member.key for each in suspensions if not each.is_over),
        )

    @cached_property
    def _suspensions(self) -> Mapping[str | None, list[Suspension]]:
        found: dict[str | None, list[Suspension]] = {}
        for each in self._spending.suspensions:
            if self.covers(each.member.place) is not False:
                found.setdefault(self.scope.group_of(each.member.place), []).append(each)
        return found

    @cached_property
    def _population(self) -> Counter[str | None]:
        found: Counter[str | None] = Counter()
        for place, count in self._spending.population.items():
            if self.covers(place):
                found[self.scope.group_of(place)] += count
        return found
