"""The reflector against a server that misbehaves, in virtual time."""

import asyncio
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from kube.scripted_api import (
    CUT_OFF,
    NEVER,
    ListAnswer,
    ScriptedApi,
    WatchAnswer,
    bookmark,
    breaking,
    ending,
    error_event,
    event,
    failing,
    listing,
    pod,
    refused,
    refusing,
    streaming,
)
from virtual_clock import settle, until

from scaler.kube.object_cache import OBJECTS_PER_TURN
from scaler.kube.objects.core import Pod
from scaler.kube.objects.resources import POD
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflecting, Reflector


@pytest.fixture
def api(clock):
    return ScriptedApi(clock)


def names(reflector):
    return sorted(obj.metadata.name for obj in reflector.items())


# ----------------------------------------------------------------------------------------------------- what it sees


async def test_a_list_and_its_watch_become_the_copy(api, reflecting):
    news = [event("ADDED", pod("c", 101)), event("MODIFIED", pod("a", 102)), event("DELETED", pod("b", 103))]
    api.serve(lists=[listing(pod("a"), pod("b"))], watches=[streaming(*news)])
    async with reflecting() as reflector:
        await settle()
        assert names(reflector) == ["a", "c"]
        assert reflector.get("ns", "a").metadata.resource_version == "102"
        assert reflector.state == Reflecting()
    assert api.watched_from == ["100"]


async def test_the_watch_asks_for_bookmarks_and_for_an_end(api, clock, reflecting):
    api.serve(lists=[listing()], watches=[ending(bookmark(101), after=50), streaming()])
    async with reflecting(label_selector="a=b"):
        await until(clock, lambda: api.count(watches=True) == 2)
    first, second = (request.query for request in api.requests if request.is_watch)
    assert first["allowWatchBookmarks"] is second["allowWatchBookmarks"] is True
    assert 48 <= first["timeoutSeconds"] <= 60, "as long as the server has not shown that it sends bookmarks"
    assert 240 <= second["timeoutSeconds"] <= 300
    assert {request.query["labelSelector"] for request in api.requests} == {"a=b"}


# ----------------------------------------------------------------------------------------- where it starts again


async def test_a_watch_that_ends_goes_on_from_its_last_version(api, clock, reflecting):
    watches = [ending(event("ADDED", pod("a", 101)), after=40), ending(bookmark(150), after=40), streaming()]
    api.serve(lists=[listing()], watches=watches)
    async with reflecting():
        await until(clock, lambda: api.count(watches=True) == 3)
    assert api.watched_from == ["100", "101", "150"]
    assert api.count(watches=False) == 1


@pytest.mark.parametrize(
    "expiry", [refusing(refused(410, "Expired")), ending(error_event(410, "Expired"))], ids=["answer", "in the stream"]
)
async def test_an_expired_version_is_listed_anew(api, clock, reflecting, expiry):
    lists = [listing(pod("a"), pod("gone")), listing(pod("a"), pod("new"), version=200)]
    api.serve(lists=lists, watches=[expiry, streaming()])
    async with reflecting() as reflector:
        await until(clock, lambda: names(reflector) == ["a", "new"])
        await until(clock, lambda: api.count(watches=True) == 2)
    assert api.watched_from == ["100", "200"]


async def test_a_watch_that_lasted_without_a_word_is_followed_by_a_list(api, clock, reflecting):
    """What kube-apiserver does with a version that it has not reached: it is silent, and ends when the time is up."""
    lists = [listing(pod("a"), version=9000), listing(pod("b"), version=5)]
    api.serve(lists=lists, watches=[ending(after=48), streaming()])
    async with reflecting() as reflector:
        await until(clock, lambda: api.watched_from == ["9000", "5"])
        assert names(reflector) == ["b"]


# ------------------------------------------------------------------------------------------------- how rarely it asks

STORMS = {
    "410 as an answer": refusing(refused(410, "Expired")),
    "a line that is no event": streaming(b"<html>"),
    "an event and the end": ending(event("ADDED", pod("a", 101))),
    "403": refusing(refused(403, "Forbidden")),
}


@pytest.mark.parametrize("storm", STORMS)
async def test_a_watch_that_always_fails_is_asked_for_rarely(api, clock, reflecting, storm):
    """Unbounded, an hour would see millions. With waits of 15 s in the mean it is 240, and a few at the beginning."""
    api.serve(lists=[listing(pod("a"))], watches=[STORMS[storm]])
    # What delivers something counts as the first failure again: half a second at most, a quarter in the mean.
    seconds, most = (60, 600) if storm == "an event and the end" else (3600, 400)
    async with reflecting():
        await clock.advance(seconds)
    assert 2 <= api.count(watches=True) <= most
    assert api.count(watches=False) <= most


