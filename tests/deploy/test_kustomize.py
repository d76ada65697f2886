"""kustomize and the chart give the same objects for the same settings."""

import re
from typing import Any

import pytest
import yaml
from kustomized import BASE, OVERLAYS, built
from programs import needs

import deploy.helm_chart as helm_chart
from deploy.helm_chart import DEPLOY
from scaler.app.settings.model import LeaseSettings

HELMS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
OF_KUSTOMIZE = {"Namespace", "CustomResourceDefinition"}
"""Helm makes the namespace and the definitions by itself, without a template."""

pytestmark = needs("kubectl")


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
    return re.sub(r"^(idle-gpu-scaler-settings)-[0-9a-z]{10}$", r"\1", value) if isinstance(value, str) else value


@pytest.mark.parametrize("overlay", ["openshift", "gke", "dev"])
def test_an_overlay_gives_what_the_chart_gives_for_its_values(overlay: str) -> None:
    made = comparable(built(OVERLAYS / overlay))
    expected = comparable(helm_chart.objects(helm_chart.platform(overlay)))
    assert made.keys() == expected.keys()
    assert made == expected


def test_the_base_gives_what_the_chart_gives_by_default() -> None:
    bodies = built(BASE)
    assert comparable(bodies) == comparable(helm_chart.objects())
    assert {body["metadata"]["name"] for body in bodies if body["kind"] == "CustomResourceDefinition"} == {
        yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["metadata"]["name"]
        for path in (DEPLOY / "crds").glob("*.yaml")
    }


def test_changed_settings_replace_the_pods() -> None:
    """The ConfigMap's name has a hash, and the Deployment follows it."""
    bodies = built(BASE)
    [name] = [each["metadata"]["name"] for each in bodies if each["kind"] == "ConfigMap"]
    [deployment] = [each for each in bodies if each["kind"] == "Deployment"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert name in [each.get("configMap", {}).get("name") for each in volumes]
    assert name.startswith("idle-gpu-scaler-settings-")


@pytest.mark.parametrize("folder", ["base", "overlays/openshift", "overlays/gke", "overlays/dev"])
def test_roles_name_the_objects_that_the_program_asks_for(folder: str) -> None:
    """kustomize rewrites names in Roles, too, where an object that it renames has the same one."""
    bodies = built(DEPLOY / "kustomize" / folder)
    rules = [rule for body in bodies if body["kind"] in ("Role", "ClusterRole") for rule in body["rules"]]
    named = {name for rule in rules if "leases" in rule["resources"] for name in rule.get("resourceNames", [])}
    [settings] = [each["data"]["settings.yaml"] for each in bodies if "settings.yaml" in each.get("data", {})]
    lease = (yaml.load(settings, yaml.CSafeLoader).get("kubernetes") or {}).get("lease") or {}
    name = lease.get("name", LeaseSettings.model_fields["name"].default)
    assert named == {name, f"{name}-metrics"}
