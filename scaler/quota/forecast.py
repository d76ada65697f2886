"""What will Kueue do if no further workload is suspended? Found once for a tree, for all gangs that wait in it.

Laws:

* A Workload that Kueue preempts in any case is not harmed by a plan. No other may be.
* `most_available` bounds what a plan can achieve: every Workload that may lose quota without being a victim has lost it
  there, and none was admitted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from scaler.quota.cycle import SchedulingCycle
from scaler.quota.model import PreemptionPolicy, QuotaWorkload
from scaler.quota.simulation import Simulation, SimulationEnd, SimulationLimits, SimulationRun
from scaler.quota.tree import Tree

_CYCLES = 2_000
"""A tree that does not come to rest in so many cycles (half an hour of Kueue's time) is not planned in."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The course of things without a plan."""

    start: Simulation
    """The quota before any cycle, the evictions under way done. Fork it."""
    run: SimulationRun
    rest: Simulation
    """The quota after the run. Fork it."""

    @property
    def comes_to_rest(self) -> bool:
        """Whether the outcome is known: all at rest, or a circle that will go on for ever."""
        return self.run.ending is not SimulationEnd.CAPPED

    @cached_property
    def changes(self) -> bool:
        """Whether Kueue is about to do anything by itself."""
        return bool(self.preempted or self.admitted or self.ending)

    @cached_property
    def may_preempt(self) -> bool:
        """Whether any Workload in the tree could ever be preempted."""
        never = PreemptionPolicy.NEVER
        policies = [queue.spec.preemption for queue in self.start.tree.scheduling]
        return any(
            each.within_cluster_queue is not never or each.reclaim_within_cohort is not never for each in policies
        )

    @cached_property
    def preempted(self) -> frozenset[str]:
        """Keys of the Workloads that Kueue preempts in any case."""
        return frozenset(each.workload.key for cycle in self.run.cycles for each in cycle.preempted)

    @cached_property
    def admitted(self) -> frozenset[str]:
        """Keys of the Workloads that get in in any case."""
        return frozenset(each.key for cycle in self.run.cycles for each in cycle.admitted)

    @cached_property
    def ending(self) -> frozenset[str]:
        """Keys of the Workloads whose eviction is under way: they lose their quota, and may come back."""
        return frozenset(each.key for each in self.start.holders if each.evicted)

    @cached_property
    def most_available(self) -> Tree:
        """The tree with more room than any plan but its victims can make. Clone it to change it."""
        return without(self.start.tree, self.preempted | self.ending)


def forecast(simulation: Simulation, leaving: frozenset[str]) -> Forecast:
    """What comes of the simulation with some Workloads gone. It is only read, and may be the forecast's start."""
    gone = sorted(key for key in leaving if key in simulation)
    start = simulation.fork() if gone else simulation
    start.deactivate(gone)
    limits = SimulationLimits(preemptions=3 * sum(1 for _ in start.holders) + 10, cycles=_CYCLES)
    rest = start.fork()
    return Forecast(start=start, run=rest.run(limits=limits), rest=rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedAdmission:
    """How one Workload got in."""

    holder: QuotaWorkload
    """The gang with its reservation."""
    others: Mapping[str, QuotaWorkload]
    """The Workloads admitted before it or with it that hold quota at that moment. By key."""
    gone: frozenset[str]
    """The Workloads that had lost quota by then."""


def predicted_admission_of(
    gang: str, cycles: tuple[SchedulingCycle, ...], ending: frozenset[str]
) -> PredictedAdmission | None:
    """How the Workload of that key first got in; None where it did not."""
    came: dict[str, QuotaWorkload] = {}
    gone: set[str] = set()
    for cycle in cycles:
        came |= {each.key: each for each in cycle.admitted}
        holder = came.pop(gang, None)
        for key in _losers(cycle, ending):
            came.pop(key, None)
            gone.add(key)
        if holder is not None:
            return PredictedAdmission(holder=holder, others=came, gone=frozenset(gone))
    return None


def _losers(cycle: SchedulingCycle, ending: frozenset[str]) -> Iterator[str]:
    """The Workloads that lose quota right after the cycle."""
    yield from (each.workload.key for each in cycle.preempted)
    if cycle.number == 0:
        yield from ending


def without(tree: Tree, keys: frozenset[str]) -> Tree:
    """The tree with these Workloads gone."""
    after = tree.clone()
    for queue in after.queues.values():
        for key in [each for each in queue.workloads if each in keys]:
            queue.release(queue.workloads[key])
    return after
