"""What would be suspended for a gang, at what cost, and what else there was; or why nobody is. As JSON. Pure.

Costs are in the units of `core/costs.py`, amounts in the resource's own unit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.core.durations import format_duration
from scaler.core.placement import Placement
from scaler.core.quota.model import Workload
from scaler.core.reclaim import Alternative, Candidate, Caution, NoPlan, Plan, Why
from scaler.kube.kueue_objects import Workload as KueueWorkload
from scaler.loops.outlook.amounts import number
from scaler.loops.outlook.holders import Holder
from scaler.loops.outlook.pending import gang_view, whole
from scaler.loops.outlook.standing import standing_view
from scaler.loops.outlook.survey import Survey
from scaler.loops.outlook.waiting import diagnose
from scaler.loops.projection import timestamp
from scaler.loops.scales import scalable_target

Json = dict[str, Any]

_SHOWN = 50
"""Candidates that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquired:
    """Everything that is known about one gang's plan."""

    gang: Workload
    observed: KueueWorkload | None
    answer: Plan | NoPlan | None = None
    """None where a plan stands already."""
    candidates: Sequence[Candidate] = ()
    assumed: Collection[str] = frozenset()
    """Keys of the Workloads among them that are only taken to be idle."""
    what_if: Sequence[str] | None = None
    """Who was to be taken to be idle: nobody (None), everybody (empty), or these."""
    cautions: Sequence[Caution] = ()
    """Beyond those of the plan."""
    refusal: NoPlan | None = None
    """Why the plan would not be carried out."""
    holders: Sequence[Holder] = ()
    more_holders: int = 0


def plan_view(survey: Survey, inquired: Inquired) -> Json:
    """One of `standing` and `plan` is there, or `refusal` says why not; a refused plan has both."""
    gang, answer = inquired.gang, inquired.answer
    diagnosis = diagnose(survey, gang, inquired.observed)
    standing = survey.plan_for(gang)
    refusal = answer if isinstance(answer, NoPlan) else inquired.refusal
    by_name = {each.name: each for each in inquired.candidates}
    return {
        "at": timestamp(survey.at),
        "gang": gang_view(survey, gang, inquired.observed, diagnosis),
        "whatIfIdle": list(inquired.what_if) if inquired.what_if is not None else None,
        "standing": standing_view(standing, survey.at) if standing is not None else None,
        "plan": _plan(survey, answer, inquired) if isinstance(answer, Plan) else None,
        "refusal": _refusal(refusal, gang) if refusal is not None else None,
        "alternatives": [_alternative(each, by_name) for each in _least(answer.alternatives if answer else ())],
        "candidates": [_candidate(each, inquired.assumed) for each in inquired.candidates[:_SHOWN]],
        "moreCandidates": max(0, len(inquired.candidates) - _SHOWN),
        "cautions": [{"reason": each.reason, "message": each.message} for each in _cautions(answer, inquired)],
        "holders": [_holder(each) for each in inquired.holders],
        "moreHolders": inquired.more_holders,
    }


def _cautions(answer: Plan | NoPlan | None, inquired: Inquired) -> list[Caution]:
    return [*(answer.cautions if isinstance(answer, Plan) else ()), *inquired.cautions]


# --------------------------------------------------------------------------------------------------------------- a plan


def _plan(survey: Survey, plan: Plan, inquired: Inquired) -> Json:
    return {
        "id": plan.id,
        "seeks": str(plan.seeks),
        "check": plan.check or None,
        "missing": dict(sorted(plan.missing.items())),
        "clusterQueue": plan.cluster_queue,
        "cost": _cost(plan.cost),
        "gpus": plan.gpus,
        "isExact": plan.is_exact,
        "victims": [_victim(survey, each, inquired.assumed) for each in plan.victims],
        "quota": [
            {
                "flavor": key.flavor,
                "resource": key.resource,
                "freeBefore": number(key.resource, plan.free_before[key]),
                "freed": number(key.resource, plan.free_after[key] - plan.free_before[key]),
                "freeAfter": number(key.resource, plan.free_after[key]),
                "takes": number(key.resource, amount),
            }
            for key, amount in sorted(plan.takes.items())
        ],
        "assignments": [
            {"podSet": each.name, "count": each.count, "flavors": dict(sorted(each.flavors.items()))}
            for each in plan.assignments
        ],
        "placement": _placement(plan.placement, plan.gang) if plan.placement is not None else None,
        "others": list(plan.others),
        "necessities": [
            {"victim": each.victim, "reason": str(each.why), "message": each.message} for each in plan.necessities
        ],
    }


def _cost(thousandths: int) -> float:
    return thousandths / 1000


def _victim(survey: Survey, victim: Candidate, assumed: Collection[str]) -> Json:
    since = None if victim.workload in assumed else _idle_since(survey, victim.name)
    return _candidate(victim, assumed) | {
        "costParts": {name: _cost(amount) for name, amount in victim.cost.parts},
        "idleDivisor": round(victim.cost.idle_divisor, 3),
        "idleSince": timestamp(since),
        "idleFor": format_duration(whole(survey.at - since)) if since is not None else None,
    }


