"""Which workers may take a gang: those of the MultiKueueConfig that the Placement has, and that the hub reaches."""

import pytest
from e2e.e2e_manifests import Json
from e2e.e2e_multikueue_setup import StartClusters
from scaler_sandbox.conditions import has

GANG = {"pods": 4, "gpus": 1}


@pytest.mark.cluster
async def test_a_gang_goes_only_where_the_placement_of_its_queue_decides(start_clusters: StartClusters) -> None:
    async with start_clusters() as clusters:
        await clusters.set_queue_by_placement()
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until(lambda: clusters.hub.has_condition("gang", "QuotaReserved"), "quota for the gang")
        await clusters.assert_stays(lambda: not clusters.nominations["gang"], "nothing is nominated", seconds=5)
        await clusters.decide("w2")
        await clusters.wait_until_runs("gang", on="w2")
        await clusters.decide("w1")
        await clusters.hub.submit_job("next", **GANG)
        await clusters.wait_until_runs("next", on="w1")
        await clusters.assert_stays(lambda: clusters.runs_on("gang") == {"w2"}, "the first gang runs on", seconds=3)
        assert clusters.nominations == {"gang": [("w2",), ()], "next": [("w1",), ()]}


@pytest.mark.cluster
async def test_a_gang_whose_worker_leaves_the_config_runs_on_another_and_what_it_leaves_is_reported(
    start_clusters: StartClusters,
) -> None:
    """Kueue does not stop the Job on the worker that has left."""
    async with start_clusters() as clusters:
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang", on="w1")
        await clusters.set_config("w2")
        await clusters.wait_until(lambda: clusters.cluster_of("gang") == "w2", "the hub to name w2")
        await clusters.wait_until(lambda: "w2" in clusters.runs_on("gang"), "the gang to run on w2")
        assert clusters.runs_on("gang") == {"w1", "w2"}
        clusters.ran_twice_is_expected = True
        duplicate = await clusters.wait_for_finding("Duplicate")
        assert "its Job gang runs there" in duplicate["what"]


@pytest.mark.cluster
async def test_nothing_is_nominated_where_kueue_could_not_take_the_nomination_back(
    start_clusters: StartClusters,
) -> None:
    async with start_clusters() as clusters:
        async with clusters.without_policy():
            await clusters.hub.submit_job("gang", **GANG)
            await clusters.wait_until(lambda: clusters.hub.has_condition("gang", "QuotaReserved"), "quota for the gang")
            await clusters.assert_stays(lambda: not clusters.nominations["gang"], "nothing is nominated", seconds=8)
            assert "clear-nominated-cluster-names" in await clusters.events("gang", "NotNominated")
        await clusters.wait_until_runs("gang")


@pytest.mark.cluster
async def test_a_gang_of_a_worker_that_is_lost_goes_elsewhere_after_the_patience(
    start_clusters: StartClusters,
) -> None:
    """It has quota on w1, and is not admitted there; an idle workload was suspended for it before the hub loses w1."""
    async with start_clusters(patience="10s") as clusters:
        for worker in clusters.workers:
            await clusters.fill(worker, "idle", gpus=4, is_idle=True)
        await clusters.stop_admitting("w1")
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until(lambda: has_quota(clusters.copy("gang", "w1")), "quota for the gang on w1")
        await clusters.wait_until(lambda: clusters.suspended == {"w1": {"idle"}}, "the phase of the idle Job")
        await clusters.lose("w1")
        await clusters.wait_until_runs("gang", on="w2")
        assert clusters.nominations["gang"] == [("w1",), ("w2",), ()]
        await clusters.find_again("w1")
        await clusters.wait_until(lambda: clusters.copy("gang", "w1") is None, "the copy on w1 to be removed")
        await clusters.wait_until(lambda: not clusters.asked("gang", "w1").get("reclaim"), "the permission to end")


def has_quota(copy: Json | None) -> bool:
    return copy is not None and has(copy, "QuotaReserved")


@pytest.mark.cluster
async def test_a_worker_that_is_not_reached_gets_no_gang(start_clusters: StartClusters) -> None:
    async with start_clusters() as clusters:
        await clusters.lose("w1")
        await clusters.hub.submit_job("gang", **GANG)
        await clusters.wait_until_runs("gang", on="w2")
        assert clusters.nominations["gang"] == [("w2",), ()]
