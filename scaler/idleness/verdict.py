"""Is it idle? Windows × policy → Idle | Busy | Unknown, per GPU and then per workload.

Verdicts are computed for many GPUs together, as codes in arrays. What is decided again from tick to tick is known from
the same codes, and words are made of them only where something is shown.

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

Exporters that measure percent give whole numbers: where a metric in percent peaks at a fraction below 1 it may be a
ratio, and that would be work. 1 itself is doubted where all signals are in percent; any other would show that work,
too. Source: `nvmlUtilization_t` of NVML, `gpu_gfx_activity` of AMD; XPU Manager calls `xpum_engine_ratio` a percentage,
and gives 0..1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, auto
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scaler.idleness.durations import format_duration
from scaler.idleness.gpu import GpuId
from scaler.idleness.policy import GpuRule, Policy, Trust
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.window import (
    NO_WINDOW,
    Floats,
    Rows,
    Window,
    WindowColumns,
    are_fractions,
    as_microseconds,
    as_stored,
)

_MICROSECOND = timedelta(microseconds=1)


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
    """Windows by the name of the signal."""
    last_active_at: datetime | None = None
    """End of the newest interval with work on any signal, as far back as samples are kept."""
    unseen_until: datetime | None = None
    """The time until which work may have gone unseen: its device or board showed some that its series does not, or
    samples of a quiet one do not go back to its start without a hole."""
    is_quiet: bool = True
    """Whether every signal has reported since the last work; between two samples of work it is unknown."""
    is_lone_witness: bool = False
    """Whether one signal alone decides, and no counter shows that its exporter still measures."""


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
    """What the cluster says on which it runs, if that is another one; its GPUs are not seen here."""

    @property
    def is_single_witness(self) -> bool:
        """Whether its quiet rests on one signal alone for any of its GPUs."""
        return any(gpu.is_lone_witness for gpu in self.gpus)

    @property
    def gpu_count(self) -> int:
        return len(self.gpus) if self.remote is None else self.remote.gpus


class Code(IntEnum):
    """The verdict on a GPU as a number, and what one of its signals says: up to `LOW_COVERAGE` both."""

    IDLE = 0
    """A signal: quiet, and trustworthy."""
    BUSY = auto()
    """A signal: active."""
    ABSENT = auto()
    """A GPU that has not reported for so long that it does not count; a signal that is not expected of the GPU."""
    MISREAD = auto()
    """Quiet as a percentage, which would be work as a ratio."""
    CLOCK_SKEW = auto()
    NO_SAMPLES = auto()
    STALE_SAMPLES = auto()
    SAMPLE_GAP = auto()
    LOW_COVERAGE = auto()
    NO_SIGNAL = auto()
    SIGNALS_DISAGREE = auto()
    DEVICE_WORKS = auto()
    FROZEN = auto()
    POWER = auto()
    SHARED = auto()
    """The last five and `NO_SIGNAL` are of GPUs alone, the last four by what else is known of their boards."""


OWN_QUIET = frozenset({Code.IDLE, Code.DEVICE_WORKS, Code.FROZEN, Code.POWER})
"""GPUs whose own samples show that they are idle."""

Codes = NDArray[np.uint8]
"""An array of `Code`, one a row."""


def signal_codes(windows: WindowColumns, *, above_ratio: float, trust: Trust, end: datetime) -> Codes:
    """What a signal says of each row, by its window that ends at `end`. The last line that holds counts."""
    age_us = as_microseconds(end.timestamp()) - as_microseconds(windows.last_samples)
    codes = np.full(len(age_us), Code.IDLE, np.uint8)
    codes[windows.covered / np.maximum(windows.slots, 1) < trust.min_coverage_ratio] = Code.LOW_COVERAGE
    # A gap says more than low coverage, so it counts where both hold.
    codes[windows.longest_gap > trust.max_gap_intervals] = Code.SAMPLE_GAP
    codes[age_us > trust.max_age // _MICROSECOND] = Code.STALE_SAMPLES
    codes[windows.covered == 0] = Code.NO_SAMPLES
    codes[age_us < -trust.max_clock_skew // _MICROSECOND] = Code.CLOCK_SKEW
    codes[windows.peaks >= as_stored(above_ratio)] = Code.BUSY
    return codes


def codes_of_signals(
    windows: Mapping[str, WindowColumns],
    is_expected: Mapping[str, NDArray[np.bool_]],
    is_percent: Mapping[str, NDArray[np.bool_]],
    *,
    above_ratio: float,
    trust: Trust,
    end: datetime,
) -> dict[str, Codes]:
    """What each signal says of each row, by its windows that end at `end`. `is_percent`: whether it is measured so."""
    codes = {}
    for name, each in windows.items():
        found = codes[name] = signal_codes(each, above_ratio=above_ratio, trust=trust, end=end)
        found[~is_expected[name]] = Code.ABSENT
    is_all = np.logical_and.reduce([is_percent[name] | ~is_expected[name] for name in codes])
    for name, found in codes.items():
        is_fraction = are_fractions(windows[name].peaks, or_one=is_all)
        found[(found == Code.IDLE) & is_percent[name] & is_fraction] = Code.MISREAD
    return codes


def gpu_codes(signals: Sequence[Codes]) -> Codes:
    """The verdict on each row from what its signals say. Of several doubts that of the first signal counts."""
    codes = np.full(len(signals[0]), Code.NO_SIGNAL, np.uint8)
    is_active, is_quiet = np.zeros(len(codes), np.bool_), np.zeros(len(codes), np.bool_)
    for each in signals:
        is_active |= each == Code.BUSY
        is_quiet |= (each == Code.IDLE) | (each == Code.MISREAD)
    codes[is_quiet] = Code.IDLE
    for each in signals:
        codes[each == Code.MISREAD] = Code.MISREAD
    for each in reversed(signals):
        np.copyto(codes, each, where=each >= Code.CLOCK_SKEW)
    codes[is_active] = Code.BUSY
    codes[is_active & is_quiet] = Code.SIGNALS_DISAGREE
    return codes


class SignalWindows(Mapping[str, Window]):
    """The windows of one GPU by signal, each made when it is read."""

    __slots__ = ("_columns", "_position")

    def __init__(self, columns: Mapping[str, WindowColumns], position: int) -> None:
        self._columns, self._position = columns, position

    def __getitem__(self, signal: str) -> Window:
        return self._columns[signal].row(self._position)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True, kw_only=True)
class GpuVerdicts:
    """The verdicts on some GPUs, asked for together: arrays with an element for each of `rows`."""

    rows: Rows
    trust: Trust
    end: datetime
    codes: Codes
    signals: Mapping[str, Codes]
    windows: Mapping[str, WindowColumns]
    """Both by signal."""
    last_active: Floats
    """End of the newest interval with work on any signal, in Unix seconds; -inf where none is held."""
    is_quiet: NDArray[np.bool_]
    """Whether every signal has reported since the last work; between two samples of work it is unknown."""
    unexplained: Floats
    """What `History.unexplained_until` says."""
    is_lone_witness: NDArray[np.bool_]
    """Whether one signal alone decides, and no counter shows that its exporter still measures."""

    @cached_property
    def positions(self) -> Mapping[int, int]:
        """The position in the arrays of each row."""
        return {row: position for position, row in enumerate(self.rows.tolist())}

    def compared(self) -> Floats:
        """What of each row a decision depends on: while it stays so, the decision does. Shape: (rows, 4).

        The code; the Unix time in microseconds since when it is quiet, -inf where that is as far as is known and inf
        where it is not quiet, or will be only after `end`; of a verdict that is known, until when work may have gone
        unseen; whether it is a lone witness.
        """
        since = as_microseconds(self.last_active)
        is_quiet = self.is_quiet & (since < as_microseconds(self.end.timestamp()))
        unexplained = np.where(self.codes <= Code.ABSENT, self.unexplained, -np.inf)
        return np.column_stack([self.codes, np.where(is_quiet, since, np.inf), unexplained, self.is_lone_witness])

    def windows_at(self, position: int) -> SignalWindows:
        """The windows of the signals that are expected of the GPU."""
        expected = {
            name: windows for name, windows in self.windows.items() if self.signals[name].item(position) != Code.ABSENT
        }
        return SignalWindows(expected, position)

    def in_words(self, position: int) -> Verdict:
        """The verdict on one GPU, but for `SHARED`, for which the names of pods are missing."""
        code = Code(self.codes.item(position))
        if code not in _WORDS:
            return _IDLE if code is Code.IDLE else _BUSY
        reason, message = _WORDS[code]
        windows = self.windows_at(position)
        said = {name: Code(self.signals[name].item(position)) for name in windows}
        name = next((name for name, each in said.items() if each is code), "")
        window = windows[name] if name else NO_WINDOW
        trust, last = self.trust, window.last_sample_at or self.end
        words = message.format(
            name=name,
            window=window,
            percent=100 * (window.peak_ratio or 0.0),
            last=last,
            age=format_duration(max(timedelta(0), self.end - last)),
            oldest=format_duration(trust.max_age),
            hole=format_duration(window.longest_gap * trust.interval),
            longest=format_duration(trust.max_gap_intervals * trust.interval),
            least=100 * trust.min_coverage_ratio,
            interval=format_duration(trust.interval),
            active=_peaks(windows, said, Code.BUSY),
            quiet=_peaks(windows, said, Code.IDLE, Code.MISREAD),
        )
        return Unknown(reason=reason, message=words)


_IDLE, _BUSY = Idle(), Busy()
_WORDS: Mapping[Code, tuple[UnknownReason, str]] = {
    Code.MISREAD: (
        UnknownReason.SIGNALS_DISAGREE,
        "the highest sample of {name} is {percent:.3g}: as a percentage it is nothing, as a ratio work; see its unit "
        "in the settings",
    ),
    Code.CLOCK_SKEW: (
        UnknownReason.CLOCK_SKEW,
        "{name} has a sample of {last:%Y-%m-%d %H:%M:%S}, which is yet to come; correct the clock of its exporter, or "
        "of what stores its samples",
    ),
    Code.NO_SAMPLES: (UnknownReason.NO_SAMPLES, "{name} has no sample in the window"),
    Code.STALE_SAMPLES: (UnknownReason.STALE_SAMPLES, "newest sample of {name} is {age} old (limit {oldest})"),
    Code.SAMPLE_GAP: (UnknownReason.SAMPLE_GAP, "{name} has a hole of {hole} (limit {longest})"),
    Code.LOW_COVERAGE: (
        UnknownReason.LOW_COVERAGE,
        "{name} covers {window.covered} of {window.slots} collection intervals (at least {least:g} % needed); if that "
        "stays, set trust.collectionInterval, now {interval}, to how often samples come",
    ),
    Code.NO_SIGNAL: (UnknownReason.NO_SAMPLES, "no signal is expected of this GPU; configure at least one"),
    Code.SIGNALS_DISAGREE: (UnknownReason.SIGNALS_DISAGREE, "{active} while {quiet} over the same window"),
    Code.DEVICE_WORKS: (
        UnknownReason.SIGNALS_DISAGREE,
        "a series of the device or its board, which names no pod that holds GPUs, shows work; the pod's own is quiet",
    ),
    Code.FROZEN: (
        UnknownReason.FROZEN_EXPORTER,
        "the energy counter of the GPU does not grow, as it does even while idle: the exporter repeats an old page",
    ),
    Code.POWER: (
        UnknownReason.SIGNALS_DISAGREE,
        "the board draws the power of one that works, and none of its MIG instances shows work",
    ),
}


def _peaks(windows: Mapping[str, Window], said: Mapping[str, Code], *of: Code) -> str:
    """The peaks of the signals that say so."""
    names = [name for name, code in said.items() if code in of]
    return ", ".join(f"{name} peaks at {100 * (windows[name].peak_ratio or 0.0):.3g} %" for name in names)


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
