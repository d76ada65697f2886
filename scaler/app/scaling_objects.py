"""What scales anything, as one kind of object: KEDA's ScaledObjects, and ScalableWorkloads with `actuator: Direct`.

Laws:

* Two never scale the same: where a ScaledObject names the ScalableWorkload as its target, or has its name, KEDA scales
  it. One that is being deleted counts until it is gone.
* How well they are watched is how well ScaledObjects are: while it is not known which there are, nothing is decided.
  Where the API does not serve the kind there are none, and that is known.
"""

from collections.abc import Callable, Hashable

from scaler.kube.object_cache import Change, Indexer, Key
from scaler.kube.objects.direct_scaling import direct_scaling
from scaler.kube.objects.keda import ScaledObject, is_scalable_workload, scalable_workload_ref
from scaler.kube.reflector import Reflector
from scaler.kube.watched_list import State
from scaler.targets.cluster_state import WatchHealth, scaled_object_indexes
from scaler.targets.records import ScalableWorkloads

_Heard = Callable[[Change[ScaledObject]], None]


class ScalingObjects:
    """Subscribe it to nothing else: it watches both reflectors, and its subscribers hear of both."""

    def __init__(self, keda: Reflector[ScaledObject], scalable_workloads: ScalableWorkloads) -> None:
        self._keda, self._scalable_workloads = keda, scalable_workloads
        self._direct: Indexer[ScaledObject] = Indexer(scaled_object_indexes())
        self._joined: tuple[tuple[ScaledObject, ...], ...] = ((), (), ())
        """All, and of which two parts."""
        self._subscribers: list[_Heard] = []
        keda.subscribe(self._scaled_object_heard)
        scalable_workloads.subscribe(lambda change: self._look_at(change.key))

    # ----------------------------------------------------------------------------------------------------- reading

    def get(self, namespace: str, name: str) -> ScaledObject | None:
        return self._keda.get(namespace, name) or self._direct.get((namespace, name))

    def items(self) -> tuple[ScaledObject, ...]:
        keda, direct = self._keda.items(), self._direct.items()
        if not direct:
            return keda
        if keda is not self._joined[1] or direct is not self._joined[2]:
            self._joined = (*keda, *direct), keda, direct
        return self._joined[0]

    def by_index(self, name: str, key: Hashable) -> tuple[ScaledObject, ...]:
        return self._keda.by_index(name, key) + self._direct.by_index(name, key)

    def revision(self, namespace: str) -> int:
        return self._keda.revision(namespace) + self._direct.revisions[namespace]

    @property
    def age(self) -> float:
        return self._keda.age

    @property
    def state(self) -> State:
        return self._keda.state

    def within(self, namespace: str) -> WatchHealth:
        return self._keda.within(namespace)

    def subscribe(self, callback: _Heard) -> Callable[[], None]:
        """The function that ends the subscription."""
        end = self._keda.subscribe(callback)
        self._subscribers.append(callback)

        def end_both() -> None:
            end()
            self._subscribers.remove(callback)

        return end_both

    # ------------------------------------------------------------------------------------------------------ watching

    def _scaled_object_heard(self, change: Change[ScaledObject]) -> None:
        """KEDA writes into the status of each at every poll: that changes nothing here."""
        targets = {each.spec.scale_target_ref for each in (change.old, change.new) if each is not None}
        if change.old is not None and change.new is not None and len(targets) == 1:
            return
        names = {change.key[1], *(each.name for each in targets if is_scalable_workload(each))}
        for name in names:
            self._look_at((change.key[0], name))

    def _look_at(self, key: Key) -> None:
        scalable = self._scalable_workloads.get(*key)
        made = None if scalable is None or self._is_scaled_by_keda(key) else direct_scaling(scalable)
        old = self._direct.drop(key) if made is None else self._direct.put(made)
        if old is not None or made is not None:
            for tell in tuple(self._subscribers):
                tell(Change(key, old, made))

    def _is_scaled_by_keda(self, key: Key) -> bool:
        return bool(self._keda.get(*key) or self._keda.by_index("target", (key[0], scalable_workload_ref(key[1]))))
