"""What are the GPUs doing that pods hold? Each is in exactly one state at a time.

| the GPU …                                                                     | state          |
|-------------------------------------------------------------------------------|----------------|
| its pod was told to end, and has not                                          | Ending         |
| its pod does not run yet                                                      | Starting       |
| shows work within the window                                                  | Busy           |
| has no metrics, and its pod runs for longer than metrics may take             | WithoutMetrics |
| cannot be judged for want of samples, and its pod is younger than the window  | Starting       |
| still reports for the pod that had it before, and its own has just begun      | Starting       |
| cannot be judged for any other reason, or its workload cannot                 | Unknown        |
| is idle, and only time keeps it                                               | Idle           |
| is idle, and something else keeps it                                          | HeldIdle       |

Laws:

* Absence is not idleness, and so it is no cost: a quiet GPU of a workload of which not all is known is Unknown.
* Work that was seen was seen, whatever is unknown beside it.
* The states of a pod's GPUs add up to the GPUs that it requests.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from scaler.core.idleness import Busy, GpuEvidence, Idle, Unknown, WorkloadVerdict
from scaler.core.pods import Pod, PodPhase
from scaler.core.reasons import Because, HeldBy, Unknowable
from scaler.core.replicas import Decision, NoAnswer, Stage


class State(StrEnum):
    """What is known of a GPU that a pod holds."""

    BUSY = "Busy"
    IDLE = "Idle"
    HELD_IDLE = "HeldIdle"
    UNKNOWN = "Unknown"
    WITHOUT_METRICS = "WithoutMetrics"
    STARTING = "Starting"
    ENDING = "Ending"


IDLE = frozenset({State.IDLE, State.HELD_IDLE})
"""States of GPUs that cost money for nothing."""

_ONLY_TIME = frozenset({Because.GPUS_IDLE, Because.RECLAIMED, Because.IDLE_NOT_LONG_ENOUGH, Because.WARMING_UP})
_NOTHING_YET = frozenset({Unknowable.LOW_COVERAGE, Unknowable.SAMPLE_GAP})
_SILENT = frozenset({Unknowable.NO_SAMPLES, Unknowable.MISSING_GPUS})


class Found(NamedTuple):
    """The state of one GPU and why it is that."""

    state: State
    reason: str = ""
    is_its_own: bool = True
    """Whether the reason lies with this GPU, and not with another one of its workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What may keep a workload's idle GPUs."""

    doubt: Unknowable | None = None
    """Why its quiet is not believed."""
    held_by: Because | HeldBy = HeldBy.NOBODY

    @classmethod
    def of_decision(cls, decision: Decision, *, is_paused: bool = False) -> "Keeper":
        """`is_paused`: KEDA is told to leave it alone."""
        answer, doubt = decision.answer, _doubt(decision.verdict)
        if isinstance(answer, NoAnswer):
            return cls(doubt=answer.reason)
        if doubt is not None:  # who is kept, or is young, gets an answer whatever is known
            return cls(doubt=doubt)
        if decision.standing.stage is Stage.HELD:
            return cls(held_by=HeldBy.PLAN)
        return cls(held_by=HeldBy.PAUSE if is_paused and answer.because in _ONLY_TIME else answer.because)

    @classmethod
    def of_nobody(cls, verdict: WorkloadVerdict) -> "Keeper":
        """Of a pod that nobody scales, by the verdict that the defaults give."""
        return cls(doubt=_doubt(verdict))


def _doubt(verdict: WorkloadVerdict | None) -> Unknowable | None:
    return verdict.verdict.reason if verdict is not None and isinstance(verdict.verdict, Unknown) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Youth:
    """Up to which age of a pod what is missing is no wonder."""

    ripe: timedelta
    """As long as a window: from then on all of it must be covered."""
    shown: timedelta
    """How long the first sample may take, and the last one of whoever had the GPU before may count."""


