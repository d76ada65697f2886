"""Which jobs were recorded, and for how long did each work, pause, and work again? Pure.

Laws:

* What is no pause (`pauses.py`) is work, and so is a pause that is shorter than `shortest`.
* A job lasts from its first sample to its last one. If a workload has no pod for longer than samples may be old, what
  follows is another job. Its GPUs are the most that its pods had at once.

Worked example: interval 30 s, work until 1:00:00, quiet until 3:00:00, then no sample until 3:30:00, and quiet until
4:00:00: spans 1:00:00 (work), 2:01:30 (idle: a sample may be 90 s old), 28:30 (work), 30:00 (idle).
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

from scaler_analysis.simulation.gangs.pauses import PauseRule, RecordedPauses, Span, between, lives_of
from scaler_analysis.simulation.gangs.simulated_job import DEFAULT_QUEUE, SimulatedJob, with_names_of_their_own
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload, most_at_once, workloads_of
from scaler_analysis.simulation.recordings.recording import Recording


def recorded_jobs(
    recording: Recording, rule: PauseRule, *, progress: Callable[[float], None] = lambda _: None
) -> tuple[SimulatedJob, ...]:
    """The jobs in the order of their creation. What has a single sample is none."""
    workloads = workloads_of(recording.series, recording.facts, margin_s=rule.max_age_s)
    names = Counter(map(str, workloads))
    pauses = RecordedPauses(recording, workloads, rule, progress)
    jobs = [
        replace(job, owner=job.name if names[job.name] == 1 else "")
        for position, workload in enumerate(workloads)
        for job in _jobs(workload, pauses.of(position), rule)
    ]
    return tuple(with_names_of_their_own(sorted(jobs, key=lambda job: (job.created, job.name))))


def with_recorded_spans(
    jobs: Sequence[SimulatedJob], recorded: Sequence[SimulatedJob]
) -> tuple[tuple[SimulatedJob, ...], int]:
    """The jobs with the spans that are recorded of their owners, and how many there are of these.

    What is recorded belongs to the newest job of that owner that was created before it ended. A job of which less is
    recorded than it ran works for the rest of the time, and one that has several spans already stays as it is.
    """
    owners = [job.owner or job.name for job in jobs]
    created: dict[str, set[datetime]] = {}
    for job, owner in zip(jobs, owners, strict=True):
        created.setdefault(owner, set()).add(job.created)
    runs: dict[tuple[str, datetime], list[SimulatedJob]] = {}
    for run in recorded:
        before = [at for at in created.get(run.owner, ()) if at < run.created + run.duration]
        if before:
            runs.setdefault((run.owner, max(before)), []).append(run)
    found = [
        runs.get((owner, job.created), []) if len(job.spans) == 1 else []
        for job, owner in zip(jobs, owners, strict=True)
    ]
    joined = tuple(_joined(job, each) if each else job for job, each in zip(jobs, found, strict=True))
    return joined, sum(map(bool, found))


def _joined(job: SimulatedJob, runs: Sequence[SimulatedJob]) -> SimulatedJob:
    """What it did before an eviction and after; in between it held nothing."""
    missing = job.duration - sum((run.duration for run in runs), timedelta(0))
    spans = [missing] if missing > timedelta(0) else []
    for run in runs:
        first, *others = run.spans
        if len(spans) % 2:
            spans[-1] += first
        else:
            spans.append(first)
        spans += others
    return replace(job, spans=tuple(spans))


# ------------------------------------------------------------------------------------------------- jobs of a workload


def _jobs(workload: RecordedWorkload, pauses: Iterable[Span], rule: PauseRule) -> Iterator[SimulatedJob]:
    shortest_s, starts = rule.shortest.total_seconds(), [each.start_s for each in workload.pods]
    idle = [span for span in pauses if span[1] - span[0] >= shortest_s]
    without_pods = between(lives_of(workload), workload.start_s, workload.end_s)
    gone = [span for span in without_pods if span[1] - span[0] > rule.max_age_s]
    for begin_s, end_s in between(gone, workload.start_s, workload.end_s):
        its_pods = workload.pods[bisect_left(starts, begin_s) : bisect_right(starts, end_s)]
        its_pauses = idle[bisect_left(idle, (begin_s,)) : bisect_left(idle, (end_s,))]
        yield SimulatedJob(
            name=str(workload),
            created=datetime.fromtimestamp(begin_s, UTC),
            gpus=most_at_once((each.start_s, each.end_s, each.gpus) for each in its_pods),
            spans=_spans([begin_s, *chain.from_iterable(its_pauses), end_s]),
            queue=workload.queue or DEFAULT_QUEUE,
        )


def _spans(edges_s: Sequence[float]) -> tuple[timedelta, ...]:
    """The spans in whole seconds, and at least one; without the last one if it ends with a pause."""
    edges = [round(each - edges_s[0]) for each in edges_s]
    if edges_s[-1] == edges_s[-2]:
        edges.pop()
    return tuple(timedelta(seconds=max(1, after - before)) for before, after in pairwise(edges))
