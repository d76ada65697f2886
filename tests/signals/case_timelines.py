"""What happens in the cases of `exporter_cases` over time, where their pages alone do not tell it.

Numbers are collections from the begin of a case on. A case that is not named here shows one page for ever, its pods run
since long before, and each is idle or works all the time, as its case.yaml says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

FIRST_PAGE = 10
"""What the first page of each case is called."""

Works = Callable[[int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One pod of a name; a StatefulSet's has several, one after the other."""

    runs: float = -inf
    """When its containers start."""
    until: float = inf
    created: float | None = None
    """When its node takes it up; None: as its containers start."""


ALWAYS = (Life(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    shown: Callable[[float, str], int | None] = lambda collection, page: FIRST_PAGE
    """Which state of the page is served; None: the exporter is down, or its samples were lost."""
    value: Callable[[float, str, float], float] = lambda collection, metric, value: value
    """What a line shows in place of the value on the page."""
    every: float = 1.0
    """How many of the exporter's collections one scrape takes."""
    is_frozen: bool = False
    """Whether its counters stand still."""
    lives: Mapping[str, Sequence[Life]] = field(default_factory=dict)
    works: Mapping[str, Works] = field(default_factory=dict)
    """By pod: whether it works between this collection and the next."""
    others: Sequence[str] = ()
    """Pods with one GPU that the case speaks of without naming them as its own."""
    node_labels: Mapping[str, str] = field(default_factory=dict)


def _down(begin: int, count: int) -> Callable[[float, str], int | None]:
    return lambda collection, page: None if begin <= collection < begin + count else FIRST_PAGE


def _then(*changes: tuple[float, int]) -> Callable[[float, str], int]:
    """(until when, which state) in order, the last one until for ever."""
    return lambda collection, page: next(state for until, state in changes if collection < until)


def _within(begin: float, end: float = inf) -> Works:
    return lambda collection: begin <= collection < end


def _never(collection: int) -> bool:
    return False


def _requests(collection: float, metric: str, value: float) -> float:
    """One collection of 25 has work."""
    busy = {"DCGM_FI_DEV_GPU_UTIL": 97.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.9}
    return busy.get(metric, value) if collection % 25 == 0 else value


def _zeros(begin: int, end: int) -> Callable[[float, str, float], float]:
    return lambda collection, metric, value: 0.0 if begin <= collection < end else value


_BLIPS: Callable[[float, str], int] = lambda collection, page: 45 if collection % 5 == 0 else 33  # noqa: E731
_OFFERED_TWICE = {"nvidia.com/gpu.replicas": "2"}

TIMELINES: Mapping[str, Timeline] = {
    "a11-timeslice-last-wins": Timeline(node_labels={"nvidia.com/gpu.replicas": "3"}),
    "a12-virtual-gpus-shared": Timeline(node_labels=_OFFERED_TWICE),
    "a18-frozen-page": Timeline(is_frozen=True, works={"busy": _within(20)}),
    "a19-two-replicas": Timeline(node_labels=_OFFERED_TWICE),
    "a22-blip": Timeline(shown=_BLIPS),
    "a22r-blip": Timeline(shown=_BLIPS),
    "b02-gke-system-metrics": Timeline(every=2),
    **{f"c01-gap-{count:02}": Timeline(shown=_down(35, count)) for count in (1, 2, 3, 5, 6, 7, 10)},
    **{
        f"c02-burst-in-gap-{count:02}": Timeline(shown=_down(35, count), works={"busy": _within(35, 35 + count)})
        for count in (3, 5, 6, 7)
    },
    "c03-restart-while-busy": Timeline(shown=_down(35, 3), value=_zeros(38, 42)),
    "c04-gpu-moves": Timeline(
        shown=_then((30, FIRST_PAGE), (inf, 33)),
        others=["first"],
        lives={"first": [Life(until=30)], "second": [Life(runs=30)]},
        works={"first": _within(-inf, 30), "second": _never},
    ),
    "c04b-gpu-moves-busy": Timeline(
        shown=_then((30, FIRST_PAGE), (34, 33), (inf, 37)),
        others=["first"],
        lives={"first": [Life(until=30)], "second": [Life(runs=30)]},
        works={"first": _never, "second": _within(30)},
    ),
    "c04c-swap": Timeline(shown=_then((30, FIRST_PAGE), (inf, 33))),
    "c05-late-label": Timeline(
        shown=_then((30, FIRST_PAGE), (inf, 33)), lives={"busy": [Life(runs=26)]}, works={"busy": _within(26)}
    ),
    "c09-federated-60s": Timeline(every=2),
    "c09b-scrape-45s": Timeline(every=1.5),
    "c10b-rules-average-hides": Timeline(shown=lambda collection, page: FIRST_PAGE if collection % 10 == 0 else 33),
    "c12-churn": Timeline(shown=_then((36, FIRST_PAGE), (42, 37), (inf, 45))),
    "c14-statefulset": Timeline(
        shown=_then((30, FIRST_PAGE), (inf, 33)),
        lives={"same-0": [Life(until=30), Life(runs=30)]},
        works={"same-0": _within(-inf, 30)},
    ),
    "c16-init-container": Timeline(
        shown=_then((25, FIRST_PAGE), (inf, 33)), lives={"idle": [Life(runs=25, created=-inf)]}, works={"idle": _never}
    ),
    "c22-ha-pair": Timeline(shown=lambda collection, page: None if page == "b" and collection > 64 else FIRST_PAGE),
    "d01-inference-between-requests": Timeline(
        value=_requests, works={"serve": lambda collection: collection % 25 == 0}
    ),
}

NODE_OF_ALL: Mapping[str, str] = {"c12-churn": "gpu-node-1"}
"""Where no series says it: the host that these name is the exporter's pod."""
