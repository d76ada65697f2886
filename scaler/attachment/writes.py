"""How is an object made as it shall be, and set right? Pure: objects as they are and shall be → writes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from scaler.decision.trigger_metadata import SOURCES_ANNOTATION
from scaler.kube.objects.core import Json, ObjectMeta
from scaler.kube.objects.direct_scaling import DIRECT, KEDA
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource
from scaler.targets.workloads import NOTIFY_ANNOTATION

DIGEST_ANNOTATION = "idlegpu.io/policy-digest"
"""An annotation of what a policy has attached: the digest of the object as it was last written."""
BY_KEDA: Json = {"actuator": KEDA, "triggerMetadata": None}
"""The spec of what a ScaledObject alone scales."""


class Verb(StrEnum):
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    verb: Verb
    resource: Resource
    namespace: str
    name: str
    body: Json = field(default_factory=dict)
    uid: str = ""
    """Uid of what is deleted."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource.kind} {self.namespace}/{self.name}"


def created(resource: Resource, body: Json, annotations: Mapping[str, str] | None = None) -> Write:
    metadata = _digested(body["metadata"], body)
    metadata["annotations"] = {**metadata["annotations"], **(annotations or {})}
    made = {**body, "metadata": metadata}
    return Write(verb=Verb.CREATE, resource=resource, namespace=metadata["namespace"], name=metadata["name"], body=made)


def patched(found: ScalableWorkload | ScaledObject, body: Json) -> Write:
    resource, metadata = _resource_of(found), found.metadata
    return Write(verb=Verb.PATCH, resource=resource, namespace=metadata.namespace, name=metadata.name, body=body)


def _resource_of(found: ScalableWorkload | ScaledObject) -> Resource:
    return SCALABLE_WORKLOAD if isinstance(found, ScalableWorkload) else SCALED_OBJECT


def updated(
    found: ScalableWorkload | ScaledObject, body: Json, annotations: Mapping[str, None] | None = None
) -> list[Write]:
    """The write; none where it is as it was last written, and as far as can be seen nobody has changed it since.

    `annotations` are removed along with it.
    """
    metadata = found.metadata
    if metadata.deletion_timestamp is not None:
        return []
    wanted = _digested(body["metadata"], body)
    changed = metadata.annotations.get(DIGEST_ANNOTATION) != wanted["annotations"][DIGEST_ANNOTATION]
    if not changed and not _is_changed(found, body["spec"]):
        return []
    header = {each: wanted[each] for each in ("labels", "annotations", "ownerReferences")}
    # These may be of a policy that no longer says so, or of another actuator.
    gone = dict.fromkeys({NOTIFY_ANNOTATION, SOURCES_ANNOTATION} & metadata.annotations.keys())
    header["annotations"] = {**gone, **(annotations or {}), **header["annotations"]}
    return [patched(found, {"metadata": header, "spec": _spec_patch(found, body["spec"])})]


def _spec_patch(found: ScalableWorkload | ScaledObject, wanted: Json) -> Json:
    """Replicas of a ScalableWorkload are set by its actuator once it exists."""
    if isinstance(found, ScaledObject):
        return {**wanted, "fallback": None}
    spec: dict[str, Any] = {"jobRef": wanted["jobRef"]}
    if metadata := wanted.get("triggerMetadata"):
        return {
            **spec,
            "actuator": DIRECT,
            "triggerMetadata": {**dict.fromkeys(found.spec.trigger_metadata), **metadata},
        }
    return {**spec, **BY_KEDA} if is_direct(found) else spec


def _is_changed(found: ScalableWorkload | ScaledObject, wanted: Mapping[str, Any]) -> bool:
    """Whether what of it is read differs from what it should be."""
    if isinstance(found, ScalableWorkload):
        desired = wanted.get("actuator", KEDA), wanted.get("triggerMetadata", {})
        return (found.spec.actuator, found.spec.trigger_metadata) != desired
    spec = found.spec
    is_same = (
        spec.max_replica_count == wanted["maxReplicaCount"]
        and spec.min_replica_count == wanted["minReplicaCount"]
        and spec.fallback is None
        and spec.advanced.restore_to_original_replica_count
        and [(each.type, each.metadata) for each in spec.triggers]
        == [(each["type"], each["metadata"]) for each in wanted["triggers"]]
    )
    return not is_same


def _digested(metadata: Json, body: Json) -> dict[str, Any]:
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]
    return {**metadata, "annotations": {**metadata["annotations"], DIGEST_ANNOTATION: digest}}


def deleted(resource: Resource, metadata: ObjectMeta) -> Write:
    return Write(
        verb=Verb.DELETE, resource=resource, namespace=metadata.namespace, name=metadata.name, uid=metadata.uid
    )


def is_direct(found: ScalableWorkload) -> bool:
    return found.spec.actuator == DIRECT
