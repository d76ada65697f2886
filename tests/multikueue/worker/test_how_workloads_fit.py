"""How a Workload of the hub would fit here: as the planner says of the copy once it is there."""

from dataclasses import replace
from typing import Any

import pytest
from builders import policy
from hypothesis import given, settings
from hypothesis import strategies as st
from multikueue.worker.offer_world import OfferWorld, asks, pod_set
from quota_builders import (
    GPU,
    NOW,
    cluster_queue,
    cohort,
    gpu,
    holding,
    local_queue,
    preempting,
    workload,
)
from quota_builders import pod_set as quota_pod_set
from reclaim_builders import nodes_with

from scaler.idleness.policy import Limit
from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.worker.fit import FitAnswer
from scaler.quota.model import (
    FlavorResource,
    PreemptionPolicy,
    QueueingStrategy,
    Quota,
    QuotaAdmissionCheck,
    QuotaResourceGroup,
    StopPolicy,
)
from scaler.quota.watch import NotSynced
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.reclaim.search.values import NoPlan, PlanRequest, ReclaimPlan


def shown(found: FitAnswer) -> tuple[Fit, int | None, tuple[str, ...], int | None]:
    return found.fit, found.cost, found.victims, found.free_after


# ------------------------------------------------------------------------------------------------------------ the table


async def test_what_is_free_now_is_free() -> None:
    world = OfferWorld([cluster_queue(gpus=8)], [holding("runs", gpus=3)])
    found = await world.fit(asks(pods=4))
    assert shown(found) == (Fit.FREE, None, (), 1)  # 8 - 3 - 4


async def test_what_idle_workloads_hold_is_reclaimed_at_the_cost_of_the_plan() -> None:
    world = OfferWorld([cluster_queue(gpus=8)], [holding("idle", gpus=4), holding("busy", gpus=2)])
    world.quota.idle("idle")
    entry = asks(pods=4)
    found = await world.fit(entry)
    (candidate,) = (await world.look()).candidates
    assert shown(found) == (Fit.RECLAIM, candidate.cost.total, ("team/idle",), 2)  # 8 - 2 - 4


async def test_nobody_is_suspended_for_one_that_asks_for_no_gpus() -> None:
    cpu = QuotaResourceGroup(resources=frozenset({GPU, "cpu"}), flavors=("default",))
    quotas = {gpu(): Quota(nominal=4), FlavorResource("default", "cpu"): Quota(nominal=4000)}
    idle = holding("idle", pod_sets=(quota_pod_set(requests={GPU: 4, "cpu": 4000}),))
    world = OfferWorld([cluster_queue(groups=(cpu,), quotas=quotas)], [idle])
    world.quota.idle("idle")
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    assert (await world.fit(asks(pod_sets=[pod_set(containers=[container])]))).fit is Fit.WAIT
    both = {"name": "main", "resources": {"requests": {"cpu": "1", GPU: "1"}}}
    assert (await world.fit(asks("gpus", pod_sets=[pod_set(containers=[both])]))).fit is Fit.RECLAIM


async def test_requests_that_are_alike_are_answered_alike() -> None:
    world = OfferWorld([cluster_queue(gpus=4)])
    found = await world.fits.answers(await world.look(), [asks("one", pods=3), asks("two", pods=3)])
    assert len({shown(each) for each in found.values()}) == 1
    assert [each.fit for each in found.values()] == [Fit.FREE, Fit.FREE]


