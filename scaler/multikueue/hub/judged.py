"""Which Workloads are judged on the worker clusters where they run, and by which policy? Pure.

The dispatcher writes that into the ClusterOffers. Judged is what a ScaledObject scales, or what stands for one: a
Workload of the hub that Kueue has dispatched, active, and asked to be at 1 or taken by a plan.

One policy for each: of several triggers the one with the longest window, and the others stay Unknown unless they ask
for the same.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from scaler.decision.decision import Decision
from scaler.decision.decision_cache import Evaluation
from scaler.idleness.policy import Policy
from scaler.idleness.remote import JudgedBy, judged_by
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import OfferedWorkload, OfferPolicy
from scaler.targets.cluster_state import ClusterState


def judged_workloads(evaluation: Evaluation | None, cluster: ClusterState) -> Mapping[str, Sequence[OfferedWorkload]]:
    """The dispatched Workloads that are judged, by worker cluster; without an evaluation none is known."""
    found: defaultdict[str, dict[str, OfferedWorkload]] = defaultdict(dict)
    for workload, policy in _scaled(evaluation, cluster) if evaluation is not None else ():
        metadata = workload.metadata
        entry = OfferedWorkload(
            namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, policy=offer_policy(policy)
        )
        found[workload.status.cluster_name].setdefault(metadata.uid, entry)
    return {name: [entries[uid] for uid in sorted(entries)] for name, entries in found.items()}


def _scaled(evaluation: Evaluation, cluster: ClusterState) -> Iterator[tuple[Workload, Policy]]:
    """Workloads with their policy, in the order of ScaledObjects: of several for one Workload always one counts."""
    for key in sorted(evaluation.entries):
        entry = evaluation.entries[key]
        scalable = cluster.target_of(key[0], entry.target)
        workload = cluster.workload_of(scalable) if scalable is not None else None
        if workload is not None and workload.status.cluster_name and workload.spec.active and entry.triggers:
            yield workload, max(entry.triggers.values(), key=_strictness).policy


def _strictness(decision: Decision) -> JudgedBy:
    return judged_by(decision.policy)


def offer_policy(policy: Policy) -> OfferPolicy:
    """What of it a verdict depends on, without loss."""
    return OfferPolicy(
        idle_after=_exactly(policy.window),
        warm_up=_exactly(policy.warm_up),
        active_above=policy.active_above_ratio,
        gpus=str(policy.gpus),
    )


def _exactly(duration: timedelta) -> str:
    milliseconds = round(duration / timedelta(milliseconds=1))
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
