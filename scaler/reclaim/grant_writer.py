"""The writes to ScalableWorkloads that plans are made of, and how grants are removed.

Laws:

* A write names the uid that was seen, so that it never meets another object of the same name; where it depends on what
  else stands in the object, it carries the resourceVersion, too.
* A withdrawn grant stays for some seconds. KEDA asks, and acts upon the answer a moment later: a 0 that was answered
  while the grant stood may be written after the grant was withdrawn and replicas set to 1. Without any grant that 0
  would look like an owner's request, and the workload would be suspended. Until the time is up such a 0 is undone;
  after it a 0 means what it says, unless it is the plan's own, which could not be undone while the API refused writes.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from scaler.errors import KubeError
from scaler.kube.objects.core import PartialObjectMetadata, decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.kube.writes import PatchApi
from scaler.targets.cluster_state import ClusterState
from scaler.targets.workloads import grant_of

FindScalable = Callable[[str, str], ScalableWorkload | None]


class GrantWriter:
    def __init__(self, api: PatchApi) -> None:
        self._api = api

    async def write(self, scalable: ScalableWorkload, status: Mapping[str, Any]) -> str:
        """The version with this status; empty where the object is gone. Raises: KubeError."""
        return await self._patch(scalable, {"metadata": {"uid": scalable.metadata.uid}, "status": status}, "status")

    async def scale_to_one(self, scalable: ScalableWorkload, version: str) -> bool:
        """Set replicas to 1, unless the object has changed since that version: False then, and the next look tells."""
        metadata = {"uid": scalable.metadata.uid, "resourceVersion": version}
        return bool(await self._patch(scalable, {"metadata": metadata, "spec": {"replicas": 1}}))

    async def clear(self, scalable: ScalableWorkload) -> None:
        """Remove the grant, unless the object has changed since it was seen."""
        metadata = {"uid": scalable.metadata.uid, "resourceVersion": scalable.metadata.resource_version}
        await self._patch(scalable, {"metadata": metadata, "status": {"grant": None}}, "status")

    async def _patch(self, scalable: ScalableWorkload, body: Mapping[str, Any], subresource: str = "") -> str:
        """The version that was written; empty where the object is gone, or another one than was seen."""
        key = scalable.metadata.key
        try:
            written = decode(
                PartialObjectMetadata, await self._api.patch(SCALABLE_WORKLOAD.path(*key, subresource), body)
            )
        except KubeError as error:
            if not error.is_outdated:
                raise
            return ""
        return written.metadata.resource_version

    async def is_unchanged(self, seen: Iterable[ScalableWorkload], plan: str) -> bool:
        """Whether the API itself, and not a copy, has all of them at 0 for the plan, and otherwise as they were seen.

        Raises: KubeError.
        """
        return all(await asyncio.gather(*(self._is_as_seen(each, plan) for each in seen)))

    async def _is_as_seen(self, seen: ScalableWorkload, plan: str) -> bool:
        fresh = decode(ScalableWorkload, await self._api.get(SCALABLE_WORKLOAD.path(*seen.metadata.key)))
        grant, metadata = grant_of(fresh), fresh.metadata
        is_granted = grant is not None and grant.plan == plan and not grant.is_withdrawn
        is_asked_alike = (metadata.uid, metadata.annotations) == (seen.metadata.uid, seen.metadata.annotations)
        return is_granted and is_asked_alike and fresh.spec.replicas == 0


@dataclass(kw_only=True)
class GrantCleanup:
    """Removes withdrawn grants, and those that cannot be read. A new leader starts counting anew."""

    cluster: ClusterState
    writer: GrantWriter
    after: timedelta = timedelta(seconds=5)
    """KEDA asks all triggers of a ScaledObject before it scales; other scalers of them may be slow."""
    _since: dict[str, datetime] = field(default_factory=dict, init=False)
    """When each was first seen so, by uid."""
    _was_at_one: set[str] = field(default_factory=set, init=False)
    """Uids of those that were at 1 since: a 0 of theirs is not the plan's any more."""

    def due(self) -> list[ScalableWorkload]:
        """The ScalableWorkloads that have such a grant. The first sight of all others is forgotten."""
        due = [each for each in self.cluster.scalable_workloads.items() if _is_over(each)]
        uids = {each.metadata.uid for each in due}
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}
        self._was_at_one &= uids
        return due

    async def settle(self, scalable: ScalableWorkload, now: datetime) -> None:
        """Undo a 0 that comes too late, or remove the grant. Raises: KubeError; try again later."""
        uid, is_at_zero = scalable.metadata.uid, scalable.spec.replicas == 0
        is_over = now - self._since.setdefault(uid, now) >= self.after
        if not is_at_zero:
            self._was_at_one.add(uid)
        if is_over and uid in self._was_at_one:
            await self.writer.clear(scalable)
        elif is_at_zero and await self.writer.scale_to_one(scalable, scalable.metadata.resource_version):
            self._was_at_one.add(uid)


def _is_over(scalable: ScalableWorkload) -> bool:
    grant = grant_of(scalable)
    return scalable.status.grant is not None and (grant is None or grant.is_withdrawn)
