"""The active plans, read from their grants, with the observed state of their victims and gangs. Pure.

Laws:

* Nothing about a plan is kept in memory that matters: its grants are in the status of its victims, so that the next
  leader goes on where this one ended, be it between two writes.
* A decision counts only if it is about the replicas that are asked for now; before it is made anew nothing is known.
* A ScalableWorkload with a plan's grant is a victim of it, whether or not the other grants name it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from scaler.decision.cluster_state import ClusterState
from scaler.decision.decision_cache import Evaluation, Key
from scaler.decision.describe import timestamp
from scaler.decision.scale_subresources import scalable_workload_ref
from scaler.decision.target_state import Grant, ObservedTarget, ObservedWorkload, Seeks
from scaler.decision.workloads import grant_of
from scaler.idleness.pods import TERMINAL
from scaler.kube.objects.core import is_true
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.reclaim.candidates import is_idle, is_not_scaled, is_unknown, times_reclaimed
from scaler.reclaim.ledger import LedgerEntry, LedgerStage
from scaler.reclaim.transitions import GangState, Victim


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimStatus:
    """One victim with everything that is observed about it."""

    key: Key
    scalable: ScalableWorkload | None
    """None for one that is gone."""
    situation: ObservedTarget | None
    has_grant: bool
    is_idle: bool
    is_unknown: bool = False
    """It is not known now whether it is idle."""
    was_set_back: bool = False
    """It was at 0 for this plan, and is asked to be at 1 again."""
    entry: LedgerEntry | None = None
    """What the ledger says of it and this plan."""
    times: int = 0
    """How often plans have suspended it."""

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return "/".join(self.key)

    @property
    def workload(self) -> ObservedWorkload | None:
        return self.situation.workload if self.situation is not None else None

    @property
    def workload_key(self) -> str:
        """`namespace/name` of its Workload; empty where it has none."""
        workload = self.workload
        return f"{workload.namespace}/{workload.name}" if workload is not None else ""

    @property
    def is_deactivated(self) -> bool:
        workload = self.workload
        return workload is not None and not workload.active and workload.suspended_by_us

    @property
    def pods_left(self) -> int:
        pods = self.situation.pods if self.situation is not None else ()
        return sum(pod.phase not in TERMINAL for pod in pods)

    @property
    def victim(self) -> Victim:
        """As the core sees it. Without its grant or its Workload it is as good as gone."""
        workload = self.workload
        gone = self.scalable is None or workload is None or workload.finished
        return Victim(
            key=self.name,
            desired_replicas=self.scalable.spec.replicas if self.scalable is not None else 1,
            is_idle=self.is_idle,
            is_deactivated=self.is_deactivated,
            is_missing=gone or not self.has_grant,
            is_unknown=self.is_unknown,
            was_set_back=self.was_set_back,
            was_deactivated=self.entry is not None and self.entry.releasing_at is not None,
            holds_quota=workload is not None and workload.quota_reserved,
            pods_left=self.pods_left,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlan:
    """A plan with its victims."""

    grant: Grant
    gang: KueueWorkload | None
    gang_state: GangState
    members: tuple[VictimStatus, ...]

    @property
    def victims(self) -> list[Victim]:
        return [member.victim for member in self.members]

    @property
    def holders(self) -> list[VictimStatus]:
        """The victims on which its grants stand."""
        return [member for member in self.members if member.scalable is not None and member.has_grant]

    @property
    def is_begun(self) -> bool:
        return any(member.is_deactivated for member in self.members)

    @property
    def is_handed_over(self) -> bool:
        """Whether the ledger is closed for all victims that were deactivated."""
        given = [member.entry for member in self.holders if member.entry is not None and member.victim.has_given]
        return all(entry.stage.is_final for entry in given)

    @property
    def deactivated_at(self) -> list[datetime]:
        """When we have deactivated its victims, by the notes on their Workloads."""
        workloads = [member.workload for member in self.members if member.is_deactivated]
        return [each.suspended_at for each in workloads if each is not None and each.suspended_at is not None]


def active_plans(
    cluster: ClusterState, evaluation: Evaluation | None, *, seen_at_zero: Collection[tuple[str, str]] = frozenset()
) -> list[ActivePlan]:
    """All plans of which at least one grant stands, the oldest first.

    `evaluation` is None where there is none, or none that may be believed. `seen_at_zero` are the victims that were at
    0 before, as (plan, `namespace/name`).
    """
    holders: dict[str, list[tuple[str, Grant]]] = {}
    for scalable in cluster.scalable_workloads.items():
        grant = grant_of(scalable)
        if grant is not None and not grant.is_withdrawn:
            holders.setdefault(grant.plan, []).append(("/".join(scalable.metadata.key), grant))
    merged = [_merged(each) for each in holders.values()]
    ordered = sorted(merged, key=lambda grant: (grant.granted_at, grant.plan))
    return [_standing(grant, cluster, evaluation, seen_at_zero) for grant in ordered]


def _merged(holders: Sequence[tuple[str, Grant]]) -> Grant:
    """What the grants of one plan say together. They differ where a leader ended while it wrote them."""
    holders = sorted(holders, key=lambda each: each[0])
    earliest = min((grant for _, grant in holders), key=lambda grant: grant.expires_at)
    names = [name for _, grant in holders for name in grant.victims]
    return replace(earliest, victims=tuple(dict.fromkeys([*names, *(name for name, _ in holders)])))


def _standing(
    grant: Grant, cluster: ClusterState, evaluation: Evaluation | None, seen_at_zero: Collection[tuple[str, str]]
) -> ActivePlan:
    gang = cluster.workloads.get(*split_key(grant.gang))
    if gang is not None and gang.metadata.uid != grant.gang_uid:
        gang = None
    return ActivePlan(
        grant=grant,
        gang=gang,
        gang_state=gang_state(gang, grant),
        members=tuple(
            _member(name, grant, cluster, evaluation, (grant.plan, name) in seen_at_zero) for name in grant.victims
        ),
    )


def _member(
    name: str, grant: Grant, cluster: ClusterState, evaluation: Evaluation | None, was_at_zero: bool
) -> VictimStatus:
    key = split_key(name)
    scalable = cluster.scalable_workloads.get(*key)
    if scalable is None or scalable.metadata.deletion_timestamp is not None:
        return VictimStatus(key=key, scalable=None, situation=None, has_grant=False, is_idle=False)
    own, entry = grant_of(scalable), entry_of(scalable)
    decisions = evaluation.decisions_on(key[0], scalable_workload_ref(key[1])) if evaluation is not None else ()
    is_current = all(each.target.desired_replicas == scalable.spec.replicas for each in decisions)
    is_known, is_spared = evaluation is not None and is_current, is_not_scaled(scalable, cluster)
    return VictimStatus(
        key=key,
        scalable=scalable,
        situation=cluster.situation(scalable),
        has_grant=own is not None and own.plan == grant.plan and not own.is_withdrawn,
        is_idle=is_known and is_idle(decisions) and not is_spared,
        is_unknown=not is_spared and (not is_known or is_unknown(decisions)),
        was_set_back=was_at_zero and scalable.spec.replicas > 0,
        entry=entry if entry is not None and entry.plan == grant.plan else None,
        times=times_reclaimed(scalable),
    )


def gang_state(gang: KueueWorkload | None, grant: Grant) -> GangState:
    """How far the gang is on its way to what the grant is for, by its conditions and our check."""
    if gang is None or not gang.spec.active or is_true(gang.status.conditions, "Finished"):
        return GangState.GONE
    if gang.metadata.deletion_timestamp is not None:
        return GangState.GONE
    if is_true(gang.status.conditions, "Admitted"):
        return GangState.ADMITTED
    has_quota = is_true(gang.status.conditions, "QuotaReserved")
    if grant.seeks is Seeks.QUOTA:
        return GangState.RESERVED if has_quota else GangState.WAITING
    if not has_quota or is_true(gang.status.conditions, "Evicted"):
        return GangState.GONE
    states = {each.name: each.state for each in gang.status.admission_checks}
    return GangState.ADMITTED if states.get(grant.check) == "Ready" else GangState.WAITING


def split_key(name: str) -> Key:
    """`namespace/name` taken apart."""
    namespace, _, rest = name.partition("/")
    return namespace, rest


# ------------------------------------------------------------------------------------------------ the ledger in status


def entry_of(scalable: ScalableWorkload) -> LedgerEntry | None:
    """The ledger's latest entry about the workload; None where no plan has ever taken it."""
    found = scalable.status.reallocation
    if found is None or found.reclaimable_at is None or found.stage not in set(LedgerStage):
        return None
    return LedgerEntry(
        plan=found.plan,
        gang=found.workload,
        gpus=found.gpus,
        stage=LedgerStage(found.stage),
        reclaimable_at=found.reclaimable_at,
        releasing_at=found.releasing_at,
        available_at=found.available_at,
        reserved_at=found.reserved_at,
        admitted_at=found.admitted_at,
        ended_at=found.ended_at,
    )


def entry_status(entry: LedgerEntry, *, times: int) -> Mapping[str, Any]:
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
        "wastedGpuSeconds": round(wasted) if wasted is not None else None,
        "times": times,
    }
