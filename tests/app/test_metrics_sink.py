"""What the loops report, as metrics."""

from typing import Any

import pytest
from admission.checked_workloads import pending
from builders import NOON, at
from reporting.usage.test_fleet_metrics import values

from scaler.admission.check import CheckReason
from scaler.admission.controller import AdmissionReport
from scaler.admission.plan import AdmissionPlan
from scaler.app.metrics_sink import MetricsSink
from scaler.decision.candidate import HistoryLine
from scaler.kube.objects.multikueue import WorkloadOffer
from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.worker.fit import FitAnswer
from scaler.multikueue.worker.offer_controller import OfferReport
from scaler.reclaim.controller import ReclaimReport
from scaler.reclaim.search.values import NoPlan, NoPlanReason
from scaler.reclaim.transitions import LedgerEntry, LedgerStage
from scaler.reporting.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def entry(**times: Any) -> LedgerEntry:
    return LedgerEntry(plan="p", gang="team/gang", gpus=4, reclaimable_at=NOON, **times)


def test_the_stages_of_a_hand_over_are_timed_as_far_as_it_came(metrics: Metrics) -> None:
    observers = MetricsSink(metrics)
    whole = entry(stage=LedgerStage.ADMITTED, releasing_at=at(5), available_at=at(35), admitted_at=at(95))
    observers.reallocated(whole)
    observers.reallocated(entry(stage=LedgerStage.CANCELLED, releasing_at=at(15), ended_at=at(20)))
    # Until deactivated 5 s and 15 s; then 30 s until the pods were gone, and 60 s until the gang was admitted.
    assert values(metrics, "reallocation_stage_seconds_sum", "stage") == {
        ("Suspending",): 20,
        ("Releasing",): 30,
        ("Admitting",): 60,
    }
    assert values(metrics, "reallocated_gpus_total", "outcome") == {("Admitted",): 4, ("Cancelled",): 4}
    assert values(metrics, "reallocation_seconds_sum") == {(): 95}
    assert values(metrics, "wasted_gpu_seconds_total") == {(): 4 * 90 + 4 * 5}


def test_a_gang_that_is_admitted_while_pods_still_end_has_taken_no_time_less_than_none(metrics: Metrics) -> None:
    late = entry(stage=LedgerStage.ADMITTED, releasing_at=at(5), available_at=at(35), admitted_at=at(30))
    MetricsSink(metrics).reallocated(late)
    assert values(metrics, "reallocation_stage_seconds_sum", "stage")["Admitting",] == 0


def test_both_controllers_report_reasons_of_pending_workloads(metrics: Metrics) -> None:
    sink = MetricsSink(metrics)
    sink.planned(ReclaimReport(at=NOON, refused=(NoPlan(gang="a", why=NoPlanReason.NOT_ENOUGH_IDLE, message=""),)))
    sink.checked(AdmissionReport(plan=AdmissionPlan(at=NOON, workloads=(pending("ns/b", CheckReason.PODS_ENDING),))))
    assert sink.reasons.of("a", has_quota=False) == "NotEnoughIdle"
    assert sink.reasons.of("ns/b", has_quota=True) == "PodsEnding"


def test_what_keeps_plans_from_being_made_is_shown(metrics: Metrics) -> None:
    observers = MetricsSink(metrics)
    refused = tuple(
        NoPlan(
            gang=f"team/{n}",
            why=NoPlanReason.BUDGET_EXHAUSTED if budget else NoPlanReason.NOT_ENOUGH_IDLE,
            message="",
            budget=budget,
        )
        for n, budget in enumerate(("few", "night", "few", ""))
    )
    observers.planned(ReclaimReport(at=NOON, refused=refused, reclaimable_gpus=6))
    assert values(metrics, "budget_refusals_total", "budget") == {("few",): 2, ("night",): 1}
    assert values(metrics, "reclaimable_gpus") == {(): 6}
    assert values(metrics, "planning_blind") == {(): 0}
    observers.planned(ReclaimReport(at=NOON, blind="quota is not seen"))
    assert values(metrics, "planning_blind") == {(): 1}


def test_the_time_from_the_request_until_a_workload_runs_is_counted_by_what_asked_for_it(metrics: Metrics) -> None:
    observers = MetricsSink(metrics)
    lines = [
        HistoryLine(at=NOON, state="Suspended"),
        HistoryLine(at=at(60), state="Waking", cause="WhenFree"),
        HistoryLine(at=at(150), state="Busy"),
    ]
    for number in range(1, len(lines) + 1):
        observers.entered(lines[:number])
    assert values(metrics, "wake_seconds_sum", "cause") == {("WhenFree",): 90}
    assert values(metrics, "workload_transitions_total", "before", "entered") == {
        ("", "Suspended"): 1,
        ("Suspended", "Waking"): 1,
        ("Waking", "Busy"): 1,
    }


def test_what_a_worker_says_is_counted_by_what_it_is(metrics: Metrics) -> None:
    sink = MetricsSink(metrics)
    fits = [FitAnswer(fit=each, message="") for each in (Fit.FREE, Fit.FREE, Fit.WAIT)]
    judged = [WorkloadOffer(namespace="team", name="gang", uid="u", verdict="Idle")]
    sink.offered(OfferReport(at=NOON, written=1, fits=fits, verdicts=judged))
    assert values(metrics, "offered_workloads", "fit") == {("Free",): 2, ("Wait",): 1}
    assert values(metrics, "judged_workloads", "verdict") == {("Idle",): 1}
    assert values(metrics, "offer_answered_timestamp_seconds") == {(): NOON.timestamp()}
    sink.offered(OfferReport(at=at(60), unknown="quota is not known"))
    assert values(metrics, "offer_unknown") == {(): 1}
    assert values(metrics, "offered_workloads", "fit") == {}
    assert values(metrics, "offer_answered_timestamp_seconds") == {(): NOON.timestamp()}
