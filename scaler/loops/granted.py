"""Grants and reallocations as they stand in the status of ScalableWorkloads, to and from the core's values. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from scaler.core.grants import Grant, Seeks
from scaler.core.ledger import Entry, Stage
from scaler.core.reclaim import Plan
from scaler.kube.objects import ScalableWorkload
from scaler.loops.projection import timestamp


def grant_of(scalable: ScalableWorkload) -> Grant | None:
    """The grant that stands in the status; None where there is none, or one that somebody has garbled."""
    found = scalable.status.grant
    if found is None or not found.plan or found.granted_at is None or found.expires_at is None:
        return None
    if found.seeks not in set(Seeks):
        return None
    return Grant(
        plan=found.plan,
        gang=found.workload,
        gang_uid=found.workload_uid,
        victims=found.victims,
        granted_at=found.granted_at,
        expires_at=found.expires_at,
        seeks=Seeks(found.seeks),
        check=found.check,
    )


def grant_by(plan: Plan, *, at: datetime, until: datetime) -> Grant:
    """The grant that offers the plan to its victims."""
    return Grant(
        plan=plan.id,
        gang=plan.gang,
        gang_uid=plan.gang_uid,
        victims=tuple(victim.name for victim in plan.victims),
        granted_at=at,
        expires_at=until,
        seeks=plan.seeks,
        check=plan.check,
    )


def grant_status(grant: Grant) -> Mapping[str, Any]:
    """The grant as it is written. An absent field is None, so that a merge patch removes it; absent means Quota."""
    return {
        "plan": grant.plan,
        "workload": grant.gang,
        "workloadUID": grant.gang_uid,
        "victims": list(grant.victims),
        "grantedAt": timestamp(grant.granted_at),
        "expiresAt": timestamp(grant.expires_at),
        "seeks": str(grant.seeks) if grant.seeks is not Seeks.QUOTA else None,
        "check": grant.check or None,
    }


def entry_of(scalable: ScalableWorkload) -> Entry | None:
    """The ledger's latest entry about the workload; None where no plan has ever taken it."""
    found = scalable.status.reallocation
    if found is None or found.reclaimable_at is None or found.stage not in set(Stage):
        return None
    return Entry(
        plan=found.plan,
        gang=found.workload,
        gpus=found.gpus,
        stage=Stage(found.stage),
        reclaimable_at=found.reclaimable_at,
        releasing_at=found.releasing_at,
        available_at=found.available_at,
        reserved_at=found.reserved_at,
        admitted_at=found.admitted_at,
        ended_at=found.ended_at,
        taken_by=found.taken_by,
    )


def times_reclaimed(scalable: ScalableWorkload) -> int:
    """How often plans have suspended the workload."""
    return scalable.status.reallocation.times if scalable.status.reallocation else 0


def entry_status(entry: Entry, *, times: int) -> Mapping[str, Any]:
    """The entry as it is written. An absent field is None, so that a merge patch removes it."""
    wasted = entry.wasted_gpu_seconds
    return {
        "plan": entry.plan,
        "workload": entry.gang,
        "gpus": entry.gpus,
        "stage": str(entry.stage),
        "reclaimableAt": timestamp(entry.reclaimable_at),
        "releasingAt": timestamp(entry.releasing_at),
        "availableAt": timestamp(entry.available_at),
        "reservedAt": timestamp(entry.reserved_at),
        "admittedAt": timestamp(entry.admitted_at),
        "endedAt": timestamp(entry.ended_at),
        "takenBy": entry.taken_by or None,
        "wastedGpuSeconds": round(wasted) if wasted is not None else None,
        "times": times,
    }
