"""What a gang keeps of the free nodes while a ProvisioningRequest is open for the rest."""

import pytest
from sim.provisioning_cluster import NOBODY, ProvisioningCluster

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
    cluster = ProvisioningCluster({"a": 8}, scenarios=NOBODY, provisioning={"retry": {"base": "20m"}})
    cluster.submit("gang", pods=2, gpus=8)
    await cluster.passes(2)
    cluster.answer(cluster.newest("gang"), answer, ago=ago)
    cluster.submit("next", gpus=8)
    await cluster.passes(3)
    assert cluster.is_admitted("next") is is_released
    assert cluster.says("gang").startswith("Pending: PodSet main: 1 of 2 pods does not fit")
