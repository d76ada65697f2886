"""Writes that the API refuses, one by one and many at once."""

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.writes import Doubts, is_written, write_all

log = structlog.get_logger(__name__)


async def sent(error: KubeError | None = None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize(("status", "level"), [(404, "debug"), (409, "debug"), (403, "warning"), (0, "warning")])
async def test_what_is_refused_is_logged_and_left_to_the_next_tick(status: int, level: str) -> None:
    with capture_logs() as logged:
        assert not await is_written(sent(KubeError("refused", status=status)), log, "not written", name="a")
    assert logged == [{"event": "not written", "name": "a", "error": "refused", "log_level": level}]
    assert await is_written(sent(), log, "not written")


async def test_who_has_lost_the_lease_goes_no_further() -> None:
    with pytest.raises(KubeError, match="lost"):
        await is_written(sent(KubeError("lost", reason=NOT_LEADING)), log, "not written")


async def test_many_are_sent_a_few_at_once_and_a_failure_is_raised_when_all_have_ended() -> None:
    under_way, most, done = 0, 0, list[int]()

    async def write(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if number == 1:
            raise KubeError("one")
        done.append(number)
        return 10 * number

    with pytest.raises(KubeError, match="one"):
        await write_all(range(7), write, at_once=3)
    assert (most, sorted(done)) == (3, [0, 2, 3, 4, 5, 6])
    assert await write_all([5, 4], write, at_once=3) == [50, 40]


REFUSED = [KubeError("", status=status) for status in (400, 403, 404, 409, 422, 429)]
REFUSED.append(KubeError("", reason=NOT_LEADING))
NO_ANSWER = [KubeError("", status=status) for status in (0, 500, 501, 503, 504)] + [asyncio.CancelledError()]


@pytest.mark.parametrize("error", [*REFUSED, *NO_ANSWER], ids=repr)
def test_a_write_that_is_not_answered_may_have_been_done_and_one_that_is_refused_has_not(error: BaseException) -> None:
    doubts = Doubts[str]()
    with pytest.raises(type(error)), doubts.held("a"):
        raise error
    assert doubts.open == (["a"] if error in NO_ANSWER else [])
    doubts.read("a")
    assert doubts.open == []


def test_a_write_that_is_answered_leaves_no_doubt() -> None:
    doubts = Doubts[str]()
    with doubts.held("a"), doubts.held("b"):
        assert doubts.open == ["a", "b"]
    assert doubts.open == []
