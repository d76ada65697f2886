"""What does the body of an answer say? Bytes in, series or a typed failure out; no I/O.

Laws of this file:

* An answer that is marked as partial is not an answer: what is missing would look like idleness. Each server has its
  own mark, and what is put before it hands that on. One that names an error is none, whatever its status. `infos` say
  nothing about completeness and are ignored.

  | mark                        | set by                                   | source                             |
  |-----------------------------|------------------------------------------|------------------------------------|
  | `warnings`                  | Prometheus, Thanos, Cortex, Mimir, M3    | Prometheus' HTTP API; Cortex #6526 |
  | `isPartial`                 | VictoriaMetrics' cluster                 | its page on clusters; issue 4721   |
  | `partial`                   | FiloDB                                   | its PrometheusModel.scala          |
  | header `M3-Results-Limited` | M3, where a limit is reached             | its page on query limits           |

* A result of many series is decoded in parts, each when it is its turn: none holds the interpreter for long, and no
  more than the body and one part of it is in memory.
* Samples become columns without an object for each. Labels are read when a series is met for the first time; until
  then they are the key that tells it from others.
* The samples of a range selector are in (start, end], whichever generation of Prometheus answered.
* A series whose name is none that was asked for, or that has none, contradicts the question: whoever reads its labels
  learns that the answer cannot be used. Labels are read before a sample is anybody's.
* A native histogram is no measure of utilisation: a signal that names one is an error with the metric's name, not
  a series without samples.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import compress, pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from scaler.documents import UNREADABLE
from scaler.samples.source import ReadError, ReadOutcome, SeriesBatch, SeriesColumns, VectorSample

_TEXT_LIMIT = 500
"""Characters of a server's own words that an error carries: enough for Prometheus' longest, too few for a page."""
_PART_BYTES = 2**19
"""A result is decoded in parts of this size: each holds the interpreter for a few milliseconds."""
_BEGIN = b'{"metric":'
_HISTOGRAMS = b'"histograms":'
_JSON = json.JSONDecoder()
_TIMESTAMP_RESOLUTION_S = 0.001
_INFO = "PromQL info:"
"""How remarks on the query begin, such as on `increase` of a counter whose name does not end in `_total`. Thanos and
earlier versions of Prometheus have them among the warnings; nothing is missing because of them."""
_SERVER_FAULTS = frozenset({"timeout", "canceled", "internal", "unavailable"})
"""`errorType`s that may be gone a moment later."""


class _Envelope(Struct, rename="camel"):
    status: str
    data: Raw = Raw(b"null")
    error_type: str | None = None
    error: str | None = None
    warnings: list[str] | None = None
    is_partial: Any = None
    partial: Any = None


class _Data(Struct, rename="camel"):
    result_type: str
    result: Raw


class _Series(Struct, gc=False):
    metric: Raw
    values: Raw = Raw(b"[]")
    histograms: Raw = Raw(b"[]")


class _Element(Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_DATA = msgspec.json.Decoder(_Data)
_MATRIX = msgspec.json.Decoder(list[_Series])
_VECTOR = msgspec.json.Decoder(list[_Element])
_LABELS = msgspec.json.Decoder(dict[str, str])
_NUMBERS = msgspec.json.Decoder(list[float])
_SAMPLES = msgspec.json.Decoder(list[tuple[float, str]])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """A complete, successful answer whose result is still text."""

    result_type: str
    result: Callable[[], Iterator[Raw | bytes]]
    """JSON arrays, whose elements one after the other are the result."""
    size_bytes: int
    has_histograms: bool = False
    """Whether its beginning looks like that; it is known at once, and not when it is their turn."""
    server_time: datetime | None = None


def read_answer(
    body: bytes | bytearray, *, server_time: datetime | None = None, part_bytes: int = _PART_BYTES
) -> QueryResult:
    """The answer in the body of a response with status 200. Longer results come in parts of about `part_bytes`.

    Raises: ReadError.
    """
    envelope_text, ends = _split(body, part_bytes)
    envelope = _envelope(envelope_text)
    if envelope is None and ends:
        envelope, ends = _envelope(body), []
    if envelope is None:
        raise ReadError(
            ReadOutcome.PROTOCOL, f"the answer is not Prometheus' JSON but {_clipped(body)}; check the URL and its path"
        )
    if envelope.status != "success" or envelope.error or envelope.error_type:
        raise _refusal(envelope, http_status=200)
    if warnings := [each for each in envelope.warnings or () if not each.startswith(_INFO)]:
        words = _clipped("; ".join(warnings).encode())
        raise ReadError(ReadOutcome.PARTIAL, f"the answer came with warnings, so it may be incomplete: {words}")
    if envelope.is_partial or envelope.partial:
        raise marked_partial("isPartial" if envelope.is_partial else "partial")
    try:
        data = _DATA.decode(envelope.data)
    except UNREADABLE as error:
        raise ReadError(ReadOutcome.PROTOCOL, f"the answer holds no result: {error}") from None
    whole = data.result
    parts = (lambda: _parts(body, ends)) if ends else (lambda: iter((whole,)))
    return QueryResult(
        result_type=data.result_type,
        result=parts,
        size_bytes=len(body),
        has_histograms=_HISTOGRAMS in body[:part_bytes],
        server_time=server_time,
    )


def marked_partial(mark: str) -> ReadError:
    return ReadError(
        ReadOutcome.PARTIAL, f"the server marks its answer as partial ({mark}); see whether all of its stores answer"
    )


def _split(body: bytes | bytearray, part_bytes: int) -> tuple[bytes | bytearray, list[int]]:
    """The body without its series, and where parts of these begin, and the last one ends.

    The whole body and no parts where it is short, or looks odd. What begins a series is found by its quotes: within a
    string they would be escaped.
    """
    start, last = body.find(_BEGIN), body.rfind(_BEGIN)
    if len(body) <= part_bytes or start < 0:
        return body, []
    try:
        text = body[last:].decode()
        _, length = _JSON.raw_decode(text)
    except ValueError:
        return body, []
    end, ends = last + len(text[:length].encode()), [start]
    while (comma := body.find(b"," + _BEGIN, ends[-1] + part_bytes, end)) >= 0:
        ends.append(comma + 1)
    return body[:start] + body[end:], [*ends, end + 1]


def _parts(body: bytes | bytearray, ends: Sequence[int]) -> Iterator[bytes]:
    for begin, end in pairwise(ends):
        yield b"".join((b"[", memoryview(body)[begin : end - 1], b"]"))


def read_refusal(http_status: int, body: bytes | bytearray, *, thanos: bool = False) -> ReadError:
    """What a response with another status than 200 means.

    Thanos answers 422 where one of its stores cannot be reached, which passes; for Prometheus 422 is the query's fault.
    """
    envelope = _envelope(body) or _Envelope(status="error", error=_clipped(body) if body else "no explanation")
    return _refusal(envelope, http_status=http_status, thanos=thanos)


def matrix(answer: QueryResult, *, after_s: float, names: Collection[str] = ()) -> SeriesColumns:
    """The series of a range selector, with their samples later than `after_s` (Unix seconds).

    `names`: the metrics that were asked for; without them a series may have any name.

    Raises: ReadError where the result is no matrix of plain samples; where a part cannot be read, when it is its turn.
    """
    _expect(answer, "matrix")
    # Half of the finest step is added, so that no rounding of floats decides at the left edge.
    after_s += _TIMESTAMP_RESOLUTION_S / 2
    if answer.has_histograms:
        for part in answer.result():
            _batch(part, after_s, names)
    return SeriesColumns(lambda: (_batch(part, after_s, names) for part in answer.result()))


def _batch(part: Raw | bytes, after_s: float, names: Collection[str]) -> SeriesBatch:
    try:
        found = _MATRIX.decode(part)
    except UNREADABLE as error:
        raise ReadError(ReadOutcome.PROTOCOL, f"the matrix cannot be read: {error}") from None
    for series in found:
        if len(series.histograms) > len(b"[]"):
            raise ReadError(
                ReadOutcome.PROTOCOL,
                f"{_clipped(bytes(series.metric))} is a native histogram, which is no measure of utilisation; "
                "take its metric out of the signal",
            )
    # Copies: what is remembered of a series must not keep the whole body.
    keys = [bytes(series.metric) for series in found]
    counts, at_s, values = _columns([series.values for series in found]) or _strictly(found)
    is_later = at_s > after_s
    if not is_later.all():
        owners = np.repeat(np.arange(len(keys)), counts)[is_later]
        counts = np.bincount(owners, minlength=len(keys)).tolist()
        at_s, values = at_s[is_later], values[is_later]
    return SeriesBatch(keys, counts, at_s, values, lambda position: _labels(keys[position], names))


_Columns = tuple[list[int], NDArray[np.float64], NDArray[np.float64]]
"""How many samples each series has, the times of all samples, and their values."""
_OF_NUMBERS = b"0123456789+-.eENaInf"
_NUMBER = re.compile(r"[0-9a-zA-Z.+-]+")


def _columns(texts: Sequence[Raw]) -> _Columns | None:
    """The samples of all of these series at once; None where anything but numbers looks different from Prometheus'."""
    shapes = b"\n".join(texts).translate(None, _OF_NUMBERS).split(b"\n")
    count_of = {each: _count(each) for each in {*shapes}}
    if -1 in count_of.values():
        return None
    counts = [count_of[each] for each in shapes]
    text = b",".join(compress(texts, counts)).translate(None, b'[]"')
    try:  # JSON, which has no NaN, is read in half the time
        numbers = np.fromiter(map(float, text.split(b",")) if b"N" in text else _NUMBERS.decode(b"[%b]" % text), float)
    except (*UNREADABLE, ValueError):
        return None
    return (counts, numbers[::2], numbers[1::2]) if len(numbers) == 2 * sum(counts) else None


