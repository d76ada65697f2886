"""In which form does a client want objects? Whole, as a table for people, or only their metadata."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from scaler.embedded.kubeapi.resources import View
from scaler.embedded.kubeapi.status import ApiError, Json
from scaler.embedded.kubeapi.store import Stored, type_head
from scaler.embedded.kubeapi.tables import metadata_only, table

_encode = msgspec.json.Encoder().encode

FormName = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]
_FORMS: dict[str, FormName] = {
    "": "",
    "Table": "Table",
    "PartialObjectMetadata": "PartialObjectMetadata",
    "PartialObjectMetadataList": "PartialObjectMetadataList",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How one request wants its answer written."""

    name: FormName
    include: str = ""
    """What a table's rows carry of their objects: None, Metadata, Object."""

    def single(self, view: View, stored: Stored, *, now: datetime) -> bytes:
        """One object."""
        if not self.name:
            return stored.encode(view)
        body = stored.as_served(view)
        if self.name == "Table":
            return _encode(table(view, [body], _of(stored), now=now, include=self.include))
        return _encode(metadata_only(body))

    def events(self, view: View, now: Callable[[], datetime]) -> Callable[[Stored], bytes]:
        """How a watch writes the objects of its events: only its first table says what the columns are."""
        if self.name != "Table":
            return lambda stored: self.single(view, stored, now=now())
        header = [True]

        def render(stored: Stored) -> bytes:
            bodies, first = [stored.as_served(view)], header.pop() if header else False
            return _encode(table(view, bodies, _of(stored), now=now(), header=first, include=self.include))

        return render

    def listed(self, view: View, items: Sequence[Stored], metadata: Json, *, now: datetime) -> bytes:
        """A list."""
        if not self.name:
            return list_body(view, items, metadata)
        bodies = [stored.as_served(view) for stored in items]
        if self.name == "Table":
            return _encode(table(view, bodies, metadata, now=now, include=self.include))
        head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        return _encode({**head, "items": [metadata_only(body) for body in bodies]})


def _of(stored: Stored) -> Json:
    return {"resourceVersion": str(stored.revision)}


def form_of(accept: str, *, include: str = "") -> Form:
    """The first form that the client takes and that is served here. Raises: ApiError 406 where there is none."""
    if not accept:
        return Form(name="")
    for offer in accept.split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        options = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        form = _FORMS.get(options.get("as", ""))
        is_json = media in ("application/json", "application/*", "*/*")
        if is_json and form is not None and (not form or options.get("v", "v1") == "v1"):
            return Form(name=form, include=include)
    raise ApiError(406, "NotAcceptable", "only the following media types are accepted: application/json")


def list_body(view: View, items: Sequence[Stored], metadata: Json) -> bytes:
    """A list of whole objects, glued together from their cached texts."""
    head = type_head(view.resource.list_kind, view.api_version)
    listed = b",".join([stored.encode_item(view) for stored in items])
    return b'%b"metadata":%b,"items":[%b]}' % (head, _encode(metadata), listed)
