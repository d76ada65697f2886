"""Small worlds whose waiting times can be counted by hand.

Unless a test says otherwise: 4 GPUs of quota, `idleAfter` 30m, warm-up 10m, KEDA polls every 30 s from the creation of
a job on and cools down for 5m, and a session that comes back needs 2m until its GPUs work.
"""

from dataclasses import replace
from datetime import timedelta

import pytest
from gang_builders import MINUTE, TIMES, at, ended, job, minutes_of, outcome, run, waited
from scaler_analysis.simulation.gangs.pressure_plans import scaled_to_zero_at

SESSION = job("session", 60, 120, 30)
"""Works until 60, idle until 180, works until 210."""
GANG = job("gang", 20, created=30)
SUSPENDING = ("always", "on-pressure")


def test_without_suspensions_a_gang_waits_until_the_session_has_ended():
    course = run(SESSION, GANG, policy="none")

    assert (waited(course, "gang"), ended(course, "gang")) == (180, 230)
    assert course.suspensions == ()


@pytest.mark.parametrize("policy", SUSPENDING)
def test_a_gang_waits_for_the_window_and_for_keda(policy):
    """Idle since 60, by its verdict at 90. The last active answer was given at 89.5, and 5 min later, at 94.5, that is
    not yet longer than the cooldown: KEDA scales at 95."""
    course = run(SESSION, GANG, policy=policy)

    assert waited(course, "gang") == 95 - 30
    assert [each.at for each in course.suspensions] == [at(95)]
    assert ended(course, "gang") == 115


@pytest.mark.parametrize("policy", SUSPENDING)
def test_a_session_comes_back_when_its_pause_is_over_and_works_two_minutes_later(policy):
    """The gang has ended at 115; the pause is over at 180, which is a poll of KEDA."""
    course = run(SESSION, GANG, policy=policy)

    (suspension,) = course.suspensions
    assert (suspension.wanted_at, suspension.resumed_at) == (at(180), at(180))
    assert ended(course, "session") == 180 + 2 + 30


@pytest.mark.parametrize("policy", SUSPENDING)
def test_a_session_waits_for_its_quota_when_it_comes_back(policy):
    """The gang runs from 95 until 215, and the session wants to work from 180 on."""
    course = run(SESSION, replace(GANG, spans=(120 * MINUTE,)), policy=policy)

    (suspension,) = course.suspensions
    assert suspension.resumed_at == at(215)
    assert ended(course, "session") == 215 + 2 + 30


def test_a_session_comes_back_at_the_next_poll_of_keda():
    """Created at 0:10, it is polled at 10 and 40 s of every minute. Its pause is over at 180:25."""
    session = replace(SESSION, created=at(1 / 6), spans=(60 * MINUTE, timedelta(minutes=120, seconds=15), 30 * MINUTE))
    (suspension,) = run(session, policy="always").suspensions

    assert suspension.wanted_at == at(180 + 25 / 60)
    assert suspension.resumed_at == at(180 + 40 / 60)


def test_always_suspends_though_no_workload_waits_and_on_pressure_does_not():
    assert len(run(SESSION, policy="always").suspensions) == 1
    assert run(SESSION, policy="on-pressure").suspensions == ()


def test_a_plan_takes_what_is_idle_already_after_keda_has_cooled_down():
    """The gang comes at 150: idle for long, the session answers inactive from 150 on and is at 0 at 155."""
    course = run(SESSION, replace(GANG, created=at(150)), policy="on-pressure")

    assert waited(course, "gang") == 5
    assert [each.beneficiary for each in course.suspensions] == ["gang"]


def test_a_pause_that_ends_before_keda_has_cooled_down_suspends_nothing():
    """Idle by its verdict at 90, at work again at 94.9."""
    session = job("session", 60, 34.9, 30)

    for policy in SUSPENDING:
        course = run(session, GANG, policy=policy)
        assert course.suspensions == ()
        assert waited(course, "gang") == 60 + 34.9 + 30 - 30
    assert run(session, GANG, policy="on-pressure").plans_ended == {"VictimBusy": 1}


@pytest.mark.parametrize("policy", SUSPENDING)
def test_a_pause_counts_once_the_warm_up_is_over(policy):
    """It works for a minute only: idle since 10, and so by its verdict at 40."""
    course = run(job("session", 1, 200), GANG, policy=policy)

    assert waited(course, "gang") == 45 - 30


@pytest.mark.parametrize("policy", SUSPENDING)
def test_the_warm_up_begins_anew_when_a_session_comes_back(policy):
    """It is back at 180 and works from 182 to 183: idle since 190, by its verdict at 220, at 0 at 225."""
    session = job("session", 60, 120, 1, 200)
    course = run(session, GANG, job("later", 20, created=200), policy=policy)

    assert [each.at for each in course.suspensions] == [at(95), at(225)]
    assert waited(course, "later") == 25


