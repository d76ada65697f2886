"""What the loops report, as metrics."""

from typing import Any

import pytest
from builders import NOON, WorkloadJson, at
from loops_builders import MemoryCluster

from scaler.cli.observers import Observers
from scaler.core.gate_values import Answer, Because, State
from scaler.core.ledger import Entry, Stage
from scaler.core.reclaim import NoPlan, Why
from scaler.kube.copies import Change
from scaler.loops.backlog import Backlog
from scaler.loops.boosting import Boosts
from scaler.loops.gate import GateReport
from scaler.loops.gate_cases import Standing
from scaler.loops.pressure import Outlook
from scaler.loops.queue_names import QueueNames
from scaler.loops.quota_view import Blind
from scaler.loops.waits import Waits
from scaler.telemetry.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def values(metrics: Metrics, name: str, *of: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in of): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"idle_gpu_scaler_{name}"
    }


def entry(**times: Any) -> Entry:
    return Entry(plan="p", gang="team/gang", gpus=4, reclaimable_at=NOON, **times)


def test_the_stages_of_a_hand_over_are_timed_as_far_as_it_came(metrics: Metrics) -> None:
    observers = Observers(metrics)
    whole = entry(stage=Stage.ADMITTED, releasing_at=at(5), available_at=at(35), admitted_at=at(95))
    observers.reallocated(whole)
    observers.reallocated(entry(stage=Stage.CANCELLED, releasing_at=at(15), ended_at=at(20)))
    # Until deactivated 5 s and 15 s; then 30 s until the pods were gone, and 60 s until the gang was admitted.
    assert values(metrics, "reallocation_stage_seconds_sum", "stage") == {
        ("Suspending",): 20,
        ("Releasing",): 30,
        ("Admitting",): 60,
    }
    assert values(metrics, "reallocated_gpus_total", "outcome") == {("Admitted",): 4, ("Taken",): 0, ("Cancelled",): 4}
    assert values(metrics, "reallocation_seconds_sum") == {(): 95}
    assert values(metrics, "wasted_gpu_seconds_total") == {(): 4 * 90 + 4 * 5}


def test_a_gang_that_is_admitted_while_pods_still_end_has_taken_no_time_less_than_none(metrics: Metrics) -> None:
    late = entry(stage=Stage.ADMITTED, releasing_at=at(5), available_at=at(35), admitted_at=at(30))
    Observers(metrics).reallocated(late)
    assert values(metrics, "reallocation_stage_seconds_sum", "stage")["Admitting",] == 0


def test_gangs_that_wait_have_the_reasons_that_both_loops_report(metrics: Metrics) -> None:
    cluster, waits_for = MemoryCluster(), {"quota": WorkloadJson("quota").waiting(""), "check": WorkloadJson("check")}
    waits_for["check"].reserved()
    waits = Waits(cluster.read())
    for each in waits_for.values():
        cluster.workloads.put(each.decoded())
        waits.heard(Change(each.decoded().metadata.key, None, each.decoded()))
    observers = Observers(metrics)
    observers.backlog = Backlog(waits=waits, queues=QueueNames(quota=lambda: Blind("nobody looks")))
    observers.planned(Outlook(at=NOON, refused=(NoPlan(gang="demo/quota", why=Why.NOT_ENOUGH_IDLE, message=""),)))
    observers.gated(GateReport(at=NOON, waiting=(held("demo/check"),)))
    assert {each.reason for each in observers.backlog.take()} == {"NotEnoughIdle", "PodsEnding"}


def held(gang: str) -> Standing:
    answer = Answer(state=State.PENDING, because=Because.PODS_ENDING, message="")
    return Standing(
        key=gang,
        uid="u",
        check="c",
        reserved_at=NOON,
        answer=answer,
        verdict=None,
        progress=None,
        may_reuse=True,
    )


def test_what_keeps_plans_from_being_made_is_shown(metrics: Metrics) -> None:
    observers = Observers(metrics)
    refused = tuple(
        NoPlan(gang=f"team/{n}", why=Why.BUDGET_EXHAUSTED if budget else Why.NOT_ENOUGH_IDLE, message="", budget=budget)
        for n, budget in enumerate(("few", "night", "few", ""))
    )
    observers.planned(Outlook(at=NOON, refused=refused, reclaimable_gpus=6))
    assert values(metrics, "budget_refusals_total", "budget") == {("few",): 2, ("night",): 1}
    assert values(metrics, "reclaimable_gpus") == {(): 6}
    assert values(metrics, "planning_blind") == {(): 0}
    observers.planned(Outlook(at=NOON, blind="quota is not seen"))
    assert values(metrics, "planning_blind") == {(): 1}


def test_who_is_left_to_kueue_is_counted(metrics: Metrics) -> None:
    Observers(metrics).boosted(Boosts(at=NOON, standing=3))
    assert values(metrics, "boosted_workloads") == {(): 3}
