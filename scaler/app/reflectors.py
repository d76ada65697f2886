"""The watches of one process: live copies of objects. Every replica keeps them, so a new leader has them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from scaler.admission.provisioning.watch import RequestWatch
from scaler.admission.remote_copies import NominatedCopies, nominations_of
from scaler.app.kept_objects import kept_pods, kept_scalable_workload, kept_scaled_object, kept_workload
from scaler.app.scaling_objects import ScalingObjects
from scaler.decision.decision_cache import Key
from scaler.kube.discovery import Discovery
from scaler.kube.object_cache import Change, Index, Keep, T, whole
from scaler.kube.objects.core import Pod
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import ReclaimPolicy, ScalableWorkload, ScalableWorkloadStatus
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef, scalable_workload_ref
from scaler.kube.objects.kueue_queues import ResourceFlavor
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import ClusterOffer
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import (
    CLUSTER_OFFER,
    POD,
    RECLAIM_POLICY,
    SCALABLE_WORKLOAD,
    SCALED_OBJECT,
    WORKLOAD,
    Resource,
)
from scaler.kube.reflector import Denied, Disconnected, Reflector
from scaler.kube.transport import KubeTransport
from scaler.multikueue.hub.dispatch.waiting import dispatch_indexes
from scaler.placement.node_watch import node_reflector
from scaler.quota.watch import QuotaReflectors, disconnected, outdated
from scaler.suspension.boost_controller import boost_indexes
from scaler.targets.cluster_state import (
    ClusterState,
    RemoteVerdicts,
    no_remote_verdict,
    pod_indexes,
    scalable_workload_indexes,
    scaled_object_indexes,
    seconds_since_heard,
    workload_indexes,
)
from scaler.targets.records import ScalableWorkloads, record_owner
from scaler.targets.scale_subresources import spec_or_annotations_changed
from scaler.targets.switched_objects import SwitchedKey, SwitchedObjects


class Reflectors:
    """Copies of what is evaluated, in the namespaces that are watched."""

    def __init__(
        self,
        transport: KubeTransport,
        gpus: GpuResources,
        namespaces: Collection[str],
        *,
        max_age: timedelta = timedelta(minutes=3),
    ) -> None:
        def reflect(
            resource: Resource, kind: type[T], indexes: Mapping[str, Index[T]], keep: Keep[T] = whole
        ) -> Reflector[T]:
            return Reflector(transport, resource, kind, namespaces=namespaces, indexes=indexes, keep=keep)

        self._namespaces = namespaces
        self.scaled_objects = reflect(SCALED_OBJECT, ScaledObject, scaled_object_indexes(), kept_scaled_object)
        with_records = reflect(SCALABLE_WORKLOAD, ScalableWorkload, scalable_workload_indexes(), kept_scalable_workload)
        self.scalable_workloads = ScalableWorkloads(with_records)
        self.workloads = reflect(
            WORKLOAD, Workload, workload_indexes() | boost_indexes() | dispatch_indexes(), kept_workload
        )
        self.pods = reflect(POD, Pod, pod_indexes(gpus), kept_pods(gpus, with_nodes=not namespaces))
        self.switched = SwitchedObjects(transport, namespaces=namespaces, max_age=max_age)
        self.scalable_workloads.subscribe(self.switched.scalable_heard)
        self.scaling = ScalingObjects(self.scaled_objects, self.scalable_workloads)
        self.all: list[Reflector[Any]] = [self.scaled_objects, with_records, self.workloads, self.pods]

    def cluster(
        self, gpus: GpuResources, remote: RemoteVerdicts = no_remote_verdict, *, nodes: Reflector[Node] | None = None
    ) -> ClusterState:
        """`remote` is what other clusters say of what runs there."""
        return ClusterState(
            scaled_objects=self.scaling,
            scalable_workloads=self.scalable_workloads,
            workloads=self.workloads,
            pods=self.pods,
            gpus=gpus,
            switched=self.switched,
            remote=remote,
            nodes=nodes,
            namespaces=self._namespaces,
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [each.run() for each in self.all]

    async def wait_synced(self) -> None:
        await asyncio.gather(*(each.wait_synced() for each in self.all))


class ClusterReflectors:
    """Copies of what belongs to the whole cluster: quota, nodes, and parameters of AdmissionChecks."""

    def __init__(self, transport: KubeTransport, *, is_confined: bool) -> None:
        """`is_confined` to some namespaces: then nothing of this is watched."""
        self.quota = QuotaReflectors(transport)
        self.nodes = node_reflector(transport)
        self.policies = Reflector(transport, RECLAIM_POLICY, ReclaimPolicy)
        self.offers = Reflector(transport, CLUSTER_OFFER, ClusterOffer)
        self.requests = RequestWatch(transport=transport, discovery=Discovery(transport))
        self.is_confined = is_confined

    @property
    def always(self) -> list[Reflector[Any]]:
        """The reflectors of kinds that Kueue and Kubernetes always have."""
        return [] if self.is_confined else [*self.quota.all, self.nodes]

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        if self.is_confined:
            return []
        return [*(each.run() for each in [*self.always, self.policies, self.offers]), self.requests.run()]

    async def wait_synced(self, seconds: float) -> None:
        """Returns once everything is listed, or after so many seconds: answers then say what is missing."""
        if self.is_confined:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                listed = (each.wait_synced() for each in [*self.always, self.policies, self.offers])
                await asyncio.gather(*listed, self.requests.wait_known())

    def nominations(self, max_age: timedelta, *, always: bool) -> NominatedCopies:
        """The remote copies of MultiKueue for which this cluster is nominated; none where it is confined."""
        if self.is_confined:
            return NominatedCopies()
        unreadable = [f"{key[1]}: {why}" for key, why in self.offers.undecodable.items()]
        unknown = (
            disconnected({"ClusterOffers": self.offers}, states=(Denied, Disconnected))
            or outdated(seconds_since_heard(self.offers), max_age)
            or "; ".join(unreadable)
        )
        return nominations_of(self.offers.items(), unknown=unknown, always=always)

    def flavor(self, name: str) -> ResourceFlavor | None:
        return self.quota.flavors.get("", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReEvaluation:
    """Has ScaledObjects evaluated again before the next tick (`touch`) because their objects changed.

    After a user sets replicas to 1 by hand, KEDA must not get an answer from before that.
    """

    reflectors: Reflectors
    cluster: ClusterState
    touch: Callable[[Key], None]

    def subscribe(self) -> None:
        self.reflectors.scaling.subscribe(self._scaled_object_changed)
        self.reflectors.scalable_workloads.subscribe(self._scalable_workload_changed)
        self.reflectors.scalable_workloads.subscribe_records(self._record_changed)
        self.reflectors.workloads.subscribe(self._workload_changed)
        self.reflectors.switched.subscribe(self._switched_changed)

    def target_changed(self, namespace: str, target: ScaleTargetRef) -> None:
        for scaled_object in self.reflectors.scaling.by_index("target", (namespace, target)):
            self.touch(scaled_object.metadata.key)

    def _scaled_object_changed(self, change: Change[ScaledObject]) -> None:
        if spec_or_annotations_changed(change):
            self.touch(change.key)

    def _scalable_workload_changed(self, change: Change[ScalableWorkload]) -> None:
        if spec_or_annotations_changed(change) or _is_decided_anew(change):
            self.target_changed(change.key[0], scalable_workload_ref(change.key[1]))

    def _record_changed(self, change: Change[ScalableWorkload]) -> None:
        key = record_owner(change.new) if change.new is not None else None
        if key is not None and _is_decided_anew(change):
            self.touch(key)

    def _workload_changed(self, change: Change[Workload]) -> None:
        """A target at 0 replicas is suspended only once its Workload is inactive."""
        workload = change.new or change.old
        if workload is None or not spec_or_annotations_changed(change):
            return
        for scalable in self.cluster.scalers_of(workload):
            self.target_changed(scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name))

    def _switched_changed(self, key: SwitchedKey) -> None:
        for scalable in self.reflectors.scalable_workloads.by_index("subject", key):
            self.target_changed(scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name))


def _is_decided_anew(change: Change[ScalableWorkload]) -> bool:
    """Whether its status says anything else of what a decision waits for."""
    old, new = (each.status if each is not None else ScalableWorkloadStatus() for each in (change.old, change.new))
    return (old.grant, old.before_suspend, old.notified) != (new.grant, new.before_suspend, new.notified)
