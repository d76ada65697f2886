"""A gang of a hub of MultiKueue runs on one worker, and only there is a workload suspended for it."""

import pytest
from e2e.e2e_multikueue import Clusters
from e2e.e2e_multikueue_setup import StartClusters

GANG = {"pods": 4, "gpus": 1}


@pytest.mark.long
async def test_of_two_workers_with_an_idle_workload_one_suspends_it_and_runs_the_gang(
    start_clusters: StartClusters,
) -> None:
    async with start_clusters() as clusters:
        for worker in clusters.workers:
            await clusters.fill(worker, "idle", gpus=4, is_idle=True)
        before = uids(clusters, "w2", "idle")
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang", on="w1")
        await clusters.assert_stays(lambda: uids(clusters, "w2", "idle") == before, "idle runs on w2", seconds=5)
        clusters.assert_suspended(w1={"idle"})
        assert clusters.permitted["gang"][0] == ("w1",)


def uids(clusters: Clusters, worker: str, job: str) -> set[str]:
    """Of the Job's pods that run."""
    return {pod["metadata"]["uid"] for pod in clusters.workers[worker].running(job)}


@pytest.mark.cluster
async def test_without_permission_no_worker_suspends_for_a_gang_that_is_nominated_for_both(
    start_clusters: StartClusters,
) -> None:
    """As with a dispatcher of Kueue's own."""
    async with start_clusters(components=["scaler", "reconciler"]) as clusters:
        for worker in clusters.workers:
            await clusters.fill(worker, "idle", gpus=4, is_idle=True)
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until(lambda: clusters.hub.has_condition("gang", "QuotaReserved"), "quota for the gang")
        await clusters.nominate("gang", "w1", "w2")
        await clusters.wait_until(lambda: all(clusters.copy("gang", each) for each in clusters.workers), "two copies")
        await clusters.assert_stays(lambda: not clusters.suspended, "nothing is suspended", seconds=10)
        await clusters.permit("gang", "w2")
        await clusters.wait_until_runs("gang", on="w2")
        await clusters.assert_stays(lambda: clusters.workers["w1"].is_running("idle"), "idle runs on w1", seconds=5)
        clusters.assert_suspended(w2={"idle"})


# -------------------------------------------------------------------------------------------------------- nominations


@pytest.mark.cluster
async def test_a_gang_is_nominated_once_for_the_worker_with_room_and_is_admitted_there(
    start_clusters: StartClusters,
) -> None:
    """w1 comes first in the MultiKueueConfig, and is full of a Job that works."""
    async with start_clusters() as clusters:
        await clusters.fill("w1", "busy", gpus=4, is_idle=False)
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang", on="w2")
        assert clusters.nominations["gang"][:1] == [("w2",)]
        await clusters.assert_stays(lambda: clusters.nominations["gang"] == [("w2",), ()], "one nomination", seconds=5)
        assert clusters.hub.check_state("gang")["state"] == "Ready"
        assert clusters.hub.evictions("gang") == 0
        assert not clusters.suspended


@pytest.mark.cluster
async def test_a_gang_that_is_not_admitted_is_nominated_for_another_worker_after_the_patience(
    start_clusters: StartClusters,
) -> None:
    """The copy on the first one has quota and waits for a check there; it is gone before the second one admits."""
    async with start_clusters(gpus={"w1": 4, "w2": 8}, patience="5s") as clusters:
        await clusters.stop_admitting("w1")
        await clusters.fill("w2", "idle", gpus=4, is_idle=True)
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang", on="w2")
        assert clusters.nominations["gang"] == [("w1",), ("w2",), ()]
        assert not clusters.suspended


@pytest.mark.cluster
async def test_a_gang_that_is_preempted_on_its_worker_is_nominated_anew_and_runs(start_clusters: StartClusters) -> None:
    async with start_clusters(preempts=True) as clusters:
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang", on="w1")
        await clusters.workers["w1"].submit_job("local", pods=1, gpus=4, is_preferred=True)
        await clusters.wait_until_runs("gang", on="w2")
        assert clusters.workers["w1"].is_running("local")
        assert clusters.hub.evictions("gang") == 1


@pytest.mark.cluster
async def test_a_gang_that_is_deactivated_on_the_hub_releases_its_quota_and_comes_back(
    start_clusters: StartClusters,
) -> None:
    """The hub has quota for one of two gangs."""
    async with start_clusters(hub_gpus=4) as clusters:
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang")
        await clusters.hub.submit_job("other", **GANG)
        await clusters.hub.set_active("gang", active=False)
        await clusters.wait_until_runs("other")
        await clusters.wait_until(
            lambda: not clusters.hub.has_condition("gang", "QuotaReserved"), "its quota's release"
        )
        await clusters.wait_until(lambda: not clusters.pods("gang"), "its pods to end")
        await clusters.hub.set_active("gang", active=True)
        await clusters.hub.delete_job("other")
        await clusters.wait_until_runs("gang")


@pytest.mark.cluster
async def test_a_gang_that_is_deactivated_for_a_moment_runs_again(start_clusters: StartClusters) -> None:
    async with start_clusters() as clusters:
        await clusters.hub.submit_job("gang", **GANG)
        worker = await clusters.wait_until_runs("gang")
        before = uids(clusters, worker, "gang")
        await clusters.hub.set_active("gang", active=False)
        await clusters.wait_until(lambda: clusters.hub.has_condition("gang", "Evicted"), "its eviction")
        await clusters.hub.set_active("gang", active=True)
        await clusters.wait_until(lambda: not before & uids(clusters, worker, "gang"), "its first pods to end")
        await clusters.wait_until_runs("gang")


# ---------------------------------------------------------------------------------------------- on the hub, when idle


@pytest.mark.cluster
async def test_a_dispatched_gang_is_suspended_on_the_hub_while_its_gpus_on_the_worker_are_idle(
    start_clusters: StartClusters,
) -> None:
    async with start_clusters() as clusters:
        for flow in clusters.workers.values():
            flow.sandbox.fleet.set_activity(clusters.run, "gang-*", 0.9)
        await clusters.hub.submit_job("gang", **GANG)
        worker = await clusters.wait_until_runs("gang")
        await clusters.hub.make_scalable("gang", idleAfter="3s", reclaim="Always")
        await clusters.wait_until(lambda: clusters.hub.scalable("gang").get("phase") == "Running", "phase Running")
        await clusters.assert_stays(lambda: clusters.runs_on("gang") == {worker}, "the busy gang runs", seconds=8)
        clusters.workers[worker].sandbox.fleet.set_activity(clusters.run, "gang-*", 0.0)
        await clusters.wait_until(lambda: clusters.hub.scalable("gang").get("phase") == "Suspended", "its suspension")
        await clusters.wait_until(lambda: not clusters.pods("gang"), "its pods to end")
        for flow in clusters.workers.values():
            flow.sandbox.fleet.set_activity(clusters.run, "gang-*", 0.9)
        await clusters.hub.wake("gang")
        await clusters.wait_until_runs("gang")
        clusters.assert_suspended(hub={"gang"})
