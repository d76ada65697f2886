"""To whom a gang at its limit gives its quota: to somebody who can use it, and otherwise to nobody."""

from typing import Any

from gate_town import GateTown

from scaler.core.provisioning import Kind
from scaler.embedded.kinds import CLUSTER_QUEUE, LOCAL_QUEUE
from scaler.loops.heirs import Heirs
from scaler.loops.provisioning import Progress

ASKS = {"provisioning": {"className": "x"}}


async def at_its_limit(**queue: Any) -> GateTown:
    """A gang of 8 has all the quota, and a node has 4."""
    town = GateTown({"small": 4}, quota=8, policy=ASKS, with_provisioning=True, **queue)
    assert town.autoscaler
    town.submit("gang", gpus=8)
    await town.passes(1)
    limit = Progress(kind=Kind.AT_LIMIT, message="attempt 4 was the last", is_yielding=True)
    town.autoscaler.says[town.workload("gang")["metadata"]["name"]] = limit
    await town.passes(1)
    return town


async def test_nobody_yields_to_one_that_would_not_get_in_either() -> None:
    town = await at_its_limit()
    town.submit("huge", gpus=16)
    await town.passes(90)
    assert "GateYielded" not in town.told.reasons("gang")


async def test_the_one_that_gets_in_is_named_and_not_the_first_that_waits() -> None:
    town = await at_its_limit()
    town.submit("a-huge", gpus=16)
    town.submit("b-small", gpus=4)
    await town.passes(1)
    told = [message for _, reason, message in town.told.events if reason == "GateYielded"]
    assert len(told) == 1
    assert told[0].startswith("gives its quota to ns/job-b-small")


async def test_nobody_yields_to_one_behind_another_that_blocks_its_queue() -> None:
    """In a StrictFIFO queue the head waits for 16, which there never are, and holds back all behind it."""
    town = await at_its_limit(queueingStrategy="StrictFIFO")
    town.submit("huge", gpus=16)
    await town.passes(2)
    town.submit("small", gpus=4)
    await town.passes(60)
    assert "GateYielded" not in town.told.reasons("gang")


async def test_nobody_yields_to_one_in_a_queue_of_the_same_cohort_that_may_not_borrow() -> None:
    town = await at_its_limit(cohortName="all")
    closed = town.queue_spec(2, (), cohortName="all")
    closed["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = 0
    town.add(CLUSTER_QUEUE, "closed", spec=closed)
    town.add(LOCAL_QUEUE, "closed", namespace="ns", spec={"clusterQueue": "closed"})
    town.submit("small", gpus=4, queue="closed")
    await town.passes(60)
    assert "GateYielded" not in town.told.reasons("gang")


async def test_gangs_for_which_there_is_no_time_have_their_turn_in_the_next_look() -> None:
    """Also where the queues change from look to look, and all that was found out is void."""
    town = GateTown({"a": 8}, quota=8)
    for job in ("one", "two", "small"):
        town.submit(job, gpus=4)
        await town.passes(1, gate=False)
    keys = [f"ns/{town.workload(job)['metadata']['name']}" for job in ("one", "two")]
    await town.passes(1)
    heirs = Heirs(lambda: town.controllers[0]._mirror.snapshot, seconds=0.0)
    assert list(await heirs.of(keys, town.client.now)) == keys[:1]
    assert list(await heirs.of(keys, town.client.now)) == keys, "what was found out before holds"
    town.submit("tiny", gpus=1)
    await town.passes(1)
    assert list(await heirs.of(keys, town.client.now)) == keys[:1]
    town.submit("tiny-too", gpus=1)
    await town.passes(1)
    found = await heirs.of(keys, town.client.now)
    assert list(found) == keys[1:]
    assert found[keys[1]].startswith("ns/job-small")
