"""What docs/dashboards.md says of dashboards, variables and rules is so."""

import json
import re
from pathlib import Path

import pytest
import yaml

from dashboards import build, preview, prometheus_rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
BOARDS = [json.loads(path.read_text()) for path in sorted(build.FOLDER.glob("*.json"))]


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    section = PAGE[PAGE.index(f"\n## {heading}\n") :]
    lines = section[section.index("\n|") + 1 :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_it_has_all_dashboards_and_their_variables() -> None:
    assert sorted(row[0].strip("*") for row in table("Which dashboard answers what")) == sorted(
        each["title"] for each in BOARDS
    )
    found: dict[str, set[str]] = {}
    for board in BOARDS:
        for variable in board["templating"]["list"]:
            found.setdefault(variable["label"], set()).add(board["title"].removeprefix("Idle GPUs / "))
    everywhere = {each["title"].removeprefix("Idle GPUs / ") for each in BOARDS}
    said = {
        row[0]: everywhere if row[1] == "all" else set(re.findall(r"\*([^*]+)\*", row[1])) for row in table("Variables")
    }
    assert said == found


def test_thresholds_are_the_charts() -> None:
    values = yaml.load((ROOT / "deploy" / "helm" / "idle-gpu-scaler" / "values.yaml").read_text(), yaml.CSafeLoader)
    said = {row[0].strip("`").rpartition(".")[2]: int(row[1]) for row in table("Change a threshold")}
    assert said == values["rules"]["thresholds"]


def test_it_names_every_file_of_rules() -> None:
    named = {Path(row[0].strip("`")).name for row in table("Rules")}
    assert named == {path.name for path in prometheus_rules.RULES.glob("*.rules.yaml")}


def test_alerts_are_routed_by_the_labels_that_it_names() -> None:
    with_owner = set(re.findall(r"`(\w+)` and `(\w+)` carry `workload_namespace`", PAGE)[0])
    groups = yaml.load((prometheus_rules.RULES / "idle-gpu-scaler.rules.yaml").read_text(), yaml.CSafeLoader)["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert with_owner == {rule["alert"] for rule in alerts if " workload_namespace" in rule["expr"]}


def test_the_preview_takes_what_is_typed_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["preview", "--help"])
    with pytest.raises(SystemExit):
        preview.main()
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    section = PAGE[PAGE.index("## Preview without Grafana") : PAGE.index("\n## Rules\n")]
    assert set(re.findall(r"--[a-z-]+", section)) <= flags
    made = {f"{path.stem}.{theme}.html" for path in build.FOLDER.glob("*.json") for theme in preview.THEMES}
    assert set(re.findall(r"`preview/([\w.]+)`", section)) <= made
