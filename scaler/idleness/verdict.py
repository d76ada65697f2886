"""Is it idle? Windows × policy → Idle | Busy | Unknown, per GPU and then per workload.

Laws of this file:

* Idle needs positive evidence from every expected signal over the whole window.
* Whatever is missing, stale, full of holes or contradictory is Unknown with a reason.
* Busy needs every expected signal to agree as well, or it is Unknown(SignalsDisagree); neither ever shrinks.

| signals over the window            | verdict                   |
|------------------------------------|---------------------------|
| all quiet, all trustworthy         | Idle                      |
| all active                         | Busy                      |
| some quiet, some active            | Unknown(SignalsDisagree)  |
| none active, one not trustworthy   | Unknown(its reason)       |
| some active, others without data   | Busy (work was seen)      |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import GpuId
from scaler.idleness.policy import GpuRule, Policy, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.window import Window, as_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Every required GPU was quiet over the whole window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Work was seen within the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """It could not be known, and why. Holds, never shrinks."""

    reason: UnknownReason
    message: str


Verdict = Idle | Busy | Unknown


def verdict_name(verdict: Verdict) -> str:
    """`Idle`, `Busy` or `Unknown`: the word for status fields, metrics and the CLI."""
    return type(verdict).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One GPU of one pod: its verdict and, per signal, the window that led to it."""

    gpu: GpuId
    pod: str
    node: str
    model: str
    verdict: Verdict
    windows: Mapping[str, Window]
    """By signal name."""
    last_active_at: datetime | None = None
    """End of the newest interval with work on any signal, as far back as samples are kept."""
    unseen_until: datetime | None = None
    """Until when work may have gone unseen: its device or board showed some that its own series does not, or samples of
    a quiet one do not go back to its start without a hole."""
    is_lone_witness: bool = False
    """Whether one signal alone decides, and no counter shows that its exporter still measures."""

    @property
    def is_quiet(self) -> bool:
        """Whether every signal has reported since the last work; between two samples of work it is unknown."""
        if self.last_active_at is None:
            return True
        return all(
            w.last_sample_at is not None and w.last_sample_at >= self.last_active_at for w in self.windows.values()
        )


