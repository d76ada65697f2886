"""What do watched objects take in memory, and how long do their lists and watches block the event loop?

    uv run python -m benchmarks.watch [--pods 100000] [--workloads 50000] [--json]

Pods (half of them without GPUs) and Kueue Workloads as real clusters have them, with managed fields, environments,
volumes, tolerations and conditions, come from an HTTP server in another process. Whoever follows them in a program of
ours follows them here: quota, free capacity of the nodes, and the GPU pods of the cluster as controllers see them.

* Memory is what is resident after the list less what was resident before it, by object: the copy with its indexes, and
  with all that followers keep of each object.
* A list is made again (`relist`) with nothing changed, and with one object in 20 changed. Then as many events as there
  are objects in 20 come at once.
* A stall is how much processor time passed between two turns of a task that wants one every millisecond: what an RPC
  that came in meanwhile would have waited for, on a machine that nobody else uses.

`--json` prints one object: `pod_bytes`, `workload_bytes`, and for pods and Workloads alike `list`, `relist`,
`relist_changed` and `storm`, each with `cpu_seconds` and `stall_worst_ms`.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import msgspec
import structlog
import yaml
from aiohttp import ClientSession, web
from rich.console import Console
from rich.table import Table

from benchmarks.scale import GPUS, machine, resident_mb
from scaler.app.process import tune_process
from scaler.app.reflectors import ClusterReflectors, Reflectors
from scaler.kube.api_requests import ApiRequest
from scaler.kube.objects.resources import NODE, POD, WORKLOAD
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.placement.node_watch import NodeWatch
from scaler.quota.watch import QuotaWatch

TARGET_BYTES = 4096
TARGET_STALL_MS = 20.0
NAMESPACES = 200
PODS_PER_JOB = 4
PODS_PER_NODE = 16
SHARE = 20
"""One object of so many changes before the second relist, and in the storm."""


# The objects, as API servers send them


def managed_fields(manager: str, *names: str) -> list[dict[str, Any]]:
    fields = {"f:metadata": {"f:labels": {f"f:{each}": {} for each in names}}, "f:spec": {f"f:{n}": {} for n in names}}
    at = "2026-12-01T09:00:00Z"
    return [{"manager": manager, "operation": "Update", "apiVersion": "v1", "time": at, "fieldsV1": fields}]


def uid_of(kind: str, number: int) -> str:
    return f"{number:08x}-{len(kind):04x}-4000-8000-{number * 7919:012x}"


def time_of(number: int) -> str:
    return f"2026-11-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:{number // 7 % 60:02}Z"


def environment(job: int) -> list[dict[str, Any]]:
    return [{"name": f"SETTING_{n}", "value": f"value-{n}-of-job-{job}-{'x' * 20}"} for n in range(30)]


def container(job: int, *, gpus: bool) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi"} | ({"nvidia.com/gpu": "1"} if gpus else {})
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    return {
        "name": "worker",
        "image": "registry.example.com/team/training/image@sha256:" + "ab" * 32,
        "command": ["/bin/bash", "-c", "--"],
        "args": ["ulimit -n 65536; ray start --address=$FQ_RAY_IP:6379 --metrics-export-port=8080 --block"],
        "env": environment(job),
        "ports": [{"name": "metrics", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": amounts, "limits": amounts},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/volume-{n}"} for n in range(5)],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


def pod_spec(job: int, *, gpus: bool) -> dict[str, Any]:
    tolerations = [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]
    return {
        "containers": [container(job, gpus=gpus)],
        "initContainers": [{**container(job, gpus=False), "name": "prepare"}],
        "volumes": [{"name": f"volume-{n}", "configMap": {"name": f"settings-{n}"}} for n in range(5)],
        "tolerations": tolerations,
        "nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"} if gpus else {},
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
        "restartPolicy": "Never",
        "priority": 0,
        "enableServiceLinks": True,
    }


def job_labels(job: int) -> dict[str, str]:
    return {
        "app.kubernetes.io/created-by": "kuberay-operator",
        "app.kubernetes.io/name": "kuberay",
        "ray.io/cluster": job_name(job),
        "ray.io/group": "workers",
        "ray.io/identifier": f"{job_name(job)}-worker",
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": "worker",
        "kueue.x-k8s.io/podset": "workers",
    }


def job_name(job: int) -> str:
    return f"training-run-of-somebody-{job}"


def workload_name(job: int) -> str:
    return f"raycluster-{job_name(job)}-{job % 4096:05x}"


def namespace_of(job: int) -> str:
    return f"team-{job % NAMESPACES}"


def pod(number: int, version: int) -> dict[str, Any]:
    """A pod; those with GPUs belong to a RayCluster that Kueue manages, the others to a Deployment."""
    job, has_gpus = number // PODS_PER_JOB, number // PODS_PER_JOB % 2 == 0
    name = f"{job_name(job)}-worker-{number:06x}" if has_gpus else f"service-{job}-7d9c5b6f4-{number:06x}"
    labels = job_labels(job) if has_gpus else {"app": f"service-{job}", "pod-template-hash": f"{job:08x}7d9c"}
    kind, owner = ("RayCluster", job_name(job)) if has_gpus else ("ReplicaSet", f"service-{job}-7d9c5b6f4")
    annotations = {
        "k8s.v1.cni.cncf.io/network-status": f'[{{"name":"ovn","interface":"eth0","ips":["10.1.{number}"]}}]' * 2,
        "cni.projectcalico.org/containerID": f"{number:064x}",
        "prometheus.io/scrape": "true",
    } | ({"kueue.x-k8s.io/workload": workload_name(job)} if has_gpus else {})
    at = time_of(number)
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers")
    status = {"name": "worker", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": at}}}
    image = {
        "image": "registry.example.com/team/image",
        "imageID": "sha256:" + "ab" * 32,
        "containerID": f"{number:64x}",
    }
    return {
        "metadata": {
            "name": name,
            "generateName": name[:-6],
            "namespace": namespace_of(job),
            "uid": uid_of("Pod", number),
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": at,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [
                {
                    "apiVersion": "ray.io/v1" if has_gpus else "apps/v1",
                    "kind": kind,
                    "name": owner,
                    "uid": uid_of(kind, job),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": managed_fields("kube-controller-manager", *map(str, range(25))) * 2,
        },
        "spec": {**pod_spec(job, gpus=has_gpus), "nodeName": node_name(number // PODS_PER_NODE)},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": each, "status": "True", "lastProbeTime": None, "lastTransitionTime": at} for each in kinds
            ],
            "containerStatuses": [{**status, **image}],
            "initContainerStatuses": [{**status, **image, "name": "prepare", "state": {"terminated": {"exitCode": 0}}}],
            "hostIP": "10.0.0.1",
            "podIP": f"10.1.{number // 250}.{number % 250}",
            "startTime": at,
            "qosClass": "Burstable",
        },
    }


def workload(job: int, version: int) -> dict[str, Any]:
    """Two of three are admitted and run, the others wait."""
    at, is_admitted = time_of(job), job % 3 > 0
    reserved = {"type": "QuotaReserved", "reason": "QuotaReserved", "message": f"Quota reserved, after {job % 900}s"}
    admitted = {"type": "Admitted", "reason": "Admitted", "message": "The workload is admitted"}
    ready = {"type": "PodsReady", "reason": "Started", "message": "All pods reached readiness"}
    waiting = {
        "type": "QuotaReserved",
        "reason": "Pending",
        "status": "False",
        "message": "couldn't assign flavors to pod set workers: insufficient unused quota for nvidia.com/gpu in flavor "
        f"a100, {job % 64} more needed",
    }
    found = [{"status": "True", **each} for each in ((reserved, admitted, ready) if is_admitted else (waiting,))]
    usage = {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "4"}
    admission = {
        "clusterQueue": f"queue-{job % NAMESPACES}",
        "podSetAssignments": [
            {"name": "workers", "count": 4, "flavors": dict.fromkeys(usage, "a100"), "resourceUsage": usage}
        ],
    }
    template = {"metadata": {"labels": job_labels(job), "annotations": {}}, "spec": pod_spec(job, gpus=True)}
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": job_name(job), "uid": uid_of("RayCluster", job)}
    return {
        "metadata": {
            "name": workload_name(job),
            "namespace": namespace_of(job),
            "uid": uid_of("Workload", job),
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": at,
            "labels": {"kueue.x-k8s.io/job-uid": uid_of("RayCluster", job)},
            "annotations": {},
            "finalizers": ["kueue.x-k8s.io/resource-in-use"],
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "managedFields": managed_fields("kueue", *map(str, range(25))) * 2,
        },
        "spec": {
            "active": True,
            "queueName": "user-queue",
            "priority": 0,
            "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "normal"},
            "podSets": [{"name": "workers", "count": 4, "template": template, "topologyRequest": {}}],
        },
        "status": {
            "conditions": [{**each, "lastTransitionTime": at, "observedGeneration": 1} for each in found],
            **(
                {"admission": admission}
                if is_admitted
                else {"resourceRequests": [{"name": "workers", "resources": usage}]}
            ),
        },
    }


def node_name(number: int) -> str:
    return f"ip-10-0-{number // 250}-{number % 250}.eu-central-1.compute.internal"


def node(number: int, version: int) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": node_name(number), "node.kubernetes.io/instance-type": "p5.48xlarge"}
    return {
        "metadata": {"name": node_name(number), "resourceVersion": str(version), "labels": labels},
        "status": {
            "allocatable": {"cpu": "192", "memory": "2000Gi", "nvidia.com/gpu": "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def queue_object(kind: str, number: int, version: int) -> dict[str, Any]:
    resources = [{"name": each, "nominalQuota": "1000000"} for each in ("cpu", "memory", "nvidia.com/gpu")]
    group = {
        "coveredResources": [each["name"] for each in resources],
        "flavors": [{"name": "a100", "resources": resources}],
    }
    spec: dict[str, dict[str, Any]] = {
        "clusterqueues": {"cohortName": "all", "resourceGroups": [group], "namespaceSelector": {}},
        "localqueues": {"clusterQueue": f"queue-{number}"},
    }
    name = {"clusterqueues": f"queue-{number}", "localqueues": "user-queue"}.get(kind, "a100")
    metadata = {"name": name, "namespace": f"team-{number}" if kind == "localqueues" else ""}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, "spec": spec.get(kind, {})}


# The server


@dataclass
class Served:
    """One kind: how many objects there are, how often they were changed, and the open watches."""

    count: int
    make: Callable[[int, int], dict[str, Any]]
    round: int = 1
    watches: list[asyncio.Queue[list[bytes]]] = field(default_factory=list)

    def document(self, number: int) -> dict[str, Any]:
        """The object; in every round since the first, one of SHARE has changed."""
        last = self.round - (self.round - number) % SHARE
        return self.make(number, 1_000_000 * max(1, last) + number)

    @property
    def version(self) -> str:
        return str(1_000_000 * (self.round + 1))

    def changed(self) -> Iterator[dict[str, Any]]:
        return (self.document(number) for number in range(self.round % SHARE, self.count, SHARE))

    def send(self, kind: str, documents: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
        lines = [msgspec.json.encode({"type": kind, "object": each}) + b"\n" for each in documents]
        for watch in self.watches:
            watch.put_nowait(lines)


class Server:
    def __init__(self, pods: int, workloads: int) -> None:
        queues = {
            kind: Served(count, lambda number, version, kind=kind: queue_object(kind, number, version))  # type: ignore[misc]
            for kind, count in (("clusterqueues", NAMESPACES), ("localqueues", NAMESPACES), ("resourceflavors", 1))
        }
        self.kinds = {
            POD.plural: Served(pods, pod),
            WORKLOAD.plural: Served(workloads, workload),
            NODE.plural: Served(-(-pods // PODS_PER_NODE), node),
            **queues,
        }

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{action:change|storm|expire}/{kind}", self._act)
        app.router.add_get("/{path:.*}", self._get)
        return app

    async def _act(self, request: web.Request) -> web.Response:
        kind, action = self.kinds[request.match_info["kind"]], request.match_info["action"]
        if action != "expire":
            kind.round += 1
        if action == "storm":
            kind.send("MODIFIED", kind.changed())
        if action == "expire":
            kind.send("ERROR", [{"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}])
        return web.Response()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        kind = self.kinds.get(request.path.rpartition("/")[2], Served(0, node))
        if "watch" in request.query:
            return await self._watch(request, kind)
        first = int(request.query.get("continue", "0"))
        until = min(kind.count, first + int(request.query.get("limit", "500")))
        items = [kind.document(number) for number in range(first, until)]
        metadata = {"resourceVersion": kind.version} | ({"continue": str(until)} if until < kind.count else {})
        body = msgspec.json.encode({"kind": "List", "metadata": metadata, "items": items})
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, kind: Served) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
        kind.watches.append(queue)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while True:
                    for line in await queue.get():
                        await response.write(line)
        kind.watches.remove(queue)
        return response


async def serve(server: Server) -> None:
    """Prints the port and serves until the input ends."""
    runner = web.AppRunner(server.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


@asynccontextmanager
async def api_server(pods: int, workloads: int) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "benchmarks.watch", "--pods", str(pods), "--workloads", str(workloads), "--serve"]
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


# The measurement


@dataclass
class Stalls:
    """Longest processor time between two turns of a task that wants one every millisecond."""

    longest_s: float = 0.0

    async def watch(self) -> None:
        before = process_time()
        while True:
            await asyncio.sleep(0.001)
            now = process_time()
            self.longest_s, before = max(self.longest_s, now - before), now


@dataclass(kw_only=True)
class Step:
    """Units: processor seconds, and milliseconds of it."""

    cpu_seconds: float
    stall_worst_ms: float


async def measured(act: Callable[[], Any], until: Callable[[], bool]) -> Step:
    stalls = Stalls()
    watching = asyncio.create_task(stalls.watch())
    await asyncio.sleep(0.01)
    stalls.longest_s, started = 0.0, process_time()
    await act()
    while not until():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    cpu_s = process_time() - started
    await asyncio.sleep(0.05)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return Step(cpu_seconds=round(cpu_s, 3), stall_worst_ms=round(1000 * stalls.longest_s, 1))


@dataclass(kw_only=True)
class Result:
    """What one kind showed."""

    bytes_each: float = 0
    """The memory of an object with all that its followers keep."""
    steps: dict[str, Step] = field(default_factory=dict)


def kubeconfig(server: str, folder: str) -> Path:
    path = Path(folder) / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "all", "cluster": {"server": server}}],
                "users": [{"name": "all", "user": {}}],
                "contexts": [{"name": "all", "context": {"cluster": "all", "user": "all"}}],
                "current-context": "all",
            }
        )
    )
    return path


class Program:
    """Reflectors and whoever follows them, as the program wires them."""

    def __init__(self, transport: KubeTransport) -> None:
        self.reflectors = Reflectors(transport, GPUS, ())
        self.cluster_reflectors = ClusterReflectors(transport, is_confined=False)
        self.cluster = self.reflectors.cluster(GPUS)
        age = timedelta(hours=1)
        self.quota = QuotaWatch(
            self.cluster_reflectors.quota, self.reflectors.workloads, clock=lambda: datetime.now(UTC), max_age=age
        )
        self.nodes = NodeWatch(
            self.cluster_reflectors.nodes, self.reflectors.pods, self.reflectors.workloads, max_age=age
        )

    def derive(self) -> None:
        """What a tick derives of each object and keeps."""
        for each in self.cluster.workloads.items():
            self.cluster.pods_of_workload(each)
            self.cluster._observe(each)  # as if each Workload had a ScalableWorkload
        for _ in self.cluster.gpu_pods():
            pass


async def measure(server: str, pods: int, workloads: int) -> dict[str, Any]:
    watches: Counter[str] = Counter()
    tune_process()

    def requested(request: ApiRequest) -> None:
        watches[request.path.rpartition("/")[2]] += "watch" in request.params

    with TemporaryDirectory() as folder:
        config = kubeconfig(server, folder)
        async with (
            ClientSession(server) as session,
            await KubeTransport.connect(config, observe=requested) as transport,
        ):
            program = Program(transport)
            others = [asyncio.create_task(each.run()) for each in program.cluster_reflectors.always]
            await asyncio.gather(*(each.wait_synced() for each in program.cluster_reflectors.always))
            copies = {program.reflectors.workloads: workloads, program.reflectors.pods: pods}
            found = {each.resource.plural: Follower(program, each, session, watches) for each in copies}
            results = {
                name: await follower.measure(count)
                for (name, follower), count in zip(found.items(), copies.values(), strict=True)
            }
            for task in (*others, *(each.task for each in found.values() if each.task)):
                task.cancel()
    return {name: asdict(each) for name, each in results.items()} | {"resident_mb": round(resident_mb())}


class Follower:
    """One kind, as it is followed, and what is done to it."""

    def __init__(
        self, program: Program, copy: Reflector[Any], session: ClientSession, watches: Mapping[str, int]
    ) -> None:
        self._program = program
        self._copy = copy
        self._session = session
        self._watches = watches
        self._heard = 0
        self.task: asyncio.Task[None] | None = None

    async def measure(self, count: int) -> Result:
        gc.collect()
        before, result = resident_mb(), Result()
        result.steps["list"] = await measured(self._start, lambda: True)
        self._program.derive()
        gc.collect()
        result.bytes_each = round(1e6 * (resident_mb() - before) / count)
        self._copy.subscribe(self._hear)
        gc.freeze()  # as the program does it after its first evaluation
        result.steps["relist"] = await self._measured_relist()
        await self._post("change")
        result.steps["relist_changed"] = await self._measured_relist()
        self._heard = 0
        result.steps["storm"] = await measured(lambda: self._post("storm"), lambda: self._heard >= count // SHARE)
        return result

    def _hear(self, _: Any) -> None:
        self._heard += 1

    async def _start(self) -> None:
        self.task = asyncio.create_task(self._copy.run())
        await self._copy.wait_synced()
        await asyncio.sleep(0.2)  # the watch is open, too

    async def _post(self, action: str) -> None:
        (await self._session.post(f"/{action}/{self._copy.resource.plural}")).release()

    async def _measured_relist(self) -> Step:
        """The list is over when the next watch is open."""
        await asyncio.sleep(0.5)
        opened = self._watches[self._copy.resource.plural]
        return await measured(lambda: self._post("expire"), lambda: self._watches[self._copy.resource.plural] > opened)


# The report


def report(result: dict[str, Any], counts: Mapping[str, int]) -> Table:
    table = Table(title=f"{counts['pods']:,} pods and {counts['workloads']:,} Workloads", title_justify="left")
    for each in ("", "target", "pods", "Workloads"):
        table.add_column(each, justify="right" if each else "left")
    found = [result[each] for each in counts]
    table.add_row("memory: bytes each", f"< {TARGET_BYTES}", *(f"{each['bytes_each']:,.0f}" for each in found))
    for step, title in STEPS.items():
        steps = [each["steps"][step] for each in found]
        table.add_row(f"{title}: processor s", "", *(f"{each['cpu_seconds']:.2f}" for each in steps))
        stalls = (f"{each['stall_worst_ms']:.0f}" for each in steps)
        table.add_row("  longest stall meanwhile: ms", f"< {TARGET_STALL_MS:.0f}", *stalls)
    table.add_row("resident memory: MB", "", "", f"{result['resident_mb']}")
    return table


STEPS = {
    "list": "first list",
    "relist": "relist, nothing changed",
    "relist_changed": f"relist, one of {SHARE} changed",
    "storm": f"events, one of {SHARE} at once",
}


def as_json(result: dict[str, Any]) -> str:
    flat = {"pod_bytes": result["pods"]["bytes_each"], "workload_bytes": result["workloads"]["bytes_each"]}
    steps = {kind: result[kind]["steps"] for kind in ("pods", "workloads")}
    return json.dumps({**flat, **steps, "resident_mb": result["resident_mb"]})


async def measure_with_server(pods: int, workloads: int) -> dict[str, Any]:
    async with api_server(pods, workloads) as server:
        return await measure(server, pods, workloads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--workloads", type=int, default=50_000)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    counts = {"pods": arguments.pods, "workloads": arguments.workloads}
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    if arguments.serve:
        asyncio.run(serve(Server(**counts)))
        return
    result = asyncio.run(measure_with_server(**counts))
    if arguments.json:
        print(as_json(result))
    else:
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(report(result, counts))
        console.print(machine(), highlight=False)


if __name__ == "__main__":
    main()
