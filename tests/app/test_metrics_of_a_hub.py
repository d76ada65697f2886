"""What the metrics of a hub count of Workloads that a worker does not admit although they fit by its own answer."""

from datetime import timedelta

import pytest
from multikueue.hub.dispatch.dispatch_site import Site
from reporting.usage.test_fleet_metrics import values
from scaler_sandbox.multikueue import Remedy

from scaler.app.metrics_sink import MetricsSink
from scaler.reporting.metrics import Metrics


class Counted:
    """The metrics of the dispatcher, up to its last report."""

    def __init__(self, site: Site) -> None:
        self._reports, self._metrics = site.dispatcher.reports, Metrics()
        self._sink, self._taken = MetricsSink(self._metrics), 0

    def __call__(self) -> dict[str, float]:
        for report in self._reports[self._taken :]:
            self._sink.dispatched(report)
        self._taken = len(self._reports)
        return {name: each for (name,), each in values(self._metrics, NOT_ADMITTED, "worker").items()}


NOT_ADMITTED = "nominations_not_admitted_total"


async def test_a_workload_counts_once_for_the_worker_that_has_room_and_does_not_admit_it() -> None:
    site = Site("w1", "w2")
    counted = Counted(site)
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    assert counted() == {"w1": 0, "w2": 0}
    for _ in range(3):
        await site.pass_time()
        assert counted() == {"w1": 1, "w2": 0}
    assert site.nominated("gang") == ["w2"], "after w1, w2 and w1 again"


async def test_it_counts_where_there_is_no_other_cluster_too() -> None:
    site = Site("w1")
    counted = Counted(site)
    site.waits("gang")
    await site.answers(w1="Reclaim")
    await site.pass_time()
    assert counted() == {"w1": 1}


async def test_it_counts_again_once_it_has_run_and_waits_anew() -> None:
    site = Site("w1")
    counted = Counted(site)
    site.waits("gang")
    await site.answers(w1="Free")
    await site.pass_time()
    site.is_admitted("gang", "w1")
    await site.settles()
    site.is_evicted("gang")
    await site.answers(w1="Free")
    assert counted() == {"w1": 1}
    await site.pass_time()
    assert counted() == {"w1": 2}


@pytest.mark.parametrize("later", ["Wait", "Nodes", "Never"])
async def test_a_worker_that_says_that_there_is_no_room_does_not_count(later: str) -> None:
    site = Site("w1", "w2")
    counted = Counted(site)
    site.waits("gang")
    await site.answers(w1="Free", w2="Wait")
    await site.answers(w1=later)
    for _ in range(2):
        await site.pass_time()
    assert counted() == {"w1": 0, "w2": 0}


async def test_while_no_clusters_are_nominated_nothing_counts() -> None:
    site = Site("w1")
    counted = Counted(site)
    site.waits("gang")
    await site.answers(w1="Free")
    site.set_remedy(Remedy.NONE)
    await site.pass_time(timedelta(minutes=10))
    assert site.report.stopped_because == "NoRemedy"
    assert counted() == {"w1": 0}
