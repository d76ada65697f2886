"""What is to be done now for all Workloads that wait for a cluster? Finds it out, and changes nothing.

For each Workload in its turn: the next step of its nomination. For each worker: what its ClusterOffer is to say.

| of an entry   | which Workloads have it, on which worker                                                          |
|---------------|---------------------------------------------------------------------------------------------------|
| `request`     | those that are asked about, on every candidate, and where the answer is `Never`, which may change |
| `nominatedAt` | on the worker that it is nominated for                                                            |
| `reclaim`     | on the same, while no other worker has it or may have it                                          |
| `policy`      | dispatched ones that are judged (`judged`)                                                        |

Laws:

* Asked about are at most so many at a time: those that are not nominated, or not where they can go, before all others.
  The others, and those that fit nowhere, take turns: however many cannot start, those behind them are asked about.
* ClusterOffers follow the nomination that is written: a cluster that is nominated no longer loses `reclaim`, and only
  once that is confirmed the next one has it.
* Of an inactive Workload workers hold nothing: no copy of it starts.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace as with_fields

from scaler.clock import Turns
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.multikueue import OfferedWorkload, OfferRequest
from scaler.multikueue.hub.dispatch.moment import DispatchMemory, DispatchMoment, GivenRooms
from scaler.multikueue.hub.dispatch.nomination import (
    KeepNomination,
    KeepReason,
    NominateCluster,
    NominationState,
    NominationStep,
    may_reclaim,
    next_step,
    nominated_after,
)
from scaler.multikueue.hub.dispatch.ranking import GIVES_ROOM, GivenRoom, Ranking
from scaler.multikueue.hub.dispatch.waiting import WaitingWorkload

JudgedWorkloads = Mapping[str, Sequence[OfferedWorkload]]
"""Dispatched Workloads with the `policy` that they are judged by, by worker."""
NOMINATING = "Nominating"
T = TypeVar("T")
_WORKLOADS_PER_TURN = 32
"""The Workloads between two turns; they take about a millisecond."""
_REMEMBERED = timedelta(minutes=10)
"""How long it is remembered that room was given: longer than any status lives."""
OfferSpecs = Mapping[str, tuple[OfferedWorkload, ...]]
"""What each worker's ClusterOffer is to say."""


@dataclass(frozen=True, kw_only=True)
class WorkloadDispatch:
    """What is decided for one Workload."""

    waiting: WaitingWorkload
    state: NominationState
    ranking: Ranking
    step: NominationStep
    gives: GivenRoom | None = None
    """The room that the step takes, if that is known."""

    @property
    def nominated(self) -> tuple[str, ...]:
        """What `status.nominatedClusterNames` is to be."""
        return nominated_after(self.step, self.state.nominated)

    @property
    def reason(self) -> str:
        """Why nothing is done for it now."""
        return str(self.step.reason) if isinstance(self.step, KeepNomination) else NOMINATING

    @property
    def not_admitted_by(self) -> str:
        """The cluster that it is nominated for, answers that there is room, and did not admit it in its time; or "".

        Room that another Workload was given since is none.
        """
        is_over = isinstance(self.step, NominateCluster) or self.reason == KeepReason.NO_OTHER
        present = self.ranking.candidate(self.state.cluster) if is_over and self.state.since is not None else None
        has_room = present is not None and present.answer.fit in GIVES_ROOM and not present.answer.is_given_away
        return self.state.cluster if has_room else ""


@dataclass(frozen=True, kw_only=True)
class DispatchPlan:
    at: datetime
    workloads: tuple[WorkloadDispatch, ...] = ()
    specs: OfferSpecs = field(default_factory=dict)


@dataclass(kw_only=True)
class DispatchPlanner:
    """Plans by these settings: `requests` is how many Workloads are asked about at a time."""

    patience: timedelta
    requests: int
    gpus: GpuResources

    async def plan(
        self, waiting: Sequence[WaitingWorkload], moment: DispatchMoment, judged: JudgedWorkloads
    ) -> DispatchPlan:
        asked = await self._asked(waiting, moment)
        given, found = moment.memory.given, []
        async for each in _in_turns(waiting):
            found.append(self._dispatch(each, moment, given, is_asked=each.uid in asked))
            given = _with_room_of(found[-1], given)
        return DispatchPlan(at=moment.now, workloads=tuple(found), specs=await _specs(found, moment, judged))

    async def _asked(self, waiting: Iterable[WaitingWorkload], moment: DispatchMoment) -> set[str]:
        """Uids of the Workloads that are asked about: those that are not served first, and the others in turns."""
        in_need: list[str] = []
        others: list[str] = []
        async for each in _in_turns(waiting):
            state = moment.state(each)
            if state.is_active and moment.eligibilities.unanswered(each).candidates:
                takes_turns = each.uid in moment.memory.fits_nowhere or moment.is_served(state, each)
                (others if takes_turns else in_need).append(each.uid)
        others.sort(key=lambda uid: moment.memory.turn(uid, moment.now))
        return {*[*in_need, *others][: self.requests]}

    def _dispatch(
        self, waiting: WaitingWorkload, moment: DispatchMoment, given: GivenRooms, *, is_asked: bool
    ) -> WorkloadDispatch:
        state = moment.state(waiting, is_asked=is_asked)
        ranking = moment.ranking(waiting, state, given)
        step = next_step(state, ranking, moment.now, patience=self.patience)
        takes_room = isinstance(step, NominateCluster) and step.cluster.answer.fit in GIVES_ROOM
        return WorkloadDispatch(
            waiting=waiting,
            state=state,
            ranking=ranking,
            step=step,
            gives=GivenRoom(uid=waiting.uid, gpus=self._gpus(waiting), at=moment.now) if takes_room else None,
        )

    def _gpus(self, waiting: WaitingWorkload) -> int:
        return sum(each.count * self.gpus.of_pod(each.template.spec) for each in waiting.workload.spec.pod_sets)


