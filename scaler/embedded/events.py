"""Events of the simulated controllers: what `kubectl get events` shows, repeated ones counted instead of repeated."""

from datetime import datetime
from typing import Any

import structlog

from scaler.embedded.actions import Note
from scaler.embedded.conditions import timestamp
from scaler.embedded.kinds import EVENT, Json
from scaler.errors import KubeError
from scaler.kube.transport import KubeTransport

_log = structlog.get_logger(__name__)

_REMEMBERED = 1000
"""Events whose repetitions are counted; the oldest is then forgotten and would be written anew."""


class Recorder:
    """Writes Events. Never raises: an Event that is lost must not stop the controller that had something to say."""

    def __init__(self, transport: KubeTransport) -> None:
        self._transport = transport
        self._counts: dict[tuple[str, ...], tuple[str, int]] = {}
        self._serial = 0

    async def record(self, about: Json, note: Note, *, now: datetime) -> None:
        """One more occurrence of what the note says about the object."""
        metadata = about["metadata"]
        same = (metadata["uid"], note.type, note.reason, note.message)
        name, count = self._counts.get(same, ("", 0))
        try:
            if not name:
                name = await self._create(about, note, now)
            else:
                await self._count(metadata.get("namespace", ""), name, count + 1, now)
        except KubeError as error:
            _log.debug("EventNotRecorded", reason=note.reason, error=str(error))
            name = ""
        self._counts.pop(same, None)
        self._counts[same] = (name, count + 1 if name else 0)
        if len(self._counts) > _REMEMBERED:
            del self._counts[next(iter(self._counts))]

    async def _create(self, about: Json, note: Note, now: datetime) -> str:
        self._serial += 1
        body = event(about, note, now=now, serial=self._serial)
        await self._transport.create(EVENT.path(body["metadata"]["namespace"]), body)
        return str(body["metadata"]["name"])

    async def _count(self, namespace: str, name: str, count: int, now: datetime) -> None:
        path = EVENT.path(namespace or "default", name)
        await self._transport.patch(path, {"count": count, "lastTimestamp": timestamp(now)})


def event(about: Json, note: Note, *, now: datetime, serial: int) -> Json:
    """The Event object. Those of cluster-scoped objects are in namespace `default`, as everywhere."""
    metadata: dict[str, Any] = about["metadata"]
    namespace = metadata.get("namespace", "")
    unique = f"{int(now.timestamp() * 1e6):x}{serial:x}"
    component = _COMPONENTS.get(about["apiVersion"].partition("/")[0], "simulated-controller")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{unique}", "namespace": namespace or "default"},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": note.type,
        "reason": note.reason,
        "message": note.message,
        "count": 1,
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "source": {"component": component},
        "reportingComponent": component,
    }


_COMPONENTS = {
    "kueue.x-k8s.io": "kueue-admission",
    "keda.sh": "keda-operator",
    "batch": "job-controller",
    "ray.io": "raycluster-controller",
    "v1": "kubelet",
}
