"""What does it cost at least to gain what is missing, and with which candidates? The sets to ask about first.

A cover of a need is the cheapest set whose gains add up to it. No set that is enough costs less than the cover of any
need, so where a cover is accepted that costs as much as the dearest one, nothing is left to search.

Slots are counted node by node: two candidates of 2 GPUs make a slot of 4 on one node, and none on two. So the least
cost of every number of slots is found for each node alone, and a cover takes one number on every node.

Laws:

* No set with which the gang is admitted and fits its nodes costs less than `Covers.floor`.
* Where every candidate is on one node and its devices decide alone, the cover of slots costs just what they do.
* Nodes that have a candidate in common cannot be counted apart. What is on them is counted candidate by candidate, by
  the most that each could add (`MissingSlots.gain`).

Worked example: pods of 4, two slots are missing. a (2, cost 1) and b (2, cost 1) are on node n1, c (2, cost 1) on n2, d
(4, cost 5) on n3, e (4, cost 9) on n4. A slot costs 2 on n1, 5 on n3, 9 on n4; n2 gains none. Two cost 7: a, b, d. By
what each could add, a, b, c and half of d would do.

Most nodes and candidates are in no cover, and are left out at once: of those where as much is gained, only the cheapest
are needed, as many as could be taken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaler.reclaim.search.shortfalls import SLOT, MissingAmount, MissingSlots

_UNITS = 512
"""The most units of a need: larger ones are counted in coarser units, as by `LowerBound`."""
_INFINITE = 2**62


class Cover(NamedTuple):
    cost: int
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Covers:
    found: Sequence[Cover] = ()
    """The cheapest first."""
    floor: int = 0
    """What every set costs at least that is enough."""


class _Option(NamedTuple):
    gain: int
    cost: int
    keys: tuple[str, ...]


def covers_of(
    needs: Iterable[MissingAmount], slots: Sequence[Sequence["SlotCosts"]], costs: Mapping[str, int], without: str = ""
) -> Covers:
    """The covers of amounts that are all needed, and of the slots that any one combination of flavors needs.

    `without`: the key of a candidate that stays.
    """
    of_amounts = [cover for need in needs if (cover := _cover_of_amount(need, costs, without)) is not None]
    of_slots = list(_covers_of_slots(slots, without))
    floors = [cover.cost for cover in of_amounts] + [min((cover.cost for cover in of_slots), default=0)]
    floor = max(floors)
    enough = {cover for cover in (*of_amounts, *of_slots) if cover.cost >= floor}
    return Covers(sorted(enough, key=lambda cover: (cover.cost, sorted(cover.keys))), floor)


def _cover_of_amount(need: MissingAmount, costs: Mapping[str, int], without: str = "") -> Cover | None:
    """The cheapest cover of this amount; None where all candidates together gain too little."""
    options = [[_Option(gain, costs[key], (key,))] for key, gain in need.gains.items() if key != without]
    return _cheapest(options, need.amount)


def _covers_of_slots(choices: Sequence[Sequence["SlotCosts"]], without: str) -> Iterator[Cover]:
    """One for every combination of flavors that could be enough.

    The slots for all shapes are needed. Together they cost at least what the dearest costs.
    """
    for shapes in choices:
        parts = [cover for each in shapes if (cover := each.cover(without)) is not None]
        if len(parts) == len(shapes):
            keys = frozenset[str]().union(*(cover.keys for cover in parts))
            yield Cover(max((cover.cost for cover in parts), default=0), keys)


# --------------------------------------------------------------------------------------------------- node by node


class SlotCosts:
    """What the slots for pods of one shape cost. `costs` has all candidates, by key of their Workload."""

    def __init__(self, missing: MissingSlots, costs: Mapping[str, int]) -> None:
        self._missing = missing
        self._costs = costs
        self._on_node: dict[int, list[tuple[int, str]]] = {}
        """Devices and key of those whose node can be counted apart."""
        self._single: dict[str, list[_Option]] = {}
        """The one option of each of the others."""
        linked = {node for parts in missing.held.values() if len(parts) > 1 for node, _ in parts}
        for key, parts in missing.held.items():
            if linked.isdisjoint(node for node, _ in parts):
                ((node, devices),) = parts
                self._on_node.setdefault(node, []).append((devices, key))
            else:
                self._single[key] = [_Option(missing.gain(key), costs[key], (key,))]
        self._options = {node: self._options_on(node) for node in self._on_node}

    def _options_on(self, node: int, without: str = "") -> list[_Option]:
        """The least cost of every number of slots, as far as one more costs more."""
        (first, more), amount = self._missing.parts[node], self._missing.amount
        held = [each for each in self._on_node[node] if each[1] != without]
        least = _least(held, self._costs, first + (min(more, self._missing.count) - 1) * amount)
        options: list[_Option] = []
        for devices in range(len(least) - 1, first - 1, -amount):
            cost, keys = least[devices]
            if cost < _INFINITE and (not options or cost < options[-1].cost):
                options.append(_Option(((devices - first) // amount + 1) * SLOT, cost, keys))
        return options

    def cover(self, without: str = "") -> Cover | None:
        """A cover of all slots that are missing; None where they cannot be gained."""
        options = self._options
        changed = [node for node, _ in self._missing.held.get(without, ()) if node in options]
        if changed:
            options = options | {node: self._options_on(node, without) for node in changed}
        single = [each for key, each in self._single.items() if key != without]
        return _cheapest([*options.values(), *single], self._missing.count * SLOT)


def _least(held: Iterable[tuple[int, str]], costs: Mapping[str, int], most: int) -> list[tuple[int, tuple[str, ...]]]:
    """The least cost of so many devices or more, from none up to the most that are of use, and who holds them."""
    least: list[tuple[int, tuple[str, ...]]] = [(0, ()), *[(_INFINITE, ())] * most]
    for devices, key in held:
        cost = costs[key]
        for need in range(most, 0, -1):
            rest, keys = least[need - devices] if need > devices else least[0]
            if rest + cost < least[need][0]:
                least[need] = rest + cost, (*keys, key)
    return least


# ---------------------------------------------------------------------------------------------- the cheapest choice


def _cheapest(groups: Sequence[Sequence[_Option]], missing: int) -> Cover | None:
    """The cheapest choice of at most one option of every group whose gains, rounded up to units, reach the amount."""
    common = gcd(missing, *(each.gain for options in groups for each in options))
    unit = common * max(1, missing // common // _UNITS)
    groups = _needed(groups, missing)
    need = missing // unit
    rows = [np.full(need + 1, _INFINITE, dtype=np.int64)]
    rows[0][0] = 0
    for options in groups:
        rows.append(_with_one_of(rows[-1], options, unit))
    return _chosen(groups, rows, unit) if rows[-1][need] < _INFINITE else None


def _needed(groups: Sequence[Sequence[_Option]], missing: int) -> list[Sequence[_Option]]:
    """The groups among which a cheapest choice is.

    A choice in which nothing is needless takes an option of so many groups at most as the least gain there is goes into
    what is missing, and of groups with no other option not more than their own. One that is not among so many of the
    cheapest with its gain can be exchanged for one of these that is not taken.
    """
    by_gain: dict[tuple[int, bool], list[tuple[int, tuple[str, ...], int]]] = {}
    for place, options in enumerate(groups):
        for gain, cost, keys in options:
            by_gain.setdefault((gain, len(options) == 1), []).append((cost, keys, place))
    least = min((gain for gain, _ in by_gain), default=1)
    kept: set[int] = set()
    for (gain, is_single), ranked in by_gain.items():
        most = -(-missing // (gain if is_single else least))
        kept.update(place for _, _, place in nsmallest(most, ranked))
    return [groups[place] for place in sorted(kept)]


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
    return Cover(total, frozenset(keys))
