"""When do made workloads use their GPUs? Sessions of one kind, and a fleet of four kinds; times are in minutes."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from math import exp, log

from scaler_analysis.simulation.gangs.idle_mix import IdleMix, SpanLengths

DAY = 1440.0

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A workload from its first sample to its last, and when it was at work."""

    kind: str
    gpus: float
    begin: float = 0.0
    end: float
    work: Sequence[Span]


def by_turns(chance: random.Random, end: float, work: SpanLengths, pause: SpanLengths) -> Iterator[Span]:
    """Times of work until `end`."""
    at = 0.0
    while at < end:
        done = at + work.draw(chance).total_seconds() / 60
        yield at, min(done, end)
        at = done + pause.draw(chance).total_seconds() / 60


def lengths(median: float, sigma: float) -> SpanLengths:
    return SpanLengths(median=timedelta(minutes=median), sigma=sigma)


def sessions(chance: random.Random) -> Iterator[Life]:
    """300 sessions of a day in the median, with the spans of `simulate --compare`: all of one kind."""
    mix = IdleMix()
    for _ in range(300):
        end = min(10 * DAY, chance.lognormvariate(log(DAY), 1))
        yield Life(kind="sessions", gpus=1, end=end, work=list(by_turns(chance, end, mix.work, mix.idle)))


def fleet(chance: random.Random) -> Iterator[Life]:
    """Two weeks of notebooks with nights and weekends, periodic jobs, training with pauses, services with nights."""
    end = 14 * DAY
    for _ in range(60):
        pause, begin = lengths(12 * exp(chance.gauss(0, 0.6)), 1.2), chance.gauss(540, 60)
        days = [day * DAY + begin for day in range(14) if day % 7 < 5 and chance.random() < 0.85]
        work = [(at + a, at + b) for at in days for a, b in by_turns(chance, 510, lengths(8, 1), pause)]
        yield Life(kind="notebooks", gpus=1, end=end, work=work)
    for _ in range(30):
        period, takes = chance.choice([60, 120, 180, 360, 1440]), lengths(chance.uniform(5, 24), 0.2)
        starts = [n * period + abs(chance.gauss(0, 0.03 * period)) for n in range(int(end / period))]
        work = [(at, at + takes.draw(chance).total_seconds() / 60) for at in starts]
        yield Life(kind="batch", gpus=1, end=end, work=work)
    for _ in range(30):
        length, pause = min(end, chance.lognormvariate(log(5 * DAY), 0.8)), lengths(20 * exp(chance.gauss(0, 0.6)), 0.9)
        work = list(by_turns(chance, length, lengths(360, 1), pause))
        yield Life(kind="training", gpus=chance.choice([1, 2, 4, 8]), end=length, work=work)
    for _ in range(30):
        every, at_night = exp(chance.uniform(log(2), log(60))), chance.uniform(0.02, 0.3)
        asked = accumulate(chance.expovariate(1 / every) for _ in range(int(2 * end / every)))
        kept = [at for at in asked if at < end and chance.random() < (1 if 480 < at % DAY < 1320 else at_night)]
        yield Life(kind="services", gpus=1, end=end, work=[(at, at + 1) for at in kept])


MIXES: Mapping[str, Callable[[random.Random], Iterable[Life]]] = {"sessions": sessions, "fleet": fleet}
