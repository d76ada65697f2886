"""Our AdmissionCheck: a Workload with reserved quota starts once all its pods can. Leader only.

Laws:

* Read → plan (pure, `plan.py`) → execute: provisioning steps, then check states, each read again before it is written.
  Level-triggered: what was missed, or was being written when the process died, is in the next plan.
* All that matters is in the API. In memory are what was written a moment ago, and what the API server has refused.
* A new leader first lets its watches catch up with what its predecessor wrote last, and lists everything: it neither
  releases a Workload by an old state, nor writes to all of them that nothing is known yet.
* Where a provisioning step was not done the check state that was planned with it is not written.

Laws of every write:

* Before every write the Workload is read from the API, and its state is computed again. If the result differs nothing
  is written; the next tick reconciles it.
* Before Retry releases quota, the annotation `yielded` names that reservation. A process that dies in between causes
  Retry for the same reservation once more, and not again and again.
* A write counts at once, before the watch shows it. If a write got no response, the Workload is read again before any
  other one is released: a gang whose check became Ready has its reservation.
* No Event is recorded for a state that was not written.
* Refused writes are retried with a growing delay; at once only after the first conflict.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from scaler.admission.check import (
    CheckChange,
    CheckReason,
    CheckState,
    ReservedWorkload,
    Yielded,
    decide,
)
from scaler.admission.checks import AdmissionChecks
from scaler.admission.plan import AdmissionPlan, CheckedWorkload, CheckKey
from scaler.admission.planner import AdmissionPlanner, ReclaimAnswers
from scaler.admission.provisioning.controller import ProvisioningController
from scaler.admission.provisioning.requests import assignments_of
from scaler.admission.workload import entry_patch, reserved_workload_of, yield_patch
from scaler.clock import SYSTEM_CLOCK, Clock, every
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.idleness.durations import format_duration
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import decode
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import WORKLOAD
from scaler.kube.watch_backoff import Backoff
from scaler.kube.writes import Doubts, PatchApi, log_refusal, write_all
from scaler.placement.requests import Fits

log = structlog.get_logger(__name__)

_AT_ONCE = 8
"""Workloads that are written to at the same time."""
_LISTING_FOR = timedelta(seconds=30)
"""How long a new leader waits until everything is listed before it writes that it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A Workload whose check became Ready, for telemetry."""

    key: str
    because: CheckReason
    waited: timedelta
    """The time since its quota was reserved."""
    reused_gpus: int = 0
    """GPUs on nodes that were there before."""
    provisioned_gpus: int = 0
    """GPUs on nodes that have come since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionReport:
    """What one tick found and did."""

    plan: AdmissionPlan
    released: tuple[Released, ...] = ()


