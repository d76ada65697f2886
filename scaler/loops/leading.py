"""What the leader does while it leads: reconcile every ScalableWorkload that may have changed, and grant wake wishes.

Watches and evaluations only say where to look; the reconciler decides from what it finds there.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog

from scaler.core.replicas import Decision, Stage, answer_reason
from scaler.errors import KubeError
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import Pod, ScalableWorkload, ScaledObject
from scaler.kube.reflector import Reflector
from scaler.kube.resources import SCALED_OBJECT
from scaler.kube.transport import KubeTransport
from scaler.kube.workqueue import QueueClosed, WorkQueue
from scaler.kueue.workloads import owner_key
from scaler.loops.board import Evaluation, Key
from scaler.loops.cluster import WORKLOAD_ANNOTATION
from scaler.loops.projection import is_warning_due, leading
from scaler.loops.reconciliation import Reconciler, is_conflict
from scaler.loops.wishes import WAKE

log = structlog.get_logger(__name__)

_WORKERS = 4
_RESYNC = timedelta(minutes=5)
"""Everything is looked at this often even if nothing seems to have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """One round of the reconciler, for telemetry."""

    key: Key
    seconds: float
    error: KubeError | None


@dataclass(kw_only=True)
class Leading:
    """The leader's loop over the reflectors that every replica runs."""

    transport: KubeTransport
    reconciler: Reconciler
    scaled_objects: Reflector[ScaledObject]
    scalable_workloads: Reflector[ScalableWorkload]
    workloads: Reflector[Workload]
    pods: Reflector[Pod]
    observe: Callable[[Reconciled], None] = lambda _: None
    _queue: WorkQueue[Key] = field(default_factory=WorkQueue[Key], init=False)
    _shown: dict[Key, Hashable] = field(default_factory=dict, init=False)
    _is_leading: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Lead until cancelled. What was in work is cancelled too; every write is guarded by what it was based on."""
        self._queue, self._is_leading = WorkQueue[Key](), True
        self._shown.clear()
        with ExitStack() as following:
            following.callback(self._queue.close)
            following.callback(self._end)
            for stop in self._follow():
                following.callback(stop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._resync())
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())

    def _end(self) -> None:
        self._is_leading = False

    def _follow(self) -> Iterable[Callable[[], None]]:
        yield self.scalable_workloads.subscribe(lambda change: self._queue.add(change.key))
        yield self.workloads.subscribe(self._workload_changed)
        yield self.pods.subscribe(self._pod_changed)

    def _workload_changed(self, change: Change[Workload]) -> None:
        workload = change.new or change.old
        if workload is None:
            return
        self._look_at(workload.metadata.key)
        if owner := owner_key(workload):
            self._look_at(owner)

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        name = pod.metadata.annotations.get(WORKLOAD_ANNOTATION) if pod else None
        workload = self.workloads.get(change.key[0], name) if name else None
        if workload is not None:
            self._workload_changed(Change(workload.metadata.key, None, workload))

    def _look_at(self, subject: tuple[str, ...]) -> None:
        for scalable in self.scalable_workloads.by_index("subject", subject):
            self._queue.add(scalable.metadata.key)

    async def _resync(self) -> None:
        while True:
            for scalable in self.scalable_workloads.items():
                self._queue.add(scalable.metadata.key)
            await asyncio.sleep(_RESYNC.total_seconds())

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueClosed:
                return
            try:
                await self._reconcile(key)
            finally:
                self._queue.done(key)
            await asyncio.sleep(0)

    async def _reconcile(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        started, failure = loop.time(), None
        try:
            await self.reconciler.reconcile(key)
            self._queue.forget(key)
        except KubeError as error:
            failure = error
            wait = self._queue.retry(key)
            tell = log.debug if is_conflict(error) else log.warning
            tell("reconciliation failed", key=key, error=str(error), retry_in_seconds=round(wait, 1))
        except Exception:
            self._queue.retry(key)
            log.exception("reconciliation broke", key=key)
        self.observe(Reconciled(key=key, seconds=loop.time() - started, error=failure))

    # ------------------------------------------------------------------------------------------- after an evaluation

    async def evaluated(self, evaluation: Evaluation) -> None:
        """Look at the ScalableWorkloads whose decision changed, and remove wake wishes that were granted."""
        if not self._is_leading:
            return
        for (namespace, target), decisions in evaluation.by_target.items():
            key, shown = (namespace, target.name), _gist(leading(decisions))
            if self._shown.get(key) != shown:
                self._shown[key] = shown
                self._queue.add(key)
        for scaled_object in self.scaled_objects.items():
            if WAKE in scaled_object.metadata.annotations:
                await self._grant(scaled_object, evaluation)

    async def _grant(self, scaled_object: ScaledObject, evaluation: Evaluation) -> None:
        entry = evaluation.entries.get(scaled_object.metadata.key)
        standings = [trigger.decision.standing for trigger in entry.triggers.values()] if entry else []
        if not standings or any(not _is_up(standing.desired_replicas, standing.stage) for standing in standings):
            return
        body: dict[str, Any] = {"metadata": {"annotations": {WAKE: None}, "uid": scaled_object.metadata.uid}}
        try:
            await self.transport.patch(SCALED_OBJECT.path(*scaled_object.metadata.key), body)
        except KubeError as error:
            log.warning("a granted wake wish could not be removed", key=scaled_object.metadata.key, error=str(error))


def _is_up(desired_replicas: int, stage: Stage) -> bool:
    return desired_replicas > 0 and stage is not Stage.SUSPENDED


def _gist(decision: Decision | None) -> Hashable:
    """What of a decision a status shows at once; the rest travels along."""
    if decision is None:
        return None
    reason = answer_reason(decision.answer)
    return reason, decision.idle_since, decision.suspend_at, is_warning_due(decision), decision.policy.keep_until
