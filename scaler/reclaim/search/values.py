"""What a reclaim plan is made from, and what comes of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from scaler.placement.capacity import Capacity
from scaler.placement.fit import Placement
from scaler.quota.forecast import Forecast, forecast
from scaler.quota.model import FlavorResource, QuotaPodSetAssignment, QuotaWorkload
from scaler.quota.simulation import Simulation
from scaler.quota.tree import Tree
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.budget import BudgetCheck, BudgetedWorkload, no_budgets
from scaler.reclaim.costs import Cost
from scaler.reclaim.search.problem import DEFAULT_LIMITS, SearchLimits
from scaler.targets.target_state import Seeks


class NoPlanReason(StrEnum):
    """Why there is no plan. The reason of Events, metrics and `pending`."""

    FITS_ALREADY = "FitsAlready"
    """Kueue will admit it without a plan, as soon as current suspensions and evictions have ended."""
    NEVER_FITS = "NeverFits"
    """No flavor that it may use could ever hold it."""
    NOT_ENOUGH_IDLE = "NotEnoughIdle"
    HEAD_OF_LINE_BLOCKED = "HeadOfLineBlocked"
    """Its queue is StrictFIFO, and the Workload before it would not be admitted either."""
    PLACEMENT_IMPOSSIBLE = "PlacementImpossible"
    """The quota would do, but the free GPUs would not be where its pods need them."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    WOULD_BE_TAKEN_BY_OTHER = "WouldBeTakenByOther"
    """What is freed goes to a Workload before it."""
    WOULD_PREEMPT_OTHERS = "WouldPreemptOthers"
    """Kueue would preempt Workloads that are not part of the plan."""
    UNPROTECTED = "Unprotected"
    """It would fit, but a Workload created meanwhile may be admitted first, and settings refuse that risk."""
    QUEUE_STOPPED = "QueueStopped"
    UNFORESEEABLE = "Unforeseeable"
    """Its scheduling cannot be foreseen, such as that of a Workload with a topology request."""
    REMOTE_COPY = "RemoteCopy"
    """It is a remote copy of MultiKueue, and this cluster is not nominated for it."""
    NOT_FOUND = "NotFound"
    """The search reached its limit before it found a plan; there may be one."""


