"""For which gang one at its limit releases its quota: for one that can use it, or for none."""

from dataclasses import dataclass, field
from typing import Any

from builders import NOON, at
from sim.provisioning_cluster import ProvisioningCluster, failing

from scaler.admission.next_admittable import MAX_FORECASTS, next_admittable
from scaler.kube.objects.resources import CLUSTER_QUEUE, LOCAL_QUEUE

ASKS = {"atLimit": "Yield", "retry": {"limit": 0, "base": "1s", "max": "1s"}}


async def at_its_limit(**queue: Any) -> ProvisioningCluster:
    """A gang of 8 has all the quota, and a node has 4."""
    cluster = ProvisioningCluster({"small": 4}, quota=8, scenarios=[failing(99)], provisioning=ASKS, **queue)
    cluster.submit("gang", gpus=8)
    await cluster.passes(8)
    assert cluster.report.plan.workloads[0].step.is_yielding
    return cluster


async def test_no_gang_yields_to_one_that_would_not_be_admitted_either() -> None:
    cluster = await at_its_limit()
    cluster.submit("huge", gpus=16)
    await cluster.passes(90)
    assert "AdmissionCheckRetry" not in cluster.recorded.reasons("gang")


async def test_the_one_that_gets_in_is_named_and_not_the_first_that_waits() -> None:
    cluster = await at_its_limit()
    cluster.submit("a-huge", gpus=16)
    cluster.submit("b-small", gpus=4)
    await cluster.passes(1)
    told = [message for _, reason, message in cluster.recorded.events if reason == "AdmissionCheckRetry"]
    assert len(told) == 1
    assert told[0].startswith("releases its quota for ns/job-b-small")


async def test_no_gang_yields_to_one_behind_another_that_blocks_its_queue() -> None:
    """In a StrictFIFO queue the head waits for 16, which there never are, and holds back all behind it."""
    cluster = await at_its_limit(queueingStrategy="StrictFIFO")
    cluster.submit("huge", gpus=16)
    await cluster.passes(2)
    cluster.submit("small", gpus=4)
    await cluster.passes(60)
    assert "AdmissionCheckRetry" not in cluster.recorded.reasons("gang")


async def test_no_gang_yields_to_one_in_a_queue_of_the_same_cohort_that_may_not_borrow() -> None:
    cluster = await at_its_limit(cohortName="all")
    closed = cluster.queue_spec(2, (), cohortName="all")
    closed["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = 0
    cluster.add(CLUSTER_QUEUE, "closed", spec=closed)
    cluster.add(LOCAL_QUEUE, "closed", namespace="ns", spec={"clusterQueue": "closed"})
    cluster.submit("small", gpus=4, queue="closed")
    await cluster.passes(60)
    assert "AdmissionCheckRetry" not in cluster.recorded.reasons("gang")


@dataclass(eq=False)
class Tree:
    """Stands in for a `QuotaTree`: one question takes long."""

    asked: set[str] = field(default_factory=set)

    def is_known(self, key: str) -> bool:
        return key in self.asked

    def next_admittable(self, key: str) -> str:
        self.asked.add(key)
        return f"next of {key}"


def test_workloads_for_which_there_is_no_time_have_their_turn_in_a_later_plan() -> None:
    """Also where the tree changes from plan to plan, and all that was found out is void."""
    keys = [f"ns/gang-{number}" for number in range(6)]
    tree: Any = Tree()
    assert len(next_admittable([(key, tree) for key in keys], NOON)) == MAX_FORECASTS
    assert len(next_admittable([(key, tree) for key in keys], NOON)) == len(keys), "what was found out holds"
    found: set[str] = set()
    for second in range(6):
        new: Any = Tree()
        found |= next_admittable([(key, new) for key in keys], at(second)).keys()
    assert found == set(keys)
