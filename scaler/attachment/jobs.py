"""Which jobs hold GPUs, or wait for some: the owners of Kueue Workloads, and what scales its own pods.

Laws:

* The owner of a Workload is read for its labels: Kueue does not copy them. Its kind is watched from when a Workload
  of that kind is met; until it is listed the job is not known, and nothing is done about it.
* Single pods and groups that Kueue admits one by one belong to a Deployment, StatefulSet or LeaderWorkerSet, which is
  the job then.
* A Notebook, InferenceService or LeaderWorkerSet is the job, and not what its controller makes of it. What a controller
  of another kind makes is not attached: nothing is known of what that does about replicas.
* A job whose Workload has finished is none any more.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from scaler.attachment.policy import Job
from scaler.clock import Turns
from scaler.errors import KubeError
from scaler.idleness.pods import GpuPod
from scaler.kube.discovery import Discovery, Scale
from scaler.kube.object_cache import Change, Keep, T, whole
from scaler.kube.objects.core import ObjectMeta, PartialObjectMetadata, is_true
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, Workload
from scaler.kube.objects.resources import JOB_KINDS, LEADER_WORKER_SET, SCALED_KINDS, Resource, group_of
from scaler.kube.objects.scaled_kinds import ScaledKind
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.kube.reflector import Denied, Reflector
from scaler.kube.transport import KubeTransport
from scaler.targets.cluster_state import JOB_NAME_LABELS, ClusterState, seconds_since_heard
from scaler.targets.switches import SWITCHES, Switch
from scaler.targets.workloads import OF_OWNERS

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
OwnerKind = tuple[str, str]
"""(group, kind)"""

_OF_PODS: frozenset[OwnerKind] = frozenset({("", "Pod"), *((each.group, each.kind) for each in SCALED_KINDS)})
"""Owners of Workloads that are not the job itself, or are scaled without their Workload."""


Models = Callable[[GpuPod], Collection[str]]
"""A pod → the models of its GPUs, as far as they have shown samples."""


class JobWatch:
    """Run it as a task; it subscribes nothing of the cluster's own stores. `changed` is called when a job changed."""

    def __init__(
        self,
        transport: KubeTransport,
        cluster: ClusterState,
        *,
        namespaces: Reflector[Namespace] | None,
        watched: Collection[str] = (),
        models: Models,
        changed: Callable[[], None],
    ) -> None:
        """`namespaces` is None where only some are `watched`, and their labels may not be read."""
        self._transport, self._cluster, self._watched = transport, cluster, watched
        self._namespaces, self._models, self._changed = namespaces, models, changed
        self._discovery = Discovery(transport)
        self._scaled = {each: self._reflector(each, ScaledKind, _with_gpus(cluster.gpus)) for each in SCALED_KINDS}
        self._owners: dict[OwnerKind, Reflector[PartialObjectMetadata]] = {}
        self._switched: dict[OwnerKind, Reflector[SwitchedObject]] = {}
        self._unresolved: dict[OwnerKind, str] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._needed = asyncio.Event()

    async def run(self) -> None:
        """Follow jobs from when they are needed: without policies nothing is."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as self._tasks:
            for each in self._copies:
                self._tasks.create_task(each.run())

    def unlisted(self, max_age: timedelta) -> str:
        """Why not all jobs are known as they are now; empty where they are. Of kinds that may not be listed none is."""
        stores = [*self._copies, *([] if self._namespaces is None else [self._namespaces])]
        waited = [
            each for each in stores if seconds_since_heard(each) > max_age.total_seconds() and not _is_denied(each)
        ]
        return ", ".join(f"{each.resource.qualified_name} are not listed" for each in waited)

    @property
    def has_unresolved(self) -> bool:
        """Whether the API has not said what some kinds are."""
        return bool(self._unresolved)

    def problems(self) -> list[str]:
        """The kinds of which no job is known, and why."""
        denied = [
            f"{x.resource.qualified_name}: {x.state.message}" for x in self._copies if isinstance(x.state, Denied)
        ]
        return [*denied, *self._unresolved.values()]

    async def watch(self) -> None:
        """Follow the kinds of all owners of Workloads with GPUs."""
        self._needed.set()
        self._watch_switched()
        turns, wanted = Turns(), dict[OwnerKind, str]()
        for workload in self._cluster.workloads.items():
            owner = workload.metadata.controller_owner
            kind = None if owner is None else (group_of(owner.api_version), owner.kind)
            known = kind in self._owners or kind in _OF_PODS or kind in SWITCHES
            if owner is not None and not known and self._waits(workload):
                wanted[group_of(owner.api_version), owner.kind] = owner.api_version
            await turns.give_way()
        self._unresolved = {}
        for kind, api_version in wanted.items():
            await self._watch(kind, api_version)

    async def jobs(self, *, with_models: bool = True) -> list[Job]:
        """All jobs that are known. Without `with_models` those of their GPUs are not looked up."""
        found: dict[str, Job] = {}
        turns = Turns()
        for workload in self._cluster.workloads.items():
            job = self._of_workload(workload, with_models=with_models) if self._waits(workload) else None
            if job is not None:
                known = found.get(job.uid)
                found[job.uid] = job if known is None else replace(job, workloads=(*known.workloads, *job.workloads))
            await turns.give_way()
        for resource, reflector in self._scaled.items():
            for each in reflector.items():
                found[each.metadata.uid] = self._of_scaled(resource, each, with_models=with_models)
                await turns.give_way()
        for kind, switched in self._switched.items():
            for one in switched.items():
                if (job := self._of_switched(SWITCHES[kind], one)) is not None:
                    found[job.uid] = job
                await turns.give_way()
        return [*found.values()]

    def scale_of(self, job: Job) -> Scale | None:
        """Its replicas and the selector of its pods; None where it has no scale of its own."""
        for resource, reflector in self._scaled.items():
            found = reflector.get(job.namespace, job.name) if resource.kind == job.kind else None
            if found is not None:
                return Scale(replicas=found.spec.replicas, selector=_selector(resource, found))
        return None

    # ---------------------------------------------------------------------------------------------------------------

    def _reflector(self, resource: Resource, kind: type[T], keep: Keep[T] = whole) -> Reflector[T]:
        made = Reflector(self._transport, resource, kind, namespaces=self._watched, keep=keep)
        made.subscribe(self._heard)
        return made

    @property
    def _copies(self) -> list[Reflector[Any]]:
        return [*self._scaled.values(), *self._owners.values(), *self._switched.values()]

    def _heard(self, change: Change[Any]) -> None:
        """Most changes of a job are of its status."""
        if change.old is None or change.new is None or _matters(change.old) != _matters(change.new):
            self._changed()

    def _watch_switched(self) -> None:
        """The reflectors that the evaluation reads, too, are subscribed to."""
        for kind, switch in SWITCHES.items():
            reflector = self._cluster.switched.watch(switch)
            if self._switched.get(kind) is not reflector:
                self._switched[kind] = reflector
                reflector.subscribe(self._heard)

    async def _watch(self, kind: OwnerKind, api_version: str) -> None:
        try:
            resource = await self._discovery.resolve_kind(api_version, kind[1])
        except KubeError as error:
            if not error.is_absent:
                self._unresolved[kind] = f"{kind[1]}: {error}"
            return
        self._owners[kind] = reflector = self._reflector(resource, PartialObjectMetadata, _metadata_read)
        if self._tasks is not None:
            self._tasks.create_task(reflector.run())

    def _waits(self, workload: Workload) -> bool:
        """Whether it holds GPUs, or waits for some."""
        gpus = self._cluster.gpus
        asks = any(gpus.of_pod(pod_set.template.spec) for pod_set in workload.spec.pod_sets)
        return asks and not is_true(workload.status.conditions, "Finished")

    def _labels_of(self, namespace: str) -> dict[str, str]:
        found = self._namespaces.get("", namespace) if self._namespaces is not None else None
        return found.metadata.labels if found is not None else {}

    def _of_workload(self, workload: Workload, *, with_models: bool) -> Job | None:
        owner = workload.metadata.controller_owner
        kind = None if owner is None else (group_of(owner.api_version), owner.kind)
        if owner is None or kind in _OF_PODS or kind in SWITCHES:
            return None
        watched = self._owners.get((group_of(owner.api_version), owner.kind))
        seen = watched.get(workload.metadata.namespace, owner.name) if watched is not None else None
        if seen is None or seen.metadata.uid != owner.uid or seen.metadata.deletion_timestamp is not None:
            return None
        priority = workload.spec.priority_class_ref
        pods = self._cluster.pods_of_workload(workload) if with_models else ()
        return Job(
            namespace=workload.metadata.namespace,
            api_version=owner.api_version,
            kind=owner.kind,
            name=owner.name,
            uid=owner.uid,
            namespace_labels=self._labels_of(workload.metadata.namespace),
            labels=seen.metadata.labels,
            annotations=seen.metadata.annotations,
            queue=workload.spec.queue_name,
            priority_class=priority.name if priority else "",
            gpu_models=self._models_of(pods),
            workloads=(workload.metadata.name,),
            is_remote_copy=workload.is_remote_copy or MULTIKUEUE_ORIGIN in seen.metadata.labels,
        )

    def _of_scaled(self, resource: Resource, found: ScaledKind, *, with_models: bool) -> Job:
        metadata: ObjectMeta = found.metadata
        names = {each.spec.priority_class_name for each in found.spec.templates} - {""}
        replicas, selector = found.spec.replicas, _selector(resource, found)
        pods = self._cluster.pods_of_selector(metadata.namespace, selector) if with_models else ()
        return Job(
            namespace=metadata.namespace,
            api_version=resource.api_version,
            kind=resource.kind,
            name=metadata.name,
            uid=metadata.uid,
            namespace_labels=self._labels_of(metadata.namespace),
            labels=metadata.labels,
            annotations=metadata.annotations,
            queue=metadata.labels.get(QUEUE_LABEL, ""),
            priority_class=metadata.labels.get(PRIORITY_LABEL) or min(names, default=""),
            gpu_models=self._models_of(pods),
            problem=controlled_by_other(metadata)
            or (f"it has {replicas} replicas; only what has one is scaled between 1 and 0" if replicas > 1 else ""),
            is_remote_copy=MULTIKUEUE_ORIGIN in metadata.labels,
        )

    def _of_switched(self, switch: Switch, found: SwitchedObject) -> Job | None:
        """The job of the object; None without GPUs. A ServingRuntime alone may request those of an InferenceService."""
        metadata, spec = found.metadata, found.spec
        pods = self._cluster.pods_of_selector(metadata.namespace, switch.selector(metadata.name))
        if metadata.deletion_timestamp or not (pods or switch.requests_gpus(found, self._cluster.gpus)):
            return None
        return Job(
            namespace=metadata.namespace,
            api_version=switch.resource.api_version,
            kind=switch.resource.kind,
            name=metadata.name,
            uid=metadata.uid,
            namespace_labels=self._labels_of(metadata.namespace),
            labels=metadata.labels,
            annotations=metadata.annotations,
            queue=metadata.labels.get(QUEUE_LABEL, ""),
            priority_class=metadata.labels.get(PRIORITY_LABEL)
            or spec.template.spec.priority_class_name
            or spec.predictor.priority_class_name,
            gpu_models=self._models_of(pods),
            problem=controlled_by_other(metadata) or switch.refusal(found),
        )

    def _models_of(self, pods: Iterable[GpuPod]) -> frozenset[str] | None:
        found = frozenset(model for pod in pods for model in self._models(pod) if model)
        return found or None


def _matters(found: PartialObjectMetadata | ScaledKind | SwitchedObject) -> object:
    metadata = found.metadata
    spec = None if isinstance(found, PartialObjectMetadata) else found.spec
    return metadata.uid, metadata.labels, metadata.annotations, metadata.deletion_timestamp, spec


def _is_denied(reflector: Reflector[Any]) -> bool:
    return isinstance(reflector.state, Denied)


def _selector(resource: Resource, found: ScaledKind) -> str:
    """The selector of its pods."""
    labels = found.spec.selector.match_labels
    if resource == LEADER_WORKER_SET:
        labels = {JOB_NAME_LABELS[resource.kind]: found.metadata.name}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _with_gpus(gpus: GpuResources) -> Keep[ScaledKind]:
    def kept(found: ScaledKind) -> ScaledKind | None:
        asks = any(gpus.of_pod(each.spec) for each in found.spec.templates)
        is_job = asks and not is_part_of_job(found.metadata)
        owners = found.metadata.owner_references
        metadata = msgspec.structs.replace(_read(found.metadata), owner_references=owners)
        return msgspec.structs.replace(found, metadata=metadata) if is_job else None

    return kept


_KNOWN_OWNERS = frozenset((each.group, each.kind) for each in (*JOB_KINDS, *SCALED_KINDS))
_LEADER = ("", "Pod")
"""The owner of the StatefulSet with a group's workers. Source: LeaderWorkerSet, pkg/controllers/pod_controller.go."""


