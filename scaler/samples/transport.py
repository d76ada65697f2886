"""One HTTP request under prometheus-api-client that ends: in time, within its size, with an answer or a typed error.

`PrometheusConnect` builds the request and gives it to a `requests.Session`. This session closes what would hurt there:

| left alone                                                      | here                                             |
|-----------------------------------------------------------------|--------------------------------------------------|
| no timeout; `timeout=` counts per socket read, so drips go on   | one deadline for connecting, headers and body    |
| own adapter mounted over this one, retries 4 times for over 6 s | `get_adapter` returns this one, without retries  |
| POST with the query still in the URL                            | parameters move to the body                      |
| proxies and netrc from the environment, redirects, cookies      | none of them                                     |
| a body of any size                                              | refused beyond a limit, decompressed bytes count |
| `warnings` dropped, errors without a type                       | `responses` reads the whole envelope             |

Socket timeouts count from one read to the next, so a server that sends a byte now and then is never too late for them.
The event loop knows when the time is up: it shuts the socket down from its own thread, and the wait of the request's
thread ends with an error. Only looking up a name and the handshake of a new connection cannot be ended this way; the
timeout of the socket bounds each step.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.retry import Retry

from scaler import __version__
from scaler.samples.credentials import without_secrets
from scaler.samples.responses import QueryResult, marked_partial, read_answer, read_refusal
from scaler.samples.source import ReadError, ReadOutcome

_CHUNK = 256 * 1024
_ERROR_BYTES = 64 * 1024
"""The part of an error's body that is read: Prometheus' own are short, a proxy's page is not worth more."""
_LONGEST_RETRY_AFTER_S = 3600.0
_M3_LIMITED = "M3-Results-Limited"


# ---- requests that another thread may abort


class AbortableRequest:
    """One request on its way, which another thread may abort."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_over = False

    def hold(self, connected: socket.socket | None) -> None:
        """Remember the socket that the request uses. Raises: OSError where the request was aborted meanwhile."""
        with self._lock:
            if self._is_over:
                raise OSError("the request was aborted")
            self._socket = connected

    def abort(self) -> None:
        """Make every wait for the socket end at once. Without effect on a request that is over."""
        with self._lock:
            connected, self._socket, self._is_over = self._socket, None, True
            if connected is not None:
                with suppress(OSError):
                    # SSLSocket's own method would take the TLS state away from the thread that reads.
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the attempt that connections of the current thread belong to."""
        _thread.attempt = self
        try:
            yield
        finally:
            _thread.attempt = None
            with self._lock:
                self._socket, self._is_over = None, True


class _Thread(threading.local):
    attempt: AbortableRequest | None = None


_thread = _Thread()


class _Connection(HTTPConnection):
    """Tells the attempt of its thread about its socket, new or reused."""

    def connect(self) -> None:
        super().connect()
        self._tell()

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            self._tell()
        super().request(*args, **kwargs)

    def _tell(self) -> None:
        if _thread.attempt is not None:
            _thread.attempt.hold(self.sock)


class _TlsConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class AbortableAdapter(HTTPAdapter):
    """Keeps up to `connections` open, never retries by itself, and lets the attempt of its thread be aborted."""

    def __init__(self, connections: int) -> None:
        super().__init__(pool_connections=1, pool_maxsize=connections, max_retries=Retry(0, read=False))
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


# ---- the session


