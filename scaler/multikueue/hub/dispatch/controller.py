"""Nominates clusters for the Workloads of a hub that wait for one. Leader only.

Laws:

* Read → plan (pure) → write. Nothing is decided on copies that are not complete, nor before each worker has been read
  since this replica leads, or has failed.
* What a restart needs is in objects of the API: the nomination in the Workload's status, its time and who may reclaim
  in the ClusterOffers of the workers. A dispatcher that was stopped after any write goes on where the other was.
* It waits for no worker: what their ClusterOffers are to say is handed to their connections, and what is confirmed is
  seen at a later tick.
* A nomination is written with uid and resourceVersion, and not again before the copy shows what became of it.
* Before the first nomination, and every ten minutes, it is made sure that Kueue can clear it (`preflight.py`). Where it
  cannot, no worker may reclaim, and every Workload that waits has an Event that says what to do.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import compress
from typing import ClassVar

import structlog
from msgspec.structs import replace as with_fields

from scaler.clock import SYSTEM_CLOCK, Clock, every
from scaler.kube.events import EventRecorder, ObjectReference
from scaler.kube.object_cache import Change
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import OfferedWorkload
from scaler.kube.objects.resources import WORKLOAD
from scaler.kube.reflector import Absent, Disconnected, Reflecting
from scaler.kube.writes import LeaderApi, is_written, write_all
from scaler.multikueue.hub.dispatch.moment import DispatchMemory, DispatchMoment, WorkerView
from scaler.multikueue.hub.dispatch.nomination import KeepNomination, KeepReason, NominateCluster, WithdrawNomination
from scaler.multikueue.hub.dispatch.plan import (
    DispatchPlan,
    DispatchPlanner,
    JudgedWorkloads,
    WorkloadDispatch,
    memory_after,
)
from scaler.multikueue.hub.dispatch.preflight import NOT_TRIED, Preflight, PreflightResult, preflight
from scaler.multikueue.hub.dispatch.scores import PlacementScores
from scaler.multikueue.hub.dispatch.waiting import ClusterEligibilities, HubObjects, waits_for_check
from scaler.multikueue.hub.worker_connections import WorkerConnection, WorkerConnections

log = structlog.get_logger(__name__)

_INTERVAL = timedelta(seconds=5)
_REST = timedelta(milliseconds=200)
_WRITES_AT_ONCE = 8
_CHECKED_EVERY = timedelta(minutes=10)
_RETRIED_EVERY = timedelta(minutes=1)
_STATUS_WITHIN = timedelta(minutes=1)
"""Time from when a worker is first read: until then its status is expected."""


@dataclass(frozen=True, kw_only=True)
class DispatchReport:
    """What a tick has found and done."""

    at: datetime
    problem: str = ""
    """Why nothing could be decided; empty where it could."""
    preflight: Preflight = NOT_TRIED
    plan: DispatchPlan | None = None
    workers: Mapping[str, WorkerView] = field(default_factory=dict)
    nominated: tuple[WorkloadDispatch, ...] = ()
    """The Workloads whose nomination was written."""

    @property
    def stopped_because(self) -> str:
        """Why no clusters are nominated; empty where they are, or nothing waits for one."""
        if self.plan is None:
            return "NotSynced"
        return str(self.preflight.result) if self.plan.workloads and not self.preflight.is_passed else ""


def nothing_judged() -> JudgedWorkloads:
    """No Workload that runs on a worker is judged."""
    return {}


@dataclass(kw_only=True, eq=False)
class Dispatcher:
    """The controller. `observe` is called with every tick's report."""

    name: ClassVar[str] = "dispatcher"
    api: LeaderApi
    objects: HubObjects
    connections: WorkerConnections
    planner: DispatchPlanner
    recorder: EventRecorder
    judged: Callable[[], JudgedWorkloads] = nothing_judged
    """The dispatched Workloads that are judged, with their `policy`, by worker."""
    scores: PlacementScores | None = None
    observe: Callable[[DispatchReport], None] = lambda _: None
    clock: Clock = SYSTEM_CLOCK
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    last: DispatchReport | None = field(default=None, init=False)
    """The report of the last tick."""
    _memory: DispatchMemory = field(default=DispatchMemory(), init=False)
    _preflight: Preflight = field(default=NOT_TRIED, init=False)
    _checked_at: datetime | None = field(default=None, init=False)
    _reasons: dict[str, str] = field(default_factory=dict, init=False)
    """The reason of the last Event, by uid of the Workload."""

    def wake(self) -> None:
        self.woken.set()

    def heard(self, change: Change[Workload]) -> None:
        """A Workload has changed; it matters where it waits for a check, or did."""
        if any(each is not None and waits_for_check(each) for each in (change.old, change.new)):
            self.wake()

    async def run(self) -> None:
        """Nominate until cancelled."""
        self._memory = DispatchMemory()
        for each in self.connections.connections.values():
            each.read_anew()
        try:
            await every(_INTERVAL, self.tick, self.woken, name=self.name, rest=_REST, clock=self.clock)
        finally:
            for each in self.connections.connections.values():
                each.forget_wanted()

    async def tick(self, now: datetime) -> DispatchReport:
        """Raises: KubeError with the reason NotLeading."""
        report = self.last = await self._tick(now)
        self.observe(report)
        return report

    async def _tick(self, now: datetime) -> DispatchReport:
        eligibilities = ClusterEligibilities.of(self.objects)
        if problem := self._not_known(eligibilities):
            return DispatchReport(at=now, problem=problem, preflight=self._preflight)
        waiting = [*self.objects.waiting()]
        self._forget_others({each.uid for each in waiting})
        workers = {name: worker_view(each, now) for name, each in self.connections.connections.items()}
        moment = DispatchMoment.of(eligibilities, workers, self._memory, now, patience=self.planner.patience)
        plan = await self.planner.plan(waiting, moment, self.judged())
        await self._check(plan, now)
        self._hand_over(plan)
        nominated = await self._nominate(plan) if self._preflight.is_passed else ()
        known = [each for each in plan.workloads if each.nominated == each.state.nominated]
        done = [*nominated, *known] if self._preflight.is_passed else []
        self._memory = memory_after(self._memory, plan, done)
        self._tell(plan)
        await self._publish_scores(eligibilities, now)
        return DispatchReport(at=now, preflight=self._preflight, plan=plan, workers=workers, nominated=tuple(nominated))

    def _not_known(self, eligibilities: ClusterEligibilities) -> str:
        """Why nothing can be decided; empty where it can."""
        for name, copy in self.objects.essential.items():
            if isinstance(copy.state, Absent):
                return f"{name} are not served here: there is no MultiKueue"
            if not isinstance(copy.state, Reflecting):
                return f"{name} are not known: {copy.state.message}"
        for decisions in self.objects.decisions:
            if isinstance(decisions.state, Disconnected) and decisions.age == math.inf:
                return f"PlacementDecisions are not known: {decisions.state.message}"
        awaited = [
            name for name, each in eligibilities.clusters.items() if each.is_active and not self._is_settled(name)
        ]
        return f"workers are being connected: {', '.join(awaited)}" if awaited else ""

    def _is_settled(self, name: str) -> bool:
        connection = self.connections.get(name)
        return connection is not None and connection.is_settled

    def _forget_others(self, uids: set[str]) -> None:
        self._reasons = {uid: each for uid, each in self._reasons.items() if uid in uids}

    # ------------------------------------------------------------------------------------------------------ preflight

    async def _check(self, plan: DispatchPlan, now: datetime) -> None:
        """Raises: KubeError with the reason NotLeading."""
        every_so_often = _CHECKED_EVERY if self._preflight.is_passed else _RETRIED_EVERY
        if not plan.workloads or (self._checked_at is not None and now - self._checked_at < every_so_often):
            return
        metadata = min(plan.workloads, key=_tells_little).waiting.workload.metadata
        found, self._checked_at = await preflight(self.api, metadata.namespace, metadata.name), now
        if found.result is PreflightResult.NOT_KNOWN and self._preflight.is_passed:
            log.warning("preflight failed; the last answer holds", error=found.message)
            return
        if found.result != self._preflight.result:
            (log.info if found.is_passed else log.error)("preflight", result=str(found.result), do=found.message)
        self._preflight = found

    def _hand_over(self, plan: DispatchPlan) -> None:
        """No worker may reclaim where clusters may not be nominated; where that is not known nothing changes."""
        if self._preflight.result is PreflightResult.NOT_KNOWN and plan.workloads:
            return
        for name, spec in plan.specs.items():
            connection = self.connections.get(name)
            if connection is not None:
                connection.want(spec if self._preflight.is_passed else _without_reclaim(spec))

    # ------------------------------------------------------------------------------------------------------- nominating

    async def _nominate(self, plan: DispatchPlan) -> Sequence[WorkloadDispatch]:
        """The Workloads whose nomination was written. Raises: KubeError with the reason NotLeading."""
        due = [each for each in plan.workloads if each.nominated != each.state.nominated]
        return [*compress(due, await write_all(due, self._write, at_once=_WRITES_AT_ONCE))]

    async def _write(self, found: WorkloadDispatch) -> bool:
        """Whether it was written; what was not is planned again."""
        metadata = found.waiting.workload.metadata
        guard = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        body = {"metadata": guard, "status": {"nominatedClusterNames": list(found.nominated)}}
        sent = self.api.patch(WORKLOAD.path(metadata.namespace, metadata.name, "status"), body)
        if not await is_written(sent, log, "nomination not written; retried", workload="/".join(metadata.key)):
            return False
        self._nominated_event(found)
        return True

    # ------------------------------------------------------------------------------------------------------ the Events

    def _nominated_event(self, found: WorkloadDispatch) -> None:
        message = nominated_message(found)
        log.info("nominated", workload="/".join(found.waiting.workload.metadata.key), clusters=found.nominated)
        self.recorder.record(ObjectReference.of(WORKLOAD, found.waiting.workload.metadata), "Nominated", message)

    def _tell(self, plan: DispatchPlan) -> None:
        """Events for Workloads that wait for something that only people can change."""
        for each in plan.workloads:
            reason, message = _trouble(each, self._preflight)
            if reason == self._reasons.get(each.waiting.uid, ""):
                continue
            self._reasons[each.waiting.uid] = reason
            if reason:
                about = ObjectReference.of(WORKLOAD, each.waiting.workload.metadata)
                self.recorder.record(about, reason, message, warning=True)

    async def _publish_scores(self, eligibilities: ClusterEligibilities, now: datetime) -> None:
        if self.scores is None:
            return
        for name, connection in [*self.connections.connections.items()]:
            cluster = eligibilities.clusters.get(name)
            if cluster is not None:
                await self.scores.publish(cluster.managed_cluster, connection.offer.status(), now)


