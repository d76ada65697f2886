"""Our process dies after each of its writes in turn, and everything ends as if it had not.

Every story is played once without a death, and again for every write of it: right after that write (it is in the
API, and no response was received) the process dies, and one that knows nothing goes on. The end is the same: what runs
on which nodes, what entries say, which requests and templates there are, and how often nodes were asked for.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from admission.test_scenarios_events import (
    it_yields_at_its_limit,
    its_victims_end_late,
    nodes_are_asked_for_twice_and_come,
)
from sim.provisioning_cluster import NOBODY, QUICK, ProvisioningCluster, failing

from scaler.admission.workload import YIELDED_ANNOTATION
from scaler.errors import NOT_LEADING, KubeError
from scaler.kube.objects.resources import LOCAL_QUEUE, PROVISIONING_REQUEST, RECLAIM_POLICY, WORKLOAD

Story = Callable[[ProvisioningCluster], Awaitable[None]]


async def asked_and_then_got_for_free(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.add_node("free", 8)
    await cluster.passes(64)


async def booking_expired_and_somebody_deleted_the_next_one(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), "BookingExpired")
    await cluster.passes(4)
    cluster.client.remove(PROVISIONING_REQUEST, "ns", cluster.newest("gang"))
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "Provisioned")
    cluster.add_node("new", 8)
    await cluster.passes(3)


async def nodes_taken_away_while_it_runs(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(1)
    cluster.answer(cluster.newest("gang"), "Provisioned")
    cluster.add_node("new", 8)
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), "CapacityRevoked")
    cluster.fleet.remove("new")
    await cluster.passes(4)  # a process that starts anew lets its watches settle, instead of the 3 s after an eviction
    cluster.answer(cluster.newest("gang"), "Provisioned")
    cluster.add_node("newer", 8)
    await cluster.passes(2)


async def evicted_while_a_request_is_open(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.change(LOCAL_QUEUE, "lq", {"spec": {"stopPolicy": "Hold"}})
    await cluster.passes(3)
    cluster.change(LOCAL_QUEUE, "lq", {"spec": {"stopPolicy": "None"}})
    await cluster.passes(10)


async def its_policy_comes_late_and_changes(cluster: ProvisioningCluster) -> None:
    spec = cluster.client.find(RECLAIM_POLICY, "", "policy")
    assert spec is not None
    cluster.client.remove(RECLAIM_POLICY, "", "policy")
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.add(RECLAIM_POLICY, "policy", spec=spec["spec"])
    await cluster.passes(2)
    cluster.set_policy(parameters={"key": "value"})
    await cluster.passes(8)


async def two_race_and_the_first_finishes(cluster: ProvisioningCluster) -> None:
    cluster.submit("gang", gpus=8)
    cluster.submit("other", gpus=8)
    await cluster.passes(3)
    cluster.finish("gang" if cluster.is_running("gang") else "other")
    await cluster.passes(10)


STORIES: dict[Story, Mapping[str, Any]] = {
    its_victims_end_late: {"quota": 8, "scenarios": NOBODY},
    nodes_are_asked_for_twice_and_come: {
        "scenarios": [failing(2)],
        "provisioning": {"retry": {"limit": 3, "base": "4s"}},
    },
    asked_and_then_got_for_free: {"scenarios": NOBODY},
    booking_expired_and_somebody_deleted_the_next_one: {
        "scenarios": NOBODY,
        "provisioning": {"retry": {"limit": 3, "base": "2s"}},
    },
    nodes_taken_away_while_it_runs: {"scenarios": NOBODY},
    it_yields_at_its_limit: {
        "scenarios": [failing(9)],
        "quota": 16,
        "queueingStrategy": "StrictFIFO",
        "provisioning": {"retry": {"limit": 0, "base": "2s"}, "atLimit": "Yield"},
    },
    evicted_while_a_request_is_open: {"scenarios": [QUICK]},
    its_policy_comes_late_and_changes: {"scenarios": [QUICK]},
    two_race_and_the_first_finishes: {"scenarios": NOBODY, "policy": {"provisioning": None, "requireFit": True}},
}


async def played(story: Story, *, dies_after: int = -1) -> ProvisioningCluster:
    """The story, with a process that dies right after that write; counted from 0, and never where it is negative."""
    options = dict(STORIES[story])
    cluster = ProvisioningCluster(options.pop("nodes", {"a": 8}), **options)
    left = [dies_after]

    def die(write: str) -> None:
        left[0] -= 1
        if left[0] == -1 and dies_after >= 0:
            raise KubeError(f"dead after {write}", reason=NOT_LEADING)

    cluster.api.after_write = die
    await story(cluster)
    assert cluster.half_started() == []
    assert cluster.deaths == (dies_after >= 0)
    return cluster


def outcome(cluster: ProvisioningCluster) -> dict[str, Any]:
    """What is to be the same. Names of nodes that were added hold a part of a uid."""
    workloads = cluster.client.all(WORKLOAD)
    jobs = [each["metadata"]["ownerReferences"][0]["name"] for each in workloads]
    found = {
        "states": {job: cluster.state(job) for job in jobs},
        "entries": {job: cluster.entry(job) for job in jobs},
        "places": {job: sorted(pod["spec"].get("nodeName", "") for pod in cluster.pods(job)) for job in jobs},
        "yields": [(each["metadata"].get("annotations") or {}).get(YIELDED_ANNOTATION) for each in workloads],
        "requests": cluster.requests(),
        "templates": cluster.templates(),
        "nodes": sorted(cluster.fleet.machines),
        "check": cluster.active(),
        "asked": Counter(each for each in cluster.api.writes if each.startswith("create provisioningrequests")),
    }
    return {name: re.sub(r"new-[0-9a-f]{5}-", "new-", str(each)) for name, each in found.items()}


@pytest.mark.parametrize("story", STORIES, ids=[each.__name__ for each in STORIES])
async def test_a_process_that_dies_after_any_of_its_writes_changes_nothing(story: Story) -> None:
    expected = await played(story)
    assert len(expected.api.writes) >= 4
    for number, write in enumerate(expected.api.writes):
        died = await played(story, dies_after=number)
        assert outcome(died) == outcome(expected), f"{story.__name__}: died after write {number}: {write}"


@pytest.mark.parametrize("story", STORIES, ids=[each.__name__ for each in STORIES])
async def test_a_process_that_is_started_anew_at_every_look_changes_nothing(story: Story) -> None:
    """Nothing that matters is in memory: not even from one look to the next."""
    expected = await played(story)
    cluster = await played_by_forgetful(story)
    found, wanted = outcome(cluster), outcome(expected)
    assert found == wanted


async def played_by_forgetful(story: Story) -> ProvisioningCluster:
    options = dict(STORIES[story])
    cluster = Forgetful(options.pop("nodes", {"a": 8}), **options)
    await story(cluster)
    assert cluster.half_started() == []
    return cluster


class Forgetful(ProvisioningCluster):
    """Its process is another one at every look."""

    def follow(self) -> None:
        super().follow()
        if hasattr(self, "kubelets") and not self._restarts:
            self._restarts = True
            self.restart()
            self._restarts = False

    _restarts = False
