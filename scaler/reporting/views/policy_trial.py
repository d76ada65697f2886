"""What would become of every job if these IdlePolicies were applied? Nothing is written."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from scaler.attachment.controller import IdlePolicies
from scaler.attachment.jobs import JobWatch
from scaler.attachment.objects import (
    TriggerTarget,
    attached_name,
    has_scale_of_its_own,
    scalable_workload,
    scaled_object,
)
from scaler.attachment.plan import Attached, unscalable
from scaler.attachment.policy import AttachmentPolicy, Followed, Job, followed_policy, in_order
from scaler.decision.describe import answer_word, prevailing, timestamp, verdict_word
from scaler.decision.evaluation import Evaluator
from scaler.decision.trigger_metadata import parse_metadata
from scaler.errors import MetadataError, QueryError
from scaler.kube.objects.core import decode
from scaler.kube.objects.direct_scaling import DIRECT
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.targets.cluster_state import ClusterState

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
        target: TriggerTarget,
    ) -> None:
        self._attached = Attached(cluster.scalable_workloads, cluster.scaled_objects)
        self._evaluator, self._policies, self._jobs, self._target = evaluator, policies, jobs, target

    async def run(self, given: Sequence[AttachmentPolicy]) -> Json:
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
        pairs = [(job, followed_policy(job, before, now), followed_policy(job, after, now)) for job in jobs]
        await self._read_back(now, [followed for *_, followed in pairs if followed is not None])
        concerned = {each.key for each in given}
        rows = [
            self._row(job, was, will)
            for job, was, will in pairs
            if (was is not None and was.policy.key in concerned) or (will is not None and will.policy.key in concerned)
        ]
        return {
            "at": timestamp(now),
            "policies": [{"policy": str(each), "namespace": each.namespace, "problem": each.problem} for each in given],
            "jobs": sorted(rows, key=lambda row: (row["namespace"], row["kind"], row["name"])),
            "others": len(jobs) - len(rows),
            "denied": self._jobs.problems(),
        }

    async def _listed(self) -> list[Job]:
        try:
            async with asyncio.timeout(_LISTED_WITHIN_S):
                for each in self._policies.all:
                    await each.wait_synced()
                while True:
                    await self._jobs.watch()
                    if not (waits := self._jobs.unlisted(_FRESH)):
                        return await self._jobs.jobs()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise QueryError(f"the Kubernetes API did not list everything: {waits}", status=503) from None

    async def _read_back(self, now: datetime, followed: Sequence[Followed]) -> None:
        """Samples of the longest window that is asked for."""
        sampler, longest = self._evaluator.sampler, timedelta(0)
        for each in followed:
            with suppress(MetadataError):  # shown where it is decided
                longest = max(longest, parse_metadata(each.metadata).idle_after or timedelta(0))
        longest = min(longest, self._evaluator.config.max_window)
        for _ in range(_PARTS):
            if sampler.since <= now - longest:
                return
            before = sampler.since
            await sampler.refresh(end=max(now, sampler.until), span=longest)
            if sampler.since >= before:
                return

    def _row(self, job: Job, was: Followed | None, will: Followed | None) -> Json:
        change, words = self._change(job, was, will)
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
        is_decided = will is not None and change in ("Attached", "Changed", "Unchanged")
        return row | (self._decided(job, will) if is_decided and will is not None else _UNDECIDED)

    def _change(self, job: Job, was: Followed | None, will: Followed | None) -> tuple[str, str]:
        is_attached = self._attached.has(job)
        if will is None or will.excluded is not None:
            reason = (will.excluded.reason if will and will.excluded else "") or ("excluded" if will else "no policy")
            return ("Detached" if is_attached else "Excluded" if will else "None"), reason
        if will.problem:
            return "NotValid", will.problem
        if problem := unscalable(job, will):
            return "Problem", problem
        if taken := self._attached.conflict(job):
            return "Conflict", f"scaled by {taken}"
        if not is_attached:
            return "Attached", ", ".join(_made_for(job, will))
        return ("Changed" if _differences(was, will) else "Unchanged"), ""

    def _decided(self, job: Job, followed: Followed) -> Json:
        """What would be decided about it at once, and why."""
        scale = self._jobs.scale_of(job)
        entry = self._evaluator.try_out(
            self._scaled_object(job, followed), scale or self._scalable_workload(job, followed)
        )
        decision = prevailing([*entry.triggers.values()]) if entry is not None else None
        if decision is None:
            problems = entry.problems if entry is not None else ()
            return _UNDECIDED | {"now": f"never: {'; '.join(problems)}"}
        return {
            "answer": answer_word(decision),
            "reason": str(decision.answer.reason),
            "verdict": verdict_word(decision) or None,
            "now": decision.answer.message,
        }

    def _scaled_object(self, job: Job, followed: Followed) -> ScaledObject:
        """The ScaledObject as it would be, with the annotations of the one that is there."""
        made = decode(ScaledObject, msgspec.json.encode(scaled_object(job, followed, self._target)))
        known = self._attached.scaled_objects.get(job.namespace, attached_name(job))
        if known is None:
            return made
        annotations = known.metadata.annotations | made.metadata.annotations
        return replace(made, metadata=replace(known.metadata, annotations=annotations))

    def _scalable_workload(self, job: Job, followed: Followed) -> ScalableWorkload:
        known = self._attached.scalable_workloads.get(job.namespace, attached_name(job))
        return known or decode(ScalableWorkload, msgspec.json.encode(scalable_workload(job, followed)))


_UNDECIDED: Json = {"answer": None, "reason": None, "verdict": None, "now": ""}


def _made_for(job: Job, followed: Followed) -> list[str]:
    """The kinds of objects that it gets."""
    by_keda = ["ScaledObject"] if followed.actuator != DIRECT else []
    return by_keda if has_scale_of_its_own(job) else ["ScalableWorkload", *by_keda]


def _differences(was: Followed | None, will: Followed | None) -> list[Json]:
    before, after = ({**each.metadata, "actuator": each.actuator} if each else {} for each in (was, will))
    return [
        {"field": key, "from": before.get(key), "to": after.get(key)}
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
