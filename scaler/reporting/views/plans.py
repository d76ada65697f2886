"""What would be suspended for a gang, at what cost, and the alternatives; or why no plan is found. As JSON. Pure.

Costs are in the units of `reclaim/costs.py`, amounts in the resource's own unit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scaler.decision.describe import timestamp
from scaler.idleness.durations import format_duration
from scaler.kube.objects.keda import scalable_workload_ref
from scaler.kube.objects.kueue_workloads import Workload as KueueWorkload
from scaler.kube.objects.quantity import as_number
from scaler.placement.fit import Placement
from scaler.quota.model import QuotaWorkload
from scaler.reclaim.search.values import Alternative, Candidate, NoPlan, NoPlanReason, PlanWarning, ReclaimPlan
from scaler.reporting.views import Json
from scaler.reporting.views.active_plan import active_plan_view
from scaler.reporting.views.pending import gang_view, whole
from scaler.reporting.views.snapshot import ViewSnapshot
from scaler.reporting.waiting_reasons import diagnose

_SHOWN = 50
"""Candidates that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    gang: QuotaWorkload
    observed: KueueWorkload | None
    answer: ReclaimPlan | NoPlan | None = None
    """What the planner answers; None where a plan is active already."""
    candidates: Sequence[Candidate] = ()
    assumed: Collection[str] = frozenset()
    """Keys of the Workloads among them that are only taken to be idle."""
    what_if: Sequence[str] | None = None
    """Which workloads were assumed to be idle: none (None), all (empty), or these."""
    cautions: Sequence[PlanWarning] = ()
    """Beyond those of the plan."""
    refusal: NoPlan | None = None
    """Why the plan would not be carried out."""
    holders: Sequence[Mapping[str, Any]] = ()
    more_holders: int = 0


def plan_view(snapshot: ViewSnapshot, report: PlanReport) -> Json:
    """One of `active` and `plan` is there, or `refusal` says why not; a refused plan has both."""
    gang, answer = report.gang, report.answer
    diagnosis = diagnose(snapshot, gang, report.observed)
    active = snapshot.plan_for(gang)
    refusal = answer if isinstance(answer, NoPlan) else report.refusal
    cautions = [*(answer.cautions if isinstance(answer, ReclaimPlan) else ()), *report.cautions]
    by_name = {each.name: each for each in report.candidates}
    return {
        "at": timestamp(snapshot.at),
        "gang": gang_view(snapshot, gang, report.observed, diagnosis),
        "whatIfIdle": list(report.what_if) if report.what_if is not None else None,
        "active": active_plan_view(active, snapshot.at) if active is not None else None,
        "plan": _plan(snapshot, answer, report) if isinstance(answer, ReclaimPlan) else None,
        "refusal": _refusal(refusal, gang) if refusal is not None else None,
        "alternatives": [_alternative(each, by_name) for each in _least(answer.alternatives if answer else ())],
        "candidates": [_candidate(each, report.assumed) for each in report.candidates[:_SHOWN]],
        "moreCandidates": max(0, len(report.candidates) - _SHOWN),
        "cautions": [{"reason": each.reason, "message": each.message} for each in cautions],
        "holders": list(report.holders),
        "moreHolders": report.more_holders,
    }


# --------------------------------------------------------------------------------------------------------------- a plan


