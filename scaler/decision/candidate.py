"""How far is a workload between work and suspension? A decision × its warning → one state.

That of a phase in which it is asked to be at 0 comes first, then that of the answer's reason (`REASONS`); one that is
quiet for a while is Idle, and where its owner is warned of that, Warned.

Every state, what begins it and what may come before it is in `STATES`; the picture in docs/policies.md is made from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import takewhile
from textwrap import shorten
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from scaler.decision.decision import Active, Answer, Decision, Quiet, asked_for, valid_warning, wake_cause
from scaler.decision.reasons import FOUND_IDLE, STATES, CandidateState, DecisionReason, row_of
from scaler.documents import UNREADABLE
from scaler.idleness.policy import Reclaim
from scaler.idleness.reasons import DOUBTS, About, UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.targets.target_state import Phase, SetBack, TargetState, WakeCause

_S = CandidateState
_OF_PHASE: Mapping[Phase, CandidateState] = {
    Phase.SUSPENDING: _S.SUSPENDING,
    Phase.SUSPENDED: _S.SUSPENDED,
    Phase.DEACTIVATED_BY_OTHER: _S.SUSPENDED,
    Phase.HELD: _S.GRANTED,
}
"""Phases that say more than the answer; those of workloads that were asked to be at 0."""


def candidate_state(
    decision: Decision, *, target: TargetState | None = None, warned_at: datetime | None = None
) -> CandidateState | None:
    """The state; None where it has finished.

    `target` is as it is now, where that is known better than when it was decided; `warned_at` is when its owner was
    warned last.
    """
    answer, target = decision.answer, target or decision.target
    if Phase.FINISHED in (target.phase, decision.target.phase) or answer.reason == DecisionReason.FINISHED:
        return None
    is_woken = isinstance(answer, Active) and answer.reason is DecisionReason.WAKING
    is_down = target.desired_replicas == 0 or target.phase is Phase.DEACTIVATED_BY_OTHER
    if target.phase in _OF_PHASE and is_down and not is_woken:
        return _OF_PHASE[target.phase]
    if isinstance(answer, Unknown):
        return _S.UNKNOWN
    is_taken = bool(decision.target.grant) and decision.policy.reclaim is Reclaim.ON_PRESSURE
    if answer.reason is DecisionReason.BEFORE_SUSPEND and is_taken:
        return _S.GRANTED
    state = row_of(answer.reason).state
    if state is _S.BUSY and decision.is_noticeably_quiet:
        state = _S.IDLE
    is_warned = valid_warning(decision, warned_at) is not None
    return _S.WARNED if state is _S.IDLE and is_warned else state


HISTORY = 16
"""Lines that are kept of a workload."""
_LONGEST_MESSAGE = 160


class HistoryLine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A state that a workload entered: when, why, and who asked for it where that is known."""

    at: datetime
    state: str
    reason: str = ""
    message: str = ""
    by: str = ""
    cause: str = ""
    """What one that is woken was woken for, a `WakeCause`. Older lines have none."""
    idle_since: datetime | None = None
    """The time since which its GPUs are idle, of one that is warned or suspended for that."""
    idle_at_least: bool = False
    """Whether that is a bound."""
    times: int = 0
    """How often in a row another client has set back its suspension, this one included; 0 for any other line."""


def lines_of(history: Iterable[bytes | msgspec.Raw]) -> list[HistoryLine]:
    """The lines that can be read; a time without its zone cannot."""
    found = []
    for each in history:
        with suppress(*UNREADABLE):
            found.append(msgspec.json.decode(each, type=HistoryLine))
    return [line for line in found if line.at.tzinfo is not None]


def shortened(history: Sequence[HistoryLine], most: int) -> list[HistoryLine]:
    """The last lines, and the last one of a suspension that was set back, which counts for longer."""
    older = [line for line in history[: 1 - most] if line.times]
    return [*older[-1:], *history[1 - most :]] if older else [*history[-most:]]


def set_back_of(history: Sequence[HistoryLine]) -> SetBack | None:
    """When its suspension was set back last; None where that is not known."""
    found = (line for line in reversed(history) if line.times)
    return next((SetBack(line.at, line.times, line.by) for line in found), None)


def next_set_back(
    history: Sequence[HistoryLine], decision: Decision, *, down_since: datetime | None, now: datetime
) -> SetBack | None:
    """Whether another client has started what was suspended for being idle, and how often in a row; nothing where it
    was asked for, or does not run yet.

    `down_since`: since when it is known to have been suspended, or its pods to be new, apart from its history: it may
    have been at 0 for so short a time that no line tells of it.
    """
    run = takewhile(lambda line: line.state in (*_DOWN, _S.UNKNOWN), reversed(history))
    down = [line for line in run if line.state in _DOWN]
    is_up = decision.target.desired_replicas > 0 or decision.target.is_started_by_other
    if not is_up or not any(line.reason in FOUND_IDLE for line in down) or asked_for(decision, now):
        return None
    if all(line.state != _S.SUSPENDED for line in down) and (down_since is None or down_since < down[-1].at):
        return None
    last, policy = set_back_of(history), decision.policy
    soon = max(_SOON, 3 * (policy.warm_up + policy.idle_after) / 2)
    is_again = last is not None and last.at <= now <= last.left_alone_until + soon
    return SetBack(now.replace(microsecond=0), 1 + (last.times if last is not None and is_again else 0))


_SOON = timedelta(hours=1)
"""Who sets back two suspensions within this time does so in a row; or within half as long again as the policy takes to
suspend it anew, where that is longer. It does not count for how long it was left alone."""


