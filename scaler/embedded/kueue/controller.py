"""The Kueue controller: reads everything, lets the plans follow from it, and acts. Jobs, Workloads, quota, queues.

The order within a tick is that of cause and effect: what has become of jobs and Workloads is written first, then the
scheduler decides on what is left, and then those say why they wait on whom it had nothing to decide. A cycle that has
decided anything ends the tick, since jobs are to be started and stopped before the next one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from scaler.core.quota.model import StopPolicy
from scaler.embedded.actions import Patch, status_patch
from scaler.embedded.client import Client
from scaler.embedded.controller import Controller, soonest
from scaler.embedded.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    RAY_CLUSTER,
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Json,
    Resource,
)
from scaler.embedded.kueue import decisions, states
from scaler.embedded.kueue.decisions import Decision, Postpone, Preempt, Reserve
from scaler.embedded.kueue.jobs import JOB_KINDS, JobKind
from scaler.embedded.kueue.lifecycle import explain, plan_workload, retry_due
from scaler.embedded.kueue.mirror import Mirror
from scaler.embedded.kueue.names import PRIORITY_CLASS, owner_uid, queue_name
from scaler.embedded.kueue.plans import plan_job
from scaler.embedded.kueue.queues import Queues
from scaler.embedded.kueue.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueConfig:
    """How this Kueue is configured, and its own delays."""

    batch: timedelta = timedelta(seconds=1)
    """Until those put aside are looked at again. Source: Kueue, pkg/cache/queue, requeueBatchPeriod."""
    queue_status: timedelta = timedelta(seconds=1)
    """Between two writes of a queue's status."""
    fair_sharing: bool = False
    """Whether shares decide who is served and who is preempted, by both of Kueue's strategies."""
    ignore_undeclared: bool = True
    """Whether a resource that a ClusterQueue has no quota for is not counted (`quotaCheckStrategy: IgnoreUndeclared`)
    or fits nowhere."""


