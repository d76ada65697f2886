"""Which ScaledObjects are in demand? The operator's wake queries, once per tick, however many ScaledObjects there are.

Laws:

* A query that fails wakes no ScaledObject, and no ScaledObject that it covers is scaled to 0.
* That nothing is in demand is known from an element that is 0. Where a ScaledObject has no element, its series may not
  exist at all (a gateway that is not scraped, a store that was lost), so the same holds for it as after a failure;
  unless the operator says of the query that `absent` means quiet. NaN is no answer either.
* The queries are the operator's. Tenants name none.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import structlog

from scaler.errors import SourceError
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.samples.source import InstantQuerySource, VectorSample

log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""(namespace, name) of a ScaledObject."""


class WhenAbsent(StrEnum):
    """What it means that a query has no element for a ScaledObject."""

    BUSY = "busy"
    """Whether it is in demand is unknown: it may be."""
    QUIET = "quiet"
    """It is in no demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeQuery:
    """An operator's demand query: each element above 0 asks for one ScaledObject to run, and to come back for it."""

    name: str
    promql: str
    namespaces: frozenset[str] = frozenset()
    namespace_label: str = "namespace"
    name_label: str = "scaledobject"
    absent: WhenAbsent = WhenAbsent.BUSY

    def covers(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces


class Demand(NamedTuple):
    """What the queries show of one ScaledObject."""

    asked_by: str = ""
    """The first query that has an element above 0, in words; empty where none has."""
    queries: tuple[WakeQuery, ...] = ()
    """The queries that have an element for it."""


_NOTHING_SHOWN = Demand()


@dataclass(kw_only=True)
class WakeQueries:
    """The queries, and what they showed at the last tick."""

    queries: Sequence[WakeQuery] = ()
    source: InstantQuerySource | None = None
    shown: Mapping[Key, Demand] = field(default_factory=dict, init=False)
    """The demand of ScaledObjects that have an element."""
    _unheard: Sequence[tuple[WakeQuery, Unknown]] = field(default=(), init=False)
    """The queries that failed, and why."""

    def of(self, key: Key) -> str:
        """Which query asks for the ScaledObject, in words; empty where none does."""
        return self.shown.get(key, _NOTHING_SHOWN).asked_by

    def doubt_in(self, namespace: str) -> Unknown | None:
        """Why the demand for everything there is unknown; None where no query that covers it has failed."""
        return next((doubt for query, doubt in self._unheard if query.covers(namespace)), None)

    def doubt_of(self, key: Key) -> Unknown | None:
        """Why the demand for the ScaledObject is unknown; None where it is known."""
        shown = self.shown.get(key, _NOTHING_SHOWN).queries
        silent = (
            each
            for each in self.queries
            if each.absent is WhenAbsent.BUSY and each.covers(key[0]) and each not in shown
        )
        return self.doubt_in(key[0]) or next((_unanswered(query, key) for query in silent), None)

    async def ask(self, at: datetime) -> None:
        """Run the queries; of several that demand a ScaledObject the first is named."""
        queries, found, unheard = self.queries, dict[Key, Demand](), list[tuple[WakeQuery, Unknown]]()
        answers = await asyncio.gather(*(self._elements(query, at) for query in queries))
        for query, elements in zip(queries, answers, strict=True):
            if isinstance(elements, Unknown):
                unheard.append((query, elements))
                continue
            for element in elements:
                key = element.labels.get(query.namespace_label, ""), element.labels.get(query.name_label, "")
                if query.covers(key[0]) and not math.isnan(element.value):
                    before, asks = found.get(key, _NOTHING_SHOWN), f"demand query {query.name!r}"
                    asked_by = before.asked_by or (asks if element.value > 0 else "")
                    found[key] = Demand(asked_by, (*before.queries, query))
        self.shown, self._unheard = found, unheard

    async def _elements(self, query: WakeQuery, at: datetime) -> Sequence[VectorSample] | Unknown:
        if self.source is None:
            return ()
        try:
            return await self.source.demand(query.promql, at=at)
        except SourceError as error:
            log.warning("wake query failed", query=query.name, error=str(error))
            return Unknown(reason=UnknownReason.SOURCE_UNAVAILABLE, message=f"demand query {query.name!r}: {error}")


def _unanswered(query: WakeQuery, key: Key) -> Unknown:
    return Unknown(
        reason=UnknownReason.SOURCE_UNAVAILABLE,
        message=f"demand query {query.name!r} has no element for {'/'.join(key)}, so that its demand is unknown; "
        "let the query give 0 where there is none, or set absent: quiet for it",
    )
