"""The Kubernetes objects as the controllers need them: what does a ScaledObject scale, and in which state is it?

Only observed state passes through here, from the reflectors' stores. Nothing is asked of the API.
"""

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Generic, Protocol, TypeVar

from scaler.clock import Turns
from scaler.idleness import pods as core
from scaler.idleness.gpu import GpuId
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.remote import RemoteAnswer
from scaler.idleness.verdict import Unknown
from scaler.kube.object_cache import Change, Index, Key, KubeObject, T
from scaler.kube.objects.core import Pod
from scaler.kube.objects.gpu_pods import GpuResources, gpu_pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef, is_scalable_workload, scalable_workload_ref
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node, offers_shared
from scaler.kube.objects.resources import SCALED_OBJECT, WORKLOAD, group_of
from scaler.kube.objects.switched_kinds import SwitchedObject
from scaler.kube.reflector import Absent, Reflecting, State
from scaler.kube.scheduling import Operator, Selector, parse_selector
from scaler.targets import target_state
from scaler.targets.records import is_of
from scaler.targets.switched_objects import SwitchedObjects, not_served
from scaler.targets.switches import Switch, observe_switched, switch_of
from scaler.targets.target_state import ObservedTarget, WakeRequest
from scaler.targets.workloads import (
    EXCLUDE,
    KEEP_FOR,
    KEEP_UNTIL,
    POLICY_LABEL,
    SUSPEND_AT,
    WAKE_ANNOTATION,
    grant_of,
    has_wake_annotation,
    hook_run_of,
    observe,
    owner_key,
    wake_request,
    when_free_request,
)

WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
"""An annotation of pods of admitted Workloads. Source: Kueue, with TopologyAwareScheduling (on by default)."""
SLICE_ANNOTATION = "kueue.x-k8s.io/workload-slice-name"
"""An annotation of an elastic job's Workloads and of its pods: the first Workload, which later ones replace one by one.
Pods that run on keep the name of that which they began under. Source: Kueue, KEP-77; workloadslicing, SliceName.
"""
REPLACED_ANNOTATION = "kueue.x-k8s.io/workload-slice-replacement-for"
"""An annotation of a Workload: `namespace/name` of the one that it replaces. Source: as above."""

JOB_NAME_LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
    "RayCluster": "ray.io/cluster",
    "PyTorchJob": "training.kubeflow.org/job-name",
    "TFJob": "training.kubeflow.org/job-name",
    "XGBoostJob": "training.kubeflow.org/job-name",
    "PaddleJob": "training.kubeflow.org/job-name",
    "JAXJob": "training.kubeflow.org/job-name",
    "MPIJob": "training.kubeflow.org/job-name",
    "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/name",
}
"""Labels by which all pods of a job name it. Source: each kind's PodLabelSelector in Kueue's integrations; for leaders
and workers of all groups LWS, api/leaderworkerset/v1, SetNameLabelKey."""

EVERYWHERE = ""
"""All namespaces, in place of one."""

T_co = TypeVar("T_co", covariant=True)
Object = TypeVar("Object", bound=KubeObject)
View = TypeVar("View")


class WatchHealth(Protocol):
    """How well objects are watched."""

    @property
    def age(self) -> float:
        """Seconds since the last sign of life from the API server; infinite before the first list."""

    @property
    def state(self) -> State: ...


class ObjectLister(WatchHealth, Protocol[T_co]):
    """The objects of one kind, as last seen. A Reflector is one."""

    def get(self, namespace: str, name: str) -> T_co | None: ...

    def items(self) -> Sequence[T_co]: ...

    def by_index(self, name: str, key: object) -> Sequence[T_co]: ...

    def revision(self, namespace: str) -> int:
        """How many changes to objects of the namespace there were."""

    def within(self, namespace: str) -> WatchHealth:
        """How well those of one namespace are watched. One may be hidden while others are seen."""


