"""What a running scaler answers over HTTP: probes, metrics, decisions as JSON."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_server import free_port
from reporting.test_http_tls import views
from running_scaler import fetch, gpus, keda, metric, run_gang, runtime, settings_document
from small_cluster import NAME, until

from scaler.errors import ConfigurationError
from scaler.reporting.http import HttpServer
from scaler.reporting.metrics import Metrics


@asynccontextmanager
async def scaler(cluster, exporter):
    async with runtime(settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])) as started:
        yield started


async def get(port: int, path: str) -> tuple[int, str]:
    status, _, body = await fetch(port, path)
    return status, body


async def is_ready(port: int) -> bool:
    return (await get(port, "/readyz"))[0] == 200


# ------------------------------------------------------------------------------------------------------------- probes


async def test_it_is_alive_at_once_and_ready_after_the_first_full_evaluation(cluster):
    async with gpus() as (fleet, exporter):
        fleet.faults.exporter_down("node-a")
        async with scaler(cluster, exporter) as one:
            await until(lambda: says_why(one.http_port))
            assert await get(one.http_port, "/healthz") == (200, "ok\n")
            fleet.faults.clear()
            await until(lambda: is_ready(one.http_port))
            assert await get(one.http_port, "/readyz") == (200, "ok\n")
            fleet.faults.exporter_down("node-a")
            await asyncio.sleep(0.5)
            # Nobody is served better by a restart, or by being cut off, when the source is down.
            assert await get(one.http_port, "/healthz") == (200, "ok\n")
            assert await get(one.http_port, "/readyz") == (200, "ok\n")


async def says_why(port: int) -> bool:
    status, text = await get(port, "/readyz")
    return status == 503 and "none of 1 dcgm-exporter endpoints could be scraped" in text


async def test_it_is_not_ready_any_more_while_it_stops(cluster):
    async with gpus() as (_, exporter), scaler(cluster, exporter) as one:
        await until(lambda: is_ready(one.http_port))
        one.stop()
        assert await get(one.http_port, "/readyz") == (503, "this process is stopping\n")


async def test_it_is_not_ready_while_the_api_refuses_to_list(cluster):
    async with gpus() as (_, exporter):
        with cluster.refusing("GET", "/workloads", status=403):
            async with scaler(cluster, exporter) as one:
                await until(lambda: names_what_is_missing(one.http_port))


async def test_it_is_not_ready_while_no_replica_may_hold_the_lease(cluster):
    """By HTTP and by gRPC: it could answer, but nobody would carry anything out."""
    async with gpus() as (_, exporter):
        with cluster.refusing("POST", "/leases", status=403):
            async with scaler(cluster, exporter) as one:
                await until(lambda: says_that_nobody_leads(one.http_port))
                assert one.decision_cache.is_ready
                assert not await serves(one.grpc_port)
                assert (await get(one.http_port, "/healthz"))[0] == 200
                cluster.api.faults.heal()
                await until(lambda: is_ready(one.http_port))
                await until(lambda: serves(one.grpc_port))


async def says_that_nobody_leads(port: int) -> bool:
    status, text = await get(port, "/readyz")
    return status == 503 and text.startswith("no replica has held Lease idle-gpu-scaler yet") and "403" in text


async def serves(port: int) -> bool:
    """What the kubelet's readiness probe asks by gRPC."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = health_pb2.HealthCheckRequest(service="readiness")
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def names_what_is_missing(port: int) -> bool:
    status, text = await get(port, "/readyz")
    return status == 503 and "Workloads" in text and "Pods" not in text


# ------------------------------------------------------------------------------------------------------------ metrics


