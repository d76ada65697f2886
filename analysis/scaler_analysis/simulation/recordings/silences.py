"""Which series' samples were missing for long, while others were recorded? Pure.

A silence is longer than `longest_s` seconds. Time is cut into spans of that length: within one of them there is no
silence, so the first and the last sample of a series in each tell all of its silences exactly, and a month of samples
is looked at once, in whatever order.

Worked example: silence 1 h, samples at 0:10, 0:50, 2:20 and 2:30. Spans 0:00 (0:10 to 0:50) and 2:00 (2:20 to 2:30);
between 0:50 and 2:20 there is a silence.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class FirstAndLast(NamedTuple):
    """Arrays of one length: a series in one span of time, its first sample there and its last one, in Unix seconds.

    A series may be there several times in one span.
    """

    series: NDArray[np.intp]
    first_s: NDArray[np.float64]
    last_s: NDArray[np.float64]

    @staticmethod
    def joined(parts: "Iterable[FirstAndLast]") -> "FirstAndLast":
        none = FirstAndLast(np.zeros(0, np.intp), np.zeros(0), np.zeros(0))
        return FirstAndLast(*map(np.concatenate, zip(none, *parts, strict=True)))


def first_and_last(
    series: NDArray[np.integer], at_s: NDArray[np.float64], number: int, longest_s: float
) -> FirstAndLast:
    """The first and last samples of so many series, from samples in the order of time."""
    edges = np.flatnonzero(np.diff(at_s // longest_s)) + 1
    spans = pairwise([0, *edges.tolist(), len(series)])
    return FirstAndLast.joined(_in_span(series[begin:end], at_s[begin:end], number) for begin, end in spans)


def _in_span(series: NDArray[np.integer], at_s: NDArray[np.float64], number: int) -> FirstAndLast:
    first_s, last_s = np.full(number, np.nan), np.empty(number)
    first_s[series[::-1]], last_s[series] = at_s[::-1], at_s  # of several the last one that is written stays
    seen = np.flatnonzero(~np.isnan(first_s))
    return FirstAndLast(seen, first_s[seen], last_s[seen])


def silences(numbers: NDArray[np.intp], known: FirstAndLast, longest_s: float) -> Iterator[tuple[int, float, float]]:
    """The silences between samples. `numbers` of what each row counts for, such as the pod of its series."""
    order = np.lexsort((known.first_s, numbers))
    numbers, first_s, last_s = numbers[order], known.first_s[order], known.last_s[order]
    is_next = (np.diff(numbers) != 0) | (np.diff(first_s // longest_s) != 0)
    begins = np.flatnonzero(np.append(len(numbers) > 0, is_next))
    numbers, first_s, last_s = numbers[begins], first_s[begins], np.maximum.reduceat(last_s, begins)
    is_silent = (np.diff(numbers) == 0) & (first_s[1:] - last_s[:-1] > longest_s)
    found = (numbers[1:][is_silent], last_s[:-1][is_silent], first_s[1:][is_silent])
    yield from zip(*(each.tolist() for each in found), strict=True)


def outages_in(known: FirstAndLast, longest_s: float) -> list[tuple[float, float]]:
    """The times in which nothing at all was recorded."""
    return [(begin_s, end_s) for _, begin_s, end_s in silences(np.zeros_like(known.series), known, longest_s)]


def silences_while_others_were_recorded(
    pods: NDArray[np.intp], known: FirstAndLast, longest_s: float
) -> Iterator[tuple[int, float]]:
    """The pod's number and the end of each silence: outages do not count."""
    outages = outages_in(known, longest_s)
    for pod, begin_s, end_s in silences(pods, known, longest_s):
        unseen_s = sum(max(0.0, min(end_s, b) - max(begin_s, a)) for a, b in outages)
        if end_s - begin_s - unseen_s > longest_s:
            yield pod, end_s
