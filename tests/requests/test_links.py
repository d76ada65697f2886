"""Links over real HTTP, on a real API: only a POST of a good link changes anything, and only once."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import permutations, product
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from builders import NOON
from itsdangerous import URLSafeTimedSerializer
from loops_builders import scalable_workload
from notifications.notification_builders import TARGET, line, workload
from reporting.test_http_tls import views
from small_cluster import NAME, SmallCluster, until
from suspension.replica import replica
from virtual_clock import VirtualClock

from scaler.idleness.policy import Policy
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.notifications.notice import Notice
from scaler.notifications.workloads import Source
from scaler.reporting.http import HttpServer
from scaler.reporting.metrics import Metrics
from scaler.requests.link_pages import ANSWERED, LinkPages
from scaler.requests.links import LinkConfig, Links, LinkVerb
from scaler.suspension.keeps import KEEPS_ANNOTATION, Keep, encode_keeps

KEY = "k" * 32
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass
class Site:
    cluster: SmallCluster
    links: Links
    clock: VirtualClock
    source: Source
    policies: dict[tuple[str, str], Policy] = field(default_factory=dict)

    def link(self, verb: str = "keep", *, after_s: float = 0) -> str:
        """In the message about the state with which it is offered."""
        return self.offered("Suspended" if verb == "wake" else "Warned", after_s=after_s)[verb]

    def offered(self, state: str, *, after_s: float = 0) -> dict[str, str]:
        one = replace(workload(owner="ada@example.com"), lines=(line(state, after_s=after_s),))
        notice, policy = Notice(workload=one, line=one.lines[0], target=TARGET), self.policies.get(("demo", NAME))
        return self.links.of_notice(notice, self.source, self.clock.now(), policy)

    async def asks(self, verb: str, url: str) -> tuple[int, str, Mapping[str, str]]:
        async with aiohttp.ClientSession() as session, session.request(verb, url, allow_redirects=False) as got:
            return got.status, await got.text(), got.headers

    async def posts(self, url: str) -> int:
        return (await self.asks("POST", url))[0]

    async def annotations(self) -> dict[str, str]:
        metadata = (await self.cluster.read(SCALED_OBJECT, NAME))["metadata"]
        found: dict[str, str] = metadata.get("annotations") or {}
        return found


@pytest.fixture
async def site(cluster: SmallCluster, tmp_path: Path) -> AsyncIterator[Site]:
    await cluster.wants(1)
    await cluster.is_scaled_by({"idleAfter": "1s"})
    async with served(cluster, tmp_path, VirtualClock(NOON)) as one:
        yield one


@asynccontextmanager
async def served(cluster: SmallCluster, folder: Path, clock: VirtualClock) -> AsyncIterator[Site]:
    key = folder / "keys"
    if not key.exists():
        key.write_text(KEY + "\n")
    async with replica(cluster) as one:
        await until(one.is_current)
        config = LinkConfig(
            base_url="http://x", key_file=key, valid_for=timedelta(hours=24), keep_for=timedelta(hours=4)
        )
        policies = dict[tuple[str, str], Policy]()
        scaled_objects = one.copies.scaled_objects
        pages = LinkPages(Links(config), one.transport, scaled_objects.get, policy_of=policies.get, clock=clock)
        server = HttpServer("127.0.0.1:0", Metrics(), views(), routes=pages.routes())
        port = await server.start()
        links = Links(replace(config, base_url=f"http://127.0.0.1:{port}"))
        (scaled_object,) = one.copies.scaled_objects.items()
        try:
            yield Site(
                cluster, links, clock, Source(scaled_object=scaled_object, record=scalable_workload("mine")), policies
            )
        finally:
            await server.stop()


async def test_a_link_asks_first_and_does_it_once(site: Site) -> None:
    before, url = await site.annotations(), site.link()
    status, text, headers = await site.asks("GET", url)
    assert (status, "nothing has been changed yet" in text, "Keep it for 4h" in text) == (200, True, True)
    assert re.findall(r'<form method="(\w+)"', text) == ["post"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "noindex" in headers["X-Robots-Tag"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert await site.annotations() == before
    assert await site.posts(url) == 200
    done = await site.annotations()
    assert done["idlegpu.io/keep-until"] == "2026-12-01T16:00:00Z"
    assert done["idlegpu.io/asked-by"] == "link to ada@example.com"
    assert await site.posts(url) == 410
    await until(lambda: _is_used(site, url))  # the copy that is shown has heard of it
    assert await site.annotations() == done


async def _is_used(site: Site, url: str) -> bool:
    return (await site.asks("GET", url))[0] == 410


async def test_a_wake_link_resumes(site: Site) -> None:
    assert await site.posts(site.link("wake")) == 200
    assert (await site.annotations())["idlegpu.io/wake"] == "2026-12-01T12:00:00Z"


async def test_an_exclude_link_excludes(site: Site) -> None:
    url = site.link("exclude")
    assert "Exclude it from suspension for good" in (await site.asks("GET", url))[1]
    assert await site.posts(url) == 200
    assert (await site.annotations())["idlegpu.io/exclude"] == "true"
    assert await site.posts(url) == 410


def test_each_state_has_the_answers_that_fit_it(site: Site) -> None:
    offered = {state: [*site.offered(state)] for state in ("Warned", "Suspended", "Waking")}
    assert offered == {"Warned": ["keep", "exclude"], "Suspended": ["wake"], "Waking": []}


LIMITS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "Keep it for 4h", "Exclude it from suspension for good"),
    ({"longest_keep": timedelta(hours=2)}, "Keep it for 2h", "Exclude it from suspension for 2h"),
    ({"longest_keep": timedelta(hours=8)}, "Keep it for 4h", "Exclude it from suspension for 8h"),
    ({"keep_users": ("link to *",)}, "Keep it for 4h", "Exclude it from suspension for good"),
    ({"keep_users": ("anna",)}, "", ""),
    ({"keeps_per_week": 0}, "", ""),
]


async def test_the_limits_of_its_policy_hold_for_links(site: Site) -> None:
    urls, before = site.offered("Warned"), await site.annotations()
    for limits, keep, exclude in LIMITS:
        site.policies["demo", NAME] = Policy(**limits)
        allowed = [verb for verb, words in (("keep", keep), ("exclude", exclude)) if words]
        assert [*site.offered("Warned")] == allowed, limits
        assert [*site.offered("Suspended")] == ["wake"], limits
        for verb, words in (("keep", keep), ("exclude", exclude)):
            status, text, _ = await site.asks("GET", urls[verb])
            assert (status, words in text) == (200 if words else 403, True), limits
            if not words:
                assert await site.posts(urls[verb]) == 403, limits
                assert await site.annotations() == before, limits


async def test_a_link_counts_for_the_limit_of_a_week(site: Site) -> None:
    used = [Keep(at=NOON - timedelta(hours=n), until=NOON - timedelta(minutes=n)) for n in (30, 20)]
    await site.cluster.annotate(SCALED_OBJECT, NAME, KEEPS_ANNOTATION, encode_keeps(used))
    for most, status in ((3, 200), (2, 403)):
        site.policies["demo", NAME] = Policy(keeps_per_week=most)
        assert await site.posts(site.link("keep", after_s=most)) == status


async def test_a_longer_keep_is_not_made_shorter(site: Site) -> None:
    await site.cluster.annotate(SCALED_OBJECT, NAME, "idlegpu.io/keep-until", "2026-12-24T18:00:00Z")
    assert await site.posts(site.link()) == 200
    assert (await site.annotations())["idlegpu.io/keep-until"] == "2026-12-24T18:00:00Z"


async def test_nothing_but_post_changes_anything(site: Site) -> None:
    before = await site.cluster.read(SCALED_OBJECT, NAME)
    for verb in sorted(VERBS, key=lambda verb: verb == "POST"):
        status, *_ = await site.asks(verb, site.link())
        assert status == (200 if verb in ("GET", "HEAD", "POST") else 405), verb
        assert (await site.cluster.read(SCALED_OBJECT, NAME) == before) is (verb != "POST"), verb


async def test_a_crawler_that_follows_every_link_changes_nothing(site: Site) -> None:
    before = await site.cluster.read(SCALED_OBJECT, NAME)
    queue, seen = [site.link(verb) for verb in LinkVerb], set[str]()
    while queue:
        url = queue.pop()
        if url in seen:
            continue
        seen.add(url)
        for verb in ("HEAD", "GET"):
            _, text, _ = await site.asks(verb, url)
            queue += re.findall(r'(?:href|src|action)="([^"]+)"', text)
    assert await site.cluster.read(SCALED_OBJECT, NAME) == before


def forged(token: str, verb: str = "keep") -> dict[str, str]:
    body, rest = token.rsplit(".", 2)[0], ".".join(token.rsplit(".", 2)[1:])
    own = URLSafeTimedSerializer("x" * 32, salt=f"idlegpu.io/{verb}")
    return {
        "another payload": f"{body[:-2]}{'BB' if body.endswith('AA') else 'AA'}.{rest}",
        "another signature": f"{token[:-3]}AAA",
        "no signature": body,
        "another key": str(own.dumps({"id": "1", "namespace": "demo", "name": NAME, "uid": "u", "expires": 2**40})),
        "nothing": "x",
        "not ours": "%00%ff<script>",
        "long": "a" * 5000,
    }


async def test_forged_links_are_refused(site: Site) -> None:
    before = await site.cluster.read(SCALED_OBJECT, NAME)
    for verb, method in product(LinkVerb, ("GET", "POST")):
        base, _, token = site.link(verb).rpartition("/")
        for how, other in forged(token, verb).items():
            status, text, _ = await site.asks(method, f"{base}/{other}")
            assert status == 400, (verb, method, how)
            assert "script" not in text, (verb, method, how)
    assert await site.cluster.read(SCALED_OBJECT, NAME) == before


async def test_a_link_is_good_for_its_purpose_and_its_time_only(site: Site) -> None:
    urls = {verb: site.link(verb) for verb in LinkVerb}
    for verb, other in permutations(LinkVerb, 2):
        assert await site.posts(urls[verb].replace(f"/{verb}/", f"/{other}/")) == 400
        assert await site.posts(urls[verb].replace(f"/{verb}/", "/delete/")) == 404
    await site.clock.advance(24 * 3600 - 1)
    assert [(await site.asks("GET", url))[0] for url in urls.values()] == [200] * 3
    await site.clock.advance(1)
    for url in urls.values():
        assert ((await site.asks("GET", url))[0], await site.posts(url)) == (410, 410)
    assert await site.annotations() == {}


async def test_a_used_link_stays_used_after_a_restart_and_in_another_replica(site: Site, tmp_path: Path) -> None:
    urls = [site.link(verb) for verb in LinkVerb]
    async with served(site.cluster, tmp_path, site.clock) as other:
        assert [await site.posts(url) for url in urls] == [200] * 3
        assert [await other.posts(_at(other, url)) for url in urls] == [410] * 3
    async with served(site.cluster, tmp_path, site.clock) as restarted:
        assert [await restarted.posts(_at(restarted, url)) for url in urls] == [410] * 3


def _at(site: Site, url: str) -> str:
    """The same link of another replica."""
    return f"{site.links.config.base_url}/answer{url.partition('/answer')[2]}"


async def test_of_many_clicks_at_once_one_counts(site: Site) -> None:
    url = site.link()
    statuses = await asyncio.gather(*(site.posts(url) for _ in range(8)))
    assert sorted(statuses) == [200, *[410] * 7]


async def test_records_of_expired_links_are_removed(site: Site) -> None:
    assert await site.posts(site.link(after_s=1)) == 200
    assert await site.posts(site.link(after_s=2)) == 200
    assert len((await site.annotations())[ANSWERED].split()) == 2
    await site.clock.advance(25 * 3600)
    assert await site.posts(site.link(after_s=3)) == 200
    assert len((await site.annotations())[ANSWERED].split()) == 1


async def test_whatever_is_written_as_used_links_a_link_is_answered(site: Site) -> None:
    """Python converts no more than 4,300 digits."""
    for digits in (12, 13, 5_000):
        await site.cluster.annotate(SCALED_OBJECT, NAME, ANSWERED, f"other={'9' * digits} =1 x=٣ y")
        assert await site.posts(site.link(after_s=digits)) == 200
        assert len((await site.annotations())[ANSWERED].split()) == 1 + (digits == 12)


async def test_a_link_to_a_workload_that_was_made_anew_is_refused(site: Site) -> None:
    url = site.link()
    await site.cluster.delete(SCALED_OBJECT, NAME)
    assert await site.posts(url) == 410
    await site.cluster.is_scaled_by({"idleAfter": "1s"})
    assert await site.posts(url) == 410
    assert await site.annotations() == {}


async def test_keys_are_replaced_without_breaking_links_under_way(site: Site) -> None:
    old, file = site.link(after_s=1), site.links.config.key_file
    file.write_text(f"{KEY}\n{'n' * 32}\n")
    new = site.link(after_s=2)
    assert [await site.posts(old), await site.posts(new)] == [200, 200]
    old = site.link(after_s=3)
    file.write_text("z" * 32)
    assert await site.posts(old) == 400


async def test_without_a_good_key_there_are_no_links(site: Site) -> None:
    url, file = site.link(), site.links.config.key_file
    for content in ("", "short", None):
        file.unlink() if content is None else file.write_text(content)
        assert await site.posts(url) == 503, content
        assert site.offered("Warned") == {}, content


async def test_an_api_that_refuses_is_told(site: Site) -> None:
    with site.cluster.refusing("PATCH", "scaledobjects", status=403):
        assert await site.posts(site.link()) == 502
    assert await site.posts(site.link()) == 200
