import re
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import minutes

from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.errors import ConfigurationError
from scaler.idleness.policy import Overrides, Reclaim
from scaler.quota.preemption.fair_sharing import PreemptionStrategy
from scaler.reclaim.budgets.budget import Budget, Limit, Rate
from scaler.reclaim.budgets.hours import Hours, Weekday
from scaler.reclaim.budgets.scopes import Each, Scope
from scaler.reclaim.costs import CostWeights
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.reclaim.search.problem import SearchLimits
from scaler.suspension.priority_boost import PriorityBoost, Switch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def reclaim(text: str, file: Path) -> ReclaimConfig:
    file.write_text(f"reclaim:\n{text}")
    return load(file, environ={}, flags={}).reclaim.policy()


def problem(text: str, file: Path) -> str:
    """The one problem of a settings file, from where it is on."""
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        load(file, environ={}, flags={})
    (line,) = str(refusal.value).splitlines()
    return line.removeprefix(f"{file}: ")


# -------------------------------------------------------------------------------------- into the core's words


def test_the_defaults_are_the_cores_own() -> None:
    assert Settings().reclaim.policy() == ReclaimConfig()


def test_a_grant_outlives_what_keda_needs_by_default_to_act_on_it() -> None:
    """KEDA's own defaults: pollingInterval 30 s, cooldownPeriod 5 min."""
    assert ReclaimConfig().grant_for > timedelta(seconds=30) + minutes(5)


def test_settings_become_the_cores_values(file: Path) -> None:
    text = """
      pressure: off
      grantFor: 15m
      maxVictims: 8
      search: {steps: 1000, questions: 10}
      cost: {gpuHoursLost: 2, idleTime: 0.5, priority: 0, reclaimedBefore: 3, timeToResume: 4}
      unprotected: Refuse
      fairSharing: {enabled: on, preemptionStrategies: [LessThanInitialShare]}
      priorityBoost: {enabled: on, value: -5}
      replanBackoff: 30s
      budgets:
        - name: nights
          scope: {namespaces: [a], namespaceSelector: team=a, clusterQueues: [q], each: Namespace}
          atOnce: {share: 20 %}
          perPeriod: {count: 2, period: 1h}
          appliesDuring: [{days: [Mon, Fri], from: '09:00', to: '24:00', timeZone: Europe/Berlin}]
          allowedDuring: [{timeZone: UTC}]
    """
    assert reclaim(text, file) == ReclaimConfig(
        pressure=False,
        grant_for=minutes(15),
        limits=SearchLimits(steps=1000, questions=10, members=8),
        weights=CostWeights(gpu_hours_lost=2, idle_time=0.5, priority=0, reclaimed_before=3, time_to_resume=4),
        unprotected=Unprotected.REFUSE,
        fair_sharing=True,
        strategies=(PreemptionStrategy.INITIAL_SHARE,),
        boost=PriorityBoost(enabled=Switch.ON, value=-5),
        replan_backoff=timedelta(seconds=30),
        budgets=(
            Budget(
                name="nights",
                scope=Scope(
                    namespaces=frozenset({"a"}),
                    namespace_selector="team=a",
                    cluster_queues=frozenset({"q"}),
                    each=Each.NAMESPACE,
                ),
                at_once=Limit(share_ratio=0.2),
                rate=Rate(limit=Limit(count=2), period=timedelta(hours=1)),
                applies_during=(
                    Hours(days=frozenset({Weekday.MON, Weekday.FRI}), begin=time(9), end=time(0), zone="Europe/Berlin"),
                ),
                allowed_during=(Hours(),),
            ),
        ),
    )


def test_the_default_policy_of_workloads_is_set_beside_their_other_defaults(file: Path) -> None:
    file.write_text("defaults: {reclaim: OnPressure, idleAfterUnderPressure: 5m}")
    overrides = load(file, environ={}, flags={}).defaults.overrides()
    assert overrides == Overrides(reclaim=Reclaim.ON_PRESSURE, idle_after_under_pressure=minutes(5))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("auto", Switch.AUTO), ("on", Switch.ON), ("off", Switch.OFF), ("'on'", Switch.ON), ("true", Switch.ON)],
)
def test_a_switch_may_be_written_bare_though_yaml_takes_it_for_a_truth(file: Path, text: str, expected: Switch) -> None:
    assert reclaim(f"  priorityBoost: {{enabled: {text}}}", file).boost.enabled is expected


