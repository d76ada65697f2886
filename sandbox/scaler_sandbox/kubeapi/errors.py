"""Refusals of the API: a `Status` object whose `code`, `reason` and `details` clients switch on.

Laws: every refusal is an `ApiError`; its reason is one of the API's own words, never ours; `details.name`, `.group` and
`.kind` name the object, and `details.causes` name the fields.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaler.errors import KubeError

Json = dict[str, Any]
"""One JSON object, as decoded. Objects that reached the store are never changed in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing wrong with one field of an object."""

    reason: str
    field: str
    message: str

    def as_json(self) -> Json:
        """The cause as it stands in `details.causes`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(KubeError):
    """A request that the API refuses."""

    def __init__(self, code: int, reason: str, message: str, *, details: Json | None = None) -> None:
        super().__init__(message, status=code, reason=reason)
        self.details = details or {}

    def as_status(self) -> Json:
        """The `Status` object that the client gets."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "code": self.status,
        }
        stated = {"reason": self.reason, "details": self.details}
        return status | {key: value for key, value in stated.items() if value}


def success(details: Json) -> Json:
    """The `Status` object of a delete that left nothing behind."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def object_details(group: str, plural: str, name: str, **more: Any) -> Json:
    """The `details` that name one object; empty parts are left out, as real servers do."""
    details = {"name": name, "group": group, "kind": plural, **more}
    return {key: value for key, value in details.items() if value not in ("", None)}


def qualified(group: str, plural: str) -> str:
    """`workloads.kueue.x-k8s.io`, or just `pods` in the core group."""
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> ApiError:
    """400: the request itself makes no sense."""
    return ApiError(400, "BadRequest", message)


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404: there is no such object."""
    message = f'{qualified(group, plural)} "{name}" not found'
    return ApiError(404, "NotFound", message, details=object_details(group, plural, name))


def no_such_resource() -> ApiError:
    """404: there is no such resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """409 on create."""
    message = f'{qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=object_details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """409: the write rests on a state that is no longer the state."""
    message = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=object_details(group, plural, name))


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(group: str, plural: str, name: str, why: str, *, causes: Sequence[Cause] = ()) -> ApiError:
    """403: the object or its surroundings do not allow it."""
    message = f'{qualified(group, plural)} "{name}" is forbidden: {why}'
    more = {"causes": [cause.as_json() for cause in causes]} if causes else {}
    return ApiError(403, "Forbidden", message, details=object_details(group, plural, name, **more))


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object breaks its schema or its rules."""
    listed = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = listed[0] if len(listed) == 1 else "[" + ", ".join(listed) + "]"
    message = f'{qualified(group, kind)} "{name}" is invalid: {text}'
    details = object_details(group, kind, name, causes=[cause.as_json() for cause in causes])
    return ApiError(422, "Invalid", message, details=details)


def method_not_allowed() -> ApiError:
    """405: the resource or subresource has no such verb."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def expired(message: str) -> ApiError:
    """410: the asked-for revision or continue token is forgotten; the client has to list again."""
    return ApiError(410, "Expired", message)


def from_the_future(asked: int, current: int) -> ApiError:
    """504: the asked-for revision has not happened yet."""
    cause = Cause(reason="ResourceVersionTooLarge", field="", message="Too large resource version")
    details = {"causes": [{"reason": cause.reason, "message": cause.message}], "retryAfterSeconds": 1}
    return ApiError(504, "Timeout", f"Too large resource version: {asked}, current: {current}", details=details)


def invalid_option(options: str, cause: Cause) -> ApiError:
    """422: a parameter of the request that cannot be; `options` is `ListOptions`, `PatchOptions`, …"""
    return invalid("meta.k8s.io", options, "", [cause])


def unsupported_media_type(given: str, accepted: Sequence[str]) -> ApiError:
    """415: a body or patch of a type that this resource does not take."""
    message = (
        f"the body of the request was in an unknown format ({given or 'none'}) - "
        f"accepted media types include: {', '.join(accepted)}"
    )
    return ApiError(415, "UnsupportedMediaType", message)


def internal(message: str) -> ApiError:
    """500: the server cannot make sense of what it stores."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
