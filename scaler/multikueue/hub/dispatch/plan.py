"""What is to be done now for all Workloads that wait for a cluster? Finds it out, and changes nothing.

For each Workload in its turn: the next step of its nomination. For each worker: what its ClusterOffer is to say.

| of an entry   | which Workloads have it, on which worker                                                          |
|---------------|---------------------------------------------------------------------------------------------------|
| `request`     | those that are asked about, on every candidate, and where the answer is `Never`, which may change |
| `nominatedAt` | on every worker that it is nominated for, or going to be                                          |
| `reclaim`     | on the first of these, while no other worker has it or may have it                                |
| `policy`      | dispatched ones that are judged (`judged`)                                                        |

Laws:

* Asked about are at most so many at a time: those that are not nominated, or not where they can go, before all others.
  The others, and those that fit nowhere, take turns: however many cannot start, those behind them are asked about.
* Of a first nomination `reclaim` is written before it, and the nomination follows once that is confirmed. A change of
  one is written to the hub first, upon which Kueue deletes the copy on the worker that loses it; then `reclaim` is
  taken there, and only once that is confirmed given to the other.
* A worker without ClusterOffers, or on which they cannot be written, is nominated without `reclaim`.
* Of an inactive Workload workers hold nothing: no copy of it starts.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace as with_fields

from scaler.clock import Turns
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.multikueue import OfferedWorkload, OfferRequest
from scaler.multikueue.hub.dispatch.moment import DispatchMemory, DispatchMoment, WorkerView
from scaler.multikueue.hub.dispatch.nomination import (
    AddCluster,
    KeepNomination,
    KeepReason,
    NominateCluster,
    NominationState,
    NominationStep,
    may_reclaim,
    next_step,
    nominated_after,
    reclaims_at,
)
from scaler.multikueue.hub.dispatch.ranking import GIVES_ROOM, Ranking
from scaler.multikueue.hub.dispatch.waiting import ClusterStandings, WaitingWorkload

JudgedWorkloads = Mapping[str, Sequence[OfferedWorkload]]
"""By worker: dispatched Workloads with the `policy` that they are judged by."""
NOMINATING = "Nominating"
T = TypeVar("T")
_WORKLOADS_PER_TURN = 32
"""About a millisecond."""
OfferSpecs = Mapping[str, tuple[OfferedWorkload, ...]]
"""By worker, what its ClusterOffer is to say."""


@dataclass(frozen=True, kw_only=True)
class WorkloadDispatch:
    """What is decided for one Workload."""

    waiting: WaitingWorkload
    state: NominationState
    ranking: Ranking
    step: NominationStep
    times: Mapping[str, datetime]
    """When it was, or is now, nominated, by cluster."""
    reclaims: str
    """The cluster that is to have `reclaim`; empty for none."""
    holders: frozenset[str]
    """Those that have it, or may have it."""

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
        """The cluster that has `reclaim`, answers that there is room, and did not admit it within the patience; or "".

        Room that another Workload was given since is none.
        """
        is_over = isinstance(self.step, AddCluster) or self.reason == KeepReason.ALL_NOMINATED
        first = self.ranking.candidate(self.state.nominated[0]) if is_over else None
        has_room = first is not None and first.answer.fit in GIVES_ROOM and not first.answer.is_given_away
        return first.name if first is not None and has_room else ""

    def is_due(self, workers: Mapping[str, WorkerView]) -> bool:
        """Whether the nomination is to be written now."""
        if isinstance(self.step, KeepNomination) or self.nominated == self.state.nominated:
            return False
        if not isinstance(self.step, NominateCluster) or not self.reclaims:
            return True
        worker = workers.get(self.reclaims)
        if worker is None or not worker.is_writable:
            return True
        entry = worker.entries.get(self.waiting.uid)
        is_given = worker.is_certain and entry is not None and entry.reclaim
        return is_given and may_reclaim(self.reclaims, self.holders)


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
    memory: DispatchMemory = field(default_factory=DispatchMemory)
    _requests: dict[str, OfferRequest] = field(default_factory=dict, init=False)
    """Of those asked about, by uid. A Workload's pods do not change while it has quota."""

    async def plan(
        self,
        waiting: Sequence[WaitingWorkload],
        standings: ClusterStandings,
        workers: Mapping[str, WorkerView],
        judged: JudgedWorkloads,
        now: datetime,
    ) -> DispatchPlan:
        moment = DispatchMoment(
            standings=standings, workers=workers, memory=self.memory, now=now, patience=self.patience
        )
        states = [(each, moment.state(each)) async for each in _in_turns(waiting)]
        asked = await self._asked(states, moment)
        self.memory.keep({each.uid for each in waiting}, asked, now)
        moment.note_given({each.uid: each for each in waiting}, self._gpus)
        found = [
            self._dispatch(each, replace(state, is_asked=each.uid in asked), moment)
            async for each, state in _in_turns(states)
        ]
        return DispatchPlan(at=now, workloads=tuple(found), specs=await self._specs(found, workers, judged))

    async def _asked(
        self, states: Iterable[tuple[WaitingWorkload, NominationState]], moment: DispatchMoment
    ) -> set[str]:
        """Uids of the Workloads that are asked about: those that are not served first, and the others in turns."""
        in_need: list[str] = []
        others: list[str] = []
        async for waiting, state in _in_turns(states):
            if state.is_active and moment.ranking(waiting, is_asked=False).candidates:
                takes_turns = waiting.uid in self.memory.fits_nowhere or moment.is_served(waiting, state)
                (others if takes_turns else in_need).append(waiting.uid)
        others.sort(key=lambda uid: self.memory.turn(uid, moment.now))
        return {*[*in_need, *others][: self.requests]}

    def _dispatch(self, waiting: WaitingWorkload, state: NominationState, moment: DispatchMoment) -> WorkloadDispatch:
        ranking = moment.ranking(waiting, is_asked=state.is_asked)
        step = next_step(state, ranking, moment.now, patience=self.patience)
        if state.is_asked:
            fits_nowhere = bool(ranking.never) and not ranking.candidates
            (self.memory.fits_nowhere.add if fits_nowhere else self.memory.fits_nowhere.discard)(waiting.uid)
        if not isinstance(step, KeepNomination):
            moment.give(waiting, step, self._gpus(waiting))
        return WorkloadDispatch(
            waiting=waiting,
            state=state,
            ranking=ranking,
            step=step,
            times=moment.times(state, step),
            reclaims=reclaims_at(step, state),
            holders=frozenset(moment.holders(waiting, state)),
        )

    def _gpus(self, waiting: WaitingWorkload) -> int:
        return sum(each.count * self.gpus.of_pod(each.template.spec) for each in waiting.workload.spec.pod_sets)

    # ------------------------------------------------------------------------------------------------------- the specs

    async def _specs(
        self, found: Iterable[WorkloadDispatch], workers: Mapping[str, WorkerView], judged: JudgedWorkloads
    ) -> OfferSpecs:
        specs: dict[str, dict[tuple[str, str], OfferedWorkload]] = {name: {} for name in workers}
        for name, entries in judged.items():
            for entry in entries:
                specs.setdefault(name, {})[entry.key] = entry
        requests, self._requests = self._requests, {}
        async for each in _in_turns(found):
            for name, entry in self._entries(each, requests).items():
                judged_entry = specs.setdefault(name, {}).get(entry.key)
                policy = judged_entry.policy if judged_entry is not None else None
                specs[name][entry.key] = with_fields(entry, policy=policy) if policy is not None else entry
        return {name: tuple(each for _, each in sorted(spec.items())) for name, spec in specs.items()}

    def _entries(self, found: WorkloadDispatch, known: Mapping[str, OfferRequest]) -> dict[str, OfferedWorkload]:
        """Its entry on each worker that has one."""
        if not found.state.is_active:
            return {}
        request, metadata = self._request(found, known), found.waiting.workload.metadata
        names = dict.fromkeys(found.times)
        if request is not None:
            names |= dict.fromkeys(each.name for each in found.ranking.askable)
        may = found.reclaims if may_reclaim(found.reclaims, found.holders) else ""
        plain = OfferedWorkload(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, request=request)
        return {
            name: with_fields(plain, reclaim=name == may, nominated_at=_seconds(found.times[name]))
            if name in found.times
            else plain
            for name in names
        }

    def _request(self, found: WorkloadDispatch, known: Mapping[str, OfferRequest]) -> OfferRequest | None:
        """None where it is not asked about."""
        uid, workload = found.waiting.uid, found.waiting.workload
        if not found.state.is_asked:
            return None
        self._requests[uid] = known.get(uid) or OfferRequest(
            queue_name=workload.spec.queue_name,
            priority=workload.spec.priority or 0,
            created_at=workload.metadata.creation_timestamp,
            pod_sets=workload.spec.pod_sets,
        )
        return self._requests[uid]


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; other tasks get the event loop now and then."""
    turns = Turns()
    for count, each in enumerate(items, start=1):
        yield each
        if count % _WORKLOADS_PER_TURN == 0:
            await turns.give_way()


def _seconds(at: datetime) -> datetime:
    """As the API keeps times."""
    return at.astimezone(UTC).replace(microsecond=0)
