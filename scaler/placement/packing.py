"""Can so many things of several kinds be packed into these spaces? Exactly, or "not known" after so many steps.

Laws:

* An answer yes carries the packing; an answer no is a proof; running out of steps is neither.
* Spaces into which the same combinations go are the same space, however their free amounts differ.
* Only counts are remembered: which spaces led to "3 of this and 2 of that" makes no difference for the rest.

How: for every space the fullest combinations are listed, those to which nothing can be added. Spaces are taken one by
one, and the counts that can be reached by then are kept; of those that differ in the last kind only, the greatest. One
is dropped when the spaces to come cannot add what is missing, measured kind by kind and resource by resource. What a
space adds is measured by the best of its combinations: 8 free hold one thing of 5, so that they add 5 to these.

Worked example: two spaces of 8, two things of 5, two of 3. A space takes (1, 1) or (0, 2), and both are reached after
the first. The second adds one thing of 5 at most: (0, 2) lacks two of them and is dropped; (1, 1) twice is all.

The tempting alternative, trying thing by thing on space by space, searches the same counts again for every order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add, ge, mul, sub
from typing import NamedTuple

Counts = tuple[int, ...]
"""How many of each kind."""


class ItemKind(NamedTuple):
    needs: Counts
    """Of one of them, resource by resource."""
    wanted: int
    """Above 0."""


class Bin(NamedTuple):
    """Something that takes things."""

    free: Counts
    """Resource by resource."""
    allowed: tuple[bool, ...]
    """Whether each kind may go there."""


class PackingLimitError(Exception):
    """The steps have run out: it is not known whether a packing exists."""


@dataclass(slots=True)
class Steps:
    """How much may still be searched. A step is one combination that is looked at."""

    left: int

    def take(self, count: int) -> None:
        if self.left < count:
            raise PackingLimitError
        self.left -= count


Combinations = tuple[Counts, ...]
"""All that fill one space."""


class _Stop(NamedTuple):
    space: int
    combinations: Combinations


class _Reached(NamedTuple):
    """How counts were reached: the greatest number of the last kind, and the step that led there."""

    last: int
    before: Counts
    combination: Counts


_Layer = dict[Counts, _Reached]
"""What is reached after some spaces, by the numbers of all kinds but the last."""


def pack(kinds: Sequence[ItemKind], spaces: Sequence[Bin], steps: Steps) -> dict[int, Counts] | None:
    """What goes into each space, by its position, where they take all of the kinds together; None where they do not.

    Spaces that stay empty are left out. Raises: PackingLimitError.
    """
    # Only the greatest number is kept of the last kind, so that this is the one with the most numbers to tell apart.
    order = sorted(range(len(kinds)), key=lambda kind: (kinds[kind].wanted, kinds[kind].needs, kind))
    search = _Search(
        [kinds[kind] for kind in order],
        [Bin(space.free, tuple(space.allowed[kind] for kind in order)) for space in spaces],
        steps,
    )
    found = search.run()
    if found is None:
        return None
    back = [order.index(kind) for kind in range(len(kinds))]
    return {space: tuple(counts[place] for place in back) for space, counts in found.items()}


@dataclass
class _Search:
    kinds: list[ItemKind]
    spaces: list[Bin]
    steps: Steps

    @cached_property
    def wanted(self) -> Counts:
        return tuple(kind.wanted for kind in self.kinds)

    @cached_property
    def needs(self) -> list[Counts]:
        return list(zip(*(kind.needs for kind in self.kinds), strict=True))

    def run(self) -> dict[int, Counts] | None:
        way = self._way()
        to_come = self._to_come(way)
        nothing = tuple(0 for _ in self.kinds[1:])
        layers = [self._promising({nothing: _Reached(0, (), ())}, to_come[0])]
        for stop, bounds in zip(way, to_come[1:], strict=True):
            grown = self._grown(layers[-1], stop.combinations)
            layers.append(grown)
            found = grown.get(self.wanted[:-1])
            if found is not None and found.last == self.wanted[-1]:
                return self._retraced(layers, way)
            layers[-1] = self._promising(grown, bounds)
        return None

    # ---------------------------------------------------------------------------------------------------- combinations

    def _way(self) -> list[_Stop]:
        """The spaces that may be of use: those with the least choice first, which keeps the counts few for long."""
        groups = sorted(self._alike().items(), key=lambda group: (len(group[0]), group[0]))
        return [
            _Stop(space, combinations)
            for combinations, spaces in groups
            for space in spaces[: self._most_of_use(combinations)]
        ]

    def _most_of_use(self, combinations: Combinations) -> int:
        """Of spaces that are alike: each one in use takes a thing at least."""
        columns = zip(*combinations, strict=True)
        return sum(wanted for wanted, column in zip(self.wanted, columns, strict=True) if any(column))

    def _alike(self) -> dict[Combinations, list[int]]:
        known: dict[tuple[Counts, Counts], Combinations] = {}
        groups: dict[Combinations, list[int]] = {}
        for position, space in enumerate(self.spaces):
            rooms = tuple(self._room(kind, space) for kind in range(len(self.kinds)))
            if not any(rooms):
                continue
            # More than all that may go there is as good as just that; without it no two free memories are equal.
            most = (sum(map(mul, rooms, needs)) for needs in self.needs)
            space_key = tuple(map(min, space.free, most)), rooms
            if space_key not in known:
                known[space_key] = tuple(sorted(self._fullest(*space_key)))
            groups.setdefault(known[space_key], []).append(position)
        return groups

    def _room(self, kind: int, space: Bin) -> int:
        if not space.allowed[kind]:
            return 0
        return _times(self.kinds[kind].needs, space.free, self.kinds[kind].wanted)

    def _fullest(self, free: Counts, rooms: Counts, chosen: Counts = ()) -> Iterator[Counts]:
        """The fullest combinations, where the numbers of the first kinds are chosen and `free` is what they leave."""
        kind = len(chosen)
        if kind == len(self.kinds):
            self.steps.take(1)
            if not any(self._takes_one(other, free, rooms, chosen) for other in range(kind)):
                yield chosen
            return
        needs = self.kinds[kind].needs
        most = _times(needs, free, rooms[kind])
        fewest = most if kind == len(self.kinds) - 1 else 0
        for count in range(fewest, most + 1):
            left = tuple(have - count * need for have, need in zip(free, needs, strict=True))
            yield from self._fullest(left, rooms, (*chosen, count))

    def _takes_one(self, kind: int, left: Counts, rooms: Counts, chosen: Counts) -> bool:
        return chosen[kind] < rooms[kind] and all(map(ge, left, self.kinds[kind].needs))

    # ---------------------------------------------------------------------------------------------------------- search

    def _to_come(self, way: Sequence[_Stop]) -> list[Counts]:
        """What the spaces from each one on add at most: of each kind alone, then of each resource."""
        known: dict[Combinations, Counts] = {}
        bounds: list[Counts] = [tuple(0 for _ in (*self.kinds, *self.needs))]
        for _, combinations in reversed(way):
            if combinations not in known:
                alone = map(max, zip(*combinations, strict=True))
                known[combinations] = (*alone, *(max(_weighed(needs, combinations)) for needs in self.needs))
            bounds.append(tuple(map(add, bounds[-1], known[combinations])))
        return bounds[::-1]

    def _grown(self, layer: _Layer, combinations: Combinations) -> _Layer:
        self.steps.take(len(layer) * len(combinations))
        wanted, most = self.wanted[:-1], self.wanted[-1]
        grown: _Layer = {}
        for before, reached in layer.items():
            for each in combinations:
                after = tuple(map(min, map(add, before, each), wanted))
                last = min(reached.last + each[-1], most)
                known = grown.get(after)
                if known is None or known.last < last:
                    grown[after] = _Reached(last, before, each)
        return grown

    def _promising(self, layer: _Layer, bounds: Counts) -> _Layer:
        return {
            counts: reached for counts, reached in layer.items() if min(self._spare(counts, reached.last, bounds)) >= 0
        }

    def _spare(self, counts: Counts, last: int, bounds: Counts) -> Iterator[int]:
        """What is to come beyond what the counts lack, bound by bound."""
        missing = tuple(map(sub, self.wanted, (*counts, last)))
        lacking = (*missing, *(sum(map(mul, needs, missing)) for needs in self.needs))
        return map(sub, bounds, lacking)

    def _retraced(self, layers: Sequence[_Layer], way: Sequence[_Stop]) -> dict[int, Counts]:
        left, key = self.wanted, self.wanted[:-1]
        found: dict[int, Counts] = {}
        for layer, stop in reversed(list(zip(layers[1:], way, strict=False))):
            reached = layer[key]
            taken = tuple(map(min, reached.combination, left))
            left = tuple(have - less for have, less in zip(left, taken, strict=True))
            if any(taken):
                found[stop.space] = taken
            key = reached.before
        return found


def _times(needs: Counts, free: Counts, most: int) -> int:
    """How often the needs go into what is free. What is less than nothing bothers only those who need it."""
    return max(0, min([most, *(have // need for have, need in zip(free, needs, strict=True) if need)]))


def _weighed(measure: Counts, combinations: Iterable[Counts]) -> Iterator[int]:
    return (sum(map(mul, measure, each)) for each in combinations)
