"""How long does a tick take, how long does it block the event loop, and what memory does the process take?

    uv run python -m benchmarks.scale [--gpus 10000] [--targets 5000] [--ticks 20] [--json]
    uv run python -m benchmarks.scale --write    # 1,000 to 100,000 GPUs: table and chart of docs/performance.md

ScaledObjects, half of them over Kueue Workloads and half over Deployments, which share the GPUs evenly, one to a pod:
two signals and energy, collected every 30 s, judged over 30 min. A tick falls on every 15 s, in virtual time: it is
run as soon as the one before has ended. Each source has a process of its own, so that its memory is its own. `--json`
prints one object, of HTTP: `tick_cpu_seconds` (median), `stall_worst_ms`, `first_tick_seconds`, `resident_mb`, `gpus`,
`targets`.

* in-process: the source makes the samples itself, as the evaluation takes them. What is measured is ours alone.
* HTTP: the same samples from an HTTP server in another process, through `PrometheusSource`: JSON included.

A stall is how much later than asked a task came back that slept for a millisecond at a time: what a KEDA call that
came in meanwhile would have waited for.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from time import perf_counter, process_time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from scaler.app.kept_objects import kept_pods, kept_workload
from scaler.app.process import tune_process  # imports all that a process of ours has in memory in any case
from scaler.decision.decision import Inactive
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.evaluation import EvaluationConfig, Evaluator
from scaler.decision.sampling import Sampler
from scaler.idleness.gpu import DEFAULT_SIGNALS, ENERGY, Signal, Unit
from scaler.idleness.policy import Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Scale
from scaler.kube.object_cache import Index, Keep, ObjectCache, T, whole
from scaler.kube.objects.core import OwnerReference, Pod
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.reflector import Reflecting, State
from scaler.samples.config import PrometheusConfig
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.source import RawSeries, SignalReading, SignalSource
from scaler.targets.cluster_state import (
    WORKLOAD_ANNOTATION,
    ClusterState,
    pod_indexes,
    scalable_workload_indexes,
    workload_indexes,
)
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.switched_objects import SwitchedObjects

if TYPE_CHECKING:
    from rich.table import Table

TARGET_TICK_S = 0.2
TARGET_RESIDENT_MB = 180.0
SIZES = ((1_000, 100), (3_000, 1_000), (10_000, 5_000), (30_000, 15_000), (100_000, 50_000))
"""GPUs and ScaledObjects of the table and the chart."""
BEGIN, END = "<!-- measured by benchmarks/scale.py: begin -->", "<!-- measured by benchmarks/scale.py: end -->"
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
CHART = PAGE.parent / "images" / "performance.svg"

NAMESPACES = 100
COLLECTED_EVERY_S = 30
INTERVAL = timedelta(seconds=15)
FIRST_TICK = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
STARTED = "2026-12-01T09:00:00Z"
GPUS = GpuResources(patterns=("nvidia.com/gpu", "nvidia.com/mig-*"))
_NO_TRANSPORT: Any = None
"""Objects with a switch of their own are of no kind here, so that no API is asked."""


# The data: what every GPU showed at every half minute


class Fleet(NamedTuple):
    """How many GPUs there are, and how many ScaledObjects share them."""

    gpus: int
    targets: int

    @property
    def pods_per_target(self) -> int:
        """The pods of one GPU each. GPUs that are left over belong to pods that nothing scales."""
        return max(1, self.gpus // self.targets)

    def gpu(self, number: int) -> "Gpu":
        return Gpu(number, self.pods_per_target)

    def all(self) -> list["Gpu"]:
        return [self.gpu(number) for number in range(self.gpus)]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU and the pod that holds it. Those of every second target work, a little differently at each instant."""

    number: int
    pods_per_target: int

    @property
    def pod(self) -> tuple[str, str]:
        """(namespace, name)"""
        target, ordinal = divmod(self.number, self.pods_per_target)
        return namespace_of(target), f"{name_of(target)}-{ordinal}"

    def labels(self, metric: str) -> dict[str, str]:
        namespace, pod = self.pod
        node = f"gpu-node-{self.number // 8}.eu-central-1.compute.internal"
        return {
            "__name__": metric,
            "DCGM_FI_DRIVER_VERSION": "550.144.03",
            "Hostname": node,
            "UUID": f"GPU-{self.number:08x}-0edd-c157-ce48-2078e8b1a935",
            "container": "exporter",
            "device": f"nvidia{self.number % 8}",
            "endpoint": "gpu-metrics",
            "exported_container": "worker",
            "exported_namespace": namespace,
            "exported_pod": pod,
            "gpu": str(self.number % 8),
            "instance": f"10.0.{self.number // 2000}.{self.number // 8 % 250}:9400",
            "job": "nvidia-dcgm-exporter",
            "modelName": "NVIDIA A100-SXM4-80GB",
            "namespace": "gpu-operator",
            "pci_bus_id": f"00000000:{self.number % 8:02X}:00.0",
            "pod": f"nvidia-dcgm-exporter-{self.number // 8:05}",
            "service": "nvidia-dcgm-exporter",
        }

    @property
    def phase_s(self) -> int:
        """When in an interval it is collected: exporters are not in step with each other."""
        return self.number // 8 % COLLECTED_EVERY_S

    @property
    def works(self) -> bool:
        return self.number // self.pods_per_target % 2 == 0

    def value(self, at_s: float, unit: Unit) -> float:
        if unit is Unit.COUNT:  # mJ, at 60 W
            return 60_000 * at_s
        busy = 0.5 + at_s // COLLECTED_EVERY_S % 997 / 2000 if self.works else 0.0
        return round(100 * busy) if unit is Unit.PERCENT else busy

    def times(self, after_s: float, until_s: float) -> range:
        first = int((after_s - self.phase_s) // COLLECTED_EVERY_S + 1) * COLLECTED_EVERY_S + self.phase_s
        return range(first, int(until_s) + 1, COLLECTED_EVERY_S)


READ = (*DEFAULT_SIGNALS, ENERGY)
"""What every tick reads."""


def namespace_of(target: int) -> str:
    return f"team-{target % NAMESPACES}"


def name_of(target: int) -> str:
    return f"raycluster-{target}"


@dataclass(slots=True)
class MadeSeries:
    """Implements ports.RawSeries without keeping any samples."""

    key: bytes
    gpu: Gpu
    signal: Signal
    after_s: float
    until_s: float

    def labels(self) -> dict[str, str]:
        return self.gpu.labels(self.signal.metrics[0])

    def samples(self) -> Sequence[tuple[float, float]]:
        value, unit = self.gpu.value, self.signal.unit
        return [(float(at_s), value(at_s, unit)) for at_s in self.gpu.times(self.after_s, self.until_s)]


class Lazily(Sequence[RawSeries]):
    """The series of one reading, each made when it is looked at."""

    def __init__(self, count: int, make: Callable[[int], RawSeries]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._make(index)


class InProcessSource:
    """Implements ports.SignalSource."""

    def __init__(self, fleet: Fleet) -> None:
        self._gpus = fleet.all()
        self._keys = {
            signal.name: [msgspec.json.encode(gpu.labels(signal.metrics[0])) for gpu in self._gpus] for signal in READ
        }

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        keys, after_s, until_s = self._keys[signal.name], start.timestamp(), end.timestamp()
        make = lambda n: MadeSeries(keys[n], self._gpus[n], signal, after_s, until_s)  # noqa: E731
        return SignalReading(Lazily(len(keys), make), None)


# The same over HTTP


async def serve(fleet: Fleet) -> None:
    """Answer range selectors on a port that is printed first, until standard input ends."""
    os.nice(19)  # the process that is measured goes first
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    served = {signal.metrics[0]: signal for signal in READ}
    gpus = fleet.all()
    prefixes = {metric: [b'{"metric":' + msgspec.json.encode(gpu.labels(metric)) for gpu in gpus] for metric in served}

    async def query(request: web.Request) -> web.Response:
        form = parse_qs(await request.text())
        promql, until_s = form["query"][0], float(form["time"][0])
        metric = next(name for name in served if name in promql)
        span_s = int(promql.partition("[")[2].removesuffix("s]"))
        columns = {
            (gpu.phase_s, gpu.works): _values(gpu, served[metric], until_s - span_s, until_s)
            for gpu in {(each.phase_s, each.works): each for each in gpus}.values()
        }
        series = [prefix + columns[gpu.phase_s, gpu.works] for prefix, gpu in zip(prefixes[metric], gpus, strict=True)]
        body = b'{"status":"success","data":{"resultType":"matrix","result":[' + b",".join(series) + b"]}}"
        # The sampler compares clocks, and time is virtual here.
        return web.Response(body=body, content_type="application/json", headers={"Date": ""})

    app = web.Application()
    app.router.add_post("/api/v1/query", query)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


def _values(gpu: Gpu, signal: Signal, after_s: float, until_s: float) -> bytes:
    samples = [[at_s, f"{gpu.value(at_s, signal.unit):.15g}"] for at_s in gpu.times(after_s, until_s)]
    return b',"values":' + msgspec.json.encode(samples) + b"}"


@asynccontextmanager
async def http_source(fleet: Fleet, sizes: list[int]) -> AsyncIterator[SignalSource]:
    command = [*_command(fleet), "--serve"]
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        config = PrometheusConfig(url=url, timeout=timedelta(minutes=1))
        source = PrometheusSource(config, observe=lambda read: sizes.append(read.size_bytes))
        try:
            yield source
        finally:
            await source.close()
            server.stdin.close()


@asynccontextmanager
async def in_process_source(fleet: Fleet, _sizes: list[int]) -> AsyncIterator[SignalSource]:
    yield InProcessSource(fleet)


SOURCES = {"in-process": in_process_source, "HTTP": http_source}


# The cluster


class FilledStore(ObjectCache[T]):
    """Objects of one kind as a reflector shows them."""

    age = 0.0
    state: State = Reflecting()

    def __init__(
        self, kind: type[T], documents: Iterable[dict[str, Any]], indexes: dict[str, Index[T]], keep: Keep[T] = whole
    ) -> None:
        super().__init__(kind, indexes, keep)
        for each in documents:
            self.put(msgspec.Raw(msgspec.json.encode(each)))

    def within(self, _namespace: str) -> Self:
        return self


class StandingScales(ScaleSubresources):
    """Every Deployment has all of its pods, and nothing changes."""

    def __init__(self, replicas: int) -> None:
        """Needs no API."""
        self._replicas = replicas

    async def refresh(self, scaled_objects: Iterable[ScaledObject]) -> None:
        """There is nothing new."""

    def forget_others(self, scaled_objects: Iterable[ScaledObject]) -> None:
        """There is nothing to forget."""

    def revision(self, namespace: str) -> int:  # noqa: ARG002
        return 0

    def may_read(self, namespace: str, reference: OwnerReference) -> bool:  # noqa: ARG002
        """No owners are: pods of Deployments are found by their labels."""
        return False

    def of(self, namespace: str, target: ScaleTargetRef) -> Scale | Unknown:
        if not namespace:
            return Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=str(target))
        return Scale(replicas=self._replicas, selector=f"app={target.name}")


def cluster_of(fleet: Fleet, trigger: Mapping[str, str] | None = None) -> ClusterState:
    """`trigger`: more metadata of every ScaledObject's trigger."""
    targets = range(fleet.targets)
    gangs = [target for target in targets if is_gang(target)]
    pods = (pod(target, ordinal) for target in targets for ordinal in range(fleet.pods_per_target))
    workloads = (workload(target, fleet.pods_per_target) for target in gangs)
    return ClusterState(
        scaled_objects=FilledStore(ScaledObject, (scaled_object(target, trigger or {}) for target in targets), {}),
        scalable_workloads=FilledStore(ScalableWorkload, map(scalable_workload, gangs), scalable_workload_indexes()),
        workloads=FilledStore(Workload, workloads, workload_indexes(), kept_workload),
        pods=FilledStore(Pod, pods, pod_indexes(GPUS), kept_pods(GPUS, with_nodes=True)),
        gpus=GPUS,
        switched=SwitchedObjects(_NO_TRANSPORT, namespaces=()),
    )


def is_gang(target: int) -> bool:
    """Half of the targets are gangs and half Deployments, and in both halves half of the GPUs work."""
    return target // 2 % 2 == 0


def metadata(name: str, target: int, **more: Any) -> dict[str, Any]:
    uid = f"{target:08x}-0000-4000-8000-{abs(hash(name)) % 16**12:012x}"
    return {"name": name, "namespace": namespace_of(target), "uid": uid, "resourceVersion": str(target), **more}


def scaled_object(target: int, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    kind = ("idlegpu.io/v1alpha1", "ScalableWorkload") if is_gang(target) else ("apps/v1", "Deployment")
    address = "idle-gpu-scaler.gpu-system.svc.cluster.local:9090"
    trigger = {"type": "external-push", "metadata": {"scalerAddress": address, "idleAfter": "30m", **more}}
    reference = {"apiVersion": kind[0], "kind": kind[1], "name": name_of(target)}
    return {
        "metadata": metadata(name_of(target), target),
        "spec": {"scaleTargetRef": reference, "triggers": [trigger], "minReplicaCount": 0, "maxReplicaCount": 1},
    }


def job(target: int) -> dict[str, str]:
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name_of(target)}


def scalable_workload(target: int) -> dict[str, Any]:
    return {"metadata": metadata(name_of(target), target), "spec": {"replicas": 1, "jobRef": job(target)}}


def workload(target: int, pods: int) -> dict[str, Any]:
    owner = {**job(target), "uid": f"uid-{target}", "controller": True}
    conditions = [{"type": kind, "status": "True", "reason": kind} for kind in ("QuotaReserved", "Admitted")]
    pod_set = {"name": "workers", "count": pods, "template": {"spec": {"containers": [container()]}}}
    return {
        "metadata": metadata(workload_name(target), target, ownerReferences=[owner]),
        "spec": {"active": True, "queueName": "user-queue", "podSets": [pod_set]},
        "status": {"conditions": conditions, "admission": {"clusterQueue": "cluster-queue"}},
    }


def workload_name(target: int) -> str:
    return f"raycluster-{name_of(target)}-6cd3b"


def container() -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    return {"name": "worker", "resources": {"requests": amounts, "limits": amounts}}


def pod(target: int, ordinal: int) -> dict[str, Any]:
    annotations = {WORKLOAD_ANNOTATION: workload_name(target)} if is_gang(target) else {}
    labels = {
        "app": name_of(target),
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/managed-by": "kuberay-operator",
        "pod-template-hash": f"{target:08x}",
        "kueue.x-k8s.io/podset": "workers",
    }
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "any", "uid": f"uid-{target}", "controller": True}
    state = {"running": {"startedAt": STARTED}}
    return {
        "metadata": metadata(
            f"{name_of(target)}-{ordinal}", target, labels=labels, annotations=annotations, ownerReferences=[owner]
        ),
        "spec": {"nodeName": f"gpu-node-{target // 4}", "containers": [container()]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "worker", "ready": True, "state": state}]},
    }


