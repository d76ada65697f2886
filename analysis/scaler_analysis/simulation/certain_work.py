"""How long is a workload busy, whatever its samples to come show? What nobody has to judge before then. Pure."""

from collections.abc import Sequence
from math import inf

from scaler.idleness.policy import Policy, Trust
from scaler.idleness.verdict import judged_length
from scaler.idleness.window import Floats
from scaler_analysis.simulation.feed import SampleFeed
from scaler_analysis.simulation.recordings.recorded import RecordedPod


class CertainWork:
    def __init__(self, feed: SampleFeed, trust: Trust) -> None:
        self._feed, self._trust = feed, trust
        self._max_age_s = trust.max_age.total_seconds()

    def until_s(self, pods: Sequence[RecordedPod], policy: Policy, now_s: float) -> float:
        """The time until which one GPU is busy, on all of its signals; where not all must be idle, each of them.

        Nothing is certain where GPUs may be missing from the verdict, or more may report than are requested, and while
        another pod shows one of them.
        """
        if any(len(each.devices) > each.gpus for each in pods):
            return -inf
        others = [n for each in pods for n in each.series_of_others]
        firsts, finals = self._feed.firsts, self._feed.finals
        if any(firsts.item(n) <= now_s <= finals.item(n) + self._max_age_s for n in others):
            return -inf
        window_s = judged_length(policy=policy, trust=self._trust).total_seconds()
        ends = self._feed.work_ends[policy.active_above_ratio]
        found = [self._works_until_s(device, ends, window_s, now_s) for pod in pods for device in pod.devices]
        next_of_others_s = min((at_s for n in others if (at_s := firsts.item(n)) > now_s), default=inf)
        if policy.gpus.share == 1.0:
            return min(max(found), next_of_others_s)
        is_whole = all(len(each.devices) == each.gpus for each in pods)
        return min(*found, next_of_others_s) if is_whole else -inf

    def _works_until_s(self, device: Sequence[int], ends: Floats, window_s: float, now_s: float) -> float:
        """When the work of one of the GPU's signals has left the window, or one begins to report that has not yet."""
        firsts = [self._feed.firsts.item(n) for n in device]
        left_s = [ends.item(n) + window_s for n, first_s in zip(device, firsts, strict=True) if first_s <= now_s]
        return min([*left_s, *(each for each in firsts if each > now_s)]) if left_s else -inf
