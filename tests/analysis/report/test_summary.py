"""What a report has of each grouping, and what of it one may see who may see some namespaces only."""

from datetime import timedelta

import pytest
from analysis.report.report_builders import BEGIN, HOUR_S, WEEKEND, day, facts, two_teams
from scaler_analysis.report.grouping import GroupBy
from scaler_analysis.report.measures import Measure
from scaler_analysis.report.notes import notes_of
from scaler_analysis.report.periods import Period
from scaler_analysis.report.summary import UsageReport, summarized

ALL = [two_teams(0), two_teams(1), facts(2, {}, gaps=[Period(BEGIN + timedelta(days=2), BEGIN + timedelta(days=3))])]


def report(by: GroupBy, namespaces: set[str] | None = None) -> UsageReport:
    return summarized(ALL, WEEKEND, by, namespaces=namespaces)


AMOUNTS = ("suspended_hours", "given_hours", "got_hours", "suspensions", "regrets", "energy_kwh")


@pytest.mark.parametrize(
    ("by", "name", "known"),
    [
        (GroupBy.TEAM, "team-b", {"suspended_hours": 12, "given_hours": 10, "got_hours": 0, "suspensions": 6.004, "regrets": 2, "energy_kwh": 4}),  # noqa: E501
        (GroupBy.TEAM, "team-a", {"suspended_hours": 0, "given_hours": 0, "got_hours": 10, "suspensions": 0, "regrets": 0}),  # noqa: E501
        (GroupBy.QUEUE, "shared", {"suspended_hours": 12, "got_hours": 0}),
        (GroupBy.QUEUE, "research", {"suspended_hours": 0, "got_hours": 10}),
        (GroupBy.MODEL, "A100", {"energy_kwh": 4}),
    ],
)  # fmt: skip
def test_each_grouping_has_what_its_labels_tell_and_nothing_else(
    by: GroupBy, name: str, known: dict[str, float]
) -> None:
    row = next(each for each in report(by).rows if each.name == (name,))
    assert {each: round(value, 3) for each in AMOUNTS if (value := getattr(row, each)) is not None} == known


@pytest.mark.parametrize(
    ("held", "free", "known"),
    [
        (("team-a", "gpu-operator"), ("", "gpu-operator"), {"team-a": 2.0}),
        (("", "team-a"), ("", "gpu-operator"), {"team-a": 2.0, "gpu-operator": 1.0}),
    ],
)
def test_the_exporter_s_namespace_is_a_team_only_where_labels_of_series_are_honored(
    held: tuple[str, str], free: tuple[str, str], known: dict[str, float]
) -> None:
    """The operator's own pods may hold a GPU now and then, which does not make all free GPUs theirs."""
    seconds = {(name, "", "H100", "Busy"): HOUR_S for name in ("team-a", "gpu-operator")}
    energy = {(*held, "H100"): 2 * 3.6e9, (*free, "H100"): 3.6e9}
    found = summarized([facts(0, {Measure.GPU_SECONDS: seconds, Measure.ENERGY: energy})], day(0), GroupBy.TEAM)
    assert {row.name[0]: row.energy_kwh for row in found.rows if row.energy_kwh is not None} == known
    assert found.total.energy_kwh == 3


def test_whoever_held_most_idle_is_first() -> None:
    assert [(each.name[0], round(each.idle_hours)) for each in report(GroupBy.TEAM).rows] == [
        ("team-b", 24),
        ("team-a", 8),
    ]


def test_a_cost_that_is_not_known_is_none() -> None:
    b, a = report(GroupBy.TEAM).rows
    assert (a.idle_cost, b.idle_cost) == ({"EUR": 33.6}, None)


