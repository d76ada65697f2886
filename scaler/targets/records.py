"""What has the status of what a ScaledObject scales? One ScalableWorkload:

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
        """The ScalableWorkloads of the reflector when that was asked last, and the targets among them."""

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
        return self._every.subscribe(lambda change: _tell(callback, change, of_records=False))

    def subscribe_records(self, callback: _Heard) -> Callable[[], None]:
        """The function that ends the subscription."""
        return self._every.subscribe(lambda change: _tell(callback, change, of_records=True))


def _tell(callback: _Heard, change: Change[ScalableWorkload], *, of_records: bool) -> None:
    """A target may be replaced by a record of its name, and be seen so: that is the end of one, and a new other one."""
    old, new = (x if x is not None and x.is_record == of_records else None for x in (change.old, change.new))
    if old is not None or new is not None:
        callback(Change(change.key, old, new))


def record_owner(record: ScalableWorkload) -> tuple[str, str] | None:
    """The key of the ScaledObject that owns it; None for one that nothing owns, which somebody else has made."""
    owner = record.metadata.controller_owner
    return None if owner is None else (record.metadata.namespace, owner.name)


def record_body(scaled_object: ScaledObject) -> Mapping[str, Any]:
    """The record of a ScaledObject, to be created. The API completes its name, so that nobody can be in its way."""
    metadata = scaled_object.metadata
    owner = {
        "apiVersion": SCALED_OBJECT.api_version,
        "kind": SCALED_OBJECT.kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
    }
    return {
        "apiVersion": SCALABLE_WORKLOAD.api_version,
        "kind": SCALABLE_WORKLOAD.kind,
        "metadata": {
            "generateName": f"{metadata.name}-",
            "namespace": metadata.namespace,
            "ownerReferences": [owner],
        },
        "spec": {"replicas": 1, "actuator": "None", "jobRef": job_ref(scaled_object.spec.scale_target_ref)},
    }


def job_ref(target: ScaleTargetRef) -> Mapping[str, str]:
    """KEDA takes an empty kind for a Deployment."""
    return {"apiVersion": target.api_version or "apps/v1", "kind": target.kind or "Deployment", "name": target.name}


def is_of(record: ScalableWorkload, target: ScaleTargetRef) -> bool:
    """Whether the record names what its ScaledObject scales now."""
    found = record.spec.job_ref or JobRef()
    return {"apiVersion": found.api_version, "kind": found.kind, "name": found.name} == job_ref(target)
