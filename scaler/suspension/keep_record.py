"""Which uses of limited keeps were there? One ConfigMap beside the Lease, where no tenant can write. Leader only.

Laws:

* A use is recorded before what it allows is written on the object: a process that dies in between has counted it, and
  finds it again.
* Every write carries the resourceVersion that was read, so that of two leaders one has to read again. Who reads uses to
  add one holds `lock` until they are written.
* It is by name: who deletes a ScaledObject and makes it anew has used what was used.
* It is bounded, and so is what one namespace has of it: a tenant cannot take the others' part. A use is left out after
  a week, unless it lasts; one that lasts, as soon as its ScaledObject is gone.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import msgspec

from scaler.decision.decision_cache import Key
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.objects.core import decode
from scaler.kube.objects.keda import ConfigMap
from scaler.kube.objects.resources import CONFIG_MAP
from scaler.kube.writes import WriteApi
from scaler.suspension.keeps import WEEK, Keep, recent

SUFFIX = "-keeps"
"""The end of its name, after the name of the Lease."""
_DATA = "keeps"
_MOST = 800_000
"""Bytes; a ConfigMap has a mebibyte. One namespace has a tenth."""

_Uses = dict[str, tuple[Keep, ...]]
"""The uses by `namespace/name` of the ScaledObject."""


class KeepRecord:
    """`exists`: whether there is a ScaledObject of that key."""

    def __init__(self, api: WriteApi, namespace: str, name: str, exists: Callable[[Key], bool]) -> None:
        self._api, self._namespace, self._name, self._exists = api, namespace, name, exists
        self._path = CONFIG_MAP.path(namespace, name)
        self._version, self._uses = "", _Uses()
        self.lock = asyncio.Lock()

    def forget(self) -> None:
        """Read it again: another may have written it, or it is not known what became of a write."""
        self._version = ""

    async def of(self, key: Key) -> tuple[Keep, ...]:
        """Raises: KubeError."""
        if not self._version:
            self._take(await self._read())
        return self._uses.get("/".join(key), ())

    async def write(self, key: Key, keeps: tuple[Keep, ...], now: datetime) -> bool:
        """Whether there was room for them. Raises: KubeError; 409 where another leader has written it."""
        await self.of(key)
        found = ((name, recent(uses, now)) for name, uses in {**self._uses, "/".join(key): keeps}.items())
        kept = {name: uses for name, uses in found if uses and (uses[-1].at > now - WEEK or self._exists(_key(name)))}
        text, own = msgspec.json.encode(kept), {name: uses for name, uses in kept.items() if _key(name)[0] == key[0]}
        if len(text) > _MOST or len(msgspec.json.encode(own)) > _MOST // 10:
            return False
        body = {"metadata": {"resourceVersion": self._version}, "data": {_DATA: text.decode()}}
        self.forget()
        self._take(await self._api.patch(self._path, body))
        return True

    async def _read(self) -> bytes:
        try:
            return await self._api.get(self._path)
        except KubeError as error:
            if not error.is_absent:
                raise
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}}
        return await self._api.create(CONFIG_MAP.path(self._namespace), body)

    def _take(self, answer: bytes) -> None:
        """Raises: KubeError for what no leader has written."""
        try:
            found = decode(ConfigMap, answer)
            self._uses = msgspec.json.decode(found.data.get(_DATA, "{}"), type=_Uses)
        except UNREADABLE as error:
            raise KubeError(f"{self._path} cannot be read ({error}); delete it: keeps are counted anew then") from None
        self._version = found.metadata.resource_version


def _key(name: str) -> Key:
    namespace, _, own = name.partition("/")
    return namespace, own
