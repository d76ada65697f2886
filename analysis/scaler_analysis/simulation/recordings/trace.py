"""Trace files: who reported what, and when. CSV, gzip of it, or Parquet → a recording.

| column      | meaning                                                                               |
|-------------|---------------------------------------------------------------------------------------|
| `time`      | Unix seconds, or RFC 3339                                                             |
| `namespace` | of the pod                                                                            |
| `pod`       | its name                                                                              |
| `gpu`       | its UUID, another name that no other GPU has, or its index; `…/mig-N` of an instance  |
| `signal`    | the signal's name in the settings                                                     |
| `value`     | in the unit of the signal's first metric; empty or NaN for no measurement             |
| `owner`     | optional: what the pod belongs to, as `Kind/name`; pods of one owner are one workload |
| `queue`     | optional: its LocalQueue                                                              |
| `team`      | optional: for the report; without it, the namespace                                   |
| `gpus`      | optional: how many GPUs the pod requests; without it, as many as report at once       |
| `model`     | optional: the GPU's model, for prices                                                 |
| `node`      | optional: where the pod runs                                                          |

Lines may come in any order. An index, such as `0` or `gpu0`, is that of the node; where no node is known that of the
pod, so that pods which all have a GPU 0 are not taken to share one.
"""

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from io import TextIOWrapper
from itertools import islice
from math import isnan, nan
from pathlib import Path
from sys import intern
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from scaler.errors import ConfigurationError
from scaler.idleness.gpu import GpuId, GpuSeries, Signal
from scaler_analysis.simulation.recordings.recorded import NO_FACTS, PodFacts
from scaler_analysis.simulation.recordings.recording import Recording

REQUIRED = ("time", "namespace", "pod", "gpu", "signal", "value")
OPTIONAL = ("owner", "queue", "team", "gpus", "model", "node")
_NUMBERS = ("time", "value", "gpus")
_INDEX = re.compile(r"(?:gpu|nvidia|card|device)?[-_ ]?\d{1,3}", re.IGNORECASE)
_LINES = 100_000
"""How many are read together."""
_LATEST_S = 1e11
"""A time in the year 5138; Unix milliseconds are later."""
_LONGEST_S = 3 * 366 * 86400.0
"""The longest time from the first line to any other: one line with time 0 would be replayed for 50 years."""
_LONGEST_LINE = 4096
"""Characters. Names of Kubernetes have at most 253."""
_MOST_COLUMNS = 64
_MOST_GPUS = 1024

Columns = Mapping[str, Sequence[Any]]


def read_trace(
    path: Path,
    recording: Recording,
    signals: Sequence[Signal],
    *,
    progress: Callable[[float], None] = lambda _: None,
) -> list[str]:
    """Take in the whole file, and say what was left out. `progress` is told the share that is read.

    Raises: ConfigurationError.
    """
    taking = _Taking(recording, signals)
    read = _parquet if path.suffix == ".parquet" else _csv
    try:
        for columns, first_line in read(path, taking.ignored_columns, progress):
            taking.take(columns, first_line)
    except (OSError, EOFError, zlib.error, csv.Error, _BadLineError) as error:
        raise ConfigurationError(f"trace {path}: {_words(error)}") from None
    recording.flush()
    if not recording.samples:
        names = ", ".join(each.name for each in signals)
        raise ConfigurationError(f"trace {path}: no line is a measurement of a signal of the settings ({names})")
    return [
        *(f"column {each!r} is none of a trace file's, left out" for each in taking.ignored_columns),
        *(
            f"{lines:,} samples of signal {name!r}, which the settings do not have, left out"
            for name, lines in taking.ignored.items()
        ),
    ]


def _words(error: Exception) -> str:
    match error:
        case _BadLineError():
            return str(error)
        case csv.Error():
            return "it is not CSV: a value is longer than 131,072 characters, or a quote is not closed"
        case OSError() if error.strerror:
            return error.strerror
    return "it is damaged or cut off; write it again, or as CSV"


class _BadLineError(Exception):
    """A line that cannot be read; says which, what is wrong and what to write."""


