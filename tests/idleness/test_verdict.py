from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from builders import (
    BUSY,
    IDLE,
    INTERVAL,
    NOON,
    TRUST,
    UNKNOWN,
    at,
    gpu_evidence,
    minutes,
    policy,
    unknown,
    verdict,
    window,
)
from hypothesis import given
from hypothesis import strategies as st
from idleness.plain_verdict import gpu_verdict

from scaler.idleness.policy import GpuRule, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import (
    Busy,
    Code,
    GpuVerdicts,
    Idle,
    Unknown,
    Verdict,
    distrust,
    gpu_codes,
    judged_length,
    signal_codes,
    workload_verdict,
)
from scaler.idleness.window import NO_WINDOW, Window, WindowColumns, as_stored

QUIET = window(peak=0.0)
ACTIVE = window(peak=0.4)
EMPTY = window(peak=None, covered=0, gap=60, last=None)
STALE = window(last=at(-91))
HOLEY = window(covered=47)
TORN = window(covered=53, gap=7)

ALL, ANY = GpuRule(share=1.0), GpuRule(share=0.0)


def judged(engine: Window, util: Window, **changes: Any) -> Verdict:
    return together([{"gr_engine_active": engine, "gpu_util": util}], **changes).in_words(0)


def together(gpus: Sequence[Mapping[str, Window]], **changes: Any) -> GpuVerdicts:
    """The verdicts on GPUs of the same signals, by the windows of each."""
    above_ratio, names = policy(**changes).active_above_ratio, [*gpus[0]]
    windows = {name: columns_of([each[name] for each in gpus]) for name in names}
    signals = {
        name: signal_codes(each, above_ratio=above_ratio, trust=TRUST, end=NOON) for name, each in windows.items()
    }
    count = len(gpus)
    return GpuVerdicts(
        rows=np.arange(count),
        trust=TRUST,
        end=NOON,
        codes=gpu_codes([*signals.values()]),
        signals=signals,
        windows=windows,
        last_active=np.full(count, -np.inf),
        is_quiet=np.ones(count, np.bool_),
        unexplained=np.full(count, -np.inf),
        is_lone_witness=np.zeros(count, np.bool_),
    )


def columns_of(windows: Sequence[Window]) -> WindowColumns:
    last = [-np.inf if each.last_sample_at is None else each.last_sample_at.timestamp() for each in windows]
    return WindowColumns(
        slots=np.array([each.slots for each in windows]),
        covered=np.array([each.covered for each in windows]),
        longest_gap=np.array([each.longest_gap for each in windows]),
        peaks=np.array([-1 if each.peak_ratio is None else each.peak_ratio for each in windows], np.float32),
        last_samples=np.array(last),
    )


def reason(of: Verdict) -> UnknownReason | None:
    return of.reason if isinstance(of, Unknown) else None


# -------------------------------------------------------------------------------------------------------- one GPU


@pytest.mark.parametrize(
    ("engine", "util", "expected"),
    [
        pytest.param(QUIET, QUIET, Idle, id="all quiet, all trustworthy"),
        pytest.param(ACTIVE, ACTIVE, Busy, id="all active"),
        pytest.param(ACTIVE, QUIET, UnknownReason.SIGNALS_DISAGREE, id="some quiet, some active"),
        pytest.param(
            window(peak=0.0), window(peak=1.0), UnknownReason.SIGNALS_DISAGREE, id="one stuck at 0, one at 100"
        ),
        pytest.param(QUIET, EMPTY, UnknownReason.NO_SAMPLES, id="one quiet, one never reported"),
        pytest.param(NO_WINDOW, QUIET, UnknownReason.NO_SAMPLES, id="one unheard of, one quiet"),
        pytest.param(EMPTY, EMPTY, UnknownReason.NO_SAMPLES, id="no data at all"),
        pytest.param(QUIET, STALE, UnknownReason.STALE_SAMPLES, id="one quiet, one stale"),
        pytest.param(QUIET, HOLEY, UnknownReason.LOW_COVERAGE, id="one quiet, one with too few samples"),
        pytest.param(TORN, QUIET, UnknownReason.SAMPLE_GAP, id="one quiet, one with a hole in which work could hide"),
        pytest.param(ACTIVE, EMPTY, Busy, id="work was seen, the other without data"),
        pytest.param(ACTIVE, STALE, Busy, id="work was seen, the other stale"),
        pytest.param(window(peak=0.4, last=at(-600)), STALE, Busy, id="work was seen before both went stale"),
    ],
)
def test_a_gpu_is_judged_by_all_of_its_signals(engine: Window, util: Window, expected: Any) -> None:
    found = judged(engine, util)
    assert (reason(found) or type(found)) == expected
    swapped = judged(util, engine)
    assert (reason(swapped) or type(swapped)) == expected, "whichever signal it is"


