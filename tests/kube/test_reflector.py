"""The reflector against a server that misbehaves; `test_reflector_on_kubeapi.py` has it against one that does not."""

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from crooked_api import (
    CrookedApi,
    bookmark,
    error_event,
    event,
    hang,
    is_watch,
    not_found,
    page,
    pod,
    status,
    stream,
    write_kubeconfig,
)

from scaler.kube.backoff import Backoff
from scaler.kube.objects import Pod
from scaler.kube.patience import Timing
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflecting, Reflector
from scaler.kube.resources import POD
from scaler.kube.transport import KubeTransport

TIMING = Timing(watch=(60, 60), lasting=0.5, absent=0.1, backoff=Backoff(base=0.05, cap=0.4))
"""Everything but the length of watches ten times faster than by default, or more."""


@asynccontextmanager
async def reflecting(transport, *, kind=Pod, timing=TIMING, synced=True, **options):
    reflector = Reflector(transport, POD, kind, timing=timing, **options)
    task = asyncio.create_task(reflector.run())
    try:
        if synced:
            await asyncio.wait_for(reflector.wait_synced(), 30)
        yield reflector
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def names(reflector):
    return sorted(obj.metadata.name for obj in reflector.items())


def serve(crooked: CrookedApi, *, lists, watches) -> None:
    """Has each kind of request answered by one handler after the other, the last one for ever."""
    lists, watches = list(lists), list(watches)

    async def handler(request: web.Request) -> web.StreamResponse:
        handlers = watches if is_watch(request) else lists
        answer = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        return await answer(request)

    crooked.handler = handler


def listing(*objects, **options):
    async def answer(_):
        return page(*objects, **options)

    return answer


def streaming(*chunks, **options):
    return lambda request: stream(request, *chunks, **options)


def held(answer):
    """The answer, and the event that it waits for: what was before it stands for as long as a test looks at it."""
    is_let_go = asyncio.Event()

    async def later(request):
        await is_let_go.wait()
        return await answer(request)

    return later, is_let_go


def refusing(code, reason="", **headers):
    async def answer(_):
        return status(code, reason, "because", **headers)

    return answer


def watched_from(crooked):
    return [request.query["resourceVersion"] for request in crooked.requests if is_watch(request)]


# ----------------------------------------------------------------------------------------------------- what it sees


async def test_a_list_and_its_watch_become_the_copy(crooked, transport):
    news = [event("ADDED", pod("c", 101)), event("MODIFIED", pod("a", 102)), event("DELETED", pod("b", 103))]
    serve(crooked, lists=[listing(pod("a"), pod("b"))], watches=[streaming(*news)])
    async with reflecting(transport) as reflector:
        await until(lambda: names(reflector) == ["a", "c"])
        assert reflector.get("ns", "a").metadata.resource_version == "102"
        assert reflector.state == Reflecting()
    assert watched_from(crooked) == ["100"]


async def test_the_watch_asks_for_bookmarks_and_for_an_end(crooked, transport):
    serve(crooked, lists=[listing()], watches=[streaming(bookmark(101), stays_open=False), streaming()])
    async with reflecting(transport, label_selector="a=b", field_selector="spec.nodeName=n", timing=Timing()):
        await until(lambda: crooked.count(watches=True) == 2)
    first, second = (request.query for request in crooked.requests if is_watch(request))
    assert first["allowWatchBookmarks"] == second["allowWatchBookmarks"] == "true"
    assert 48 <= int(first["timeoutSeconds"]) <= 60, "as long as the server has not shown that it sends bookmarks"
    assert 240 <= int(second["timeoutSeconds"]) <= 300
    for request in crooked.requests:
        assert (request.query["labelSelector"], request.query["fieldSelector"]) == ("a=b", "spec.nodeName=n")


async def test_one_namespace_can_be_reflected(crooked, transport):
    serve(crooked, lists=[listing()], watches=[streaming()])
    async with reflecting(transport, namespaces=["ns"]):
        pass
    assert crooked.requests[0].path == "/api/v1/namespaces/ns/pods"


async def test_pages_are_one_list(crooked, transport):
    async def paged(request):
        return page(pod("b")) if "continue" in request.query else page(pod("a"), token="more")

    serve(crooked, lists=[paged], watches=[streaming()])
    async with reflecting(transport) as reflector:
        assert names(reflector) == ["a", "b"]


async def test_subscribers_have_heard_everything_when_it_is_synced(crooked, transport):
    serve(crooked, lists=[listing(*(pod(f"p{i}") for i in range(1000)))], watches=[streaming()])
    reflector = Reflector(transport, POD, Pod, timing=TIMING)
    heard = []
    reflector.subscribe(heard.append)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.wait_synced(), 30)
    assert len(heard) == len(reflector) == 1000
    task.cancel()


