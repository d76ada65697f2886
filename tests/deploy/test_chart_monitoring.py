"""Rules and dashboards in the chart are those of the project, with the thresholds that its values give."""

import json
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from deploy.helm_chart import ROOT, objects, one

RULES = ROOT / "dashboards" / "rules"


RULE_FILES = {
    "idle-gpu-scaler": "idle-gpu-scaler",
    "idle-gpu-scaler-raw-dcgm": "raw-dcgm",
    "idle-gpu-scaler-owners": "owners",
}
"""By the name of their object."""


def rules_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By the name of the alert or of the series."""
    groups = body.get("spec", body)["groups"]
    return {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}


def written(name: str) -> dict[str, dict[str, Any]]:
    return rules_of(yaml.load((RULES / f"{name}.rules.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader))


def test_by_default_the_rules_are_as_they_are_written() -> None:
    values = {"rules": {"enabled": True, "rawDcgm": True, "owners": True}}
    for name, file in RULE_FILES.items():
        assert meant(rules_of(one("PrometheusRule", values, name))) == meant(written(file))


def meant(rules: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The blanks at the end of an expression mean nothing."""
    return {name: {**rule, "expr": rule["expr"].rstrip()} for name, rule in rules.items()}


THRESHOLDS = ["WorkloadIdleForHours", "IdleCostOverBudget", "GangWaitsTooLong"]


@pytest.mark.parametrize("alert", THRESHOLDS)
def test_a_threshold_is_what_values_say(alert: str) -> None:
    before = written("idle-gpu-scaler")[alert]["expr"].rstrip()
    after = rules_of(one("PrometheusRule", {"rules": {"enabled": True, "thresholds": {alert: 1234567}}}))
    assert after[alert]["expr"] == before.rpartition(" ")[0] + " 1234567"
    for value in (12.5, 0.004):
        part = one("PrometheusRule", {"rules": {"enabled": True, "thresholds": {alert: value}}})
        assert rules_of(part)[alert]["expr"].endswith(f"> {value}")
    others = {name: rule for name, rule in after.items() if name != alert}
    assert meant(others) == meant({name: rule for name, rule in written("idle-gpu-scaler").items() if name != alert})


def test_every_alert_leads_to_its_page_where_it_is_said_where_these_are() -> None:
    values = {"rules": {"enabled": True, "rawDcgm": True, "owners": True, "runbooks": "https://wiki.example.com/gpus"}}
    for name, file in RULE_FILES.items():
        links = {}
        for rule, body in rules_of(one("PrometheusRule", values, name)).items():
            link = body.get("annotations", {}).pop("runbook_url", None)
            assert (link is not None) == ("alert" in body), rule
            links[rule] = link
            assert meant({rule: body}) == meant({rule: written(file)[rule]})
        pages = {str(link).rpartition("/")[2] for link in links.values() if link}
        assert pages <= {page.name for page in (ROOT / "deploy" / "runbooks").glob("*.md")}
        assert {link for link in links.values() if link} == {f"https://wiki.example.com/gpus/{page}" for page in pages}


@pytest.mark.parametrize("written_so", ["wiki/gpus", "https://wiki.example.com/gpus/", "ftp://wiki.example.com"])
def test_what_no_link_can_be_made_of_is_refused(written_so: str) -> None:
    with pytest.raises(HelmError, match="runbooks"):
        objects({"rules": {"enabled": True, "runbooks": written_so}})


@pytest.mark.parametrize("asked", [{}, {"rawDcgm": True}, {"owners": True}])
def test_rules_on_dcgm_alone_and_those_for_owners_are_asked_for_separately(asked: dict[str, bool]) -> None:
    made = objects({"rules": {"enabled": True, **asked}})
    names = {each["metadata"]["name"] for each in made if "Rule" in each["kind"]}
    assert names == {
        "idle-gpu-scaler",
        *(f"idle-gpu-scaler-{'owners' if 'owners' in asked else 'raw-dcgm'}" for _ in asked),
    }


def test_one_value_labels_all_that_a_prometheus_selects() -> None:
    values = {
        "monitoringLabels": {"release": "kube-prometheus-stack", "tier": "all"},
        "serviceMonitor": {"enabled": True, "labels": {"tier": "monitors"}},
        "rules": {"enabled": True, "rawDcgm": True, "labels": {"tier": "rules"}},
    }
    found = [each for each in objects(values) if each["apiVersion"].startswith("monitoring.coreos.com/")]
    assert [(each["kind"], each["metadata"]["labels"]["tier"]) for each in found] == [
        ("ServiceMonitor", "monitors"),
        ("PrometheusRule", "rules"),
        ("PrometheusRule", "rules"),
    ]
    assert {each["metadata"]["labels"]["release"] for each in found} == {"kube-prometheus-stack"}


def test_metrics_over_tls_are_asked_for_over_tls() -> None:
    tls = {"source": "secret", "http": True}
    values = {"tls": tls, "serviceMonitor": {"enabled": True}, "podMonitoring": {"enabled": True}}
    for kind, what in {"ServiceMonitor": "tlsConfig", "PodMonitoring": "tls"}.items():
        [over_tls] = one(kind, values)["spec"]["endpoints"]
        [plain] = one(kind, {**values, "tls": {}})["spec"]["endpoints"]
        assert over_tls["scheme"] == "https"
        assert over_tls[what]
        assert not {"scheme", what} & plain.keys()


def test_every_dashboard_is_there_unchanged() -> None:
    dashboards = {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "dashboards").glob("grafana/*.json")
    }
    found = [
        each["data"]
        for each in objects({"dashboards": {"enabled": True}})
        if each["kind"] == "ConfigMap" and each["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    assert {name: json.loads(text) for data in found for name, text in data.items()} == dashboards