class RemoteEvidence(Protocol):
    """What another cluster, where it runs, says of its GPUs."""

    @property
    def cluster(self) -> str: ...

    @property
    def gpus(self) -> int: ...

    @property
    def idle_since(self) -> datetime | None: ...

    @property
    def idle_at_least(self) -> bool: ...

    @property
    def evidence(self) -> Sequence[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadVerdict:
    verdict: Verdict
    gpus: Sequence[GpuEvidence] = ()
    remote: RemoteEvidence | None = None
    """Of one that runs on another cluster; its GPUs are not seen here."""

    @property
    def is_single_witness(self) -> bool:
        """Whether its quiet rests on one signal alone for any of its GPUs."""
        return any(gpu.is_lone_witness for gpu in self.gpus)

    @property
    def gpu_count(self) -> int:
        return len(self.gpus) if self.remote is None else self.remote.gpus


def gpu_verdict(windows: Mapping[str, Window], *, policy: Policy, trust: Trust, end: datetime) -> Verdict:
    """The verdict on one GPU from the windows of its expected signals, all of which end at `end`."""
    floor = as_stored(policy.active_above_ratio)
    active = [name for name, w in windows.items() if w.peak_ratio is not None and w.peak_ratio >= floor]
    doubts = {
        name: doubt for name, w in windows.items() if name not in active and (doubt := _doubt(name, w, trust, end))
    }
    quiet = [name for name in windows if name not in active and name not in doubts]
    match (active, quiet, list(doubts.values())):
        case ([], _, [first, *_]):
            return first
        case ([], [_, *_], []):
            return Idle()
        case ([_, *_], [_, *_], _):
            return Unknown(reason=UnknownReason.SIGNALS_DISAGREE, message=_disagreement(active, quiet, windows))
        case ([_, *_], [], _):
            return Busy()
    return Unknown(reason=UnknownReason.NO_SAMPLES, message="no signal is expected of this GPU; configure at least one")


def _disagreement(active: Sequence[str], quiet: Sequence[str], windows: Mapping[str, Window]) -> str:
    def peaks(names: Sequence[str]) -> str:
        return ", ".join(f"{name} peaks at {100 * (windows[name].peak_ratio or 0.0):.3g} %" for name in names)

    return f"{peaks(active)} while {peaks(quiet)} over the same window"


def _doubt(name: str, window: Window, trust: Trust, end: datetime) -> Unknown | None:
    """Why this signal's quiet cannot be believed, or None where it can."""
    if window.last_sample_at is not None and window.last_sample_at - end > trust.max_clock_skew:
        return Unknown(
            reason=UnknownReason.CLOCK_SKEW,
            message=f"{name} has a sample of {window.last_sample_at:%Y-%m-%d %H:%M:%S}, which is yet to come; "
            "correct the clock of its exporter, or of what stores its samples",
        )
    if window.last_sample_at is None or window.covered == 0:
        return Unknown(reason=UnknownReason.NO_SAMPLES, message=f"{name} has no sample in the window")
    age = end - window.last_sample_at
    if age > trust.max_age:
        return Unknown(
            reason=UnknownReason.STALE_SAMPLES,
            message=f"newest sample of {name} is {format_duration(age)} old (limit {format_duration(trust.max_age)})",
        )
    # The gap comes first: it is the more precise word where both hold.
    if window.longest_gap > trust.max_gap_intervals:
        return Unknown(
            reason=UnknownReason.SAMPLE_GAP,
            message=f"{name} has a hole of {format_duration(window.longest_gap * trust.interval)} "
            f"(limit {format_duration(trust.max_gap_intervals * trust.interval)})",
        )
    if window.coverage_ratio < trust.min_coverage_ratio:
        return Unknown(
            reason=UnknownReason.LOW_COVERAGE,
            message=f"{name} covers {window.covered} of {window.slots} collection intervals "
            f"(at least {100 * trust.min_coverage_ratio:g} % needed); if that stays, set trust.collectionInterval, now "
            f"{format_duration(trust.interval)}, to how often samples come",
        )
    return None


def workload_verdict(gpus: Sequence[GpuEvidence], *, rule: GpuRule) -> WorkloadVerdict:
    """The verdict on a workload from those of all its GPUs.

    Busy as soon as too few GPUs can be idle whatever the unknown ones do; Unknown while any GPU is unknown, because a
    quorum of partial data is still partial data; Idle otherwise.
    """
    evidence = tuple(gpus)
    if not evidence:
        none = Unknown(reason=UnknownReason.NO_GPU_PODS, message="no pod of the target requests a GPU")
        return WorkloadVerdict(verdict=none)
    needed = rule.idle_gpus_needed(len(evidence))
    busy = sum(isinstance(gpu.verdict, Busy) for gpu in evidence)
    if len(evidence) - busy < needed:
        return WorkloadVerdict(verdict=Busy(), gpus=evidence)
    for gpu in evidence:
        if isinstance(gpu.verdict, Unknown):
            where = f"GPU {gpu.gpu} of pod {gpu.pod}"
            doubt = Unknown(reason=gpu.verdict.reason, message=f"{where}: {gpu.verdict.message}")
            return WorkloadVerdict(verdict=doubt, gpus=evidence)
    return WorkloadVerdict(verdict=Idle(), gpus=evidence)


def distrust(verdict: WorkloadVerdict, doubt: Unknown | None) -> WorkloadVerdict:
    """The verdict under a doubt about the source as a whole: work that was seen was seen, all else is unknown."""
    if doubt is None or isinstance(verdict.verdict, Busy):
        return verdict
    return WorkloadVerdict(verdict=doubt, gpus=verdict.gpus)


def judged_length(*, policy: Policy, trust: Trust) -> timedelta:
    """The window that is judged: the policy's, and never less than one collection interval."""
    return max(policy.window, trust.interval)
