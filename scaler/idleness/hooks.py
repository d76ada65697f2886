"""Has the hook of an idle workload ended, by which its state is saved before it is suspended? Pure.

| its last run                                                                     | stage   |
|----------------------------------------------------------------------------------|---------|
| none, or that of another hook                                                    | Due     |
| has begun before its last work, or before something that may have been work      | Due     |
| has begun and not ended                                                          | Running |
| Succeeded                                                                        | Done    |
| Failed or TimedOut, and its policy says Continue                                 | Done    |
| Failed or TimedOut, and its policy says Hold, less than `rest` ago               | Held    |
| the same, longer ago                                                             | Due     |

Laws:

* A run is about the state in which it has begun. One sample of work after that, or samples in which work may hide, make
  it Outdated.
* What is known of a run stands in API objects, written before its first call: a restart or another leader goes on with
  the same run.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class OnFailure(StrEnum):
    """What becomes of a workload whose hook has failed."""

    HOLD = "Hold"
    """It keeps running; the hook runs again after a while."""
    CONTINUE = "Continue"


class HookOutcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    OUTDATED = "Outdated"
    """Work was seen, or may have been, after it had begun."""


class HookStage(StrEnum):
    DUE = "Due"
    RUNNING = "Running"
    DONE = "Done"
    HELD = "Held"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRun:
    """The last run of a workload's hook."""

    hook: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: HookOutcome | None = None
    """How it ended; None until it has."""
    message: str = ""
    saved_at: datetime | None = None
    """When the last run began that has succeeded: the state of that moment is saved."""


def stage_of(
    run: HookRun | None, hook: str, on_failure: OnFailure, *, since: datetime, rest: timedelta, now: datetime
) -> HookStage:
    """`since`: from when on there was surely no work. `rest`: how long after a failure it is not tried again."""
    if run is None or run.hook != hook or run.started_at < since:
        return HookStage.DUE
    match run.outcome:
        case None:
            return HookStage.RUNNING
        case HookOutcome.SUCCEEDED:
            return HookStage.DONE
        case HookOutcome.FAILED | HookOutcome.TIMED_OUT if on_failure is OnFailure.CONTINUE:
            return HookStage.DONE
        case HookOutcome.FAILED | HookOutcome.TIMED_OUT if now < again_at(run, rest):
            return HookStage.HELD
    return HookStage.DUE


def again_at(run: HookRun, rest: timedelta) -> datetime:
    """The time from which it may be tried again after a failure."""
    return (run.ended_at or run.started_at) + rest


def words(run: HookRun) -> str:
    """What came of it, such as `hook checkpoint has failed: it answers HTTP 403`."""
    verbs = {
        None: f"runs since {run.started_at:%Y-%m-%dT%H:%M:%SZ}",
        HookOutcome.SUCCEEDED: "has succeeded",
        HookOutcome.FAILED: "has failed",
        HookOutcome.TIMED_OUT: "has timed out",
        HookOutcome.OUTDATED: "is outdated",
    }
    return f"hook {run.hook} {verbs[run.outcome]}{f': {run.message}' if run.message else ''}"