# The measurement


@dataclass
class Stalls:
    """Longest time that the event loop gave nobody else a turn, by a task that wants one every millisecond."""

    longest_s: float = 0.0

    async def watch(self) -> None:
        while True:
            asked = perf_counter()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, perf_counter() - asked - 0.001)


@dataclass(kw_only=True)
class Result:
    """What one process showed. Times in seconds, memory in MB."""

    backfill_s: float
    backfill_stall_s: float
    ticks_s: list[float] = field(default_factory=list)
    ticks_cpu_s: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    read_first_mb: float
    read_mb: float
    """The megabytes that a tick reads, on average."""
    decided: int
    """ScaledObjects about which anything was decided again after the first tick."""
    imported_mb: float
    with_cluster_mb: float
    resident_mb: float
    highest_mb: float
    gpus: int
    idle: int
    """Answers that suspend: that something was decided at all."""

    @cached_property
    def slowest_s(self) -> float:
        return max(self.ticks_s)


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(source_name: str, fleet: Fleet, ticks: int) -> Result:
    imported_mb = resident_mb()
    cluster = cluster_of(fleet)
    gc.collect()
    with_cluster_mb = resident_mb()
    sizes = list[int]()
    async with SOURCES[source_name](fleet, sizes) as source:
        evaluator = evaluator_of(cluster, source, fleet)
        tune_process()
        backfill = await timed_tick(evaluator, FIRST_TICK)
        gc.freeze()  # as the program does it after its first evaluation
        read_first, decided = sum(sizes), evaluator.decision_cache.changes()
        sizes.clear()
        steady = [await timed_tick(evaluator, FIRST_TICK + count * INTERVAL) for count in range(1, ticks + 1)]
        gc.collect()
        evaluation = evaluator.decision_cache.evaluation
        assert evaluation is not None
        decisions = [decision for found in evaluation.entries.values() for decision in found.triggers.values()]
        return Result(
            backfill_s=backfill.seconds,
            backfill_stall_s=backfill.stall_s,
            ticks_s=[tick.seconds for tick in steady],
            ticks_cpu_s=[tick.cpu_s for tick in steady],
            stalls_s=[tick.stall_s for tick in steady],
            read_first_mb=read_first / 1e6,
            read_mb=sum(sizes) / ticks / 1e6,
            decided=len(decided),
            imported_mb=imported_mb,
            with_cluster_mb=with_cluster_mb,
            resident_mb=resident_mb(),
            highest_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
            gpus=len(evaluator.sampler.history),
            idle=sum(isinstance(decision.answer, Inactive) for decision in decisions),
        )


