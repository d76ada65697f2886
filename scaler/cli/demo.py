"""`idle-gpu-scaler demo`: the story on embedded clusters, one for each act, with the real scaler in their midst."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from scaler.cli.packaged import NAMESPACE, SERVICE_ACCOUNT, account, crds, packaged
from scaler.cli.run import fastest_loop
from scaler.cli.runtime import Runtime
from scaler.cli.timeline import (
    FIRST_ACT,
    SECOND_ACT,
    THIRD_ACT,
    Ending,
    JsonTimeline,
    LiveTimeline,
    PlainTimeline,
    Timeline,
)
from scaler.embedded import cohort_story, provisioning_story
from scaler.embedded.autoscaler import AutoscalerConfig
from scaler.embedded.cohort_story import CohortOutcome, CohortStory
from scaler.embedded.config import WorldConfig
from scaler.embedded.prometheus import PrometheusProcess
from scaler.embedded.provisioning_story import ProvisioningOutcome, ProvisioningStory
from scaler.embedded.story import Outcome, Story, StoryTiming, manifests
from scaler.embedded.world import World
from scaler.errors import ConfigurationError
from scaler.kube.resources import SCALABLE_WORKLOAD
from scaler.settings.load import load
from scaler.settings.model import Settings
from scaler.telemetry import logs

COLLECTION = timedelta(milliseconds=500)
"""How often the simulated exporter collects; a real one does every 30 s. All else is hurried up alike."""
NODES = {"gpu-node-1": 2}


ACTS = ("first", "second", "third")


def run_demo(*, as_json: bool, source: str, serve: bool, act: str = "") -> int:
    """The exit status: 0 only if every gang that waited really got its GPUs, and nobody else was harmed."""
    if source not in ("dcgm", "prometheus"):
        raise ConfigurationError(f"--source {source!r}: write 'dcgm' or 'prometheus'")
    if act not in ("", *ACTS):
        raise ConfigurationError(f"--act {act!r}: write 'first', 'second' or 'third', or leave it out for all")
    missing = [module for module in ("cel", "jsonpatch", "jsonschema_rs") if find_spec(module) is None]
    if missing:
        raise ConfigurationError("the demo needs the extra 'demo': pip install 'idle-gpu-scaler[demo]'")
    logs.configure(level="error", style="text")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_demo(_timeline(as_json), acts=(act,) if act else ACTS, source=source, serve=serve))


def _timeline(as_json: bool) -> Timeline:
    if as_json:
        return JsonTimeline()
    console = Console()
    return LiveTimeline(console) if console.is_terminal else PlainTimeline(console)


async def _demo(timeline: Timeline, *, acts: Sequence[str], source: str, serve: bool) -> int:
    began = time.monotonic()
    first: Outcome | None = None
    second: CohortOutcome | None = None
    third: ProvisioningOutcome | None = None
    async with AsyncExitStack() as stack:
        stages: dict[str, Stage] = {}
        if "first" in acts:
            stages["two gangs, one quota"] = stage = await _set(stack, _Scenery(nodes=NODES), source)
            first = await _first_act(timeline, stage, began)
            await _leave(stage, serve=serve)
        if "second" in acts and (first is None or first.ok):
            stages["three teams in a cohort"] = stage = await _set(stack, _Scenery(nodes=cohort_story.NODES), source)
            second = await _second_act(timeline, stage, began)
            await _leave(stage, serve=serve)
        if "third" in acts and all(each is None or each.ok for each in (first, second)):
            stages["nodes that do not exist yet"] = stage = await _set(stack, _GROWING, source)
            third = await _third_act(timeline, stage, began)
        ending = Ending(first=first, second=second, third=third, seconds=round(time.monotonic() - began, 2))
        timeline.finish(ending)
        if serve:
            await _serve(timeline, stages)
    return 0 if ending.ok else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scenery:
    """What the world of an act is made of."""

    nodes: Mapping[str, int]
    autoscaler: AutoscalerConfig | None = None
    """Where it is told how to answer, nodes come while the act is told."""


_GROWING = _Scenery(nodes=provisioning_story.NODES, autoscaler=provisioning_story.AUTOSCALER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A world with a scaler in its midst."""

    world: World
    runtime: Runtime
    kubeconfig: Path
    end: AsyncExitStack
    """Ends both."""

    @property
    def scaler_address(self) -> str:
        return f"127.0.0.1:{self.runtime.grpc_port}"