IDLE, BUSY = holding("idle", gpus=4), holding("busy", gpus=4)
PREEMPTING = preempting(within=PreemptionPolicy.LOWER_PRIORITY)
STRICT = cluster_queue(gpus=8, strategy=QueueingStrategy.STRICT_FIFO)
LOW = holding("low", gpus=4, priority=-10)
WAITS: dict[str, tuple[Any, list[Any], dict[str, Any], str]] = {
    "busy workloads hold it": (cluster_queue(gpus=4), [BUSY], {}, "NotEnoughIdle"),
    "there is no pressure": (cluster_queue(gpus=4), [IDLE], {"policy": ReclaimConfig(pressure=False)}, ""),
    "settings refuse the plan": (
        cluster_queue(gpus=4),
        [IDLE],
        {"policy": ReclaimConfig(unprotected=Unprotected.REFUSE)},
        "Unprotected",
    ),
    "Kueue would preempt for it": (cluster_queue(gpus=4, preemption=PREEMPTING), [LOW], {}, "preempt team/low"),
    "a copy is the newest, as the API server dates it": (STRICT, [BUSY, workload("first", gpus=8)], {}, "team/first"),
    "quota is free, and no node has room": (
        cluster_queue(gpus=8),
        [BUSY],
        {"capacity": lambda: nodes_with({"n": 4}, {"n": {BUSY: 4}})},
        "PlacementImpossible",
    ),
}


@pytest.mark.parametrize(("queue", "holders", "options", "why"), WAITS.values(), ids=WAITS)
async def test_it_waits_where(queue: Any, holders: list[Any], options: dict[str, Any], why: str) -> None:
    world = OfferWorld([queue], holders, **options)
    if IDLE in holders:
        world.quota.idle("idle")
    found = await world.fit(asks(pods=4))
    assert (found.fit, why in found.message) == (Fit.WAIT, True)


async def test_an_exhausted_budget_lets_it_wait() -> None:
    world = OfferWorld([cluster_queue(gpus=4)], [IDLE])
    world.quota.judged_by = policy(suspended_at_once=Limit())
    world.quota.idle("idle")
    found = await world.fit(asks(pods=4))
    assert (found.fit, "BudgetExhausted" in found.message) == (Fit.WAIT, True)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        pytest.param(asks(pods=9), "NeverFits", id="it exceeds all quota"),
        pytest.param(asks(queue="gone"), "QueueStopped", id="its LocalQueue does not exist"),
        pytest.param(asks(queue="held"), "QueueStopped", id="its LocalQueue is stopped"),
        pytest.param(asks(queue="stopped"), "QueueStopped", id="its ClusterQueue is stopped"),
    ],
)
async def test_never(entry: Any, why: str) -> None:
    queues = [cluster_queue(gpus=8), cluster_queue("stopped", gpus=8, stop_policy=StopPolicy.HOLD)]
    held = local_queue("held", "a", stop_policy=StopPolicy.HOLD)
    world = OfferWorld(queues, local_queues=[local_queue("a"), local_queue("stopped"), held])
    found = await world.fit(entry)
    assert found.fit is Fit.NEVER
    assert why in found.message


async def test_a_queue_that_goes_on_is_asked_again() -> None:
    world = OfferWorld([cluster_queue(gpus=8, stop_policy=StopPolicy.HOLD)])
    assert (await world.fit(asks())).fit is Fit.NEVER
    world.quota.snapshot.put(cluster_queue(gpus=8))
    assert (await world.fit(asks())).fit is Fit.FREE


async def test_what_is_being_suspended_is_free_soon_and_costs_nothing() -> None:
    world = OfferWorld([cluster_queue(gpus=4)], [holding("leaving", gpus=4)])
    world.quota.scaled("leaving", replicas=0)
    found = await world.fit(asks(pods=4))
    assert shown(found) == (Fit.RECLAIM, 0, (), 0)


# ---------------------------------------------------------------------------------------------------------------- nodes


def on_nodes(gpus: dict[str, int], held: Any = None, **fields: Any) -> dict[str, Any]:
    return {"capacity": lambda: nodes_with(gpus, held or {}, **fields)}


async def test_pods_that_terminate_are_not_free_yet() -> None:
    gone = holding("gone", gpus=4)
    nodes = nodes_with({"n": 4}, {"n": {gone: 4}}, terminating={gone})
    world = OfferWorld([cluster_queue(gpus=4)], capacity=lambda: nodes)
    found = await world.fit(asks(pods=4))
    assert shown(found) == (Fit.RECLAIM, 0, (), 0)


