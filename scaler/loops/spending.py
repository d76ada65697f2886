"""What budgets are spent on: every suspension that is known of, and every grant that may become one. Pure."""

from collections import Counter
from collections.abc import Mapping

from scaler.core.quota.snapshot import Snapshot
from scaler.core.scopes import Member, Place
from scaler.core.spending import Spending, Suspension
from scaler.kube.objects import ScalableWorkload
from scaler.kube.store import KubeObject
from scaler.loops.cluster import Cluster
from scaler.loops.granted import grant_of


def spending_of(cluster: Cluster, snapshot: Snapshot) -> Spending:
    """From the status of all ScalableWorkloads, so that a restart forgets nothing that was spent."""
    members = [(each, _member(each, cluster, snapshot)) for each in cluster.scalable_workloads.items()]
    suspensions = [found for scalable, member in members if (found := _suspension(scalable, member)) is not None]
    return Spending(
        suspensions=tuple(suspensions),
        population=Counter(Place(member.namespace, member.cluster_queue) for _, member in members),
        namespace_labels=snapshot.namespaces,
    )


def _member(scalable: ScalableWorkload, cluster: Cluster, snapshot: Snapshot) -> Member:
    """A suspended one holds no quota; it is counted for the queue that its LocalQueue leads to."""
    found = cluster.workload_of(scalable)
    name = ""
    if found is not None:
        workload = snapshot.workload(_key(found))
        local = snapshot.local_queue(found.metadata.namespace, found.spec.queue_name)
        name = snapshot.cluster_queue_of(workload) if workload else local.cluster_queue if local else ""
    return Member(namespace=scalable.metadata.namespace, name=scalable.metadata.name, cluster_queue=name or None)


def _key(obj: KubeObject) -> str:
    return "/".join(obj.metadata.key)


def _suspension(scalable: ScalableWorkload, member: Member) -> Suspension | None:
    grant, status = grant_of(scalable), scalable.status
    if grant is not None:
        return Suspension(member=member, at=grant.granted_at)
    if status.suspended_at is None:
        return None
    is_over = status.resumed_at is not None and status.resumed_at >= status.suspended_at
    return Suspension(member=member, at=status.suspended_at, is_over=is_over)


def shown(spending: Spending) -> Mapping[str, int]:
    """How many are suspended now, by namespace."""
    return Counter(each.member.namespace for each in spending.suspensions if not each.is_over)
