"""How can the API misbehave, when a test or a drill asks it to? One object, given to the server, changed while it runs.

The server asks it once per request, and watches ask it before they write; nothing else knows that faults exist.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from scaler_sandbox.kubeapi.errors import ApiError

_REASONS = {
    409: "Conflict",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True, kw_only=True)
class _Failure:
    remaining: int
    status: int
    method: str
    path_part: str


def _nothing() -> None:
    """No server is connected."""


class Faults:
    """The faults in force. They may be changed at any time, and hold until they are changed again or healed."""

    def __init__(self) -> None:
        self.latency_seconds = 0.0
        """Every answer comes this much later."""
        self._silence_watches = False
        self._failures: list[_Failure] = []
        self.close_watches: Callable[[], None] = _nothing
        """End every open watch, cleanly. This and the next two are the server's."""
        self.compact_history: Callable[[], None] = _nothing
        """Forget all past events and list snapshots: watches and lists from before get 410."""
        self.wake_watches: Callable[[], None] = _nothing

    @property
    def silence_watches(self) -> bool:
        """Open watches stay open and send nothing, as on a half-open connection; later they send what is missing."""
        return self._silence_watches

    @silence_watches.setter
    def silence_watches(self, silence: bool) -> None:
        self._silence_watches = silence
        self.wake_watches()

    def fail_next(self, count: int = 1, *, status: int = 500, method: str = "", path_part: str = "") -> None:
        """Refuse the next requests of this method whose path holds this text (empty: any)."""
        if count > 0:
            self._failures.append(_Failure(remaining=count, status=status, method=method, path_part=path_part))

    def heal(self) -> None:
        """Behave again."""
        self.latency_seconds = 0.0
        self._failures.clear()
        self.silence_watches = False

    async def before(self, method: str, path: str) -> None:
        """What happens to a request before it is looked at. Raises: ApiError."""
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
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
    details = {"retryAfterSeconds": 1} if status in (429, 503) else {}
    reason = _REASONS.get(status, "InternalError")
    return ApiError(status, reason, "this request was made to fail", details=details)
