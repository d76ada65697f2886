import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.samples.responses import matrix, read_answer, read_refusal, vector
from scaler.samples.source import ReadError, ReadOutcome


def body(result: Any, result_type: str = "matrix", **envelope: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": result_type, "result": result}, **envelope}).encode()


LABELS = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "pod": 'a"\\\né'}


def test_a_series_has_its_labels_and_its_samples_with_their_own_times() -> None:
    samples = [[100.0, "0"], [101, "97.5"], [102.123, "NaN"], [103.5, "+Inf"], [104, "-Inf"], [105, "1e-07"]]
    (series,) = matrix(read_answer(body([{"metric": LABELS, "values": samples}])), after_s=0)
    assert series.labels() == LABELS
    times, values = zip(*series.samples(), strict=True)
    assert times == (100.0, 101.0, 102.123, 103.5, 104.0, 105.0)
    assert math.isnan(values[2])
    assert (*values[:2], *values[3:]) == (0.0, 97.5, math.inf, -math.inf, 1e-07)


def test_the_sample_at_the_left_edge_is_left_out() -> None:
    # Prometheus 2 returns [start, end], Prometheus 3 (start, end].
    samples = [[99.999, "1"], [100, "2"], [100.001, "3"], [101, "4"]]
    (series,) = matrix(read_answer(body([{"metric": LABELS, "values": samples}])), after_s=100)
    assert series.samples() == [(100.001, 3.0), (101.0, 4.0)]


@given(st.integers(min_value=0, max_value=4 * 10**12), st.integers(min_value=-3, max_value=3))
def test_the_left_edge_is_exact_to_the_millisecond(start_ms: int, offset_ms: int) -> None:
    at_ms = start_ms + offset_ms
    (series,) = matrix(read_answer(body([{"metric": {}, "values": [[at_ms / 1000, "1"]]}])), after_s=start_ms / 1000)
    assert bool(series.samples()) is (at_ms > start_ms)


names = st.one_of(st.text(max_size=8), st.sampled_from(['{"metric":', ',{"metric":{', '"},{"metric":', "\\", "é"]))
matrices = st.lists(
    st.fixed_dictionaries(
        {
            "metric": st.dictionaries(names, names, max_size=3),
            "values": st.lists(st.tuples(st.integers(1, 99), st.sampled_from(["0", "1.5", "NaN"])), max_size=4),
        }
    ),
    max_size=8,
)


def compact(result: Any, *, ascii_only: bool = False, **envelope: Any) -> bytes:
    """As servers write it: without blanks."""
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}, **envelope}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=ascii_only).encode(errors="replace")


@given(matrices, st.integers(1, 400), st.booleans(), st.sampled_from([{}, {"infos": ['{"metric":{"a":"b"}}']}]))
def test_a_result_in_parts_is_the_result(
    result: list[Any], part_bytes: int, ascii_only: bool, more: dict[str, Any]
) -> None:
    text = compact(result, ascii_only=ascii_only, **more)
    whole, parts = read_answer(text), read_answer(text, part_bytes=part_bytes)
    assert len([*whole.result()]) == 1
    assert parts.size_bytes == whole.size_bytes == len(text)
    assert [(each.key, repr(each.samples())) for each in matrix(parts, after_s=0)] == [
        (each.key, repr(each.samples())) for each in matrix(whole, after_s=0)
    ]


texts = st.one_of(
    st.sampled_from(["0", "1.5", "NaN", "+Inf", "-Inf", "1e-07", "", "1_0", " 1", "x", "1,2", "]", '"', "1-2"]),
    st.floats(allow_nan=False).map(repr),
)
pairs = st.one_of(st.tuples(st.floats(1, 2e9), texts), st.just((1,)), st.just(("1", "2")), st.just((1, 2)))


@given(st.lists(st.one_of(st.lists(pairs, max_size=3), st.sampled_from(["", {}, None])), max_size=4))
def test_samples_are_read_together_as_they_are_one_by_one(values: list[Any]) -> None:
    """With blanks between them, as no server writes it, they are read one by one."""
    series = [{"metric": {"gpu": str(number)}, "values": each} for number, each in enumerate(values)]
    try:
        expected = [(each.labels(), repr(each.samples())) for each in matrix(read_answer(body(series)), after_s=1)]
    except ReadError:
        with pytest.raises(ReadError):
            _ = [*matrix(read_answer(compact(series)), after_s=1)]
    else:
        found = matrix(read_answer(compact(series)), after_s=1)
        assert [(each.labels(), repr(each.samples())) for each in found] == expected


DIGITS = st.text(st.sampled_from("0019.eE+-_ \u0660\u06f0naNInfx"), max_size=5)
_WRITTEN_BY_GO = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|[+-]?inf(inity)?|[+-]nan", re.IGNORECASE
)