class Kueue(Controller):
    """Watches jobs and queues; writes Workloads, and suspends and starts the jobs."""

    name: ClassVar[str] = "kueue"
    watched: ClassVar[tuple[Resource, ...]] = (
        JOB,
        RAY_CLUSTER,
        WORKLOAD,
        LOCAL_QUEUE,
        CLUSTER_QUEUE,
        COHORT,
        RESOURCE_FLAVOR,
        ADMISSION_CHECK,
        WORKLOAD_PRIORITY_CLASS,
        NAMESPACE,
    )

    def __init__(self, client: Client, config: KueueConfig | None = None) -> None:
        super().__init__(client)
        self._config = config or KueueConfig()
        self._mirror = Mirror(client, fair_sharing=self._config.fair_sharing)
        self._scheduler = Scheduler(
            self._mirror, batch=self._config.batch, ignore_undeclared=self._config.ignore_undeclared
        )
        self._shown_at: dict[str, datetime] = {}

    async def tick(self, now: datetime) -> datetime | None:
        done = await self._follow_jobs(now)
        self._mirror.update(now)
        done += await self._follow_workloads(now)
        done += await self._schedule(now)
        done += await self._explain(now)
        if done or self._scheduler.is_busy:
            return now
        return soonest([self._scheduler.due, await self._show_queues(now), self._next_retry()])

    # --------------------------------------------------------------------------------------------------------- steps

    async def _follow_jobs(self, now: datetime) -> int:
        workloads = {owner_uid(workload): workload for workload in self.client.all(WORKLOAD)}
        node_labels = {
            flavor["metadata"]["name"]: flavor.get("spec", {}).get("nodeLabels") or {}
            for flavor in self.client.all(RESOURCE_FLAVOR)
        }
        plans = [
            plan_job(
                kind,
                job,
                workloads.get(job["metadata"]["uid"]),
                priority=self._priority(job),
                node_labels=node_labels,
                now=now,
            )
            for kind, job in self._queued_jobs()
        ]
        return await self.act(action for plan in plans for action in plan)

    async def _follow_workloads(self, now: datetime) -> int:
        queues = self._queues()
        plans = [plan_workload(each, queues.place(each), now=now) for each in self.client.all(WORKLOAD)]
        return await self.act(action for plan in plans for action in plan)

    async def _schedule(self, now: datetime) -> int:
        done = 0
        while True:
            self._mirror.update(now)
            self._scheduler.notice(now)
            decided = self._scheduler.decide(now)
            done += sum([await self._carry_out(each, now) for each in decided])
            if not self._scheduler.is_busy or not all(isinstance(each, Postpone) for each in decided):
                return done

    async def _explain(self, now: datetime) -> int:
        queues = self._queues()
        plans = [
            explain(each, blocked=queues.blocked(each), bypassed=self._scheduler.bypassed(each), now=now)
            for each in self.client.all(WORKLOAD)
            if states.is_pending(each)
        ]
        return await self.act(action for plan in plans for action in plan)

    async def _carry_out(self, decision: Decision, now: datetime) -> int:
        workload = self._workload(decision.workload)
        patch = self._patch_for(decision, workload, now) if workload is not None else None
        if patch is None:
            return 0
        succeeded = await self.act([patch])
        if not succeeded:
            self._scheduler.forget(decision)
        return succeeded

    def _patch_for(self, decision: Decision, workload: Json, now: datetime) -> Patch | None:
        """The write that follows from a decision; None where the status says so already, or where it is too late."""
        match decision:
            case Preempt():
                preemptor = self._workload(decision.by)
                return decisions.preempt(decision, workload, preemptor, now=now) if preemptor is not None else None
            case _ if not states.is_pending(workload):
                # Deactivated while earlier decisions were written: nobody who is inactive may be given quota.
                return None
            case Reserve():
                return decisions.reserve(decision, workload, now=now)
            case Postpone():
                return decisions.postpone(decision, workload, now=now)

    # ------------------------------------------------------------------------------------------------ what queues show

    async def _show_queues(self, now: datetime) -> datetime | None:
        """Writes statuses that are due. Returns when the next one that has changed may be written."""
        self._mirror.update(now)
        patches = [patch for patch in self._statuses(now) if patch]
        return soonest([await self._show(patch, now) for patch in patches])

    def _statuses(self, now: datetime) -> Iterable[Patch | None]:
        queues, waiting = self._queues(), self._waiting()
        in_cluster_queues: Counter[str] = Counter()
        for body in self.client.all(LOCAL_QUEUE):
            pending = waiting[_key(body)]
            in_cluster_queues[body["spec"].get("clusterQueue", "")] += pending
            yield status_patch(LOCAL_QUEUE, body, queues.local_queue_status(body, pending=pending, now=now))
        for body in self.client.all(CLUSTER_QUEUE):
            pending = in_cluster_queues[body["metadata"]["name"]]
            yield status_patch(CLUSTER_QUEUE, body, queues.cluster_queue_status(body, pending=pending, now=now))
        for body in self.client.all(COHORT):
            yield status_patch(COHORT, body, queues.cohort_status(body))

    def _waiting(self) -> Counter[tuple[str, str]]:
        """How many Workloads wait, by LocalQueue. Those of one that is stopped are in no queue."""
        pending = [each for each in self.client.all(WORKLOAD) if states.is_pending(each)]
        keys = [(each["metadata"]["namespace"], each["spec"].get("queueName", "")) for each in pending]
        return Counter(key for key in keys if self._is_running(*key))

    def _is_running(self, namespace: str, name: str) -> bool:
        local = self._mirror.snapshot.local_queue(namespace, name)
        return local is not None and local.stop_policy is StopPolicy.NONE

    async def _show(self, patch: Patch, now: datetime) -> datetime | None:
        uid = patch.observed["metadata"]["uid"]
        allowed_at = self._shown_at.get(uid, now - self._config.queue_status) + self._config.queue_status
        if allowed_at > now:
            return allowed_at
        self._shown_at[uid] = now
        await self.act([patch])
        return None

    # ------------------------------------------------------------------------------------------------------- reading

    def _queued_jobs(self) -> list[tuple[JobKind, Json]]:
        return [(kind, job) for kind in JOB_KINDS for job in self.client.all(kind.resource) if queue_name(job)]

    def _priority(self, job: Json) -> int:
        name = (job["metadata"].get("labels") or {}).get(PRIORITY_CLASS, "")
        priority_class = self.client.find(WORKLOAD_PRIORITY_CLASS, "", name) if name else None
        return int(priority_class.get("value", 0)) if priority_class else 0

    def _queues(self) -> Queues:
        return Queues(self._mirror.snapshot, self.client.all(ADMISSION_CHECK))

    def _workload(self, key: str) -> Json | None:
        return self.client.find(WORKLOAD, *key.split("/"))

    def _next_retry(self) -> datetime | None:
        return soonest(retry_due(workload) for workload in self.client.all(WORKLOAD))


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]
