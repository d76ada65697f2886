"""Several namespaces, each listed and watched by itself, read as one copy."""

import asyncio
import math

import pytest
from kube.scripted_api import (
    NEVER,
    ListAnswer,
    ScriptedApi,
    bookmark,
    event,
    failing,
    listing,
    pod,
    refused,
    streaming,
)
from virtual_clock import until

from scaler.kube.objects.resources import NODE
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflecting


class Namespaces(ScriptedApi):
    """An API that answers for each namespace as a test says."""

    def has(self, namespace, *names, news=()):
        path = path_of(namespace)
        self.serve(
            path=path,
            lists=[listing(*(there(namespace, each) for each in names))],
            watches=[streaming(bookmark(100), *news)],
        )

    def answers(self, namespace, answer):
        self.lists[path_of(namespace)] = [answer]


def path_of(namespace):
    return f"/api/v1/namespaces/{namespace}/pods"


def there(namespace, name, version=1):
    return pod(name, version, namespace=namespace)


@pytest.fixture
def api(clock):
    return Namespaces(clock)


async def is_waited_for(copy, clock):
    waiting = asyncio.create_task(copy.wait_synced())
    await clock.advance(3600)
    done = waiting.done()
    waiting.cancel()
    return not done


def keys(objects):
    return sorted(each.metadata.key for each in objects)


BY_NAME = {"name": lambda each: [each.metadata.name]}


async def test_all_of_them_are_read_as_one_and_no_other_is_asked_for(api, clock, reflecting):
    api.has("a", "x", "y")
    api.has("b", "x", news=[event("ADDED", there("b", "new", 101)), event("DELETED", there("b", "x", 102))])
    api.has("c", "z")
    async with reflecting("a", "b", indexes=BY_NAME) as copy:
        heard = []
        stop = copy.subscribe(lambda change: heard.append((change.key, change.new is not None)))
        await until(clock, lambda: keys(copy.items()) == [("a", "x"), ("a", "y"), ("b", "new")])
        assert sorted(heard) == [(("a", "x"), True), (("a", "y"), True), (("b", "new"), True), *BOTH_WAYS]
        assert (len(copy), copy.state, copy.is_synced) == (3, Reflecting(), True)
        assert copy.get("a", "x").metadata.namespace == "a"
        assert (copy.get("b", "x"), copy.get("c", "z")) == (None, None)
        assert keys(copy.by_index("name", "x")) == [("a", "x")]
        stop()
        await copy.within("a").clear()
        assert len(heard) == 5
    assert {each.path for each in api.requests} == {path_of("a"), path_of("b")}


BOTH_WAYS = [(("b", "x"), False), (("b", "x"), True)]


async def test_a_namespace_that_is_refused_is_not_waited_for_and_joins_once_it_may_be_read(api, clock, reflecting):
    api.has("a", "x")
    api.answers("later", failing(refused(403)))
    async with reflecting("a", "later") as copy:
        await until(clock, lambda: copy.is_synced)
        assert (keys(copy.items()), copy.is_synced, copy.state) == ([("a", "x")], True, Reflecting())
        assert copy.age < 5
        hidden = copy.within("later")
        assert (hidden.is_synced, hidden.age) == (False, math.inf)
        assert isinstance(hidden.state, Denied)
        assert "grant verb 'list' on 'pods'" in hidden.state.message
        assert copy.within("a").state == Reflecting()

        # A failure that follows does not make it one to wait for.
        api.answers("later", failing(refused(500)))
        await until(clock, lambda: isinstance(hidden.state, Disconnected))
        assert (copy.is_synced, copy.state) == (True, Reflecting())

        api.has("later", "y")
        await until(clock, lambda: keys(copy.items()) == [("a", "x"), ("later", "y")])
        assert hidden.is_synced


async def test_where_all_are_refused_all_are_waited_for(api, clock, reflecting):
    api.answers("a", failing(refused(403)))
    api.answers("b", failing(refused(401)))
    async with reflecting("a", "b") as copy:
        await until(
            clock, lambda: isinstance(copy.within("a").state, Denied) and isinstance(copy.within("b").state, Denied)
        )
        assert (copy.is_synced, copy.age) == (False, math.inf)
        assert isinstance(copy.state, Denied)
        assert await is_waited_for(copy, clock)
        api.has("b")
        await until(clock, lambda: copy.is_synced)
        assert (copy.is_synced, copy.state) == (True, Reflecting())


async def test_one_that_has_not_answered_yet_is_waited_for(api, clock, reflecting):
    api.has("a", "x")
    api.answers("slow", ListAnswer(after=NEVER))
    async with reflecting("a", "slow") as copy:
        await until(clock, lambda: copy.within("a").is_synced)
        assert (copy.is_synced, copy.age, copy.state) == (False, math.inf, Disconnected("not listed yet"))
        assert await is_waited_for(copy, clock)


async def test_one_that_was_listed_and_is_refused_since_makes_the_whole_worse_not_the_others(api, clock, reflecting):
    api.has("a", "x")
    api.has("b", "y")
    async with reflecting("a", "b") as copy:
        await until(clock, lambda: copy.is_synced)
        copy.within("b")._enter(Denied("403: taken away"))
        assert (copy.state, copy.is_synced) == (Denied("403: taken away"), True)
        assert copy.within("a").state == Reflecting()
        assert keys(copy.items()) == [("a", "x"), ("b", "y")], "what is not seen is not gone"


async def test_a_kind_is_absent_where_all_agree_on_it(api, clock, reflecting):
    async with reflecting("a", "b") as copy:
        await until(clock, lambda: copy.is_synced)
        assert isinstance(copy.state, Absent)
        api.has("a", "x")
        await until(clock, lambda: len(copy) == 1)
        assert isinstance(copy.state, Disconnected)
        assert "not all namespaces agree" in copy.state.message
        api.has("b")
        await until(clock, lambda: copy.state == Reflecting())


async def test_what_is_in_no_namespace_is_one_list_whatever_the_namespaces(api, clock, reflecting):
    api.serve(lists=[listing(there("", "node-a"))], watches=[streaming()])
    async with reflecting("a", "b", resource=NODE) as copy:
        await until(clock, lambda: copy.is_synced)
        assert {each.path for each in api.requests} == {"/api/v1/nodes"}
        assert len(copy) == 1


async def test_a_namespace_that_is_not_watched_says_so(api, clock, reflecting):
    api.has("a")
    async with reflecting("a") as copy:
        await until(clock, lambda: copy.is_synced)
        other = copy.within("other")
        assert (other.age, other.is_synced) == (math.inf, False)
        assert other.state == Disconnected("namespace other is not watched")
