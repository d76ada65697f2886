"""What does KEDA do after a poll? Its decision table, pure.

| active or forced | error | replicas now           | effect        |
|------------------|-------|------------------------|---------------|
| yes              | any   | 0                      | Activate      |
| yes              | yes   | > 0                    | PartialError  |
| yes              | no    | > 0                    | Refresh       |
| no               | yes   | any                    | Freeze        |
| no               | no    | > 0, minimum 0         | Deactivate, or CoolDown before its time |
| no               | no    | < minimum              | RaiseToMinimum |
| no               | no    | otherwise              | Nothing       |

`paused-replicas` comes before all of this. `paused-scale-in` and `-scale-out` take the effect out of a row, not the
conditions that go with it.

The trap that the external scaler has to live with: cool-down counts from `lastActiveTime`, which only polls that were
active and without error refresh. After an outage, or when another client has scaled up, it is old, and the first
inactive answer scales down at once.

Source: KEDA 2.18, pkg/scaling/executor/scale_scaledobjects.go.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from scaler_sandbox.conditions import condition, has
from scaler_sandbox.keda.scaledobjects import PauseAnnotations, ScaledObjectSpec, ScaledObjectTimes
from scaler_sandbox.kinds import Json


class Effect(StrEnum):
    """What is done to the target, or not."""

    ACTIVATE = "Activate"
    DEACTIVATE = "Deactivate"
    RAISE_TO_MINIMUM = "RaiseToMinimum"
    SCALE_TO_PAUSED = "ScaleToPaused"
    REFRESH = "Refresh"
    COOL_DOWN = "CoolDown"
    PARTIAL_ERROR = "PartialError"
    FREEZE = "Freeze"
    NOTHING = "Nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What the triggers said, together."""

    is_active: bool
    is_error: bool
    by: str = ""
    """What an event names as the cause: the trigger's name; empty for a push."""


def effect_of(
    poll: Poll,
    scaling: ScaledObjectSpec,
    pauses: PauseAnnotations,
    memory: ScaledObjectTimes,
    *,
    replicas: int,
    now: datetime,
) -> Effect:
    """The row of the table that applies."""
    if pauses.paused_replicas is not None:
        return Effect.SCALE_TO_PAUSED
    if poll.is_active or pauses.forced:
        return _when_active(poll, pauses, replicas=replicas)
    if poll.is_error:
        return Effect.FREEZE
    return _when_inactive(scaling, pauses, memory, replicas=replicas, now=now)


def _when_active(poll: Poll, pauses: PauseAnnotations, *, replicas: int) -> Effect:
    if replicas == 0:
        return Effect.NOTHING if pauses.paused_scale_out else Effect.ACTIVATE
    return Effect.PARTIAL_ERROR if poll.is_error else Effect.REFRESH


def _when_inactive(
    scaling: ScaledObjectSpec, pauses: PauseAnnotations, memory: ScaledObjectTimes, *, replicas: int, now: datetime
) -> Effect:
    if replicas > 0 and scaling.minimum == 0:
        if pauses.paused_scale_in:
            return Effect.NOTHING
        return Effect.DEACTIVATE if has_cooled_down(scaling, memory, now=now) else Effect.COOL_DOWN
    if replicas < scaling.minimum:
        return Effect.NOTHING if pauses.paused_scale_out else Effect.RAISE_TO_MINIMUM
    return Effect.NOTHING


def has_cooled_down(scaling: ScaledObjectSpec, memory: ScaledObjectTimes, *, now: datetime) -> bool:
    """Whether it may go to 0: since it was last seen active, or since the beginning where it never was."""
    if memory.last_active is None:
        return memory.created + scaling.initial_cooldown < now
    return memory.last_active + scaling.cooldown < now


def replicas_wanted(effect: Effect, scaling: ScaledObjectSpec, pauses: PauseAnnotations) -> int | None:
    """The replicas that the effect scales to; None where it does not scale."""
    match effect:
        case Effect.ACTIVATE:
            return max(scaling.minimum, 1)
        case Effect.DEACTIVATE:
            return 0
        case Effect.RAISE_TO_MINIMUM:
            return scaling.minimum
        case Effect.SCALE_TO_PAUSED:
            return pauses.paused_replicas
        case _:
            return None


def made(kind: str, status: str, reason: str, message: str) -> Json:
    """A condition of a ScaledObject, which has no times."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


READY = made("Ready", "True", "ScaledObjectReady", "ScaledObject is defined correctly and is ready for scaling")
_PARTIAL = made(
    "Ready", "Unknown", "PartialTriggerError", "Some triggers defined in ScaledObject are not working correctly"
)
_FAILED = made("Ready", "False", "TriggerError", "Triggers defined in ScaledObject are not working correctly")
_ACTIVE = made("Active", "True", "ScalerActive", "Scaling is performed because triggers are active")
_FORCED = made(
    "Active", "True", "ScalerActive", "Scaling is performed because activation is being forced by annotation"
)
_INACTIVE = made("Active", "False", "ScalerNotActive", "Scaling is not performed because triggers are not active")
_COOLING = made("Active", "False", "ScalerCooldown", "Scaler cooling down because triggers are not active")


def conditions_after(effect: Effect, poll: Poll, pauses: PauseAnnotations, scaled_object: Json) -> list[Json]:
    """The conditions that the effect changes."""
    if effect is Effect.SCALE_TO_PAUSED:
        return [] if poll.is_error or has(scaled_object, "Ready") else [READY]
    return [*_ready_after(effect, poll, scaled_object), *_active_after(effect, poll, pauses, scaled_object)]


def _ready_after(effect: Effect, poll: Poll, scaled_object: Json) -> list[Json]:
    if effect is Effect.FREEZE:
        return [] if has(scaled_object, "Ready", "False") else [_FAILED]
    if effect is Effect.PARTIAL_ERROR:
        return [] if has(scaled_object, "Ready", "Unknown") else [_PARTIAL]
    return [] if poll.is_error or has(scaled_object, "Ready") else [READY]


def _active_after(effect: Effect, poll: Poll, pauses: PauseAnnotations, scaled_object: Json) -> list[Json]:
    if effect is Effect.COOL_DOWN:
        return [] if has(scaled_object, "Active", "False", "ScalerCooldown") else [_COOLING]
    if effect is Effect.DEACTIVATE:
        return [_INACTIVE]
    is_active = poll.is_active or pauses.forced
    present = condition(scaled_object, "Active")
    if present is not None and present["status"] == ("True" if is_active else "False"):
        return []
    return [(_ACTIVE if poll.is_active else _FORCED) if is_active else _INACTIVE]