@given(DIGITS | texts, st.booleans())
def test_no_sample_and_no_demand_comes_of_what_is_no_number(text: str, is_compact: bool) -> None:
    """Above all no 0: digits of other scripts, underscores and blanks are what only Python reads."""
    series = [{"metric": {"__name__": "m"}, "values": [[1, text]]}]
    answer = read_answer(compact(series) if is_compact else body(series))
    element = read_answer(body([{"metric": {}, "value": [1, text]}], "vector"))
    if _WRITTEN_BY_GO.fullmatch(text):
        assert repr([each.samples() for each in matrix(answer, after_s=0)]) == repr([[(1.0, float(text))]])
        assert repr([each.value for each in vector(element)]) == repr([float(text)])
    else:
        with pytest.raises(ReadError):
            _ = [*matrix(answer, after_s=0)]
        with pytest.raises(ReadError):
            vector(element)


@given(matrices, st.sampled_from([1, 40, 2**20]))
def test_only_series_of_the_name_that_was_asked_for_have_labels(result: list[Any], part_bytes: int) -> None:
    """So that no sample of another metric is ever anybody's; a name may be missing, or be another label's value."""
    for n, series in enumerate(result):
        series["metric"] |= {} if n % 3 == 0 else {"__name__": ("m", "m_other")[n % 2], "name": "m"}
    found = matrix(read_answer(compact(result), part_bytes=part_bytes), after_s=0, names=("m",))
    for series, given_ in zip(found, result, strict=True):
        if given_["metric"].get("__name__") == "m":
            assert series.labels() == given_["metric"]
        else:
            with pytest.raises(ReadError, match="answers another question than for m"):
                series.labels()


SERIES = [{"metric": {"gpu": str(number)}, "values": [[1, "0"]]} for number in range(9)]


def test_an_answer_in_parts_is_refused_like_any_other() -> None:
    text = compact(SERIES, warnings=["a store is down"])
    with pytest.raises(ReadError, match="a store is down"):
        read_answer(text, part_bytes=40)
    for broken in (text[:-1], text[:200], text.replace(b'"gpu":"4"', b'"gpu":}'), text.replace(b"[[1,", b"[[", 1)):
        with pytest.raises(ReadError):
            _ = [*matrix(read_answer(broken, part_bytes=40), after_s=0)]
    assert len([*read_answer(compact(SERIES), part_bytes=40).result()]) > 3


def test_equal_keys_mean_equal_labels() -> None:
    answer = read_answer(body([{"metric": LABELS, "values": []}, {"metric": LABELS, "values": [[1, "2"]]}]))
    first, second = matrix(answer, after_s=0)
    assert first.key == second.key
    assert isinstance(first.key, bytes)


def test_an_empty_result_is_a_success_without_series() -> None:
    assert [*matrix(read_answer(body([])), after_s=0)] == []


@pytest.mark.parametrize("field", ["infos", "warnings"])
def test_infos_are_ignored_wherever_they_are(field: str) -> None:
    info = 'PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "DCGM_X" (1:5)'
    assert [*matrix(read_answer(body([], **{field: [info]})), after_s=0)] == []
    with pytest.raises(ReadError, match=r"incomplete: a store is down$"):
        read_answer(body([], warnings=[info, "a store is down"]))


def test_a_vector_is_demand() -> None:
    result = [{"metric": {"a": "b"}, "value": [1.5, "3"]}, {"metric": {}, "value": [1.5, "NaN"]}]
    first, second = vector(read_answer(body(result, "vector")))
    assert first == ({"a": "b"}, 3.0)
    assert math.isnan(second.value)


WRONG: dict[str, tuple[bytes, ReadOutcome, str]] = {
    "warnings": (body([], warnings=["store 10.0.0.3:10901 unavailable"]), ReadOutcome.PARTIAL, "store 10.0.0.3:10901"),
    "an error beside a success": (body([], error="store 7 is down"), ReadOutcome.REFUSED, "store 7 is down"),
    "its type alone": (body([], errorType="timeout"), ReadOutcome.UNAVAILABLE, "200 timeout"),
    "VictoriaMetrics' mark": (body([], isPartial=True), ReadOutcome.PARTIAL, "as partial (isPartial)"),
    "FiloDB's mark": (body([], partial=True, message="a shard starts"), ReadOutcome.PARTIAL, "as partial (partial)"),
    "HTML": (b"<html><title>Sign in</title></html>", ReadOutcome.PROTOCOL, "Sign in"),
    "nothing": (b"", ReadOutcome.PROTOCOL, "check the URL"),
    "a body that breaks off": (
        body([{"metric": LABELS, "values": [[1, "2"]]}])[:-20],
        ReadOutcome.PROTOCOL,
        "not Prometheus",
    ),
    "no data": (b'{"status":"success"}', ReadOutcome.PROTOCOL, "no result"),
    "an error with status 200": (
        b'{"status":"error","errorType":"bad_data","error":"parse error"}',
        ReadOutcome.REFUSED,
        "bad_data: parse error",
    ),
    "a timeout with status 200": (
        b'{"status":"error","errorType":"timeout","error":"query timed out"}',
        ReadOutcome.UNAVAILABLE,
        "query timed out",
    ),
    "another result type": (body([1, "2"], "scalar"), ReadOutcome.PROTOCOL, "gives a scalar where a matrix"),
    "a vector": (body([], "vector"), ReadOutcome.PROTOCOL, "gives a vector where a matrix"),
    "a matrix that is none": (body([{"values": []}]), ReadOutcome.PROTOCOL, "matrix cannot be read"),
    "a native histogram": (
        body([{"metric": {"__name__": "h"}, "histograms": [[1, {"count": "1", "sum": "2"}]]}]),
        ReadOutcome.PROTOCOL,
        '"__name__":"h"',
    ),
}