def evaluator_of(cluster: ClusterState, source: SignalSource, fleet: Fleet) -> Evaluator:
    trust = Trust()
    sampler = Sampler(source, signals=DEFAULT_SIGNALS, rules=DEFAULT_RULES, trust=trust, overlap=timedelta(minutes=2))
    return Evaluator(
        config=EvaluationConfig(interval=INTERVAL, trust=trust),
        cluster=cluster,
        scales=StandingScales(fleet.pods_per_target),
        sampler=sampler,
        decision_cache=DecisionCache(max_age=timedelta(hours=1)),
    )


class Timed(NamedTuple):
    """How long a tick took, the processor time of it, and the longest stall meanwhile."""

    seconds: float
    cpu_s: float
    stall_s: float


async def timed_tick(evaluator: Evaluator, at: datetime) -> Timed:
    stalls = Stalls()
    watching = asyncio.create_task(stalls.watch())
    await asyncio.sleep(0.01)
    started, cpu_s = perf_counter(), process_time()
    evaluation = await evaluator.tick(at)
    seconds, cpu_s = perf_counter() - started, process_time() - cpu_s
    await asyncio.sleep(0.002)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert evaluation is not None, evaluator.decision_cache.why_cold
    return Timed(seconds, cpu_s, stalls.longest_s)


