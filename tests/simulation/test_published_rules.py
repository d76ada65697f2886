"""Rules that others publish, on samples whose idle spans are known."""

import pytest
from simulation_builders import BEGIN_S, Sampled, config, recorded, spans

from scaler.simulation.published_rules import RULES
from scaler.simulation.replay import replay

AVERAGE, RATE = RULES


def suspensions(folder, rule, *series):
    recording = recorded(folder, series)
    found = replay(recording, [], config(rule_signal="gpu_util"), rules=[rule])
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
    """A GPU that is at 100 % all the time: the rate of its gauge is 0."""
    count, soon, _ = suspensions(tmp_path, RATE, Sampled(pod="a", samples=spans((60, 1.0))))
    assert count == soon > 5


def test_work_that_varies_has_an_increase(tmp_path):
    samples = [(at, 0.5 + 0.01 * (n % 2)) for n, (at, _) in enumerate(spans((60, 0.5)))]
    assert suspensions(tmp_path, RATE, Sampled(pod="a", samples=samples)) == (0, 0, 0.0)


def test_all_gpus_of_a_workload_have_to_be_idle(tmp_path):
    quiet, works = spans((60, 0.0)), spans((60, 0.5))
    series = [Sampled(pod="a", gpu="g0", samples=quiet), Sampled(pod="a", gpu="g1", samples=works)]
    assert suspensions(tmp_path, AVERAGE, *series) == (0, 0, 0.0)
    assert BEGIN_S % 600 == 0
