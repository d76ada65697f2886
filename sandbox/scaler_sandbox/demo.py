"""`idle-gpu-scaler demo`: the story on embedded clusters, one for each act, with the real scaler in their midst."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from scaler.app.process import Runtime, fastest_loop
from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.kube.objects.resources import SCALABLE_WORKLOAD
from scaler.reporting import logs
from scaler_sandbox.autoscaler import AutoscalerConfig
from scaler_sandbox.packaged import NAMESPACE, SERVICE_ACCOUNT, account, crds, packaged
from scaler_sandbox.prometheus import PrometheusProcess
from scaler_sandbox.sandbox import Sandbox, SandboxConfig
from scaler_sandbox.stories import answers, cohort, provisioning
from scaler_sandbox.stories.answers import AnswersStory
from scaler_sandbox.stories.cohort import CohortStory
from scaler_sandbox.stories.facts import ActOutcome, StoryEntry
from scaler_sandbox.stories.hand_over import HandOverStory, manifests
from scaler_sandbox.stories.provisioning import ProvisioningStory
from scaler_sandbox.timeline import (
    FIRST_ACT,
    FOURTH_ACT,
    SECOND_ACT,
    THIRD_ACT,
    DemoOutcome,
    JsonTimeline,
    LiveTimeline,
    PlainTimeline,
    PlayedAct,
    Timeline,
)

Tell = Callable[[StoryEntry], None]

COLLECTION = timedelta(milliseconds=500)
"""How often the simulated exporter collects; a real one does every 30 s. All other intervals are shortened alike."""
NODES = {"gpu-node-1": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act, and what its cluster is made of."""

    title: str
    introduction: Text
    nodes: Mapping[str, int]
    story: "Callable[[RunningAct, Tell, float], PlayedAct]"
    autoscaler: AutoscalerConfig | None = None
    """How the autoscaler provisions nodes during the act; None for an act without."""


def _hand_over(stage: "RunningAct", tell: Tell, began: float) -> HandOverStory:
    address = stage.scaler_address
    objects = manifests(packaged("examples"), scaler_address=address)
    return HandOverStory(world=stage.world, scaler_address=address, objects=objects, tell=tell, began=began)


def _cohort(stage: "RunningAct", tell: Tell, began: float) -> CohortStory:
    return CohortStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=began)


def _growing(stage: "RunningAct", tell: Tell, began: float) -> ProvisioningStory:
    return ProvisioningStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=began)


def _answers(stage: "RunningAct", tell: Tell, began: float) -> AnswersStory:
    return AnswersStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=began)


ACTS = {
    "first": Act(title="two gangs, one quota", introduction=FIRST_ACT, nodes=NODES, story=_hand_over),
    "second": Act(title="three teams in a cohort", introduction=SECOND_ACT, nodes=cohort.NODES, story=_cohort),
    "third": Act(
        title="nodes that do not exist yet",
        introduction=THIRD_ACT,
        nodes=provisioning.NODES,
        story=_growing,
        autoscaler=provisioning.AUTOSCALER,
    ),
    "fourth": Act(title="an owner answers", introduction=FOURTH_ACT, nodes=answers.NODES, story=_answers),
}


def run_demo(*, as_json: bool, source: str, serve: bool, act: str = "") -> int:
    """The exit status: 0 only if every pending gang was admitted and no other workload was suspended."""
    if source not in ("dcgm", "prometheus"):
        raise ConfigurationError(f"--source {source!r}: write 'dcgm' or 'prometheus'")
    if act not in ("", *ACTS):
        known = "'first', 'second', 'third' or 'fourth'"
        raise ConfigurationError(f"--act {act!r}: write {known}, or leave it out for all")
    logs.configure(level="error", style="text")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_demo(_timeline(as_json), acts=(act,) if act else ACTS, source=source, serve=serve))


def _timeline(as_json: bool) -> Timeline:
    if as_json:
        return JsonTimeline()
    console = Console()
    return LiveTimeline(console) if console.is_terminal else PlainTimeline(console)


