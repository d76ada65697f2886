from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from fractions import Fraction
from math import ceil

import pytest
from builders import minutes, policy
from hypothesis import example, given
from hypothesis import strategies as st

from scaler.errors import MetadataError
from scaler.idleness.policy import (
    EnforcementMode,
    GpuRule,
    Overrides,
    Policy,
    Reclaim,
    Trust,
    WakeRule,
    describe,
    is_any_of,
    resolve,
)

KEEP = datetime(2026, 12, 24, 18, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "total", "needed"),
    [
        pytest.param("all", 8, 8, id="all of 8"),
        pytest.param("all", 1, 1, id="all of 1"),
        pytest.param("any", 8, 1, id="any of 8 is one"),
        pytest.param("quorum:0.8", 4, 4, id="0.8 × 4 = 3.2, rounded up"),
        pytest.param("quorum:0.01", 3, 1, id="never none"),
        pytest.param("quorum:0.07", 100, 7, id="0.07 × 100 = 7, though floating point makes 7.000000000000001"),
    ],
)
def test_a_rule_asks_for_a_share_of_the_gpus_rounded_up(rule: str, total: int, needed: int) -> None:
    assert GpuRule.parse(rule).idle_gpus_needed(total) == needed


@given(percent=st.integers(1, 100), total=st.integers(1, 20_000))
def test_a_quorum_in_percent_is_exact(percent: int, total: int) -> None:
    exact = max(1, ceil(Fraction(percent, 100) * total))
    assert GpuRule.parse(f"quorum:{percent / 100}").idle_gpus_needed(total) == exact


