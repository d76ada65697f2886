"""The demo as a newcomer runs it: as a program, looking only at what it prints."""

import json
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from app.cli.command import command
from prometheus_server import require_prometheus
from scaler_sandbox.demo import ACTS, start_act
from small_cluster import until

BUSY = 60.0
"""Seconds that a machine may add which has more to do than this."""


def lines_of(*flags: str) -> tuple[int, list[dict[str, Any]]]:
    words = [sys.executable, "-m", "scaler", "demo", "--json", *flags]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def check_second_act(lines: list[dict[str, Any]]) -> None:
    story = [f"{line['event']} {line['object'].rpartition('/')[2]}" for line in lines]
    wanted = [
        "Begins research",
        "Idle research",
        "Submitted big-gang",
        "Planned big-gang",
        "Admitted big-gang",
        "Running big-gang",
        "Untouched research",
    ]
    places = [story.index(step) for step in wanted]
    assert places == sorted(places), story
    # A plan may be made before Kueue has written that it waits.
    assert "Waiting big-gang" in story
    # Both victims are asked to be at 0 before the first is deactivated, and no other workload is asked at all.
    asked = [step for step in story if step.startswith("ScaledToZero notebook")]
    assert sorted(asked) == ["ScaledToZero notebook-b1", "ScaledToZero notebook-b2"]
    first_deactivated = min(place for place, step in enumerate(story) if step.startswith("Deactivated notebook"))
    assert max(story.index(step) for step in asked) < first_deactivated
    assert lines[-1]["victims"] == ["notebook-b1", "notebook-b2"]
    assert lines[-1]["seconds_from_waiting_to_admitted"] < 20 + BUSY


def check_third_act(lines: list[dict[str, Any]]) -> None:
    story = [f"{line['event']} {line['object'].rpartition('/')[2]}" for line in lines]
    assert "Waiting huge-gang" in story
    wanted = ["Planned", "Reserved", "Held", "Admitted", "Running", "Trains"]
    places = [story.index(f"{event} huge-gang") for event in wanted]
    assert places == sorted(places), story
    # The gang is released when the last pod of both notebooks has ended and the node is there that it asked for, once.
    before = [place for place, step in enumerate(story) if step.startswith(("PodsGone jupyter", "NodeAdded"))]
    assert len(before) == 3
    assert max(before) < story.index("Admitted huge-gang")
    assert sum(step.startswith("Asked") for step in story) == 1
    assert sorted(step for step in story if step.startswith("ScaledToZero jupyter-1")) == ["ScaledToZero jupyter-1"]
    assert "ScaledToZero train" not in story
    assert lines[-1]["gpus"] == {"reused": 8, "provisioned": 8}


def check_fourth_act(lines: list[dict[str, Any]]) -> None:
    story = [f"{line['event']} {line['object'].rpartition('/')[2]}" for line in lines]
    wanted = [
        "Waiting night-run",
        "SuspendSoon explore",
        "OwnerKeeps explore",
        "Kept explore",
        "Planned night-run",
        "ScaledToZero explore",
        "Running night-run",
        "Ended night-run",
        "Waking explore",
        "ScaledToOne explore",
        "History explore",
    ]
    places = [story.index(step) for step in wanted]
    assert places == sorted(places), story
    kept = next(line for line in lines if line["event"] == "Kept")
    planned = next(line for line in lines if line["event"] == "Planned" and line["object"] == "Job/night-run")
    # From when the leader sees the request, in whole seconds of the annotation.
    assert planned["t"] - kept["t"] >= 3.5
    woken = next(line for line in lines if line["event"] == "Waking" and line["object"].endswith("/explore"))
    assert woken["message"].endswith("(asked for by trigger metadata, WhenFree)")
    assert story.count("Running explore") == 2
    history = iter(lines[-1]["history"])
    assert all(state in history for state in ("Warned", "Kept", "Granted", "Suspended", "Waking", "Busy")), lines[-1]


def check_fifth_act(lines: list[dict[str, Any]]) -> None:
    story = [f"{line['event']} {line['object'].rpartition('/')[2]}" for line in lines]
    wanted = [
        "Begins two",
        "Submitted pretrain",
        "Reserved pretrain",
        "Nominated pretrain",
        "Copied b",
        "Planned pretrain",
        "Admitted pretrain",
        "Running pretrain",
        "Untouched a",
        "Untouched b",
    ]
    places = [story.index(step) for step in wanted]
    assert places == sorted(places), story
    nominated = next(line for line in lines if line["event"] == "Nominated")
    assert nominated["message"].startswith("cluster b alone")
    answers = {line["object"].rpartition("/")[2]: line["reason"] for line in lines if line["event"] == "Answered"}
    assert answers == {"a": "Wait", "b": "Reclaim"}
    # On b exactly the notebooks whose GPUs the gang needs are suspended; on a nothing is.
    asked = {line["object"] for line in lines if line["event"] == "ScaledToZero"}
    assert {"ScalableWorkload/lab-1", "ScalableWorkload/lab-2"} <= asked
    assert "ScalableWorkload/lab-3" not in asked
    assert "Copied a" not in story
    assert not [step for step in story if "llm-" in step]
    assert (lines[-1]["cluster"], lines[-1]["suspended_for_it"]) == ("b", ["lab-1", "lab-2"])
    assert lines[-1]["seconds_to_the_other_cluster"] < 15 + BUSY


def check_story(status: int, lines: list[dict[str, Any]]) -> None:
    last = lines[-1]
    assert (status, last["event"], last["ok"]) == (0, "DemoFinished", True), lines
    assert last["t"] <= 150 + BUSY
    # idleAfter is 6 s and the cooldown 2 s; what comes on top is polls, ticks and Kueue's batch of 1 s.
    assert 6 < last["seconds_from_last_activity_to_next_gang_admitted"] < 20 + BUSY
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


@pytest.mark.slow
def test_the_demo_plays_all_of_its_acts_to_their_ends() -> None:
    status, lines = lines_of()
    check_story(status, lines)
    check_second_act(lines)
    check_third_act(lines)
    check_fourth_act(lines)
    check_fifth_act(lines)


@pytest.mark.slow
@pytest.mark.prometheus
def test_the_demo_does_the_same_through_a_real_prometheus() -> None:
    require_prometheus()
    check_story(*lines_of("--source", "prometheus", "--act", "first"))


@pytest.mark.slow
@pytest.mark.prometheus
async def test_what_is_served_afterwards_is_enough_for_policies_and_reports() -> None:
    """KEDA can be told where the scaler is, and Prometheus has the scaler's own metrics."""
    require_prometheus()
    async with AsyncExitStack() as stack:
        stage = await start_act(stack, ACTS["second"], "prometheus")
        assert stage.runtime.settings.keda.scaler_addresses == (stage.scaler_address,)
        assert stage.addresses["Prometheus"] == stage.prometheus_url
        query = f"{stage.prometheus_url}/api/v1/query?query=idle_gpu_scaler_build_info"
        async with aiohttp.ClientSession() as session:

            async def is_scraped() -> bool:
                answer = await (await session.get(query)).json()
                return bool(answer["data"]["result"])

            await until(is_scraped)


@pytest.mark.parametrize(
    ("flag", "value", "known"),
    [
        ("--source", "graphite", "'dcgm' or 'prometheus'"),
        ("--act", "sixth", "'first', 'second', 'third', 'fourth' or 'fifth'"),
    ],
)
def test_an_unknown_value_is_refused_with_those_that_are_known(flag: str, value: str, known: str) -> None:
    done = command("demo", flag, value)
    assert done.status == 2
    assert f"write {known}" in done.err
