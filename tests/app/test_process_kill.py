"""SIGKILL at any step of the story and a restart end in the same state as without."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_server import require_prometheus
from scaler_process import ScalerProcess, hurried
from scaler_sandbox.config import SandboxConfig
from scaler_sandbox.demo import COLLECTION, NODES
from scaler_sandbox.prometheus import PrometheusProcess
from scaler_sandbox.sandbox import Sandbox
from scaler_sandbox.stories.facts import ActOutcome, Facts, StoryEntry
from scaler_sandbox.stories.notebooks import Story, StoryTiming, manifests

from scaler.app.packaged import crds, packaged

TIMING = StoryTiming(
    first_trains=1.5, second_trains=1.0, stays=1.5, idle_after="4s", warm_up="1s", cooldown_seconds=1, patience=40.0
)


async def tell(folder: Path, *, kill_at: frozenset[str], through_prometheus: bool) -> "Told":
    """The story with the scaler as a process, killed right after each of these events and started again."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(Sandbox(SandboxConfig.fast(NODES, collect=COLLECTION)))
        await world.apply(crds())
        folder.mkdir()  # noqa: ASYNC240 (once, before anything runs)
        world.write_kubeconfig(folder / "kubeconfig")
        source: dict[str, object] = {"dcgm": {"endpoints": list(world.exporter_urls.values())}}
        if through_prometheus:
            prometheus = PrometheusProcess(world.exporter_urls, interval=COLLECTION)
            source = {"prometheus": {"url": (await stack.enter_async_context(prometheus)).url}}
        async with ScalerProcess(folder, hurried(folder / "kubeconfig") | source) as scaler:
            await scaler.until_ready()
            kills: list[asyncio.Task[None]] = []
            left, told = set(kill_at), list[str]()

            async def kill_and_restart() -> None:
                await scaler.kill()
                await asyncio.sleep(0.3)
                await scaler.start()

            def heed(entry: StoryEntry) -> None:
                event = f"{entry.news.event} {entry.news.object}"
                told.append(event)
                if event in left:
                    left.discard(event)
                    kills.append(asyncio.create_task(kill_and_restart()))

            objects = manifests(packaged("examples"), scaler_address=f"127.0.0.1:{scaler.grpc_port}", timing=TIMING)
            story = Story(world=world, objects=objects, tell=heed, timing=TIMING)
            outcome = await story.run()
            await asyncio.gather(*kills)
            assert not left, f"these events never came: {left}; told: {told}\n{scaler.log()}"
            return Told(outcome, story.facts, told, scaler.starts)


def final_state(facts: Facts) -> tuple[object, ...]:
    first, scaled = facts.first, facts.scaled
    return first.is_running, first.active, first.admitted, facts.second.exists, scaled.desired, scaled.phase


FIRST, SCALABLE, SECOND = (
    "RayCluster/first-raycluster",
    "ScalableWorkload/first-raycluster",
    "RayCluster/second-raycluster",
)


class Told(NamedTuple):
    outcome: ActOutcome
    facts: Facts
    events: list[str]
    starts: int


async def check(folder: Path, *kill_at: str, through_prometheus: bool = False) -> None:
    told = await tell(folder, kill_at=frozenset(kill_at), through_prometheus=through_prometheus)
    assert told.outcome.ok, (kill_at, told.outcome.problem, told.events)
    assert told.starts == 1 + len(kill_at)
    assert final_state(told.facts) == (True, True, True, False, 1, "Running"), kill_at
    assert told.events.count(f"Deactivated {FIRST}") == 1, told.events
    assert told.events.count(f"Admitted {SECOND}") == 1, told.events


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_kill_on_the_way_to_the_suspension_and_a_restart_end_in_the_same_state(tmp_path: Path) -> None:
    # Scraped directly, so that a restart loses the window and has to fill it again. Told side by side: they wait a lot.
    await asyncio.gather(
        check(tmp_path / "first trains", f"Running {FIRST}"),
        check(tmp_path / "warned", f"SuspendSoon {SCALABLE}"),
        check(tmp_path / "found idle, before KEDA acts", f"Idle {SCALABLE}"),
    )


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.timeout(300)
async def test_a_kill_on_the_way_back_and_a_restart_end_in_the_same_state(tmp_path: Path) -> None:
    require_prometheus()
    await asyncio.gather(
        check(tmp_path / "at zero", f"ScaledToZero {SCALABLE}", through_prometheus=True),
        check(tmp_path / "pods gone, woken", f"PodsGone {FIRST}", f"ScaledToOne {SCALABLE}", through_prometheus=True),
        check(tmp_path / "wish, grant", f"OwnerWakes {SCALABLE}", f"Reactivated {FIRST}", through_prometheus=True),
    )
