"""Silences are those that one finds sample by sample, however files cut the samples."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scaler_analysis.simulation.recordings.silences import (
    FirstAndLast,
    first_and_last,
    silences_while_others_were_recorded,
)

LONGEST_S = 10.0
SERIES = 5
PODS = np.array([0, 0, 1, 2, 2])
"""By series."""

Sample = tuple[int, float]
samples = st.tuples(st.integers(0, SERIES - 1), st.integers(0, 400).map(lambda tenths: tenths / 4))
files = st.lists(st.lists(samples, max_size=12), max_size=5)


def _known(of_files: Iterable[Sequence[Sample]]) -> FirstAndLast:
    parts = []
    for each in of_files:
        ordered = sorted(each, key=lambda sample: sample[1])
        series, at_s = np.array([n for n, _ in ordered], np.intp), np.array([at for _, at in ordered], np.float64)
        parts.append(first_and_last(series, at_s, SERIES, LONGEST_S))
    return FirstAndLast.joined(parts)


def _long_gaps(times: Iterable[float]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in pairwise(sorted(times)) if b - a > LONGEST_S]


@given(files)
def test_a_pod_is_silent_where_its_samples_are_apart_for_longer_than_nothing_at_all_was_recorded(of_files):
    everything = [sample for each in of_files for sample in each]
    outages = _long_gaps(at for _, at in everything)
    expected = [
        (pod, end)
        for pod in range(3)
        for begin, end in _long_gaps(at for n, at in everything if PODS[n] == pod)
        if end - begin - sum(max(0.0, min(end, b) - max(begin, a)) for a, b in outages) > LONGEST_S
    ]
    known = _known(of_files)

    assert list(silences_while_others_were_recorded(PODS[known.series], known, LONGEST_S)) == expected


@given(files)
def test_the_first_and_the_last_sample_of_a_series_are_among_those_of_its_spans(of_files):
    known = _known(of_files)
    for number in range(SERIES):
        times = [at for each in of_files for n, at in each if n == number]
        its = known.series == number
        seen = (*known.first_s[its], *known.last_s[its])
        assert {min(seen), max(seen)} == {min(times), max(times)} if times else not seen
