"""A recording gives samples back in the order of time, whatever order and however many files they came in."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from simulation_builders import BEGIN_S, ENGINE, UTIL, Sampled, recorded, spans

from scaler.idleness.gpu import GpuId, GpuSeries
from scaler.simulation.recordings.recorded import PodFacts, workloads_of
from scaler.simulation.recordings.recording import SAMPLE, Recording


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
    assert {each.name: bool(each.pods[0].rivals) for each in workloads} == {"a": True, "b": True, "c": False}
