"""What is answered to KEDA? The answers of the DecisionCache as replies of the ExternalScaler service.

Laws of this file, from what KEDA does with a reply:

* Every unary RPC is answered from memory, at once. KEDA sets no deadline and holds locks while it waits.
* GetMetricSpec is constant and cannot fail, whatever the metadata: one that hangs stops all of KEDA's reconciles, and
  the text of one that fails is never shown.
* No usable answer is an error, never `false` or 0. KEDA leaves the replicas alone on errors, and acts on the rest.
* GetMetrics and IsActive say the same thing, because both are the DecisionCache's answer.
* Exactly one metric, value 1 or 0 with target 1: the HorizontalPodAutoscaler then never wants more than one replica.
* A stream only ever ends with OK, each by itself at a time of its own, and all of them at once on drain. KEDA treats a
  stream that breaks as an error and doubles its wait before the next one, up to a minute and for good. Where there is
  nothing to say a stream stays open and silent.
* A client that is not allowed learns nothing of any workload, and opens no stream. GetMetricSpec is equal for all, so
  it is answered: then it is GetMetrics that fails, whose text KEDA shows to the owner.

| the cache's answer   | GetMetrics        | IsActive          | StreamIsActive                        |
|----------------------|-------------------|-------------------|---------------------------------------|
| Active               | 1                 | true              | true, on open and on change to active |
| Inactive             | 0                 | false             | false, on open only                   |
| Unknown              | UNAVAILABLE       | UNAVAILABLE       | silence                               |
| (metadata unusable)  | INVALID_ARGUMENT  | INVALID_ARGUMENT  | silence                               |
| (an internal error)  | INTERNAL          | INTERNAL          | silence                               |
| (another's identity) | PERMISSION_DENIED | PERMISSION_DENIED | PERMISSION_DENIED                     |
| (no certificate)     | UNAUTHENTICATED   | UNAUTHENTICATED   | UNAUTHENTICATED                       |
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from random import uniform
from time import perf_counter
from typing import Any, NamedTuple, TypeVar, assert_never

import grpc

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import MetadataError
from scaler.idleness.verdict import Unknown
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.tls.certificates import AllowedClients, ClientCertificate, certificates_in

_LOG = logging.getLogger(__name__)

METRIC_NAME = "gpu-in-use"
"""KEDA puts it into a URL path and, since 2.19, into events: "Scaled ... from 0 to 1, triggered by s0-gpu-in-use"."""

_METRIC_SPEC = pb.GetMetricSpecResponse(
    # A target of 0 would be refused by the API server. KEDA before 2.17 reads the integer, later ones the float.
    metricSpecs=[pb.MetricSpec(metricName=METRIC_NAME, targetSize=1, targetSizeFloat=1.0)]
)

_LONGEST_DETAILS = 900
"""Characters. An Event's message holds 1024, and KEDA puts the status code in front of these."""

Context = grpc.aio.ServicerContext[Any, Any]
AuthContext = Mapping[str, Iterable[bytes]]
T = TypeVar("T")


Observe = Callable[[str, str, float], None]
"""Takes the method of an RPC that is over, the name of its gRPC status (`CANCELLED` is a client that went away), and
how many seconds it took; for a stream these are its whole life."""


class _Refusal(NamedTuple):
    code: grpc.StatusCode
    details: str


class StreamLifetimes:
    """The ends of all streams of one server.

    A stream lives at most `longest`, wherever in the life of its connection it was opened; the lives differ by chance
    (half of `longest` to all of it), so that streams which were opened together are not reopened together for ever.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest_s = longest.total_seconds()
        self._waits: set[asyncio.Timeout] = set()
        self._all_over = False

    def end_of_new_stream(self) -> float:
        """The event loop's time at which a stream that opens now has to end."""
        life_s = self._longest_s * uniform(0.5, 1.0)  # noqa: S311 -- spreads load, guards nothing
        return asyncio.get_running_loop().time() + life_s

    def end_all(self) -> None:
        """Let every stream end now, and those that are still to open as soon as they wait for something."""
        self._all_over = True
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    async def until(self, end: float, values: AsyncIterator[T]) -> AsyncIterator[T]:
        """The values until the stream has to end or there are no more.

        Only waiting for a value is interrupted. What is done with a value, such as writing it, always completes: half
        a write would break the stream that is to end well.
        """
        while True:
            try:
                async with self._interrupted_at(end):
                    value = await anext(values)
            except (TimeoutError, StopAsyncIteration):
                return
            yield value

    async def wait(self, end: float) -> None:
        try:
            async with self._interrupted_at(end):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return

    @asynccontextmanager
    async def _interrupted_at(self, end: float) -> AsyncIterator[None]:
        """Raises: TimeoutError in its body at `end`, or as soon as all streams have to end."""
        at = asyncio.get_running_loop().time() if self._all_over else end
        async with asyncio.timeout_at(at) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)


