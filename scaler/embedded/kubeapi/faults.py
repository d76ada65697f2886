"""How can the API misbehave, when a test or a drill asks it to? One object, given to the server, changed while it runs.

The server asks it once per request, and watches ask it before they write; nothing else knows that faults exist.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from scaler.embedded.kubeapi.status import ApiError


@dataclass(slots=True, kw_only=True)
class _Failure:
    remaining: int
    status: int
    method: str
    path_part: str


class ConnectionDropped(Exception):  # noqa: N818 - it is an order to the server, not a failure of ours
    """The server shall hang up without an answer."""


@dataclass(slots=True)
class Faults:
    """The faults in force. The attributes may be set at any time."""

    latency_seconds: float = 0.0
    """Every answer comes this much later."""
    drop_connections: bool = False
    """Connections are closed instead of answered, and open watches with them."""
    silence_watches: bool = False
    """Open watches stay open and say nothing, as behind a half-open connection; set to False they go on."""
    _failures: list[_Failure] = field(default_factory=list)
    _on_close_watches: list[Callable[[], None]] = field(default_factory=list)
    _on_compact: list[Callable[[], None]] = field(default_factory=list)

    def fail_next(self, count: int = 1, *, status: int = 500, method: str = "", path_part: str = "") -> None:
        """Refuse the next requests of this method whose path holds this text (empty: any)."""
        self._failures.append(_Failure(remaining=count, status=status, method=method, path_part=path_part))

    def close_watches(self) -> None:
        """End every open watch, cleanly."""
        for close in self._on_close_watches:
            close()

    def compact_history(self) -> None:
        """Forget all past events and list snapshots: watches and lists from before get 410."""
        for compact in self._on_compact:
            compact()

    def connect(self, *, close_watches: Callable[[], None], compact: Callable[[], None]) -> None:
        """Tell the faults what they act on. Called by the server."""
        self._on_close_watches.append(close_watches)
        self._on_compact.append(compact)

    async def before(self, method: str, path: str) -> None:
        """What happens to a request before it is looked at. Raises: ConnectionDropped, ApiError."""
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        if self.drop_connections:
            raise ConnectionDropped
        failure = self._due(method, path)
        if failure is not None:
            raise _refusal(failure.status)

    def _due(self, method: str, path: str) -> _Failure | None:
        for failure in self._failures:
            if failure.method in ("", method) and failure.path_part in path:
                failure.remaining -= 1
                if not failure.remaining:
                    self._failures.remove(failure)
                return failure
        return None


def _refusal(status: int) -> ApiError:
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
    details = {"retryAfterSeconds": 1} if status in (429, 503) else {}
    return ApiError(status, reasons.get(status, "InternalError"), "this request was made to fail", details=details)