# --------------------------------------------------------------------------------------------------- what it admits


LIMIT = 180.0
"""`maxViewAge`, and how old a view may be before nothing is decided."""

QUIET = {
    "a bookmark after the first list, and never anything again": lambda n: WatchAnswer(
        lines=(bookmark(100 + n),) if n == 0 else (), lasts=NEVER
    ),
    "an event now and then, no bookmark, and no end when one is asked for": lambda n: WatchAnswer(
        lines=(event("MODIFIED", pod("a", 101 + n)),) if n % 3 == 0 else (), waits=43, lasts=NEVER
    ),
    "an event shortly before each watch ends as it is asked to": lambda n: WatchAnswer(
        lines=(event("MODIFIED", pod("a", 101 + n)),) if n % 2 else (), waits=30, lasts=NEVER, obeys=True
    ),
    "neither events nor bookmarks, and each watch ends as it is asked to": lambda n: WatchAnswer(
        lasts=NEVER, obeys=True
    ),
    "neither, and a proxy breaks connections off after a minute": lambda n: WatchAnswer(lasts=60, error=CUT_OFF),
    "neither, and a proxy breaks them off after half a minute": lambda n: WatchAnswer(lasts=30, error=CUT_OFF),
    "one bookmark a watch, at an age of 80 s": lambda n: WatchAnswer(lines=(bookmark(100 + n),), waits=80, lasts=NEVER),
}
"""What the watches of an API that answers say which has next to nothing to report, by their number."""


@pytest.mark.parametrize("kind", QUIET)
async def test_a_view_of_a_healthy_api_is_never_too_old_though_it_has_nothing_to_report(api, clock, reflecting, kind):
    """etcd reports its progress every 10 minutes by default, and without that there are no bookmarks in between."""
    api.serve(lists=[listing(pod("a"))], watches=[QUIET[kind](n) for n in range(200)])
    ages, states = [], set()
    async with reflecting() as reflector:
        for _ in range(1800):
            await clock.advance(1)
            ages.append(reflector.age)
            states.add(type(reflector.state))
    assert max(ages) < LIMIT - 30, "a list has its time"
    if "breaks" not in kind:
        assert states == {Reflecting}
    assert api.count(watches=False) <= 1800 / 30, "lists are rare"
    assert api.count(watches=True) <= 150


async def test_a_half_dead_connection_is_replaced_by_a_list_that_has_what_it_kept_back(api, clock, reflecting):
    api.serve(lists=[listing(), listing(pod("a", 101), version=101)], watches=[streaming()])
    async with reflecting() as reflector:
        await until(clock, lambda: names(reflector) == ["a"])
    assert 48 + 15 <= clock.monotonic() <= 60 + 15 + 1


@pytest.mark.parametrize("answer", [failing(CUT_OFF), ListAnswer(after=NEVER)], ids=["breaks off", "hangs"])
async def test_that_watches_open_does_not_make_up_for_a_list_that_does_not_come(api, clock, reflecting, answer):
    """An API of which only the opening of watches is left says nothing of what has changed."""
    api.serve(lists=[listing(pod("a")), answer], watches=[ending(after=30)])
    async with reflecting() as reflector:
        await clock.advance(600)
        assert reflector.age >= LIMIT


async def test_a_list_counts_from_when_it_was_asked_for(api, clock, reflecting):
    """What it has is as old as that: its pages are of one moment."""
    slow = replace(listing(pod("a"), version=101), after=20)
    api.serve(lists=[listing(pod("a")), slow], watches=[ending(after=48), streaming()])
    async with reflecting() as reflector:
        await until(clock, lambda: api.count(watches=True) == 2)
        assert 20 <= reflector.age < 21


async def test_a_server_that_sends_bookmarks_is_trusted_no_longer_than_they_take(api, clock, reflecting):
    api.serve(lists=[listing()], watches=[ending(bookmark(101), after=6), streaming(), streaming()])
    async with reflecting():
        await until(clock, lambda: api.count(watches=True) == 3)
    second, third = [each.at for each in api.requests if each.is_watch][1:]
    assert 90 <= third - second <= 91


async def test_the_age_is_the_time_since_the_api_was_heard(api, clock, reflecting):
    api.serve(lists=[listing()], watches=[WatchAnswer(lasts=40, error=CUT_OFF), streaming(bookmark(101))])
    reflector = Reflector(api, POD, Pod, clock=clock)
    assert reflector.age == math.inf
    async with reflecting() as reflector:
        assert reflector.age == 0
        await clock.advance(39)
        assert reflector.age == 39
        await until(clock, lambda: reflector.age < 1)
    assert api.count(watches=False) == 1, "it was the bookmark"


