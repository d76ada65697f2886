"""`kubectl explain` has words for every field of our kinds, and `kubectl get` for every column."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from deploy.helm_chart import DEPLOY

DEFINITIONS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((DEPLOY / "crds").glob("*.yaml"))]
KINDS = [pytest.param(each, id=each["spec"]["names"]["kind"]) for each in DEFINITIONS]
EVERYBODYS = {"apiVersion", "kind", "metadata"}
"""What Kubernetes itself explains, at the top; and so are the fields of a condition."""


def silent(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Fields without a description."""
    for name, field in schema.get("properties", {}).items():
        if not path and name in EVERYBODYS:
            continue
        if not field.get("description"):
            yield f"{path}{name}"
        if name != "conditions":
            yield from silent(field.get("items", field), f"{path}{name}.")


@pytest.mark.parametrize("definition", KINDS)
def test_every_field_is_explained(definition: dict[str, Any]) -> None:
    for version in definition["spec"]["versions"]:
        assert list(silent(version["schema"]["openAPIV3Schema"])) == []


@pytest.mark.parametrize("definition", KINDS)
def test_every_column_but_the_age_is_explained(definition: dict[str, Any]) -> None:
    for version in definition["spec"]["versions"]:
        columns = version["additionalPrinterColumns"]
        assert [each["name"] for each in columns if not each.get("description")] == ["Age"]


def test_a_field_without_words_is_found() -> None:
    inner = {"items": {"properties": {"b": {"type": "string"}}}, "description": "A list."}
    assert list(silent({"properties": {"spec": {"properties": {"a": inner}}}})) == ["spec", "spec.a.b"]
