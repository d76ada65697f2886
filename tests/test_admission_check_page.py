"""The guide to the AdmissionCheck against what it tells of: the policy's fields and defaults, and every reason."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaler.admission.check import CheckReason
from scaler.admission.provisioning.lifecycle import LOST, RequestState

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "admission-check.md").read_text(encoding="utf-8")
CRD = yaml.safe_load((ROOT / "deploy" / "crds" / "idlegpu.io_reclaimpolicies.yaml").read_text(encoding="utf-8"))


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field that holds a value, by its path, with its default."""
    for name, found in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if found["type"] == "object" and "properties" in found:
            yield from fields(found, below)
        else:
            yield below, found.get("default")


SPEC = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


@pytest.mark.parametrize(("path", "default"), list(fields(SPEC)))
def test_every_field_of_a_policy_stands_in_the_guide_with_its_default(path: str, default: Any) -> None:
    row = re.search(rf"^\| `{re.escape(path)}` \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None, path
    shown = "–" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    assert row[1] == shown


def test_the_guide_tells_of_no_field_that_there_is_not() -> None:
    section = PAGE[PAGE.index("## The ReclaimPolicy") : PAGE.index("## What it says")]
    told = set(re.findall(r"^\| `([^`]+)` \| [–`]", section, re.MULTILINE))
    assert told - {"provisioning"} == {path for path, _ in fields(SPEC)}


@pytest.mark.parametrize("reason", CheckReason)
def test_every_reason_is_explained(reason: CheckReason) -> None:
    assert re.search(rf"^\| `{reason}` \| .+ \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("state", [RequestState.PROVISIONED, *sorted(LOST)])
def test_every_event_about_nodes_is_named(state: RequestState) -> None:
    assert f"`Nodes{state}`" in PAGE


def test_its_manifests_can_be_applied() -> None:
    """What stands in the example is a policy by the definition's own words."""
    example = next(
        block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "kind: ReclaimPolicy" in block
    )
    policy, check = yaml.safe_load_all(example)
    assert set(policy["spec"]["provisioning"]) <= set(SPEC["properties"]["provisioning"]["properties"])
    assert check["spec"]["parameters"]["name"] == policy["metadata"]["name"]
