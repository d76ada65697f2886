"""The workloads as the API has them now: their histories, who owns them, and which targets are told.

| the owner, from above                                                      |
|----------------------------------------------------------------------------|
| annotation `idlegpu.io/owner` of the ScaledObject, of the ScalableWorkload |
| the first label of the settings' list that one of the two has              |
| the same annotation, then the same labels, of the namespace                |
| the name of the namespace                                                  |

Targets are those that annotation `idlegpu.io/notify` of the ScaledObject names (an IdlePolicy writes it there), else
the default ones of the settings. Names that the settings do not have are left out; `none` is nobody.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from scaler.attachment.objects import NOTIFY_ANNOTATION
from scaler.decision.candidate import HistoryLine
from scaler.decision.cluster_state import ClusterState
from scaler.decision.scale_subresources import is_scalable_workload
from scaler.decision.workloads import HISTORY_ANNOTATION
from scaler.kube.objects.core import UNREADABLE, ObjectMeta
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.reflector import Reflector
from scaler.notifications.notice import Mark, NotifiedWorkload, marks_of

OWNER = "idlegpu.io/owner"
_OWNER = re.compile(r"[\w.+@:/-][\w.+@:/ -]{0,126}")
"""Owners stand in headers and in others' chats: nothing else than names and addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRules:
    labels: tuple[str, ...] = ()
    """Labels that name the owner, the first one first."""
    targets: tuple[str, ...] = ()
    """Every target of the settings."""
    default_targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A ScaledObject, and the ScalableWorkload that it scales, where it scales one."""

    scaled_object: ScaledObject
    scalable: ScalableWorkload | None

    @property
    def holder(self) -> ObjectMeta:
        """Of the object that has the history and the marks."""
        return (self.scalable or self.scaled_object).metadata

    @property
    def path(self) -> str:
        return (SCALABLE_WORKLOAD if self.scalable else SCALED_OBJECT).path(*self.holder.key)


class NotifiedWorkloads:
    """Reads a history again only when its object has changed."""

    def __init__(self, cluster: ClusterState, rules: OwnerRules, namespaces: Reflector[Namespace] | None) -> None:
        self._cluster = cluster
        self._rules = rules
        self._namespaces = namespaces
        self._read: dict[str, tuple[str, tuple[HistoryLine, ...], Mapping[str, Mark]]] = {}

    def all(self) -> Iterator[tuple[Source, NotifiedWorkload]]:
        """Those with a history. Each is once in it, however many ScaledObjects scale it."""
        seen: dict[str, tuple[str, tuple[HistoryLine, ...], Mapping[str, Mark]]] = {}
        for scaled_object in self._cluster.scaled_objects.items():
            source = self._source(scaled_object)
            if source is None or source.holder.uid in seen:
                continue
            known = seen[source.holder.uid] = self._known(source)
            if known[1]:
                yield source, self._workload(source, lines=known[1], marks=known[2])
        self._read = seen

    def _source(self, scaled_object: ScaledObject) -> Source | None:
        target = scaled_object.spec.scale_target_ref
        if not is_scalable_workload(target):
            return Source(scaled_object=scaled_object, scalable=None)
        scalable = self._cluster.scalable_workloads.get(scaled_object.metadata.namespace, target.name)
        return None if scalable is None else Source(scaled_object=scaled_object, scalable=scalable)

    def _known(self, source: Source) -> tuple[str, tuple[HistoryLine, ...], Mapping[str, Mark]]:
        holder = source.holder
        known = self._read.get(holder.uid)
        if known is not None and known[0] == holder.resource_version:
            return known
        return holder.resource_version, tuple(_history(source)), marks_of(holder.annotations)

    def _workload(
        self, source: Source, *, lines: tuple[HistoryLine, ...], marks: Mapping[str, Mark]
    ) -> NotifiedWorkload:
        metadata, target = source.scaled_object.metadata, source.scaled_object.spec.scale_target_ref
        return NotifiedWorkload(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=source.holder.uid,
            kind=target.kind,
            target_name=target.name,
            owner=self._owner(source),
            targets=targets_of(metadata.annotations, self._rules),
            lines=lines,
            marks=marks,
        )

    def _owner(self, source: Source) -> str:
        objects = [source.scaled_object.metadata, *([source.scalable.metadata] if source.scalable else [])]
        return owner_of([objects], self._rules.labels) or self.owner_of_namespace(source.holder.namespace)

    def owner_of_namespace(self, namespace: str) -> str:
        found = self._namespaces.get("", namespace) if self._namespaces is not None else None
        return owner_of([[found.metadata] if found else []], self._rules.labels) or namespace


def owner_of(levels: Sequence[Sequence[ObjectMeta]], labels: Collection[str]) -> str:
    """The first that is named, from the nearest level on; empty where none is."""
    for objects in levels:
        named = [each.annotations.get(OWNER, "") for each in objects]
        named += [each.labels.get(label, "") for label in labels for each in objects]
        found = next((name.strip() for name in named if _OWNER.fullmatch(name.strip())), "")
        if found:
            return found
    return ""


def targets_of(annotations: Mapping[str, str], rules: OwnerRules) -> tuple[str, ...]:
    named = annotations.get(NOTIFY_ANNOTATION)
    if named is None:
        return rules.default_targets
    wanted = [each.strip() for each in named.split(",")]
    return tuple(each for each in dict.fromkeys(wanted) if each in rules.targets)


def _history(source: Source) -> Iterator[HistoryLine]:
    """Lines that cannot be read, or whose time has no zone, are left out."""
    for raw in source.scalable.status.history if source.scalable is not None else _annotated(source.scaled_object):
        try:
            line = msgspec.json.decode(raw, type=HistoryLine)
        except UNREADABLE:
            continue
        if line.at.tzinfo is not None:
            yield line


def _annotated(scaled_object: ScaledObject) -> Sequence[msgspec.Raw]:
    try:
        text = scaled_object.metadata.annotations.get(HISTORY_ANNOTATION) or "[]"
        return msgspec.json.decode(text, type=list[msgspec.Raw])
    except UNREADABLE:
        return []
