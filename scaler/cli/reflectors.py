"""The live copies that every replica keeps, of what it judges and of what runs."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from scaler.kube.accelerators import GpuResources
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import Pod, ScalableWorkload, ScaledObject
from scaler.kube.reflector import Reflector
from scaler.kube.resources import POD, SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kube.transport import KubeTransport
from scaler.loops.cluster import (
    Cluster,
    pod_indexes,
    scalable_workload_indexes,
    scaled_object_indexes,
    workload_indexes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflectors:
    """One for each kind."""

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
            workloads=Reflector(transport, WORKLOAD, Workload, namespaces=namespaces, indexes=workload_indexes()),
            pods=Reflector(transport, POD, Pod, namespaces=namespaces, indexes=pod_indexes(gpus)),
        )

    def cluster(self, gpus: GpuResources) -> Cluster:
        """What they show, together."""
        return Cluster(
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
