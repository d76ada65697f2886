"""`idle-gpu-scaler demo`: the story on embedded clusters, one for each act, with the real scaler in their midst."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from scaler.app.process import fastest_loop
from scaler.errors import ConfigurationError
from scaler.reporting import logs
from scaler_sandbox.autoscaler import AutoscalerConfig
from scaler_sandbox.packaged import packaged
from scaler_sandbox.stage import HUB, RunningAct, hub_and_workers, one_cluster
from scaler_sandbox.stories import answers, cohort, provisioning, two_clusters
from scaler_sandbox.stories.answers import AnswersStory
from scaler_sandbox.stories.cohort import CohortStory
from scaler_sandbox.stories.facts import ActOutcome, StoryEntry
from scaler_sandbox.stories.hand_over import HandOverStory, manifests
from scaler_sandbox.stories.provisioning import ProvisioningStory
from scaler_sandbox.stories.two_clusters import TwoClustersStory
from scaler_sandbox.timeline import (
    FIFTH_ACT,
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

NODES = {"gpu-node-1": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act, and what its cluster is made of."""

    title: str
    introduction: Text
    story: Callable[[RunningAct, Tell, float], PlayedAct]
    nodes: Mapping[str, int] = field(default_factory=dict)
    """GPUs by node."""
    workers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """GPUs by node and worker in an act on a hub and its workers; the worker that is shown is the last."""
    autoscaler: AutoscalerConfig | None = None
    """How the autoscaler provisions nodes during the act; None for an act without."""


def _hand_over(stage: RunningAct, tell: Tell, began: float) -> HandOverStory:
    address = stage.scaler_address
    objects = manifests(packaged("examples"), scaler_address=address)
    return HandOverStory(world=stage.world, scaler_address=address, objects=objects, tell=tell, began=began)


def _cohort(stage: RunningAct, tell: Tell, began: float) -> CohortStory:
    return CohortStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=began)


def _growing(stage: RunningAct, tell: Tell, began: float) -> ProvisioningStory:
    return ProvisioningStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=began)


def _answers(stage: RunningAct, tell: Tell, began: float) -> AnswersStory:
    return AnswersStory(world=stage.world, scaler_address=stage.scaler_address, tell=tell, began=began)


def _two_clusters(stage: RunningAct, tell: Tell, began: float) -> TwoClustersStory:
    hub, busy = (stage.others[name] for name in (HUB, two_clusters.BUSY))
    return TwoClustersStory(
        world=stage.world,
        scaler_address=stage.scaler_address,
        hub=hub.world,
        busy=busy.world,
        busy_scaler_address=busy.scaler_address,
        tell=tell,
        began=began,
    )


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
    "fifth": Act(
        title="one gang, two clusters", introduction=FIFTH_ACT, workers=two_clusters.WORKERS, story=_two_clusters
    ),
}


def run_demo(*, as_json: bool, source: str, serve: bool, act: str = "") -> int:
    """The exit status: 0 only if every pending gang was admitted and no other workload was suspended."""
    if source not in ("dcgm", "prometheus"):
        raise ConfigurationError(f"--source {source!r}: write 'dcgm' or 'prometheus'")
    if act not in ("", *ACTS):
        known = "'first', 'second', 'third', 'fourth' or 'fifth'"
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


async def play(timeline: Timeline, act: Act, stage: RunningAct, began: float) -> ActOutcome:
    """Runs the act on its clusters."""
    story = act.story(stage, timeline.tell, began)
    with timeline.showing(stage.worlds, story, act.introduction):
        return await story.run()


async def start_act(stack: AsyncExitStack, act: Act, source: str) -> RunningAct:
    """Clusters for the act, with a scaler that is installed in each of them."""
    end = await stack.enter_async_context(AsyncExitStack())
    if act.workers:
        return await hub_and_workers(end, act.workers, source)
    return await one_cluster(end, act.nodes, source, autoscaler=act.autoscaler)


async def _serve(timeline: Timeline, stages: Mapping[str, RunningAct]) -> None:
    for title, stage in stages.items():
        timeline.addresses(f"{title}: {stage.name}" if stage.name else title, stage.addresses)
        for name, other in stage.others.items():
            timeline.addresses(f"{title}: {name}", other.addresses)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
