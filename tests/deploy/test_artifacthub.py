"""What Artifact Hub shows (kind "KEDA scalers") is what is here: the version, the parameters, and its own rules."""

import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from scaler_sandbox.manifests import objects_in

import deploy.helm_chart as helm_chart
import scaler
import scaler.decision.trigger_metadata as trigger_metadata
from deploy.helm_chart import DEPLOY, ROOT
from scaler.idleness.policy import NAME_OF_KEY

FOLDER = DEPLOY / "artifacthub"
PACKAGES = sorted(FOLDER.rglob("artifacthub-pkg.yml"))
REQUIRED = {"version", "name", "displayName", "createdAt", "description"}
OPTIONAL = {
    *("alternativeName", "category", "logoPath", "logoURL", "digest", "license", "homeURL", "appVersion"),
    *("containersImages", "containsSecurityUpdates", "operator", "deprecated", "prerelease", "keywords", "links"),
    *("readme", "install", "changes", "maintainers", "provider", "ignore", "recommendations", "screenshots"),
    "annotations",
}
"""Fields of the metadata file. Source: Artifact Hub, docs/metadata/artifacthub-pkg.yml."""
KINDS = {"added", "changed", "deprecated", "removed", "fixed", "security"}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return found


def current() -> Path:
    return FOLDER / "idle-gpu-scaler" / scaler.__version__


def test_there_is_a_package_of_the_version_that_this_is() -> None:
    package = read(current() / "artifacthub-pkg.yml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = read(helm_chart.FOLDER / "Chart.yaml")
    assert package["version"] == project["version"] == chart["version"]
    assert package["appVersion"] == chart["appVersion"]
    assert package["name"] == project["name"] == chart["name"]
    assert package["license"] == project["license"]


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_artifact_hub_takes_it(path: Path) -> None:
    package = read(path)
    assert set(package) >= REQUIRED
    assert set(package) <= REQUIRED | OPTIONAL
    assert package["version"] == path.parent.name
    assert datetime.fromisoformat(package["createdAt"]).tzinfo is not None
    assert {change["kind"] for change in package["changes"]} <= KINDS
    assert ElementTree.parse(path.parent / package["logoPath"]).getroot().tag.endswith("svg")


def test_its_page_lists_the_parameters_that_there_are_with_the_same_defaults() -> None:
    listed = parameters((current() / "README.md").read_text(encoding="utf-8"))
    reference = parameters((ROOT / "docs" / "trigger-reference.md").read_text(encoding="utf-8"))
    assert set(listed) == {*NAME_OF_KEY, "scalerAddress"}
    assert listed == {name: reference[name] for name in listed}


def parameters(page: str) -> dict[str, str]:
    table = page[page.index("| parameter | default |") :].partition("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))


def test_its_example_is_an_object_like_those_of_the_examples() -> None:
    page = (current() / "README.md").read_text(encoding="utf-8")
    [example] = objects_in(re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)[0])
    trigger = example["spec"]["triggers"][0]
    assert trigger_metadata.parse_metadata(trigger["metadata"])
    assert "fallback" not in example["spec"]


def test_it_is_installed_by_values_that_the_chart_has() -> None:
    install = read(current() / "artifacthub-pkg.yml")["install"]
    values = helm_chart.given_by(install[install.index("helm install") :].split())
    assert values
    assert helm_chart.objects(values)
