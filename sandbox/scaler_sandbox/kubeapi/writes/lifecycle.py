"""What may a write change, and what does the server write itself? Identity, metadata, generation, status.

Pure: bodies and `now` in, bodies out; nothing here touches the store.

| write to            | metadata            | spec and the rest | status                     |
|---------------------|---------------------|-------------------|----------------------------|
| the object          | the client's        | the client's      | as it was, where it is a subresource |
| /status, custom     | as it was           | as it was         | the client's               |
| /status, built-in   | the client's        | as it was         | the client's               |

Server-set metadata (uid, creation, deletion, generation) survives whatever a client sends.
"""

import re
import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from scaler_sandbox.kubeapi.errors import STALE, ApiError, Cause, Json, bad_request, conflict, invalid
from scaler_sandbox.kubeapi.schema.resources import View
from scaler_sandbox.kubeapi.schema.structural import same

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_GENERATED = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of generated names, without vowels and what looks like one: no name means something."""
_SERVER_SET = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


def timestamp(moment: datetime) -> str:
    """A time as the API writes it: whole seconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def checked_type(view: View, body: Any) -> Json:
    """The body, if it is an object of the type that the URL speaks of. Raises: ApiError 400, 422."""
    if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
        raise bad_request("the body of the request is not a JSON object with metadata")
    expected_kind, expected_version = view.resource.kind, view.api_version
    named_kind, named_version = body.get("kind", ""), body.get("apiVersion", "")
    if not named_kind and view.resource.custom:
        raise bad_request("Object 'Kind' is missing in the body of the request")
    if named_kind not in ("", expected_kind) and view.resource.custom:
        raise _wrong_kind(view, body, expected_kind)
    if named_kind not in ("", expected_kind) or named_version not in ("", expected_version):
        raise bad_request(
            f"{named_version}, Kind={named_kind} in the body does not match what the URL names: "
            f"{expected_version}, Kind={expected_kind}"
        )
    return {**body, "kind": expected_kind, "apiVersion": expected_version, "metadata": body.get("metadata") or {}}


def _wrong_kind(view: View, body: Json, expected: str) -> ApiError:
    message = f'Invalid value: "{body["kind"]}": must be {expected}'
    cause = Cause(reason="FieldValueInvalid", field="kind", message=message)
    name = (body.get("metadata") or {}).get("name", "")
    return invalid(view.resource.group, body["kind"], name, [cause])


def checked_namespace(view: View, namespace: str, body: Json) -> Json:
    """The body with the namespace of the URL. Raises: ApiError 400 where it names another."""
    metadata = body["metadata"]
    if not view.resource.namespaced:
        kept = {key: value for key, value in metadata.items() if key != "namespace"}
        return {**body, "metadata": kept}
    if metadata.get("namespace", "") not in ("", namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request "
            f"({metadata['namespace']!r} is not {namespace!r})"
        )
    return {**body, "metadata": {**metadata, "namespace": namespace}}


def created(view: View, body: Json, *, now: datetime) -> Json:
    """A new object as the server takes it in: named, identified, without what a client may not set."""
    given = {key: value for key, value in body["metadata"].items() if key not in _SERVER_SET}
    if given.pop("resourceVersion", ""):
        raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
    given.pop("managedFields", None)
    metadata = {
        **given,
        "name": given.get("name") or _generated(given.get("generateName", "")),
        "uid": str(uuid.uuid4()),
        "creationTimestamp": timestamp(now),
    }
    if view.resource.generation:
        metadata["generation"] = 1
    return {**_with_initial_status(view, body), "metadata": metadata}


def _generated(prefix: str) -> str:
    """A name with five characters of Kubernetes' own behind the prefix, in 63 at most; empty without one."""
    return f"{prefix[:58]}{''.join(secrets.choice(_GENERATED) for _ in range(5))}" if prefix else ""


def _with_initial_status(view: View, body: Json) -> Json:
    resource = view.resource
    if not view.version.has_status or resource.status_on_create == "keep":
        return body
    kept = {key: value for key, value in body.items() if key != "status"}
    return {**kept, "status": resource.initial_status} if resource.initial_status else kept


def name_problems(metadata: Json) -> list[Cause]:
    """What is wrong with an object's name."""
    name = metadata.get("name", "")
    if not name:
        message = "Required value: name or generateName is required"
        return [Cause(reason="FieldValueRequired", field="metadata.name", message=message)]
    if not isinstance(name, str) or len(name) > 253 or not _NAME.fullmatch(name):
        message = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
            "characters, '-' or '.', and must start and end with an alphanumeric character"
        )
        return [Cause(reason="FieldValueInvalid", field="metadata.name", message=message)]
    return []


