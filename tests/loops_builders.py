"""A small cluster for the evaluation loop: API objects, stores in memory, and a world that ticks in virtual time.

world = World([gang("train", gpus=2), deployment("serve")], lambda world: source)
await world.tick(NOON)
world.answers()      # {"train": Inactive(…), "serve": Inactive(…)}, as KEDA would get them
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol

import msgspec
from builders import GPUS, LONG_AGO, NOON, TRUST, WorkloadJson, no_switched_objects

from scaler.decision.decision import Answer
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation
from scaler.decision.evaluation import EvaluationConfig, EvaluationTick, Evaluator
from scaler.decision.sampling import Sampler
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import MetadataError
from scaler.idleness.gpu import DEFAULT_SIGNALS, Signal
from scaler.idleness.policy import Overrides, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.relabel import DEFAULT_RULES
from scaler.idleness.verdict import Unknown
from scaler.kube.discovery import Scale
from scaler.kube.object_cache import Index, Indexer, T
from scaler.kube.objects.core import ObjectMeta, OwnerReference, Pod, decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import Node
from scaler.kube.objects.resources import Resource, group_of
from scaler.kube.reflector import Reflecting, State
from scaler.samples.source import InstantQuerySource, SignalSource
from scaler.samples.wake_queries import WakeQueries, WakeQuery
from scaler.suspension.boost_controller import boost_indexes
from scaler.targets.cluster_state import (
    WORKLOAD_ANNOTATION,
    ClusterState,
    RemoteVerdicts,
    WatchHealth,
    no_remote_verdict,
    pod_indexes,
    scalable_workload_indexes,
    workload_indexes,
)
from scaler.targets.scale_subresources import ScaleSubresources

NAMESPACE = "demo"
NEVER = math.inf
"""The age of a view of an API that was never heard of."""
SCALABLE_WORKLOAD_KIND = ("idlegpu.io/v1alpha1", "ScalableWorkload")
DEPLOYMENT_KIND = ("apps/v1", "Deployment")

# ---------------------------------------------------------------------------------------------------------- API objects


def pod(
    name: str,
    *,
    gpus: int = 1,
    node: str = "node-a",
    started: datetime | None = LONG_AGO,
    labels: Mapping[str, str] | None = None,
    workload: str = "",
    owner: str = "",
    namespace: str = NAMESPACE,
    phase: str = "Running",
) -> Pod:
    """A pod of one container; `started` None: the container does not run yet."""
    state = {"running": {"startedAt": stamp(started)}} if started else {}
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "any", "uid": owner, "controller": True}]
    return _decoded(
        Pod,
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": dict(labels or {}),
                "annotations": {WORKLOAD_ANNOTATION: workload} if workload else {},
                "ownerReferences": owners if owner else [],
            },
            "spec": {"nodeName": node, "containers": [_container(gpus)]},
            "status": {"phase": phase, "containerStatuses": [{"name": "main", "ready": True, "state": state}]},
        },
    )


def _container(gpus: int) -> dict[str, Any]:
    amounts = {"cpu": "4", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"name": "main", "resources": {"requests": amounts, "limits": amounts}}


def stamp(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


def scaled_object(
    name: str,
    *,
    kind: tuple[str, str] = SCALABLE_WORKLOAD_KIND,
    target: str = "",
    triggers: Sequence[Mapping[str, str]] = ({},),
    annotations: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
) -> ScaledObject:
    """A ScaledObject with an external trigger per metadata."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-so-{name}", "annotations": dict(annotations or {})}
    document = {
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"apiVersion": kind[0], "kind": kind[1], "name": target or name},
            "triggers": [{"type": "external", "metadata": dict(metadata)} for metadata in triggers],
        },
    }
    return _decoded(ScaledObject, document)


def scalable_workload(
    name: str,
    *,
    replicas: int = 1,
    workload: str = "",
    job: tuple[str, str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
    **status: Any,
) -> ScalableWorkload:
    """By the name of its Workload, or by (apiVersion, kind, name) of its job; keywords fill the status."""
    reference: dict[str, Any] = (
        {"jobRef": {"apiVersion": job[0], "kind": job[1], "name": job[2]}}
        if job
        else {"workloadRef": {"name": workload}}
    )
    document = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "annotations": dict(annotations or {}),
        },
        "spec": {"replicas": replicas, **reference},
        "status": status,
    }
    return _decoded(ScalableWorkload, document)


def record(name: str, **status: Any) -> ScalableWorkload:
    """The record of a ScaledObject of that name; keywords fill its status."""
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": name, "uid": f"uid-so-{name}"}
    metadata = {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner | {"controller": True}]}
    job = {"apiVersion": DEPLOYMENT_KIND[0], "kind": DEPLOYMENT_KIND[1], "name": name}
    spec = {"replicas": 1, "actuator": "None", "jobRef": job}
    return _decoded(ScalableWorkload, {"metadata": metadata, "spec": spec, "status": {"state": "Busy"} | status})