# The report


def headroom(value: float) -> str:
    return f"[{'green' if value >= 1 else 'red'}]{value:.1f}× headroom[/]"


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def report(results: dict[str, Result], fleet: Fleet) -> "Table":
    from rich.table import Table

    table = Table(title=f"A tick at {fleet.targets:,} ScaledObjects and {fleet.gpus:,} GPUs", title_justify="left")
    table.add_column("")
    table.add_column("target", justify="right")
    for name in results:
        table.add_column(name, justify="right")
    rows: list[tuple[str, str, Callable[[Result], str]]] = [
        ("first tick, 30 min of samples: s", "", lambda r: f"{r.backfill_s:.2f}"),
        ("  longest stall meanwhile: ms", "", lambda r: f"{1000 * r.backfill_stall_s:.0f}"),
        (
            "a tick, median / slowest: s",
            f"< {TARGET_TICK_S:g}",
            lambda r: f"{median(r.ticks_s):.2f} / {r.slowest_s:.2f}",
        ),
        ("", "", lambda r: headroom(TARGET_TICK_S / r.slowest_s)),
        ("  processor time of it, median: s", "", lambda r: f"{median(r.ticks_cpu_s):.2f}"),
        (
            "  longest stall meanwhile, median / worst: ms",
            "",
            lambda r: f"{1000 * median(r.stalls_s):.0f} / {1000 * max(r.stalls_s):.0f}",
        ),
        ("  read by it: MB", "", lambda r: f"{r.read_mb:.1f}"),
        ("  decided again, all ticks", "", lambda r: f"{r.decided:,}"),
        ("resident memory: MB", f"< {TARGET_RESIDENT_MB:.0f}", lambda r: f"{r.resident_mb:.0f}"),
        ("", "", lambda r: headroom(TARGET_RESIDENT_MB / r.resident_mb)),
        ("  of which the program's code: MB", "", lambda r: f"{r.imported_mb:.0f}"),
        ("  of which the cluster's objects: MB", "", lambda r: f"{r.with_cluster_mb - r.imported_mb:.0f}"),
        ("  highest, during the first tick: MB", "", lambda r: f"{r.highest_mb:.0f}"),
    ]
    for label, target, cell in rows:
        table.add_row(label, target, *(cell(result) for result in results.values()))
    return table


