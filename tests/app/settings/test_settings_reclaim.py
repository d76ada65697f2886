import re
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import minutes

from scaler.app.settings.load import load
from scaler.app.settings.model import Settings
from scaler.idleness.hours import Hours, Weekday
from scaler.idleness.policy import Overrides, Reclaim
from scaler.quota.preemption.fair_sharing import PreemptionStrategy
from scaler.reclaim.budgets.budget import Budget, Limit, Rate
from scaler.reclaim.budgets.scopes import Each, Scope
from scaler.reclaim.costs import CostWeights
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.reclaim.search.problem import SearchLimits
from scaler.suspension.priority_boost import BoostSwitch, PriorityBoost


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def reclaim(text: str, file: Path) -> ReclaimConfig:
    file.write_text(f"reclaim:\n{text}")
    return load(file, environ={}, flags={}).reclaim.policy()


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
        boost=PriorityBoost(enabled=BoostSwitch.ON, value=-5),
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
    [
        ("auto", BoostSwitch.AUTO),
        ("on", BoostSwitch.ON),
        ("off", BoostSwitch.OFF),
        ("'on'", BoostSwitch.ON),
        ("true", BoostSwitch.ON),
    ],
)
def test_a_switch_may_be_written_bare_though_yaml_takes_it_for_a_truth(
    file: Path, text: str, expected: BoostSwitch
) -> None:
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


# -------------------------------------------------------------------------------------------------------- the reference


def shown_settings() -> list[dict[str, Any]]:
    """The settings that the pages for operators show, and no manifests."""
    docs = Path(__file__).parents[3] / "docs"
    pages = [(docs / page).read_text(encoding="utf-8") for page in ("settings.md", "policies.md")]
    shown = [yaml.safe_load(block) for page in pages for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    return [each for each in shown if "spec" not in each]


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