def _decoded(kind: type[T], document: Mapping[str, Any]) -> T:
    return decode(kind, msgspec.json.encode(document))


# ---------------------------------------------------------------------------------------------------- stores, in memory


class MemoryStore(Generic[T]):
    """Objects of one kind as a reflector shows them: indexed, and honest about how old they are."""

    def __init__(self, indexes: Mapping[str, Index[T]] | None = None) -> None:
        self._objects: Indexer[T] = Indexer(indexes or {})
        self.age = 0.0
        self.state: State = Reflecting()
        self.hidden: dict[str, WatchHealth] = {}
        """Namespaces that are not followed like the rest."""

    def put(self, *objects: T) -> None:
        for each in objects:
            self._objects.put(each)

    def drop(self, name: str, namespace: str = NAMESPACE) -> None:
        self._objects.drop((namespace, name))

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def items(self) -> Sequence[T]:
        return self._objects.items()

    def by_index(self, name: str, key: Any) -> Sequence[T]:
        return self._objects.by_index(name, key)

    def revision(self, namespace: str) -> int:
        return self._objects.revisions[namespace]

    def within(self, namespace: str) -> WatchHealth:
        """As the rest, unless a test has said otherwise."""
        return self.hidden.get(namespace, self)


class MemoryScales(ScaleSubresources):
    """Scales that need no API: what a test set, and nothing else."""

    def __init__(self) -> None:
        self.scales: dict[str, Scale | Unknown] = {}
        """By the name of the target."""
        self.owners: dict[tuple[str, str, str], ObjectMeta] = {}
        """Targets and owners of pods, by (apiVersion, kind, name)."""
        self.asked: list[OwnerReference] = []
        self.refused: set[str] = set()
        """Kinds that may not be listed."""

    def put(self, kind: tuple[str, str], name: str, *owners: OwnerReference) -> None:
        """An object that is owned, and may own others; its UID is `uid-NAME`."""
        self.owners[(*kind, name)] = ObjectMeta(
            name=name, namespace=NAMESPACE, uid=f"uid-{name}", owner_references=owners
        )

    def object_of(self, namespace: str, target: ScaleTargetRef) -> tuple[Resource, ObjectMeta] | None:
        kind = target.api_version, target.kind
        resource = Resource(group=group_of(kind[0]), version="v1", plural=f"{kind[1].lower()}s", kind=kind[1])
        found = self.owners.get((*kind, target.name))
        return None if found is None else (resource, found)

    def owner(self, namespace: str, reference: OwnerReference) -> ObjectMeta | Unknown:
        self.asked.append(reference)
        found = self.owners.get((reference.api_version, reference.kind, reference.name))
        if found is not None and found.uid == reference.uid:
            return found
        return Unknown(reason=UnknownReason.STALE_CLUSTER_VIEW, message=f"{reference.name} is not known")

    def may_read(self, namespace: str, reference: OwnerReference) -> bool:
        return reference.kind not in self.refused

    async def refresh(self, scaled_objects: Iterable[ScaledObject]) -> None:
        """Nothing to ask."""

    def forget_others(self, scaled_objects: Iterable[ScaledObject]) -> None:
        """Nothing was read."""

    def revision(self, namespace: str) -> Hashable:
        return *sorted(self.scales.items(), key=lambda each: each[0]), *self.owners.items()

    def of(self, namespace: str, target: ScaleTargetRef) -> Scale | Unknown:
        missing = Unknown(reason=UnknownReason.TARGET_NOT_FOUND, message=f"{target} does not exist")
        return self.scales.get(target.name, missing)


@dataclass(kw_only=True)
class MemoryCluster:
    """The stores that a Cluster reads, open for writing."""

    scaled_objects: MemoryStore[ScaledObject] = field(default_factory=MemoryStore)
    scalable_workloads: MemoryStore[ScalableWorkload] = field(
        default_factory=lambda: MemoryStore(scalable_workload_indexes())
    )
    workloads: MemoryStore[Workload] = field(default_factory=lambda: MemoryStore(workload_indexes() | boost_indexes()))
    pods: MemoryStore[Pod] = field(default_factory=lambda: MemoryStore(pod_indexes(GPUS)))
    scales: MemoryScales = field(default_factory=MemoryScales)
    remote: RemoteVerdicts = no_remote_verdict
    nodes: MemoryStore[Node] = field(default_factory=MemoryStore)

    def read(self) -> ClusterState:
        return ClusterState(
            scaled_objects=self.scaled_objects,
            scalable_workloads=self.scalable_workloads,
            workloads=self.workloads,
            pods=self.pods,
            gpus=GPUS,
            switched=no_switched_objects(),
            remote=self.remote,
            nodes=self.nodes,
        )

    def go_silent(self, seconds: float) -> None:
        """The API has not been heard of for so long; infinite: never."""
        for store in (self.scaled_objects, self.scalable_workloads, self.workloads, self.pods):
            store.age = seconds


# ------------------------------------------------------------------------------------------------- targets, whole