async def test_an_undecodable_event_neither_ends_the_watch_nor_hides_the_object(crooked, transport):
    news = [event("MODIFIED", {**pod("a", 101), "spec": {"containers": 5}}), event("ADDED", pod("b", 102))]
    serve(crooked, lists=[listing(pod("a"))], watches=[streaming(*news)])
    async with reflecting(transport) as reflector:
        await until(lambda: names(reflector) == ["a", "b"])
        assert list(reflector.undecodable) == [("ns", "a")]
        assert crooked.count(watches=True) == 1


# ----------------------------------------------------------------------------------------- where it starts again


async def test_a_watch_that_ends_goes_on_from_its_last_version(crooked, transport):
    serve(
        crooked,
        lists=[listing()],
        watches=[
            streaming(event("ADDED", pod("a", 101)), stays_open=False),
            streaming(bookmark(150), stays_open=False),
            streaming(),
        ],
    )
    async with reflecting(transport):
        await until(lambda: crooked.count(watches=True) == 3)
    assert watched_from(crooked) == ["100", "101", "150"]
    assert crooked.count(watches=False) == 1


async def test_a_connection_that_drops_within_a_line_loses_nothing(crooked, transport):
    whole, half = event("ADDED", pod("a", 101)), event("ADDED", pod("b", 102))
    serve(crooked, lists=[listing()], watches=[streaming(whole, half[:30], drops=True), streaming(half)])
    async with reflecting(transport) as reflector:
        await until(lambda: names(reflector) == ["a", "b"])
    assert watched_from(crooked) == ["100", "101"]


@pytest.mark.parametrize("expiry", [refusing(410, "Expired"), streaming(error_event(410, "Expired"), stays_open=False)],
                         ids=["as an answer", "in the stream"])  # fmt: skip
async def test_an_expired_version_is_listed_anew(crooked, transport, expiry):
    serve(
        crooked,
        lists=[listing(pod("a"), pod("gone")), listing(pod("a"), pod("new"), version=200)],
        watches=[expiry, streaming()],
    )
    async with reflecting(transport) as reflector:
        await until(lambda: names(reflector) == ["a", "new"])
        await until(lambda: crooked.count(watches=True) == 2)
    assert watched_from(crooked) == ["100", "200"]


async def test_a_list_whose_pages_expire_is_begun_anew(crooked, transport):
    lists = [listing(pod("a"), token="t"), refusing(410, "Expired"), listing(pod("b"))]
    serve(crooked, lists=lists, watches=[streaming()])
    async with reflecting(transport) as reflector:
        assert names(reflector) == ["b"]


async def test_a_server_whose_versions_went_backwards_is_listed_anew(crooked, transport):
    too_large = streaming(error_event(504, "Timeout"), stays_open=False)
    serve(
        crooked,
        lists=[listing(pod("a"), version=9000), listing(pod("b"), version=5)],
        watches=[too_large] * 3 + [streaming()],
    )
    async with reflecting(transport) as reflector:
        await until(lambda: names(reflector) == ["b"])
    assert watched_from(crooked)[:3] == ["9000"] * 3


async def test_a_watch_that_lasted_without_a_word_is_followed_by_a_list(crooked, transport):
    """What kube-apiserver does with a version that it has not reached: it is silent, and ends when the time is up."""

    async def wordless(request):
        response = await stream(request, stays_open=False)
        await asyncio.sleep(0.1)
        return response

    serve(
        crooked, lists=[listing(pod("a"), version=9000), listing(pod("b"), version=5)], watches=[wordless, streaming()]
    )
    async with reflecting(transport, timing=Timing(watch=(60, 60), lasting=0.05)) as reflector:
        await until(lambda: names(reflector) == ["b"])
        await until(lambda: watched_from(crooked) == ["9000", "5"])


async def test_a_silent_server_is_listed_anew_after_some_patience(crooked, transport):
    timing = Timing(watch=(1, 1), slack=-0.8, lasting=0.5, backoff=Backoff(base=0.01, cap=0.02))
    serve(crooked, lists=[listing(pod("a")), listing(pod("b"), version=200)], watches=[streaming()])
    async with reflecting(transport, timing=timing) as reflector:
        await until(lambda: names(reflector) == ["b"])
        await until(lambda: len(watched_from(crooked)) >= 4)
    assert watched_from(crooked)[:4] == ["100"] * 3 + ["200"]


# ------------------------------------------------------------------------------------------------- how rarely it asks

