"""The law of `gpu_usage`: what rests on nothing that changed is what would be found now."""

from dataclasses import replace
from typing import Any

import pytest
from decision.random_fleet import RandomFleet

from scaler.quota.watch import NotSynced
from scaler.reporting.pending_workloads import QueueNames
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuUsageReader


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
async def test_usage_that_stands_is_the_one_that_would_be_found_now(seed: int) -> None:
    fleet, shown = RandomFleet(seed), set[str]()
    [evaluator], queues = fleet.evaluators, QueueNames(quota=lambda: NotSynced("not watched"))
    cluster = fleet.cluster.read()
    lazy = GpuUsageReader(cluster=cluster, judge=evaluator.judge, queues=queues)
    for _ in range(40):
        if fleet.random.random() < 0.1:
            fleet.withdraw(*fleet.somebody())
        [evaluation] = await fleet.pass_time()
        if evaluation is None:
            continue
        thorough = GpuUsageReader(cluster=cluster, judge=evaluator.judge, queues=queues)
        thorough._models.update(lazy._models)
        found, expected = await lazy.take(evaluation), await thorough.take(evaluation)
        assert told(found) == told(expected)
        shown |= {str(each.state) for _, each in found.gpus}
    assert len(shown) > 3


def told(usage: FleetUsage) -> Any:
    return replace(usage, workloads=sorted(usage.workloads, key=lambda each: each.title))