@pytest.mark.parametrize(
    "text",
    [
        "",
        "most",
        "quorum",
        "quorum:",
        "quorum:0",
        "quorum:1.1",
        "quorum:-1",
        "quorum:nan",
        "quorum:x",
        "all:1",
        "any:2",
    ],
)
def test_a_rule_that_is_none_is_refused_with_what_may_be_written(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 'all', 'any' or 'quorum:0\.8'") as refusal:
        GpuRule.parse(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("text", ["all", "any", "quorum:0.8", "quorum:0.25"])
def test_a_rule_is_shown_as_it_is_written(text: str) -> None:
    assert str(GpuRule.parse(text)) == text


def test_the_nearest_layer_wins_field_by_field_and_is_remembered() -> None:
    resolved = resolve(
        ("settings", Overrides(idle_after=minutes(60), warm_up=minutes(5), mode=EnforcementMode.OBSERVE)),
        ("trigger metadata", Overrides(idle_after=minutes(20), gpus=GpuRule(share=0.0))),
        ("ScalableWorkload first-raycluster", Overrides(keep_until=KEEP)),
    )
    assert resolved == Policy(
        idle_after=minutes(20),
        warm_up=minutes(5),
        active_above_ratio=0.01,
        gpus=GpuRule(share=0.0),
        mode=EnforcementMode.OBSERVE,
        keep_until=KEEP,
    )
    assert {
        name: resolved.source_of(name) for name in ("idle_after", "warm_up", "active_above_ratio", "keep_until")
    } == {
        "idle_after": "trigger metadata",
        "warm_up": "settings",
        "active_above_ratio": "built-in default",
        "keep_until": "ScalableWorkload first-raycluster",
    }


def test_a_value_that_is_zero_is_a_value_and_not_silence() -> None:
    resolved = resolve(
        ("settings", Overrides(warm_up=minutes(5))), ("trigger metadata", Overrides(warm_up=timedelta(0)))
    )
    assert resolved.warm_up == timedelta(0)
    assert resolved.source_of("warm_up") == "trigger metadata"


@pytest.mark.parametrize("days", [[24, 1], [1, 24], [24, 1, 23], [24, 24]])
def test_of_several_times_to_keep_it_until_the_latest_wins(days: list[int]) -> None:
    """A keep-until that was left on one object and has passed does not take back the one on another."""
    layers = [(f"layer {n}", Overrides(keep_until=KEEP.replace(day=day))) for n, day in enumerate(days)]
    resolved = resolve(*layers)
    assert resolved.keep_until == KEEP
    assert resolved.source_of("keep_until") == f"layer {days.index(24)}"


# ------------------------------------------------------------------------------------------------- under pressure


def test_without_a_word_on_pressure_a_plan_waits_as_long_as_time_alone_does() -> None:
    assert Policy(idle_after=minutes(20)).idle_after_if_pressed == minutes(20)
    pressed = Policy(idle_after=minutes(20), idle_after_under_pressure=minutes(5))
    assert pressed.idle_after_if_pressed == minutes(5)


@pytest.mark.parametrize(
    ("layers", "source", "idle_after_source"),
    [
        pytest.param(
            [Overrides(idle_after=minutes(20), idle_after_under_pressure=minutes(21))],
            "layer 0",
            "layer 0",
            id="both from one source",
        ),
        pytest.param(
            [Overrides(idle_after=minutes(20)), Overrides(idle_after_under_pressure=minutes(21))],
            "layer 1",
            "layer 0",
            id="longer than the default it goes with",
        ),
        pytest.param(
            [Overrides(idle_after_under_pressure=minutes(61))],
            "layer 0",
            "built-in default",
            id="longer than the built-in default",
        ),
    ],
)
def test_to_wait_longer_under_pressure_is_an_error_of_its_source(
    layers: list[Overrides], source: str, idle_after_source: str
) -> None:
    with pytest.raises(MetadataError) as refusal:
        resolve(*((f"layer {n}", layer) for n, layer in enumerate(layers)))
    longest = "1h" if idle_after_source == "built-in default" else "20m"
    shown = "1h1m" if longest == "1h" else "21m"
    assert str(refusal.value) == (
        f"{source} 'idleAfterUnderPressure': {shown} is longer than idleAfter ({longest}); "
        f"write at most '{longest}'; idleAfter is from: {idle_after_source}"
    )


def test_an_owners_shorter_idle_after_is_not_spoilt_by_a_default_for_pressure_from_farther_away() -> None:
    far = Overrides(idle_after=minutes(60), idle_after_under_pressure=minutes(10))
    resolved = resolve(("settings", far), ("trigger metadata", Overrides(idle_after=minutes(5))))
    assert resolved.idle_after_if_pressed == minutes(5)
    assert resolved.source_of("idle_after_under_pressure") == "built-in default", "which is idleAfter itself"
    longer = resolve(("settings", far), ("trigger metadata", Overrides(idle_after=minutes(15))))
    assert longer.idle_after_if_pressed == minutes(10)
    assert longer.source_of("idle_after_under_pressure") == "settings"


def test_only_the_values_that_result_must_fit_together() -> None:
    """The middle layer's 5 min would not go with 10 min, but the nearest layer says 20."""
    layers = [
        Overrides(idle_after_under_pressure=minutes(10)),
        Overrides(idle_after=minutes(5)),
        Overrides(idle_after=minutes(20)),
    ]
    resolved = resolve(*((f"layer {n}", layer) for n, layer in enumerate(layers)))
    assert resolved.idle_after_if_pressed == minutes(10)


_DURATIONS = st.none() | st.integers(1, 60).map(minutes)


@given(st.lists(st.builds(Overrides, idle_after=_DURATIONS, idle_after_under_pressure=_DURATIONS), max_size=3))
def test_a_plan_never_has_to_wait_longer_than_time_alone(layers: list[Overrides]) -> None:
    try:
        policy = resolve(*((f"layer {n}", layer) for n, layer in enumerate(layers)))
    except MetadataError:
        return
    assert policy.idle_after_if_pressed <= policy.idle_after
    assert policy.idle_after_under_pressure is None or policy.idle_after_under_pressure <= policy.idle_after


def test_without_layers_the_policy_is_the_documented_default() -> None:
    assert resolve() == Policy(
        idle_after=timedelta(hours=1),
        warm_up=minutes(10),
        active_above_ratio=0.01,
        gpus=GpuRule(share=1.0),
        mode=EnforcementMode.ENFORCE,
    )
    assert (resolve().reclaim, resolve().idle_after_under_pressure) == (Reclaim.ALWAYS, None)
    assert resolve().source_of("mode") == "built-in default"


def test_overrides_that_say_the_same_are_one_key() -> None:
    assert len({Overrides(idle_after=minutes(5)), Overrides(idle_after=timedelta(seconds=300)), Overrides()}) == 2


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("idle_after", "30m"),
        ("warm_up", "10m"),
        ("active_above_ratio", "0.5 %"),
        ("gpus", "quorum:0.8"),
        ("mode", "enforce"),
        ("reclaim", "Always"),
        ("idle_after_under_pressure", "30m"),
        ("keep_until", "-"),
    ],
)
def test_a_field_is_described_as_its_owner_would_write_it(name: str, shown: str) -> None:
    assert describe(name, policy(active_above_ratio=0.005, share=0.8)) == shown