class AdmissionCheckController:
    """The loop. `observe` gets the report of every tick."""

    name = "AdmissionCheck"

    def __init__(
        self,
        api: PatchApi,
        planner: AdmissionPlanner,
        checks: AdmissionChecks,
        provisioning: ProvisioningController,
        announcer: EventSink,
        *,
        answers: ReclaimAnswers | None = None,
        interval: timedelta = timedelta(seconds=5),
        rest: timedelta = timedelta(seconds=0.3),
        settle: timedelta = timedelta(seconds=2),
        observe: Callable[[AdmissionReport], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`rest` is the least time between two ticks, `settle` how long a new leader lets its watches catch up.

        `answers` are reclaim's; None where nothing is reclaimed for Workloads that lack nodes.
        """
        self.planner = planner
        self._watch = planner.watch
        self._checks = checks
        self._provisioning = provisioning
        self._writer = CheckStateWriter(api, announcer)
        self._answers = answers
        self._interval = interval
        self._rest = rest
        self._settle = settle
        self._observe = observe
        self._clock = clock
        self._wake = asyncio.Event()
        self._patient_until: datetime | None = None
        planner.watch.subscribe(self.wake)
        if answers is not None:
            answers.subscribe(self.wake)

    # ------------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and as soon as something changes that a Workload may wait for."""
        self.planner.leader.answers = self._answers
        try:
            await self._begin()
            await every(self._interval, self.tick, self._wake, name=self.name, rest=self._rest, clock=self._clock)
        finally:
            self.planner.leader.clear()

    async def _begin(self) -> None:
        """What comes before the first plan. AdmissionChecks are Active from the first moment on."""
        self._patient_until = self._clock.now() + _LISTING_FOR
        try:
            await self._checks.keep(self._watch.checks(), self._clock.now())
        except KubeError as error:
            log.warning("AdmissionChecks not updated; retried", error=str(error))
        await self._clock.sleep(self._settle.total_seconds())

    def wake(self) -> None:
        """Something has changed that a Workload may wait for."""
        self._wake.set()

    async def tick(self, now: datetime) -> AdmissionReport:
        """One plan, executed. Raises: KubeError where this replica does not lead any more."""
        await self._checks.keep(self._watch.checks(), now)
        if self._watch.unlisted and self._patient_until is not None and now < self._patient_until:
            return self._report(AdmissionPlan(at=now, unknown=f"not listed yet: {self._watch.unlisted}"))
        self.planner.leader.doubt = await self._writer.clear_doubts()
        await self._watch.forget_gone()
        plan = await self.planner.plan(now)
        if self._answers is not None:
            self._answers.lacking({each.uid for each in plan.workloads if each.lacks_nodes}, now)
        failed = await self._provisioning.execute(plan, now)
        self.planner.leader.refusals = self._provisioning.refusals(now)
        return self._report(plan, await self._write(plan, failed, now))

    def _report(self, plan: AdmissionPlan, released: Collection[Released] = ()) -> AdmissionReport:
        report = AdmissionReport(plan=plan, released=tuple(released))
        self._observe(report)
        return report

    # ------------------------------------------------------------------------------------------------------- writing

    async def _write(self, plan: AdmissionPlan, failed: Collection[CheckKey], now: datetime) -> list[Released]:
        """Write the check states that have changed. Raises: KubeError with the reason NotLeading."""
        self._writer.forget_others(each.name for each in plan.workloads)

        async def write(due: tuple[CheckedWorkload, CheckChange]) -> Released | None:
            each, change = due
            written = await self._writer.write(each, change, now)
            if not written and self._writer.may_write(each.name, now):
                self.wake()
            return self._released(each, change, now) if written and change.state is CheckState.READY else None

        if failed:
            self.wake()
        due = self._writer.due([each for each in plan.changes if each[0].name not in failed], now)
        return [each for each in await write_all(due, write, at_once=_AT_ONCE) if each is not None]

    def _released(self, each: CheckedWorkload, change: CheckChange, now: datetime) -> Released | None:
        """What telemetry counts of a release; None for a Workload that was running already."""
        reserved_at = each.reserved_at
        if change.because is CheckReason.ADMITTED_BEFORE or reserved_at is None:
            return None
        placements = each.placement.placements if isinstance(each.placement, Fits) else ()
        reused, provisioned = self._watch.gpus_on(each.workload, placements, since=reserved_at)
        return Released(
            key=each.key,
            because=change.because,
            waited=max(timedelta(0), now - reserved_at),
            reused_gpus=reused,
            provisioned_gpus=provisioned,
        )


# ----------------------------------------------------------------------------------------- the states on Workloads

Json = dict[str, Any]

_REFRESHED = 50
"""Messages that are updated in one tick although their reason is the same."""
_REFRESH_AFTER = timedelta(seconds=30)
_PAUSES = Backoff(base=1.0, cap=60.0)
"""How long an entry is not written after refusals."""
_NOT_WRITTEN = "admission check not written"
_RESET = "Reset to Pending after eviction."
"""The message of an entry that Kueue has reset."""


@dataclass(frozen=True, slots=True)
class _Written:
    because: CheckReason
    at: datetime


@dataclass(frozen=True, slots=True)
class _Refused:
    times: int
    until: datetime


class CheckStateWriter:
    """Writes entries of Workloads."""

    def __init__(self, api: PatchApi, announcer: EventSink) -> None:
        self._api = api
        self._announcer = announcer
        self._written: dict[CheckKey, _Written] = {}
        self._refused: dict[CheckKey, _Refused] = {}
        self._doubts: Doubts[str] = Doubts()
        """Keys of Workloads."""

    def forget_others(self, names: Iterable[CheckKey]) -> None:
        """Forget what was written to all but these."""
        kept = frozenset(names)
        self._written = {name: each for name, each in self._written.items() if name in kept}
        self._refused = {name: refused for name, refused in self._refused.items() if name in kept}

    def due(
        self, changes: Sequence[tuple[CheckedWorkload, CheckChange]], now: datetime
    ) -> list[tuple[CheckedWorkload, CheckChange]]:
        """The changes to write now: Ready first, then other states and reasons, then a few messages."""
        unwritten = [
            (checked, change)
            for checked, change in changes
            if not change.equals(checked.reserved.entry) and self.may_write(checked.name, now)
        ]
        news = [each for each in unwritten if self._is_news(*each)]
        news.sort(
            key=lambda each: (each[1].state is not CheckState.READY, each[0].reserved.reserved_at, each[0].reserved.uid)
        )
        stale = [each for each in unwritten if not self._is_news(*each) and self._is_stale(each[0].name, now)]
        return news + stale[:_REFRESHED]

    def _is_news(self, checked: CheckedWorkload, change: CheckChange) -> bool:
        """Whether more than the message changes."""
        entry, written = checked.reserved.entry, self._written.get(checked.name)
        if entry is None or change.state != entry.state or change.updates != entry.updates:
            return True
        if not entry.message or entry.message.startswith(_RESET):
            return True
        return written is not None and written.because != change.because

    def _is_stale(self, name: CheckKey, now: datetime) -> bool:
        written = self._written.get(name)
        return written is None or now - written.at >= _REFRESH_AFTER

    def may_write(self, name: CheckKey, now: datetime) -> bool:
        """Whether no pause after a refusal is left."""
        refused = self._refused.get(name)
        return refused is None or refused.until <= now

    def _back_off(self, name: CheckKey, now: datetime, *, is_conflict: bool) -> None:
        """A refusal's pause: 1, 2, 4 … seconds, up to a minute; none after the first conflict."""
        before = self._refused.get(name)
        times = before.times + 1 if before is not None else 1
        self._refused[name] = _Refused(times, now + timedelta(seconds=_PAUSES.ceiling(times - is_conflict)))

    async def write(self, checked: CheckedWorkload, change: CheckChange, now: datetime) -> bool:
        """Whether the entry was written. Raises: KubeError with the reason NotLeading."""
        try:
            written = await self._write(checked, change, now)
        except KubeError as error:
            if error.is_not_leading:
                raise
            self._back_off(checked.name, now, is_conflict=error.is_outdated)
            log_refusal(log, _NOT_WRITTEN, error, workload=checked.reserved.key, state=str(change.state))
            return False
        except UNREADABLE as error:
            self._back_off(checked.name, now, is_conflict=False)
            log.warning(_NOT_WRITTEN, workload=checked.reserved.key, error=f"cannot be read: {error}")
            return False
        if not written:
            self._back_off(checked.name, now, is_conflict=True)
        else:
            self._refused.pop(checked.name, None)
            self._announce(checked, change, now)
            self._written[checked.name] = _Written(change.because, now)
        return written

    async def _write(self, checked: CheckedWorkload, change: CheckChange, now: datetime) -> bool:
        """Raises: KubeError."""
        raw, fresh = await self._read(checked.reserved.key)
        gang = reserved_workload_of(fresh, checked.check)
        if not _is_unchanged(checked, fresh, gang) or decide(gang, checked.inputs, now) != change:
            return False
        note = _note(gang, checked.inputs.wanted_by, now) if change.because is CheckReason.YIELDS else None
        return await self._put(raw, checked.check, change, now, note=note)

    async def _put(self, raw: Json, check: str, change: CheckChange, now: datetime, *, note: Yielded | None) -> bool:
        """Raises: KubeError."""
        namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
        if note is not None:
            noted = await self._api.patch(WORKLOAD.path(namespace, name), yield_patch(raw, note))
            raw = msgspec.json.decode(noted)
        body = entry_patch(raw, check, change, now)
        if body is None:
            return False
        with self._doubts.held(f"{namespace}/{name}"):
            await self._api.patch(WORKLOAD.path(namespace, name, "status"), body)
        return True

    async def _read(self, key: str) -> tuple[Json, Workload]:
        namespace, _, name = key.partition("/")
        body = await self._api.get(WORKLOAD.path(namespace, name))
        return msgspec.json.decode(body), decode(Workload, body)

    async def clear_doubts(self) -> str:
        """Read the Workloads with writes that got no response. Why their state is not known; empty where it is.

        A gang whose check became Ready has a reservation that other gangs must not get.
        """
        for key in sorted({*self._doubts.open}):
            try:
                await self._read(key)
            except (KubeError, *UNREADABLE) as error:
                if not (isinstance(error, KubeError) and error.is_absent):
                    return f"check state of {key} is not known after a write without response: {error}"
            self._doubts.read(key)
        return ""

    # --------------------------------------------------------------------------------------------------------- events

    def _announce(self, checked: CheckedWorkload, change: CheckChange, now: datetime) -> None:
        workload, written, reserved_at = checked.workload, self._written.get(checked.name), checked.reserved.reserved_at
        match change.state:
            case CheckState.READY if change.because is not CheckReason.ADMITTED_BEFORE and reserved_at is not None:
                waited = timedelta(seconds=max(0, round((now - reserved_at).total_seconds())))
                after = f"{format_duration(waited)} after its quota was reserved"
                self._record(workload, "AdmissionCheckReady", f"{change.message}; {after}")
            case CheckState.RETRY:
                reason = "AdmissionCheckRetry" if change.because is CheckReason.YIELDS else str(change.because)
                self._record(workload, reason, change.message, warning=True)
            case CheckState.PENDING if written is None or written.because is not change.because:
                self._record(workload, "AdmissionCheckPending", f"{change.because}: {change.message}")

    def _record(self, workload: Workload, reason: str, message: str, *, warning: bool = False) -> None:
        self._announcer.record(ObjectReference.of(WORKLOAD, workload.metadata), reason, message, warning=warning)


def _note(gang: ReservedWorkload, to: str, now: datetime) -> Yielded:
    """The annotation of a gang that releases its quota; unchanged where it names this reservation already."""
    before = gang.yielded
    if before is not None and gang.is_yielding:
        return before
    return Yielded(to=to, at=now, times=before.times + 1 if before is not None else 1, reserved_at=gang.reserved_at)


def _is_unchanged(checked: CheckedWorkload, fresh: Workload, gang: ReservedWorkload) -> bool:
    """Whether it is the same gang with the same reservation as when its state was computed."""
    seen = checked.workload
    is_same = fresh.metadata.uid == seen.metadata.uid and gang.reserved_at == checked.reserved.reserved_at
    return is_same and assignments_of(fresh) == assignments_of(seen)
