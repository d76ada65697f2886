"""What is stated about the cluster as metrics: bounded, priced, and shown by whoever is to report alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import BUSY, IDLE, INACTIVE, NOON, at, decision, minutes, verdict
from hypothesis import given
from hypothesis import strategies as st

from scaler.app.settings.model import MetricsSettings
from scaler.decision.decision import Active
from scaler.idleness.reasons import DecisionReason
from scaler.reporting.metrics import Metrics
from scaler.reporting.pending_workloads import AdmittedWorkload, PendingFor, PendingWorkload
from scaler.reporting.usage.budget_headroom import BudgetHeadroom, BudgetLimitKind, LimitHeadroom
from scaler.reporting.usage.fleet_metrics import OTHERS, BoundedNames, FleetMetrics
from scaler.reporting.usage.fleet_snapshot import FleetSnapshot
from scaler.reporting.usage.gpu_states import GpuState, GpuStatus
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner, TargetLabels, TargetUsage
from scaler.reporting.usage.suspensions import QuotaTransfer, Restarted, Resumed, Suspended

A100, L4 = "NVIDIA-A100", "NVIDIA-L4"
HELD = GpuStatus(GpuState.HELD_IDLE, "Kept")


class Board:
    """Metrics and who fills them."""

    def __init__(self, **settings: Any) -> None:
        self.metrics = Metrics()
        self.is_reporting = True
        setting = MetricsSettings.model_validate(settings)
        self.fleet = FleetMetrics(self.metrics, setting, is_reporting=lambda: self.is_reporting)

    def values(self, name: str, *of: str) -> dict[tuple[str, ...], float]:
        """All samples of that name, by the values of these labels."""
        return {
            tuple(sample.labels[label] for label in of): sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"idle_gpu_scaler_{name}"
        }

    def value(self, name: str) -> float:
        [value] = self.values(name).values()
        return value


def snapshot_of(
    gpus: Mapping[tuple[GpuOwner, GpuStatus], int] | None = None,
    *,
    workloads: Sequence[TargetUsage] = (),
    nodes: Mapping[str, Counter[GpuStatus]] | None = None,
    elapsed: float = 0,
    **more: Any,
) -> FleetSnapshot:
    usage = FleetUsage(at=NOON, gpus=Counter(gpus or {}), nodes=dict(nodes or {}), workloads=[*workloads])
    usage.coverage = {"gpu_util": 0.5}
    nothing: dict[str, Any] = {
        "suspended": {},
        "given": (),
        "pending": (),
        "budgets": (),
        "node_gpus": {},
        "open_requests": {},
    }
    return FleetSnapshot(at=NOON, elapsed=timedelta(seconds=elapsed), usage=usage, **{**nothing, **more})


def place(namespace: str = "team-a", model: str = A100) -> GpuOwner:
    return GpuOwner(namespace, "cq", model)


# ------------------------------------------------------------------------------------------------------ GPUs and money


def test_gpus_are_shown_and_their_time_is_counted() -> None:
    board = Board()
    gpus = {(place(), HELD): 3, (place(), GpuStatus(GpuState.BUSY)): 2}
    board.fleet.show(snapshot_of(gpus))
    board.fleet.show(snapshot_of(gpus, elapsed=30))
    assert board.values("gpus", "workload_namespace", "state", "reason") == {
        ("team-a", "HeldIdle", "Kept"): 3,
        ("team-a", "Busy", ""): 2,
    }
    assert board.values("gpu_seconds_total", "state") == {("HeldIdle",): 90, ("Busy",): 60}


def test_idle_time_costs_its_models_price() -> None:
    board = Board(prices={"NVIDIA-A100*": 3.6}, currency="EUR")
    gpus = {
        (place(), HELD): 4,
        (place(), GpuStatus(GpuState.IDLE, "GPUsIdle")): 1,
        (place(), GpuStatus(GpuState.BUSY)): 8,
        (place(), GpuStatus(GpuState.UNKNOWN, "StaleSamples")): 8,
        (place(model=L4), HELD): 2,
    }
    board.fleet.show(snapshot_of(gpus, elapsed=100))
    # (4 + 1) GPUs × 100 s × 3.6 / 3600 s
    assert board.values("idle_cost_total", "workload_namespace", "model", "currency") == {
        ("team-a", A100, "EUR"): pytest.approx(0.5)
    }
    assert board.values("unpriced_idle_gpu_seconds_total", "model") == {(L4,): 200}
    assert board.values("gpu_hour_price", "model", "currency") == {(A100, "EUR"): 3.6}


def test_without_prices_nothing_is_said_about_money() -> None:
    board = Board()
    board.fleet.show(snapshot_of({(place(), HELD): 4}, elapsed=100))
    for name in ("idle_cost_total", "unpriced_idle_gpu_seconds_total", "gpu_hour_price"):
        assert board.values(name) == {}


def test_namespaces_beyond_the_limit_are_shown_together_and_counted() -> None:
    board = Board(namespaces=1)
    gpus = {(place(name), HELD): n for n, name in enumerate(("first", "second", "third"), start=1)}
    board.fleet.show(snapshot_of(gpus, elapsed=10, suspended={("fourth", "cq"): 8, ("second", "cq"): 2}))
    assert board.values("gpus", "workload_namespace") == {("first",): 1, ("(others)",): 5}
    assert board.values("gpu_seconds_total", "workload_namespace") == {("first",): 10, ("(others)",): 50}
    assert board.values("suspended_gpus", "workload_namespace") == {("(others)",): 10}
    assert board.value("folded_namespaces") == 3


def test_nodes_of_which_gpus_cannot_be_judged_are_named_the_worst_first() -> None:
    board = Board(nodes=1)
    silent, stale = GpuStatus(GpuState.WITHOUT_METRICS, "NoSamples"), GpuStatus(GpuState.UNKNOWN, "StaleSamples")
    nodes = {
        "good": Counter({GpuStatus(GpuState.BUSY): 8}),
        "bad": Counter({stale: 1, GpuStatus(GpuState.BUSY): 7}),
        "worst": Counter({silent: 8}),
    }
    board.fleet.show(snapshot_of(nodes=nodes))
    assert board.values("gpu_nodes", "state") == {("Trusted",): 1, ("Distrusted",): 1, ("Silent",): 1}
    assert board.values("distrusted_gpus", "gpu_node", "reason") == {("worst", "NoSamples"): 8}
    assert board.value("hidden_nodes") == 1
    assert board.values("signal_coverage_ratio", "signal") == {("gpu_util",): 0.5}


# ----------------------------------------------------------------------------------------------------- single workloads


def workload(name: str, *, idle: timedelta | None = None) -> TargetUsage:
    made = decision(INACTIVE, idle_since=NOON - idle) if idle else decision(verdict=verdict(BUSY))
    title = TargetLabels("team-a", "cq", "ScalableWorkload", name)
    return TargetUsage(title=title, decision=made, states={GpuState.IDLE: 2}, peaks={"gpu_util": 0.5})


def test_those_that_are_idle_longest_are_shown_and_the_others_counted() -> None:
    board = Board(workloads=2)
    all_of_them = [workload("busy"), workload("short", idle=minutes(40)), workload("long", idle=minutes(90))]
    board.fleet.show(snapshot_of(workloads=[*all_of_them, workload("shorter", idle=minutes(35))]))
    assert board.values("workload_idle_seconds", "name") == {("long",): 5400, ("short",): 2400}
    hidden = board.values("hidden_workloads", "verdict")
    assert hidden == {("Idle",): 1, ("Busy",): 1, ("Unknown",): 0, ("",): 0}
    for name in ("workload_gpus", "workload_answer", "workload_peak_ratio", "workload_idle_after_seconds"):
        assert board.values(name, "name").keys() == {("long",), ("short",)}, name


def test_a_limit_of_none_names_nobody() -> None:
    board = Board(workloads=0)
    board.fleet.show(snapshot_of(workloads=[workload("busy")]))
    assert not [
        each
        for each in board.metrics.declared
        if "workload_" in each.name
        and "name" in each.labels
        and board.values(each.name.removeprefix("idle_gpu_scaler_"))
    ]


def test_a_workload_shows_its_thresholds_beside_its_signals() -> None:
    board = Board()
    board.fleet.show(snapshot_of(workloads=[workload("a", idle=minutes(40))]))
    assert board.values("workload_answer", "cluster_queue", "answer", "reason") == {("cq", "inactive", "GPUsIdle"): 1}
    assert board.value("workload_idle_after_seconds") == 1800
    assert board.value("workload_active_above_ratio") == 0.01
    assert board.value("workload_desired_replicas") == 1
    assert board.values("workload_peak_ratio", "signal") == {("gpu_util",): 0.5}


def test_when_a_workload_is_going_to_be_suspended_is_shown_where_it_is_foreseeable() -> None:
    board = Board()
    soon = decision(
        Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message=""),
        verdict=verdict(IDLE),
        idle_since=NOON - minutes(20),
    )
    board.fleet.show(snapshot_of(workloads=[replace(workload("soon"), decision=soon), workload("busy")]))
    in_ten_minutes = (NOON + minutes(10)).timestamp()  # idleAfter is 30
    assert board.values("workload_suspend_timestamp_seconds", "name") == {("soon",): in_ten_minutes}


# ------------------------------------------------------------------------------------------------ suspended and given

TRANSFER = QuotaTransfer("team-a", "team-b", "cq-b", 4)


def suspended(reason: str = "GPUsIdle") -> Suspended:
    return Suspended(namespace="team-a", reason=reason, gpus=4, idle_for=minutes(30))


def resumed(after: timedelta | None, reason: str = "GPUsIdle") -> Resumed:
    return Resumed(namespace="team-a", reason=reason, after=after)


def test_what_was_given_up_and_who_got_it_is_counted() -> None:
    board = Board()
    board.fleet.happened(suspended())
    board.fleet.happened(TRANSFER)
    board.fleet.show(snapshot_of(elapsed=10, suspended={("team-a", "cq"): 4}, given=(TRANSFER,)))
    assert board.values("suspensions_total", "workload_namespace", "reason") == {("team-a", "GPUsIdle"): 1}
    assert board.values("reclaimed_gpus_total", "workload_namespace", "reason") == {("team-a", "GPUsIdle"): 4}
    assert board.value("idle_to_suspended_seconds_sum") == 1800
    transfer = ("from_namespace", "workload_namespace", "cluster_queue")
    assert board.values("given_gpus_total", *transfer) == {("team-a", "team-b", "cq-b"): 4}
    assert board.values("given_gpu_seconds_total", *transfer) == {("team-a", "team-b", "cq-b"): 40}
    assert board.value("suspended_gpus") == 4
    assert board.value("reclaimed_gpu_seconds_total") == 40


def test_what_evaluations_show_to_have_happened_counts_too() -> None:
    board = Board()
    board.fleet.show(snapshot_of(happened=(suspended("ScaledToZero"),)))
    assert board.values("suspensions_total", "reason") == {("ScaledToZero",): 1}
    assert board.values("idle_suspensions_total") == {(): 0}, "nobody had found it idle"


def test_what_alerts_count_is_there_before_it_happens_whosever_it_is() -> None:
    """`increase` never sees what a series begins with."""
    board = Board(regretWithin="5m")
    names = ("idle_suspensions_total", "regretted_suspensions_total", "provisioning_failures_total")
    assert [board.values(name) for name in names] == [{(): 0}] * 3
    for event in (suspended(), suspended("Reclaimed"), suspended("ScaledToZero"), resumed(minutes(1))):
        board.fleet.happened(event)
    assert [board.values(name) for name in names] == [{(): 2}, {(): 1}, {(): 0}]


def test_a_workload_that_is_paused_says_so() -> None:
    board = Board()
    usage = [replace(workload("a"), is_paused=True), workload("b")]
    board.fleet.show(snapshot_of(workloads=usage))
    assert board.values("workload_paused", "name") == {("a",): 1}


@pytest.mark.parametrize(
    ("event", "regrets"),
    [
        pytest.param(resumed(minutes(5)), 1, id="within the 5 minutes that are set"),
        pytest.param(resumed(minutes(5.1)), 0, id="later"),
        pytest.param(resumed(minutes(1), "ScaledToZero"), 0, id="nobody had found it idle"),
        pytest.param(resumed(None), 0, id="nobody knows when it was suspended"),
    ],
)
def test_a_suspension_is_regretted_when_it_is_taken_back_too_soon(event: Resumed, regrets: int) -> None:
    board = Board(regretWithin="5m")
    board.fleet.happened(event)
    assert sum(board.values("regrets_total", "workload_namespace", "reason").values()) == regrets
    assert board.values("resumptions_total", "workload_namespace") == {("team-a",): 1}
    assert board.value("regret_window_seconds") == 300


def test_a_return_is_measured() -> None:
    board = Board()
    board.fleet.happened(Restarted(after=timedelta(seconds=90)))
    assert (board.value("resumed_to_running_seconds_count"), board.value("resumed_to_running_seconds_sum")) == (1, 90)


# ----------------------------------------------------------------------------------------------------- gangs, budgets


ADMITTED = AdmittedWorkload(cluster_queue="cq", waited=minutes(5))


def test_how_long_a_workload_waited_counts_when_it_is_admitted() -> None:
    board = Board()
    board.fleet.admitted(ADMITTED)
    assert board.values("admission_wait_seconds_sum", "cluster_queue") == {("cq",): 300}
    assert board.values("admission_wait_seconds_count", "cluster_queue") == {("cq",): 1}


def test_gangs_that_wait_are_summed_up_by_where_and_why() -> None:
    board = Board()
    waits = PendingWorkload(
        key="team/gang", cluster_queue="cq", stage=PendingFor.QUOTA, reason="NotEnoughIdle", gpus=8, since=at(-600)
    )
    other = PendingWorkload(
        key="team/gang", cluster_queue="cq", stage=PendingFor.QUOTA, reason="NotEnoughIdle", gpus=4, since=at(-60)
    )
    held = PendingWorkload(
        key="team/gang", cluster_queue="cq", stage=PendingFor.CHECKS, reason="PodsEnding", gpus=2, since=at(-30)
    )
    board.fleet.show(snapshot_of(pending=(waits, other, held)))
    where = ("cluster_queue", "stage", "reason")
    assert board.values("pending_gangs", *where) == {
        ("cq", "Quota", "NotEnoughIdle"): 2,
        ("cq", "AdmissionCheck", "PodsEnding"): 1,
    }
    assert board.values("pending_gpus", "stage") == {("Quota",): 12, ("AdmissionCheck",): 2}
    assert board.values("longest_pending_seconds", "cluster_queue") == {("cq",): 600}


def test_budgets_show_what_is_left_and_whether_they_are_open() -> None:
    board = Board()
    few = BudgetHeadroom(
        budget="few", is_open=True, rooms=(LimitHeadroom(kind=BudgetLimitKind.AT_ONCE, most=3, used=1),)
    )
    board.fleet.show(snapshot_of(budgets=(few, BudgetHeadroom(budget="nights", is_open=False))))
    assert board.values("budget_headroom_workloads", "budget", "limit") == {("few", "AtOnce"): 2}
    assert board.values("budget_used_workloads", "budget") == {("few",): 1}
    assert board.values("budget_limit_workloads", "budget") == {("few",): 3}
    assert board.values("budget_open", "budget") == {("few",): 1, ("nights",): 0}
    assert board.values("budget_refusals_total", "budget") == {("few",): 0, ("nights",): 0}


# ------------------------------------------------------------------------------------------------------ who reports


def test_who_does_not_report_counts_nothing() -> None:
    board = Board()
    board.is_reporting = False
    for event in (suspended(), resumed(minutes(1)), Restarted(after=minutes(1)), TRANSFER):
        board.fleet.happened(event)
    board.fleet.admitted(ADMITTED)
    shown = [each.name.removeprefix("idle_gpu_scaler_") for each in board.metrics.declared if each.shown == "leader"]
    for name in shown:
        assert not any(board.values(name).values()), name


def test_whose_turn_has_passed_leaves_no_gauge_standing_and_every_counter() -> None:
    board = Board()
    waits = PendingWorkload(
        key="team/gang", cluster_queue="cq", stage=PendingFor.QUOTA, reason="NotEnoughIdle", gpus=8, since=at(-600)
    )
    gpus = {(place(), HELD): 3}
    whole = snapshot_of(gpus, workloads=[workload("a")], pending=(waits,), elapsed=10, node_gpus={A100: 8})
    whole.usage.paused_scaled_objects = 1
    board.fleet.show(whole)
    assert board.value("paused_scaled_objects") == 1
    board.fleet.clear()
    gauges = [each for each in board.metrics.declared if each.shown == "leader" and each.type == "gauge"]
    for each in gauges:
        assert not any(board.values(each.name.removeprefix("idle_gpu_scaler_")).values()), each.name
    assert board.values("gpu_seconds_total", "state") == {("HeldIdle",): 30}


# -------------------------------------------------------------------------------------------------------- bounded names


def test_the_first_names_keep_their_place() -> None:
    names = BoundedNames(2)
    assert [names.of(each) for each in ("a", "b", "c", "a", "d", "c")] == ["a", "b", OTHERS, "a", OTHERS, OTHERS]
    assert names.folded == 2


def test_those_without_a_place_are_not_counted_for_ever() -> None:
    names = BoundedNames(2)
    for number in range(50):
        names.of(f"name-{number}")
    assert names.folded == 20


def test_no_name_needs_no_place() -> None:
    names = BoundedNames(1)
    assert [names.of(""), names.of("a"), names.of("")] == ["", "a", ""]


@given(st.lists(st.text(max_size=3)), st.integers(1, 4))
def test_there_are_never_more_than_the_limit_and_others(given_names: list[str], limit: int) -> None:
    names = BoundedNames(limit)
    shown = [names.of(each) for each in given_names]
    assert len({each for each in shown if each} - {OTHERS}) <= limit
    assert all(got in (asked, OTHERS) for asked, got in zip(given_names, shown, strict=True))
