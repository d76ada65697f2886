"""What an act is played on: a cluster with a scaler in its midst, or a hub and its workers with a scaler in each."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaler.app.process import Runtime
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.kube.objects.resources import CLUSTER_OFFER, SCALABLE_WORKLOAD
from scaler_sandbox.autoscaler import AutoscalerConfig
from scaler_sandbox.multikueue.clusters import SandboxClusters
from scaler_sandbox.packaged import NAMESPACE, SERVICE_ACCOUNT, account, crds, dispatcher_account
from scaler_sandbox.prometheus import PrometheusProcess, free_port
from scaler_sandbox.sandbox import Sandbox, SandboxConfig

COLLECTION = timedelta(milliseconds=500)
"""How often the simulated exporter collects; a real one does every 30 s. All other intervals are shortened alike."""
HUB = "hub"
_DISPATCHES = {"components": ["scaler", "reconciler", "dispatcher"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAct:
    """A world with a scaler in its midst."""

    world: Sandbox
    runtime: Runtime
    kubeconfig: Path
    end: AsyncExitStack
    """Ends both, and all others."""
    prometheus_url: str = ""
    """Empty where the exporters are read directly."""
    name: str = ""
    """Name of the cluster, in an act on several."""
    others: Mapping[str, "RunningAct"] = field(default_factory=dict)
    """Further clusters of the act, by name."""

    @property
    def scaler_address(self) -> str:
        return f"127.0.0.1:{self.runtime.grpc_port}"

    @property
    def worlds(self) -> Sequence[Sandbox]:
        """All clusters of the act; this one comes last."""
        return [*(each.world for each in self.others.values()), self.world]

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of everything in the cluster."""
        prometheus = {"Prometheus": self.prometheus_url} if self.prometheus_url else {}
        return {
            "gRPC": self.scaler_address,
            "page": f"http://127.0.0.1:{self.runtime.http_port}/",
            "Kubernetes API": self.world.api_url,
            "kubeconfig": str(self.kubeconfig),
            "dcgm-exporter": self.world.exporter_url,
            **prometheus,
        }


async def one_cluster(
    end: AsyncExitStack, nodes: Mapping[str, int], source: str, *, autoscaler: AutoscalerConfig | None
) -> RunningAct:
    """A cluster of these nodes, GPUs by node."""
    config = _config(nodes)
    if autoscaler is not None:
        config = replace(config, autoscaler=autoscaler)
    world = await end.enter_async_context(Sandbox(config))
    await world.apply([*crds(), *account()])
    return await _with_scaler(end, world, source, grows=autoscaler is not None)


async def hub_and_workers(end: AsyncExitStack, workers: Mapping[str, Mapping[str, int]], source: str) -> RunningAct:
    """The last of these workers, GPUs by node and worker; the others are the hub and all other workers."""
    clusters = await end.enter_async_context(
        SandboxClusters({name: _config(nodes) for name, nodes in workers.items()}, hub=_config({}))
    )
    running: dict[str, RunningAct] = {}
    for name, world in clusters.workers.items():
        await world.apply(account())
        running[name] = await _with_scaler(end, world, source)
    await clusters.hub.apply([*account(), *dispatcher_account()])
    running[HUB] = await _with_scaler(end, clusters.hub, "dcgm", _DISPATCHES, grows=True)
    last = [*workers][-1]
    return replace(running.pop(last), name=last, others=running)


def _config(nodes: Mapping[str, int]) -> SandboxConfig:
    return replace(SandboxConfig.fast(nodes, collect=COLLECTION), follows=(SCALABLE_WORKLOAD, CLUSTER_OFFER))


async def _with_scaler(
    end: AsyncExitStack, world: Sandbox, source: str, more: Mapping[str, Any] | None = None, *, grows: bool = False
) -> RunningAct:
    """The scaler may do what it may do in a cluster that it is installed in, and no more.

    `grows`: nodes are added later, or there are none.
    """
    folder = Path(end.enter_context(tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-demo-")))
    kubeconfig, own = folder / "kubeconfig", folder / "own-kubeconfig"
    world.write_kubeconfig(kubeconfig)
    world.write_kubeconfig(own, token=await world.token_of(NAMESPACE, SERVICE_ACCOUNT))
    addresses = _addresses()
    metrics = await _metrics(end, world, source, scaler=addresses["http.address"], grows=grows)
    runtime = Runtime(settings(own, {**addresses, **metrics, **(more or {})}))
    await runtime.start()
    running = asyncio.create_task(runtime.run(), name="scaler")
    end.push_async_callback(_stop, runtime, running)
    url = metrics.get("prometheus.url", "")
    return RunningAct(world=world, runtime=runtime, kubeconfig=kubeconfig, end=end, prometheus_url=url)


def _addresses() -> dict[str, Any]:
    """Known before the scaler runs: Prometheus scrapes it, and KEDA finds it by the ScaledObjects of IdlePolicies."""
    grpc, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    return {"grpc.address": grpc, "keda.scalerAddresses": [grpc], "http.address": http}


async def _metrics(end: AsyncExitStack, world: Sandbox, source: str, *, scaler: str, grows: bool) -> dict[str, Any]:
    # Only the page of all nodes includes nodes that are added later.
    pages = {"all": world.exporter_url} if grows else world.exporter_urls
    if source == "prometheus":
        prometheus = await end.enter_async_context(PrometheusProcess(pages, interval=COLLECTION, scaler=scaler))
        return {"prometheus.url": prometheus.url}
    endpoints: Sequence[str] = list(pages.values())
    return {"dcgm.endpoints": endpoints}


async def _stop(runtime: Runtime, running: "asyncio.Task[None]") -> None:
    runtime.stop()
    await running


def settings(kubeconfig: Path, more: Mapping[str, Any]) -> Settings:
    """The settings of a scaler with short intervals."""
    interval = COLLECTION.total_seconds()
    short = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.lease": {"namespace": NAMESPACE, "duration": "30s", "renewDeadline": "20s", "retryPeriod": "500ms"},
        "evaluation": {"interval": f"{interval:g}s", "overlap": "3s"},
        "trust": {"collectionInterval": f"{interval:g}s"},
        # Prices give dashboards something to show; the story does not depend on them.
        "metrics": {"prices": {"NVIDIA-A100*": 2.5}},
        "reclaim.replanBackoff": "3s",
        "grpc.reflection": find_spec("grpc_reflection") is not None,
    }
    return load(None, environ={}, flags=short | dict(more))
