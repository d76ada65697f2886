"""Which Workload does Kueue admit if another one returns its quota?

Laws:

* A Workload that returns its quota queues again, behind those that can use what it returned.
* The next admittable Workload is one that Kueue does not admit anyway, and that stays admitted in the end.
* Where the further cycles of Kueue are not known, there is none.

Worked example: a queue has 16 GPUs, and the Workload has all of them. One waits for 32, another one for 8. That of 32
is never admitted; the next admittable one is that of 8. The tempting alternative, to name any Workload that waits,
makes this one return its quota to none, and get it back a second later, for ever.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from scaler.quota.forecast import Forecast, forecast
from scaler.quota.simulation import Simulation
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree
from scaler.quota.workload_index import SchedulingContext

MAX_FORECASTS = 4
"""The most forecasts for one plan: each takes up to some tenths of a second."""
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class QuotaTree:
    """A quota tree as it is at one moment, and what was found out of it."""

    snapshot: Snapshot
    version: int
    simulation: Simulation
    _anyway: Forecast | None = None
    """The forecast if no Workload returns quota."""
    _found: dict[str, str] = field(default_factory=dict)

    def is_known(self, key: str) -> bool:
        return key in self._found

    def next_admittable(self, key: str) -> str:
        """Key of the Workload that Kueue admits only if that one returns its quota; empty where there is none."""
        if key not in self._found:
            self._found[key] = next(self._admitted_without(key), "")
        return self._found[key]

    def _admitted_without(self, key: str) -> Iterator[str]:
        if key not in self.simulation:
            return
        anyway = self._anyway = self._anyway or forecast(self.simulation, _NONE)
        after = forecast(self.simulation, frozenset({key}))
        if not (anyway.comes_to_rest and after.comes_to_rest):
            return
        others = anyway.admitted | {each.key for each in anyway.start.holders}
        stay = {each.key for each in after.rest.holders} - others
        came = (each.key for cycle in after.run.cycles for each in cycle.admitted)
        yield from (each for each in came if each in stay)


def next_admittable(trees: Iterable[tuple[str, QuotaTree]], now: datetime) -> dict[str, str]:
    """The answers by key of a Workload. At most so many per call are simulated that were not yet, in rotating order."""
    found = sorted(trees, key=lambda each: each[0])
    unknown = [each for each in found if not each[1].is_known(each[0])]
    first = int(now.timestamp()) % len(unknown) if unknown else 0
    due = (unknown[first:] + unknown[:first])[:MAX_FORECASTS]
    known = [each for each in found if each[1].is_known(each[0])]
    return {key: tree.next_admittable(key) for key, tree in known + due}


def quota_tree_of(key: str, snapshot: Snapshot, known: dict[str, QuotaTree], now: datetime) -> QuotaTree | None:
    """The tree where the Workload has quota; None where that is not known, or no Workload waits there.

    `known` are those of before by root: a tree that has not changed is not simulated again.
    """
    tree = _tree_of(key, snapshot)
    if tree is None:
        return None
    version, found = snapshot.version(tree), known.get(tree.root.name)
    if found is None or found.snapshot is not snapshot or found.version != version:
        found = known[tree.root.name] = QuotaTree(snapshot, version, _simulation(snapshot, tree, now))
    return found


def _tree_of(key: str, snapshot: Snapshot) -> Tree | None:
    own = snapshot.workload(key)
    tree = snapshot.tree_of(snapshot.cluster_queue_of(own)) if own is not None else None
    return tree if tree is not None and snapshot.pending_in(tree) and not snapshot.doubts(tree) else None


def _simulation(snapshot: Snapshot, tree: Tree, now: datetime) -> Simulation:
    """A simulation of the tree as it is at this moment: whatever changes meanwhile does not reach it."""
    pending, world = snapshot.pending_in(tree), SchedulingContext.of(snapshot)
    return Simulation(tree, pending, world, now=now, fair_sharing=snapshot.fair_sharing)
