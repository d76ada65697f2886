"""Who may be suspended for a gang that waits, and who is being suspended anyway? Pure, from what is observed.

A candidate is a ScalableWorkload whose every decision says that its GPUs are idle and that only a plan may take it. One
whose ScaledObject KEDA is told to leave alone is none: a grant would wait for somebody who never comes. Nor is one of
which cannot be foreseen what Kueue does when it goes (topology, other clusters, slices): what it frees is not known.

Whoever is told to go by its own policy is counted on, and nobody is suspended in its stead, but only for as long as
KEDA may need: one that another trigger keeps running would have gangs wait for it for ever.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.core.costs import Stake, Weights, cost_of
from scaler.core.quota.model import Workload
from scaler.core.quota.snapshot import Snapshot
from scaler.core.reasons import Because
from scaler.core.reclaim import Candidate
from scaler.core.replicas import Active, Decision, Inactive, NoAnswer
from scaler.core.scopes import Member
from scaler.core.suspension import Phase, Situation, plan
from scaler.kube.objects import ScalableWorkload, ScaledObject
from scaler.loops.board import Evaluation
from scaler.loops.cluster import Cluster
from scaler.loops.granted import times_reclaimed
from scaler.loops.scales import scalable_target

_IDLE = frozenset({Because.NOBODY_WAITS, Because.RECLAIMED})
"""Answers that say: idle by its own verdict, and a plan's to take."""
_GOING = frozenset({Because.GPUS_IDLE})

_LEFT_ALONE = (
    "autoscaling.keda.sh/paused",
    "autoscaling.keda.sh/paused-replicas",
    "autoscaling.keda.sh/paused-scale-in",
)
"""Annotations by which KEDA does not scale to 0, whatever it is told. Source: KEDA, pause autoscaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idlers:
    """Who is idle at one instant."""

    candidates: tuple[Candidate, ...]
    leaving: frozenset[str]
    """Keys of Workloads that are suspended anyway: their time is up, or somebody has scaled them to 0."""


def is_idle(decisions: Sequence[Decision]) -> bool:
    """Whether every trigger's decision says idle, and that a plan may take it."""
    return bool(decisions) and all(_because(each) in _IDLE for each in decisions)


def is_unknown(decisions: Sequence[Decision]) -> bool:
    """Whether nobody can say if it is idle: some trigger's decision has no answer, and none speaks against it."""
    unanswered = [each for each in decisions if isinstance(each.answer, NoAnswer)]
    return bool(unanswered) and all(_because(each) in _IDLE for each in decisions if each not in unanswered)


def _because(decision: Decision) -> Because | None:
    answer = decision.answer
    return answer.because if isinstance(answer, Active | Inactive) else None


def find_idlers(
    evaluation: Evaluation,
    cluster: Cluster,
    snapshot: Snapshot,
    *,
    weights: Weights,
    patience: timedelta,
    now: datetime,
) -> Idlers:
    """The candidates and those that leave. One that holds no quota by the snapshot is neither.

    `patience` is how long KEDA may take to bring to 0 what it is told to.
    """
    candidates, leaving = [], set()
    for scalable, situation, workload in _holders(cluster, snapshot):
        decisions = evaluation.decisions_on(scalable.metadata.namespace, scalable_target(scalable.metadata.name))
        if _is_leaving(scalable, situation, decisions, cluster, since=now - patience):
            leaving.add(workload.key)
        elif workload.opaque_because or scalable.status.grant is not None:
            continue
        elif is_idle(decisions) and not is_left_alone(scalable, cluster):
            candidates.append(_candidate(scalable, workload, decisions, cluster, weights=weights, now=now))
    return Idlers(candidates=tuple(candidates), leaving=frozenset(leaving))