@pytest.mark.parametrize(("text", "outcome", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_complete_answer_is_an_error(text: bytes, outcome: ReadOutcome, words: str) -> None:
    with pytest.raises(ReadError) as failed:
        _ = [*matrix(read_answer(text), after_s=0)]
    assert failed.value.outcome is outcome
    assert words in str(failed.value).replace('": "', '":"')


MARKS: dict[str, tuple[Any, Any]] = {
    "warnings": (["a store is down"], []),
    "isPartial": (True, False),
    "partial": (True, False),
}
"""By which servers say that something is missing: how they say it, and how they say that nothing is."""


@given(
    st.dictionaries(st.sampled_from([*MARKS]), st.booleans()),
    matrices,
    st.booleans(),
    st.sampled_from([1, 40, 2**20]),
)
def test_an_answer_is_partial_whatever_marks_it_and_wherever_the_mark_is(
    marked: dict[str, bool], result: list[Any], is_last: bool, part_bytes: int
) -> None:
    marks = {mark: MARKS[mark][0 if is_set else 1] for mark, is_set in marked.items()}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    text = json.dumps({**answer, **marks} if is_last else {**marks, **answer}, separators=(",", ":")).encode()
    if any(marked.values()):
        with pytest.raises(ReadError) as failed:
            read_answer(text, part_bytes=part_bytes)
        assert (failed.value.outcome, failed.value.transient) == (ReadOutcome.PARTIAL, True)
    else:
        read_answer(text, part_bytes=part_bytes)


@pytest.mark.parametrize(
    ("values", "words"),
    [([[1, "two"]], "could not convert"), ([[1]], "samples of"), ([["1", "2"]], "samples of"), ("x", "samples of")],
)
def test_samples_that_are_none_are_an_error(values: Any, words: str) -> None:
    with pytest.raises(ReadError, match=words):
        _ = [*matrix(read_answer(body([{"metric": LABELS, "values": values}])), after_s=0)]


def test_labels_that_are_none_are_an_error() -> None:
    (series,) = matrix(read_answer(body([{"metric": [1], "values": []}])), after_s=0)
    with pytest.raises(ReadError, match="labels"):
        series.labels()


@pytest.mark.parametrize(
    ("result", "result_type", "words"),
    [
        ([1, "2"], "scalar", r"wrap the query in vector\(…\)"),
        ([], "matrix", "gives a matrix"),
        ([{"metric": {"a": "b"}, "histogram": [1, {}]}], "vector", "may not return histograms"),
        ([{"metric": {}, "value": [1, "x"]}], "vector", "cannot be read"),
    ],
)
def test_a_demand_query_must_give_a_vector_of_numbers(result: Any, result_type: str, words: str) -> None:
    with pytest.raises(ReadError, match=words):
        vector(read_answer(body(result, result_type)))


REFUSALS: dict[int, tuple[ReadOutcome, bool]] = {
    400: (ReadOutcome.REFUSED, False),
    401: (ReadOutcome.DENIED, False),
    403: (ReadOutcome.DENIED, False),
    404: (ReadOutcome.PROTOCOL, False),
    408: (ReadOutcome.UNAVAILABLE, True),
    422: (ReadOutcome.REFUSED, False),
    429: (ReadOutcome.UNAVAILABLE, True),
    500: (ReadOutcome.UNAVAILABLE, True),
    502: (ReadOutcome.UNAVAILABLE, True),
    503: (ReadOutcome.UNAVAILABLE, True),
}


@pytest.mark.parametrize(("status", "expected"), REFUSALS.items())
def test_a_status_says_whether_trying_again_can_help(status: int, expected: tuple[ReadOutcome, bool]) -> None:
    error = read_refusal(status, b'{"status":"error","errorType":"execution","error":"too many samples"}')
    assert (error.outcome, error.transient) == expected
    assert f"{status} execution: too many samples" in str(error)


def test_a_broken_store_of_thanos_may_come_back() -> None:
    error = read_refusal(422, b'{"status":"error","errorType":"execution","error":"store unreachable"}', thanos=True)
    assert (error.outcome, error.transient) == (ReadOutcome.REFUSED, True)


def test_a_proxys_page_is_quoted_on_one_line_and_not_to_its_end() -> None:
    message = str(read_refusal(502, b"<html>\n<h1>Bad\tGateway</h1>\x1b[31m" + b"x" * 10_000))
    assert "<html> <h1>Bad Gateway</h1>?[31m" in message
    assert len(message) < 700
    assert "\n" not in message


@given(st.binary(max_size=200))
def test_any_body_is_an_answer_or_a_typed_error(text: bytes) -> None:
    with pytest.raises(ReadError):
        read_answer(text)
    assert read_refusal(500, text).outcome is ReadOutcome.UNAVAILABLE
