"""Which cluster has not admitted a Workload although it fits by the cluster's own answer?"""

from dataclasses import replace

import pytest
from builders import NOON, minutes
from multikueue.hub.dispatch.dispatch_builders import PATIENCE, answer, nominated, ranking

from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.kueue_workloads import Workload
from scaler.multikueue.hub.dispatch.candidates import ClusterAnswer
from scaler.multikueue.hub.dispatch.nomination import NominationState, next_step
from scaler.multikueue.hub.dispatch.plan import WorkloadDispatch
from scaler.multikueue.hub.dispatch.waiting import WaitingWorkload

LATE = nominated("a", ago=PATIENCE)
CASES: dict[str, tuple[NominationState, dict[str, str | ClusterAnswer], str]] = {
    "it fits there, and another is next": (LATE, {"a": "Free", "b": "Wait"}, "a"),
    "it would fit after a plan, and another is next": (LATE, {"a": "Reclaim", "b": "Wait"}, "a"),
    "there is no other": (LATE, {"a": "Free"}, "a"),
    "only another one has room": (LATE, {"a": "Wait", "b": "Free"}, ""),
    "none has room": (LATE, {"a": "Wait", "b": "Wait"}, ""),
    "its answer is not known": (LATE, {"a": "Unknown", "b": "Wait"}, ""),
    "its room was given to another Workload since": (LATE, {"a": answer("Free", is_given_away=True), "b": "Wait"}, ""),
    "it is no candidate any more": (LATE, {"a": "Never", "b": "Free"}, ""),
    "the patience is not over": (nominated("a", ago=PATIENCE - minutes(1)), {"a": "Free", "b": "Wait"}, ""),
    "workers are not asked now": (nominated("a", ago=PATIENCE, is_asked=False), {"a": "Free", "b": "Wait"}, ""),
    "the Workload is inactive": (replace(LATE, is_active=False, nominated_at={}), {"a": "Free", "b": "Wait"}, ""),
    "it is nominated for the first time now": (NominationState(), {"a": "Free", "b": "Wait"}, ""),
}


@pytest.mark.parametrize(("state", "answers", "expected"), CASES.values(), ids=CASES)
def test_a_cluster_has_not_admitted_what_fits_by_its_own_answer(
    state: NominationState, answers: dict[str, str | ClusterAnswer], expected: str
) -> None:
    ranked = ranking(state, **answers)
    found = WorkloadDispatch(
        waiting=WaitingWorkload(workload=Workload(metadata=ObjectMeta(name="gang")), config="gpus"),
        state=state,
        ranking=ranked,
        step=next_step(state, ranked, NOON, patience=PATIENCE),
    )
    assert found.not_admitted_by == expected
