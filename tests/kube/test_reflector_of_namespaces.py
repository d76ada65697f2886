"""Several namespaces, each listed and watched by itself, read as one copy."""

import asyncio
import math
from contextlib import asynccontextmanager, suppress

import pytest
from crooked_api import bookmark, event, hang, is_watch, not_found, page, pod, status, stream

from scaler.kube.backoff import Backoff
from scaler.kube.objects import Pod
from scaler.kube.patience import Timing
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflecting, Reflector
from scaler.kube.resources import NODE, POD

TIMING = Timing(watch=(60, 60), lasting=0.5, absent=0.05, backoff=Backoff(base=0.02, cap=0.05))


class Namespaces:
    """An API that answers for each namespace as a test says."""

    def __init__(self, crooked):
        self.lists, self.watches = {}, {}
        self.asked = set()
        crooked.handler = self._answer

    def has(self, namespace, *names, news=()):
        self.lists[namespace] = lambda: page(*(there(namespace, each) for each in names))
        self.watches[namespace] = list(news)

    def refuses(self, namespace, code):
        self.lists[namespace] = lambda: status(code, "Forbidden", f"pods in {namespace} is forbidden")

    async def _answer(self, request):
        namespace = request.path.split("/")[4] if "/namespaces/" in request.path else ""
        self.asked.add(request.path)
        if is_watch(request):
            return await stream(request, bookmark(100), *self.watches.get(namespace, ()))
        answer = self.lists.get(namespace)
        return await not_found(request) if answer is None else answer() if answer is not hang else await hang(request)


def there(namespace, name, version=1):
    return pod(name, version, namespace=namespace)


@pytest.fixture
def api(crooked):
    return Namespaces(crooked)


@asynccontextmanager
async def reflecting(transport, *namespaces, resource=POD, **options):
    reflector = Reflector(transport, resource, Pod, namespaces=namespaces, timing=TIMING, **options)
    running = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def synced(reflector, seconds=30.0):
    await asyncio.wait_for(reflector.wait_synced(), seconds)


