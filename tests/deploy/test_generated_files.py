from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import deploy.generate as generated_files
import deploy.helm_chart as helm_chart
from deploy.helm_chart import DEPLOY


def test_what_is_made_of_something_else_is_up_to_date() -> None:
    stale = [path.relative_to(DEPLOY) for path, text in generated_files.contents() if not _holds(path, text)]
    assert not stale, "run: uv run python -m deploy.generate"


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def test_no_definition_is_shipped_that_is_no_longer_there() -> None:
    names = {path.name for path in (DEPLOY / "crds").glob("*.yaml")}
    for folder in (helm_chart.FOLDER / "crds", generated_files.BASE / "crds"):
        assert {path.name for path in folder.iterdir()} == names
    kustomization = (generated_files.BASE / "kustomization.yaml").read_text(encoding="utf-8")
    assert all(f"- crds/{name}\n" in kustomization for name in names)


def test_every_value_is_explained() -> None:
    known = generated_files.comments()
    values = generated_files.values()
    unexplained = [path for path in _leaves(values, "") if not any(_covers(each, path) for each in known)]
    assert not unexplained


def _leaves(values: dict[str, Any], path: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def _covers(known: str, path: str) -> bool:
    return path == known or path.startswith(f"{known}.")


# ------------------------------------------------------------------------- what `kubectl explain` and `get` show

DEFINITIONS = [
    yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in sorted((DEPLOY / "crds").glob("*.yaml"))
]
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


def unbounded(schema: dict[str, Any], path: str = "spec") -> Iterator[str]:
    """Fields in which the API server lets a tenant write as much as an object holds."""
    kind, map_of = schema.get("type"), schema.get("additionalProperties")
    if kind == "string" and not {"maxLength", "enum", "format"} & schema.keys():
        yield path
    if kind == "array" and "maxItems" not in schema:
        yield path
    if map_of and "maxProperties" not in schema:
        yield path
    for name, field in schema.get("properties", {}).items():
        yield from unbounded(field, f"{path}.{name}")
    for mark, field in (("[]", schema.get("items")), ("{}", map_of)):
        if isinstance(field, dict):
            yield from unbounded(field, f"{path}{mark}")


@pytest.mark.parametrize("definition", KINDS)
def test_every_list_map_and_text_of_a_spec_has_a_longest(definition: dict[str, Any]) -> None:
    for version in definition["spec"]["versions"]:
        assert list(unbounded(version["schema"]["openAPIV3Schema"]["properties"]["spec"])) == []
