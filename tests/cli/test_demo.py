"""The demo as a newcomer runs it: as a program, looking only at what it prints."""

import json
import subprocess
import sys
from typing import Any

import pytest
from prometheus_server import require_prometheus


def lines_of(*flags: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "-m", "scaler", "demo", "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def check_story(status: int, lines: list[dict[str, Any]]) -> None:
    last = lines[-1]
    assert (status, last["event"], last["ok"]) == (0, "DemoFinished", True), lines
    assert last["t"] <= 60
    # idleAfter is 6 s and the cooldown 2 s; what comes on top is polls, ticks and Kueue's batch of 1 s.
    assert 6 < last["seconds_from_last_activity_to_next_gang_admitted"] < 20
    assert all({"t", "event", "object", "reason", "message"} <= line.keys() for line in lines)
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    story = [f"{line['event']} {line['object'].rpartition('/')[2]}" for line in lines]
    wanted = [
        "Running first-raycluster",
        "Waiting second-raycluster",
        "Stops first-raycluster",
        "SuspendSoon first-raycluster",
        "Idle first-raycluster",
        "ScaledToZero first-raycluster",
        "Running second-raycluster",
        "OwnerWakes first-raycluster",
        "ScaledToOne first-raycluster",
        "Ended second-raycluster",
    ]
    places = [story.index(step) for step in wanted]
    assert places == sorted(places), story
    assert story.count("Running first-raycluster") == 2
    assert story.count("ScaledToZero first-raycluster") == 1


@pytest.mark.timeout(120)
def test_the_demo_hands_the_gpus_over_and_back() -> None:
    check_story(*lines_of())


@pytest.mark.prometheus
@pytest.mark.timeout(120)
def test_the_demo_does_the_same_through_a_real_prometheus() -> None:
    require_prometheus()
    check_story(*lines_of("--source", "prometheus"))


def test_an_unknown_source_is_refused_in_words() -> None:
    command = [sys.executable, "-m", "scaler", "demo", "--source", "graphite"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "write 'dcgm' or 'prometheus'" in done.stderr
