"""Would the gang get in, and stay, if exactly these were suspended? The costly question, asked of one set at a time.

The cycles of Kueue are simulated with the set gone, until everything is at rest. A set is accepted if

* the gang is admitted, and not preempted again: in a cohort whose queues reclaim what they lend, an owner that waits
  may take back at once what the gang has borrowed;
* nobody is preempted on the way whom Kueue would not preempt in any case;
* its pods fit the nodes, together with those of whoever got in before it, and beside those that they keep away from.

A trial ends early where that is no longer possible. What budgets say is not asked here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from scaler.core.placement import Capacity, Demand, Placement, Rooms, beside, demand_of, fits, place
from scaler.core.quota.cycle import Cycle
from scaler.core.quota.model import Strategy, Workload
from scaler.core.quota.simulation import Ending, Limits, Run, Simulation
from scaler.core.reclaim.forecast import Entry, entry_of
from scaler.core.reclaim.values import Request, Why, in_order

_SHOWN = 3
"""Names in one message."""
_CYCLES = 5_000
"""Of one trial: more than the Workloads that wait in any queue."""
_HEADS = 8_000
"""Heads that all the trials for one plan look at: some 0.3 s of computing in a tree of a hundred queues."""
_DEARER = 2
"""Times as much a head takes where candidates for preemption are sought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one set."""

    why: Why | None
    """Why it is not accepted; None where it is."""
    message: str = ""
    gang: Workload | None = None
    """With its reservation, where it got in."""
    others: tuple[str, ...] = ()
    """Who got in before it."""
    placement: Placement | None = None


class Trials:
    """All trials for one request. None is made twice."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._gang = request.gang.key
        self._queue = request.scene.world.home(request.gang)
        self._forecast = request.scene.forecast(request.leaving)
        self._capacity = free_capacity(request)
        self._known: dict[frozenset[str], Trial] = {}
        self._left = _HEADS

    @property
    def are_spent(self) -> bool:
        """Whether they have taken as long as they may for one plan."""
        return self._left <= 0

    @property
    def are_foreseen(self) -> bool:
        """Whether all have come to an end."""
        return all(each.why is not Why.UNFORESEEABLE for each in self._known.values())

    def allow(self, heads: int) -> None:
        """Let further trials look at so many heads."""
        self._left = heads

    def of(self, keys: frozenset[str]) -> Trial:
        """What comes of suspending the Workloads of these keys."""
        known = self._known.get(keys)
        if known is None:
            known = self._known[keys] = self._try(keys)
        return known

    def accept(self, keys: frozenset[str]) -> bool:
        """Whether they are enough."""
        return self.of(keys).why is None

    @property
    def nobody(self) -> Trial:
        """What comes of suspending nobody."""
        return self.of(frozenset())

    @property
    def made(self) -> Mapping[frozenset[str], Trial]:
        return self._known

    def does_later(self, keys: frozenset[str]) -> bool:
        """Whether it would do as well once Kueue has done what it is about to do anyway."""
        simulation, run = self._run(self._forecast.rest, keys)
        preempted = {each.workload.key for cycle in run.cycles for each in cycle.preempted}
        return simulation.holder(self._gang) is not None and preempted <= self._forecast.preempted

    def _try(self, keys: frozenset[str]) -> Trial:
        if not keys:
            return self._judged(keys, self._forecast.rest, self._forecast.run)
        return self._judged(keys, *self._run(self._forecast.start, keys))

    def _run(self, start: Simulation, keys: frozenset[str]) -> tuple[Simulation, Run]:
        simulation = start.fork()
        simulation.deactivate(sorted(keys))
        limits = Limits(preemptions=3 * len(self._forecast.preempted) + 10, cycles=_CYCLES)
        run = simulation.run(until=self._is_decided(simulation), limits=limits)
        heads = sum(len(cycle.considered) for cycle in run.cycles)
        self._left -= heads * (_DEARER if self._forecast.may_preempt else 1)
        return simulation, run

    def _is_decided(self, simulation: Simulation) -> Callable[[Cycle], bool]:
        """Whether more cycles cannot change the verdict: the gang is in for good, or lost, or somebody suffers for it.

        A Workload that was set aside comes back in line only when somebody has let go of quota. Where Kueue preempts
        nobody in any case, whoever might do so later is one that may not.
        """
        unavoidable = self._forecast.preempted
        tolerated = unavoidable - {self._gang}

        def is_decided(cycle: Cycle) -> bool:
            if any(each.workload.key not in tolerated for each in cycle.preempted):
                return True
            if any(each.key == self._gang for each in cycle.admitted):
                return not self._forecast.may_preempt
            return not unavoidable and not simulation.asks_for_retry and simulation.is_aside(self._gang)

        return is_decided

    # --------------------------------------------------------------------------------------------------------- verdict

    def _judged(self, keys: frozenset[str], simulation: Simulation, run: Run) -> Trial:
        entry = entry_of(self._gang, run.cycles, self._forecast.ending)
        trial = self._judged_by_quota(keys, simulation, run, entry)
        return trial if entry is None or trial.why is not None else self._placed(keys, trial, entry)

    def _judged_by_quota(self, keys: frozenset[str], simulation: Simulation, run: Run, entry: Entry | None) -> Trial:
        others = in_order(entry.others.values()) if entry is not None else ()
        found = Trial(why=None, gang=entry.holder if entry is not None else None, others=others)
        preempted = [each for cycle in run.cycles for each in cycle.preempted]
        for each in preempted:
            if each.workload.key == self._gang:
                message = f"Kueue would take the quota back from the gang, for {each.by}"
                return replace(found, why=Why.WOULD_BE_TAKEN_BY_OTHER, message=message)
        for each in preempted if keys else ():
            if each.workload.key not in self._forecast.preempted:
                message = f"Kueue would preempt {each.workload.key} for {each.by}"
                return replace(found, why=Why.WOULD_PREEMPT_OTHERS, message=message)
        if run.ending is Ending.CAPPED:
            message = f"Kueue would not come to rest within {len(run.cycles)} cycles"
            return replace(found, why=Why.UNFORESEEABLE, message=message)
        if entry is None:
            why, message = self._why_waiting(simulation, run)
            return replace(found, why=why, message=message)
        return found

    def _why_waiting(self, simulation: Simulation, run: Run) -> tuple[Why, str]:
        """Why the gang does not get in, as far as a run tells."""
        came = {each.key for cycle in run.cycles for each in cycle.admitted}
        ahead = self._ahead(came)
        if ahead:
            return Why.HEAD_OF_LINE_BLOCKED, (
                f"ClusterQueue {self._queue} is StrictFIFO and Workload {ahead} stands before the gang, "
                "which would not get in either"
            )
        reason = simulation.reason(self._gang)
        waits = f"Kueue would leave the gang waiting ({reason})" if reason else "Kueue would not come to the gang"
        takers = [each.key for cycle in run.cycles for each in cycle.admitted if self._is_new(each.key)]
        if takers:
            return Why.WOULD_BE_TAKEN_BY_OTHER, f"what is freed would go to {named(takers)} first; {waits}"
        return Why.NOT_ENOUGH_IDLE, waits

    def _is_new(self, key: str) -> bool:
        return key not in self._forecast.admitted

    def _ahead(self, came: Collection[str]) -> str:
        """Who stands before the gang in a StrictFIFO queue and does not get in; empty where nobody does."""
        scene = self._request.scene
        if scene.tree.queues[self._queue].spec.strategy is not Strategy.STRICT_FIFO:
            return ""
        ahead = (each for each in scene.before(self._request.gang) if each.key not in came)
        return next((each.key for each in ahead), "")

    # ----------------------------------------------------------------------------------------------------------- nodes

    def _placed(self, keys: frozenset[str], trial: Trial, entry: Entry) -> Trial:
        """Place the gang beside the others. Of those who have no room themselves, only as many pods as have."""
        if self._capacity is None:
            return trial
        gone = keys | entry.gone
        capacity = self._capacity.without(gone)
        own = list(self._demands(entry.holder, "", gone))
        others = [list(self._demands(each, f"{each.key}/", gone)) for each in entry.others.values()]
        found = place([*own, *chain.from_iterable(others)], capacity)
        if others and not isinstance(found, Placement):
            others = [demands if fits(demands, capacity) else as_far_as_room(demands, capacity) for demands in others]
            found = place([*own, *chain.from_iterable(others)], capacity)
        if isinstance(found, Placement):
            return replace(trial, placement=found)
        beside_whom = f"beside {named(trial.others)}, who get in first: " if others and fits(own, capacity) else ""
        return replace(trial, why=Why.PLACEMENT_IMPOSSIBLE, message=f"{beside_whom}{found.message}")

    def _demands(self, workload: Workload, prefix: str, gone: frozenset[str]) -> Iterable[Demand]:
        """What its pods need of the nodes, with the flavors that they got. Two Workloads may name PodSets alike."""
        scene, away = self._request.scene, gone | self._request.leaving | {workload.key}
        flavors = scene.world.market.flavors
        pod_sets = {each.name: each for each in workload.pod_sets}
        for assignment in workload.held.assignments:
            chosen = [flavors[name] for name in sorted(set(assignment.flavors.values())) if name in flavors]
            demand = demand_of(pod_sets[assignment.name], chosen, count=assignment.count)
            demand = beside(demand, scene.closed_to(demand.nodes.apart, away))
            yield replace(demand, pod_set=f"{prefix}{demand.pod_set}")


def as_far_as_room(demands: Iterable[Demand], capacity: Capacity) -> list[Demand]:
    """The pods that have room, PodSet by PodSet, each taken for itself."""
    rooms = [(each, Rooms([each], capacity).room(each)) for each in demands]
    return [replace(each, count=min(each.count, room)) for each, room in rooms if room]


def free_capacity(request: Request) -> Capacity | None:
    """What nodes have free once those under way are gone; None where nodes are not known."""
    capacity = request.scene.capacity
    return capacity.once_ended().without(request.leaving) if capacity is not None else None


def named(names: Collection[str]) -> str:
    """The first of them in words: `a, b, c and 4 more`."""
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
