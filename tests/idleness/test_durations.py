from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.idleness.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30m", timedelta(minutes=30)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("90s", timedelta(seconds=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("2d", timedelta(days=2)),
        ("1.5h", timedelta(minutes=90)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        (" 10s ", timedelta(seconds=10)),
        ("0s", timedelta(0)),
    ],
)
def test_a_duration_is_read_as_people_write_it(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        pytest.param("5 minutes", "write '5m'", id="a word"),
        pytest.param("5 m", "write '5m'", id="a space"),
        pytest.param("10 milliseconds", "write '10ms'", id="a longer word"),
        pytest.param("30", "write '30s'", id="a bare number, whose unit is a guess"),
        pytest.param("30M", "write '30m'", id="an upper-case unit"),
        pytest.param("", "write for example '30m'", id="nothing"),
        pytest.param("-5m", "write for example '30m'", id="a negative one"),
        pytest.param("1w", "write '1s'", id="a unit that is not offered"),
        pytest.param("soon", "write for example '30m'", id="no number"),
        pytest.param("5m!", "write for example '30m'", id="something behind"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as refusal:
        parse_duration(text)
    assert advice in str(refusal.value)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("text", ["999999999999999d", "9" * 500 + "s"])
def test_a_duration_beyond_all_calendars_is_no_misspelt_one(text: str) -> None:
    with pytest.raises(OverflowError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=45), "45s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=1, hours=2, minutes=3), "1d2h"),
        (timedelta(days=1, seconds=5), "1d5s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=1, microseconds=400), "1s"),
        (timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_a_duration_is_written_in_its_two_largest_units(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


UNITS = ("days", "hours", "minutes", "seconds")
WHOLE = {"days": 400, "hours": 23, "minutes": 59, "seconds": 59}


@given(pair=st.sampled_from([(a, b) for a in UNITS for b in UNITS]), data=st.data())
def test_whole_seconds_in_two_units_survive_being_written_and_read(pair: tuple[str, str], data: st.DataObject) -> None:
    given_units = {unit: data.draw(st.integers(0, WHOLE[unit])) for unit in pair}
    duration = timedelta(**given_units)
    assert parse_duration(format_duration(duration)) == duration


@given(duration=st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400)))
def test_writing_never_rounds_up_by_more_than_half_a_millisecond(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) <= duration + timedelta(microseconds=501)