def is_part_of_job(metadata: ObjectMeta) -> bool:
    """Whether it is made for another job that is known: a Notebook's, an InferenceService's, a LeaderWorkerSet's.

    Scaled by itself it would be half a gang, and the job's controller would undo it.
    """
    owner = metadata.controller_owner
    kind = None if owner is None else (group_of(owner.api_version), owner.kind)
    is_workers = kind == _LEADER and JOB_NAME_LABELS[LEADER_WORKER_SET.kind] in metadata.labels
    is_owned = is_workers or kind in SWITCHES or kind in _KNOWN_OWNERS
    return is_owned or any(each.pod_label in metadata.labels for each in SWITCHES.values())


def controlled_by_other(metadata: ObjectMeta) -> str:
    """Why a job with another controller is not attached, in words; empty for one without."""
    owner = metadata.controller_owner
    if owner is None:
        return ""
    what = f"its controller is {owner.kind} {owner.name}, which may set its replicas back"
    return f"{what}; where that one lets others scale it, write a ScaledObject for it"


def _metadata_read(found: PartialObjectMetadata) -> PartialObjectMetadata:
    return msgspec.structs.replace(found, metadata=_read(found.metadata))


def _read(metadata: ObjectMeta) -> ObjectMeta:
    """The metadata with its owner's requests as its only annotations."""
    asked = {key: metadata.annotations[key] for key in OF_OWNERS if key in metadata.annotations}
    return msgspec.structs.replace(metadata, annotations=asked, owner_references=())
