"""What the metrics of a hub count of Workloads that a worker does not admit although they fit by its own answer."""

from datetime import timedelta

import pytest
from multikueue.hub.dispatch.hub_and_workers import Process, site
from reporting.usage.test_fleet_metrics import values

from scaler.app.metrics_sink import MetricsSink
from scaler.reporting.metrics import Metrics


class Counted:
    """The metrics of a process, up to its last report."""

    def __init__(self, process: Process) -> None:
        self._process, self._metrics = process, Metrics()
        self._sink, self._taken = MetricsSink(self._metrics), 0

    def __call__(self) -> dict[str, float]:
        for report in self._process.reports[self._taken :]:
            self._sink.dispatched(report)
        self._taken = len(self._process.reports)
        return {name: each for (name,), each in values(self._metrics, NOT_ADMITTED, "worker").items()}


NOT_ADMITTED = "nominations_not_admitted_total"


async def test_a_workload_counts_once_for_the_worker_that_has_room_and_does_not_admit_it() -> None:
    async with site("w1", "w2") as at, at.process() as process:
        counted = Counted(process)
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        assert counted() == {"w1": 0, "w2": 0}
        for _ in range(3):
            await at.pass_time(process)
            assert counted() == {"w1": 1, "w2": 0}
        assert await at.hub.nominated("gang") == ["w2"], "after w1, w2 and w1 again"


async def test_it_counts_where_there_is_no_other_cluster_too() -> None:
    async with site("w1") as at, at.process() as process:
        counted = Counted(process)
        await at.hub.waits("gang")
        await at.answers(process, w1="Reclaim")
        await at.pass_time(process)
        assert counted() == {"w1": 1}


async def test_it_counts_again_once_it_has_run_and_waits_anew() -> None:
    async with site("w1") as at, at.process() as process:
        counted = Counted(process)
        await at.hub.waits("gang")
        await at.answers(process, w1="Free")
        await at.pass_time(process)
        await at.hub.is_admitted("gang", "w1")
        await process.settles()
        await at.hub.is_evicted("gang")
        await at.answers(process, w1="Free")
        assert counted() == {"w1": 1}
        await at.pass_time(process)
        assert counted() == {"w1": 2}


@pytest.mark.parametrize("later", ["Wait", "Nodes", "Never"])
async def test_a_worker_that_says_that_there_is_no_room_does_not_count(later: str) -> None:
    async with site("w1", "w2") as at, at.process() as process:
        counted = Counted(process)
        await at.hub.waits("gang")
        await at.answers(process, w1="Free", w2="Wait")
        await at.answers(process, w1=later)
        for _ in range(2):
            await at.pass_time(process)
        assert counted() == {"w1": 0, "w2": 0}


async def test_while_no_clusters_are_nominated_nothing_counts() -> None:
    async with site("w1") as at, at.process() as process:
        counted = Counted(process)
        await at.hub.waits("gang")
        await at.answers(process, w1="Free")
        at.hub.kube.remedy = "none"
        await at.pass_time(process, timedelta(minutes=10))
        assert process.reports[-1].stopped_because == "NoRemedy"
        assert counted() == {"w1": 0}
