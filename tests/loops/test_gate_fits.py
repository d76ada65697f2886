"""What "fits" counts: gangs that start whole beside whoever else takes memory, ports, and nodes of their own."""

from gate_town import GateTown

from scaler.embedded.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_FLAVOR


async def _town(nodes: dict[str, int]) -> GateTown:
    """With a second queue `free`, in which nobody is held."""
    town = GateTown(nodes)
    town.add(CLUSTER_QUEUE, "cq2", spec=town.queue_spec(1000, ()))
    town.add(LOCAL_QUEUE, "free", namespace="ns", spec={"clusterQueue": "cq2"})
    await town.passes(1)
    return town


async def _before_the_scheduler(town: GateTown) -> None:
    """Everybody does what there is to do, and no pod has found a node yet."""
    for _ in range(8):
        await town.client.settle(*town.controllers)
        town.follow()
        await town.gate.tick(town.client.now)
        town.follow()


async def test_memory_that_a_job_without_gpus_was_let_go_for_is_not_promised_to_a_gang() -> None:
    """400 of 512 Gi are needed three times, and there are two nodes."""
    town = await _town({"a": 8, "b": 8})
    town.submit("etl", gpus=0, memory=400, queue="free")
    town.submit("gang", pods=2, gpus=8, memory=400)
    await _before_the_scheduler(town)
    assert town.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit: each needs 400Gi memory")
    await town.passes(5)
    assert town.is_running("etl")
    assert town.half_started() == []
    town.finish("etl")
    await town.passes(5)
    assert town.is_running("gang")


async def test_a_job_without_gpus_that_takes_nothing_that_is_short_keeps_nobody_waiting() -> None:
    town = await _town({"a": 8, "b": 8})
    town.submit("etl", gpus=0, memory=100, queue="free")
    town.submit("gang", pods=2, gpus=8, memory=400)
    await _before_the_scheduler(town)
    assert town.says("gang").startswith("Ready")


async def test_nobody_is_let_go_beside_one_whose_needs_cannot_be_read() -> None:
    """It was let go, and its pods may come: what they will take is not known, and not nothing."""
    town = await _town({"a": 8, "b": 8})
    town.add(RESOURCE_FLAVOR, "other", spec={})
    spec = town.queue_spec(1000, ())
    spec["resourceGroups"][0]["flavors"][0]["name"] = "other"
    town.change(CLUSTER_QUEUE, "cq2", {"spec": spec})
    town.submit("odd", gpus=4, queue="free")
    await _before_the_scheduler(town)
    town.client.remove(RESOURCE_FLAVOR, "", "other")
    town.submit("gang", gpus=8)
    await _before_the_scheduler(town)
    assert town.says("gang").startswith("Pending: nobody sees what nodes have free: ")
    assert "was let go, and what its pods need cannot be read: ResourceFlavor other" in town.says("gang")
    await town.passes(2)
    assert town.is_running("odd"), "whose pods are all on nodes takes no more, whatever it needed"
    assert town.is_running("gang")