class BoundedSession(requests.Session):
    """Sends a request once. Give every request a `timeout`: it is the time for all of it."""

    def __init__(self, *, connections: int, max_bytes: int, thanos: bool = False) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers.update({"User-Agent": f"idle-gpu-scaler/{__version__}", "Accept-Encoding": "gzip"})
        self._adapter = AbortableAdapter(connections)
        self._max_bytes = max_bytes
        self._thanos = thanos

    def get_adapter(self, url: str | bytes) -> AbortableAdapter:  # noqa: ARG002 - whatever was mounted
        return self._adapter

    def close(self) -> None:
        super().close()
        self._adapter.close()

    def request(  # type: ignore[override]  # only what PrometheusConnect passes
        self, method: str, url: str, *, params: dict[str, Any], timeout: float, **others: Any
    ) -> requests.Response:
        """The answer as a response whose `json()` gives it undecoded to PrometheusConnect.

        Raises: ReadError.
        """
        deadline = time.monotonic() + timeout
        others |= {"data": params} if method == "POST" else {"params": params}
        try:
            response = super().request(method, url, timeout=timeout, allow_redirects=False, stream=True, **others)
            with response:
                return _Answered(self._answer(response, deadline))
        except ReadError:
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise _failure(error) from None

    def _answer(self, response: requests.Response, deadline: float) -> QueryResult:
        if response.status_code == 200:
            if _M3_LIMITED in response.headers:
                raise marked_partial(f"header {_M3_LIMITED}")
            body = _body(response, deadline, limit=self._max_bytes)
            if len(body) > self._max_bytes:
                raise ReadError(
                    ReadOutcome.TOO_LARGE,
                    f"an answer of more than {self._max_bytes} bytes; narrow the query by matchers or raise maxBytes",
                )
            server_time = _date(response)
            try:
                return read_answer(body, server_time=server_time)
            except ReadError:
                # The second read raises an error that quotes the body without our secrets.
                return read_answer(without_secrets(body, response.request), server_time=server_time)
        if response.is_redirect or 300 <= response.status_code < 400:
            target = response.headers.get("Location", "nowhere").partition("?")[0]
            raise ReadError(
                ReadOutcome.PROTOCOL, f"redirected ({response.status_code}) to {target}; configure the final URL"
            )
        body = _body(response, deadline, limit=_ERROR_BYTES)
        refusal = read_refusal(response.status_code, without_secrets(body, response.request), thanos=self._thanos)
        if refusal.outcome is ReadOutcome.UNAVAILABLE and (pause_s := _retry_after_s(response)):
            raise ReadError(
                ReadOutcome.UNAVAILABLE, f"{refusal}; it asks for a pause of {pause_s:g} s", retry_after_s=pause_s
            )
        raise refusal


class _Answered(requests.Response):
    """What PrometheusConnect expects of a response, around an answer that is already checked."""

    def __init__(self, answer: QueryResult) -> None:
        super().__init__()
        self.status_code = 200
        self._answer = answer

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self._answer}}


def _body(response: requests.Response, deadline: float, *, limit: int) -> bytearray:
    """The decompressed body, or slightly more than `limit` bytes of it. Raises: ReadError."""
    body = bytearray()
    while len(body) <= limit and (chunk := response.raw.read1(_CHUNK, decode_content=True)):
        body += chunk
        if time.monotonic() > deadline:
            raise ReadError(ReadOutcome.TIMEOUT, "the answer did not end in time")
    return body


def _date(response: requests.Response) -> datetime | None:
    """The server's clock when it began to answer, in whole seconds."""
    try:
        stated = parsedate_to_datetime(response.headers["Date"])
    except (KeyError, ValueError):
        return None
    return stated.replace(tzinfo=stated.tzinfo or UTC).astimezone(UTC)


def _retry_after_s(response: requests.Response) -> float:
    """The pause that the server asks for in seconds; 0 where it asks for none. A date is not worth honouring here."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0


# ---- failures below HTTP


def _failure(error: Exception) -> ReadError:
    """The failure in our types. Only words of the operating system, TLS or HTTP are kept, never a request's content."""
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError):
        return ReadError(ReadOutcome.TIMEOUT, "no answer in time")
    if isinstance(error, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        return ReadError(
            ReadOutcome.UNREACHABLE,
            f"TLS failed ({_root_cause(error)}); check caFile, certFile and the server's name",
            transient=False,
        )
    if isinstance(error, urllib3.exceptions.DecodeError | requests.exceptions.ContentDecodingError):
        return ReadError(ReadOutcome.PROTOCOL, "the body is not what its Content-Encoding says", transient=True)
    if isinstance(error, requests.ConnectionError | urllib3.exceptions.HTTPError | OSError) and not isinstance(
        error, requests.exceptions.InvalidURL | requests.exceptions.InvalidHeader
    ):
        return ReadError(ReadOutcome.UNREACHABLE, f"the connection failed ({_root_cause(error)})")
    return ReadError(
        ReadOutcome.PROTOCOL, f"the request cannot be sent ({type(error).__name__}); check the URL and the headers"
    )


def _root_cause(error: BaseException) -> str:
    """What happened at the bottom of the chain, which the libraries wrap in several layers."""
    cause: BaseException = error
    while (deeper := _wrapped(cause)) is not None:
        cause = deeper
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    # urllib3 begins with the connection's own name: `HTTPConnection(host='x', port=1): Failed to …`.
    return str(cause).rpartition("): ")[2] or type(cause).__name__


def _wrapped(error: BaseException) -> BaseException | None:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return reason
    return next((argument for argument in reversed(error.args) if isinstance(argument, BaseException)), None)
