import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from keda.keda_harness import Served, ref, refusal, serving
from keda.memory_decisions import BUSY, IDLE, MemoryDecisions

from scaler.errors import ConfigurationError
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc
from scaler.keda.server import ExternalScalerServer, ServerConfig, server_options
from scaler.keda.servicer import StreamLifetimes

FIRST = ("demo", "first-raycluster")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health(served: Served) -> dict[str, int]:
    stub = health_pb2_grpc.HealthStub(served.channel)
    services = ("", "liveness", "readiness")
    return {name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in services}


async def test_readiness_follows_the_first_snapshot_and_liveness_does_not() -> None:
    async with serving(MemoryDecisions(is_ready=False)) as served:
        assert await health(served) == {"": NOT_SERVING, "liveness": SERVING, "readiness": NOT_SERVING}
        await served.server.set_ready(True)
        assert await health(served) == {"": SERVING, "liveness": SERVING, "readiness": SERVING}


async def how_it_ends(stream: Any) -> tuple[grpc.StatusCode, list[bool]]:
    """The status with which a stream ends and what it said before."""
    said: list[bool] = []
    try:
        while (message := await stream.read()) is not grpc.aio.EOF:
            said.append(message.result)
    except grpc.aio.AioRpcError as error:
        return error.code(), said
    return await stream.code(), said


async def test_a_drain_ends_every_stream_with_ok_well_within_its_grace() -> None:
    decisions = MemoryDecisions({FIRST: IDLE})
    async with serving(decisions) as served:
        streams = [served.stub.StreamIsActive(ref()) for _ in range(300)]
        assert {(await stream.read()).result for stream in streams} == {False}
        silent = [served.stub.StreamIsActive(ref(idleAfter="soon")), served.stub.StreamIsActive(ref(name="unheard-of"))]
        specs = served.stub.StreamMetricSpec(ref())
        assert await specs.read()

        started = perf_counter()
        ends = [asyncio.ensure_future(how_it_ends(stream)) for stream in [*streams, *silent]]
        await served.server.drain(timedelta(seconds=60))
        assert {(code, *said) for code, said in await asyncio.gather(*ends)} == {(grpc.StatusCode.OK,)}
        assert await specs.code() is grpc.StatusCode.OK
        assert perf_counter() - started < 40
        assert decisions.listeners == 0
        assert {record.code for record in served.observed} == {"OK"}


async def test_a_burst_of_streams_is_taken_up_completely() -> None:
    """By default gRPC drops calls beyond 3,000 that wait to be taken up."""
    async with serving(MemoryDecisions({FIRST: IDLE})) as served:
        streams = [served.stub.StreamIsActive(ref()) for _ in range(3200)]
        firsts = await asyncio.gather(*(stream.read() for stream in streams))
        assert [first.result for first in firsts] == [False] * 3200
        assert (await served.stub.GetMetricSpec(ref())).metricSpecs


