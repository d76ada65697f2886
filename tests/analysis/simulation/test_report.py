"""The report: one file that a browser shows without anything else, with every number that there is; and CSV."""

import csv
import io
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from browser import Browser
from scaler_analysis.simulation.report.drawing import HEIGHT, LEFT, WIDTH, plot_of
from scaler_analysis.simulation.report.files import html_of, write_csv

NUMBERS = ("returnsWithin15m", "returnsWithin60m", "interruptedGpuHours", "unknownGpuHours")


def totals(freed: float, regret: float, *, suspensions: int = 100) -> dict[str, Any]:
    return {
        "suspensions": suspensions,
        "freedGpuHours": 1000 * freed,
        "gpuHours": 1000.0,
        "freedShare": freed,
        "regretShare": regret,
        **dict.fromkeys(NUMBERS, 10),
        "unknownReasons": {"SampleGap": 7.5},
    }


def point(window: str, freed: float, regret: float, floor: str = "1%", *, is_today: bool = False) -> dict[str, Any]:
    return {"idleAfter": window, "warmUp": "10m", "activeAbove": floor, "isToday": is_today, **totals(freed, regret)}


def answer(**more: Any) -> dict[str, Any]:
    part = {"name": "<b>vision</b>", **totals(0.2, 0.5)}
    case = {"name": "30m", "idleAfter": "30m", "warmUp": "10m", "activeAbove": "1%", **totals(0.2, 0.5)}
    workload = {"namespace": "team", "kind": "Job", "name": "train", "team": "vision", "queue": "", **totals(0.2, 0.5)}
    return {
        "policies": [case | {"teams": [part], "queues": [], "workloads": [workload]}],
        "published": [{"name": "rate() == 0 over 2m", **totals(0.4, 0.8)}],
        "curve": [point("10m", 0.3, 0.6), point("30m", 0.2, 0.5, is_today=True), point("2h", 0.1, 0.1)],
        "recommendation": {"acceptedRegret": 0.1, **point("2h", 0.1, 0.1)},
        "trace": {
            "begin": "2026-11-01T00:00:00Z",
            "end": "2026-11-08T00:00:00Z",
            "samples": 1,
            "blanks": 0,
            "pods": 1,
            "workloads": 1,
            "collectionInterval": "30s",
            "intervalIsMeasured": False,
            "currency": None,
        },
        "notes": ["a note"],
        **more,
    }


def _html_of(given: Mapping[str, Any]) -> str:
    return html_of(given, at=datetime(2026, 11, 9, tzinfo=UTC))


def test_what_others_have_written_is_shown_as_text():
    html = _html_of(answer())
    assert "&lt;b&gt;vision&lt;/b&gt;" in html
    assert "<b>vision" not in html


def test_nothing_is_loaded_from_anywhere():
    html = _html_of(answer())
    assert not re.search(r"(src|href)=|url\(|@import|https?://", html)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "With a regret of at most 10 %: idleAfter 2h, activeAbove 1%."),
        ({"recommendation": {"acceptedRegret": 0.02, "idleAfter": None}}, "No window has a regret of 2 % or less."),
    ],
)
def test_it_recommends_a_window(more: Mapping[str, Any], words: str):
    assert words in _html_of(answer(**more))


def test_where_nothing_is_suspended_there_is_no_regret():
    nothing = answer()["policies"][0] | totals(0.0, 0.0, suspensions=0)
    html = _html_of(
        answer(
            policies=[nothing],
            curve=[point("10m", 0.0, 0.0) | {"suspensions": 0}],
            recommendation={"acceptedRegret": 0.1, "idleAfter": None},
        )
    )
    assert "No window of the curve suspends anything." in html
    assert '<dt>regretted</dt><dd class="value">–</dd>' in html


@pytest.mark.parametrize(("accepted", "is_left_of_it"), [(0.1, False), (1.0, True)])
def test_the_label_of_the_accepted_regret_stays_in_the_drawing(accepted: float, is_left_of_it: bool):
    html = _html_of(answer(recommendation={"acceptedRegret": accepted, "idleAfter": None}))
    assert ('text-anchor="end">accepted</text>' in html) is is_left_of_it


def test_time_without_an_answer_may_be_too_short_to_show():
    case = answer()["policies"][0] | {"unknownReasons": {"SampleGap": 0.0}, "gpuHours": 0.0}
    assert "SampleGap" in _html_of(answer(policies=[case]))


