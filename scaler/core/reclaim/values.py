"""What a reclaim plan is made from, and what comes of it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from scaler.core.budgets import Exhausted
from scaler.core.costs import Cost
from scaler.core.grants import Seeks
from scaler.core.placement import Capacity, Placement
from scaler.core.quota.amounts import FlavorResource
from scaler.core.quota.model import PodSetAssignment, Workload
from scaler.core.quota.roster import World
from scaler.core.quota.simulation import Simulation
from scaler.core.quota.tree import Tree
from scaler.core.reclaim.forecast import Forecast, forecast
from scaler.core.scopes import Member
from scaler.core.victims import Limits


class Why(StrEnum):
    """Why there is no plan. The reason of Events, metrics and `pending`."""

    FITS_ALREADY = "FitsAlready"
    """Kueue will admit it without anybody's being suspended, as soon as what is under way has ended."""
    NEVER_FITS = "NeverFits"
    """No flavor that it may use could ever hold it."""
    NOT_ENOUGH_IDLE = "NotEnoughIdle"
    HEAD_OF_LINE_BLOCKED = "HeadOfLineBlocked"
    """Its queue is StrictFIFO, and who stands before it would not get in either."""
    PLACEMENT_IMPOSSIBLE = "PlacementImpossible"
    """The quota would do, but the free GPUs would not be where its pods need them."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    WOULD_BE_TAKEN_BY_OTHER = "WouldBeTakenByOther"
    """Whatever is freed goes to somebody before it."""
    WOULD_PREEMPT_OTHERS = "WouldPreemptOthers"
    """Kueue would preempt Workloads that nobody has asked to give anything."""
    UNPROTECTED = "Unprotected"
    """It would fit, but whoever comes meanwhile may take a piece, and settings refuse that risk."""
    QUEUE_STOPPED = "QueueStopped"
    """Its queue admits nothing at all."""
    UNFORESEEABLE = "Unforeseeable"
    """Its scheduling cannot be foreseen, such as that of a Workload with a topology request."""
    NOT_FOUND = "NotFound"
    """Nothing was found in as many steps as a search may take; there may be a plan."""


_NOTHING: Mapping[str, int] = MappingProxyType({})
Marked = Mapping[str, Mapping[str, frozenset[str]]]
"""By mark of which a node takes one pod, and key of the Workload: the nodes that have such pods, and keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An idle Workload that may be suspended."""

    workload: str
    """Key of its Workload."""
    name: str
    """`namespace/name` of its ScalableWorkload."""
    gpus: int
    cost: Cost
    member: Member
    """Itself, as budgets count it."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The tree that the gang waits in, as it stands. Nothing here is changed by planning."""

    tree: Tree
    pending: Mapping[str, Sequence[Workload]]
    """By ClusterQueue, the gang included."""
    world: World
    fair_sharing: bool
    now: datetime
    capacity: Capacity | None = None
    """Free amounts of the nodes; None where nodes are not known, and then only quota is planned for."""
    marked: Marked = field(default_factory=dict)
    """Of all Workloads that hold quota, whatever their tree."""
    _forecasts: dict[frozenset[str], Forecast] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def simulation(self) -> Simulation:
        """From here on, for all gangs of the tree. Fork it."""
        return Simulation(
            self.tree,
            self.pending,
            flavors=self.world.market.flavors,
            ignore_undeclared=self.world.market.ignore_undeclared,
            namespaces=self.world.namespaces,
            local_queue=self.world.local_queue,
            now=self.now,
            fair_sharing=self.fair_sharing,
            strategies=self.world.strategies,
        )

    def forecast(self, leaving: frozenset[str]) -> Forecast:
        """What comes of it if nobody is suspended but those who leave anyway."""
        known = self._forecasts.get(leaving)
        if known is None:
            known = self._forecasts[leaving] = forecast(self.simulation, leaving)
        return known

    def closed_to(self, marks: Iterable[str], gone: Collection[str]) -> frozenset[str]:
        """Nodes that take no pod with any of these marks, although those of these Workloads have gone."""
        keepers = (nodes for mark in marks for key, nodes in self.marked.get(mark, {}).items() if key not in gone)
        return frozenset().union(*keepers)

    def before(self, gang: Workload) -> list[Workload]:
        """Who waits in line before the gang in its ClusterQueue, the first one first."""
        queue = self.tree.queues[self.world.home(gang)].spec
        waiting = self.pending.get(queue.name, ())
        ahead = (each for each in waiting if each.may_queue and _place(each) < _place(gang))
        return sorted((each for each in ahead if self.world.admits_namespace(queue, each.namespace)), key=_place)


