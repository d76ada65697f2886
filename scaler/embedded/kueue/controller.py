"""The Kueue controller: reads everything, lets the plans follow from it, and acts. Jobs, Workloads, quota, queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from scaler.embedded.actions import Note, Patch, status_patch
from scaler.embedded.client import Client
from scaler.embedded.controller import Controller, soonest
from scaler.embedded.kinds import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    JOB,
    LOCAL_QUEUE,
    RAY_CLUSTER,
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Json,
    Resource,
)
from scaler.embedded.kueue import states
from scaler.embedded.kueue.jobs import JOB_KINDS, JobKind
from scaler.embedded.kueue.names import PRIORITY_CLASS, owner_uid, queue_name
from scaler.embedded.kueue.plans import plan_job, plan_workload, retry_due
from scaler.embedded.kueue.queues import Queue, cluster_queue_status, local_queue_status, queue_of
from scaler.embedded.kueue.quota import Shortage
from scaler.embedded.kueue.scheduler import Decision, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueTiming:
    """Kueue's own delays."""

    batch: timedelta = timedelta(seconds=1)
    """Until those put aside are looked at again. Source: Kueue, pkg/cache/queue, requeueBatchPeriod."""
    queue_status: timedelta = timedelta(seconds=1)
    """Between two writes of a queue's status."""


class Kueue(Controller):
    """Watches jobs and queues; writes Workloads, and suspends and starts the jobs."""

    name: ClassVar[str] = "kueue"
    watched: ClassVar[tuple[Resource, ...]] = (
        JOB,
        RAY_CLUSTER,
        WORKLOAD,
        LOCAL_QUEUE,
        CLUSTER_QUEUE,
        RESOURCE_FLAVOR,
        ADMISSION_CHECK,
        WORKLOAD_PRIORITY_CLASS,
    )

    def __init__(self, client: Client, timing: KueueTiming | None = None) -> None:
        super().__init__(client)
        self._timing = timing or KueueTiming()
        self._scheduler = Scheduler(batch=self._timing.batch)
        self._shown_at: dict[str, datetime] = {}

    async def tick(self, now: datetime) -> datetime | None:
        done = await self._follow_jobs(now)
        done += await self._follow_workloads(now)
        done += await self._schedule(now)
        if done:
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
        plans = [
            plan_workload(workload, checks=self._checks(workload, queues), now=now)
            for workload in self.client.all(WORKLOAD)
        ]
        return await self.act(action for plan in plans for action in plan)

    async def _schedule(self, now: datetime) -> int:
        local_queues = {_key(each): each for each in self.client.all(LOCAL_QUEUE)}
        workloads = self.client.all(WORKLOAD)
        decisions = self._scheduler.cycle(workloads, local_queues=local_queues, queues=self._queues(), now=now)
        done = 0
        for decision in decisions:
            patch = _carry_out(decision, now=now)
            if patch:
                succeeded = await self.act([patch])
                done += succeeded
                if not succeeded:
                    self._scheduler.forget(decision.workload)
        return done

    async def _show_queues(self, now: datetime) -> datetime | None:
        """Writes statuses that are due. Returns when the next one that has changed may be written."""
        queues, workloads = self._queues(), self.client.all(WORKLOAD)
        local_queues = self.client.all(LOCAL_QUEUE)
        wanted = [
            status_patch(LOCAL_QUEUE, each, self._local_status(each, queues, workloads, now=now))
            for each in local_queues
        ]
        wanted += [
            status_patch(CLUSTER_QUEUE, each, _cluster_status(each, queues, local_queues, workloads, now=now))
            for each in self.client.all(CLUSTER_QUEUE)
        ]
        return soonest([await self._show(patch, now) for patch in wanted if patch])

    async def _show(self, patch: Patch, now: datetime) -> datetime | None:
        uid = patch.observed["metadata"]["uid"]
        allowed_at = self._shown_at.get(uid, now - self._timing.queue_status) + self._timing.queue_status
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

    def _queues(self) -> dict[str, Queue]:
        flavors = {each["metadata"]["name"]: each for each in self.client.all(RESOURCE_FLAVOR)}
        checks = {each["metadata"]["name"]: each for each in self.client.all(ADMISSION_CHECK)}
        queues = [queue_of(each, flavors=flavors, checks=checks) for each in self.client.all(CLUSTER_QUEUE)]
        return {queue.name: queue for queue in queues}

    def _checks(self, workload: Json, queues: Mapping[str, Queue]) -> tuple[str, ...] | None:
        metadata, spec = workload["metadata"], workload["spec"]
        local_queue = self.client.find(LOCAL_QUEUE, metadata["namespace"], spec.get("queueName", ""))
        queue = queues.get(local_queue["spec"].get("clusterQueue", "")) if local_queue else None
        return queue.checks if queue else None

    def _next_retry(self) -> datetime | None:
        return soonest(retry_due(workload) for workload in self.client.all(WORKLOAD))

    @staticmethod
    def _local_status(
        local_queue: Json, queues: Mapping[str, Queue], workloads: Sequence[Json], *, now: datetime
    ) -> Json:
        queue = queues.get(local_queue["spec"].get("clusterQueue", ""))
        return local_queue_status(local_queue, queue, _submitted_to(local_queue, workloads), now=now)


def _key(body: Json) -> tuple[str, str]:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _submitted_to(local_queue: Json, workloads: Sequence[Json]) -> list[Json]:
    return [w for w in workloads if (w["metadata"]["namespace"], w["spec"].get("queueName", "")) == _key(local_queue)]


def _cluster_status(
    cluster_queue: Json,
    queues: Mapping[str, Queue],
    local_queues: Sequence[Json],
    workloads: Sequence[Json],
    *,
    now: datetime,
) -> Json:
    queue = queues[cluster_queue["metadata"]["name"]]
    feeding = [each for each in local_queues if each["spec"].get("clusterQueue", "") == queue.name]
    submitted = [workload for each in feeding for workload in _submitted_to(each, workloads)]
    return cluster_queue_status(cluster_queue, queue, submitted, now=now)


def _carry_out(decision: Decision, *, now: datetime) -> Patch | None:
    """The write that follows from a decision; None where the status says it already."""
    workload, outcome = decision.workload, decision.outcome
    if isinstance(outcome, Shortage):
        note = Note(reason=outcome.reason, message=outcome.message, type="Warning")
        waiting = states.waiting(workload, outcome.reason, outcome.message, now=now)
        return status_patch(WORKLOAD, workload, waiting, note)
    queue = outcome.queue
    notes = [Note(reason="QuotaReserved", message=f"Quota reserved in ClusterQueue {queue}")]
    if outcome.is_admitted:
        notes.append(Note(reason="Admitted", message=f"Admitted by ClusterQueue {queue}"))
    pod_sets = outcome.assignment.pod_sets
    reserved = states.reserved(workload, queue, pod_sets, checks=not outcome.is_admitted, now=now)
    return status_patch(WORKLOAD, workload, reserved, *notes)
