"""What do a Prometheus trigger for each workload, and this scaler, cost KEDA and Prometheus?

    uv run python -m benchmarks.keda_side_by_side --kubeconfig ~/.kube/config [--sizes 50,200,1000] [--json] [--write]
        [--keda-metrics http://127.0.0.1:8080/metrics] [--seconds 120]

In a cluster with KEDA it makes StatefulSets of one pod with two GPUs each, on a Node that nothing runs on (this program
says that their containers run), and a ScaledObject for each, polled every 10 s: first with KEDA's own trigger
`prometheus`, whose query takes the largest utilisation of 30 minutes of that workload's GPUs, then with a trigger
`external` to this scaler. All GPUs work, so that nothing is suspended. Prometheus and the scaler run here; KEDA must
reach this machine at `--address`, and its operator's metrics must be at `--keda-metrics` (`kubectl port-forward`).
What it made is deleted at the end.
"""

import argparse
import asyncio
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import ClientSession, web

from scaler.errors import KubeError
from scaler.kube.objects.resources import NAMESPACE, NODE, POD, SCALED_OBJECT, Resource
from scaler.kube.transport import KubeTransport

STATEFUL_SET = Resource(group="apps", version="v1", plural="statefulsets", kind="StatefulSet")
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN = "<!-- measured by benchmarks/keda_side_by_side.py: begin -->"
END = "<!-- measured by benchmarks/keda_side_by_side.py: end -->"

NAME = "keda-side-by-side"
POLLED_EVERY_S = 10
COLLECTED_EVERY_S = 30
HISTORY_S = 2_400
GPUS_OF_POD = 2
WRITES_AT_ONCE = 8
SETTLING_LIMIT_S = 1_800
METRICS = {"DCGM_FI_DEV_GPU_UTIL": 100.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0}
"""The metrics with what they show at most."""

Json = dict[str, Any]


# ---- what the GPUs show


def labels(metric: str, workload: int, gpu: int) -> str:
    number = workload * GPUS_OF_POD + gpu
    pairs = {
        "gpu": number % 8,
        "UUID": f"GPU-{number:08x}-0edd-c157-ce48-2078e8b1a935",
        "device": f"nvidia{number % 8}",
        "modelName": "NVIDIA A100-SXM4-80GB",
        "Hostname": f"gpu-node-{number // 8}",
        "exported_namespace": NAME,
        "exported_pod": f"{name_of(workload)}-0",
        "exported_container": "worker",
    }
    written = ",".join(f'{name}="{value}"' for name, value in pairs.items())
    return f"{metric}{{{written}}}"


