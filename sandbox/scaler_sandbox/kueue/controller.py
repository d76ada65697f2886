"""The Kueue controller: reads everything, lets the plans follow from it, and acts. Jobs, Workloads, quota, queues.

The order within a tick is that of cause and effect: what has become of jobs and Workloads is written first, then the
scheduler decides on what is left, and then the conditions of Workloads without a decision are written. A cycle that
has decided anything ends the tick, since jobs are to be started and stopped before the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    RAY_CLUSTER,
    RAY_JOB,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)
from scaler_sandbox.actions import Action, Patch, status_patch
from scaler_sandbox.client import Client
from scaler_sandbox.controller import Controller, soonest
from scaler_sandbox.kinds import WORKLOAD_PRIORITY_CLASS, Json
from scaler_sandbox.kueue import decisions, workload_status
from scaler_sandbox.kueue.decisions import Decision, Postpone, Preempt, Reserve
from scaler_sandbox.kueue.jobs import (
    JOB_KINDS,
    MULTIKUEUE,
    PRIORITY_CLASS,
    JobKind,
    owner_uid,
    prebuilt_workload,
    queue_name,
)
from scaler_sandbox.kueue.jobs_reconciler import plan_job
from scaler_sandbox.kueue.nominations import HubConfig, as_written
from scaler_sandbox.kueue.queues import QueueStatuses
from scaler_sandbox.kueue.scheduler import ContinuousScheduler
from scaler_sandbox.kueue.snapshot import QuotaMirror
from scaler_sandbox.kueue.workload_reconciler import explain, plan_workload, retry_due


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueConfig:
    """How this Kueue is configured, and its own delays."""

    batch: timedelta = timedelta(seconds=1)
    """The time until Workloads put aside are looked at again. Source: Kueue, pkg/cache/queue, requeueBatchPeriod."""
    fair_sharing: bool = False
    """Whether fair sharing orders admission and preemption, with both of Kueue's strategies."""
    ignore_undeclared: bool = True
    """Whether a resource that a ClusterQueue has no quota for is not counted (`quotaCheckStrategy: IgnoreUndeclared`)
    or fits nowhere."""
    hub: HubConfig = field(default_factory=HubConfig)
    """How it dispatches, where a ClusterQueue has a check of MultiKueue."""


