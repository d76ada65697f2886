"""What a diagnosis finds: how bad, what, where, and what to do about it."""

from collections import Counter
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from scaler.documents import UNREADABLE
from scaler.errors import KubeError

T = TypeVar("T")


class Severity(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, but not as most users want it to, or not for long."""
    FAIL = "fail"
    """Something that is configured does not work, or a working workload may be harmed."""


class Topic(StrEnum):
    """What it is about, in the order in which things depend on each other."""

    API = "Kubernetes API"
    KINDS = "Kinds"
    PERMISSIONS = "Permissions"
    CHECKS = "AdmissionChecks"
    QUEUES = "ClusterQueues"
    MULTIKUEUE = "MultiKueue"
    SCALED_OBJECTS = "ScaledObjects"
    METRICS = "Metrics"
    TLS = "TLS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    severity: Severity
    topic: Topic
    check: str
    """A name in PascalCase that stays the same whatever the words are."""
    what: str
    where: str = ""
    """The object, as `Kind namespace/name`; empty where it is the cluster as a whole."""
    do: str = ""
    """What helps; empty where nothing has to be done."""


@dataclass(frozen=True, slots=True)
class Subject:
    topic: Topic
    where: str = ""

    def finding(self, severity: Severity, check: str, what: str, do: str = "") -> Finding:
        return Finding(severity=severity, topic=self.topic, check=check, what=what, where=self.where, do=do)

    def ok(self, check: str, what: str) -> Finding:
        return self.finding(Severity.OK, check, what)

    def warn(self, check: str, what: str, do: str = "") -> Finding:
        return self.finding(Severity.WARN, check, what, do)

    def fail(self, check: str, what: str, do: str = "") -> Finding:
        return self.finding(Severity.FAIL, check, what, do)


@dataclass(frozen=True, slots=True)
class Unread:
    reason: str
    """The error, with the request and what to do."""
    is_absent: bool = False
    """Whether there is no such kind or object, rather than no permission or no answer."""


async def read_or_why(reading: Awaitable[T]) -> T | Unread:
    """What is read, or why it is not."""
    try:
        return await reading
    except KubeError as error:
        return Unread(str(error), is_absent=error.is_absent)
    except UNREADABLE as error:
        return Unread(f"it cannot be read: {error}")


def counts(findings: Iterable[Finding]) -> dict[Severity, int]:
    found = Counter(each.severity for each in findings)
    return {severity: found[severity] for severity in Severity}


_SOME = 3


def some(names: Iterable[str]) -> str:
    """The first of them, for a sentence."""
    ordered = sorted(names)
    return ", ".join(ordered[:_SOME]) + (", …" if len(ordered) > _SOME else "")
