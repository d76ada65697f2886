"""A report as JSON and CSV."""

import csv
import io
from typing import Any

import pytest
from analysis.report.report_builders import WEEKEND, two_teams
from scaler_analysis.report.formats import as_csv, as_json, csv_of
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.summary import summarized

ALL = [two_teams(0), two_teams(1), two_teams(2)]


def json_of(by: GroupBy) -> dict[str, Any]:
    return as_json(summarized(ALL, WEEKEND, by), {"cluster": "prod"})


def test_json_has_everything() -> None:
    found = json_of(GroupBy.TEAM)
    assert (found["since"], found["until"], found["by"]) == ("2026-11-29T00:00:00Z", "2026-12-02T00:00:00Z", "team")
    assert found["known"] == {"seconds": 3 * 86_400, "ratio": 1.0}
    b, a = found["rows"]
    assert (a["namespace"], a["heldGpuHours"], a["idleGpuHours"], a["idleCost"]) == ("team-a", 72, 12, {"EUR": 50.4})
    assert (b["suspensions"], b["regrets"], b["idleCost"]) == (9, 3, None)
    assert found["transfers"] == [
        {"fromNamespace": "team-b", "namespace": "team-a", "clusterQueue": "research", "gpus": 6, "gpuHours": 15.0}
    ]
    assert found["waiting"] == [{"clusterQueue": "research", "admitted": 6, "meanSeconds": 3630, "p90Seconds": None}]


def test_what_is_not_known_is_null_in_json_and_empty_in_csv() -> None:
    assert json_of(GroupBy.MODEL)["rows"][0]["suspensions"] is None
    line = next(csv.DictReader(io.StringIO(as_csv(summarized(ALL, WEEKEND, GroupBy.MODEL)))))
    assert (line["model"], line["heldGpuHours"], line["suspensions"], line["idleCostEUR"]) == ("A100", "36.0", "", "")


@pytest.mark.parametrize("by", GroupBy)
def test_a_table_without_rows_has_its_columns(by: GroupBy) -> None:
    columns, *lines = as_csv(summarized([], WEEKEND, by)).splitlines()
    assert columns.startswith("since,until,knownSeconds,")
    assert not lines


def test_columns_are_named_once() -> None:
    columns = as_csv(summarized(ALL, WEEKEND, GroupBy.WORKLOAD)).splitlines()[0].split(",")
    assert len(columns) == len({*columns})
    assert {"namespace", "clusterQueue", "kind", "name", "heldIdleGpuHours"} <= {*columns}


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("-x", "'-x"),
        ("+x", "'+x"),
        ("\tx", "'\tx"),
        ("a=1", "a=1"),
        (-1.5, "-1.5"),
        (None, ""),
    ],
)
def test_no_name_is_a_formula_to_a_spreadsheet(text: object, cell: str) -> None:
    [line] = csv.DictReader(io.StringIO(csv_of([{"name": text}], ["name"])))
    assert line["name"] == cell
