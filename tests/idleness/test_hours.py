from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.idleness.hours import (
    Hours,
    Weekday,
    first_open,
    following,
    is_open,
    latest,
    next_change,
    parse_day_times,
    parse_hours,
)

BERLIN, LORD_HOWE = "Europe/Berlin", "Australia/Lord_Howe"
MINUTE = timedelta(minutes=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def hours(text: str, zone: str = BERLIN) -> Hours:
    """From `Sat,Sun 22:00-06:00`; without days, every day."""
    *days, span = text.split()
    begin, end = (time.fromisoformat(each) for each in span.split("-"))
    named = frozenset(Weekday(day) for day in days[0].split(",")) if days else frozenset(Weekday)
    return Hours(days=named, begin=begin, end=end, zone=zone)


@pytest.mark.parametrize(
    ("window", "at", "expected"),
    [
        pytest.param("09:00-17:00", "2026-12-01T08:00", True, id="the first minute: 08:00 UTC is 09:00 in winter"),
        pytest.param("09:00-17:00", "2026-12-01T07:59:59", False, id="the second before"),
        pytest.param("09:00-17:00", "2026-12-01T15:59:59", True, id="the last second"),
        pytest.param("09:00-17:00", "2026-12-01T16:00", False, id="the end is not in it"),
        pytest.param("09:00-17:00", "2026-07-01T07:00", True, id="in summer 07:00 UTC is 09:00"),
        pytest.param("Fri 22:00-06:00", "2026-12-04T21:00", True, id="Friday night"),
        pytest.param("Fri 22:00-06:00", "2026-12-05T04:59", True, id="which lasts until Saturday"),
        pytest.param("Fri 22:00-06:00", "2026-12-04T04:59", False, id="Friday morning is Thursday's night"),
        pytest.param("Fri 22:00-06:00", "2026-12-05T21:00", False, id="Saturday night"),
        pytest.param("Sun 22:00-06:00", "2026-12-07T03:00", True, id="Monday morning is Sunday's night"),
        pytest.param("Fri 00:00-00:00", "2026-12-03T23:00", True, id="the whole of Friday, from its first second"),
        pytest.param("Fri 00:00-00:00", "2026-12-04T22:59:59", True, id="to its last"),
        pytest.param("Fri 00:00-00:00", "2026-12-04T23:00", False, id="and not Saturday"),
        pytest.param("02:00-03:00", "2026-03-29T00:59:59", False, id="the hour that is left out: 01:59:59"),
        pytest.param("02:00-03:00", "2026-03-29T01:00", False, id="the hour that is left out: 03:00 a second later"),
        pytest.param("02:30-04:00", "2026-03-29T01:00", True, id="of half an hour that is left out the rest is open"),
        pytest.param("02:30-04:00", "2026-10-25T00:30", True, id="02:30 comes a first time"),
        pytest.param("02:30-04:00", "2026-10-25T01:00", False, id="then the clock shows 02:00"),
        pytest.param("02:30-04:00", "2026-10-25T01:30", True, id="and 02:30 again"),
    ],
)
def test_a_window_is_open_while_the_clock_on_the_wall_shows_a_time_in_it(window: str, at: str, expected: bool) -> None:
    assert is_open([hours(window)], utc(at)) is expected


@pytest.mark.parametrize(
    ("windows", "at", "expected"),
    [
        pytest.param(["09:00-17:00"], "2026-12-01T12:00", "2026-12-01T16:00", id="the end of the day's work"),
        pytest.param(["Mon,Tue 09:00-17:00"], "2026-12-01T16:00", "2026-12-07T08:00", id="Tuesday's end to Monday"),
        pytest.param(["Mon 00:00-00:00"], "2026-11-30T12:00", "2026-11-30T23:00", id="the end of Monday"),
        pytest.param(
            ["Sat 00:00-00:00", "Sun 00:00-00:00"], "2026-12-05T12:00", "2026-12-06T23:00", id="adjoining windows"
        ),
        pytest.param(["09:00-13:00", "12:00-18:00"], "2026-12-01T09:00", "2026-12-01T17:00", id="windows that overlap"),
        pytest.param(
            ["Sat 22:00-06:00"], "2026-03-28T22:00", "2026-03-29T04:00", id="a night of 7 h, which ends early"
        ),
        pytest.param(["Sat 22:00-06:00"], "2026-10-24T22:00", "2026-10-25T05:00", id="a night of 9 h, which ends late"),
        pytest.param(["02:30-04:00"], "2026-03-29T00:00", "2026-03-29T01:00", id="opens where the clock goes forward"),
        pytest.param(["02:30-04:00"], "2026-10-25T00:30", "2026-10-25T01:00", id="closes where the clock goes back"),
        pytest.param(
            ["Sun 02:00-03:00"], "2026-03-28T12:00", "2026-04-05T00:00", id="a week's window that is left out"
        ),
        pytest.param(["00:00-00:00"], "2026-12-01T12:00", None, id="never closes"),
    ],
)
def test_the_next_change_is_known(windows: list[str], at: str, expected: str | None) -> None:
    assert next_change([hours(each) for each in windows], utc(at)) == (utc(expected) if expected else None)


def test_a_clock_that_is_changed_by_half_an_hour_is_read_as_it_stands() -> None:
    """On Lord Howe 02:00 becomes 01:30 on 5 April 2026, at 15:00 UTC of the day before."""
    window = [hours("01:30-01:45", zone=LORD_HOWE)]
    first_end = next_change(window, utc("2026-04-04T14:30"))
    assert first_end == utc("2026-04-04T14:45"), "01:45 at +11:00"
    again = next_change(window, utc("2026-04-04T14:45"))
    assert again == utc("2026-04-04T15:00"), "01:30 at +10:30"
    assert next_change(window, utc("2026-04-04T15:00")) == utc("2026-04-04T15:15")


TIMES = st.integers(0, 95).map(lambda quarter: time(quarter // 4, quarter % 4 * 15))
WINDOWS = st.lists(
    st.builds(
        Hours,
        days=st.frozensets(st.sampled_from(Weekday), min_size=1),
        begin=TIMES,
        end=TIMES,
        zone=st.sampled_from(["UTC", BERLIN, LORD_HOWE, "America/St_Johns"]),
    ),
    min_size=1,
    max_size=3,
)
NEAR_A_CLOCK_CHANGE = st.builds(
    lambda day, minute: utc(day) + minute * MINUTE,
    st.sampled_from(["2026-03-28T12:00", "2026-10-24T12:00", "2026-04-04T00:00", "2026-12-01T00:00"]),
    st.integers(0, 24 * 60),
)


@given(windows=WINDOWS, at=NEAR_A_CLOCK_CHANGE)
@settings(max_examples=60)
def test_nothing_changes_before_the_next_change_and_everything_at_it(windows: list[Hours], at: datetime) -> None:
    change = next_change(windows, at)
    end = min(change or at + timedelta(days=2), at + timedelta(days=2))
    minutes = int((end - at) / MINUTE)
    assert all(is_open(windows, at + n * MINUTE) is is_open(windows, at) for n in range(minutes))
    if change:
        assert is_open(windows, change) is not is_open(windows, at)
        assert is_open(windows, change - timedelta(seconds=1)) is is_open(windows, at), "and not a second before"


@pytest.mark.parametrize("name", ["", "Europe", "Europe/Berln", "../../etc/passwd", "/etc/passwd", "x" * 5000, "a\0b"])
def test_a_zone_that_cannot_be_read_is_an_error_and_no_answer(name: str) -> None:
    always = hours("00:00-00:00")
    with pytest.raises(ValueError, match="cannot be read; write an IANA name such as 'Europe/Berlin'"):
        is_open([always, Hours(zone=name)], utc("2026-12-01T12:00"))


@pytest.mark.parametrize("text", ["Mon,Fri 09:00-17:30", "22:00-06:00", "Sun 12:00-00:00"])
def test_hours_are_shown_as_they_are_written(text: str) -> None:
    assert str(hours(text)) == f"{text.replace('-00:00', '-24:00')} {BERLIN}"


def test_it_is_first_open_at_once_or_when_the_hours_begin():
    window = [hours("09:00-17:00")]
    assert first_open(window, utc("2026-12-01T12:00")) == utc("2026-12-01T12:00")
    assert first_open(window, utc("2026-12-01T20:00")) == utc("2026-12-02T08:00")
    assert first_open([], utc("2026-12-01T12:00")) is None


# ----------------------------------------------------------------------------------------------------- a time of day


@pytest.mark.parametrize(
    ("times", "now", "before", "after"),
    [
        pytest.param("08:00", "2026-12-01T12:00", "2026-12-01T07:00", "2026-12-02T07:00", id="every day"),
        pytest.param("08:00", "2026-12-01T07:00", "2026-12-01T07:00", "2026-12-02T07:00", id="at that very instant"),
        pytest.param("Mon-Fri 08:00", "2026-12-05T12:00", "2026-12-04T07:00", "2026-12-07T07:00", id="over a weekend"),
        pytest.param("Tue 08:00", "2026-12-01T06:00", "2026-11-24T07:00", "2026-12-01T07:00", id="a week ago"),
        pytest.param("08:00 UTC; 12:00", "2026-12-01T10:00", "2026-12-01T08:00", "2026-12-01T11:00", id="two"),
        pytest.param("02:30", "2026-03-29T12:00", "2026-03-29T01:30", "2026-03-30T00:30", id="left out: at 03:30"),
        pytest.param("02:30", "2026-10-25T12:00", "2026-10-25T00:30", "2026-10-26T01:30", id="twice: the first"),
    ],
)
def test_a_time_of_day_is_found_before_and_after(times: str, now: str, before: str, after: str) -> None:
    parsed = parse_day_times(f"{times} {BERLIN}")
    assert (latest(parsed, utc(now)), following(parsed, utc(now))) == (utc(before), utc(after))


# ---------------------------------------------------------------------------------------------------------- in words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("19:00-07:00 UTC", "19:00-07:00 UTC"),
        ("Mon-Fri 19:00-07:00 Europe/Berlin", "Mon,Tue,Wed,Thu,Fri 19:00-07:00 Europe/Berlin"),
        ("Sat-Mon 9:00-24:00 UTC", "Mon,Sat,Sun 09:00-24:00 UTC"),
        ("Mon-Sun 00:00-24:00 UTC", "00:00-24:00 UTC"),
        (" Sat,Sun  00:00-24:00 UTC ;Mon 19:00-07:00 UTC", "Sat,Sun 00:00-24:00 UTC; Mon 19:00-07:00 UTC"),
    ],
)
def test_hours_are_read_as_they_are_written(text: str, shown: str) -> None:
    parsed = parse_hours(text)
    assert "; ".join(map(str, parsed)) == shown
    assert parse_hours(shown) == parsed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has an empty part"),
        ("19:00-07:00 UTC;", "has an empty part"),
        ("19:00-07:00", "are no hours; write for example 'Mon-Fri 19:00-07:00 Europe/Berlin'"),
        ("19-7 UTC", "are no hours"),
        ("24:00-07:00 UTC", "are no hours"),
        ("19:00-25:00 UTC", "are no hours"),
        ("08:00-08:00 UTC", "begins and ends at the same time"),
        ("Monday 19:00-07:00 UTC", "'Monday' is no day; write Mon, Tue"),
        ("19:00-07:00 Europe/Berlim", "time zone 'Europe/Berlim' cannot be read"),
    ],
)
def test_what_are_no_hours_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_hours(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("8 UTC", "is no time of day"), ("24:00 UTC", "is no time of day"), ("Fry 08:00 UTC", "'Fry' is no day")],
)
def test_what_is_no_time_of_day_is_said(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_day_times(text)