@pytest.mark.parametrize(
    ("peak", "expected"),
    [
        pytest.param(0.0, Idle, id="0 %"),
        pytest.param(0.0099, Idle, id="0.99 %"),
        pytest.param(as_stored(0.01), Busy, id="exactly the floor of 1 %"),
        pytest.param(0.011, Busy, id="1.1 %"),
        pytest.param(57.0, Busy, id="percent where a ratio was declared"),
    ],
)
def test_quiet_is_below_the_floor(peak: float, expected: type) -> None:
    assert isinstance(judged(window(peak=peak), window(peak=peak)), expected)


def test_the_floor_is_the_policys() -> None:
    assert isinstance(judged(window(peak=0.04), window(peak=0.03), active_above_ratio=0.05), Idle)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param(window(last=at(-90)), None, id="90 s = 3 intervals old is fresh enough"),
        pytest.param(window(last=at(-90.1)), UnknownReason.STALE_SAMPLES, id="a tenth of a second more is stale"),
        pytest.param(window(covered=48), None, id="48 of 60 = 80 % is enough"),
        pytest.param(window(covered=47), UnknownReason.LOW_COVERAGE, id="47 of 60 = 78.3 % is not"),
        pytest.param(window(covered=54, gap=6), None, id="a hole of 6 intervals is tolerated"),
        pytest.param(window(covered=53, gap=7), UnknownReason.SAMPLE_GAP, id="one of 7 is not, whatever the coverage"),
        pytest.param(window(covered=40, gap=20), UnknownReason.SAMPLE_GAP, id="the hole is the more precise word"),
        pytest.param(
            window(peak=None, covered=0, gap=60, last=at(-3600)),
            UnknownReason.NO_SAMPLES,
            id="none at all in the window",
        ),
        pytest.param(window(last=at(-600), covered=40, gap=20), UnknownReason.STALE_SAMPLES, id="stale comes first"),
        pytest.param(window(last=at(10)), None, id="a clock that is ahead is no reason to doubt"),
    ],
)
def test_quiet_is_believed_only_where_the_data_are_good_enough(shown: Window, expected: UnknownReason | None) -> None:
    assert reason(judged(shown, shown)) == expected


def test_a_doubt_says_what_is_wrong_in_the_owners_words() -> None:
    messages = [
        found.message for shown in (STALE, HOLEY, TORN, EMPTY) if isinstance(found := judged(shown, QUIET), Unknown)
    ]
    assert messages == [
        "newest sample of gr_engine_active is 1m31s old (limit 1m30s)",
        "gr_engine_active covers 47 of 60 collection intervals (at least 80 % needed); if that stays, "
        "set trust.collectionInterval, now 30s, to how often samples come",
        "gr_engine_active has a hole of 3m30s (limit 3m)",
        "gr_engine_active has no sample in the window",
    ]


def test_a_contradiction_names_both_sides() -> None:
    found = judged(window(peak=0.0), window(peak=1.0))
    assert isinstance(found, Unknown)
    assert found.message == "gpu_util peaks at 100 % while gr_engine_active peaks at 0 % over the same window"


def test_a_gpu_of_which_no_signal_is_expected_is_unknown_and_not_idle() -> None:
    none = np.full(1, Code.ABSENT, np.uint8)
    found = replace(together([{"gpu_util": QUIET}]), codes=gpu_codes([none]), signals={"gpu_util": none})
    assert found.in_words(0) == unknown(
        UnknownReason.NO_SAMPLES, "no signal is expected of this GPU; configure at least one"
    )
    assert not found.windows_at(0)


windows = st.builds(
    lambda peak, slots, covered, gap, age: window(
        peak=peak if covered else None,
        slots=slots,
        covered=min(covered, slots),
        gap=gap,
        last=at(-age) if covered else None,
    ),
    peak=st.sampled_from([0.0, 0.005, 0.01, 0.5, 1.0]),
    slots=st.integers(1, 100),
    covered=st.integers(0, 100),
    gap=st.integers(0, 20),
    age=st.floats(0, 300),
)


@given(of_gpus=st.lists(st.tuples(windows, windows, windows), min_size=1, max_size=5))
def test_idle_needs_positive_evidence_from_every_signal(of_gpus: list[tuple[Window, ...]]) -> None:
    """And it is what is found of each GPU alone, with a reason where it is unknown."""
    shown = [dict(zip("abc", each, strict=True)) for each in of_gpus]
    found = together(shown)
    for position, signals in enumerate(shown):
        code = Code(found.codes.item(position))
        assert code is gpu_verdict(signals, policy=policy(), trust=TRUST, end=NOON)
        words = found.in_words(position)
        assert words == together([signals]).in_words(0)
        assert (code is Code.IDLE, code is Code.BUSY) == (isinstance(words, Idle), isinstance(words, Busy))
        if isinstance(words, Unknown):
            assert words.reason is UnknownReason[code.name]
        for each in signals.values() if code is Code.IDLE else ():
            assert each.peak_ratio is not None
            assert each.peak_ratio < 0.01
            assert each.coverage_ratio >= 0.8
            assert each.longest_gap <= 6
            assert each.last_sample_at is not None
            assert NOON - each.last_sample_at <= timedelta(seconds=90)


# ---------------------------------------------------------------------------------------------------- the workload