def _plan(snapshot: ViewSnapshot, plan: ReclaimPlan, report: PlanReport) -> Json:
    return {
        "id": plan.id,
        "seeks": str(plan.seeks),
        "check": plan.check or None,
        "missing": dict(sorted(plan.missing.items())),
        "clusterQueue": plan.cluster_queue,
        "cost": _cost(plan.cost),
        "gpus": plan.gpus,
        "isExact": plan.is_exact,
        "victims": [_victim(snapshot, each, report.assumed) for each in plan.victims],
        "quota": [
            {
                "flavor": key.flavor,
                "resource": key.resource,
                "freeBefore": as_number(key.resource, plan.free_before[key]),
                "freed": as_number(key.resource, plan.free_after[key] - plan.free_before[key]),
                "freeAfter": as_number(key.resource, plan.free_after[key]),
                "takes": as_number(key.resource, amount),
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


def _victim(snapshot: ViewSnapshot, victim: Candidate, assumed: Collection[str]) -> Json:
    since, at_least = (None, False) if victim.workload in assumed else _idle_since(snapshot, victim.name)
    return _candidate(victim, assumed) | {
        "costParts": {name: _cost(amount) for name, amount in victim.cost.parts},
        "idleDivisor": round(victim.cost.idle_divisor, 3),
        "idleSince": timestamp(since),
        "idleAtLeast": at_least,
        "idleFor": format_duration(whole(snapshot.at - since)) if since is not None else None,
        "savedAt": timestamp(victim.saved_at),
    }


def _candidate(candidate: Candidate, assumed: Collection[str]) -> Json:
    return {
        "name": candidate.name,
        "workload": candidate.workload,
        "clusterQueue": candidate.cluster_queue,
        "gpus": candidate.gpus,
        "cost": _cost(candidate.cost.total),
        "isAssumed": candidate.workload in assumed,
    }


def _idle_since(snapshot: ViewSnapshot, name: str) -> tuple[datetime | None, bool]:
    """The instant since when it is idle, and whether that is a bound."""
    if snapshot.evaluation is None:
        return None, False
    namespace, _, rest = name.partition("/")
    decisions = snapshot.evaluation.decisions_on(namespace, scalable_workload_ref(rest))
    known = ((each.idle_since, each.idle_at_least) for each in decisions if each.idle_since is not None)
    return max(known, default=(None, False))


def _placement(placement: Placement, gang: str) -> list[Json]:
    """Pods of other Workloads, which are admitted before the gang, are named `namespace/name/podSet` by the planner."""
    found = []
    for each in placement.placements:
        workload, _, pod_set = each.pod_set.rpartition("/")
        found.append({"workload": workload or gang, "podSet": pod_set, "node": each.node, "pods": each.pods})
    return found


# ------------------------------------------------------------------------------------------------ what else, why not


def _least(alternatives: Sequence[Alternative]) -> list[Alternative]:
    """Alternatives without those that hold another one that does, and more besides."""
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


def _refusal(found: NoPlan, gang: QuotaWorkload) -> Json:
    help_ = _HELP if gang.reservation is None else {**_HELP, **_HELP_WITH_QUOTA}
    return {
        "reason": str(found.why),
        "message": found.message,
        "help": help_[found.why],
        "isExact": found.is_exact,
    }


_HELP: Mapping[NoPlanReason, str] = {
    NoPlanReason.FITS_ALREADY: "Nothing: Kueue admits it by itself.",
    NoPlanReason.NEVER_FITS: "More nominal quota, a higher borrowing or lending limit, a flavor that its pods may "
    "use, or a gang that asks for less.",
    NoPlanReason.NOT_ENOUGH_IDLE: "That more of the workloads below become idle, or may be taken; --what-if-idle "
    "shows whom a plan would take then.",
    NoPlanReason.HEAD_OF_LINE_BLOCKED: "That the Workload before it is admitted or withdrawn, a higher priority of its "
    "own, or queueingStrategy BestEffortFIFO.",
    NoPlanReason.PLACEMENT_IMPOSSIBLE: "Smaller pods, other node selectors or tolerations, or that workloads on the "
    "same nodes become idle; freeing more quota elsewhere does not help.",
    NoPlanReason.BUDGET_EXHAUSTED: "To wait until the budget allows more again, or a larger one (policy or trigger).",
    NoPlanReason.WOULD_BE_TAKEN_BY_OTHER: "That the Workloads before it are admitted first, or a higher priority of "
    "its own.",
    NoPlanReason.WOULD_PREEMPT_OTHERS: "More idle workloads, so that no busy one is preempted.",
    NoPlanReason.UNPROTECTED: "queueingStrategy StrictFIFO, and a cohort whose other queues cannot have that quota "
    "(limits on lending and borrowing); or reclaim.unprotected: Warn, which takes the risk.",
    NoPlanReason.QUEUE_STOPPED: "A LocalQueue and a ClusterQueue that are there and not stopped.",
    NoPlanReason.UNFORESEEABLE: "Nothing here: plans are made only for what can be foreseen. Kueue goes on as ever.",
    NoPlanReason.REMOTE_COPY: "That the hub of MultiKueue nominates this cluster for it; or, where it has no other "
    "worker, multiKueue.planOnWorkers: Always here.",
    NoPlanReason.NOT_FOUND: "More steps for the search (reclaim.search), or fewer candidates.",
}

_HELP_WITH_QUOTA: Mapping[NoPlanReason, str] = {
    NoPlanReason.FITS_ALREADY: "Nothing: its AdmissionCheck becomes Ready by itself.",
    NoPlanReason.NEVER_FITS: "Larger nodes, smaller pods, other node selectors or tolerations; or nodes that are "
    "provisioned (spec.provisioning of the ReclaimPolicy).",
    NoPlanReason.NOT_ENOUGH_IDLE: "That more of the workloads below become idle, or may be taken; or nodes that are "
    "provisioned (spec.provisioning of the ReclaimPolicy).",
    NoPlanReason.UNFORESEEABLE: "Nothing here: plans are made only for what can be foreseen. The check goes on "
    "as ever.",
}
"""What is said of a gang that has its quota, and lacks nodes."""
