"""Plans for nodes: what holds of every one in every small world, and who is suspended in plain cases."""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from builders import NOON
from hypothesis import assume, given
from hypothesis import strategies as st
from placement.placement_builders import demand, full, node, occupant, on
from quota_builders import holding
from reclaim.search.search_inputs import PLENTY, budgets, cost
from reclaim_builders import forbids

from scaler.kube.scheduling import ANYWHERE
from scaler.placement.capacity import BoundPod, Capacity, PodPlacement, capacity_of
from scaler.placement.node_index import NodeDemand, NodeInfo
from scaler.placement.requests import Blocked, Fits, PlacementRequest, ReservationQueue
from scaler.placement.requests import BlockedReason as Waiting
from scaler.placement.reservations import place_in_order
from scaler.reclaim.budget import BudgetedWorkload, BudgetExhausted, no_budgets
from scaler.reclaim.costs import Cost
from scaler.reclaim.search.node_problem import NodePlanRequest, plan_nodes, revalidate_nodes
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, ReclaimPlan
from scaler.targets.target_state import Seeks

GANG = "team/gang"
HOLDER = holding("gang", queue="cq")


def claim(name: str, *demands: NodeDemand, after: int = 0, **more: object) -> PlacementRequest:
    """A gang that got its quota so many seconds after noon."""
    at = NOON + timedelta(seconds=after)
    return PlacementRequest(key=f"team/{name}", uid=f"uid-{name}", demands=demands, at=at, **more)  # type: ignore[arg-type]


def idle(name: str, cost: int = 1, *, gpus: int = 1, queue: str = "cq") -> Candidate:
    """The Workload of that name, and its ScalableWorkload `team/scale-…`."""
    return Candidate(
        workload=name,
        name=f"team/scale-{name}",
        gpus=gpus,
        cost=Cost(total=cost, parts=(("gpus", cost),), idle_divisor=1.0),
        cluster_queue=queue,
        budgets=(queue,),
    )


def asked(
    capacity: Capacity,
    *demands: NodeDemand,
    idlers: Iterable[Candidate] = (),
    before: Iterable[PlacementRequest] = (),
    held: Iterable[PlacementRequest] = (),
    overdue: Sequence[PodPlacement] = (),
    **fields: object,
) -> NodePlanRequest:
    """A gang that has had its quota for a minute; `before` got theirs at noon."""
    waiting = (*before, claim("gang", *demands, after=60))
    line = ReservationQueue(capacity=capacity, held=tuple(held), waiting=waiting, overdue=tuple(overdue))
    return NodePlanRequest(
        gang=HOLDER,
        check="gate",
        queue=line,
        candidates=tuple(idlers),
        **fields,  # type: ignore[arg-type]
    )


def victims(found: ReclaimPlan | NoPlan) -> list[str]:
    assert isinstance(found, ReclaimPlan), found
    return [each.workload for each in found.victims]


def refusal(found: ReclaimPlan | NoPlan) -> NoPlanReason:
    assert isinstance(found, NoPlan), found
    return found.why


# ---------------------------------------------------------------------------------------------------------- plain cases


def test_who_holds_the_node_that_is_lacking_goes_and_others_stay() -> None:
    capacity = full({"a": 8, "b": 8, "c": 4}, {"a": {"x": 8}, "b": {"busy": 8}, "c": {"y": 4}})
    found = plan_nodes(asked(capacity, demand(1, 8), idlers=[idle("x", 9), idle("y", 1)]))
    assert victims(found) == ["x"]
    assert isinstance(found, ReclaimPlan)
    assert (found.seeks, found.check, found.cost, found.is_exact) == (Seeks.NODES, "gate", 9, True)
    assert found.placement is not None
    assert [(seat.node, seat.pods) for seat in found.placement.placements] == [("a", 1)]
    assert [each.victim for each in found.necessities] == ["team/scale-x"]


def test_nobody_goes_for_a_part_of_a_gang_unless_nodes_are_provisioned_for_the_rest() -> None:
    """The example of the module, with z at work: x and y make place for one pod more, of the two that lack one."""
    capacity = full({"a": 8, "b": 8}, {"a": {"x": 2, "y": 2}, "b": {"z": 8}})
    idlers = [idle("x", 3), idle("y", 3)]
    request = asked(capacity, demand(3, 4), idlers=idlers)
    assert victims(plan_nodes(asked(capacity, demand(3, 4), idlers=[*idlers, idle("z", 9)]))) == ["z"]
    assert refusal(plan_nodes(request)) is NoPlanReason.NOT_ENOUGH_IDLE
    part = plan_nodes(replace(request, may_provision=True))
    assert victims(part) == ["x", "y"]
    assert isinstance(part, ReclaimPlan)
    assert part.missing == {"workers": 1}
    assert [each.reason for each in part.cautions] == ["NodesMissing"]


