"""In which form does a client want objects? Whole, as a table for people, or only their metadata."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scaler.embedded.kubeapi.resources import View
from scaler.embedded.kubeapi.status import ApiError
from scaler.embedded.kubeapi.store import Stored, type_head

_encode = msgspec.json.Encoder().encode


def form_of(accept: str) -> str:
    """`Table`, `PartialObjectMetadata`, `PartialObjectMetadataList`, or "" for whole objects.

    Raises: ApiError 406 where the client takes nothing that is served here.
    """
    if not accept:
        return ""
    for offer in accept.split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        if media not in ("application/json", "application/*", "*/*"):
            continue
        options = dict(p.split("=", 1) for p in parameters if "=" in p)
        if options.get("as", "") in ("", "PartialObjectMetadata", "PartialObjectMetadataList"):
            return options.get("as", "")
    raise ApiError(406, "NotAcceptable", "only the following media types are accepted: application/json")


def list_body(view: View, items: Sequence[Stored], metadata: dict[str, Any]) -> bytes:
    """A list of whole objects, glued together from their cached texts."""
    head = type_head(view.resource.list_kind, view.api_version)
    listed = b",".join([stored.encode_item(view) for stored in items])
    return b'%b"metadata":%b,"items":[%b]}' % (head, _encode(metadata), listed)


def renderer(view: View, form: str) -> Callable[[Stored], bytes]:
    """How a single object is written in this form."""
    return lambda stored: stored.encode(view)
