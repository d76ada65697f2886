"""Random stories of a hub and its workers: only where a gang goes is anything suspended, none runs twice, all start.

A story is made from its seed alone. `pytest tests/multikueue/test_stories.py --seed 4711` plays that one and shows it
where a law does not hold; `python -m benchmarks.multikueue_stories --runs 2000` plays as many as one likes.
"""

import asyncio
from collections.abc import Iterable, Mapping
from random import Random
from types import MappingProxyType

import pytest
from scaler_sandbox.multikueue import HubConfig
from sim.client import AtOnce
from sim.dispatcher_on_hub import HubDispatcher
from sim.multikueue_clusters import ALL_AT_ONCE, EXTERNAL, DispatchedClusters
from sim.multikueue_laws import MultiKueueLawError, MultiKueueLaws
from sim.multikueue_story import PATIENCE, SECOND, StoryOutcome, one_gpu_pods, play
from sim.scaler_on_worker import WorkerScaler

from scaler.kube.objects.resources import CLUSTER_OFFER

TWO_FULL = MappingProxyType({"w1": 4, "w2": 4})


@pytest.mark.parametrize(
    "seeds",
    [range(3), pytest.param(range(3, 30), marks=pytest.mark.slow)],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}",
)
def test_no_law_is_broken_and_gangs_start(seeds: range, request: pytest.FixtureRequest) -> None:
    """A story is made from its seed alone: the first one is played twice."""
    chosen = request.config.getoption("--seed")
    if chosen is not None and seeds.start > 0:
        pytest.skip("one seed is played once")
    outcomes = asyncio.run(_played(seeds if chosen is None else [chosen]))
    assert outcomes[0] == asyncio.run(play(outcomes[0].seed))
    assert [str(each) for each in outcomes if each.broken] == []
    if chosen is None:
        assert sum(each.started for each in outcomes) > 2 * len(outcomes)
        assert sum(each.suspensions for each in outcomes) > len(outcomes) / 2
        assert sum(each.deaths for each in outcomes) > len(outcomes) / 2


async def _played(seeds: Iterable[int]) -> list[StoryOutcome]:
    return [await play(seed) for seed in seeds]


# ------------------------------------------------------------------------------------ the leader is killed at any write


@pytest.mark.parametrize("ends_after", [None, *range(1, 7)])
async def test_the_hubs_leader_may_be_killed_after_any_write(ends_after: int | None) -> None:
    """One of two workers has room once its workload is suspended; that one alone suspends, and the gang runs there."""
    idlers = Idlers(EXTERNAL, plans_always=False, quotas={"w1": 4, "w2": 8})
    idlers.clusters.submit("busy", pods=4, at="w2", template=one_gpu_pods())
    idlers.scalers["w1"].works("note")
    hub = HubDispatcher(idlers.clusters, Random(0))
    hub.lifetime.ends_after = ends_after
    await idlers.passes(150)
    idlers.clusters.submit("gang", pods=4, template=one_gpu_pods())
    for _ in range(90):
        await hub.turn()
        await idlers.passes(1)
        idlers.laws.look()
    assert hub.deaths == (0 if ends_after is None else 1), hub.lifetime
    assert idlers.suspended_on == ["w2"]
    assert (idlers.clusters.state("gang"), idlers.clusters.runners("gang")) == ("reserved admitted", ["w2"])


# ------------------------------------------------------------------------------------------------ that laws can be seen


class Idlers:
    """Two workers, each with a workload of four GPUs that idles; then a gang of four on the hub."""

    def __init__(self, config: HubConfig, *, plans_always: bool, quotas: Mapping[str, int] = TWO_FULL) -> None:
        asyncio.get_running_loop().set_default_executor(AtOnce())
        self.clusters = DispatchedClusters(quotas, config=config)
        self.scalers = {
            name: WorkerScaler(each, plans_always=plans_always) for name, each in self.clusters.workers.items()
        }
        self.laws = MultiKueueLaws(self.clusters, self.scalers, patience=PATIENCE)
        for name, scaler in self.scalers.items():
            self.clusters.submit("note", pods=4, at=name, template=one_gpu_pods())
            scaler.attaches("note")

    async def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.clusters.passes(1, step=SECOND)
            for each in self.scalers.values():
                await each.turn()
            await self.clusters.settle()

    async def with_gang(self) -> "Idlers":
        await self.passes(150)
        self.clusters.submit("gang", pods=4, template=one_gpu_pods())
        await self.passes(2)
        return self

    @property
    def suspended_on(self) -> list[str]:
        return sorted(each.cluster for each in self.laws.suspensions)


async def test_workers_that_plan_for_every_copy_all_suspend_and_a_law_says_so() -> None:
    """The defect that was there: Kueue copies a gang to all workers, and each of them plans for it."""
    idlers = await Idlers(ALL_AT_ONCE, plans_always=True).with_gang()
    await idlers.passes(30)
    assert idlers.suspended_on == ["w1", "w2"]
    with pytest.raises(MultiKueueLawError, match=r"note is suspended on w[12] for ns/job-gang-.*"):
        idlers.laws.look()


async def test_workers_that_plan_only_where_they_are_nominated_suspend_nothing_for_every_copy() -> None:
    idlers = await Idlers(ALL_AT_ONCE, plans_always=False).with_gang()
    await idlers.passes(60)
    idlers.laws.look()
    assert idlers.suspended_on == []


async def test_two_workers_that_may_reclaim_for_one_gang_break_a_law() -> None:
    idlers = await Idlers(EXTERNAL, plans_always=False).with_gang()
    metadata = idlers.clusters.on_hub("gang")["metadata"]
    entry = {"namespace": "ns", "name": metadata["name"], "uid": metadata["uid"], "reclaim": True}
    for worker in idlers.clusters.workers.values():
        idlers.laws.look()
        worker.client.add(CLUSTER_OFFER, {"metadata": {"name": "hub"}, "spec": {"workloads": [entry]}})
    with pytest.raises(MultiKueueLawError, match="w1 and w2 may reclaim for gang"):
        idlers.laws.look()


async def test_a_gang_that_is_nominated_for_two_clusters_breaks_a_law() -> None:
    idlers = await Idlers(EXTERNAL, plans_always=False).with_gang()
    idlers.laws.look()
    idlers.clusters.nominate("gang", "w1", "w2")
    with pytest.raises(MultiKueueLawError, match="is nominated for w1 and w2"):
        idlers.laws.look()


async def test_a_gang_on_two_clusters_breaks_a_law() -> None:
    """A MultiKueueConfig that shrinks under a running gang does it."""
    idlers = await Idlers(ALL_AT_ONCE, plans_always=False).with_gang()
    for name in idlers.clusters.workers:
        idlers.clusters.delete_job("note", at=name)
    await idlers.passes(10)
    idlers.laws.look()
    (runs_on,) = idlers.clusters.runners("gang")
    idlers.clusters.configure("w2" if runs_on == "w1" else "w1")
    await idlers.passes(15)
    with pytest.raises(MultiKueueLawError, match="gang runs on w1 and w2"):
        idlers.laws.look()


async def test_a_copy_that_the_program_deactivates_breaks_a_law() -> None:
    idlers = await Idlers(ALL_AT_ONCE, plans_always=False).with_gang()
    name = idlers.clusters.workers["w1"].existing("gang")["metadata"]["name"]
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/ns/workloads/{name}"
    await idlers.scalers["w1"].api.patch(path, {"spec": {"active": False}})
    with pytest.raises(MultiKueueLawError, match="the program deactivates the remote copy"):
        idlers.laws.look()
