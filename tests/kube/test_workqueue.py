import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_clock import settle

from scaler.kube.watch_backoff import Backoff
from scaler.kube.workqueue import QueueClosed, WorkQueue


@pytest.fixture
def queue(clock):
    return WorkQueue(clock=clock)


async def next_keys(queue):
    """What the queue hands out now, to as many workers as want any."""
    keys = []
    while True:
        getting = asyncio.create_task(queue.get())
        await settle()
        if not getting.done():
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            return keys
        keys.append(getting.result())


async def test_a_key_in_work_is_not_handed_out_again_before_it_is_done(queue):
    queue.add("a")
    assert await next_keys(queue) == ["a"]
    queue.add("a")
    assert await next_keys(queue) == []
    queue.done("a")
    assert await next_keys(queue) == ["a"]
    queue.done("a")
    assert await next_keys(queue) == []


async def test_workers_that_wait_are_woken(queue):
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await settle()
    queue.add("a")
    queue.add("b")
    assert sorted(await asyncio.gather(*waiting)) == ["a", "b"]


async def test_a_worker_that_gives_up_waiting_takes_no_key_along(queue):
    waiting = asyncio.create_task(queue.get())
    await settle()
    queue.add("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await next_keys(queue) == ["a"]


@pytest.mark.parametrize(
    ("additions", "due"),
    [([60.0], 60.0), ([60.0, 20.0, 30.0], 20.0), ([20.0, 60.0], 20.0), ([20.0, 0.0], 0.0), ([0.0, 20.0], 0.0)],
)
async def test_a_delayed_key_comes_once_when_the_earliest_of_its_additions_is_due(queue, clock, additions, due):
    for seconds in additions:
        queue.add_after("a", seconds)
    assert len(queue) == (due == 0)
    if due:
        await clock.advance(due - 0.1)
        assert await next_keys(queue) == []
        await clock.advance(0.1)
    assert await next_keys(queue) == ["a"]
    queue.done("a")
    await clock.advance(3600)
    assert await next_keys(queue) == (["a"] if additions == [0.0, 20.0] else [])


async def test_a_key_that_fails_comes_back_later_each_time_until_it_is_forgotten(clock):
    queue = WorkQueue(backoff=Backoff(base=1, cap=5), clock=clock)
    for expected in (1, 2, 4, 5, 5):
        assert queue.retry("a") == expected
        await clock.advance(expected - 0.1)
        assert await next_keys(queue) == []
        await clock.advance(0.1)
        assert await next_keys(queue) == ["a"]
        queue.done("a")
    assert (queue.failures("a"), queue.failures("b"), queue.failing) == (5, 0, 1)
    assert queue.retry("b") == 1
    queue.forget("a")
    assert (queue.failures("a"), queue.retry("a")) == (0, 1)


async def test_closing_ends_all_waiting_and_hands_nothing_out_any_more(queue, clock):
    queue.add_after("late", 10)
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await settle()
    queue.close()
    assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [QueueClosed] * 2
    queue.add("a")
    queue.add_after("a", 10)
    await clock.advance(60)
    assert len(queue) == 0
    with pytest.raises(QueueClosed):
        await queue.get()


@given(st.lists(st.sampled_from(["add a", "add b", "get", "done"]), max_size=40))
def test_no_addition_is_lost_and_no_key_is_ever_in_work_twice(steps):
    """Whatever is added is handed out at least once after that."""

    async def play():
        queue, in_work, pending = WorkQueue(), [], set()
        for step in steps:
            if step.startswith("add"):
                queue.add(step[-1])
                pending.add(step[-1])
            elif step == "done" and in_work:
                queue.done(in_work.pop(0))
            elif step == "get" and pending - set(in_work):
                key = await queue.get()
                assert key not in in_work
                pending.discard(key)
                in_work.append(key)
        for key in in_work:
            queue.done(key)
        assert {await queue.get() for _ in range(len(pending))} == pending
        assert len(queue) == 0

    asyncio.run(asyncio.wait_for(play(), 30))
