"""The verdict on one GPU from the windows of its signals, in plain Python, one by one: what codes are held by."""

from collections.abc import Mapping
from datetime import datetime

from scaler.idleness.policy import Policy, Trust
from scaler.idleness.verdict import Code
from scaler.idleness.window import Window, as_stored


def gpu_verdict(windows: Mapping[str, Window], *, policy: Policy, trust: Trust, end: datetime) -> Code:
    """Of the expected signals' windows, all of which end at `end`."""
    floor = as_stored(policy.active_above_ratio)
    active = [name for name, w in windows.items() if w.peak_ratio is not None and w.peak_ratio >= floor]
    doubts = [doubt for name, w in windows.items() if name not in active and (doubt := _doubt(w, trust, end))]
    quiet = [name for name, w in windows.items() if name not in active and not _doubt(w, trust, end)]
    match (active, quiet, doubts):
        case ([], _, [first, *_]):
            return first
        case ([], [_, *_], []):
            return Code.IDLE
        case ([_, *_], [_, *_], _):
            return Code.SIGNALS_DISAGREE
        case ([_, *_], [], _):
            return Code.BUSY
    return Code.NO_SIGNAL


def _doubt(window: Window, trust: Trust, end: datetime) -> Code | None:
    """Why this signal's quiet cannot be believed, or None where it can."""
    if window.last_sample_at is not None and window.last_sample_at - end > trust.max_clock_skew:
        return Code.CLOCK_SKEW
    if window.last_sample_at is None or window.covered == 0:
        return Code.NO_SAMPLES
    if end - window.last_sample_at > trust.max_age:
        return Code.STALE_SAMPLES
    if window.longest_gap > trust.max_gap_intervals:
        return Code.SAMPLE_GAP
    return Code.LOW_COVERAGE if window.coverage_ratio < trust.min_coverage_ratio else None
