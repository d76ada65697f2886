import asyncio
import json
import time
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from kube import scripted_api
from kube.faulty_api import hang, is_watch, page, status, stream, write_kubeconfig
from kube.scripted_api import pod

from scaler.errors import KubeError
from scaler.kube.objects.resources import POD
from scaler.kube.transport import KubeTransport

PODS, ONE = POD.path("ns"), POD.path("ns", "p")


def event(kind, obj):
    return scripted_api.event(kind, obj) + b"\n"


def bookmark(version):
    return scripted_api.bookmark(version) + b"\n"


def answers(*responses):
    """A handler that gives these answers one after the other, the last one for ever."""
    left = list(responses)

    async def handler(_):
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer() if callable(answer) else answer

    return handler


async def failure(awaitable) -> KubeError:
    with pytest.raises(KubeError) as raised:
        await awaitable
    return raised.value


# ------------------------------------------------------------------------------------------------------------ reads


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_a_read_is_repeated_after_a_transient_refusal(faulty, transport, code):
    faulty.handler = answers(status(code), web.Response(body=b"{}"))
    assert await transport.get(PODS) == b"{}"
    assert len(faulty.requests) == 2


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 410, 422])
async def test_a_read_is_not_repeated_after_a_final_refusal(faulty, transport, code):
    faulty.handler = answers(lambda: status(code, "Reason", "because"))
    error = await failure(transport.get(PODS))
    assert (error.status, error.reason, len(faulty.requests)) == (code, "Reason", 1)


async def test_a_read_is_given_up_after_three_refusals(faulty, transport):
    faulty.handler = answers(lambda: status(503))
    assert (await failure(transport.get(PODS))).status == 503
    assert len(faulty.requests) == 3


async def test_a_read_waits_as_long_as_the_server_asks(faulty, transport):
    faulty.handler = answers(status(429, **{"Retry-After": "1"}), web.Response(body=b"{}"))
    began = time.monotonic()
    await transport.get(PODS)
    assert time.monotonic() - began >= 1.0


async def test_a_read_does_not_wait_beyond_its_deadline(faulty, transport):
    faulty.handler = answers(lambda: status(429, **{"Retry-After": "86400"}))
    assert (await failure(transport.get(PODS))).status == 429
    assert len(faulty.requests) == 1


async def test_a_hung_server_costs_no_more_than_the_deadline(faulty, transport, calls):
    faulty.handler = hang
    began = time.monotonic()
    error = await failure(transport.get(PODS, within=0.2))
    assert time.monotonic() - began < 20.0, "by itself a call has 30 s"
    assert (error.status, error.reason) == (0, "Timeout")
    assert f"list {PODS}" in str(error)
    assert [call.status for call in calls] == [0]


