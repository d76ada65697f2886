"""A quota tree in memory with pending and idle Workloads and active plans, for the queries of operators.

    cluster = QuotaCluster([cluster_queue("a", gpus=8)], [holding("runs", gpus=4), gang := workload("gang", gpus=8)])
    cluster.idle("runs")
    (await cluster.queries.plan("team", "gang"))["plan"]["victims"]     # team/runs

Everything is in namespace `team`; LocalQueues are named like their ClusterQueues, ScalableWorkloads and jobs like their
Workloads. It is noon.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
from builders import BUSY, IDLE, WorkloadJson, a_target, at, decision, verdict
from builders import policy as default_policy
from loops_builders import MemoryCluster, MemoryStore, scalable_workload, scaled_object
from quota_builders import NAMESPACE, NOW, flavor, local_queue

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation, Key
from scaler.decision.reasons import DecisionReason
from scaler.idleness.policy import Overrides
from scaler.kube.objects.core import decode
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.placement.capacity import Capacity
from scaler.quota.from_objects.snapshot_updater import SnapshotUpdater
from scaler.quota.model import Flavor, QuotaClusterQueue, QuotaCohort, QuotaLocalQueue, QuotaWorkload
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced
from scaler.reclaim.planner import Planner, ReclaimConfig
from scaler.reporting.views.query_service import QueryService
from scaler.reporting.views.snapshot import ViewSnapshot, take_view_snapshot
from scaler.targets.cluster_state import scaled_object_indexes

IDLE_NOT_NEEDED = Active(reason=DecisionReason.IDLE_NOT_NEEDED, message="quiet; no waiting gang needs its GPUs")
RECLAIMED = Inactive(reason=DecisionReason.RECLAIMED, message="quiet; taken by a plan")


class QuotaView:
    """What a watch of Kueue's objects has found."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.shown: Snapshot | NotSynced = snapshot

    def look(self) -> Snapshot | NotSynced:
        return self.shown

    def if_active(self, workload: KueueWorkload) -> QuotaWorkload | None:
        assert isinstance(self.shown, Snapshot)
        return SnapshotUpdater(self.shown).if_active(workload)


