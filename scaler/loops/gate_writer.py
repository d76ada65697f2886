"""Writes what our entries say, and tells of it.

Laws:

* Before every write the Workload is read from the API, and decided upon again. Where the answer is another one now,
  nothing is written, and the next tick looks at it.
* Of a Workload that gives its quota back it is noted first, and which quota. A process that dies in between leaves one
  that is asked for the same quota again, and never one that is asked for ever.
* What was written counts at once, before the copy shows it. Where no answer was heard it is read anew before anybody
  else is let go: a gang that was, unheard, has its places.
* Nothing is announced that was not written.
* What the API refuses is tried again ever more rarely; at once only where somebody else has just written.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from scaler.core.durations import format_duration
from scaler.core.gate import decide, stand_back
from scaler.core.gate_values import Answer, Because, Gang, Nothing, Outlook, State, Yielded
from scaler.errors import KubeError
from scaler.kube.decoding import UNREADABLE, decode
from scaler.kube.events import ObjectReference
from scaler.kube.kueue_objects import Workload
from scaler.kube.resources import WORKLOAD
from scaler.kueue.admission_checks import entry_patch, yield_patch
from scaler.kueue.gangs import gang_of
from scaler.kueue.provisioning_requests import assignments_of
from scaler.loops.gate_cases import GangCase, Name
from scaler.loops.leadership import NOT_LEADING, Api
from scaler.loops.reconciliation import Announcer, is_conflict

log = structlog.get_logger(__name__)

Json = dict[str, Any]

_REFRESHED = 50
"""Messages that are brought up to date in one tick although their reason is the same."""
_REFRESH_AFTER = timedelta(seconds=30)
_GONE = 404
_REFUSED_FOR = timedelta(seconds=1)
_REFUSED_AT_MOST = timedelta(minutes=1)
"""How long an entry is left alone after the first refusal, and after many."""
_RESET = "Reset to Pending after eviction."
"""How Kueue words an entry that it has set back."""


@dataclass(frozen=True, slots=True)
class _Told:
    because: Because
    at: datetime


@dataclass(frozen=True, slots=True)
class _Refused:
    times: int
    until: datetime


class EntryWriter:
    """Writes entries of Workloads. `remember` is given every Workload as it was written."""

    def __init__(self, api: Api, announcer: Announcer, *, remember: Callable[[Workload], None]) -> None:
        self._api = api
        self._announcer = announcer
        self._remember = remember
        self._told: dict[Name, _Told] = {}
        self._refused: dict[Name, _Refused] = {}
        self._doubtful: set[str] = set()
        """Keys of Workloads to which was written, and no answer was heard."""

    def forget_others(self, names: Iterable[Name]) -> None:
        """Forget what was told of all but these."""
        kept = frozenset(names)
        self._told = {name: told for name, told in self._told.items() if name in kept}
        self._refused = {name: refused for name, refused in self._refused.items() if name in kept}

    def due(self, answers: Sequence[tuple[GangCase, Answer]], now: datetime) -> list[tuple[GangCase, Answer]]:
        """Those of the answers that are to be written now: who is let go first, then news, then a few of the rest."""
        unsaid = [
            (case, answer)
            for case, answer in answers
            if not answer.is_said_by(case.gang.entry) and self.may_write(case.name, now)
        ]
        news = [each for each in unsaid if self._is_news(*each)]
        news.sort(key=lambda each: (each[1].state is not State.READY, each[0].gang.reserved_at, each[0].gang.uid))
        stale = [each for each in unsaid if not self._is_news(*each) and self._is_stale(each[0].name, now)]
        return news + stale[:_REFRESHED]

    def _is_news(self, case: GangCase, answer: Answer) -> bool:
        """Whether it is more than the same reason in other words."""
        entry, told = case.gang.entry, self._told.get(case.name)
        if entry is None or answer.state != entry.state or answer.updates != entry.updates:
            return True
        if not entry.message or entry.message.startswith(_RESET):
            return True
        return told is not None and told.because != answer.because

    def _is_stale(self, name: Name, now: datetime) -> bool:
        told = self._told.get(name)
        return told is None or now - told.at >= _REFRESH_AFTER

    def may_write(self, name: Name, now: datetime) -> bool:
        """Whether the entry is not left alone because it was refused."""
        refused = self._refused.get(name)
        return refused is None or refused.until <= now

    def _leave_alone(self, name: Name, now: datetime, *, is_conflict: bool) -> None:
        """After a refusal: for 1, 2, 4 … seconds, up to a minute. After the first conflict not at all."""
        before = self._refused.get(name)
        times = before.times + 1 if before is not None else 1
        doublings = min(times - 1 - is_conflict, 10)
        pause = min(_REFUSED_FOR * (1 << doublings), _REFUSED_AT_MOST) if doublings >= 0 else timedelta(0)
        self._refused[name] = _Refused(times, now + pause)

    # -------------------------------------------------------------------------------------------------------- writing

    async def write(self, case: GangCase, answer: Answer, outlook: Outlook, now: datetime) -> bool:
        """Whether the entry says the answer now. Raises: KubeError with the reason NotLeading."""
        try:
            written = await self._write(case, answer, outlook, now)
        except KubeError as error:
            if error.reason == NOT_LEADING:
                raise
            self._leave_alone(case.name, now, is_conflict=is_conflict(error))
            tell = log.debug if is_conflict(error) else log.warning
            tell("admission check not written", workload=case.gang.key, state=str(answer.state), error=str(error))
            return False
        except UNREADABLE as error:
            self._leave_alone(case.name, now, is_conflict=False)
            log.warning("admission check not written", workload=case.gang.key, error=f"cannot be read: {error}")
            return False
        if not written:
            self._leave_alone(case.name, now, is_conflict=True)
        else:
            self._refused.pop(case.name, None)
            self._announce(case, answer, now)
            self._told[case.name] = _Told(answer.because, now)
        return written

    async def _write(self, case: GangCase, answer: Answer, outlook: Outlook, now: datetime) -> bool:
        """Raises: KubeError."""
        raw, fresh = await self._read(case.gang.key)
        gang = gang_of(fresh, case.held.check_name)
        if not _is_unchanged(case, fresh, gang) or decide(gang, outlook, now) != answer:
            return False
        note = _note(gang, outlook.wanted_by, now) if answer.because is Because.YIELDS else None
        return await self._put(raw, case.held.check_name, answer, now, note=note)

    async def _put(self, raw: Json, check: str, answer: Answer, now: datetime, *, note: Yielded | None) -> bool:
        """Raises: KubeError."""
        namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
        if note is not None:
            noted = await self._api.patch(WORKLOAD.path(namespace, name), yield_patch(raw, note))
            raw = msgspec.json.decode(noted)
        body = entry_patch(raw, check, answer, now)
        if body is None:
            return False
        key = f"{namespace}/{name}"
        self._doubtful.add(key)
        try:
            written = await self._api.patch(WORKLOAD.path(namespace, name, "status"), body)
        except KubeError as error:
            if _is_refused(error):
                self._doubtful.discard(key)
            raise
        self._remember(decode(Workload, written))
        self._doubtful.discard(key)
        return True

    async def _read(self, key: str) -> tuple[Json, Workload]:
        namespace, _, name = key.partition("/")
        body = await self._api.get(WORKLOAD.path(namespace, name))
        return msgspec.json.decode(body), decode(Workload, body)

    async def clear_doubts(self) -> str:
        """Find out whether writes were done of which no answer was heard. Why that is not known; empty where it is.

        Who was let go without our knowing has places that are not to be promised to others.
        """
        for key in sorted(self._doubtful):
            try:
                _, fresh = await self._read(key)
            except (KubeError, *UNREADABLE) as error:
                if not (isinstance(error, KubeError) and error.status == _GONE):
                    return f"nobody knows whether {key} was let go: {error}"
            else:
                self._remember(fresh)
            self._doubtful.discard(key)
        return ""

    async def stand_back(self, key: str, checks: Sequence[str], plan: str, now: datetime) -> str:
        """Let the Workload give its quota back, once; empty when it was told to, and otherwise why not.

        Raises: KubeError.
        """
        raw, fresh = await self._read(key)
        gangs = {check: gang_of(fresh, check) for check in checks}
        answers = {check: stand_back(gang, plan) for check, gang in gangs.items() if gang.entry is not None}
        for check, answer in answers.items():
            if isinstance(answer, Answer):
                return await self._give_back(raw, fresh, check, answer, _note(gangs[check], f"plan {plan}", now))
        return next((answer.why for answer in answers.values() if isinstance(answer, Nothing)), "no check holds it")

    async def _give_back(self, raw: Json, workload: Workload, check: str, answer: Answer, note: Yielded) -> str:
        """Raises: KubeError."""
        if not await self._put(raw, check, answer, note.at, note=note):
            return "its entry is gone"
        self._tell(workload, "GateYielded", answer.message, warning=True)
        return ""

    # -------------------------------------------------------------------------------------------------------- telling

    def _announce(self, case: GangCase, answer: Answer, now: datetime) -> None:
        workload, told, reserved_at = case.held.workload, self._told.get(case.name), case.gang.reserved_at
        match answer.state:
            case State.READY if answer.because is not Because.ADMITTED_BEFORE and reserved_at is not None:
                waited = timedelta(seconds=max(0, round((now - reserved_at).total_seconds())))
                after = f"{format_duration(waited)} after its quota was reserved"
                self._tell(workload, "GateReady", f"{answer.message}; {after}")
            case State.RETRY:
                reason = "GateYielded" if answer.because is Because.YIELDS else str(answer.because)
                self._tell(workload, reason, answer.message, warning=True)
            case State.PENDING if told is None or told.because is not answer.because:
                self._tell(workload, "GateWaiting", f"{answer.because}: {answer.message}")

    def _tell(self, workload: Workload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(WORKLOAD, workload.metadata)
        self._announcer.record(replace(about, resource_version=""), reason, message, warning=warning)


def _is_refused(error: KubeError) -> bool:
    """Whether it is sure that nothing was done. Without an answer, or after the server's own failure, it is not."""
    return error.reason == NOT_LEADING or 400 <= error.status < 500


def _note(gang: Gang, to: str, now: datetime) -> Yielded:
    """What is noted on a gang that gives its quota back; the same where it was noted of this very quota."""
    before = gang.yielded
    if before is not None and gang.is_yielding:
        return before
    return Yielded(to=to, at=now, times=before.times + 1 if before is not None else 1, reserved_at=gang.reserved_at)


def _is_unchanged(case: GangCase, fresh: Workload, gang: Gang) -> bool:
    """Whether it is the same gang with the same quota, for which was decided."""
    seen = case.held.workload
    is_same = fresh.metadata.uid == seen.metadata.uid and gang.reserved_at == case.gang.reserved_at
    return is_same and assignments_of(fresh) == assignments_of(seen)
