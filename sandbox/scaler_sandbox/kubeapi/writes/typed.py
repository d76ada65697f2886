"""Have metadata, Scales and DeleteOptions the types that the rest of this package relies on?

Custom objects are validated by their schemas; the spec of a built-in object is not checked.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import ApiError, bad_request


@dataclass(slots=True, kw_only=True)
class WriteOptions:
    """How a write shall be done, and the warnings that it earned."""

    dry_run: bool = False
    field_validation: str = "Warn"
    """Unknown fields: Strict refuses, Warn drops and says so, Ignore drops."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionOptions:
    """How a delete shall be done."""

    grace_seconds: int | None = None
    """How long a kubelet may take; None for what the pod itself says."""
    uid: str = ""
    """Precondition; empty for none."""
    resource_version: str = ""
    """Precondition; empty for none."""
    dry_run: bool = False


class _Part(msgspec.Struct, rename="camel"):
    """An object of which some fields are known."""


class _OwnerReference(_Part):
    api_version: str | None = None
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    block_owner_deletion: bool | None = None


class _Metadata(_Part):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[_OwnerReference] | None = None


class Anything(_Part):
    """Any object."""

    metadata: _Metadata | None = None


class _ScaleSpec(_Part):
    replicas: Any = None


class Scale(Anything):
    """A Scale. Its number is judged where it is used."""

    spec: _ScaleSpec | None = None


class _Preconditions(_Part):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(_Part):
    """The body of a delete."""

    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    preconditions: _Preconditions | None = None
    dry_run: list[str] | None = None


def check_shape(body: Any, shape: type[msgspec.Struct], *, kind: str) -> None:
    """Raises: ApiError 400 where a body cannot be decoded as what it has to be."""
    try:
        msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise _undecodable(kind, str(error)) from error


def as_delete_options(body: Any) -> DeleteOptions:
    """The options that a delete brings; the defaults where it brings none. Raises: ApiError 400."""
    try:
        return msgspec.convert(body or {}, DeleteOptions)
    except msgspec.ValidationError as error:
        raise _undecodable("DeleteOptions", str(error)) from error


def _undecodable(kind: str, why: str) -> ApiError:
    return bad_request(f"the body of the request cannot be handled as a {kind}: {why}")
