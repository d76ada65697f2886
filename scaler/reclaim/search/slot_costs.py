"""What does it cost at least to gain the slots that a gang lacks, and with which candidates? Counted node by node.

How many slots a node gains depends on all that is freed there: two candidates of 2 GPUs make a slot of 4 on one node,
and none on two. So the least cost of every number of slots is found for each node alone, and the cheapest choice of one
number for every node is the least that all of them cost together.

Laws:

* No set with which the gang fits its nodes costs less.
* Where every candidate is on one node and its devices decide alone, the cover found costs just that. It is the set to
  ask about first: where it is accepted, nothing is left to search.
* Nodes that have a candidate in common cannot be counted apart. What is on them is counted candidate by candidate, by
  the most that each could add (`MissingSlots.gain`).

Worked example: pods of 4, two slots are missing. a (2, cost 1) and b (2, cost 1) are on node n1, c (2, cost 1) on n2, d
(4, cost 5) on n3, e (4, cost 9) on n4. A slot costs 2 on n1, 5 on n3, 9 on n4; n2 gains none. Two cost 7: a, b, d. By
what each could add, a, b, c and nothing else would cost 3 for one and a half.

Of nodes where so many slots cost the same or more than on as many others as slots are missing, none is needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaler.reclaim.search.problem import Cover
from scaler.reclaim.search.shortfalls import SLOT, MissingSlots

_UNITS = 512
"""Larger needs are counted in coarser units, as by `LowerBound`."""
_INFINITE = 2**62


class _Option(NamedTuple):
    """One way to gain slots on a node."""

    gain: int
    """In parts of a slot: `SLOT` of them are one."""
    cost: int
    keys: tuple[str, ...]


class SlotCosts:
    """Of the slots for pods of one shape. `costs` has all candidates, by key of their Workload."""

    def __init__(self, missing: MissingSlots, costs: Mapping[str, int]) -> None:
        self._missing = missing
        self._costs = costs
        self._on_node: dict[int, list[tuple[int, str]]] = {}
        """Devices and key of those whose node can be counted apart."""
        self._single: dict[str, list[_Option]] = {}
        """The one option of each of the others."""
        self._file(missing.held)
        self._options = {node: self._options_on(node) for node in self._on_node}

    def _file(self, held: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        linked = {node for parts in held.values() if len(parts) > 1 for node, _ in parts}
        for key, parts in held.items():
            if linked.isdisjoint(node for node, _ in parts):
                ((node, devices),) = parts
                self._on_node.setdefault(node, []).append((devices, key))
            else:
                self._single[key] = [_Option(self._missing.gain(key), self._costs[key], (key,))]

    def _options_on(self, node: int, without: str = "") -> list[_Option]:
        """The least cost of every number of slots, as far as one more costs more."""
        first, more = self._missing.parts[node]
        most = first + (more - 1) * self._missing.amount
        least: list[tuple[int, tuple[str, ...]]] = [(0, ()), *[(_INFINITE, ())] * most]
        for devices, key in self._on_node[node]:
            if key != without:
                _take(least, devices, self._costs[key], key)
        options: list[_Option] = []
        for slots in range(more, 0, -1):
            cost, keys = least[first + (slots - 1) * self._missing.amount]
            if cost < _INFINITE and (not options or cost < options[-1].cost):
                options.append(_Option(slots * SLOT, cost, keys))
        return options

    def cheapest(self, without: str = "") -> Cover | None:
        """The least cost of all missing slots, and who would have to go for it; None where they cannot be gained."""
        options = dict(self._options)
        for node, _ in self._missing.held.get(without, ()):
            if node in options:
                options[node] = self._options_on(node, without)
        single = [each for key, each in self._single.items() if key != without]
        return _cheapest([*_needed(options.values(), self._missing.count), *single], self._missing.count * SLOT)


def _take(least: list[tuple[int, tuple[str, ...]]], devices: int, cost: int, key: str) -> None:
    """Let one more candidate count in the least cost of every number of devices."""
    for need in range(len(least) - 1, 0, -1):
        rest, keys = least[max(0, need - devices)]
        if rest + cost < least[need][0]:
            least[need] = rest + cost, (*keys, key)


def _needed(nodes: Iterable[list[_Option]], count: int) -> list[list[_Option]]:
    """The nodes among which a cheapest choice is: so many with the least cost of every number of slots.

    A choice takes slots from `count` nodes at most. One that is not among the cheapest for its number of slots can be
    exchanged for one of these that is not taken.
    """
    by_gain: dict[int, list[tuple[int, tuple[str, ...], int]]] = {}
    known = list(nodes)
    for place, options in enumerate(known):
        for gain, cost, keys in options:
            by_gain.setdefault(gain, []).append((cost, keys, place))
    kept = {place for ranked in by_gain.values() for _, _, place in nsmallest(count, ranked)}
    return [known[place] for place in sorted(kept)]


def _cheapest(groups: Sequence[Sequence[_Option]], missing: int) -> Cover | None:
    """At most one option of every group, so that the gains add up. Gains are rounded up to the units counted in."""
    common = gcd(missing, *(each.gain for options in groups for each in options))
    unit = common * max(1, missing // common // _UNITS)
    need = missing // unit
    rows = [np.full(need + 1, _INFINITE, dtype=np.int64)]
    rows[0][0] = 0
    for options in groups:
        rows.append(_with_one_of(rows[-1], options, unit))
    return _chosen(groups, rows, unit) if rows[-1][need] < _INFINITE else None


def _with_one_of(before: NDArray[np.int64], options: Iterable[_Option], unit: int) -> NDArray[np.int64]:
    """The least cost of every need, with one of the options or none."""
    row = before.copy()
    for gain, cost, _ in options:
        units = -(-gain // unit)
        np.minimum(row[units:], before[: max(0, len(row) - units)] + cost, out=row[units:])
        np.minimum(row[1:units], cost, out=row[1:units])
    return row


def _chosen(groups: Sequence[Sequence[_Option]], rows: Sequence[NDArray[np.int64]], unit: int) -> Cover:
    need = len(rows[0]) - 1
    total, keys = int(rows[-1][need]), list[str]()
    for options, before, row in zip(reversed(groups), reversed(rows[:-1]), reversed(rows[1:]), strict=True):
        if row[need] < before[need]:
            rests = ((each, max(0, need - -(-each.gain // unit))) for each in options)
            taken, need = next((each, rest) for each, rest in rests if before[rest] + each.cost == row[need])
            keys += taken.keys
    return Cover(cost=total, keys=frozenset(keys))


def covers(choices: Sequence[Sequence[SlotCosts]], without: str = "") -> list[Cover]:
    """The cheapest cover of every combination of flavors that could be enough, the cheapest first.

    The gang needs the slots of one of them, and of that one those for all of its shapes: together they cost at least
    what the dearest costs.
    """
    found = []
    for shapes in choices:
        parts = [each.cheapest(without) for each in shapes]
        known = [each for each in parts if each is not None]
        if len(known) == len(parts):
            keys = frozenset[str]().union(*(each.keys for each in known))
            found.append(Cover(cost=max((each.cost for each in known), default=0), keys=keys))
    return sorted(found, key=lambda each: (each.cost, sorted(each.keys)))