class _Taking:
    def __init__(self, recording: Recording, signals: Sequence[Signal]) -> None:
        self._recording = recording
        self._signals = {each.name: each for each in signals}
        self._positions: dict[tuple[str, ...], int] = {}
        """The position of each series, by what identifies it in the file; -1 where its signal is not known."""
        self._first_s = nan
        self.ignored: Counter[str] = Counter()
        """Lines of signals that the settings do not have, by signal."""
        self.ignored_columns: list[str] = []

    def take(self, columns: Columns, first_line: int) -> None:
        at_s, values = _times(columns["time"], first_line), _numbers(columns["value"], first_line, "value")
        self._check_span(at_s, columns["time"], first_line)
        facts = [columns[name] for name in OPTIONAL if name in columns]
        keys = [*zip(columns["signal"], columns["namespace"], columns["pod"], columns["gpu"], *facts, strict=True)]
        for key in dict.fromkeys(keys):
            if key not in self._positions:
                self._positions[key] = self._position(key, [name for name in OPTIONAL if name in columns], first_line)
        positions = np.fromiter(map(self._positions.__getitem__, keys), np.intp, len(keys))
        for name, signal in self._signals.items():
            is_signal = np.fromiter((each == name for each in columns["signal"]), np.bool_, len(keys))
            self._recording.add(signal, positions[is_signal], at_s[is_signal], values[is_signal])
        for name in columns["signal"] if (positions < 0).any() else ():
            if name not in self._signals:
                self.ignored[name] += 1

    def _check_span(self, at_s: NDArray[np.float64], texts: Sequence[Any], first_line: int) -> None:
        known = at_s[np.isfinite(at_s)]
        if isnan(self._first_s) and len(known):
            self._first_s = float(known[0])
        is_far = np.isfinite(at_s) & (np.abs(at_s - self._first_s) > _LONGEST_S)
        if is_far.any():
            number = int(is_far.argmax())
            raise _BadLineError(
                f"line {first_line + number}: time {texts[number]} is more than three years from that of the first "
                "line; correct the one that is wrong, or write two files"
            )

    def _position(self, key: tuple[str, ...], names: Sequence[str], first_line: int) -> int:
        signal, namespace, pod, gpu, *more = key
        if signal not in self._signals:
            return -1
        if not (namespace and pod and gpu):
            raise _BadLineError(f"a line from {first_line} on has no namespace, pod or gpu: {', '.join(key)}")

        known = dict(zip(names, more, strict=True))
        device, _, mig = gpu.partition("/mig-")
        node = known.get("node") or ""
        if _INDEX.fullmatch(device):
            device = f"{node or f'{namespace}/{pod}'}/{device}"
        series = GpuSeries(
            gpu=GpuId(device=device, mig_instance=mig),
            namespace=intern(namespace),
            pod=pod,
            node=intern(node),
            model=intern(known.get("model") or ""),
        )
        facts = PodFacts(
            owner=known.get("owner") or "",
            queue=known.get("queue") or "",
            team=known.get("team") or "",
            gpus=_count(known.get("gpus"), first_line),
        )
        self._recording.facts[namespace, pod] = self._recording.facts.get((namespace, pod), NO_FACTS).updated(facts)
        return self._recording.position(signal, series, self._signals[signal].unit)


# ---- values


def _times(texts: Sequence[Any], first_line: int) -> NDArray[np.float64]:
    try:
        found = np.fromiter(map(float, texts), np.float64, len(texts))
    except (TypeError, ValueError):
        found = np.fromiter((_time(each, first_line) for each in texts), np.float64, len(texts))
    is_late = np.isfinite(found) & (np.abs(found) > _LATEST_S)
    if is_late.any():
        text = texts[int(is_late.argmax())]
        raise _BadLineError(f"a line from {first_line} on: time {text} is not in seconds; write 1700000000")
    return found


def _time(text: Any, first_line: int) -> float:
    if isinstance(text, datetime):
        return (text if text.tzinfo else text.replace(tzinfo=UTC)).timestamp()
    return _parsed_time(text, first_line)


@lru_cache(maxsize=65_536)
def _parsed_time(text: Any, first_line: int) -> float:
    with suppress(TypeError, ValueError):
        return float(text)
    with suppress(TypeError, ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.timestamp()
    raise _BadLineError(
        f"a line from {first_line} on: time {text!r} is neither Unix seconds nor RFC 3339; write 1700000000 or "
        "2026-11-01T12:00:00Z"
    )


def _numbers(texts: Sequence[Any], first_line: int, name: str) -> NDArray[np.float64]:
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))
    except (TypeError, ValueError):
        return np.fromiter((_number(each, first_line, name) for each in texts), np.float64, len(texts))


