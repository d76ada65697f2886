"""What do the hub and the workers say at one moment, of a Workload that waits for a cluster?

| of a worker                                      | its answer to a Workload                              |
|--------------------------------------------------|-------------------------------------------------------|
| not connected, or without a fresh status         | `Unknown`, and why                                    |
| its status, of since it is asked, has an answer  | that                                                  |
| asked since less than a minute, status expected  | `Unknown`, awaited                                    |
| otherwise                                        | `Unknown`: it has not answered                        |

Who has `reclaim` for a Workload, or may have it:

| the worker                                                                  | has it                     |
|-----------------------------------------------------------------------------|----------------------------|
| not Active for longer than the patience                                     | no, whatever is known      |
| its spec says so, or a write that may have been done                        | yes                        |
| its spec is not known now, and it is first in the nomination                | yes                        |
| never read by this process, and not Active since after the Workload was created | yes                    |
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from scaler.kube.objects.multikueue import OfferedWorkload, WorkloadOffer
from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.nomination import (
    KeepNomination,
    NominationState,
    NominationStep,
    RemoveClusters,
    nominated_after,
)
from scaler.multikueue.hub.dispatch.ranking import (
    GIVES_ROOM,
    ClusterAnswer,
    GivenRoom,
    Ranking,
    is_given_away,
    rank,
)
from scaler.multikueue.hub.dispatch.waiting import ClusterStandings, WaitingWorkload

_ANSWERS_WITHIN = timedelta(minutes=1)
"""Of being asked; what a worker has not said by then is Unknown."""
_TURN = 2 * _ANSWERS_WITHIN
"""For how long a Workload is asked about at least, where they take turns."""
_LONG_AGO = datetime.fromtimestamp(0, UTC)
_REMEMBERED = timedelta(minutes=10)
"""How long it is remembered that room was given: longer than any status lives."""
_SINCE_RESTART = timedelta(minutes=2)
"""The same of what only the specs of workers tell, which may have been no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What is known of a worker at one moment."""

    problem: str = ""
    """Why its spec is not known now; empty where it is."""
    is_writable: bool = True
    entries: Mapping[str, OfferedWorkload] = field(default_factory=dict)
    """Of its spec as last confirmed, by uid."""
    is_certain: bool = True
    """Whether the spec is as the entries say: nothing is being written."""
    may_reclaim: Collection[str] = frozenset()
    """Uids of the Workloads for which it may reclaim, as far as is known."""
    was_read: bool = True
    answers: Mapping[str, WorkloadOffer] = field(default_factory=dict)
    """By uid; none where its status is not fresh."""
    silence: str = ""
    """Why it does not answer; empty where its status is fresh, or is expected to be soon."""
    received_at: datetime | None = None
    """When its status was received."""


NOT_CONNECTED = WorkerView(
    problem="it is not connected", is_writable=False, was_read=False, silence="it is not connected"
)


@dataclass(kw_only=True)
class DispatchMemory:
    """What a restart may lose: it makes some wait a little longer, or be sent for room that another one gets."""

    asked_since: dict[str, datetime] = field(default_factory=dict)
    """By uid."""
    nominated_at: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """Of nominations (uid, cluster) that this process has made, or of which the worker's spec cannot say it."""
    removed_at: dict[str, datetime] = field(default_factory=dict)
    """By uid, when clusters were removed from its nomination last."""
    last_asked: dict[str, datetime] = field(default_factory=dict)
    """By uid, also of those that are not asked about now."""
    fits_nowhere: set[str] = field(default_factory=set)
    """Uids of those of which all clusters said so when they were asked last."""
    given: defaultdict[tuple[str, str], list[GivenRoom]] = field(default_factory=lambda: defaultdict(list))
    """By cluster and ClusterQueue."""

    def turn(self, uid: str, now: datetime) -> tuple[bool, datetime]:
        """Its place among those that take turns: whose turn is not over first, then who was asked longest ago."""
        since = self.asked_since.get(uid)
        return since is None or now - since >= _TURN, self.last_asked.get(uid, _LONG_AGO)

    def keep(self, waiting: Collection[str], asked: Collection[str], now: datetime) -> None:
        """Forgets what concerns no other than these, and notes since when these are asked about."""
        self.asked_since = {uid: self.asked_since.get(uid, now) for uid in asked}
        self.last_asked = {uid: at for uid, at in self.last_asked.items() if uid in waiting} | dict.fromkeys(asked, now)
        self.fits_nowhere.intersection_update(waiting)
        self.removed_at = {uid: at for uid, at in self.removed_at.items() if uid in waiting}
        self.nominated_at = {key: at for key, at in self.nominated_at.items() if key[0] in waiting}
        for key, rooms in list(self.given.items()):
            self.given[key] = [each for each in rooms if now - each.at < _REMEMBERED]
            if not self.given[key]:
                del self.given[key]


