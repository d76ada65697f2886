"""What a diagnosis finds: how bad, what, where, and what to do about it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as most people would want it to, or not for long."""
    FAIL = "fail"
    """Something that was asked for does not work, or a working workload may be harmed."""


class Topic(StrEnum):
    """What it is about, in the order in which things depend on each other."""

    API = "Kubernetes API"
    KINDS = "Kinds"
    PERMISSIONS = "Permissions"
    CHECKS = "AdmissionChecks"
    QUEUES = "ClusterQueues"
    SCALED_OBJECTS = "ScaledObjects"
    METRICS = "Metrics"
    TLS = "TLS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

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
class Unread:
    """Something could not be read."""

    reason: str
    """Whose words they are, what was asked, and what to do."""
    is_absent: bool = False
    """Whether there is no such kind, rather than no permission or no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """The objects of one kind: all of them, or those of the watched namespaces."""

    items: Sequence[T] = ()
    unreadable: Sequence[tuple[str, str]] = ()
    """`namespace/name` of those that cannot be decoded, and why."""
    hidden: Sequence[tuple[str, str]] = ()
    """Namespaces that could not be read, where they are read one by one, and why."""


ListResult: TypeAlias = Listing[T] | Unread


def items_of(found: ListResult[T]) -> Sequence[T]:
    """The objects; none where they could not be read, which is a finding of its own."""
    return found.items if isinstance(found, Listing) else ()


def is_whole(found: ListResult[T]) -> bool:
    """Whether what is not among the objects does not exist: all of them could be read, or there is no such kind."""
    if isinstance(found, Unread):
        return found.is_absent
    return not (found.hidden or found.unreadable)


def unread_findings(
    topic: Topic, kind: str, found: ListResult[T], severity: Severity = Severity.FAIL
) -> Iterator[Finding]:
    """That a kind, or an object of it, could not be read. A kind that is not served is a finding about kinds."""
    if isinstance(found, Unread):
        if not found.is_absent:
            yield Finding(severity=severity, topic=topic, check="NotRead", where=f"all of {kind}", what=found.reason)
        return
    for namespace, why in found.hidden:
        where = f"all of {kind} in namespace {namespace}"
        yield Finding(severity=severity, topic=topic, check="NotRead", where=where, what=why)
    for name, why in found.unreadable:
        yield Finding(
            severity=Severity.WARN,
            topic=topic,
            check="Unreadable",
            where=f"{kind} {name}",
            what=f"it cannot be read: {why}",
            do="correct it: what cannot be read is left out of every decision",
        )


def counts(findings: Iterable[Finding]) -> dict[Severity, int]:
    """How many there are of each severity."""
    found = Counter(each.severity for each in findings)
    return {severity: found[severity] for severity in Severity}