def _candidate(candidate: Candidate, assumed: Collection[str]) -> Json:
    return {
        "name": candidate.name,
        "workload": candidate.workload,
        "clusterQueue": candidate.member.cluster_queue,
        "gpus": candidate.gpus,
        "cost": _cost(candidate.cost.total),
        "isAssumed": candidate.workload in assumed,
    }


def _idle_since(survey: Survey, name: str) -> datetime | None:
    if survey.evaluation is None:
        return None
    namespace, _, rest = name.partition("/")
    decisions = survey.evaluation.decisions_on(namespace, scalable_target(rest))
    return max((each.idle_since for each in decisions if each.idle_since is not None), default=None)


def _placement(placement: Placement, gang: str) -> list[Json]:
    """Pods of others, who get in before the gang, are named `namespace/name/podSet` by the planner."""
    found = []
    for seat in placement.seats:
        workload, _, pod_set = seat.pod_set.rpartition("/")
        found.append({"workload": workload or gang, "podSet": pod_set, "node": seat.node, "pods": seat.pods})
    return found


# ------------------------------------------------------------------------------------------------ what else, why not


def _least(alternatives: Sequence[Alternative]) -> list[Alternative]:
    """Without those that hold another one that does, and more besides."""
    enough = [set(each.victims) for each in alternatives if each.why_not is None]
    return [each for each in alternatives if each.why_not or not any(less < set(each.victims) for less in enough)]


def _alternative(alternative: Alternative, by_name: Mapping[str, Candidate]) -> Json:
    return {
        "victims": list(alternative.victims),
        "gpus": sum(by_name[name].gpus for name in alternative.victims if name in by_name),
        "cost": _cost(alternative.cost),
        "whyNot": str(alternative.why_not) if alternative.why_not is not None else None,
        "message": alternative.message,
    }


def _refusal(found: NoPlan, gang: Workload) -> Json:
    help_ = _HELP if gang.reservation is None else {**_HELP, **_HELP_WITH_QUOTA}
    return {
        "reason": str(found.why),
        "message": found.message,
        "help": help_[found.why],
        "isExact": found.is_exact,
    }


_HELP: Mapping[Why, str] = {
    Why.FITS_ALREADY: "Nothing: Kueue admits it by itself.",
    Why.NEVER_FITS: "More nominal quota, a higher borrowing or lending limit, a flavor that its pods may use, or a "
    "gang that asks for less.",
    Why.NOT_ENOUGH_IDLE: "That more of the workloads below become idle, or may be taken; --what-if-idle shows whom a "
    "plan would take then.",
    Why.HEAD_OF_LINE_BLOCKED: "That who stands before it is served or withdrawn, a higher priority of its own, or "
    "queueingStrategy BestEffortFIFO.",
    Why.PLACEMENT_IMPOSSIBLE: "Smaller pods, other node selectors or tolerations, or that workloads on the same nodes "
    "become idle; freeing more quota elsewhere does not help.",
    Why.BUDGET_EXHAUSTED: "To wait until the budget has room again, or a larger one (reclaim.budgets).",
    Why.WOULD_BE_TAKEN_BY_OTHER: "That those before it are served first, or a higher priority of its own.",
    Why.WOULD_PREEMPT_OTHERS: "More idle workloads, so that nobody who works has to go.",
    Why.UNPROTECTED: "queueingStrategy StrictFIFO, and a cohort whose other queues cannot have that quota (limits on "
    "lending and borrowing); or reclaim.unprotected: Warn, which takes the risk.",
    Why.QUEUE_STOPPED: "A LocalQueue and a ClusterQueue that are there and not stopped.",
    Why.UNFORESEEABLE: "Nothing here: plans are made only for what can be foreseen. Kueue goes on as ever.",
    Why.NOT_FOUND: "More steps for the search (reclaim.search), or fewer candidates.",
}

_HELP_WITH_QUOTA: Mapping[Why, str] = {
    Why.FITS_ALREADY: "Nothing: its AdmissionCheck lets it go by itself.",
    Why.NEVER_FITS: "Larger nodes, smaller pods, other node selectors or tolerations; or nodes that are provisioned "
    "(spec.provisioning of the ReclaimPolicy).",
    Why.NOT_ENOUGH_IDLE: "That more of the workloads below become idle, or may be taken; or nodes that are provisioned "
    "(spec.provisioning of the ReclaimPolicy).",
    Why.UNFORESEEABLE: "Nothing here: plans are made only for what can be foreseen. The check goes on as ever.",
}
"""For a gang that has its quota, and lacks nodes."""


def _holder(holder: Holder) -> Json:
    return {
        "workload": holder.workload.key,
        "name": holder.name or None,
        "clusterQueue": holder.workload.held.cluster_queue,
        "gpus": holder.gpus,
        "reason": holder.reason,
        "message": holder.message,
    }