def test_pods_on_their_way_may_take_the_place_that_is_freed_and_are_waited_for() -> None:
    """x holds a, and b has 1 GPU free. The pod of 1 that comes may go to either, once x is gone."""
    coming = claim("coming", demand(1, 1))
    capacity = full({"a": 8, "b": 1}, {"a": {"x": 8}})
    request = asked(capacity, demand(1, 8), idlers=[idle("x")], held=[coming])
    verdict = request.what_if.result({"x"})
    assert isinstance(verdict, Blocked)
    assert (verdict.why, verdict.others) == (Waiting.PODS_COMING, (coming.key,))
    assert victims(plan_nodes(request)) == ["x"]


@pytest.mark.parametrize(("before", "is_known"), [(199, True), (201, False)])
def test_where_too_many_are_before_it_to_ask_what_becomes_of_it_nobody_is_suspended(
    before: int, is_known: bool
) -> None:
    """A round lets 100 go. 100 are promised what is free; 99 of the others leave the gang its turn, and 101 do not."""
    names = [f"n{n}" for n in range(before + 49)]
    capacity = full(dict.fromkeys(names, 1), {"n0": {"x": 1}})
    first = [claim(f"before-{n:03}", demand(1, 1)) for n in range(before)]
    found = plan_nodes(asked(capacity, demand(49, 1), idlers=[idle("x")], before=first))
    if is_known:
        assert victims(found) == ["x"]
    else:
        assert isinstance(found, NoPlan)
        assert "reserved for team/before-100" in found.message


def test_as_many_pods_as_budgets_let_have_places_where_nodes_are_provisioned() -> None:
    capacity = full(dict.fromkeys("abcd", 8), {each: {each: 8} for each in "abcd"})
    idlers = [idle(each) for each in "abcd"]

    def two_at_most(members: Collection[BudgetedWorkload]) -> BudgetExhausted | None:
        return forbids("two at most" if len(members) > 2 else "")

    request = asked(capacity, demand(5, 8), idlers=idlers, refuse=two_at_most, may_provision=True)
    found = plan_nodes(request)
    assert len(victims(found)) == 2
    assert isinstance(found, ReclaimPlan)
    assert found.missing == {"workers": 3}
    refused = plan_nodes(asked(capacity, demand(3, 8), idlers=idlers, refuse=two_at_most))
    assert isinstance(refused, NoPlan)
    assert (refused.why, refused.message, refused.budget) == (NoPlanReason.BUDGET_EXHAUSTED, "two at most", "few")


def test_a_gang_that_will_fit_anyway_costs_nobody_anything() -> None:
    ending = capacity_of([node("a")], [occupant("a", 8, workload="x", terminating=True)])
    assert refusal(plan_nodes(asked(ending, demand(1, 8), idlers=[idle("x")]))) is NoPlanReason.FITS_ALREADY
    leaving = asked(X_ON_A, demand(1, 8), idlers=[idle("x")], leaving=frozenset({"x"}))
    assert refusal(plan_nodes(leaving)) is NoPlanReason.FITS_ALREADY


def test_a_pod_that_should_have_ended_long_ago_is_not_counted_on() -> None:
    pods = [occupant("a", 8, workload="stuck", terminating=True), occupant("b", 8, workload="x")]
    ending = capacity_of([node("a"), node("b")], pods)
    overdue = [PodPlacement("", "a", 1, {"nvidia.com/gpu": 8})]
    assert victims(plan_nodes(asked(ending, demand(1, 8), idlers=[idle("x")], overdue=overdue))) == ["x"]


def test_what_was_promised_to_one_that_was_let_go_is_not_counted() -> None:
    capacity = full({"a": 8, "b": 8}, {"b": {"x": 8}})
    held = [claim("let-go", demand(1, 8))]
    assert victims(plan_nodes(asked(capacity, demand(1, 8), idlers=[idle("x")], held=held))) == ["x"]


