"""How soon are jobs attached after a policy was applied, what is written then, and what memory does each take?

    uv run python -m benchmarks.attachment [--jobs 5000] [--actuator Direct] [--json]

Jobs with a GPU each, that Kueue has admitted and whose pod runs, in 20 namespaces of an embedded API. The whole program
runs in a process of its own, and its GPUs show no samples. It is measured once all is listed, once everything is
attached and has its first status, and after a minute in which nothing changes. The API is Python too, on the same
machine: most of the time is its.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import msgspec
import yaml
from scaler_sandbox import crds
from scaler_sandbox.fleet import Exporter, Fleet, FleetConfig
from scaler_sandbox.kubeapi import KubeApi
from scaler_sandbox.packaged import crds as own_crds

from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, JOB, NAMESPACE, POD, SCALABLE_WORKLOAD, WORKLOAD
from scaler.kube.transport import KubeTransport
from scaler.targets.cluster_state import WORKLOAD_ANNOTATION

_NAMESPACES = 20
_AT_ONCE = 16
_GPU = {"nvidia.com/gpu": "1"}
_CONTAINER = {"name": "main", "image": "x:1", "resources": {"requests": _GPU, "limits": _GPU}}
_TEMPLATE = {"spec": {"containers": [_CONTAINER], "restartPolicy": "Never"}}
_WRITES = re.compile(r"^idle_gpu_scaler_kube_call_seconds_count{(.*)} ([0-9.e+]+)$", re.M)
_NOT_COUNTED = ("get", "list", "watch", "update")
"""Verbs that write nothing, and the one that renews the Lease."""
_QUIET_S = 60.0


class Cluster:
    def __init__(self, kube: KubeTransport, jobs: int) -> None:
        self._kube, self._jobs = kube, jobs

    async def fill(self) -> None:
        for number in range(_NAMESPACES):
            await self._kube.create(NAMESPACE.path(), {"metadata": {"name": f"team-{number}"}})
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> None:
            async with turns:
                await self._submit(f"team-{number % _NAMESPACES}", f"train-{number}-x7k2p", number)

        await asyncio.gather(*map(one, range(self._jobs)))

    async def _submit(self, namespace: str, name: str, number: int) -> None:
        job = await self._create(JOB, namespace, name, {"spec": {"template": _TEMPLATE}})
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        owners = {"ownerReferences": [owner]}
        workload = f"job-{name}-1a2b3"
        spec = {"active": True, "queueName": "lq", "podSets": [{"name": "main", "count": 1, "template": _TEMPLATE}]}
        await self._create(WORKLOAD, namespace, workload, {"metadata": owners, "spec": spec})
        conditions = [_true(each) for each in ("QuotaReserved", "Admitted")]
        usage = {"name": "main", "flavors": {"nvidia.com/gpu": "gpus"}, "resourceUsage": _GPU, "count": 1}
        status = {"conditions": conditions, "admission": {"clusterQueue": "cq", "podSetAssignments": [usage]}}
        await self._kube.patch(WORKLOAD.path(namespace, workload, "status"), {"status": status})
        annotated = {"annotations": {WORKLOAD_ANNOTATION: workload}, **owners}
        body = {"metadata": annotated, "spec": {"nodeName": f"node-{number // 8}", "containers": [_CONTAINER]}}
        await self._create(POD, namespace, name, body)
        running = {"name": "main", "ready": True, "restartCount": 0, "image": "", "imageID": ""}
        running["state"] = {"running": {"startedAt": "2026-01-01T09:00:00Z"}}
        pod = {"status": {"phase": "Running", "containerStatuses": [running]}}
        await self._kube.patch(POD.path(namespace, name, "status"), pod)

    async def _create(self, resource: Any, namespace: str, name: str, body: dict[str, Any]) -> Any:
        metadata = {"name": name, **body.get("metadata", {})}
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        return msgspec.json.decode(await self._kube.create(resource.path(namespace), whole))

    async def apply(self, actuator: str) -> None:
        await self._create(CLUSTER_IDLE_POLICY, "", "all", {"spec": {"actuator": actuator}})

    async def with_status(self) -> tuple[int, int]:
        """ScalableWorkloads, and how many of them have a status."""
        pages = self._kube.list_pages(SCALABLE_WORKLOAD.path())
        found = [msgspec.json.decode(each) async for page in pages for each in page.items or ()]
        return len(found), sum("status" in each for each in found)


def _true(condition: str) -> dict[str, str]:
    at = "2026-01-01T09:00:00Z"
    return {"type": condition, "status": "True", "reason": condition, "message": "", "lastTransitionTime": at}


class Program:
    def __init__(self, process: Process, port: int) -> None:
        self._process, self._port = process, port

    @classmethod
    async def start(cls, settings: Path) -> "Program":
        arguments = ("-m", "scaler", "run", "--config", str(settings))
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=DEVNULL, stderr=PIPE)
        assert process.stderr is not None
        async for line in process.stderr:
            if line.startswith(b"{") and (said := json.loads(line)).get("event") == "listening":
                asyncio.get_running_loop().create_task(_drained(process.stderr))
                return cls(process, said["http_port"])
        raise SystemExit("the program ended")

    async def stop(self) -> None:
        self._process.terminate()
        await self._process.wait()

    async def fetch(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self._port}{path}") as got:
            return got.status, await got.text()

    async def writes(self) -> Counter[str]:
        """The number of writes by resource."""
        _, text = await self.fetch("/metrics")
        found: Counter[str] = Counter()
        for labels, count in _WRITES.findall(text):
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if named["verb"] not in _NOT_COUNTED:
                found[f"{named['verb']} {named['resource']}"] += round(float(count))
        return found

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def _drained(stream: asyncio.StreamReader) -> None:
    async for _ in stream:
        pass


async def measure(jobs: int, actuator: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        api = KubeApi()
        api.install_crds([*crds.load(), *own_crds()])
        await api.start()
        api.write_kubeconfig(kubeconfig := Path(folder) / "kubeconfig")
        try:
            async with (
                await KubeTransport.connect(kubeconfig, call_seconds=60) as kube,
                Exporter(Fleet(FleetConfig(nodes={"node-0": 1}))) as exporter,
            ):
                cluster = Cluster(kube, jobs)
                await cluster.fill()
                (settings := Path(folder) / "settings.yaml").write_text(_settings(kubeconfig, exporter.url))
                program = await Program.start(settings)
                try:
                    return await _measured(cluster, program, jobs, actuator)
                finally:
                    await program.stop()
        finally:
            await api.stop()


async def _measured(cluster: Cluster, program: Program, jobs: int, actuator: str) -> dict[str, Any]:
    while (await program.fetch("/readyz"))[0] != 200:  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.5)
    await asyncio.sleep(_QUIET_S / 2)
    before_mb, began = program.resident_mb(), perf_counter()
    await cluster.apply(actuator)
    attached_s = None
    while True:
        made, complete = await cluster.with_status()
        if attached_s is None and made == jobs:
            attached_s = perf_counter() - began
        if complete == jobs:
            break
        await asyncio.sleep(1.0)
    status_s = perf_counter() - began
    await asyncio.sleep(_QUIET_S)
    after_mb, writes = program.resident_mb(), await program.writes()
    await asyncio.sleep(_QUIET_S)
    return {
        "jobs": jobs,
        "actuator": actuator,
        "attached_s": round(attached_s or 0.0, 1),
        "with_status_s": round(status_s, 1),
        "writes": dict(writes),
        "writes_in_a_quiet_minute": dict(await program.writes() - writes),
        "resident_mb": [round(before_mb), round(after_mb)],
        "kb_per_job": round((after_mb - before_mb) * 1024 / jobs, 1),
    }


def _settings(kubeconfig: Path, endpoint: str) -> str:
    return yaml.safe_dump(
        {
            "kubernetes": {"kubeconfig": str(kubeconfig), "lease": {"namespace": "default"}},
            "dcgm": {"endpoints": [f"{endpoint}/metrics"]},
            "keda": {"scalerAddresses": ["scaler:9090"]},
            "grpc": {"address": "127.0.0.1:0"},
            "http": {"address": "127.0.0.1:0"},
            "log": {"format": "json"},
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--actuator", choices=["Direct", "KEDA"], default="Direct")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = asyncio.run(measure(given.jobs, given.actuator))
    print(json.dumps(found) if given.json else "\n".join(f"{key:<26}{value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