class Kueue(Controller):
    """Watches jobs and queues; writes Workloads, and suspends and starts the jobs."""

    name: ClassVar[str] = "kueue"
    watched: ClassVar[tuple[Resource, ...]] = (
        JOB,
        RAY_CLUSTER,
        RAY_JOB,
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
        self._mirror = QuotaMirror(client, fair_sharing=self._config.fair_sharing)
        self._scheduler = ContinuousScheduler(
            self._mirror.snapshot, batch=self._config.batch, ignore_undeclared=self._config.ignore_undeclared
        )

    async def tick(self, now: datetime) -> datetime | None:
        done = await self._follow_jobs(now)
        self._mirror.update(now)
        done += await self._follow_workloads(now)
        done += await self._schedule(now)
        done += await self._explain(now)
        if done or self._scheduler.is_busy:
            return now
        await self._show_queues(now)
        return soonest([self._scheduler.due, self._next_retry()])

    async def act(self, actions: Iterable[Action]) -> int:
        return await super().act(as_written(each, self._config.hub) for each in actions)

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
                workloads.get(job["metadata"]["uid"]) or self._prebuilt(job),
                priority=self._priority(job),
                node_labels=node_labels,
                now=now,
                managed_by=MULTIKUEUE if kind.resource is JOB and self._is_dispatched(job) else "",
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
            cycles = self._scheduler.cycle(now)
            decided = [each for cycle in cycles for each in decisions.decisions_of(cycle, self._mirror.snapshot)]
            done += sum([await self._carry_out(each, now) for each in decided])
            if not self._scheduler.is_busy or not all(isinstance(each, Postpone) for each in decided):
                return done

    async def _explain(self, now: datetime) -> int:
        queues = self._queues()
        plans = [
            explain(each, blocked=queues.blocked(each), bypassed=self._bypassed(each), now=now)
            for each in self.client.all(WORKLOAD)
            if workload_status.is_pending(each)
        ]
        return await self.act(action for plan in plans for action in plan)

    def _bypassed(self, workload: Json) -> str:
        """The reason why the Workload is not looked at, where that was found for one that is alike."""
        snapshot = self._mirror.snapshot
        waiting = snapshot.workload("/".join(_key(workload)))
        if waiting is None or waiting.reservation is not None:
            return ""
        found = self._scheduler.held_because(snapshot.cluster_queue_of(waiting), waiting.key)
        return found.value if found is not None else ""

    async def _carry_out(self, decision: Decision, now: datetime) -> int:
        workload = self._workload(decision.workload)
        patch = self._patch_for(decision, workload, now) if workload is not None else None
        if patch is None:
            return 0
        succeeded = await self.act([patch])
        if not succeeded and isinstance(decision, Reserve):
            self._scheduler.forget(decision.workload)
        return succeeded

    def _patch_for(self, decision: Decision, workload: Json, now: datetime) -> Patch | None:
        """The write that follows from a decision; None where the status says so already, or where it is too late."""
        match decision:
            case Preempt():
                preemptor = self._workload(decision.by)
                return decisions.preempt(decision, workload, preemptor, now=now) if preemptor is not None else None
            case _ if not workload_status.is_pending(workload):
                # Deactivated while earlier decisions were written: an inactive Workload must not get quota.
                return None
            case Reserve():
                return decisions.reserve(decision, workload, now=now)
            case Postpone():
                return decisions.postpone(decision, workload, now=now)

    # ------------------------------------------------------------------------------------------------ what queues show

    async def _show_queues(self, now: datetime) -> None:
        queues = self._queues()
        bodies = self.client.all(CLUSTER_QUEUE)
        patches = (status_patch(CLUSTER_QUEUE, each, queues.cluster_queue_status(each, now=now)) for each in bodies)
        await self.act(patch for patch in patches if patch)

    # ------------------------------------------------------------------------------------------------------- reading

    def _queued_jobs(self) -> list[tuple[JobKind, Json]]:
        queued = [(kind, job) for kind in JOB_KINDS for job in self.client.all(kind.resource) if queue_name(job)]
        admitted = {job["metadata"]["uid"] for _, job in queued}
        return [(kind, job) for kind, job in queued if owner_uid(job) not in admitted]

    def _prebuilt(self, job: Json) -> Json | None:
        """The Workload that was made for the job, where it is not another job's."""
        name = prebuilt_workload(job)
        found = self.client.find(WORKLOAD, job["metadata"]["namespace"], name) if name else None
        return found if found is not None and owner_uid(found) in ("", job["metadata"]["uid"]) else None

    def _is_dispatched(self, job: Json) -> bool:
        """Whether the ClusterQueue of the job has a check of MultiKueue."""
        local = self.client.find(LOCAL_QUEUE, job["metadata"]["namespace"], queue_name(job))
        queue = self.client.find(CLUSTER_QUEUE, "", local["spec"]["clusterQueue"]) if local else None
        strategy = queue["spec"].get("admissionChecksStrategy") or {} if queue else {}
        checks = [self.client.find(ADMISSION_CHECK, "", each["name"]) for each in strategy.get("admissionChecks") or ()]
        return any(each is not None and each["spec"]["controllerName"] == MULTIKUEUE for each in checks)

    def _priority(self, job: Json) -> int:
        name = (job["metadata"].get("labels") or {}).get(PRIORITY_CLASS, "")
        priority_class = self.client.find(WORKLOAD_PRIORITY_CLASS, "", name) if name else None
        return int(priority_class.get("value", 0)) if priority_class else 0

    def _queues(self) -> QueueStatuses:
        return QueueStatuses(self._mirror.snapshot, self.client.all(ADMISSION_CHECK))

    def _workload(self, key: str) -> Json | None:
        return self.client.find(WORKLOAD, *key.split("/"))

    def _next_retry(self) -> datetime | None:
        return soonest(retry_due(workload) for workload in self.client.all(WORKLOAD))


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]
