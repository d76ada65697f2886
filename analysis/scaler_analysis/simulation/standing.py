"""How long does a verdict stand? What of the samples tells, without judging again, that it cannot be another one yet.

Laws of this file:

* Whatever cannot be told stands for nothing: then it is judged at the next tick.
* A sample before which others were missed, and work, end everything but what is certain by `busy_until_s`; whoever
  uses this has to watch for them.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from scaler.idleness.gpu import GpuId
from scaler.idleness.policy import Trust
from scaler.idleness.verdict import WorkloadVerdict
from scaler.idleness.window import Window
from scaler_analysis.simulation.feed import SampleFeed
from scaler_analysis.simulation.recordings.recorded import RecordedPod

_A_MOMENT_S = 1e-3

Judged = Mapping[tuple[str, GpuId], Mapping[str, Window]]
"""The windows that a verdict is from, by pod, GPU and signal."""


class ReplayedPolicy(NamedTuple):
    """What of a policy a verdict depends on."""

    floor: float
    window_s: float
    needs_all: bool
    """Whether all GPUs must be idle."""


class StandingVerdict(NamedTuple):
    """One that need not be judged again for a while."""

    until_s: float
    coming: Sequence[int]
    """Series whose samples have to go on coming."""


NOT_STANDING = StandingVerdict(-inf, ())


class StandingVerdicts:
    def __init__(self, feed: SampleFeed, trust: Trust) -> None:
        self._feed, self._trust = feed, trust
        self._max_age_s = trust.max_age.total_seconds()
        self._edge_s = 2 * trust.interval.total_seconds()
        """The distance from a window's begin within which it is not certain on which side a sample is."""

    # ---- busy for certain

    def busy_until_s(self, pods: Sequence[RecordedPod], by: ReplayedPolicy, now_s: float) -> float:
        """The time until which it is busy for certain, whatever comes: one GPU is, on all of its signals.

        Nothing is certain where GPUs may be missing from the verdict, or more report than are requested.
        """
        if self._of_others(pods, now_s) or any(self._has_surplus(each, by, now_s) for each in pods):
            return -inf
        found = [self._works_until_s(device, by, now_s) for pod in pods for device in pod.devices]
        next_of_others_s = self._next_of_others_s(pods, now_s)
        if by.needs_all:
            return min(max(found), next_of_others_s)
        is_whole = all(len(each.devices) == each.gpus for each in pods)
        return min(*found, next_of_others_s) if is_whole else -inf

    def _works_until_s(self, device: Sequence[int], by: ReplayedPolicy, now_s: float) -> float:
        """When the work of one of the GPU's signals has left the window, or one begins to report that has not yet."""
        ends, firsts = self._feed.work_ends[by.floor], [self._feed.firsts.item(n) for n in device]
        left_s = [ends.item(n) + by.window_s for n, first_s in zip(device, firsts, strict=True) if first_s <= now_s]
        return min([*left_s, *(each for each in firsts if each > now_s)]) if left_s else -inf

    def _has_surplus(self, pod: RecordedPod, by: ReplayedPolicy, now_s: float) -> bool:
        if len(pod.devices) <= pod.gpus:
            return False
        begin_s = now_s - by.window_s - self._edge_s
        newest_s = [max(float(self._feed.lasts[n]) for n in each) for each in pod.devices]
        return sum(each >= begin_s for each in newest_s) > pod.gpus

    # ---- other pods with the same GPU

    def _of_others(self, pods: Sequence[RecordedPod], now_s: float) -> list[int]:
        """Series of other pods for which one of their GPUs reports, or did shortly before."""
        firsts, finals = self._feed.firsts, self._feed.finals
        series = [n for each in pods for n in each.series_of_others]
        return [n for n in series if firsts.item(n) <= now_s <= finals.item(n) + self._max_age_s]

    def _next_of_others_s(self, pods: Sequence[RecordedPod], now_s: float) -> float:
        """When the next one begins."""
        firsts = (self._feed.firsts.item(n) for each in pods for n in each.series_of_others)
        return min((each for each in firsts if each > now_s), default=inf)

    # ---- while nothing but quiet samples come

    def standing(
        self, pods: Sequence[RecordedPod], by: ReplayedPolicy, verdict: WorkloadVerdict | None, now_s: float
    ) -> StandingVerdict | None:
        """The time until which the verdict of now stands; None where that cannot be told."""
        gpus = () if verdict is None else verdict.gpus
        judged = {(each.pod, each.gpu): each.windows for each in gpus}
        series, of_others = [n for each in pods for n in each.series], self._of_others(pods, now_s)
        until_s = min(self._certain_until_s(n, by, judged, now_s) for n in series)
        coming = [n for n in (*series, *of_others) if self._come([n], now_s)]
        is_unclear = any(n not in coming and now_s - self._feed.lasts.item(n) <= self._max_age_s for n in of_others)
        if until_s <= now_s or is_unclear:
            return None
        return StandingVerdict(min(until_s, self._next_of_others_s(pods, now_s)), coming)

    def still_stands(self, standing: StandingVerdict, now_s: float) -> bool:
        return now_s < standing.until_s and self._come(standing.coming, now_s)

    def due_s(self, standing: StandingVerdict) -> float:
        """When it ends, or the first sample is late that should have come."""
        last_s = min((self._feed.lasts.item(n) for n in standing.coming), default=inf)
        return min(standing.until_s, last_s + self._feed.longest_step_s + _A_MOMENT_S)

    def _certain_until_s(self, n: int, by: ReplayedPolicy, judged: Judged, now_s: float) -> float:
        """The time until which it is certain what the series says, without work or a late sample; now where it is not.

        | its samples …                                     | it is                   | until                 |
        |---------------------------------------------------|-------------------------|-----------------------|
        | show work in the window                           | active                  | that has left it      |
        | in percent show a fraction of one in the window   | perhaps misread         | now                   |
        | do not reach into the window                      | without a sample        | one comes             |
        | ended longer ago than is tolerated                | stale                   | they leave the window |
        | come, after a hole in the window longer than that | not trusted for its gap | enough of it has left |
        | come, and hardly any is missing, or none          | trusted                 | one is missing        |
        """
        feed, last_s = self._feed, float(self._feed.lasts.item(n))
        begin_s = now_s - by.window_s - self._edge_s
        work_until_s = float(feed.work_ends[by.floor].item(n)) + by.window_s
        if work_until_s > now_s:
            return work_until_s
        if feed.fractions.item(n) >= begin_s:
            return now_s
        if last_s < begin_s:
            return inf
        if now_s - last_s > self._max_age_s:
            return last_s + by.window_s - self._edge_s
        gap_until_s = float(feed.long_gaps.item(n)) + by.window_s - feed.long_gap_s
        if gap_until_s > now_s:
            return gap_until_s if self._come([n], now_s) else now_s
        return inf if self._come([n], now_s) and self._stays_trusted(n, begin_s, judged) else now_s

    def _stays_trusted(self, n: int, begin_s: float, judged: Judged) -> bool:
        """Whether it does as long as no further sample is missing: what is missing leaves the window."""
        if self._feed.holes.item(n) < begin_s:
            return True
        series = self._feed.series[n]
        window = judged.get((series.gpu.pod, series.gpu.gpu), {}).get(series.signal)
        if window is None:
            return False
        enough = self._trust.min_coverage_ratio * window.slots + 2
        return window.longest_gap <= self._trust.max_gap_intervals and window.covered >= enough

    def _come(self, series: Sequence[int], now_s: float) -> bool:
        """Whether no sample of these is late."""
        since_s = now_s - self._feed.longest_step_s
        return all(self._feed.lasts.item(n) >= since_s for n in series)