def worker_view(connection: WorkerConnection, now: datetime) -> WorkerView:
    """What is known of it now."""
    offer, problem = connection.offer, connection.problem
    status = offer.status()
    return WorkerView(
        problem=problem,
        nominated_at={each.uid: each.nominated_at for each in offer.entries if each.nominated_at is not None},
        may_reclaim=offer.may_reclaim(),
        was_read=offer.read_since is not None,
        answers=offer.answers(),
        silence=problem or (status.message if status is not None else _without_status(connection, now)),
        received_at=offer.received_at,
    )


def _without_status(connection: WorkerConnection, now: datetime) -> str:
    """Why there is no fresh status; empty where one is expected soon."""
    if connection.write_problem:
        return connection.write_problem
    since = connection.offer.read_since
    if since is None or now - since < _STATUS_WITHIN:
        return ""
    return "its ClusterOffer has no current status: idle-gpu-scaler there does not renew it"


def _without_reclaim(spec: Iterable[OfferedWorkload]) -> list[OfferedWorkload]:
    return [with_fields(each, reclaim=False, nominated_at=None) for each in spec]


def _tells_little(found: WorkloadDispatch) -> tuple[bool, bool]:
    """The key by which those that another dispatcher has nominated come first, then those without a nomination."""
    return not found.state.nominated or found.state.since is not None, bool(found.state.nominated)


