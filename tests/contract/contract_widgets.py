"""The custom resource of the contract tests, and short ways to write about it."""

import asyncio
from typing import Any

import pytest
from contract.contract_client import Answer, Client, Json

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}


def fields(**properties: Json) -> Json:
    """The schema of an object."""
    return {"type": "object", "properties": properties}


def keyed(key: str, **properties: Json) -> Json:
    """The schema of a list whose items one field identifies."""
    item = {**fields(**{key: STRING, **properties}), "required": [key]}
    return {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


SPEC: Json = fields(
    replicas={**INTEGER, "default": 1, "minimum": 0, "maximum": 3},
    color={**STRING, "enum": ["red", "green"]},
    size={**STRING, "maxLength": 5, "pattern": "^[a-z]*$"},
    note=STRING,
    owner=fields(first=STRING, last=STRING),
    until={**STRING, "format": "date-time"},
    port={"x-kubernetes-int-or-string": True},
    maybe={**STRING, "nullable": True},
    parts=keyed("name", count={**INTEGER, "default": 7}, hue=STRING),
    tags={"type": "array", "items": STRING, "x-kubernetes-list-type": "set"},
    steps={"type": "array", "items": STRING, "maxItems": 3},
    limits={"type": "object", "additionalProperties": INTEGER},
    pinned={"type": "object", "additionalProperties": STRING, "x-kubernetes-map-type": "atomic"},
    free={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    defaulted={**fields(inner={**STRING, "default": "x"}), "default": {}},
    fixed={**STRING, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed is immutable"}]},
    range={
        **fields(min=INTEGER, max=INTEGER),
        "x-kubernetes-validations": [
            {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min must not exceed max"},
            {"rule": "!has(self.min) || self.min < 100"},
        ],
    },
)
STATUS: Json = fields(
    replicas=INTEGER,
    selector=STRING,
    phase=STRING,
    conditions=keyed("type", status=STRING, reason=STRING, message=STRING, lastTransitionTime=STRING),
)
STATUS["properties"]["conditions"]["items"]["required"] = ["type", "status"]
ROOT_RULES = [
    {
        "rule": "!has(self.spec) || !has(self.spec.color) || !has(self.status) || !has(self.status.phase)"
        " || self.status.phase != self.spec.color",
        "message": "a phase is not a color",
    },
    {
        "rule": "!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase != 'Locked'"
        " || (has(self.spec) && has(oldSelf.spec) && self.spec == oldSelf.spec)",
        "message": "a locked widget keeps its spec",
    },
]
COLUMNS = [
    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def definition(group: str, *, plural: str = "widgets", kind: str = "Widget", **version: Any) -> Json:
    """A CustomResourceDefinition; `version` replaces parts of its only version."""
    served = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": SCALE},
        "additionalPrinterColumns": COLUMNS,
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "schema": {"openAPIV3Schema": {**fields(spec=SPEC, status=STATUS), "x-kubernetes-validations": ROOT_RULES}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": ["wd"]},
            "versions": [{**served, **version}],
        },
    }


async def install(client: Client, crd: Json, installed: set[str]) -> None:
    """Create a definition, unless an earlier test of this run did, and wait until it is served."""
    name = crd["metadata"]["name"]
    answer = await client.post(DEFINITIONS, crd)
    if answer.status == 409 and name in installed:
        return
    answer.ok()
    installed.add(name)
    await until_served(client, crd)


async def until_served(client: Client, crd: Json) -> None:
    """Wait until a definition is established and its resource answers lists and watches."""
    spec = crd["spec"]
    paths = [f"/apis/{spec['group']}/{v['name']}/{spec['names']['plural']}" for v in spec["versions"] if v["served"]]
    for _ in range(100):
        found = (await client.get(f"{DEFINITIONS}/{crd['metadata']['name']}")).ok()
        conditions = {c["type"]: c["status"] for c in found.get("status", {}).get("conditions") or []}
        if conditions.get("Established") == "True":
            answers = [await client.get(path) for path in paths]
            if all(answer.status == 200 for answer in answers):
                return
        await asyncio.sleep(0.05)
    pytest.fail(f"{crd['metadata']['name']} is not served after 5 s")


def gated_pod(name: str, **metadata: Any) -> Json:
    """A pod that no scheduler touches: only the test does."""
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "ex.com/hold"}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


class Widgets:
    """The widgets of one namespace."""

    def __init__(self, client: Client, group: str, namespace: str) -> None:
        self.client = client
        self.group = group
        self.namespace = namespace
        self.path = f"/apis/{group}/v1/namespaces/{namespace}/widgets"

    def body(self, name: str, spec: Json | None = None, **more: Any) -> Json:
        """A widget; `more` are further top-level fields, `metadata` is added to."""
        metadata = {"name": name, **more.pop("metadata", {})}
        head: Json = {"apiVersion": f"{self.group}/v1", "kind": "Widget", "metadata": metadata}
        return {**head, **({} if spec is None else {"spec": spec}), **more}

    def at(self, name: str, subresource: str = "") -> str:
        """The path of a widget or its subresource."""
        return f"{self.path}/{name}" + (f"/{subresource}" if subresource else "")

    async def create(self, name: str, spec: Json | None = None, **more: Any) -> Json:
        """A new widget."""
        made: Json = (await self.client.post(self.path, self.body(name, spec, **more))).ok()
        return made

    async def get(self, name: str) -> Json:
        """The widget as it stands."""
        found: Json = (await self.client.get(self.at(name))).ok()
        return found

    async def patch(self, name: str, patch: Json, subresource: str = "", **query: Any) -> Answer:
        """A merge patch."""
        return await self.client.patch(self.at(name, subresource), patch, **query)

    async def apply(
        self,
        manager: str,
        name: str,
        spec: Json | None = None,
        *,
        subresource: str = "",
        force: bool = False,
        **more: Any,
    ) -> Answer:
        """A server-side apply."""
        query = {"force": True} if force else {}
        body = self.body(name, spec, **more)
        return await self.client.apply(self.at(name, subresource), body, manager, **query)
