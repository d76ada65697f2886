"""The workloads as the API has them now: their histories, who owns them, and which targets notify of them.

Targets are those that annotation `idlegpu.io/notify` of the ScaledObject names (an IdlePolicy writes it there), else
the default ones of the settings. Names that the settings do not have are left out; `none` is nobody.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import shorten

from msgspec.structs import replace

from scaler.decision.candidate import HistoryLine, lines_of
from scaler.decision.reasons import row_of
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.notifications.notice import NotifiedWorkload
from scaler.targets.cluster_state import ClusterState
from scaler.targets.owners import Owners
from scaler.targets.workloads import NotifyTargets, marks_of

_LONGEST = 160
_MARKS = str.maketrans("<>", "‹›")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A ScaledObject, and the ScalableWorkload with the status of what it scales."""

    scaled_object: ScaledObject
    record: ScalableWorkload


_Versions = tuple[str, str, str]


class NotifiedWorkloads:
    """Reads a workload again only when one of its objects has changed."""

    def __init__(self, cluster: ClusterState, owners: Owners, targets: NotifyTargets) -> None:
        self._cluster = cluster
        self._owners = owners
        self._targets = targets
        self._read: dict[str, tuple[_Versions, Source, NotifiedWorkload]] = {}

    def all(self) -> Iterator[tuple[Source, NotifiedWorkload]]:
        """The workloads with a history. Each is once in it, however many ScaledObjects scale it."""
        read: dict[str, tuple[_Versions, Source, NotifiedWorkload]] = {}
        for scaled_object in self._cluster.scaled_objects.items():
            record = self._cluster.record_of(scaled_object)
            if record is None or (uid := record.metadata.uid) in read:
                continue
            source = Source(scaled_object=scaled_object, record=record)
            versions, known = self._versions(source), self._read.get(uid)
            if known is None or known[0] != versions:
                known = versions, source, self._workload(source)
            read[uid] = known
            if known[2].lines:
                yield known[1], known[2]
        self._read = read

    def _versions(self, source: Source) -> _Versions:
        objects = source.scaled_object, source.record, self._owners.namespace(source.record.metadata.namespace)
        first, second, third = (each.metadata.resource_version if each is not None else "" for each in objects)
        return first, second, third

    def _workload(self, source: Source) -> NotifiedWorkload:
        metadata, target = source.scaled_object.metadata, source.scaled_object.spec.scale_target_ref
        return NotifiedWorkload(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=source.record.metadata.uid,
            kind=plain(target.kind),
            target_name=plain(target.name),
            owner=self._owners.of(metadata, source.record.metadata),
            targets=self._targets.of(metadata.annotations),
            lines=tuple(_notified_lines(lines_of(source.record.status.history))),
            marks=marks_of(source.record),
        )


def _notified_lines(lines: Iterable[HistoryLine]) -> Iterator[HistoryLine]:
    """The lines without what others than the scaler have said: who asked, and the words of a hook."""
    for line in lines:
        message = "" if row_of(line.reason).of_hook else plain(line.message)
        yield replace(line, reason=plain(line.reason), message=message, by="")


def plain(text: str) -> str:
    """One short line without marks of a chat: tenants can write what stands in annotations."""
    return shorten("".join(c if c.isprintable() else " " for c in text), _LONGEST, placeholder=" …").translate(_MARKS)