class WatchedObjects(ObjectLister[T], Protocol[T]):
    """An ObjectLister that tells of changes."""

    def subscribe(self, callback: Callable[[Change[T]], None]) -> Callable[[], None]:
        """The function that ends the subscription."""


RemoteVerdicts = Callable[[target_state.ObservedWorkload], RemoteAnswer | Unknown]
"""What the cluster says of a Workload to which MultiKueue has dispatched it; or why that is not known."""


def no_remote_verdict(workload: target_state.ObservedWorkload) -> Unknown:
    """The answer where other clusters are not known."""
    message = f"it runs on cluster {workload.cluster}, of which nothing is known here"
    return Unknown(reason=UnknownReason.REMOTE_VERDICT_MISSING, message=message)


def pod_indexes(gpus: GpuResources) -> dict[str, Index[Pod]]:
    """Indexes of the pod store. Pods without GPUs, or devices that may be some, are only found by their Workload."""

    def with_gpus(pod: Pod) -> Iterable[Hashable]:
        if gpus.may_be_held_by(pod.spec):
            yield pod.metadata.namespace
        if gpus.of_pod(pod.spec):
            yield EVERYWHERE

    def by_label(pod: Pod) -> Iterable[Hashable]:
        if gpus.may_be_held_by(pod.spec):
            yield from ((pod.metadata.namespace, *each) for each in pod.metadata.labels.items() if is_indexed(each[0]))

    return {
        "workload": lambda pod: _annotated(pod, WORKLOAD_ANNOTATION),
        "slice": lambda pod: _annotated(pod, SLICE_ANNOTATION),
        "owner": lambda pod: (owner.uid for owner in pod.metadata.owner_references),
        "job": jobs_named_by,
        "gpus": with_gpus,
        "label": by_label,
        SUSPEND_AT: lambda pod: [True] if SUSPEND_AT in pod.metadata.annotations else (),
    }


def _annotated(pod: Pod, key: str) -> Iterable[Hashable]:
    """(namespace, value) of the annotation; nothing where it is empty."""
    value = pod.metadata.annotations.get(key)
    return [(pod.metadata.namespace, value)] if value else ()


_JOB_LABELS = frozenset(JOB_NAME_LABELS.values())


def jobs_named_by(pod: Pod) -> list[tuple[str, str, str]]:
    """(namespace, label, its value) of each label by which it names a job."""
    labels = pod.metadata.labels
    return [(pod.metadata.namespace, key, labels[key]) for key in _JOB_LABELS & labels.keys()]


_OF_ONE_POD = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/controller-uid",
        "controller-revision-hash",
        "controller-uid",
        "pod-template-hash",
        "statefulset.kubernetes.io/pod-name",
    }
)


def is_indexed(label: str) -> bool:
    """Whether GPU pods are found by the label: not by those that controllers add and scale selectors do without."""
    return label not in _OF_ONE_POD


def workload_indexes() -> dict[str, Index[Workload]]:
    """Indexes by the job that owns it, and by the label of the job's pods in the pod store; remote copies, and by
    namespace those that MultiKueue has dispatched."""
    return {
        "owner": lambda workload: filter(None, [owner_key(workload)]),
        "job": lambda workload: filter(None, [job_key(workload)]),
        "remote": lambda workload: [_REMOTE] if workload.is_remote_copy else [],
        "dispatched": lambda workload: [workload.metadata.namespace] if workload.status.cluster_name else [],
    }


_REMOTE = True


def job_key(workload: Workload) -> tuple[str, str, str] | None:
    """(namespace, label, its value) by which the pods of its job are found; None where its kind has no such label."""
    owner = workload.metadata.controller_owner
    if owner is None or owner.kind not in JOB_NAME_LABELS:
        return None
    return workload.metadata.namespace, JOB_NAME_LABELS[owner.kind], owner.name


_KEEPS = frozenset({KEEP_UNTIL, EXCLUDE})
_KEEP_LIMITS = frozenset({"longestKeep", "keepsPerWeek", "keepUsers"})


