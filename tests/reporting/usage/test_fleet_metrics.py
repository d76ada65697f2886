"""What is shown about the cluster as metrics: bounded, priced, and by the one replica that reports."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import BUSY, IDLE, INACTIVE, NOON, at, decision, minutes, verdict

from scaler.app.settings.model import MetricsSettings
from scaler.decision.decision import Active
from scaler.decision.reasons import CandidateState, DecisionReason
from scaler.idleness.policy import Limit
from scaler.reclaim.budget import Budget, BudgetedWorkload, Spending, Suspension
from scaler.reporting.metrics import Metrics
from scaler.reporting.pending_workloads import PendingFor, PendingWorkload
from scaler.reporting.usage.fleet_metrics import OTHERS, BoundedNames, FleetMetrics, QuotaTransfer
from scaler.reporting.usage.gpu_states import GpuState, GpuStatus
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner, TargetLabels, TargetUsage

A100, L4 = "NVIDIA-A100", "NVIDIA-L4"
HELD = GpuStatus(GpuState.HELD_IDLE, "Kept")


class Shown:
    """Metrics and what fills them."""

    def __init__(self, **settings: Any) -> None:
        self.metrics = Metrics()
        self.is_reporting = True
        setting = MetricsSettings.model_validate(settings).limits()
        self.fleet = FleetMetrics(
            self.metrics, setting, BoundedNames(setting.namespaces), is_reporting=lambda: self.is_reporting
        )

    def usage(self, gpus: Mapping[tuple[GpuOwner, GpuStatus], int], elapsed: float = 0) -> None:
        self.fleet.show_usage(FleetUsage(at=NOON, gpus=Counter(gpus)), timedelta(seconds=elapsed))

    def workloads(self, *workloads: TargetUsage) -> None:
        self.fleet.show_usage(FleetUsage(at=NOON, workloads=[*workloads]), timedelta(0))

    def suspended(self, elapsed: float, *given: QuotaTransfer, **by_namespace: int) -> None:
        gpus = {(name.replace("_", "-"), "cq"): n for name, n in by_namespace.items()}
        self.fleet.show_suspended(gpus, given, timedelta(seconds=elapsed))

    def values(self, name: str, *of: str) -> dict[tuple[str, ...], float]:
        """All samples of that name, by the values of these labels."""
        return values(self.metrics, name, *of)

    def value(self, name: str) -> float:
        [value] = self.values(name).values()
        return value


def values(metrics: Metrics, name: str, *of: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in of): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"idle_gpu_scaler_{name}"
    }


def place(namespace: str = "team-a", model: str = A100) -> GpuOwner:
    return GpuOwner(namespace, "cq", model)


# ------------------------------------------------------------------------------------------------------ GPUs and money


def test_gpus_are_shown_and_their_time_is_counted() -> None:
    shown = Shown()
    gpus = {(place(), HELD): 3, (place(), GpuStatus(GpuState.BUSY)): 2}
    shown.usage(gpus)
    shown.usage(gpus, elapsed=30)
    assert shown.values("gpus", "workload_namespace", "state", "reason") == {
        ("team-a", "HeldIdle", "Kept"): 3,
        ("team-a", "Busy", ""): 2,
    }
    assert shown.values("gpu_seconds_total", "state") == {("HeldIdle",): 90, ("Busy",): 60}
    # Without prices nothing is said about money.
    for name in ("idle_cost_total", "unpriced_idle_gpu_seconds_total", "gpu_hour_price"):
        assert shown.values(name) == {}


def test_idle_time_costs_its_models_price() -> None:
    shown = Shown(prices={"NVIDIA-A100*": 3.6}, currency="EUR")
    gpus = {
        (place(), HELD): 4,
        (place(), GpuStatus(GpuState.IDLE, "GPUsIdle")): 1,
        (place(), GpuStatus(GpuState.BUSY)): 8,
        (place(), GpuStatus(GpuState.UNKNOWN, "StaleSamples")): 8,
        (place(model=L4), HELD): 2,
    }
    shown.usage(gpus, elapsed=100)
    # (4 + 1) GPUs × 100 s × 3.6 / 3600 s
    assert shown.values("idle_cost_total", "workload_namespace", "model", "currency") == {
        ("team-a", A100, "EUR"): pytest.approx(0.5)
    }
    assert shown.values("unpriced_idle_gpu_seconds_total", "model") == {(L4,): 200}
    assert shown.values("gpu_hour_price", "model", "currency") == {(A100, "EUR"): 3.6}


def test_namespaces_beyond_the_limit_are_shown_together_and_counted() -> None:
    shown = Shown(namespaces=1)
    gpus = {(place(name), HELD): n for n, name in enumerate(("first", "second", "third"), start=1)}
    shown.usage(gpus, elapsed=10)
    shown.suspended(10, fourth=8, second=2)
    assert shown.values("gpus", "workload_namespace") == {("first",): 1, ("(others)",): 5}
    assert shown.values("gpu_seconds_total", "workload_namespace") == {("first",): 10, ("(others)",): 50}
    assert shown.values("suspended_gpus", "workload_namespace") == {("(others)",): 10}
    assert shown.value("folded_namespaces") == 3


def test_nodes_whose_gpus_cannot_be_judged_are_named_the_worst_first() -> None:
    shown = Shown(nodes=1)
    silent, stale = GpuStatus(GpuState.WITHOUT_METRICS, "NoSamples"), GpuStatus(GpuState.UNKNOWN, "StaleSamples")
    nodes = {
        "good": Counter({GpuStatus(GpuState.BUSY): 8}),
        "bad": Counter({stale: 1, GpuStatus(GpuState.BUSY): 7}),
        "worst": Counter({silent: 8}),
    }
    shown.fleet.show_usage(FleetUsage(at=NOON, nodes=nodes, coverage={"gpu_util": 0.5}), timedelta(0))
    assert shown.values("gpu_nodes", "state") == {("Trusted",): 1, ("Distrusted",): 1, ("Silent",): 1}
    assert shown.values("distrusted_gpus", "gpu_node", "reason") == {("worst", "NoSamples"): 8}
    assert shown.value("hidden_nodes") == 1
    assert shown.values("signal_coverage_ratio", "signal") == {("gpu_util",): 0.5}


# ----------------------------------------------------------------------------------------------------- single workloads


def workload(name: str, *, idle: timedelta | None = None) -> TargetUsage:
    made = decision(INACTIVE, idle_since=NOON - idle) if idle else decision(verdict=verdict(BUSY))
    title = TargetLabels("team-a", "cq", "ScalableWorkload", name)
    return TargetUsage(title=title, decision=made, states={GpuState.IDLE: 2}, peaks={"gpu_util": 0.5}, at=NOON)


def test_workloads_that_are_idle_longest_are_shown_and_the_others_counted() -> None:
    shown = Shown(workloads=2)
    all_of_them = [workload("busy"), workload("short", idle=minutes(40)), workload("long", idle=minutes(90))]
    shown.workloads(*all_of_them, workload("shorter", idle=minutes(35)))
    assert shown.values("workload_idle_seconds", "name") == {("long",): 5400, ("short",): 2400}
    hidden = shown.values("hidden_workloads", "verdict")
    assert hidden == {("Idle",): 1, ("Busy",): 1, ("Unknown",): 0, ("",): 0}
    for name in ("workload_gpus", "workload_answer", "workload_peak_ratio", "workload_idle_after_seconds"):
        assert shown.values(name, "name").keys() == {("long",), ("short",)}, name


def test_a_workload_shows_its_thresholds_beside_its_signals() -> None:
    shown = Shown()
    young = Active(reason=DecisionReason.IDLE_NOT_LONG_ENOUGH, message="")
    soon = decision(young, verdict=verdict(IDLE), idle_since=NOON - minutes(20))
    paused = replace(workload("paused", idle=minutes(40)), is_paused=True)
    shown.workloads(paused, replace(workload("soon"), decision=soon))
    assert shown.values("workload_answer", "cluster_queue", "name", "answer", "reason") == {
        ("cq", "paused", "inactive", "GPUsIdle"): 1,
        ("cq", "soon", "active", "IdleNotLongEnough"): 1,
    }
    of_each = {"idle_after_seconds": 1800, "active_above_ratio": 0.01, "desired_replicas": 1}
    for name, value in of_each.items():
        assert shown.values(f"workload_{name}", "name") == {("paused",): value, ("soon",): value}
    assert shown.values("workload_peak_ratio", "name", "signal")["paused", "gpu_util"] == 0.5
    assert shown.values("workload_paused", "name") == {("paused",): 1}
    # It is foreseeable of the one that only time keeps; idleAfter is 30 minutes.
    in_ten_minutes = (NOON + minutes(10)).timestamp()
    assert shown.values("workload_suspend_timestamp_seconds", "name") == {("soon",): in_ten_minutes}


def test_owners_are_shown_of_what_is_warned_or_suspended_up_to_the_limit() -> None:
    shown = Shown(workloads=2)
    named = [("a", "Warned", 90), ("b", "Idle", 80), ("c", "Warned", 70), ("d", "Suspended", 0), ("e", "Busy", 0)]
    shown.workloads(
        *(
            replace(workload(name, idle=minutes(idle)), state=CandidateState(state), owner=f"team-{name}")
            for name, state, idle in named
        )
    )
    assert shown.values("workload_state", "name", "state", "owner") == {
        ("a", "Warned", "team-a"): 1,
        ("c", "Warned", "team-c"): 1,
    }
    shown.workloads(replace(workload("d"), state=CandidateState.SUSPENDED, owner="ada@example.com"))
    assert shown.values("workload_state", "name", "state", "owner") == {("d", "Suspended", "ada@example.com"): 1}


# ------------------------------------------------------------------------------------------------ suspended and given

TRANSFER = QuotaTransfer("team-a", "team-b", "cq-b", 4)


def test_gpus_of_suspended_workloads_and_transfers_are_counted() -> None:
    shown = Shown()
    shown.fleet.suspended("team-a", "GPUsIdle", gpus=4, idle_for=minutes(30))
    shown.fleet.transferred(TRANSFER)
    shown.suspended(10, TRANSFER, team_a=4)
    assert shown.values("suspensions_total", "workload_namespace", "reason") == {("team-a", "GPUsIdle"): 1}
    assert shown.values("reclaimed_gpus_total", "workload_namespace", "reason") == {("team-a", "GPUsIdle"): 4}
    assert shown.value("idle_to_suspended_seconds_sum") == 1800
    transfer = ("from_namespace", "workload_namespace", "cluster_queue")
    assert shown.values("given_gpus_total", *transfer) == {("team-a", "team-b", "cq-b"): 4}
    assert shown.values("given_gpu_seconds_total", *transfer) == {("team-a", "team-b", "cq-b"): 40}
    assert shown.value("suspended_gpus") == 4
    assert shown.value("reclaimed_gpu_seconds_total") == 40


def test_what_alerts_count_has_a_series_before_it_happens() -> None:
    """`increase` never sees what a series begins with."""
    shown = Shown(regretWithin="5m")
    names = ("idle_suspensions_total", "regretted_suspensions_total", "provisioning_failures_total")
    assert [shown.values(name) for name in names] == [{(): 0}] * 3
    for reason in ("GPUsIdle", "Reclaimed", "ScaledToZero"):
        shown.fleet.suspended("team-a", reason, gpus=4, idle_for=None)
    shown.fleet.resumed("team-a", "GPUsIdle", after=minutes(1))
    assert [shown.values(name) for name in names] == [{(): 2}, {(): 1}, {(): 0}]


REGRETS = {
    "within the 5 minutes that are set": ("GPUsIdle", minutes(5), 1),
    "later": ("GPUsIdle", minutes(5.1), 0),
    "it was not found idle": ("ScaledToZero", minutes(1), 0),
    "it is not known when it was suspended": ("GPUsIdle", None, 0),
}


@pytest.mark.parametrize(("reason", "after", "regrets"), REGRETS.values(), ids=REGRETS)
def test_a_suspension_is_regretted_when_it_is_taken_back_too_soon(
    reason: str, after: timedelta | None, regrets: int
) -> None:
    shown = Shown(regretWithin="5m")
    shown.fleet.resumed("team-a", reason, after=after)
    assert sum(shown.values("regrets_total", "workload_namespace", "reason").values()) == regrets
    assert shown.values("resumptions_total", "workload_namespace") == {("team-a",): 1}
    assert shown.value("regret_window_seconds") == 300


# ----------------------------------------------------------------------------------------------------- gangs, budgets


def test_pending_workloads_are_summed_up_by_queue_and_reason() -> None:
    shown = Shown()
    waits, other, held = [
        PendingWorkload(key="team/gang", cluster_queue="cq", stage=stage, reason=reason, gpus=gpus, since=at(-seconds))
        for stage, reason, gpus, seconds in (
            (PendingFor.QUOTA, "NotEnoughIdle", 8, 600),
            (PendingFor.QUOTA, "NotEnoughIdle", 4, 60),
            (PendingFor.CHECKS, "PodsEnding", 2, 30),
        )
    ]
    shown.fleet.show_pending((waits, other, held), NOON)
    where = ("cluster_queue", "stage", "reason")
    assert shown.values("pending_gangs", *where) == {
        ("cq", "Quota", "NotEnoughIdle"): 2,
        ("cq", "AdmissionCheck", "PodsEnding"): 1,
    }
    assert shown.values("pending_gpus", "stage") == {("Quota",): 12, ("AdmissionCheck",): 2}
    assert shown.values("longest_pending_seconds", "cluster_queue") == {("cq",): 600}
    shown.fleet.admitted("cq", minutes(5))
    assert shown.values("admission_wait_seconds_sum", "cluster_queue") == {("cq",): 300}


def spent(name: str, most: int, *, by: int = 1) -> Spending:
    members = (BudgetedWorkload(namespace="team-a", name=f"w{n}", budgets=(name,)) for n in range(by))
    suspensions = tuple(Suspension(member=each, at=NOON) for each in members)
    return Spending(budgets=(Budget(name=name, limit=Limit(count=most)),), suspensions=suspensions)


def test_budgets_show_what_is_left() -> None:
    shown = Shown()
    shown.fleet.show_budgets(spent("few", 3), NOON)
    assert shown.values("budget_headroom_workloads", "budget") == {("few",): 2}
    assert shown.values("budget_used_workloads", "budget") == {("few",): 1}
    assert shown.values("budget_limit_workloads", "budget") == {("few",): 3}
    assert shown.values("budget_refusals_total", "budget") == {("few",): 0}
    shown.fleet.show_budgets(spent("few", 3, by=4), NOON)
    assert shown.values("budget_headroom_workloads", "budget") == {("few",): 0}, "one that was made smaller"


def test_budgets_are_shown_up_to_a_number() -> None:
    """Tenants make policies, and each would have series of its own."""
    shown = Shown(namespaces=1)
    for name in ("first", "second"):
        shown.fleet.show_budgets(spent(name, 3), NOON)
    assert shown.values("budget_limit_workloads", "budget") == {}
    assert shown.values("budget_refusals_total", "budget") == {("first",): 0}


# ------------------------------------------------------------------------------------------------------ who reports


def test_a_replica_that_does_not_report_counts_nothing() -> None:
    shown = Shown()
    shown.is_reporting = False
    shown.fleet.suspended("team-a", "GPUsIdle", gpus=4, idle_for=None)
    shown.fleet.resumed("team-a", "GPUsIdle", after=minutes(1))
    shown.fleet.transferred(TRANSFER)
    shown.fleet.admitted("cq", minutes(5))
    for each in shown.metrics.declared:
        assert each.shown != "leader" or not any(shown.values(each.name.removeprefix("idle_gpu_scaler_")).values())


def test_a_replica_that_reports_no_more_clears_its_gauges_and_keeps_its_counters() -> None:
    shown = Shown()
    gpus = Counter({(place(), HELD): 3})
    whole = FleetUsage(at=NOON, gpus=gpus, workloads=[workload("a")], paused_scaled_objects=1)
    shown.fleet.show_usage(whole, timedelta(seconds=10))
    shown.fleet.show_nodes({A100: 8}, {("class", "New"): 1})
    shown.fleet.show_budgets(spent("few", 3), NOON)
    assert shown.value("paused_scaled_objects") == 1
    shown.fleet.clear()
    gauges = [each for each in shown.metrics.declared if each.shown == "leader" and each.type == "gauge"]
    for each in gauges:
        assert not any(shown.values(each.name.removeprefix("idle_gpu_scaler_")).values()), each.name
    assert shown.values("gpu_seconds_total", "state") == {("HeldIdle",): 30}


# -------------------------------------------------------------------------------------------------------- bounded names


def test_no_more_names_are_shown_than_the_limit_and_the_first_keep_their_place() -> None:
    names = BoundedNames(2)
    assert [names.of(each) for each in ("", "a", "b", "c", "a", "d", "")] == ["", "a", "b", OTHERS, "a", OTHERS, ""]
    assert names.folded == 2
    for number in range(50):
        assert names.of(f"name-{number}") == OTHERS
    assert names.folded == 20, "counted up to ten times the limit"
