"""`simulate --compare`: a gang that waits behind a session, from files to a table and to JSON."""

import json
import re
from datetime import UTC, datetime

import pytest
from app.cli.command import command
from scaler_analysis.cli.gangs import times_of
from scaler_analysis.simulation.gangs.pressure_plans import GangTimes

from scaler.app.settings.model import Settings

TRACE = """created,name,queue,gpus,seconds
0,first,,4,36000
1800,gang,,4,1200
86400,last,,1,60
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "workloads.csv"
    path.write_text(TRACE, encoding="utf-8")
    return str(path)


def simulate(trace, *flags, gpus="4"):
    return command("simulate", "--workloads", trace, "--gpus", gpus, *flags)


def settings(tmp_path, *, idle_after):
    path = tmp_path / f"{idle_after}.yaml"
    path.write_text(f"defaults: {{idleAfter: {idle_after}}}\n", encoding="utf-8")
    return str(path)


def test_without_sessions_every_policy_is_the_same(trace):
    """The gang waits for 10 h less the 30 min that it is younger."""
    answer = simulate(trace, "--idle-share", "0", "--json").json
    none, always, on_pressure = answer["policies"]

    assert (answer["jobs"], answer["gangs"], answer["sessions"], answer["gpuHours"]) == (3, 2, 0, pytest.approx(41.35))
    assert [each["policy"] for each in answer["policies"]] == ["none", "always", "on-pressure"]
    assert none["gangWaitSeconds"] == {"number": 2, "mean": 17_100, "p50": 0, "p95": 34_200}
    assert none | {"policy": ""} == always | {"policy": ""} == on_pressure | {"policy": ""}


def test_with_sessions_a_gang_waits_less_and_the_same_seed_gives_the_same(trace, tmp_path):
    config = settings(tmp_path, idle_after="30m")
    flags = ("--idle-share", "1", "--compare", "none,on-pressure", "--json", "--config", config)
    none, on_pressure = simulate(trace, *flags).json["policies"]

    assert on_pressure["gangWaitSeconds"]["mean"] < none["gangWaitSeconds"]["mean"]
    assert on_pressure["suspensions"] > 0
    assert simulate(trace, *flags).out == simulate(trace, *flags).out
    assert simulate(trace, *flags, "--seed", "1").out != simulate(trace, *flags).out


def test_the_table_has_a_column_for_each_policy_and_money_where_there_is_a_price(trace, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    done = simulate(trace, "--idle-share", "0", "--price", "2.5")

    assert (done.status, done.err) == (0, "")
    assert "3 Workloads, 2 of them gangs, 41 GPU-hours" in done.out
    heading, *rows = (re.split(r" {2,}", line.strip()) for line in done.out.splitlines()[1:])
    cells = {label: values for label, *values in rows}
    assert heading == ["none", "always", "on-pressure"]
    assert cells["gangs waited, mean / p50 / p95"] == 3 * ["4h45m / 0m / 9h30m"]
    assert cells["given, USD"] == ["0", "0", "0"]


def test_windows_are_those_of_the_settings(trace, tmp_path):
    flags = ("--idle-share", "1", "--compare", "always", "--json", "--config")
    short, long = (simulate(trace, *flags, settings(tmp_path, idle_after=each)) for each in ("30m", "24h"))

    assert short.json["policies"][0]["suspensions"] > 0
    assert long.json["policies"][0]["suspensions"] == 0


def test_by_default_everything_is_as_in_a_cluster():
    assert times_of(Settings()) == GangTimes()


def test_a_workload_that_needs_more_than_there_is_is_left_out_and_counted(trace):
    done = simulate(trace, "--idle-share", "0", "--compare", "none", gpus="3")

    assert "1 Workload, 0 of them gangs" in done.out
    assert "2 Workloads that need more left out" in done.out


@pytest.mark.parametrize(
    ("flags", "gpus", "message"),
    [
        (("--compare", "sometimes"), "4", "'sometimes' is not a policy; write some of none,always,on-pressure"),
        ((), "many", "--gpus: 'many': write a number such as 64, or team-a=64,team-b=32"),
        ((), "team-a=0", "--gpus: 'team-a=0': write a number"),
        ((), "4,default=8", "--gpus: 'default=8': that ClusterQueue has a number already"),
        ((), "team-a=4", "--gpus says nothing of ClusterQueue default; write default=GPUS, too"),
        (("--price", "-1"), "4", "--price"),
    ],
)
def test_flags_that_cannot_be_used_say_why(trace, flags, gpus, message):
    done = simulate(trace, *flags, gpus=gpus)

    assert done.status == 2
    assert message in done.err


# ------------------------------------------------------------------------------------------------- recorded pauses

HOUR = 3600
GANG = (4 * HOUR, 5 * HOUR)


@pytest.fixture
def samples(tmp_path):
    """A notebook with two GPUs works for an hour, pauses for seven, and works for one; a gang of two pods works from
    4:00 to 5:00. A sample a minute."""
    rows = ["time,namespace,pod,gpu,signal,value,owner"]
    for at in range(0, 9 * HOUR, 60):
        works = at < HOUR or at >= 8 * HOUR
        rows += [f"{at},team,nb-0,GPU-{n},gpu_util,{50 * works if n else 0},Notebook/nb" for n in range(2)]
        rows += [f"{at},team,gang-{n},GPU-g{n},gpu_util,90,Job/gang" for n in range(2) if GANG[0] <= at < GANG[1]]
    path = tmp_path / "samples.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    config = tmp_path / "settings.yaml"
    config.write_text("signals: [{name: gpu_util, metrics: [U], unit: percent}]\n", encoding="utf-8")
    return ("--trace", str(path), "--config", str(config))


@pytest.fixture
def listed(tmp_path):
    """As kubectl prints them: the gang was created at 2:00, and nothing is recorded of a third Workload."""

    def workload(name, owner, gpus, created, admitted, finished):
        instants = [datetime.fromtimestamp(at * HOUR, UTC).isoformat() for at in (created, admitted, finished)]
        kinds = zip(("Admitted", "Finished"), instants[1:], strict=True)
        usage = [{"name": "main", "count": gpus, "resourceUsage": {"nvidia.com/gpu": str(gpus)}}]
        return {
            "metadata": {
                "namespace": "team",
                "name": name,
                "creationTimestamp": instants[0],
                "ownerReferences": [{"kind": "Job", "name": owner, "uid": owner, "controller": True}],
            },
            "status": {
                "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at} for kind, at in kinds],
                "admission": {"clusterQueue": "a", "podSetAssignments": usage},
            },
        }

    items = [
        workload("notebook-nb-1f2e3", "nb", 2, 0, 0, 9),
        workload("job-gang-7a6b5", "gang", 2, 2, 4, 5),
        workload("job-other-9d8c7", "other", 1, 8, 8, 9),
    ]
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps({"items": items}), encoding="utf-8")
    return ("--workloads", str(path))


def test_recorded_workloads_are_the_jobs_where_no_file_has_any(samples):
    """With two GPUs the gang waits until 9:00 if nothing is suspended: 5 h less the minute after the last sample."""
    answer = command("simulate", *samples, "--gpus", "2", "--json").json
    none, always, _ = answer["policies"]

    assert (answer["jobs"], answer["gangs"], answer["sessions"], answer["idleSpans"]) == (2, 2, 1, "recorded")
    assert (answer["notes"], "seed" in answer, answer["from"]) == ([], False, "1970-01-01T00:00:00+00:00")
    assert answer["gpuHours"] == pytest.approx(2 * (9 + 1) - 2 * 2 / 60)
    assert answer["idleGpuHours"] == pytest.approx(2 * 7)
    assert none["gangWaitSeconds"] == {"number": 2, "mean": 2.5 * HOUR - 30, "p50": 0, "p95": 5 * HOUR - 60}
    assert (always["gangWaitSeconds"]["p95"], always["suspensions"]) == (0, 1)


def test_workloads_of_a_file_have_recorded_pauses_and_their_own_creation_gpus_and_queue(samples, listed):
    """The gang has waited since 2:00: 7 h if nothing is suspended. What is not recorded of the hours that the file has
    is work: a minute each of the notebook, at its begin, and of the gang."""
    answer = command("simulate", *samples, *listed, "--gpus", "a=2", "--json").json
    none, *_ = answer["policies"]

    assert (answer["jobs"], answer["sessions"], answer["idleSpans"], answer["withSamples"]) == (3, 1, "recorded", 2)
    assert answer["notes"] == [
        "samples show the pauses of 2 of 3 Workloads; the others work all the time, but for pauses that the file has"
    ]
    assert (answer["gpuHours"], answer["idleGpuHours"]) == (2 * 9 + 2 + 1, 2 * 7)
    assert none["gangWaitSeconds"]["p95"] == 7 * HOUR


def test_the_table_says_that_pauses_are_recorded_and_of_how_many(samples, listed):
    done = command("simulate", *samples, *listed, "--gpus", "a=2", "--compare", "none")

    assert (done.status, done.err) == (0, "")
    assert "idle in 1 session (recorded); quota 2 GPUs" in " ".join(done.out.split())
    assert "samples show the pauses of 2 of 3 Workloads" in done.out


def test_without_samples_pauses_are_drawn(trace):
    answer = simulate(trace, "--json").json

    assert (answer["idleSpans"], answer["seed"], "notes" in answer) == ("drawn", 0, False)


def test_what_a_pause_is_follows_from_the_floor_of_the_settings(samples, tmp_path):
    floor = tmp_path / "floor.yaml"
    floor.write_text(
        "signals: [{name: gpu_util, metrics: [U], unit: percent}]\ndefaults: {activeAbove: 60%}\n", encoding="utf-8"
    )
    answer = command(
        "simulate", *samples[:2], "--config", str(floor), "--gpus", "2", "--compare", "none", "--json"
    ).json

    assert answer["idleGpuHours"] == pytest.approx(2 * (9 - 2 / 60))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--compare", "none"), "write --gpus 64, or --gpus team-a=64,team-b=32: how many"),
        (("--gpus", "2", "--idle-after", "1h"), "--idle-after: only without --workloads and --gpus"),
        (("--gpus", "2", "--html", "x.html"), "--html: only without --workloads and --gpus"),
        (("--gpus", "2", "--since", "1d"), "write either --trace FILE or --since 30d"),
        (("--gpus", "1"), "no Workload fits into 1 GPU; raise --gpus"),
        (("--gpus", "team-a=2"), "--gpus says nothing of ClusterQueue default; write default=GPUS, too"),
    ],
)
def test_flags_that_do_not_go_together_say_why(samples, flags, message):
    done = command("simulate", *samples, *flags)

    assert done.status == 2
    assert message in " ".join(done.err.split())


def test_samples_or_workloads_have_to_be_named():
    done = command("simulate", "--gpus", "2")

    assert (done.status, "write --workloads FILE, --trace FILE or --since 30d" in done.err) == (2, True)
