"""What is shown of one workload over time; keeps may be written by tenants."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import scalable_workload, scaled_object

from scaler.errors import QueryError
from scaler.idleness.policy import Policy
from scaler.reporting.page.workload_page import TimeSpans, history_lines, recorded_keeps

DEPLOYMENT = ("apps/v1", "Deployment")
GOOD = {"at": "2026-12-01T11:00:00Z", "state": "Idle", "reason": "GPUsBusy", "message": "quiet"}


def written(*lines: object, key: str = "history"):
    text = json.dumps(lines)
    return scaled_object("notebook", kind=DEPLOYMENT, annotations={f"idlegpu.io/{key}": text})


def test_the_history_is_that_of_the_record() -> None:
    record = scalable_workload("train", history=[GOOD, {**GOOD, "at": "2026-12-01T11:30:00Z", "state": "Warned"}])
    assert [each.state for each in history_lines(record)] == ["Idle", "Warned"]
    assert {each.message for each in history_lines(record, lambda _: "hidden")} == {"hidden"}
    assert history_lines(None) == []


@given(st.text(max_size=200))
def test_no_annotation_breaks_the_page(text: str) -> None:
    found = scaled_object("notebook", kind=DEPLOYMENT)
    found.metadata.annotations.update({"idlegpu.io/keeps": text})
    recorded_keeps(found)


def test_the_newest_keeps_are_shown_first_and_those_without_a_zone_are_left_out() -> None:
    keeps = [{"at": f"2026-12-01T1{n}:00:00Z", "until": "2026-12-02T00:00:00Z", "by": str(n)} for n in range(2)]
    bad = {"at": "2026-12-01T10:00:00Z", "until": "2026-12-02T00:00:00", "by": "x"}
    assert [each.by for each in recorded_keeps(written(*keeps, bad, key="keeps"))] == ["1", "0"]
    assert recorded_keeps(None) == []


# --------------------------------------------------------------------------------------------------- how much is shown


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


@pytest.mark.parametrize(
    ("idle_after", "offered"),
    [
        (hours(0.5), [hours(1.5), hours(6), hours(24)]),
        (hours(8), [hours(12), hours(48)]),  # never more than two days
        (timedelta(seconds=4), [timedelta(seconds=15), timedelta(minutes=1), timedelta(minutes=4)]),
    ],
)
def test_the_time_that_is_shown_fits_the_window(idle_after: timedelta, offered: list[timedelta]) -> None:
    assert TimeSpans.of("", Policy(idle_after=idle_after)).offered == offered


def test_any_other_time_may_be_asked_for_within_limits() -> None:
    assert TimeSpans.of("2h", Policy(idle_after=timedelta(minutes=30))).shown == hours(2)
    for text, words in [("9s", "from 10s to 2d"), ("3d", "from 10s to 2d"), ("soon", "not a duration"), ("5", "'5'")]:
        with pytest.raises(QueryError, match=words):
            TimeSpans.of(text, Policy(idle_after=timedelta(minutes=30)))