async def test_metrics_can_be_read_by_whoever_scrapes_them(cluster):
    async with gpus() as (_, exporter), scaler(cluster, exporter) as one:
        await run_gang(cluster)
        async with keda(one.grpc_port) as client:
            await until(lambda: hears(client))
        await until(lambda: is_running(cluster))
        await until(lambda: metric(one.http_port, "idle_gpu_scaler_decisions"))
        await until(lambda: metric(one.http_port, "idle_gpu_scaler_gpus"))
        _, content_type, text = await fetch(one.http_port, "/metrics")
        assert content_type.startswith("text/plain; version=")
        samples = [sample for family in parse_text(text) for sample in family.samples]
        _, content_type, openmetrics = await fetch(one.http_port, "/metrics", Accept="application/openmetrics-text")
        [decided] = json.loads((await get(one.http_port, "/api/v1/decisions"))[1])["decisions"]
        assert (decided["name"], decided["target"]) == (NAME, f"ScalableWorkload/{NAME}")
    shown = {sample.name for sample in samples if sample.value > 0}
    for name in ("build_info", "decisions", "gpus", "leader", "kube_call_seconds_count", "source_read_seconds_count"):
        assert f"idle_gpu_scaler_{name}" in shown
    assert content_type.startswith("application/openmetrics-text")
    assert list(parse_openmetrics(openmetrics))
    # Workloads are named only where their number is bounded.
    naming = {sample.name for sample in samples if NAME in str(sample.labels)}
    assert {name for name in naming if not name.startswith("idle_gpu_scaler_workload_")} == set()


async def hears(client) -> bool:
    return isinstance(await client.is_active(), bool)


async def is_running(cluster) -> bool:
    return (await cluster.status()).get("phase") == "Running"


# ---------------------------------------------------------------------------------------------------------- decisions


@asynccontextmanager
async def server(*decisions, missing=()):
    """A server with these decisions."""
    unhealthy = ["the evaluation loop has not ended a tick for 99 s"] if missing else []
    shown = views(unhealthy=lambda: unhealthy, unready=lambda: missing, overview=lambda: decisions)
    http = HttpServer("127.0.0.1:0", Metrics(), shown)
    port = await http.start()
    try:
        yield port
    finally:
        await http.stop()


LINE = {
    "namespace": "team-a",
    "name": "notebook",
    "target": "Deployment/notebook",
    "problems": [],
    "answer": "inactive",
    "reason": "GPUsIdle",
    "message": "every required GPU stayed below 1 % for 30m",
    "stage": "Running",
    "gpus": 2,
    "verdict": "Idle",
    "idleSince": "2026-12-01T11:30:00+00:00",
    "suspendAt": None,
}


async def test_a_loop_that_stands_still_is_unhealthy():
    async with server(missing=("the first evaluation is not complete",)) as port:
        assert await get(port, "/healthz") == (503, "the evaluation loop has not ended a tick for 99 s\n")
        assert await get(port, "/readyz") == (503, "the first evaluation is not complete\n")


@pytest.mark.parametrize("count", [0, 1, 100, 250])
async def test_thousands_of_decisions_are_shown_in_parts_and_all_of_them(count):
    names = [f"notebook-{number:03}" for number in range(count)]
    async with server(*({**LINE, "name": name} for name in names)) as port:
        _, content_type, found = await fetch(port, "/api/v1/decisions")
    assert content_type == "application/json; charset=utf-8"
    assert [each["name"] for each in json.loads(found)["decisions"]] == names


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/decisions"])
async def test_a_head_has_no_body(path):
    async with server(LINE) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("address", "reachable"), [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), (":{port}", "127.0.0.1")]
)
async def test_it_listens_where_it_is_told_to(address, reachable):
    server = HttpServer(address.format(port=free_port()), Metrics(), views())
    port = await server.start()
    async with aiohttp.ClientSession() as session, session.get(f"http://{reachable}:{port}/healthz") as answer:
        assert answer.status == 200
    await server.stop()


async def test_an_address_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"{address}.* cannot be bound"):
            await HttpServer(address, Metrics(), views()).start()


@pytest.mark.parametrize("address", ["8080", "127.0.0.1:65536"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigurationError, match="is not host:port"):
        HttpServer(address, Metrics(), views())


# ---------------------------------------------------------------------------------------------------------- wake-ups


async def test_wake_ups_are_answered_only_where_the_settings_ask_for_them(cluster):
    async def posted(started):
        url = f"http://127.0.0.1:{started.http_port}/wake/demo/{NAME}"
        async with aiohttp.ClientSession() as session, session.post(url) as got:
            return got.status

    async with gpus() as (_, exporter):
        document = settings_document(cluster.kubeconfig, exporter.node_urls["node-a"])
        async with runtime(document) as started:
            assert await posted(started) == 404
        async with runtime(document | {"http": document["http"] | {"wake": True}}) as started:
            assert await posted(started) == 401
