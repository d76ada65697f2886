"""Queues, cohorts and Workloads with every field filled in, so that a test names only what it is about.

Quota is in GPUs of flavor `default` unless a test says otherwise: `cluster_queue("a", gpus=4)`. Where it does, a
mapping gives the flavors in the order in which they are tried: `cluster_queue("a", gpus={"a100": 4, "h100": 8})`.
Workloads are in namespace `team` and queue `a`. Each is a second younger than the one made before it, and each that
holds quota has reserved it later than the one before.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from scaler.kube.scheduling import ANYWHERE, NodeRequirement, NodeSelection, Selector, Taint, Term, Toleration
from scaler.quota.demands import FlavorOptions
from scaler.quota.flavors import FlavorVerdict
from scaler.quota.model import (
    Flavor,
    FlavorResource,
    Preemption,
    PreemptionPolicy,
    Quota,
    QuotaClusterQueue,
    QuotaCohort,
    QuotaLocalQueue,
    QuotaPodSet,
    QuotaPodSetAssignment,
    QuotaResourceGroup,
    QuotaWorkload,
    Reservation,
    StopPolicy,
    usage_of,
)
from scaler.quota.nomination import find_targets, foresee
from scaler.quota.preemption.candidates import PreemptionRequest, PreemptionTarget
from scaler.quota.preemption.fair_sharing import DEFAULT_STRATEGIES, PreemptionStrategy
from scaler.quota.simulation import Simulation
from scaler.quota.tree import Tree, build_trees
from scaler.quota.workload_index import SchedulingContext

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
NAMESPACE = "team"
EVERY_NAMESPACE = Selector(())

_age = count()

Gpus = int | Quota | Mapping[str, int | Quota]
"""Quota of flavor `default`, or of several flavors in the order in which they are tried."""


def gpu(flavor: str = "default") -> FlavorResource:
    return FlavorResource(flavor, GPU)


def quota(nominal: int, *, borrowing: int | None = None, lending: int | None = None) -> Quota:
    return Quota(nominal=nominal, borrowing_limit=borrowing, lending_limit=lending)


def quotas(gpus: Gpus, resource: str = GPU) -> dict[FlavorResource, Quota]:
    by_flavor = gpus if isinstance(gpus, Mapping) else {"default": gpus}
    return {
        FlavorResource(flavor, resource): given if isinstance(given, Quota) else quota(given)
        for flavor, given in by_flavor.items()
    }


def cluster_queue(name: str = "a", *, gpus: Gpus = 4, **fields: Any) -> QuotaClusterQueue:
    """One that admits from every namespace. Without `groups` it has one group, with the flavors of `gpus`."""
    own = quotas(gpus)
    group = QuotaResourceGroup(resources=frozenset({GPU}), flavors=tuple(key.flavor for key in own))
    given: dict[str, Any] = {"groups": (group,), "quotas": own, "namespace_selector": EVERY_NAMESPACE} | fields
    return QuotaClusterQueue(name=name, **given)


def cohort(name: str = "team", *, gpus: Gpus | None = None, **fields: Any) -> QuotaCohort:
    return QuotaCohort(name=name, quotas={} if gpus is None else quotas(gpus), **fields)


def preempting(
    *,
    within: PreemptionPolicy = PreemptionPolicy.NEVER,
    reclaim: PreemptionPolicy = PreemptionPolicy.NEVER,
    borrowing: PreemptionPolicy = PreemptionPolicy.NEVER,
    threshold: int | None = None,
) -> Preemption:
    return Preemption(
        within_cluster_queue=within,
        reclaim_within_cohort=reclaim,
        borrow_within_cohort=borrowing,
        max_priority_threshold=threshold,
    )


def flavor(name: str = "default", **fields: Any) -> Flavor:
    """One that carries the label `flavor: <its name>`."""
    return Flavor(name=name, **({"node_labels": {"flavor": name}} | fields))


def flavors(*names: str) -> dict[str, Flavor]:
    return {name: flavor(name) for name in names or ("default",)}


def taint(key: str = "spot", value: str = "true", effect: str = "NoSchedule") -> Taint:
    return Taint(key=key, value=value, effect=effect)


def tolerating(*taints: Taint) -> NodeSelection:
    """Of a pod that tolerates exactly these."""
    tolerations = tuple(Toleration(key=each.key, value=each.value, effect=each.effect) for each in taints)
    return NodeSelection(labels={}, tolerations=tolerations)


def selecting(terms: Sequence[Term] = (), **labels: str) -> NodeSelection:
    return NodeSelection(labels=labels, terms=tuple(terms))


def requiring(key: str, operator: Any, *values: str) -> NodeRequirement:
    return NodeRequirement(key=key, operator=operator, values=values)


def pod_set(
    name: str = "main", *, pods: int = 1, gpus: int = 1, nodes: NodeSelection = ANYWHERE, **fields: Any
) -> QuotaPodSet:
    """`gpus` are those of one pod."""
    given: dict[str, Any] = {"requests": {GPU: gpus}} | fields
    return QuotaPodSet(name=name, count=pods, nodes=nodes, **given)


def workload(name: str = "gang", *, gpus: int = 1, queue: str = "a", **fields: Any) -> QuotaWorkload:
    """One that waits in the LocalQueue of that name, with one pod of so many GPUs unless `pod_sets` says otherwise."""
    age = next(_age)
    given: dict[str, Any] = {
        "namespace": NAMESPACE,
        "uid": f"uid-{age:06}",
        "queued_at": NOW - timedelta(days=1) + timedelta(seconds=age),
        "pod_sets": (pod_set(gpus=gpus),),
    } | fields
    return QuotaWorkload(name=name, queue=queue, **given)


def holding(
    name: str = "runs",
    *,
    gpus: int = 1,
    queue: str = "a",
    flavor: str = "default",
    cluster_queue: str = "",
    reserved_at: datetime | None = None,
    **fields: Any,
) -> QuotaWorkload:
    """One that is admitted with all its pods in one flavor. Its ClusterQueue is named like its LocalQueue."""
    waiting = workload(name, gpus=gpus, queue=queue)
    pod_sets = fields.get("pod_sets", waiting.pod_sets)
    assignments = tuple(_assigned(each, flavor) for each in pod_sets)
    reservation = Reservation(
        cluster_queue=cluster_queue or queue,
        at=reserved_at or waiting.queued_at + timedelta(hours=1),
        assignments=assignments,
        usage=usage_of(assignments),
    )
    return workload(name, gpus=gpus, queue=queue, reservation=reservation, admitted=True, **fields)


def _assigned(pods: QuotaPodSet, flavor: str) -> QuotaPodSetAssignment:
    usage = {resource: amount * pods.count for resource, amount in pods.requests.items()}
    return QuotaPodSetAssignment(name=pods.name, count=pods.count, flavors=dict.fromkeys(usage, flavor), usage=usage)


def local_queue(name: str = "a", cluster_queue: str = "", stop_policy: StopPolicy = StopPolicy.NONE) -> QuotaLocalQueue:
    return QuotaLocalQueue(namespace=NAMESPACE, name=name, cluster_queue=cluster_queue or name, stop_policy=stop_policy)


def trees(
    queues: Iterable[QuotaClusterQueue], cohorts: Iterable[QuotaCohort] = (), workloads: Iterable[QuotaWorkload] = ()
) -> list[Tree]:
    return build_trees(queues, cohorts, [each for each in workloads if each.reservation])


def tree(
    queues: Iterable[QuotaClusterQueue], cohorts: Iterable[QuotaCohort] = (), workloads: Iterable[QuotaWorkload] = ()
) -> Tree:
    """The one tree that they form."""
    (only,) = trees(queues, cohorts, workloads)
    return only


def preemption_targets(
    form: Tree,
    preemptor: QuotaWorkload,
    gpus: int | Mapping[FlavorResource, int],
    contested: Iterable[FlavorResource] = (),
    *,
    queue: str = "a",
    fair: Sequence[PreemptionStrategy] | bool = False,
) -> tuple[PreemptionTarget, ...]:
    """Which Workloads have to go for one of the queue that wants so much. `fair` are the strategies of fair sharing."""
    usage = {gpu(): gpus} if isinstance(gpus, int) else gpus
    request = PreemptionRequest(form.queues[queue], preemptor, usage, frozenset(contested or usage))
    return find_targets(form, request, _strategies(fair))


def foreseen(
    form: Tree, preemptor: QuotaWorkload, gpus: int, *, queue: str = "a", fair: bool = False
) -> tuple[FlavorVerdict, int]:
    request = PreemptionRequest(form.queues[queue], preemptor, {gpu(): gpus}, frozenset({gpu()}))
    return foresee(form, request, _strategies(fair))


def _strategies(fair: Sequence[PreemptionStrategy] | bool) -> Sequence[PreemptionStrategy] | None:
    return (DEFAULT_STRATEGIES if fair else None) if isinstance(fair, bool) else fair


def simulation(
    queues: Iterable[QuotaClusterQueue],
    workloads: Iterable[QuotaWorkload],
    cohorts: Iterable[QuotaCohort] = (),
    *,
    local_queues: Iterable[QuotaLocalQueue] | None = None,
    namespaces: Mapping[str, Mapping[str, str]] | None = None,
    fair_sharing: bool = False,
    strategies: Sequence[PreemptionStrategy] = DEFAULT_STRATEGIES,
) -> Simulation:
    """Of the one tree that they form. LocalQueues are named like their ClusterQueues, unless they are given."""
    queues, workloads = list(queues), list(workloads)
    known = {each.key: each for each in local_queues or [local_queue(each.name) for each in queues]}
    pending: dict[str, list[QuotaWorkload]] = {}
    for each in workloads:
        local = known.get((each.namespace, each.queue))
        if each.reservation is None and local and local.stop_policy is StopPolicy.NONE:
            pending.setdefault(local.cluster_queue, []).append(each)
    names = {name for queue in queues for group in queue.groups for name in group.flavors}
    world = SchedulingContext(
        flavor_options=FlavorOptions(flavors=flavors(*sorted(names))),
        namespaces={NAMESPACE: {}} if namespaces is None else namespaces,
        local_queue=lambda namespace, name: known.get((namespace, name)),
        strategies=strategies,
    )
    return Simulation(tree(queues, cohorts, workloads), pending, world, now=NOW, fair_sharing=fair_sharing)
