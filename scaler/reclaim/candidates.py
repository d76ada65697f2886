"""What plans are made from, as observed: candidates, and Workloads that are suspended anyway.

Laws:

* A candidate is a ScalableWorkload whose every decision says that its GPUs are idle and that only a plan may suspend
  it. One whose ScaledObject is paused is none: KEDA would never act on its grant. Nor is one whose suspension has
  effects in Kueue that cannot be predicted (topology, other clusters, slices).
* A workload that is scaled to 0 by its own policy is counted on, and no other is suspended in its place, but only for
  as long as KEDA may need: one that another trigger keeps running would have gangs wait for it for ever.
* Terminating pods keep no others off their nodes: these are free once a plan has come to its end.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge
from operator import attrgetter

from scaler.admission.terminating_pods import pods_of
from scaler.decision.decision import Decision, hook_stage
from scaler.decision.decision_cache import Evaluation
from scaler.decision.reasons import DecisionReason, row_of
from scaler.idleness.hooks import HookStage
from scaler.idleness.verdict import Idle, Unknown
from scaler.kube.objects.core import Pod
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, keeps_from_zero, scalable_workload_ref
from scaler.kube.objects.resources import SCALED_OBJECT
from scaler.placement.node_watch import holds_no_node
from scaler.quota.from_objects.pod_nodes import PODSET_LABEL, marked_pod_sets
from scaler.quota.model import QuotaWorkload
from scaler.quota.snapshot import Snapshot
from scaler.reclaim.costs import CostWeights, cost_of
from scaler.reclaim.policy_budgets import budgets_of, names_of
from scaler.reclaim.search.values import AntiAffinityNodes, Candidate
from scaler.targets.cluster_state import ClusterState
from scaler.targets.target_state import ObservedTarget, Phase, state_of

_AT_ONCE = 100
"""ScalableWorkloads that are looked at before others have a turn: some 3 ms."""


def is_idle(decisions: Sequence[Decision]) -> bool:
    """Whether every trigger's decision says idle, and that a plan may take it."""
    return bool(decisions) and all(_is_of_plans(each) for each in decisions)


def is_undecided(decisions: Sequence[Decision]) -> bool:
    """Whether it is not known to be idle, or its hook has not ended: some trigger's decision waits for that, and none
    speaks against it."""
    open_ones = [each for each in decisions if isinstance(each.answer, Unknown) or _awaits_hook(each)]
    return bool(open_ones) and all(_is_of_plans(each) for each in decisions if each not in open_ones)


def idle_workloads(evaluation: Evaluation, cluster: ClusterState, snapshot: Snapshot) -> frozenset[str]:
    """Keys of the Workloads that hold quota and whose every verdict is Idle, whether a plan may take them or not."""
    found = set()
    for namespace, target in evaluation.keys_by_target:
        decisions = evaluation.decisions_on(namespace, target)
        scalable = cluster.target_of(namespace, target)
        if scalable is None or not (decisions and all(map(_is_quiet, decisions))):
            continue
        observed = cluster.workload_of(scalable)
        workload = snapshot.workload("/".join(observed.metadata.key)) if observed is not None else None
        if workload is not None and workload.reservation is not None:
            found.add(workload.key)
    return frozenset(found)


def _is_quiet(decision: Decision) -> bool:
    if decision.verdict is None or not isinstance(decision.verdict.verdict, Idle):
        return False
    reason = decision.answer.reason
    return not (reason is DecisionReason.STARTING or row_of(reason).tells_time)


def _is_of_plans(decision: Decision) -> bool:
    return row_of(decision.answer.reason).of_plans


def _awaits_hook(decision: Decision) -> bool:
    return decision.answer.reason is DecisionReason.BEFORE_SUSPEND


def has_failed_hook(decisions: Sequence[Decision]) -> bool:
    return any(each.answer.reason is DecisionReason.BEFORE_SUSPEND_FAILED for each in decisions)


