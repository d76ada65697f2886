"""What the demo's three acts leave in the metrics: every one that is declared, and the numbers of the story."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from scaler_sandbox import demo
from scaler_sandbox.timeline import JsonTimeline

from scaler.reporting.metrics import Metrics

NOT_SEEN = {
    "unpriced_idle_gpu_seconds_total": "every model has a price",
    "folded_namespaces": "there are two namespaces",
    "hidden_workloads": "seven workloads are fewer than metrics.workloads",
    "hidden_nodes": "four nodes are fewer than metrics.nodes",
    "distrusted_gpus": "no exporter fails",
    "unusable_triggers": "nobody has mistyped anything",
    "source_read_bytes_total": "only a Prometheus is read by the byte",
    "source_doubt": "the exporters answer",
    "blank_samples_total": "the exporters show no blanks",
    "planning_blind": "everything is seen but for the first moment",
    "provisioning_failures_total": "the autoscaler has what is asked for",
    "workload_paused": "nobody pauses anything",
    "paused_scaled_objects": "nobody pauses anything",
    "boosted_workloads": "nobody is left to Kueue",
    "budget_refusals_total": "there is room in the budget",
    "certificate_expiry_timestamp_seconds": "the demo speaks in the clear",
    "certificate_files_usable": "the demo speaks in the clear",
    "events_lost_total": "the API takes every Event",
    "workload_suspend_timestamp_seconds": "of a window of seconds little is foreseen",
}
"""Metrics of which the story may show no sample above 0, and why."""


class Seen:
    """The highest value of each series in all looks at one act."""

    def __init__(self) -> None:
        self.highest: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def look(self, metrics: Metrics) -> None:
        for family in metrics.registry.collect():
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                self.highest[key] = max(sample.value, self.highest.get(key, 0.0))

    def most(self, name: str, **labels: str) -> float:
        """The sum of the highest values of all series with these labels."""
        name = f"idle_gpu_scaler_{name}"
        return sum(
            n for (each, found), n in self.highest.items() if each == name and labels.items() <= dict(found).items()
        )


class Silent(JsonTimeline):
    """Nobody listens."""

    def tell(self, entry: Any) -> None:
        """Nothing."""


async def played(act: demo.Act) -> Seen:
    """What is to be seen of an act."""
    seen = Seen()
    async with AsyncExitStack() as stack:
        stage = await demo.start_act(stack, act, "dcgm")
        watching = asyncio.create_task(watch(stage, seen))
        outcome = await demo.play(Silent(), act, stage, time.monotonic())
        await asyncio.sleep(1.5)  # two more evaluations
        watching.cancel()
        seen.look(stage.runtime.metrics)
    assert outcome.ok, outcome.problem
    return seen


async def watch(stage: demo.RunningAct, seen: Seen) -> None:
    while True:
        seen.look(stage.runtime.metrics)
        await asyncio.sleep(0.4)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_metric_shows_something_of_the_story_or_says_why_not() -> None:
    first, second, third = await asyncio.gather(*(played(act) for act in demo.ACTS.values()))
    declared = {each.name.removeprefix("idle_gpu_scaler_"): each for each in Metrics().declared}
    shown = {name for seen in (first, second, third) for (name, _), value in seen.highest.items() if value > 0}
    missing = {name for name, each in declared.items() if not shown & {each.name, f"{each.name}_count"}}
    assert declared.keys() >= NOT_SEEN.keys()
    assert missing <= NOT_SEEN.keys()
    check_first_act(first)
    check_second_act(second)
    check_third_act(third)


def check_first_act(seen: Seen) -> None:
    """Two gangs of 2 GPUs share a quota of 2; the first sleeps for the second, and is woken within half a minute."""
    assert seen.most("suspensions_total", workload_namespace="demo", reason="GPUsIdle") == 1
    assert seen.most("reclaimed_gpus_total") == 2
    assert seen.most("regrets_total", reason="GPUsIdle") == seen.most("resumptions_total") == 1
    assert seen.most("resumed_to_running_seconds_count") == 1
    assert seen.most("idle_to_suspended_seconds_sum") >= 6  # idleAfter
    assert seen.most("gpu_seconds_total", state="Busy", cluster_queue="cluster-queue") > 10
    # 2 GPUs that are idle for 1 s cost 2 × 2.5 / 3600.
    idle = sum(seen.most("gpu_seconds_total", state=state) for state in ("Idle", "HeldIdle"))
    assert seen.most("idle_cost_total", currency="USD") == pytest.approx(idle * 2.5 / 3600)


def check_second_act(seen: Seen) -> None:
    """A gang of 8 GPUs takes 4 of two notebooks of another team; three notebooks stay idle, held by nobody's need."""
    assert seen.most("pending_gangs", cluster_queue="team-c", stage="Quota", reason="PlanUnderWay") == 1
    assert seen.most("pending_gpus", cluster_queue="team-c", reason="PlanUnderWay") == 8
    assert seen.most("suspended_gpus", cluster_queue="team-b") == 4
    assert seen.most("given_gpus_total", cluster_queue="team-c") == 4
    assert seen.most("gpus", cluster_queue="team-a", state="HeldIdle", reason="IdleNotNeeded") == 2
    assert seen.most("node_gpus") == 16
    assert seen.most("budget_limit_workloads", limit="AtOnce") == 8
    assert seen.most("budget_used_workloads", limit="AtOnce") == 2
    assert seen.most("reallocation_stage_seconds_count", stage="Releasing") == 2
    assert seen.most("regrets_total") == 0


def check_third_act(seen: Seen) -> None:
    """A gang of 16 GPUs takes 8 of two notebooks and a new node of 8, and is held until both are there."""
    assert seen.most("given_gpus_total") == 8
    assert seen.most("pending_gangs", stage="AdmissionCheck", reason="PodsEnding") == 1
    assert seen.most("open_provisioning_requests", state="Accepted") == 1
    assert seen.most("gate_gpus_total", origin="provisioned") == 8
    assert seen.most("node_gpus") == 24
    assert seen.most("gpus", state="Busy", reason="") >= 24
