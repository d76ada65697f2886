"""The active plans, read from their grants, with the observed state of their victims and gangs. Pure.

Laws:

* Nothing about a plan is kept in memory that matters: its grants are in the status of its victims, so that the next
  leader goes on where this one ended, be it between two writes.
* A decision counts only if it is about the replicas that are asked for now; before it is made anew nothing is known.
* A plan for a remote copy of MultiKueue ends when this cluster is not nominated for it any more, unless the copy has
  got what the plan is for.
* A ScalableWorkload with a plan's grant is a victim of it, whether or not the other grants name it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from scaler.admission.remote_copies import NominatedCopies
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import Evaluation, Key
from scaler.decision.describe import timestamp
from scaler.idleness.pods import TERMINAL
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.reclaim.candidates import has_failed_hook, is_idle, is_not_scaled, is_undecided, times_reclaimed
from scaler.reclaim.transitions import GangState, LedgerEntry, LedgerStage, Victim
from scaler.targets.cluster_state import ClusterState
from scaler.targets.target_state import Grant, ObservedWorkload, Seeks
from scaler.targets.workloads import grant_of


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimStatus(Victim):
    """A victim of a plan with the objects that it was observed on."""

    scalable: ScalableWorkload | None = None
    """The victim's ScalableWorkload; None where it is gone."""
    workload: ObservedWorkload | None = None
    has_grant: bool = False
    entry: LedgerEntry | None = None
    """What the ledger says of it and this plan."""
    times: int = 0

    @property
    def workload_key(self) -> str:
        """`namespace/name` of its Workload; empty where it has none."""
        return f"{self.workload.namespace}/{self.workload.name}" if self.workload is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlan:
    grant: Grant
    gang: KueueWorkload | None
    gang_state: GangState
    victims: tuple[VictimStatus, ...]

    @property
    def holders(self) -> list[VictimStatus]:
        """The victims on which its grants stand."""
        return [victim for victim in self.victims if victim.has_grant]

    @property
    def is_begun(self) -> bool:
        return any(victim.is_deactivated for victim in self.victims)

    @property
    def is_handed_over(self) -> bool:
        """Whether the ledger is closed for all victims that were deactivated."""
        given = [victim.entry for victim in self.holders if victim.entry is not None and victim.has_given]
        return all(entry.stage.is_final for entry in given)

    @property
    def deactivated_at(self) -> list[datetime]:
        """When we have deactivated its victims, by the notes on their Workloads."""
        workloads = [victim.workload for victim in self.victims if victim.is_deactivated]
        return [each.suspended_at for each in workloads if each is not None and each.suspended_at is not None]


def active_plans(
    cluster: ClusterState,
    evaluation: Evaluation | None,
    *,
    seen_at_zero: Collection[tuple[str, str]] = frozenset(),
    nominations: NominatedCopies,
) -> list[ActivePlan]:
    """All plans of which at least one grant stands, the oldest first.

    `evaluation` is None where there is none, or none that may be believed. `seen_at_zero` are the victims that were at
    0 before, as (plan, `namespace/name`); `nominations` are of this moment.
    """
    holders: dict[str, list[tuple[str, Grant]]] = {}
    for scalable in cluster.scalable_workloads.items():
        grant = grant_of(scalable)
        if grant is not None and not grant.is_withdrawn:
            holders.setdefault(grant.plan, []).append(("/".join(scalable.metadata.key), grant))
    merged = [_merged(each) for each in holders.values()]
    ordered = sorted(merged, key=lambda grant: (grant.granted_at, grant.plan))
    found = [_standing(grant, cluster, evaluation, seen_at_zero) for grant in ordered]
    return [_with_nomination(each, nominations) for each in found]


def _with_nomination(plan: ActivePlan, nominations: NominatedCopies) -> ActivePlan:
    """The plan, whose gang is gone if it waits and this cluster is certainly not nominated for it."""
    why = nominations.why_not(plan.gang) if plan.gang is not None and plan.gang_state is GangState.WAITING else ""
    return replace(plan, gang_state=GangState.GONE) if why and isinstance(why, str) else plan


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
    victims = [_victim(name, grant, cluster, evaluation, (grant.plan, name) in seen_at_zero) for name in grant.victims]
    return ActivePlan(grant=grant, gang=gang, gang_state=gang_state(gang, grant), victims=tuple(victims))


def _victim(
    name: str, grant: Grant, cluster: ClusterState, evaluation: Evaluation | None, was_at_zero: bool
) -> VictimStatus:
    scalable = cluster.scalable_workloads.get(*split_key(name))
    if scalable is None or scalable.metadata.deletion_timestamp is not None:
        return VictimStatus(name=name, desired_replicas=1, is_idle=False, is_deactivated=False, is_missing=True)
    own, entry, observed = grant_of(scalable), entry_of(scalable), cluster.situation(scalable)
    has_grant = own is not None and own.plan == grant.plan and not own.is_withdrawn
    entry = entry if entry is not None and entry.plan == grant.plan else None
    workload, is_spared = observed.workload, is_not_scaled(scalable, cluster)
    decisions = _current_decisions(scalable, evaluation)
    return VictimStatus(
        name=name,
        desired_replicas=scalable.spec.replicas,
        is_idle=decisions is not None and is_idle(decisions) and not is_spared,
        is_unknown=not is_spared and (decisions is None or is_undecided(decisions)),
        has_failed_hook=decisions is not None and has_failed_hook(decisions),
        is_deactivated=workload is not None and not workload.active and workload.suspended_by_us,
        # Without its grant or its Workload it is as good as gone.
        is_missing=workload is None or workload.finished or not has_grant,
        was_set_back=was_at_zero and scalable.spec.replicas > 0,
        was_deactivated=entry is not None and entry.releasing_at is not None,
        holds_quota=workload is not None and workload.quota_reserved,
        pods_left=sum(pod.phase not in TERMINAL for pod in observed.pods),
        scalable=scalable,
        workload=workload,
        has_grant=has_grant,
        entry=entry,
        times=times_reclaimed(scalable),
    )


def _current_decisions(scalable: ScalableWorkload, evaluation: Evaluation | None) -> Sequence[Decision] | None:
    """The triggers' decisions on the replicas of now; None where they are not known or are older."""
    if evaluation is None:
        return None
    decisions = evaluation.decisions_on(scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name))
    is_current = all(each.target.desired_replicas == scalable.spec.replicas for each in decisions)
    return decisions if is_current else None


def gang_state(gang: KueueWorkload | None, grant: Grant) -> GangState:
    """How far the gang is on its way to what the grant is for, by its conditions and our check."""
    if gang is None or not gang.spec.active or gang.metadata.deletion_timestamp is not None:
        return GangState.GONE
    true = {each.type for each in gang.status.conditions if each.status == "True"}
    if "Finished" in true:
        return GangState.GONE
    if "Admitted" in true:
        return GangState.ADMITTED
    if grant.seeks is Seeks.QUOTA:
        return GangState.RESERVED if "QuotaReserved" in true else GangState.WAITING
    if "QuotaReserved" not in true or "Evicted" in true:
        return GangState.GONE
    states = {each.name: each.state for each in gang.status.admission_checks}
    return GangState.ADMITTED if states.get(grant.check) == "Ready" else GangState.WAITING


def split_key(name: str) -> Key:
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