def test_why_nobody_goes_is_said_with_numbers() -> None:
    capacity = full({"a": 8}, {"a": {"busy": 8}})
    never = plan_nodes(asked(capacity, demand(1, 16)))
    nobody = plan_nodes(asked(capacity, demand(1, 8)))
    assert refusal(never) is NoPlanReason.NEVER_FITS
    assert refusal(nobody) is NoPlanReason.NOT_ENOUGH_IDLE
    assert "1 of 1 pods does not fit" in nobody.message  # type: ignore[union-attr]
    assert "no idle workload is on nodes" in nobody.message  # type: ignore[union-attr]


ONE, TWO = [demand(1, 8)], [demand(2, 8)]
X_ON_A = full({"a": 8}, {"a": {"x": 8}})
X_BESIDE_BUSY = full({"a": 8}, {"a": {"x": 4, "busy": 4}})
UNSURE = full({"a": 4, "b": 1, "c": 8}, {"a": {"x": 4}, "c": {"busy": 8}})
LARGE_AND_SMALL = [demand(1, 4), demand(1, 1, pod_set="small")]
STILL: dict[str, tuple[Capacity, Sequence[NodeDemand], str, bool, str]] = {
    "it is valid": (X_ON_A, ONE, "x", False, ""),
    "room is there by now": (full({"a": 8, "b": 8}, {"a": {"x": 8}}), ONE, "x", False, "without suspending any"),
    "a victim is gone": (X_BESIDE_BUSY, ONE, "xy", False, "would lack nodes"),
    "one does": (full({"a": 8, "b": 8}, {"a": {"x": 8}, "b": {"y": 8}}), ONE, "xy", False, "without"),
    "one holds nothing any more": (X_ON_A, ONE, "xy", False, "without team/scale-y"),
    "all fit by then, but not for sure": (UNSURE, LARGE_AND_SMALL, "x", True, "only one arrangement"),
    "a part does, with nodes to come": (X_ON_A, TWO, "x", True, ""),
    "no part is gained": (X_BESIDE_BUSY, TWO, "x", True, "no more of its pods"),
}


@pytest.mark.parametrize(("capacity", "demands", "names", "may_provision", "why"), STILL.values(), ids=STILL.keys())
def test_a_plan_is_revalidated_before_it_is_executed(
    capacity: Capacity, demands: Sequence[NodeDemand], names: str, may_provision: bool, why: str
) -> None:
    idlers = [idle(name) for name in names]
    answer = revalidate_nodes(asked(capacity, *demands, idlers=idlers, may_provision=may_provision))
    assert why in answer
    assert bool(answer) == bool(why)


# ----------------------------------------------------------------------------------------------------------------- laws


@st.composite
def requests(draw: st.DrawFn) -> NodePlanRequest:
    """A gang in a small cluster that is mostly full, with up to two who wait longer."""
    nodes = [node(name, draw(st.sampled_from((4, 4, 8))), labels=draw(_ZONES)) for name in "abc"[: draw(_FEW)]]
    pods = [pod for each in nodes for pod in draw(_holders(each))]
    idlers = [
        idle(name, draw(st.integers(1, 4)), queue=draw(st.sampled_from(("cq", "cq", "other"))))
        for name in "xyzuvw"
        if draw(st.integers(0, 4))
    ]
    before = [
        claim(f"before-{n}", *draw(_gangs()), after=n, awaits_nodes=draw(st.booleans()), may_ask=draw(st.booleans()))
        for n in range(draw(st.sampled_from((0, 0, 1, 2))))
    ]
    return asked(
        capacity_of(nodes, pods),
        *draw(_gangs()),
        idlers=idlers,
        before=before,
        refuse=draw(budgets(["other"])),
        limits=PLENTY,
        may_provision=draw(st.booleans()),
        leaving=frozenset(draw(st.sampled_from(((), (), ("w",))))),
    )


_FEW = st.integers(2, 3)
_ZONES = st.sampled_from(({}, {"zone": "a"}, {"zone": "b"}))


@st.composite
def _gangs(draw: st.DrawFn) -> list[NodeDemand]:
    sets = [
        (draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 2, 4)))) for _ in range(draw(st.sampled_from((1, 1, 2))))
    ]
    zones = st.sampled_from((ANYWHERE, ANYWHERE, on({"zone": "a"})))
    return [demand(pods, gpus, pod_set=f"set-{n}", nodes=draw(zones)) for n, (pods, gpus) in enumerate(sets)]