def reference_problems(metadata: Json) -> list[Cause]:
    """What is wrong with an object's labels and its references to owners."""
    labels = [
        Cause(
            reason="FieldValueInvalid", field="metadata.labels", message=f'Invalid value: "{text}": not a valid label'
        )
        for key, value in (metadata.get("labels") or {}).items()
        for text, form in ((key, _LABEL_KEY), (value, _LABEL_VALUE))
        if not isinstance(text, str) or not form.fullmatch(text)
    ]
    message = 'Invalid value: "": must not be empty'
    owners = [
        Cause(reason="FieldValueInvalid", field=f"metadata.ownerReferences.{part}", message=message)
        for reference in metadata.get("ownerReferences") or ()
        for part in ("apiVersion", "kind", "name", "uid")
        if not reference.get(part)
    ]
    return [*labels, *owners]


def check_name(body: Json, name: str) -> None:
    """Raises: ApiError 400 where a write names another object than its URL."""
    named = body["metadata"].get("name", name)
    if named != name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({name})")


def check_identity(view: View, old: Json, new: Json) -> None:
    """Raises: ApiError where a write names another object or a revision that is no longer the present one."""
    resource, was, metadata = view.resource, old["metadata"], new["metadata"]
    name = was["name"]
    check_name(new, name)
    revision = metadata.get("resourceVersion")
    if not revision and not resource.unconditional_update:
        message = "Invalid value: 0: must be specified for an update"
        cause = Cause(reason="FieldValueInvalid", field="metadata.resourceVersion", message=message)
        raise invalid(resource.group, resource.plural, name, [cause])
    if revision and revision != was["resourceVersion"]:
        raise conflict(*resource.key, name, STALE)
    uid = metadata.get("uid") or was["uid"]
    if uid != was["uid"]:
        cause = Cause(reason="FieldValueInvalid", field="metadata.uid", message=immutable(uid))
        raise invalid(resource.group, resource.kind, name, [cause])


def replacement(view: View, body: Json) -> Callable[[Json], Json]:
    """The change that a PUT makes. Unlike in a patch, a uid in it is a precondition. Raises: ApiError 400, 409."""

    def replace(old: Json) -> Json:
        new, present = checked_type(view, body), old["metadata"]["uid"]
        uid = new["metadata"].get("uid") or present
        if uid != present:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {present}"
            raise conflict(*view.resource.key, old["metadata"]["name"], why)
        return new

    return replace


def immutable(value: Any) -> str:
    """What a cause says of a field that cannot be changed."""
    return f'Invalid value: "{value}": field is immutable'


def updated(view: View, old: Json, new: Json, *, subresource: str) -> Json:
    """A written object with everything that this write may not change put back."""
    restricted = _restricted(view, old, new, subresource=subresource)
    metadata = _kept_metadata(old["metadata"], restricted["metadata"])
    if view.resource.generation and _spec_differs(view, old, restricted):
        metadata["generation"] = old["metadata"].get("generation", 0) + 1
    return {**restricted, "metadata": metadata}


def _restricted(view: View, old: Json, new: Json, *, subresource: str) -> Json:
    if subresource == "status":
        kept = {key: value for key, value in old.items() if key != "status"}
        if not view.resource.custom:
            kept["metadata"] = new["metadata"]
        return {**kept, "status": new["status"]} if "status" in new else kept
    if not view.version.has_status:
        return new
    kept = {key: value for key, value in new.items() if key != "status"}
    return {**kept, "status": old["status"]} if "status" in old else kept


def _kept_metadata(old: Json, new: Json) -> Json:
    metadata = {key: value for key, value in new.items() if key not in _SERVER_SET}
    metadata |= {key: old[key] for key in _SERVER_SET if key in old}
    return metadata | {"name": old["name"], "resourceVersion": old["resourceVersion"]}


def _spec_differs(view: View, old: Json, new: Json) -> bool:
    """Whether what a controller has to act on changed: all but metadata and, where it is a subresource, status."""
    apart = {"metadata", "apiVersion", "kind"} | ({"status"} if view.version.has_status else set())
    before, after = ({k: v for k, v in body.items() if k not in apart} for body in (old, new))
    return not same(before, after)
