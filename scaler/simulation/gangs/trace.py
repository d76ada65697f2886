"""Which Workloads asked for GPUs, when, for how many, and for how long? Read from a file.

Two formats, told apart by the first line:

* CSV with the header `created,name,gpus,seconds`, and where they matter `queue`, `priority` and `spans`: the Workloads
  of a cluster. `created` is in Unix seconds or RFC 3339; `seconds` is how long it ran once it was admitted. An empty
  `queue` is `default`. `spans` of a session whose pauses are known: for how many seconds its GPUs worked, were idle,
  worked, and so on, such as `3600 5400 1800`; they count instead of `seconds`.
* A trace of the Gavel project (traces/msr): seven columns between tabs: job type, command, name of the steps argument,
  whether it needs data, total steps, arrival in seconds, GPUs.

How long a job of the second kind runs: its total steps at the rate of its type (`_STEPS_PER_SECOND`). The traces are
made from the durations of Microsoft's Philly cluster: a type was drawn for each job, and its steps are the duration
times the rate of that type on one V100, whatever the number of GPUs. So steps / rate is the duration in Philly.

How the rates are known: the trace is published five times, with equal arrivals and other types. The logarithms of the
steps are then one number for each job plus one for each type: 10,000 equations for 2,026 unknowns, which hold to the
rounding of steps. The one factor that remains follows from durations in whole seconds.

What is real there: arrivals, GPUs and durations. What is not: types, and so steps; they do not matter here.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scaler.errors import ConfigurationError

DEFAULT_QUEUE = "default"
_COLUMNS = frozenset({"created", "name", "gpus", "seconds"})
_GAVEL_COLUMNS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    name: str
    created: datetime
    gpus: int
    spans: tuple[timedelta, ...]
    """How long its GPUs work, are idle, work, and so on, from its admission on. One span: it works all the time."""
    queue: str = DEFAULT_QUEUE
    priority: int = 0

    @property
    def is_gang(self) -> bool:
        """Whether it needs several GPUs at once."""
        return self.gpus > 1

    @property
    def duration(self) -> timedelta:
        """How long it holds its GPUs where it is never suspended."""
        return sum(self.spans, timedelta(0))


def read_jobs(path: Path) -> tuple[SimulatedJob, ...]:
    """In the order of their creation. Raises: ConfigurationError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"trace of Workloads {path}: {error}") from None
    if not lines:
        raise ConfigurationError(f"trace of Workloads {path} is empty")
    parse = _gavel_jobs if "\t" in lines[0] else _csv_jobs
    jobs = sorted(parse(path, lines), key=lambda job: (job.created, job.name))
    twice = [name for name, number in Counter(job.name for job in jobs).items() if number > 1]
    if twice:
        raise ConfigurationError(f"{path}: two Workloads have the name {twice[0]!r}; a name has to mean one")
    return tuple(jobs)


# ----------------------------------------------------------------------------------------------------------------- CSV


def _csv_jobs(path: Path, lines: Iterable[str]) -> Iterator[SimulatedJob]:
    reader = csv.DictReader(lines)
    missing = _COLUMNS.difference(reader.fieldnames or ())
    if missing:
        raise ConfigurationError(f"{path}: no column {', '.join(sorted(missing))}; the first line names the columns")
    for row in reader:
        try:
            yield _csv_job(row)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"{path}, line {reader.line_num}: {error}") from None


def _csv_job(row: Mapping[str, str]) -> SimulatedJob:
    return SimulatedJob(
        name=row["name"],
        created=_instant(row["created"]),
        gpus=_gpus(row["gpus"]),
        spans=_spans(row.get("spans") or row["seconds"] or ""),
        queue=row.get("queue") or DEFAULT_QUEUE,
        priority=int(row.get("priority") or 0),
    )


def _spans(text: str) -> tuple[timedelta, ...]:
    spans = tuple(_duration(float(seconds)) for seconds in text.split())
    if not spans:
        raise ValueError("it says nothing of how long it ran; leave out Workloads that were never admitted")
    return spans


def _instant(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except ValueError:
        found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"created {text!r} has no time zone; write 2026-12-01T12:00:00Z")
    return found.astimezone(UTC)


def _gpus(text: str) -> int:
    gpus = int(text)
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs; leave out Workloads that ask for none")
    return gpus


def _duration(seconds: float) -> timedelta:
    if not seconds > 0:
        raise ValueError(f"it ran for {seconds:g} s; leave out Workloads that were never admitted")
    return timedelta(seconds=max(1, round(seconds)))


# --------------------------------------------------------------------------------------------------------------- Gavel


def _gavel_jobs(path: Path, lines: Iterable[str]) -> Iterator[SimulatedJob]:
    for number, line in enumerate(lines, 1):
        try:
            yield _gavel_job(f"job-{number:05}", line.split("\t"))
        except (ValueError, OverflowError) as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None


def _gavel_job(name: str, columns: list[str]) -> SimulatedJob:
    if len(columns) != _GAVEL_COLUMNS:
        raise ValueError(f"{len(columns)} columns between tabs, not {_GAVEL_COLUMNS}")
    job_type, *_, steps, arrival, gpus = columns
    rate = _STEPS_PER_SECOND.get(job_type)
    if rate is None:
        raise ValueError(f"job type {job_type!r} has no rate; write the trace as CSV with the columns of a Workload")
    created = datetime.fromtimestamp(float(arrival), UTC)
    return SimulatedJob(name=name, created=created, gpus=_gpus(gpus), spans=(_duration(int(steps) / rate),))


_STEPS_PER_SECOND: Mapping[str, float] = {
    "A3C": 8.233,
    "CycleGAN": 4.9185,
    "LM (batch size 5)": 167.12,
    "LM (batch size 10)": 143.36,
    "LM (batch size 20)": 107.95,
    "LM (batch size 40)": 71.723,
    "LM (batch size 80)": 43.904,
    "Recommendation (batch size 512)": 0.33148,
    "Recommendation (batch size 1024)": 0.47998,
    "Recommendation (batch size 2048)": 0.56753,
    "Recommendation (batch size 4096)": 0.62441,
    "Recommendation (batch size 8192)": 0.60235,
    "ResNet-18 (batch size 16)": 77.317,
    "ResNet-18 (batch size 32)": 65.805,
    "ResNet-18 (batch size 64)": 48.884,
    "ResNet-18 (batch size 128)": 30.287,
    "ResNet-18 (batch size 256)": 16.987,
    "ResNet-50 (batch size 16)": 17.374,
    "ResNet-50 (batch size 32)": 9.9206,
    "ResNet-50 (batch size 64)": 5.4576,
    "ResNet-50 (batch size 128)": 2.846,
    "Transformer (batch size 16)": 12.846,
    "Transformer (batch size 32)": 12.475,
    "Transformer (batch size 64)": 9.568,
    "Transformer (batch size 128)": 5.7712,
    "Transformer (batch size 256)": 1.707,
}
"""By job type. Fitted as the module says; the residual is below 0.01 %."""
