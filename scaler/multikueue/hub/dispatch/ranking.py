"""Which cluster is best for a Workload, by what each of them answers?

| rank | answer    | the Workload                                         | among equals                      |
|------|-----------|------------------------------------------------------|-----------------------------------|
| 1    | `Free`    | fits now                                             | least GPUs that remain free after it |
| 2    | `Reclaim` | fits once idle workloads are suspended               | least cost of the worker's plan   |
| 3    | `Nodes`   | fits on nodes that are requested there               |                                   |
| 4    | `Wait`    | fits once other Workloads have ended                 |                                   |
| 5    | `Unknown` | its answer is missing or has expired                 |                                   |
| –    | `Never`   | exceeds all of its quota: it is no candidate         |                                   |

Among those of a rank, clusters that the Workload was never nominated for come first, then the one for which that was
longest ago: one that did not admit it does not get it back before the others had it. Last of all the order of the
MultiKueueConfig decides; what remains free is compared before it everywhere, as a gang goes where it leaves the
smallest gap.

Room is given once: after nominations on it, an answer `Free` to another Workload of the same worker and ClusterQueue
counts only while what remains free after it is enough for those, and an answer `Reclaim` only once the worker has
looked again. An answer that does not count comes after those of its rank that do, and keeps its rank: to wait some
seconds for room is better than to go where there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.candidates import NO_ANSWER, ClusterAnswer, ClusterObstacle, ClusterOption

_BEST_FIRST = (Fit.FREE, Fit.RECLAIM, Fit.NODES, Fit.WAIT, Fit.UNKNOWN, Fit.NEVER)
_RANK = {fit: rank for rank, fit in enumerate(_BEST_FIRST)}
GIVES_ROOM = frozenset({Fit.FREE, Fit.RECLAIM})
_SETTLES = timedelta(seconds=3)
"""The time after a nomination until the worker's planner may have seen the copy."""
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The candidates, best first, and the clusters that are none."""

    candidates: tuple[ClusterOption, ...] = ()
    others: tuple[ClusterOption, ...] = ()

    def candidate(self, name: str) -> ClusterOption | None:
        return next((each for each in self.candidates if each.name == name), None)

    @property
    def never(self) -> tuple[ClusterOption, ...]:
        """The clusters that answer Never: no candidates by their own answer alone, which may change."""
        return tuple(each for each in self.others if each.obstacle is ClusterObstacle.NEVER_FITS)

    @property
    def all(self) -> tuple[ClusterOption, ...]:
        return (*self.candidates, *self.others)


def rank(
    options: Sequence[ClusterOption],
    answers: Mapping[str, ClusterAnswer],
    nominated_at: Mapping[str, datetime] = MappingProxyType({}),
) -> Ranking:
    """The clusters in the order in which they are nominated; `answers`, and when they were last, by name."""
    clusters = [_ranked(each, answers.get(each.name, NO_ANSWER)) for each in options]
    candidates = (each for each in clusters if each.is_candidate)
    return Ranking(
        candidates=tuple(sorted(candidates, key=lambda each: _place(each, nominated_at.get(each.name, _NEVER)))),
        others=tuple(each for each in clusters if not each.is_candidate),
    )


def _ranked(cluster: ClusterOption, answer: ClusterAnswer) -> ClusterOption:
    if cluster.is_candidate and answer.fit is Fit.NEVER:
        why = f"it never fits there: {answer.message or 'it exceeds all quota'}"
        return replace(cluster, answer=answer, obstacle=ClusterObstacle.NEVER_FITS, why=why)
    return replace(cluster, answer=answer)


_Place = tuple[int, bool, datetime, float, float, int]


def _place(ranked: ClusterOption, nominated_at: datetime) -> _Place:
    """What is not known comes last among equals."""
    answer = ranked.answer
    cost = float("inf") if answer.cost is None else float(answer.cost)
    free = float("inf") if answer.free_after is None else float(answer.free_after)
    is_plan = answer.fit is Fit.RECLAIM
    rank, by_cost = _RANK[answer.fit], cost if is_plan else 0.0
    return rank, answer.is_given_away, nominated_at, by_cost, free, ranked.order


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRoom:
    """A Workload that was nominated for a worker because of the room there, in its ClusterQueue."""

    uid: str
    gpus: int
    at: datetime


def is_given_away(
    fit: Fit, free_after: int | None, given: Iterable[GivenRoom], *, uid: str, received_at: datetime | None
) -> bool:
    """Whether the room of this answer may be that of nominations since. By the hub's clock throughout.

    `received_at` is when the status with the answer was received.
    """
    since = [
        each.gpus for each in given if each.uid != uid and (received_at is None or received_at < each.at + _SETTLES)
    ]
    if fit not in GIVES_ROOM or not since:
        return False
    return fit is Fit.RECLAIM or free_after is None or sum(since) > free_after
