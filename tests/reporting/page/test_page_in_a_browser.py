"""The page in a real Chromium: on a phone and on a desk, light and dark, with a script and without, by keyboard."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Json, Page
from builders import at
from page_builders import NOT_NEEDED, QUIET, PageSite, line
from reporting.page.test_page import site

from scaler.decision.reasons import CandidateState
from scaler.reporting.page.fleet_chart import STACK
from scaler.reporting.page.rendering import state_class
from scaler.reporting.page.workloads import STATES

pytestmark = [pytest.mark.chromium]

CSS = Path(__file__).parents[3] / "scaler" / "reporting" / "page" / "static" / "page.css"
PATHS = (
    "/",
    "/workloads",
    "/pending",
    "/reallocations",
    "/policies",
    "/report",
    "/policies/all",
    "/workloads/team-a/notebook",
)
LONG = "a-name-without-any-place-to-break-it-that-goes-on-and-on-for-as-long-as-kubernetes-allows" * 2


@asynccontextmanager
async def watched(chromium: str, one: PageSite | None = None) -> AsyncIterator[tuple[Browser, str, PageSite]]:
    """A browser, and a site whose pages ask for what has changed every second."""
    one = one or site()
    one.page.interval = timedelta(seconds=3)
    async with one.serving() as url, Browser.at(chromium) as browser:
        yield browser, url, one


async def settles(check: Any, seconds: float = 120.0) -> None:
    """Returns once it is true. Raises: TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


# ------------------------------------------------------------------------------------------------------------- layout


async def test_every_page_fits_a_phone_and_a_desk_in_light_and_dark_without_a_complaint(chromium: str) -> None:
    one = site()
    one.workload("team-a", LONG[:63], NOT_NEEDED, idle_since=at(-3000), owner=LONG, history=[line(-60, "Idle", LONG)])
    one.policy(LONG[:60], selector={"kinds": [LONG]}, status={"problems": [LONG]})
    async with watched(chromium, one) as (browser, url, _):
        for path in (*PATHS, f"/workloads/team-a/{LONG[:63]}", f"/policies/{LONG[:60]}"):
            for width, dark in ((360, False), (1280, True)):
                async with browser.page(width=width, dark=dark) as page:
                    await page.open(url + path)
                    await page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
                    found = await page.run("document.documentElement.scrollWidth")
                    assert found <= width, (path, width)
                    await settles(lambda page=page: is_live(page))
                    assert page.complaints == [], path
                    assert {status for _, status in page.statuses} <= {200, 304}, page.statuses


async def is_live(page: Page) -> bool:
    return bool(await page.run("document.querySelector('#live span').textContent === 'Live'"))


async def test_dark_and_light_differ_and_charts_are_drawn_in_their_colours(chromium: str) -> None:
    async with watched(chromium) as (browser, url, _):
        seen = {}
        for dark in (False, True):
            async with browser.page(dark=dark) as page:
                await page.open(url + "/")
                seen[dark] = [
                    await page.run("getComputedStyle(document.body).backgroundColor"),
                    await page.run("getComputedStyle(document.querySelector('rect.fill-Busy')).fill"),
                ]
                size = await page.run("document.querySelector('rect.fill-Busy').getBoundingClientRect().width")
                assert size > 900
        assert seen[False] == ["rgb(245, 246, 248)", "rgb(26, 115, 64)"]
        assert seen[True] == ["rgb(15, 19, 23)", "rgb(86, 194, 123)"]


# --------------------------------------------------------------------------------------------------------------- live


async def test_it_shows_what_changes_and_leaves_alone_what_the_reader_does(chromium: str) -> None:
    async with watched(chromium) as (browser, url, one), browser.page() as page:
        await page.open(url + "/")
        await settles(lambda: is_live(page))
        await page.run("document.getElementById('fleet table').open = true")
        await page.run("document.querySelector('[data-key=\"workload team-a/notebook\"]').focus()")
        one.workload("team-c", "newcomer", NOT_NEEDED, idle_since=at(-3000))
        one.publish()

        async def is_there() -> bool:
            return bool(await page.run("document.querySelector('main').textContent.includes('newcomer')"))

        await settles(is_there)
        assert await page.run("document.getElementById('fleet table').open") is True
        assert await page.run("document.activeElement.dataset.key") == "workload team-a/notebook"
        assert page.complaints == []