def test_without_a_curve_there_is_no_drawing():
    shown = {name: part for name, part in answer().items() if name not in ("curve", "recommendation")}
    assert "<figure" not in _html_of(shown)


# ---- the drawing


def test_more_freed_is_farther_up_and_more_regret_farther_right():
    plot = plot_of(answer())
    assert plot is not None
    points = {each.text: each for each in plot.points}
    today, best, rule = (points[each] for each in ("today: 30m", "recommended: 2h", "rate() == 0 over 2m"))
    assert best.x < today.x < rule.x
    assert best.y > today.y > rule.y
    assert plot.accepted_x == best.x


def test_ticks_are_round_and_reach_all_points():
    plot = plot_of(answer())
    assert plot is not None
    assert [label for _, label in plot.x_ticks] == ["0%", "20%", "40%", "60%", "80%"]
    assert [label for _, label in plot.y_ticks] == ["0%", "10%", "20%", "30%", "40%"]
    assert all(LEFT <= each.x <= WIDTH and 0 <= each.y <= HEIGHT for each in plot.points)


def test_labels_hide_neither_each_other_nor_points():
    crowd = [point(f"{n}m", 0.2 + n / 2000, 0.5 + n / 1500, is_today=n == 3) for n in range(12)]
    plot = plot_of(answer(curve=crowd))
    assert plot is not None
    boxes = [
        (each.label_x, each.label_y - 12, each.label_x + 7 * len(each.text), each.label_y)
        for each in plot.points
        if each.label_x is not None
    ]
    assert any(each.label_x is not None for each in plot.points if each.kind == "today")
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert all(
            right <= x or left >= far_x or bottom <= y or top >= far_y for x, y, far_x, far_y in boxes[number + 1 :]
        )
        assert not any(left < each.x < right and top < each.y < bottom for each in plot.points)


def test_each_floor_has_a_line_of_its_own():
    curve = [*answer()["curve"], point("30m", 0.25, 0.7, "5%"), point("2h", 0.12, 0.3, "5%")]
    plot = plot_of(answer(curve=curve))
    assert plot is not None
    assert [is_today for _, is_today in plot.lines] == [True, False]
    assert [each.text for each in plot.points if each.kind == "other" and each.text] == ["floor 5%"]


# ---- a browser


@pytest.mark.chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
async def test_a_browser_shows_it_without_complaint_in_any_width(chromium, tmp_path, width, dark):
    path = tmp_path / "report.html"
    path.write_text(_html_of(answer()), encoding="utf-8")
    async with Browser.at(chromium) as browser, browser.page(width=width, dark=dark, script=False) as page:
        await page.open(path.as_uri())
        assert page.complaints == []
        size = await page.call("Page.getLayoutMetrics")
        assert size["cssContentSize"]["width"] <= width
        assert [url for url, _ in page.statuses if not url.startswith("file:")] == []


@pytest.mark.chromium
async def test_in_print_it_is_dark_on_white_whatever_the_screen_is(chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(_html_of(answer()), encoding="utf-8")
    async with Browser.at(chromium) as browser, browser.page(dark=True) as page:
        await page.open(path.as_uri())
        colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        assert await page.run(colours) == ["rgb(15, 19, 23)", "rgb(231, 234, 238)"]
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await page.call("Emulation.setEmulatedMedia", media="print", features=dark)
        assert await page.run(colours) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]


def test_no_name_in_csv_is_a_formula_to_a_spreadsheet():
    file = io.StringIO()
    part = {"name": "=HYPERLINK(1)", **totals(0.2, 0.5)}
    write_csv(answer(policies=[answer()["policies"][0] | {"teams": [part], "queues": [part]}]), file)
    names = [each["name"] for each in csv.DictReader(io.StringIO(file.getvalue()))]
    assert names.count("'=HYPERLINK(1)") == 2


def test_csv_has_a_line_for_each_case_team_and_workload():
    file = io.StringIO()
    write_csv(answer(), file)
    rows = [*csv.DictReader(io.StringIO(file.getvalue()))]
    assert [(each["case"], each["of"], each["name"], each["freedGpuHours"]) for each in rows] == [
        ("30m", "all", "", "200.0"),
        ("30m", "team", "<b>vision</b>", "200.0"),
        ("30m", "workload", "team/train", "200.0"),
        ("rate() == 0 over 2m", "all", "", "400.0"),
    ]
