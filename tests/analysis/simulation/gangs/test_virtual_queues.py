from datetime import timedelta

from gang_builders import at, job
from hypothesis import given, settings
from hypothesis import strategies as st
from scaler_analysis.simulation.gangs.virtual_queues import VirtualQueues, gpus_of

from scaler.quota.model import QuotaWorkload
from scaler.reclaim.costs import CostWeights, cost_of
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import Candidate, NoPlan, PlanRequest


def test_a_workload_holds_the_quota_of_all_its_gpus_or_none():
    queues = VirtualQueues({"default": 6})
    for each in (job("first", 1, gpus=4), job("second", 1, gpus=3, created=1)):
        queues.enqueue(each)

    assert queues.admit(at(1)) == ["first"]
    assert list(queues.workload("first").held.usage.values()) == [4]
    assert [each.name for each in queues.waiting] == ["second"]


def test_what_is_released_is_given_to_the_next():
    queues = VirtualQueues({"default": 4})
    queues.enqueue(job("first", 1))
    queues.admit(at(0))
    queues.enqueue(job("second", 1, created=1))

    assert queues.admit(at(1)) == []
    queues.release("first")
    assert queues.admit(at(2)) == ["second"]
    assert queues.workload("first") is None


def test_one_that_comes_back_has_the_place_that_its_age_gives_it():
    queues = VirtualQueues({"default": 4})
    queues.enqueue(job("younger", 1, created=5))
    queues.enqueue(job("older", 1))

    assert queues.admit(at(6)) == ["older"]


def test_anything_that_comes_goes_or_gets_quota_makes_another_version():
    queues = VirtualQueues({"default": 4})
    versions = [queues.version]
    for act in (
        lambda: queues.enqueue(job("large", 1, gpus=5)),
        lambda: queues.enqueue(job("small", 1, created=3)),
        lambda: queues.admit(at(3)),
        lambda: queues.release("small"),
        lambda: queues.release("large"),
    ):
        act()
        versions.append(queues.version)

    assert len(set(versions)) == len(versions)
    assert queues.admit(at(4)) == []
    assert queues.version == versions[-1]
    assert (queues.free, queues.waiting) == (4, [])


QUOTA = {"a": 6, "b": 4}


@st.composite
def busy(draw: st.DrawFn) -> VirtualQueues:
    """Two queues of one cohort in which some hold quota and others wait."""
    queues = VirtualQueues(QUOTA)
    for place in range(draw(st.integers(1, 14))):
        gpus, queue = draw(st.integers(1, 6)), draw(st.sampled_from(sorted(QUOTA)))
        priority = draw(st.integers(0, 1))
        queues.enqueue(job(f"job-{place:02}", 1, gpus=gpus, created=place, queue=queue, priority=priority))
        if draw(st.booleans()):
            queues.admit(at(place))
    for name in draw(st.sets(st.sampled_from(_holders(queues)))) if _holders(queues) else ():
        queues.release(name)
    return queues


def _holders(queues: VirtualQueues) -> list[str]:
    known = (queues.workload(f"job-{place:02}") for place in range(14))
    return [each.name for each in known if each is not None and each.reservation is not None]


@given(busy())
def test_what_is_admitted_is_what_the_engine_admits_with_every_workload_that_holds_quota(queues):
    run = queues.planning_tree(at(20), _holders(queues)).forecast(frozenset()).run
    admitted = [each.name for cycle in run.cycles for each in cycle.admitted]

    assert queues.admit(at(20)) == admitted
    assert queues.admit(at(21)) == []


@settings(deadline=None)
@given(busy(), st.data())
def test_there_is_no_plan_where_free_and_idle_gpus_are_too_few_and_the_same_plan_with_every_workload_that_holds_quota(
    queues, data
):
    queues.admit(at(20))
    holders = _holders(queues)
    idle = data.draw(st.lists(st.sampled_from(holders), unique=True)) if holders else []
    candidates = [_candidate(queues.workload(each)) for each in idle]
    room = queues.free + sum(each.gpus for each in candidates)
    for gang in queues.waiting:
        few, all_of_them = (
            plan_reclaim(PlanRequest(gang=gang, planning_tree=tree, candidates=candidates))
            for tree in (queues.planning_tree(at(20), idle), queues.planning_tree(at(20), holders))
        )
        assert few == all_of_them
        assert isinstance(few, NoPlan) or gpus_of(gang) <= room


def _candidate(workload: QuotaWorkload) -> Candidate:
    gpus, hour = gpus_of(workload), timedelta(hours=1)
    return Candidate(
        workload=workload.key,
        name=workload.name,
        gpus=gpus,
        cost=cost_of(CostWeights(), gpus=gpus, worked=hour * (gpus % 3), idle=hour),
        cluster_queue=workload.held.cluster_queue,
    )
