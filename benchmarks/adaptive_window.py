"""Would a window that learns from each workload's own pauses free more than one fixed window, at the same regret?

The rule: of the pauses that reached x, this workload's own and the fleet's (with the weight of `PRIOR` pauses), how
many went on for another 15m? Idle at the first x of 10m..4h where that share is at least 1 - r, and at 4h anyway. Only
what was known at that instant counts. With both rules warm-up and window begin anew when a workload returns.

Compared is the share of GPU time that is freed by the best setting whose regret is at most the accepted one: fixed
windows of 10m to two days with values of r. In brackets 95 % of 1,000 draws of as many workloads. A pod is a workload.

uv run python -m benchmarks.adaptive_window --trace samples.csv.gz
uv run python -m benchmarks.adaptive_window --mix fleet --seed 1
"""

import argparse
import csv
import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.activity_mixes import MIXES, Life

ACCEPTED = (0.05, 0.10, 0.20, 0.35, 0.50)
FIXED = (*np.arange(10, 240, 2.5), *np.arange(240, 720, 15), *np.arange(720, 2881, 60))  # minutes, like all times here
ASKED = (*np.arange(0.01, 0.10, 0.01), *np.arange(0.10, 0.96, 0.025))
AGES = np.arange(10.0, 241.0)
REGRET, WARM_UP, PRIOR, LONGEST_HOLE = 15.0, 10.0, 5.0, 10.0


class Pauses:
    """All pauses of at least 10m, those of one workload in the order of time."""

    def __init__(self, lives: Sequence[Life]) -> None:
        rows = [(n, *pause) for n, life in enumerate(lives) for pause in pauses_of(life)]
        self.of, self.begin, self.end, self.returns = (np.array(column) for column in zip(*rows, strict=True))
        self.length = self.end - self.begin
        self.gpus = np.array([life.gpus for life in lives])
        self.born = np.array([life.begin for life in lives])
        self.hours = self.gpus * np.array([life.end - life.begin for life in lives]) / 60
        self.kinds = np.array([life.kind for life in lives])

    def play(self, windows: np.ndarray) -> np.ndarray:
        """The GPU-hours freed, suspensions, and those with a return within 15m, for each workload."""
        result, started = np.zeros((len(self.gpus), 3)), self.born.copy()
        for pause in np.flatnonzero(self.length > windows):
            owner, end = self.of[pause], self.end[pause]
            idle_at = max(self.begin[pause], started[owner] + WARM_UP) + windows[pause]
            if idle_at < end:
                regretted = self.returns[pause] and end - idle_at <= REGRET
                result[owner] += ((end - idle_at) / 60 * self.gpus[owner], 1, regretted)
                started[owner] = end if self.returns[pause] else started[owner]
        return result


def pauses_of(life: Life) -> Iterator[tuple[float, float, bool]]:
    since = life.begin
    for begin, end in sorted(life.work):
        if begin - since >= AGES[0]:
            yield since, begin, True
        since = max(since, end)
    if life.end - since >= AGES[0]:
        yield since, life.end, False


def adaptive(pauses: Pauses) -> Callable[[float], np.ndarray]:
    """The windows for a value of r."""
    went_on = pauses.length[:, None] >= AGES + REGRET
    ended = (pauses.length[:, None] >= AGES) & ~went_on & pauses.returns[:, None]
    share = np.zeros(went_on.shape)
    for n, age in enumerate(AGES):
        now = pauses.begin + age
        went = np.searchsorted(np.sort((now + REGRET)[went_on[:, n]]), now, "right")
        back = np.searchsorted(np.sort(pauses.end[ended[:, n]]), now, "right")
        share[:, n] = (went + PRIOR / 2) / (went + back + PRIOR)
    for owner in np.unique(pauses.of):
        own = np.flatnonzero(pauses.of == owner)
        went, back = (np.cumsum(x[own], 0) - x[own] for x in (went_on, ended))
        share[own] = (went + PRIOR * share[own]) / (went + back + PRIOR)

    def windows(regret: float) -> np.ndarray:
        enough = share >= 1 - regret
        return np.asarray(np.where(enough.any(1), AGES[enough.argmax(1)], AGES[-1]))

    return windows


def freed_at(plays: np.ndarray) -> np.ndarray:
    """GPU-hours freed by the best setting with at most the accepted regret, between settings on a straight line."""
    freed, regret = plays[:, 0], plays[:, 2] / np.maximum(plays[:, 1], 1)
    order = np.lexsort((-freed, regret))
    best = np.maximum.accumulate(freed[order])
    first = np.concatenate(([True], best[1:] > best[:-1]))
    return np.interp(ACCEPTED, regret[order][first], best[first], left=np.nan)


