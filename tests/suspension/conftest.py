from collections.abc import AsyncIterator

import pytest
from small_cluster import SmallCluster
from suspension.replica import Replica, replica


@pytest.fixture
async def leader(cluster: SmallCluster) -> AsyncIterator[Replica]:
    async with replica(cluster) as started:
        yield started
