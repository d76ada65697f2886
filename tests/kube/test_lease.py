import asyncio
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest
from aiohttp import web
from crooked_api import CrookedApi, status, write_kubeconfig

from scaler.errors import ConfigurationError, KubeError
from scaler.kube.lease import LeaderElector
from scaler.kube.resources import LEASE
from scaler.kube.transport import KubeTransport

TIMING = {"lease_duration": 0.6, "renew_deadline": 0.4, "retry_period": 0.04}
"""For handing over quickly."""
STEADY = {"lease_duration": 3.0, "renew_deadline": 2.5, "retry_period": 0.04}
"""For holding on through a machine's busy moments, where a test has to outlast the Lease."""
LONG = {"lease_duration": 30, "renew_deadline": 20, "retry_period": 0.04}
"""For what must not depend on the Lease running out."""
PATH = LEASE.path("default", "it")


class Stage:
    """Where leaders act, and where it is seen how many do so at once."""

    def __init__(self) -> None:
        self.acting: list[str] = []
        self.history: list[tuple[str, str, float]] = []
        self.most = 0

    def part(self, name: str, *, leaves_slowly: float = 0.0):
        async def act() -> None:
            self.acting.append(name)
            self.most = max(self.most, len(self.acting))
            self.history.append(("enter", name, time.monotonic()))
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(leaves_slowly)
                self.acting.remove(name)
                self.history.append(("leave", name, time.monotonic()))

        return act

    def when(self, what: str, name: str) -> float:
        return next(at for did, who, at in reversed(self.history) if (did, who) == (what, name))


@pytest.fixture
def stage():
    shown = Stage()
    yield shown
    assert shown.most <= 1, "two replicas led at once"


@pytest.fixture
async def campaign(stage):
    """Starts electors; ends them all in the end."""
    running: list[asyncio.Task[None]] = []

    def start(transport: KubeTransport, name: str, *, timing=TIMING, work=None, **part):
        elector = LeaderElector(transport, namespace="default", name="it", identity=name, **timing)
        task = asyncio.create_task(elector.run(work or stage.part(name, **part)))
        running.append(task)
        return elector, task

    yield start
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_shown(transport, shows: Callable[[dict], bool]) -> None:
    """Returns once the Lease's spec is like that; there may be none before."""

    async def is_shown() -> bool:
        try:
            return shows((await record(transport))["spec"])
        except KubeError:
            return False

    async with asyncio.timeout(30):
        while not await is_shown():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def record(transport):
    return msgspec.json.decode(await transport.get(PATH))


async def stop(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def lease(holder, *, seconds=1, renewed="2026-11-20T18:00:00.000000Z", **metadata):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed, "leaseTransitions": 4}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "it", "namespace": "default", **metadata},
        "spec": spec,
    }


# ---------------------------------------------------------------------------------------------------- one candidate


async def test_the_only_candidate_leads_and_says_so_in_the_lease(client, campaign, stage):
    elector, _ = campaign(client, "a", timing=LONG | {"lease_duration": 29.6})
    await until(lambda: stage.acting == ["a"])
    assert elector.is_leader
    spec = (await record(client))["spec"]
    assert spec["holderIdentity"] == elector.identity == elector.holder
    assert spec["leaseDurationSeconds"] == 30
    assert spec["leaseTransitions"] == 0
    for name in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec[name])


async def test_a_leader_goes_on_leading(client, campaign, stage):
    elector, _ = campaign(client, "a", timing=STEADY)
    await until(lambda: elector.is_leader)
    began = (await record(client))["spec"]
    await asyncio.sleep(2.6)
    assert [did for did, *_ in stage.history] == ["enter"]
    now = (await record(client))["spec"]
    assert now["renewTime"] > began["renewTime"]
    assert now["acquireTime"] == began["acquireTime"]


async def test_nobody_leads_before_the_lease_is_won(kube_api, client, campaign, stage):
    kube_api.faults.drop_connections = True
    elector, _ = campaign(client, "a")
    await until(lambda: elector.problem != "")
    assert not elector.is_leader
    assert stage.history == []
    kube_api.faults.drop_connections = False
    await until(lambda: stage.acting == ["a"])
    assert elector.problem == ""


async def test_a_leader_outlives_single_failures(kube_api, client, campaign, stage):
    elector, _ = campaign(client, "a", timing=LONG)
    await until(lambda: elector.is_leader)
    for code in (500, 429, 503):
        kube_api.faults.fail_next(2, status=code, path_part="leases")
        await asyncio.sleep(0.15)
    assert [did for did, *_ in stage.history] == ["enter"]


