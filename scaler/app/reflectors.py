"""The watches of one process: live copies of objects. Every replica keeps them, so a new leader has them."""

import asyncio
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scaler.admission.provisioning.watch import RequestWatch
from scaler.decision.cluster_state import (
    ClusterState,
    pod_indexes,
    scalable_workload_indexes,
    scaled_object_indexes,
    workload_indexes,
)
from scaler.kube.discovery import Discovery
from scaler.kube.objects.core import Pod
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import ReclaimPolicy, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_queues import ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import POD, RECLAIM_POLICY, SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kube.reflector import Reflector
from scaler.kube.transport import KubeTransport
from scaler.placement.node_watch import node_reflector
from scaler.quota.watch import QuotaReflectors
from scaler.suspension.boost_annotations import boost_indexes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflectors:
    """Of what is evaluated, in the namespaces that are watched."""

    scaled_objects: Reflector[ScaledObject]
    scalable_workloads: Reflector[ScalableWorkload]
    workloads: Reflector[Workload]
    pods: Reflector[Pod]

    @classmethod
    def of(cls, transport: KubeTransport, gpus: GpuResources, namespaces: Collection[str]) -> "Reflectors":
        return cls(
            scaled_objects=Reflector(
                transport, SCALED_OBJECT, ScaledObject, namespaces=namespaces, indexes=scaled_object_indexes()
            ),
            scalable_workloads=Reflector(
                transport,
                SCALABLE_WORKLOAD,
                ScalableWorkload,
                namespaces=namespaces,
                indexes=scalable_workload_indexes(),
            ),
            workloads=Reflector(
                transport, WORKLOAD, Workload, namespaces=namespaces, indexes=workload_indexes() | boost_indexes()
            ),
            pods=Reflector(transport, POD, Pod, namespaces=namespaces, indexes=pod_indexes(gpus)),
        )

    def cluster(self, gpus: GpuResources) -> ClusterState:
        """What they show, together."""
        return ClusterState(
            scaled_objects=self.scaled_objects,
            scalable_workloads=self.scalable_workloads,
            workloads=self.workloads,
            pods=self.pods,
            gpus=gpus,
        )

    @property
    def all(self) -> list[Reflector[Any]]:
        return [self.scaled_objects, self.scalable_workloads, self.workloads, self.pods]

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run for the copies to be kept."""
        return [each.run() for each in self.all]

    async def wait_synced(self) -> None:
        """Returns once everything is listed."""
        await asyncio.gather(*(each.wait_synced() for each in self.all))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReflectors:
    """Of what belongs to the whole cluster: quota, nodes, and parameters of AdmissionChecks."""

    quota: QuotaReflectors
    nodes: Reflector[Node]
    policies: Reflector[ReclaimPolicy]
    requests: RequestWatch
    is_confined: bool
    """To some namespaces: then nothing of this is watched."""

    @classmethod
    def of(cls, transport: KubeTransport, *, is_confined: bool) -> "ClusterReflectors":
        return cls(
            quota=QuotaReflectors.of(transport),
            nodes=node_reflector(transport),
            policies=Reflector(transport, RECLAIM_POLICY, ReclaimPolicy),
            requests=RequestWatch(transport=transport, discovery=Discovery(transport)),
            is_confined=is_confined,
        )

    @property
    def always(self) -> list[Reflector[Any]]:
        """Those of kinds that Kueue and Kubernetes always have."""
        return [] if self.is_confined else [*self.quota.all, self.nodes]

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        if self.is_confined:
            return []
        return [*(each.run() for each in self.always), self.policies.run(), self.requests.run()]

    async def wait_synced(self, seconds: float) -> None:
        """Returns once everything is listed, or after so many seconds: answers then say what is missing."""
        if self.is_confined:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                listed = (each.wait_synced() for each in [*self.always, self.policies])
                await asyncio.gather(*listed, self.requests.wait_known())

    def flavor(self, name: str) -> ResourceFlavor | None:
        return self.quota.flavors.get("", name)