class QuotaCluster:
    """What is planned with, open for writing."""

    def __init__(
        self,
        queues: Sequence[QuotaClusterQueue],
        workloads: Iterable[QuotaWorkload],
        *,
        cohorts: Iterable[QuotaCohort] = (),
        flavors: Iterable[Flavor] = (),
        local_queues: Iterable[QuotaLocalQueue] | None = None,
        policy: ReclaimConfig = ReclaimConfig(),  # noqa: B008 (immutable)
        capacity: Callable[[], Capacity | NotSynced] | None = None,
        is_judged: bool = True,
    ) -> None:
        """Without `capacity` nodes do not matter, whatever the policy says of them."""
        if capacity is None:
            policy, capacity = replace(policy, consider_nodes=False), lambda: NotSynced("nodes are not watched")
        self.snapshot = Snapshot()
        self.cluster = MemoryCluster(scaled_objects=MemoryStore(scaled_object_indexes()))
        self.decision_cache = DecisionCache(max_age=timedelta(minutes=1), clock=lambda: 0.0)
        self.view = QuotaView(self.snapshot)
        self._entries: dict[Key, EvaluatedScaledObject] = {}
        self.judged_by = default_policy()
        names = {name for queue in queues for group in queue.groups for name in group.flavors}
        given = {each.name: each for each in flavors}
        for name in names:
            self.snapshot.put(given.get(name) or flavor(name))
        for cohort in cohorts:
            self.snapshot.put(cohort)
        for queue in queues:
            self.snapshot.put(queue)
        for local in [local_queue(queue.name) for queue in queues] if local_queues is None else local_queues:
            self.snapshot.put(local)
        self.snapshot.put_namespace(NAMESPACE, {})
        for each in workloads:
            self.put(each)
        if is_judged:
            self.judged()
        view: Any = self.view
        self.planning = Planner(
            self.cluster.read(), self.decision_cache, view, policy, max_age=timedelta(minutes=1), capacity=capacity
        )
        self.queries = QueryService(self.planning, clock=lambda: NOW)

    # --------------------------------------------------------------------------------------------------------- writing

    def put(self, workload: QuotaWorkload, json: WorkloadJson | None = None) -> None:
        """The Workload as the quota engine sees it, and as it stands in the API."""
        self.snapshot.put(workload)
        self.cluster.workloads.put(_in_the_api(workload, json or WorkloadJson(workload.name)))

    def judged(self, **answers: Answer) -> None:
        """The decisions on ScalableWorkloads of these names; idle are all that no other answer says to be busy."""
        for name, answer in answers.items():
            is_quiet = not isinstance(answer, Active) or answer.reason is not DecisionReason.GPUS_BUSY
            if self.cluster.scalable_workloads.get(NAMESPACE, name) is None:
                self.scaled(name)
            scalable = self.cluster.scalable_workloads.get(NAMESPACE, name)
            found = decision(
                answer,
                verdict=verdict(IDLE if is_quiet else BUSY),
                idle_since=at(-1800),
                policy=self.judged_by,
                target=a_target(desired_replicas=scalable.spec.replicas if scalable is not None else 1),
            )
            self._entries[NAMESPACE, name] = EvaluatedScaledObject(
                target=scalable_workload_ref(name), triggers={Overrides(): found}, problems=()
            )
        self.decision_cache.publish(Evaluation.of(dict(self._entries), at=NOW))

    def idle(self, *names: str) -> None:
        """These are idle, and a plan may take them."""
        self.judged(**dict.fromkeys(names, IDLE_NOT_NEEDED))

    def scaled(self, name: str, *, replicas: int = 1, **status: Any) -> None:
        """The Workload has a ScalableWorkload with such a status, and a ScaledObject that scales it."""
        if self.cluster.scaled_objects.get(NAMESPACE, name) is None:
            self.cluster.scaled_objects.put(scaled_object(name, namespace=NAMESPACE))
        self.cluster.scalable_workloads.put(
            scalable_workload(name, workload=name, replicas=replicas, namespace=NAMESPACE, **status)
        )

    def granted(
        self,
        gang: QuotaWorkload,
        *victims: str,
        plan: str = "0123456789",
        replicas: int = 1,
        seeks: str = "Quota",
        check: str = "",
        **moved: Any,
    ) -> None:
        """A plan stands that takes these for the gang; `moved` fills the ledger's entries."""
        names = [f"{NAMESPACE}/{each}" for each in victims]
        grant = {
            "plan": plan,
            "workload": gang.key,
            "workloadUID": gang.uid,
            "victims": names,
            "grantedAt": "2026-12-01T11:59:00Z",
            "expiresAt": "2026-12-01T12:09:00Z",
            "seeks": seeks,
            "check": check,
        }
        entry = {"plan": plan, "workload": gang.key, "gpus": 2, "stage": "Reclaimable"} | moved
        entry.setdefault("reclaimableAt", "2026-12-01T11:59:00Z")
        for each in victims:
            self.scaled(each, replicas=replicas, grant=grant, reallocation=entry)
        self.judged(**dict.fromkeys(victims, RECLAIMED))

    # --------------------------------------------------------------------------------------------------------- reading

    async def view_snapshot(self) -> ViewSnapshot:
        found = await take_view_snapshot(self.planning, NOW)
        assert isinstance(found, ViewSnapshot)
        return found


def _in_the_api(workload: QuotaWorkload, json: WorkloadJson) -> KueueWorkload:
    json.json["metadata"] |= {"namespace": workload.namespace, "name": workload.name, "uid": workload.uid}
    if json.json["metadata"]["ownerReferences"][0]["name"] == "first-raycluster":
        json.owned_by("batch/v1", "Job", f"{workload.name}-job")
    if workload.reservation is not None:
        json.reserved()
        if workload.admitted:
            json.admitted()
    return decode(KueueWorkload, msgspec.json.encode(json.json))


def reasons(view: Mapping[str, Any]) -> dict[str, str]:
    """The reason that counts, by name of the gang."""
    return {each["name"]: each["reason"] for each in view["gangs"]}
