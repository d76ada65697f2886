"""The whole program for tests: as a Runtime in this process or as a process of its own, with GPUs to judge.

Everything is hurried: a collection every 200 ms, idle after a second. Samples may be late and few, as a busy machine
makes them. The Lease is not hurried: who stops in order releases it at once, and no leader shall lose it because the
machine is busy. Tests that kill its holder make it short.
"""

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote_plus

import aiohttp
import grpc
from http_stub import Received, Reply
from prometheus_client.parser import text_string_to_metric_families
from scaler_sandbox.fleet import Exporter, Fleet, FleetConfig, Holder
from small_cluster import NAME, NAMESPACE_NAME, PODS, SmallCluster

from scaler.app.process import Runtime
from scaler.app.settings.load import load
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda._pb import externalscaler_pb2_grpc as pb_grpc

COLLECT_SECONDS = 0.2
TRIGGER = {"idleAfter": "1s", "warmUp": "0s"}
"""What the ScaledObject of the gang asks for."""


@asynccontextmanager
async def gpus(*, busy: float = 0.0) -> AsyncIterator[tuple[Fleet, Exporter]]:
    """An exporter that shows the two GPUs of the gang's pods, both as busy as that (0..1)."""
    fleet = Fleet(FleetConfig(nodes={"node-a": len(PODS)}, collect_seconds=COLLECT_SECONDS))
    holders = [Holder(namespace=NAMESPACE_NAME, pod=pod, container="main") for pod in PODS]
    fleet.hold("node-a", dict(zip((gpu.uuid for gpu in fleet.gpus), holders, strict=True)))
    fleet.set_activity(NAMESPACE_NAME, "*", busy)
    async with Exporter(fleet) as exporter:
        yield fleet, exporter


def prometheus(*, busy: float) -> Callable[[Received], Reply]:
    """A Prometheus that shows the same GPUs since a minute ago, for every metric.

    The last sample is of the moment of the query: what is older than a pod is not its own, and pods of tests are young.
    """

    def answer(request: Received) -> Reply:
        found = re.search(r"DCGM_\w+", unquote_plus(request.body.decode()))
        assert found is not None, request
        metric, now = found.group(), time.time()
        level = str(100 * busy if metric.startswith("DCGM_FI_DEV") else busy)
        series = [
            {
                "metric": {
                    "__name__": metric,
                    "namespace": NAMESPACE_NAME,
                    "pod": pod,
                    "UUID": f"GPU-{pod}",
                    "Hostname": "node-a",
                },
                "values": [[now - tick / 5, level] for tick in reversed(range(300))],
            }
            for pod in PODS
        ]
        body = {"status": "success", "data": {"resultType": "matrix", "result": series}}
        return Reply(json.dumps(body).encode(), headers={"Content-Type": "application/json", "Date": formatdate(now)})

    return answer


def settings_document(kubeconfig: Path, endpoint: str, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they would stand in a file."""
    document: dict[str, Any] = {
        "kubernetes": {
            "kubeconfig": str(kubeconfig),
            "timeout": "10s",
            "lease": {"namespace": "default", "duration": "30s", "renewDeadline": "20s", "retryPeriod": "100ms"},
        },
        "dcgm": {"endpoints": [endpoint], "timeout": "5s"},
        "prometheus": {"timeout": "5s"},
        "evaluation": {"interval": "200ms", "overlap": "1s"},
        # Half an hour of samples that come each 200 ms is as much as a day of real ones.
        "defaults": {"idleAfter": "5m"},
        "trust": {"collectionInterval": "200ms", "maxAgeIntervals": 50, "maxGapIntervals": 50, "minCoverage": "5 %"},
        "grpc": {"address": "127.0.0.1:0", "drain": "2s"},
        "http": {"address": "127.0.0.1:0"},
    }
    return document | {name: {**document.get(name, {}), **section} for name, section in sections.items()}


@asynccontextmanager
async def runtime(document: Mapping[str, Any], **flags: Any) -> AsyncIterator[Runtime]:
    """The program in this process, which is stopped in order in the end."""
    one = Runtime(load(None, environ={}, flags={**document, **flags}))
    await one.start()
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        one.stop()
        await running


class Process:
    """`idle-gpu-scaler` with these arguments as a process of its own. Use as an async context manager."""

    def __init__(self, log: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """It writes to the file `log`. `environment` comes instead of this process's."""
        self._log, self._arguments = log, arguments
        outside = {name: value for name, value in os.environ.items() if not name.startswith("IDLE_GPU_SCALER__")}
        self._environment = outside if environment is None else environment
        self.grpc_port = self.http_port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Starts it, after a kill again."""
        self._began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "scaler", *self._arguments, stdout=log, stderr=log, env=self._environment
            )

    async def listens(self) -> None:
        """Returns when it says where it listens. Raises: AssertionError with its log where it ends."""
        while self._process.returncode is None:
            for line in self.log()[self._began :].splitlines():
                with suppress(ValueError):
                    said = json.loads(line)
                    if said["event"] == "listening":
                        self.grpc_port, self.http_port = said["grpc_port"], said["http_port"]
                        return
            await asyncio.sleep(0.05)
        raise AssertionError(f"it ended:\n{self.log()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit status."""
        return await self._process.wait()

    async def kill(self) -> None:
        """SIGKILL where it still runs: it can neither finish nor write anything."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")


async def run_gang(cluster: SmallCluster, trigger: Mapping[str, str] = TRIGGER) -> None:
    """A gang that runs, with a ScalableWorkload and a ScaledObject."""
    await cluster.run_gang()
    await cluster.is_scaled_by(trigger)


# ------------------------------------------------------------------------------------------------------- asking it


class Keda:
    """A client that asks about the gang as KEDA does."""

    def __init__(self, channel: grpc.aio.Channel, trigger: Mapping[str, str]) -> None:
        self._stub = pb_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
        self._reference = pb.ScaledObjectRef(name=NAME, namespace=NAMESPACE_NAME, scalerMetadata=dict(trigger))

    async def is_active(self) -> bool | grpc.StatusCode:
        """The answer, or the status of the error that came instead."""
        try:
            return bool((await self._stub.IsActive(self._reference, timeout=20)).result)
        except grpc.aio.AioRpcError as error:
            return error.code()

    def stream(self) -> Any:
        return self._stub.StreamIsActive(self._reference)


@asynccontextmanager
async def keda(port: int, trigger: Mapping[str, str] = TRIGGER) -> AsyncIterator[Keda]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Keda(channel, trigger)


async def fetch(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    """(status, content type, body) of a page."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as got,
    ):
        return got.status, got.headers["Content-Type"], await got.text()


async def is_ready(port: int) -> bool:
    status, *_ = await fetch(port, "/readyz")
    return status == 200


async def metric(port: int, name: str, **labels: str) -> float:
    """The sum of all samples of that name with these labels."""
    *_, text = await fetch(port, "/metrics")
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