async def test_what_changed_while_it_was_loaded_is_not_missed(chromium: str) -> None:
    async with watched(chromium) as (browser, url, one), browser.page() as page:
        changed: list[str] = []
        fetched = page.heard

        def change_at_once(method: str, said: Json) -> None:
            if method == "Network.responseReceived" and not changed:
                changed.append("newcomer")
                one.workload("team-c", "newcomer", NOT_NEEDED, idle_since=at(-3000))
                one.publish()
                one.page.answers.rendered.clear()
            fetched(method, said)

        browser._heard[page._session] = change_at_once
        await page.open(url + "/")

        async def is_there() -> bool:
            return bool(await page.run("document.querySelector('main').textContent.includes('newcomer')"))

        await settles(is_there)


async def test_updates_can_be_paused(chromium: str) -> None:
    async with watched(chromium) as (browser, url, one), browser.page() as page:
        turns = "window.turns = []; window.setInterval = (turn) => window.turns.push(turn);"
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=turns)
        await page.open(url + "/")

        async def has_updated_at_once() -> bool:
            return len(page.of(f"{url}/")) == 2

        async def is_there() -> bool:
            return bool(await page.run("document.querySelector('main').textContent.includes('newcomer')"))

        await settles(has_updated_at_once)
        await page.run("document.querySelector('#live button').click()")
        assert await page.run("document.getElementById('live').textContent") == "PausedResume updates"
        one.workload("team-c", "newcomer", NOT_NEEDED, idle_since=at(-3000))
        one.publish()
        time_passes = "Promise.all(turns.map((turn) => turn())).then((each) => each.length)"
        assert await page.run(time_passes) == 2
        assert not await is_there()
        assert await has_updated_at_once()
        await page.run("document.querySelector('#live button').click()")

        async def is_there_in_time() -> bool:
            await page.run(time_passes)
            return await is_there()

        await settles(is_there_in_time)


async def test_while_nothing_changes_nothing_is_sent_again(chromium: str) -> None:
    async with watched(chromium) as (browser, url, _), browser.page() as page:
        await page.open(url + "/workloads")
        await page.run("document.querySelector('main section, main table').dataset.mine = 'kept'")

        async def asked_again() -> bool:
            return page.wire.count(304) >= 2

        await settles(asked_again)
        assert await page.run("document.querySelector('[data-mine]') !== null")


async def test_where_the_scaler_is_gone_the_page_stays_and_says_so(chromium: str) -> None:
    one = site()
    one.page.interval = timedelta(seconds=3)
    async with Browser.at(chromium) as browser, browser.page() as page:
        async with one.serving() as url:
            await page.open(url + "/")
            await settles(lambda: is_live(page))

        async def is_lost() -> bool:
            return bool(await page.run("document.querySelector('#live span').textContent === 'Not reachable'"))

        await settles(is_lost)
        assert await page.run("document.querySelector('h1').textContent") == "Idle GPUs"


async def test_it_works_without_a_script(chromium: str) -> None:
    async with watched(chromium) as (browser, url, _), browser.page(width=360, script=False) as page:
        await page.open(url + "/?namespace=team-a")
        nodes = await page.accessible()
        names = {each["name"]["value"] for each in nodes if each.get("name")}
        assert {"Idle GPUs of namespace team-a", "team-a/notebook", "in 5m"} <= names
        assert "Pause updates" not in names
        assert page.complaints == []


async def test_what_tenants_write_does_not_run(chromium: str) -> None:
    evil = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>"
    one = PageSite()
    one.workload("team", "one", QUIET, idle_since=at(-1500), owner=evil, history=[line(-60, evil, evil, evil, by=evil)])
    one.policy("all", mode=evil, status={"problems": [evil]})
    async with watched(chromium, one) as (browser, url, _):
        for path in ("/", "/workloads/team/one", "/policies/all"):
            async with browser.page() as page:
                await page.open(url + path)
                await settles(lambda page=page: is_live(page))
                assert "stolen" not in await page.run("document.title")
                assert await page.run("document.querySelectorAll('main img, main script').length") == 0
                assert page.complaints == []
        # Even what got into the page would not run.
        async with browser.page() as page:
            await page.open(url + "/")
            await page.run(
                "document.querySelector('main').insertAdjacentHTML('beforeend', "
                '\'<img src=x onerror="window.stolen = 1"><a id=evil href="javascript:window.stolen = 1">x</a>\')'
            )
            await page.run("document.getElementById('evil').click()")
            await settles(lambda: complains(page))
            assert await page.run("window.stolen") is None


