"""One error class per boundary. Each message says what is wrong, where, and what to do about it.

Everything this program raises on purpose derives from `ScalerError`, so that a loop can turn "could not look" into
a value with a reason and let a programming error crash loudly.
"""

from collections.abc import Sequence
from importlib.util import find_spec


class ScalerError(Exception):
    """Something outside this program is not as it must be; the message is fit for an operator's eyes."""


class ConfigurationError(ScalerError):
    """Settings, relabel rules or flags that cannot be used; raised before anything is started."""


def need_extra(extra: str, *, module: str, use: str) -> None:
    """Raises: ConfigurationError where something is configured whose module an extra installs, and it is missing."""
    if find_spec(module) is None:
        raise ConfigurationError(f"{use} needs {module}, which is not installed; install 'idle-gpu-scaler[{extra}]'")


class MetadataError(ScalerError):
    """Trigger metadata of a ScaledObject that cannot be used; shown to its owner through KEDA's events.

    `problems`: by key what is wrong with its value, where that is known of single keys.
    """

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class SourceError(ScalerError):
    """The metrics source could not be read, or not completely. Nothing it returned may be used."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient
        """Whether the same read may succeed a moment later (a timeout, a 503) or not (a bad query, a 401)."""


NOT_LEADING = "NotLeading"
"""The reason of a write that is not sent because this replica no longer leads."""


class KubeError(ScalerError):
    """The Kubernetes API refused or could not be reached.

    `status` is the HTTP status (0 where no answer came), `reason` the `reason` of the returned Status object, and
    `retry_after` the seconds that the server asks to wait.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def is_absent(self) -> bool:
        """Whether there is no such object, or no such kind."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """Whether another client has changed the object first, or there is one of that name."""
        return self.status == 409

    @property
    def is_outdated(self) -> bool:
        """Whether the object is not the one that was decided upon: not an error, read it again."""
        return self.is_absent or self.is_conflict

    @property
    def is_refused(self) -> bool:
        """Whether it is certain that nothing was written. Without an answer, or after a server error, it is not."""
        return self.is_not_leading or 400 <= self.status < 500

    @property
    def is_not_leading(self) -> bool:
        """Whether nothing was sent, because this replica no longer leads."""
        return self.reason == NOT_LEADING


class QueryError(ScalerError):
    """A question of an operator's that has no answer: about what is not there, or while not enough is seen.

    `status` is the HTTP status that says so: 400, 404, 409 or 503, and 401, 403 or 429 to whoever asks for a change.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