def machine() -> str:
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


def as_json(result: Result, fleet: Fleet) -> str:
    return json.dumps(
        {
            "tick_cpu_seconds": round(median(result.ticks_cpu_s), 3),
            "stall_worst_ms": round(1000 * max(result.stalls_s), 1),
            "first_tick_seconds": round(result.backfill_s, 2),
            "resident_mb": round(result.resident_mb),
            **fleet._asdict(),
        }
    )


def write_page(ticks: int) -> None:
    """Measure all sizes, and write the table and the chart of the page."""
    from benchmarks.chart import Panel, chart

    results = [(Fleet(*size), measured_apart("HTTP", Fleet(*size), ticks)) for size in SIZES]
    rows = [
        f"| {fleet.gpus:,} | {fleet.targets:,} | {median(r.ticks_cpu_s):.2f} | {1000 * max(r.stalls_s):.0f} "
        f"| {r.backfill_s:.1f} | {r.resident_mb:.0f} | {r.highest_mb:.0f} | {r.read_mb:.1f} | {r.read_first_mb:.0f} |\n"
        for fleet, r in results
    ]
    head = (
        "| GPUs | ScaledObjects | a tick, processor time: s | longest stall: ms | first tick: s | memory: MB "
        "| at its highest: MB | read by a tick: MB | by the first: MB |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{head}{''.join(rows)}\n{machine()}.\n{END}{rest.partition(END)[2]}")
    gpus = [fleet.gpus for fleet, _ in results]
    panels = [
        Panel("Processor time of a tick: s", gpus, [median(r.ticks_cpu_s) for _, r in results], limit=15.0),
        Panel("Longest stall: ms", gpus, [1000 * max(r.stalls_s) for _, r in results]),
        Panel("Memory: MB", gpus, [r.resident_mb for _, r in results]),
    ]
    CHART.write_text(chart(panels, x_label="GPUs"))


