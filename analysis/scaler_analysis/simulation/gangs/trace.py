"""Which Workloads asked for GPUs, when, for how many, and for how long? Read from a file.

Three formats, told apart by how the file begins:

* CSV with the header `created,name,gpus,seconds`, and where they matter `queue`, `priority` and `spans`: the Workloads
  of a cluster. `created` is in Unix seconds or RFC 3339; `seconds` is how long it ran once it was admitted. An empty
  `queue` is `default`. `spans` of a session whose pauses are known: for how many seconds its GPUs worked, were idle,
  worked, and so on, such as `3600 5400 1800`; they count instead of `seconds`.
* JSON, as `kubectl get workloads.kueue.x-k8s.io --all-namespaces -o json` prints it (`listed_workloads.py`).
* A trace of the Gavel project, with seven columns between tabs (`gavel_trace.py`).
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scaler.documents import UNREADABLE, read_text, unreadable
from scaler.errors import ConfigurationError
from scaler.kube.objects.gpu_pods import GpuResources
from scaler_analysis.simulation.gangs.gavel_trace import gavel_jobs
from scaler_analysis.simulation.gangs.listed_workloads import listed_jobs
from scaler_analysis.simulation.gangs.simulated_job import DEFAULT_QUEUE, SimulatedJob, gpus_of, number, ran_for

_COLUMNS = frozenset({"created", "name", "gpus", "seconds"})


def read_jobs(path: Path, gpus: GpuResources) -> tuple[SimulatedJob, ...]:
    """The jobs in the order of their creation. Raises: ConfigurationError that says where the file is wrong."""
    text = read_text(path)
    try:
        jobs = sorted(_jobs(text, gpus), key=lambda job: (job.created, job.name))
    except UNREADABLE as error:
        raise ConfigurationError(f"trace of Workloads {path}: {unreadable(error)}") from None
    except ValueError as error:
        raise ConfigurationError(f"trace of Workloads {path}: {error}") from None
    if not jobs:
        raise ConfigurationError(f"trace of Workloads {path}: no Workload in it has run with GPUs")
    twice = [name for name, number in Counter(job.name for job in jobs).items() if number > 1]
    if twice:
        raise ConfigurationError(f"trace of Workloads {path}: two Workloads have the name {twice[0]!r}")
    return tuple(jobs)


def _jobs(text: str, gpus: GpuResources) -> Iterable[SimulatedJob]:
    """Raises: ValueError, or one of UNREADABLE."""
    first = text.partition("\n")[0]
    if not first:
        raise ValueError("it is empty")
    if first.startswith("{"):
        return listed_jobs(text, gpus)
    return gavel_jobs(text.splitlines()) if "\t" in first else _csv_jobs(text.splitlines())


# ----------------------------------------------------------------------------------------------------------------- CSV


def _csv_jobs(lines: Iterable[str]) -> Iterator[SimulatedJob]:
    reader = csv.DictReader(lines)
    missing = _COLUMNS.difference(reader.fieldnames or ())
    if missing:
        raise ValueError(f"no column {', '.join(sorted(missing))}; the first line names the columns")
    for row in reader:
        try:
            if None in (row[each] for each in _COLUMNS):
                raise ValueError("it has fewer values than the first line has columns")
            yield _csv_job(row)
        except ValueError as error:
            raise ValueError(f"line {reader.line_num}: {error}") from None


def _csv_job(row: Mapping[str, str]) -> SimulatedJob:
    return SimulatedJob(
        name=row["name"],
        created=_instant(row["created"]),
        gpus=gpus_of(row["gpus"]),
        spans=_spans(row.get("spans") or row["seconds"] or ""),
        queue=row.get("queue") or DEFAULT_QUEUE,
        priority=number("priority", row.get("priority") or "0", int),
    )


def _spans(text: str) -> tuple[timedelta, ...]:
    spans = tuple(ran_for(number("seconds", seconds, float)) for seconds in text.split())
    if not spans:
        raise ValueError("it says nothing of how long it ran; leave out Workloads that were never admitted")
    return spans


def _instant(text: str) -> datetime:
    with suppress(ValueError, OverflowError):
        return datetime.fromtimestamp(float(text), UTC)
    with suppress(ValueError, OverflowError):
        if (found := datetime.fromisoformat(text)).tzinfo is not None:
            return found.astimezone(UTC)
    raise ValueError(f"created {text[:40]!r} is not a time with its zone; write 2026-12-01T12:00:00Z")
