"""Which Workloads of other queues are certain to be admitted before the gang: none is counted that is not."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from quota_builders import NOW, cluster_queue, cohort, holding, preempting, quota, workload
from reclaim.search.search_inputs import PLENTY, Judge
from reclaim_builders import candidate, planning_tree

from scaler.quota.model import PreemptionPolicy, QuotaWorkload
from scaler.reclaim.search.context import SearchContext
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import PlanRequest, ReclaimPlan

LONG_AGO, LATELY = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
# queue by queue: the first letter is that of the queue
IDLE = {"b1": 4, "c1": 4, "d1": 2, "e1": 4}
COSTS = {"a1": 1, "b1": 9, "c1": 3, "d1": 1, "e1": 8}


def asked(
    earlier: QuotaWorkload | None = None,
    *,
    queues: dict[str, dict[str, Any]] | None = None,
    a_is_idle: bool = False,
    evicted: int = 0,
    **more: Any,
) -> PlanRequest:
    """A gang of 4 in queue a, which is full; an earlier Workload of 4 in queue b; idle ones in all other queues."""
    given: dict[str, dict[str, Any]] = {"a": {"gpus": 4}} | {name[0]: {"gpus": gpus} for name, gpus in IDLE.items()}
    given = {name: fields | (queues or {}).get(name, {}) for name, fields in given.items()}
    holders = {"a1": holding("a1", gpus=4, queue="a")}
    holders |= {name: holding(name, gpus=gpus, queue=name[0]) for name, gpus in IDLE.items()}
    if evicted:  # it returns to the head of b's line when its eviction has ended
        holders["z"] = holding("z", gpus=evicted, queue="b", evicted=True, priority=5)
    gang = workload(gpus=4, queued_at=LATELY)
    waiting = earlier or workload("w", gpus=4, queue="b", queued_at=LONG_AGO)
    idle = [each for name, each in holders.items() if name in IDLE or (name == "a1" and a_is_idle)]
    return PlanRequest(
        gang=gang,
        planning_tree=planning_tree(
            [cluster_queue(name, **{"cohort": "co"} | fields) for name, fields in given.items()],
            [gang, waiting, *holders.values()],
            cohorts=[cohort("co")],
            of="a",
            **more,
        ),
        candidates=tuple(candidate(each, cost=COSTS[each.name]) for each in idle),
        limits=PLENTY,
    )


def earlier_in(request: PlanRequest) -> list[str]:
    """Names of those that are counted, after it was made sure that the plan is the cheapest of all."""
    found = plan_reclaim(request)
    assert isinstance(found, ReclaimPlan)
    assert (found.cost, found.is_exact) == (Judge(request).least_cost(), True)
    return [each.name for each in SearchContext(request).in_cohort.earlier]


def test_enough_is_freed_for_an_earlier_workload_of_another_queue_too() -> None:
    request = asked()
    assert earlier_in(request) == ["w"]
    found = plan_reclaim(request)
    assert isinstance(found, ReclaimPlan)
    assert sum(each.gpus for each in found.victims) >= 4 + 4
    assert "without it what is freed would go to team/w first" in found.necessities[0].message


def test_one_that_needs_less_takes_less() -> None:
    request = asked(workload("w", gpus=2, queue="b", queued_at=LONG_AGO))
    assert earlier_in(request) == ["w"]
    assert SearchContext(request).in_cohort.needs == dict.fromkeys(SearchContext(request).count.keys, 6)


W = workload("w", gpus=4, queue="b", queued_at=LONG_AGO)
NOT_COUNTED = {
    "it has not waited longer": asked(replace(W, queued_at=NOW)),
    "it has a lower priority": asked(replace(W, priority=-1)),
    "it is not in line": asked(replace(W, may_queue=False)),
    "it needs more than the gang": asked(workload("w", gpus=5, queue="b", queued_at=LONG_AGO)),
    "its queue may not borrow so much": asked(queues={"b": {"gpus": quota(4, borrowing=3)}}),
    "its queue keeps quota for itself": asked(queues={"b": {"gpus": quota(4, lending=1)}}),
    "the gang's queue keeps quota for itself": asked(queues={"a": {"gpus": quota(6, lending=0)}}),
    "the gang may get by without borrowing": asked(a_is_idle=True),
    "its queue is of another cohort": asked(queues={"b": {"cohort": ""}}),
    "quota is shared fairly": asked(fair_sharing=True),
    "an eviction has yet to end": asked(evicted=20, queues={"b": {"gpus": 0}}),
    "Kueue may preempt": asked(queues={"c": {"preemption": preempting(within=PreemptionPolicy.LOWER_PRIORITY)}}),
}


@pytest.mark.parametrize("request_", NOT_COUNTED.values(), ids=NOT_COUNTED)
def test_what_is_not_certain_is_not_counted(request_: PlanRequest) -> None:
    assert earlier_in(request_) == []
