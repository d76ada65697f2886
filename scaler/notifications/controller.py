"""Tells owners what happened to their workloads: the leader's loop.

Read the histories → find what is due → make sure that it is current → send → mark. Laws:

* Before a message is sent, a dry run asks the API whether each of its workloads is still as it was read, and whether
  this replica still leads. A leader with old copies, or one that leads no more, sends nothing.
* A send that has begun is ended, and marked, before the Lease is released.
* A mark that cannot be written is kept and written later; its lines are not sent again meanwhile.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog

from scaler.clock import SYSTEM_CLOCK, Clock, Turns, every
from scaler.errors import KubeError
from scaler.kube.objects.core import without_defaults
from scaler.kube.objects.idlegpu import Mark
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.kube.writes import PatchApi
from scaler.notifications.message import Details, content
from scaler.notifications.notice import Notice, NotifiedWorkload, oldest_notified, pending
from scaler.notifications.schedule import COUNTED, DeliveryLimits, Message, Schedule
from scaler.notifications.senders import Sender
from scaler.notifications.workloads import NotifiedWorkloads, Source
from scaler.webhook import SendError

log = structlog.get_logger(__name__)

_LONGEST_INTERVAL = timedelta(seconds=5)
_MOST_AT_ONCE = 16
_INVALID = 422
"""Gone, changed, or another object of that name: a uid is immutable, so a patch with the old one is invalid."""

DetailsOf = Callable[[Notice, Source, datetime], Details]


class NotificationsObserver(Protocol):
    def sent(self, target: str, outcome: str) -> None:
        """A message was `delivered`, or has `failed` and is tried again, or its last notice has `expired`."""

    def oldest_pending(self, age: timedelta) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """What is configured."""

    limits: DeliveryLimits
    senders: Mapping[str, Sender] = field(default_factory=dict)


class NotificationController:
    name = "notifications"

    def __init__(
        self,
        api: PatchApi,
        workloads: NotifiedWorkloads,
        configured: Notifications,
        details: DetailsOf,
        observer: NotificationsObserver,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api = api
        self._workloads = workloads
        self._configured = configured
        self._details = details
        self._observer = observer
        self._clock = clock
        self._schedule = Schedule(configured.limits)
        self._marks: dict[tuple[str, str], Mark] = {}
        """Marks that this process has written and not seen in the API yet, by (uid, target)."""
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._waiting: dict[str, Notice] = {}
        """The notices that wait, by id."""

    async def run(self) -> None:
        """The ticks, until cancelled."""
        if self._configured.senders:
            interval = min(_LONGEST_INTERVAL, self._configured.limits.group_for)
            await every(interval, self.tick, asyncio.Event(), name="notification", clock=self._clock)

    async def tick(self, now: datetime) -> None:
        read, turns = [], Turns()
        for source, workload in self._workloads.all():
            read.append((source, self._with_own_marks(workload)))
            await turns.give_way()
        sources = {workload.uid: source for source, workload in read}
        self._marks = {key: mark for key, mark in self._marks.items() if key[0] in sources}
        await self._write_marks(sources)
        notices = await self._pending([workload for _, workload in read], now)
        due = self._schedule.due(notices, now)
        async with asyncio.TaskGroup() as tasks:
            for message in due:
                tasks.create_task(self._in_turn(message, sources))

    # ------------------------------------------------------------------------------------------------------ what is due

    def _with_own_marks(self, workload: NotifiedWorkload) -> NotifiedWorkload:
        """The workload with what this process has delivered, as far as its copy of the object does not show it yet."""
        own = {}
        for target in self._configured.senders:
            key = workload.uid, target
            mark, shown = self._marks.get(key), workload.marks.get(target)
            if mark is not None and shown is not None and shown.delivered_at >= mark.delivered_at:
                del self._marks[key]
            elif mark is not None:
                own[target] = mark
        return replace(workload, marks={**workload.marks, **own}) if own else workload

    async def _pending(self, workloads: Sequence[NotifiedWorkload], now: datetime) -> list[Notice]:
        oldest = oldest_notified(self._configured.limits.give_up_after, now)
        found: list[Notice] = []
        turns = Turns()
        for workload in workloads:
            await turns.give_way()
            for target in workload.targets:
                if target in self._configured.senders:
                    mark = workload.marks.get(target)
                    if mark is not None and mark.delivered_at > now - COUNTED:
                        self._schedule.count((target, workload.owner), mark.delivered_at)
                    found += pending(workload, target, not_before=oldest)
        self._report(found, oldest, now)
        return found

    def _report(self, notices: Sequence[Notice], oldest: datetime, now: datetime) -> None:
        waiting = {each.id: each for each in notices}
        for gone in self._waiting.keys() - waiting.keys():
            notice = self._waiting[gone]
            if notice.line.at < oldest:
                self._observer.sent(notice.target, "expired")
                log.warning("owner not notified: too old", workload=str(notice.workload), target=notice.target)
        self._waiting = waiting
        ages = (now - each.line.at for each in notices)
        self._observer.oldest_pending(max(ages, default=timedelta(0)))

    # --------------------------------------------------------------------------------------------------------- delivery

    async def _in_turn(self, message: Message, sources: Mapping[str, Source]) -> None:
        async with self._at_once:
            await _to_its_end(self._deliver(message, sources))

    async def _deliver(self, message: Message, sources: Mapping[str, Source]) -> None:
        notices = await self._current(message.notices, sources)
        if not notices:
            return
        message = replace(message, notices=notices)
        now = self._clock.now()
        try:
            shown = {each.id: self._details(each, sources[each.workload.uid], now) for each in notices}
            await self._configured.senders[message.target].send(content(message, shown), now)
        except SendError as error:
            again = self._schedule.failed(message.channel, now, retry_after=error.retry_after)
            self._observer.sent(message.target, "failed")
            log.warning("owner not notified yet", target=message.target, error=str(error), again_at=again.isoformat())
            return
        except Exception:  # one message fails; the others are sent
            self._schedule.failed(message.channel, now)
            self._observer.sent(message.target, "failed")
            log.exception("owner not notified yet", target=message.target)
            return
        now = self._clock.now().replace(microsecond=0)
        self._schedule.delivered(message.channel, now)
        self._observer.sent(message.target, "delivered")
        self._waiting = {key: each for key, each in self._waiting.items() if each not in notices}
        for each in notices:  # the newest of each workload comes last
            self._marks[each.workload.uid, message.target] = Mark(
                at=each.line.at, state=each.line.state, delivered_at=now
            )
        await self._write_marks({each.workload.uid: sources[each.workload.uid] for each in notices})

    async def _current(self, notices: Sequence[Notice], sources: Mapping[str, Source]) -> tuple[Notice, ...]:
        """The notices whose workload is as it was read; of others there is a newer copy soon. Raises: KubeError."""
        stale = set()
        for uid in {each.workload.uid for each in notices}:
            source = sources[uid]
            precondition = {"metadata": {"uid": uid, "resourceVersion": source.record.metadata.resource_version}}
            try:
                await self._api.patch(SCALABLE_WORKLOAD.path(*source.record.metadata.key), precondition, dry_run=True)
            except KubeError as error:
                if not (error.is_outdated or error.status == _INVALID):
                    raise
                stale.add(uid)
        return tuple(each for each in notices if each.workload.uid not in stale)

    async def _write_marks(self, sources: Mapping[str, Source]) -> None:
        """The marks that are not in the API yet are written. An object that was replaced needs none."""
        for (uid, target), mark in list(self._marks.items()):
            if (source := sources.get(uid)) is None:
                continue
            path = SCALABLE_WORKLOAD.path(*source.record.metadata.key, "status")
            try:
                body = {"metadata": {"uid": uid}, "status": {"notified": {target: without_defaults(mark)}}}
                await self._api.patch(path, body)
            except KubeError as error:
                if error.is_outdated or error.status == _INVALID:
                    self._marks.pop((uid, target), None)
                else:
                    log.warning("mark not written yet", path=path, error=str(error))


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work even where this task is cancelled: it is as short as one send. Errors of the API are logged."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except KubeError as error:
        log.warning("owner not notified yet", error=str(error))
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.warning("owner not notified yet", error=str(failure))
        raise