async def test_a_dripping_answer_costs_no_more_than_the_deadline(faulty, transport):
    async def drip(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    faulty.handler = drip
    began = time.monotonic()
    assert (await failure(transport.get(PODS, within=0.3))).reason == "Timeout"
    assert time.monotonic() - began < 20.0


async def test_an_answer_that_breaks_off_is_no_answer(faulty, transport):
    async def truncate(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"items": [')
        request.transport.close()
        return response

    faulty.handler = truncate
    error = await failure(transport.get(PODS))
    assert (error.status, error.reason, len(faulty.requests)) == (0, "Truncated", 3)


async def test_an_unreachable_server_is_reported_with_its_address(tmp_path):
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    async with await KubeTransport.connect(kubeconfig) as transport:
        error = await failure(transport.get(PODS))
    assert (error.status, error.reason) == (0, "Unreachable")
    assert "http://127.0.0.1:1" in str(error)


# ------------------------------------------------------------------------------------------------------------ lists


async def test_a_list_is_read_in_pages(faulty, transport):
    async def handler(request):
        assert "resourceVersion" not in request.query
        token = request.query.get("continue", "")
        return page(pod("a"), version=7, token="T/+=") if not token else page(pod("b"), version=7)

    faulty.handler = handler
    pages = [each async for each in transport.list_pages(PODS, {"labelSelector": "a in (b,c)"}, limit=1)]
    assert [len(each.items) for each in pages] == [1, 1]
    assert [request.query.get("continue") for request in faulty.requests] == [None, "T/+="]
    assert {request.query["labelSelector"] for request in faulty.requests} == {"a in (b,c)"}
    assert {request.query["limit"] for request in faulty.requests} == {"1"}


@pytest.mark.parametrize("body", [b"", b"not json", b'{"items": 5}', b"[]", b"\xff"])
async def test_what_is_not_a_list_is_an_error(faulty, transport, body):
    faulty.handler = answers(web.Response(body=body))

    async def read():
        async for _ in transport.list_pages(PODS):
            pass

    assert (await failure(read())).reason == "NotAList"


# ----------------------------------------------------------------------------------------------------------- writes

WRITES = {
    "create": (lambda t: t.create(PODS, {"a": 1}), "POST application/json", {"a": 1}, {}),
    "replace": (lambda t: t.replace(ONE, {"a": 1}), "PUT application/json", {"a": 1}, {}),
    "merge patch, with its nulls": (
        lambda t: t.patch(ONE, {"a": None, "b": []}, dry_run=True),
        *("PATCH application/merge-patch+json", {"a": None, "b": []}, {"dryRun": "All"}),
    ),
    "apply patch": (
        lambda t: t.patch(ONE, {"kind": "Pod"}, apply_as="idle gpu"),
        *("PATCH application/apply-patch+yaml", {"kind": "Pod"}, {"fieldManager": "idle gpu", "force": "true"}),
    ),
    "delete of one object": (
        lambda t: t.delete(ONE, uid="u"),
        *("DELETE application/json", {"preconditions": {"uid": "u"}}, {}),
    ),
}


@pytest.mark.parametrize(("write", "how", "body", "params"), WRITES.values(), ids=WRITES.keys())
async def test_a_write_is_sent_once_as_what_it_is(faulty, transport, write, how, body, params):
    faulty.handler = answers(lambda: status(503, **{"Retry-After": "0"}))
    assert (await failure(write(transport))).status == 503
    (sent,) = faulty.requests
    assert f"{sent.method} {sent.content_type}" == how
    assert (json.loads(faulty.bodies[0]), dict(sent.query)) == (body, params)


# ---------------------------------------------------------------------------------------------------------- watches


async def lines_of(transport, *, silence_seconds=30.0, into=None):
    into = [] if into is None else into
    async with transport.watch(PODS, {"resourceVersion": "1"}, silence_seconds=silence_seconds) as lines:
        async for line in lines:
            into.append(line)
    return into


async def test_lines_are_whole_however_the_bytes_come(faulty, transport):
    text = event("ADDED", pod("a")) + b"\n" + event("ADDED", pod("b" * 100_000)) + bookmark(5)

    async def handler(request):
        chunks = [text[i : i + 7] for i in range(0, 350, 7)] + [text[350:]]
        return await stream(request, *chunks, stays_open=False)

    faulty.handler = handler
    assert b"\n".join(await lines_of(transport)) + b"\n" == text.replace(b"\n\n", b"\n")


@pytest.mark.parametrize("end", [{"stays_open": False}, {"drops": True}], ids=["in order", "dropped"])
async def test_half_a_line_is_not_a_line(faulty, transport, end):
    faulty.handler = lambda request: stream(request, event("ADDED", pod("a")), b'{"type": "ADD', **end)
    seen = []
    assert (await failure(lines_of(transport, into=seen))).reason == "Truncated"
    assert seen == [event("ADDED", pod("a")).strip()]


async def test_a_silent_watch_dies_of_its_silence(faulty, transport):
    faulty.handler = lambda request: stream(request, event("ADDED", pod("a")))
    began, seen = time.monotonic(), []
    error = await failure(lines_of(transport, silence_seconds=0.3, into=seen))
    assert (error.status, error.reason) == (0, "Timeout")
    assert 0.3 <= time.monotonic() - began < 20.0
    assert len(seen) == 1


async def test_a_watch_may_outlast_the_deadline_of_calls(faulty, tmp_path):
    async def handler(request):
        response = await stream(request, bookmark(1), stays_open=False)
        for version in range(2, 6):
            await asyncio.sleep(0.4)
            await response.write(bookmark(version))
        return response

    faulty.handler = handler
    async with await KubeTransport.connect(write_kubeconfig(tmp_path / "k", faulty.url), call_seconds=1.5) as transport:
        assert len(await lines_of(transport)) == 5


async def test_a_watch_that_does_not_open_is_given_up(faulty, tmp_path):
    faulty.handler = hang
    async with await KubeTransport.connect(write_kubeconfig(tmp_path / "k", faulty.url), call_seconds=0.2) as transport:
        assert (await failure(lines_of(transport))).reason == "Timeout"


async def test_a_refused_watch_tells_why(faulty, transport):
    faulty.handler = answers(status(410, "Expired", "too old resource version"))
    error = await failure(lines_of(transport))
    assert (error.status, error.reason) == (410, "Expired")
    assert "list again" in str(error)


async def test_a_hundred_open_watches_leave_room_for_calls(faulty, transport):
    """The client keeps 100 connections at most by default: the 101st watch, and every call, would wait for ever."""

    async def answering(request):
        return await stream(request, bookmark(1)) if is_watch(request) else web.Response(body=b"{}")

    faulty.handler = answering
    async with AsyncExitStack() as watches, asyncio.timeout(300):
        for _ in range(110):
            lines = await watches.enter_async_context(transport.watch(PODS, silence_seconds=60))
            assert await anext(lines)
        assert await transport.get(PODS) == b"{}"


async def test_a_watch_that_is_left_closes_its_connection(faulty, transport):
    closed = asyncio.Event()

    async def handler(request):
        response = await stream(request, bookmark(1), stays_open=False)
        try:
            while True:
                await response.write(bookmark(2))
                await asyncio.sleep(0.01)
        except ConnectionResetError:
            closed.set()
            raise

    faulty.handler = handler
    async with transport.watch(PODS, silence_seconds=30) as lines:
        async for _ in lines:
            break
    await asyncio.wait_for(closed.wait(), 30)


# --------------------------------------------------------------------------------------------------------- observer


async def test_every_request_is_reported_to_the_observer(faulty, transport, calls):
    faulty.handler = answers(status(503), page(pod("a")))
    async for _ in transport.list_pages(PODS):
        pass
    faulty.handler = answers(lambda: status(403, "Forbidden"))
    await failure(transport.patch(POD.path("ns", "p", "status"), {}))
    faulty.handler = lambda request: stream(request, stays_open=False)
    await lines_of(transport)
    reported = [(call.verb, call.resource, call.status) for call in calls]
    assert reported == [
        ("list", "pods", 503),
        ("list", "pods", 200),
        ("patch", "pods/status", 403),
        ("watch", "pods", 200),
    ]
    assert all(0 <= call.seconds < 60 for call in calls)
