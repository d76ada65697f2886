"""Is the gang admitted, and does it stay, if exactly these are suspended? The costly question, asked set by set.

Kueue's cycles are simulated with the set gone, until nothing changes any more. A set is accepted if

* the gang is admitted, and not preempted again: in a cohort whose queues reclaim what they lend, an owner that waits
  may take back at once what the gang has borrowed;
* Kueue preempts no Workload on the way that it would not preempt in any case;
* no remote copy for which nothing may be suspended is admitted before it with what is freed;
* its pods fit on nodes, together with those of the Workloads that are admitted before it, and apart from those to which
  they have an anti-affinity.

A simulation ends early where that is no longer possible. Budgets are not asked here.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import chain

from scaler.placement.capacity import Capacity
from scaler.placement.fit import Placement, fits, place
from scaler.placement.node_index import NodeDemand, demand_of, excluding
from scaler.placement.pod_slots import PodSlots
from scaler.quota.cycle import SchedulingCycle
from scaler.quota.forecast import PredictedAdmission, predicted_admission_of
from scaler.quota.model import QueueingStrategy, QuotaWorkload
from scaler.quota.simulation import Simulation, SimulationEnd, SimulationLimits, SimulationRun
from scaler.reclaim.search.values import NoPlanReason, PlanRequest, in_order

_SHOWN = 3
"""Names in one message."""
_CYCLES = 5_000
"""Cycles of one simulation: more than the Workloads that wait in any queue."""
_HEADS = 8_000
"""Heads that all the simulations for one plan look at: some 0.3 s of computing in a tree of a hundred queues."""
_DEARER = 2
"""Times as much a head takes where candidates for preemption are sought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAdmission:
    why: NoPlanReason | None
    """Why it is not accepted; None where it is."""
    message: str = ""
    gang: QuotaWorkload | None = None
    """The gang with its reservation; None where it was not admitted."""
    others: tuple[str, ...] = ()
    placement: Placement | None = None


