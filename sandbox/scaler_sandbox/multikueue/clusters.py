"""A hub without GPUs and its workers, each a sandbox of its own, connected as Kueue's documentation has it.

    async with SandboxClusters({"a": SandboxConfig.fast({"a1": 4}), "b": SandboxConfig.fast({"b1": 4})}) as clusters:
        await clusters.hub.apply(QUEUES_OF_THE_HUB)
        await clusters.workers["a"].apply(QUEUES)

On every worker the hub has a ServiceAccount with two roles: what MultiKueue needs, and what our dispatcher needs. By
its token the hub reaches the worker; the kubeconfig is in a Secret on the hub, which a MultiKueueCluster names. Every
worker is a ManagedCluster of the same name, too. Source: Kueue, "Setup a MultiKueue environment".
"""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import yaml

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    SECRET,
    Resource,
)
from scaler_sandbox.fleet import FleetConfig
from scaler_sandbox.job_manifests import manifest, namespace
from scaler_sandbox.kinds import MANAGED_CLUSTER, SERVICE_ACCOUNT, Json
from scaler_sandbox.kueue.jobs import MULTIKUEUE
from scaler_sandbox.kueue.nominations import Dispatcher, HubConfig
from scaler_sandbox.packaged import crds, packaged
from scaler_sandbox.sandbox import KUEUE_NAMESPACE, Component, Sandbox, SandboxConfig

CHECK, CONFIG = "dispatch", "workers"
"""Names of the AdmissionCheck of the hub, and of its MultiKueueConfig with all workers in their order."""
_ACCOUNT_NAMESPACE, _ACCOUNT = "open-cluster-management-agent-addon", "multikueue"
"""The account that the kueue-addon of Open Cluster Management makes on a worker; the example's roles are for it."""
_HUB_PARTS = frozenset({Component.KUEUE, Component.JOBS, Component.KEDA, Component.MULTIKUEUE, Component.PLACEMENTS})
_CLUSTER_ROLE = Resource(
    group="rbac.authorization.k8s.io", version="v1", plural="clusterroles", kind="ClusterRole", namespaced=False
)
_EVERYTHING = ["create", "delete", "get", "list", "patch", "update", "watch"]


class SandboxClusters:
    """Start it with `async with`; everything it has started ends with it."""

    def __init__(
        self,
        workers: Mapping[str, SandboxConfig],
        *,
        hub: SandboxConfig | None = None,
        dispatch: HubConfig = HubConfig(dispatcher=Dispatcher.EXTERNAL),  # noqa: B008 (immutable)
    ) -> None:
        base = hub or SandboxConfig.fast()
        config = replace(base, fleet=FleetConfig(nodes={}), parts=_HUB_PARTS, kueue=replace(base.kueue, hub=dispatch))
        self.hub = Sandbox(config)
        self.workers = {name: Sandbox(each) for name, each in workers.items()}
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            # The hub ends first: its connections are not cut off.
            for cluster in (*self.workers.values(), self.hub):
                await self._exits.enter_async_context(cluster)
                await cluster.apply(crds())
            await self.hub.apply(namespace(KUEUE_NAMESPACE))
            await asyncio.gather(*(self._connect(name, worker) for name, worker in self.workers.items()))
            await self.hub.apply(self._configuration())
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def _connect(self, name: str, worker: Sandbox) -> None:
        await worker.apply(worker_access())
        token = await worker.token_of(_ACCOUNT_NAMESPACE, _ACCOUNT)
        kubeconfig = yaml.safe_dump(
            worker.api.kubeconfig() | {"users": [{"name": "embedded", "user": {"token": token}}]}
        )
        data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
        source = {"kubeConfig": {"location": f"multikueue-{name}", "locationType": "Secret"}}
        await self.hub.apply(
            [
                manifest(SECRET, f"multikueue-{name}", KUEUE_NAMESPACE, type="Opaque", data=data),
                manifest(MULTIKUEUE_CLUSTER, name, spec={"clusterSource": source}),
                manifest(MANAGED_CLUSTER, name, spec={"hubAcceptsClient": True}),
                namespace(name),
            ]
        )

    def _configuration(self) -> list[Json]:
        parameters = {"apiGroup": MULTIKUEUE_CONFIG.group, "kind": MULTIKUEUE_CONFIG.kind, "name": CONFIG}
        return [
            manifest(MULTIKUEUE_CONFIG, CONFIG, spec={"clusters": list(self.workers)}),
            manifest(ADMISSION_CHECK, CHECK, spec={"controllerName": MULTIKUEUE, "parameters": parameters}),
        ]


def worker_access() -> list[Json]:
    """What lets the hub reach a worker: a ServiceAccount, what MultiKueue may do there, and what the dispatcher may."""
    rules = [
        _rule("batch", ["jobs"], _EVERYTHING),
        _rule("batch", ["jobs/status"], ["get"]),
        _rule("kueue.x-k8s.io", ["workloads"], _EVERYTHING),
        _rule("kueue.x-k8s.io", ["workloads/status"], ["get", "patch", "update"]),
    ]
    role = manifest(_CLUSTER_ROLE, _ACCOUNT, rules=rules)
    reference = {"apiGroup": _CLUSTER_ROLE.group, "kind": _CLUSTER_ROLE.kind, "name": _ACCOUNT}
    subject = {"kind": SERVICE_ACCOUNT.kind, "namespace": _ACCOUNT_NAMESPACE, "name": _ACCOUNT}
    binding = replace(_CLUSTER_ROLE, plural="clusterrolebindings", kind="ClusterRoleBinding")
    ours = packaged("examples") / "multikueue-ocm" / "worker-access.yaml"
    return [
        namespace(_ACCOUNT_NAMESPACE),
        manifest(SERVICE_ACCOUNT, _ACCOUNT, _ACCOUNT_NAMESPACE),
        role,
        manifest(binding, _ACCOUNT, roleRef=reference, subjects=[subject]),
        *yaml.load_all(ours.read_text(encoding="utf-8"), yaml.CSafeLoader),
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
