"""One Workload of a trace: when it was created, how many GPUs it needs, and for how long."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    name: str
    created: datetime
    gpus: int
    spans: tuple[timedelta, ...]
    """How long its GPUs work, are idle, work, and so on, from its admission on. One span: it works all the time."""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    owner: str = ""
    """`namespace/name` of what its pods belong to; empty where that is not known, or not clear."""

    @property
    def is_gang(self) -> bool:
        """Whether it needs several GPUs at once."""
        return self.gpus > 1

    @property
    def duration(self) -> timedelta:
        """How long it holds its GPUs where it is never suspended."""
        return sum(self.spans, timedelta(0))


def ran_for(seconds: float) -> timedelta:
    """The time in whole seconds, and at least one. Raises: ValueError for what is no time."""
    if not 0 < seconds < _FOR_EVER:
        raise ValueError(f"it ran for {seconds:g} s; leave out Workloads that were never admitted, or run for ever")
    return timedelta(seconds=max(1, round(seconds)))


def ran_between(admitted: datetime, ended: datetime) -> timedelta:
    """The time in between in whole seconds, and at least one."""
    return ran_for(max(1.0, (ended - admitted).total_seconds()))


_FOR_EVER = 1e10
N = TypeVar("N", int, float)


def number(name: str, text: str, kind: Callable[[str], N]) -> N:
    """Raises: ValueError that says what is no number."""
    try:
        return kind(text)
    except ValueError:
        what = "whole number" if kind is int else "number"
        raise ValueError(f"{name} {text[:40]!r} is not a {what}") from None


def gpus_of(text: str) -> int:
    """Raises: ValueError for none."""
    gpus = number("gpus", text, int)
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs; leave out Workloads that ask for none")
    return gpus


def with_names_of_their_own(jobs: Iterable[SimulatedJob]) -> Iterator[SimulatedJob]:
    """The second of a name has a number."""
    times = Counter[str]()
    for job in jobs:
        times[job.name] += 1
        yield job if times[job.name] == 1 else replace(job, name=f"{job.name}#{times[job.name]}")