@pytest.mark.parametrize(
    ("gpus", "rule", "expected"),
    [
        pytest.param([IDLE, IDLE], "all", Idle, id="all of all idle"),
        pytest.param([IDLE, BUSY], "all", Busy, id="one of two busy, all asked for"),
        pytest.param([IDLE, UNKNOWN], "all", Unknown, id="one of two unknown"),
        pytest.param([BUSY, UNKNOWN], "all", Busy, id="busy whatever the unknown one does"),
        pytest.param([IDLE, BUSY], "any", Idle, id="one idle is enough for any"),
        pytest.param([BUSY, BUSY], "any", Busy, id="none idle, any asked for"),
        pytest.param([IDLE, UNKNOWN], "any", Unknown, id="any of partial data is partial data"),
        pytest.param([BUSY, UNKNOWN], "any", Unknown, id="the unknown one could be idle"),
        pytest.param([IDLE] * 4 + [BUSY], "quorum:0.8", Idle, id="4 of 5 = 80 %"),
        pytest.param([IDLE] * 3 + [BUSY] * 2, "quorum:0.8", Busy, id="3 of 5: at most 3 could be idle, 4 needed"),
        pytest.param([IDLE] * 4 + [UNKNOWN], "quorum:0.8", Unknown, id="a quorum of partial data is partial data"),
        pytest.param([IDLE] * 3 + [BUSY, UNKNOWN], "quorum:0.8", Unknown, id="the unknown one decides"),
        pytest.param(
            [IDLE] * 2 + [BUSY] * 2 + [UNKNOWN], "quorum:0.8", Busy, id="busy whatever it does: 3 of 5 at most"
        ),
        pytest.param([UNKNOWN], "all", Unknown, id="nothing known"),
        pytest.param([], "all", Unknown, id="no GPU at all"),
        pytest.param([], "any", Unknown, id="no GPU at all, any asked for"),
    ],
)
def test_a_workload_is_judged_by_its_rule(gpus: Sequence[Verdict], rule: str, expected: type) -> None:
    found = workload_verdict([gpu_evidence(each) for each in gpus], rule=GpuRule.parse(rule))
    assert isinstance(found.verdict, expected)
    assert len(found.gpus) == len(gpus)


def test_a_workloads_doubt_names_the_gpu_that_causes_it() -> None:
    found = workload_verdict([gpu_evidence(), gpu_evidence(UNKNOWN, gpu="GPU-1", pod="worker-1")], rule=ALL)
    assert found.verdict == unknown(message="GPU GPU-1 of pod worker-1: newest sample is 5m old")


verdicts = st.sampled_from([IDLE, BUSY, UNKNOWN])
rules = st.one_of(st.just(ALL), st.just(ANY), st.floats(0.01, 1).map(lambda share: GpuRule(share=share)))


@given(gpus=st.lists(verdicts, min_size=1, max_size=12), rule=rules)
def test_idle_is_exactly_enough_idle_gpus_and_unknown_never_shrinks(gpus: list[Verdict], rule: GpuRule) -> None:
    found = workload_verdict([gpu_evidence(each) for each in gpus], rule=rule)
    enough = gpus.count(IDLE) >= rule.idle_gpus_needed(len(gpus))
    assert isinstance(found.verdict, Idle) == (enough and UNKNOWN not in gpus)


@given(gpus=st.lists(verdicts, min_size=1, max_size=12), rule=rules, data=st.data())
def test_busy_stays_busy_whatever_the_unknown_gpus_turn_out_to_do(
    gpus: list[Verdict], rule: GpuRule, data: st.DataObject
) -> None:
    found = workload_verdict([gpu_evidence(each) for each in gpus], rule=rule)
    if isinstance(found.verdict, Busy):
        known: st.SearchStrategy[Verdict] = st.sampled_from([IDLE, BUSY])
        revealed = [data.draw(known) if each == UNKNOWN else each for each in gpus]
        again = workload_verdict([gpu_evidence(each) for each in revealed], rule=rule)
        assert isinstance(again.verdict, Busy)


# -------------------------------------------------------------------------------------------------- the source's doubts


@pytest.mark.parametrize("of", [IDLE, UNKNOWN])
def test_under_a_doubt_about_the_source_all_is_unknown_but_work_that_was_seen(of: Verdict) -> None:
    doubt = unknown(UnknownReason.SOURCE_UNAVAILABLE, "gpu_util: connection refused")
    assert distrust(verdict(of), doubt).verdict == doubt
    assert distrust(verdict(BUSY), doubt).verdict == BUSY
    assert distrust(verdict(of), doubt).gpus == verdict(of).gpus, "the evidence stays to be seen"
    assert distrust(verdict(of), None) == verdict(of)


@pytest.mark.parametrize(("idle_after", "expected"), [(minutes(30), minutes(30)), (timedelta(seconds=5), INTERVAL)])
def test_the_judged_window_is_idle_after_and_at_least_one_interval(idle_after: timedelta, expected: timedelta) -> None:
    assert judged_length(policy=policy(idle_after=idle_after), trust=Trust(interval=INTERVAL)) == expected
