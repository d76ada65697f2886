"""Which clusters is a Workload nominated for, and which of them may suspend idle workloads for it?

The first name of `status.nominatedClusterNames` is the cluster that has `reclaim`. By the first row that applies:

| the Workload                | its clusters                                            | step                         |
|-----------------------------|---------------------------------------------------------|------------------------------|
| inactive, nominated         | one of them is a candidate                              | `Inactive`                   |
| inactive                    | there is a candidate                                    | nominate it, no `reclaim`    |
| nominated, since a patience | no candidate, and some of its clusters answer `Never`   | remove these                 |
| any                         | no candidate                                            | `NoCandidate`                |
| removed within the patience | any                                                     | `Patience`                   |
| not nominated by us         | one was given `reclaim` for it, within the patience     | nominate that one            |
| not nominated by us         | it is not asked yet: others come before it              | `NotAsked`                   |
| not nominated by us         | answers are awaited                                     | `AwaitsAnswers`              |
| not nominated by us         | the best one's room was given away since it answered    | `AwaitsStatus`               |
| nominated, not by us        | one answers `Free`, or what it answers is not known     | that one, as if by us        |
| not nominated by us         | otherwise                                               | nominate the best            |
| nominated, since a patience | it is not asked now: others come before it              | `NotAsked`                   |
| nominated, since a patience | the first cannot serve any more, another can            | move `reclaim` there         |
| nominated, since a patience | clusters other than the first answer `Never`            | remove these                 |
| nominated, since a patience | there are others                                        | add the best of them         |
| nominated                   | otherwise                                               | `Patience`, `AllNominated`   |

A name alone is the reason for which the nomination is kept. The first *cannot serve* where it is no candidate any more,
or answers neither `Free`, `Reclaim` nor `Unknown` while another answers `Free` or `Reclaim`.

Laws:

* Whatever the answers, a Workload's nomination changes once per patience: times are those of the last change. An
  eviction, which clears the nomination, is not ours; it is nominated again at once.
* At most one cluster has `reclaim`, by the order in which it is given: `may_reclaim`.
* A Workload with a cluster that stays the only one with room is nominated there within a patience.
* An inactive Workload is nominated, or Kueue never releases its quota on the hub; no copy of it starts, so nobody is
  suspended for it. When it is active again its clusters are chosen anew, unless a copy may have quota: nothing was
  known when they were.
* No cluster leaves a nomination while a copy may have quota there. Kueue would go on with that copy, and its webhook
  would refuse the cluster: the job runs, and the hub waits. A nomination counts as not ours where its times are
  forgotten, too: so it is when a Workload gets its quota again at the end of an eviction. `Never` is the answer about
  no copy that has quota.
* A copy that never fits does not stay where it is: it would be the head of a StrictFIFO queue, and keep all others out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.ranking import GIVES_ROOM, RankedCluster, Ranking

MOST_NOMINATED = 20
"""Source: Kueue, validation of nominatedClusterNames."""


class KeepReason(StrEnum):
    """Why the nomination of a Workload stays as it is."""

    INACTIVE = "Inactive"
    NO_CANDIDATE = "NoCandidate"
    NOT_ASKED = "NotAsked"
    AWAITS_ANSWERS = "AwaitsAnswers"
    AWAITS_STATUS = "AwaitsStatus"
    PATIENCE = "Patience"
    ALL_NOMINATED = "AllNominated"


@dataclass(frozen=True, slots=True, kw_only=True)
class NominationState:
    """What is known of the nomination of a Workload."""

    is_active: bool = True
    is_asked: bool = True
    """Whether the workers are asked how it fits."""
    nominated: tuple[str, ...] = ()
    nominated_at: Mapping[str, datetime] = field(default_factory=dict)
    """When, by cluster; also of one that was given `reclaim` and is not nominated yet."""
    removed_at: datetime | None = None
    """When clusters were removed from its nomination last, as far as that is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepNomination:
    reason: KeepReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NominateCluster:
    """Nominate this cluster alone."""

    cluster: RankedCluster
    with_reclaim: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCluster:
    """Nominate another cluster, too. It may not reclaim."""

    cluster: RankedCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReclaim:
    """Nominate this cluster in place of the first."""

    source: str
    cluster: RankedCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveClusters:
    """Nominate these no longer."""

    names: frozenset[str]


NominationStep: TypeAlias = KeepNomination | NominateCluster | AddCluster | MoveReclaim | RemoveClusters


def next_step(state: NominationState, ranking: Ranking, now: datetime, *, patience: timedelta) -> NominationStep:
    """What the table says."""
    if not state.is_active:
        return _of_inactive(state, ranking)
    times = [state.nominated_at[name] for name in state.nominated if name in state.nominated_at]
    since = max([*times, *filter(None, [state.removed_at])], default=None)
    if not ranking.candidates:
        never = ranking.never.intersection(state.nominated)
        if never and not _is_young(since, now, patience):
            return RemoveClusters(names=never)
        return KeepNomination(reason=KeepReason.NO_CANDIDATE, message=_why_none(ranking))
    if since is not None and (times or _is_young(state.removed_at, now, patience)):
        return _later(state, ranking, since=since, now=now, patience=patience)
    return _first(state, ranking, now, patience)


