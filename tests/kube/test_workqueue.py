import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.kube.backoff import Backoff
from scaler.kube.workqueue import QueueClosed, WorkQueue


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 30)


async def nothing_comes(queue, seconds=0.03):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), seconds)


async def test_keys_come_in_the_order_of_their_addition():
    queue = WorkQueue()
    for key in "abc":
        queue.add(key)
    assert [await soon(queue.get()) for _ in "abc"] == ["a", "b", "c"]


async def test_a_key_that_waits_is_not_added_again():
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    await soon(queue.get())
    await nothing_comes(queue)


async def test_a_key_in_work_is_not_handed_out_again_before_it_is_done():
    queue = WorkQueue()
    queue.add("a")
    await soon(queue.get())
    queue.add("a")
    await nothing_comes(queue)
    queue.done("a")
    assert await soon(queue.get()) == "a"
    queue.done("a")
    await nothing_comes(queue)


async def test_who_waits_is_woken():
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert sorted(await soon(asyncio.gather(*waiting))) == ["a", "b"]


async def test_who_gives_up_waiting_takes_no_key_along():
    queue = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await soon(queue.get()) == "a"


async def test_a_delayed_key_comes_when_it_is_due():
    queue = WorkQueue()
    loop = asyncio.get_running_loop()
    began = loop.time()
    queue.add_after("a", 0.05)
    assert len(queue) == 0
    assert await soon(queue.get()) == "a"
    assert loop.time() - began >= 0.05


async def test_the_earliest_of_several_delays_counts():
    queue = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.02)
    queue.add_after("a", 30)
    assert await soon(queue.get()) == "a"
    queue.done("a")
    await nothing_comes(queue)


async def test_an_addition_without_delay_overtakes_the_delayed_one():
    queue = WorkQueue()
    queue.add_after("a", 0.02)
    queue.add("a")
    assert await soon(queue.get()) == "a"
    queue.done("a")
    await nothing_comes(queue)


async def test_a_key_that_fails_comes_back_later_each_time_until_it_is_forgotten():
    queue = WorkQueue(backoff=Backoff(base=1, cap=5))
    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert queue.retry("b") == 1
    assert queue.failures("a") == 5
    queue.forget("a")
    assert (queue.failures("a"), queue.retry("a")) == (0, 1)
    queue.close()


async def test_a_retried_key_does_come_back():
    queue = WorkQueue(backoff=Backoff(base=0.01))
    queue.add("a")
    await soon(queue.get())
    queue.retry("a")
    queue.done("a")
    assert await soon(queue.get()) == "a"


async def test_closing_ends_all_waiting_and_hands_nothing_out_any_more():
    queue = WorkQueue()
    queue.add_after("late", 0.01)
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.close()
    for task in waiting:
        with pytest.raises(QueueClosed):
            await soon(task)
    queue.add("a")
    queue.add_after("a", 0.01)
    await asyncio.sleep(0.03)
    assert len(queue) == 0
    with pytest.raises(QueueClosed):
        await soon(queue.get())


@given(st.lists(st.sampled_from(["add a", "add b", "get", "done"]), max_size=40))
def test_no_addition_is_lost_and_no_key_is_ever_in_work_twice(steps):
    """Whatever is added is handed out at least once after that."""

    async def play():
        queue, in_work, owed = WorkQueue(), [], set()
        for step in steps:
            if step.startswith("add"):
                queue.add(step[-1])
                owed.add(step[-1])
            elif step == "done" and in_work:
                queue.done(in_work.pop(0))
            elif step == "get" and owed - set(in_work):
                key = await soon(queue.get())
                assert key not in in_work
                owed.discard(key)
                in_work.append(key)
        for key in in_work:
            queue.done(key)
        assert {await soon(queue.get()) for _ in range(len(owed))} == owed
        assert len(queue) == 0

    asyncio.run(play())
