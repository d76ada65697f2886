"""How a flow on several clusters begins and ends: programs, accounts, queues, and the hub connected to its workers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import e2e.e2e_manifests as manifests
import e2e.e2e_multikueue_manifests as made
from e2e.e2e_cluster import RealCluster
from e2e.e2e_flow import Flow, cancel, clean_up, new_run, open_flow
from e2e.e2e_multikueue import Clusters, hub_kubeconfig, kueue_namespace_of
from scaler_sandbox import job_manifests
from scaler_sandbox.sandbox import KUEUE_NAMESPACE

from scaler.kube.objects.resources import CLUSTER_OFFER, CLUSTER_QUEUE, MULTIKUEUE_CLUSTER

_FOLLOWED = (CLUSTER_OFFER, MULTIKUEUE_CLUSTER)
_LEASE = {"duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms"}
"""No program is killed here, and three of them on a busy machine are slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealClusters:
    """A hub and its workers by name, in the order of the MultiKueueConfig."""

    hub: RealCluster
    workers: Mapping[str, RealCluster]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersSetup:
    """What a flow on several clusters begins with."""

    gpus: Mapping[str, int] = field(default_factory=lambda: {"w1": 4, "w2": 4})
    """Of each worker: one node with so many, and as much quota."""
    hub_gpus: int | None = None
    """Quota of the hub. None: that of all workers together."""
    preempts: bool = False
    """Whether the workers' ClusterQueues do."""
    components: Sequence[str] = ("scaler", "reconciler", "dispatcher")
    """Of the program on the hub."""
    patience: str = "60s"


StartClusters = Callable[..., AbstractAsyncContextManager[Clusters]]
"""Starts a flow on several clusters, by the fields of its ClustersSetup."""


@asynccontextmanager
async def run_clusters(folder: Path, real: RealClusters | None, setup: ClustersSetup) -> AsyncIterator[Clusters]:
    """The flow, ready to be used. Removes everything from real clusters at the end, first from the hub."""
    async with AsyncExitStack() as exits:
        run = new_run()
        for name in ("hub", *setup.gpus):
            (folder / name).mkdir()
        workers = {name: await _open(exits, folder / name, real and real.workers[name], run) for name in setup.gpus}
        for name, flow in workers.items():
            await _set_up_worker(flow, setup, name)
        where = real.hub.kueue_namespace if real is not None else KUEUE_NAMESPACE
        sections = {
            "before": [job_manifests.namespace(where)] * (real is None) + manifests.dispatcher_roles(run, where),
            "components": [*setup.components],
            "multiKueue": {"offerName": run, "patience": setup.patience, "namespace": where},
        }
        hub = await _open(exits, folder / "hub", real and real.hub, run, is_hub=True, **sections)
        clusters = Clusters(hub=hub, workers=workers)
        if real is not None:
            exits.push_async_callback(_clean_up, clusters)
        await _set_up_hub(clusters, setup)
        exits.push_async_callback(cancel, asyncio.create_task(clusters.observe()))
        yield clusters
        clusters.assert_laws()
        for flow in (hub, *workers.values()):
            flow.assert_permitted()


async def _clean_up(clusters: Clusters) -> None:
    """Removes every object of the run from all clusters at once, since removing a namespace takes 5 s."""
    flows = (clusters.hub, *clusters.workers.values())
    for flow in flows:
        await flow.scaler.kill()
    await asyncio.gather(*(clean_up(flow.sandbox, flow.api) for flow in flows))


async def _open(exits: AsyncExitStack, folder: Path, cluster: RealCluster | None, run: str, **sections: Any) -> Flow:
    sections = {"follows": _FOLLOWED, "kubernetes": {"lease": _LEASE | {"namespace": run}}, **sections}
    return await exits.enter_async_context(open_flow(folder, cluster, run, **sections))


async def _set_up_worker(flow: Flow, setup: ClustersSetup, name: str) -> None:
    """Creates the node, the queues and the account of the hub."""
    run, sandbox, gpus = flow.run, flow.sandbox, setup.gpus[name]
    flow.add_node(name, gpus)
    await sandbox.apply([*made.hub_account(run), manifests.policy(run, {}), manifests.priority(run, 1000)])
    await sandbox.apply(manifests.queues(run, gpus=gpus, checks=[], preempts=setup.preempts, strategy="StrictFIFO"))


async def _set_up_hub(clusters: Clusters, setup: ClustersSetup) -> None:
    """Connects the workers and creates the queue; returns once all programs and Kueue have seen everything."""
    hub, run = clusters.hub, clusters.run
    for name, flow in clusters.workers.items():
        config = await hub_kubeconfig(flow)
        await hub.sandbox.apply(made.secret(run, kueue_namespace_of(hub), name, config))
    await hub.sandbox.apply([*made.multikueue(run, clusters.workers), manifests.priority(run, 1000)])
    gpus = setup.hub_gpus or sum(setup.gpus.values())
    await hub.sandbox.apply(manifests.queues(run, gpus=gpus, checks=[run], preempts=False, strategy="BestEffortFIFO"))
    for flow in (*clusters.workers.values(), hub):
        await flow.wait_until_ready()
        await flow.wait_until(
            lambda of=flow: of.sandbox.condition(CLUSTER_QUEUE, "", run, "Active"), "an active ClusterQueue"
        )
    for name in clusters.workers:
        await hub.wait_until(lambda of=name: clusters.is_connected(of), f"the hub to reach {name}")
