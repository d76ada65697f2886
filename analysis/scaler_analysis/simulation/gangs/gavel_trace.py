"""How long did the jobs of a trace of the Gavel project run (traces/msr)?

Seven columns between tabs: job type, command, name of the steps argument, whether it needs data, total steps, arrival
in seconds, GPUs.

How long a job runs: its total steps at the rate of its type (`_STEPS_PER_SECOND`). The traces are made from the
durations of Microsoft's Philly cluster: a type was drawn for each job, and its steps are the duration times the rate of
that type on one V100, whatever the number of GPUs. So steps / rate is the duration in Philly.

How the rates are known: the trace is published five times, with equal arrivals and other types. The logarithms of the
steps are then one number for each job plus one for each type: 10,000 equations for 2,026 unknowns, which hold to the
rounding of steps. The one factor that remains follows from durations in whole seconds.

What is real there: arrivals, GPUs and durations. What is not: types, and so steps; they do not matter here.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob, gpus_of, number, ran_for

_GAVEL_COLUMNS = 7


def gavel_jobs(lines: Iterable[str]) -> Iterator[SimulatedJob]:
    """Raises: ValueError that names the line."""
    for place, line in enumerate(lines, 1):
        try:
            yield _gavel_job(f"job-{place:05}", line.split("\t"))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"line {place}: {error}") from None


def _gavel_job(name: str, columns: list[str]) -> SimulatedJob:
    if len(columns) != _GAVEL_COLUMNS:
        raise ValueError(f"{len(columns)} columns between tabs, not {_GAVEL_COLUMNS}")
    job_type, *_, steps, arrival, gpus = columns
    rate = _STEPS_PER_SECOND.get(job_type)
    if rate is None:
        raise ValueError(f"job type {job_type!r} has no rate; write the trace as CSV with the columns of a Workload")
    created = datetime.fromtimestamp(number("arrival", arrival, float), UTC)
    return SimulatedJob(
        name=name, created=created, gpus=gpus_of(gpus), spans=(ran_for(number("steps", steps, int) / rate),)
    )


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
"""The rate of each job type. Fitted as the module says; the residual is below 0.01 %."""
