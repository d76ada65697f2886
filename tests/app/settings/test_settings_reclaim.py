import re
from datetime import timedelta
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


def test_budgets_of_before_are_refused_with_what_replaces_them(file: Path) -> None:
    for load_them in (
        lambda: reclaim("  budgets: [{name: all, atOnce: {count: 3}}]", file),
        lambda: load(None, environ={"IDLE_GPU_SCALER__RECLAIM__BUDGETS": "[]"}, flags={}),
    ):
        with pytest.raises(ConfigurationError, match=r"reclaim: budgets was removed: .*budget\.atOnce, budget\.per"):
            load_them()


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
    assert "reclaim" in together
    load(file, environ={}, flags={})


def test_pages_name_every_setting_on_reclaiming() -> None:
    documents = shown_settings()
    shown = next(document["reclaim"] for document in documents if "reclaim" in document)
    known = Settings().reclaim.model_dump(by_alias=True)
    assert set(shown) == set(known)
    for name in ("search", "cost", "fairSharing", "priorityBoost"):
        assert set(shown[name]) == set(known[name]), name
    differing = {name for name in known if shown[name] != yaml.load(_written(known[name]), yaml.CSafeLoader)}
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
