"""Would the gang get in if exactly these were suspended? The costly question, asked of one set at a time.

The cycles of Kueue are simulated with the set gone, until the gang is admitted or will not be. Then its pods are
placed, together with those of whoever got in before it. A set is accepted only if nobody outside it has to suffer.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from scaler.core.placement import Capacity, Demand, Placement, demand_of, place
from scaler.core.quota.cycle import Cycle
from scaler.core.quota.model import Strategy, Workload
from scaler.core.quota.simulation import Simulation
from scaler.core.reclaim.values import Request, Why


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
    preempted: frozenset[str] = frozenset()


class Trials:
    """All trials for one request. None is made twice."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._gang = request.gang
        self._queue = request.scene.world.home(request.gang)
        self._base = request.scene.simulation.fork()
        self._base.deactivate(sorted(request.leaving))
        capacity = request.scene.capacity
        self._capacity = capacity.without(request.leaving) if capacity is not None else None
        self._known: dict[frozenset[str], Trial] = {}
        self._members = {each.workload: each.member for each in request.candidates}
        self._tolerated: frozenset[str] = frozenset()
        self.nobody = self.of(frozenset())
        self._tolerated = self.nobody.preempted
        """Whom Kueue preempts in any case."""

    def of(self, keys: frozenset[str]) -> Trial:
        """What comes of suspending the Workloads of these keys."""
        known = self._known.get(keys)
        if known is None:
            known = self._known[keys] = self._try(keys)
        return known

    @property
    def made(self) -> Mapping[frozenset[str], Trial]:
        return self._known

    def _try(self, keys: frozenset[str]) -> Trial:
        simulation = self._base.fork()
        simulation.deactivate(sorted(keys))
        run = simulation.run(until=lambda cycle: self._is_decided(simulation, cycle))
        preempted = frozenset(each.workload.key for cycle in run.cycles for each in cycle.preempted)
        harmed = sorted(preempted - self._tolerated)
        holder = simulation.holder(self._gang.key)
        if holder is None:
            return Trial(why=Why.NOT_ENOUGH_IDLE, message=self._why_waiting(simulation), preempted=preempted)
        if harmed and keys:
            message = f"Kueue would preempt {', '.join(harmed)} for it or for others"
            return Trial(why=Why.WOULD_PREEMPT_OTHERS, message=message, gang=holder, preempted=preempted)
        before = [each for cycle in run.cycles for each in cycle.admitted if each.key != self._gang.key]
        return self._placed(keys, holder, before, preempted)

    def _is_decided(self, simulation: Simulation, cycle: Cycle) -> bool:
        """Whether the gang is in, or set aside with nobody under way to give anything back."""
        if any(each.key == self._gang.key for each in cycle.admitted):
            return True
        spec = simulation.tree.queues[self._queue].spec
        is_aside = spec.strategy is Strategy.BEST_EFFORT_FIFO and simulation.reason(self._gang.key) is not None
        return is_aside and not cycle.decided

    def _why_waiting(self, simulation: Simulation) -> str:
        reason = simulation.reason(self._gang.key)
        return f"Kueue would leave it waiting ({reason})" if reason else "Kueue would not come to look at it"

    def _placed(
        self, keys: frozenset[str], holder: Workload, before: Collection[Workload], preempted: frozenset[str]
    ) -> Trial:
        others = tuple(each.key for each in before)
        placement = None
        if self._capacity is not None:
            demands = [demand for each in (holder, *before) for demand in self._demands(each)]
            found = place(demands, self._capacity.without(keys))
            if not isinstance(found, Placement):
                return Trial(
                    why=Why.PLACEMENT_IMPOSSIBLE, message=found.message, gang=holder, others=others, preempted=preempted
                )
            placement = found
        refusal = self._request.refuse([self._members[key] for key in sorted(keys)]) if keys else ""
        return Trial(
            why=Why.BUDGET_EXHAUSTED if refusal else None,
            message=refusal,
            gang=holder,
            others=others,
            placement=placement,
            preempted=preempted,
        )

    def _demands(self, workload: Workload) -> Iterable[Demand]:
        """What its pods need of the nodes, with the flavors that they got."""
        flavors = self._request.scene.world.market.flavors
        pod_sets = {each.name: each for each in workload.pod_sets}
        for assignment in workload.held.assignments:
            chosen = sorted(set(assignment.flavors.values()))
            demand = demand_of(
                pod_sets[assignment.name], [flavors[name] for name in chosen if name in flavors], count=assignment.count
            )
            # Two Workloads may name their PodSets alike.
            yield demand if workload.key == self._gang.key else _of_another(demand, workload)


def _of_another(demand: Demand, workload: Workload) -> Demand:
    return Demand(
        pod_set=f"{workload.key}/{demand.pod_set}", count=demand.count, requests=demand.requests, nodes=demand.nodes
    )


def free_capacity(request: Request) -> Capacity | None:
    """What nodes have free once those under way are gone; None where nodes are not known."""
    capacity = request.scene.capacity
    return capacity.without(request.leaving) if capacity is not None else None