async def find_candidates(
    evaluation: Evaluation,
    cluster: ClusterState,
    snapshot: Snapshot,
    *,
    weights: CostWeights,
    patience: timedelta,
    hooks: Mapping[str, timedelta],
    now: datetime,
) -> tuple[tuple[Candidate, ...], frozenset[str]]:
    """The candidates, and the keys of Workloads that are suspended anyway: their time is up, or they are scaled to 0.

    One that holds no quota by the snapshot is neither.
    `patience` is how long KEDA may take to scale to 0 after an inactive answer, `hooks` how long each hook may take.
    """
    candidates, leaving = [], set()
    for number, scalable in enumerate(tuple(cluster.scalable_workloads.items())):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        decisions = evaluation.decisions_on(scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name))
        holder = _holder(scalable, cluster, snapshot) if _may_go(scalable, decisions) else None
        if holder is None:
            continue
        observed, workload = holder
        if _is_leaving(scalable, observed, decisions, cluster, since=now - patience):
            leaving.add(workload.key)
        elif workload.opaque_because or scalable.status.grant is not None:
            continue
        elif is_idle(decisions) and not is_not_scaled(scalable, cluster):
            candidate = _candidate(scalable, workload, decisions, cluster, weights=weights, now=now)
            candidates.append(replace(candidate, hook_takes=_hook_takes(decisions, hooks)))
    return tuple(candidates), frozenset(leaving)


def _may_go(scalable: ScalableWorkload, decisions: Sequence[Decision]) -> bool:
    """Whether it may be a candidate or leaving, by what is known at once: most are at work."""
    if scalable.metadata.deletion_timestamp is not None:
        return False
    return scalable.spec.replicas == 0 or is_idle(decisions) or _is_going(decisions)


def _holder(
    scalable: ScalableWorkload, cluster: ClusterState, snapshot: Snapshot
) -> tuple[ObservedTarget, QuotaWorkload] | None:
    """What is observed of it, and its Workload; None where that holds no quota."""
    observed = cluster.situation(scalable)
    known = observed.workload
    workload = snapshot.workload(f"{known.namespace}/{known.name}") if known and known.has_quota else None
    if workload is None or workload.reservation is None or state_of(observed).phase is Phase.REFUSED:
        return None
    return observed, workload


def _is_going(decisions: Sequence[Decision]) -> bool:
    """Whether KEDA is answered 0 by every trigger's decision, without any plan."""
    return bool(decisions) and all(each.answer.reason is DecisionReason.GPUS_IDLE for each in decisions)


def _is_leaving(
    scalable: ScalableWorkload,
    observed: ObservedTarget,
    decisions: Sequence[Decision],
    cluster: ClusterState,
    *,
    since: datetime,
) -> bool:
    """Whether it is suspended without any plan: it is at 0, or was first answered inactive not before `since`."""
    if observed.is_held:
        return False
    if scalable.spec.replicas == 0:
        return True
    is_inactive = _is_going(decisions) and all(_due(each) >= since for each in decisions)
    return is_inactive and not is_not_scaled(scalable, cluster)


def _due(decision: Decision) -> datetime:
    """When it may have been answered inactive for the first time."""
    due, run = (decision.idle_since or decision.decided_at) + decision.policy.window, decision.target.hook_run
    ended_at = run.ended_at if run is not None and decision.policy.before_suspend else None
    return max(due, ended_at or due)


def is_not_scaled(scalable: ScalableWorkload, cluster: ClusterState) -> bool:
    target = scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name)
    scaled_objects = cluster.scaled_objects.by_index("target", target)
    return not scaled_objects or any(map(is_scaling_paused, scaled_objects))


def is_scaling_paused(scaled_object: ScaledObject) -> bool:
    """Whether KEDA does not scale its target, or not to 0, whatever the scaler answers."""
    return scaled_object.resource == SCALED_OBJECT and bool(keeps_from_zero(scaled_object.metadata.annotations))


