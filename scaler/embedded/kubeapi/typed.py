"""Is a body shaped as the rest of this package takes for granted? A typed server fails to decode it where it is not.

Only the fields that something here reads are declared; whatever else a body holds is nobody's business. Custom objects
are declared by their schemas, so that of them only the metadata is.
"""

from typing import Any

import msgspec

from scaler.embedded.kubeapi.status import ApiError, bad_request


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
    managed_fields: list[dict[str, Any]] | None = None


class Anything(_Part):
    """Any object: a custom one, for instance."""

    metadata: _Metadata | None = None


class BuiltIn(Anything):
    """A built-in object without further needs."""

    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _PodSpec(_Part):
    node_name: str | None = None
    termination_grace_period_seconds: int | None = None
    containers: list[dict[str, Any]] | None = None


class _PodStatus(_Part):
    phase: str | None = None
    conditions: list[dict[str, Any]] | None = None


class Pod(Anything):
    """A pod."""

    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Template(_Part):
    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


class _Requirement(_Part):
    key: str
    operator: str
    values: list[str] | None = None


class _Selector(_Part):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Requirement] | None = None


class _ReplicatedSpec(_Part):
    replicas: int | None = None
    selector: _Selector | None = None
    template: _Template | None = None
    manual_selector: bool | None = None


class Replicated(Anything):
    """What runs pods from a template."""

    spec: _ReplicatedSpec | None = None
    status: dict[str, Any] | None = None


class _Names(_Part):
    plural: str | None = None
    singular: str | None = None
    kind: str | None = None
    list_kind: str | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None


class _Rule(_Part):
    rule: str
    message: str | None = None
    message_expression: str | None = None
    reason: str | None = None
    field_path: str | None = None


class _Schema(_Part):
    type: str | None = None
    format: str | None = None
    pattern: str | None = None
    properties: "dict[str, _Schema] | None" = None
    items: "_Schema | None" = None
    additional_properties: "bool | _Schema | None" = None
    all_of: "list[_Schema] | None" = None
    any_of: "list[_Schema] | None" = None
    one_of: "list[_Schema] | None" = None
    not_: "_Schema | None" = msgspec.field(default=None, name="not")
    required: list[str] | None = None
    enum: list[Any] | None = None
    maximum: int | float | None = None
    minimum: int | float | None = None
    max_length: int | None = None
    min_length: int | None = None
    max_items: int | None = None
    min_items: int | None = None
    max_properties: int | None = None
    min_properties: int | None = None
    list_type: str | None = msgspec.field(default=None, name="x-kubernetes-list-type")
    list_map_keys: list[str] | None = msgspec.field(default=None, name="x-kubernetes-list-map-keys")
    validations: list[_Rule] | None = msgspec.field(default=None, name="x-kubernetes-validations")


class _SchemaHolder(_Part):
    open_apiv3_schema: _Schema | None = msgspec.field(default=None, name="openAPIV3Schema")


class _ScalePaths(_Part):
    spec_replicas_path: str | None = None
    status_replicas_path: str | None = None
    label_selector_path: str | None = None


class _Subresources(_Part):
    status: dict[str, Any] | None = None
    scale: _ScalePaths | None = None


class _PrinterColumn(_Part):
    name: str
    type: str
    json_path: str
    format: str | None = None
    description: str | None = None
    priority: int | None = None


class _SelectableField(_Part):
    json_path: str


class _DefinedVersion(_Part):
    name: str | None = None
    served: bool | None = None
    storage: bool | None = None
    schema: _SchemaHolder | None = None
    subresources: _Subresources | None = None
    additional_printer_columns: list[_PrinterColumn] | None = None
    selectable_fields: list[_SelectableField] | None = None


class _DefinitionSpec(_Part):
    group: str | None = None
    scope: str | None = None
    names: _Names | None = None
    versions: list[_DefinedVersion] | None = None


class Definition(Anything):
    """A CustomResourceDefinition."""

    spec: _DefinitionSpec | None = None
    status: dict[str, Any] | None = None


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
