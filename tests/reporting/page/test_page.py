"""The page over HTTP: what it shows, that nothing on it is anybody's but text, and what it answers to what."""

import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from analysis.report.report_builders import ScriptedReports
from builders import at, minutes, policy
from page_builders import KEPT, NOT_NEEDED, QUIET, SUSPENDED, WORKS, PageSite, line
from quota_builders import cluster_queue, holding, workload
from scaler_analysis.report.page import PageReports
from views_builders import QuotaCluster

from scaler.decision.decision import Active
from scaler.decision.reasons import DecisionReason
from scaler.reporting.page import report
from scaler.reporting.page.access import PageAccess
from scaler.reporting.page.report import installed_report

PATHS = (
    "/",
    "/workloads",
    "/pending",
    "/reallocations",
    "/policies",
    "/report",
    "/workloads/team-a/notebook",
    "/policies/all",
)


def site(access: PageAccess | None = None) -> PageSite:
    """Two teams; a gang that waits, a suspended workload whose GPUs were given away, and a policy."""
    runs, gang = holding("runs", gpus=8, queue="queue"), workload("gang", gpus=16, queue="queue")
    one = PageSite(
        QuotaCluster([cluster_queue("queue", gpus=16)], [runs, gang]), reports=ScriptedReports(), access=access
    )
    one.workload(
        "team-a",
        "notebook",
        QUIET,
        idle_since=at(-1500),
        policy=policy(warning=minutes(10)),
        warned_at=at(-300),
        attached_by="ClusterIdlePolicy/all",
        history=[line(-7200, "Busy", "WarmingUp"), line(-300, "Warned", "Warned", "suspended soon", by="ada")],
    )
    one.samples("team-a", "notebook", [(-7200, -1500, 0.5), (-1500, 0, 0.0)])
    one.workload("team-a", "train", WORKS, gpus=8)
    one.workload("team-b", "kept", KEPT, gpus=2, idle_since=at(-7200), policy=policy(keep_until=at(21_600)))
    entry = {"plan": "p1", "workload": "team-c/gang", "gpus": 4, "stage": "Admitted", "times": 2}
    given = {**entry, "admittedAt": "2026-12-01T11:30:00Z", "wastedGpuSeconds": 90}
    one.workload("team-b", "sleeper", SUSPENDED, desired=0, owner="sleeper-job", reallocation=given)
    status = {"matched": 3, "attached": 1, "excluded": 2, "conflicts": 1, "conflicting": ["Job team-a/train"]}
    one.policy("all", mode="Enforce", idleAfter="30m", selector={"kinds": ["Job"]}, status=status)
    one.remember(-60, Busy=10, Idle=3)
    one.remember(0, {("team-b", "queue"): 4}, Busy=8, Idle=3)
    return one


@asynccontextmanager
async def serving(one: PageSite | None = None) -> AsyncIterator["Client"]:
    async with (one or site()).serving() as url, aiohttp.ClientSession(auto_decompress=False) as session:
        yield Client(session, url)


async def test_without_analysis_the_report_says_how_to_install_it() -> None:
    async with serving(PageSite(is_report_installed=False)) as client:
        text = (await client.get("/report?namespace=team-a")).text
    assert "Report on namespace team-a" in text
    assert "pip install 'idle-gpu-scaler[analysis]'" in text