async def test_nodes_are_not_free_that_pods_with_quota_are_about_to_take() -> None:
    world = OfferWorld([cluster_queue(gpus=16)], [holding("starts", gpus=8)], **on_nodes({"m": 4, "n": 8}))
    assert (await world.fit(asks("small", pods=4))).fit is Fit.FREE
    found = await world.fit(asks("large", pods=5))
    assert found.fit is Fit.WAIT
    assert "pods of others that have quota" in found.message


async def test_where_nodes_are_not_seen_it_is_unknown() -> None:
    world = OfferWorld([cluster_queue(gpus=4)], capacity=lambda: NotSynced("nodes are not listed"))
    assert (await world.fit(asks())).fit is Fit.UNKNOWN


async def test_where_an_autoscaler_adds_nodes_they_are_looked_at_all_the_same() -> None:
    world = OfferWorld([cluster_queue(gpus=8)], policy=ReclaimConfig(consider_nodes=False), **on_nodes({"n": 4}))
    assert (await world.fit(asks(pods=4))).fit is Fit.FREE
    assert (await world.fit(asks("large", pods=8))).fit is Fit.NODES


def provisioned(world: OfferWorld, check: str, *, ours: bool) -> None:
    controller = "idlegpu.io/reclaim" if ours else "kueue.x-k8s.io/provisioning-request"
    world.quota.snapshot.put(QuotaAdmissionCheck(name=check, controller=controller, active=True))
    if ours:
        world.quota.planning.checks_with_provisioning = lambda: frozenset({check})
        world.fits.checks_with_reuse = lambda: frozenset({check})


@pytest.mark.parametrize("ours", [True, False])
async def test_an_admission_check_requests_the_nodes_that_lack(ours: bool) -> None:
    world = OfferWorld([cluster_queue(gpus=8, checks=frozenset({"nodes"}))], **on_nodes({"n": 4}))
    provisioned(world, "nodes", ours=ours)
    assert (await world.fit(asks(pods=4))).fit is Fit.FREE
    found = await world.fit(asks("large", pods=8))
    assert (found.fit, found.message) == (Fit.NODES, "AdmissionCheck nodes requests nodes")


@pytest.mark.parametrize("ours", [True, False])
async def test_new_nodes_do_not_help_where_quota_lacks(ours: bool) -> None:
    world = OfferWorld(
        [cluster_queue(gpus=8, checks=frozenset({"nodes"}))], [holding("busy", gpus=4)], **on_nodes({"n": 4})
    )
    provisioned(world, "nodes", ours=ours)
    assert (await world.fit(asks(pods=8))).fit is Fit.WAIT


async def test_idle_workloads_on_nodes_are_reused_before_nodes_are_requested() -> None:
    idle = holding("idle", gpus=4)
    world = OfferWorld(
        [cluster_queue(gpus=8, checks=frozenset({"nodes"}))], [idle], **on_nodes({"n": 4}, {"n": {idle: 4}})
    )
    world.quota.idle("idle")
    provisioned(world, "nodes", ours=True)
    assert (await world.fit(asks(pods=4))).victims == ("team/idle",)
    world.fits.checks_with_reuse = frozenset
    assert (await world.fit(asks("other", pods=4))).fit is Fit.NODES


async def test_a_plan_for_quota_that_needs_nodes_besides_says_both() -> None:
    idle = holding("idle", gpus=4)
    world = OfferWorld(
        [cluster_queue(gpus=4, checks=frozenset({"nodes"}))], [idle], **on_nodes({"m": 2, "n": 2}, {"n": {idle: 2}})
    )
    world.quota.idle("idle")
    provisioned(world, "nodes", ours=True)
    found = await world.fit(asks(pods=2, gpus=2))
    assert found.fit is Fit.RECLAIM  # both nodes are free then
    found = await world.fit(asks("wide", pods=1, gpus=4))
    assert found.fit is Fit.NODES
    assert "suspends team/idle" in found.message


# -------------------------------------------------------------------------------------------------- the copy, once here