def _count(shape: bytes) -> int:
    """How many samples a series has, by its text without its digits; -1 where that is not Prometheus'."""
    count = shape.count(b"[,")
    return count if shape == b"[%b]" % b",".join([b'[,""]'] * count) else -1


def _strictly(found: Sequence[_Series]) -> _Columns:
    samples = [_samples(each) for each in found]
    flat = np.array([pair for each in samples for pair in each], np.float64).reshape(-1, 2)
    return [*map(len, samples)], flat[:, 0], flat[:, 1]


def _samples(series: _Series) -> Sequence[tuple[float, float]]:
    try:
        return [(at, _number(value)) for at, value in _SAMPLES.decode(series.values)]
    except (*UNREADABLE, ValueError) as error:
        key = bytes(series.metric)
        raise ReadError(ReadOutcome.PROTOCOL, f"the samples of {_clipped(key)} cannot be read: {error}") from None


def _number(text: str) -> float:
    """The number as servers write it; float alone would read any script's digits. Raises: ValueError."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"could not convert {text!r} to a number")
    return float(text)


def _labels(key: bytes, names: Collection[str]) -> dict[str, str]:
    try:
        labels = _LABELS.decode(key)
    except (*UNREADABLE, ValueError) as error:
        raise ReadError(ReadOutcome.PROTOCOL, f"the labels {_clipped(key)} cannot be read: {error}") from None
    if names and labels.get("__name__") not in names:
        asked = " or ".join(names)
        raise ReadError(ReadOutcome.PROTOCOL, f"the series {_clipped(key)} answers another question than for {asked}")
    return labels


def vector(answer: QueryResult) -> list[VectorSample]:
    """The elements of an instant vector. Raises: ReadError where the result is another type."""
    _expect(answer, "vector")
    try:
        return [_demand(element) for part in answer.result() for element in _VECTOR.decode(part)]
    except (*UNREADABLE, ValueError) as error:
        raise ReadError(ReadOutcome.PROTOCOL, f"the vector cannot be read: {error}") from None


def _demand(element: _Element) -> VectorSample:
    if element.value is None:
        raise ValueError(f"{element.metric} has no plain value; a demand query may not return histograms")
    return VectorSample(labels=element.metric, value=_number(element.value[1]))


def _expect(answer: QueryResult, result_type: str) -> None:
    if answer.result_type != result_type:
        advice = "; wrap the query in vector(…)" if answer.result_type == "scalar" else ""
        raise ReadError(
            ReadOutcome.PROTOCOL, f"the query gives a {answer.result_type} where a {result_type} is needed{advice}"
        )


def _envelope(body: bytes | bytearray) -> _Envelope | None:
    try:
        return _ENVELOPE.decode(body)
    except UNREADABLE:
        return None


def _refusal(envelope: _Envelope, *, http_status: int, thanos: bool = False) -> ReadError:
    kind = envelope.error_type or ""
    status = f"{http_status} {kind}".strip()
    words = f"{status}: {_clipped((envelope.error or 'no explanation').encode())}"
    if http_status in (401, 403):
        return ReadError(
            ReadOutcome.DENIED, f"access denied ({words}); check the credentials and the permission to query"
        )
    if http_status == 404:
        return ReadError(ReadOutcome.PROTOCOL, f"no query API there ({words}); check the URL and its path")
    if http_status in (408, 429) or http_status >= 500 or kind in _SERVER_FAULTS:
        return ReadError(ReadOutcome.UNAVAILABLE, f"the server is not able to answer ({words})")
    return ReadError(ReadOutcome.REFUSED, f"the query was refused ({words})", transient=thanos and http_status == 422)


def _clipped(text: bytes | bytearray) -> str:
    words = " ".join(bytes(text[: 4 * _TEXT_LIMIT]).decode(errors="replace").split())
    printable = "".join(char if char.isprintable() else "?" for char in words)
    return printable if len(printable) <= _TEXT_LIMIT else f"{printable[:_TEXT_LIMIT]}…"
