"""An active plan and its progress, as JSON. Pure."""

from datetime import datetime

from scaler.decision.describe import timestamp
from scaler.reclaim.active_plans import ActivePlan, VictimStatus
from scaler.reclaim.transitions import GangState, LedgerStage, PlanAction, PlanEndReason, next_transition
from scaler.reporting.views import Json
from scaler.targets.target_state import Seeks

_ORDER = (
    LedgerStage.RECLAIMABLE,
    LedgerStage.RELEASING,
    LedgerStage.AVAILABLE,
    LedgerStage.RESERVED,
    LedgerStage.ADMITTED,
)


def active_plan_view(plan: ActivePlan, now: datetime) -> Json:
    """`stage` is that of the GPUs that are farthest from being the gang's."""
    grant = plan.grant
    return {
        "id": grant.plan,
        "gang": grant.gang,
        "seeks": str(grant.seeks),
        "check": grant.check or None,
        "gangState": str(plan.gang_state),
        "stage": str(_stage(plan)),
        "next": next_step(plan, now),
        "grantedAt": timestamp(grant.granted_at),
        "expiresAt": timestamp(grant.expires_at),
        "gpus": sum(each.entry.gpus for each in plan.victims if each.entry is not None),
        "victims": [_victim(each) for each in plan.victims],
    }


def _stage(plan: ActivePlan) -> LedgerStage:
    stages = [each.entry.stage for each in plan.victims if each.entry is not None]
    if LedgerStage.CANCELLED in stages:
        return LedgerStage.CANCELLED
    return min(stages, key=_ORDER.index, default=LedgerStage.RECLAIMABLE)


def _victim(victim: VictimStatus) -> Json:
    entry = victim.entry
    return {
        "name": victim.name,
        "workload": victim.workload_key or None,
        "gpus": entry.gpus if entry is not None else 0,
        "stage": str(entry.stage) if entry is not None else None,
        "isIdle": None if victim.is_unknown else victim.is_idle,
        "desiredReplicas": victim.desired_replicas,
        "isDeactivated": victim.is_deactivated,
        "podsLeft": victim.pods_left,
    }


def next_step(plan: ActivePlan, now: datetime) -> str:
    step = next_transition(plan.grant, plan.gang_state, plan.victims, now=now)
    match step.action:
        case PlanAction.WAIT:
            return _awaited(plan)
        case PlanAction.COMMIT:
            return "all victims are idle and asked to be at 0: they are deactivated now"
        case PlanAction.WATCH:
            return _WATCHED[plan.grant.seeks, plan.gang_state]
        case PlanAction.FINISH:
            return "the gang is admitted; the grants end"
        case PlanAction.RECONSIDER | PlanAction.RELEASE:
            about = f" ({', '.join(step.about)})" if step.about else ""
            ending = _ENDINGS.get(step.ending, str(step.ending))
            return f"{_ENDS[step.action]}: {ending}{about}"


def _awaited(plan: ActivePlan) -> str:
    victims = plan.victims
    at_zero = sum(victim.is_wanted_at_zero for victim in victims)
    unknown = [victim.name for victim in victims if victim.is_unknown]
    doubt = f"; it is not known now whether {', '.join(unknown)} is idle" if unknown else ""
    loss = "" if plan.is_begun else "; none is suspended until all are"
    return f"KEDA has asked {at_zero} of {len(victims)} victims to be at 0{loss}{doubt}"


_ENDS = {PlanAction.RECONSIDER: "it is planned anew", PlanAction.RELEASE: "it is cancelled"}
_WATCHED = {
    (Seeks.QUOTA, GangState.WAITING): "all victims are deactivated; Kueue gives the gang its quota next",
    (Seeks.QUOTA, GangState.RESERVED): "the gang holds its quota; its admission checks are not all Ready",
    (
        Seeks.NODES,
        GangState.WAITING,
    ): "all victims are deactivated; the AdmissionCheck becomes Ready when the whole gang fits",
}
_ENDINGS = {
    PlanEndReason.GANG_GONE: "the gang does not wait any more, or this cluster is not nominated for it any more",
    PlanEndReason.VICTIM_BUSY: "a victim is not idle any more",
    PlanEndReason.VICTIM_WOKE: "a victim is resumed",
    PlanEndReason.GRANT_EXPIRED: "it expired before KEDA asked all victims to be at 0",
    PlanEndReason.NOT_RESERVED: "it expired before the gang got what was freed for it",
    PlanEndReason.QUOTA_TAKEN: "other Workloads got quota that was freed",
    PlanEndReason.NODES_TAKEN: "other pods were scheduled to the freed nodes",
    PlanEndReason.NOT_NEEDED: "the gang got its quota without it",
}