def window_per_kind(pauses: Pauses, plays: np.ndarray) -> np.ndarray:
    """The share freed with one fixed window for each namespace, chosen with knowledge of the whole trace."""
    kinds = np.stack([plays[:, pauses.kinds == kind].sum(1) for kind in np.unique(pauses.kinds)], 1)
    result = np.zeros(len(ACCEPTED))
    for n, accepted in enumerate(ACCEPTED):
        for price in (0, *np.geomspace(1e-3, 300, 200)):
            score = kinds[:, :, 0] - price * (kinds[:, :, 2] - accepted * kinds[:, :, 1])
            freed, suspensions, regrets = kinds[score.argmax(0), range(kinds.shape[1])].sum(0)
            result[n] = max(result[n], freed if regrets <= accepted * suspensions else 0)
    return result


def compare(pauses: Pauses) -> None:
    learned = adaptive(pauses)
    fixed = np.stack([pauses.play(np.full(len(pauses.length), window)) for window in FIXED])
    adapted = np.stack([pauses.play(learned(regret)) for regret in ASKED])
    total, workloads = pauses.hours.sum(), len(pauses.hours)
    draws = np.random.default_rng(7).multinomial(workloads, np.full(workloads, 1 / workloads), 1000)
    gains = [freed_at(np.tensordot(d, adapted, (0, 1))) - freed_at(np.tensordot(d, fixed, (0, 1))) for d in draws]
    low, high = np.nanpercentile(np.array(gains) / (draws @ pauses.hours)[:, None], [2.5, 97.5], axis=0)
    one, own, per_kind = freed_at(fixed.sum(1)), freed_at(adapted.sum(1)), window_per_kind(pauses, fixed)
    _, suspensions, regrets = fixed[0].sum(0)
    print(f"{workloads} workloads, {total:,.0f} GPU-hours, {len(pauses.length):,} pauses of 10m or more")
    print(f"a window of 10m has a regret of {regrets / suspensions:.0%}; accepting more than that frees no more")
    print(
        "accepted   one window   learned   points more (95 %)   a window per namespace; - where no setting gets there"
    )
    for n, accepted in enumerate(ACCEPTED):
        more = f"{(own - one)[n] / total * 100:+.1f} ({low[n] * 100:+.1f}..{high[n] * 100:+.1f})"
        gain = "-" if np.isnan(own[n]) else more
        shares = f"{one[n] / total:12.1%} {own[n] / total:9.1%} {gain:>20} {per_kind[n] / total:10.1%}"
        print(f"{accepted:8.0%} {shares}".replace("nan%", "   -"))
    for regret in ACCEPTED:
        _, suspensions, regrets = pauses.play(learned(regret)).sum(0)
        print(f"asked for {regret:.0%}, got {regrets / max(suspensions, 1):.0%}")


def read(path: Path, active_above: float) -> Iterator[Life]:
    """The pods of a file as `simulate --trace` reads it, with one signal. A hole of more than 10m ends a life."""
    samples: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for row in csv.DictReader(lines):
            at, value = float(row["time"]) / 60, float(row["value"] or "nan")
            if value == value:  # not NaN
                samples.setdefault((row["namespace"], row["pod"]), []).append((at, value, row["gpu"]))
    for (namespace, _), pod in samples.items():
        pod.sort()
        gpus = len({gpu for _, _, gpu in pod})
        ends = [n for n, (a, b) in enumerate(pairwise(pod), 1) if b[0] - a[0] > LONGEST_HOLE]
        for first, past in pairwise([0, *ends, len(pod)]):
            work = [(at, at) for at, value, _ in pod[first:past] if value >= active_above]
            yield Life(kind=namespace, gpus=gpus, begin=pod[first][0], end=pod[past - 1][0], work=work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="CSV, also gzip: time in Unix seconds, namespace, pod, gpu, value")
    source.add_argument("--mix", choices=sorted(MIXES))
    parser.add_argument("--active-above", type=float, default=1.0, help="in the unit of the file's values")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    lives = read(asked.trace, asked.active_above) if asked.trace else MIXES[asked.mix](random.Random(asked.seed))
    compare(Pauses([life for life in lives if life.end > life.begin]))


if __name__ == "__main__":
    main()