@pytest.mark.parametrize("policy", SUSPENDING)
def test_a_session_that_is_suspended_in_its_last_pause_ends_there(policy):
    course = run(job("session", 60, 120), GANG, policy=policy)

    (suspension,) = course.suspensions
    assert (suspension.wanted_at, suspension.resumed_at) == (None, None)
    assert ended(course, "session") == 180


def test_under_pressure_a_shorter_window_may_count():
    times = replace(TIMES, idle_after_under_pressure=10 * MINUTE)

    assert waited(run(SESSION, GANG, policy="on-pressure", times=times), "gang") == 75 - 30
    assert waited(run(SESSION, GANG, policy="always", times=times), "gang") == 95 - 30


def test_a_plan_for_a_gang_waits_for_all_its_victims_and_suspends_them_together():
    """One is idle from 60 on, the other from 80 on: the plan is granted at 110, and all are at 0 at 115."""
    first, second = job("first", 60, 300, gpus=2), job("second", 80, 300, gpus=2)
    course = run(first, second, GANG, policy="on-pressure")

    assert [(each.job, each.at) for each in course.suspensions] == [("first", at(115)), ("second", at(115))]
    assert waited(course, "gang") == 85


def test_always_frees_for_a_gang_one_after_the_other():
    first, second = job("first", 60, 300, gpus=2), job("second", 80, 300, gpus=2)
    course = run(first, second, GANG, policy="always")

    assert [(each.job, each.at) for each in course.suspensions] == [("first", at(95)), ("second", at(115))]
    assert waited(course, "gang") == 85


def test_a_plan_takes_no_more_than_the_gang_needs():
    """Two of the four GPUs are free, and a gang of three needs one of the idle sessions of one GPU."""
    sessions = [job(name, 60, 300, gpus=1) for name in ("a", "b")]
    course = run(*sessions, replace(GANG, gpus=3), policy="on-pressure")

    assert len(course.suspensions) == 1


def test_a_plan_that_expires_before_keda_has_cooled_down_suspends_nothing():
    times = replace(TIMES, cooldown_period=20 * MINUTE)
    course = run(SESSION, GANG, policy="on-pressure", times=times)

    assert course.suspensions == ()
    assert set(course.plans_ended) == {"GrantExpired", "VictimBusy"}
    assert waited(course, "gang") == 180


def test_a_gang_that_is_admitted_meanwhile_needs_no_plan():
    """Granted at 90; at 93 the job that holds the other half of the quota ends."""
    session, other = job("session", 60, 120, 30), job("other", 93)
    course = run(session, other, GANG, policy="on-pressure", quota=8)

    assert waited(course, "gang") == 63
    assert course.plans_ended == {"NotNeeded": 1}
    assert course.suspensions == ()


def test_queues_of_one_cohort_lend_what_they_do_not_use():
    lent = job("lent", 60, gpus=8, queue="a")
    own = job("own", 10, gpus=4, queue="b", created=10)
    course = run(lent, own, policy="none", quota={"a": 4, "b": 4})

    assert waited(course, "lent") == 0
    assert waited(course, "own") == 50


def test_the_one_with_the_higher_priority_is_admitted_first_then_the_older_one():
    running = job("running", 60)
    older, younger = job("older", 10, created=1), job("younger", 10, created=2)
    urgent = job("urgent", 10, created=3, priority=1)
    course = run(running, older, younger, urgent, policy="none")

    assert [minutes_of(outcome(course, each).admitted_at - at(0)) for each in ("urgent", "older", "younger")] == [
        60,
        70,
        80,
    ]


def test_what_gpus_do_is_counted_at_every_instant():
    course = run(SESSION, GANG, policy="always")
    counts = {minutes_of(each.at - at(0)): each[1:] for each in course.counts}

    assert counts[0] == (4, 4, 0, 0)
    assert counts[30] == (4, 4, 0, 4)
    assert counts[60] == (4, 0, 0, 4)
    assert counts[95] == (4, 4, 4, 0)
    assert counts[115] == (0, 0, 4, 0)
    assert counts[180] == (4, 0, 0, 0)
    assert counts[182] == (4, 4, 0, 0)
    assert counts[212] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("inactive_from", "zero_at"),
    [(65, 390), (60, 360), (89, 390), (90, 390), (91, 420)],
)
def test_keda_scales_at_the_first_poll_that_lies_longer_than_the_cooldown_after_the_last_active_one(
    inactive_from, zero_at
):
    """Polls at 0, 30, 60 … s, cooldown 300 s. Inactive from 90 s on: last active at 60 s, and 360 s is not longer."""
    second = timedelta(seconds=1)

    assert scaled_to_zero_at(at(0), at(0) + inactive_from * second, TIMES) == at(0) + zero_at * second
