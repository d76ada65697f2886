"""What do the GPUs that pods hold do? Each is in exactly one state at a time.

| the GPU …                                                                     | state          |
|-------------------------------------------------------------------------------|----------------|
| its pod is terminating                                                        | Ending         |
| its pod does not run, for however long                                        | Starting       |
| shows work within the window                                                  | Busy           |
| has no metrics, and its pod runs for longer than metrics may take             | WithoutMetrics |
| cannot be judged for want of samples, and its pod is younger than the window  | Starting       |
| still reports for the pod that had it before, and its own has just begun      | Starting       |
| cannot be judged for any other reason, or its workload cannot                 | Unknown        |
| is idle, and only time keeps it                                               | Idle           |
| is idle, and something else keeps it                                          | HeldIdle       |

Laws:

* Absence is not idleness, and so it is no cost: a quiet GPU of a workload of which not all is known is Unknown.
* Work that was observed makes a GPU Busy, whatever is unknown beside it.
* The states of a pod's GPUs add up to the GPUs that it requests.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from scaler.decision.decision import Decision
from scaler.decision.reasons import DecisionReason, row_of
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.idleness.reasons import DOUBTS, UnknownReason
from scaler.idleness.verdict import Busy, GpuEvidence, Idle, Unknown, WorkloadVerdict
from scaler.targets.target_state import Phase


class GpuState(StrEnum):
    BUSY = "Busy"
    IDLE = "Idle"
    HELD_IDLE = "HeldIdle"
    UNKNOWN = "Unknown"
    WITHOUT_METRICS = "WithoutMetrics"
    STARTING = "Starting"
    ENDING = "Ending"


IDLE = frozenset({GpuState.IDLE, GpuState.HELD_IDLE})
"""States of GPUs that cost money and do no work."""


class NotScaledReason(StrEnum):
    """What keeps an idle GPU where no answer to KEDA says so."""

    PLAN = "HeldForPlan"
    """Its plan waits until all of its workloads are asked to be at 0."""
    PAUSE = "PausedInKEDA"
    """Its ScaledObject is paused: whatever the answer is, KEDA does not scale it."""
    NO_SCALED_OBJECT = "NoScaledObject"
    """No ScaledObject scales it."""


class GpuStatus(NamedTuple):
    state: GpuState
    reason: str = ""
    is_its_own: bool = True
    """Whether the reason lies with this GPU, and not with another one of its workload."""


UNSCALED = GpuStatus(GpuState.HELD_IDLE, NotScaledReason.NO_SCALED_OBJECT)


def idle_status(decision: Decision, *, is_paused: bool = False) -> GpuStatus:
    """What an idle GPU of the workload is. `is_paused`: its ScaledObject is paused."""
    answer, doubt = decision.answer, doubt_of(decision.verdict)
    if isinstance(answer, Unknown):
        return doubted(answer.reason)
    if doubt is not None:  # a workload that is kept, or is young, has an answer even then
        return doubted(doubt)
    if decision.target.phase is Phase.HELD:
        return GpuStatus(GpuState.HELD_IDLE, NotScaledReason.PLAN)
    row = row_of(answer.reason)
    if not (row.found_idle or row.tells_time):
        return GpuStatus(GpuState.HELD_IDLE, answer.reason)
    return (
        GpuStatus(GpuState.HELD_IDLE, NotScaledReason.PAUSE) if is_paused else GpuStatus(GpuState.IDLE, answer.reason)
    )


def doubted(reason: UnknownReason) -> GpuStatus:
    """An idle GPU whose quiet is not believed, for what is not known of its workload."""
    return GpuStatus(GpuState.UNKNOWN, reason, is_its_own=False)


def doubt_of(verdict: WorkloadVerdict | None) -> UnknownReason | None:
    return verdict.verdict.reason if verdict is not None and isinstance(verdict.verdict, Unknown) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLimits:
    """The ages of a pod up to which missing samples are expected."""

    ripe: timedelta
    """The length of a window: from then on all of it must be covered."""
    shown: timedelta
    """How long the first sample may take, and samples of the pod that had the GPU before may count."""


def states_of(
    pod: GpuPod, gpus: Sequence[GpuEvidence], when_idle: GpuStatus, *, startup: StartupLimits, now: datetime
) -> Iterator[GpuStatus]:
    """One for each GPU that the pod holds; of a pod that requests none, one for each that reports for it.

    `when_idle` is what those are that are idle: that depends on their workload.
    """
    held = gpus[: pod.gpus] if pod.gpus else gpus
    if pod.terminating:
        yield from [GpuStatus(GpuState.ENDING)] * max(pod.gpus, len(held))
    elif pod.phase is not PodPhase.RUNNING or (pod.gpus and pod.running_since is None):
        is_late = when_idle.reason == DecisionReason.PODS_NOT_RUNNING
        starting = GpuStatus(GpuState.STARTING, when_idle.reason if is_late else "")
        yield from [starting] * max(pod.gpus, len(held))
    else:
        # A pod that requests no GPU has no container that is known to hold one, so its age excuses no silence.
        age = now - pod.running_since if pod.running_since is not None else startup.ripe
        yield from (_state(gpu, when_idle, age, startup) for gpu in held)
        yield from [_silent(UnknownReason.NO_SAMPLES, age, startup)] * (pod.gpus - len(held))


def _state(gpu: GpuEvidence, when_idle: GpuStatus, age: timedelta, startup: StartupLimits) -> GpuStatus:
    match gpu.verdict:
        case Busy():
            return GpuStatus(GpuState.BUSY)
        case Unknown(reason=reason) if DOUBTS[reason].is_silent and not gpu.windows:
            return _silent(reason, age, startup)
        case Unknown(reason=reason) if DOUBTS[reason].ends_with_window and age < startup.ripe:
            return GpuStatus(GpuState.STARTING, DecisionReason.IDLE_NOT_LONG_ENOUGH)
        case Unknown(reason=UnknownReason.SHARED_GPU) if age < startup.shown:
            return GpuStatus(GpuState.STARTING)  # the last samples of the pod that had it before
        case Unknown(reason=reason):
            return GpuStatus(GpuState.UNKNOWN, reason)
        case Idle():
            return when_idle


def _silent(reason: UnknownReason, age: timedelta, startup: StartupLimits) -> GpuStatus:
    return GpuStatus(GpuState.WITHOUT_METRICS, reason) if age >= startup.shown else GpuStatus(GpuState.STARTING)


# ------------------------------------------------------------------------------------------------------------- nodes


class NodeTrust(StrEnum):
    TRUSTED = "Trusted"
    DISTRUSTED = "Distrusted"
    """Some cannot."""
    SILENT = "Silent"
    """No GPU of it reports anything."""


_DISTRUSTED = frozenset({GpuState.UNKNOWN, GpuState.WITHOUT_METRICS})
_JUDGED = _DISTRUSTED | {GpuState.BUSY, GpuState.IDLE, GpuState.HELD_IDLE}


def trust_in(found: Counter[GpuStatus]) -> NodeTrust | None:
    """How far a node is trusted by the states of its GPUs; None where none of them is to be judged yet."""
    judged = sum(count for each, count in found.items() if each.state in _JUDGED)
    silent = sum(count for each, count in found.items() if each.state is GpuState.WITHOUT_METRICS)
    if not judged:
        return None
    if silent == judged:
        return NodeTrust.SILENT
    return NodeTrust.DISTRUSTED if distrusted(found) else NodeTrust.TRUSTED


def distrusted(found: Counter[GpuStatus]) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for each, count in found.items():
        if each.state in _DISTRUSTED and each.is_its_own:
            reasons[each.reason] += count
    return dict(reasons)
