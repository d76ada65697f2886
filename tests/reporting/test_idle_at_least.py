"""That `idleSince` is a bound is said wherever it is shown."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from builders import IDLE, INACTIVE, NOON, SCALED_OBJECT, TARGET, at, decision, minutes, verdict
from notifications.notification_builders import line, workload
from page_builders import NOT_NEEDED, PageSite
from quota_builders import cluster_queue
from reporting.page.test_page import serving
from rich.console import Console
from views_builders import QuotaCluster

from scaler.app.cli import explain as explain_verb
from scaler.app.cli import top as top_verb
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.describe import decision_status, explain, overview
from scaler.idleness.policy import Overrides
from scaler.notifications.message import Details, content
from scaler.notifications.notice import Notice
from scaler.notifications.schedule import Message

SINCE = at(-1800)


def answers(at_least: bool) -> DecisionCache:
    made = decision(INACTIVE, verdict=verdict(IDLE), idle_since=SINCE, idle_at_least=at_least)
    cache = DecisionCache(max_age=minutes(1))
    cache.publish(
        Evaluation.of({SCALED_OBJECT: EvaluatedScaledObject(target=TARGET, triggers={Overrides(): made})}, at=NOON)
    )
    return cache


def words(renderable: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(renderable)
    return " ".join(console.export_text().split())


def status_of(at_least: bool) -> str:
    made = decision(INACTIVE, verdict=verdict(IDLE), idle_since=SINCE, idle_at_least=at_least)
    return str(decision_status(made)["idleAtLeast"])


def explained(at_least: bool) -> str:
    found = explain(answers(at_least), SCALED_OBJECT)
    assert found is not None
    return words(explain_verb.render(found))


def listed(at_least: bool) -> str:
    shown = {"decisions": [*overview(answers(at_least))]}
    return words(top_verb.render(shown, 200, lines=5, now=NOON))


def message_of(at_least: bool) -> str:
    notice = Notice(workload=workload(), target="chat", line=line("Suspended"))
    known = {notice.id: Details(idle_since=SINCE, idle_at_least=at_least)}
    return content(Message(target="chat", owner="ada", notices=(notice,)), known).text


SHOWN: dict[str, tuple[Callable[[bool], str], str, str]] = {
    "status": (status_of, "True", "None"),
    "explain": (explained, "idle at least since 2026-12-01", "idle since 2026-12-01"),
    "top": (listed, "≥ 30m", " 30m"),
    "message": (message_of, "idle at least since 2026-12-01", "idle since 2026-12-01"),
}


@pytest.mark.parametrize("where", SHOWN)
def test_a_bound_is_said_to_be_one_where_it_is_shown(where: str) -> None:
    shown, bound, known = SHOWN[where]
    assert bound in shown(True)
    assert known in shown(False)
    assert bound not in shown(False)


async def test_the_page_says_so() -> None:
    one = PageSite(QuotaCluster([cluster_queue("queue", gpus=16)], []))
    one.workload("team", "one", NOT_NEEDED, idle_since=SINCE, idle_at_least=True)
    one.workload("team", "two", NOT_NEEDED, idle_since=SINCE)
    async with serving(one) as client:
        overview_page = (await client.get("/")).text
        pages = {name: (await client.get(f"/workloads/team/{name}")).text for name in ("one", "two")}
    assert "team/one ScalableWorkload/one Idle 1 at least 30m" in overview_page
    assert "team/two ScalableWorkload/two Idle 1 30m" in overview_page
    assert "Quiet at least since" in pages["one"]
    assert "Quiet since" in pages["two"]