async def until(condition, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def keys(objects):
    return sorted(each.metadata.key for each in objects)


BY_NAME = {"name": lambda each: [each.metadata.name]}


async def test_all_of_them_are_read_as_one_and_no_other_is_asked_for(api, transport):
    api.has("a", "x", "y")
    api.has("b", "x", news=[event("ADDED", there("b", "new", 101)), event("DELETED", there("b", "x", 102))])
    api.has("c", "z")
    async with reflecting(transport, "a", "b", indexes=BY_NAME) as copy:
        heard = []
        stop = copy.subscribe(lambda change: heard.append((change.key, change.new is not None)))
        await until(lambda: keys(copy.items()) == [("a", "x"), ("a", "y"), ("b", "new")])
        assert sorted(heard) == [(("a", "x"), True), (("a", "y"), True), (("b", "new"), True), *BOTH_WAYS]
        assert (len(copy), copy.state, copy.is_synced) == (3, Reflecting(), True)
        assert copy.get("a", "x").metadata.namespace == "a"
        assert (copy.get("b", "x"), copy.get("c", "z")) == (None, None)
        assert keys(copy.by_index("name", "x")) == [("a", "x")]
        stop()
        await copy.within("a").clear()
        assert len(heard) == 5
    assert api.asked == {"/api/v1/namespaces/a/pods", "/api/v1/namespaces/b/pods"}


BOTH_WAYS = [(("b", "x"), False), (("b", "x"), True)]


async def test_the_same_name_in_two_namespaces_is_two_objects(api, transport):
    api.has("a", "x")
    api.has("b", "x")
    async with reflecting(transport, "a", "b", indexes=BY_NAME) as copy:
        await synced(copy)
        assert keys(copy.by_index("name", "x")) == [("a", "x"), ("b", "x")]


async def test_what_cannot_be_decoded_is_told_of_every_namespace(api, transport):
    odd = {"metadata": {"name": "odd", "resourceVersion": "1"}, "spec": 7}
    for namespace in ("a", "b"):
        body = {**odd, "metadata": {**odd["metadata"], "namespace": namespace}}
        api.lists[namespace] = lambda body=body: page(body)
    async with reflecting(transport, "a", "b") as copy:
        await synced(copy)
        assert sorted(copy.undecodable) == [("a", "odd"), ("b", "odd")]


async def test_a_namespace_that_is_refused_holds_up_nobody_and_joins_once_it_may_be_read(api, transport):
    api.has("a", "x")
    api.refuses("later", 403)
    async with reflecting(transport, "a", "later") as copy:
        await synced(copy)
        assert (keys(copy.items()), copy.is_synced, copy.state) == ([("a", "x")], True, Reflecting())
        assert copy.age < 5
        hidden = copy.within("later")
        assert (hidden.is_synced, hidden.age) == (False, math.inf)
        assert isinstance(hidden.state, Denied)
        assert "grant verb 'list' on 'pods'" in hidden.state.message
        assert copy.within("a").state == Reflecting()

        # A failure that follows does not make it one to wait for.
        api.lists["later"] = lambda: status(500, "InternalError", "broken")
        await until(lambda: isinstance(hidden.state, Disconnected))
        assert (copy.is_synced, copy.state) == (True, Reflecting())

        api.has("later", "y")
        await until(lambda: keys(copy.items()) == [("a", "x"), ("later", "y")])
        assert hidden.is_synced


async def test_where_all_are_refused_all_are_waited_for(api, transport):
    api.refuses("a", 403)
    api.refuses("b", 401)
    async with reflecting(transport, "a", "b") as copy:
        await until(lambda: isinstance(copy.within("a").state, Denied) and isinstance(copy.within("b").state, Denied))
        assert (copy.is_synced, copy.age) == (False, math.inf)
        assert isinstance(copy.state, Denied)
        with pytest.raises(TimeoutError):
            await synced(copy, 0.1)
        api.has("b")
        await synced(copy)
        assert (copy.is_synced, copy.state) == (True, Reflecting())


async def test_one_that_has_not_answered_yet_is_waited_for(api, transport):
    api.has("a", "x")
    api.lists["slow"] = hang
    async with reflecting(transport, "a", "slow") as copy:
        await asyncio.wait_for(copy.within("a").wait_synced(), 30)
        assert (copy.is_synced, copy.age, copy.state) == (False, math.inf, Disconnected("not listed yet"))
        with pytest.raises(TimeoutError):
            await synced(copy, 0.1)


async def test_one_that_was_listed_and_is_refused_since_makes_the_whole_worse_and_the_others_not(api, transport):
    api.has("a", "x")
    api.has("b", "y")
    async with reflecting(transport, "a", "b") as copy:
        await synced(copy)
        copy.within("b")._enter(Denied("403: taken away"))
        assert (copy.state, copy.is_synced) == (Denied("403: taken away"), True)
        assert copy.within("a").state == Reflecting()
        assert keys(copy.items()) == [("a", "x"), ("b", "y")], "what is not seen is not gone"


async def test_a_kind_is_absent_where_all_agree_on_it(api, transport):
    async with reflecting(transport, "a", "b") as copy:
        await synced(copy)
        assert isinstance(copy.state, Absent)
        api.has("a", "x")
        await until(lambda: len(copy) == 1)
        assert isinstance(copy.state, Disconnected)
        assert "not all namespaces agree" in copy.state.message
        api.has("b")
        await until(lambda: copy.state == Reflecting())


async def test_what_is_in_no_namespace_is_one_list_whatever_the_namespaces(api, transport):
    api.has("", "node-a")
    async with reflecting(transport, "a", "b", resource=NODE) as copy:
        await synced(copy)
        assert api.asked == {"/api/v1/nodes"}
        assert len(copy) == 1


async def test_a_namespace_that_nobody_follows_says_so(api, transport):
    api.has("a")
    async with reflecting(transport, "a") as copy:
        await synced(copy)
        other = copy.within("other")
        assert (other.age, other.is_synced) == (math.inf, False)
        assert other.state == Disconnected("namespace other is not looked after")


async def test_a_watch_for_each_of_many_leaves_room_for_calls(api, transport):
    """The client keeps 100 connections at most by default: the 101st watch, and every call, would wait for ever."""
    many = [f"team-{number}" for number in range(110)]
    for namespace in many:
        api.has(namespace, "x", news=[event("ADDED", there(namespace, "y", 101))])
    async with reflecting(transport, *many) as copy:
        await until(lambda: len(copy) == 2 * len(many), seconds=20)
        assert await asyncio.wait_for(transport.get("/api/v1/namespaces/team-7/pods"), 5)