def _awaits_leader(scaled: ScaledObject) -> bool:
    """Whether it has an annotation that the leader acts on."""
    annotations = scaled.metadata.annotations
    is_limited = annotations.keys() & _KEEPS and any(x.metadata.keys() & _KEEP_LIMITS for x in scaled.spec.triggers)
    return bool(has_wake_annotation(annotations) or KEEP_FOR in annotations or is_limited)


def scaled_object_indexes() -> dict[str, Index[ScaledObject]]:
    """Indexes by what it scales; those with an annotation that the leader acts on, and those that policies attached."""
    return {
        "policy": _by_policy,
        "target": lambda scaled: [(scaled.metadata.namespace, scaled.spec.scale_target_ref)],
        "wake": lambda scaled: [WAKE_ANNOTATION] if _awaits_leader(scaled) else [],
    }


def scalable_workload_indexes() -> dict[str, Index[ScalableWorkload]]:
    """Indexes by what it scales, and those that policies attached; records by the uid of their ScaledObject."""
    return {
        "subject": lambda scalable: [] if scalable.is_record else [scaled_by_key(scalable)],
        "policy": _by_policy,
        "record": _by_recorded,
    }


def _by_recorded(scalable: ScalableWorkload) -> Iterable[Hashable]:
    owner = scalable.metadata.controller_owner if scalable.is_record else None
    return [] if owner is None else [(scalable.metadata.namespace, owner.uid)]


def _by_policy(attached: KubeObject) -> Iterable[Hashable]:
    return [POLICY_LABEL] if POLICY_LABEL in attached.metadata.labels else []


def scaled_by_key(scalable: ScalableWorkload) -> tuple[str, ...]:
    """What the ScalableWorkload scales: (namespace, Workload name) or (namespace, group, kind, name) of a job."""
    namespace, job = scalable.metadata.namespace, scalable.spec.job_ref
    if job is not None:
        return namespace, group_of(job.api_version), job.kind, job.name
    return namespace, scalable.spec.workload_ref.name if scalable.spec.workload_ref else ""


