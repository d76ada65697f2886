from datetime import timedelta
from random import Random

from gang_builders import job
from hypothesis import given
from hypothesis import strategies as st
from scaler_analysis.simulation.gangs.idle_mix import IdleMix, SpanLengths, with_sessions

JOBS = tuple(job(f"job-{number}", 600, gpus=1) for number in range(1000))
ALL = IdleMix(share_ratio=1)


@given(st.integers(), st.floats(0, 1), st.lists(st.integers(1, 5000), max_size=20))
def test_a_session_takes_as_long_as_its_job(seed, share, minutes):
    jobs = [job(f"job-{place}", each, gpus=1 + place) for place, each in enumerate(minutes)]
    mixed = with_sessions(jobs, IdleMix(share_ratio=share), seed=seed)

    assert [each.duration for each in mixed] == [each.duration for each in jobs]
    assert all(span > timedelta(0) for each in mixed for span in each.spans)


def test_about_that_share_of_the_jobs_are_sessions():
    """Of 1,000 with a chance of 0.3: 300, with a standard deviation of 14.5. All sessions of ten hours have a pause."""
    mixed = with_sessions(JOBS, IdleMix(share_ratio=0.3), seed=1)

    assert 240 < sum(len(each.spans) > 1 for each in mixed) < 360


def test_jobs_that_need_several_nodes_are_no_sessions():
    large = job("large", 6000, gpus=9)

    assert with_sessions([large], ALL, seed=0) == (large,)


def test_a_job_whose_spans_are_known_stays_as_it_is():
    known = job("known", 60, 30, 60)

    assert with_sessions([known], ALL, seed=0) == (known,)


def test_what_is_drawn_for_a_job_depends_on_no_other():
    alone, among = with_sessions(JOBS[7:8], ALL, seed=3), with_sessions(JOBS, ALL, seed=3)

    assert alone[0] == among[7]
    assert with_sessions(JOBS, ALL, seed=4) != among


def test_without_spread_every_span_is_the_median():
    mix = IdleMix(
        share_ratio=1,
        work=SpanLengths(median=timedelta(minutes=25), sigma=0),
        idle=SpanLengths(median=timedelta(minutes=20), sigma=0),
    )

    (mixed,) = with_sessions([job("session", 60)], mix, seed=0)
    assert mixed.spans == tuple(timedelta(minutes=each) for each in (25, 20, 15))


def test_half_of_the_spans_are_shorter_than_the_median():
    """2,000 draws: 1,000 with a standard deviation of 22."""
    random, lengths = Random(0), IdleMix().idle
    shorter = sum(lengths.draw(random) < lengths.median for _ in range(2000))

    assert 900 < shorter < 1100
