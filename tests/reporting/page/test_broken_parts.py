"""What cannot be read or rendered is a line in its place: no other part of a page, and no other page, is affected."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from builders import WorkloadJson, at
from page_builders import NOT_NEEDED, QUIET, PageSite
from quota_builders import workload
from reporting.page.test_page import Client, serving, site

from scaler.reporting.page import routes
from scaler.reporting.page.rendering import environment

TEMPLATES = Path(routes.__file__).parents[1] / "templates" / "page"
BROKEN = "This part cannot be shown; the log of the scaler says why."
CARDS: dict[str, tuple[str, str]] = {
    "The fleet": ("fleet", "11 GPUs are held by pods"),
    "Workloads by state": ("lines", "Busy 1 workload, 8 GPUs"),
    "Candidates for suspension": ("lines", "team-a/notebook ScalableWorkload/notebook"),
    "Gangs that wait for GPUs": ("pending", "WaitingForQuota"),
    "Who gave GPUs to whom": ("scalables", "team-b/Job/sleeper-job"),
    "Policies": ("policies", "all ClusterIdlePolicy"),
}
"""Cards of the overview: what each is read from, and words that are nowhere else on it."""


FIGURES = {"fleet": ["Idle GPUs", "Given back"], "lines": ["Next suspension"], "pending": ["Waiting"]}
"""Those of the headline, by what they are read from."""
FIGURES["scalables"] = ["Given back"]
SOURCES: dict[str, tuple[Callable[[PageSite], Any], str]] = {
    "fleet": (lambda one: one.page.fleet, "read"),
    "lines": (lambda one: one.page._lines, "of"),
    "pending": (lambda one: one.page.pending, "read"),
    "scalables": (lambda _: routes, "transfers_of"),
    "policies": (lambda one: one.policies.namespaced, "items"),
    "signals": (lambda one: one.page.signals, "read"),
    "reports": (lambda one: one.page.report, "context"),
}


@contextmanager
def broken(one: PageSite, source: str) -> Iterator[None]:
    """Whoever asks it gets an exception that nobody expects."""

    def breaks(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError(source)

    of, name = SOURCES[source][0](one), SOURCES[source][1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of if isinstance(of, ModuleType) else type(of), name, breaks)
        yield


@pytest.mark.parametrize("source", sorted({source for source, _ in CARDS.values()}))
async def test_a_source_that_breaks_takes_its_own_cards_and_no_other(source: str) -> None:
    one = site()
    async with serving(one) as client:
        with broken(one, source):
            text = (await client.get("/")).text
    for title, (read_from, words) in CARDS.items():
        assert (f"{title} {BROKEN}" in text) is (read_from == source), title
        assert (words in text) is (read_from != source), title
    for title in {each for titles in FIGURES.values() for each in titles}:
        assert (f"{title} not known" in text) is (title in FIGURES.get(source, ())), title


@pytest.mark.parametrize(
    ("source", "lost"), [("signals", ["The time line as tables"]), ("pending", ["16 wanted"]), ("policies", [])]
)
async def test_a_workload_has_what_can_be_read(source: str, lost: list[str]) -> None:
    one = site()
    one.workload("team", "gang", QUIET)
    one.quota.put(workload("gang", gpus=16, queue="queue"), WorkloadJson().owned_by("batch/v1", "Job", "gang"))
    async with serving(one) as client:
        with broken(one, source):
            text = (await client.get("/workloads/team/gang")).text
    assert text.count(BROKEN) == len(lost)
    for words in ("The time line as tables", "16 wanted", "KEDA gets", "Nothing is recorded yet."):
        assert (words in text) is (words not in lost), words


async def test_a_line_that_cannot_be_rendered_takes_no_other_line_from_a_list() -> None:
    one = PageSite()
    for name in ("first", "second", "third"):
        one.workload("team", name, NOT_NEEDED, idle_since=at(-3000))
    async with serving(one) as client:
        await lose_the_decision_on_the_second(one)
        for path in ("/", "/workloads"):
            text = (await client.get(path)).text
            assert text.count(BROKEN) == 1
            assert ("team/first" in text, "team/third" in text) == (True, True)


async def lose_the_decision_on_the_second(one: PageSite) -> None:
    """So that its reason cannot be told."""
    lines = await one.page._lines.of(one.decision_cache.evaluation)
    second = next(each for each in lines if each.name == "second")
    object.__setattr__(second, "decision", "to be or not to be")


def test_a_gang_that_cannot_be_rendered_takes_no_other_from_the_page() -> None:
    template = environment().from_string(
        '{% import "page/parts.html" as parts %}{% for each in ["a", "b"] %}{{ parts.gang("", each) }}{% endfor %}<p>x'
    )
    html = template.render()
    assert html.count(BROKEN) == 2
    assert html.endswith("<p>x")


def test_every_section_and_every_card_may_break_alone() -> None:
    for path in sorted(TEMPLATES.glob("*.html")):
        if path.name != "parts.html":  # which has the macros of them
            assert not re.search(r"<(section|article)", path.read_text(encoding="utf-8")), path.name


async def test_a_page_that_cannot_be_made_says_so_and_the_others_stand() -> None:
    one = site()
    async with serving(one) as client:
        with broken(one, "reports"):
            answered = await client.get("/report", status=500)
            await client.get("/")
        assert "This cannot be shown The scaler's log says why." in answered.text
        assert answered.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/there-is-none", "/workloads/a", "/workloads/a/b/c", "/policies/a/b/c", "/healthzz"])
async def test_an_address_that_there_is_not_has_a_page(path: str) -> None:
    async with serving() as client:
        answered = await client.get(path, status=404)
        assert "Not found There is no such page. Overview" in answered.text
        assert path not in answered.text
        assert re.search(r'<link rel="stylesheet" href="(\./|(\.\./)+)page/page\.css', answered.html)
        await stays_as_it_is(client)


async def stays_as_it_is(client: Client) -> None:
    """Programs get no page."""
    assert "<html" not in (await client.get("/api/v1/there-is-none", status=404)).html
    assert (await client.get("/healthz")).html == "ok\n"
