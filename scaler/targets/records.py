"""Where is the status of what a ScaledObject scales? In one ScalableWorkload:

| `spec.actuator`  | what it is                                                          | found by            |
|------------------|---------------------------------------------------------------------|---------------------|
| `KEDA`, `Direct` | the target: a Kueue Workload, or an object with a switch of its own | the target's name   |
| `None`           | the record of a Deployment, or of anything else with a scale        | the uid of its owner |

Laws:

* The leader creates the record and writes its status. Nothing else of it counts, and what reads ScalableWorkloads as
  targets sees no record.
* A record is owned by its ScaledObject, and collected with it.
* No tenant may write a status, so what it says is believed.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from scaler.kube.object_cache import Change
from scaler.kube.objects.idlegpu import JobRef, ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.reflector import NotWatched, Reflector
from scaler.kube.watched_list import State, WatchedList

_Heard = Callable[[Change[ScalableWorkload]], None]


class ScalableWorkloads:
    """The ScalableWorkloads of a reflector that are targets. Records are in the index `record`, by uid of the owner."""

    def __init__(self, every: Reflector[ScalableWorkload]) -> None:
        self._every = every
        self._targets: tuple[tuple[ScalableWorkload, ...], tuple[ScalableWorkload, ...]] = ((), ())
        """Those of the reflector when that was asked last, and the targets among them."""

    def get(self, namespace: str, name: str) -> ScalableWorkload | None:
        found = self._every.get(namespace, name)
        return None if found is None or found.is_record else found

    def items(self) -> tuple[ScalableWorkload, ...]:
        every = self._every.items()
        if every is not self._targets[0]:
            self._targets = every, tuple(each for each in every if not each.is_record)
        return self._targets[1]

    def by_index(self, name: str, key: Hashable) -> tuple[ScalableWorkload, ...]:
        return self._every.by_index(name, key)

    def revision(self, namespace: str) -> int:
        return self._every.revision(namespace)

    @property
    def age(self) -> float:
        return self._every.age

    @property
    def state(self) -> State:
        return self._every.state

    def within(self, namespace: str) -> WatchedList[ScalableWorkload] | NotWatched:
        return self._every.within(namespace)

    def subscribe(self, callback: _Heard) -> Callable[[], None]:
        """The function that ends the subscription."""
        return self._every.subscribe(lambda change: None if _is_of_record(change) else callback(change))

    def subscribe_records(self, callback: _Heard) -> Callable[[], None]:
        """The function that ends the subscription."""
        return self._every.subscribe(lambda change: callback(change) if _is_of_record(change) else None)


def _is_of_record(change: Change[ScalableWorkload]) -> bool:
    found = change.new or change.old
    return found is not None and found.is_record


def record_owner(record: ScalableWorkload) -> tuple[str, str] | None:
    """The key of the ScaledObject that owns it; None for one that nothing owns, which somebody else has made."""
    owner = record.metadata.controller_owner
    return None if owner is None else (record.metadata.namespace, owner.name)


def record_body(scaled_object: ScaledObject, *, is_taken: Callable[[str], bool]) -> Mapping[str, Any]:
    """The record of a ScaledObject, to be created. `is_taken`: whether another ScalableWorkload has the name."""
    metadata = scaled_object.metadata
    owner = {
        "apiVersion": SCALED_OBJECT.api_version,
        "kind": SCALED_OBJECT.kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
    }
    name = f"{metadata.name[:240]}-{metadata.uid[:8]}" if is_taken(metadata.name) else metadata.name
    return {
        "apiVersion": SCALABLE_WORKLOAD.api_version,
        "kind": SCALABLE_WORKLOAD.kind,
        "metadata": {"name": name, "namespace": metadata.namespace, "ownerReferences": [owner]},
        "spec": {"replicas": 1, "actuator": "None", "jobRef": job_ref(scaled_object.spec.scale_target_ref)},
    }


def job_ref(target: ScaleTargetRef) -> Mapping[str, str]:
    return {"apiVersion": target.api_version, "kind": target.kind, "name": target.name}


def is_of_other_target(record: ScalableWorkload, target: ScaleTargetRef) -> bool:
    """Whether its ScaledObject scales another object now than the one that the record names."""
    return record.spec.job_ref != JobRef(api_version=target.api_version, kind=target.kind, name=target.name)