@st.composite
def _holders(draw: st.DrawFn, where: NodeInfo) -> list[BoundPod]:
    """Pods of idle and other Workloads, until the node has little or nothing left."""
    left = where.allocatable["nvidia.com/gpu"] - draw(st.sampled_from((0, 0, 1)))
    pods: list[BoundPod] = []
    while left > 0:
        gpus = min(left, draw(st.sampled_from((1, 2, 4))))
        name, ends = draw(st.sampled_from(("x", "y", "z", "u", "v", "w", "busy"))), draw(st.integers(0, 9)) == 9
        pods.append(occupant(where.name, gpus, workload=name, pod=f"{where.name}-{len(pods)}", terminating=ends))
        left -= gpus
    return pods


class Judge:
    """What is enough, by the definition: a round of promises in a cluster in which these have ended."""

    def __init__(self, request: NodePlanRequest, line: ReservationQueue) -> None:
        self.request, self.line = request, line

    def verdict(self, keys: Collection[str]) -> object:
        gone = self.line.capacity.once_ended().without({*keys, *self.request.leaving})
        return place_in_order(replace(self.line, capacity=gone, overdue=()))[GANG]

    def accepts(self, keys: Collection[str]) -> bool:
        found = self.verdict(keys)
        return isinstance(found, Fits) or (isinstance(found, Blocked) and found.why is Waiting.PODS_COMING)

    def sets(self) -> Iterable[tuple[Candidate, ...]]:
        for size in range(1, len(self.request.candidates) + 1):
            for chosen in combinations(self.request.candidates, size):
                if not self.request.refuse([each.member for each in chosen]):
                    yield chosen

    def least_cost(self) -> int | None:
        costs = (cost(each) for each in self.sets() if self.accepts([one.workload for one in each]))
        return min(costs, default=None)


def line_of(request: NodePlanRequest) -> ReservationQueue:
    line = request.queue
    # Who is promised places before anybody has gone gets just these; the definition would deal them out anew.
    told = place_in_order(replace(line, overdue=()))
    pods = {each.key: sum(pods.count for pods in each.demands) for each in line.waiting}
    assume(not any(isinstance(found, Fits) and pods[key] for key, found in told.items() if key != GANG))
    return line


@given(requests())
def test_the_cost_is_the_least_of_all_sets_by_which_the_gate_would_let_the_gang_go(request: NodePlanRequest) -> None:
    judge, found = Judge(request, line_of(request)), plan_nodes(request)
    if isinstance(found, NoPlan) and found.why is NoPlanReason.FITS_ALREADY:
        assert judge.accepts(())
        return
    assert not judge.accepts(())
    best = judge.least_cost()
    if isinstance(found, NoPlan):
        assert best is None
        return
    assert {each.workload for each in found.victims} <= {each.workload for each in request.candidates}
    assert not request.refuse([each.member for each in found.victims])
    if found.missing:
        assert best is None
        assert request.may_provision
    else:
        assert judge.accepts(victims(found))
        assert (found.cost, cost(found.victims), found.is_exact) == (best, best, True)
        assert not any(judge.accepts([one for one in victims(found) if one != each]) for each in victims(found))


@given(requests())
def test_a_plan_for_a_part_gains_pods_and_no_victim_can_be_left_out(request: NodePlanRequest) -> None:
    found = plan_nodes(replace(request, may_provision=True))
    if not isinstance(found, ReclaimPlan) or not found.missing:
        return
    chosen = frozenset(victims(found))

    def seated(keys: frozenset[str]) -> int:
        return sum(seat.pods for seat in request.what_if.most(keys | request.leaving))

    assert seated(chosen) > seated(frozenset())
    wanted = sum(each.count for each in request.what_if.request.demands)
    assert seated(chosen) == wanted - sum(found.missing.values())
    unbounded = plan_nodes(replace(request, may_provision=True, refuse=no_budgets))
    most = seated(frozenset(each.workload for each in request.candidates))
    assert isinstance(unbounded, ReclaimPlan)
    assert most == wanted or sum(unbounded.missing.values()) <= wanted - most


@given(requests(), st.integers(0, 2**32))
def test_a_plan_is_the_same_in_whatever_order_things_are_given_and_valid(request: NodePlanRequest, seed: int) -> None:
    line = request.queue
    waiting = random.Random(seed).sample(line.waiting, len(line.waiting))
    candidates = random.Random(seed).sample(list(request.candidates), len(request.candidates))
    shuffled = replace(request, queue=replace(line, waiting=tuple(waiting)), candidates=tuple(candidates))
    found = plan_nodes(request)
    assert plan_nodes(shuffled) == found
    if isinstance(found, ReclaimPlan):
        assert revalidate_nodes(replace(request, candidates=found.victims)) == ""
