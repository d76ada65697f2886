"""Records what was done, and why, as Events of the object that it was done to.

Laws:

* Recording never waits and never fails. What cannot be sent is dropped and counted: an Event is a courtesy, and the
  decision behind it stands in the object's status as well.
* The queue is bounded, and so is the rate. What is repeated while it waits becomes one Event with a count; what is
  repeated within ten minutes becomes a count on the Event that exists.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec
import structlog

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.errors import KubeError
from scaler.kube.objects.core import ObjectMeta, Struct, stamp
from scaler.kube.objects.resources import EVENT, Resource
from scaler.kube.transport import KubeTransport

_log = structlog.get_logger(__name__)

COMPONENT = "idle-gpu-scaler"
AGGREGATION_SECONDS = 600.0
LONGEST_MESSAGE = 1024
"""Characters. The events.k8s.io API, by which others read the same Events, allows no more."""
REMEMBERED = 4096
"""Series whose Event is remembered in order to count on it."""


class ObjectReference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The object that an Event is about, as it stands in the Event."""

    api_version: str
    kind: str
    namespace: str = ""
    """Empty for what belongs to none; its Events are kept in `default`."""
    name: str
    uid: str
    """`kubectl describe` finds Events by it."""

    @classmethod
    def of(cls, resource: Resource, metadata: ObjectMeta) -> "ObjectReference":
        return cls(
            api_version=resource.api_version,
            kind=resource.kind,
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
        )


class _Series(NamedTuple):
    """What makes two Events the same."""

    about: ObjectReference
    event_type: str
    reason: str
    message: str

    @property
    def namespace(self) -> str:
        return self.about.namespace or "default"


class _Waiting(NamedTuple):
    times: int
    first: datetime
    last: datetime


class _Sent(NamedTuple):
    name: str
    times: int
    at: float


class EventSink(Protocol):
    """Records Events on objects. An EventRecorder is one."""

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        """Records the event; it never blocks and never fails the caller."""


class EventRecorder:
    """Sends Events while `run` runs. `lost` gets the number of those that find the queue full, or the API refuses."""

    def __init__(
        self,
        transport: KubeTransport,
        *,
        instance: str = "",
        queue_limit: int = 1000,
        per_second: float = 5.0,
        burst: int = 50,
        lost: Callable[[int], object] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._instance = instance or COMPONENT
        self._queue_limit = queue_limit
        self._lost = lost
        self._waiting: OrderedDict[_Series, _Waiting] = OrderedDict()
        self._sent: OrderedDict[_Series, _Sent] = OrderedDict()
        self._has_waiting = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._refilled_at = self._clock.monotonic()
        self._is_failing = False

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        """Queues an Event. Returns at once, never raises."""
        now = self._clock.now()
        text = message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"
        series = _Series(about, "Warning" if warning else "Normal", reason, text)
        waiting = self._waiting.get(series)
        if waiting is not None:
            self._waiting[series] = waiting._replace(times=waiting.times + 1, last=now)
        elif len(self._waiting) >= self._queue_limit:
            self._lost(1)
        else:
            self._waiting[series] = _Waiting(1, now, now)
            self._has_waiting.set()
            self._is_idle.clear()

    async def run(self) -> None:
        while True:
            await self._has_waiting.wait()
            await self._take_token()
            series, waiting = self._waiting.popitem(last=False)
            await self._send(series, waiting)
            if not self._waiting:
                self._has_waiting.clear()
                self._is_idle.set()

    async def drain(self, within: float) -> bool:
        """Whether everything queued was sent (or refused) in so many seconds, while `run` runs."""
        try:
            async with asyncio.timeout(within):
                await self._is_idle.wait()
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------------ sending

    async def _send(self, series: _Series, waiting: _Waiting) -> None:
        try:
            known = self._sent.get(series)
            is_recent = known is not None and self._clock.monotonic() - known.at < AGGREGATION_SECONDS
            if not (known and is_recent and await self._count_on(series, known, waiting)):
                await self._create(series, waiting)
            self._is_failing = False
        except KubeError as error:
            self._lost(waiting.times)
            if not self._is_failing:
                _log.warning("KubeEventNotRecorded", reason=series.reason, error=str(error))
            self._is_failing = True

    async def _count_on(self, series: _Series, known: _Sent, waiting: _Waiting) -> bool:
        """Whether the Event that exists was counted up; False where it has been cleaned away."""
        count = known.times + waiting.times
        path = EVENT.path(series.namespace, known.name)
        try:
            await self._transport.patch(path, {"count": count, "lastTimestamp": stamp(waiting.last)})
        except KubeError as error:
            if not error.is_absent:
                raise
            return False
        self._remember(series, known._replace(times=count))
        return True

    async def _create(self, series: _Series, waiting: _Waiting) -> None:
        name = f"{series.about.name[:230]}.{secrets.token_hex(8)}"
        await self._transport.create(EVENT.path(series.namespace), self._event(series, waiting, name))
        self._remember(series, _Sent(name, waiting.times, self._clock.monotonic()))

    def _event(self, series: _Series, waiting: _Waiting, name: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": series.namespace},
            "involvedObject": msgspec.to_builtins(series.about),
            "type": series.event_type,
            "reason": series.reason,
            "message": series.message,
            "count": waiting.times,
            "firstTimestamp": stamp(waiting.first),
            "lastTimestamp": stamp(waiting.last),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }

    def _remember(self, series: _Series, sent: _Sent) -> None:
        self._sent[series] = sent
        self._sent.move_to_end(series)
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    async def _take_token(self) -> None:
        """Waits until one more Event may be sent."""
        now = self._clock.monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._refilled_at) * self._per_second)
        self._refilled_at = now
        self._tokens -= 1
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / self._per_second)