def test_the_report_of_the_page_is_found_where_analysis_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(installed_report(None, {}), PageReports)
    monkeypatch.setattr(report, "entry_points", lambda **_: [])
    assert installed_report(None, {}) is None


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str, *, status: int = 200, method: str = "GET", **headers: str) -> "Answered":
        given = {"Accept-Encoding": "identity", **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.session.request(method, self.url + path, headers=given) as got:
            body = await got.read()
            assert got.status == status, (path, got.status, body)
            return Answered(got.headers, body)


class Answered:
    def __init__(self, headers: Any, body: bytes) -> None:
        self.headers, self.body = headers, body

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """As read: without tags, spaces as one."""
        reader = _Text()
        reader.feed(self.html)
        return " ".join("".join(reader.found).split())


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.found.append(" " if tag not in ("a", "wbr") else "")


# ------------------------------------------------------------------------------------------------------- what it shows


async def test_the_overview_answers_the_questions_of_a_cluster() -> None:
    async with serving() as client:
        text = (await client.get("/")).text
    for words in (
        "Idle GPUs 3 of 11 that pods hold Waiting 1 gang for 16 GPUs Next suspension in 5m team-a/notebook",
        "Given back 4 GPUs of suspended workloads, 4 GPUs to gangs today",
        "Held by pods now 3 Idle: their workloads are suspended when their time has come 8 Busy: work was seen",
        "Given back 4 Suspended: free; suspended workloads would hold them",
        "11 GPUs are held by pods, 3 of them idle. Source: seen by this process since it started.",
        "Warned 1 workload, 1 GPU",
        "team-a/notebook ScalableWorkload/notebook Warned 1 25m in 5m",  # warned 5 minutes ago, for 10
        "team-b/kept ScalableWorkload/kept Kept 2 2h in 6h Kept kept until 2026-12-01T18:00:00Z",
        "team/gang WaitingForQuota flavor default lacks 8 of 16 nvidia.com/gpu (8 available)",
        "team-b/Job/sleeper-job team-c/gang 4 Admitted 11:30:00 UTC 1m30s 2",
        "all ClusterIdlePolicy Enforce 0 3 1 2 0 1 none",
        "As of the evaluation at 01 Dec 2026 12:00:00 UTC",
    ):
        assert words in text, (words, text)
    assert "team-a/train Scalable" not in text  # it works, so it is no candidate


async def test_a_workload_has_all_that_explain_says_its_history_and_its_time_line() -> None:
    async with serving() as client:
        answered = await client.get("/workloads/team-a/notebook")
    for words in (
        "team-a/notebook Warned Job/notebook",
        "Policy ClusterIdlePolicy/all",
        "KEDA gets “active”: GPUsBusy quiet, but work was seen within the last 30m",
        "Next: If its GPUs stay quiet the answer turns inactive at 2026-12-01T12:05:00Z, in 5m.",
        "idleAfter 30m built-in default",
        "GPU-notebook-0 node-a notebook-0 Idle gr_engine_active: peak 0 %, coverage 100 %",
        "11:55:00 UTC Warned Warned suspended soon ada",
        "W Warning its owner is notified",
        "12:05:00 UTC Deadline",
        "gr_engine_active, the newest first",
        "Source: samples in this process's memory.",
    ):
        assert words in answered.text, (words, answered.text)
    assert 'class="band fill-Warned"' in answered.html


async def test_a_policy_shows_what_it_matches() -> None:
    async with serving() as client:
        text = (await client.get("/policies/all")).text
    for words in (
        "ClusterIdlePolicy all Mode Enforce",
        "Matched 3 Attached 1 Excluded 2 Suspended 0 Conflicts 1",
        "1 job that something else scales: Job team-a/train",
        "Selects kinds Job idleAfter 30m",
        "team-a/notebook",
    ):
        assert words in text, (words, text)
    assert "team-b/kept" not in text


async def test_a_namespaced_policy_is_found_by_its_namespace_and_says_what_is_wrong_with_it() -> None:
    one = site()
    one.policy("nights", namespace="team-b", idleAfter="soon", exclude=[{"kinds": ["Job"], "reason": "release"}])
    async with serving(one) as client:
        text = (await client.get("/policies/team-b/nights")).text
        await client.get("/policies/nights", status=404)
        await client.get("/policies/team-a/nights", status=404)
    assert "Not valid: spec.idleAfter: 'soon' is not a duration" in text
    assert "kinds: Job (release)" in text


async def test_a_mark_of_a_policy_of_another_namespace_is_not_believed() -> None:
    one = PageSite()
    one.policy("nights", namespace="team-a")
    one.workload("team-b", "stranger", attached_by="IdlePolicy/nights")
    async with serving(one) as client:
        assert "stranger" not in (await client.get("/policies/team-a/nights")).text


async def test_where_there_is_nothing_it_says_so() -> None:
    one = PageSite()
    one.missing = ["the window is being rebuilt"]
    async with serving(one) as client:
        text = (await client.get("/")).text
    for words in (
        "Not ready: the window is being rebuilt",
        "Nothing has been seen yet.",
        "No ScaledObject asks this scaler yet.",
        "No workload is quiet.",
        "No Workload waits for GPUs.",
        "No plan has taken GPUs",
        "There is no IdlePolicy and no ClusterIdlePolicy.",
    ):
        assert words in text, words


async def test_a_fleet_without_gpus_has_no_chart() -> None:
    """As on a hub of MultiKueue, whose pods run elsewhere."""
    one = PageSite()
    one.remember(0)
    async with serving(one) as client:
        answered = await client.get("/")
    assert "The fleet No pod has held GPUs, and no suspended workload would. Source:" in answered.text
    assert "<svg" not in answered.html


async def test_what_is_not_known_is_not_shown_as_nothing() -> None:
    one = PageSite()
    one.policies.of_cluster.is_synced = False
    async with serving(one) as client:
        assert "Not known: no list of clusteridlepolicies.idlegpu.io came yet" in (await client.get("/policies")).text


async def test_an_overview_of_a_namespace_is_about_it_alone() -> None:
    async with serving() as client:
        text = (await client.get("/?namespace=team-b")).text
    assert "Idle GPUs of namespace team-b" in text
    assert "team-b/kept" in text
    assert "4 Suspended" in text
    for other in ("team-a", "team/gang", "8 Busy"):
        assert other not in text


# ---------------------------------------------------------------------------------------------------------- long lists


async def test_long_lists_are_cut_and_the_rest_is_one_link_away() -> None:
    one = PageSite()
    for number in range(130):
        one.workload(f"team-{number % 2}", f"notebook-{number:03}", NOT_NEEDED, idle_since=at(-1800 - number))
    async with serving(one) as client:
        overview = await client.get("/")
        assert overview.html.count('data-key="workload ') == 10
        assert 'href="./workloads?state=Candidates&amp;namespace=">120 more candidates' in overview.html
        names = []
        for page in (1, 2, 3):
            shown = (await client.get(f"/workloads?state=Candidates&namespace=team-1&page={page}")).html
            names += re.findall(r'data-key="workload (.*?)"', shown)
        assert names == [f"team-1/notebook-{number:03}" for number in range(129, 0, -2)]
        assert "Page 1 of 2, 65 in all" in (await client.get("/workloads?namespace=team-1")).text
        assert "There is no such workload." in (await client.get("/workloads?page=9")).text


# ------------------------------------------------------------------------------------------------------ hostile input


EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}</svg>"
NAME = EVIL.replace("/", "").replace("{{ 7*7 }}", "")
"""As bad as a part of a path can be."""