def _number(text: Any, first_line: int, name: str) -> float:
    try:
        return nan if text is None or text == "" else float(text)
    except ValueError:
        raise _BadLineError(f"a line from {first_line} on: {name} {text!r} is not a number") from None


def _count(value: Any, first_line: int) -> int:
    count = _number(value, first_line, "gpus")
    if isnan(count):
        return 0
    if not 0 <= count <= _MOST_GPUS or count % 1:
        raise _BadLineError(f"a line from {first_line} on: gpus {value!r} is not a whole number from 0 to {_MOST_GPUS}")
    return int(count)


# ---- files


def _csv(path: Path, ignored: list[str], progress: Callable[[float], None]) -> Iterator[tuple[Columns, int]]:
    """Some lines at a time in columns, and the number of the first of them."""
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw, _text(raw) as text:
        lines = csv.reader(_short_lines(text))
        names = [each.strip() for each in next(lines, [])]
        _check(names, ignored)
        line, rows = 2, _whole_rows(lines, len(names))
        while some := [*islice(rows, _LINES)]:
            yield dict(zip(names, zip(*some, strict=True), strict=True)), line
            line += len(some)
            progress(raw.tell() / size)


def _short_lines(text: IO[str]) -> Iterator[str]:
    """Raises: _BadLineError for a longer one, before all of it is read."""
    number = 0
    while line := _next(text, number):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise _BadLineError(
                f"line {number}: it is longer than {_LONGEST_LINE:,} characters; a trace has short ones"
            )
        yield line


def _next(text: IO[str], number: int) -> str:
    """The line after so many; empty where there is none."""
    try:
        return text.readline(_LONGEST_LINE + 1)
    except UnicodeDecodeError as error:
        number += 1 + error.object.count(b"\n", 0, error.start)
        raise _BadLineError(f"line {number}: it is not UTF-8; save it as UTF-8, or as gzip of it") from None


def _whole_rows(rows: Iterable[list[str]], count: int) -> Iterator[list[str]]:
    """Raises: _BadLineError for one that has more or fewer values than there are columns."""
    for number, row in enumerate(rows, 2):
        if len(row) != count:
            raise _BadLineError(f"line {number}: {len(row)} values for {count} columns")
        yield row


def _text(raw: IO[bytes]) -> IO[str]:
    is_gzip = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    if is_gzip:
        return gzip.open(raw, "rt", encoding="utf-8-sig", newline="")
    return TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _check(names: Sequence[str], ignored: list[str]) -> None:
    ignored += [each for each in names if each not in REQUIRED + OPTIONAL]
    missing = [each for each in REQUIRED if each not in names]
    if len(names) > _MOST_COLUMNS:
        raise _BadLineError(
            f"line 1: {len(names):,} columns, of which at most {_MOST_COLUMNS} are read; leave some out"
        )
    if missing:
        raise _BadLineError(
            f"{'columns' if missing[1:] else 'column'} {', '.join(missing)} {'are' if missing[1:] else 'is'} missing; "
            f"the first line must name the columns: {','.join(REQUIRED)}"
        )


def _parquet(path: Path, ignored: list[str], progress: Callable[[float], None]) -> Iterator[tuple[Columns, int]]:
    try:
        from pyarrow import ArrowException, string
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ConfigurationError(
            f"trace {path}: Parquet needs pyarrow: pip install 'idle-gpu-scaler-analysis[parquet]'; or write it as CSV"
        ) from None
    try:
        file = ParquetFile(path)
        names = file.schema_arrow.names
        _check(names, ignored)
        line, wanted = 1, [each for each in (*REQUIRED, *OPTIONAL) if each in names]
        for batch in file.iter_batches(batch_size=_LINES, columns=wanted):
            # Of what is a text here there may be numbers, or nothing.
            found = {name: batch.column(name) for name in wanted}
            columns = {
                name: column.to_pylist() if name in _NUMBERS else column.cast(string()).fill_null("").to_pylist()
                for name, column in found.items()
            }
            yield columns, line
            line += len(batch)
            progress(line / max(1, file.metadata.num_rows))
    except ArrowException:
        raise _BadLineError("it is damaged or no Parquet; write it again, or as CSV") from None
