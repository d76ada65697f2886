"""The end-to-end suite: gangs at the gate, with the program as a process, over a real Kubernetes API with a real Kueue.

    uv run pytest tests/e2e --kubeconfig FILE

What the cluster has to have: Kueue with its webhooks, the CustomResourceDefinitions of KEDA and of ProvisioningRequest,
the controllers of Jobs, of namespaces and of garbage, and nobody else's idle-gpu-scaler. `e2e_cluster.py` looks after
that and says in one sentence what is missing. What the suite brings: nodes with GPUs and their kubelets, a scheduler
and a KEDA where the cluster has none, and an autoscaler for a provisioning class of its own.

Flows take turns in one cluster, whatever number of processes pytest runs. Each has a namespace, queues, a check, a
policy and nodes of its own, named after a random prefix, and removes them in the end; our own
CustomResourceDefinitions stay. Without `--kubeconfig` a few flows run in the embedded cluster, with its Kueue.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from e2e.e2e_cluster import Ground, UnfitError, ground
from e2e.e2e_town import Begin, Plot, Town, town

_TIMEOUT_SECONDS = 300


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cluster: an end-to-end flow for a real cluster; `-m cluster` runs it in the embedded one"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    are_asked_for = config.getoption("kubeconfig") is not None or "cluster" in config.getoption("markexpr")
    skip = pytest.mark.skip(
        reason="played by `pytest tests/e2e --kubeconfig FILE`, or `-m cluster` in the embedded one"
    )
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS, func_only=True))
        if item.get_closest_marker("cluster") and not are_asked_for:
            item.add_marker(skip)


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Ground | None]:
    """The real cluster, for this test alone; None for the embedded one."""
    path = request.config.getoption("kubeconfig")
    if path is None:
        yield None
        return
    try:
        async with ground(Path(path)) as found:
            yield found
            return
    except UnfitError as why:
        problem = str(why)
    pytest.fail(problem, pytrace=False)


@pytest.fixture
def begin(cluster: Ground | None, tmp_path: Path) -> Begin:
    """What sets this test's stage."""

    def set_stage(**plot: Any) -> AbstractAsyncContextManager[Town]:
        return town(tmp_path, cluster, Plot(**plot))

    return set_stage
