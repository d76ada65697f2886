"""The end-to-end suite: the AdmissionCheck of gangs, with the program as a process and a real Kubernetes API and Kueue.

    uv run pytest tests/e2e --kubeconfig FILE

What the cluster has to have: Kueue with its webhooks, the CustomResourceDefinitions of KEDA and of ProvisioningRequest,
the controllers of Jobs, of namespaces and of garbage, and no other idle-gpu-scaler. `e2e_cluster.py` checks that
and says in one sentence what is missing. What the suite brings: nodes with GPUs and their kubelets, a scheduler
and a KEDA where the cluster has none, and an autoscaler for a provisioning class of its own.

One flow runs in a cluster at a time, whatever number of processes pytest has. Each has a namespace, queues, a check, a
policy and nodes of its own, named after a random prefix, and removes them at the end; our own
CustomResourceDefinitions stay. Without `--kubeconfig` a few flows run in the embedded cluster, with its Kueue.

With two `--worker-kubeconfig` beside it the cluster of `--kubeconfig` is a hub of MultiKueue in flows that need one.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e.e2e_cluster import RealCluster, UnsuitableClusterError, check_hub, real_cluster
from e2e.e2e_flow import Flow, FlowSetup, StartFlow, run_flow
from e2e.e2e_multikueue import Clusters
from e2e.e2e_multikueue_setup import ClustersSetup, RealClusters, StartClusters, run_clusters

_TIMEOUT_SECONDS = 300
_WORKERS = ("w1", "w2")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: a flow that is a slow test in the embedded cluster")
    config.addinivalue_line(
        "markers", "cluster: an end-to-end flow for a real cluster; `-m cluster` runs it in the embedded one"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    are_selected = config.getoption("kubeconfig") is not None or "cluster" in config.getoption("markexpr")
    skip = pytest.mark.skip(reason="run by `pytest tests/e2e --kubeconfig FILE`, or `-m cluster` in the embedded one")
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS, func_only=True))
        if item.get_closest_marker("long") and config.getoption("kubeconfig") is None:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("cluster") and not are_selected:
            item.add_marker(skip)


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[RealCluster | None]:
    """The real cluster, for this test alone; None for the embedded one."""
    path = request.config.getoption("kubeconfig")
    if path is None:
        yield None
        return
    try:
        async with real_cluster(Path(path)) as found:
            yield found
            return
    except UnsuitableClusterError as why:
        problem = str(why)
    pytest.fail(problem, pytrace=False)


@pytest.fixture
def start_flow(cluster: RealCluster | None, tmp_path: Path) -> StartFlow:
    """Starts this test's flow, by the fields of a FlowSetup."""

    def start(**setup: Any) -> AbstractAsyncContextManager[Flow]:
        return run_flow(tmp_path, cluster, FlowSetup(**setup))

    return start


@pytest.fixture
async def clusters(request: pytest.FixtureRequest, cluster: RealCluster | None) -> AsyncIterator[RealClusters | None]:
    """The real hub and its workers, for this test alone; None for the embedded ones."""
    if cluster is None:
        yield None
        return
    paths = [Path(each) for each in request.config.getoption("worker_kubeconfig")]
    if len(paths) < len(_WORKERS):
        pytest.skip("run by `pytest tests/e2e --kubeconfig HUB --worker-kubeconfig W1 --worker-kubeconfig W2`")
    try:
        async with AsyncExitStack() as exits:
            await check_hub(cluster)
            found = [await exits.enter_async_context(real_cluster(each)) for each in paths[: len(_WORKERS)]]
            yield RealClusters(hub=cluster, workers=dict(zip(_WORKERS, found, strict=True)))
            return
    except UnsuitableClusterError as why:
        problem = str(why)
    pytest.fail(problem, pytrace=False)


@pytest.fixture
def start_clusters(clusters: RealClusters | None, tmp_path: Path) -> StartClusters:
    """Starts this test's flow on several clusters, by the fields of a ClustersSetup."""

    def start(**setup: Any) -> AbstractAsyncContextManager[Clusters]:
        return run_clusters(tmp_path, clusters, ClustersSetup(**setup))

    return start
