"""Rules are well-formed, fire and do not fire as tests say, use only metrics that exist, and lead to a runbook."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards.promql_names import not_there
from programs import needs

from dashboards import mutations, prometheus_rules
from scaler.reporting.metrics import Metrics

ROOT = Path(__file__).parents[2]
FILES = sorted(prometheus_rules.RULES.glob("*.rules.yaml"))
TESTS = [test for file in FILES for test in sorted(mutations.tests_of(file).glob("*.test.yaml"))]
ALERTS = [
    pytest.param(file, rule, id=rule["alert"])
    for file in FILES
    for group in yaml.load(file.read_text(), yaml.CSafeLoader)["groups"]
    for rule in group["rules"]
    if "alert" in rule
]

needs_promtool = needs("promtool")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=100, check=False)


@needs_promtool
@pytest.mark.prometheus
def test_rules_are_well_formed() -> None:
    ran = promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, FILES))
    assert ran.returncode == 0, ran.stderr + ran.stdout


LONG = {
    "GPUPodIdle",
    "GPUsIdleInNamespace",
    "IdleCostOverBudget",
    "IdleGPUsWhileGangsWait",
    "NoLeader",
    "SuspensionsRegretted",
}
"""Alerts whose tests take seconds, since they evaluate all rules for hours or in many tests."""


@needs_promtool
@pytest.mark.prometheus
@pytest.mark.parametrize(
    "test",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.name.partition(".")[0] in LONG else [])
        for each in TESTS
    ],
)
def test_alerts_fire_when_they_should_and_not_beside_that(test: Path) -> None:
    ran = promtool("test", "rules", str(test))
    assert ran.returncode == 0, ran.stderr + ran.stdout


def test_tests_evaluate_groups_in_the_order_of_their_file() -> None:
    """Otherwise promtool takes any, so that what is recorded is now and then a minute old for an alert on it."""
    for file in FILES:
        order = [group["name"] for group in yaml.load(file.read_text(), yaml.CSafeLoader)["groups"]]
        for test in mutations.tests_of(file).glob("*.test.yaml"):
            assert yaml.load(test.read_text(), yaml.CSafeLoader)["group_eval_order"] == order, test.name


@pytest.mark.parametrize(("file", "rule"), ALERTS)
def test_every_alert_has_a_severity_a_runbook_and_tests_of_its_own(file: Path, rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert rule["for"]
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert summary.endswith("."), "a sentence"
    assert len(description) > len("It is broken.")
    runbook = ROOT / rule["annotations"]["runbook"]
    assert runbook == ROOT / "deploy" / "runbooks" / f"{rule['alert']}.md"
    text = runbook.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert {"## What it means", "## What to do"} <= set(text.splitlines())
    tests = yaml.load((mutations.tests_of(file) / f"{rule['alert']}.test.yaml").read_text(), yaml.CSafeLoader)["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"] if check["alertname"] == rule["alert"]]
    assert {bool(check["exp_alerts"]) for check in checks} == {True, False}, "it fires, and does not"


def test_every_runbook_is_of_an_alert() -> None:
    runbooks = {path.stem for path in (ROOT / "deploy" / "runbooks").glob("*.md")} - {"README"}
    assert runbooks == {param.values[1]["alert"] for param in ALERTS}


def test_rules_use_only_metrics_that_are_declared() -> None:
    declared = {each.name for each in Metrics().declared}
    declared |= {f"{name}{suffix}" for name in declared for suffix in ("_bucket", "_sum", "_count")}
    for file in FILES:
        content = yaml.load(file.read_text(), yaml.CSafeLoader)
        rules = [rule for group in content["groups"] for rule in group["rules"]]
        recorded = {rule["record"] for rule in rules if "record" in rule}
        for rule in rules:
            used = set(re.findall(r"(?<![\w:])idle_gpu_scaler_\w+", rule["expr"]))
            assert used <= declared, rule
            named = set(re.findall(r"\w+:\w+:\w+", rule["expr"]))
            assert named <= recorded, rule


OURS = [
    pytest.param(rule["expr"], id=rule.get("alert") or rule["record"])
    for file in FILES
    if file.name != "raw-dcgm.rules.yaml"
    for group in yaml.load(file.read_text(), yaml.CSafeLoader)["groups"]
    for rule in group["rules"]
]
RELEASE = "cluster, namespace, job"
"""Labels of the scraper's that tell releases apart."""


@pytest.mark.parametrize("expr", OURS)
def test_rules_on_our_metrics_group_by_our_labels_and_by_cluster_and_release(expr: str) -> None:
    """By `namespace` alone there would be the scaler's own in place of a workload's. And without the cluster a leader
    in one would hide that there is none in another."""
    assert not_there(expr) <= {"namespace", "job"}
    assert not re.search(r"\b(namespace|job)\b", expr.replace(RELEASE, ""))
    groupings = re.findall(r"\b(?:sum|min|max|count|by|on) ?\(([^)]*)", expr)
    if "absent(" not in expr:
        assert groupings or not re.search(r"(?<!:)\bidle_gpu_scaler_", expr), "it uses what is not grouped"
        assert not [each for each in groupings if not each.startswith(RELEASE)], expr


def test_prometheus_rule_objects_are_the_rules() -> None:
    for path, content in prometheus_rules.contents():
        assert path.read_text() == content, "uv run python -m dashboards.prometheus_rules"
        rules = yaml.load((prometheus_rules.RULES / f"{path.stem}.rules.yaml").read_text(), yaml.CSafeLoader)
        assert yaml.load(content, yaml.CSafeLoader)["spec"] == rules


def test_there_is_a_mutant_of_every_threshold() -> None:
    """What `dashboards.mutations` moves, counted by hand for one rule: 0.5, 2, and `for`, each down and up."""
    [file] = [file for file in FILES if file.name == "raw-dcgm.rules.yaml"]
    found = [(each.field, each.moved) for each in mutations.mutants_of(file) if each.name == "GPUsIdleInNamespace"]
    assert found == [
        ("expr", "> 0.5 to 0.4"),
        ("expr", "> 0.5 to 0.625"),
        ("expr", ">= 2 to 1"),
        ("expr", ">= 2 to 3"),
        ("for", "for 2h to 5760s"),
        ("for", "for 2h to 9000s"),
    ]
