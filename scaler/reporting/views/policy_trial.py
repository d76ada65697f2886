"""What would become of every job if these IdlePolicies were applied? Nothing is written."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from scaler.attachment.controller import IdlePolicies
from scaler.attachment.jobs import JobWatch
from scaler.attachment.objects import attached_name, has_scale_of_its_own
from scaler.attachment.plan import Attached
from scaler.attachment.policy import Followed, IdlePolicy, Job, followed, in_order
from scaler.decision.cluster_state import ClusterState
from scaler.decision.describe import timestamp
from scaler.decision.evaluation import Evaluator
from scaler.decision.trigger_metadata import by_source, parse_metadata, resolve_policy
from scaler.errors import MetadataError, QueryError
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import EnforcementMode, Policy, Reclaim
from scaler.idleness.verdict import Idle, Unknown
from scaler.kube.objects.kueue_queues import Namespace
from scaler.kube.reflector import Reflector

_LISTED_WITHIN_S = 20.0
_FRESH = timedelta(minutes=2)
_PARTS = 30 * 24
"""Reads of an hour each that a window may take: of the longest, 30 days."""

Json = dict[str, Any]


class PolicyTrial:
    """Needs the cluster listed, and an evaluation."""

    def __init__(
        self,
        cluster: ClusterState,
        evaluator: Evaluator,
        policies: IdlePolicies,
        jobs: JobWatch,
        namespaces: Reflector[Namespace] | None,
    ) -> None:
        self._cluster, self._evaluator = cluster, evaluator
        self._policies, self._jobs, self._namespaces = policies, jobs, namespaces

    async def run(self, given: Sequence[IdlePolicy]) -> Json:
        """The answer for these policies, each in place of the one of its name. Raises: QueryError."""
        runs = [*(each.run() for each in self._policies.all), self._jobs.run()]
        tasks = [asyncio.create_task(each) for each in runs]
        try:
            jobs = await self._listed()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        now = self._evaluator.clock()
        present = self._policies.policies()
        replaced = {each.key: each for each in present} | {each.key: each for each in given}
        before, after = in_order(present), in_order(replaced.values())
        attached = Attached(self._cluster.scalable_workloads.items(), self._cluster.scaled_objects.items())
        pairs = [(job, followed(job, before, now), followed(job, after, now)) for job in jobs]
        await self._read_back(now, [said for *_, said in pairs if said is not None])
        concerned = {each.key for each in given}
        rows = [
            self._row(job, was, will, attached, now)
            for job, was, will in pairs
            if (was is not None and was.policy.key in concerned) or (will is not None and will.policy.key in concerned)
        ]
        return {
            "at": timestamp(now),
            "policies": [{"policy": str(each), "namespace": each.namespace, "problem": each.problem} for each in given],
            "jobs": sorted(rows, key=lambda row: (row["namespace"], row["kind"], row["name"])),
            "others": len(jobs) - len(rows),
            "denied": self._jobs.denied(),
        }

    async def _listed(self) -> list[Job]:
        try:
            async with asyncio.timeout(_LISTED_WITHIN_S):
                for each in self._policies.all:
                    await each.wait_synced()
                while True:
                    await self._jobs.follow()
                    if not (waits := self._jobs.unlisted(_FRESH)):
                        return await self._jobs.jobs(self._labels_of)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise QueryError(f"the Kubernetes API did not list everything: {waits}", status=503) from None

    def _labels_of(self, namespace: str) -> dict[str, str]:
        found = self._namespaces.get("", namespace) if self._namespaces is not None else None
        return found.metadata.labels if found is not None else {}

    async def _read_back(self, now: datetime, said: Sequence[Followed]) -> None:
        """Samples of the longest window that is asked for."""
        windows = [policy.idle_after for each in said if isinstance(policy := self._policy(each), Policy)]
        longest, sampler = max(windows, default=timedelta(0)), self._evaluator.sampler
        for _ in range(_PARTS):
            if sampler.since <= now - longest:
                return
            before = sampler.since
            await sampler.refresh(end=max(now, sampler.until), span=longest)
            if sampler.since >= before:
                return

    def _policy(self, said: Followed) -> Policy | str:
        """The policy of the job, or why it has none."""
        config = self._evaluator.config
        try:
            trigger = by_source(parse_metadata(said.metadata), {})
            return resolve_policy(
                trigger, (), defaults=config.defaults, longest=config.max_window, shortest=config.trust.interval
            )
        except MetadataError as error:
            return str(error)

    def _row(self, job: Job, was: Followed | None, will: Followed | None, attached: Attached, now: datetime) -> Json:
        change, words = _change(job, was, will, attached)
        row = {
            "namespace": job.namespace,
            "kind": job.kind,
            "name": job.name,
            "before": str(was.policy) if was is not None else None,
            "policy": str(will.policy) if will is not None else None,
            "change": change,
            "words": words,
            "differs": _differences(was, will),
        }
        is_judged = will is not None and will.attaches and change not in ("Conflict", "Problem")
        return row | (self._verdict(job, will, now) if is_judged and will is not None else {"verdict": None, "now": ""})

    def _verdict(self, job: Job, said: Followed, now: datetime) -> Json:
        policy = self._policy(said)
        if isinstance(policy, str):
            return {"verdict": None, "now": f"never: {policy}"}
        pods = self._jobs.pods_of(job)
        if not pods:
            return {"verdict": None, "now": "it has no pods"}
        verdict = self._evaluator.judge_by(policy, pods, now).verdict
        return {"verdict": type(verdict).__name__, "now": _now(verdict, policy, pods)}


def _now(verdict: object, policy: Policy, pods: Sequence[GpuPod]) -> str:
    """What would happen to the job at once."""
    if isinstance(verdict, Unknown):
        return f"nothing: {verdict.message}"
    if not isinstance(verdict, Idle):
        return "nothing: its GPUs work"
    if policy.mode is EnforcementMode.OBSERVE:
        return "observed: its GPUs are idle"
    gpus = sum(each.gpus for each in pods)
    if policy.reclaim is Reclaim.ALWAYS:
        return f"suspended: frees {gpus} GPUs"
    return f"a plan may suspend it: frees {gpus} GPUs" if policy.reclaim is Reclaim.ON_PRESSURE else "priority lowered"


def _change(job: Job, was: Followed | None, will: Followed | None, attached: Attached) -> tuple[str, str]:
    name = job.namespace, attached_name(job)
    is_attached = name in attached.ours()
    if will is None or will.excluded is not None:
        reason = (will.excluded.reason if will and will.excluded else "") or ("excluded" if will else "no policy")
        return ("Detached" if is_attached else "Excluded" if will else "None"), reason
    if will.policy.problem:
        return "NotValid", will.policy.problem
    if job.problem:
        return "Problem", job.problem
    if taken := attached.conflict(job):
        return "Conflict", f"scaled by {taken}"
    if not is_attached:
        return "Attached", "ScaledObject" if has_scale_of_its_own(job) else "ScalableWorkload, ScaledObject"
    return ("Changed" if _differences(was, will) else "Unchanged"), ""


def _differences(was: Followed | None, will: Followed | None) -> list[Json]:
    before, after = dict(was.metadata) if was else {}, dict(will.metadata) if will else {}
    return [
        {"field": key, "from": before.get(key), "to": after.get(key)}
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
