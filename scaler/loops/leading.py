"""What the leader does while it leads: reconcile every ScalableWorkload that may have changed, and remove wake wishes
that were granted.

Laws:

* Watches and evaluations only say where to look; what is done follows from what is found there.
* Everything that writes goes through one queue: a failure backs off by object, and when leadership ends all of it ends.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from operator import is_
from typing import NamedTuple

import structlog

from scaler.core.replicas import Decision
from scaler.core.suspension import Phase
from scaler.errors import KubeError
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import Pod, ScalableWorkload, ScaledObject
from scaler.kube.reflector import Reflector
from scaler.kube.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, Resource
from scaler.kube.workqueue import QueueClosed, WorkQueue
from scaler.kueue.workloads import owner_key
from scaler.loops.board import Evaluation, Key, Target
from scaler.loops.cluster import WORKLOAD_ANNOTATION, target_of
from scaler.loops.granting import Granter, has_wish
from scaler.loops.projection import leading
from scaler.loops.reconciliation import Reconciler, is_conflict
from scaler.loops.scales import is_scalable_workload
from scaler.loops.status import gist

log = structlog.get_logger(__name__)

_WORKERS = 4
_RESYNC = timedelta(minutes=5)
"""Everything is looked at this often even if nothing seems to have changed."""

_IN_MOTION = frozenset({Phase.SUSPENDING, Phase.RESUMING, Phase.STARTING})
"""Phases that end with pods. Not every pod names its Workload, so its watch alone would miss some ends."""


class Subject(NamedTuple):
    """What is to be looked at: a ScalableWorkload, or a ScaledObject with a wake wish."""

    resource: Resource
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """One look at one subject, for telemetry."""

    subject: Subject
    seconds: float
    error: Exception | None


@dataclass(kw_only=True)
class Leading:
    """The leader's loop over the reflectors that every replica runs."""

    reconciler: Reconciler
    granter: Granter
    scaled_objects: Reflector[ScaledObject]
    scalable_workloads: Reflector[ScalableWorkload]
    workloads: Reflector[Workload]
    pods: Reflector[Pod]
    observe: Callable[[Reconciled], None] = lambda _: None
    look_again: timedelta = timedelta(seconds=5)
    """How soon something in motion is looked at again, whether or not anything was heard of it."""
    _queue: WorkQueue[Subject] = field(default_factory=WorkQueue[Subject], init=False)
    _decided: Mapping[tuple[str, Target], tuple[Decision, ...]] = field(default_factory=dict, init=False)
    """What the evaluation before has decided."""
    _is_leading: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Lead until cancelled. What was in work is cancelled too; every write is guarded by what it was based on."""
        self._queue, self._is_leading = WorkQueue[Subject](), True
        self._decided = {}
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

    @property
    def waiting(self) -> int:
        """How many subjects wait to be looked at."""
        return len(self._queue)

    @property
    def failing(self) -> int:
        """How many could not be looked after at the last look."""
        return self._queue.failing

    # ------------------------------------------------------------------------------------------------- where to look

    def _follow(self) -> Iterable[Callable[[], None]]:
        yield self.scalable_workloads.subscribe(lambda change: self._look_at(change.key))
        yield self.workloads.subscribe(self._workload_changed)
        yield self.pods.subscribe(self._pod_changed)

    def _look_at(self, key: Key) -> None:
        self._queue.add(Subject(SCALABLE_WORKLOAD, key))

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
            await asyncio.sleep(_RESYNC.total_seconds())

    def evaluated(self, evaluation: Evaluation) -> None:
        """Look at the ScalableWorkloads whose decision has changed, and at all wake wishes."""
        if not self._is_leading:
            return
        for key in self._changed_by(evaluation):
            self._look_at(key)
        for scaled_object in filter(has_wish, self.scaled_objects.items()):
            self._follow_wish(scaled_object)

    def _changed_by(self, evaluation: Evaluation) -> Iterable[Key]:
        """The ScalableWorkloads of whose decision something is worth a write that was not there before.

        Between ticks single decisions are replaced, and all others are the very same objects.
        """
        before, self._decided = self._decided, evaluation.by_target
        for (namespace, target), decisions in evaluation.by_target.items():
            known = before.get((namespace, target), ())
            if not is_scalable_workload(target) or (len(known) == len(decisions) and all(map(is_, known, decisions))):
                continue
            if gist(leading(known)) != gist(leading(decisions)):
                yield namespace, target.name
        for namespace, target in before.keys() - evaluation.by_target.keys():
            if is_scalable_workload(target):
                yield namespace, target.name

    def _follow_wish(self, scaled_object: ScaledObject) -> None:
        """Nothing may have changed but the evaluation, so what is backing off goes on doing so."""
        target, subjects = target_of(scaled_object), [Subject(SCALED_OBJECT, scaled_object.metadata.key)]
        if is_scalable_workload(target):
            subjects.append(Subject(SCALABLE_WORKLOAD, (scaled_object.metadata.namespace, target.name)))
        for subject in subjects:
            if not self._queue.failures(subject):
                self._queue.add(subject)

    # ------------------------------------------------------------------------------------------------------- looking

    async def _work(self) -> None:
        while True:
            try:
                subject = await self._queue.get()
            except QueueClosed:
                return
            try:
                await self._handle(subject)
            finally:
                self._queue.done(subject)
            await asyncio.sleep(0)

    async def _handle(self, subject: Subject) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        failure: Exception | None = None
        about = {"kind": subject.resource.kind, "object": "/".join(subject.key)}
        try:
            await self._look(subject)
            self._queue.forget(subject)
        except KubeError as error:
            failure = error
            wait = self._queue.retry(subject)
            tell = log.debug if is_conflict(error) else log.warning
            tell("reconciliation failed", **about, error=str(error), retry_in_seconds=round(wait, 1))
        except Exception as error:
            failure = error
            self._queue.retry(subject)
            log.exception("reconciliation broke", **about)
        self.observe(Reconciled(subject=subject, seconds=loop.time() - started, error=failure))

    async def _look(self, subject: Subject) -> None:
        if subject.resource == SCALED_OBJECT:
            await self.granter.grant(subject.key)
        elif await self.reconciler.reconcile(subject.key) in _IN_MOTION:
            self._queue.add_after(subject, self.look_again.total_seconds())
