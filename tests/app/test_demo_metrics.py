"""What the demo's acts leave in the metrics: something in every one that is declared."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from scaler_sandbox import demo
from scaler_sandbox.timeline import JsonTimeline

from scaler.reporting.metrics import Metrics

NOT_SEEN = {
    "http_refusals_total": "nobody asks for what is refused",
    "unpriced_idle_gpu_seconds_total": "every model has a price",
    "folded_namespaces": "there are two namespaces",
    "hidden_workloads": "seven workloads are fewer than metrics.workloads",
    "hidden_nodes": "four nodes are fewer than metrics.nodes",
    "distrusted_gpus": "no exporter fails",
    "unusable_triggers": "no trigger has a mistake",
    "source_read_bytes_total": "only a Prometheus is read by the byte",
    "source_doubt": "the exporters answer",
    "blank_samples_total": "the exporters show no blanks",
    "planning_blind": "everything is seen but for the first moment",
    "provisioning_failures_total": "the autoscaler has what is asked for",
    "workload_paused": "no ScaledObject is paused",
    "paused_scaled_objects": "no ScaledObject is paused",
    "boosted_workloads": "no workload is left to Kueue to preempt",
    "budget_refusals_total": "no budget is used up",
    "certificate_expiry_timestamp_seconds": "the demo runs without TLS",
    "certificate_files_usable": "the demo runs without TLS",
    "events_lost_total": "the API takes every Event",
    "before_suspend_total": "no hook is configured",
    "notifications_total": "no target is configured",
    "oldest_pending_notification_seconds": "no target is configured",
    "dispatcher_stopped": "clusters are nominated all the time",
    "judged_workloads": "the gang on the hub is scaled by nothing",
    "offer_unknown": "workers know what they have but for the first moment",
    "nominations_not_admitted_total": "the nominated worker admits the gang",
    "workload_suspend_timestamp_seconds": "a window of seconds leaves little to foresee",
}
"""Metrics of which the story may show no sample above 0, and why."""


class Silent(JsonTimeline):
    """Prints nothing."""

    def tell(self, entry: Any) -> None:
        """Nothing."""


async def played(act: demo.Act) -> set[str]:
    """Names of the metrics that an act shows above 0."""
    seen = set[str]()
    async with AsyncExitStack() as stack:
        stage = await demo.start_act(stack, act, "dcgm")
        watching = asyncio.create_task(watch(stage, seen))
        outcome = await demo.play(Silent(), act, stage, time.monotonic())
        await asyncio.sleep(1.5)  # two more evaluations
        watching.cancel()
        seen |= shown(stage)
    assert outcome.ok, outcome.problem
    return seen


def shown(stage: demo.RunningAct) -> set[str]:
    """By any scaler of the act."""
    families = (each.runtime.metrics.registry.collect() for each in (stage, *stage.others.values()))
    samples = (sample for collected in families for family in collected for sample in family.samples)
    return {sample.name for sample in samples if sample.value > 0}


async def watch(stage: demo.RunningAct, seen: set[str]) -> None:
    while True:
        seen |= shown(stage)
        await asyncio.sleep(0.4)


@pytest.mark.slow
async def test_every_metric_shows_something_of_the_story_or_says_why_not() -> None:
    seen = set[str]()
    for act in demo.ACTS.values():  # one after the other: together they are too much for one core in a hurry
        seen |= await played(act)
    declared = {each.name.removeprefix("idle_gpu_scaler_"): each for each in Metrics().declared}
    missing = {name for name, each in declared.items() if not seen & {each.name, f"{each.name}_count"}}
    assert declared.keys() >= NOT_SEEN.keys()
    assert missing <= NOT_SEEN.keys()
