"""Two replicas of the whole program on one API: both answer KEDA, one writes, and either can die at any moment."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import yaml
from running_scaler import Keda, Process, gpus, keda, metric, run_gang, runtime, settings_document
from small_cluster import NAME, SmallCluster, until

from scaler.app.process import Runtime
from scaler.errors import KubeError
from scaler.kube.objects.resources import LEASE


@pytest.fixture
async def cluster(cluster):
    await run_gang(cluster)
    return cluster


@pytest.fixture
async def document(cluster):
    """Settings for a gang that does nothing."""
    async with gpus() as (_, exporter):
        yield settings_document(cluster.kubeconfig, f"{exporter.url}/metrics")


async def holder(cluster: SmallCluster) -> str:
    """Who holds the Lease; empty where no replica does."""
    try:
        lease = json.loads(await cluster.kube.get(LEASE.path("default", "idle-gpu-scaler")))
    except KubeError:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


async def writes(replica: Runtime | Process) -> float:
    """Patches that this replica has sent; its Lease is written with updates."""
    return await metric(replica.http_port, "idle_gpu_scaler_kube_call_seconds_count", verb="patch")


def outlives_its_holder_briefly(document) -> None:
    """A Lease that is still long enough not to be lost, or given away, because the machine is busy."""
    document["kubernetes"]["lease"] |= {"duration": "3s", "renewDeadline": "2s"}


def answers_through_busy_moments(document) -> None:
    """An answer of 0 is good for one and a half intervals and a second: longer than a busy machine stands still."""
    document["evaluation"]["interval"] = document["trust"]["collectionInterval"] = "1s"


async def settled_writes(replica: Runtime | Process) -> float:
    """How many there are once no more come: what is still on its way when a process is stopped is counted later."""
    before, now = -1.0, await writes(replica)
    while now != before:
        await asyncio.sleep(0.6)  # three ticks
        before, now = now, await writes(replica)
    return now


async def leads(replica: Runtime | Process) -> bool:
    return await metric(replica.http_port, "idle_gpu_scaler_leader") == 1


async def is_ready(port: int) -> bool:
    async with keda(port) as client:
        return isinstance(await client.is_active(), bool)


@asynccontextmanager
async def polled(client: Keda) -> AsyncIterator[list[bool | grpc.StatusCode]]:
    """Asks without a pause; yields the answers so far."""
    answers: list[bool | grpc.StatusCode] = []

    async def ask() -> None:
        while True:
            answers.append(await client.is_active())
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(ask())
    try:
        yield answers
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_both_answer_and_only_the_leader_writes(cluster, document):
    async with runtime(document) as one, runtime(document) as other:
        await until(lambda: is_ready(one.grpc_port))
        await until(lambda: is_ready(other.grpc_port))
        async with keda(one.grpc_port) as to_one, keda(other.grpc_port) as to_other:
            await until(lambda: answers(to_one, False))
            await until(lambda: answers(to_other, False))
        await cluster.scale(0)
        await until(lambda: cluster.has_phase("Suspending"))
        await cluster.evict()
        await cluster.end_pods()
        await cluster.release()
        await until(lambda: cluster.has_phase("Suspended"))
        leading, following = (one, other) if await leads(one) else (other, one)
        assert [await leads(leading), await leads(following)] == [True, False]
        assert await writes(leading) > 0
        assert await writes(following) == 0
        assert (await cluster.reasons("Workload")) == ["GPUsIdle"]


async def answers(client: Keda, wanted: bool | grpc.StatusCode) -> bool:
    return await client.is_active() is wanted


async def has_reason(cluster: SmallCluster, reason: str) -> bool:
    return (await cluster.status()).get("reason") == reason


async def test_a_leader_that_stops_hands_over_at_once_and_the_other_never_stops_answering(cluster, document):
    document["kubernetes"]["lease"] |= {"duration": "60s", "renewDeadline": "40s"}
    answers_through_busy_moments(document)
    async with runtime(document) as leader:
        await until(lambda: leads(leader))
        async with runtime(document) as follower:
            await until(lambda: is_ready(follower.grpc_port))
            async with keda(follower.grpc_port) as client, polled(client) as heard:
                leader.stop()
                await until(lambda: leads(follower))
                await until(lambda: heard)
                assert {type(answer) for answer in heard} == {bool}
                await cluster.scale(0)
                await until(lambda: is_asleep(cluster))


async def is_asleep(cluster: SmallCluster) -> bool:
    return not await cluster.is_active()


@pytest.mark.slow
async def test_a_leader_that_is_killed_half_way_is_succeeded_within_its_lease(cluster, document, tmp_path):
    """It has deactivated the Workload and could not write that down."""
    outlives_its_holder_briefly(document)
    answers_through_busy_moments(document)
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump(document))
    async with Process(tmp_path / "log", "run", "--config", str(config)) as leader:
        await leader.listens()
        await until(lambda: holder(cluster))
        async with runtime(document) as follower:
            await until(lambda: is_ready(follower.grpc_port))
            async with keda(follower.grpc_port) as client, polled(client) as heard:
                with cluster.refusing("PATCH", f"/scalableworkloads/{NAME}/status"):
                    await cluster.scale(0)
                    await until(lambda: is_asleep(cluster))
                    # Between being asked to 0 and being inactive it is neither: an error, for some milliseconds.
                    await until(lambda: heard[-1] is False)
                    while_asked_for = len(heard)
                    dead = await holder(cluster)
                    assert not await leads(follower)
                    leader.send(signal.SIGKILL)
                killed_at = asyncio.get_running_loop().time()
                await until(lambda: leads(follower))
                # Three seconds of Lease, and up to 0.12 s between two looks; the rest is this machine's.
                assert asyncio.get_running_loop().time() - killed_at < 13, "by default it would be 15"
                assert await holder(cluster) != dead
                await until(lambda: cluster.has_phase("Suspending"))
                await until(lambda: len(heard) > while_asked_for)
                assert {type(answer) for answer in heard[while_asked_for:]} == {bool}
                assert set(heard[:while_asked_for]) <= {True, False, grpc.StatusCode.UNAVAILABLE}
        assert await leader.ended() == -signal.SIGKILL


@pytest.mark.slow
async def test_a_leader_that_was_paused_for_longer_than_its_lease_writes_no_more(cluster, document, tmp_path):
    outlives_its_holder_briefly(document)
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump(document))
    async with Process(tmp_path / "log", "run", "--config", str(config)) as paused:
        await paused.listens()
        await until(lambda: leads(paused))
        async with runtime(document) as successor:
            await until(lambda: is_ready(successor.grpc_port))
            await until(lambda: cluster.has_phase("Running"))
            await until(lambda: has_reason(cluster, "GPUsIdle"))
            written = await settled_writes(paused)
            paused.send(signal.SIGSTOP)
            await until(lambda: leads(successor))
            await cluster.scale(0)
            await until(lambda: is_asleep(cluster))
            paused.send(signal.SIGCONT)
            assert not await leads(paused)
            await cluster.evict()
            await cluster.release()
            await cluster.scale(1)
            await until(cluster.is_active)
            assert await writes(paused) == written
            assert await leads(successor)


@pytest.mark.slow
async def test_sigterm_ends_streams_well_and_releases_the_lease(cluster, document, tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump(document))
    async with Process(tmp_path / "log", "run", "--config", str(config)) as leader:
        await leader.listens()
        await until(lambda: holder(cluster))
        await until(lambda: is_ready(leader.grpc_port))
        async with keda(leader.grpc_port) as client:
            stream = client.stream()
            first = await stream.read()
            assert first is not grpc.aio.EOF
            leader.send(signal.SIGTERM)
            while await stream.read() is not grpc.aio.EOF:
                pass
            assert await stream.code() is grpc.StatusCode.OK
        assert await leader.ended() == 0
        assert await holder(cluster) == ""
    assert all(json.loads(line)["event"] for line in leader.log().splitlines())


async def test_what_is_asked_for_is_answered_long_before_the_next_tick(cluster, document):
    slow = document | {"evaluation": {"interval": "20s", "overlap": "1s"}}
    async with runtime(slow) as scaler:
        await until(lambda: scaler.decision_cache.is_ready)
        async with keda(scaler.grpc_port) as client:
            with cluster.refusing("PATCH", "/workloads/"):
                await cluster.scale(0)
                # It cannot be deactivated yet, so it is neither running nor suspended.
                await until(lambda: answers(client, grpc.StatusCode.UNAVAILABLE))
            await until(lambda: is_asleep(cluster))
            await until(lambda: answers(client, False))
            await cluster.evict()
            await cluster.release()
            await cluster.scale(1)
            await until(lambda: answers(client, True))
