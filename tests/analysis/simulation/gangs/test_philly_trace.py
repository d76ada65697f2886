"""The table of the docs, made again from the trace of `../shared/data`."""

import re
from pathlib import Path

import pytest
from app.cli.command import command
from recordings import SHARED, needs_data
from scaler_analysis.simulation.gangs.trace import read_jobs

from scaler.kube.objects.gpu_pods import GpuResources

TRACE = SHARED / "traces" / "gavel-philly-ee9e8c.trace"
PAGE = Path(__file__).parents[4] / "docs" / "choose-your-window.md"

pytestmark = needs_data(TRACE)


def test_durations_are_those_of_philly():
    """They are whole seconds there, the shortest of them 1,202 s and 354,581 GPU-hours in all."""
    jobs = read_jobs(TRACE, GpuResources(patterns=()))

    assert (len(jobs), sum(job.is_gang for job in jobs)) == (2000, 1025)
    assert min(job.duration.total_seconds() for job in jobs) == 1202
    assert sum(job.gpus * job.duration.total_seconds() for job in jobs) / 3600 == pytest.approx(354_580.6, abs=1)


def test_plans_give_gangs_of_the_trace_less_to_wait_with_fewer_suspensions(tmp_path):
    """80 jobs on 64 GPUs: sessions are suspended, and come back."""
    beginning = tmp_path / "beginning.trace"
    beginning.write_text("".join(TRACE.read_text().splitlines(keepends=True)[:80]), encoding="utf-8")
    answer = command("simulate", "--workloads", str(beginning), "--gpus", "64", "--json").json
    none, always, on_pressure = answer["policies"]

    assert none["suspensions"] == 0
    assert 0 < on_pressure["suspensions"] < always["suspensions"]
    assert on_pressure["gangWaitSeconds"]["mean"] < none["gangWaitSeconds"]["mean"]


@pytest.mark.slow
def test_the_table_of_the_docs_is_what_the_command_prints(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    marks = rf"<!-- measured on {TRACE.name}: begin -->\n```console\n\$ idle-gpu-scaler (.*)\n((?s:.*?))```"
    (words, printed), *_ = re.findall(marks, PAGE.read_text(encoding="utf-8"))
    done = command(*words.replace(TRACE.name, str(TRACE)).split())

    assert [line.rstrip() for line in done.out.splitlines()] == printed.splitlines()
