"""Who sees what of the page by the header of a proxy, as roles of a real API say."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest
from page_builders import PageSite
from pydantic import ValidationError
from reporting.page.test_page import Client, serving, site
from small_cluster import SmallCluster
from virtual_clock import VirtualClock

from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.app.settings.page import PageSettings
from scaler.errors import ConfigurationError
from scaler.reporting.page.access import EVERYTHING, Looker, PageAccess, PageAccessConfig
from scaler.reporting.page.reallocations import _answers_alone

USER, GROUPS = "X-Forwarded-User", "X-Forwarded-Groups"
HERE = "127.0.0.0/8"
NAMESPACES = ("team-a", "team-b", "team", "team-c")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = {"apiGroup": "rbac.authorization.k8s.io"}
PATHS = ("/", "/workloads", "/pending", "/reallocations", "/policies", "/report", "/policies/all")


class Site:
    def __init__(self, cluster: SmallCluster, client: Client, clock: VirtualClock, shown: PageSite) -> None:
        self.cluster, self.client, self.clock, self.site = cluster, client, clock, shown

    async def grant(self, name: str, *namespaces: str, kind: str = "User", verb: str = "list") -> None:
        """The user or group may do that with ScaledObjects of these namespaces, of none: of all."""
        rules = [{"apiGroups": ["keda.sh"], "resources": ["scaledobjects"], "verbs": [verb]}]
        subjects = [{**GROUP, "kind": kind, "name": name}]
        for namespace in namespaces or ("",):
            role, path = ("Role", f"{RBAC}/namespaces/{namespace}") if namespace else ("ClusterRole", RBAC)
            unique = re.sub(r"[^a-z-]", "-", f"{name.partition('@')[0]}-{verb}")
            plural = f"{role.lower()}s"
            await self.cluster.kube.create(f"{path}/{plural}", {"metadata": {"name": unique}, "rules": rules})
            binding = {"roleRef": {**GROUP, "kind": role, "name": unique}, "subjects": subjects}
            await self.cluster.kube.create(f"{path}/{role.lower()}bindings", {"metadata": {"name": unique}, **binding})

    async def sees(self, path: str = "/", *, status: int = 200, **headers: str) -> str:
        return (await self.client.get(path, status=status, **headers)).text


@asynccontextmanager
async def behind_a_proxy(cluster: SmallCluster, *, trusted: Sequence[str] = (HERE,)) -> AsyncIterator[Site]:
    for each in NAMESPACES:
        await cluster.kube.create("/api/v1/namespaces", {"metadata": {"name": each}})
    config = PageAccessConfig(
        user_header=USER, groups_header=GROUPS, trusted_proxies=tuple(ip_network(each) for each in trusted)
    )
    clock = VirtualClock()
    access = PageAccess(config, cluster.kube, lambda: NAMESPACES, clock=clock)
    shown = site(access)
    async with serving(shown) as client:
        yield Site(cluster, client, clock, shown)


@pytest.fixture
async def proxied(cluster: SmallCluster) -> AsyncIterator[Site]:
    async with behind_a_proxy(cluster) as one:
        yield one


ADA: Mapping[str, str] = {"X_Forwarded_User": "ada@example.com"}


# ---------------------------------------------------------------------------------------------------- who is believed


async def test_a_user_sees_the_namespaces_whose_scaled_objects_that_user_may_list(proxied: Site) -> None:
    await proxied.grant("ada@example.com", "team-a")
    await proxied.grant("ada@example.com", "team-b", verb="patch")
    text = await proxied.sees(**ADA)
    assert "team-a/notebook" in text
    assert "Only namespaces that you may list ScaledObjects in are shown." in text
    # What is counted is what may be seen: the fleet of team-a, without what team-b has suspended.
    assert "Busy 1 workload, 8 GPUs" in text
    assert "8 Busy" in text
    assert "4 Suspended" not in text
    for path in PATHS:
        html = (await proxied.client.get(path, **ADA)).html
        for hidden in ("team-b", "team-c", "sleeper", "team/gang", "Job team-a/train"):
            assert hidden not in html, (path, hidden)


async def test_one_who_may_list_everywhere_sees_everything(proxied: Site) -> None:
    await proxied.grant("ada@example.com")
    text = await proxied.sees(**ADA)
    for words in ("team-b/kept", "team/gang", "4 Suspended", "decisions as JSON"):
        assert words in text


async def test_groups_count_as_far_as_the_proxy_names_them(proxied: Site) -> None:
    await proxied.grant("team-b", "team-b", kind="Group")
    await proxied.grant("system:authenticated", "team-a", kind="Group")
    with_groups, without = await proxied.sees(**ADA, X_Forwarded_Groups="other, team-b"), await proxied.sees(**ADA)
    assert ("team-b/kept" in with_groups, "team-b/kept" in without) == (True, False)
    # Every user is in that one.
    assert ("team-a/notebook" in with_groups, "team-a/notebook" in without) == (True, True)
    # Those of Kubernetes itself are not taken from a header.
    assert "team-b" not in await proxied.sees(**ADA, X_Forwarded_Groups="system:masters,system:nodes")


NOBODY: Mapping[str, Mapping[str, str]] = {
    "no user": {},
    "an empty one": {"X_Forwarded_User": " "},
    "one whose name is Kubernetes' own": {"X_Forwarded_User": "system:admin"},
    "a name of endless length": {"X_Forwarded_User": "a" * 300},
    "groups without a user": {"X_Forwarded_Groups": "system:masters"},
}


async def test_without_a_user_nothing_is_answered(proxied: Site) -> None:
    proxied.site.missing = ["the window of team-a is being rebuilt"]
    for whose, headers in NOBODY.items():
        for path in (*PATHS, "/workloads/team-a/notebook", "/there-is-no-such-page"):
            text = await proxied.sees(path, status=403, **headers)
            assert "Not allowed the proxy names no user Overview" in text, whose
            assert "team-" not in text, whose
    # A client has sent the header, and the proxy has added its own: two users are none.
    twice = [("X-Forwarded-User", "admin"), ("X-Forwarded-User", "ada@example.com")]
    async with proxied.client.session.get(f"{proxied.client.url}/", headers=twice) as got:
        assert got.status == 403
    # Files of the page have nothing of anybody.
    await proxied.client.get("/page/page.css")


async def test_from_anywhere_else_headers_are_worth_nothing(cluster: SmallCluster) -> None:
    async with behind_a_proxy(cluster, trusted=("10.1.2.0/24", "fd00::/8")) as one:
        await one.grant("ada@example.com")
        for path in PATHS:
            assert "only for requests that come through the proxy" in await one.sees(path, status=403, **ADA)
        # What reaches the port by itself is as trusted as before: Prometheus, and the command line.
        await one.client.get("/metrics")
        await one.client.get("/api/v1/decisions", **ADA)


# --------------------------------------------------------------------------------------------- what is about everything


async def test_json_and_metrics_are_for_those_who_may_see_everything(proxied: Site) -> None:
    await proxied.grant("ada@example.com", "team-a")
    await proxied.grant("root@example.com")
    for path in ("/metrics", "/api/v1/decisions"):
        await proxied.client.get(path, status=403, **ADA)
        await proxied.client.get(path, status=403)
        await proxied.client.get(path, X_Forwarded_User="root@example.com")
    await proxied.client.get("/healthz")


# ------------------------------------------------------------------------------------------------------------ the API


async def test_the_api_is_asked_once_a_minute_and_what_it_has_taken_away_is_gone_then(proxied: Site) -> None:
    await proxied.grant("ada@example.com", "team-a")
    await proxied.sees(**ADA)
    with proxied.cluster.refusing("POST", "/subjectaccessreviews"):
        for path in PATHS:
            await proxied.sees(path, **ADA)
        await proxied.clock.advance(61)
        assert "it cannot be known what ada@example.com may see" in await proxied.sees("/?page=1", status=503, **ADA)
    assert "team-a/notebook" in await proxied.sees("/workloads", **ADA)
    await proxied.cluster.kube.delete(f"{RBAC}/namespaces/team-a/rolebindings/ada-list")
    await proxied.clock.advance(61)
    assert "team-a/notebook" not in await proxied.sees("/workloads", **ADA)


async def test_what_one_user_sees_is_shown_to_no_other(proxied: Site) -> None:
    await proxied.grant("ada@example.com", "team-a")
    await proxied.grant("bob@example.com", "team-b")
    for _ in range(3):
        ada, bob = await proxied.sees(**ADA), await proxied.sees(X_Forwarded_User="bob@example.com")
        assert ("team-a/notebook" in ada, "team-b/kept" in ada) == (True, False)
        assert ("team-a/notebook" in bob, "team-b/kept" in bob) == (False, True)


# --------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("taken by plan p for Workload team-b/gang", "taken by plan p for Workload …"),
        ("taken by plan p for Workload team-a/gang", "taken by plan p for Workload team-a/gang"),
        ("team-b/one, team-b/two.x; team-a/y", "…, …; team-a/y"),
        ("annotation idlegpu.io/wake, 8 nvidia.com/gpu", "annotation idlegpu.io/wake, 8 nvidia.com/gpu"),
        ("a / b, 5/", "a / b, 5/"),
    ],
)
def test_names_in_texts_are_hidden_as_well(text: str, shown: str) -> None:
    assert Looker(namespaces=frozenset({"team-a"})).mask(text) == shown
    assert EVERYTHING.mask(text) == text


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ({"userHeader": USER}, "userHeader needs trustedProxies"),
        ({"groupsHeader": GROUPS}, "are of userHeader"),
        ({"trustedProxies": [HERE]}, "are of userHeader"),
        ({"userHeader": USER, "trustedProxies": ["0.0.0.0/0"]}, "trusts every address"),
        ({"userHeader": USER, "trustedProxies": ["::/0"]}, "trusts every address"),
        ({"userHeader": USER, "trustedProxies": ["proxy.example.com"]}, "does not appear to be"),
        ({"userHeader": "X Forwarded", "trustedProxies": [HERE]}, "userHeader"),
    ],
)
def test_what_would_believe_anybody_is_refused(page: Mapping[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load(None, environ={}, flags={"page": page, "prometheus.url": "http://localhost"})


def test_without_a_header_no_user_is_known() -> None:
    assert Settings().page.access() is None
    with pytest.raises(ValidationError):
        PageSettings(user_header=USER)


def test_an_address_is_a_network_of_one() -> None:
    config = PageSettings(user_header=USER, trusted_proxies=("10.1.2.3", "10.1.2.77/24")).access()
    assert config is not None
    assert [str(each) for each in config.trusted_proxies] == ["10.1.2.3/32", "10.1.2.0/24"]


def test_what_clusters_answer_is_shown_without_their_words_to_whoever_may_not_see_everything() -> None:
    cluster = {"name": "b", "answer": "Reclaim", "why": "Reclaim: cost 2, a plan suspends other/notebook for it"}
    dispatch = {"reason": "Patience", "step": "nominated for b", "message": "other/notebook", "clusters": [cluster]}
    shown = _answers_alone(dispatch)
    assert shown is not None
    assert "notebook" not in str(shown)
    assert [(each["name"], each["why"]) for each in shown["clusters"]] == [("b", "Reclaim")]
    assert _answers_alone(None) is None
