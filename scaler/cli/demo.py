"""`idle-gpu-scaler demo`: the whole story on an embedded cluster, with the real scaler in its midst."""

import asyncio
import signal
import tempfile
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from scaler.cli.packaged import crds, packaged
from scaler.cli.run import fastest_loop
from scaler.cli.runtime import Runtime
from scaler.cli.timeline import JsonTimeline, LiveTimeline, PlainTimeline, Timeline
from scaler.embedded.config import WorldConfig
from scaler.embedded.prometheus import PrometheusProcess
from scaler.embedded.story import Story, StoryTiming, manifests
from scaler.embedded.world import World
from scaler.errors import ConfigurationError
from scaler.settings.load import load
from scaler.settings.model import Settings
from scaler.telemetry import logs

COLLECTION = timedelta(milliseconds=500)
"""How often the simulated exporter collects; a real one does every 30 s. All else is hurried up alike."""
NODES = {"gpu-node-1": 2}


def run_demo(*, as_json: bool, source: str, serve: bool) -> int:
    """The exit status: 0 only if the waiting gang really got its GPUs and the first came back."""
    if source not in ("dcgm", "prometheus"):
        raise ConfigurationError(f"--source {source!r}: write 'dcgm' or 'prometheus'")
    missing = [module for module in ("cel", "jsonpatch", "jsonschema_rs") if find_spec(module) is None]
    if missing:
        raise ConfigurationError("the demo needs the extra 'demo': pip install 'idle-gpu-scaler[demo]'")
    logs.configure(level="error", style="text")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_demo(_timeline(as_json), source=source, serve=serve))


def _timeline(as_json: bool) -> Timeline:
    if as_json:
        return JsonTimeline()
    console = Console()
    return LiveTimeline(console) if console.is_terminal else PlainTimeline(console)


async def _demo(timeline: Timeline, *, source: str, serve: bool) -> int:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-demo-")))
        world = await stack.enter_async_context(World(WorldConfig.fast(NODES, collect=COLLECTION)))
        await world.apply(crds())
        kubeconfig = folder / "kubeconfig"
        world.write_kubeconfig(kubeconfig)
        metrics: dict[str, Any] = {"dcgm.endpoints": list(world.exporter_urls.values())}
        if source == "prometheus":
            prometheus = await stack.enter_async_context(PrometheusProcess(world.exporter_urls, interval=COLLECTION))
            metrics = {"prometheus.url": prometheus.url}
        runtime = Runtime(settings(kubeconfig, metrics))
        await runtime.start()
        running = asyncio.create_task(runtime.run(), name="scaler")
        stack.push_async_callback(_stop, runtime, running)
        timing = StoryTiming()
        objects = manifests(packaged("examples"), scaler_address=f"127.0.0.1:{runtime.grpc_port}", timing=timing)
        story = Story(world=world, objects=objects, tell=timeline.tell, timing=timing)
        with timeline.showing(world, story):
            outcome = await story.run()
        timeline.finish(outcome)
        if serve:
            await _serve(timeline, world, runtime, kubeconfig)
    return 0 if outcome.ok else 1


async def _stop(runtime: Runtime, running: "asyncio.Task[None]") -> None:
    runtime.stop()
    await running


def settings(kubeconfig: Path, metrics: dict[str, Any]) -> Settings:
    """The settings of a scaler in a hurried world."""
    interval = COLLECTION.total_seconds()
    hurried = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.lease": {"namespace": "default", "duration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
        "evaluation": {"interval": f"{interval:g}s", "overlap": "3s"},
        "trust": {"collectionInterval": f"{interval:g}s"},
        "grpc.address": "127.0.0.1:0",
        "grpc.reflection": find_spec("grpc_reflection") is not None,
        "http.address": "127.0.0.1:0",
    }
    return load(None, environ={}, flags=hurried | metrics)


async def _serve(timeline: Timeline, world: World, runtime: Runtime, kubeconfig: Path) -> None:
    timeline.addresses(
        {
            "gRPC": f"127.0.0.1:{runtime.grpc_port}",
            "HTTP": f"http://127.0.0.1:{runtime.http_port}/",
            "Kubernetes API": world.api_url,
            "kubeconfig": str(kubeconfig),
            "dcgm-exporter": world.exporter_url,
        }
    )
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
