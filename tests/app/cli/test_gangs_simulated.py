"""`simulate --compare`: a gang that waits behind a session, from a file to a table and to JSON."""

import re

import pytest
from app.cli.command import command

from scaler.app.cli.gangs import times_of
from scaler.app.settings.model import Settings
from scaler.simulation.gangs.pressure_plans import GangTimes

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


def test_without_sessions_every_policy_is_the_same(trace):
    """The gang waits for 10 h less the 30 min that it is younger."""
    answer = simulate(trace, "--idle-share", "0", "--json").json
    none, always, on_pressure = answer["policies"]

    assert (answer["jobs"], answer["gangs"], answer["sessions"], answer["gpuHours"]) == (3, 2, 0, pytest.approx(41.35))
    assert [each["policy"] for each in answer["policies"]] == ["none", "always", "on-pressure"]
    assert none["gangWaitSeconds"] == {"number": 2, "mean": 17_100, "p50": 0, "p95": 34_200}
    assert none | {"policy": ""} == always | {"policy": ""} == on_pressure | {"policy": ""}


def test_with_sessions_a_gang_waits_less_and_the_same_seed_gives_the_same(trace):
    flags = ("--idle-share", "1", "--compare", "none,on-pressure", "--json")
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
    config = tmp_path / "settings.yaml"
    config.write_text("defaults:\n  idleAfter: 24h\n", encoding="utf-8")
    flags = ("--idle-share", "1", "--compare", "always", "--json")

    assert simulate(trace, *flags).json["policies"][0]["suspensions"] > 0
    assert simulate(trace, *flags, "--config", str(config)).json["policies"][0]["suspensions"] == 0


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
