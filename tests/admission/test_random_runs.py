"""Random runs of admission in a SimCluster of Kueue, jobs, nodes and a scheduler: gangs start whole, and none starves.

A run is made from its seed alone. `pytest tests/admission/test_random_runs.py --seed 4711` plays that one and shows its
story where a law does not hold; `python -m benchmarks.random_runs --runs 10000` plays as many as one likes.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from random import Random

import pytest
from sim.api import FaultRates, FaultyApi
from sim.cluster import SimCluster
from sim.environment import nature_of
from sim.random_ops import RandomOpsCluster
from sim.random_runs import Outcome, play

from scaler.kube.objects.resources import NODE, POD, WORKLOAD

RUNS = 120


@pytest.mark.parametrize(
    "seeds",
    [range(20), range(20, 40), pytest.param(range(40, 400), marks=pytest.mark.slow)],
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
    natures = [nature_of(Random(seed)) for seed in range(RUNS)]
    for trait in ("is_shaky", "hurries", "pins", "provisions", "labels", "second_check"):
        counts = Counter(bool(getattr(each, trait)) for each in natures)
        assert min(counts[True], counts[False]) > 0.1 * RUNS, trait
    assert {each.policy.get("provisioning", {}).get("atLimit") for each in natures} == {None, "Hold", "Yield"}
    assert any(each.mischief.deadly for each in natures)
    assert any(each.preempts for each in natures)


# ------------------------------------------------------------------------------------------------- what runs have shown


async def test_a_pod_on_its_way_keeps_its_place_while_its_gang_is_told_to_go() -> None:
    """Kueue has written that the gang is evicted, and its job has not been told yet: a scheduler may be faster."""
    town = SimCluster({"a": 8})
    town.submit("one", gpus=8)
    await _made_its_pod(town, "one")
    town.submit("two", gpus=8)
    town.deactivate("one")
    await town.controllers[0].tick(town.client.now)
    for _ in range(2):
        town.follow()
        await town.gate.tick(town.client.now)
        await town.controllers[0].tick(town.client.now)
    assert town.says("one").startswith("Pending: Reset to Pending")
    assert not town.says("two").startswith("Ready")
    town.schedule()
    await town.passes(5)
    assert town.is_running("two")


async def test_a_pod_that_its_job_has_left_behind_keeps_its_place_through_a_restart() -> None:
    """The Workload is gone from the queue; its pod still waits for a node, and nobody has deleted it."""
    town = SimCluster({"a": 8})
    town.submit("one", gpus=8)
    await _made_its_pod(town, "one")
    pod = town.pods("one")[0]
    town.deactivate("one")
    for _ in range(5):
        await town.controllers[0].tick(town.client.now)
    town.submit("two", gpus=8)
    town.restart()
    for _ in range(4):
        await town.controllers[0].tick(town.client.now)
        town.follow()
        await town.gate.tick(town.client.now)
    assert "on their way" in town.says("two") or "not fit" in town.says("two")
    town.client.remove(POD, "ns", pod["metadata"]["name"])
    town.follow()
    await town.gate.tick(town.client.now)
    assert town.says("two").startswith("Ready")


async def test_a_gang_that_no_autoscaler_answers_keeps_nothing_from_others_for_ever() -> None:
    """It has found 8 of 16 GPUs and requested the rest. Another one can use the 8, once the rest is late."""
    town = SimCluster({"a": 8}, policy={"provisioning": {"className": "example.com"}})
    town.submit("large", pods=2, gpus=8)
    await town.passes(2)
    town.submit("small", gpus=8)
    await town.passes(60)
    assert town.says("small").startswith("Pending: ")
    town.client.now += timedelta(minutes=9)
    await town.passes(1)
    assert town.is_running("small")


async def test_who_was_let_go_unheard_has_its_places() -> None:
    """The write was done, its answer was lost, and the copy lags: the gang looks as if it waited, and might be planned
    for another node now. It is tied to the first one, which is not promised to anybody else."""
    town = SimCluster({"a": 16}, policy={"pin": {"enabled": True}}, api=FaultyApi)
    api = town.api
    assert isinstance(api, FaultyApi)
    api.chance = Random(0)
    await town.passes(1)
    town.submit("one", gpus=8)
    town.submit("two", gpus=16)
    await town.passes(0, gate=False)
    api.rates = FaultRates(unheard=1000)
    await town.gate.tick(town.client.now)
    assert town.says("one") == "Ready: fits whole: 1 pod on 1 node (a)"
    api.rates = FaultRates()
    town.add_node("c", 8)
    town.copies[NODE].follow(town.client.all(NODE))
    await town.gate.tick(town.client.now)
    assert town.says("two").startswith("Pending")


async def test_nobody_is_let_go_while_it_is_not_known_who_was() -> None:
    town = SimCluster({"a": 8, "b": 8}, api=FaultyApi)
    api = town.api
    assert isinstance(api, FaultyApi)
    api.chance = Random(0)
    await town.passes(1)
    town.submit("one", gpus=8)
    await town.passes(0, gate=False)
    api.rates = FaultRates(unheard=1000)
    await town.gate.tick(town.client.now)
    api.rates, api.is_down = FaultRates(), True
    report = await town.gate.tick(town.client.now)
    assert report.plan.unknown.startswith("check state of ns/job-one")
    api.is_down = False
    assert (await town.gate.tick(town.client.now)).plan.unknown == ""


async def test_pods_of_a_gangs_last_life_are_no_places_for_its_next_one() -> None:
    """A RayCluster that is not ready counts as stopped at once. Its Workload has quota again before its pods end."""
    town = SimCluster({"a": 8})
    town.submit_ray("ray", head=0, workers=2, gpus=4)
    await _made_its_pod(town, "ray")
    kueue = town.controllers[0]
    for pod in town.pods("ray"):
        town.change(POD, pod["metadata"]["name"], {"spec": {"nodeName": "a"}})
    town.deactivate("ray")
    for _ in range(6):
        await kueue.tick(town.client.now)
    town.change(WORKLOAD, town.workload("ray")["metadata"]["name"], {"spec": {"active": True}})
    for _ in range(4):
        await kueue.tick(town.client.now)
    town.follow()
    assert town.holds_quota("ray")
    assert len(town.pods("ray")) == 3
    await town.gate.tick(town.client.now)
    assert town.says("ray").startswith("Pending: PodSet workers: 2 of 2 pods do not fit")
    await town.passes(5)
    assert town.is_running("ray")


async def test_a_gang_whose_pods_all_end_leaves_no_places_taken_but_theirs() -> None:
    """Whichever is heard first, that its Workload is gone or that its pods end."""
    town = SimCluster({"a": 8})
    town.termination["one"] = 30.0
    town.submit("one", gpus=8)
    await town.passes(2)
    pod = town.pods("one")[0]["metadata"]["name"]
    town.change(POD, pod, {"metadata": {"deletionTimestamp": "2026-11-20T12:00:02Z"}})
    town.copies[POD].follow(town.client.all(POD))
    town.client.remove(WORKLOAD, "ns", town.workload("one")["metadata"]["name"])
    town.copies[WORKLOAD].follow(town.client.all(WORKLOAD))
    assert list(town.view.released()) == []


async def _made_its_pod(town: SimCluster, name: str) -> None:
    """Until the job has been let go, and its pod is there and on no node."""
    for _ in range(10):
        await town.client.settle(*town.controllers)
        town.follow()
        await town.gate.tick(town.client.now)
    assert town.is_admitted(name)
    assert {pod["spec"].get("nodeName") for pod in town.pods(name)} == {None}


# ------------------------------------------------------------------------------------------------ that laws can be seen


async def test_a_gang_that_is_let_go_without_places_breaks_a_law() -> None:
    """Somebody else says Ready in our name: the scheduler finds no node for one of two pods, and that is noticed."""
    town = RandomOpsCluster({"a": 8}, Random(0), hurries=False, provisions=False)
    town.submit("one", pods=2, gpus=8)
    await town.seconds(1)
    name = town.workload("one")["metadata"]["name"]
    ready = {"name": "gate", "state": "Ready", "message": "", "lastTransitionTime": "2026-11-20T12:00:01Z"}
    town.change(WORKLOAD, name, {"status": {"admissionChecks": [ready]}}, "status")
    await town.seconds(3)
    assert {each.job for each in town.stranded} == {"one"}
    assert any(each.is_half for each in town.stranded)
