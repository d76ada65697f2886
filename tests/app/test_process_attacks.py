"""What tenants and strangers send ends in bounded time, and another tenant is answered within a second all the while.

The answers of hostile sources of metrics lie in `attacks/` of the folder that SCALER_SHARED_DATA names; the rest is
what the scripts there do to a running program, at once and without their pauses.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from app.bystander import Bystander
from http_stub import HttpStub, Received, Reply
from recordings import SHARED, needs_data
from running_scaler import Process, fetch, keda, prometheus, settings_document
from small_cluster import NAME, NAMESPACE_NAME, SmallCluster, until

from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, SCALED_OBJECT

FOLDER = SHARED / "attacks"
SECRET = "S3CR3T"
STARS = "*a*a*a*a*a*a*a*a*c"
LONGEST_ANSWER_S = 1.0
LONGEST_ATTACK_S = 20.0
"""On a machine that is busy; most end within one second."""
ALWAYS = "2099-01-01T00:00:00Z"


@dataclass
class Attacked:
    """The program under attack, and what is around it."""

    cluster: SmallCluster
    process: Process
    source: HttpStub

    async def attach(self, name: str, **trigger: str) -> None:
        """A ScaledObject of the attacker."""
        await self.cluster.wants(1, name=name)
        await self.cluster.is_scaled_by({"idleAfter": "1s", "warmUp": "0s", **trigger}, name=name)

    async def annotate(self, name: str, **annotations: str) -> None:
        given = {f"idlegpu.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        await self.cluster.change(SCALED_OBJECT, name, {"metadata": {"annotations": given}})

    async def has_annotation(self, name: str, key: str) -> bool:
        found = await self.cluster.read(SCALED_OBJECT, name)
        return f"idlegpu.io/{key}" in found["metadata"].get("annotations", {})

    async def says(self, name: str, word: str) -> bool:
        """Whether the decision on it has that word."""
        status, _, text = await fetch(self.process.http_port, f"/api/v1/decisions/{NAMESPACE_NAME}/{name}")
        return status == 200 and word in text

    async def raw(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.process.http_port)
        writer.write(request)
        return reader, writer


async def keepers_by_wildcards(at: Attacked) -> None:
    """The pattern and the name are both the attacker's."""
    await at.attach("stars", keepUsers=STARS, longestKeep="1h")
    await at.annotate("stars", asked_by="a" * 100_000, keep_until=ALWAYS)
    await until(lambda: _not(at.has_annotation("stars", "keep-until")))


async def policies_by_wildcards(at: Attacked) -> None:
    body = {"metadata": {"name": "stars"}, "spec": {"selector": {"names": [STARS]}}}
    await at.cluster.create(CLUSTER_IDLE_POLICY, body)
    await at.cluster.wants(1, name="a" * 250)
    await until(lambda: _has_status(at, "stars"))


async def _has_status(at: Attacked, policy: str) -> bool:
    return bool((await at.cluster.read(CLUSTER_IDLE_POLICY, policy)).get("status"))


async def forty_thousand_keys(at: Attacked) -> None:
    for each in ("keys-a", "keys-b"):
        await at.attach(each, **{f"idleafter{n}": "v" for n in range(40_000)})
        await until(lambda each=each: at.says(each, "keys"))


async def forty_thousand_keys_by_rpc(at: Attacked) -> None:
    """As whoever reaches the port sends them; nothing of it is an answer of 0."""
    async with keda(at.process.grpc_port, {f"idleafter{n}": "v" for n in range(40_000)}) as stranger:
        found = await asyncio.gather(*(stranger.is_active() for _ in range(20)))
    assert set(found) == {grpc.StatusCode.INVALID_ARGUMENT}


async def forged_records(at: Attacked) -> None:
    await at.attach("forged", longestKeep="1h", keepsPerWeek="1", keepUsers="anna")
    brackets = "[" * 200_000
    record = f'[{{"at":"2020-01-01T00:00:00Z","until":"{ALWAYS}"}}]'
    await at.annotate("forged", keeps=record, keep_until=ALWAYS, asked_by="mallory")
    await until(lambda: _not(at.has_annotation("forged", "keep-until")))
    for value in (brackets, "9" * 200_000):
        await at.annotate("forged", keeps="", history="", owner="", answered="", wake="", policy_sources="")
        await at.annotate("forged", keeps=value)
        await at.annotate("forged", history=value)
        await at.annotate("forged", answered=value[:5_000], owner=value[:50_000], keep_for=value[:5_000])
        await at.annotate("forged", policy_sources=value, keep_until="never")
        await until(lambda: _not(at.has_annotation("forged", "keep-until")))
        for path in (f"/workloads/{NAMESPACE_NAME}/forged", "/"):
            assert (await fetch(at.process.http_port, path))[0] == 200, (path, value[:1])