class Inhabitant(Protocol):
    """Puts a ScaledObject, its target and its pods into a cluster."""

    def __call__(self, cluster: MemoryCluster) -> None: ...


QUICK = {"idleAfter": "10m", "warmUp": "1m"}
"""Trigger metadata with a window that a test can afford."""


def gang(
    name: str,
    *,
    gpus: int = 2,
    node: str = "node-a",
    started: datetime | None = LONG_AGO,
    metadata: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Inhabitant:
    """A ScaledObject over a ScalableWorkload whose admitted Workload runs one pod, `NAME-pod`, with `gpus` GPUs."""

    def settle(cluster: MemoryCluster) -> None:
        json = WorkloadJson(f"{name}-workload", pods=1, gpus_per_pod=gpus).admitted()
        cluster.scaled_objects.put(
            scaled_object(name, triggers=[QUICK if metadata is None else metadata], annotations=annotations)
        )
        cluster.scalable_workloads.put(scalable_workload(name, workload=f"{name}-workload"))
        cluster.workloads.put(json.decoded())
        cluster.pods.put(pod(f"{name}-pod", gpus=gpus, node=node, started=started, workload=f"{name}-workload"))

    return settle


def deployment(
    name: str,
    *,
    gpus: int = 1,
    replicas: int = 1,
    node: str = "node-a",
    started: datetime | None = LONG_AGO,
    metadata: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Inhabitant:
    """A ScaledObject over a Deployment, by its scale, with a pod `NAME-pod` where it has replicas."""

    def settle(cluster: MemoryCluster) -> None:
        cluster.scaled_objects.put(
            scaled_object(
                name, kind=DEPLOYMENT_KIND, triggers=[QUICK if metadata is None else metadata], annotations=annotations
            )
        )
        cluster.scales.scales[name] = Scale(replicas=replicas, selector=f"app={name}")
        if replicas:
            cluster.pods.put(pod(f"{name}-pod", gpus=gpus, node=node, started=started, labels={"app": name}))

    return settle


# ------------------------------------------------------------------------------------------------------------ the world

TICK = timedelta(seconds=30)
"""How often a world evaluates."""


class Source(SignalSource, InstantQuerySource, Protocol):
    """Where samples and demand come from."""


def evaluator_of(
    cluster: MemoryCluster,
    source: Source,
    decision_cache: DecisionCache,
    clock: Callable[[], datetime],
    *,
    signals: Sequence[Signal] = DEFAULT_SIGNALS,
    trust: Trust = TRUST,
    overlap: timedelta = timedelta(minutes=2),
    wake_queries: Sequence[WakeQuery] = (),
    observe: Callable[[EvaluationTick], None] = lambda _: None,
    **config: Any,
) -> Evaluator:
    sampler = Sampler(source, signals=signals, rules=DEFAULT_RULES, trust=trust, overlap=overlap, clock=clock)
    return Evaluator(
        config=EvaluationConfig(**{"interval": TICK, "trust": trust, **config}),
        cluster=cluster.read(),
        scales=cluster.scales,
        sampler=sampler,
        decision_cache=decision_cache,
        demands=WakeQueries(queries=wake_queries, source=source),
        observe=observe,
        clock=clock,
    )


class World:
    """A cluster, a metrics source and an Evaluator, in a time that only `tick` moves."""

    def __init__(self, inhabitants: Iterable[Inhabitant], source: Callable[["World"], Source], **config: Any) -> None:
        """`config` as in `evaluator_of`."""
        self.now = NOON
        self.cluster = MemoryCluster()
        for settle in inhabitants:
            settle(self.cluster)
        self.source = source(self)
        self.decision_cache = DecisionCache(max_age=3 * TICK, clock=lambda: self.now.timestamp())
        self.ticks: list[EvaluationTick] = []
        self.evaluator = evaluator_of(
            self.cluster, self.source, self.decision_cache, lambda: self.now, observe=self.ticks.append, **config
        )

    async def tick(self, at: datetime) -> Evaluation | None:
        self.now = at
        return await self.evaluator.tick(at)

    def answer(self, name: str, metadata: Mapping[str, str] | None = None) -> Answer:
        """What KEDA gets for the ScaledObject's trigger, or for another trigger with this metadata."""
        return self.decision_cache.answer(
            NAMESPACE, name, self._trigger(name) if metadata is None else parse_metadata(metadata)
        )

    def answers(self) -> dict[str, Answer]:
        return {each.metadata.name: self.answer(each.metadata.name) for each in self.cluster.scaled_objects.items()}

    def entry(self, name: str) -> EvaluatedScaledObject:
        assert self.decision_cache.evaluation is not None
        return self.decision_cache.evaluation.entries[NAMESPACE, name]

    def _trigger(self, name: str) -> Overrides:
        scaled = self.cluster.scaled_objects.get(NAMESPACE, name)
        assert scaled is not None
        try:
            return parse_metadata(scaled.spec.triggers[0].metadata)
        except MetadataError:
            return Overrides()
