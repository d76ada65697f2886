"""How shall a write or a delete be done? Options as typed values."""

from dataclasses import dataclass
from typing import Any

import msgspec

from scaler_sandbox.kubeapi.errors import bad_request


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How a write shall be done."""

    dry_run: bool = False
    is_strict: bool = False
    """Whether unknown fields are refused, and not dropped."""


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


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, rename="camel"):
    """The body of a delete."""

    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    preconditions: _Preconditions | None = None
    dry_run: list[str] | None = None


def as_delete_options(body: Any) -> DeleteOptions:
    """The options that a delete brings; the defaults where it brings none. Raises: ApiError 400."""
    try:
        return msgspec.convert(body or {}, DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"the body of the request cannot be handled as DeleteOptions: {error}") from error