def test_budgets_can_come_from_the_environment() -> None:
    environ = {"IDLE_GPU_SCALER__RECLAIM__BUDGETS": '[{"name": "all", "atOnce": {"count": 3}}]'}
    budgets = load(None, environ=environ, flags={}).reclaim.policy().budgets
    assert budgets == (Budget(name="all", at_once=Limit(count=3)),)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        pytest.param("{from: 09:00, to: '17:30', timeZone: UTC}", time(9), time(17, 30), id="of a day"),
        pytest.param("{from: '22:00', to: 06:00, timeZone: UTC}", time(22), time(6), id="over midnight"),
        pytest.param("{from: '9:00', timeZone: UTC}", time(9), time(0), id="to the end of the day"),
        pytest.param("{days: [Sat, Sun], timeZone: UTC}", time(0), time(0), id="whole days"),
        pytest.param("{from: 00:00, to: '24:00', timeZone: UTC}", time(0), time(0), id="the whole day, spelt out"),
    ],
)
def test_hours_are_written_as_a_clock_shows_them(file: Path, text: str, begin: time, end: time) -> None:
    (budget,) = reclaim(f"  budgets: [{{name: b, allowedDuring: [{text}]}}]", file).budgets
    (hours,) = budget.allowed_during
    assert (hours.begin, hours.end) == (begin, end)


# ------------------------------------------------------------------------------------------------------------ problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grantFor: 600", "grantFor: 600 has no unit; write it with one, such as '600s'"),
        ("grantFor: 0s", "grantFor: '0s' is no time at all; write a duration above 0, such as '30s'"),
        ("maxVictims: 0", "maxVictims: Input should be greater than or equal to 1"),
        ("planTimeout: 1s", "planTimeout: unknown setting; known here: "),
        ("cost: {idleTime: -1}", "cost.idleTime: Input should be greater than or equal to 0"),
        ("cost: {priority: .nan}", "cost.priority: Input should be"),
        ("cost: {gpuHours: 1}", "cost.gpuHours: unknown setting; did you mean 'gpuHoursLost'?"),
        ("unprotected: allow", "unprotected: Input should be 'Warn' or 'Refuse'"),
        ("priorityBoost: {value: 0}", "priorityBoost.value: Input should be less than 0"),
        ("priorityBoost: {enabled: maybe}", "priorityBoost.enabled: Input should be 'auto', 'on' or 'off'"),
        (
            "fairSharing: {preemptionStrategies: [LessThanInitialShare, LessThanOrEqualToFinalShare]}",
            "fairSharing.preemptionStrategies: Kueue does not take this list; write [LessThanOrEqualToFinalShare] "
            "or [LessThanInitialShare] or [LessThanOrEqualToFinalShare, LessThanInitialShare]",
        ),
        (
            "budgets: [{name: a, atOnce: {count: 1}}, {name: a, atOnce: {count: 2}}]",
            "budgets: two budgets have the name 'a'; an Event that names one must mean one",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_write(file: Path, text: str, expected: str) -> None:
    assert problem(f"reclaim: {{{text}}}", file).startswith(f"reclaim.{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: ''", ".name: String should have at least 1 character"),
        ("name: a", ": it bounds nothing; write atOnce, perPeriod or allowedDuring"),
        (
            "name: a, appliesDuring: [{timeZone: UTC}]",
            ": appliesDuring needs a limit that applies then; write atOnce or perPeriod",
        ),
        ("name: a, atOnce: {}", ".atOnce: there is no limit; write count, share, or both"),
        ("name: a, atOnce: {count: -1}", ".atOnce.count: Input should be greater than or equal to 0"),
        (
            "name: a, atOnce: {share: 20}",
            ".atOnce.share: 20 has no unit; write it in percent, such as '20 %'",
        ),
        ("name: a, perPeriod: {count: 1}", ".perPeriod.period: Field required"),
        (
            "name: a, atOnce: {count: 1}, scope: {namespaceSelector: team in a}",
            ".scope.namespaceSelector: 'team in a' is not a label requirement; write 'key=value',",
        ),
        (
            "name: a, atOnce: {count: 1}, scope: {each: Cohort}",
            ".scope.each: Input should be 'Namespace' or 'ClusterQueue'",
        ),
        (
            "name: a, atOnce: {count: 1}, scope: {namespace: a}",
            ".scope.namespace: unknown setting; did you mean 'namespaces'?",
        ),
    ],
)
def test_a_budget_that_cannot_be_used_is_refused_with_its_place(file: Path, text: str, expected: str) -> None:
    assert problem(f"reclaim: {{budgets: [{{{text}}}]}}", file).startswith(f"reclaim.budgets.0{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("from: 09:00", ".timeZone: Field required", id="nobody's clock"),
        pytest.param(
            "timeZone: Europe/Berln",
            ".timeZone: time zone 'Europe/Berln' cannot be read; write an IANA name such as 'Europe/Berlin'",
            id="no zone",
        ),
        pytest.param(
            "timeZone: UTC, from: 22:00",
            ".from: 1320 is how YAML reads a time of day without quotes; write '22:00', with quotes",
            id="a time without quotes is a number to YAML",
        ),
        pytest.param(
            "timeZone: UTC, from: 9",
            ".from: 9 is how YAML reads a time of day without quotes; write '22:00', with quotes",
            id="a number that no time is read as",
        ),
        pytest.param(
            "timeZone: UTC, to: '25:00'",
            ".to: '25:00' is not a time of day; write for example '22:00', with quotes",
            id="an hour that no day has",
        ),
        pytest.param(
            "timeZone: UTC, from: '24:00'",
            ".from: '24:00' is not a time of day; write for example '22:00', with quotes",
            id="a beginning at the end of the day",
        ),
        pytest.param(
            "timeZone: UTC, from: 09:00, to: 09:00",
            ": from and to are both 09:00; for whole days leave both out",
            id="from a time to the same",
        ),
        pytest.param("timeZone: UTC, days: [Monday]", ".days.0: Input should be 'Mon', 'Tue'", id="no day"),
    ],
)
def test_hours_that_cannot_be_used_are_refused_with_their_place(file: Path, text: str, expected: str) -> None:
    found = problem(f"reclaim: {{budgets: [{{name: a, allowedDuring: [{{{text}}}]}}]}}", file)
    assert found.startswith(f"reclaim.budgets.0.allowedDuring.0{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "idleAfterUnderPressure: 1h",
            "defaults: idleAfterUnderPressure: 1h is longer than idleAfter (30m); write at most '30m'",
        ),
        (
            "idleAfter: 5m, idleAfterUnderPressure: 10m",
            "defaults: idleAfterUnderPressure: 10m is longer than idleAfter (5m); write at most '5m'",
        ),
        ("reclaim: onpressure", "defaults.reclaim: Input should be 'Always', 'OnPressure' or 'PriorityBoost'"),
    ],
)
def test_a_default_policy_that_cannot_be_used_is_refused(file: Path, text: str, expected: str) -> None:
    assert problem(f"defaults: {{{text}}}", file) == expected