def _place(workload: Workload) -> tuple[object, ...]:
    """Its place in line."""
    return -workload.priority, workload.queued_at, workload.uid


def in_order(workloads: Iterable[Workload]) -> tuple[str, ...]:
    """Their keys in the order in which queues take them."""
    return tuple(each.key for each in sorted(workloads, key=_place))


Refusal = Callable[[Collection[Member]], Exhausted | None]
"""The budget that does not let all of these be suspended, and why; None where all do.

Whoever is refused is refused with others, too, and members of one place can stand for each other.
"""


def nothing_refused(_: Collection[Member]) -> Exhausted | None:
    """Where there are no budgets."""
    return None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One gang that waits, and who could make place for it."""

    gang: Workload
    scene: Scene
    candidates: Sequence[Candidate] = ()
    leaving: frozenset[str] = frozenset()
    """Keys of Workloads that are being suspended anyway: what they hold counts as free soon."""
    refuse: Refusal = nothing_refused
    limits: Limits = field(default_factory=lambda: Limits(steps=20_000, questions=60, members=64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another set of victims, and what is to be said of it."""

    victims: tuple[str, ...]
    """Names, as in `Candidate.name`."""
    cost: int
    why_not: Why | None
    """None: it would do, and costs more."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Necessity:
    """Why one victim of a plan cannot be left out."""

    victim: str
    """Its name, as in `Candidate.name`."""
    why: Why
    """What would be said of the plan without it."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """What may go wrong with a plan that is sound as things stand."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Whom to suspend, all together, so that the gang gets in."""

    id: str
    """Equal for equal victims of the same gang."""
    gang: str
    gang_uid: str
    cluster_queue: str
    victims: tuple[Candidate, ...]
    cost: int
    """In thousandths, as in `core/costs.py`."""
    free_before: Mapping[FlavorResource, int]
    """What the gang's queue could get without the plan, of the flavor resources that it will use. None of a plan for
    nodes: the gang has its quota."""
    free_after: Mapping[FlavorResource, int]
    takes: Mapping[FlavorResource, int]
    """What the gang will take of them."""
    assignments: tuple[PodSetAssignment, ...]
    placement: Placement | None
    """Where its pods fit; None where nodes are not known."""
    others: tuple[str, ...] = ()
    """Workloads that get in before it."""
    is_exact: bool = True
    """Whether no cheaper plan exists; else none was found in as many steps as a search may take."""
    alternatives: tuple[Alternative, ...] = ()
    cautions: tuple[Caution, ...] = ()
    necessities: tuple[Necessity, ...] = ()
    """One for every victim."""
    seeks: Seeks = Seeks.QUOTA
    check: str = ""
    """Name of the AdmissionCheck that holds the gang back, of a plan for nodes."""
    missing: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """By PodSet, the pods that lack nodes even so, and for which some are provisioned. None of a plan for quota."""

    @property
    def gpus(self) -> int:
        """GPUs that the victims give up."""
        return sum(victim.gpus for victim in self.victims)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """Nobody is suspended, and why."""

    gang: str
    why: Why
    message: str
    budget: str = ""
    """Name of the one that forbids it; empty where none does."""
    alternatives: tuple[Alternative, ...] = ()
    is_exact: bool = True