def test_staleness_is_counted_in_collection_intervals() -> None:
    assert Trust().max_age == timedelta(seconds=90), "3 × 30 s"
    assert Trust(interval=timedelta(seconds=1), max_age_intervals=5).max_age == timedelta(seconds=5)


def test_only_what_plans_suspend_comes_back_when_there_is_room() -> None:
    wakes, always = Overrides(wake=WakeRule.WHEN_FREE), Overrides(reclaim=Reclaim.ALWAYS)
    pressed = Overrides(reclaim=Reclaim.ON_PRESSURE)
    assert resolve(("settings", pressed), ("trigger metadata", wakes)).wake is WakeRule.WHEN_FREE
    with pytest.raises(MetadataError) as refusal:
        resolve(("settings", always), ("trigger metadata", wakes))
    assert str(refusal.value) == (
        "trigger metadata 'wake': WhenFree needs reclaim: OnPressure, and it is Always: what is idle would be "
        "suspended and resumed for ever; reclaim is from: settings"
    )
    with pytest.raises(MetadataError, match="reclaim is from: built-in default"):
        resolve(("IdlePolicy/a", wakes))


# ------------------------------------------------------------------------------------------------------------ names

NAMES, PATTERNS = st.text("ab.\n", max_size=12), st.text("ab.*\n", max_size=8)


@given(name=NAMES, patterns=st.lists(PATTERNS, max_size=3))
@example(name="aba", patterns=["ab*ba"])
@example(name="ab", patterns=["a*ab*b"])
def test_a_star_stands_for_any_text_and_nothing_else_for_anything(name: str, patterns: list[str]) -> None:
    assert is_any_of(name, patterns) is any(fnmatchcase(name, each) for each in patterns)


class CountedText(str):
    """A text that counts the characters among which a part was looked for."""

    __slots__ = ("looked_at",)

    def __init__(self, _text: str) -> None:
        self.looked_at = 0

    def find(self, part: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        found = super().find(part, start, len(self) if end is None else end)
        self.looked_at += (found + len(part) if found >= 0 else len(self)) - start
        return found


@given(
    part=st.sampled_from(["a", "aa", "ab", "ba"]),
    stars=st.integers(0, 60),
    head=st.sampled_from(["*", "a*"]),
    tail=st.sampled_from(["", "c", "*c", "*c*"]),
    length=st.integers(0, 3000),
)
def test_a_name_is_looked_through_once_however_many_stars_its_pattern_has(
    part: str, stars: int, head: str, tail: str, length: int
) -> None:
    name = CountedText("a" * length + "b")
    is_any_of(name, [head + f"{part}*" * stars + tail])
    assert name.looked_at <= len(name)