NOT_FOUND = "the search reached its limit before it found a set of victims"
AntiAffinityNodes = Mapping[str, Mapping[str, frozenset[str]]]
"""The nodes that have pods of a mark of which a node takes one, and keep them: by the mark, and key of the Workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    workload: str
    """Key of its Workload."""
    name: str
    """`namespace/name` of its ScalableWorkload."""
    gpus: int
    cost: Cost
    cluster_queue: str
    """The ClusterQueue in which it holds its quota."""
    budgets: tuple[str, ...] = ()
    """Names of those that it has."""
    saved_at: datetime | None = None
    """The time up to which its hook has saved its work; None where nothing is known to be saved."""
    hook_takes: timedelta = timedelta(0)
    """How long its hook may take before it is suspended."""

    @property
    def member(self) -> BudgetedWorkload:
        """Itself, as budgets count it."""
        namespace, _, name = self.name.partition("/")
        return BudgetedWorkload(namespace=namespace, name=name, budgets=self.budgets)


def by_name(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda each: each.name))


@dataclass(frozen=True, kw_only=True)
class PlanningTree:
    """The tree that the gang waits in, as it stands. Nothing here is changed by planning."""

    tree: Tree
    pending: Mapping[str, Sequence[QuotaWorkload]]
    """Pending Workloads by ClusterQueue, the gang included."""
    world: SchedulingContext
    fair_sharing: bool
    now: datetime
    capacity: Capacity | None = None
    """Free amounts of the nodes; None where nodes are not known, and then only quota is planned for."""
    marked: AntiAffinityNodes = field(default_factory=dict)
    """Nodes of all Workloads that hold quota, whatever their tree."""
    _forecasts: dict[frozenset[str], Forecast] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def simulation(self) -> Simulation:
        """A simulation that starts from here, for all gangs of the tree. Fork it."""
        return Simulation(self.tree, self.pending, self.world, now=self.now, fair_sharing=self.fair_sharing)

    def forecast(self, leaving: frozenset[str]) -> Forecast:
        """What comes of it if only those are suspended that are leaving anyway."""
        if leaving not in self._forecasts:
            self._forecasts[leaving] = forecast(self.simulation, leaving)
        return self._forecasts[leaving]

    def closed_to(self, marks: Iterable[str], gone: Collection[str]) -> frozenset[str]:
        """Nodes that take no pod with any of these marks, although those of these Workloads have gone."""
        keepers = (nodes for mark in marks for key, nodes in self.marked.get(mark, {}).items() if key not in gone)
        return frozenset().union(*keepers)

    @cached_property
    def heads(self) -> Mapping[str, QuotaWorkload]:
        """The Workload that is first in line, by ClusterQueue."""
        return self.simulation.heads()

    def _queued(self, queue: str) -> list[QuotaWorkload]:
        """Which Workloads the ClusterQueue may admit, in no order."""
        spec, waiting = self.tree.queues[queue].spec, self.pending.get(queue, ())
        admitted = {each: self.world.admits_namespace(spec, each) for each in {one.namespace for one in waiting}}
        return [each for each in waiting if each.may_queue and admitted[each.namespace]]

    def is_before(self, one: QuotaWorkload, other: QuotaWorkload) -> bool:
        """Whether queues and cycles take the one first, if both borrow alike."""
        return one.place < other.place

    def before(self, gang: QuotaWorkload) -> list[QuotaWorkload]:
        """Which Workloads are queued before the gang in its ClusterQueue, the first one first."""
        ahead = (each for each in self._queued(self.world.cluster_queue_of(gang)) if self.is_before(each, gang))
        return sorted(ahead, key=attrgetter("place"))


def in_order(workloads: Iterable[QuotaWorkload]) -> tuple[str, ...]:
    return tuple(each.key for each in sorted(workloads, key=attrgetter("place")))


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    gang: QuotaWorkload
    planning_tree: PlanningTree
    candidates: Sequence[Candidate] = ()
    leaving: frozenset[str] = frozenset()
    """Keys of Workloads that are being suspended anyway: what they hold counts as free soon."""
    copies: frozenset[str] = frozenset()
    """Keys of remote copies for which nothing may be suspended, and so nothing by which they are admitted first."""
    refuse: BudgetCheck = no_budgets
    limits: SearchLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    victims: tuple[str, ...]
    """Names, as in `Candidate.name`."""
    cost: int
    why_not: NoPlanReason | None
    """The reason why it is not enough; None where it is enough, and costs more."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Necessity:
    victim: str
    """Its name, as in `Candidate.name`."""
    why: NoPlanReason
    """What would be said of the plan without it."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """What may go wrong with a plan that is sound as things stand."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimPlan:
    """Which workloads to suspend, all together, so that the gang is admitted. One for nodes has no amounts of quota:
    the gang has it."""

    id: str
    """Equal for equal victims of the same gang."""
    gang: str
    gang_uid: str
    cluster_queue: str
    victims: tuple[Candidate, ...]
    cost: int
    """The cost in thousandths, as in `reclaim/costs.py`."""
    free_before: Mapping[FlavorResource, int] = field(default_factory=dict)
    """What the gang's queue could get without the plan, of the flavor resources that it will use."""
    free_after: Mapping[FlavorResource, int] = field(default_factory=dict)
    takes: Mapping[FlavorResource, int] = field(default_factory=dict)
    assignments: tuple[QuotaPodSetAssignment, ...] = ()
    placement: Placement | None = None
    """The nodes that its pods fit on; None where nodes are not known."""
    others: tuple[str, ...] = ()
    is_exact: bool = True
    """Whether no cheaper plan exists; else none was found before the search reached its limit."""
    alternatives: tuple[Alternative, ...] = ()
    cautions: tuple[PlanWarning, ...] = ()
    necessities: tuple[Necessity, ...] = ()
    """One for every victim."""
    seeks: Seeks = Seeks.QUOTA
    check: str = ""
    """Name of the AdmissionCheck that is Pending, of a plan for nodes."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """The pods of each PodSet that lack nodes even so, and for which some are provisioned. None of a plan for quota."""

    @property
    def gpus(self) -> int:
        return sum(victim.gpus for victim in self.victims)

    @property
    def hooks_take(self) -> timedelta:
        """How long it may take until the hooks of its victims have ended."""
        return max((victim.hook_takes for victim in self.victims), default=timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    gang: str
    why: NoPlanReason
    message: str
    budget: str = ""
    alternatives: tuple[Alternative, ...] = ()
    is_exact: bool = True