@dataclass(kw_only=True)
class DispatchMoment:
    """Hub and workers at one moment. What is decided for one Workload counts for those after it (`give`)."""

    standings: ClusterStandings
    workers: Mapping[str, WorkerView]
    memory: DispatchMemory
    now: datetime
    patience: timedelta
    times_by_uid: dict[str, dict[str, datetime]] = field(init=False)
    """Times of nominations in the specs of workers, by uid and cluster."""
    holders_by_uid: dict[str, set[str]] = field(init=False)
    _unanswered: dict[tuple[str, str], Ranking] = field(default_factory=dict, init=False)
    _perhaps: Mapping[str, datetime] = field(init=False)
    """Workers of which nothing is known, by since when they are not Active."""

    def __post_init__(self) -> None:
        self.times_by_uid, self.holders_by_uid = defaultdict(dict), defaultdict(set)
        reached = {name: worker for name, worker in self.workers.items() if not self._is_lost(name)}
        for name, worker in self.workers.items():
            for uid, entry in worker.entries.items():
                if entry.nominated_at is not None:
                    self.times_by_uid[uid][name] = entry.nominated_at
        for name, worker in reached.items():
            for uid in worker.may_reclaim:
                self.holders_by_uid[uid].add(name)
        self._perhaps = {
            name: since
            for name, worker in reached.items()
            if not worker.was_read and (since := self._inactive_since(name)) is not None
        }

    # -------------------------------------------------------------------------------------------------- of clusters

    def worker(self, name: str) -> WorkerView:
        return self.workers.get(name, NOT_CONNECTED)

    def _inactive_since(self, name: str) -> datetime | None:
        cluster = self.standings.clusters.get(name)
        return cluster.inactive_since if cluster is not None else None

    def _is_lost(self, name: str) -> bool:
        since = self._inactive_since(name)
        return since is not None and self.now - since > self.patience

    # ------------------------------------------------------------------------------------------------ of a Workload

    def state(self, waiting: WaitingWorkload) -> NominationState:
        """Without whether it is asked about."""
        workload, times = waiting.workload, {**self.times_by_uid.get(waiting.uid, {})}
        nominated, remembered = workload.status.nominated_cluster_names, self.memory.nominated_at
        for name in nominated if workload.spec.active else ():
            key, worker = (waiting.uid, name), self.worker(name)
            if name not in times and (worker.problem or not worker.is_writable):
                remembered.setdefault(key, self.now)
            if key in remembered:
                times[name] = max(times.get(name, remembered[key]), remembered[key])
        removed_at = self.memory.removed_at.get(waiting.uid)
        return NominationState(
            is_active=workload.spec.active, nominated=nominated, nominated_at=times, removed_at=removed_at
        )

    def is_served(self, waiting: WaitingWorkload, state: NominationState) -> bool:
        """Whether it is nominated by us, first of all for a cluster that is a candidate."""
        if not any(name in state.nominated_at for name in state.nominated):
            return False
        return self.ranking(waiting, is_asked=False).candidate(state.nominated[0]) is not None

    def ranking(self, waiting: WaitingWorkload, *, is_asked: bool) -> Ranking:
        standings = self.standings.of_workload(waiting)
        if is_asked:
            names = (each.cluster for each in standings if each.obstacle is None)
            return rank(standings, {name: self._answer(name, waiting) for name in names})
        question = waiting.config, waiting.placement
        if question not in self._unanswered:
            self._unanswered[question] = rank(standings, {})
        return self._unanswered[question]

    def _answer(self, name: str, waiting: WaitingWorkload) -> ClusterAnswer:
        worker = self.worker(name)
        if worker.silence:
            return ClusterAnswer(message=worker.silence)
        found, asked_since = worker.answers.get(waiting.uid), self.memory.asked_since.get(waiting.uid, self.now)
        is_of_before = worker.received_at is None or worker.received_at < asked_since
        if found is None or not found.fit or is_of_before:
            is_early = self.now - asked_since < _ANSWERS_WITHIN
            message = "its answer is awaited" if is_early else "it has not answered"
            return ClusterAnswer(message=message, is_awaited=is_early)
        fit = Fit.of(found.fit)
        given = self.memory.given.get((name, waiting.cluster_queue), ())
        return ClusterAnswer(
            fit=fit,
            cost=found.cost,
            free_after=found.free_after,
            victims=found.victims,
            message=found.message,
            is_given_away=is_given_away(fit, found.free_after, given, uid=waiting.uid, received_at=worker.received_at),
        )

    def holders(self, waiting: WaitingWorkload, state: NominationState) -> set[str]:
        """The clusters that have `reclaim` for it, or may have it."""
        found = set(self.holders_by_uid.get(waiting.uid, ()))
        found |= {name for name, since in self._perhaps.items() if waiting.created_at < since}
        first = next(iter(state.nominated), "")
        if first and self.worker(first).problem and first in self.standings.clusters and not self._is_lost(first):
            found.add(first)
        return found

    def times(self, state: NominationState, step: NominationStep) -> dict[str, datetime]:
        """When it was, or is now, nominated for each cluster; none where the nomination is not ours."""
        names = nominated_after(step, state.nominated)
        if isinstance(step, KeepNomination | RemoveClusters):
            is_ours = any(name in state.nominated_at for name in names)
            return {name: state.nominated_at.get(name, self.now) for name in names} if is_ours else {}
        begun = state.nominated_at.get(step.cluster.name, self.now)
        is_begun = step.cluster.name not in state.nominated and self.now - begun < self.patience
        times = {name: state.nominated_at.get(name, self.now) for name in names}
        return {**times, step.cluster.name: begun if is_begun else self.now}

    # ------------------------------------------------------------------------------------------------ what is given

    def note_given(self, waiting: Mapping[str, WaitingWorkload], gpus: Callable[[WaitingWorkload], int]) -> None:
        """Room that was given before this process began to remember it."""
        for uid, times in self.times_by_uid.items():
            for name, at in times.items() if uid in waiting else ():
                if self.now - at < _SINCE_RESTART:
                    self._give(name, waiting[uid], at, gpus(waiting[uid]))

    def give(self, waiting: WaitingWorkload, step: NominationStep, gpus: int) -> None:
        """The step takes room, which others do not get before the worker has looked again."""
        if not isinstance(step, KeepNomination | RemoveClusters) and step.cluster.answer.fit in GIVES_ROOM:
            self._give(step.cluster.name, waiting, self.now, gpus)

    def _give(self, name: str, waiting: WaitingWorkload, at: datetime, gpus: int) -> None:
        rooms = self.memory.given[name, waiting.cluster_queue]
        if all(each.uid != waiting.uid or each.at < at for each in rooms):
            rooms[:] = [each for each in rooms if each.uid != waiting.uid]
            rooms.append(GivenRoom(uid=waiting.uid, gpus=gpus, at=at))
