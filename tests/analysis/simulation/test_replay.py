"""The replay: exact numbers where idle spans are known, and the same as deciding at every tick where they are not."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from scaler_analysis.simulation.processes import replay_in_parallel
from scaler_analysis.simulation.published_rules import RULES
from scaler_analysis.simulation.recordings.recorded import PodFacts
from scaler_analysis.simulation.replay import PolicyCase, replay, resolved
from simulation_builders import (
    BEGIN_S,
    ENGINE,
    TRUST,
    UTIL,
    Sampled,
    config,
    decided_at_every_tick,
    outcome,
    recorded,
    spans,
)

from scaler.idleness.gpu import Signal
from scaler.idleness.hours import parse_day_times, parse_hours
from scaler.idleness.policy import GpuRule, Policy, Reclaim
from scaler.idleness.reasons import UnknownReason
from scaler.reporting.usage.prices import Prices

THIRTY = Policy(idle_after=timedelta(minutes=30), warm_up=timedelta(minutes=10))
MINUTE = 60.0


def test_freed_hours_and_regrets_are_exact(tmp_path):
    """Work for 60 min, quiet for 90 min: its last work ends at 60:00, so it is suspended at 90:00, and comes back at
    150:00. Then quiet from 160:00 on: suspended at 190:00, and back 10 min later, at 200:00."""
    work = spans((60, 0.5), (90, 0.0), (10, 0.5), (40, 0.0), (20, 0.5))
    case, seen = outcome(recorded(tmp_path, [Sampled(pod="a", samples=work)]), THIRTY)
    assert [(each.at_s - BEGIN_S, each.until_s - BEGIN_S, each.has_returned) for each in seen] == [
        (90 * MINUTE, 150 * MINUTE, True),
        # Back at 150:00 with ten minutes of warm-up; quiet from 160:00 on.
        (190 * MINUTE, 200 * MINUTE, True),
    ]
    totals = case.of(0)
    assert totals.freed_gpu_hours == pytest.approx((60 + 10) / 60)
    assert (totals.suspensions, totals.returns_soon, totals.returns_within_an_hour) == (2, 1, 2)
    # It had run for 90 min at the first suspension, and for 40 min at the second one.
    assert totals.interrupted_gpu_hours == pytest.approx((90 + 40) / 60)
    assert totals.unknown_gpu_hours == {}


def test_what_never_works_is_suspended_after_its_warm_up_and_its_window_until_its_last_sample(tmp_path):
    [suspension] = outcome(recorded(tmp_path, [Sampled(pod="a", samples=spans((120, 0.0)))]), THIRTY)[1]
    assert suspension.at_s == BEGIN_S + 40 * MINUTE
    assert (suspension.until_s, suspension.has_returned) == (BEGIN_S + 120 * MINUTE - 30, False)


def test_after_a_return_warm_up_and_window_begin_anew(tmp_path):
    """One sample of work at 60:00 ends the suspension; the next one is 40 minutes later at the earliest."""
    samples = spans((60, 0.0), (0.5, 0.9), (60, 0.0))
    seen = outcome(recorded(tmp_path, [Sampled(pod="a", samples=samples)]), THIRTY)[1]
    assert [each.at_s - BEGIN_S for each in seen] == [40 * MINUTE, 100 * MINUTE]


def test_samples_below_the_floor_end_no_suspension_and_one_at_the_floor_does(tmp_path):
    below, at_floor = spans((60, 0.0), (60, 0.0099)), spans((60, 0.0), (60, 0.01))
    assert [
        each.has_returned for each in outcome(recorded(tmp_path, [Sampled(pod="a", samples=below)]), THIRTY)[1]
    ] == [False]
    (tmp_path / "b").mkdir()
    found = outcome(recorded(tmp_path / "b", [Sampled(pod="a", samples=at_floor)]), THIRTY)[1]
    assert [(each.until_s - BEGIN_S, each.has_returned) for each in found] == [(60 * MINUTE, True)]


def test_a_workload_is_suspended_only_while_all_of_its_gpus_are_idle_and_frees_all_of_them(tmp_path):
    quiet, works = spans((120, 0.0)), spans((50, 0.5), (70, 0.0))
    series = [Sampled(pod="a", gpu="g0", samples=quiet), Sampled(pod="a", gpu="g1", samples=works)]
    case, [suspension] = outcome(recorded(tmp_path, series), THIRTY)
    assert suspension.at_s == BEGIN_S + 80 * MINUTE
    assert case.of(0).freed_gpu_hours == pytest.approx(2 * (39.5 / 60))


def test_pods_of_one_owner_are_one_workload(tmp_path):
    series = [
        Sampled(pod="a", samples=spans((120, 0.0))),
        Sampled(pod="b", samples=spans((60, 0.4), (60, 0.0))),
        Sampled(pod="other", samples=spans((120, 0.0))),
    ]
    facts = dict.fromkeys(("a", "b"), PodFacts(owner="Job/train"))
    seen = outcome(recorded(tmp_path, series, facts), THIRTY)[1]
    assert [(str(each.workload), (each.at_s - BEGIN_S) / MINUTE) for each in seen] == [
        ("team/other", 40),
        ("team/train", 90),
    ]


def test_a_pod_that_requests_more_gpus_than_report_is_never_suspended(tmp_path):
    recording = recorded(tmp_path, [Sampled(pod="a", samples=spans((120, 0.0)))], {"a": PodFacts(gpus=2)})
    case, seen = outcome(recording, THIRTY)
    assert not seen
    # From 40:00, when its window would be whole, to its last sample at 119:30, with two GPUs.
    assert case.of(0).unknown_gpu_hours == {"MissingGPUs": pytest.approx(2 * 79.5 / 60)}


def test_a_hole_keeps_it_unknown_until_it_has_left_the_window(tmp_path):
    """No sample from 50:00 to 60:00. The window is whole again when it begins behind the hole: at 90:00."""
    samples = [each for each in spans((180, 0.0)) if not 50 * MINUTE <= each[0] < 60 * MINUTE]
    late = Policy(idle_after=timedelta(minutes=30), warm_up=timedelta(minutes=25))
    case, [suspension] = outcome(recorded(tmp_path, [Sampled(pod="a", samples=samples)]), late)
    assert suspension.at_s / MINUTE - BEGIN_S / MINUTE == pytest.approx(86.5, abs=4)
    assert case.of(0).unknown > 0.4


def test_policies_are_replayed_side_by_side(tmp_path):
    recording = recorded(tmp_path, [Sampled(pod="a", samples=spans((60, 0.5), (120, 0.0)))])
    cases = [
        PolicyCase(
            name=str(minutes), policy_of=lambda _, minutes=minutes: Policy(idle_after=timedelta(minutes=minutes))
        )
        for minutes in (10, 30, 60)
    ]
    found = replay(recording, resolved(recording, cases, config()), config())
    freed = [each.total(found.workloads).freed_gpu_hours * 60 for each in found.cases]
    assert freed == pytest.approx([109.5, 89.5, 59.5])


def test_two_processes_say_the_same_as_one(tmp_path):
    series = [Sampled(pod=name, samples=spans((60, 0.5), (120, 0.0), (5, 0.9), (90, 0.0))) for name in "ab"]
    recording = recorded(tmp_path, series)
    policies = [Policy(idle_after=timedelta(minutes=minutes)) for minutes in (10, 20, 30, 45, 60)]
    named = [PolicyCase(name=str(each.idle_after), policy_of=lambda _, each=each: each) for each in policies]
    by = config(rule_signal="gpu_util")
    cases = resolved(recording, named, by)
    one = replay(recording, cases, by, rules=RULES)
    two = replay_in_parallel(recording, cases, by, rules=RULES, fewest_samples=0)
    assert [(each.name, each.by_workload) for each in (*two.cases, *two.rules)] == [
        (each.name, each.by_workload) for each in (*one.cases, *one.rules)
    ]


def test_what_a_policy_is_not_about_is_left_alone(tmp_path):
    recording = recorded(tmp_path, [Sampled(pod=name, samples=spans((120, 0.0))) for name in "ab"])
    case = PolicyCase(name="b", policy_of=lambda workload: THIRTY if workload.name == "b" else None)
    found = replay(recording, resolved(recording, [case], config()), config())
    totals = found.cases[0].total(found.workloads)
    assert (totals.suspensions, round(totals.gpu_hours, 2)) == (1, 3.98)


def test_hours_and_wake_times_of_a_policy_are_kept(tmp_path):
    """BEGIN is 22:20 UTC. Suspended only from 23:30 on, and woken at midnight."""
    hours, wake_times = parse_hours("Mon-Sun 23:30-23:45 UTC"), parse_day_times("Mon-Sun 00:00 UTC")
    policy = replace(THIRTY, allowed_during=hours, wake_at=wake_times)
    seen = outcome(recorded(tmp_path, [Sampled(pod="a", samples=spans((240, 0.0)))]), policy)[1]
    assert [(each.at_s - BEGIN_S, each.until_s - BEGIN_S, each.has_returned) for each in seen] == [
        (70 * MINUTE, 100 * MINUTE, False)
    ]


def test_a_warning_stands_before_the_suspension(tmp_path):
    """It may be warned while its window is not whole yet, so a warning that is no longer than that costs no time."""
    recording = recorded(tmp_path, [Sampled(pod="a", samples=spans((60, 0.5), (120, 0.0)))])
    [suspension] = outcome(recording, replace(THIRTY, warning=timedelta(minutes=20)))[1]
    assert suspension.at_s == BEGIN_S + 90 * MINUTE
    [suspension] = outcome(recording, replace(THIRTY, warning=timedelta(minutes=50)))[1]
    assert suspension.at_s == pytest.approx(BEGIN_S + 110 * MINUTE, abs=30)


@pytest.mark.parametrize("reclaim", [Reclaim.ON_PRESSURE, Reclaim.PRIORITY_BOOST])
def test_under_pressure_a_gang_is_taken_to_wait_at_any_time(tmp_path, reclaim):
    policy = Policy(reclaim=reclaim, idle_after_under_pressure=timedelta(minutes=5))
    [suspension] = outcome(recorded(tmp_path, [Sampled(pod="a", samples=spans((60, 0.0)))]), policy)[1]
    assert suspension.at_s == BEGIN_S + 15 * MINUTE


def test_costs_are_by_the_model_of_the_gpus(tmp_path):
    recording = recorded(tmp_path, [Sampled(pod="a", samples=spans((100, 0.0)))])
    case, _ = outcome(recording, THIRTY, prices=Prices(by_model={"*": 6.0}))
    assert case.of(0).freed_cost == pytest.approx(6.0 * 59.5 / 60)


@pytest.mark.parametrize(
    ("signal", "level", "reason"),
    [
        (UTIL, 0.0, None),
        (UTIL, 0.005, UnknownReason.SIGNALS_DISAGREE),
        (ENGINE, 0.005, None),
    ],
)
def test_a_percentage_that_may_be_a_ratio_is_doubted_as_it_is_live(tmp_path, signal, level, reason):
    """An hour of quiet, in which the first ten minutes show less than one in percent; the doubt leaves with them."""
    recording = recorded(tmp_path, [Sampled(pod="p", signal=signal, samples=spans((10, level), (50, 0.0)))])
    policy = Policy(idle_after=timedelta(minutes=10), warm_up=timedelta(0))
    case, [suspension] = outcome(recording, policy, signals=(signal,))
    assert suspension.at_s == BEGIN_S + 60 * (10 if reason is None else 20)
    [totals] = case.by_workload.values()
    assert [*totals.unknown_gpu_hours] == ([] if reason is None else [str(reason)])


def test_such_a_percentage_is_noticed_while_another_gpu_is_in_doubt(tmp_path):
    """The hole of one stands for half an hour; amid that the other shows a fraction, and is named in its place."""
    before, _, after = (spans((10, 0.0), start=600.0 * n) for n in range(3))
    holey = Sampled(pod="p", gpu="b", samples=[*before, *after, *spans((30, 0.0), start=1800.0)])
    odd = Sampled(pod="p", gpu="a", samples=spans((32, 0.0), (1, 0.005), (27, 0.0)))
    recording = recorded(tmp_path, [odd, holey])
    policy = Policy(idle_after=timedelta(minutes=30), warm_up=timedelta(0))
    case, _ = outcome(recording, policy)
    [totals] = case.by_workload.values()
    expected = decided_at_every_tick(recording, policy).unknown
    assert {*expected} == {"SampleGap", "SignalsDisagree"}
    assert totals.unknown_gpu_hours == pytest.approx(expected)


# ---- against deciding at every tick


def test_what_does_not_report_for_hours_is_looked_at_again_at_its_first_sample(tmp_path):
    """It works, is silent, and then quiet: unknown until the hole has left the window."""
    gone = Sampled(pod="p", samples=[*spans((30, 0.5)), *spans((60, 0.0), start=10_000.0)])
    recording = recorded(tmp_path, [gone, Sampled(pod="q", samples=spans((240, 0.5)))])
    policy = Policy(idle_after=timedelta(minutes=10), warm_up=timedelta(0))
    case, seen = outcome(recording, policy)
    expected = decided_at_every_tick(recording, policy)
    assert [(str(each.workload), each.at_s, each.until_s, each.has_returned) for each in seen] == expected.suspensions
    assert {"NoSamples", "SampleGap"} < {*expected.unknown}
    assert case.of(0).unknown_gpu_hours == pytest.approx(expected.unknown)


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        (
            [
                Sampled(pod="p", gpu="g", samples=spans((90, 0.5))),
                Sampled(pod="q", gpu="g", samples=spans((20, 0.5), start=2400.0)),
            ],
            UnknownReason.SHARED_GPU,
        ),
        (
            [
                Sampled(pod="p", gpu="a", samples=spans((90, 0.5))),
                Sampled(pod="p", gpu="b", samples=spans((20, 0.5), start=2400.0)),
            ],
            UnknownReason.UNEXPECTED_GPUS,
        ),
    ],
    ids=["another pod shows its GPU", "more GPUs report than it requests"],
)
def test_what_works_is_doubted_as_soon_as_that_begins_and_until_it_has_left_the_window(tmp_path, series, reason):
    recording = recorded(tmp_path, series, dict.fromkeys("pq", PodFacts(gpus=1)))
    policy = Policy(idle_after=timedelta(minutes=10), warm_up=timedelta(0))
    case, _ = outcome(recording, policy)
    expected = decided_at_every_tick(recording, policy).unknown
    assert {*expected} == {str(reason)}
    assert sum(each.unknown for each in case.by_workload.values()) == pytest.approx(expected[str(reason)])


def series_of(chance: Random, pod: str, gpu: str, signal: Signal, *, start: float) -> Sampled:
    """Some minutes at each level, or without samples; collected with an offset of its own, now and then late."""
    offset, samples, at = chance.uniform(0, 29), [], start
    for _ in range(chance.randint(2, 9)):
        level, is_lost = chance.choice([0.0, 0.0, 0.0, 0.005, 0.01, 0.3]), chance.random() < 0.15
        for _ in range(2 * chance.randint(1, 14)):
            if not is_lost and chance.random() > 0.02:
                samples.append((at + offset + chance.choice([0.0] * 8 + [3.0, 25.0]), level))
            at += 30.0
    return Sampled(pod=pod, gpu=gpu, signal=signal, samples=sorted(samples) or [(start, 0.0)])


def cluster_of(chance: Random) -> tuple[list[Sampled], dict[str, PodFacts], Policy]:
    series, facts = [], {}
    for number in range(chance.randint(1, 3)):
        pod, start = f"p{number}", 30.0 * chance.randint(0, 60)
        for gpu in range(chance.randint(1, 2)):
            name = chance.choice([f"{pod}-{gpu}"] * 5 + ["shared"])
            signals = chance.choice([(UTIL,), (ENGINE,), (UTIL, ENGINE), (UTIL, ENGINE)])
            series += [series_of(chance, pod, name, signal, start=start) for signal in signals]
        facts[pod] = PodFacts(owner=chance.choice(["", "Job/j"]), gpus=chance.choice([0, 0, 0, 1, 2]))
    policy = Policy(
        idle_after=timedelta(minutes=chance.randint(2, 10)),
        warm_up=timedelta(minutes=chance.randint(0, 5)),
        gpus=GpuRule.parse(chance.choice(["all", "all", "any", "quorum:0.5"])),
    )
    return series, facts, policy


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 8))])
def test_it_is_the_same_as_deciding_at_every_tick(tmp_path, seed):
    for number in range(RUNS):
        check_one(tmp_path / str(number), Random(RUNS * seed + number))


RUNS = 5


def check_one(folder: Path, chance: Random) -> None:
    folder.mkdir()
    series, facts, policy = cluster_of(chance)
    recording = recorded(folder, series, facts)
    case, seen = outcome(recording, policy, signals=(UTIL, ENGINE))
    expected = decided_at_every_tick(recording, policy, signals=(UTIL, ENGINE), trust=TRUST)
    found = [(str(each.workload), each.at_s, each.until_s, each.has_returned) for each in seen]
    assert found == expected.suspensions
    unknown: dict[str, float] = {}
    for totals in case.by_workload.values():
        for reason, hours in totals.unknown_gpu_hours.items():
            unknown[reason] = unknown.get(reason, 0.0) + hours
    assert unknown == pytest.approx({reason: hours for reason, hours in expected.unknown.items() if hours > 0})
