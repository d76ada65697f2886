"""The gRPC door: what is no message of its method, and more connections than there may be."""

import asyncio
from typing import Any

import grpc
import pytest
from keda.keda_harness import ref, refusal, serving
from keda.memory_decisions import IDLE, MemoryDecisions

from scaler.keda.server import ServerConfig, server_options

FIRST = ("demo", "first-raycluster")
SCALER, HEALTH = "/externalscaler.ExternalScaler/", "/grpc.health.v1.Health/"
METHODS = {
    SCALER + "IsActive": False,
    SCALER + "GetMetricSpec": False,
    SCALER + "GetMetrics": False,
    SCALER + "StreamIsActive": True,
    HEALTH + "Check": False,
    HEALTH + "Watch": True,
}
"""And whether it answers in a stream."""
HANDSHAKE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of HTTP/2, with settings of which none is set: so the connection is not cut off for its silence."""
NO_MESSAGES = {
    "a field that is cut off": b"\x0a\x7fS3CR3T",
    "a wire type that there is not": b"\x0fS3CR3T",
    "text that is not UTF-8": b"\x0a\x08S3CR3T\xff\xfe",
    "a number that never ends": b"\xff" * 40,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", NO_MESSAGES)
async def test_what_is_no_message_is_refused_and_counted_without_a_word_of_it(
    kind: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(MemoryDecisions({FIRST: IDLE})) as served:
        code, text = await _sent(served.channel, method, NO_MESSAGES[kind])
        assert (code, "S3CR3T" in text) == (grpc.StatusCode.INVALID_ARGUMENT, False)
        name = method.rpartition("/")[2]
        assert [(each.method, each.code) for each in served.observed] == [(name, "INVALID_ARGUMENT")]
        assert (await served.stub.IsActive(ref())).result is False
    assert [each.getMessage() for each in caplog.records] == []


async def _sent(channel: grpc.aio.Channel, method: str, raw: bytes) -> tuple[grpc.StatusCode, str]:
    if METHODS[method]:
        return await refusal(channel.unary_stream(method)(raw).read())
    return await refusal(channel.unary_unary(method)(raw))


async def test_connections_beyond_the_limit_are_closed_and_those_before_are_answered() -> None:
    async with serving(MemoryDecisions({FIRST: IDLE}), max_connections=4) as served:
        assert (await served.stub.IsActive(ref())).result is False
        opened = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(12)]
        for _, writer in opened:
            writer.write(HANDSHAKE)
        async with asyncio.timeout(30):
            ends = [asyncio.create_task(_until_closed(reader)) for reader, _ in opened]
            while sum(each.done() for each in ends) < 9:  # of 13
                await asyncio.wait([each for each in ends if not each.done()], return_when=asyncio.FIRST_COMPLETED)
            assert (await served.stub.IsActive(ref())).result is False
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.gather(*ends)


async def _until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except ConnectionResetError:
        pass


def test_whoever_ends_no_handshake_is_cut_off() -> None:
    """gRPC's own default is two minutes."""
    options: dict[str, Any] = dict(server_options(ServerConfig()))
    assert options["grpc.server_handshake_timeout_ms"] == 10_000