async def test_the_real_copy_is_answered_for_once_it_is_here() -> None:
    world = OfferWorld([cluster_queue(gpus=8)], [holding("idle", gpus=4), holding("busy", gpus=4)])
    world.quota.idle("idle")
    entry = asks(pods=4)
    before = await world.fit(entry)
    world.arrives(entry)
    assert await world.fit(entry) == before


async def test_a_copy_with_a_plan_is_being_served() -> None:
    world = OfferWorld([cluster_queue(gpus=4)], [holding("idle", gpus=4)])
    entry = asks(pods=4)
    copy = world.arrives(entry)
    world.nominates(entry)
    world.quota.granted(copy, "idle")
    found = await world.fit(entry)
    assert (found.fit, found.cost, found.victims) == (Fit.RECLAIM, 0, ("team/idle",))


async def test_a_copy_that_lost_its_nomination_is_not_being_served() -> None:
    world = OfferWorld([cluster_queue(gpus=4)], [holding("idle", gpus=4)])
    entry = asks(pods=4)
    world.quota.granted(world.arrives(entry), "idle")
    assert (await world.fit(entry)).fit is Fit.WAIT  # its victim is not to be had before the plan has ended


async def test_a_copy_with_quota_is_free() -> None:
    world = OfferWorld([cluster_queue(gpus=8)])
    entry = asks(pods=4)
    copy = world.arrives(entry)
    held = holding("gang", gpus=4)
    world.quota.snapshot.put(replace(copy, reservation=held.reservation, admitted=True))
    assert shown(await world.fit(entry)) == (Fit.FREE, None, (), 4)


async def test_another_workload_of_that_name_is_not_taken_for_the_copy() -> None:
    world = OfferWorld([cluster_queue(gpus=8)], [holding("gang", gpus=1)])
    found = await world.fit(asks("gang"))
    assert found.fit is Fit.UNKNOWN
    assert "another Workload" in found.message


# ---------------------------------------------------------------------------------------------------- malformed entries


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(asks(pod_sets=()), id="no PodSet"),
        pytest.param(asks(pods=0), id="no pod"),
        pytest.param(asks(pods=-3), id="fewer than none"),
        pytest.param(asks(pods=10**12), id="more pods than there are"),
        pytest.param(asks(gpus="many"), id="an amount that is none"),
        pytest.param(asks(pod_sets=[pod_set(resourceClaims=[{"name": "gpu"}])]), id="devices are claimed"),
    ],
)
async def test_what_cannot_be_read_is_unknown_and_harms_no_other(entry: Any) -> None:
    world = OfferWorld([cluster_queue(gpus=8)])
    good = asks("good")
    found = await world.fits.answers(await world.look(), [entry, good])
    assert [each.fit for each in found.values()] == [Fit.UNKNOWN, Fit.FREE]
    assert all(each.message for each in found.values())


async def test_what_breaks_the_planner_is_unknown_and_harms_no_other() -> None:
    world = OfferWorld([cluster_queue(gpus=8)])
    faults = iter([ZeroDivisionError("planning broke")])

    def checks() -> frozenset[str]:
        for each in faults:
            raise each
        return frozenset()

    world.quota.planning.checks_with_provisioning = checks
    bad, good = asks("bad", priority=1), asks("good")
    found = await world.fits.answers(await world.look(), [bad, good])
    assert [each.fit for each in found.values()] == [Fit.UNKNOWN, Fit.FREE]


# ----------------------------------------------------------------------------------------------------- turns and memory


async def test_what_there_is_no_time_for_is_unknown_and_first_the_next_time() -> None:
    world = OfferWorld([cluster_queue(gpus=8)])
    world.fits.patience *= 0
    entries = [asks(name) for name in ("a", "b", "c")]
    answered = []
    for turn in range(3):
        state = await world.look()
        world.quota.put(holding(f"runs-{turn}"))  # the state changes: no answer of before is given again
        found = await world.fits.answers(state, entries)
        answered += [key[1] for key, each in found.items() if each.fit is not Fit.UNKNOWN]
    assert answered == ["a", "b", "c"]


