"""Watches: from a revision on, across selectors, with bookmarks, and their end."""

import asyncio

import pytest
from contract.contract_client import Json
from contract.contract_widgets import Widgets


async def revision(widgets: Widgets) -> str:
    return str((await widgets.client.get(widgets.path)).ok()["metadata"]["resourceVersion"])


def summary(events: list[tuple[str, Json]]) -> list[tuple[str, str]]:
    return [(kind, body["metadata"].get("name", "")) for kind, body in events]


async def test_a_watch_tells_every_change_after_its_revision(widgets: Widgets) -> None:
    await widgets.create("before", {})
    async with widgets.client.watch(widgets.path, resourceVersion=await revision(widgets)) as watch:
        await widgets.create("one", {})
        (await widgets.patch("one", {"spec": {"note": "x"}})).ok()
        (await widgets.patch("one", {"spec": {"note": "x"}})).ok()
        (await widgets.patch("one", {"status": {"phase": "p"}}, "status")).ok()
        (await widgets.client.delete(widgets.at("one"))).ok()
        await widgets.create("last", {})
        events = await watch.until("last")
    assert summary(events) == [("ADDED", "one"), ("MODIFIED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    revisions = [int(body["metadata"]["resourceVersion"]) for _, body in events]
    assert revisions == sorted(set(revisions))
    assert events[-1][1]["spec"]["note"] == "x"
    assert (events[0][1]["kind"], events[0][1]["apiVersion"]) == ("Widget", f"{widgets.group}/v1")


async def test_a_watch_resumes_where_another_ended(widgets: Widgets) -> None:
    async with widgets.client.watch(widgets.path, resourceVersion=await revision(widgets)) as watch:
        await widgets.create("one", {})
        _, seen = await watch.next()
    await widgets.create("two", {})
    await widgets.create("three", {})
    resumed = seen["metadata"]["resourceVersion"]
    await widgets.create("last", {})
    async with widgets.client.watch(widgets.path, resourceVersion=resumed) as watch:
        assert summary(await watch.until("last")) == [("ADDED", "two"), ("ADDED", "three")]


@pytest.mark.parametrize("asked", [None, "0"])
async def test_a_watch_from_nowhere_starts_with_the_state(widgets: Widgets, asked: str | None) -> None:
    await widgets.create("one", {})
    await widgets.create("two", {})
    query = {} if asked is None else {"resourceVersion": asked}
    async with widgets.client.watch(widgets.path, **query) as watch:
        state = [await watch.next(), await watch.next()]
        assert sorted(summary(state)) == [("ADDED", "one"), ("ADDED", "two")]
        await widgets.create("three", {})
        assert summary([await watch.next()]) == [("ADDED", "three")]


async def test_a_revision_that_is_forgotten_is_gone(widgets: Widgets) -> None:
    # A real server's watch cache begins when the resource is first served, long after revision 1.
    await widgets.create("one", {})
    async with widgets.client.watch(widgets.path, resourceVersion="1", timeoutSeconds=2) as watch:
        events = await watch.rest()
    kind, status = events[0]
    assert (kind, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", 410, "Expired")
    assert len(events) == 1


async def test_a_selector_turns_changes_into_coming_and_going(widgets: Widgets) -> None:
    await widgets.create("other", {})
    await widgets.create("one", {"note": "start"}, metadata={"labels": {"app": "no"}})
    query = {"labelSelector": "app=yes", "resourceVersion": await revision(widgets)}
    async with widgets.client.watch(widgets.path, **query) as watch:
        for app, note in (("no", "a"), ("yes", "b"), ("yes", "c"), ("no", "d"), ("yes", "e")):
            (await widgets.patch("one", {"metadata": {"labels": {"app": app}}, "spec": {"note": note}})).ok()
        left = (await widgets.get("one"))["metadata"]["resourceVersion"]
        (await widgets.client.delete(widgets.at("one"))).ok()
        await widgets.create("last", {}, metadata={"labels": {"app": "yes"}})
        events = await watch.until("last")
    assert [kind for kind, _ in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert [body["spec"]["note"] for _, body in events] == ["b", "c", "c", "e", "e"]
    gone = events[2][1]
    assert gone["metadata"]["labels"] == {"app": "yes"}
    assert int(events[1][1]["metadata"]["resourceVersion"]) < int(gone["metadata"]["resourceVersion"]) < int(left)


async def test_a_field_selector_works_on_watches(widgets: Widgets) -> None:
    query = {"fieldSelector": "metadata.name=one", "resourceVersion": await revision(widgets)}
    async with widgets.client.watch(widgets.path, **query) as watch:
        await widgets.create("two", {})
        await widgets.create("one", {})
        assert summary([await watch.next()]) == [("ADDED", "one")]


async def test_a_watch_of_a_namespace_hears_nothing_of_others(widgets: Widgets) -> None:
    elsewhere = f"/apis/{widgets.group}/v1/namespaces/default/widgets"
    async with widgets.client.watch(widgets.path, resourceVersion=await revision(widgets)) as watch:
        (await widgets.client.post(elsewhere, widgets.body(f"at-{widgets.namespace}", {}))).ok()
        (await widgets.client.delete(f"{elsewhere}/at-{widgets.namespace}")).ok()
        await widgets.create("one", {})
        assert summary([await watch.next()]) == [("ADDED", "one")]


async def test_a_watch_ends_cleanly_when_its_time_is_up(widgets: Widgets) -> None:
    started = asyncio.get_running_loop().time()
    async with widgets.client.watch(widgets.path, timeoutSeconds=1) as watch:
        assert await watch.rest() == []
    assert 0.5 < asyncio.get_running_loop().time() - started < 30


async def test_a_bookmark_comes_before_the_time_is_up_where_it_is_asked_for(widgets: Widgets) -> None:
    query: Json = {"resourceVersion": await revision(widgets), "timeoutSeconds": 3}

    async def follow(*, bookmarks: bool) -> list[tuple[str, Json]]:
        async with widgets.client.watch(widgets.path, **query, allowWatchBookmarks=bookmarks) as watch:
            return await watch.rest()

    asked, unasked, _ = await asyncio.gather(follow(bookmarks=True), follow(bookmarks=False), widgets.create("one", {}))
    assert [kind for kind, _ in unasked] == ["ADDED"]
    assert [kind for kind, _ in asked[:2]] == ["ADDED", "BOOKMARK"]
    seen, bookmark = (int(body["metadata"]["resourceVersion"]) for _, body in asked[:2])
    assert bookmark >= seen
    assert set(asked[1][1]) == {"kind", "apiVersion", "metadata"}
