"""A line for each ScaledObject: where it stands, since when, what comes next, and what keeps it. Pure, but for time.

Candidates are workloads whose GPUs are quiet while they run: those that may be suspended next, and those that something
keeps although they are idle.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from scaler.clock import Turns
from scaler.decision.candidate import CandidateState, candidate_state
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import EvaluatedScaledObject, Evaluation, Key
from scaler.decision.describe import prevailing
from scaler.errors import QueryError

FINISHED = "Finished"
"""In place of a state."""
INVALID = "Invalid"
"""In place of a state, where its triggers cannot be used."""
STATES = (*map(str, CandidateState), FINISHED, INVALID)

_QUIET = frozenset({CandidateState.IDLE, CandidateState.WARNED, CandidateState.GRANTED, CandidateState.SUSPENDING})
_IF_QUIET = frozenset({CandidateState.KEPT, CandidateState.EXCLUDED, CandidateState.OBSERVING})
_NEVER = datetime.max.replace(tzinfo=UTC)
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    key: Key
    state: str
    entry: EvaluatedScaledObject
    decision: Decision | None
    """The one that prevails; None where no trigger can be used."""

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
    def gpus(self) -> int:
        found = self.decision.verdict if self.decision is not None else None
        return len(found.gpus) if found is not None else sum(pod.gpus for pod in self.entry.pods)

    @property
    def idle_since(self) -> datetime | None:
        return self.decision.idle_since if self.decision is not None else None

    @property
    def suspend_at(self) -> datetime | None:
        return self.decision.suspend_at if self.decision is not None else None

    @property
    def is_candidate(self) -> bool:
        is_quiet = self.idle_since is not None
        return self.state in _QUIET or (self.state in _IF_QUIET and is_quiet)


def line_of(key: Key, entry: EvaluatedScaledObject) -> WorkloadLine:
    decision = prevailing(list(entry.triggers.values()))
    if decision is None:
        return WorkloadLine(key, INVALID, entry, None)
    state = candidate_state(decision, warned_at=decision.target.warned_at)
    return WorkloadLine(key, str(state) if state is not None else FINISHED, entry, decision)


async def lines_of(evaluation: Evaluation | None) -> Sequence[WorkloadLine]:
    """In the order of their keys. KEDA gets its answers meanwhile."""
    found, turns = [], Turns()
    entries: Mapping[Key, EvaluatedScaledObject] = evaluation.entries if evaluation is not None else {}
    for key, entry in entries.items():
        found.append(line_of(key, entry))
        await turns.give_way()
    found.sort(key=lambda each: each.key)
    return found


def candidates(lines: Iterable[WorkloadLine]) -> list[WorkloadLine]:
    """The next to be suspended first, then those that are idle longest."""
    return sorted((each for each in lines if each.is_candidate), key=_urgency)


def _urgency(line: WorkloadLine) -> tuple[datetime, datetime, Key]:
    return line.suspend_at or _NEVER, line.idle_since or _NEVER, line.key


def by_state(lines: Iterable[WorkloadLine]) -> list[tuple[str, int, int]]:
    """State, workloads, GPUs: of states that there are."""
    workloads, gpus = Counter[str](), Counter[str]()
    for each in lines:
        workloads[each.state] += 1
        gpus[each.state] += each.gpus
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
        if namespace and not _NAMESPACE.fullmatch(namespace):
            raise QueryError(f"{namespace[:80]!r} is no name of a namespace", status=400)
        if state and state not in STATES:
            raise QueryError(f"there is no state {state[:40]!r}", status=400)
        if not (page.isascii() and page.isdigit() and int(page[:9]) >= 1 and len(page) < 9):
            raise QueryError(f"{page[:40]!r} is no number of a page", status=400)
        return cls(namespace=namespace, state=state, page=int(page))

    def matches(self, line: WorkloadLine) -> bool:
        return self.namespace in ("", line.key[0]) and self.state in ("", line.state)


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


Visible = Callable[[str], bool]
"""Whether what is in a namespace may be shown."""
