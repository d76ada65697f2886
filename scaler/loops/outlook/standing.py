"""A plan that stands, and how far it is, as JSON. Pure."""

from datetime import datetime
from typing import Any

from scaler.core.grants import Course, Ending, GangState, Seeks, move
from scaler.core.ledger import Stage
from scaler.core.pods import TERMINAL
from scaler.loops.granted import entry_of
from scaler.loops.projection import timestamp
from scaler.loops.standing_plans import Member, StandingPlan

Json = dict[str, Any]

_ORDER = (Stage.RECLAIMABLE, Stage.RELEASING, Stage.AVAILABLE, Stage.RESERVED, Stage.ADMITTED)
_LOST = frozenset({Stage.TAKEN, Stage.CANCELLED})


def standing_view(plan: StandingPlan, now: datetime) -> Json:
    """The plan with its victims. `stage` is that of the GPUs that are farthest from being the gang's."""
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
        "gpus": sum(entry.gpus for each in plan.members if each.scalable and (entry := entry_of(each.scalable))),
        "victims": [_victim(each) for each in plan.members],
    }


def _stage(plan: StandingPlan) -> Stage:
    entries = [entry_of(each.scalable) for each in plan.members if each.scalable is not None]
    stages = [each.stage for each in entries if each is not None and each.plan == plan.grant.plan]
    lost = [stage for stage in stages if stage in _LOST]
    return lost[0] if lost else min(stages, key=_ORDER.index, default=Stage.RECLAIMABLE)


def _victim(member: Member) -> Json:
    entry = entry_of(member.scalable) if member.scalable is not None else None
    situation = member.situation
    left = [pod for pod in situation.pods if pod.phase not in TERMINAL] if situation is not None else []
    return {
        "name": "/".join(member.key),
        "workload": member.workload_key or None,
        "gpus": entry.gpus if entry is not None else 0,
        "stage": str(entry.stage) if entry is not None else None,
        "isIdle": None if member.is_unknown else member.is_idle,
        "desiredReplicas": member.victim.desired_replicas,
        "isDeactivated": member.is_deactivated,
        "podsLeft": len(left),
    }


def next_step(plan: StandingPlan, now: datetime) -> str:
    """What the plan waits for, in a sentence."""
    step = move(plan.grant, plan.gang_state, plan.victims, now=now)
    match step.course:
        case Course.WAIT:
            return _awaited(plan)
        case Course.COMMIT:
            return "all victims are idle and asked to be at 0: they are deactivated now"
        case Course.WATCH:
            return _WATCHED[plan.grant.seeks, plan.gang_state]
        case Course.FINISH:
            return "the gang is admitted; the grants end"
        case Course.RECONSIDER | Course.RELEASE:
            about = f" ({', '.join(step.about)})" if step.about else ""
            ending = _ENDINGS.get(step.ending, str(step.ending))
            return f"{_ENDS[step.course]}: {ending}{about}"


def _awaited(plan: StandingPlan) -> str:
    victims = plan.victims
    at_zero = sum(victim.is_wanted_at_zero for victim in victims)
    unknown = [victim.key for victim in victims if victim.is_unknown]
    doubt = f"; nobody can say now whether {', '.join(unknown)} is idle" if unknown else ""
    loss = "" if plan.is_begun else "; nothing is lost until all are"
    return f"KEDA has asked {at_zero} of {len(victims)} victims to be at 0{loss}{doubt}"


_ENDS = {Course.RECONSIDER: "it is planned anew", Course.RELEASE: "it is called off"}
_WATCHED = {
    (Seeks.QUOTA, GangState.WAITING): "all victims are deactivated; Kueue gives the gang its quota next",
    (Seeks.QUOTA, GangState.RESERVED): "the gang holds its quota; its admission checks are awaited",
    (Seeks.NODES, GangState.WAITING): "all victims are deactivated; the gang is let go when it fits whole",
}
_ENDINGS = {
    Ending.GANG_GONE: "nobody waits any more",
    Ending.VICTIM_BUSY: "a victim is not idle any more",
    Ending.VICTIM_WOKE: "a victim is wanted again",
    Ending.GRANT_EXPIRED: "its time is up, and KEDA has not asked all victims to be at 0",
    Ending.NOT_RESERVED: "its time is up, and the gang has not got what was freed for it",
    Ending.NODES_TAKEN: "others have come to the nodes that were freed",
    Ending.NOT_NEEDED: "the gang got its quota without it",
}
