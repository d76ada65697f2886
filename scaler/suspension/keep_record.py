"""Limits keeps by a record of their uses: one ConfigMap beside the Lease, where no tenant can write. Leader only.

Laws:

* A use is recorded before what it allows is written on the object: a process that dies in between has counted it, and
  finds it again.
* Every write carries the resourceVersion that was read, so that of two leaders one has to read again. Who reads uses to
  add one holds the lock until they are written.
* It is by name: who deletes a ScaledObject and makes it anew has used what was used.
* It is bounded, and so is what one namespace has of it: a tenant cannot take the others' part. A use is left out after
  a week, unless it lasts; one that lasts, as soon as its ScaledObject is gone.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import msgspec
import structlog

from scaler.decision.decision import Decision
from scaler.decision.decision_cache import Key
from scaler.decision.reasons import SuspensionEventReason
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.idleness.policy import Policy
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import ObjectMeta, decode
from scaler.kube.objects.keda import ConfigMap, ScaledObject
from scaler.kube.objects.resources import CONFIG_MAP, Resource
from scaler.kube.writes import WriteApi, log_refusal
from scaler.suspension.keeps import KEEPS_ANNOTATION, WEEK, Keep, Settled, encode_keeps, recent, settle
from scaler.targets.workloads import EXCLUDE, KEEP_FOR, KEEP_UNTIL

log = structlog.get_logger(__name__)

SUFFIX = "-keeps"
"""The end of its name, after the name of the Lease."""
_DATA = "keeps"
_MOST = 800_000
"""Bytes; a ConfigMap has a mebibyte. One namespace has a tenth."""

_Uses = dict[str, tuple[Keep, ...]]
"""The uses by `namespace/name` of the ScaledObject."""


@dataclass(kw_only=True, eq=False)
class KeepLimiter:
    """Limits what owners ask to be kept, as policies say."""

    api: WriteApi
    announcer: EventSink
    record: tuple[str, str]
    """Namespace and name of the ConfigMap."""
    exists: Callable[[Key], bool]
    """Whether there is a ScaledObject of that key."""
    clock: Callable[[], datetime]
    _version: str = field(default="", init=False)
    """Empty where the record is to be read again: another may have written it, or what became of a write is unknown."""
    _uses: _Uses = field(default_factory=_Uses, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def lead(self) -> None:
        """This replica leads from now on; others have written until then."""
        self._version = ""

    async def settle(
        self,
        scaled_object: ScaledObject | None,
        annotated: Iterable[tuple[Resource, ObjectMeta]],
        decision: Decision | None,
    ) -> bool:
        """Limit what owners ask to be kept, as the policy says; whether anything was written."""
        recorded = scaled_object.metadata if scaled_object is not None else ObjectMeta()
        policy = decision.policy if decision is not None and scaled_object is not None else None
        for resource, metadata in annotated:
            if not metadata.annotations.keys() & {KEEP_UNTIL, KEEP_FOR, EXCLUDE}:
                continue
            settled = await self._settled(recorded.key, metadata, f"{resource.kind} {metadata.name}", policy)
            written = {resource.path(*metadata.key): (metadata, dict(settled.annotations))}
            if settled.keeps and scaled_object is not None:
                path = scaled_object.resource.path(*recorded.key)
                annotations = written.get(path, (recorded, {}))[1] | {KEEPS_ANNOTATION: encode_keeps(settled.keeps)}
                written[path] = recorded, annotations
            for path, (on, annotations) in written.items():
                if annotations:
                    body = {"metadata": {"annotations": annotations, "resourceVersion": on.resource_version}}
                    await self.api.patch(path, body)
            if settled.refused:
                about = ObjectReference.of(resource, metadata)
                self.announcer.record(about, SuspensionEventReason.KEEP_REFUSED, settled.refused, warning=True)
            if settled.keeps or settled.annotations:
                return True
        return False

    async def _settled(self, key: Key, metadata: ObjectMeta, where: str, policy: Policy | None) -> Settled:
        """What becomes of the annotations, with each new use recorded. Without the record nothing is limited."""
        now, unlimited = self.clock(), settle(metadata.annotations, where, keeps=(), policy=None, now=self.clock())
        if policy is None or not policy.limits_keeps:
            return unlimited
        try:
            async with self._lock:
                keeps = await self.of(key)
                settled = (limit := partial(settle, metadata.annotations, where, keeps=keeps, policy=policy, now=now))()
                if settled.keeps and not await self.write(key, settled.keeps, now):
                    settled = limit(is_full=True)
        except KubeError as error:
            log_refusal(log, "keeps are not limited yet", error, about=where, namespace=metadata.namespace)
            return unlimited
        return settled

    # ---- the record

    async def of(self, key: Key) -> tuple[Keep, ...]:
        """Raises: KubeError."""
        if not self._version:
            self._take(await self._read())
        return self._uses.get("/".join(key), ())

    async def write(self, key: Key, keeps: tuple[Keep, ...], now: datetime) -> bool:
        """Whether there was room for them. Raises: KubeError; 409 where another leader has written it."""
        await self.of(key)
        found = ((name, recent(uses, now)) for name, uses in {**self._uses, "/".join(key): keeps}.items())
        kept = {name: uses for name, uses in found if uses and (uses[-1].at > now - WEEK or self.exists(_key(name)))}
        text, own = msgspec.json.encode(kept), {name: uses for name, uses in kept.items() if _key(name)[0] == key[0]}
        if len(text) > _MOST or len(msgspec.json.encode(own)) > _MOST // 10:
            return False
        body = {"metadata": {"resourceVersion": self._version}, "data": {_DATA: text.decode()}}
        self._version = ""
        self._take(await self.api.patch(CONFIG_MAP.path(*self.record), body))
        return True

    async def _read(self) -> bytes:
        try:
            return await self.api.get(CONFIG_MAP.path(*self.record))
        except KubeError as error:
            if not error.is_absent:
                raise
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.record[1]}}
        return await self.api.create(CONFIG_MAP.path(self.record[0]), body)

    def _take(self, answer: bytes) -> None:
        """Raises: KubeError for what no leader has written."""
        try:
            found = decode(ConfigMap, answer)
            self._uses = msgspec.json.decode(found.data.get(_DATA, "{}"), type=_Uses)
        except UNREADABLE as error:
            path = CONFIG_MAP.path(*self.record)
            raise KubeError(f"{path} cannot be read ({error}); delete it: keeps are counted anew then") from None
        self._version = found.metadata.resource_version


def _key(name: str) -> Key:
    namespace, _, own = name.partition("/")
    return namespace, own
