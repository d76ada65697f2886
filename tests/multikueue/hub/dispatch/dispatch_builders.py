"""Clusters of a hub and their answers, by default candidates that answer nothing."""

from datetime import datetime, timedelta
from typing import Any

from builders import NOON, minutes

from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.hub.dispatch.candidates import ClusterAnswer, ClusterOption, HubCluster, PlacementChoice
from scaler.multikueue.hub.dispatch.nomination import NominationState
from scaler.multikueue.hub.dispatch.ranking import Ranking, rank

PATIENCE = minutes(5)


def cluster(name: str, **changes: Any) -> HubCluster:
    given: dict[str, Any] = {"managed_cluster": name, "is_active": True}
    return HubCluster(name=name, **{**given, **changes})


def placement(*clusters: str, problem: str = "") -> PlacementChoice:
    return PlacementChoice(name="team/gpus", clusters=frozenset(clusters), problem=problem)


def answer(fit: str, **more: Any) -> ClusterAnswer:
    return ClusterAnswer(fit=Fit(fit), **more)


def ranking(state: NominationState = NominationState(), /, **answers: str | ClusterAnswer) -> Ranking:  # noqa: B008
    """Of candidates in this order, with these answers, for a Workload in that state."""
    clusters = [ClusterOption(name=name, order=order) for order, name in enumerate(answers)]
    given = {name: answer(each) if isinstance(each, str) else each for name, each in answers.items()}
    return rank(clusters, given, state.nominated_at)


def nominated(*names: str, ago: timedelta = timedelta(0), **changes: Any) -> NominationState:
    """A Workload that was nominated for these clusters one after the other, for the last of them so long before noon,
    for the others an hour before the next."""
    at = {name: NOON - ago - timedelta(hours=place) for place, name in enumerate(reversed(names))}
    return NominationState(nominated=names[-1:], nominated_at=at, **changes)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)
