"""A cluster for a new user, and a terminal in which what pages say can be typed.

What is played: Helm (its renderer is real), the kubelets, KEDA, Kueue and the Prometheus operator. What is real: the
chart, the roles as the API enforces them, the program as a process per replica with the rendered settings, Prometheus,
and the queries of the rendered dashboards. Times are hurried by values of the chart and of triggers, by nothing else.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from followed_page import ROOT, Helm, Release
from installed_scaler import InstalledScaler, Names
from prometheus_server import PrometheusServer, static_scrape
from scaler_sandbox.fleet import FleetConfig, Machine
from scaler_sandbox.manifests import objects_in
from scaler_sandbox.sandbox import Component, Sandbox, SandboxConfig

from dashboards.answers import Asker, Series
from scaler.kube.objects.resources import CLUSTER_IDLE_POLICY, DEPLOYMENT, NAMESPACE, SCALABLE_WORKLOAD, SCALED_OBJECT

Json = dict[str, Any]

PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""Where the cluster of the pages has one."""
EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x1", "container": "exporter"}
FLEET = "Idle GPUs / Fleet"
OPERATOR = "monitoring.coreos.com"
"""Kinds of the Prometheus operator, which is played by `scraped`."""
CRDS = ROOT / "deploy" / "helm" / "idle-gpu-scaler" / "crds"
HURRIED: Json = {
    "settings": {
        "kubernetes": {"lease": {"duration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"}},
        "evaluation": {"interval": "500ms", "overlap": "3s"},
        "trust": {"collectionInterval": "500ms", "maxAgeIntervals": 20, "maxGapIntervals": 20, "minCoverage": "30 %"},
    },
    "serviceMonitor": {"interval": "500ms"},
}
"""Values for half a second where a cluster takes half a minute; patient where a busy machine makes samples late."""
HURRIED_TRIGGER = {"idleAfter": "8s", "warmUp": "0s"}
SECONDS = 120.0
"""How long anything may take."""
_TRIES = 4


def hurried(body: Json) -> Json:
    """A ScaledObject that waits seconds where the page's waits minutes; everything else as it is."""
    if body["kind"] == "ScaledObject":
        body["spec"]["cooldownPeriod"] = 1
        body["spec"]["triggers"][0]["metadata"] |= HURRIED_TRIGGER
    return body


def objects_below(folder: Path) -> list[Json]:
    """All that its files have."""
    files = sorted(folder.glob("*.yaml"))
    return [body for file in files for body in objects_in(file.read_text(encoding="utf-8"))]


# ---------------------------------------------------------------------------------------------------------- a terminal