def _command(fleet: Fleet) -> list[str]:
    return [sys.executable, __file__, "--gpus", str(fleet.gpus), "--targets", str(fleet.targets)]


def measured_apart(source: str, fleet: Fleet, ticks: int) -> Result:
    """The result of a process of its own."""
    command = [*_command(fleet), "--measure", source, "--ticks", str(ticks)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result = Result(**json.loads(printed.splitlines()[-1]))  # after what was logged
    assert result.gpus == fleet.gpus
    assert result.idle == fleet.targets // 2
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--targets", type=int, default=5_000, help="ScaledObjects")
    parser.add_argument("--ticks", type=int, default=20, help="how many ticks after the first one")
    parser.add_argument("--json", action="store_true", help="one JSON object, of HTTP")
    parser.add_argument("--write", action="store_true", help="write the table and the chart of docs/performance.md")
    parser.add_argument("--measure", choices=list(SOURCES), help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    fleet = Fleet(arguments.gpus, arguments.targets)
    if arguments.serve:
        asyncio.run(serve(fleet))
    elif arguments.measure:
        print(json.dumps(asdict(asyncio.run(measure(arguments.measure, fleet, arguments.ticks)))))
    elif arguments.write:
        write_page(arguments.ticks)
    elif arguments.json:
        print(as_json(measured_apart("HTTP", fleet, arguments.ticks), fleet))
    else:
        results = {source: measured_apart(source, fleet, arguments.ticks) for source in SOURCES}
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(report(results, fleet))
        console.print(machine(), highlight=False)


if __name__ == "__main__":
    main()
