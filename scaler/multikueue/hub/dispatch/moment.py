"""What do the hub and the workers say at one moment, of a Workload that waits for a cluster?

| of a worker                                      | its answer to a Workload                              |
|--------------------------------------------------|-------------------------------------------------------|
| not connected, or without a fresh status         | `Unknown`, and why                                    |
| its status, of since it is asked, has an answer  | that                                                  |
| asked since less than a minute, status expected  | `Unknown`, awaited                                    |
| otherwise                                        | `Unknown`: it has not answered                        |

Who has `reclaim` for a Workload, or may have it:

| the worker                                                                      | has it                 |
|---------------------------------------------------------------------------------|------------------------|
| not Active for longer than the patience                                         | no, whatever is known  |
| its spec says so, or a write that may have been done                            | yes                    |
| its spec is not known now, and the Workload is nominated for it                 | yes                    |
| never read by this process, and not Active since after the Workload was created | yes                    |
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from scaler.kube.objects.multikueue import WorkloadOffer
from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.candidates import ClusterAnswer
from scaler.multikueue.hub.dispatch.nomination import NominationState
from scaler.multikueue.hub.dispatch.ranking import GivenRoom, Ranking, is_given_away, rank
from scaler.multikueue.hub.dispatch.waiting import ClusterEligibilities, WaitingWorkload

_ANSWERS_WITHIN = timedelta(minutes=1)
"""Time from when a worker is asked; what it has not answered by then is Unknown."""
_TURN = 2 * _ANSWERS_WITHIN
"""The least time for which a Workload is asked about, where they take turns."""
_LONG_AGO = datetime.fromtimestamp(0, UTC)

GivenRooms = Mapping[tuple[str, str], tuple[GivenRoom, ...]]
"""What rooms were given, by cluster and ClusterQueue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What is known of a worker at one moment."""

    problem: str = ""
    """Why its spec is not known now; empty where it is."""
    nominated_at: Mapping[str, datetime] = field(default_factory=dict)
    """When Workloads were nominated for it by its spec as last confirmed, by uid."""
    may_reclaim: Collection[str] = frozenset()
    """Uids of the Workloads for which it may reclaim, as far as is known."""
    was_read: bool = True
    answers: Mapping[str, WorkloadOffer] = field(default_factory=dict)
    """The answers by uid; none where its status is not fresh."""
    silence: str = ""
    """Why it does not answer; empty where its status is fresh, or is expected to be soon."""
    received_at: datetime | None = None
    """When its status was received."""


NOT_CONNECTED = WorkerView(problem="it is not connected", was_read=False, silence="it is not connected")


@dataclass(frozen=True, kw_only=True)
class DispatchMemory:
    """What a restart may lose: it makes some wait a little longer, or be sent for room that another one gets."""

    asked_since: Mapping[str, datetime] = field(default_factory=dict)
    """The time since which each Workload is asked about, by uid."""
    last_asked: Mapping[str, datetime] = field(default_factory=dict)
    """When each was asked about last, by uid; also those that are not asked about now."""
    nominated_at: Mapping[str, Mapping[str, datetime]] = field(default_factory=dict)
    """When this process has nominated a Workload for a cluster last, by uid and cluster."""
    fits_nowhere: frozenset[str] = frozenset()
    """Uids of those of which all clusters said so when they were asked last."""
    given: GivenRooms = field(default_factory=dict)

    def turn(self, uid: str, now: datetime) -> tuple[bool, datetime]:
        """Its place among those that take turns: whose turn is not over first, then who was asked longest ago."""
        since = self.asked_since.get(uid)
        return since is None or now - since >= _TURN, self.last_asked.get(uid, _LONG_AGO)


@dataclass(frozen=True, kw_only=True)
class DispatchMoment:
    """Hub and workers at one moment. Nothing in it changes while it is read."""

    eligibilities: ClusterEligibilities
    workers: Mapping[str, WorkerView]
    memory: DispatchMemory
    now: datetime
    lost: frozenset[str]
    """The workers that are not Active for longer than the patience."""
    times: Mapping[str, Mapping[str, datetime]]
    """When Workloads were nominated for workers by the specs of these, by uid and cluster."""
    reclaiming: Mapping[str, Collection[str]]
    """The workers that may reclaim for a Workload by what is known of their specs, by its uid."""
    unread: Mapping[str, datetime]
    """Workers of which nothing is known, by since when they are not Active."""

    @classmethod
    def of(
        cls,
        eligibilities: ClusterEligibilities,
        workers: Mapping[str, WorkerView],
        memory: DispatchMemory,
        now: datetime,
        *,
        patience: timedelta,
    ) -> "DispatchMoment":
        inactive = {name: each.inactive_since for name, each in eligibilities.clusters.items() if each.inactive_since}
        lost = frozenset(name for name, since in inactive.items() if now - since > patience)
        times: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
        reclaiming: defaultdict[str, set[str]] = defaultdict(set)
        for name, worker in workers.items():
            for uid, at in worker.nominated_at.items():
                times[uid][name] = at
            for uid in worker.may_reclaim if name not in lost else ():
                reclaiming[uid].add(name)
        unread = {
            name: since
            for name, since in inactive.items()
            if name in workers and name not in lost and not workers[name].was_read
        }
        return cls(
            eligibilities=eligibilities,
            workers=workers,
            memory=memory,
            now=now,
            lost=lost,
            times=times,
            reclaiming=reclaiming,
            unread=unread,
        )

    def worker(self, name: str) -> WorkerView:
        return self.workers.get(name, NOT_CONNECTED)

    def state(self, waiting: WaitingWorkload, *, is_asked: bool = True) -> NominationState:
        status, spec = waiting.workload.status, waiting.workload.spec
        times, remembered = self.times.get(waiting.uid, {}), self.memory.nominated_at.get(waiting.uid, {})
        return NominationState(
            is_active=spec.active,
            is_asked=is_asked,
            nominated=status.nominated_cluster_names,
            nominated_at={**times, **remembered} if spec.active else {},
        )

    def is_served(self, state: NominationState, waiting: WaitingWorkload) -> bool:
        """Whether it is nominated by us, for a cluster that is a candidate."""
        unanswered = self.eligibilities.unanswered(waiting)
        return state.since is not None and unanswered.candidate(state.cluster) is not None

    def ranking(self, waiting: WaitingWorkload, state: NominationState, given: GivenRooms) -> Ranking:
        """The clusters by their answers, of which rooms were given away; without answers where it is not asked."""
        if not state.is_asked:
            return self.eligibilities.unanswered(waiting)
        eligibilities = self.eligibilities.of_workload(waiting)
        names = (each.name for each in eligibilities if each.is_candidate)
        return rank(eligibilities, {name: self._answer(name, waiting, given) for name in names}, state.nominated_at)

    def _answer(self, name: str, waiting: WaitingWorkload, given: GivenRooms) -> ClusterAnswer:
        worker = self.worker(name)
        if worker.silence:
            return ClusterAnswer(message=worker.silence)
        found, asked_since = worker.answers.get(waiting.uid), self.memory.asked_since.get(waiting.uid, self.now)
        is_of_before = worker.received_at is None or worker.received_at < asked_since
        if found is None or not found.fit or is_of_before:
            is_early = self.now - asked_since < _ANSWERS_WITHIN
            message = "its answer is awaited" if is_early else "it has not answered"
            return ClusterAnswer(message=message, is_awaited=is_early)
        fit, rooms = Fit.of(found.fit), given.get((name, waiting.cluster_queue), ())
        return ClusterAnswer(
            fit=fit,
            cost=found.cost,
            free_after=found.free_after,
            victims=found.victims,
            message=found.message,
            is_given_away=is_given_away(fit, found.free_after, rooms, uid=waiting.uid, received_at=worker.received_at),
        )

    def holders(self, waiting: WaitingWorkload, state: NominationState) -> frozenset[str]:
        """The clusters that have `reclaim` for it, or may have it."""
        found = {*self.reclaiming.get(waiting.uid, ())}
        found |= {name for name, since in self.unread.items() if waiting.created_at < since}
        name = state.cluster
        if name in self.eligibilities.clusters and name not in self.lost and self.worker(name).problem:
            found.add(name)
        return frozenset(found)
