"""The command's numbers are those of a replay that shares nothing with it: lists of samples, and the definitions of
docs/choose-your-window.md and of `trust`.

It knows no intervals into which samples are sorted, so the two may differ by part of one at the begin of each window.
"""

from bisect import bisect_right
from itertools import pairwise
from random import Random

import pytest
from analysis.simulation.test_trace import BEGIN, simulated, text_of, written

PODS, LENGTH_S, TICK_S, EVERY_S, WARM_UP_S = 20, 21_600, 15, 30.0, 600.0
MIN_COVERAGE, MAX_AGE, MAX_GAP, LATE = 0.8, 3, 6, 0.25
"""Trust, in collection intervals; and the part of one by which a sample may be late without one being missed."""

Series = list[tuple[float, float]]


def made(chance: Random, *, gpus: int = 1, jitter_s: float = 0.0, missing: float = 0.0, hole: float = 0.0) -> Series:
    """The GPUs of a pod that works and pauses by turns for six hours: one series each, in percent."""
    begin_s, turns = BEGIN + chance.uniform(0, 3600), []
    while (turns[-1] if turns else begin_s) < begin_s + LENGTH_S:
        turns.append((turns[-1] if turns else begin_s) + chance.lognormvariate(6.2 if len(turns) % 2 else 6.8, 1.0))
    found = []
    quiet = chance.choice([0.0] * 9 + [0.9])
    for number in range(gpus):
        offset_s, at_s, series = chance.uniform(0, EVERY_S) if number else 0.0, begin_s, Series()
        while (at_s := at_s + EVERY_S) < begin_s + LENGTH_S:
            if hole and chance.random() < hole:
                at_s += chance.uniform(60, 900)
            works = bisect_right(turns, at_s) % 2 and chance.random() < 0.9
            if chance.random() >= missing:
                value = chance.uniform(2, 100) if works else quiet
                series.append((at_s + offset_s + chance.uniform(-jitter_s, jitter_s), value))
        if number and hole and chance.random() < 0.2:  # it reports no more
            del series[chance.randrange(len(series)) :]
        found.append(sorted(series))
    return found


def is_trusted(times: list[float], begin_s: float, now_s: float) -> bool:
    first, end = bisect_right(times, begin_s), bisect_right(times, now_s)
    if first == end or now_s - times[end - 1] > MAX_AGE * EVERY_S:
        return False
    before_s = times[first - 1] if first and times[first - 1] > begin_s - EVERY_S else begin_s - EVERY_S / 2
    apart = (later - earlier for earlier, later in pairwise([before_s, *times[first:end], now_s]))
    missed = [max(0, int(each / EVERY_S - 1 + LATE)) for each in apart]
    return max(missed) <= MAX_GAP and 1 - sum(missed) * EVERY_S / (now_s - begin_s) >= MIN_COVERAGE


def may_be_misread(series: Series, times: list[float], begin_s: float, now_s: float) -> bool:
    """A percentage whose highest sample is a fraction of one."""
    window = series[bisect_right(times, begin_s) : bisect_right(times, now_s)]
    return 0 < max((value for _, value in window), default=0) < 1


def next_tick(at_s: float) -> float:
    return -(-at_s // TICK_S) * TICK_S


def replayed(gpus: list[Series], window_s: float) -> dict[str, float]:
    """What becomes of one pod."""
    samples = sorted(sample for each in gpus for sample in each)
    start_s, end_s = samples[0][0], samples[-1][0]
    work = [at_s for at_s, value in samples if value >= 1]
    times = [[at_s for at_s, _ in each] for each in gpus]
    totals = dict.fromkeys(COMPARED, 0.0) | {"gpuHours": len(gpus) * (end_s - start_s) / 3600}
    now_s = next_tick(start_s)
    while now_s < end_s:
        seen = bisect_right(work, now_s)
        ready_s = max(start_s + WARM_UP_S, work[seen - 1] if seen else start_s) + window_s
        if now_s < ready_s:
            now_s = next_tick(ready_s)
        elif not all(is_trusted(each, now_s - window_s, now_s) for each in times) or any(
            may_be_misread(*each, now_s - window_s, now_s) for each in zip(gpus, times, strict=True)
        ):
            totals["unknownGpuHours"] += len(gpus) * min(TICK_S, end_s - now_s) / 3600
            now_s += TICK_S
        else:
            back_s = work[seen] if seen < len(work) else None
            took_s = (end_s if back_s is None else back_s) - now_s
            totals["suspensions"] += 1
            totals["freedGpuHours"] += len(gpus) * took_s / 3600
            totals["returnsWithin15m"] += back_s is not None and took_s <= 900
            totals["returnsWithin60m"] += back_s is not None and took_s <= 3600
            start_s = now_s = end_s if back_s is None else back_s
    return totals


COMPARED = ("suspensions", "freedGpuHours", "returnsWithin15m", "returnsWithin60m", "unknownGpuHours", "gpuHours")


@pytest.mark.parametrize(
    "kind",
    [{}, {"jitter_s": 2.0, "missing": 0.05}, {"jitter_s": 2.0, "gpus": 2, "hole": 0.004}],
    ids=["regular samples", "late and missing ones", "GPUs with holes, and some that report no more"],
)
def test_an_independent_replay_agrees_to_within_three_percent(tmp_path, kind):
    chance = Random(13)
    pods = {f"p{number}": made(chance, **kind) for number in range(PODS)}
    rows = [
        (f"{at_s:.3f}", "team", pod, f"GPU-{pod}-{number}", "gpu_util", f"{value:.3f}")
        for pod, gpus in pods.items()
        for number, series in enumerate(gpus)
        for at_s, value in series
    ]
    path = written(tmp_path, text_of(rows))
    found = simulated(tmp_path, path, "--idle-after", "10m,20m", "--warm-up", "10m", "--no-curve")["policies"]
    for policy, window_s in zip(found, (600.0, 1200.0), strict=True):
        own = [replayed(gpus, window_s) for gpus in pods.values()]
        expected = {name: sum(each[name] for each in own) for name in COMPARED}
        assert expected["suspensions"] > 40
        assert {name: policy[name] for name in COMPARED} == pytest.approx(expected, rel=0.03, abs=0.2)
