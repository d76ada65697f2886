"""How is a request stopped whose thread waits for a socket? By shutting the socket down from another thread.

Socket timeouts count from one read to the next, so a server that sends a byte now and then is never too late for them.
The event loop knows when the time is up; it aborts the attempt, and the thread's wait ends with an error. Only looking
up a name and the handshake of a new connection cannot be ended this way; the timeout of the socket bounds each step.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.retry import Retry


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
                    # Not SSLSocket's own method, which takes the TLS state away from under the thread that reads.
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
