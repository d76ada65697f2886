"""Rules that others publish, on samples whose idle spans are known."""

from datetime import timedelta

import pytest
from scaler_analysis.simulation.published_rules import RULES
from scaler_analysis.simulation.replay import replay
from simulation_builders import BEGIN_S, TICK, Sampled, config, recorded, spans

from scaler.idleness.policy import Trust

AVERAGE, RATE = RULES


def suspensions(folder, rule, *series, **more):
    recording = recorded(folder, series)
    found = replay(recording, {}, config(rule_signal="gpu_util", **more), rules=[rule])
    totals = found.rules[0].total(found.workloads)
    return totals.suspensions, totals.returns_soon, round(totals.freed_gpu_hours * 60, 1)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # 60 minutes at 4 % are below 5 % on average from 30:00 on; at 4 % it is at work, so it is back at once.
        ([(60, 0.0)], (1, 0, 29.5)),
        ([(60, 0.06)], (0, 0, 0.0)),
        # At 80:30 all 60 samples of the range but one are 0, so that the average of 50 % is 0.8 %.
        ([(60, 0.5), (60, 0.0)], (1, 0, pytest.approx(32, abs=1))),
    ],
)
def test_low_on_average(tmp_path, parts, expected):
    assert suspensions(tmp_path, AVERAGE, Sampled(pod="a", samples=spans(*parts))) == expected


def test_what_works_a_little_all_the_time_is_suspended_by_its_average_and_back_at_once(tmp_path):
    count, soon, _ = suspensions(tmp_path, AVERAGE, Sampled(pod="a", samples=spans((120, 0.03))))
    assert count == soon == 3


def test_constant_work_has_no_increase(tmp_path):
    """A GPU that is at 100 % all the time: the rate of its gauge is 0. Suspended after 2 minutes, and back with its
    next sample: every 2.5 minutes, and for the last time with its very last sample."""
    count, soon, _ = suspensions(tmp_path, RATE, Sampled(pod="a", samples=spans((59.5, 1.0))))
    assert (count, soon) == (23, 23)


def test_it_is_judged_from_the_warm_up_of_the_policies_on(tmp_path):
    """Of a rule whose range is longer nothing changes."""
    ten, quiet = timedelta(minutes=10), Sampled(pod="a", samples=spans((60, 0.0)))
    for rule, judged_from in ((RATE, 10), (AVERAGE, 30)):
        (tmp_path / rule.name).mkdir()
        found = suspensions(tmp_path / rule.name, rule, quiet, rule_warm_up=ten)
        assert found == (1, 0, 59.5 - judged_from)


EVERY_S = 57.0
OFTEN = Trust(interval=timedelta(seconds=EVERY_S))
ALIGNED_S = -BEGIN_S % EVERY_S
"""So that samples are at the begin of their intervals."""


def test_it_is_evaluated_in_step_with_samples_that_do_not_come_in_step_with_ticks(tmp_path):
    """Each suspension falls on the first tick after a sample, and is over with the next one, 57 s after that."""
    samples = spans((120, 1.0), every=EVERY_S, start=ALIGNED_S)
    count, _, minutes = suspensions(tmp_path, RATE, Sampled(pod="a", samples=samples), trust=OFTEN)
    assert count > 30
    assert minutes * 60 / count > EVERY_S - TICK.total_seconds()


def test_as_many_samples_as_the_range_has_are_looked_at(tmp_path):
    """The last increase comes with sample 59. At sample 61 the 2 minutes begin 6 s before that one: it is suspended at
    the first tick after it, and freed for the nine samples that are left."""
    samples = [(ALIGNED_S + EVERY_S * n, (0.5 + 0.01 * (n % 2)) if n < 60 else 0.0) for n in range(71)]
    count, _, minutes = suspensions(tmp_path, RATE, Sampled(pod="a", samples=samples), trust=OFTEN)
    assert count == 1
    assert 0 <= 9 * EVERY_S - minutes * 60 < TICK.total_seconds() + 3  # minutes are rounded


def test_work_that_varies_has_an_increase(tmp_path):
    samples = [(at, 0.5 + 0.01 * (n % 2)) for n, (at, _) in enumerate(spans((60, 0.5)))]
    assert suspensions(tmp_path, RATE, Sampled(pod="a", samples=samples)) == (0, 0, 0.0)


def test_all_gpus_of_a_workload_have_to_be_idle(tmp_path):
    quiet, works = spans((60, 0.0)), spans((60, 0.5))
    series = [Sampled(pod="a", gpu="g0", samples=quiet), Sampled(pod="a", gpu="g1", samples=works)]
    assert suspensions(tmp_path, AVERAGE, *series) == (0, 0, 0.0)
    assert BEGIN_S % 600 == 0
