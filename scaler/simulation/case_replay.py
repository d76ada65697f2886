"""What a policy would have decided about every workload, tick by tick: `judge` and `decide` over the recorded samples.

Looking at every workload at every tick would take days of a month of recording. So each has a time before which its
answer cannot be another one, and is looked at when that has come:

| the answer is …                       | it stays so                                                                 |
|---------------------------------------|-----------------------------------------------------------------------------|
| 1, warming up, or not long enough     | until its warm-up and its window have passed                                |
| 1, kept, excluded or outside hours    | until that ends                                                             |
| 1, busy on all signals                | until the work of one of them has left the window                           |
| unknown, or busy on some signals      | the same, while samples of all others come without a hole, or none come      |
| 0                                     | until work is seen, or a time of `wakeAt`                                   |
| any other                             | until the next tick                                                         |

The time of work moves on while it waits; it is asked again when its time has come, and only then is it judged.

What is not in a recording is taken as follows: a plan always waits for what is reclaimed on pressure, a warning is
delivered when it is given, a hook ends at once, and no budget is spent. Mode observe is taken for enforce.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import inf

import numpy as np

from scaler.decision.decision import Decision, decide, standing_warning
from scaler.decision.target_state import Phase, TargetState
from scaler.idleness.gpu import GpuId
from scaler.idleness.hours import following, next_change
from scaler.idleness.pods import GpuPod, PodPhase, judge
from scaler.idleness.policy import EnforcementMode, Policy, Trust
from scaler.idleness.reasons import DecisionReason
from scaler.idleness.verdict import Unknown, judged_length
from scaler.idleness.window import Window
from scaler.simulation.feed import FedSamples, SampleFeed
from scaler.simulation.outcome import CaseOutcome
from scaler.simulation.recordings.recorded import RecordedPod, RecordedWorkload
from scaler.simulation.suspended import SuspendedWorkloads

_FREES = frozenset({DecisionReason.GPUS_IDLE, DecisionReason.RECLAIMED, DecisionReason.PRIORITY_LOWERED})
"""Answers with which its GPUs are given away. A lowered priority is the one that Kueue preempts first."""


def simulated(policy: Policy) -> Policy:
    """The policy as it is taken here, where no hook runs and no budget is spent."""
    return replace(
        policy, mode=EnforcementMode.ENFORCE, before_suspend="", suspended_at_once=None, suspended_per_period=None
    )


@dataclass(slots=True, kw_only=True)
class _Running:
    """A workload of a case."""

    position: int
    workload: RecordedWorkload
    policy: Policy
    window_s: float
    """The window that is judged."""
    came_back_s: float = -inf
    due_s: float = inf
    """When it is looked at next."""
    warned_at: datetime | None = None
    unknown_since_s: float = inf
    unknown_reason: str = ""
    watches: int = 0
    """Which samples make it due before its time."""
    coming: Sequence[int] = ()
    """Series of which its last answer takes for granted that their samples go on coming."""
    stands_until_s: float = -inf
    """Until when its last answer stands, as long as only quiet samples come, and come without a hole."""

    @property
    def floor(self) -> float:
        return self.policy.active_above_ratio

    @property
    def lead_s(self) -> float:
        """How long before its suspension it may be warned, and has to be looked at."""
        return self.policy.warning.total_seconds() if self.policy.warning is not None else 0.0

    def since_s(self, pods: Sequence[RecordedPod]) -> float:
        """When the newest of its pods started, or it came back."""
        return max(self.came_back_s, *(each.start_s for each in pods))

    def ready_s(self, since_s: float) -> float:
        """When its warm-up and its window have passed."""
        return since_s + self.policy.warm_up.total_seconds() + self.policy.window.total_seconds()


class CaseReplay:
    """One case. What is fed is given to `take`, then `tick` looks at what is due."""

    def __init__(
        self,
        workloads: Sequence[RecordedWorkload],
        policies: Sequence[Policy | None],
        feed: SampleFeed,
        outcome: CaseOutcome,
        *,
        trust: Trust,
        tick_s: float,
    ) -> None:
        self._feed, self._outcome, self._trust, self._tick_s = feed, outcome, trust, tick_s
        self._interval_s = trust.interval.total_seconds()
        self._suspended = SuspendedWorkloads(workloads, len(feed.lasts), outcome)
        self._watched = np.full(len(feed.lasts), _NOTHING, np.uint8)
        """What of each series makes its workload due."""
        self._rivals_of: dict[int, list[int]] = {}
        """By series: the workloads one of whose GPUs it is about, for another pod."""
        self._due: list[tuple[float, int]] = []
        self._running: dict[int, _Running] = {}
        for position, (workload, policy) in enumerate(zip(workloads, policies, strict=True)):
            if policy is not None:
                for series in (n for each in workload.pods for n in each.rivals):
                    self._rivals_of.setdefault(series, []).append(position)
                window_s = judged_length(policy=policy, trust=trust).total_seconds()
                running = _Running(position=position, workload=workload, policy=policy, window_s=window_s)
                self._running[position] = running
                self._look_at(running, running.ready_s(workload.start_s) - running.lead_s, workload.start_s)

    @property
    def next_due_s(self) -> float:
        return self._due[0][0] if self._due else inf

    @property
    def shortest_s(self) -> float:
        """The shortest time in which anything that comes back could be suspended again."""
        ready = (each.ready_s(0.0) - each.lead_s for each in self._running.values())
        return min(ready, default=inf)

    @property
    def is_watching(self) -> bool:
        """Whether a sample may change an answer before anything is due."""
        return bool(self._watched.any())

    def take(self, fed: Sequence[FedSamples], now_s: float) -> None:
        for position, at_s in self._suspended.returned(fed):
            self._come_back(self._running[position], at_s)
        for each in fed if self.is_watching else ():
            watched = self._watched[each.series]
            is_work = np.logical_or.reduce([*each.is_active.values()])
            is_sign = each.is_after_hole & (watched != _NOTHING) | is_work & (watched == _ANY_SIGN)
            for series in each.series[is_sign].tolist():
                self._noticed(self._suspended.workload_of(series), now_s)
            for series in each.series[each.is_after_hole].tolist() if self._rivals_of else ():
                for position in self._rivals_of.get(series, ()):
                    self._noticed(position, now_s)

    def _noticed(self, position: int, now_s: float) -> None:
        running = self._running.get(position)
        if running is not None and running.watches != _NOTHING:
            self._watch(running, _NOTHING)
            self._look_at(running, now_s, now_s)

    def tick(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            due_s, position = heappop(self._due)
            running = self._running[position]
            if due_s == running.due_s:
                running.due_s = inf
                self._look(running, now_s)

    def finish(self) -> None:
        self._suspended.finish()
        for running in self._running.values():
            self._is_known(running, running.workload.end_s)

    # ---- what is due

    def _look_at(self, running: _Running, at_s: float, now_s: float) -> None:
        """Look at it then, or when one of its pods starts or ends before; at the next tick at the earliest."""
        at_s = min([at_s, *(each for each in running.workload.changes if each > now_s)])
        if at_s < running.due_s and now_s <= running.workload.end_s:
            running.due_s = at_s
            heappush(self._due, (at_s, running.position))

    def _come_back(self, running: _Running, at_s: float) -> None:
        running.came_back_s, running.warned_at, running.due_s = at_s, None, inf
        self._look_at(running, running.ready_s(at_s) - running.lead_s, at_s)

    def _look(self, running: _Running, now_s: float) -> None:
        if running.position in self._suspended:
            self._wake(running, now_s)
            return
        pods = running.workload.pods_at(now_s)
        if not pods:
            self._is_known(running, now_s)
            self._look_at(running, inf, now_s)
            return
        ready_s = running.ready_s(running.since_s(pods))
        busy_until_s = self._busy_until_s(running, pods, now_s)
        if (early_s := max(ready_s, busy_until_s) - running.lead_s) > now_s:
            self._is_known(running, now_s)
            self._watch(running, _HOLES if any(len(each.devices) > each.gpus for each in pods) else _NOTHING)
            self._look_at(running, early_s, now_s)
        elif running.watches == _ANY_SIGN and now_s < running.stands_until_s and self._come(running.coming, now_s):
            self._look_at(running, min(running.stands_until_s, self._late_s(running.coming)), now_s)
        else:
            self._judge(running, pods, now_s)

    def _judge(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> None:
        self._watch(running, _NOTHING)
        decision = self._decided(running, pods, now_s)
        match decision.answer:
            case Unknown(reason=reason):
                self._is_unknown(running, now_s, str(reason))
                self._keep_watch(running, pods, decision, now_s)
            case answer if answer.reason in _FREES:
                self._is_known(running, now_s)
                self._suspend(running, pods, now_s)
            case answer:
                self._is_known(running, now_s)
                self._look_again(running, pods, decision, now_s)

    def _decided(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> Decision:
        now, policy = datetime.fromtimestamp(now_s, UTC), running.policy
        came_back = [_pod(each, max(each.start_s, running.came_back_s)) for each in pods]
        verdict = judge(came_back, self._feed.history, policy=policy, trust=self._trust, end=now)
        target = TargetState(
            desired_replicas=1,
            phase=Phase.RUNNING,
            running_since=datetime.fromtimestamp(running.since_s(pods), UTC),
            warned_at=running.warned_at,
            told_by=("owner",),
            told_at=running.warned_at,
            grant="a gang that always waits",
        )
        decision = decide(target, verdict, policy=policy, now=now)
        if policy.warning is not None and decision.warning_at is not None and decision.warning_at <= now:
            running.warned_at = standing_warning(decision, running.warned_at) or now
        return decision

    def _suspend(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> None:
        self._suspended.suspend(running.position, running.floor, at_s=now_s, ran_since_s=running.since_s(pods))
        wake_at = running.policy.wake_at
        next_wake = following(wake_at, datetime.fromtimestamp(now_s, UTC)) if wake_at else None
        running.due_s = inf
        if next_wake is not None:
            running.due_s = next_wake.timestamp()
            heappush(self._due, (running.due_s, running.position))

    def _wake(self, running: _Running, now_s: float) -> None:
        if now_s <= running.workload.end_s:
            self._suspended.end(running.position, running.floor, at_s=now_s, has_returned=False)
            self._come_back(running, now_s)

    def _look_again(self, running: _Running, pods: Sequence[RecordedPod], decision: Decision, now_s: float) -> None:
        """When an answer of 1 may be another one."""
        policy, ends = running.policy, None
        match decision.answer.reason:
            case DecisionReason.KEPT | DecisionReason.EXCLUDED:
                ends = max(each for each in (policy.keep_until, policy.exclude_until) if each is not None)
            case DecisionReason.OUTSIDE_HOURS:
                ends = next_change(policy.allowed_during, decision.decided_at)
            case DecisionReason.GPUS_BUSY if policy.warning is None:
                self._keep_watch(running, pods, decision, now_s)
                return
        self._look_at(running, now_s + self._tick_s if ends is None else ends.timestamp(), now_s)

    # ---- how long an answer stands

    def _busy_until_s(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> float:
        """Until when it is busy for certain, whatever comes: one GPU is, on all of its signals.

        Nothing is certain where GPUs may be missing from the verdict, or more report than are requested.
        """
        if self._rivals(pods, now_s) or any(self._has_surplus(running, each, now_s) for each in pods):
            return -inf
        found = [self._works_until_s(running, device, now_s) for pod in pods for device in pod.devices]
        next_rival_s = self._next_rival_s(pods, now_s)
        if running.policy.gpus.share == 1.0:
            return min(max(found), next_rival_s)
        is_whole = all(len(each.devices) == each.gpus for each in pods)
        return min(*found, next_rival_s) if is_whole else -inf

    def _works_until_s(self, running: _Running, device: Sequence[int], now_s: float) -> float:
        """When the work of one of the GPU's signals has left the window, or one begins to report that has not yet."""
        ends, firsts = self._feed.work_ends[running.floor], [self._feed.firsts.item(n) for n in device]
        left_s = [
            ends.item(n) + running.window_s for n, first_s in zip(device, firsts, strict=True) if first_s <= now_s
        ]
        return min([*left_s, *(each for each in firsts if each > now_s)]) if left_s else -inf

    def _rivals(self, pods: Sequence[RecordedPod], now_s: float) -> list[int]:
        """Series of other pods for which one of their GPUs reports, or did shortly before."""
        feed, margin_s = self._feed, self._trust.max_age.total_seconds()
        return [
            n for each in pods for n in each.rivals if feed.firsts.item(n) <= now_s <= feed.finals.item(n) + margin_s
        ]

    def _next_rival_s(self, pods: Sequence[RecordedPod], now_s: float) -> float:
        """When the next one begins."""
        firsts = (self._feed.firsts.item(n) for each in pods for n in each.rivals)
        return min((each for each in firsts if each > now_s), default=inf)

    def _has_surplus(self, running: _Running, pod: RecordedPod, now_s: float) -> bool:
        if len(pod.devices) <= pod.gpus:
            return False
        begin_s = now_s - running.window_s - 2 * self._interval_s
        newest_s = [max(float(self._feed.lasts[n]) for n in each) for each in pod.devices]
        return sum(each >= begin_s for each in newest_s) > pod.gpus

    def _keep_watch(self, running: _Running, pods: Sequence[RecordedPod], decision: Decision, now_s: float) -> None:
        """Let the answer stand until a sample or a hole may change it, where that can be told; else for a tick."""
        judged = (
            {} if decision.verdict is None else {(each.pod, each.gpu): each.windows for each in decision.verdict.gpus}
        )
        coming, stands_until_s = list[int](), [*running.workload.changes, self._next_rival_s(pods, now_s)]
        for pod in pods:
            for n in pod.series:
                until_s = self._stands_until_s(n, running, judged, now_s)
                if until_s <= now_s:
                    self._look_at(running, now_s + self._tick_s, now_s)
                    return
                stands_until_s.append(until_s)
                if self._come([n], now_s):
                    coming.append(n)
        rivals = self._rivals(pods, now_s)
        coming += [n for n in rivals if self._come([n], now_s)]
        margin_s = self._trust.max_age.total_seconds()
        if any(n not in coming and now_s - self._feed.lasts.item(n) <= margin_s for n in rivals):
            self._look_at(running, now_s + self._tick_s, now_s)
            return
        running.stands_until_s = min((each for each in stands_until_s if each > now_s), default=inf)
        running.coming = coming
        self._watch(running, _ANY_SIGN)
        self._look_at(running, min(running.stands_until_s, self._late_s(coming)), now_s)

    def _stands_until_s(
        self, n: int, running: _Running, judged: Mapping[tuple[str, GpuId], Mapping[str, Window]], now_s: float
    ) -> float:
        """Until when it is certain what the series says, if no work is seen and no sample late; now where it is not.

        | its samples …                                     | it is                   | until                 |
        |---------------------------------------------------|-------------------------|-----------------------|
        | show work in the window                           | active                  | that has left it      |
        | do not reach into the window                      | without a sample        | one comes             |
        | ended longer ago than is tolerated                | stale                   | they leave the window |
        | come, after a hole in the window longer than that | not trusted for its gap | enough of it has left |
        | come, and hardly any is missing, or none          | trusted                 | one is missing        |
        """
        feed, last_s = self._feed, float(self._feed.lasts.item(n))
        begin_s = now_s - running.window_s - 2 * self._interval_s
        work_until_s = float(feed.work_ends[running.floor].item(n)) + running.window_s
        if work_until_s > now_s:
            return work_until_s if self._come([n], now_s) else now_s
        if last_s < begin_s:
            return inf
        if now_s - last_s > self._trust.max_age.total_seconds():
            return last_s + running.window_s - 2 * self._interval_s
        gap_until_s = float(feed.long_gaps.item(n)) + running.window_s - feed.long_gap_s
        if gap_until_s > now_s:
            return gap_until_s if self._come([n], now_s) else now_s
        return inf if self._come([n], now_s) and self._is_trusted(n, begin_s, judged) else now_s

    def _is_trusted(self, n: int, begin_s: float, judged: Mapping[tuple[str, GpuId], Mapping[str, Window]]) -> bool:
        """Whether it stays so as long as no further sample is missing: what is missing leaves the window."""
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

    def _late_s(self, series: Sequence[int]) -> float:
        """When the first of these is late."""
        return min((self._feed.lasts.item(n) for n in series), default=inf) + self._feed.longest_step_s + _A_MOMENT_S

    def _watch(self, running: _Running, signs: int) -> None:
        if running.watches != signs:
            running.watches = signs
            self._watched[list(running.workload.series)] = signs

    # ---- time without an answer

    def _is_unknown(self, running: _Running, now_s: float, reason: str) -> None:
        if running.unknown_reason != reason:
            self._is_known(running, now_s)
            running.unknown_since_s, running.unknown_reason = now_s, reason

    def _is_known(self, running: _Running, now_s: float) -> None:
        if running.unknown_reason:
            gpu_hours = running.workload.gpu_hours(running.unknown_since_s, now_s)
            self._outcome.unknown(running.position, running.unknown_reason, gpu_hours)
            running.unknown_reason = ""


_A_MOMENT_S = 1e-3
_NOTHING, _HOLES, _ANY_SIGN = range(3)
"""No sample; one before which others were missed; work as well."""


def _pod(pod: RecordedPod, running_since_s: float) -> GpuPod:
    return GpuPod(
        namespace=pod.namespace,
        name=pod.name,
        phase=PodPhase.RUNNING,
        gpus=pod.gpus,
        running_since=datetime.fromtimestamp(running_since_s, UTC),
    )