async def complains(page: Page) -> bool:
    """Of what the page's own policy forbids."""
    return any("Content Security Policy" in each for each in page.complaints)


# ------------------------------------------------------------------------------------------------------ accessibility


async def test_the_keyboard_reaches_everything_in_order_and_begins_with_a_way_to_the_content(chromium: str) -> None:
    async with watched(chromium) as (browser, url, _), browser.page() as page:
        await page.open(url + "/")
        await settles(lambda: is_live(page))
        expected = await page.run(
            "[...document.querySelectorAll('a, button, input, select, summary, [tabindex=\"0\"]')]"
            ".filter((each) => each.checkVisibility()).map((each) => each.textContent.trim())"
        )
        reached = []
        for _ in expected:
            await page.press("Tab", 9)
            reached.append(await page.run("document.activeElement.textContent.trim()"))
            outline = await page.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", reached[-1]
        assert reached == expected
        assert reached[0] == "Skip to the content"
        assert reached[1:4] == ["idle-gpu-scaler", "Overview", "Workloads"]


async def test_a_screen_reader_finds_landmarks_headings_and_names(chromium: str) -> None:
    async with watched(chromium) as (browser, url, _):
        for path in PATHS:
            async with browser.page() as page:
                await page.open(url + path)
                await page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
                nodes = [each for each in await page.accessible() if not each.get("ignored")]
                landmarks = [role(each) for each in nodes]
                assert [landmarks.count(each) for each in ("banner", "main", "contentinfo")] == [1, 1, 1], path
                nameless = [each for each in nodes if role(each) in NAMED and not name(each)]
                assert nameless == [], path
                levels = [level(each) for each in nodes if role(each) == "heading"]
                assert levels[0] == 1
                assert levels.count(1) == 1
                assert all(after <= before + 1 for before, after in pairwise(levels)), levels
                # A chart is one picture with a name and a description, and a table has what it shows.
                for each in nodes:
                    if role(each) == "image":
                        assert name(each), (path, each)
                        assert description(each), (path, each)
        # Tables stay tables on a phone.
        async with browser.page(width=360) as page:
            await page.open(url + "/workloads")
            roles = {role(each) for each in await page.accessible() if not each.get("ignored")}
            assert {"table", "row", "columnheader", "rowheader", "cell"} <= roles


NAMED = {
    "link",
    "button",
    "textbox",
    "combobox",
    "navigation",
    "region",
    "table",
    "image",
    "search",
    "form",
    "columnheader",
}


def role(node: Json) -> str:
    return str(node["role"]["value"])


def name(node: Json) -> str:
    return str(node.get("name", {}).get("value", ""))


def description(node: Json) -> str:
    return str(node.get("description", {}).get("value", ""))


def level(node: Json) -> int:
    return next(int(each["value"]["value"]) for each in node["properties"] if each["name"] == "level")


# ------------------------------------------------------------------------------------------------------------ colours


def palettes() -> dict[str, dict[str, str]]:
    """The variables of the light and the dark theme."""
    text = CSS.read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in text.split("@media", 2)[:2])
    assert light.keys() == dark.keys()
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Source: WCAG 2.2, contrast ratio."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


FILLS = sorted({each.lower() for each in (*STATES, *STACK, "Other")})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    palette = palettes()[theme]
    pairs = [(text, ground) for text in ("ink", "dim", "link", "problem") for ground in ("page", "surface")]
    pairs += [("notice-ink", "notice"), *(("on", fill) for fill in FILLS)]
    too_low = {pair: found for pair in pairs if (found := contrast(*(palette[each] for each in pair))) < 4.5}
    assert too_low == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_shapes_and_the_focus_can_be_seen(theme: str) -> None:
    palette = palettes()[theme]
    pairs = [(each, "surface") for each in (*FILLS, "focus", "notice-line")]
    assert {pair for pair in pairs if contrast(*(palette[each] for each in pair)) < 3} == set()


def test_every_state_has_a_class_and_a_pattern_of_its_own() -> None:
    css = CSS.read_text(encoding="utf-8")
    for state in (*map(str, CandidateState), "Finished", "Invalid", "Other"):
        assert f".state-{state} " in css
        assert f".fill-{state} " in css
    assert all(f".fill-{state} " in css for state in STACK)
    assert state_class("Busy x") == "Other"
