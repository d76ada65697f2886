"""Limits keeps by a record of their uses: one ConfigMap beside the Lease, where no tenant can write. Leader only.

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
from collections.abc import Callable, Iterable
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
from scaler.targets.workloads import (
    EXCLUDE,
    KEEP_FOR,
    KEEP_UNTIL,
)

log = structlog.get_logger(__name__)

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


class KeepLimiter:
    """Limits what owners ask to be kept, as policies say."""

    def __init__(self, api: WriteApi, record: KeepRecord, announcer: EventSink, clock: Callable[[], datetime]) -> None:
        self._api, self._record, self._announcer, self._clock = api, record, announcer, clock

    def lead(self) -> None:
        """This replica leads from now on; others have written until then."""
        self._record.forget()

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
            settled = await self._settled(recorded.key, metadata, f"{resource.kind} {metadata.name}", policy)
            written = {resource.path(*metadata.key): (metadata, dict(settled.annotations))}
            if settled.keeps and scaled_object is not None:
                path = scaled_object.resource.path(*recorded.key)
                annotations = written.get(path, (recorded, {}))[1] | {KEEPS_ANNOTATION: encode_keeps(settled.keeps)}
                written[path] = recorded, annotations
            for path, (on, annotations) in written.items():
                if annotations:
                    body = {"metadata": {"annotations": annotations, "resourceVersion": on.resource_version}}
                    await self._api.patch(path, body)
            if settled.refused:
                about = ObjectReference.of(resource, metadata)
                self._announcer.record(about, SuspensionEventReason.KEEP_REFUSED, settled.refused, warning=True)
            if settled.keeps or settled.annotations:
                return True
        return False

    async def _settled(self, key: Key, metadata: ObjectMeta, where: str, policy: Policy | None) -> Settled:
        """What becomes of the annotations, with each new use recorded. Without the record nothing is limited."""
        now, unlimited = self._clock(), settle(metadata.annotations, where, keeps=(), policy=None, now=self._clock())
        is_kept = metadata.annotations.keys() & {KEEP_UNTIL, KEEP_FOR, EXCLUDE}
        if policy is None or not policy.limits_keeps or not is_kept:
            return unlimited
        try:
            async with self._record.lock:
                keeps = await self._record.of(key)
                settled = (limit := partial(settle, metadata.annotations, where, keeps=keeps, policy=policy, now=now))()
                if settled.keeps and not await self._record.write(key, settled.keeps, now):
                    settled = limit(is_full=True)
        except KubeError as error:
            log_refusal(log, "keeps are not limited yet", error, about=where, namespace=metadata.namespace)
            return unlimited
        return settled


def _key(name: str) -> Key:
    namespace, _, own = name.partition("/")
    return namespace, own
