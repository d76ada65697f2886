"""What holds in every world, whatever its jobs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from gang_builders import START, job, run
from hypothesis import given
from hypothesis import strategies as st
from scaler_analysis.simulation.gangs.outcomes import GangPolicy, GangRun
from scaler_analysis.simulation.gangs.report import report_of
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob

QUOTA = {"a": 6, "b": 4}
TOTAL = 10
POLICIES = st.sampled_from(list(GangPolicy))


@st.composite
def jobs(draw: st.DrawFn, *, most_spans: int = 5) -> list[SimulatedJob]:
    number = draw(st.integers(1, 12))
    return [
        job(
            f"job-{place:02}",
            *draw(st.lists(st.integers(1, 180), min_size=1, max_size=most_spans)),
            gpus=draw(st.integers(1, TOTAL)),
            created=draw(st.integers(0, 400)),
            queue=draw(st.sampled_from(sorted(QUOTA))),
            priority=draw(st.integers(0, 1)),
        )
        for place in range(number)
    ]


def _run(given_jobs: Sequence[SimulatedJob], policy: GangPolicy) -> GangRun:
    return run(*given_jobs, policy=policy, quota=QUOTA)


def _gpu_time(course: GangRun, place: int) -> timedelta:
    """Of one of the columns of its counts."""
    return sum((count[place] * (after.at - count.at) for count, after in pairwise(course.counts)), timedelta(0))


@given(jobs(), POLICIES)
def test_what_is_held_never_exceeds_the_quota(given_jobs, policy):
    assert all(0 <= count.worked <= count.held <= TOTAL for count in _run(given_jobs, policy).counts)


@given(jobs(), POLICIES)
def test_every_job_does_all_of_its_work_whole_and_none_twice(given_jobs, policy):
    """What worked, of all jobs together, is what their spans say, whatever was suspended: no gang ran in part."""
    work = sum((each.gpus * sum(each.spans[::2], timedelta(0)) for each in given_jobs), timedelta(0))

    assert _gpu_time(_run(given_jobs, policy), 2) == work


@given(jobs())
def test_without_suspensions_what_is_held_is_what_the_trace_says(given_jobs):
    course = _run(given_jobs, GangPolicy.NONE)

    assert course.suspensions == ()
    assert course.plans == 0
    assert _gpu_time(course, 1) == sum((each.gpus * each.duration for each in given_jobs), timedelta(0))
    assert all(each.ended_at == each.admitted_at + each.job.duration for each in course.outcomes)


@given(jobs())
def test_without_suspensions_every_workload_that_fits_is_admitted_in_the_order_of_priority_and_age(given_jobs):
    """As counted without the quota engine."""
    course = run(*(replace(each, queue="default") for each in given_jobs), policy="none", quota=TOTAL)

    assert {each.job.name: each.admitted_at for each in course.outcomes} == _admissions(given_jobs)


def _admissions(given_jobs: Sequence[SimulatedJob]) -> dict[str, datetime]:
    waiting = sorted(given_jobs, key=lambda each: (-each.priority, each.created, each.name))
    admitted: dict[str, datetime] = {}
    ends: dict[datetime, int] = {}
    instants = {each.created for each in given_jobs}
    while instants:
        now = min(instants)
        instants.remove(now)
        for each in [each for each in waiting if each.created <= now]:
            if each.gpus <= TOTAL - sum(gpus for end, gpus in ends.items() if end > now):
                waiting.remove(each)
                admitted[each.name] = now
                end = now + each.duration
                ends[end] = ends.get(end, 0) + each.gpus
                instants.add(end)
    return admitted


@given(jobs())
def test_a_plan_suspends_only_for_a_gang_that_waits_and_that_is_admitted_then(given_jobs):
    course = _run(given_jobs, GangPolicy.ON_PRESSURE)
    outcomes = {each.job.name: each for each in course.outcomes}
    resumed = {(each.job, each.resumed_at) for each in course.suspensions}

    for each in course.suspensions:
        gang = outcomes[each.beneficiary]
        assert gang.job.created < each.at
        assert gang.admitted_at == each.at or (gang.job.name, each.at) in resumed


@given(jobs(), POLICIES)
def test_a_session_is_suspended_in_a_pause_only_and_comes_back_after_it(given_jobs, policy):
    for each in _run(given_jobs, policy).suspensions:
        assert each.wanted_at is None or each.at < each.wanted_at
        assert (each.resumed_at is None) == (each.wanted_at is None)
        assert each.resumed_at is None or each.resumed_at >= each.wanted_at


@given(jobs(most_spans=1))
def test_without_pauses_all_policies_are_the_same(given_jobs):
    none, *others = (_run(given_jobs, policy) for policy in GangPolicy)

    assert all((each.outcomes, each.suspensions) == (none.outcomes, ()) for each in others)


@given(jobs(), POLICIES)
def test_the_same_jobs_give_the_same_course(given_jobs, policy):
    assert _run(given_jobs, policy) == _run(given_jobs, policy)


@given(jobs(), POLICIES)
def test_no_more_is_given_than_is_freed_and_used_than_is_there(given_jobs, policy):
    report = report_of(_run(given_jobs, policy), points=7)

    assert 0 <= report["givenGpuHours"] <= report["freedGpuHours"] + 1e-9
    assert 0 <= report["workedRatio"] <= report["heldRatio"] <= 1
    assert all(0 <= each["workedRatio"] <= each["heldRatio"] <= 1 + 1e-9 for each in report["series"])
    assert report["returnsWithin15m"] <= report["returnsWithin60m"] <= report["suspensions"]
    assert datetime.fromisoformat(report["endedAt"]) >= START
