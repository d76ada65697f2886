"""Objects as the reflectors keep them: what is read of them, with equal parts kept once.

Laws:

* A pod with GPUs, or devices that may be some, is kept with all of its labels, as scale selectors may choose any; one
  that may be found by its Workload with the labels by which it is. Of annotations only those of its Workloads and of
  its end are read, conditions only where no node has it.
* Any other pod matters for what nodes have free, and only while it holds some of a node: without nodes, before it is
  bound and once it is over it is not kept. DaemonSets and the like are no jobs that Kueue manages, so none of their
  pods is found by its owner.
* A Workload is kept without its labels but that of a remote copy, those of its templates that nothing is compared with,
  and an annotation that only kubectl reads. Of a ScaledObject the latter is left out as well.
* What is kept holds nothing of the response that it came in.
"""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from scaler.kube.objects.core import Condition, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, PodSet, TemplateMeta, Workload
from scaler.kube.objects.sharing import shared, shared_text, shared_texts, shared_time
from scaler.placement.node_watch import holds_no_node
from scaler.quota.from_objects.pod_nodes import PODSET_LABEL
from scaler.targets.cluster_state import JOB_NAME_LABELS, SLICE_ANNOTATION, WORKLOAD_ANNOTATION
from scaler.targets.workloads import SUSPEND_AT

_READ_LABELS = frozenset({*JOB_NAME_LABELS.values(), PODSET_LABEL})
_READ_ANNOTATIONS = frozenset({WORKLOAD_ANNOTATION, SLICE_ANNOTATION, SUSPEND_AT})
_WITHOUT_WORKLOAD = frozenset({("apps/v1", "ReplicaSet"), ("apps/v1", "DaemonSet"), ("v1", "Node")})
"""Owners of pods that own no Workload."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def kept_pods(gpus: GpuResources, *, with_nodes: bool) -> Callable[[Pod], Pod | None]:
    """`with_nodes`: whether it matters what nodes have free."""

    def kept(pod: Pod) -> Pod | None:
        if gpus.may_be_held_by(pod.spec):
            return _pod(pod, pod.metadata.labels, pod.metadata.owner_references)
        labels = {key: pod.metadata.labels[key] for key in _READ_LABELS & pod.metadata.labels.keys()}
        owners = _found_by(pod.metadata.owner_references)
        if labels or owners or pod.metadata.annotations.keys() & _READ_ANNOTATIONS:
            return _pod(pod, labels, owners)
        return _pod(pod, {}, ()) if with_nodes and not holds_no_node(pod) else None

    return kept


def _found_by(owners: tuple[OwnerReference, ...]) -> tuple[OwnerReference, ...]:
    return tuple(each for each in owners if (each.api_version, each.kind) not in _WITHOUT_WORKLOAD)


def _pod(pod: Pod, labels: dict[str, str], owners: tuple[OwnerReference, ...]) -> Pod:
    annotations = pod.metadata.annotations
    named = {key: annotations[key] for key in _READ_ANNOTATIONS if key in annotations}
    return Pod(
        metadata=replace(_metadata(pod.metadata, labels, named, owners), creation_timestamp=None),
        spec=_spec(pod.spec),
        status=_status(pod),
    )


def _metadata(
    metadata: ObjectMeta, labels: dict[str, str], annotations: dict[str, str], owners: Collection[OwnerReference]
) -> ObjectMeta:
    return replace(
        metadata,
        namespace=shared_text(metadata.namespace),
        creation_timestamp=shared_time(metadata.creation_timestamp),
        labels=shared_texts(labels),
        annotations=shared_texts(annotations),
        owner_references=tuple(map(_owner, owners)),
    )


def _owner(owner: OwnerReference) -> OwnerReference:
    return replace(
        owner,
        api_version=shared_text(owner.api_version),
        kind=shared_text(owner.kind),
        name=shared_text(owner.name),
        uid=shared_text(owner.uid),
    )


def _spec(spec: PodSpec) -> PodSpec:
    return replace(shared(replace(spec, node_name="")), node_name=shared_text(spec.node_name))


def _status(pod: Pod) -> PodStatus:
    """Its start is the creation of the pod until its node has taken it up."""
    status = pod.status
    return PodStatus(
        phase=shared_text(status.phase),
        start_time=shared_time(status.start_time or pod.metadata.creation_timestamp),
        conditions=() if pod.spec.node_name else status.conditions,
        container_statuses=tuple(map(shared, (*status.container_statuses, *status.init_container_statuses))),
    )


def kept_workload(workload: Workload) -> Workload:
    metadata, status = workload.metadata, workload.status
    labels = {key: value for key, value in metadata.labels.items() if key == MULTIKUEUE_ORIGIN}
    return Workload(
        metadata=_metadata(metadata, labels, _without_last_applied(metadata.annotations), metadata.owner_references),
        spec=replace(
            workload.spec,
            queue_name=shared_text(workload.spec.queue_name),
            pod_sets=tuple(map(_pod_set, workload.spec.pod_sets)),
        ),
        status=replace(
            status,
            conditions=tuple(map(_condition, status.conditions)),
            admission=shared(status.admission) if status.admission is not None else None,
        ),
    )


def _without_last_applied(annotations: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key != _LAST_APPLIED}


def kept_scaled_object(scaled_object: ScaledObject) -> ScaledObject:
    metadata, spec = scaled_object.metadata, scaled_object.spec
    annotations = _without_last_applied(metadata.annotations)
    return ScaledObject(
        metadata=_metadata(metadata, metadata.labels, annotations, metadata.owner_references),
        spec=replace(spec, triggers=tuple(map(shared, spec.triggers))),
        status=replace(scaled_object.status, conditions=tuple(map(shared, scaled_object.status.conditions))),
    )


def kept_scalable_workload(scalable: ScalableWorkload) -> ScalableWorkload:
    metadata, status = scalable.metadata, scalable.status
    texts = {name: shared_text(getattr(status, name)) for name in ("phase", "verdict", "reason", "message", "state")}
    return ScalableWorkload(
        metadata=_metadata(metadata, metadata.labels, metadata.annotations, metadata.owner_references),
        spec=replace(scalable.spec, trigger_metadata=shared_texts(scalable.spec.trigger_metadata)),
        status=replace(
            status,
            **texts,
            conditions=tuple(map(_condition, status.conditions)),
            evidence=tuple(each.copy() for each in status.evidence),
            history=tuple(each.copy() for each in status.history),
        ),
    )


def _pod_set(pod_set: PodSet) -> PodSet:
    """Labels of the template are only compared with anti-affinity, and name the job: without them many are alike."""
    template = pod_set.template
    if template.spec.affinity is not None or not template.metadata.labels:
        return shared(pod_set)
    return shared(replace(pod_set, template=replace(template, metadata=TemplateMeta())))


def _condition(condition: Condition) -> Condition:
    return replace(
        condition,
        type=shared_text(condition.type),
        status=shared_text(condition.status),
        reason=shared_text(condition.reason),
        message=shared_text(condition.message),
        last_transition_time=shared_time(condition.last_transition_time),
    )