async def test_a_leader_outlives_the_deletion_of_its_lease(client, campaign, stage):
    elector, _ = campaign(client, "a", timing=LONG)
    await until(lambda: elector.is_leader)
    await client.delete(PATH)
    await until_shown(client, lambda spec: spec["holderIdentity"] == elector.identity)
    assert [did for did, *_ in stage.history] == ["enter"]


async def test_what_others_wrote_into_the_lease_stays(client, campaign, stage):
    await client.create(LEASE.path("default"), lease("", labels={"team": "ml"}))
    campaign(client, "a")
    await until(lambda: stage.acting == ["a"])
    assert (await record(client))["metadata"]["labels"] == {"team": "ml"}


async def test_a_missing_right_is_a_problem_that_is_told(crooked, transport, campaign, stage):
    async def forbid(_):
        return status(403, "Forbidden", "leases is forbidden")

    crooked.handler = forbid
    elector, _ = campaign(transport, "a")
    await until(lambda: "verb 'get' on 'leases'" in elector.problem)
    assert stage.history == []


# -------------------------------------------------------------------------------------------------------- succession


async def test_of_two_candidates_one_leads(connect, campaign, stage):
    electors = [campaign(await connect(), name, timing=LONG)[0] for name in "ab"]
    await until(lambda: len(stage.acting) == 1)
    await until(lambda: electors[0].holder == electors[1].holder != "")
    await asyncio.sleep(0.3)
    assert sorted(elector.is_leader for elector in electors) == [False, True]


async def test_many_candidates_pass_the_lease_on_one_by_one(connect, campaign, stage):
    tasks = {name: campaign(await connect(), name)[1] for name in "abcd"}
    for _ in range(3):
        await until(lambda: len(stage.acting) == 1)
        await stop(tasks[stage.acting[0]])
    await until(lambda: len(stage.acting) == 1)
    assert len({name for _, name, _ in stage.history}) == 4


async def test_a_leader_that_stops_releases_the_lease_at_once(connect, campaign, stage):
    _, first = campaign(await connect(), "a", timing=LONG)
    await until(lambda: stage.acting == ["a"])
    campaign(await connect(), "b", timing=LONG)
    await stop(first)
    await until(lambda: stage.acting == ["b"], 15.0)
    assert (await record(await connect()))["spec"]["leaseTransitions"] >= 1


async def test_work_ends_before_the_lease_is_released(connect, campaign, stage):
    """Although it takes longer to end than the Lease lasts."""
    _, first = campaign(await connect(), "a", timing=STEADY, leaves_slowly=3.1)
    await until(lambda: stage.acting == ["a"])
    campaign(await connect(), "b", timing=STEADY)
    await stop(first)
    await until(lambda: stage.acting == ["b"])
    assert stage.when("enter", "b") > stage.when("leave", "a")


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2199-01-01T00:00:00.000000Z", None])
async def test_a_dead_leader_is_succeeded_after_the_lease_duration_whatever_its_clock_said(
    client, campaign, stage, renewed
):
    await client.create(LEASE.path("default"), lease("dead", renewed=renewed))
    began = time.monotonic()
    campaign(client, "a")
    await until(lambda: stage.acting == ["a"])
    assert time.monotonic() - began >= 0.6
    assert (await record(client))["spec"]["leaseTransitions"] == 5


async def test_a_holder_with_a_longer_lease_is_given_its_time(client, campaign, stage):
    await client.create(LEASE.path("default"), lease("dead", seconds=2))
    began = time.monotonic()
    campaign(client, "a")
    await until(lambda: stage.acting == ["a"])
    assert time.monotonic() - began >= 2.0


async def test_a_holder_that_renews_is_waited_for(client, campaign, stage):
    await client.create(LEASE.path("default"), lease("alive", seconds=2))
    campaign(client, "a")
    for second in range(22):
        await client.patch(PATH, {"spec": {"renewTime": f"2026-11-20T18:00:{second:02}.000000Z"}})
        await asyncio.sleep(0.1)
    assert stage.history == []


async def test_a_leader_whose_lease_was_taken_stops_at_once(client, campaign, stage):
    elector, _ = campaign(client, "a", timing=LONG)
    await until(lambda: elector.is_leader)
    await client.patch(PATH, {"spec": {"holderIdentity": "usurper"}})
    await until(lambda: stage.acting == [], 10.0)
    assert (elector.is_leader, elector.holder) == (False, "usurper")


async def test_a_lease_that_is_deleted_makes_no_second_leader(connect, campaign, stage):
    """The follower sees the deletion long before the leader does."""
    seldom = LONG | {"retry_period": 1.5}
    often = LONG | {"retry_period": 0.01}
    leader, _ = campaign(await connect(), "a", timing=seldom)
    await until(lambda: leader.is_leader)
    follower, _ = campaign(await connect(), "b", timing=often)
    await until(lambda: follower.holder == leader.identity)
    await (await connect()).delete(PATH)
    await until(lambda: follower.holder == "")
    await until(lambda: follower.holder == leader.identity)
    assert stage.acting == ["a"]