STORMS = {
    "410 as an answer": (refusing(410, "Expired"), 30),
    "410 in the stream": (streaming(error_event(410, "Expired"), stays_open=False), 30),
    "410 after an event": (streaming(event("ADDED", pod("a", 101)), error_event(410, "Expired"), stays_open=False), 30),
    "ERROR 500 in the stream": (streaming(error_event(500, "InternalError"), stays_open=False), 30),
    "a watch that ends at once": (streaming(stays_open=False), 30),
    "a line that is no event": (streaming(b"<html>\n"), 30),
    "an unknown type of event": (streaming(event("SURPRISE", pod("a")), stays_open=False), 120),
    "an event and the end": (streaming(event("ADDED", pod("a", 101)), stays_open=False), 120),
    "429": (refusing(429, "TooManyRequests"), 30),
    "503": (refusing(503), 30),
    "403": (refusing(403, "Forbidden"), 30),
}


@pytest.mark.parametrize(("answer", "most"), STORMS.values(), ids=STORMS.keys())
async def test_a_watch_that_always_fails_is_asked_for_rarely(crooked, transport, answer, most):
    """Unbounded, this would be a thousand. The longest waits are 20, 40, 80, 100, 100, … ms, the mean half of that."""
    serve(crooked, lists=[listing(pod("a"))], watches=[answer])
    began = time.monotonic()
    async with reflecting(transport, timing=Timing(watch=(60, 60), backoff=Backoff(base=0.02, cap=0.1))):
        await asyncio.sleep(0.3)
        await until(lambda: crooked.count(watches=True) >= 2)
    most *= max(1.0, (time.monotonic() - began) / 0.4)  # `most` is for 0.3 s and what a list takes
    assert crooked.count(watches=True) <= most
    assert crooked.count(watches=False) <= most


async def test_a_list_that_always_fails_is_asked_for_rarely(crooked, transport):
    serve(crooked, lists=[refusing(500)], watches=[hang])
    async with reflecting(transport, synced=False) as reflector:
        await asyncio.sleep(0.6)
        assert isinstance(reflector.state, Disconnected)
        assert not reflector.is_synced
    assert len(crooked.requests) <= 40


async def test_failures_are_forgotten_after_a_good_watch(crooked, transport):
    timing = Timing(watch=(60, 60), lasting=0.05, backoff=Backoff(base=0.01, cap=60))

    async def good(request):
        response = await stream(request, bookmark(101), stays_open=False)
        await asyncio.sleep(0.07)
        return response

    serve(crooked, lists=[listing()], watches=[refusing(503)] * 5 + [good] * 10 + [streaming()])
    async with reflecting(transport, timing=timing):
        await until(lambda: crooked.count(watches=True) == 16)


# --------------------------------------------------------------------------------------------------- what it admits


async def test_a_half_open_watch_dies_of_its_silence_and_is_replaced(crooked, transport):
    timing = Timing(watch=(1, 1), slack=-0.7, backoff=Backoff(base=0.01, cap=0.02))
    copies, states = [], []

    async def second(request):
        states.append(type(copies[0].state))
        return await stream(request, event("ADDED", pod("a", 101)))

    serve(crooked, lists=[listing()], watches=[streaming(), second])
    async with reflecting(transport, timing=timing) as reflector:
        copies.append(reflector)
        await until(lambda: names(reflector) == ["a"])
    assert states[0] is Disconnected
    assert crooked.count(watches=False) == 1


async def test_a_server_that_sends_bookmarks_is_trusted_no_longer_than_they_take(crooked, transport):
    timing = Timing(watch=(60, 60), bookmark_silence=0.2, backoff=Backoff(base=0.01, cap=0.02))
    serve(crooked, lists=[listing()], watches=[streaming(bookmark(101), stays_open=False), streaming()])
    async with reflecting(transport, timing=timing):
        await until(lambda: crooked.count(watches=True) >= 3)


async def test_the_age_is_the_time_since_the_api_was_heard(crooked, transport):
    serve(crooked, lists=[hang], watches=[streaming()])
    async with reflecting(transport, synced=False) as reflector:
        assert reflector.age == float("inf")

    is_due = asyncio.Event()

    async def late(request):
        response = await stream(request, stays_open=False)
        await is_due.wait()
        await response.write(bookmark(101))
        await asyncio.sleep(60)
        return response

    serve(crooked, lists=[listing()], watches=[late])
    began = time.monotonic()
    async with reflecting(transport) as reflector:
        assert 0 <= reflector.age <= time.monotonic() - began
        await asyncio.sleep(0.2)
        silent_for = reflector.age
        assert silent_for >= 0.2
        is_due.set()
        await until(lambda: reflector.age < silent_for)