async def test_what_tenants_write_is_text_everywhere() -> None:
    gang = workload("gang", gpus=16, queue="queue")
    one = PageSite(QuotaCluster([cluster_queue("queue", gpus=8)], [gang]))
    one.workload(
        NAME,
        NAME,
        Active(reason=DecisionReason.GPUS_BUSY, message=EVIL),
        idle_since=at(-1500),
        attached_by="ClusterIdlePolicy/all",
        owner=EVIL,
        history=[line(-300, EVIL, EVIL, EVIL, by=EVIL), line(-200, "Warned", EVIL, EVIL, by=EVIL)],
        reallocation={"plan": EVIL, "workload": EVIL, "gpus": 1, "stage": EVIL},
    )
    one.policy("all", mode=EVIL, selector={"kinds": [EVIL], "labels": {"matchLabels": {EVIL: EVIL}}},
               exclude=[{"queues": [EVIL], "reason": EVIL}], notify=[EVIL],
               status={"problems": [EVIL], "conflicts": 1, "conflicting": [EVIL]})  # fmt: skip
    one.missing = [EVIL]
    quoted = quote(NAME, safe="")
    async with serving(one) as client:
        for path, status in [
            *((path, 200) for path in ("/", "/workloads", "/reallocations", "/policies", "/policies/all", "/pending")),
            (f"/workloads/{quoted}/{quoted}", 200),
            (f"/workloads/x/{quoted}", 404),
            (f"/policies/{quoted}", 404),
            (f"/workloads?namespace={quoted}", 400),
            (f"/?state={quoted}", 400),
        ]:
            html = (await client.get(path, status=status)).html
            assert "alert(1)" in html, path
            assert "<script>alert" not in html, path
            assert "<img" not in html, path
            assert "49" not in re.findall(r"&#39;&gt;.{0,200}", html)[0], path
            # Nothing gets out of an attribute, either.
            assert not re.search(r"<[^>]*\sonerror", re.sub(r'"[^"]*"', '""', html)), path
            assert re.findall(r"<script[^>]*>", html) == re.findall(r'<script src="[^"]*" defer>', html)


