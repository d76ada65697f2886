"""A line for each ScaledObject: where it stands, since when, what comes next, and what keeps it. Pure, but for time.

Candidates are workloads whose GPUs are quiet while they run: those that may be suspended next, and those that something
keeps although they are idle.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from scaler.clock import Turns
from scaler.decision.candidate import candidate_state
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.describe import prevailing
from scaler.decision.reasons import CandidateState, row_of
from scaler.errors import QueryError

FINISHED = "Finished"
"""The word in place of a state."""
INVALID = "Invalid"
"""The word in place of a state, where its triggers cannot be used."""
STATES = (*map(str, CandidateState), FINISHED, INVALID)
CANDIDATES = "Candidates"
"""The word in place of a state that is asked for."""

_QUIET = frozenset({CandidateState.IDLE, CandidateState.WARNED, CandidateState.GRANTED, CandidateState.SUSPENDING})
_IF_QUIET = frozenset({CandidateState.KEPT, CandidateState.EXCLUDED, CandidateState.OBSERVING})
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    key: Key
    state: str
    entry: EvaluatedScaledObject
    decision: Decision | None
    """The one that prevails; None where no trigger can be used."""
    gpus: int = 0
    idle_since: datetime | None = None
    idle_at_least: bool = False
    suspend_at: datetime | None = None
    is_candidate: bool = False

    @property
    def namespace(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def target(self) -> str:
        return str(self.entry.target)

    @property
    def reason(self) -> str:
        return str(self.decision.answer.reason) if self.decision is not None else "InvalidPolicy"

    @property
    def message(self) -> str:
        return self.decision.answer.message if self.decision is not None else "; ".join(self.entry.problems)

    @property
    def prospect(self) -> str:
        """What would suspend it, where no time is foreseeable."""
        if self.state == CandidateState.GRANTED:
            return "by its plan"
        return row_of(self.reason).prospect if self.idle_since is not None else ""


def line_of(key: Key, entry: EvaluatedScaledObject) -> WorkloadLine:
    decision = prevailing(list(entry.triggers.values()))
    if decision is None:
        return WorkloadLine(key, INVALID, entry, None)
    state = candidate_state(decision, warned_at=decision.target.warned_at)
    verdict, since = decision.verdict, decision.idle_since
    return WorkloadLine(
        key,
        FINISHED if state is None else str(state),
        entry,
        decision,
        gpus=verdict.gpu_count if verdict is not None else sum(pod.gpus for pod in entry.pods),
        idle_since=since,
        idle_at_least=decision.idle_at_least,
        suspend_at=decision.suspend_at if since is not None else None,
        is_candidate=state in _QUIET or (state in _IF_QUIET and since is not None),
    )


@dataclass(slots=True)
class WorkloadLines:
    """The lines of the latest evaluation. A line stands as long as its entry does."""

    _evaluation: Evaluation | None = None
    _lines: Mapping[Key, WorkloadLine] = field(default_factory=dict)

    async def of(self, evaluation: Evaluation | None) -> Sequence[WorkloadLine]:
        """Lines in the order of their keys. KEDA gets its answers meanwhile."""
        if evaluation is None:
            return ()
        if evaluation is not self._evaluation:
            self._evaluation, self._lines = evaluation, await self._made(evaluation.entries)
        return [*self._lines.values()]

    async def _made(self, entries: Mapping[Key, EvaluatedScaledObject]) -> Mapping[Key, WorkloadLine]:
        known, made, turns = self._lines, dict[Key, WorkloadLine](), Turns()
        for key in sorted(entries):
            entry, line = entries[key], known.get(key)
            made[key] = line if line is not None and line.entry is entry else line_of(key, entry)
            await turns.give_way()
        return made


async def candidates(lines: Iterable[WorkloadLine]) -> list[WorkloadLine]:
    """The next to be suspended first, then those that are idle longest."""
    found, turns = list[tuple[float, float, Key, WorkloadLine]](), Turns()
    for each in lines:
        if each.is_candidate:
            found.append((_seconds(each.suspend_at), _seconds(each.idle_since), each.key, each))
        await turns.give_way()
    return [line for *_, line in sorted(found, key=lambda each: each[:3])]


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else inf


async def by_state(lines: Iterable[WorkloadLine]) -> list[tuple[str, int, int]]:
    """State, workloads, GPUs: of states that there are."""
    workloads, gpus, turns = Counter[str](), Counter[str](), Turns()
    for each in lines:
        workloads[each.state] += 1
        gpus[each.state] += each.gpus
        await turns.give_way()
    return [(state, workloads[state], gpus[state]) for state in STATES if workloads[state]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What of all is asked for. Empty: everything."""

    namespace: str = ""
    state: str = ""
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Filter":
        """Raises: QueryError for a state or a page that there is not."""
        state, page, namespace = query.get("state", ""), query.get("page", "1"), query.get("namespace", "").strip()
        if namespace and not NAMESPACE.fullmatch(namespace):
            raise QueryError(f"{namespace[:80]!r} is no name of a namespace", status=400)
        if state and state not in (*STATES, CANDIDATES):
            raise QueryError(f"there is no state {state[:40]!r}", status=400)
        if not (page.isascii() and page.isdigit() and int(page[:9]) >= 1 and len(page) < 9):
            raise QueryError(f"{page[:40]!r} is no number of a page", status=400)
        return cls(namespace=namespace, state=state, page=int(page))

    def matches(self, line: WorkloadLine) -> bool:
        is_state = line.is_candidate if self.state == CANDIDATES else self.state in ("", line.state)
        return is_state and self.namespace in ("", line.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """A part of a long list."""

    items: Sequence[object]
    total: int
    page: int = 1
    per_page: int = PER_PAGE

    @classmethod
    def of(cls, items: Sequence[object], page: int = 1, per_page: int = PER_PAGE) -> "Paged":
        begin = (page - 1) * per_page
        return cls(items=items[begin : begin + per_page], total=len(items), page=page, per_page=per_page)

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.per_page))

    @property
    def more(self) -> int:
        """How many come after those that are shown."""
        return max(0, self.total - self.page * self.per_page)

    @property
    def first(self) -> int:
        return (self.page - 1) * self.per_page + 1