def _trouble(found: WorkloadDispatch, checked: Preflight) -> tuple[str, str]:
    if not checked.is_passed and checked.result is not PreflightResult.NOT_KNOWN:
        return "NotNominated", f"no cluster is nominated: {checked.message}"
    if isinstance(found.step, KeepNomination) and found.step.reason is KeepReason.NO_CANDIDATE:
        return str(KeepReason.NO_CANDIDATE), found.step.message
    return "", ""


def nominated_message(found: WorkloadDispatch) -> str:
    """What was nominated and why, and what every other cluster says."""
    return f"{step_message(found)}. {'; '.join(f'{each.name}: {each.words}' for each in found.ranking.all)}"


def step_message(found: WorkloadDispatch) -> str:
    """What is done, or why nothing is."""
    match found.step:
        case NominateCluster(cluster=cluster) if not found.state.is_active:
            return f"nominated {cluster.name}, so that Kueue releases the quota of this inactive Workload"
        case NominateCluster(cluster=cluster):
            before = f" in place of {found.state.cluster}" if found.state.cluster not in ("", cluster.name) else ""
            return f"nominated {cluster.name}{before}, which may suspend idle workloads for it"
        case WithdrawNomination():
            return f"nominated {found.state.cluster} no longer: it never fits there"
        case KeepNomination():
            return found.step.message