async def _specs(found: Iterable[WorkloadDispatch], moment: DispatchMoment, judged: JudgedWorkloads) -> OfferSpecs:
    specs: dict[str, dict[tuple[str, str], OfferedWorkload]] = {name: {} for name in moment.workers}
    for name, entries in judged.items():
        specs.setdefault(name, {}).update((each.key, each) for each in entries)
    async for each in _in_turns(found):
        for name, entry in _entries(each, moment).items():
            specs.setdefault(name, {})[entry.key] = entry
    return {name: tuple(each for _, each in sorted(spec.items())) for name, spec in specs.items()}


def _entries(found: WorkloadDispatch, moment: DispatchMoment) -> dict[str, OfferedWorkload]:
    """Its entry on each worker that has one."""
    metadata, spec, state = found.waiting.workload.metadata, found.waiting.workload.spec, found.state
    entry = OfferedWorkload(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)
    entries: dict[str, OfferedWorkload] = {}
    if state.is_asked:
        request = OfferRequest(
            queue_name=spec.queue_name,
            priority=spec.priority or 0,
            created_at=metadata.creation_timestamp,
            pod_sets=spec.pod_sets,
        )
        entry = with_fields(entry, request=request)
        entries = {each.name: entry for each in (*found.ranking.candidates, *found.ranking.never)}
    if state.since is not None:
        may = may_reclaim(state.cluster, moment.holders(found.waiting, state))
        entries[state.cluster] = with_fields(entry, reclaim=may, nominated_at=_seconds(state.since))
    return entries


def _with_room_of(found: WorkloadDispatch, given: GivenRooms) -> GivenRooms:
    """The rooms with the one that its step takes, which others do not get before the worker has looked again."""
    if found.gives is None or not isinstance(found.step, NominateCluster):
        return given
    key = found.step.cluster.name, found.waiting.cluster_queue
    others = (each for each in given.get(key, ()) if each.uid != found.gives.uid)
    return {**given, key: (*others, found.gives)}


def memory_after(memory: DispatchMemory, plan: DispatchPlan, done: Collection[WorkloadDispatch]) -> DispatchMemory:
    """What is remembered once these steps of the plan are done; nothing of Workloads that wait no more."""
    waiting = {each.waiting.uid for each in plan.workloads}
    asked = {each.waiting.uid: each for each in plan.workloads if each.state.is_asked}
    nowhere = {uid for uid, each in asked.items() if each.ranking.never and not each.ranking.candidates}
    nominated_at = {uid: times for uid, times in memory.nominated_at.items() if uid in waiting}
    recent = {
        key: tuple(each for each in rooms if plan.at - each.at < _REMEMBERED) for key, rooms in memory.given.items()
    }
    given: GivenRooms = {key: rooms for key, rooms in recent.items() if rooms}
    for each in done:
        if isinstance(each.step, NominateCluster) and each.state.is_active:
            uid = each.waiting.uid
            nominated_at[uid] = {**nominated_at.get(uid, {}), each.step.cluster.name: plan.at}
            given = _with_room_of(each, given)
    return DispatchMemory(
        asked_since={uid: memory.asked_since.get(uid, plan.at) for uid in asked},
        last_asked={uid: at for uid, at in memory.last_asked.items() if uid in waiting} | dict.fromkeys(asked, plan.at),
        nominated_at=nominated_at,
        fits_nowhere=(memory.fits_nowhere & waiting) - asked.keys() | nowhere,
        given=given,
    )


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; other tasks get the event loop now and then."""
    turns = Turns()
    for count, each in enumerate(items, start=1):
        yield each
        if count % _WORKLOADS_PER_TURN == 0:
            await turns.give_way()


def _seconds(at: datetime) -> datetime:
    """The time as the API keeps it."""
    return at.astimezone(UTC).replace(microsecond=0)
