"""Dashboards are in sync, use metrics that exist, say their question, and show what the demo's Prometheus has."""

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from dashboards.promql_names import OF_TARGETS, declared, names_of, not_there, selectors
from dashboards.watched_story import SCALER, Watched, watched_story
from prometheus_server import require_prometheus
from scaler_sandbox.stories.gang_story import NAMESPACE

from dashboards import build, drawing, numbers, panels, preview
from dashboards.answers import Asker, Series
from scaler.reporting.metric_declarations import ReportedBy
from scaler.reporting.metrics import Metrics

BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(build.FOLDER.glob("*.json"))}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
NOTHING_WRONG = {
    "Certificate": "TLS is off in the demo",
    "Doubts about the metrics source": "there is no reason for doubt",
    "GPUs that cannot be judged": "all can be judged",
    "Alerts": "its Prometheus has no rules",
    "Workers that answer": "its cluster is no hub of MultiKueue",
    "Workloads that wait for a cluster": "its cluster is no hub of MultiKueue",
    "Nominations by answer": "its cluster is no hub of MultiKueue",
    "Not admitted by worker": "its cluster is no hub of MultiKueue",
}
"""Panels that have nothing to show of the demo, and say so."""
FOREIGN = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "ALERTS"}


KNOWN = declared()
ALIKE = {each.name for each in Metrics().declared if each.shown is ReportedBy.BY_ALL}
OF_LEADERS = {each.name for each in Metrics().declared if each.shown is ReportedBy.BY_ONE and each.type == "gauge"}
OF_ONE_WORKLOAD = {panel["title"] for panel in BOARDS["workload"]["panels"]}
"""What one workload lacks, its dashboard says itself."""


def queries(panel: dict[str, Any]) -> list[str]:
    asker = Asker(url="", start=0.0, end=3600.0)
    return [asker.filled(target["expr"]) for target in panel["targets"]]


# -------------------------------------------------------------------------------------------------------- what they say


def test_the_files_are_what_the_code_makes() -> None:
    made = dict(build.contents())
    assert set(made) == set(build.FOLDER.glob("*.json"))
    for path, content in made.items():
        assert path.read_text() == content, "uv run python -m dashboards.build"


def test_dashboards_have_different_ids_and_link_to_each_other() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS) == 4
    for board in BOARDS.values():
        [link] = board["links"]
        assert (link["type"], link["tags"]) == ("dashboards", ["idle-gpu-scaler"])
        assert set(link["tags"]) <= set(board["tags"])
        assert link["keepTime"]
        assert link["includeVars"]
        variables = [each["name"] for each in board["templating"]["list"]]
        assert variables[:2] == ["datasource", "cluster"]


