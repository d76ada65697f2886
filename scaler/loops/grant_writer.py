"""The writes to ScalableWorkloads that plans are made of, and whether they are seen yet.

Laws:

* A write names the uid that was seen, so that it never meets another object of the same name; where it depends on what
  else stands in the object, it carries the resourceVersion, too.
* Nothing is to be decided on copies that are behind what was written here: `catch_up`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scaler.errors import KubeError
from scaler.kube.decoding import decode
from scaler.kube.objects import Generic, ScalableWorkload
from scaler.kube.resources import SCALABLE_WORKLOAD
from scaler.loops.board import Key
from scaler.loops.granted import grant_of
from scaler.loops.leadership import Api
from scaler.loops.reconciliation import is_conflict

FindScalable = Callable[[str, str], ScalableWorkload | None]

_LOOK_AGAIN_SECONDS = 0.01


class GrantWriter:
    """Writes, and remembers what was written until the copies show it."""

    def __init__(self, api: Api, find: FindScalable, *, patience_seconds: float) -> None:
        """`patience_seconds` is how long `catch_up` waits for the copies."""
        self._api = api
        self._find = find
        self._patience_seconds = patience_seconds
        self._written: dict[Key, int] = {}

    async def write(self, scalable: ScalableWorkload, status: Mapping[str, Any]) -> str:
        """The version with this status; empty where the object is gone. Raises: KubeError."""
        return await self._patch(scalable, {"metadata": {"uid": scalable.metadata.uid}, "status": status}, "status")

    async def ask_for_one(self, scalable: ScalableWorkload, version: str) -> bool:
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
            written = decode(Generic, await self._api.patch(SCALABLE_WORKLOAD.path(*key, subresource), body))
        except KubeError as error:
            if not is_conflict(error):
                raise
            return ""
        self._written[key] = _number(written.metadata.resource_version)
        return written.metadata.resource_version

    async def still_stands(self, seen: Iterable[ScalableWorkload], plan: str) -> bool:
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

    async def catch_up(self) -> bool:
        """Whether the copies show everything that was written here. Waits a moment for them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_seconds
        while self._is_behind():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return True

    def _is_behind(self) -> bool:
        """Versions are compared as numbers. Of an object that is gone nothing more will be seen."""
        seen = {key: self._find(*key) for key in self._written}
        self._written = {
            key: version
            for key, version in self._written.items()
            if (found := seen[key]) is not None and _number(found.metadata.resource_version) < version
        }
        return bool(self._written)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