async def test_an_answer_of_another_state_is_never_given_again() -> None:
    world = OfferWorld([cluster_queue(gpus=4)])
    entry, other = asks("gang", pods=4), asks("other", priority=1)
    assert (await world.fit(entry)).fit is Fit.FREE
    world.quota.put(holding("came", gpus=4))
    world.fits.patience *= 0
    found = await world.fits.answers(await world.look(), [entry, other])
    assert found["team", "gang", "hub-gang"].fit is Fit.UNKNOWN


async def test_an_unchanged_state_is_not_asked_about_twice() -> None:
    world = OfferWorld([cluster_queue(gpus=4)])
    entry, other = asks("gang", pods=4), asks("other")
    world.fits.patience *= 0
    for _ in range(2):
        await world.fits.answers(await world.look(), [entry, other])
    found = await world.fits.answers(await world.look(), [entry, other])
    assert {each.fit for each in found.values()} == {Fit.FREE}


# -------------------------------------------------------------------------------------------------------------- the law


@st.composite
def worlds(draw: st.DrawFn) -> tuple[OfferWorld, Any]:
    names = draw(st.sampled_from([("a",), ("a", "b"), ("a", "b", "c")]))
    preemption = preempting(
        within=draw(st.sampled_from([PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY])),
        reclaim=draw(st.sampled_from([PreemptionPolicy.NEVER, PreemptionPolicy.ANY])),
    )
    strategy = draw(st.sampled_from(QueueingStrategy))
    queues = [
        cluster_queue(name, gpus=draw(st.integers(0, 8)), cohort="team", preemption=preemption, strategy=strategy)
        for name in names
    ]
    sizes = st.integers(1, 4)
    holders = [
        holding(f"runs-{n}", gpus=draw(sizes), queue=draw(st.sampled_from(names)), priority=draw(st.integers(0, 2)))
        for n in range(draw(st.integers(0, 5)))
    ]
    waiting = [
        workload(f"waits-{n}", gpus=draw(sizes), queue=draw(st.sampled_from(names)), priority=draw(st.integers(0, 2)))
        for n in range(draw(st.integers(0, 3)))
    ]
    fields: dict[str, Any] = {"cohorts": [cohort()]}
    if draw(st.booleans()):
        spread = {f"n{number}": {each: sum(each.held.usage.values())} for number, each in enumerate(holders)}
        nodes = nodes_with({f"n{number}": draw(st.integers(2, 6)) for number in range(6)}, spread)
        fields["capacity"] = lambda: nodes
    world = OfferWorld(queues, [*holders, *waiting], **fields)
    idle = [each.name for each in holders if draw(st.booleans())]
    if idle:
        world.quota.idle(*idle)
    entry = asks(
        pods=draw(st.integers(1, 4)), gpus=draw(st.integers(1, 3)), queue=names[0], priority=draw(st.integers(0, 2))
    )
    return world, entry


@settings(max_examples=60, deadline=None)
@given(worlds())
async def test_the_answer_is_what_the_planner_says_once_the_copy_is_there(given_world: tuple[OfferWorld, Any]) -> None:
    world, entry = given_world
    before = await world.fit(entry)
    copy = world.arrives(entry)
    assert await world.fit(entry) == before
    world.nominates(entry)
    assert await world.fit(entry) == before

    state = await world.look()
    request = world.quota.planning.request(state, copy)
    assert isinstance(request, PlanRequest)
    plan = await world.quota.planning.plan(state, copy)
    match before.fit:
        case Fit.FREE:
            assert isinstance(plan, NoPlan)
            assert plan.why == "FitsAlready"
        case Fit.RECLAIM if before.victims:
            assert isinstance(plan, ReclaimPlan)
            assert (before.cost, before.victims) == (plan.cost, tuple(each.name for each in plan.victims))
        case Fit.RECLAIM:
            assert isinstance(plan, NoPlan)
            assert plan.why == "FitsAlready"
        case _:
            assert isinstance(plan, NoPlan)
    assert before.free_after is None or before.free_after >= 0
    assert state.now == NOW
