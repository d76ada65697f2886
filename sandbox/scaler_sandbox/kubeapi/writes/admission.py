"""May this object come in, and in which shape? Pruning and defaults, validation, the state of its namespace."""

from typing import Protocol

from scaler_sandbox.kubeapi.errors import (
    ApiError,
    Cause,
    Json,
    bad_request,
    forbidden,
    invalid,
    not_found,
    object_details,
    qualified,
)
from scaler_sandbox.kubeapi.schema.resources import View
from scaler_sandbox.kubeapi.schema.shaping import drop_all_nulls, drop_nulls, fill_defaults, prune
from scaler_sandbox.kubeapi.storage.store import Stored
from scaler_sandbox.kubeapi.writes.lifecycle import name_problems, reference_problems
from scaler_sandbox.kubeapi.writes.typed import DeletionOptions, WriteOptions


class ResourceAdmission(Protocol):
    """What policies and webhooks do to writes of one resource."""

    def mutated(self, old: Json | None, new: Json) -> Json:
        """The object after mutation, before it is validated."""

    def refusal(self, old: Json | None, new: Json) -> str:
        """Why a valid object is denied; empty where it is not."""


def check_not_denied(admission: ResourceAdmission | None, old: Json | None, new: Json) -> None:
    """Raises: ApiError 403 where the webhook denies the write."""
    why = admission.refusal(old, new) if admission is not None else ""
    if why:
        raise ApiError(403, "Forbidden", why)


def taken_in(view: View, body: Json, writing: WriteOptions) -> Json:
    """The body pruned, without nulls, defaulted. Raises: ApiError 400 for unknown fields where that is asked."""
    schema = view.version.schema
    pruned, dropped = prune(body, schema)
    if dropped and writing.is_strict:
        unknown = [f'unknown field "{path}"' for path in sorted(dropped)]
        kind, version = view.resource.kind, view.version.name
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {", ".join(unknown)}'
        )
    without_nulls = drop_nulls(pruned, schema) if view.resource.custom else drop_all_nulls(pruned)
    complete: Json = fill_defaults(without_nulls, schema)
    return complete


def check_valid(view: View, new: Json, old: Json | None) -> None:
    """Raises: ApiError 422 with everything that is wrong with an object."""
    metadata = new["metadata"]
    causes = [*(name_problems(metadata) if old is None else ()), *reference_problems(metadata)]
    causes += view.version.validate(new, old)
    if causes:
        raise invalid(view.resource.group, view.resource.kind, metadata.get("name", ""), causes)


def check_namespace_is_open(view: View, namespace: Stored | None, named: str, body: Json) -> None:
    """Raises: ApiError 404, 403 where nothing can be created in the namespace called `named`."""
    if namespace is None:
        raise not_found("", "namespaces", named)
    if "deletionTimestamp" in namespace.body["metadata"]:
        why = f"unable to create new content in namespace {named} because it is being terminated"
        message = f"namespace {named} is being terminated"
        cause = Cause(reason="NamespaceTerminating", field="metadata.namespace", message=message)
        raise forbidden(*view.resource.key, body["metadata"].get("name", ""), why, causes=[cause])


def check_preconditions(view: View, old: Stored, deletion: DeletionOptions) -> None:
    """Raises: ApiError 409 where the object is not the one that was meant, or not in the revision that was meant."""
    present = str(old.revision)
    why = ""
    if deletion.uid not in ("", old.uid):
        why = (
            f"the UID in the precondition ({deletion.uid}) does not match the UID in record ({old.uid}). "
            "The object might have been deleted and then recreated"
        )
    elif deletion.resource_version not in ("", present):
        why = (
            f"the ResourceVersion in the precondition ({deletion.resource_version}) does not match "
            f"the ResourceVersion in record ({present}). The object might have been modified"
        )
    if why:
        group, kind, name = view.resource.group, view.resource.kind, old.key[1]
        message = f'Operation cannot be fulfilled on {qualified(group, kind)} "{name}": {why}'
        raise ApiError(409, "Conflict", message, details=object_details(group, kind, name))