async def test_states_that_tenants_invent_have_no_class_of_their_own() -> None:
    one = PageSite()
    one.workload("team", "one", history=[line(-300, "x onload=y", "r")])
    async with serving(one) as client:
        html = (await client.get("/workloads/team/one")).html
    assert 'state-Other">x onload=y<' in html
    assert "fill-Other" in html


async def test_nothing_on_a_page_runs_or_is_loaded_but_its_own_files() -> None:
    async with serving() as client:
        for path in PATHS:
            answered = await client.get(path)
            policy = answered.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
            assert "unsafe" not in policy
            assert not re.search(r"<style|<[^>]+\s(style|on\w+)=|javascript:", answered.html), path
            loaded = re.findall(r'(?:<script|<link|<img|<iframe)[^>]*(?:src|href)="([^"]*)"', answered.html)
            assert len(loaded) == 3, path
            own = r"(\./|(\.\./)+)page/(icon\.svg|page\.css|page\.js)\?v=\w{12}"
            assert all(re.fullmatch(own, each) for each in loaded), path
            assert answered.headers["X-Content-Type-Options"] == "nosniff"
            assert answered.headers["Referrer-Policy"] == "same-origin"


# --------------------------------------------------------------------------------------------------------------- HTTP


async def test_one_who_has_the_page_already_gets_nothing_until_it_changes() -> None:
    one = site()
    async with serving(one) as client:
        for path in PATHS:
            tag = (await client.get(path)).headers["ETag"]
            again = await client.get(path, status=304, If_None_Match=tag)
            assert (again.body, again.headers["ETag"]) == (b"", tag)
            assert again.headers["Content-Security-Policy"]
            one.missing = [f"something new of {path}"]
            one.page.answers.rendered.clear()
            assert (await client.get(path, If_None_Match=tag)).headers["ETag"] != tag


async def test_a_head_has_no_body_and_nothing_can_be_changed() -> None:
    async with serving() as client:
        for path in PATHS:
            answered = await client.get(path, method="HEAD")
            assert answered.body == b""
            assert answered.headers["Content-Type"] == "text/html; charset=utf-8"
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                await client.get(path, method=method, status=405)


async def test_it_is_compressed_for_whoever_asks_for_that() -> None:
    async with serving() as client:
        plain = await client.get("/")
        answered = await client.get("/", Accept_Encoding="gzip")
    assert answered.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answered.body) == plain.body
    assert len(answered.body) < len(plain.body) / 3


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/workloads/team-a/other", 404, "There is no ScaledObject team-a/other that asks this scaler."),
        ("/workloads/team-a/notebook?span=soon", 400, "span='soon' is not a duration"),
        ("/policies/other", 404, "There is no policy other."),
        ("/workloads?state=Asleep", 400, "there is no state 'Asleep'"),
        ("/workloads?page=x", 400, "'x' is no number of a page"),
    ],
)
async def test_what_is_not_there_is_a_page_as_well(path: str, status: int, words: str) -> None:
    async with serving() as client:
        answered = await client.get(path, status=status)
    assert words in answered.text
    assert answered.headers["Content-Security-Policy"]


async def test_files_of_the_page_may_be_kept_for_good_and_others_do_not_exist() -> None:
    async with serving() as client:
        address = re.findall(r'href="\./(page/page\.css\?v=\w+)"', (await client.get("/")).html)[0]
        found = await client.get(f"/{address}")
        assert found.headers["Content-Type"] == "text/css; charset=utf-8"
        assert "immutable" in found.headers["Cache-Control"]
        for path in ("/page/routes.py", "/page/..%2frouting.py", "/page/", "/page/base.html"):
            await client.get(path, status=404)


async def test_links_work_below_any_prefix_of_a_proxy() -> None:
    async with serving() as client:
        for path, root in [("/", "./"), ("/workloads", "./"), ("/workloads/team-a/notebook", "../../")]:
            html = (await client.get(path)).html
            assert f'href="{root}policies"' in html
            assert 'href="/' not in html


async def test_many_who_ask_at_once_are_answered_from_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    one = site()
    rendered: list[str] = []
    render = one.page.answers.renderer.body

    async def counted(template: str, context: Any) -> bytes:
        rendered.append(template)
        return await render(template, context)

    monkeypatch.setattr(one.page.answers.renderer, "body", counted)
    async with serving(one) as client:
        for _ in range(20):
            await client.get("/")
    assert 1 <= len(rendered) < 20
