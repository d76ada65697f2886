"""Which decisions do not hold any more? What each rests on is remembered, and compared with what is there now.

| a decision rests on                            | it is made again when                                             |
|------------------------------------------------|-------------------------------------------------------------------|
| its ScaledObject                               | spec or annotations are not what they were                        |
| other objects of its namespace, and all that   | one of them has changed, or what is doubted there                 |
| is doubted about them                          |                                                                   |
| its GPUs                                       | what one of them shows has changed, or pods there got or lost one |
| demand queries                                 | they ask for it, or do not any more                               |
| the clock                                      | an instant has come that was known when it was decided            |
| what is doubted about all samples              | that has changed: all of them                                     |

Laws:

* A decision that is not made again is the one that would be made now, but for `decided_at`.
* What has to be decided again stays so until it was published: a tick that fails loses nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaler.clock import Turns
from scaler.decision.decision_cache import EvaluatedScaledObject, Key
from scaler.decision.scale_targets import ScaleTarget
from scaler.idleness.history import History
from scaler.idleness.pods import JudgedBy, judged_by
from scaler.idleness.policy import Trust
from scaler.idleness.verdict import Unknown
from scaler.idleness.window import BLOCK
from scaler.kube.objects.keda import ScaledObject, Trigger

_WORTH_COMPARING = 4
"""ScaledObjects: to compare what the GPUs of so many show takes as long as to decide about them."""


_AT_ONCE = 512
"""Objects looked at before the time is."""


class OwnTriggers(NamedTuple):
    """A ScaledObject with triggers that ask this scaler."""

    scaled_object: ScaledObject
    triggers: Sequence[Trigger]
    longest: timedelta
    """The longest window that one of them asks for; 0 where none asks for a certain one."""


Look = Callable[[NDArray[np.intp]], NDArray[np.float64]]
"""What rows show, as `GpuVerdicts.compared` tells it."""
_WIDTH = 4


@dataclass
class JudgedRows:
    """GPUs that are judged alike, and what they showed when that was asked for the last time."""

    rows: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    """Rows by ScaledObject, or by pod."""
    shown: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, _WIDTH)))
    """What `GpuVerdicts.compared` says of each row; NaN where it was not asked yet."""
    _all: tuple[NDArray[np.intp], Sequence[Key], NDArray[np.intp]] | None = None

    def put(self, key: Key, rows: tuple[int, ...]) -> None:
        before = self.rows.get(key, ())
        if rows == before:
            return
        if new := [row for row in rows if row not in before and row < len(self.shown)]:
            self.shown[new] = np.nan
        self.rows[key] = rows
        self._all = None

    def forget(self, key: Key) -> None:
        if self.rows.pop(key, None) is not None:
            self._all = None

    async def changed(self, look: Look) -> set[Key]:
        """The workloads whose GPUs show something else than the last time."""
        rows, keys, owners = self._columns()
        is_other, turns = np.zeros(len(rows), np.bool_), Turns()
        for start in range(0, len(rows), BLOCK):
            some = slice(start, start + BLOCK)
            shown = look(rows[some])
            is_other[some] = (self.shown[rows[some]] != shown).any(axis=1)
            self.shown[rows[some]] = shown
            await turns.give_way()
        return {keys[owner] for owner in np.unique(owners[is_other]).tolist()}

    async def look_at_new(self, look: Look) -> None:
        """What new rows show is what the decisions were made from that rest on them."""
        if self._all is None:
            rows, _, _ = self._columns()
            new, turns = rows[np.isnan(self.shown[rows, 0])], Turns()
            for start in range(0, len(new), BLOCK):
                some = new[start : start + BLOCK]
                self.shown[some] = look(some)
                await turns.give_way()

    def _columns(self) -> tuple[NDArray[np.intp], Sequence[Key], NDArray[np.intp]]:
        """All rows, the ScaledObjects, and to which of them each row belongs."""
        if self._all is None:
            owners = np.repeat(np.arange(len(self.rows)), [*map(len, self.rows.values())])
            self._all = np.fromiter(chain.from_iterable(self.rows.values()), np.intp), [*self.rows], owners
            if (more := int(self._all[0].max(initial=-1)) + 1 - len(self.shown)) > 0:
                self.shown = np.vstack([self.shown, np.full((more, _WIDTH), np.nan)])
        return self._all


class DecisionInputs:
    """What decisions rest on. `own_triggers` gives those of a ScaledObject that ask this scaler, or None.

    Where fewer than `fewest` ScaledObjects judge by the same window and ratio, they are decided again at every tick.
    """

    def __init__(
        self, own_triggers: Callable[[ScaledObject], OwnTriggers | None], *, fewest: int = _WORTH_COMPARING
    ) -> None:
        self._own_triggers = own_triggers
        self._fewest = fewest
        self._known: dict[Key, ScaledObject] = {}
        self._own: dict[Key, OwnTriggers] = {}
        self._namespaces: defaultdict[str, set[Key]] = defaultdict(set)
        self._revisions: dict[str, Hashable] = {}
        self._common: Hashable = None
        self._demand: Mapping[Key, Hashable] = {}
        self._judged: defaultdict[JudgedBy, JudgedRows] = defaultdict(JudgedRows)
        self._judged_by: dict[Key, tuple[JudgedBy, ...]] = {}
        self._due: list[tuple[datetime, Key]] = []
        self._holds_until: dict[Key, datetime] = {}
        self.outdated: set[Key] = set()
        """What has to be decided again."""

    @property
    def own(self) -> Mapping[Key, OwnTriggers]:
        """All ScaledObjects with triggers that ask this scaler."""
        return self._own

    # ------------------------------------------------------------------------------------------------- ScaledObjects

    async def update(self, scaled_objects: Sequence[ScaledObject]) -> bool:
        """Look at all ScaledObjects there are. Returns whether any is new, gone or another than before."""
        is_other, known, turns = False, self._known, Turns()
        for count, each in enumerate(scaled_objects):
            if count % _AT_ONCE == 0:
                await turns.give_way()
            before = known.get(each.metadata.key)
            if before is not each:
                is_other |= self._take(each, before)
        if len(known) > len(scaled_objects):
            for key in known.keys() - {each.metadata.key for each in scaled_objects}:
                del known[key]
                self._forget(key)
            is_other = True
        return is_other

    def _take(self, scaled_object: ScaledObject, before: ScaledObject | None) -> bool:
        """Whether it is another one. KEDA writes into the status of each at every poll: that changes nothing here."""
        key = scaled_object.metadata.key
        self._known[key] = scaled_object
        own = self._own.get(key)
        if before is not None and _asks(before) == _asks(scaled_object):
            if own is not None:
                self._own[key] = own._replace(scaled_object=scaled_object)
            return False
        if (own := self._own_triggers(scaled_object)) is None:
            self._forget(key)
        else:
            self._own[key] = own
            self._namespaces[key[0]].add(key)
            self.outdated.add(key)
        return True

    def _forget(self, key: Key) -> None:
        if self._own.pop(key, None) is None:
            return
        self._namespaces[key[0]].discard(key)
        if not self._namespaces[key[0]]:
            del self._namespaces[key[0]]
            self._revisions.pop(key[0], None)
        self.rests_on(key, gpus={}, until=None)
        self.outdated.discard(key)

    # ------------------------------------------------------------------------------------------------- what it rests on

    def rests_on(self, key: Key, *, gpus: Mapping[JudgedBy, tuple[int, ...]], until: datetime | None) -> None:
        """What the decision about the ScaledObject rests on, and the next instant at which it may not hold any more.

        `gpus`: rows of the history, by what they are judged by.
        """
        for by, rows in gpus.items():
            self._judged[by].put(key, rows)
        for by in self._judged_by.pop(key, ()):
            if by not in gpus:
                self._judged[by].forget(key)
                if not self._judged[by].rows:
                    del self._judged[by]
        if gpus:
            self._judged_by[key] = tuple(gpus)
        if until is None:
            self._holds_until.pop(key, None)
        elif self._holds_until.get(key) != until:
            self._holds_until[key] = until
            heappush(self._due, (until, key))

    def decided(
        self,
        key: Key,
        target: ScaleTarget,
        entry: EvaluatedScaledObject,
        doubt: Unknown | None,
        history: History,
        *,
        trust: Trust,
    ) -> None:
        """The ScaledObject is decided, on that target and from what the history holds, with that doubt about it."""
        decisions = entry.triggers.values()
        instants = [target.until, *(each.holds_until(doubt) for each in decisions)]
        judged = [judged_by(each.policy, trust) for each in decisions if each.verdict is not None]
        rows = tuple(row for pod in (target.pods if judged else ()) for row in history.rows_of(pod.namespace, pod.name))
        until = min((each for each in instants if each is not None), default=None)
        self.rests_on(key, gpus=dict.fromkeys(judged, rows), until=until)

    async def published(self, keys: Iterable[Key], history: History, *, trust: Trust, end: datetime) -> None:
        """These are decided, from what the history holds."""
        self.outdated.difference_update(keys)
        for by, judged in self._judged.items():
            if len(judged.rows) >= self._fewest:
                await judged.look_at_new(look_at(history, by, trust, end))

    def compare_common(self, common: Hashable) -> None:
        """What every decision rests on."""
        if common != self._common:
            self._common = common
            self.outdated.update(self._own)

    async def compare_namespaces(self, revision: Callable[[str], Hashable]) -> None:
        """`revision` tells what decisions about ScaledObjects of a namespace rest on, the ScaledObjects apart."""
        turns = Turns()
        for namespace, keys in [*self._namespaces.items()]:
            await turns.give_way()
            now = revision(namespace)
            if self._revisions.get(namespace) != now:
                self._revisions[namespace] = now
                self.outdated |= keys

    def compare_demand(self, demand: Mapping[Key, Hashable]) -> None:
        others = {key for key, _ in self._demand.items() ^ demand.items()}
        self._demand = demand
        self.outdated |= others & self._own.keys()

    async def compare_gpus(self, history: History, *, trust: Trust, end: datetime) -> None:
        for namespace in history.take_moved():
            self.outdated |= self._namespaces.get(namespace, set())
        for by, judged in self._judged.items():
            is_worth = len(judged.rows) >= self._fewest
            self.outdated |= await judged.changed(look_at(history, by, trust, end)) if is_worth else judged.rows.keys()

    def compare_clock(self, now: datetime) -> None:
        while self._due and self._due[0][0] <= now:
            until, key = heappop(self._due)
            if self._holds_until.get(key) == until:
                del self._holds_until[key]
                self.outdated.add(key)


def look_at(history: History, by: JudgedBy, trust: Trust, end: datetime) -> Look:
    above_ratio, length = by
    return lambda rows: history.verdicts(rows, above_ratio=above_ratio, length=length, trust=trust, end=end).compared()


def _asks(scaled_object: ScaledObject) -> tuple[object, ...]:
    return scaled_object.spec, scaled_object.metadata.annotations, scaled_object.metadata.uid
