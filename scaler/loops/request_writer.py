"""Makes ProvisioningRequests with their PodTemplates, and removes them. Leader only.

Laws:

* One write after the other, each of which can be the last: what was left half done is found and finished by doing the
  same again. A PodTemplate that is there already and is the right one is used; one that is not is removed first.
* What is deleted is deleted by uid: never the successor of what was meant.
* Nothing of anybody else's is touched, whatever its name.
"""

from dataclasses import dataclass
from typing import TypeVar

from scaler.core.gate_policy import Unusable
from scaler.errors import KubeError
from scaler.kube.decoding import UNREADABLE, decode
from scaler.kube.provisioning_objects import ProvisioningRequest, StoredPodTemplate
from scaler.kube.resources import POD_TEMPLATE, Resource
from scaler.kueue.provisioning_manifests import CONTENT_ANNOTATION, Json, Order
from scaler.kueue.provisioning_requests import MANAGED_LABEL, WORKLOAD_UID_LABEL
from scaler.loops.leadership import MakingApi

_ABSENT = 404
_CONFLICT = 409

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Made:
    """The request was created just now."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """It is there already, or something is in its way that is about to be gone: look again."""

    why: str


class RequestWriter:
    """Writes through the leader's API."""

    def __init__(self, api: MakingApi) -> None:
        self._api = api

    async def make(self, order: Order, resource: Resource) -> Made | NotYet | Unusable:
        """Create the PodTemplates, then the request. Raises: KubeError."""
        metadata = order.request["metadata"]
        namespace, uid = metadata["namespace"], metadata["labels"][WORKLOAD_UID_LABEL]
        present = await self._find(ProvisioningRequest, resource.path(namespace, order.name))
        if present is not None:
            return _in_the_way(present, uid)
        owners = []
        for template in order.templates:
            owner = await self._template(template, uid)
            if not isinstance(owner, str):
                return owner
            owners.append(owner)
        try:
            await self._api.create(resource.path(namespace), order.owned_by(owners, resource))
        except KubeError as error:
            if error.status != _CONFLICT:
                raise
            return NotYet(f"ProvisioningRequest {order.name} exists already")
        return Made()

    async def _template(self, manifest: Json, workload_uid: str) -> str | NotYet | Unusable:
        """The uid of the PodTemplate: one created now or, after a failure half way, one that is there."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        try:
            made = await self._api.create(POD_TEMPLATE.path(namespace), manifest)
            return decode(StoredPodTemplate, made).metadata.uid
        except KubeError as error:
            if error.status != _CONFLICT:
                raise
        path = POD_TEMPLATE.path(namespace, name)
        found = await self._find(StoredPodTemplate, path)
        if found is None:
            return NotYet(f"PodTemplate {name} has just gone")
        if found.metadata.labels.get(MANAGED_LABEL) != "true":
            return Unusable(f"PodTemplate {namespace}/{name} is somebody else's; rename or delete it")
        if _is_as_wanted(found, manifest, workload_uid):
            return found.metadata.uid
        if found.metadata.deletion_timestamp is None:
            await self._delete(path, found.metadata.uid)
        return NotYet(f"waits until PodTemplate {name} of an earlier request is gone")

    async def remove(self, found: ProvisioningRequest, resource: Resource) -> None:
        """Delete the PodTemplates and the request, as far as they are there. Raises: KubeError.

        The request last: it is by what the rest is found, should this process die in between. A successor of the same
        name may use the same PodTemplates, so that it is looked for first.
        """
        namespace, name = found.metadata.key
        path = resource.path(namespace, name)
        present = await self._find(ProvisioningRequest, path)
        if present is not None and present.metadata.uid != found.metadata.uid:
            return
        workload_uid = found.metadata.labels.get(WORKLOAD_UID_LABEL, "")
        for owner in found.metadata.owner_references:
            if owner.kind == POD_TEMPLATE.kind:
                await self._remove_template(POD_TEMPLATE.path(namespace, owner.name), owner.uid, workload_uid)
        if present is not None:
            await self._delete(path, found.metadata.uid)

    async def _remove_template(self, path: str, uid: str, workload_uid: str) -> None:
        """Anybody may write owners into a request: it goes only if it says that it is ours. Raises: KubeError."""
        template = await self._find(StoredPodTemplate, path)
        if template is not None and template.metadata.uid == uid and _is_of(template, workload_uid):
            await self._delete(path, uid)

    async def _delete(self, path: str, uid: str) -> None:
        """It is gone or going, or another one of that name is there, which is left alone. Raises: KubeError."""
        try:
            await self._api.delete(path, uid=uid)
        except KubeError as error:
            if error.status not in (_ABSENT, _CONFLICT):
                raise

    async def _find(self, kind: type[T], path: str) -> T | None:
        """The object as the API has it; None where there is none. Raises: KubeError."""
        try:
            return decode(kind, await self._api.get(path))
        except KubeError as error:
            if error.status != _ABSENT:
                raise
            return None
        except UNREADABLE as error:
            raise KubeError(f"get {path}: the object cannot be read: {error}", reason="Unreadable") from error


def _in_the_way(present: ProvisioningRequest, workload_uid: str) -> NotYet | Unusable:
    labels = present.metadata.labels
    if labels.get(MANAGED_LABEL) == "true" and labels.get(WORKLOAD_UID_LABEL) == workload_uid:
        return NotYet(f"ProvisioningRequest {present.metadata.name} exists already")
    if labels.get(MANAGED_LABEL) == "true":
        return NotYet(f"waits until ProvisioningRequest {present.metadata.name} of another Workload is gone")
    where = "/".join(present.metadata.key)
    return Unusable(f"ProvisioningRequest {where} is somebody else's; rename or delete it")


def _is_of(template: StoredPodTemplate, workload_uid: str) -> bool:
    labels = template.metadata.labels
    return labels.get(MANAGED_LABEL) == "true" and labels.get(WORKLOAD_UID_LABEL) == workload_uid


def _is_as_wanted(found: StoredPodTemplate, manifest: Json, workload_uid: str) -> bool:
    metadata = found.metadata
    return (
        metadata.deletion_timestamp is None
        and _is_of(found, workload_uid)
        and metadata.annotations.get(CONTENT_ANNOTATION) == manifest["metadata"]["annotations"][CONTENT_ANNOTATION]
        and any(owner.uid == workload_uid for owner in metadata.owner_references)
    )
