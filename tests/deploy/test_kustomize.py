"""kustomize and the chart give the same objects for the same settings."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import needs

import deploy.helm_chart as helm_chart
from deploy.helm_chart import DEPLOY

FOLDER = DEPLOY / "kustomize"
HELMS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
OF_KUSTOMIZE = {"Namespace", "CustomResourceDefinition"}
"""Helm makes the namespace and the definitions by itself, without a template."""

pytestmark = needs("kubectl")


def built(folder: Path) -> list[dict[str, Any]]:
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))


def comparable(bodies: list[dict[str, Any]]) -> dict[tuple[str, str, str], Any]:
    """The objects by kind and name, without what only says who made them."""
    return {
        (body["kind"], body["metadata"].get("namespace", ""), plain(body)["metadata"]["name"]): plain(body)
        for body in bodies
        if body["kind"] not in OF_KUSTOMIZE
    }


def plain(value: Any) -> Any:
    """Without Helm's labels, without what tells pods that their settings have changed, and with volumes in order."""
    if isinstance(value, dict):
        kept = {key: plain(each) for key, each in value.items() if key not in (*HELMS, "checksum/settings")}
        for key in {"volumes", "volumeMounts"} & kept.keys():
            kept[key] = sorted(kept[key], key=lambda each: str(each["name"]))
        return kept
    if isinstance(value, list):
        return [plain(each) for each in value]
    return re.sub(r"^idle-gpu-scaler-[0-9a-z]{10}$", "idle-gpu-scaler", value) if isinstance(value, str) else value


@pytest.mark.parametrize("overlay", ["openshift", "gke", "dev"])
def test_an_overlay_gives_what_the_chart_gives_for_its_values(overlay: str) -> None:
    made = comparable(built(FOLDER / "overlays" / overlay))
    expected = comparable(helm_chart.objects(helm_chart.platform(overlay)))
    assert made.keys() == expected.keys()
    assert made == expected


def test_the_base_gives_what_the_chart_gives_by_default() -> None:
    bodies = built(FOLDER / "base")
    assert comparable(bodies) == comparable(helm_chart.objects())
    assert {body["metadata"]["name"] for body in bodies if body["kind"] == "CustomResourceDefinition"} == {
        yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"]
        for path in (DEPLOY / "crds").glob("*.yaml")
    }


def test_changed_settings_replace_the_pods() -> None:
    """The ConfigMap's name has a hash, and the Deployment follows it."""
    bodies = built(FOLDER / "base")
    [name] = [each["metadata"]["name"] for each in bodies if each["kind"] == "ConfigMap"]
    [deployment] = [each for each in bodies if each["kind"] == "Deployment"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert name in [each.get("configMap", {}).get("name") for each in volumes]
    assert name != "idle-gpu-scaler"
