"""Random runs of admission in a SimCluster of Kueue, jobs, nodes and a scheduler: gangs start whole, and none starves.

A run is made from its seed alone. `pytest tests/admission/test_random_runs.py --seed 4711` plays that one and shows its
story where a law does not hold; `python -m benchmarks.random_runs --runs 10000` plays as many as one likes.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from sim.api import FaultRates, FaultyApi
from sim.cluster import SimCluster
from sim.random_ops import RandomOpsCluster, environment_of
from sim.random_runs import Outcome, play

from scaler.kube.objects.resources import NODE, POD, WORKLOAD

RUNS = 120


@pytest.mark.parametrize(
    "seeds",
    [range(20), pytest.param(range(20, RUNS), marks=pytest.mark.slow)],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}",
)
def test_no_law_is_broken_and_gangs_start(seeds: range, request: pytest.FixtureRequest) -> None:
    """No pod of a gang waits for GPUs that others of it have; none are reserved twice; a gang that can fit starts."""
    chosen = request.config.getoption("--seed")
    if chosen is not None and seeds.start > 0:
        pytest.skip("one seed is played once")
    outcomes = asyncio.run(_played(seeds if chosen is None else [chosen]))
    assert [str(each) for each in outcomes if each.broken] == []
    if chosen is None:
        assert sum(each.started for each in outcomes) > 3 * len(outcomes)


async def _played(seeds: Iterable[int]) -> list[Outcome]:
    return [await play(seed) for seed in seeds]


async def test_a_run_is_made_from_its_seed_alone() -> None:
    assert await play(1) == await play(1)


def test_runs_are_of_every_kind() -> None:
    natures = [environment_of(Random(seed)) for seed in range(RUNS)]
    for trait in ("is_shaky", "hurries", "pins", "provisions", "labels", "second_check"):
        counts = Counter(bool(getattr(each, trait)) for each in natures)
        assert min(counts[True], counts[False]) > 0.1 * RUNS, trait
    assert {each.policy.get("provisioning", {}).get("atLimit") for each in natures} == {None, "Hold", "Yield"}
    assert any(each.fault_rates.deadly for each in natures)
    assert any(each.preempts for each in natures)


# ------------------------------------------------------------------------------------------------- what runs have shown


async def test_a_pod_that_is_not_scheduled_keeps_its_place_while_its_gang_is_evicted() -> None:
    """Kueue has written that the gang is evicted, and its job is not suspended yet: a scheduler may be faster."""
    cluster = SimCluster({"a": 8})
    cluster.submit("one", gpus=8)
    await _made_its_pod(cluster, "one")
    cluster.submit("two", gpus=8)
    cluster.deactivate("one")
    await cluster.controllers[0].tick(cluster.client.now)
    for _ in range(2):
        cluster.follow()
        await cluster.admission.tick(cluster.client.now)
        await cluster.controllers[0].tick(cluster.client.now)
    assert cluster.says("one").startswith("Pending: Reset to Pending")
    assert not cluster.says("two").startswith("Ready")
    cluster.schedule()
    await cluster.passes(5)
    assert cluster.is_running("two")


async def test_a_pod_that_its_job_has_left_behind_keeps_its_place_through_a_restart() -> None:
    """The Workload is gone from the queue; its pod still waits for a node, and is not deleted."""
    cluster = SimCluster({"a": 8})
    cluster.submit("one", gpus=8)
    await _made_its_pod(cluster, "one")
    pod = cluster.pods("one")[0]
    cluster.deactivate("one")
    for _ in range(5):
        await cluster.controllers[0].tick(cluster.client.now)
    cluster.submit("two", gpus=8)
    cluster.restart()
    for _ in range(4):
        await cluster.controllers[0].tick(cluster.client.now)
        cluster.follow()
        await cluster.admission.tick(cluster.client.now)
    assert "on their way" in cluster.says("two") or "not fit" in cluster.says("two")
    cluster.client.remove(POD, "ns", pod["metadata"]["name"])
    cluster.follow()
    await cluster.admission.tick(cluster.client.now)
    assert cluster.says("two").startswith("Ready")


async def test_one_that_was_released_by_a_write_without_response_has_its_places() -> None:
    """The write was done, its answer was lost, and the copy lags: the gang looks as if it waited, and might be planned
    for another node now. It is tied to the first one, which is not promised to anybody else."""
    cluster = SimCluster({"a": 16}, policy={"pin": {"enabled": True}}, api=FaultyApi)
    api = cluster.api
    assert isinstance(api, FaultyApi)
    api.chance = Random(0)
    await cluster.passes(1)
    cluster.submit("one", gpus=8)
    cluster.submit("two", gpus=16)
    await cluster.passes(0, ticks=False)
    api.rates = FaultRates(unheard=1000)
    await cluster.admission.tick(cluster.client.now)
    assert cluster.says("one") == "Ready: fits whole: 1 pod on 1 node (a)"
    api.rates = FaultRates()
    cluster.add_node("c", 8)
    cluster.copies[NODE].follow(cluster.client.all(NODE))
    await cluster.admission.tick(cluster.client.now)
    assert cluster.says("two").startswith("Pending")


async def test_no_gang_is_released_while_it_is_not_known_which_were() -> None:
    cluster = SimCluster({"a": 8, "b": 8}, api=FaultyApi)
    api = cluster.api
    assert isinstance(api, FaultyApi)
    api.chance = Random(0)
    await cluster.passes(1)
    cluster.submit("one", gpus=8)
    await cluster.passes(0, ticks=False)
    api.rates = FaultRates(unheard=1000)
    await cluster.admission.tick(cluster.client.now)
    api.rates, api.is_down = FaultRates(), True
    report = await cluster.admission.tick(cluster.client.now)
    assert report.plan.unknown.startswith("check state of ns/job-one")
    api.is_down = False
    assert (await cluster.admission.tick(cluster.client.now)).plan.unknown == ""


async def test_pods_of_a_gangs_last_life_are_no_places_for_its_next_one() -> None:
    """A RayCluster that is not ready counts as stopped at once. Its Workload has quota again before its pods end."""
    cluster = SimCluster({"a": 8})
    cluster.submit_ray("ray", head=0, workers=2, gpus=4)
    await _made_its_pod(cluster, "ray")
    kueue = cluster.controllers[0]
    for pod in cluster.pods("ray"):
        cluster.change(POD, pod["metadata"]["name"], {"spec": {"nodeName": "a"}})
    cluster.deactivate("ray")
    for _ in range(6):
        await kueue.tick(cluster.client.now)
    cluster.change(WORKLOAD, cluster.workload("ray")["metadata"]["name"], {"spec": {"active": True}})
    for _ in range(4):
        await kueue.tick(cluster.client.now)
    cluster.follow()
    assert cluster.holds_quota("ray")
    assert len(cluster.pods("ray")) == 3
    await cluster.admission.tick(cluster.client.now)
    assert cluster.says("ray").startswith("Pending: PodSet workers: 2 of 2 pods do not fit")
    await cluster.passes(5)
    assert cluster.is_running("ray")


async def test_a_gang_whose_pods_all_end_leaves_no_places_taken_but_theirs() -> None:
    """Whichever is heard first, that its Workload is gone or that its pods end."""
    cluster = SimCluster({"a": 8})
    cluster.termination["one"] = 30.0
    cluster.submit("one", gpus=8)
    await cluster.passes(2)
    pod = cluster.pods("one")[0]["metadata"]["name"]
    cluster.change(POD, pod, {"metadata": {"deletionTimestamp": "2026-11-20T12:00:02Z"}})
    cluster.copies[POD].follow(cluster.client.all(POD))
    cluster.client.remove(WORKLOAD, "ns", cluster.workload("one")["metadata"]["name"])
    cluster.copies[WORKLOAD].follow(cluster.client.all(WORKLOAD))
    assert list(cluster.view.released()) == []


async def _made_its_pod(cluster: SimCluster, name: str) -> None:
    """Until the job is admitted, and its pod is there and on no node."""
    for _ in range(10):
        await cluster.client.settle(*cluster.controllers)
        cluster.follow()
        await cluster.admission.tick(cluster.client.now)
    assert cluster.is_admitted(name)
    assert {pod["spec"].get("nodeName") for pod in cluster.pods(name)} == {None}


# ------------------------------------------------------------------------------------------------ that laws can be seen


async def test_a_gang_that_is_released_without_places_breaks_a_law() -> None:
    """Somebody else says Ready in our name: the scheduler finds no node for one of two pods, and that is noticed."""
    cluster = RandomOpsCluster({"a": 8}, Random(0), hurries=False)
    cluster.submit("one", pods=2, gpus=8)
    await cluster.seconds(1)
    name = cluster.workload("one")["metadata"]["name"]
    ready = {"name": "gate", "state": "Ready", "message": "", "lastTransitionTime": "2026-11-20T12:00:01Z"}
    cluster.change(WORKLOAD, name, {"status": {"admissionChecks": [ready]}}, "status")
    await cluster.seconds(3)
    assert {each.job for each in cluster.stranded} == {"one"}
    assert any(each.is_half for each in cluster.stranded)