def value(workload: int, at_s: float) -> float:
    """The share of what a GPU can do, between a half and all of it."""
    return 0.5 + (workload + at_s // COLLECTED_EVERY_S) % 50 / 100


def exposition(size: int, at_s: float) -> Iterator[str]:
    for metric, whole in METRICS.items():
        yield f"# TYPE {metric} gauge\n"
        for workload in range(size):
            for gpu in range(GPUS_OF_POD):
                yield f"{labels(metric, workload, gpu)} {value(workload, at_s) * whole:g}\n"


def history(size: int, until_s: int) -> Iterator[str]:
    """The samples in OpenMetrics, with times."""
    for metric, whole in METRICS.items():
        yield f"# TYPE {metric} gauge\n"
        for workload in range(size):
            for gpu in range(GPUS_OF_POD):
                series = labels(metric, workload, gpu)
                for at_s in range(until_s - HISTORY_S, until_s, COLLECTED_EVERY_S):
                    yield f"{series} {value(workload, at_s) * whole:g} {at_s}\n"
    yield "# EOF\n"


@asynccontextmanager
async def exporter(size: int) -> AsyncIterator[str]:
    """The host and port at which the GPUs' metrics are served."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="".join(exposition(size, time.time())))

    application = web.Application()
    application.router.add_get("/metrics", page)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


# ---- the processes


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


@contextmanager
def process(log: Path, *command: str) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as one:
        try:
            yield
        finally:
            one.terminate()


@asynccontextmanager
async def prometheus(folder: Path, size: int, address: str) -> AsyncIterator[str]:
    """The address of a Prometheus that has collected for 40 minutes."""
    folder.mkdir()  # noqa: ASYNC240
    text, data, config = folder / "history.txt", folder / "data", folder / "prometheus.yml"
    async with exporter(size) as target:
        with text.open("w", encoding="utf-8") as file:
            file.writelines(history(size, int(time.time())))
        backfill = ("promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data))
        await asyncio.to_thread(subprocess.run, backfill, check=True, stdout=subprocess.DEVNULL)
        scrape = {
            "job_name": "dcgm-exporter",
            "scrape_interval": f"{COLLECTED_EVERY_S}s",
            "static_configs": [{"targets": [target]}],
        }
        config.write_text(json.dumps({"scrape_configs": [scrape]}), encoding="utf-8")
        listen = f"{address}:{free_port()}"
        options = (f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={listen}")
        with process(folder / "prometheus.log", "prometheus", *options, "--log.level=warn"):
            await until(lambda: answers(f"http://{listen}/-/ready"), "Prometheus is ready")
            yield f"http://{listen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerAddresses:
    grpc: str
    metrics: str


@asynccontextmanager
async def scaler(folder: Path, kubeconfig: Path, prometheus_url: str, address: str) -> AsyncIterator[ScalerAddresses]:
    grpc, http = f"{address}:{free_port()}", f"127.0.0.1:{free_port()}"
    settings = {
        "kubernetes": {"kubeconfig": str(kubeconfig), "lease": {"namespace": NAME}},
        "prometheus": {"url": prometheus_url},
        "trust": {"collectionInterval": f"{COLLECTED_EVERY_S}s"},
        "grpc": {"address": grpc},
        "http": {"address": http},
    }
    config = folder / "scaler.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    with process(folder / "scaler.log", sys.executable, "-m", "scaler", "run", "--config", str(config)):
        await until(lambda: answers(f"http://{http}/readyz"), "the scaler is ready")
        yield ScalerAddresses(grpc=grpc, metrics=f"http://{http}/metrics")


async def answers(url: str) -> bool:
    with suppress(OSError):
        async with ClientSession() as session, session.get(url) as answer:
            return answer.status == 200
    return False


async def counter(url: str, metric: str) -> float:
    """The sum of a counter's series whose lines begin like this."""
    async with ClientSession() as session, session.get(url) as answer:
        answer.raise_for_status()
        return sum(
            float(line.rpartition(" ")[2]) for line in (await answer.text()).splitlines() if line.startswith(metric)
        )


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Raises: TimeoutError."""
    try:
        async with asyncio.timeout(SETTLING_LIMIT_S):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(1)
    except TimeoutError:
        raise TimeoutError(f"after {SETTLING_LIMIT_S} s it is not so that {what}") from None


# ---- the cluster


def name_of(workload: int) -> str:
    return f"model-{workload:04}"


def node() -> Json:
    capacity = {"cpu": "1000", "memory": "1000Gi", "pods": "10000", "nvidia.com/gpu": "10000"}
    return {
        **header(NODE, NAME, {}),
        "spec": {"taints": [{"key": NAME, "effect": "NoSchedule"}]},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def header(resource: Resource, name: str, metadata: Json | None = None) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name} | ({"namespace": NAME} if metadata is None else metadata),
    }


def stateful_set(workload: int) -> Json:
    mark, gpus = {"app": name_of(workload)}, {"nvidia.com/gpu": GPUS_OF_POD}
    container = {"name": "worker", "image": "model:1", "resources": {"requests": gpus, "limits": gpus}}
    pod = {
        "nodeName": NAME,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    return {
        **header(STATEFUL_SET, name_of(workload)),
        "spec": {
            "replicas": 1,
            "serviceName": "none",
            "selector": {"matchLabels": mark},
            "template": {"metadata": {"labels": mark}, "spec": pod},
        },
    }


def running() -> Json:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - HISTORY_S - 3_600))
    container = {"name": "worker", "image": "model:1", "imageID": "", "ready": True, "restartCount": 0}
    return {
        "status": {
            "phase": "Running",
            "startTime": started,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{**container, "state": {"running": {"startedAt": started}}}],
        }
    }


def scaled_object(workload: int, trigger: Json) -> Json:
    return {
        **header(SCALED_OBJECT, name_of(workload)),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name_of(workload)},
            "minReplicaCount": 0,
            "maxReplicaCount": 1,
            "pollingInterval": POLLED_EVERY_S,
            "triggers": [trigger],
        },
    }


Trigger = Callable[[int], Json]


def prometheus_trigger(url: str) -> Trigger:
    def made(workload: int) -> Json:
        selector = f'exported_namespace="{NAME}",exported_pod=~"{name_of(workload)}-.*"'
        query = f"max(max_over_time(DCGM_FI_DEV_GPU_UTIL{{{selector}}}[30m]))"
        metadata = {"serverAddress": url, "query": query, "threshold": "100", "activationThreshold": "1"}
        return {"type": "prometheus", "metadata": metadata}

    return made


def external_trigger(address: str) -> Trigger:
    metadata = {"scalerAddress": address, "idleAfter": "30m", "warmUp": "10m"}
    return lambda _: {"type": "external", "metadata": metadata}


class Cluster:
    def __init__(self, api: KubeTransport) -> None:
        self._api = api

    async def begin(self) -> None:
        await self._create(NODE, node())
        await self._api.patch(NODE.path("", NAME, "status"), {"status": node()["status"]})
        await self._create(NAMESPACE, header(NAMESPACE, NAME, {}))

    async def run(self, workloads: range) -> None:
        """StatefulSets whose pods run."""
        await self._each(workloads, lambda n: self._create(STATEFUL_SET, stateful_set(n)))

        async def exist() -> bool:
            return len(await self._all(POD)) >= workloads.stop

        await until(exist, "all pods exist")
        await self._each(workloads, lambda n: self._api.patch(POD.path(NAME, f"{name_of(n)}-0", "status"), running()))

    @asynccontextmanager
    async def scaled(self, size: int, trigger: Trigger) -> AsyncIterator[None]:
        """A ScaledObject for each, of which KEDA has said that all are active."""
        await self._each(range(size), lambda n: self._create(SCALED_OBJECT, scaled_object(n, trigger(n))))

        async def are_active() -> bool:
            found = [conditions(each) for each in await self._all(SCALED_OBJECT)]
            return len(found) == size and all(each.get("Active") == "True" for each in found)

        await until(are_active, "all ScaledObjects are active")
        yield
        await self._each(range(size), lambda n: self._api.delete(SCALED_OBJECT.path(NAME, name_of(n))))

        async def are_gone() -> bool:
            return not await self._all(SCALED_OBJECT)

        await until(are_gone, "all ScaledObjects are gone")

    async def pods(self) -> int:
        return len(await self._all(POD))

    async def end(self) -> None:
        for resource in (NAMESPACE, NODE):
            with suppress(KubeError):
                await self._api.delete(resource.path("", NAME))

    async def _create(self, resource: Resource, body: Json) -> None:
        await self._api.create(resource.path(body["metadata"].get("namespace", "")), body)

    async def _each(self, workloads: range, act: Callable[[int], Awaitable[object]]) -> None:
        limit = asyncio.Semaphore(WRITES_AT_ONCE)

        async def one(workload: int) -> None:
            async with limit:
                await act(workload)

        await asyncio.gather(*map(one, workloads))

    async def _all(self, resource: Resource) -> list[Json]:
        pages = self._api.list_pages(resource.path(NAME))
        return [json.loads(bytes(item)) async for page in pages for item in page.items or ()]


def conditions(body: Mapping[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in body.get("status", {}).get("conditions", ())}


# ---- what is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one minute showed."""

    scaled_objects: int
    trigger: str
    queries: float
    prometheus_cpu_s: float
    keda_cpu_s: float
    scaler_cpu_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """The addresses at which the processes say what they use."""

    prometheus: str
    keda: str
    scaler: str | None = None

    async def read(self) -> list[float]:
        of_prometheus, cpu = f"{self.prometheus}/metrics", "process_cpu_seconds_total "
        return [
            time.monotonic(),
            await counter(of_prometheus, 'prometheus_http_requests_total{code="200",handler="/api/v1/query"'),
            await counter(of_prometheus, cpu),
            await counter(self.keda, cpu),
            await counter(self.scaler, cpu) if self.scaler else 0.0,
        ]

    async def row(self, size: int, trigger: str, seconds: float) -> Row:
        before = await self.read()
        await asyncio.sleep(seconds)
        passed, *used = (later - sooner for later, sooner in zip(await self.read(), before, strict=True))
        queries, prometheus_cpu_s, keda_cpu_s, scaler_cpu_s = (60 * each / passed for each in used)
        return Row(
            scaled_objects=size,
            trigger=trigger,
            queries=queries,
            prometheus_cpu_s=prometheus_cpu_s,
            keda_cpu_s=keda_cpu_s,
            scaler_cpu_s=scaler_cpu_s if self.scaler else None,
        )


async def measure(arguments: argparse.Namespace, folder: Path) -> AsyncIterator[Row]:
    async with await KubeTransport.connect(arguments.kubeconfig) as api:
        cluster, had = Cluster(api), 0
        try:
            await cluster.begin()
            for size in arguments.sizes:
                await cluster.run(range(had, size))
                had = size
                async for row in rows(arguments, cluster, folder / str(size), size):
                    yield row
                if (left := await cluster.pods()) != size:
                    raise RuntimeError(f"{left} of {size} pods are left: workloads that work were suspended")
        finally:
            await cluster.end()


async def rows(arguments: argparse.Namespace, cluster: Cluster, folder: Path, size: int) -> AsyncIterator[Row]:
    seconds, settling_s = arguments.seconds, arguments.settling
    async with prometheus(folder, size, arguments.address) as url:
        meters = Meters(prometheus=url, keda=arguments.keda_metrics)
        await asyncio.sleep(settling_s)
        yield await meters.row(size, "none", seconds)
        async with cluster.scaled(size, prometheus_trigger(url)):
            await asyncio.sleep(settling_s)
            yield await meters.row(size, "prometheus", seconds)
        async with scaler(folder, arguments.kubeconfig, url, arguments.address) as scaler_addresses:
            meters = Meters(prometheus=url, keda=arguments.keda_metrics, scaler=scaler_addresses.metrics)
            async with cluster.scaled(size, external_trigger(scaler_addresses.grpc)):
                await asyncio.sleep(settling_s)
                yield await meters.row(size, "external", seconds)


# ---- the report


def table(found: Sequence[Row]) -> str:
    lines = [
        "| ScaledObjects | trigger | queries | Prometheus: s | KEDA's operator: s | this scaler: s |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for row in found:
        scaler_cpu = "" if row.scaler_cpu_s is None else f"{row.scaler_cpu_s:.1f}"
        cells = (
            f"{row.scaled_objects:,}",
            f"`{row.trigger}`" if row.trigger != "none" else "none",
            f"{row.queries:,.0f}",
            f"{row.prometheus_cpu_s:.1f}",
            f"{row.keda_cpu_s:.1f}",
            scaler_cpu,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = re.sub(f"(?s){re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n{text}\n{END}", page)
    PAGE.write_text(made, encoding="utf-8")


async def run(arguments: argparse.Namespace) -> list[Row]:
    found = list[Row]()
    with TemporaryDirectory() as folder:
        async for row in measure(arguments, Path(folder)):
            print(row, file=sys.stderr, flush=True)
            found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--keda-metrics", default="http://127.0.0.1:8080/metrics", help="of KEDA's operator")
    parser.add_argument("--address", default="127.0.0.1", help="of this machine, as KEDA reaches it")
    parser.add_argument("--sizes", type=lambda text: [*map(int, text.split(","))], default=[50, 200, 1_000])
    parser.add_argument("--seconds", type=float, default=120.0, help="length of each measurement")
    parser.add_argument("--settling", type=float, default=30.0, help="seconds before each")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    if missing := [each for each in ("prometheus", "promtool") if not shutil.which(each)]:
        parser.error(f"{' and '.join(missing)}: not installed (Debian: apt-get install prometheus)")
    found = asyncio.run(run(arguments))
    text = f"{table(found)}\n\nPython {platform.python_version()}, Linux; all of it on one machine."
    if arguments.write:
        write(text)
    print(json.dumps([asdict(row) for row in found]) if arguments.json else text)


if __name__ == "__main__":
    main()