async def _demo(timeline: Timeline, *, acts: Iterable[str], source: str, serve: bool) -> int:
    began = time.monotonic()
    outcomes: list[ActOutcome] = []
    async with AsyncExitStack() as stack:
        stages: dict[str, RunningAct] = {}
        for act in (ACTS[name] for name in acts):
            stages[act.title] = stage = await start_act(stack, act, source)
            outcomes.append(await play(timeline, act, stage, began))
            if not serve:
                # Without --serve, the cluster of an act is stopped before the next.
                await stage.end.aclose()
            if not outcomes[-1].ok:
                break
        ending = DemoOutcome(acts=outcomes, seconds=round(time.monotonic() - began, 2))
        timeline.finish(ending)
        if serve:
            await _serve(timeline, stages)
    return 0 if ending.ok else 1


async def play(timeline: Timeline, act: Act, stage: "RunningAct", began: float) -> ActOutcome:
    """Runs the act on its cluster."""
    story = act.story(stage, timeline.tell, began)
    with timeline.showing(stage.world, story, act.introduction):
        return await story.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAct:
    """A world with a scaler in its midst."""

    world: Sandbox
    runtime: Runtime
    kubeconfig: Path
    end: AsyncExitStack
    """Ends both."""

    @property
    def scaler_address(self) -> str:
        return f"127.0.0.1:{self.runtime.grpc_port}"


async def start_act(stack: AsyncExitStack, act: Act, source: str) -> RunningAct:
    """A cluster for the act, with a scaler that is installed in it."""
    end = await stack.enter_async_context(AsyncExitStack())
    folder = Path(end.enter_context(tempfile.TemporaryDirectory(prefix="idle-gpu-scaler-demo-")))
    config = replace(SandboxConfig.fast(act.nodes, collect=COLLECTION), follows=(SCALABLE_WORKLOAD,))
    if act.autoscaler is not None:
        config = replace(config, autoscaler=act.autoscaler)
    world = Sandbox(config)
    kubeconfig, own = folder / "kubeconfig", folder / "own-kubeconfig"
    await end.enter_async_context(world)
    await world.apply([*crds(), *account()])
    world.write_kubeconfig(kubeconfig)
    # The scaler may do what it may do in a cluster that it is installed in, and no more.
    world.write_kubeconfig(own, token=await world.token_of(NAMESPACE, SERVICE_ACCOUNT))
    # Only the page of all nodes includes nodes that are added later.
    pages = world.exporter_urls if act.autoscaler is None else {"all": world.exporter_url}
    metrics: dict[str, Any] = {"dcgm.endpoints": list(pages.values())}
    if source == "prometheus":
        prometheus = await end.enter_async_context(PrometheusProcess(pages, interval=COLLECTION))
        metrics = {"prometheus.url": prometheus.url}
    runtime = Runtime(settings(own, metrics))
    await runtime.start()
    running = asyncio.create_task(runtime.run(), name="scaler")
    end.push_async_callback(_stop, runtime, running)
    return RunningAct(world=world, runtime=runtime, kubeconfig=kubeconfig, end=end)


async def _stop(runtime: Runtime, running: "asyncio.Task[None]") -> None:
    runtime.stop()
    await running


def settings(kubeconfig: Path, more: dict[str, Any]) -> Settings:
    """The settings of a scaler with short intervals."""
    interval = COLLECTION.total_seconds()
    short = {
        "kubernetes.kubeconfig": kubeconfig,
        "kubernetes.lease": {"namespace": NAMESPACE, "duration": "30s", "renewDeadline": "20s", "retryPeriod": "500ms"},
        "evaluation": {"interval": f"{interval:g}s", "overlap": "3s"},
        "trust": {"collectionInterval": f"{interval:g}s"},
        # So that dashboards have something to show; nothing in the story is held up by it.
        "metrics": {"prices": {"NVIDIA-A100*": 2.5}},
        "reclaim.replanBackoff": "3s",
        "reclaim.budgets": [{"name": "a few at once", "atOnce": {"count": 8}}],
        "grpc.address": "127.0.0.1:0",
        "grpc.reflection": find_spec("grpc_reflection") is not None,
        "http.address": "127.0.0.1:0",
    }
    return load(None, environ={}, flags=short | more)


async def _serve(timeline: Timeline, stages: Mapping[str, RunningAct]) -> None:
    for title, stage in stages.items():
        timeline.addresses(
            title,
            {
                "gRPC": stage.scaler_address,
                "page": f"http://127.0.0.1:{stage.runtime.http_port}/",
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