class PerObjectCache(Generic[Object, View]):
    """What was made of each object, made again only when there is another object of its name.

    Objects are immutable and stay the same while nothing changes; of ten thousand pods hardly one does between two
    evaluations.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[Object, View]] = {}
        self._needed = 0
        """How many objects there were when that was looked at."""

    def __len__(self) -> int:
        return len(self._made)

    def of(self, obj: Object, make: Callable[[Object], View]) -> View:
        """What `make` gives for the object."""
        known = self._made.get(obj.metadata.key)
        if known is None or known[0] is not obj:
            known = self._made[obj.metadata.key] = (obj, make(obj))
        return known[1]

    async def forget_gone(self, store: ObjectLister[Object]) -> None:
        """Drop what was made of objects that are not there any more, once that may be a sixteenth of it."""
        if len(self._made) < self._needed + self._needed // 16 + _FEW:
            return
        turns = Turns()
        for count, key in enumerate([*self._made]):
            known = self._made.get(key)
            if known is not None and store.get(*key) is not known[0]:
                del self._made[key]
            if count % _AT_ONCE == 0:
                await turns.give_way()
        self._needed = len(self._made)


_FEW = 64
_AT_ONCE = 512
"""Objects looked at before the time is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    scaled_objects: ObjectLister[ScaledObject]
    """KEDA's, and what stands for one."""
    scalable_workloads: ObjectLister[ScalableWorkload]
    """The ScalableWorkloads that are targets, and records by index."""
    workloads: ObjectLister[Workload]
    pods: ObjectLister[Pod]
    gpus: GpuResources
    switched: SwitchedObjects
    remote: RemoteVerdicts = no_remote_verdict
    nodes: ObjectLister[Node] | None = None
    """The Nodes; None where they are not watched."""
    namespaces: Collection[str] = ()
    """The namespaces that are watched; empty: all."""
    _gpu_pods: PerObjectCache[Pod, core.GpuPod] = field(default_factory=PerObjectCache, init=False, repr=False)
    _observed: PerObjectCache[Workload, target_state.ObservedWorkload] = field(
        default_factory=PerObjectCache, init=False, repr=False
    )

    def _health(self, namespace: str | None) -> dict[str, WatchHealth]:
        stores: dict[str, ObjectLister[object]] = {
            "ScaledObjects": self.scaled_objects,
            "ScalableWorkloads": self.scalable_workloads,
            "Workloads": self.workloads,
            "Pods": self.pods,
        }
        return {name: store if namespace is None else store.within(namespace) for name, store in stores.items()}

    def view_age_s(self, namespace: str | None = None) -> float:
        """Seconds since the quietest store heard of the API, or of the namespace; infinite while one never did."""
        return max(map(seconds_since_heard, self._health(namespace).values()))

    def unlisted(self, namespace: str | None = None) -> str:
        """The kinds that were never listed, in the cluster or in the namespace, and why, in words."""
        return ", ".join(
            f"{name}: {state.message}" if not isinstance(state := watched.state, Reflecting) else name
            for name, watched in self._health(namespace).items()
            if not isfinite(seconds_since_heard(watched))
        )

    def doubt_in(self, namespace: str, max_age: timedelta) -> Unknown | None:
        """Why the copies of the namespace's objects are not to be believed; None where they are."""
        age_s = self.view_age_s(namespace)
        if age_s <= max_age.total_seconds():
            return None
        if unlisted := self.unlisted(namespace):
            message = f"namespace {namespace} cannot be seen whole ({unlisted}); pods may run unseen"
        else:
            message = f"the Kubernetes API has not been heard of for {int(age_s)} s; pods may have changed unseen"
        return Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message=message)

    def unserved_workloads(self, namespace: str) -> Unknown | None:
        """Why there is no Workload in the namespace, where the API server serves none in our version."""
        return not_served(WORKLOAD) if isinstance(self.workloads.within(namespace).state, Absent) else None

    def workload_of(self, scalable: ScalableWorkload) -> Workload | None:
        """The Kueue Workload that is scaled; of several of one job, the youngest that is not finished.

        None for an object with a switch of its own, whether or not Kueue has Workloads for its pods.
        """
        if scalable.spec.workload_ref:
            return self.workloads.get(scalable.metadata.namespace, scalable.spec.workload_ref.name)
        if switch_of(scalable.spec.job_ref) is not None:
            return None
        owned = self.workloads.by_index("owner", scaled_by_key(scalable))
        return owned[0] if len(owned) == 1 else max(owned, key=self._preference, default=None)

    def remote_copies(self) -> Sequence[Workload]:
        """The Workloads that a hub of MultiKueue has created here."""
        return self.workloads.by_index("remote", _REMOTE)

    def remote_answers(self, namespace: str) -> Hashable:
        """What other clusters say of Workloads of the namespace: while it is as before, they say the same."""
        dispatched = self.workloads.by_index("dispatched", namespace)
        return tuple((each.metadata.uid, self.remote(self._observe(each))) for each in dispatched)

    def switched_of(self, scalable: ScalableWorkload) -> tuple[Switch, SwitchedObject | Unknown] | None:
        """The object with a switch of its own that is scaled, or why it is not known; None for any other kind."""
        job = scalable.spec.job_ref
        switch = switch_of(job)
        if job is None or switch is None:
            return None
        return switch, self.switched.get(switch, scalable.metadata.namespace, job.name)

    def scaled_objects_of(self, scalable: ScalableWorkload) -> list[ScaledObject]:
        """The ScaledObjects by which it is scaled, and what stands for one; KEDA's own first."""
        target = scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name)
        return sorted(self.scaled_objects.by_index("target", target), key=lambda each: each.resource != SCALED_OBJECT)

    def target_of(self, namespace: str, target: ScaleTargetRef) -> ScalableWorkload | None:
        """The ScalableWorkload that is the target; None where that is of another kind, or not there."""
        return self.scalable_workloads.get(namespace, target.name) if is_scalable_workload(target) else None

    def record_of(self, scaled_object: ScaledObject) -> ScalableWorkload | None:
        """The ScalableWorkload with the status of what it scales: the target, or its record; None where there is none,
        and where its record is still that of what it scaled before."""
        target = scaled_object.spec.scale_target_ref
        if is_scalable_workload(target):
            return self.scalable_workloads.get(scaled_object.metadata.namespace, target.name)
        found = self.own_record(scaled_object)
        return found if found is not None and is_of(found, target) else None

    def own_record(self, scaled_object: ScaledObject) -> ScalableWorkload | None:
        """The oldest of the records that it owns, whatever that is of."""
        key = scaled_object.metadata.namespace, scaled_object.metadata.uid
        return min(self.scalable_workloads.by_index("record", key), key=_precedence, default=None)

    def has_records(self, namespace: str) -> bool:
        """Whether the API server serves ScalableWorkloads there, as far as is known."""
        return not isinstance(self.scalable_workloads.within(namespace).state, Absent)

    def scaled_object_key(self, namespace: str, name: str) -> Key:
        """The key of the ScaledObject of that name, else of the only one that scales what has that name, or its job."""
        if self.scaled_objects.get(namespace, name) is None:
            listed = (each for each in self.scaled_objects.items() if each.metadata.namespace == namespace)
            found = [each.metadata.key for each in listed if name in self._scaled_names(each)]
            if len(found) == 1:
                return found[0]
        return namespace, name

    def _scaled_names(self, scaled: ScaledObject) -> set[str]:
        target = scaled.spec.scale_target_ref
        scalable = self.target_of(scaled.metadata.namespace, target)
        job = scalable.spec.job_ref if scalable is not None else None
        return {target.name, *(() if job is None else (job.name,))}

    def scalers_of(self, workload: Workload) -> list[ScalableWorkload]:
        """All that name the Workload, or the job that owns it. Of several only the oldest acts."""
        subjects = (workload.metadata.key, owner_key(workload))
        return [each for key in subjects if key for each in self.scalable_workloads.by_index("subject", key)]

    def scaler_of(self, workload: Workload) -> ScalableWorkload | None:
        """The one that acts for it: the oldest, one that is being deleted only where there is no other."""
        return min(self.scalers_of(workload), key=_precedence, default=None)

    def _preference(self, workload: Workload) -> tuple[bool, float, str]:
        created = workload.metadata.creation_timestamp
        is_open = not self._observe(workload).finished
        return is_open, created.timestamp() if created else 0.0, workload.metadata.name

    def _observe(self, workload: Workload) -> target_state.ObservedWorkload:
        return self._observed.of(workload, lambda each: observe(each, self.gpus))

    def gpu_pod(self, pod: Pod) -> core.GpuPod:
        return self._gpu_pods.of(pod, lambda each: gpu_pod(each, self.gpus))

    async def forget_gone(self) -> None:
        """Drop what was made of objects that are not there any more."""
        await self._gpu_pods.forget_gone(self.pods)
        await self._observed.forget_gone(self.workloads)

    def gpu_pods(self) -> Iterator[core.GpuPod]:
        """Every pod that holds GPUs of a node, in whatever namespace."""
        for pod in self.pods.by_index("gpus", EVERYWHERE):
            seen = self.gpu_pod(pod)
            if seen.holds_gpus and (seen.node or seen.phase is core.PodPhase.RUNNING):
                yield seen

    def node_of(self, namespace: str, pod: str) -> str | None:
        """The Node of a pod that holds GPUs, empty where it is not known; None where no such pod does."""
        if self.namespaces and namespace not in self.namespaces:
            return ""
        found = self.pods.get(namespace, pod)
        seen = None if found is None else self.gpu_pod(found)
        return seen.node if seen is not None and seen.holds_gpus else None

    def is_node(self, host: str) -> bool:
        return self.nodes is not None and self.nodes.get("", host) is not None

    def offers_shared(self, gpu: GpuId, node: str) -> bool:
        """Whether the Node offers such GPUs more than once, as time-slicing and MPS do."""
        found = self.nodes.get("", node) if self.nodes is not None else None
        return found is not None and offers_shared(found, is_mig=gpu.is_mig)

    def shared_nodes(self) -> tuple[str, ...]:
        """The Nodes that offer any GPUs more than once."""
        listed = self.nodes.items() if self.nodes is not None else ()
        return tuple(x.metadata.name for x in listed if any(offers_shared(x, is_mig=mig) for mig in (False, True)))

    def pods_of_workload(self, workload: Workload) -> list[core.GpuPod]:
        """The Workload's pods: those annotated with its name or with that of a Workload that it has replaced, and those
        that the job owns or that name it. One that names another Workload which is not over is that one's."""
        namespace, owner = workload.metadata.namespace, workload.metadata.controller_owner
        slices, job = self._slices(workload), job_key(workload)
        found = [
            *(
                pod
                for name in slices
                for each in ("workload", "slice")
                for pod in self.pods.by_index(each, (namespace, name))
            ),
            *(self.pods.by_index("owner", owner.uid) if owner else ()),
            *(self.pods.by_index("job", job) if job else ()),
        ]
        return [self.gpu_pod(pod) for pod in self._whole(found) if not self._is_of_another(pod, slices)]

    def _slices(self, workload: Workload) -> set[str]:
        """Names of the Workloads under which its pods may have begun: its own, and those that it has replaced."""
        names, left = {workload.metadata.name}, [workload]
        while left:
            annotations = left.pop().metadata.annotations
            replaced = annotations.get(REPLACED_ANNOTATION, "").rpartition("/")[2]
            earlier = {annotations.get(SLICE_ANNOTATION, ""), replaced} - names - {""}
            names |= earlier
            left += [each for name in earlier if (each := self.workloads.get(workload.metadata.namespace, name))]
        return names

    def _is_of_another(self, pod: Pod, slices: Container[str]) -> bool:
        name = pod.metadata.annotations.get(WORKLOAD_ANNOTATION)
        if name is None or name in slices:
            return False
        other = self.workloads.get(pod.metadata.namespace, name)
        return other is not None and not self._observe(other).finished

    def pods_of_selector(self, namespace: str, selector: str) -> list[core.GpuPod]:
        """The pods with devices that the selector matches, whole. Raises: ValueError for one that is not understood."""
        if not selector.strip():
            return []
        wanted = parse_selector(selector)
        candidates = self._candidates(namespace, wanted)
        return [
            self.gpu_pod(pod) for pod in self._whole(pod for pod in candidates if wanted.matches(pod.metadata.labels))
        ]

    def _whole(self, found: Iterable[Pod]) -> Iterable[Pod]:
        """The pods with all others of the same controllers and of the jobs that they name: scale selectors may name a
        part only, such as the leaders of a gang. And with the pods that these own, which are deleted with them."""
        whole = {pod.metadata.key: pod for pod in found}
        controllers = {owner.uid for pod in whole.values() if (owner := pod.metadata.controller_owner)}
        jobs = {job for pod in whole.values() for job in jobs_named_by(pod)}
        for index, keys in (("owner", controllers), ("job", jobs)):
            whole |= {pod.metadata.key: pod for key in keys for pod in self.pods.by_index(index, key)}
        owners = [*whole.values()]
        while owners:
            owned = {pod.metadata.key: pod for each in owners for pod in self.pods.by_index("owner", each.metadata.uid)}
            owners = [pod for key, pod in owned.items() if key not in whole]
            whole |= owned
        return whole.values()

    def _candidates(self, namespace: str, wanted: Selector) -> Sequence[Pod]:
        """GPU pods among which are all that the selector matches: as few as the indexes give.

        With a thousand targets in a namespace, to look at each of its pods for each of them takes seconds a tick.
        """
        found = [
            [pod for value in set(each.values) for pod in self.pods.by_index("label", (namespace, each.key, value))]
            for each in wanted.requirements
            if each.operator is Operator.IN and is_indexed(each.key)
        ]
        return min(found, key=len) if found else self.pods.by_index("gpus", namespace)

    def situation(
        self,
        scalable: ScalableWorkload,
        *,
        wake: WakeRequest | None = None,
        when_free: str = "",
        at: datetime | None = None,
    ) -> ObservedTarget:
        """The ScalableWorkload as observed.

        `wake` is a wake-up that others request, and `when_free` one for when there is room, in words; `at` is the
        instant at which its grant must be active, None where that does not matter.
        """
        target, status = self._observed_target(scalable), scalable.status
        annotations, where = scalable.metadata.annotations, f"ScalableWorkload {scalable.metadata.name}"
        own_wake, grant = wake_request(annotations, where=where, suspended_at=status.suspended_at), grant_of(scalable)
        return replace(
            target,
            was_bound=bool(status.workload_uid),
            wake_request=own_wake or wake,
            when_free_request=when_free_request(annotations, where=where) or when_free,
            warned_at=status.warned_at,
            hook_run=hook_run_of(status.before_suspend),
            suspended_at=status.suspended_at,
            wakes_foreign=bool(own_wake),
            grant=grant.words if grant and at and not grant.is_withdrawn and at < grant.expires_at else "",
            is_held=status.grant is not None,
        )

    def _observed_target(self, scalable: ScalableWorkload) -> ObservedTarget:
        """The Workload, or the object with a switch of its own, and its pods; nothing of what the status says."""
        replicas = scalable.spec.replicas
        if (switched := self.switched_of(scalable)) is not None:
            switch, found = switched
            if isinstance(found, Unknown):
                return ObservedTarget(desired_replicas=replicas, workload=None, unseen=found)
            same = self.scalable_workloads.by_index("subject", scaled_by_key(scalable))
            return ObservedTarget(
                desired_replicas=replicas,
                workload=observe_switched(switch, found, self.gpus, resumed_at=scalable.status.resumed_at),
                pods=self.pods_of_selector(found.metadata.namespace, switch.selector(found.metadata.name)),
                taken_by=self._taken_by(scalable, min(same, key=_precedence, default=None)),
            )
        if (workload := self.workload_of(scalable)) is None:
            unseen = self.unserved_workloads(scalable.metadata.namespace)
            return ObservedTarget(desired_replicas=replicas, workload=None, unseen=unseen)
        observed = self._observe(workload)
        return ObservedTarget(
            desired_replicas=replicas,
            workload=observed,
            pods=self.pods_of_workload(workload),
            taken_by=self._taken_by(scalable, self.scaler_of(workload)),
            remote=self.remote(observed) if observed.cluster else None,
        )

    def _taken_by(self, scalable: ScalableWorkload, oldest: ScalableWorkload | None) -> str:
        """The oldest ScalableWorkload of the same object, where that is another one: it alone acts."""
        is_taken = (
            oldest and oldest.metadata.deletion_timestamp is None and oldest.metadata.uid != scalable.metadata.uid
        )
        return oldest.metadata.name if oldest and is_taken else ""


def _precedence(scalable: ScalableWorkload) -> tuple[bool, float, str]:
    created = scalable.metadata.creation_timestamp
    age = created.timestamp() if created else 0.0
    return scalable.metadata.deletion_timestamp is not None, age, scalable.metadata.name


def seconds_since_heard(watched: WatchHealth) -> float:
    """Seconds since anything was heard of them. A kind that is not installed has no objects, and that is known."""
    return 0.0 if isinstance(watched.state, Absent) else watched.age
