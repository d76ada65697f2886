"""A recording gives samples back in the order of time, whatever order and however many files they came in."""

from dataclasses import replace
from datetime import timedelta
from random import Random

import numpy as np
import pytest
from scaler_analysis.simulation.recordings.recorded import PodFacts, workloads_of
from scaler_analysis.simulation.recordings.recording import SAMPLE, Recording
from simulation_builders import BEGIN_S, ENGINE, UTIL, Sampled, outcome, recorded, spans

from scaler.idleness.gpu import GpuId, GpuSeries
from scaler.idleness.policy import Policy, Trust


def series(pod):
    return GpuSeries(gpu=GpuId(device=pod), namespace="team", pod=pod)


def given_back(recording):
    return [
        (signal, int(n), float(at_s), round(float(ratio), 6))
        for _, step in recording.steps()
        for signal, found in step.items()
        for n, at_s, ratio in zip(*found, strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_all_samples_come_back_in_order(tmp_path, seed):
    chance, recording, expected = Random(seed), Recording(folder=tmp_path), []
    for _ in range(chance.randint(1, 6)):
        signal, pod, count = chance.choice([UTIL, ENGINE]), chance.choice("abc"), chance.randint(1, 3000)
        at_s = np.array([BEGIN_S + chance.uniform(0, 9e5) for _ in range(count)])
        values = np.array([chance.choice([0.0, 0.5, 1.0]) for _ in range(count)])
        n = recording.position(signal.name, series(pod))
        recording.add(signal, np.full(count, n), at_s, values * (100 if signal is UTIL else 1))
        expected += [(signal.name, n, each, value) for each, value in zip(at_s.tolist(), values.tolist(), strict=True)]
        if chance.random() < 0.5:
            recording.flush()
    recording.flush()
    found = given_back(recording)
    assert sorted(found) == sorted(expected)
    for signal in {each[0] for each in found}:
        times = [at_s for name, _, at_s, _ in found if name == signal]
        assert times == sorted(times)
    assert (recording.samples, recording.begin_s) == (len(expected), min(each[2] for each in expected))


def test_what_is_no_measurement_is_counted(tmp_path):
    recording = Recording(folder=tmp_path)
    n = recording.position("gpu_util", series("a"))
    values = np.array([50.0, np.nan, 9.22e18, -1.0])
    recording.add(UTIL, np.full(4, n), BEGIN_S + np.arange(4.0), values)
    recording.flush()
    assert (recording.samples, recording.blanks) == (1, 3)


def test_a_file_of_others_is_taken_in_without_the_series_that_do_not_belong_there(tmp_path):
    found = np.zeros(4, SAMPLE)
    found["at_s"], found["series"] = BEGIN_S + np.arange(4.0), [0, 1, 2, 1]
    found.tofile(tmp_path / "part.samples")
    recording = Recording(folder=tmp_path)
    recording.position("gpu_util", series("other"))
    n = recording.position("gpu_util", series("a"))
    recording.include(tmp_path / "part.samples", [-1, n, -1])
    assert given_back(recording) == [("gpu_util", n, BEGIN_S + 1, 0.0), ("gpu_util", n, BEGIN_S + 3, 0.0)]


def test_a_gpu_of_a_pod_is_one_series_whatever_its_labels_call_its_model_and_node(tmp_path):
    """An exporter may name the model in another way from one day to the next; the one that is known first stays."""
    recording = Recording(folder=tmp_path)
    for model, node, start in (("", "n", 0.0), ("H100", "n", 100.0), ("NVIDIA H100", "", 200.0)):
        n = recording.position("gpu_util", replace(series("a"), model=model, node=node))
        recording.add(UTIL, np.full(4, n), BEGIN_S + start + np.arange(4.0), np.zeros(4))
    recording.flush()
    assert [(each.gpu.model, each.first_s, each.last_s) for each in recording.series] == [
        ("H100", BEGIN_S, BEGIN_S + 203)
    ]


def test_the_interval_is_the_median_between_two_samples(tmp_path):
    samples = [*spans((60, 0.0), every=57.0), (20_000.0, 0.0)]
    assert recorded(tmp_path, [Sampled(pod="a", samples=samples)]).interval_s() == 57.0


def test_a_pod_has_as_many_gpus_as_report_at_the_same_time(tmp_path):
    parts = [
        Sampled(pod="moved", gpu="g0-x", samples=spans((60, 0.5))),
        Sampled(pod="moved", gpu="g1-x", samples=spans((60, 0.5), start=3600.0)),
        Sampled(pod="two", gpu="g2-x", samples=spans((60, 0.5))),
        Sampled(pod="two", gpu="g3-x", samples=spans((60, 0.5), start=1800.0)),
        Sampled(pod="told", gpu="g4-x", samples=spans((60, 0.5))),
    ]
    recording = recorded(tmp_path, parts, {"told": PodFacts(gpus=8)})
    found = {each.name: each.pods[0].gpus for each in workloads_of(recording.series, recording.facts, margin_s=90.0)}
    assert found == {"moved": 1, "two": 2, "told": 8}


def test_a_gpu_is_shared_by_pods_that_have_it_at_once_or_shortly_after_one_another(tmp_path):
    parts = [
        Sampled(pod="a", gpu="g", samples=spans((60, 0.5))),
        Sampled(pod="b", gpu="g", samples=spans((60, 0.5), start=3660.0)),
        Sampled(pod="c", gpu="g", samples=spans((60, 0.5), start=9000.0)),
    ]
    workloads = workloads_of(recorded(tmp_path, parts).series, {}, margin_s=90.0)
    assert {each.name: bool(each.pods[0].series_of_others) for each in workloads} == {"a": True, "b": True, "c": False}


HOUR = timedelta(hours=1)


def hours(*parts):
    """Samples of (from, until, ratio), in hours after the begin."""
    return [(at_s, ratio) for begin, end, ratio in parts for at_s in np.arange(begin * 3600, end * 3600, 60.0).tolist()]


def test_a_pod_that_is_made_anew_under_its_name_is_another_one_of_the_same_owner(tmp_path):
    notebook = Sampled(pod="nb-0", samples=hours((0, 10, 0.0), (24, 34, 0.5)))
    recording = recorded(tmp_path, [notebook, Sampled(pod="other", samples=hours((0, 34, 0.5)))])
    assert recording.tell_remade_pods_apart(HOUR) == 1
    found = {str(each): each for each in workloads_of(recording.series, recording.facts, margin_s=90)}
    assert set(found) == {"team/nb-0", "team/other"}
    pods = found["team/nb-0"].pods
    assert [each.name for each in pods] == ["nb-0", "nb-0#2"]
    assert [(each.start_s - BEGIN_S, each.end_s - BEGIN_S) for each in pods] == [(0, 35_940), (86_400, 122_340)]
    assert found["team/nb-0"].gpu_hours(BEGIN_S, BEGIN_S + 34 * 3600) == pytest.approx(20, abs=0.1)
    of_pod = {each.pod[1]: n for n, each in enumerate(recording.series)}
    given = [(n, ratio) for _, n, _, ratio in given_back(recording) if n != of_pod["other"]]
    assert set(given) == {(of_pod["nb-0"], 0.0), (of_pod["nb-0#2"], 0.5)}
    assert {each.is_percent for each in recording.series} == {True}


@pytest.mark.parametrize(
    ("parts", "others"),
    [
        ([(0, 10, 0.0), (10.9, 20, 0.0)], [(0, 20, 0.5)]),
        ([(0, 10, 0.0), (14, 20, 0.0)], [(0, 10, 0.5), (14, 20, 0.5)]),
        ([(0, 10, 0.0), (14, 20, 0.0)], [(0, 10.4, 0.5), (13.6, 20, 0.5)]),
    ],
    ids=["it was silent for less than that", "nothing was recorded of anybody", "nor of it shortly before and after"],
)
def test_a_pod_of_which_nothing_is_known_for_a_while_stays_the_same(tmp_path, parts, others):
    recording = recorded(tmp_path, [Sampled(pod="a", samples=hours(*parts)), Sampled(pod="b", samples=hours(*others))])
    assert recording.tell_remade_pods_apart(HOUR) == 0
    assert {each.pod[1] for each in recording.series} == {"a", "b"}


def test_time_of_which_nothing_at_all_is_recorded_is_neither_held_nor_freed_nor_unknown(tmp_path):
    """One is suspended before it and after it, of the other nothing could be said."""
    idle = Sampled(pod="idle", samples=hours((0, 2, 0.5), (2, 10, 0.0), (40, 42, 0.0), (42, 43, 0.5)))
    recording = recorded(tmp_path, [idle, Sampled(pod="busy", samples=hours((0, 10, 0.5), (40, 43, 0.5)))])
    assert recording.tell_remade_pods_apart(HOUR) == 0
    assert [(round((a - BEGIN_S) / 3600), round((b - BEGIN_S) / 3600)) for a, b in recording.outages] == [(10, 40)]
    found, [suspension] = outcome(
        recording, Policy(idle_after=timedelta(minutes=30)), trust=Trust(interval=timedelta(minutes=1))
    )
    assert suspension.seconds == pytest.approx((42 - 2.5) * 3600, abs=60)
    total = found.total(workloads_of(recording.series, recording.facts, margin_s=180, outages=recording.outages))
    assert total.freed_gpu_hours == pytest.approx(7.5 + 2, abs=0.1)
    assert (total.unknown, total.gpu_hours) == (0, pytest.approx(26, abs=0.1))


def test_a_night_without_a_pod_is_neither_held_nor_freed_nor_unknown(tmp_path):
    """It is idle in the evening, goes, and is at work when it has come back."""
    notebook = Sampled(pod="nb-0", samples=hours((0, 2, 0.5), (2, 10, 0.0), (24, 26, 0.5)))
    recording = recorded(tmp_path, [notebook, Sampled(pod="other", samples=hours((0, 26, 0.5)))])
    recording.tell_remade_pods_apart(HOUR)
    trust = Trust(interval=timedelta(minutes=1))
    found, [suspension] = outcome(recording, Policy(idle_after=timedelta(minutes=30)), trust=trust)
    assert suspension.has_returned
    total = found.total(workloads_of(recording.series, recording.facts, margin_s=180))
    assert total.freed_gpu_hours == pytest.approx(7.5, abs=0.1)
    assert (total.unknown, total.gpu_hours) == (0, pytest.approx(38, abs=0.1))
