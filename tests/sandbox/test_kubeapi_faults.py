"""The faults of the embedded Kubernetes API: each while it is set, none afterwards, and what outlives a stop."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from sandbox.kubeapi_session import CONFIG_MAPS, MERGE, Session, next_event, serving
from scaler_sandbox.kubeapi import KubeApi


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with serving(KubeApi()) as session:
        yield session


@pytest.mark.parametrize(
    ("status", "reason", "retry_after"),
    [
        (409, "Conflict", None),
        (429, "TooManyRequests", "1"),
        (500, "InternalError", None),
        (503, "ServiceUnavailable", "1"),
    ],
)
async def test_the_next_requests_fail(session: Session, status: int, reason: str, retry_after: str | None) -> None:
    session.api.faults.fail_next(2, status=status)
    for _ in range(2):
        async with session.http.get(session.api.url + CONFIG_MAPS) as response:
            body = await response.json()
            assert (response.status, body["kind"], body["reason"]) == (status, "Status", reason)
            assert response.headers.get("Retry-After") == retry_after
    assert (await session.call("GET", CONFIG_MAPS))[0] == 200


async def test_only_what_is_meant_fails(session: Session) -> None:
    await session.create("one")
    session.api.faults.fail_next(method="PATCH", path_part="/one")
    assert (await session.call("GET", f"{CONFIG_MAPS}/one"))[0] == 200
    await session.create("two")
    for expected in (500, 200):
        status, _ = await session.call("PATCH", f"{CONFIG_MAPS}/one", {"data": {"a": "1"}}, kind=MERGE)
        assert status == expected


async def test_a_silent_watch_stays_open_and_later_tells_what_it_missed(session: Session) -> None:
    async with session.watch(f"&resourceVersion={await session.revision()}") as watch:
        session.api.faults.silence_watches = True
        await session.create("one")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await watch.content.readline()
        session.api.faults.silence_watches = False
        kind, body = await next_event(watch)
    assert (kind, body["metadata"]["name"]) == ("ADDED", "one")


async def test_compaction_forgets_events_and_list_snapshots(session: Session) -> None:
    for name in ("a", "b", "c"):
        await session.create(name)
    page = (await session.call("GET", f"{CONFIG_MAPS}?limit=1"))[1]
    await session.create("d")
    session.api.faults.compact_history()
    token = page["metadata"]["continue"]
    status, body = await session.call("GET", f"{CONFIG_MAPS}?limit=1&continue={token}")
    assert (status, body["reason"]) == (410, "Expired")
    async with session.watch(f"&resourceVersion={page['metadata']['resourceVersion']}") as watch:
        kind, error = await next_event(watch)
    assert (kind, error["code"]) == ("ERROR", 410)
    async with session.watch(f"&resourceVersion={await session.revision()}") as watch:
        await session.create("e")
        assert (await next_event(watch))[1]["metadata"]["name"] == "e"


async def test_objects_outlive_an_outage_and_the_address_stays(session: Session) -> None:
    made = await session.create("kept", a="1")
    url = session.api.url
    await session.api.stop()
    with pytest.raises(aiohttp.ClientError):
        await session.call("GET", CONFIG_MAPS)
    assert await session.api.start() == url
    assert (await session.call("GET", f"{CONFIG_MAPS}/kept"))[1] == made


async def test_garbage_that_fell_before_an_outage_is_collected_after_it(session: Session) -> None:
    parent = await session.create("parent")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": parent["metadata"]["uid"]}
    await session.call("POST", CONFIG_MAPS, {"metadata": {"name": "child", "ownerReferences": [owner]}})
    await session.call("DELETE", f"{CONFIG_MAPS}/parent")
    await session.api.stop()
    await session.api.start()
    async with asyncio.timeout(300):
        while (await session.call("GET", f"{CONFIG_MAPS}/child"))[0] != 404:  # noqa: ASYNC110 - it is polled over HTTP
            await asyncio.sleep(0.01)