class ExternalScalerServicer:
    """The ExternalScaler service over a DecisionCache. Method names are KEDA's."""

    def __init__(
        self,
        decisions: DecisionCache,
        lifetimes: StreamLifetimes,
        *,
        observe: Observe,
        clients: AllowedClients | None = None,
    ) -> None:
        """`clients`: the clients that are allowed; None allows every client that connects."""
        self._decisions = decisions
        self._lifetimes = lifetimes
        self._observe = observe
        self._clients = clients

    async def GetMetricSpec(self, _ref: Any, _context: Context) -> Any:  # noqa: N802
        self._observe("GetMetricSpec", "OK", 0.0)
        return _METRIC_SPEC

    async def GetMetrics(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Whatever metric name is requested: KEDA stamps the requested one on every value it gets."""
        name = request.metricName or METRIC_NAME
        return await self._reply(
            "GetMetrics",
            request.scaledObjectRef,
            context,
            lambda active: pb.GetMetricsResponse(
                metricValues=[pb.MetricValue(metricName=name, metricValue=int(active), metricValueFloat=float(active))]
            ),
        )

    async def IsActive(self, ref: Any, context: Context) -> Any:  # noqa: N802
        return await self._reply("IsActive", ref, context, lambda active: pb.IsActiveResponse(result=active))

    async def StreamIsActive(self, ref: Any, context: Context) -> None:  # noqa: N802
        await self._refuse_unless_allowed("StreamIsActive", context)
        with self._observed("StreamIsActive"):
            end = self._lifetimes.end_of_new_stream()
            async for active in self._changes(ref, end):
                await context.write(pb.IsActiveResponse(result=active))

    async def StreamMetricSpec(self, _ref: Any, context: Context) -> None:  # noqa: N802
        """The specs never change, so they are sent once. Without this RPC KEDA 2.21 would only stop asking for it."""
        await self._refuse_unless_allowed("StreamMetricSpec", context)
        with self._observed("StreamMetricSpec"):
            end = self._lifetimes.end_of_new_stream()
            await context.write(_METRIC_SPEC)
            await self._lifetimes.wait(end)

    async def _reply(self, method: str, ref: Any, context: Context, response: Callable[[bool], Any]) -> Any:
        started = perf_counter()
        active = self._not_for(context) or self._is_active(ref)
        code = active.code if isinstance(active, _Refusal) else grpc.StatusCode.OK
        self._observe(method, code.name, perf_counter() - started)
        if isinstance(active, _Refusal):
            await context.abort(active.code, _clipped(active.details))
        return response(active)

    async def _refuse_unless_allowed(self, method: str, context: Context) -> None:
        """Raises what ends the RPC of a client that is not allowed."""
        if refusal := self._not_for(context):
            self._observe(method, refusal.code.name, 0.0)
            await context.abort(refusal.code, _clipped(refusal.details))

    def _not_for(self, context: Context) -> _Refusal | None:
        if self._clients is None:
            return None
        refusal = self._clients.refusal(presented(context.auth_context()))
        if refusal is None:
            return None
        code = grpc.StatusCode.UNAUTHENTICATED if refusal.is_unidentified else grpc.StatusCode.PERMISSION_DENIED
        return _Refusal(code, refusal.reason)

    def _is_active(self, ref: Any) -> bool | _Refusal:
        try:
            return _projected(self._decisions.answer(ref.namespace, ref.name, parse_metadata(ref.scalerMetadata)))
        except MetadataError as error:
            return _Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            _LOG.exception("no answer for ScaledObject %s/%s", ref.namespace, ref.name)
            fault = f"internal error, {type(error).__name__}; the scaler's log has the details"
            return _Refusal(grpc.StatusCode.INTERNAL, fault)

    async def _changes(self, ref: Any, end: float) -> AsyncIterator[bool]:
        """The current activity where there is one, then `True` per change to active, until the stream has to end."""
        try:
            trigger = parse_metadata(ref.scalerMetadata)
            answers = self._decisions.activations(ref.namespace, ref.name, trigger)
            is_first = True
            async for answer in self._lifetimes.until(end, answers):
                active = _projected(answer)
                if active is True or (is_first and active is False):
                    yield active
                is_first = False
        except MetadataError:
            await self._lifetimes.wait(end)  # the polls tell the owner
        except Exception:
            _LOG.exception("no more pushes on this stream for ScaledObject %s/%s", ref.namespace, ref.name)
            await self._lifetimes.wait(end)

    @contextmanager
    def _observed(self, method: str) -> Iterator[None]:
        started = perf_counter()
        code = "UNKNOWN"
        try:
            yield
            code = "OK"
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        finally:
            self._observe(method, code, perf_counter() - started)


def _projected(answer: Answer) -> bool | _Refusal:
    match answer:
        case Active():
            return True
        case Inactive():
            return False
        case Unknown(reason=reason, message=message):
            return _Refusal(grpc.StatusCode.UNAVAILABLE, f"{reason}: {message}")
        case _:
            # Not left to the type checker alone: a None here would read as "inactive".
            assert_never(answer)


def _clipped(details: str) -> str:
    return details if len(details) <= _LONGEST_DETAILS else f"{details[: _LONGEST_DETAILS - 1]}…"


def presented(context: AuthContext) -> ClientCertificate | None:
    """What the client has shown, out of an RPC's `auth_context`; None without a certificate."""
    pem = b"".join(context.get("x509_pem_cert") or ())
    if not pem:
        return None
    names = [*(context.get("x509_subject_alternative_name") or ()), *(context.get("x509_common_name") or ())]
    return ClientCertificate(
        names=[each.decode("utf-8", errors="replace") for each in names if each], not_after=_end(pem)
    )


@lru_cache(maxsize=256)
def _end(pem: bytes) -> datetime | None:
    try:
        return min((each.not_after for each in certificates_in(pem)[:1]), default=None)
    except ValueError:
        return None