def _holders(cluster: Cluster, snapshot: Snapshot) -> Iterator[tuple[ScalableWorkload, Situation, Workload]]:
    """Every ScalableWorkload that acts for a Workload which holds quota."""
    for scalable in cluster.scalable_workloads.items():
        if scalable.metadata.deletion_timestamp is not None:
            continue
        situation = cluster.situation(scalable)
        observed = situation.workload
        workload = snapshot.workload(f"{observed.namespace}/{observed.name}") if observed else None
        if workload is not None and workload.reservation is not None and plan(situation).phase is not Phase.REFUSED:
            yield scalable, situation, workload


def _is_leaving(
    scalable: ScalableWorkload,
    situation: Situation,
    decisions: Sequence[Decision],
    cluster: Cluster,
    *,
    since: datetime,
) -> bool:
    """Whether it goes without any plan: it is at 0 already, or was told to go not longer ago than `since`."""
    if situation.is_held:
        return False
    if scalable.spec.replicas == 0:
        return True
    told = bool(decisions) and all(_because(each) in _GOING and _due(each) >= since for each in decisions)
    return told and not is_left_alone(scalable, cluster)


def _due(decision: Decision) -> datetime:
    """When its time was up."""
    return (decision.idle_since or decision.decided_at) + decision.policy.window


def is_left_alone(scalable: ScalableWorkload, cluster: Cluster) -> bool:
    """Whether KEDA is not told to scale it, or is told not to."""
    target = scalable.metadata.namespace, scalable_target(scalable.metadata.name)
    scaled_objects = cluster.scaled_objects.by_index("target", target)
    return not scaled_objects or any(map(is_told_to_leave_alone, scaled_objects))


def is_told_to_leave_alone(scaled_object: ScaledObject) -> bool:
    """Whether KEDA does not scale its target, or not to 0, whatever it is told."""
    return any(scaled_object.metadata.annotations.get(key) for key in _LEFT_ALONE)


def _candidate(
    scalable: ScalableWorkload,
    workload: Workload,
    decisions: Sequence[Decision],
    cluster: Cluster,
    *,
    weights: Weights,
    now: datetime,
) -> Candidate:
    gpus = gpus_of(workload, cluster)
    idle_since = max((each.idle_since for each in decisions if each.idle_since), default=now)
    running_since = min((each.standing.running_since for each in decisions if each.standing.running_since), default=now)
    stake = Stake(
        gpus=gpus,
        worked=max(timedelta(0), idle_since - running_since),
        idle=max(timedelta(0), now - idle_since),
        priority=workload.priority,
        times_reclaimed=times_reclaimed(scalable),
        **_way_back(scalable, running_since),
    )
    return Candidate(
        workload=workload.key,
        name="/".join(scalable.metadata.key),
        gpus=gpus,
        cost=cost_of(stake, weights),
        member=member_of(scalable, workload),
    )


def _way_back(scalable: ScalableWorkload, running_since: datetime) -> dict[str, timedelta]:
    """How long it took to come back the last time, where it ever did."""
    resumed_at = scalable.status.resumed_at
    return {"resume": running_since - resumed_at} if resumed_at and running_since > resumed_at else {}


def gpus_of(workload: Workload, cluster: Cluster) -> int:
    """GPUs that the Workload holds quota of, or asks for while it waits."""
    if workload.reservation is not None:
        return sum(n for key, n in workload.reservation.usage.items() if cluster.gpus.matches(key.resource))
    return sum(n for each in workload.requests for resource, n in each.items() if cluster.gpus.matches(resource))


def member_of(scalable: ScalableWorkload, workload: Workload | None) -> Member:
    """The ScalableWorkload as budgets count it."""
    held = workload.reservation if workload is not None else None
    return Member(
        namespace=scalable.metadata.namespace,
        name=scalable.metadata.name,
        cluster_queue=held.cluster_queue if held is not None else None,
    )


def waiting_gangs(workloads: Iterable[Workload], cluster: Cluster) -> list[Workload]:
    """The Workloads that wait for GPUs, in the order in which plans are made for them."""
    waiting = [each for each in workloads if each.reservation is None and each.may_queue and gpus_of(each, cluster)]
    return sorted(waiting, key=lambda each: (-each.priority, each.queued_at, each.uid))
