"""The numbers of small worlds, counted by hand."""

import pytest
from gang_builders import MINUTE, at, job, run
from scaler_analysis.simulation.gangs.report import report_of, wait_times

SESSION = job("session", 60, 120, 30)
GANG = job("gang", 20, created=30)
LAST = job("last", 10, gpus=1, created=240)
"""The report counts until it is created."""


def test_utilisation_counts_until_the_last_job_is_created():
    """4 GPUs for 240 min. Without suspensions the session holds them until 210, at work for 90 of these; the gang until
    230."""
    report = report_of(run(SESSION, GANG, LAST, policy="none"))

    assert report["heldRatio"] == pytest.approx((210 + 20) / 240)
    assert report["workedRatio"] == pytest.approx((90 + 20) / 240)


def test_with_suspensions_less_is_held_and_as_much_works():
    """Held: the session until 95, the gang until 115, the session from 180 until 212, two minutes of them in vain."""
    report = report_of(run(SESSION, GANG, LAST, policy="always"))

    assert report["heldRatio"] == pytest.approx((95 + 20 + 32) / 240)
    assert report["workedRatio"] == pytest.approx((90 + 20) / 240)


def test_freed_is_all_of_the_suspension_and_given_what_others_had_no_room_without():
    """Freed: 4 GPUs from 95 to 180. Given: the 20 minutes of the gang."""
    report = report_of(run(SESSION, GANG, LAST, policy="always"))

    assert report["freedGpuHours"] == pytest.approx(4 * 85 / 60)
    assert report["givenGpuHours"] == pytest.approx(4 * 20 / 60)


def test_what_had_been_free_anyway_is_not_given():
    """Of 6 GPUs two are free when the session of 4 is suspended, and the gang takes 4: two of them were given."""
    report = report_of(run(SESSION, GANG, LAST, policy="always", quota=6))

    assert report["givenGpuHours"] == pytest.approx(2 * 20 / 60)


@pytest.mark.parametrize(("pause", "soon", "later"), [(50, 1, 1), (50.1, 0, 1), (95, 0, 1), (95.1, 0, 0)])
def test_a_return_counts_from_the_suspension_on(pause, soon, later):
    """Idle since 60, and suspended at 95, 35 min later."""
    report = report_of(run(job("session", 60, pause, 30), policy="always"))

    assert (report["suspensions"], report["returnsWithin15m"], report["returnsWithin60m"]) == (1, soon, later)


def test_waiting_times_of_gangs_are_counted_apart():
    """The gang waits for 65 min, the session and the last job not at all."""
    report = report_of(run(SESSION, GANG, LAST, policy="always"))

    assert report["jobWaitSeconds"] == {"number": 3, "mean": 1300.0, "p50": 0.0, "p95": 3900.0}
    assert report["gangWaitSeconds"] == {"number": 2, "mean": 1950.0, "p50": 0.0, "p95": 3900.0}


def test_a_percentile_is_one_of_the_times():
    waits = wait_times(MINUTE * each for each in range(1, 21))

    assert waits == {"number": 20, "mean": 630.0, "p50": 600.0, "p95": 1140.0}
    assert wait_times([]) == {"number": 0, "mean": 0.0, "p50": 0.0, "p95": 0.0}


def test_the_series_are_means_of_equal_spans():
    """Two hours each: the session works for one of the first two, then until 210 the session or the gang."""
    report = report_of(run(SESSION, GANG, LAST, policy="none"), points=2)

    assert [each["at"] for each in report["series"]] == [at(0).isoformat(), at(120).isoformat()]
    assert [each["workedRatio"] for each in report["series"]] == pytest.approx([60 / 120, (30 + 20) / 120])
    assert [each["heldRatio"] for each in report["series"]] == pytest.approx([1, (90 + 20) / 120])
    assert [each["waitingGpus"] for each in report["series"]] == pytest.approx([4 * 90 / 120, 4 * 90 / 120])


def test_jobs_that_are_all_created_at_once_have_no_utilisation():
    report = report_of(run(SESSION, policy="none"))

    assert (report["workedRatio"], report["series"]) == (0, [])


def test_money_is_in_the_json_where_there_is_a_price():
    found = run(SESSION, GANG, LAST, policy="always")

    assert report_of(found, price_per_gpu_hour=3.0)["givenCost"] == pytest.approx(4.0)
    assert "givenCost" not in report_of(found)
