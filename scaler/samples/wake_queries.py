"""Which ScaledObjects are in demand? The operator's wake queries, once per tick, however many ScaledObjects there are.

Laws:

* A query that fails wakes no ScaledObject, and no ScaledObject that it covers is scaled to 0.
* The queries are the operator's. Tenants name none.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from scaler.errors import SourceError
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.samples.source import InstantQuerySource, VectorSample

log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""(namespace, name) of a ScaledObject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeQuery:
    """An operator's demand query: each element above 0 asks for one ScaledObject to run, and to come back for it."""

    name: str
    promql: str
    namespaces: frozenset[str] = frozenset()
    namespace_label: str = "namespace"
    name_label: str = "scaledobject"

    def covers(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces


@dataclass(kw_only=True)
class WakeQueries:
    """The queries, and what they said at the last tick."""

    queries: Sequence[WakeQuery] = ()
    source: InstantQuerySource | None = None
    demanded: Mapping[Key, str] = field(default_factory=dict, init=False)
    """Which query asks for a ScaledObject, in words."""
    _unheard: Sequence[tuple[WakeQuery, Unknown]] = field(default=(), init=False)
    """The queries that failed, and why."""

    def of(self, key: Key) -> str:
        """Which query asks for the ScaledObject, in words; empty where none does."""
        return self.demanded.get(key, "")

    def doubt_in(self, namespace: str) -> Unknown | None:
        """Why the demand there is unknown; None where it is known."""
        return next((doubt for query, doubt in self._unheard if query.covers(namespace)), None)

    async def ask(self, at: datetime) -> None:
        """Run the queries; of several that demand a ScaledObject the first is named."""
        queries, requested, unheard = self.queries, dict[Key, str](), list[tuple[WakeQuery, Unknown]]()
        answers = await asyncio.gather(*(self._elements(query, at) for query in queries))
        for query, elements in zip(queries, answers, strict=True):
            if isinstance(elements, Unknown):
                unheard.append((query, elements))
                continue
            for element in elements:
                key = element.labels.get(query.namespace_label, ""), element.labels.get(query.name_label, "")
                if element.value > 0 and query.covers(key[0]):
                    requested.setdefault(key, f"demand query {query.name!r}")
        self.demanded, self._unheard = requested, unheard

    async def _elements(self, query: WakeQuery, at: datetime) -> Sequence[VectorSample] | Unknown:
        if self.source is None:
            return ()
        try:
            return await self.source.demand(query.promql, at=at)
        except SourceError as error:
            log.warning("wake query failed", query=query.name, error=str(error))
            return Unknown(reason=UnknownReason.SOURCE_UNAVAILABLE, message=f"demand query {query.name!r}: {error}")
