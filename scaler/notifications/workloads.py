"""The workloads as the API has them now: their histories, who owns them, and which targets notify of them.

Targets are those that annotation `idlegpu.io/notify` of the ScaledObject names (an IdlePolicy writes it there), else
the default ones of the settings. Names that the settings do not have are left out; `none` is nobody.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from msgspec.structs import replace

from scaler.decision.candidate import HistoryLine, lines_of
from scaler.decision.reasons import row_of
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.notifications.notice import NotifiedWorkload
from scaler.suspension.reconciler import OwnRecord
from scaler.targets.cluster_state import ClusterState
from scaler.targets.owners import Owners
from scaler.targets.scale_subresources import is_scalable_workload
from scaler.targets.workloads import NotifyTargets, marks_of

_LONGEST = 160
_MARKS = str.maketrans("<>", "‹›")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A ScaledObject, and the ScalableWorkload that it scales, where it scales one."""

    scaled_object: ScaledObject
    scalable: ScalableWorkload | None

    @property
    def holder(self) -> ObjectMeta:
        """The object that has the history and the marks."""
        return (self.scalable or self.scaled_object).metadata

    @property
    def path(self) -> str:
        return (SCALABLE_WORKLOAD if self.scalable else SCALED_OBJECT).path(*self.holder.key)


_Versions = tuple[str, str, str, OwnRecord | None]


class NotifiedWorkloads:
    """Reads a workload again only when one of its objects has changed."""

    def __init__(
        self,
        cluster: ClusterState,
        owners: Owners,
        targets: NotifyTargets,
        own: Mapping[str, OwnRecord],
    ) -> None:
        """`own`: what this process has seen, by the uid of the ScaledObject."""
        self._own = own
        self._cluster = cluster
        self._owners = owners
        self._targets = targets
        self._read: dict[str, tuple[_Versions, Source, NotifiedWorkload]] = {}

    def all(self) -> Iterator[tuple[Source, NotifiedWorkload]]:
        """Those with a history. Each is once in it, however many ScaledObjects scale it."""
        read: dict[str, tuple[_Versions, Source, NotifiedWorkload]] = {}
        for scaled_object in self._cluster.scaled_objects.items():
            source = self._source(scaled_object)
            if source is None or (uid := source.holder.uid) in read:
                continue
            versions, known = self._versions(source), self._read.get(uid)
            if known is None or known[0] != versions:
                known = versions, source, self._workload(source)
            read[uid] = known
            if known[2].lines:
                yield known[1], known[2]
        self._read = read

    def _versions(self, source: Source) -> _Versions:
        found = self._owners.namespace(source.holder.namespace)
        return (
            source.scaled_object.metadata.resource_version,
            source.holder.resource_version,
            found.metadata.resource_version if found is not None else "",
            self._own.get(source.holder.uid),
        )

    def _source(self, scaled_object: ScaledObject) -> Source | None:
        target = scaled_object.spec.scale_target_ref
        if not is_scalable_workload(target):
            return Source(scaled_object=scaled_object, scalable=None)
        scalable = self._cluster.scalable_workloads.get(scaled_object.metadata.namespace, target.name)
        return None if scalable is None else Source(scaled_object=scaled_object, scalable=scalable)

    def _workload(self, source: Source) -> NotifiedWorkload:
        metadata, target = source.scaled_object.metadata, source.scaled_object.spec.scale_target_ref
        return NotifiedWorkload(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=source.holder.uid,
            kind=plain(target.kind),
            target_name=plain(target.name),
            owner=self._owners.of(metadata, *([source.scalable.metadata] if source.scalable else [])),
            targets=self._targets.of(metadata.annotations),
            lines=tuple(_notified_lines(self._lines(source))),
            marks=marks_of(source.holder.annotations),
        )

    def _lines(self, source: Source) -> Sequence[HistoryLine]:
        """The lines of its status, or those that this process has seen: what is in annotations anybody may have
        written."""
        if source.scalable is not None:
            return lines_of(source.scalable.status.history)
        own = self._own.get(source.holder.uid)
        return own.lines if own is not None else ()


def _notified_lines(lines: Iterable[HistoryLine]) -> Iterator[HistoryLine]:
    """Without what others than the scaler may have written: who asked, and what a hook said. Of lines whose time has no
    zone there is none."""
    for line in lines:
        if line.at.tzinfo is not None:
            message = "" if row_of(line.reason).of_hook else plain(line.message)
            yield replace(line, reason=plain(line.reason), message=message, by="")


def plain(text: str) -> str:
    """One short line without marks of a chat: tenants can write what stands in annotations."""
    return shorten("".join(c if c.isprintable() else " " for c in text), _LONGEST, placeholder=" …").translate(_MARKS)
