"""Which idle workloads to suspend so that a gang that has its quota gets nodes: the least costly set, or nobody.

Our AdmissionCheck holds the gang back, as not all of its pods find a node. Quota is not at stake: only places count,
and those who hold them may be idle in whatever queue.

Laws:

* Sufficient: with the victims' pods gone the gate lets the gang go, whole, after all who have their turn before it
  (`core/prospects.py`).
* Necessary: no victim can be left out.
* Whole or nothing. Only where nodes may be provisioned for the rest, and no set of candidates is enough, as many of its
  pods as possible get places, and more than would without the plan: then only what is missing is asked for.
* Idempotent, and nobody is touched who is not a candidate; budgets hold; what ends anyway is counted as gone.

Worked example: a gang of three pods of 4 GPUs; node a has 4 free, and x (2, cost 3) and y (2, cost 3) hold the rest; z
(8, cost 9) holds node b. One pod fits. With z gone all three do, for 9; with x and y two do. Were z busy, nobody would
be suspended; or, with provisioning, x and y, so that nodes are asked for one pod and not for two.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from scaler.core.budgets import Exhausted
from scaler.core.claims import Lacks, Seated, Verdict, Waits
from scaler.core.grants import Seeks
from scaler.core.placement import Capacity, Demand, Misfit, Placement, Rooms, Seat, Shortage
from scaler.core.prospects import Prospect, is_seated
from scaler.core.reclaim.ground import Budgets, VictimGround
from scaler.core.reclaim.needs import room_needs
from scaler.core.reclaim.planning import plan_id
from scaler.core.reclaim.values import Candidate, Caution, Necessity, NoPlan, Plan, Refusal, Why, nothing_refused
from scaler.core.victims import Found, Limits, Option, cheapest

_TURNS = 5_000
"""Of gangs, in all the trials for one plan. Each trial is a round of all who wait longer: on two thousand nodes some 10
ms for the first in line, and 200 ms for the thousandth."""
_FEWEST = 100
"""Turns that a trial counts for at least."""


@dataclass(frozen=True, kw_only=True)
class SeatRequest:
    """One gang that lacks nodes, and who could make place for it."""

    gang: str
    """`namespace/name`."""
    gang_uid: str
    cluster_queue: str
    """Whose quota it holds."""
    check: str
    """Name of the AdmissionCheck that holds it back."""
    prospect: Prospect
    may_lack: bool = False
    """Whether nodes are provisioned for what finds no place."""
    candidates: Sequence[Candidate] = ()
    leaving: frozenset[str] = frozenset()
    """Keys of Workloads whose pods end anyway, or are about to."""
    refuse: Refusal = nothing_refused
    limits: Limits = field(default_factory=lambda: Limits(steps=20_000, questions=60, members=64))


def plan_seats(request: SeatRequest) -> Plan | NoPlan:
    """The plan for the gang, or why there is none."""
    hall = _Hall(request)
    if hall.is_seated(frozenset()):
        return hall.no_plan(Why.FITS_ALREADY, "it fits, or will once those under way have gone")
    found = hall.cheapest(_Whole(hall))
    if found.keys is not None:
        return hall.plan(found, _Whole(hall))
    part = _part(hall) if request.may_lack else None
    return part or hall.refused(is_exact=found.is_exact)


def still_seats(request: SeatRequest, victims: Sequence[Candidate]) -> str:
    """Why suspending just these is not to be done any more; empty where it is. Budgets are not asked again."""
    hall = _Hall(replace(request, candidates=tuple(victims)))
    if hall.is_seated(frozenset()):
        return "the gang fits without anybody's being suspended"
    goal: _Goal = _Whole(hall)
    if not goal.accept(hall.everybody):
        if not request.may_lack:
            return f"the gang would lack nodes: {hall.words(hall.everybody)}"
        goal = _Part(hall, pods=hall.pods(hall.everybody), best=hall.everybody)
        if goal.pods <= hall.pods(frozenset()) or not goal.accept(hall.everybody):
            return f"no more of its pods would find a node: {hall.words(hall.everybody)}"
    needless = [each.name for each in victims if goal.accept(hall.everybody - {each.workload})]
    return f"the gang does as well without {needless[0]}" if needless else ""


# ------------------------------------------------------------------------------------------------------------ the world


class _Hall:
    """One request, with all that is found on the way."""

    def __init__(self, request: SeatRequest) -> None:
        self.request = request
        self.prospect = request.prospect
        self.capacity: Capacity = self.prospect.left.without(request.leaving)
        """The most that is left for it."""
        holders = [each for each in request.candidates if self.capacity.held_by((each.workload,))]
        dearest_first = sorted(holders, key=lambda each: (each.cost.total, each.name), reverse=True)
        self.candidates: Mapping[str, Candidate] = {each.workload: each for each in dearest_first}
        """Those that hold anything, by key of their Workload; of two for one Workload the cheaper one."""
        self._verdicts: dict[frozenset[str], Verdict] = {}
        self._places: dict[frozenset[str], tuple[Seat, ...]] = {}

    @property
    def everybody(self) -> frozenset[str]:
        return frozenset(self.candidates)

    @property
    def is_spent(self) -> bool:
        """Whether its answers have taken as long as they may for one plan."""
        trials = len(self._verdicts) + len(self._places)
        return trials * max(self.prospect.turns, _FEWEST) >= _TURNS

    def verdict(self, keys: frozenset[str]) -> Verdict:
        """What the gate would say with these suspended."""
        known = self._verdicts.get(keys)
        if known is None:
            known = self._verdicts[keys] = self.prospect.verdict(keys | self.request.leaving)
        return known

    def is_seated(self, keys: frozenset[str]) -> bool:
        return is_seated(self.verdict(keys))

    def places(self, keys: frozenset[str]) -> tuple[Seat, ...]:
        """Where as many of its pods as possible would go with these suspended."""
        known = self._places.get(keys)
        if known is None:
            known = self._places[keys] = self.prospect.most(keys | self.request.leaving)
        return known

    def pods(self, keys: frozenset[str]) -> int:
        return sum(seat.pods for seat in self.places(keys))

    @property
    def wanted(self) -> int:
        """All pods that have no place yet."""
        return sum(each.count for each in self.prospect.claim.demands)

    def has_room(self, demands: Sequence[Demand], keys: frozenset[str]) -> bool:
        return self.prospect.has_room(demands, keys | self.request.leaving)

    def words(self, keys: frozenset[str]) -> str:
        return self.verdict(keys).message

    # ------------------------------------------------------------------------------------------------------ the search

    @cached_property
    def budgets(self) -> Budgets:
        return Budgets(self.candidates.values(), self.request.refuse)

    def cheapest(self, goal: "_Goal", *, is_bounded: bool = True) -> Found:
        """The cheapest set that is enough; where it is not bounded, whatever budgets say."""
        keys = sorted(self.candidates)
        needs = room_needs([goal.demands], self.capacity, keys)
        options = [
            Option(
                key=key,
                cost=self.candidates[key].cost.total,
                gains=tuple(need.gains.get(key, 0) for need in needs),
                twin=(self.capacity.gain((key,)), self.candidates[key].member.place),
            )
            for key in keys
        ]
        chosen, hopeful = _Nodes(goal.demands, self.capacity), _Nodes(goal.demands, self.capacity)
        ground = VictimGround(chosen, hopeful, keys, goal, self.budgets if is_bounded else None)
        if not ground.could_fit():
            return Found(keys=None, cost=0, is_exact=True)
        return cheapest(options, tuple(need.amount for need in needs), ground, limits=self.request.limits)

    # ---------------------------------------------------------------------------------------------------- the outcome

    def plan(self, found: Found, goal: "_Goal") -> Plan:
        keys = found.keys or frozenset()
        victims = tuple(sorted((self.candidates[key] for key in keys), key=lambda each: each.name))
        places, missing = goal.outcome(keys)
        return Plan(
            id=plan_id(f"{self.request.gang_uid}/{Seeks.NODES}", [each.name for each in victims]),
            gang=self.request.gang,
            gang_uid=self.request.gang_uid,
            cluster_queue=self.request.cluster_queue,
            victims=victims,
            cost=found.cost,
            free_before={},
            free_after={},
            takes={},
            assignments=(),
            placement=Placement(seats=tuple(sorted(places, key=lambda seat: (seat.pod_set, seat.node)))),
            is_exact=found.is_exact,
            cautions=tuple(_cautions(missing)),
            necessities=tuple(goal.necessity(keys, each) for each in victims),
            seeks=Seeks.NODES,
            check=self.request.check,
            missing=missing,
        )

    def no_plan(self, why: Why, message: str, *, budget: str = "", is_exact: bool = True) -> NoPlan:
        return NoPlan(gang=self.request.gang, why=why, message=message, budget=budget, is_exact=is_exact)

    def refused(self, *, is_exact: bool) -> NoPlan:
        """Why no set of candidates will do."""
        lacks = self.verdict(frozenset())
        if isinstance(lacks, Lacks) and isinstance(lacks.because, Misfit) and lacks.because.never:
            return self.no_plan(Why.NEVER_FITS, lacks.message)
        refusal = self._refusal() if self.budgets.have_refused else None
        if refusal is not None:
            return self.no_plan(Why.BUDGET_EXHAUSTED, refusal.words, budget=refusal.budget, is_exact=is_exact)
        if not self.candidates:
            return self.no_plan(Why.NOT_ENOUGH_IDLE, f"{lacks.message}; nobody is idle on nodes")
        if self.is_seated(self.everybody):
            message = "no set of victims was found in as many steps as a search may take"
            return self.no_plan(Why.NOT_FOUND, message, is_exact=False)
        why = Why.NOT_ENOUGH_IDLE if _is_short(self.verdict(self.everybody)) else Why.PLACEMENT_IMPOSSIBLE
        message = f"{lacks.message}; with every idle workload gone: {self.words(self.everybody)}"
        return self.no_plan(why, message, is_exact=is_exact)

    def _refusal(self) -> Exhausted | None:
        """The budget that forbids the set which would do; None where none would, or none is forbidden."""
        keys = self.cheapest(_Whole(self), is_bounded=False).keys
        return self.request.refuse([self.candidates[key].member for key in sorted(keys)]) if keys is not None else None


def _is_short(verdict: Verdict) -> bool:
    """Whether less is free than is needed, wherever it is."""
    because = verdict.because if isinstance(verdict, Lacks) else None
    return isinstance(because, Misfit) and because.why is Shortage.NOT_ENOUGH_FREE


def _cautions(missing: Mapping[str, int]) -> list[Caution]:
    lacking = ", ".join(f"{count} of PodSet {name}" for name, count in sorted(missing.items()))
    if not lacking:
        return []
    return [Caution(reason="NodesMissing", message=f"for the pods that find no place nodes are asked for: {lacking}")]


class _Nodes:
    """What nodes have free with some candidates gone. A `Side` of the search."""

    def __init__(self, demands: Sequence[Demand], capacity: Capacity) -> None:
        self._rooms = Rooms(demands, capacity)
        self.leave, self.come_back = self._rooms.leave, self._rooms.come_back

    @property
    def could_hold_it(self) -> bool:
        return self._rooms.is_possible


# ------------------------------------------------------------------------------------------------------- what is sought


class _Whole:
    """That the gate lets the whole gang go."""

    def __init__(self, hall: _Hall) -> None:
        self._hall = hall
        self.demands: Sequence[Demand] = hall.prospect.claim.demands

    @property
    def are_spent(self) -> bool:
        return self._hall.is_spent

    def accept(self, keys: frozenset[str]) -> bool:
        return self._hall.is_seated(keys)

    def outcome(self, keys: frozenset[str]) -> tuple[tuple[Seat, ...], Mapping[str, int]]:
        """Its places, and which pods have none."""
        verdict = self._hall.verdict(keys)
        return (verdict.seats if isinstance(verdict, Seated | Waits) else ()), {}

    def necessity(self, keys: frozenset[str], victim: Candidate) -> Necessity:
        verdict = self._hall.verdict(keys - {victim.workload})
        why = Why.NOT_ENOUGH_IDLE if _is_short(verdict) else Why.PLACEMENT_IMPOSSIBLE
        return Necessity(victim=victim.name, why=why, message=f"without it {verdict.message}")


class _Part:
    """That so many of its pods find places, of those that would with the best set gone, and not all of them.

    Where all would, and the gate does not let the gang go even so, nodes are not what is missing.
    """

    def __init__(self, hall: _Hall, *, pods: int, best: frozenset[str]) -> None:
        self._hall = hall
        self.pods = pods
        self.demands: Sequence[Demand] = _first(hall.prospect.claim.demands, hall.places(best), pods)

    @property
    def are_spent(self) -> bool:
        return self._hall.is_spent

    def accept(self, keys: frozenset[str]) -> bool:
        return self._hall.has_room(self.demands, keys) and self.pods <= self._hall.pods(keys) < self._hall.wanted

    def outcome(self, keys: frozenset[str]) -> tuple[tuple[Seat, ...], Mapping[str, int]]:
        places = self._hall.places(keys)
        seated = Counter[str]()
        for seat in places:
            seated[seat.pod_set] += seat.pods
        missing = {each.pod_set: each.count - seated[each.pod_set] for each in self._hall.prospect.claim.demands}
        return places, {name: count for name, count in missing.items() if count > 0}

    def necessity(self, keys: frozenset[str], victim: Candidate) -> Necessity:
        pods = self._hall.pods(keys - {victim.workload})
        message = f"without it {pods} pods would find a node, and not {self.pods}"
        return Necessity(victim=victim.name, why=Why.NOT_ENOUGH_IDLE, message=message)


_Goal = _Whole | _Part


def _first(demands: Sequence[Demand], places: Sequence[Seat], pods: int) -> list[Demand]:
    """So many of the pods that have places, PodSet by PodSet."""
    seated = Counter[str]()
    for seat in places:
        seated[seat.pod_set] += seat.pods
    found = []
    for each in demands:
        count = min(seated[each.pod_set], pods)
        pods -= count
        found.append(replace(each, count=count))
    return found


def _part(hall: _Hall) -> Plan | None:
    """The cheapest plan by which as many of its pods as possible find places; None where none gains any.

    What a larger number of pods needs, a smaller one does with. So the number is found by halving, where budgets or the
    size of plans forbid the largest.
    """
    least, most = hall.pods(frozenset()) + 1, min(hall.pods(hall.everybody), hall.wanted - 1)
    best: tuple[Found, _Part] | None = None
    pods = most
    while least <= pods:
        goal = _Part(hall, pods=pods, best=hall.everybody)
        found = hall.cheapest(goal)
        if found.keys is not None:
            best, least = (found, goal), pods + 1
        else:
            most = pods - 1
        pods = (least + most) // 2 if least < most else most
    return hall.plan(*best) if best is not None else None
