"""The rows of columns show what rings show, to the bit: whatever comes, in whatever order, however late."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from builders import INTERVAL, NOON, TRUST, at, minutes, policy
from hypothesis import given
from hypothesis import strategies as st
from idleness.plain_verdict import gpu_verdict
from idleness.ring import Ring

from scaler.idleness.verdict import Code, gpu_codes, signal_codes
from scaler.idleness.window import SampleColumns

SLOTS = 8
ROWS = 3
Sample = tuple[int, float, float]
"""Row, seconds after noon, ratio."""

ratios = st.sampled_from([0.0, 0.049999999, 0.05, 0.050000001, 0.3, 1.0, 57.0])
steady = st.builds(
    lambda row, begin, period, jitter, values: [
        (row, begin + period * n + each, ratio) for n, (each, ratio) in enumerate(zip(jitter, values, strict=False))
    ],
    st.integers(0, ROWS - 1),
    st.floats(-400, 400),
    st.sampled_from([10.0, 29.5, 30.0, 30.5, 60.0]),
    st.lists(st.floats(-8, 8), min_size=1, max_size=20),
    st.lists(ratios, min_size=1, max_size=20),
)
anywhere = st.lists(st.tuples(st.integers(0, ROWS - 1), st.floats(-600, 600), ratios), max_size=12)
batches = st.lists(st.one_of(steady, anywhere), max_size=6)


def extend(columns: SampleColumns, rings: Sequence[Ring], samples: Sequence[Sample]) -> None:
    """The same samples for both."""
    columns.extend(
        np.array([row for row, _, _ in samples], np.intp),
        np.array([NOON.timestamp() + each for _, each, _ in samples], np.float64),
        np.array([ratio for _, _, ratio in samples], np.float64),
    )
    for row, offset_s, ratio in samples:
        rings[row].extend([(NOON.timestamp() + offset_s, ratio)])


def both() -> tuple[SampleColumns, list[Ring]]:
    columns = SampleColumns(slots=SLOTS, interval=INTERVAL)
    columns.resize(ROWS)
    columns.has_reported[:] = True
    return columns, [Ring(slots=SLOTS, interval=INTERVAL) for _ in range(ROWS)]


@given(
    batches,
    st.floats(-500, 500),
    st.sampled_from([INTERVAL / 2, INTERVAL, minutes(1), minutes(3), minutes(4), minutes(20)]),
    st.sampled_from([0.0, 0.05, 0.3, 2.0]),
)
def test_rows_show_what_rings_show(
    found: Sequence[Sequence[Sample]], end_s: float, length: timedelta, above: float
) -> None:
    columns, rings = both()
    for samples in found:
        extend(columns, rings, samples)
    shown, active = columns.windows(at(end_s), length), columns.last_active(above)
    for row, ring in enumerate(rings):
        assert shown.row(row) == ring.window(at(end_s), length)
        last = None if active[row] == -np.inf else datetime.fromtimestamp(active[row], UTC)
        assert last == ring.last_active_at(above)


refusals = st.lists(st.tuples(st.integers(0, ROWS - 1), st.sampled_from([400.0, 90_000.0, 1e12, 1e300])), max_size=2)


@given(
    st.lists(batches, min_size=1, max_size=3),
    refusals,
    st.floats(-500, 500),
    st.sampled_from([minutes(1), minutes(4)]),
    st.sampled_from([0.05, 0.3, 2.0]),
)
def test_rows_are_judged_as_rings_are_one_by_one(
    found: Sequence[Sequence[Sequence[Sample]]],
    refused: Sequence[tuple[int, float]],
    end_s: float,
    length: timedelta,
    above: float,
) -> None:
    """By several signals. A row of which a sample was refused is never idle, until that is forgotten."""
    signals = [both() for _ in found]
    quiet = [(row, end_s - 30.0 * n - 1, 0.0) for row in range(ROWS) for n in range(SLOTS)]
    for (columns, rings), samples in zip(signals, found, strict=True):
        for each in (*samples, quiet):
            extend(columns, rings, each)
        for row, offset_s in refused:
            columns.refuse(np.array([row]), np.array([NOON.timestamp() + end_s + offset_s]))
    for doubted in ({row for row, _ in refused}, set()):
        windows = [columns.windows(at(end_s), length) for columns, _ in signals]
        asked = {"above_ratio": above, "trust": TRUST, "end": at(end_s)}
        codes = gpu_codes([signal_codes(each, **asked) for each in windows])
        for row in range(ROWS):
            shown = {str(n): each.row(row) for n, each in enumerate(windows)}
            plain = gpu_verdict(shown, policy=policy(active_above_ratio=above), trust=TRUST, end=at(end_s))
            assert codes[row] == plain
            assert plain is not Code.IDLE or row not in doubted
        for columns, _ in signals:
            columns.forget_refused()
    for each, (_, rings) in zip(windows, signals, strict=True):
        assert [each.row(row) for row in range(ROWS)] == [ring.window(at(end_s), length) for ring in rings]


@given(batches, batches)
def test_a_row_that_was_cleared_is_as_new_and_others_stay_as_they_were(
    before: Sequence[Sequence[Sample]], after: Sequence[Sequence[Sample]]
) -> None:
    columns, rings = both()
    for samples in before:
        extend(columns, rings, samples)
    columns.clear(np.array([1]))
    columns.has_reported[:] = True
    rings[1] = Ring(slots=SLOTS, interval=INTERVAL)
    for samples in after:
        extend(columns, rings, samples)
    shown = columns.windows(at(300), minutes(3))
    assert [shown.row(row) for row in range(ROWS)] == [ring.window(at(300), minutes(3)) for ring in rings]


def test_rows_are_added_without_touching_those_that_there_are() -> None:
    columns, rings = both()
    extend(columns, rings, [(row, 10.0 * row, 0.1 * row) for row in range(ROWS)])
    columns.resize(1000)
    columns.has_reported[:] = True
    shown = columns.windows(at(60), minutes(1))
    assert len(columns) >= 1000
    assert [shown.row(row) for row in range(ROWS)] == [ring.window(at(60), minutes(1)) for ring in rings]
    assert shown.row(999) == Ring(slots=SLOTS, interval=INTERVAL).window(at(60), minutes(1))
