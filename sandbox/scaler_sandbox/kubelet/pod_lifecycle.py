"""What happens to a pod on its node, and how long each step takes.

| stage       | lasts                                   | ends with                                     |
|-------------|-----------------------------------------|-----------------------------------------------|
| starting    | the start delay                         | phase Running, containers started             |
| running     | for ever, or as long as its annotation  | phase Succeeded                               |
| terminating | what it takes to stop, or its grace     | phase Failed, then the object is deleted      |
| over        | until the object is removed             |                                               |
"""

from datetime import datetime, timedelta
from enum import StrEnum

from scaler.idleness.durations import parse_duration
from scaler.kube.objects.resources import POD
from scaler_sandbox.actions import Action, Delete, Patch, RecordEvent, status_patch
from scaler_sandbox.conditions import make, timestamp, with_conditions
from scaler_sandbox.kinds import Json
from scaler_sandbox.operators.pods import is_ending, is_terminal, phase

RUNTIME = "demo.idlegpu.io/runtime"
"""Annotation: how long the pod's program runs before it succeeds, such as `12s`."""
TERMINATION = "demo.idlegpu.io/termination"
"""Annotation: how long the pod's program takes to stop after the pod is deleted."""

_DEFAULT_GRACE_SECONDS = 30
_KILLED = 137


class PodStage(StrEnum):
    """The stage of a bound pod."""

    STARTING = "Starting"
    RUNNING = "Running"
    TERMINATING = "Terminating"
    OVER = "Over"


def pod_stage_of(pod: Json) -> PodStage:
    if is_ending(pod):
        is_done = is_terminal(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0
        return PodStage.OVER if is_done else PodStage.TERMINATING
    if is_terminal(pod):
        return PodStage.OVER
    return PodStage.RUNNING if phase(pod) == "Running" else PodStage.STARTING


def length(pod: Json, *, start_delay: timedelta, termination: timedelta) -> timedelta | None:
    """How long the pod's present stage lasts; None where it does not end by itself. Raises: ValueError."""
    match pod_stage_of(pod):
        case PodStage.STARTING:
            return start_delay
        case PodStage.RUNNING:
            runtime = _annotation(pod, RUNTIME)
            return parse_duration(runtime) if runtime else None
        case PodStage.TERMINATING:
            own = _annotation(pod, TERMINATION)
            grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
            return min(parse_duration(own) if own else termination, timedelta(seconds=grace))
        case PodStage.OVER:
            return None


def _annotation(pod: Json, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key, ""))


def finish_stage(pod: Json, *, now: datetime) -> list[Action]:
    """What ends the pod's present stage."""
    match pod_stage_of(pod):
        case PodStage.STARTING:
            started = RecordEvent(reason="Started", message="Started container")
            return _patched(pod, _running(pod, now=now), started)
        case PodStage.RUNNING:
            return _patched(pod, _ended(pod, "Succeeded", "Completed", 0, now=now))
        case PodStage.TERMINATING:
            killed = [] if is_terminal(pod) else _patched(pod, _ended(pod, "Failed", "Error", _KILLED, now=now))
            return killed or [Delete(resource=POD, observed=pod, grace_seconds=0)]
        case PodStage.OVER:
            return []


def _patched(pod: Json, status: Json, *notes: RecordEvent) -> list[Action]:
    patch: Patch | None = status_patch(POD, pod, status, *notes)
    return [patch] if patch else []


def _running(pod: Json, *, now: datetime) -> Json:
    status = pod.get("status") or {}
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        **status,
        "phase": "Running",
        "startTime": timestamp(now),
        "conditions": with_conditions(status.get("conditions"), *(_true(kind, now) for kind in kinds)),
        "containerStatuses": [_started(container, now) for container in (pod["spec"].get("containers") or ())],
    }


def _true(kind: str, now: datetime) -> Json:
    return {"type": kind, "status": "True", "lastTransitionTime": timestamp(now)}


def _started(container: Json, now: datetime) -> Json:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": timestamp(now)}},
        "lastState": {},
    }


def _ended(pod: Json, end: str, reason: str, exit_code: int, *, now: datetime) -> Json:
    status = pod.get("status") or {}
    why = "PodCompleted" if end == "Succeeded" else "PodFailed"
    unready = [make(kind, "False", why, "", now=now) for kind in ("Ready", "ContainersReady")]
    return {
        **status,
        "phase": end,
        "conditions": with_conditions(status.get("conditions"), *unready),
        "containerStatuses": [
            {**each, "ready": False, "started": False, "state": _terminated(each, reason, exit_code, now)}
            for each in status.get("containerStatuses") or ()
        ],
    }


def _terminated(container_status: Json, reason: str, exit_code: int, now: datetime) -> Json:
    since = ((container_status.get("state") or {}).get("running") or {}).get("startedAt", timestamp(now))
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": since, "finishedAt": timestamp(now)}}
