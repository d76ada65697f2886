"""`report`: the table, and what it writes, from a real Prometheus."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from analysis.report.recorded_days import RecordedDays
from analysis.report.report_builders import WEEKEND, two_teams
from app.cli.command import Done, command, printed
from http_stub import HttpStub, Reply
from prometheus_server import PrometheusServer, require_prometheus
from scaler_analysis.cli.report_message import message_of
from scaler_analysis.cli.report_text import render
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.summary import summarized

BEGIN, DAY = datetime(2026, 11, 1, tzinfo=UTC), 1440
UNTIL = ("--until", "2026-11-03T00:00:00Z", "--since", "2d")
REPORT = summarized([two_teams(0), two_teams(1), two_teams(2)], WEEKEND, GroupBy.TEAM)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """team-a holds two GPUs idle at 4 EUR an hour for two days, and Prometheus has other clusters as well."""
    require_prometheus()
    folder, days, minutes = (
        tmp_path_factory.mktemp("prometheus"),
        RecordedDays(BEGIN, {"cluster": "prod"}),
        range(-90, 2881),
    )
    process = days.process("scaler-0", minutes, leads=minutes)
    team = {"workload_namespace": "team-a", "cluster_queue": "research", "model": "H100"}
    process.counts("gpu_seconds_total", {**team, "state": "Idle"}, lambda minute: 120 * (minute + 91), minutes=minutes)
    process.counts(
        "idle_cost_total", {**team, "currency": "EUR"}, lambda minute: 8 * (minute + 91) / 60, minutes=minutes
    )
    for minute in minutes:
        process.shows("gpu_hour_price", {"model": "H100", "currency": "EUR"}, minute, 4)
        process.shows("gpus", {**team, "state": "Idle", "reason": ""}, minute, 2)
    others = RecordedDays(BEGIN, {"cluster": "test"})
    other = others.process("scaler-0", minutes, leads=minutes)
    other.counts("gpu_seconds_total", {**team, "state": "Idle"}, lambda minute: 9e5 * minute, minutes=range(2881))
    for name, lines in others.lines.items():
        days.lines[name] += lines
    server = PrometheusServer(folder, flags=["--storage.tsdb.retention.time=10y"])
    server.backfill(days.openmetrics)
    with server:
        yield server.url


def reported(folder: Path, prometheus: str, *arguments: str, more: Mapping[str, object] | None = None) -> Done:
    settings, source = folder / "settings.yaml", {"url": prometheus, "matchers": {"cluster": "prod"}}
    settings.write_text(json.dumps({"prometheus": source, **(more or {})}))
    return command("report", "--config", str(settings), *UNTIL, *arguments)


@pytest.mark.prometheus
def test_the_table(tmp_path: Path, prometheus: str) -> None:
    done = reported(tmp_path, prometheus)
    assert (done.status, done.err.strip()) == (0, "")
    assert "2026-11-01 00:00Z to 2026-11-03 00:00Z\n" in done.out
    assert "team-a  96.0  96.0       100 %  384.00 EUR" in done.out


@pytest.mark.prometheus
def test_json_and_csv(tmp_path: Path, prometheus: str) -> None:
    found = json.loads(reported(tmp_path, prometheus, "--json", "--by", "model").out)
    assert [(each["model"], each["idleGpuHours"]) for each in found["rows"]] == [("H100", 96.0)]
    assert (found["matchers"], found["gaps"]) == ({"cluster": "prod"}, [])
    lines = [*csv.DictReader(reported(tmp_path, prometheus, "--csv").out.splitlines())]
    assert [(each["namespace"], each["idleGpuHours"], each["idleCostEUR"]) for each in lines] == [
        ("team-a", "96.0", "384.0")
    ]


@pytest.mark.prometheus
def test_a_page_and_charges_are_written_beside_the_table(tmp_path: Path, prometheus: str) -> None:
    page, charges = tmp_path / "report.html", tmp_path / "focus.csv"
    done = reported(tmp_path, prometheus, "--html", str(page), "--focus", str(charges))
    assert done.status == 0
    assert f"written: {page}" in done.err
    html = page.read_text(encoding="utf-8")
    assert "GPU report of cluster prod" in html
    assert "fill-Idle" in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")
    rows = [*csv.DictReader(charges.read_text(encoding="utf-8").splitlines())]
    assert [(each["PricingQuantity"], each["BilledCost"]) for each in rows] == [("12", "48")] * 8
    assert {each["BillingAccountId"] for each in rows} == {"prod"}


@pytest.mark.prometheus
def test_a_time_of_which_nothing_is_known_is_no_time_without_idle_gpus(tmp_path: Path, prometheus: str) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(json.dumps({"prometheus": {"url": prometheus, "matchers": {"cluster": "prod"}}}))
    done = command("report", "--config", str(settings), "--until", "2026-10-03T00:00:00Z")
    assert done.status == 0
    assert "Prometheus has no metrics of this scaler with the labels of prometheus.matchers (cluster=prod)" in done.out
    assert "0.0" not in done.out
    focus = tmp_path / "focus.csv"
    done = command("report", "--config", str(settings), "--until", "2026-10-03T00:00:00Z", "--focus", str(focus))
    assert (done.status, focus.exists()) == (2, False)


@pytest.mark.prometheus
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, prometheus: str) -> None:
    done = reported(tmp_path, prometheus, "--html", "/dev/full")
    assert (done.status, done.err) == (2, "error: /dev/full cannot be written: No space left on device\n")
    assert "team-a  96.0" in done.out


@pytest.mark.prometheus
def test_it_is_sent_to_a_target_of_the_settings(tmp_path: Path, prometheus: str) -> None:
    answers = [200, 200, 503]
    with HttpStub(lambda _: Reply(b"", answers.pop(0))) as stub:
        targets = []
        for name, kind, url in (("hook", "webhook", stub.url), ("chat", "apprise", stub.url.replace("http", "json"))):
            (tmp_path / name).write_text(url)
            targets.append({"name": name, "kind": kind, "urlFile": str(tmp_path / name)})
        more = {"notifications": {"targets": targets}}
        done = reported(tmp_path, prometheus, "--notify", "hook", more=more)
        assert (done.status, done.err) == (0, "sent: hook\n")
        assert "team-a  96.0  96.0" in done.out, "it is printed all the same"
        assert reported(tmp_path, prometheus, "--notify", "chat", more=more).status == 0
        failed = reported(tmp_path, prometheus, "--notify", "hook", more=more)
        assert (failed.status, failed.err) == (2, "error: it answers HTTP 503\n")
        unknown = reported(tmp_path, prometheus, "--notify", "mail", more=more)
        assert (unknown.status, unknown.out) == (2, "")
        assert "--notify mail: is none of notifications.targets of the settings; they have hook, chat" in unknown.err
    of_hook, of_chat, _ = (json.loads(each.body) for each in stub.received)
    assert [(each["namespace"], each["idleGpuHours"]) for each in of_hook["report"]["rows"]] == [("team-a", 96.0)]
    assert of_chat["title"] == "[idle GPUs] 2026-11-01 to 2026-11-03: 96.0 GPU-hours held idle"
    assert "team-a\n  held" in of_chat["message"]


def test_a_message_is_a_list_that_any_font_can_show_and_has_the_first_rows() -> None:
    [first, *_] = REPORT.rows
    many = replace(REPORT, rows=[replace(first, name=(f"team-{n}",)) for n in range(23)])
    text = message_of(many, {"cluster": "prod"}).text
    assert max(map(len, text.splitlines())) <= 60
    assert [line for line in text.splitlines() if line.startswith("team-")][:20] == [f"team-{n}" for n in range(20)]
    assert text.endswith("\n3 more rows: idle-gpu-scaler report\n")
    ids = [message_of(each, {}).id for each in (REPORT, REPORT, replace(REPORT, by=GroupBy.QUEUE))]
    assert ids[0] == ids[1] != ids[2]
    unknown = replace(REPORT, gaps=[WEEKEND])
    assert message_of(unknown, {}).subject == "[idle GPUs] 2026-11-29 to 2026-12-02: nothing is known"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "a report needs Prometheus: set prometheus.url"),
        (("--since", "5"), "--since: '5' is not a duration"),
        (("--since", "5m"), "--since: a report is about at least 1h and at most 400d"),
        (("--since", "1d", "--until", "0001-01-01"), "--since 1d: no calendar goes back so far"),
        (("--since", "9999999999d"), "--since 9999999999d: no calendar goes back so far"),
        (("--until", "yesterday"), "--until: 'yesterday' is not a time"),
        (("--json", "--csv"), "choose one of them"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], problem: str) -> None:
    url = ("--prometheus-url", "http://127.0.0.1:1") if arguments else ()
    done = command("report", *url, *arguments)
    assert (done.status, problem in done.err) == (2, True), done.err


def test_where_prometheus_does_not_answer_there_is_no_report(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(json.dumps({"prometheus": {"url": "http://127.0.0.1:1", "timeout": "1s"}}))
    done = command("report", "--config", str(settings))
    assert (done.status, done.out) == (2, "")
    assert "Prometheus at http://127.0.0.1:1" in done.err


def test_on_a_narrow_terminal_rows_are_lists() -> None:
    text = printed(render(REPORT, {}, 60), width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "idle share   100 %" in text


def test_all_of_a_report_is_on_the_terminal() -> None:
    text = printed(render(REPORT, {}, 160), width=160)
    for words in (
        "team-b  36.0",
        "9 (3 regretted within 30m)",
        "waited 1h on average, nine of ten at most more than 1m",
    ):
        assert words in text
    assert "team-b  team-a  research         6       15.0" in text
