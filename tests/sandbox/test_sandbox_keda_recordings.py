"""The decision table of the embedded KEDA, asked about every poll that was recorded from a running KEDA 2.18.1.

Each poll is judged by what the recording shows at that moment (replicas, annotations, lastActiveTime), and the replicas
that the table wants are compared with those that KEDA made of it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

import pytest
from recordings import FOLDER, needs_data
from scaler_sandbox.keda.rules import Effect, Poll, effect_of, replicas_wanted
from scaler_sandbox.keda.scaledobjects import ScaledObjectTimes, read_pause_annotations, read_scaled_object
from scaler_sandbox.kinds import Json

SOON = 0.9
"""Seconds in which a busy KEDA has acted on a poll."""
NAMES = (
    "keda-annotation-force-activation",
    "keda-annotation-paused-replicas",
    "keda-annotation-paused-scale-in-out",
    "keda-error-getmetrics-freeze",
    "keda-error-getmetricspec-freeze",
    "keda-error-isactive-freeze",
    "keda-external-poll-trace",
    "keda-initialcooldown",
    "keda-manual-resume-not-protected",
    "keda-new-scaledobject-over-running-target",
)

pytestmark = needs_data(FOLDER)


@cache
def recording(name: str) -> Json:
    loaded: Json = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One poll of one ScaledObject."""

    at: float
    name: str
    poll: Poll


def polls(name: str) -> Iterator[Recorded]:
    """Calls that follow each other within a moment are one poll, where they ask for more than the metric's name."""
    calls = [call for call in recording(name)["grpc"] if call["method"] != "StreamIsActive"]
    for target in sorted({call["name"] for call in calls}):
        group: list[Json] = []
        for call in [each for each in calls if each["name"] == target] + [{"t_offset_s": 1e9}]:
            if group and call["t_offset_s"] - group[-1]["t_offset_s"] > 0.1:
                if found := as_poll(group):
                    yield Recorded(at=group[0]["t_offset_s"], name=target, poll=found)
                group = []
            group.append(call)


def as_poll(calls: list[Json]) -> Poll | None:
    results = [str(call["result"]) for call in calls]
    is_error = any(result.startswith("ERR") for result in results)
    active = [str(call["result"]) for call in calls if call["method"] == "IsActive"]
    if not active and not is_error:
        return None
    return Poll(is_active="True" in active, is_error=is_error)


def seen(name: str, kind: str, target: str, at: float) -> Json | None:
    """The object as it was at that time."""
    found = None
    for event in recording(name)["events"]:
        body = event["object"]
        if event["t_offset_s"] <= at and (body["kind"], body["metadata"]["name"]) == (kind, target):
            found = body if event["type"] != "DELETED" else None
    return found


def replicas_at(name: str, target: str, at: float) -> int | None:
    found = seen(name, "ScalableWorkload", target, at)
    return int(found["spec"]["replicas"]) if found else None


def judged(name: str, recorded: Recorded) -> tuple[Effect, int, int] | None:
    """The effect, the replicas that it wants, and those that there were soon after."""
    scaled_object = seen(name, "ScaledObject", recorded.name, recorded.at)
    before = replicas_at(name, recorded.name, recorded.at)
    after = replicas_at(name, recorded.name, recorded.at + SOON)
    if scaled_object is None or before is None or after is None:
        return None
    scaling, pauses = read_scaled_object(scaled_object), read_pause_annotations(scaled_object)
    now = datetime.fromisoformat(recording(name)["t0"]) + timedelta(seconds=recorded.at)
    effect = effect_of(recorded.poll, scaling, pauses, ScaledObjectTimes.of(scaled_object), replicas=before, now=now)
    wanted = replicas_wanted(effect, scaling, pauses)
    return effect, before if wanted is None else wanted, after


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_poll_had_the_effect_that_the_table_says(name: str) -> None:
    answers = [(recorded.at, judged(name, recorded)) for recorded in polls(name)]
    known = [(at, *answer) for at, answer in answers if answer]
    assert len(known) >= 2
    assert [each for each in known if each[2] != each[3]] == []


def test_the_recordings_show_every_effect_that_scales_and_every_one_that_holds() -> None:
    effects = {answer[0] for name in NAMES for each in polls(name) if (answer := judged(name, each))}
    assert effects >= {
        Effect.ACTIVATE,
        Effect.DEACTIVATE,
        Effect.SCALE_TO_PAUSED,
        Effect.REFRESH,
        Effect.COOL_DOWN,
        Effect.PARTIAL_ERROR,
        Effect.FREEZE,
        Effect.NOTHING,
    }