async def test_a_resource_without_a_crd_is_absent_not_an_error(crooked, transport):
    there, is_installed = held(listing(pod("a")))
    serve(crooked, lists=[not_found, not_found, there], watches=[streaming()])
    async with reflecting(transport) as reflector:
        assert isinstance(reflector.state, Absent)
        assert "CustomResourceDefinition" in reflector.state.message
        assert names(reflector) == []
        is_installed.set()
        await until(lambda: names(reflector) == ["a"])
        assert reflector.state == Reflecting()


async def test_a_resource_without_a_crd_is_asked_for_rarely(crooked, transport):
    serve(crooked, lists=[not_found], watches=[hang])
    began = time.monotonic()
    async with reflecting(transport):
        await asyncio.sleep(0.55)
        await until(lambda: len(crooked.requests) >= 3)
    assert len(crooked.requests) <= 1 + (time.monotonic() - began) / 0.08  # every 0.1 s, or up to a fifth sooner


async def test_a_first_404_does_not_empty_the_copy(crooked, transport):
    """API servers answer 404 for custom resources for a moment while they start."""
    again, is_up = held(listing(pod("a")))
    serve(crooked, lists=[listing(pod("a")), not_found, again], watches=[refusing(410), streaming()])
    async with reflecting(transport) as reflector:
        gone = []
        reflector.subscribe(gone.append)
        await until(lambda: isinstance(reflector.state, Absent))
        assert names(reflector) == ["a"]
        is_up.set()
        await until(lambda: reflector.state == Reflecting())
        assert gone == []


async def test_a_second_404_empties_the_copy(crooked, transport):
    serve(crooked, lists=[listing(pod("a")), not_found], watches=[refusing(410)])
    async with reflecting(transport) as reflector:
        gone = []
        reflector.subscribe(gone.append)
        await until(lambda: names(reflector) == [])
        assert [(change.key, change.new) for change in gone] == [(("ns", "a"), None)]
        assert isinstance(reflector.state, Absent)


@pytest.mark.parametrize("code", [401, 403])
async def test_what_is_not_allowed_is_denied_until_it_is(crooked, transport, code):
    granted, is_granted = held(listing(pod("a")))
    serve(crooked, lists=[refusing(code, "Forbidden")] * 2 + [granted], watches=[streaming()])
    async with reflecting(transport, synced=False) as reflector:
        await until(lambda: isinstance(reflector.state, Denied))
        assert not reflector.is_synced
        is_granted.set()
        await until(lambda: reflector.state == Reflecting())


async def test_an_outage_keeps_the_copy_and_says_so(tmp_path):
    async with CrookedApi().serving() as api:
        serve(api, lists=[listing(pod("a"))], watches=[streaming()])
        port = int(api.url.rsplit(":", 1)[1])
        transport = await KubeTransport.connect(write_kubeconfig(tmp_path / "kubeconfig", api.url))
        async with transport, reflecting(transport) as reflector:
            await api.stop()
            await until(lambda: isinstance(reflector.state, Disconnected))
            await asyncio.sleep(0.1)
            assert names(reflector) == ["a"]
            assert reflector.age >= 0.1
            async with CrookedApi().serving(port) as again:
                serve(again, lists=[listing(pod("x"))], watches=[streaming(event("ADDED", pod("b", 101)))])
                await until(lambda: names(reflector) == ["a", "b"])
                assert reflector.state == Reflecting()
                assert watched_from(again) == ["100"]


# --------------------------------------------------------------------------------------------------------- how fast


async def test_a_large_list_leaves_the_event_loop_responsive(crooked, transport):
    """20,000 objects list in well under a second of CPU; 2,000 stand for them here.

    What is measured is the CPU time of this thread between two beats: on a busy machine it stands still as well.
    """
    pods = [
        {**pod(f"p{i}", labels={"a": "b"}), "spec": {"containers": [{"name": "c", "resources": {}}]}}
        for i in range(500)
    ]
    bodies = [page(*pods, token="more").body, page(*pods).body]

    async def paged(request):
        await asyncio.sleep(0)
        return web.Response(body=bodies[crooked.count(watches=False) >= 4])

    serve(crooked, lists=[paged], watches=[streaming()])
    stalls = []

    async def heartbeat():
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            stalls.append(time.thread_time() - began)

    beating = asyncio.create_task(heartbeat())
    async with reflecting(transport, indexes={"label": lambda pod: pod.metadata.labels.values()}) as reflector:
        assert len(reflector.by_index("label", "b")) == 500
    beating.cancel()
    assert max(stalls) < 0.25