@dataclass(slots=True, kw_only=True)
class Terminal:
    """Where the user types. Commands that it does not know are errors."""

    world: Sandbox
    scaler: InstalledScaler
    prometheus: str
    targets: Path
    """The folder of the files in which Prometheus finds what it scrapes."""
    helm: Helm
    typed: list[Sequence[str]] = field(default_factory=list)
    dashboards: dict[str, Json] = field(default_factory=dict)
    """What Grafana has been given, by title."""
    began: float = field(default_factory=time.time)

    async def type(self, words: Sequence[str]) -> str:
        """What the command prints, as far as that is looked at. Raises: AssertionError where it fails."""
        self.typed.append(words)
        match list(words):
            case ["docker", "build" | "push", *_]:
                """tests/deploy/test_image.py holds what it is made of."""
            case ["helm", "get", *rest]:
                return self.helm.run(["get", *rest]).notes()
            case ["helm", *rest]:
                await self._install(self.helm.run(rest))
            case ["uv", "run", *rest]:
                return await self._run(rest)
            case ["idle-gpu-scaler", *_]:
                return await self._run(words)
            case ["kubectl", "-n", namespace, *rest]:
                return await self._kubectl(namespace, rest)
            case ["kubectl", *rest]:
                return await self._kubectl("default", rest)
            case _:
                raise AssertionError(f"this test does not know what this does: {' '.join(words)}")
        return ""

    async def _run(self, words: Sequence[str]) -> str:
        """The program beside the user, by port-forward, whose port is whichever was free."""
        for _ in range(_TRIES):
            status, said = await self.scaler.run_inside([*words, "--server", self.scaler.http_url])
            if status == 0:
                return said
            await asyncio.sleep(1)  # what is new is evaluated with the next tick
        raise AssertionError(said)

    async def _until_valid(self, policy: str) -> None:
        async with asyncio.timeout(SECONDS):
            while "Valid" not in json.dumps((await self.world.read(CLUSTER_IDLE_POLICY, "", policy)).get("status")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _kubectl(self, namespace: str, words: Sequence[str]) -> str:
        match list(words):
            case ["rollout", "status", _] | ["port-forward", _, "8080:8080", "&"]:
                """The installation has waited for it; the port is there."""
            case ["exec", _, "--", *rest]:
                status, said = await self.scaler.run_inside(rest)
                assert status == 0, said
                return said
            case ["apply", "-f", path]:
                await self._apply(ROOT / path)
            case ["annotate", "scaledobject", name, annotation]:
                key, _, value = annotation.partition("=")
                await self.world.patch(SCALED_OBJECT, namespace, name, {"metadata": {"annotations": {key: value}}})
            case ["get", "deployment", name, "--watch"]:
                await self.until(lambda: self.replicas(namespace, name) == 0, f"{name} to go to 0")
            case ["get", "clusteridlepolicies"]:
                await self._until_valid("everybody")
            case ["get", "scalableworkloads", "-A"]:
                return json.dumps(await self.world.read_all(SCALABLE_WORKLOAD))
            case ["delete", "namespace", name]:
                await self.world.delete(NAMESPACE, "", name)
            case _:
                raise AssertionError(f"this test does not know what this does: kubectl {' '.join(words)}")
        return ""

    async def _install(self, release: Release) -> None:
        """As Helm does: the namespace, definitions, objects; then the cluster does its part."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.namespace}}
        await self.world.apply([*objects_below(CRDS), namespace])
        bodies = release.objects()
        applied = await self.world.apply([each for each in bodies if not each["apiVersion"].startswith(OPERATOR)])
        await self.scaler.roll_out(applied)
        found = [*scraped(bodies, self.scaler)]
        for job in JOBS:
            (self.targets / f"{job}.json").write_text(json.dumps([target for name, target in found if name == job]))
        for each in applied:
            if each["kind"] == "ConfigMap" and each["metadata"]["labels"].get("grafana_dashboard") == "1":
                [board] = map(json.loads, each["data"].values())
                self.dashboards[board["title"]] = board

    async def _apply(self, folder: Path) -> None:
        """The files of the folder; the next command comes when what they want runs, and KEDA has asked about it."""
        for body in await self.world.apply([hurried(body) for body in objects_below(folder)]):
            key = body["metadata"].get("namespace", ""), body["metadata"]["name"]
            if body["kind"] == "Deployment":
                await self.until(lambda key=key: self.replicas(*key) == 1, f"{key} to run")  # type: ignore[misc]
            if body["kind"] == "ScaledObject":
                is_ready = partial(self.world.condition, SCALED_OBJECT, *key, "Ready")
                await self.until(is_ready, f"KEDA to take care of {key}")

    # ------------------------------------------------------------------------------------------------------- looking

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        await self.world.wait_for(holds, what, within=SECONDS)

    def replicas(self, namespace: str, deployment: str) -> int | None:
        """How many are ready, where that is how many are wanted; None on the way."""
        found = self.world.find(DEPLOYMENT, namespace, deployment) or {"spec": {"replicas": 1}}
        ready = int(found.get("status", {}).get("readyReplicas", 0))
        return ready if ready == found["spec"]["replicas"] else None

    def shows(self, title: str) -> Mapping[str, float]:
        """What the fleet's panel shows now, by legend; of one that shows a single number that is `value`."""
        return {series.name: series.points[-1][1] for series in self._asked(title, instant=True)}

    async def will_show(self, title: str, expected: Mapping[str, float]) -> None:
        """Waits until the panel shows just that, for things that stay. Raises: AssertionError with what it shows."""
        await self._until_shown(title, expected, lambda: self.shows(title) == expected)

    async def has_shown(self, title: str, expected: Mapping[str, float]) -> None:
        """Waits until the panel has shown that at some time, for things that pass. Raises: AssertionError."""

        def was_shown() -> bool:
            seen = {(each.name, value) for each in self._asked(title, instant=False) for _, value in each.points}
            return expected.items() <= seen

        await self._until_shown(title, expected, was_shown)

    async def _until_shown(self, title: str, expected: Mapping[str, float], is_shown: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    if await asyncio.to_thread(is_shown):
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{title} shows {self.shows(title)}, not {expected}") from None

    def _asked(self, title: str, *, instant: bool) -> list[Series]:
        [panel] = [each for each in self.dashboards[FLEET]["panels"] if each["title"] == title]
        asker = Asker(url=self.prometheus, start=self.began, end=time.time())
        return asker.ask({**panel["targets"][0], "instant": instant})


# ----------------------------------------------------------------------------------------------------------- a cluster

JOBS = {"plain": False, "honored": True}
"""By which ServiceMonitors are scraped: whether labels of what is scraped go before Prometheus' own."""


SELECTED = {"release": "kube-prometheus-stack"}
"""What the Prometheus of the pages selects ServiceMonitors by, as kube-prometheus-stack sets it up."""


def scraped(bodies: Sequence[Json], scaler: InstalledScaler) -> Iterator[tuple[str, Json]]:
    """What the Prometheus operator makes of ServiceMonitors: jobs, and their targets as files have them."""
    for monitor in (each for each in bodies if each["kind"] == "ServiceMonitor"):
        if not SELECTED.items() <= monitor["metadata"]["labels"].items():
            continue
        spec = monitor["spec"]
        for service in (each for each in bodies if each["kind"] == "Service"):
            named, labels = service["metadata"]["namespace"], service["metadata"]["labels"]
            if named not in spec["namespaceSelector"]["matchNames"]:
                continue
            if not spec["selector"]["matchLabels"].items() <= labels.items():
                continue
            [endpoint], [port] = spec["endpoints"], service["spec"]["ports"]
            assert endpoint["port"] == port["name"]
            every = {"__metrics_path__": endpoint["path"], "__scrape_interval__": endpoint["interval"]}
            for pod, here in scaler.endpoints(service, port):
                own = {"namespace": named, "pod": pod.name, "container": "scaler"}
                job = "honored" if endpoint.get("honorLabels") else "plain"
                yield job, {"targets": [f"127.0.0.1:{here}"], "labels": {**every, **own}}


@asynccontextmanager
async def a_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, values: Json | None = None
) -> AsyncIterator[Terminal]:
    """A node with two GPUs, KEDA, Kueue, dcgm-exporter and Prometheus, as the pages ask for; and a terminal.

    `values` are for the chart, beside those that hurry it up.
    """
    labels = {"kubernetes.io/os": "linux"}
    config = replace(
        SandboxConfig.fast(),
        fleet=FleetConfig(nodes={}, collect_seconds=0.25),
        follows=(SCALABLE_WORKLOAD, SCALED_OBJECT, DEPLOYMENT),
    )
    async with AsyncExitStack() as exits:
        names = await exits.enter_async_context(Names().served())
        # gRPC goes through it wherever a name is called; 127.0.0.1 is none.
        monkeypatch.setenv("grpc_proxy", names.url)
        monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")
        world = await exits.enter_async_context(Sandbox(config))
        world.fleet.add(Machine(name="gpu-node-1", gpus=2, labels=labels))
        (files := folder / "targets").mkdir()
        prometheus = PrometheusServer(folder / "prometheus", [*jobs(world, files)])
        exits.callback(prometheus.stop)
        await asyncio.to_thread(prometheus.start)
        await _has_scraped(prometheus.url)
        (pods := folder / "pods").mkdir()
        scaler = InstalledScaler(world, names, pods, prometheus={PROMETHEUS: prometheus.url})
        await exits.enter_async_context(scaler)
        helm = Helm(beside=HURRIED | (values or {}))
        yield Terminal(world=world, scaler=scaler, prometheus=prometheus.url, targets=files, helm=helm)
        # Nothing can be recorded in a namespace that is being deleted, whoever asks.
        refused = [line for line in scaler.log().splitlines() if "Forbidden" in line]
        assert [line for line in refused if "because it is being terminated" not in line] == []
        assert names.unknown == []
        await world.kill(Component.KEDA)


async def _has_scraped(prometheus: str) -> None:
    """Waits until there is something of the exporter, which was there long before the user. Raises: TimeoutError."""
    query = {"query": "DCGM_FI_DEV_GPU_UTIL and DCGM_FI_PROF_GR_ENGINE_ACTIVE"}
    async with asyncio.timeout(SECONDS), aiohttp.ClientSession(prometheus) as session:
        while True:
            async with session.get("/api/v1/query", params=query) as answer:
                if (await answer.json())["data"]["result"]:
                    return
            await asyncio.sleep(0.1)


def jobs(world: Sandbox, files: Path) -> Iterator[Json]:
    """What Prometheus scrapes."""
    exporter = static_scrape("dcgm", urlsplit(world.exporter_url).netloc, interval="250ms")
    exporter["static_configs"][0]["labels"] = EXPORTER
    yield exporter
    for name, honors in JOBS.items():
        found = {"file_sd_configs": [{"files": [str(files / f"{name}.json")]}], "honor_labels": honors}
        yield {"job_name": name, "scrape_interval": "500ms", "scrape_timeout": "500ms", **found}
