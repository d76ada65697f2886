"""The rows of columns show what rings show, to the bit: whatever comes, in whatever order, however late."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from builders import INTERVAL, NOON, TRUST, at, minutes
from hypothesis import given
from hypothesis import strategies as st
from idleness.written_ring import WrittenRing

from scaler.idleness.columns import SampleColumns
from scaler.idleness.policy import Policy
from scaler.idleness.verdict import Busy, Idle, gpu_verdict

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


def extend(columns: SampleColumns, rings: Sequence[WrittenRing], samples: Sequence[Sample]) -> None:
    """The same samples for both."""
    columns.extend(
        np.array([row for row, _, _ in samples], np.intp),
        np.array([NOON.timestamp() + each for _, each, _ in samples], np.float64),
        np.array([ratio for _, _, ratio in samples], np.float64),
    )
    for row, offset_s, ratio in samples:
        rings[row].extend([(NOON.timestamp() + offset_s, ratio)])


def both() -> tuple[SampleColumns, list[WrittenRing]]:
    columns = SampleColumns(slots=SLOTS, interval=INTERVAL)
    columns.resize(ROWS)
    return columns, [WrittenRing(slots=SLOTS, interval=INTERVAL) for _ in range(ROWS)]


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


@given(batches, refusals, st.floats(-500, 500), st.sampled_from([minutes(1), minutes(4)]), st.sampled_from([0.05, 2.0]))
def test_what_is_trusted_together_is_trusted_one_by_one(
    found: Sequence[Sequence[Sample]],
    refused: Sequence[tuple[int, float]],
    end_s: float,
    length: timedelta,
    above: float,
) -> None:
    """By rows, and by their windows: a row of which a sample was refused by neither, until it is forgotten."""
    columns, rings = both()
    quiet = [(row, end_s - 30.0 * n - 1, 0.0) for row in range(ROWS) for n in range(SLOTS)]
    for samples in (*found, quiet):
        extend(columns, rings, samples)
    for row, offset_s in refused:
        columns.refuse(np.array([row]), np.array([NOON.timestamp() + end_s + offset_s]))
    policy = Policy(active_above_ratio=above)
    for doubted in ({row for row, _ in refused}, set()):
        windows = columns.windows(at(end_s), length)
        is_active, is_trusted = windows.shown(above, TRUST, at(end_s))
        for row in range(ROWS):
            verdict = gpu_verdict({"s": windows.row(row)}, policy=policy, trust=TRUST, end=at(end_s))
            assert isinstance(verdict, Busy) == is_active[row]
            assert isinstance(verdict, Idle) == (is_trusted[row] and not is_active[row])
            assert not isinstance(verdict, Idle) or row not in doubted
        columns.forget_refused()
    assert [windows.row(row) for row in range(ROWS)] == [ring.window(at(end_s), length) for ring in rings]


@given(batches, batches)
def test_a_row_that_was_cleared_is_as_new_and_others_stay_as_they_were(
    before: Sequence[Sequence[Sample]], after: Sequence[Sequence[Sample]]
) -> None:
    columns, rings = both()
    for samples in before:
        extend(columns, rings, samples)
    columns.clear(np.array([1]))
    rings[1] = WrittenRing(slots=SLOTS, interval=INTERVAL)
    for samples in after:
        extend(columns, rings, samples)
    shown = columns.windows(at(300), minutes(3))
    assert [shown.row(row) for row in range(ROWS)] == [ring.window(at(300), minutes(3)) for ring in rings]


def test_rows_are_added_without_touching_those_that_there_are() -> None:
    columns, rings = both()
    extend(columns, rings, [(row, 10.0 * row, 0.1 * row) for row in range(ROWS)])
    columns.resize(1000)
    shown = columns.windows(at(60), minutes(1))
    assert len(columns) >= 1000
    assert [shown.row(row) for row in range(ROWS)] == [ring.window(at(60), minutes(1)) for ring in rings]
    assert shown.row(999) == WrittenRing(slots=SLOTS, interval=INTERVAL).window(at(60), minutes(1))
