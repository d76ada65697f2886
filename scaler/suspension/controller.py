"""What the leader does while it leads: reconcile every ScalableWorkload that may have changed, and remove wake
annotations that have taken effect.

Laws:

* Watches and evaluations only say where to look; what is done follows from what is found there.
* Everything that writes goes through one queue: a failure backs off by object, and when leadership ends all of it ends.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, NamedTuple

import structlog

from scaler.clock import SYSTEM_CLOCK, Clock
from scaler.decision.decision_cache import DecisionCache, Evaluation, Key, TargetKey
from scaler.decision.describe import prevailing
from scaler.errors import KubeError
from scaler.kube.object_cache import Change
from scaler.kube.objects.core import Pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, ScaleTargetRef, is_scalable_workload
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource
from scaler.kube.reflector import Reflector
from scaler.kube.workqueue import QueueClosed, WorkQueue
from scaler.kube.writes import log_refusal
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.suspension.status import status_digest
from scaler.targets.cluster_state import WORKLOAD_ANNOTATION, WatchedObjects
from scaler.targets.records import ScalableWorkloads, record_owner
from scaler.targets.switched_objects import SwitchedObjects
from scaler.targets.target_state import Phase
from scaler.targets.workloads import WAKE_ANNOTATION, owner_key

log = structlog.get_logger(__name__)

_WORKERS = 4
_RESYNC = timedelta(minutes=5)
"""Everything is looked at this often even if nothing seems to have changed."""

_IN_MOTION = frozenset({Phase.SUSPENDING, Phase.RESUMING, Phase.STARTING})
"""Phases that end with pods. Not every pod names its Workload, so its watch alone would miss some ends."""


class ReconcileRequest(NamedTuple):
    """What is to be looked at: a ScalableWorkload, or a ScaledObject with an annotation that its owner has set."""

    resource: Resource
    key: Key


@dataclass(kw_only=True)
class SuspensionController:
    """The leader's loop over the reflectors that every replica runs."""

    name: ClassVar[str] = "suspension"
    reconciler: SuspensionReconciler
    scaled_objects: WatchedObjects[ScaledObject]
    scalable_workloads: ScalableWorkloads
    workloads: Reflector[Workload]
    pods: Reflector[Pod]
    switched: SwitchedObjects
    decision_cache: DecisionCache
    observe: Callable[[float, Exception | None], None] = lambda _seconds, _error: None
    """Takes how long every look at one subject took, and what failed."""
    look_again: timedelta = timedelta(seconds=5)
    """How soon something in motion is looked at again, whether or not anything was heard of it."""
    clock: Clock = SYSTEM_CLOCK
    queue: WorkQueue[ReconcileRequest] = field(default_factory=WorkQueue[ReconcileRequest], init=False)
    _changes: set[Key] = field(init=False)
    """ScaledObjects of which another decision was published than the last one that was looked at."""
    _targets: dict[Key, TargetKey] = field(default_factory=dict, init=False)
    """What ScaledObjects scale."""
    _digests: dict[TargetKey, Hashable] = field(default_factory=dict, init=False)
    """What of the decisions on targets is worth a write."""
    _is_leading: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._changes = self.decision_cache.changes()

    async def run(self) -> None:
        """Lead until cancelled. What was in work is cancelled too; every write is guarded by what it was based on."""
        self.queue, self._is_leading = WorkQueue[ReconcileRequest](clock=self.clock), True
        self._targets, self._digests = {}, {}
        self.reconciler.lead()
        self._changes.update(self.decision_cache.evaluation.entries if self.decision_cache.evaluation else ())
        with ExitStack() as subscriptions:
            subscriptions.callback(self.queue.close)
            subscriptions.callback(setattr, self, "_is_leading", False)
            for stop in self._subscribe():
                subscriptions.callback(stop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._resync())
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())

    # ------------------------------------------------------------------------------------------------- where to look

    def _subscribe(self) -> Iterable[Callable[[], None]]:
        yield self.scalable_workloads.subscribe(lambda change: self._look_at(change.key))
        yield self.scalable_workloads.subscribe_records(self._record_changed)
        yield self.scaled_objects.subscribe(self._scaled_object_changed)
        yield self.workloads.subscribe(self._workload_changed)
        yield self.pods.subscribe(self._pod_changed)
        yield self.switched.subscribe(self._look_at_scaler_of)

    def _look_at(self, key: Key) -> None:
        self.queue.add(ReconcileRequest(SCALABLE_WORKLOAD, key))

    def _record_changed(self, change: Change[ScalableWorkload]) -> None:
        record = change.new or change.old
        if record is not None and (key := record_owner(record)) is not None:
            self.queue.add(ReconcileRequest(SCALED_OBJECT, key))

    def _scaled_object_changed(self, change: Change[ScaledObject]) -> None:
        """One that comes or goes changes by what its target is scaled. Of one that is gone nothing is remembered."""
        if (old := change.old) is not None and (change.new is None or change.new.metadata.uid != old.metadata.uid):
            self.reconciler.statuses.forget(old.metadata.uid)
        changed = change.new or change.old
        if changed is not None and (change.new is None or change.old is None):
            target = changed.spec.scale_target_ref
            if is_scalable_workload(target):
                self._look_at((change.key[0], target.name))

    def _workload_changed(self, change: Change[Workload]) -> None:
        workload = change.new or change.old
        if workload is None:
            return
        self._look_at_scaler_of(workload.metadata.key)
        if owner := owner_key(workload):
            self._look_at_scaler_of(owner)

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        name = pod.metadata.annotations.get(WORKLOAD_ANNOTATION) if pod else None
        workload = self.workloads.get(change.key[0], name) if name else None
        if workload is not None:
            self._workload_changed(Change(workload.metadata.key, None, workload))

    def _look_at_scaler_of(self, subject: tuple[str, ...]) -> None:
        for scalable in self.scalable_workloads.by_index("subject", subject):
            self._look_at(scalable.metadata.key)

    async def _resync(self) -> None:
        while True:
            for scalable in self.scalable_workloads.items():
                self._look_at(scalable.metadata.key)
            for scaled_object in self.scaled_objects.items():
                self.queue.add(ReconcileRequest(scaled_object.resource, scaled_object.metadata.key))
            await self.clock.sleep(_RESYNC.total_seconds())

    def wake(self) -> None:
        """There is a new evaluation: reconcile ScalableWorkloads whose decision has changed, and wake annotations."""
        evaluation = self.decision_cache.evaluation
        if not self._is_leading or evaluation is None:
            return
        for namespace, target in (*self._changed_targets(evaluation), *self._next_to_be_warned(evaluation)):
            for request in self._written_on(namespace, target):
                self.queue.add(request)
        for scaled_object in self.scaled_objects.by_index("wake", WAKE_ANNOTATION):
            self._enqueue_wake(scaled_object)

    def _next_to_be_warned(self, evaluation: Evaluation) -> Iterable[TargetKey]:
        """Targets of those whose warning the budgets have refused, and would not now."""
        waiting = self.reconciler.budgets.next_in_line() if self.reconciler.budgets is not None else ()
        return ((key[0], evaluation.entries[key].target) for key in waiting if key in evaluation.entries)

    def _changed_targets(self, evaluation: Evaluation) -> Iterable[TargetKey]:
        """The targets whose decision has something that is worth a write and was not there before."""
        keys, digests = self._changes.copy(), self._digests
        self._changes.clear()
        found = (self._targets.pop(key, None) for key in keys)
        targets = {each for each in found if each is not None}
        for key in keys & evaluation.entries.keys():
            self._targets[key] = key[0], evaluation.entries[key].target
            targets.add(self._targets[key])
        for namespace, target in targets:
            digest = status_digest(prevailing(evaluation.decisions_on(namespace, target)))
            if digests.get((namespace, target)) != digest:
                yield namespace, target
            if digest is None:
                digests.pop((namespace, target), None)
            else:
                digests[namespace, target] = digest

    def _written_on(self, namespace: str, target: ScaleTargetRef) -> Iterable[ReconcileRequest]:
        """The object that has the status of the target."""
        if is_scalable_workload(target):
            return [ReconcileRequest(SCALABLE_WORKLOAD, (namespace, target.name))]
        found = self.scaled_objects.by_index("target", (namespace, target))
        return [ReconcileRequest(SCALED_OBJECT, each.metadata.key) for each in found]

    def _enqueue_wake(self, scaled_object: ScaledObject) -> None:
        """Its requests are queued; what backs off goes on doing so, as only the evaluation may have changed."""
        target, metadata = scaled_object.spec.scale_target_ref, scaled_object.metadata
        subjects = {ReconcileRequest(scaled_object.resource, metadata.key)}
        if is_scalable_workload(target):
            subjects.add(ReconcileRequest(SCALABLE_WORKLOAD, (metadata.namespace, target.name)))
        for subject in sorted(subjects, key=str):
            if not self.queue.failures(subject):
                self.queue.add(subject)

    # ------------------------------------------------------------------------------------------------------- looking

    async def _work(self) -> None:
        while True:
            try:
                subject = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._handle(subject)
            finally:
                self.queue.done(subject)
            await asyncio.sleep(0)

    async def _handle(self, subject: ReconcileRequest) -> None:
        started = self.clock.monotonic()
        failure: Exception | None = None
        about = {"kind": subject.resource.kind, "object": "/".join(subject.key)}
        try:
            await self._look(subject)
            self.queue.forget(subject)
        except KubeError as error:
            failure = error
            wait = self.queue.retry(subject)
            log_refusal(log, "reconciliation failed", error, **about, retry_in_seconds=round(wait, 1))
        except Exception as error:
            failure = error
            self.queue.retry(subject)
            log.exception("reconciliation broke", **about)
        self.observe(self.clock.monotonic() - started, failure)

    async def _look(self, subject: ReconcileRequest) -> None:
        if subject.resource == SCALED_OBJECT:
            await self.reconciler.reconcile_scaled_object(subject.key)
        elif await self.reconciler.reconcile(subject.key) in _IN_MOTION:
            self.queue.add_after(subject, self.look_again.total_seconds())