async def test_a_resource_without_a_crd_is_absent_not_an_error(api, clock, reflecting):
    """It is asked for every half minute."""
    api.serve(lists=[failing(refused(404))] * 3 + [listing(pod("a"))], watches=[streaming()])
    async with reflecting() as reflector:
        assert isinstance(reflector.state, Absent)
        assert "CustomResourceDefinition" in reflector.state.message
        assert names(reflector) == []
        await until(clock, lambda: names(reflector) == ["a"])
        assert reflector.state == Reflecting()


async def test_a_first_404_does_not_empty_the_copy(api, clock, reflecting):
    """API servers answer 404 for custom resources for a moment while they start."""
    lists = [listing(pod("a")), failing(refused(404)), listing(pod("a"))]
    api.serve(lists=lists, watches=[refusing(refused(410)), streaming()])
    async with reflecting() as reflector:
        gone = []
        reflector.subscribe(gone.append)
        await until(clock, lambda: isinstance(reflector.state, Absent))
        assert names(reflector) == ["a"]
        await until(clock, lambda: reflector.state == Reflecting())
        assert gone == []


async def test_a_second_404_empties_the_copy(api, clock, reflecting):
    api.serve(lists=[listing(pod("a")), failing(refused(404))], watches=[refusing(refused(410))])
    async with reflecting() as reflector:
        gone = []
        reflector.subscribe(gone.append)
        await until(clock, lambda: names(reflector) == [])
        assert [(change.key, change.new) for change in gone] == [(("ns", "a"), None)]
        assert isinstance(reflector.state, Absent)


@pytest.mark.parametrize("code", [401, 403])
async def test_what_is_not_allowed_is_denied_until_it_is(api, clock, reflecting, code):
    api.serve(lists=[failing(refused(code))] * 2 + [listing(pod("a"))], watches=[streaming()])
    async with reflecting(synced=False) as reflector:
        await settle()
        assert isinstance(reflector.state, Denied)
        assert not reflector.is_synced
        await until(clock, lambda: reflector.state == Reflecting())


async def test_a_short_outage_goes_on_from_the_last_version(api, clock, reflecting):
    api.serve(lists=[listing(pod("a"))], watches=[breaking(), refusing(refused(0, "Unreachable")), streaming()])
    async with reflecting():
        await until(clock, lambda: api.count(watches=True) == 3)
    assert set(api.watched_from) == {"100"}


async def test_an_outage_keeps_the_copy_and_says_so(api, clock, reflecting):
    unreachable = refused(0, "Unreachable")
    lists = [listing(pod("a")), *[failing(unreachable)] * 12, listing(pod("a"), pod("b", 101), version=101)]
    api.serve(lists=lists, watches=[breaking(), *[refusing(unreachable)] * 12, streaming()])
    async with reflecting() as reflector:
        await clock.advance(60)
        assert isinstance(reflector.state, Disconnected)
        assert names(reflector) == ["a"]
        assert reflector.age == 60
        await until(clock, lambda: names(reflector) == ["a", "b"])
        await until(clock, lambda: reflector.state == Reflecting())
    assert api.watched_from[-1] == "101"


# --------------------------------------------------------------------------------------------------------- how fast


async def test_a_large_list_gives_way_and_subscribers_have_been_notified_of_all_of_it_when_it_is_synced(
    api, clock, monkeypatch
):
    """Other tasks may run after every few objects: on a machine on which these take long, they do."""
    monkeypatch.setattr("scaler.clock._TURN_S", 0.0)
    monkeypatch.setattr("scaler.clock._PAUSE_S", 1e-6)
    api.serve(lists=[listing(*(pod(f"p{i}", labels={"a": "b"}) for i in range(2000)), pages=2)], watches=[streaming()])
    reflector = Reflector(api, POD, Pod, clock=clock, indexes={"label": lambda pod: pod.metadata.labels.values()})
    heard, turns = [], []
    reflector.subscribe(heard.append)

    async def heartbeat():
        while True:
            turns.append(len(heard))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(each) for each in (heartbeat(), reflector.run())]
    await reflector.wait_synced()
    assert len(heard) == len(reflector.by_index("label", "b")) == 2000
    for task in tasks:
        task.cancel()
    assert len(turns) >= 2 * (2000 // OBJECTS_PER_TURN)
    assert all(later - sooner <= OBJECTS_PER_TURN for sooner, later in pairwise(turns))
