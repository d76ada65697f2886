import json
from datetime import UTC, datetime, timedelta

import pytest
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob
from scaler_analysis.simulation.gangs.trace import read_jobs

from scaler.errors import ConfigurationError
from scaler.kube.objects.gpu_pods import GpuResources

GPUS = GpuResources(patterns=("nvidia.com/*",))

HEADER = "created,name,queue,gpus,seconds,priority\n"
GAVEL = "A3C\tcd %s/rl && python3 main.py\t--max-steps\t0\t8233\t120.000000\t4\n"
"""At 8.233 steps a second it runs for 1,000 s."""


@pytest.fixture
def trace(tmp_path):
    def write(text: str):
        path = tmp_path / "workloads"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_csv_has_one_workload_in_a_line_in_any_order(trace):
    path = trace(f"{HEADER}1764547260,late,a,8,60.4,2\n2025-12-01T01:00:00+01:00,early,,1,3600,\n")

    assert read_jobs(path, GPUS) == (
        SimulatedJob(
            name="early",
            created=datetime(2025, 12, 1, tzinfo=UTC),
            gpus=1,
            spans=(timedelta(hours=1),),
            queue="default",
        ),
        SimulatedJob(
            name="late",
            created=datetime(2025, 12, 1, 0, 1, tzinfo=UTC),
            gpus=8,
            spans=(timedelta(minutes=1),),
            queue="a",
            priority=2,
        ),
    )


def test_queue_and_priority_may_be_left_out(trace):
    (job,) = read_jobs(trace("created,name,gpus,seconds\n0,only,2,5\n"), GPUS)

    assert (job.queue, job.priority, job.is_gang) == ("default", 0, True)


def test_spans_of_work_and_idleness_count_instead_of_seconds(trace):
    (job,) = read_jobs(trace("created,name,gpus,seconds,spans\n0,session,2,,3600 5400 0.2\n"), GPUS)

    assert job.spans == (timedelta(hours=1), timedelta(minutes=90), timedelta(seconds=1))


def test_a_job_of_a_gavel_trace_runs_for_its_steps_at_the_rate_of_its_type(trace):
    (job,) = read_jobs(trace(GAVEL), GPUS)

    assert job == SimulatedJob(
        name="job-00001", created=datetime(1970, 1, 1, 0, 2, tzinfo=UTC), gpus=4, spans=(timedelta(seconds=1000),)
    )


def workload(name, *, gpus="2", ended="2026-12-01T02:00:00Z", admitted="2026-12-01T01:00:00Z", **spec):
    times = {"QuotaReserved": admitted, "Admitted": admitted, "Finished": ended}
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": at} for kind, at in times.items() if at]
    usage = {"cpu": "4", "nvidia.com/gpu": gpus} if gpus else {"cpu": "4"}
    admission = {"clusterQueue": "a", "podSetAssignments": [{"name": "main", "count": 2, "resourceUsage": usage}]}
    return {
        "metadata": {"namespace": "team", "name": name, "uid": name, "creationTimestamp": "2026-12-01T00:30:00Z"},
        "spec": spec,
        "status": {"conditions": conditions, "admission": admission},
    }


def test_workloads_that_kubectl_prints_ran_from_their_admission_until_they_finished(trace):
    (job,) = read_jobs(trace(json.dumps({"kind": "List", "items": [workload("gang", priority=3)]})), GPUS)

    assert job == SimulatedJob(
        name="team/gang",
        created=datetime(2026, 12, 1, 0, 30, tzinfo=UTC),
        gpus=2,
        spans=(timedelta(hours=1),),
        queue="a",
        priority=3,
    )


def test_one_that_runs_still_ran_at_least_until_the_list_was_made(trace):
    """The latest instant in it is when the other one finished."""
    items = [workload("runs", ended=""), workload("other", ended="2026-12-01T05:00:00Z")]
    other, runs = read_jobs(trace(json.dumps({"items": items})), GPUS)

    assert (runs.name, runs.duration) == ("team/runs", timedelta(hours=4))
    assert other.duration == timedelta(hours=4)


def test_workloads_without_gpus_and_those_that_wait_are_left_out(trace):
    items = [workload("gang"), workload("cpu", gpus=""), workload("waits", admitted="", ended="")]

    assert [job.name for job in read_jobs(trace(json.dumps({"items": items})), GPUS)] == ["team/gang"]
    with pytest.raises(ConfigurationError, match="no Workload in it has run with GPUs"):
        read_jobs(trace(json.dumps({"items": items[1:]})), GPUS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("{", "it is no JSON that can be read"),
        ("created,name,gpus\n0,a,1\n", "no column seconds"),
        (f"{HEADER}0,a,,0,60,\n", "line 2: 0 GPUs"),
        (f"{HEADER}0,a,,1,0,\n", "line 2: it ran for 0 s"),
        (f"{HEADER}0,a,,1,nan,\n", "line 2: it ran for nan s"),
        (f"{HEADER}0,a,,1,inf,\n", "line 2: it ran for inf s"),
        (f"{HEADER}0,a,,1\n", "line 2: it has fewer values than the first line has columns"),
        (f"{HEADER}0,a,,1,,\n", "line 2: it says nothing of how long it ran"),
        (f"{HEADER}0,a,,one,60,\n", "line 2: gpus 'one' is not a whole number"),
        (f"{HEADER}0,a\n", "line 2: "),
        (f"{HEADER}2025-12-01T01:00:00,a,,1,60,\n", "is not a time with its zone"),
        (f"{HEADER}0,a,,1,60,\n1,a,,1,60,\n", "two Workloads have the name 'a'"),
        (GAVEL + GAVEL.replace("A3C", "BERT"), "line 2: job type 'BERT' has no rate"),
        (GAVEL + "A3C\t8233\n", "line 2: 2 columns between tabs, not 7"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(trace, text, message):
    with pytest.raises(ConfigurationError, match=message):
        read_jobs(trace(text), GPUS)


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        read_jobs(tmp_path / "none", GPUS)
