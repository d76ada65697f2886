"""The election in virtual time, over a Lease in memory."""

import asyncio
import math
import re
from datetime import timedelta

import pytest
from kube.lease_api import LeaseApi
from virtual_clock import VirtualClock, until

from scaler.kube.lease import LeaderElector, LeaseTiming

LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD = 15.0, 10.0, 2.0


class Stage:
    """Where leaders act, and where it is seen how many do so at once."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.acting: list[str] = []
        self.history: list[tuple[str, str, float]] = []
        self.most = 0

    def part(self, name: str, *, leaves_slowly: float = 0.0):
        async def act() -> None:
            self.acting.append(name)
            self.most = max(self.most, len(self.acting))
            self.history.append(("enter", name, self._clock.monotonic()))
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await self._clock.sleep(leaves_slowly)
                self.acting.remove(name)
                self.history.append(("leave", name, self._clock.monotonic()))

        return act

    def when(self, what: str, name: str) -> float:
        return next(at for did, who, at in reversed(self.history) if (did, who) == (what, name))

    @property
    def moves(self) -> list[str]:
        return [f"{name} {did}s" for did, name, _ in self.history]


@pytest.fixture
def api(clock):
    return LeaseApi(clock)


@pytest.fixture
def stage(clock):
    shown = Stage(clock)
    yield shown
    assert shown.most <= 1, "two replicas led at once"


@pytest.fixture
async def campaign(api, clock, stage):
    """Starts electors; ends them all in the end."""
    running: list[asyncio.Task[None]] = []

    def start(name: str, client=None, *, work=None, leaves_slowly=0.0, **timing):
        elector = LeaderElector(
            client or api.client(),
            namespace="default",
            name="it",
            identity=name,
            timing=LeaseTiming(**timing),
            clock=clock,
        )
        task = asyncio.create_task(elector.run(work or stage.part(name, leaves_slowly=leaves_slowly)))
        running.append(task)
        return elector, task

    yield start
    for task in running:
        task.cancel()
    while not all(task.done() for task in running):
        await clock.advance(1.0)
    await asyncio.gather(*running, return_exceptions=True)


def lease(holder, *, seconds=15, renewed="2026-11-20T18:00:00.000000Z", **metadata):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed, "leaseTransitions": 4}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


# ---------------------------------------------------------------------------------------------------- one candidate


async def test_a_replica_does_not_lead_before_it_holds_the_lease(api, clock, campaign, stage):
    client = api.client()
    client.state = "cut"
    elector, _ = campaign("a", client)
    await clock.advance(LEASE_DURATION)
    assert "connection refused" in elector.problem
    assert (elector.is_leader, stage.moves) == (False, [])
    client.state = "connected"
    await until(clock, lambda: stage.acting == ["a"], within=1.2 * RETRY_PERIOD)
    assert elector.problem == ""


@pytest.mark.parametrize("status", [500, 429, 503, 409])
async def test_a_leader_outlives_failures_shorter_than_its_deadline(api, clock, campaign, stage, status):
    client = api.client()
    elector, _ = campaign("a", client)
    await until(clock, lambda: elector.is_leader)
    client.fails_with = [status] * 3
    await clock.advance(2 * LEASE_DURATION)
    assert (client.fails_with, stage.moves) == ([], ["a enters"])


async def test_a_leader_outlives_the_deletion_of_its_lease(api, clock, campaign, stage):
    elector, _ = campaign("a")
    await until(clock, lambda: elector.is_leader)
    api.delete()
    await clock.advance(2 * RETRY_PERIOD)
    assert api.spec["holderIdentity"] == elector.identity
    assert stage.moves == ["a enters"]


# -------------------------------------------------------------------------------------------------------- succession


async def test_many_candidates_pass_the_lease_on_one_by_one(clock, campaign, stage):
    tasks = {name: campaign(name)[1] for name in "abcd"}
    for _ in range(3):
        await until(clock, lambda: len(stage.acting) == 1, within=1.2 * RETRY_PERIOD)
        tasks[stage.acting[0]].cancel()
        await until(clock, lambda: not stage.acting)
    await until(clock, lambda: len(stage.acting) == 1)
    assert len({name for _, name, _ in stage.history}) == 4


async def test_work_ends_before_the_lease_is_released(clock, campaign, stage):
    """Although it takes longer to end than the Lease lasts."""
    _, first = campaign("a", leaves_slowly=2 * LEASE_DURATION)
    await until(clock, lambda: stage.acting == ["a"])
    campaign("b")
    first.cancel()
    await until(clock, lambda: stage.acting == ["b"])
    assert stage.when("enter", "b") > stage.when("leave", "a")


OVER = {
    "long ago": {"renewed": "1999-01-01T00:00:00.000000Z"},
    "to come": {"renewed": "2199-01-01T00:00:00.000000Z"},
    "not said": {"renewed": None},
    "with a longer Lease": {"seconds": 40},
}


@pytest.mark.parametrize("held", OVER.values(), ids=OVER)
async def test_a_dead_leader_is_succeeded_after_its_lease_duration_whatever_its_clock_said(
    api, clock, campaign, stage, held
):
    api.store(lease("dead", **held))
    campaign("a")
    await clock.advance(held.get("seconds", LEASE_DURATION) - 0.1)
    assert stage.moves == []
    await clock.advance(0.1 + 1.2 * RETRY_PERIOD)
    assert stage.acting == ["a"]
    assert api.spec["leaseTransitions"] == 5


async def test_up_to_when_others_have_led_is_what_the_first_look_says(api, clock, campaign, stage):
    """Its own renewals are none, and nothing is guessed: neither from no Lease, nor from a time that is none."""
    first, task = campaign("first")
    await until(clock, lambda: first.is_leader)
    await clock.advance(60)
    assert first.led_until is None, "there was no Lease"
    second, _ = campaign("second")
    await clock.advance(1)
    seen, now = second.led_until, clock.now()
    assert seen is not None
    assert now - timedelta(seconds=RETRY_PERIOD + 2) <= seen <= now
    task.cancel()
    await until(clock, lambda: second.is_leader)
    await clock.advance(60)
    assert second.led_until == seen
    for odd in ("yesterday", "2026-12-01T12:00:00", None, 5):
        api.change(renewTime=odd)
        third, _ = campaign(f"third-{odd}")
        await clock.advance(1)
        assert third.led_until is None


async def test_a_holder_that_renews_is_waited_for(api, clock, campaign, stage):
    api.store(lease("alive"))
    campaign("a")
    for second in range(30):
        api.change(renewTime=f"2026-11-20T18:00:{second:02}.000000Z")
        await clock.advance(LEASE_DURATION - 3.0)
    assert stage.moves == []


async def test_a_leader_whose_lease_was_taken_stops_at_its_next_renewal(api, clock, campaign, stage):
    elector, _ = campaign("a")
    await until(clock, lambda: elector.is_leader)
    api.change(holderIdentity="usurper")
    await clock.advance(2 * RETRY_PERIOD)
    assert (stage.acting, elector.is_leader, elector.holder) == ([], False, "usurper")


async def test_a_lease_that_is_deleted_makes_no_second_leader(api, clock, campaign, stage):
    """The follower sees the deletion long before the leader does."""
    leader, _ = campaign("a", lease_duration=30, renew_deadline=20, retry_period=5)
    await until(clock, lambda: leader.is_leader)
    follower, _ = campaign("b", lease_duration=30, renew_deadline=20, retry_period=0.1)
    await until(clock, lambda: follower.holder == leader.identity)
    api.delete()
    await until(clock, lambda: follower.holder == "", within=1.0)
    await until(clock, lambda: follower.holder == leader.identity)
    assert stage.moves == ["a enters"]


async def test_two_processes_of_the_same_name_do_not_both_lead(clock, campaign):
    first, _ = campaign("same")
    second, _ = campaign("same")
    await clock.advance(4 * LEASE_DURATION)
    assert first.identity != second.identity
    assert first.is_leader is not second.is_leader


# ---------------------------------------------------------------------------------------------------- a cut-off leader


@pytest.mark.parametrize("fault", ["hanging", "cut"])
async def test_a_leader_that_cannot_renew_stops_before_its_successor_starts(api, clock, campaign, stage, fault):
    client = api.client()
    leader, _ = campaign("a", client)
    await until(clock, lambda: stage.acting == ["a"])
    follower, _ = campaign("b")
    await clock.advance(LEASE_DURATION)
    client.state = fault
    cut_at = clock.monotonic()
    await until(clock, lambda: stage.acting == ["b"])
    assert stage.when("leave", "a") < stage.when("enter", "b")
    assert RENEW_DEADLINE - 1.01 * RETRY_PERIOD <= stage.when("leave", "a") - cut_at <= RENEW_DEADLINE
    # The last renewal is seen up to one look later, and that the wait is over, up to one more.
    assert stage.when("enter", "b") - cut_at <= LEASE_DURATION + 2 * 1.2 * RETRY_PERIOD
    client.state = "connected"
    await until(clock, lambda: leader.holder == follower.identity)
    assert not leader.is_leader


async def test_a_renewal_whose_answer_is_lost_is_found_again(api, clock, campaign, stage):
    client = api.client()
    elector, _ = campaign("a", client)
    await until(clock, lambda: elector.is_leader)
    client.loses_answers_of_writes = True
    await clock.advance(RENEW_DEADLINE - RETRY_PERIOD - 0.5)
    client.loses_answers_of_writes = False
    before = api.spec["renewTime"]
    await clock.advance(2 * LEASE_DURATION)
    assert api.spec["renewTime"] > before
    assert stage.moves == ["a enters"]


async def test_a_blocked_event_loop_does_not_prolong_leadership(clock, campaign):
    elector, _ = campaign("a")
    await until(clock, lambda: elector.is_leader)
    clock.jump(RENEW_DEADLINE)
    assert not elector.is_leader


async def test_an_api_that_hangs_does_not_keep_a_stopping_leader(api, clock, campaign, stage):
    client = api.client()
    _, task = campaign("a", client)
    await until(clock, lambda: stage.acting == ["a"])
    client.state = "hanging"
    task.cancel()
    await until(clock, task.done, within=LEASE_DURATION)
    assert stage.acting == []


# -------------------------------------------------------------------------------------------------------------- work


async def test_work_that_comes_to_its_end_ends_the_campaign_and_releases(api, clock, campaign):
    async def done() -> None:
        await clock.sleep(1)

    elector, task = campaign("a", work=done, lease_duration=29.6, renew_deadline=20)
    await until(clock, lambda: elector.is_leader)
    assert api.spec["holderIdentity"] == elector.identity == elector.holder
    assert (api.spec["leaseDurationSeconds"], api.spec["leaseTransitions"]) == (30, 0)
    for name in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", api.spec[name]), "a MicroTime"
    await until(clock, task.done)
    assert task.exception() is None
    assert not elector.is_leader
    assert api.spec["holderIdentity"] == ""


async def test_a_bug_in_the_work_is_raised_and_releases(api, clock, campaign):
    async def buggy() -> None:
        raise ZeroDivisionError

    _, task = campaign("a", work=buggy)
    await until(clock, task.done)
    assert isinstance(task.exception(), ZeroDivisionError)
    assert api.spec["holderIdentity"] == ""


# ---------------------------------------------------------------------------------------------- nobody leads anywhere


async def test_every_replica_knows_that_one_leads_and_since_when_none_does(api, clock, campaign):
    leading, follower = api.client(), api.client()
    leader, _ = campaign("a", leading)
    assert leader.leaderless_seconds == math.inf, "nobody ever has"
    await until(clock, lambda: leader.is_leader)
    watcher, _ = campaign("b", follower)
    await clock.advance(10 * LEASE_DURATION)
    assert leader.leaderless_seconds == 0
    assert watcher.leaderless_seconds <= 2 * RETRY_PERIOD
    # The API answers nobody any more: the leader stops, and the other one has no way to know of a third.
    leading.state = follower.state = "cut"
    await clock.advance(150)
    assert not leader.is_leader
    assert all(140 <= each.leaderless_seconds <= 155 for each in (leader, watcher))
    leading.state = "connected"
    await clock.advance(2 * LEASE_DURATION)
    assert leader.leaderless_seconds == 0


@pytest.mark.parametrize("status", [403, 500])
async def test_a_lease_that_may_be_read_and_not_taken_is_nobodys(api, clock, campaign, status):
    """That of a leader that has died is read again and again, and says nothing."""
    leader, task = campaign("a")
    await until(clock, lambda: leader.is_leader)
    task.cancel()
    await until(clock, task.done)
    client = api.client()
    other, _ = campaign("b", client)
    client.refuses_writes_with = status
    await clock.advance(150)
    assert not other.is_leader
    assert other.leaderless_seconds >= 150
    assert str(status) in other.problem