def waking_since(history: Sequence[HistoryLine]) -> datetime | None:
    """The time since which it shall run and does not, by its history; None where its last line says otherwise."""
    waking = takewhile(lambda line: line.state in (_S.WAKING, _S.UNKNOWN), reversed(history))
    return min((line.at for line in waking), default=None)


def suspended_at(history: Sequence[HistoryLine], *, is_down: bool) -> datetime | None:
    """When it was suspended last; of one that `is_down`, this time. None where that is not known, or not yet."""
    for line in reversed(history):
        if line.state in _DOWN:
            return line.at
        if is_down and line.state in _UP:
            return None
    return None


def quiet_of(history: Sequence[HistoryLine], *, until: datetime) -> Quiet | None:
    """The quiet of its last lines: a bound, as a line begins a while after work has ended.

    None where the last line tells of something else. `until` is up to when these lines were written.
    """
    lines = [*takewhile(lambda line: line.state in _STILL_QUIET, reversed(history))]
    return Quiet(since=lines[-1].at, at_least=True, until=until) if lines else None


_STILL_QUIET = frozenset({_S.IDLE, _S.WARNED, _S.OBSERVING})
_DOWN = frozenset({_S.SUSPENDING, _S.SUSPENDED})
_IS_IDLE = _STILL_QUIET | _DOWN | {_S.GRANTED}
_UP = frozenset({_S.BUSY, _S.IDLE, _S.WARNED, _S.OBSERVING})


class Return(NamedTuple):
    """A suspended workload that runs again."""

    cause: WakeCause
    after: timedelta
    """The time from when the leader saw the request until it ran."""


def return_of(history: Sequence[HistoryLine]) -> Return | None:
    """What the last line of the history ends; None where that is no return."""
    known = [line for line in history if line.state != _S.UNKNOWN]
    if len(known) < 3 or known[-1] is not history[-1] or known[-1].state in (_S.WAKING, *_DOWN):
        return None
    *_, down, waking, running = known
    if down.state not in _DOWN or waking.state != _S.WAKING:
        return None
    return Return(_CAUSES.get(waking.cause, WakeCause.OTHER), max(timedelta(0), running.at - waking.at))


_CAUSES: Mapping[str, WakeCause] = {each: each for each in WakeCause}


def next_line(
    before: HistoryLine | None,
    decision: Decision | None,
    *,
    target: TargetState | None = None,
    warned_at: datetime | None = None,
    by: str = "",
    set_back: SetBack | None = None,
    now: datetime,
) -> HistoryLine | None:
    """What is to be added to its history; None where it is in the state of its last line, or nothing is known.

    A warning that is given again is a line of its own: its owner is notified of that. What runs after a suspension was
    woken, however quickly: that is the first line, and the state that it is in the next one.
    """
    if decision is None or _is_of_source(decision.answer):
        return None
    state = candidate_state(decision, target=target, warned_at=warned_at)
    if before is not None and (before.state == _S.SUSPENDED or set_back) and state in _AFTER_WAKING:
        state = _S.WAKING
    is_recorded = (
        before is not None and before.state == state and not (state is _S.WARNED and _is_older(before, warned_at))
    )
    if state is None or is_recorded:
        return None
    line = _line(before, decision, state, target or decision.target)
    if set_back is not None and state is _S.WAKING:
        reason, by = str(DecisionReason.SET_BACK), set_back.by
        line = replace(line, reason=reason, message=set_back.words, times=set_back.times)
    return replace(
        line,
        at=now.replace(microsecond=0),
        message=shorten(line.message, _LONGEST_MESSAGE, placeholder=" …"),
        by=by if state in _ASKED_FOR else "",
        cause=(wake_cause(decision) or "") if line.reason == DecisionReason.WAKING else "",
    )


def _is_of_source(answer: Answer) -> bool:
    return isinstance(answer, Unknown) and DOUBTS[answer.reason].about is About.SOURCE


def _line(before: HistoryLine | None, decision: Decision, state: CandidateState, target: TargetState) -> HistoryLine:
    """The line of a state, with the answer's reason where that is of this state; else with what it was found from."""
    answer = decision.answer
    if state in _DOWN and answer.reason not in FOUND_IDLE and before is not None and before.reason in FOUND_IDLE:
        return replace(before, state=str(state), message=f"suspended: {_idle(before)}")
    line = HistoryLine(decision.decided_at, state, str(answer.reason), answer.message)
    if state in _IS_IDLE:
        line = replace(line, idle_since=decision.idle_since, idle_at_least=decision.idle_at_least)
    if _tells(answer, state):
        return line
    message = _idle(line) if state in _STILL_QUIET else target.message or STATES[state].meaning
    return replace(line, reason=STATES[state].reason or line.reason, message=message)


def _idle(line: HistoryLine) -> str:
    at_least = "at least " * line.idle_at_least
    return "its GPUs are idle" + (f" {at_least}since {line.idle_since:%Y-%m-%dT%H:%M:%SZ}" if line.idle_since else "")


def _tells(answer: Answer, state: CandidateState) -> bool:
    """Whether the answer's reason is one of this state."""
    if isinstance(answer, Unknown):
        return state is _S.UNKNOWN or (state is _S.SUSPENDING and answer.reason is UnknownReason.SUSPENDING)
    row = row_of(answer.reason)
    if state is _S.WARNED and answer.reason is DecisionReason.WARNED:
        return False  # the decision is from before the warning, and says what the warning waits for
    return state is row.state or state in row.also or (row.state, state) == (_S.IDLE, _S.WARNED)


_AFTER_WAKING = _UP | {_S.KEPT, _S.EXCLUDED}


def _is_older(line: HistoryLine, warned_at: datetime | None) -> bool:
    return warned_at is not None and line.at < warned_at


_ASKED_FOR = frozenset({_S.KEPT, _S.EXCLUDED, _S.WAKING})
