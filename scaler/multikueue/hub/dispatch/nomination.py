"""Which cluster is a Workload nominated for? One at a time: where it is not admitted in its time, the next one.

Its cluster is the first name in `status.nominatedClusterNames`; the others are the candidates but for that one, and
best is the first of them (`ranking.py`). By the first row that applies:

| the Workload                               | the clusters                                         | step            |
|--------------------------------------------|------------------------------------------------------|-----------------|
| is nominated, and the patience is over     | there is no candidate, and its own answers `Never`   | withdraw        |
| any                                        | there is no candidate                                | `NoCandidate`   |
| is inactive                                | its own is a candidate                               | `Inactive`      |
| is inactive                                | otherwise                                            | nominate one    |
| is nominated, and the patience is not over | any                                                  | `Patience`      |
| is not asked about: others come before it  | any                                                  | `NotAsked`      |
| any                                        | their answers are awaited                            | `AwaitsAnswers` |
| is nominated                               | there are no others                                  | `NoOther`       |
| is nominated, and its time is not over     | any                                                  | `Patience`      |
| any                                        | the best one's room was given away since it answered | `AwaitsStatus`  |
| is nominated since an unknown time         | its own answers `Free` or `Unknown`                  | nominate that   |
| any                                        | otherwise                                            | nominate best   |

Its time is the patience, or longer by what its cluster answers:

| its cluster answers                                    | it stays                                                  |
|--------------------------------------------------------|-----------------------------------------------------------|
| `Reclaim` at no cost: suspensions for it are under way | until another answers `Free`                              |
| `Nodes`, `Wait`                                        | for twice the time at the one before, unless another has  |
|                                                        | room (`Free`, `Reclaim`)                                  |

Laws:

* Whatever the answers, a Workload is nominated at most once per patience. An eviction, which clears the nomination, is
  not ours; it is nominated again at once.
* At most one cluster has `reclaim`: `may_reclaim`.
* A cluster that did not admit a Workload comes after all that answer the same and were not nominated since.
* A Workload with a cluster that stays the only one with room is nominated there within a patience.
* It does not lose its place in every queue: where all are full it stays at each twice as long as at the one before.
* An inactive Workload is nominated, or Kueue never releases its quota on the hub; no copy of it starts, so nobody is
  suspended for it. When it is active again its cluster is chosen anew, unless a copy may have quota there.
* A nomination of unknown time is kept where its copy may have quota: Kueue would go on with that copy, and its webhook
  would refuse the cluster; the job runs, and the hub waits. So it is when a Workload gets its quota again at the end of
  an eviction.
* A copy that never fits does not stay where it is: it would be the head of a StrictFIFO queue, and keep all others out.

Tempting: to add the next cluster, and keep the first one. Then both may admit it, and one of them preempts in vain.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.candidates import ClusterOption
from scaler.multikueue.hub.dispatch.ranking import GIVES_ROOM, Ranking


class KeepReason(StrEnum):
    """Why the nomination of a Workload stays as it is."""

    INACTIVE = "Inactive"
    NO_CANDIDATE = "NoCandidate"
    NOT_ASKED = "NotAsked"
    AWAITS_ANSWERS = "AwaitsAnswers"
    AWAITS_STATUS = "AwaitsStatus"
    PATIENCE = "Patience"
    NO_OTHER = "NoOther"


@dataclass(frozen=True, slots=True, kw_only=True)
class NominationState:
    """What is known of the nomination of a Workload."""

    is_active: bool = True
    is_asked: bool = True
    """Whether the workers are asked how it fits."""
    nominated: tuple[str, ...] = ()
    nominated_at: Mapping[str, datetime] = field(default_factory=dict)
    """When it was nominated last for each cluster, as far as that is remembered."""

    @property
    def cluster(self) -> str:
        """The one that it is nominated for; empty for none."""
        return next(iter(self.nominated), "")

    @property
    def since(self) -> datetime | None:
        """When this dispatcher nominated it for that one; None where it did not, or that is forgotten."""
        return self.nominated_at.get(self.cluster)

    @property
    def before(self) -> datetime | None:
        """When it was nominated for the one before."""
        return max((at for name, at in self.nominated_at.items() if name != self.cluster), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepNomination:
    reason: KeepReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NominateCluster:
    """Nominate this cluster, and no other any more."""

    cluster: ClusterOption


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawNomination:
    """Nominate no cluster."""


NominationStep: TypeAlias = KeepNomination | NominateCluster | WithdrawNomination


def next_step(state: NominationState, ranking: Ranking, now: datetime, *, patience: timedelta) -> NominationStep:
    """What the table says."""
    is_young = state.since is not None and now < state.since + patience
    if not ranking.candidates:
        is_left = state.is_active and not is_young and any(each.name == state.cluster for each in ranking.never)
        return WithdrawNomination() if is_left else _keep(KeepReason.NO_CANDIDATE, _why_none(ranking))
    if not state.is_active:
        return _of_inactive(state, ranking)
    if is_young and state.since is not None:
        return _stays(state, until=state.since + patience)
    if (unknown := _not_known(state, ranking)) is not None:
        return unknown
    return _first(state, ranking) if state.since is None else _later(state, ranking, state.since, now)


def _keep(reason: KeepReason, message: str) -> KeepNomination:
    return KeepNomination(reason=reason, message=message)


def _stays(state: NominationState, *, until: datetime) -> KeepNomination:
    return _keep(KeepReason.PATIENCE, f"nominated for {state.cluster}, until {until:%H:%M:%S}Z")


def _of_inactive(state: NominationState, ranking: Ranking) -> NominationStep:
    if ranking.candidate(state.cluster) is None:
        return NominateCluster(cluster=ranking.candidates[0])
    return _keep(KeepReason.INACTIVE, "inactive; it is nominated so that Kueue releases its quota")


def _not_known(state: NominationState, ranking: Ranking) -> KeepNomination | None:
    """What is to be waited for before the clusters can be compared; None where they can."""
    if not state.is_asked:
        return _keep(KeepReason.NOT_ASKED, "workers are asked about Workloads before it first")
    awaited = [each.name for each in ranking.candidates if each.answer.is_awaited]
    return _keep(KeepReason.AWAITS_ANSWERS, f"waits for answers of {', '.join(awaited)}") if awaited else None


def _first(state: NominationState, ranking: Ranking) -> NominationStep:
    present = [each for name in state.nominated if (each := ranking.candidate(name)) is not None]
    with_quota = [each for each in present if each.answer.fit in (Fit.FREE, Fit.UNKNOWN)]
    return _unless_given_away(ranking.candidates[0]) or NominateCluster(cluster=(*with_quota, *ranking.candidates)[0])


def _later(state: NominationState, ranking: Ranking, since: datetime, now: datetime) -> NominationStep:
    present = ranking.candidate(state.cluster)
    others = [each for each in ranking.candidates if each is not present]
    if not others:
        return _keep(KeepReason.NO_OTHER, f"nominated for {state.cluster}; no other cluster may take it")
    best = others[0].answer.fit
    if present is not None and present.answer.is_under_way and best is not Fit.FREE:
        return _keep(KeepReason.PATIENCE, f"nominated for {state.cluster}, where suspensions for it are under way")
    if present is not None and present.answer.fit in (Fit.NODES, Fit.WAIT) and best not in GIVES_ROOM:
        until = since + 2 * (since - (state.before or since))
        if now < until:
            return _stays(state, until=until)
    return _unless_given_away(others[0]) or NominateCluster(cluster=others[0])


def _unless_given_away(best: ClusterOption) -> KeepNomination | None:
    if not best.answer.is_given_away:
        return None
    given = f"room on {best.name} was given to another Workload; waits until it has looked again"
    return _keep(KeepReason.AWAITS_STATUS, given)


def _why_none(ranking: Ranking) -> str:
    reasons = "; ".join(f"{each.name}: {each.words}" for each in ranking.others)
    return f"no cluster may take it: {reasons}" if reasons else "no cluster may take it: there is none"


def nominated_after(step: NominationStep, nominated: tuple[str, ...]) -> tuple[str, ...]:
    """The names in `status.nominatedClusterNames` once the step is taken."""
    match step:
        case KeepNomination():
            return nominated
        case NominateCluster():
            return (step.cluster.name,)
        case WithdrawNomination():
            return ()


def may_reclaim(cluster: str, holders: Collection[str]) -> bool:
    """Whether a cluster may be given `reclaim` now. `holders` have it, or may have it as far as is known."""
    return not {*holders} - {cluster}