class AdmissionSimulator:
    """All simulations for one request. None is made twice."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._gang = request.gang.key
        self._queue = request.planning_tree.world.cluster_queue_of(request.gang)
        self._forecast = request.planning_tree.forecast(request.leaving)
        self._capacity = free_capacity(request)
        self.made: dict[frozenset[str], SimulatedAdmission] = {}
        self._left = _HEADS

    @property
    def are_spent(self) -> bool:
        return self._left <= 0

    @property
    def are_foreseen(self) -> bool:
        return all(each.why is not NoPlanReason.UNFORESEEABLE for each in self.made.values())

    def allow(self, heads: int) -> None:
        self._left = heads

    def of(self, keys: frozenset[str]) -> SimulatedAdmission:
        if keys not in self.made:
            self.made[keys] = self._simulate(keys)
        return self.made[keys]

    def accept(self, keys: frozenset[str]) -> bool:
        return self.of(keys).why is None

    def _simulate(self, keys: frozenset[str]) -> SimulatedAdmission:
        if not keys:
            return self._outcome(keys, self._forecast.rest, self._forecast.run)
        return self._outcome(keys, *self._run(self._forecast.start, keys))

    def _run(self, start: Simulation, keys: frozenset[str]) -> tuple[Simulation, SimulationRun]:
        simulation = start.fork()
        simulation.deactivate(sorted(keys))
        limits = SimulationLimits(preemptions=3 * len(self._forecast.preempted) + 10, cycles=_CYCLES)
        run = simulation.run(until=self._is_decided(simulation), limits=limits)
        heads = sum(len(cycle.considered) for cycle in run.cycles)
        self._left -= heads * (_DEARER if self._forecast.may_preempt else 1)
        return simulation, run

    def _is_decided(self, simulation: Simulation) -> Callable[[SchedulingCycle], bool]:
        """Whether more cycles change nothing: the gang stays admitted, or cannot be, or another is preempted.

        A Workload that was set aside is queued again only after quota was released. Where Kueue preempts none in any
        case, quota can only be released by a preemption that is not accepted.
        """
        unavoidable = self._forecast.preempted
        tolerated = unavoidable - {self._gang}

        def is_decided(cycle: SchedulingCycle) -> bool:
            if any(each.workload.key not in tolerated for each in cycle.preempted):
                return True
            if any(each.key == self._gang for each in cycle.admitted):
                return not self._forecast.may_preempt
            return not unavoidable and not simulation.asks_for_retry and simulation.is_inadmissible(self._request.gang)

        return is_decided

    # --------------------------------------------------------------------------------------------------------- verdict

    def _outcome(self, keys: frozenset[str], simulation: Simulation, run: SimulationRun) -> SimulatedAdmission:
        entry = predicted_admission_of(self._gang, run.cycles, self._forecast.ending)
        found = self._by_quota(keys, simulation, run, entry)
        return found if entry is None or found.why is not None else self._placed(keys, found, entry)

    def _by_quota(
        self, keys: frozenset[str], simulation: Simulation, run: SimulationRun, entry: PredictedAdmission | None
    ) -> SimulatedAdmission:
        others = in_order(entry.others.values()) if entry is not None else ()
        found = SimulatedAdmission(why=None, gang=entry.holder if entry is not None else None, others=others)
        preempted = [each for cycle in run.cycles for each in cycle.preempted]
        for each in preempted:
            if each.workload.key == self._gang:
                message = f"Kueue would take the quota back from the gang, for {each.by}"
                return replace(found, why=NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, message=message)
        for each in preempted if keys else ():
            if each.workload.key not in self._forecast.preempted:
                message = f"Kueue would preempt {each.workload.key} for {each.by}"
                return replace(found, why=NoPlanReason.WOULD_PREEMPT_OTHERS, message=message)
        if run.ending is SimulationEnd.CAPPED:
            message = f"Kueue would not reach a stable state within {len(run.cycles)} cycles"
            return replace(found, why=NoPlanReason.UNFORESEEABLE, message=message)
        if entry is None:
            why, message = self._why_waiting(simulation, run)
            return replace(found, why=why, message=message)
        copies = [key for key in others if key in self._request.copies - self._forecast.admitted] if keys else []
        if copies:
            message = (
                f"what is freed would go to {named(copies)} first, a remote copy that may start on another cluster"
            )
            return replace(found, why=NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, message=message)
        return found

    def _why_waiting(self, simulation: Simulation, run: SimulationRun) -> tuple[NoPlanReason, str]:
        """Why the gang is not admitted, as far as a run tells."""
        came = [each.key for cycle in run.cycles for each in cycle.admitted]
        ahead = self._ahead(frozenset(came))
        if ahead:
            return NoPlanReason.HEAD_OF_LINE_BLOCKED, (
                f"ClusterQueue {self._queue} is StrictFIFO and Workload {ahead} is queued before the gang, "
                "which would not be admitted either"
            )
        reason = simulation.reason(self._request.gang)
        waits = f"Kueue would leave the gang waiting ({reason})" if reason else "Kueue would not come to the gang"
        takers = [key for key in came if key not in self._forecast.admitted]
        if takers:
            return NoPlanReason.WOULD_BE_TAKEN_BY_OTHER, f"what is freed would go to {named(takers)} first; {waits}"
        return NoPlanReason.NOT_ENOUGH_IDLE, waits

    def _ahead(self, came: Collection[str]) -> str:
        """Which Workload is queued before the gang in a StrictFIFO queue and is not admitted; empty where none is."""
        planning_tree = self._request.planning_tree
        if planning_tree.tree.queues[self._queue].spec.strategy is not QueueingStrategy.STRICT_FIFO:
            return ""
        ahead = (each for each in planning_tree.before(self._request.gang) if each.key not in came)
        return next((each.key for each in ahead), "")

    # ----------------------------------------------------------------------------------------------------------- nodes

    def _placed(self, keys: frozenset[str], found: SimulatedAdmission, entry: PredictedAdmission) -> SimulatedAdmission:
        """Place the gang beside the others. Of those that do not fit themselves, only as many pods as do."""
        if self._capacity is None:
            return found
        gone = keys | entry.gone
        capacity = self._capacity.without(gone)
        own = list(self._demands(entry.holder, "", gone))
        others = [list(self._demands(each, f"{each.key}/", gone)) for each in entry.others.values()]
        placed = place([*own, *chain.from_iterable(others)], capacity)
        if others and not isinstance(placed, Placement):
            others = [demands if fits(demands, capacity) else as_far_as_room(demands, capacity) for demands in others]
            placed = place([*own, *chain.from_iterable(others)], capacity)
        if isinstance(placed, Placement):
            return replace(found, placement=placed)
        beside = f"beside {named(found.others)}, which are admitted first: " if others and fits(own, capacity) else ""
        return replace(found, why=NoPlanReason.PLACEMENT_IMPOSSIBLE, message=f"{beside}{placed.message}")

    def _demands(self, workload: QuotaWorkload, prefix: str, gone: frozenset[str]) -> Iterable[NodeDemand]:
        """What its pods need of the nodes, in their flavors. Two Workloads may name PodSets alike."""
        planning_tree, away = self._request.planning_tree, gone | self._request.leaving | {workload.key}
        flavors = planning_tree.world.flavor_options.flavors
        pod_sets = {each.name: each for each in workload.pod_sets}
        for assignment in workload.held.assignments:
            chosen = [flavors[name] for name in sorted(set(assignment.flavors.values())) if name in flavors]
            demand = demand_of(pod_sets[assignment.name], chosen, count=assignment.count)
            demand = excluding(demand, planning_tree.closed_to(demand.nodes.apart, away))
            yield replace(demand, pod_set=f"{prefix}{demand.pod_set}")


def as_far_as_room(demands: Iterable[NodeDemand], capacity: Capacity) -> list[NodeDemand]:
    """The pods that fit, PodSet by PodSet, each taken for itself."""
    slots = [(each, PodSlots([each], capacity).room(each)) for each in demands]
    return [replace(each, count=min(each.count, room)) for each, room in slots if room]


def free_capacity(request: PlanRequest) -> Capacity | None:
    """What nodes have free once terminating pods and leaving Workloads are gone; None where it is not known."""
    capacity = request.planning_tree.capacity
    return capacity.once_ended().without(request.leaving) if capacity is not None else None


def named(names: Collection[str]) -> str:
    """The first of them in words: `a, b, c and 4 more`."""
    shown = ", ".join(list(names)[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