async def test_calls_beyond_the_limit_are_refused_and_do_not_wait() -> None:
    async with serving(MemoryDecisions({FIRST: IDLE}), max_concurrent_rpcs=10) as served:
        streams = [served.stub.StreamIsActive(ref()) for _ in range(10)]
        await asyncio.gather(*(stream.read() for stream in streams))
        code, _ = await asyncio.wait_for(refusal(served.stub.IsActive(ref())), 30)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_during_a_drain_readiness_is_lost_and_does_not_come_back() -> None:
    async with serving(MemoryDecisions()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == SERVING
        draining = asyncio.ensure_future(served.server.drain(timedelta(minutes=5)))
        assert (await watch.read()).status == NOT_SERVING
        await served.server.set_ready(True)
        reading = asyncio.ensure_future(watch.read())
        done, _ = await asyncio.wait({reading}, timeout=0.1)
        assert not done
        watch.cancel()
        await draining
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_drain_is_over_after_its_grace_even_when_a_client_does_not_leave() -> None:
    async with serving(MemoryDecisions()) as served:
        watch = health_pb2_grpc.HealthStub(served.channel).Watch(health_pb2.HealthCheckRequest(service=""))
        await watch.read()
        started = perf_counter()
        await served.server.drain(timedelta(seconds=0.3))
        assert perf_counter() - started < 30, "otherwise for ever"


@asynccontextmanager
async def aging_server() -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """The port and the process of a server whose connections and streams grow old within a second."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("aging_server.py")),
        stdout=PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline()), process
    finally:
        process.kill()
        await process.wait()


async def stopped_now_and_then(process: asyncio.subprocess.Process) -> None:
    """As a node that is short of processor time, or a paused container, does it."""
    for _ in range(4):
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.1)


async def reopened(stub: Any, stopping: asyncio.Task[None]) -> list[grpc.StatusCode]:
    """How the streams end that one ScaledObject opens, each at once after the last, as connections of 0.25 s do.

    One that gRPC refuses to open, because the connection ended on its way there, has not begun, and is opened again.
    """
    codes: list[grpc.StatusCode] = []
    while len(codes) < 4 or not stopping.done():
        code, said = await how_it_ends(stub.StreamIsActive(ref()))
        if said or code is not grpc.StatusCode.UNAVAILABLE:
            codes.append(code)
    return codes


async def test_streams_outlive_no_connection() -> None:
    """Whatever becomes of the process meanwhile. It has no grace that could run out: see the next test."""
    async with (
        aging_server() as (port, process),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = pb_grpc.ExternalScalerStub(channel)
        stopping = asyncio.create_task(stopped_now_and_then(process))
        async with asyncio.timeout(300):
            ends = await asyncio.gather(*(reopened(stub, stopping) for _ in range(50)))
    assert {code for codes in ends for code in codes} == {grpc.StatusCode.OK}


def test_a_connection_of_age_waits_for_its_streams_without_a_limit() -> None:
    options = dict(server_options(ServerConfig()))
    assert "grpc.max_connection_age_ms" in options
    assert "grpc.max_connection_age_grace_ms" not in options


async def test_streams_that_open_together_do_not_end_together() -> None:
    lives = {StreamLifetimes(timedelta(minutes=30)).end_of_new_stream() for _ in range(200)}
    now = asyncio.get_running_loop().time()
    assert 14 * 60 < min(lives) - now < 17 * 60
    assert 28 * 60 < max(lives) - now <= 30 * 60


async def test_a_taken_port_is_a_configuration_error() -> None:
    async with serving(MemoryDecisions()) as served:
        second = ExternalScalerServer(ServerConfig(addresses=(f"127.0.0.1:{served.port}",)), MemoryDecisions())
        with pytest.raises(ConfigurationError, match=rf"'127.0.0.1:{served.port}' cannot be bound"):
            await second.start()


async def test_it_serves_on_several_addresses(tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/scaler.sock"
    async with serving(MemoryDecisions({FIRST: BUSY}), addresses=("127.0.0.1:0", socket)) as served:
        assert served.port > 0
        async with grpc.aio.insecure_channel(socket) as channel:
            assert (await pb_grpc.ExternalScalerStub(channel).IsActive(ref())).result is True


async def test_a_client_may_ping_as_often_as_it_likes() -> None:
    pings = [
        ("grpc.keepalive_time_ms", 10),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with (
        serving(MemoryDecisions({FIRST: BUSY})) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=pings) as channel,
    ):
        stream = pb_grpc.ExternalScalerStub(channel).StreamIsActive(ref())
        assert (await stream.read()).result is True
        done, _ = await asyncio.wait({asyncio.ensure_future(stream.read())}, timeout=0.4)
        assert not done


async def test_reflection_lists_the_services_when_it_is_switched_on() -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with serving(MemoryDecisions(), reflection=True) as served:
        stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        reply = await call.read()
    names = {service.name for service in reply.list_services_response.service}
    assert {"externalscaler.ExternalScaler", "grpc.health.v1.Health"} <= names


async def test_reflection_without_its_extra_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_reflection", None)
    with pytest.raises(ConfigurationError, match=r"install 'idle-gpu-scaler\[reflection\]'"):
        ExternalScalerServer(ServerConfig(reflection=True), MemoryDecisions())