def _candidate(
    scalable: ScalableWorkload,
    workload: QuotaWorkload,
    decisions: Sequence[Decision],
    cluster: ClusterState,
    *,
    weights: CostWeights,
    now: datetime,
) -> Candidate:
    gpus = gpus_of(workload, cluster)
    idle_since = max((each.idle_since for each in decisions if each.idle_since), default=now)
    running_since = min((each.target.running_since for each in decisions if each.target.running_since), default=now)
    saved_at = max((run.saved_at for each in decisions if (run := each.target.hook_run) and run.saved_at), default=None)
    cost = cost_of(
        weights,
        gpus=gpus,
        worked=max(timedelta(0), idle_since - max(running_since, saved_at or running_since)),
        idle=max(timedelta(0), now - idle_since),
        priority=workload.priority,
        times_reclaimed=times_reclaimed(scalable),
        **_resume_time(scalable, running_since),
    )
    return Candidate(
        workload=workload.key,
        name="/".join(scalable.metadata.key),
        gpus=gpus,
        cost=cost,
        cluster_queue=workload.held.cluster_queue,
        budgets=names_of(budgets_of(scalable.metadata.namespace, decisions)),
        saved_at=saved_at,
    )


def _hook_takes(decisions: Sequence[Decision], hooks: Mapping[str, timedelta]) -> timedelta:
    """How long it may take until its hooks have ended; nothing where they have, as far as its work is concerned."""
    due = [each for each in decisions if hook_stage(each, each.target.hook_run) is not HookStage.DONE]
    return max((hooks.get(each.policy.before_suspend, timedelta(0)) for each in due), default=timedelta(0))


def _resume_time(scalable: ScalableWorkload, running_since: datetime) -> dict[str, timedelta]:
    """How long it took to come back the last time, where it ever did."""
    resumed_at = scalable.status.resumed_at
    return {"resume": running_since - resumed_at} if resumed_at and running_since > resumed_at else {}


def times_reclaimed(scalable: ScalableWorkload) -> int:
    return scalable.status.reallocation.times if scalable.status.reallocation else 0


def gpus_of(workload: QuotaWorkload, cluster: ClusterState) -> int:
    if workload.reservation is not None:
        return sum(n for key, n in workload.reservation.usage.items() if cluster.gpus.matches(key.resource))
    return sum(
        n * pods.count
        for pods in workload.pod_sets
        for resource, n in pods.requests.items()
        if cluster.gpus.matches(resource)
    )


def waits_for_gpus(workload: QuotaWorkload, cluster: ClusterState) -> bool:
    """Whether it waits for quota, for GPUs among other things."""
    return workload.reservation is None and workload.may_queue and gpus_of(workload, cluster) > 0


def pending_gpu_workloads(lines: Iterable[Iterable[QuotaWorkload]], cluster: ClusterState) -> Iterator[QuotaWorkload]:
    """The Workloads that wait for GPUs, in the order in which plans are made for them.

    Of every line, which is in that order, no more are looked at than are asked for: there may be 50,000.
    """
    waiting = (filter(lambda each: waits_for_gpus(each, cluster), line) for line in lines)
    return merge(*waiting, key=attrgetter("place"))


# ------------------------------------------------------------------------------------------------- pod anti-affinity


def anti_affinity_nodes(snapshot: Snapshot, cluster: ClusterState) -> AntiAffinityNodes:
    """The nodes of all Workloads that hold quota and have pods that keep others away."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for each in snapshot.reserved:
        if not any(pods.nodes.apart for pods in each.pod_sets):
            continue
        workload = cluster.workloads.get(each.namespace, each.name)
        marks = marked_pod_sets(workload) if workload is not None else {}
        pods = pods_of(workload, cluster.pods) if workload is not None else []
        staying = [pod for pod in pods if not holds_no_node(pod) and pod.metadata.deletion_timestamp is None]
        for mark, pod_sets in marks.items():
            found.setdefault(mark, {})[each.key] = frozenset(_nodes(staying, pod_sets))
    return found


def _nodes(pods: Iterable[Pod], pod_sets: frozenset[str]) -> Iterable[str]:
    """The nodes of the pods of these PodSets, and of pods that do not name their PodSet."""
    return (pod.spec.node_name for pod in pods if pod.metadata.labels.get(PODSET_LABEL) in (None, *pod_sets))