async def requests_that_do_not_end(at: Attacked) -> None:
    """More than there may be connections; probes are answered nevertheless."""
    opened = [await at.raw(b"GET /healthz HTTP/1.1\r\nAuthorization: Bearer S3CR3T\r\n") for _ in range(400)]
    assert (await fetch(at.process.http_port, "/healthz"))[0] == 200
    for _, writer in opened:
        writer.transport.abort()


async def what_is_no_request(at: Attacked) -> None:
    token = b"POST /wake/demo/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer S3CR3T"
    before = at.process.log()
    for line in (b"\x16\x03\x01S3CR3T\r\n\r\n", token + b"\x01\r\n\r\n", token + b"a" * 9000 + b"\r\n\r\n") * 100:
        reader, writer = await at.raw(line)
        assert SECRET.encode() not in await reader.read()
        writer.close()
    assert at.process.log() == before


async def what_is_no_message(at: Attacked) -> None:
    before = at.process.log()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{at.process.grpc_port}") as channel:
        call = channel.unary_unary("/externalscaler.ExternalScaler/IsActive")
        found = await asyncio.gather(*(_code(call(b"\x0a\x7fS3CR3T")) for _ in range(300)))
    assert set(found) == {grpc.StatusCode.INVALID_ARGUMENT}
    assert at.process.log() == before


async def _code(call: Any) -> grpc.StatusCode | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def _not(question: Awaitable[bool]) -> bool:
    return not await question


ATTACKS: Mapping[str, Callable[[Attacked], Awaitable[None]]] = {
    "wildcards in keepUsers": keepers_by_wildcards,
    "wildcards in a policy": policies_by_wildcards,
    "40,000 trigger keys": forty_thousand_keys,
    "40,000 trigger keys by RPC": forty_thousand_keys_by_rpc,
    "forged records": forged_records,
    "requests that do not end": requests_that_do_not_end,
    "what is no request": what_is_no_request,
    "what is no message": what_is_no_message,
}
ANSWERS = (
    "gzip_bomb",
    "deep_json",
    "deep_json2",
    "huge_header",
    "many_headers",
    "drip",
    "millis",
    "future_day",
    "hostile_labels_zero+busy",
)
"""Of the source of metrics: those that are large, deep or slow, or that once stopped the judgement of everybody."""


def hostile_answer(kind: str) -> Callable[[Attacked], Awaitable[None]]:
    reply = importlib.import_module("b_answers").CASES[kind]

    async def give(at: Attacked) -> None:
        truth, at.source.answer = at.source.answer, reply
        count = len(at.source.received)
        await until(lambda: len(at.source.received) >= count + 3)
        at.source.answer = truth
        async with keda(at.process.grpc_port) as victim:
            await until(lambda: _is(victim.is_active(), True))

    return give


async def _is(question: Awaitable[Any], wanted: object) -> bool:
    return await question is wanted


@pytest.fixture
def hostile_answers(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Callable[[Attacked], Awaitable[None]]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return {f"an answer of the source: {kind}": hostile_answer(kind) for kind in ANSWERS}


@pytest.mark.slow
@needs_data(FOLDER)
async def test_attacks_end_and_another_tenant_is_answered_within_a_second(
    cluster: SmallCluster, tmp_path: Path, hostile_answers: Mapping[str, Callable[[Attacked], Awaitable[None]]]
) -> None:
    """The GPUs work all the time, so that an answer of 0 is the worst fault."""
    late = dict[str, float]()
    async with AsyncExitStack() as stack:
        at = await started(cluster, tmp_path, stack)
        async with keda(at.process.grpc_port) as victim:
            await until(lambda: _is(victim.is_active(), True))
        for kind, attack in {**ATTACKS, **hostile_answers}.items():
            with Bystander(at.process.grpc_port, at.process.pid) as bystander:
                async with asyncio.timeout(LONGEST_ATTACK_S):
                    await attack(at)
            assert bystander.count > 0, kind
            assert False not in bystander.answers, kind
            if bystander.slowest_s > LONGEST_ANSWER_S:
                late[kind] = bystander.slowest_s
        log = at.process.log()
    assert late == {}
    assert "Traceback" not in log
    assert SECRET not in log


async def started(cluster: SmallCluster, folder: Path, stack: AsyncExitStack) -> Attacked:
    working = prometheus(busy=0.6)

    def answer(request: Received) -> Reply:
        return working(request)

    source = stack.enter_context(HttpStub(answer))
    document = settings_document(cluster.kubeconfig, "")
    del document["dcgm"]
    document |= {"prometheus": {"url": source.url, "timeout": "1s"}}
    document["http"] |= {"wake": True}
    (folder / "settings.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    await cluster.run_gang()
    await cluster.is_scaled_by({"idleAfter": "1s", "warmUp": "0s"}, name=NAME)
    process = Process(folder / "log", "run", "--config", str(folder / "settings.yaml"))
    await stack.enter_async_context(process)
    await process.listens()
    return Attacked(cluster, process, source)
