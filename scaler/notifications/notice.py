"""Which lines of a workload's history is its owner to be notified of, and which of them were delivered? Pure.

| the workload entered | its owner is notified      |
|----------------------|----------------------------|
| Warned               | yes                        |
| Suspended            | yes                        |
| Waking               | if it was suspended before |
| any other state      | no                         |

Laws:

* The history is in the API, and so is up to which line each target has notified (`Mark`, in the
  status). A restart or another leader loses nothing and repeats nothing.
* A mark is written after delivery. A process that is killed between the two leaves a message that is sent again: with
  the ids that it had, by which its receiver can tell.
* Messages are in the order of the lines. None is sent of a line that is older than the settings allow, but for a
  warning that stands: with `requireDelivery` its workload runs until its owner was notified.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.decision.candidate import HistoryLine
from scaler.decision.describe import timestamp
from scaler.decision.reasons import CandidateState
from scaler.kube.objects.idlegpu import Mark

_NOTIFIED = frozenset({CandidateState.WARNED, CandidateState.SUSPENDED})
_DOWN = frozenset({CandidateState.SUSPENDED, CandidateState.SUSPENDING})


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedWorkload:
    """A workload whose owner may be notified."""

    namespace: str
    name: str
    """Name of its ScaledObject."""
    uid: str
    kind: str
    """Kind of what is scaled, such as ScalableWorkload or Deployment, and its name."""
    target_name: str
    owner: str
    targets: tuple[str, ...]
    lines: tuple[HistoryLine, ...] = ()
    """Its history, the newest last."""
    marks: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.target_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One line of history of which one target is to notify."""

    workload: NotifiedWorkload
    line: HistoryLine
    target: str

    @property
    def id(self) -> str:
        """An id that is equal in every process, and is no other notice's."""
        return _digest(self.workload.uid, str(timestamp(self.line.at)), self.line.state, self.target)

    @property
    def channel(self) -> tuple[str, str]:
        """(target, owner): what is grouped and limited together."""
        return self.target, self.workload.owner


def message_id(notices: Sequence[Notice]) -> str:
    """The id of a message with these notices: one and the same for the same ones."""
    return _digest(*(each.id for each in notices))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def pending(workload: NotifiedWorkload, target: str, *, not_before: datetime) -> Iterator[Notice]:
    """What the target still has to notify of, oldest first."""
    lines, mark = workload.lines, workload.marks.get(target)
    for number in range(_first(lines, mark), len(lines)):
        if is_notified(lines, number) and (lines[number].at >= not_before or _stands(lines, number)):
            yield Notice(workload=workload, line=lines[number], target=target)


def _first(lines: Sequence[HistoryLine], mark: Mark | None) -> int:
    """The number of the first line after the mark. Lines of one second differ by their state."""
    if mark is None:
        return 0
    for number in reversed(range(len(lines))):
        if (lines[number].at, lines[number].state) == (mark.at, mark.state):
            return number + 1
    return next((number for number, line in enumerate(lines) if line.at > mark.at), len(lines))


def _stands(lines: Sequence[HistoryLine], number: int) -> bool:
    return number == len(lines) - 1 and lines[number].state == CandidateState.WARNED


def is_notified(lines: Sequence[HistoryLine], number: int) -> bool:
    state = lines[number].state
    if state == CandidateState.WAKING:
        known = (each.state for each in reversed(lines[:number]) if each.state != CandidateState.UNKNOWN)
        return next(known, "") in _DOWN
    return state in _NOTIFIED


def oldest_notified(give_up_after: timedelta, now: datetime) -> datetime:
    """No message is sent of lines from before."""
    return now - give_up_after