def test_rows_of_workloads_lead_to_the_workload() -> None:
    [table] = [panel for panel in BOARDS["fleet"]["panels"] if panel["title"] == "Idle longest"]
    links = [
        link["url"]
        for override in table["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "links"
        for link in prop["value"]
    ]
    uid = BOARDS["workload"]["uid"]
    assert links
    assert all(link.startswith(f"/d/{uid}?") for link in links)


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_its_question_its_unit_and_why_it_may_be_empty(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert "?" in panel["description"], "the question that it answers"
    assert defaults["unit"]
    assert len(defaults["noValue"]) > len("No data")
    assert panel["datasource"]["uid"] == "${datasource}"
    at = panel["gridPos"]
    assert at["x"] + at["w"] <= 24


def test_no_two_panels_lie_on_each_other() -> None:
    for board in BOARDS.values():
        cells = [
            (x, y)
            for panel in board["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells))


@pytest.mark.parametrize("panel", PANELS)
def test_queries_are_well_typed_and_use_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    """A label that does not exist makes one series of all of them, and an empty name, without any error."""
    columns: set[str] = set()
    for query, target in zip(queries(panel), panel["targets"], strict=True):
        found = [(names_of(each), each) for each in selectors(promql_parser.parse(query))]
        names = {name for of_selector, _ in found for name in of_selector}
        assert names <= KNOWN.keys() | FOREIGN
        for of_selector, selector in found:
            matched = {each.name for each in selector.matchers.matchers} - {"__name__", "cluster"}
            assert all(name in FOREIGN or matched <= KNOWN[name] for name in of_selector), query
        # `sum` counts what all replicas show alike once per replica; inside of `max by (instance)` it may.
        assert not names & ALIKE or re.match(r"max( by \([^)]*\))? ?\(", query), query
        if not names & FOREIGN:
            assert not_there(query) == set(), query
            labels = {label for name in names for label in KNOWN[name]}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels | OF_TARGETS
            columns |= labels
        if names & OF_LEADERS and panel["title"] not in OF_ONE_WORKLOAD:
            # Gauges of a replica that leads no more have no series.
            assert panels.NO_LEADER in panel["fieldConfig"]["defaults"]["noValue"]
    if columns:
        renamed = [
            name for each in panel.get("transformations", ()) for name in each["options"].get("renameByName", {})
        ]
        assert {name for name in renamed if not name.startswith("Value")} <= columns


def test_variables_have_the_values_of_labels_that_are_there() -> None:
    asked = [each["query"] for board in BOARDS.values() for each in board["templating"]["list"] if "query" in each]
    found = [match for query in asked if (match := re.fullmatch(r"label_values\((\w+)({.*})?, (\w+)\)", str(query)))]
    assert len(found) >= 4
    for match in found:
        matched = set(re.findall(r"(\w+)=~", match[2] or ""))
        assert {match[3], *matched} <= KNOWN[match[1]] | OF_TARGETS


def test_answers_to_keda_have_the_same_colours_everywhere() -> None:
    found = {
        (override["matcher"]["options"], prop["value"]["fixedColor"])
        for board in BOARDS.values()
        for panel in board["panels"]
        for override in panel.get("fieldConfig", {}).get("overrides", ())
        for prop in override["properties"]
        if prop["id"] == "color" and override["matcher"]["options"] in panels.ANSWERS
    }
    assert found == set(panels.ANSWERS.items())


# ------------------------------------------------------------------------------------------------------- what they show


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.chromium
def test_what_the_demo_does_is_shown(tmp_path: Path) -> None:
    """One story for all, as it takes a while."""
    require_prometheus()
    (folder := tmp_path / "prometheus").mkdir()
    with watched_story(folder) as watched:
        every_query_finds_data(watched)
        nothing_of_ours_gives_way_to_labels_of_the_scrape(watched)
        a_browser_shows_every_panel_with_a_picture_or_a_word(watched, tmp_path)


def every_query_finds_data(watched: Watched) -> None:
    empty = [
        (name, panel["title"], target["refId"])
        for name, board in BOARDS.items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
        if panel["title"] not in NOTHING_WRONG
        and not any(math.isfinite(value) for each in watched.ask(target) for _, value in each.points)
    ]
    assert empty == []
    for conventional in ("exported_pod", "pod"):
        found = watched.asker().ask({"expr": f'count(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{conventional}=~"jupyter.*"}})'})
        assert found, "both label conventions were scraped"


def nothing_of_ours_gives_way_to_labels_of_the_scrape(watched: Watched) -> None:
    """It was scraped as on OpenShift: labels of the target stand in place of the metrics' own."""
    found = watched.asker().ask({"expr": '{__name__=~"idle_gpu_scaler_.+"}', "instant": True})
    assert len(found) > 50
    assert all(each.labels.items() >= SCALER.items() for each in found)
    assert not {label for each in found for label in each.labels if label.startswith("exported_")}
    owners = {each.labels.get("workload_namespace") for each in found} - {None}
    assert owners == {NAMESPACE, "default"}


def a_browser_shows_every_panel_with_a_picture_or_a_word(watched: Watched, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        reason = "the program 'chromium' is not installed (Debian: apt-get install chromium)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    written = dict(preview.pages(watched.asker()))
    assert set(written) == {f"{name}.{theme}.html" for name in BOARDS for theme in preview.THEMES}
    for name in ("fleet.light.html", "reclaim.dark.html"):
        (tmp_path / name).write_text(written[name], encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={tmp_path / 'browser'}"]
        ran = subprocess.run(
            [browser, *flags, (tmp_path / name).as_uri()], capture_output=True, text=True, timeout=100, check=True
        )
        sections = re.findall(r"<section style=.*?</section>", ran.stdout, re.DOTALL)
        board = BOARDS[name.partition(".")[0]]
        assert len(sections) == sum(panel["type"] != "row" for panel in board["panels"])
        for section in sections:
            shows = re.search(r'<(polyline|polygon|rect|td|div class="(bar|stat))', section)
            says = re.search(r'<p class="empty">[^<]{8,}</p>', section)
            assert shows or says, section[:300]


# ----------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (1234.0, "short", "1.23 K"),
        (0.256, "percentunit", "25.6%"),
        (0.0004, "s", "400 µs"),
        (5400.0, "s", "1.5 h"),
        (-90.0, "s", "-1.5 min"),
        (12.0, "reqps", "12 req/s"),
        (float("nan"), "short", ""),
    ],
)
def test_numbers_are_written_in_their_unit(value: float, unit: str, words: str) -> None:
    assert numbers.written(value, unit) == words


@pytest.mark.parametrize(
    ("highest", "ticks"), [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (16, [0, 5, 10, 15, 20])]
)
def test_axes_end_at_a_round_number_above_the_highest(highest: float, ticks: list[float]) -> None:
    assert numbers.ticks(highest) == pytest.approx(ticks)


def test_rows_of_several_queries_with_the_same_labels_are_one() -> None:
    first = [Series("a", ((0.0, 1.0),), {"pod": "a"}), Series("b", ((0.0, 5.0),), {"pod": "b"})]
    second = [Series("a", ((0.0, 7.0),), {"pod": "a", "__name__": "x"})]
    assert drawing.merged([first, second]) == [
        {"pod": "b", "Value #A": 5.0},
        {"pod": "a", "Value #A": 1.0, "Value #B": 7.0},
    ]


def test_an_empty_panel_says_why() -> None:
    panel = {"type": "timeseries", "fieldConfig": {"defaults": {"noValue": "none waits <yet>"}}}
    frame = drawing.Frame(width=100, height=100, start=0, end=10, step=1)
    assert drawing.draw(panel, [[]], frame) == '<p class="empty">none waits &lt;yet&gt;</p>'