# -------------------------------------------------------------------------------------------------------- the reference


def shown_settings() -> list[dict[str, Any]]:
    """The settings that the pages for operators show."""
    docs = Path(__file__).parents[3] / "docs"
    pages = [(docs / page).read_text(encoding="utf-8") for page in ("settings.md", "policies.md")]
    return [yaml.safe_load(block) for page in pages for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]


def test_the_settings_that_pages_show_can_be_loaded(file: Path) -> None:
    together: dict[str, Any] = {}
    for document in shown_settings():
        together |= document
    file.write_text(yaml.safe_dump(together))
    assert load(file, environ={}, flags={}).reclaim.budgets


def test_pages_name_every_setting_on_reclaiming() -> None:
    documents = shown_settings()
    shown = next(document["reclaim"] for document in documents if "reclaim" in document)
    known = Settings().reclaim.model_dump(by_alias=True)
    assert set(shown) == set(known)
    for name in ("search", "cost", "fairSharing", "priorityBoost"):
        assert set(shown[name]) == set(known[name]), name
    differing = {name for name in known if name != "budgets" and shown[name] != yaml.safe_load(_written(known[name]))}
    assert differing == set(), "the values shown are the defaults"


def _written(value: Any) -> str:
    """As YAML would be read back: `Replan` and not the enum that prints so."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {_written(inner)}" for key, inner in value.items()) + "}"
        case tuple():
            return "[" + ", ".join(map(_written, value)) + "]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
