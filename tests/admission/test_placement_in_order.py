"""The table of placement/reservations.py, row by row, as the AdmissionCheck of a SimCluster shows it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from decision.documented import rows
from sim.cluster import SimCluster
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

from scaler.kube.objects.resources import WORKLOAD
from scaler.placement import reservations
from scaler.placement.requests import Blocked, PlacementResult

Story = Callable[[], Awaitable[ProvisioningCluster]]
"""Up to the first tick that has to do with `gang`."""


async def waiting(nodes: Mapping[str, int], *, pods: int = 1, **cluster: Any) -> ProvisioningCluster:
    """A gang that has its quota, and an entry without a message."""
    made = ProvisioningCluster(nodes, scenarios=NOBODY, **cluster)
    made.add_check("foreign", "example.com/other")
    await made.passes(1)
    made.submit("gang", pods=pods, gpus=8)
    await made.passes(1, ticks=False)
    return made


async def look(cluster: SimCluster) -> None:
    """Once, at what there is, and before Kueue does anything about it."""
    cluster.follow()
    await cluster.admission.tick(cluster.client.now)


PLAYED: dict[tuple[str, str], Callable[[], Awaitable[ProvisioningCluster]]] = {}


def row(now: str, later: str) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        PLAYED[now, later] = story
        return story

    return add


@row("for sure, and delays none before it", "–")
async def it_is_alone() -> ProvisioningCluster:
    return await waiting({"a": 8})


@row("for sure, but delays one before it", "–")
async def its_pod_may_take_the_place_of_one_before_it() -> ProvisioningCluster:
    """Two nodes of 8, on one of which pods still end: the first gang keeps both. A pod of 4 has room on the third, but
    the scheduler may put it elsewhere."""
    cluster = ProvisioningCluster({"a": 8, "b": 8, "c": 4}, scenarios=NOBODY)
    cluster.termination["other"] = 60.0
    cluster.submit("other", gpus=8)
    await cluster.passes(2)
    cluster.submit("first", pods=2, gpus=8)
    await cluster.passes(1, ticks=False)
    cluster.change(WORKLOAD, cluster.workload("other")["metadata"]["name"], {"spec": {"active": False}})
    await cluster.passes(1, ticks=False)
    cluster.submit("gang", gpus=4)
    await cluster.passes(1, ticks=False)
    return cluster


@row("not for sure while pods of others are coming", "–")
async def a_pod_that_is_on_its_way_may_take_its_place() -> ProvisioningCluster:
    """8 and 1 free: the pod of 1 GPU that is on its way may go to either, and the gang needs all 8."""
    cluster = ProvisioningCluster({"a": 8, "b": 1}, scenarios=NOBODY)
    cluster.hold_pods()
    cluster.submit("single", gpus=1)
    await cluster.passes(2)
    assert cluster.is_admitted("single")
    cluster.submit("gang", gpus=8)
    await cluster.passes(1, ticks=False)
    return cluster


@row("not for sure, even alone", "–")
async def its_own_head_may_take_its_workers_place() -> ProvisioningCluster:
    """A head of 1 GPU and a worker of 4 on nodes with 4 and 1 free."""
    cluster = ProvisioningCluster({"a": 4, "b": 8}, scenarios=NOBODY)
    cluster.submit("filler", gpus=7)
    await cluster.passes(2)
    cluster.submit_ray("gang", head=1, workers=1, gpus=4)
    await cluster.passes(1, ticks=False)
    return cluster


@row("no", "fits")
async def pods_end_on_its_node() -> ProvisioningCluster:
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY)
    cluster.termination["other"] = 60.0
    cluster.submit("other", gpus=8)
    await cluster.passes(2)
    cluster.change(WORKLOAD, cluster.workload("other")["metadata"]["name"], {"spec": {"active": False}})
    await cluster.passes(1)
    cluster.submit("gang", gpus=8)
    await cluster.passes(1, ticks=False)
    return cluster


@row("no", "does not fit")
async def nothing_ends_and_nothing_is_free() -> ProvisioningCluster:
    return await waiting({"a": 4})


VERDICTS = {(now, later): (verdict, keeps) for now, later, verdict, keeps in rows(reservations, "fits now")}


def test_every_row_of_the_table_is_played() -> None:
    assert PLAYED.keys() == VERDICTS.keys()


@pytest.mark.parametrize(("now_later", "story"), PLAYED.items(), ids=[each.__name__ for each in PLAYED.values()])
async def test_the_result_is_that_of_the_table(now_later: tuple[str, str], story: Story) -> None:
    cluster = await story()
    await look(cluster)
    key = f"ns/{cluster.workload('gang')['metadata']['name']}"
    report = cluster.reports[-1]
    found = {each.key: _name_of(each.placement) for each in report.plan.pending}
    found |= {each.key: "Fits" for each in report.released}
    assert found[key] == VERDICTS[now_later][0]


def _name_of(verdict: PlacementResult | None) -> str:
    return str(verdict.why) if isinstance(verdict, Blocked) else type(verdict).__name__


KEEPS: dict[str, tuple[Story, int, bool]] = {
    # the story, GPUs of one more gang that would fit what the first one could have, and whether that one is let go
    "promised places": (it_is_alone, 8, False),
    "a place beside those of one before it": (its_pod_may_take_the_place_of_one_before_it, 4, False),
    "places that a pod on its way may take": (a_pod_that_is_on_its_way_may_take_its_place, 8, False),
    "places that its own pods may take from each other": (its_own_head_may_take_its_workers_place, 4, True),
    "places where pods end": (pods_end_on_its_node, 8, False),
    "what is too little for any pod of its": (nothing_ends_and_nothing_is_free, 4, True),
}


@pytest.mark.parametrize(("story", "gpus", "is_released"), KEEPS.values(), ids=KEEPS)
async def test_a_waiting_gang_keeps_the_nodes_that_the_table_says(story: Story, gpus: int, is_released: bool) -> None:
    cluster = await story()
    await cluster.passes(1)
    cluster.submit("next", gpus=gpus)
    await cluster.passes(3)
    assert cluster.is_admitted("next") is is_released, cluster.says("next")


COMING: dict[str, tuple[str, float, bool]] = {
    # what is said of its request, how long before, and whether a gang of 8 may have the 8 that it has found
    "a request is open": ("Accepted", 0, False),
    "it is open for so long that its nodes are late": ("Accepted", 660, True),
    "it has failed": ("Failed", 0, True),
}


@pytest.mark.parametrize(("answer", "ago", "is_released"), COMING.values(), ids=COMING)
async def test_a_gang_keeps_what_it_has_found_while_nodes_come_for_the_rest(
    answer: str, ago: float, is_released: bool
) -> None:
    """2 x 8 GPUs, 8 of which are there."""
    cluster = await waiting({"a": 8}, pods=2, provisioning={"retry": {"base": "20m"}})
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), answer, ago=ago)
    cluster.submit("next", gpus=8)
    await cluster.passes(3)
    assert cluster.is_admitted("next") is is_released
    assert cluster.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit")
