"""Who would get quota if a gang gave its own back?

Laws:

* A gang that yields is treated as gone: it queues again, and its turn comes after those who can use what it gave.
* Only he is an heir who would not get in anyway, as Kueue goes on by itself, and who is in when all has come to rest.
* Where it is not known how things go on, there is no heir.

Worked example: a queue has 16 GPUs, and the gang has all of them. One waits for 32, another one for 8. That one of 32
never gets in, whatever the gang does; the heir is the one of 8. The tempting alternative, to name anybody who waits,
makes the gang give its quota to nobody, and get it back a second later, for ever.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from scaler.core.quota.simulation import Simulation
from scaler.core.quota.snapshot import Snapshot
from scaler.core.quota.tree import Tree
from scaler.core.reclaim.forecast import Forecast, forecast
from scaler.loops.quota_view import Blind

_SECONDS = 1.0
"""Of one look. For whom there is no time then, there is in the next."""
_NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Known:
    """What was found out of a tree as it stands. It holds until the tree is another one."""

    snapshot: Snapshot
    version: int
    simulation: Simulation
    anyway: Forecast | None = None
    """If the gang keeps what it has."""
    heirs: dict[str, str] = field(default_factory=dict)


class Heirs:
    """Asks the simulation of Kueue, beside the event loop."""

    def __init__(self, quota: Callable[[], Snapshot | Blind], *, seconds: float = _SECONDS) -> None:
        self._quota = quota
        self._seconds = seconds
        self._turn = ""
        """The last gang that was looked at, where there was no time for all."""
        self._known: dict[str, _Known] = {}
        """By root of the tree."""

    async def of(self, gangs: Sequence[str], now: datetime) -> dict[str, str]:
        """By key of the gang, the key of its heir; those without one are left out."""
        snapshot = self._quota()
        if isinstance(snapshot, Blind):
            return {}
        trees = {gang: tree for gang in gangs if (tree := _tree_of(gang, snapshot)) is not None}
        known = {gang: self._of_tree(snapshot, tree, now) for gang, tree in trees.items()}
        self._known = {trees[gang].root.name: each for gang, each in known.items()}
        await self._find({gang: each for gang, each in known.items() if gang not in each.heirs})
        return {gang: heir for gang, each in known.items() if (heir := each.heirs.get(gang, ""))}

    async def _find(self, unknown: Mapping[str, _Known]) -> None:
        """Look for as many heirs as there is time for, and for one at least, by name after the last one."""
        loop = asyncio.get_running_loop()
        deadline, turn = loop.time() + self._seconds, self._turn
        self._turn = ""
        for gang in sorted(unknown, key=lambda each: (each <= turn, each)):
            unknown[gang].heirs[gang] = await asyncio.to_thread(_heir, gang, unknown[gang])
            if loop.time() >= deadline:
                self._turn = gang
                return

    def _of_tree(self, snapshot: Snapshot, tree: Tree, now: datetime) -> _Known:
        version, known = snapshot.version(tree), self._known.get(tree.root.name)
        if known is None or known.snapshot is not snapshot or known.version != version:
            known = _Known(snapshot, version, _simulation(snapshot, tree, now))
            self._known[tree.root.name] = known
        return known


def _tree_of(gang: str, snapshot: Snapshot) -> Tree | None:
    """The tree where it has quota; None where that is not known, or nobody waits there."""
    own = snapshot.workload(gang)
    tree = snapshot.tree_of(snapshot.cluster_queue_of(own)) if own is not None else None
    return tree if tree is not None and snapshot.pending_in(tree) and not snapshot.doubts(tree) else None


def _simulation(snapshot: Snapshot, tree: Tree, now: datetime) -> Simulation:
    """Of the tree as it stands at this moment: whatever changes meanwhile does not reach it."""
    return Simulation(
        tree.clone(),
        snapshot.pending_in(tree),
        flavors=dict(snapshot.flavors),
        namespaces=dict(snapshot.namespaces),
        local_queue=snapshot.local_queue,
        now=now,
        fair_sharing=snapshot.fair_sharing,
    )


def _heir(gang: str, known: _Known) -> str:
    """The first who gets in only if the gang has gone, and stays; empty where nobody does, or nobody knows."""
    if gang not in known.simulation:
        return ""
    anyway = known.anyway = known.anyway or forecast(known.simulation, _NOBODY)
    after = forecast(known.simulation, frozenset({gang}))
    if not (anyway.comes_to_rest and after.comes_to_rest):
        return ""
    others = anyway.admitted | {each.key for each in anyway.start.holders}
    stay = {each.key for each in after.rest.holders} - others
    came = (each.key for cycle in after.run.cycles for each in cycle.admitted)
    return next((key for key in came if key in stay), "")