def states_of(pod: Pod, gpus: Sequence[GpuEvidence], keeper: Keeper, *, youth: Youth, now: datetime) -> Iterator[Found]:
    """One for each GPU that the pod holds; of a pod that requests none, one for each that reports for it."""
    held = gpus[: pod.gpus] if pod.gpus else gpus
    if pod.terminating:
        yield from [Found(State.ENDING)] * max(pod.gpus, len(held))
    elif pod.phase is not PodPhase.RUNNING or (pod.gpus and pod.running_since is None):
        yield from [Found(State.STARTING)] * max(pod.gpus, len(held))
    else:
        # Of a pod that requests no GPU no container is known to hold one, nor since when: then its age excuses nothing.
        age = now - pod.running_since if pod.running_since is not None else youth.ripe
        yield from (_state(gpu, keeper, age, youth) for gpu in held)
        yield from [_silent(Unknowable.NO_SAMPLES, age, youth)] * (pod.gpus - len(held))


def _state(gpu: GpuEvidence, keeper: Keeper, age: timedelta, youth: Youth) -> Found:
    match gpu.verdict:
        case Busy():
            return Found(State.BUSY)
        case Unknown(reason=reason) if is_silent(gpu):
            return _silent(reason, age, youth)
        case Unknown(reason=reason) if reason in _NOTHING_YET and age < youth.ripe:
            return Found(State.STARTING, Because.IDLE_NOT_LONG_ENOUGH)
        case Unknown(reason=Unknowable.SHARED_GPU) if age < youth.shown:
            return Found(State.STARTING)  # the last samples of the pod that had it before
        case Unknown(reason=reason):
            return Found(State.UNKNOWN, reason)
        case Idle():
            return _idle(keeper)


def is_silent(gpu: GpuEvidence) -> bool:
    """Whether nothing at all reports for it."""
    return not gpu.windows and isinstance(gpu.verdict, Unknown) and gpu.verdict.reason in _SILENT


def _silent(reason: Unknowable, age: timedelta, youth: Youth) -> Found:
    return Found(State.WITHOUT_METRICS, reason) if age >= youth.shown else Found(State.STARTING)


def _idle(keeper: Keeper) -> Found:
    if keeper.doubt is not None:
        return Found(State.UNKNOWN, keeper.doubt, is_its_own=False)
    return Found(State.IDLE if keeper.held_by in _ONLY_TIME else State.HELD_IDLE, keeper.held_by)


# ------------------------------------------------------------------------------------------------------------- nodes


class NodeTrust(StrEnum):
    """Whether the GPUs of a node that run pods can be judged."""

    TRUSTED = "Trusted"
    DISTRUSTED = "Distrusted"
    """Some cannot."""
    SILENT = "Silent"
    """None reports anything."""


_DISTRUSTED = frozenset({State.UNKNOWN, State.WITHOUT_METRICS})
_JUDGED = _DISTRUSTED | {State.BUSY, State.IDLE, State.HELD_IDLE}


def trust_in(found: Counter[Found]) -> NodeTrust | None:
    """How far a node is trusted by the states of its GPUs; None where none of them is to be judged yet."""
    judged = sum(count for each, count in found.items() if each.state in _JUDGED)
    silent = sum(count for each, count in found.items() if each.state is State.WITHOUT_METRICS)
    if not judged:
        return None
    if silent == judged:
        return NodeTrust.SILENT
    return NodeTrust.DISTRUSTED if distrusted(found) else NodeTrust.TRUSTED


def distrusted(found: Counter[Found]) -> dict[str, int]:
    """GPUs that cannot be judged, by reason."""
    reasons: Counter[str] = Counter()
    for each, count in found.items():
        if each.state in _DISTRUSTED and each.is_its_own:
            reasons[each.reason] += count
    return dict(reasons)


# ---------------------------------------------------------------------------------------------------------- coverage


class Coverage:
    """Share of covered intervals by signal, over the windows of all GPUs that were added."""

    def __init__(self) -> None:
        self._covered: Counter[str] = Counter()
        self._slots: Counter[str] = Counter()

    def add(self, gpus: Iterable[GpuEvidence]) -> None:
        for gpu in gpus:
            for signal, window in gpu.windows.items():
                self._covered[signal] += min(window.covered, window.slots)
                self._slots[signal] += window.slots

    def ratios(self) -> Mapping[str, float]:
        """Range: 0..1. Signals of which there is no window are left out."""
        return {signal: self._covered[signal] / count for signal, count in self._slots.items() if count}