async def test_two_processes_of_the_same_name_do_not_both_lead(connect, campaign, stage):
    first, _ = campaign(await connect(), "same")
    second, _ = campaign(await connect(), "same")
    await until(lambda: len(stage.acting) == 1)
    await asyncio.sleep(0.3)
    assert first.identity != second.identity


# ---------------------------------------------------------------------------------------------------- a cut-off leader


class Wire:
    """A connection to an API that can be cut, or hang."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.state = "whole"
        self.loses_answers = False
        self.lost = 0

    async def forward(self, request: web.Request) -> web.StreamResponse:
        if self.state == "hanging":
            await asyncio.sleep(60)
        if self.state == "cut" and request.transport is not None:
            request.transport.abort()
        body = await request.read()
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with aiohttp.request(
            request.method, f"{self.target}{request.raw_path}", data=body, headers=headers
        ) as answer:
            whole = await answer.read()
        if self.loses_answers and request.method == "PUT" and request.transport is not None:
            self.lost += 1
            request.transport.abort()
        return web.Response(status=answer.status, body=whole, content_type="application/json")


@pytest.fixture
async def wired(kube_api, tmp_path):
    """A client behind a wire, and the wire."""
    wire = Wire(kube_api.url)
    api = CrookedApi()
    api.handler = wire.forward
    async with AsyncExitStack() as exits:
        await exits.enter_async_context(api.serving())
        kubeconfig = write_kubeconfig(tmp_path / "wired", api.url)
        yield await exits.enter_async_context(await KubeTransport.connect(kubeconfig)), wire


@pytest.mark.parametrize("fault", ["hanging", "cut"])
async def test_a_leader_that_cannot_renew_stops_before_its_successor_starts(connect, wired, campaign, stage, fault):
    behind, wire = wired
    leader, _ = campaign(behind, "a")
    await until(lambda: stage.acting == ["a"])
    follower, _ = campaign(await connect(), "b")
    await asyncio.sleep(0.1)
    wire.state = fault
    cut_at = time.monotonic()
    await until(lambda: not leader.is_leader)
    assert time.monotonic() - cut_at < 20, "long before a call that hangs would end"
    await until(lambda: stage.acting == ["b"])
    assert stage.when("leave", "a") < stage.when("enter", "b")
    assert stage.when("enter", "b") - cut_at < 20
    wire.state = "whole"
    await until(lambda: leader.holder == follower.identity)
    assert not leader.is_leader


async def test_a_renewal_whose_answer_is_lost_is_found_again(wired, campaign, stage):
    behind, wire = wired
    elector, _ = campaign(behind, "a", timing=LONG)
    await until(lambda: elector.is_leader)
    wire.loses_answers = True
    await until(lambda: wire.lost >= 2)
    wire.loses_answers = False
    before = (await record(behind))["spec"]["renewTime"]
    await until_shown(behind, lambda spec: spec["renewTime"] > before)
    assert [did for did, *_ in stage.history] == ["enter"]


async def test_a_blocked_event_loop_does_not_prolong_leadership(client, campaign):
    elector, _ = campaign(client, "a")
    await until(lambda: elector.is_leader)
    time.sleep(0.45)  # noqa: ASYNC251 (the event loop hangs, and with it every renewal)
    assert not elector.is_leader


async def test_an_api_that_hangs_does_not_keep_a_stopping_leader(connect, wired, campaign, stage):
    behind, wire = wired
    _, task = campaign(behind, "a")
    await until(lambda: stage.acting == ["a"])
    wire.state = "hanging"
    began = time.monotonic()
    await stop(task)
    assert time.monotonic() - began < 20
    assert stage.acting == []


# -------------------------------------------------------------------------------------------------------------- work


async def test_work_that_comes_to_its_end_ends_the_campaign_and_releases(client, campaign):
    async def done() -> None:
        return

    elector, task = campaign(client, "a", work=done)
    await asyncio.wait_for(task, 30)
    assert not elector.is_leader
    assert (await record(client))["spec"]["holderIdentity"] == ""


async def test_a_bug_in_the_work_is_raised_and_releases(client, campaign):
    async def buggy() -> None:
        raise ZeroDivisionError

    _, task = campaign(client, "a", work=buggy)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, 30)
    assert (await record(client))["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("wrong", [{"retry_period": 20.0}, {"lease_duration": 5.0}, {"retry_period": 0.0}])
async def test_durations_that_cannot_work_are_refused(client, wrong):
    with pytest.raises(ConfigurationError, match="ascending order"):
        LeaderElector(client, namespace="default", name="it", identity="a", **wrong)