def _of_inactive(state: NominationState, ranking: Ranking) -> NominationStep:
    if any(ranking.candidate(name) for name in state.nominated):
        return KeepNomination(
            reason=KeepReason.INACTIVE, message="inactive; it is nominated so that Kueue releases its quota"
        )
    if not ranking.candidates:
        return KeepNomination(reason=KeepReason.NO_CANDIDATE, message=_why_none(ranking))
    return NominateCluster(cluster=ranking.candidates[0], with_reclaim=False)


def _first(state: NominationState, ranking: Ranking, now: datetime, patience: timedelta) -> NominationStep:
    begun = [each for each in ranking.candidates if _is_young(state.nominated_at.get(each.name), now, patience)]
    if begun:
        return NominateCluster(cluster=max(begun, key=lambda each: state.nominated_at[each.name]))
    if not state.is_asked:
        return _NOT_ASKED
    with_quota = [
        each for each in map(ranking.candidate, state.nominated) if each is not None and _may_have_quota(each)
    ]
    return _unsettled(ranking.candidates) or NominateCluster(cluster=next(iter(with_quota), ranking.candidates[0]))


def _may_have_quota(nominated: RankedCluster) -> bool:
    """Whether the copy there may have quota: `Free` is the answer about one that has."""
    return nominated.answer.fit in (Fit.FREE, Fit.UNKNOWN)


_NOT_ASKED = KeepNomination(reason=KeepReason.NOT_ASKED, message="workers are asked about Workloads before it first")


def _is_young(at: datetime | None, now: datetime, patience: timedelta) -> bool:
    return at is not None and now - at < patience


def _unsettled(ranked: Collection[RankedCluster]) -> KeepNomination | None:
    """What is to be waited for before the best of them is known; None where it is."""
    if awaited := [each.name for each in ranked if each.answer.is_awaited]:
        return KeepNomination(reason=KeepReason.AWAITS_ANSWERS, message=f"waits for answers of {', '.join(awaited)}")
    best = next(iter(ranked))
    if best.answer.is_given_away:
        given = f"room on {best.name} was given to another Workload; waits until it has looked again"
        return KeepNomination(reason=KeepReason.AWAITS_STATUS, message=given)
    return None


def _later(
    state: NominationState, ranking: Ranking, *, since: datetime, now: datetime, patience: timedelta
) -> NominationStep:
    nominated = f"nominated for {', '.join(state.nominated) or 'no cluster, as it fitted none'}"
    if now - since < patience:
        return KeepNomination(reason=KeepReason.PATIENCE, message=f"{nominated}, until {since + patience:%H:%M:%S}Z")
    if not state.is_asked:
        return _NOT_ASKED
    alternatives = [each for each in ranking.candidates if each.name != state.nominated[0]]
    if not alternatives:
        return KeepNomination(reason=KeepReason.ALL_NOMINATED, message=f"{nominated}; no other cluster may take it")
    if _cannot_serve(ranking.candidate(state.nominated[0]), alternatives[0]):
        return _unsettled(alternatives) or MoveReclaim(source=state.nominated[0], cluster=alternatives[0])
    return _with_others(state, ranking, alternatives, nominated)


def _with_others(
    state: NominationState, ranking: Ranking, alternatives: Sequence[RankedCluster], nominated: str
) -> NominationStep:
    """The first stays."""
    if never := ranking.never.intersection(state.nominated[1:]):
        return RemoveClusters(names=never)
    further = [each for each in alternatives if each.name not in state.nominated]
    if not further or len(state.nominated) >= MOST_NOMINATED:
        return KeepNomination(reason=KeepReason.ALL_NOMINATED, message=f"{nominated}: all that may take it")
    return _unsettled(further) or AddCluster(cluster=further[0])


def _cannot_serve(first: RankedCluster | None, best: RankedCluster) -> bool:
    if first is None:
        return True
    serves = first.answer.fit in GIVES_ROOM or first.answer.fit is Fit.UNKNOWN
    return not serves and best.answer.fit in GIVES_ROOM


def _why_none(ranking: Ranking) -> str:
    reasons = "; ".join(f"{each.name}: {each.words}" for each in ranking.others)
    return f"no cluster may take it: {reasons}" if reasons else "no cluster may take it: there is none"


def nominated_after(step: NominationStep, nominated: tuple[str, ...]) -> tuple[str, ...]:
    """The names in `status.nominatedClusterNames` once the step is taken, the one with `reclaim` first."""
    match step:
        case KeepNomination():
            return nominated
        case NominateCluster():
            return nominated if nominated[:1] == (step.cluster.name,) else (step.cluster.name,)
        case AddCluster():
            return (*nominated, step.cluster.name)
        case MoveReclaim():
            return (step.cluster.name, *(each for each in nominated if each not in (step.source, step.cluster.name)))
        case RemoveClusters():
            return tuple(each for each in nominated if each not in step.names)


def reclaims_at(step: NominationStep, state: NominationState) -> str:
    """The cluster that is to have `reclaim`; empty for none."""
    match step:
        case KeepNomination() if not state.is_active or not _is_ours(state):
            return ""
        case NominateCluster(with_reclaim=False):
            return ""
        case _:
            return next(iter(nominated_after(step, state.nominated)), "")


def _is_ours(state: NominationState) -> bool:
    return any(name in state.nominated_at for name in state.nominated)


def may_reclaim(cluster: str, holders: Collection[str]) -> bool:
    """Whether a cluster may be given `reclaim` now. `holders` have it, or may have it as far as is known."""
    return not {*holders} - {cluster}