async def _set(stack: AsyncExitStack, scenery: _Scenery, source: str) -> Stage:
    end = await stack.enter_async_context(AsyncExitStack())
    folder = Path(end.enter_context(tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-demo-")))
    config = replace(WorldConfig.fast(scenery.nodes, collect=COLLECTION), follows=(SCALABLE_WORKLOAD,))
    if scenery.autoscaler is not None:
        config = replace(config, autoscaler=scenery.autoscaler)
    world = World(config)
    kubeconfig, own = folder / "kubeconfig", folder / "own-kubeconfig"
    await end.enter_async_context(world)
    await world.apply([*crds(), *account()])
    world.write_kubeconfig(kubeconfig)
    # The scaler may do what it may do in a cluster that it is installed in, and no more.
    world.write_kubeconfig(own, token=await world.token_of(NAMESPACE, SERVICE_ACCOUNT))
    # Only the page of all nodes tells of those, too, that come later.
    pages = world.exporter_urls if scenery.autoscaler is None else {"all": world.exporter_url}
    metrics: dict[str, Any] = {"dcgm.endpoints": list(pages.values())}
    if source == "prometheus":
        prometheus = await end.enter_async_context(PrometheusProcess(pages, interval=COLLECTION))
        metrics = {"prometheus.url": prometheus.url}
    runtime = Runtime(settings(own, metrics))
    await runtime.start()
    running = asyncio.create_task(runtime.run(), name="scaler")
    end.push_async_callback(_stop, runtime, running)
    return Stage(world=world, runtime=runtime, kubeconfig=kubeconfig, end=end)


async def _leave(stage: Stage, *, serve: bool) -> None:
    """An act that nobody is to look at afterwards makes room for the next."""
    if not serve:
        await stage.end.aclose()


async def _first_act(timeline: Timeline, stage: Stage, began: float) -> Outcome:
    timing = StoryTiming()
    objects = manifests(packaged("examples"), scaler_address=stage.scaler_address, timing=timing)
    story = Story(world=stage.world, objects=objects, tell=timeline.tell, timing=timing, began=began)
    with timeline.showing(stage.world, story, FIRST_ACT):
        return await story.run()


async def _second_act(timeline: Timeline, stage: Stage, began: float) -> CohortOutcome:
    story = CohortStory(world=stage.world, scaler_address=stage.scaler_address, tell=timeline.tell, began=began)
    with timeline.showing(stage.world, story, SECOND_ACT):
        return await story.run()


async def _third_act(timeline: Timeline, stage: Stage, began: float) -> ProvisioningOutcome:
    story = ProvisioningStory(world=stage.world, scaler_address=stage.scaler_address, tell=timeline.tell, began=began)
    with timeline.showing(stage.world, story, THIRD_ACT):
        return await story.run()


async def _stop(runtime: Runtime, running: "asyncio.Task[None]") -> None:
    runtime.stop()
    await running


def settings(kubeconfig: Path, more: dict[str, Any]) -> Settings:
    """The settings of a scaler in a hurried world."""
    interval = COLLECTION.total_seconds()
    hurried = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.lease": {"namespace": NAMESPACE, "duration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"},
        "evaluation": {"interval": f"{interval:g}s", "overlap": "3s"},
        "trust": {"collectionInterval": f"{interval:g}s"},
        # So that dashboards have something to show; nothing in the story is held up by it.
        "metrics": {"prices": {"NVIDIA-A100*": 2.5}},
        "reclaim.budgets": [{"name": "a few at once", "atOnce": {"count": 8}}],
        "grpc.address": "127.0.0.1:0",
        "grpc.reflection": find_spec("grpc_reflection") is not None,
        "http.address": "127.0.0.1:0",
    }
    return load(None, environ={}, flags=hurried | more)


async def _serve(timeline: Timeline, stages: Mapping[str, Stage]) -> None:
    for title, stage in stages.items():
        timeline.addresses(
            title,
            {
                "gRPC": stage.scaler_address,
                "HTTP": f"http://127.0.0.1:{stage.runtime.http_port}/",
                "Kubernetes API": stage.world.api_url,
                "kubeconfig": str(stage.kubeconfig),
                "dcgm-exporter": stage.world.exporter_url,
            },
        )
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
