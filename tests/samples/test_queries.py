from datetime import timedelta

import pytest

from scaler.idleness.gpu import DEFAULT_SIGNALS, Signal, Unit
from scaler.samples.promql import range_duration, signal_query

HALF_AN_HOUR = timedelta(minutes=30)


def signal(*metrics: str) -> Signal:
    return Signal(name="s", metrics=metrics, unit=Unit.RATIO)


QUERIES = {
    "one metric": (signal("A"), {}, "A[1800s]"),
    "one metric and a matcher": (signal("A"), {"cluster": "x"}, 'A{cluster="x"}[1800s]'),
    "two metrics": (signal("A", "B_C"), {}, '{__name__=~"A|B_C"}[1800s]'),
    "two metrics and two matchers": (
        signal("A", "B"),
        {"cluster": "x", "env": "y"},
        '{__name__=~"A|B",cluster="x",env="y"}[1800s]',
    ),
    "a name that PromQL cannot write bare": (signal("k8s.gpu"), {}, '{__name__="k8s.gpu"}[1800s]'),
    "a dot in an alternative is a dot": (signal("a.b", "c"), {}, r'{__name__=~"a\\.b|c"}[1800s]'),
    "a matcher cannot break out of its quotes": (
        signal("A"),
        {"ns": 'a"} or vector(1) #'},
        r'A{ns="a\"} or vector(1) #"}[1800s]',
    ),
    "backslashes and newlines are escaped": (signal("A"), {"ns": "a\\b\nc\t\x00é"}, r'A{ns="a\\b\nc\t\u0000é"}[1800s]'),
    "an empty value asks for the label's absence": (signal("A"), {"ns": ""}, 'A{ns=""}[1800s]'),
    "the default signals": (
        DEFAULT_SIGNALS[1],
        {},
        '{__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_GPU_UTIL_RATIO"}[1800s]',
    ),
}


@pytest.mark.parametrize(("wanted", "matchers", "promql"), QUERIES.values(), ids=QUERIES.keys())
def test_one_range_selector_fetches_a_signal(wanted: Signal, matchers: dict[str, str], promql: str) -> None:
    assert signal_query(wanted, matchers=matchers, span=HALF_AN_HOUR) == promql


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=30), "30s"),
        (timedelta(seconds=1, milliseconds=500), "1500ms"),
        (timedelta(microseconds=1), "1ms"),
        (timedelta(days=1), "86400s"),
    ],
)
def test_durations_are_whole_seconds_or_milliseconds(span: timedelta, text: str) -> None:
    assert range_duration(span) == text


@pytest.mark.parametrize("span", [timedelta(0), timedelta(seconds=-1)])
def test_an_empty_range_is_refused(span: timedelta) -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        range_duration(span)