@pytest.mark.parametrize(
    ("held", "prices", "cost"),
    [
        pytest.param({("team-b", "H100"): 3, ("team-b", "A100"): 1}, {"H100": 4, "A100": 2}, 6 * 3.5, id="the average"),
        pytest.param({("team-b", "H100"): 1, ("team-b", "T4"): 9}, {"H100": 4}, 6 * 4, id="of those with a price"),
        pytest.param({("team-b", "T4"): 9, ("team-a", "H100"): 1}, {"H100": 4}, None, id="it held none with a price"),
        pytest.param({("team-a", "H100"): 1, ("team-c", "A100"): 1}, {"H100": 4, "A100": 2}, 6 * 3, id="it held none"),
        pytest.param({("team-b", "H100"): 1}, {}, None, id="no prices"),
    ],
)
def test_suspended_time_would_have_cost_what_the_team_s_gpus_cost(
    held: dict[tuple[str, str], float], prices: dict[str, float], cost: float | None
) -> None:
    values = {
        Measure.GPU_SECONDS: {(team, "q", model, "Busy"): hours * HOUR_S for (team, model), hours in held.items()},
        Measure.RECLAIMED_GPU_SECONDS: {("team-b", "q"): 6 * HOUR_S},
        Measure.PRICE: {(model, "EUR"): float(price) for model, price in prices.items()},
    }
    for by, name in ((GroupBy.TEAM, "team-b"), (GroupBy.QUEUE, "q")):
        found = summarized([facts(0, values)], day(0), by)
        row = next(each for each in found.rows if each.name == (name,))
        assert row.suspended_cost == found.total.suspended_cost == (None if cost is None else {"EUR": cost})


def test_prices_in_two_currencies_give_no_cost_of_suspended_time() -> None:
    values = {
        Measure.GPU_SECONDS: {("a", "q", "H100", "Busy"): HOUR_S},
        Measure.RECLAIMED_GPU_SECONDS: {("a", "q"): HOUR_S},
        Measure.PRICE: {("H100", "EUR"): 4.0, ("H100", "USD"): 5.0},
    }
    assert summarized([facts(0, values)], day(0), GroupBy.TEAM).total.suspended_cost is None


def test_waiting_times_are_those_of_queues() -> None:
    found = report(GroupBy.QUEUE)
    waiting = found.waiting["research"]
    assert (waiting.count, waiting.mean, waiting.most) == (4, timedelta(minutes=60, seconds=30), None)
    assert found.total.waiting == waiting


def test_one_who_may_see_one_team_sees_nothing_of_another_or_of_the_cluster() -> None:
    for by in GroupBy:
        found = report(by, {"team-a"})
        assert "team-b" not in repr(found)
        assert "A100" not in repr(found)
    found = report(GroupBy.TEAM, {"team-a"})
    assert [(each.from_namespace, each.namespace, each.hours) for each in found.transfers] == [("…", "team-a", 10)]
    assert (found.waiting, found.total.waiting, found.unpriced_hours, found.hidden_workloads) == ({}, None, {}, 0)
    assert round(found.total.held_hours) == 48
    assert found.total.given_hours == 0


def test_the_giver_sees_that_it_gave_and_not_to_whom() -> None:
    found = report(GroupBy.TEAM, {"team-b"})
    assert [(each.from_namespace, each.namespace, each.cluster_queue) for each in found.transfers] == [
        ("team-b", "…", "")
    ]
    assert found.rows[0].given_hours == 10
    assert "team-a" not in repr(found)
    assert "research" not in repr(report(GroupBy.QUEUE, {"team-b"}))


# -------------------------------------------------------------------------------------------------------------- notes


def test_what_is_missing_is_said() -> None:
    notes = " ".join(notes_of(report(GroupBy.WORKLOAD), {}))
    assert "Nothing is known of 1d" in notes
    assert "01 Dec 2026 00:00 UTC to 02 Dec 2026 00:00 UTC" in notes
    assert "24.0 idle GPU-hours are missing in the cost: metrics.prices has no price for A100." in notes
    assert "Up to 7 workloads at a time" in notes


def test_a_range_that_begins_before_anything_is_known_says_since_when() -> None:
    gap = Period(BEGIN, BEGIN + timedelta(days=1))
    found = summarized([facts(0, {}, gaps=[gap]), two_teams(1), two_teams(2)], WEEKEND, GroupBy.TEAM)
    assert notes_of(found, {})[0].startswith("Nothing is known before 30 Nov 2026 00:00 UTC")


def test_another_leader_is_not_worth_a_note() -> None:
    gap = Period(BEGIN + timedelta(hours=5), BEGIN + timedelta(hours=5, minutes=2))
    found = summarized([facts(0, two_teams(0).values, gaps=[gap])], WEEKEND, GroupBy.TEAM)
    assert not any("Nothing is known" in each for each in notes_of(found, {}))


def test_where_there_is_nothing_the_matchers_are_named() -> None:
    found = summarized([facts(number, {}, gaps=[WEEKEND]) for number in range(1)], WEEKEND, GroupBy.TEAM)
    assert notes_of(found, {"cluster": "prod"}) == [
        "Prometheus has no metrics of this scaler with the labels of prometheus.matchers (cluster=prod) in this time. "
        "It has to scrape every replica."
    ]
