"""The report as a file, in a real Chromium: light and dark, on a phone, and printed."""

import base64
from pathlib import Path

import pytest
from analysis.report.report_builders import BEGIN, WEEKEND, ScriptedReports, facts, two_teams
from browser import Browser
from scaler_analysis.document import document
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.periods import HOUR, Period
from scaler_analysis.report.summary import summarized
from scaler_analysis.report.view import TITLES, chart_step, view_of

from scaler.reporting.page.fleet_history import read_fleet

pytestmark = [pytest.mark.chromium]


@pytest.fixture
async def address(tmp_path: Path) -> str:
    """Of a file on a weekend, of which six hours are not known."""
    gap = Period(BEGIN + 6 * HOUR, BEGIN + 12 * HOUR)
    read = [facts(0, two_teams().values, gaps=[gap]), two_teams(1), two_teams(2)]
    samples = await read_fleet(ScriptedReports(), {}, end=WEEKEND.end, span=WEEKEND.length, step=chart_step(WEEKEND))
    view = view_of(summarized(read, WEEKEND, GroupBy.TEAM), {}, samples)
    context = {"view": view, "title": TITLES[GroupBy.TEAM], "cluster": "<b>prod</b>", "at": WEEKEND.end}
    file = tmp_path / "report.html"
    file.write_text(document("document/report.html", context, at=WEEKEND.end), encoding="utf-8")
    return file.as_uri()


async def test_it_fits_a_phone_and_a_desk_in_light_and_dark(address: str, chromium: str) -> None:
    async with Browser.at(chromium) as browser:
        for width, dark, colour in ((360, False, "rgb(245, 246, 248)"), (1280, True, "rgb(15, 19, 23)")):
            async with browser.page(width=width, dark=dark) as page:
                await page.open(address)
                assert await page.run("document.documentElement.scrollWidth") <= width
                assert await page.run("getComputedStyle(document.body).backgroundColor") == colour
                assert (
                    await page.run("document.querySelector('rect.fill-Busy').getBoundingClientRect().width") > width / 2
                )
                assert page.complaints == []
                assert [url for url, _ in page.statuses] == [address]


async def test_it_says_what_is_not_known_where_it_is_not(address: str, chromium: str) -> None:
    async with Browser.at(chromium) as browser, browser.page(script=False) as page:
        await page.open(address)
        text = await page.run("document.querySelector('main').innerText")
        assert "Nothing is known of 6h" in text
        assert "GPU report of <b>prod</b>" in text
        gap = await page.run(
            "[...document.querySelectorAll('[fill=\"url(#pattern-nothing)\"]')].map((each) => each.getAttribute('x'))"
        )
        assert gap[0] == f"{100 * 6 / 72:.3f}%"


async def test_it_is_printed_as_light_whatever_the_screen_is(address: str, chromium: str) -> None:
    async with Browser.at(chromium) as browser, browser.page(dark=True) as page:
        await page.open(address)
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        await page.call("Emulation.setEmulatedMedia", media="print", features=[dark])
        assert await page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert await page.run("getComputedStyle(document.querySelector('rect.fill-Busy')).fill") == "rgb(26, 115, 64)"
        printed = await page.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        pdf = base64.b64decode(printed["data"])
        assert 1 <= pdf.count(b"/Type /Page\n") <= 2, "on one or two pages"
