"""Every state of every card, for every viewer: whoever looks gets a whole page, and nothing that is not theirs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import unescape
from ipaddress import ip_network
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import pytest
from analysis.report.report_builders import ScriptedReports
from builders import NOON
from page_builders import PageSite
from quota_builders import cluster_queue, workload
from reporting.page import page_states
from reporting.page.page_states import ScriptedQueries
from reporting.page.test_page import Answered, Client, serving
from views_builders import QuotaCluster

from scaler.decision.decision_cache import DecisionCache, Evaluation
from scaler.errors import KubeError, SourceError
from scaler.idleness.gpu import Signal
from scaler.reporting.page.access import Looker, PageAccess, PageAccessConfig
from scaler.reporting.page.reallocations import pending_in

USER = "X-Forwarded-User"
BROKEN = "This part cannot be shown"
GAPS = re.compile(r"(?<!=)\b(None|True|False|[Uu]ndefined|NaN|nan|inf|datetime|timedelta)\b|<\w+ object at|\{[{%]|Enum")
"""What no text has that was made for readers."""
STARTS = ("/", "/workloads", "/pending", "/reallocations", "/policies", "/report", "/report?since=30d&by=workload")
"""Whoever looks begins at one of these, and follows links."""
MOST_PAGES = 600


class Roles:
    """An API server that lets users list ScaledObjects by their names, and does not know whether `lost` may."""

    async def create(self, _path: str, body: Mapping[str, Any], *, within: float | None = None) -> bytes:
        user, namespace = body["spec"]["user"], body["spec"]["resourceAttributes"].get("namespace", "")
        if user == "lost":
            raise KubeError("no answer")
        return msgspec.json.encode({"status": {"allowed": user == "admin" or (user, namespace) == ("tenant", "team")}})


@dataclass(frozen=True)
class Viewer:
    user: str
    status: int
    namespaces: frozenset[str]


VIEWERS = {
    "who may see everything": Viewer("admin", 200, frozenset(page_states.NAMESPACES)),
    "who may see one namespace": Viewer("tenant", 200, frozenset({"team"})),
    "who may see no namespace": Viewer("guest", 200, frozenset()),
    "whom the proxy does not name": Viewer("", 403, frozenset()),
    "of whom the API does not answer": Viewer("lost", 503, frozenset()),
}


class NoAnswer:
    """A Prometheus that is down."""

    async def ranges(self, _promql: str, *, at: datetime) -> Any:
        raise SourceError(f"no answer at {at}", transient=True)

    def query_of_pods(self, signal: Signal, **_: Any) -> list[str]:
        return [signal.name]


def _site(queries: ScriptedQueries | None = None, **given: Any) -> PageSite:
    config = PageAccessConfig(user_header=USER, trusted_proxies=(ip_network("127.0.0.0/8"),))
    one = PageSite(access=PageAccess(config, Roles(), lambda: page_states.NAMESPACES), **given)
    if queries is not None:
        one.page.pending.queries = queries  # type: ignore[assignment]
    return one


def _empty() -> PageSite:
    return _site(ScriptedQueries(gangs=[]))


def _before_the_first_evaluation() -> PageSite:
    one = _site()
    one.missing = ["the window is being rebuilt"]
    one.page.decisions = DecisionCache(max_age=one.page.interval)
    one.policies.of_cluster.is_synced = False
    return one


def _old() -> PageSite:
    one, clock = _site(), [0.0]
    page_states.workloads(one, 2, most=10)
    one.page.decisions = DecisionCache(max_age=one.page.interval, clock=lambda: clock[-1])
    one.page.decisions.publish(Evaluation.of(dict(one.entries), at=NOON))
    clock.append(9999.0)
    return one


def _workloads() -> PageSite:
    one = _site()
    page_states.workloads(one, 1)
    page_states.fleet(one)
    return one


def _policies() -> PageSite:
    one = _site(ScriptedQueries(gangs=[], is_hub=False))
    page_states.policies(one)
    return one


def _nothing_answers() -> PageSite:
    down: Any = NoAnswer()
    one = _site(
        ScriptedQueries(gangs=[], problem="the quota is not known"),
        prometheus=down,
        of_pods=down,
        reports=ScriptedReports(error="down"),
    )
    page_states.workloads(one, 3, most=10)
    page_states.fleet(one)
    return one


SITES: dict[str, Callable[[], PageSite]] = {
    "nothing is there": _empty,
    "nothing was evaluated yet": _before_the_first_evaluation,
    "the evaluation is old": _old,
    "workloads": _workloads,
    "gangs": lambda: _site(ScriptedQueries(gangs=[*page_states.gangs(1)])),
    "policies": _policies,
    "Prometheus has a report": lambda: _site(prometheus=ScriptedReports(), reports=ScriptedReports()),
    "Prometheus has nothing": lambda: _site(prometheus=ScriptedReports({}), reports=ScriptedReports({})),
    "nothing answers": _nothing_answers,
}


@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("name", SITES)
async def test_every_state_is_shown_to_every_viewer(name: str, viewer: str) -> None:
    one, who = SITES[name](), VIEWERS[viewer]
    async with serving(one) as client:
        found = await _followed(client, who)
    for address, answered in found.items():
        text = answered.text
        assert BROKEN not in text, address
        assert not (gap := GAPS.search(text)), (address, text[max(0, gap.start() - 80) : gap.end() + 40])
        assert not re.search(r'="[^"]*\b(None|undefined|nan)\b', answered.html), address
        if who.namespaces != frozenset(page_states.NAMESPACES):
            assert "secret" not in answered.html, (address, text[max(0, text.find("secret") - 80) :][:160])
    shown = {key for key in one.entries if one.page.decisions.evaluation is not None and key[0] in who.namespaces}
    assert {address.partition("?")[0] for address in found} >= {f"/workloads/{a}/{b}" for a, b in shown}
    everything = " ".join(answered.text for answered in found.values())
    waiting = getattr(one.page.pending.queries, "gangs", ())
    assert [
        each["name"] for each in waiting if each["namespace"] in who.namespaces and each["name"] not in everything
    ] == []
    kept = [*one.policies.namespaced.items()]
    theirs = {each.metadata.key for each in kept if each.metadata.namespace in who.namespaces}
    assert found.keys() >= {f"/policies/{namespace}/{policy}" for namespace, policy in theirs}


async def _followed(client: Client, who: Viewer) -> dict[str, Answered]:
    """Every page that links lead to, by its address; those that lead nowhere fail.

    One choice leads to all others: of what is chosen already, only links to further pages of a list are followed.
    """
    found: dict[str, Answered] = {}
    named = {"X_Forwarded_User": who.user} if who.user else {}
    left = [*STARTS, *(["/workloads/hidden/secret-w1", "/there-is-none"] if who.status != 200 else [])]
    while left:
        address = left.pop()
        if address in found:
            continue
        assert len(found) < MOST_PAGES
        found[address] = await client.get(address, status=who.status, **named)
        links = re.findall(r'<a [^>]*href="([^"#]*)"', found[address].html) if who.status == 200 else []
        to = {_address(urljoin(client.url + address, unescape(each))) for each in links}
        left += {each for each in to if "?" not in each or "?" not in address or "page=" in each}
        left = [each for each in left if not each.startswith(("/api/", "/metrics")) and "span=" not in each]
    return found


def _address(url: str) -> str:
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


@pytest.mark.parametrize("address", ["/workloads/hidden/secret-w1", "/policies/hidden/secret-own-0"])
async def test_what_may_not_be_seen_is_not_there(address: str) -> None:
    one = SITES["workloads"]()
    page_states.policies(one)
    async with serving(one) as client:
        await client.get(address, X_Forwarded_User="admin")
        for user in ("tenant", "guest"):
            hidden = (await client.get(address, status=404, X_Forwarded_User=user)).text
            missing = (await client.get(address + "-no", status=404, X_Forwarded_User=user)).text
            assert hidden == missing.replace("-no", "")


async def test_gangs_here_have_what_gangs_of_production_have() -> None:
    quota = QuotaCluster([cluster_queue("queue", gpus=8)], [workload("gang", gpus=16, queue="queue")])
    [real] = (await quota.queries.pending())["gangs"]
    [made, *_] = page_states.gangs(1)
    assert made.keys() == real.keys()
    for key in ("reclaim", "reasons", "quota"):
        one, other = ((each[key] if key == "reclaim" else each[key][0]) for each in (real, _with(key)))
        assert one.keys() == other.keys(), key


def _with(key: str) -> dict[str, Any]:
    return next(each for each in page_states.gangs(1) if each[key])


@pytest.mark.parametrize("state", ["with a plan", "without one"])
def test_viewers_get_gangs_of_one_shape(state: str) -> None:
    """A template reads the same keys whoever looks."""
    for each in page_states.gangs(1):
        if (each["plan"] is not None) is (state == "with a plan"):
            seen = [
                pending_in([each], namespace="", looker=Looker(namespaces=of)) for of in (None, {each["namespace"]})
            ]
            assert _shape(seen[0][0]) == _shape(seen[1][0])


def _shape(value: Any) -> Any:
    return {key: _shape(each) for key, each in value.items()} if isinstance(value, dict) else None
