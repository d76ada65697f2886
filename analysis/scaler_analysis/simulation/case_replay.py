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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import inf

import numpy as np

from scaler.decision.decision import Decision, Quiet, valid_warning
from scaler.decision.gates import decide
from scaler.decision.reasons import DecisionReason, row_of
from scaler.idleness.hours import following, next_change
from scaler.idleness.pods import GpuPod, PodPhase, judge
from scaler.idleness.policy import EnforcementMode, Policy, Trust
from scaler.idleness.verdict import Unknown, judged_length
from scaler.targets.target_state import Phase, TargetState
from scaler_analysis.simulation.feed import FedSamples, SampleFeed
from scaler_analysis.simulation.outcome import CaseOutcome
from scaler_analysis.simulation.recordings.recorded import RecordedPod, RecordedWorkload
from scaler_analysis.simulation.standing import NOT_STANDING, ReplayedPolicy, StandingVerdict, StandingVerdicts
from scaler_analysis.simulation.suspended import SuspendedWorkloads


def simulated(policy: Policy | None) -> Policy | None:
    """The policy as it is taken here, where no hook runs and no budget is spent."""
    return policy and replace(
        policy, mode=EnforcementMode.ENFORCE, before_suspend="", suspended_at_once=None, suspended_per_period=None
    )


@dataclass(slots=True, kw_only=True)
class _Running:
    """A workload of a case."""

    position: int
    workload: RecordedWorkload
    policy: Policy
    judged_by: ReplayedPolicy
    came_back_s: float = -inf
    due_s: float = inf
    """When it is looked at next."""
    warned_at: datetime | None = None
    quiet: Quiet | None = None
    """Since when it is quiet, as its last decision knew."""
    unknown_since_s: float = inf
    unknown_reason: str = ""
    watches: int = 0
    """Which samples make it due before its time."""
    standing: StandingVerdict = NOT_STANDING
    """How long its last answer stands."""

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
        self._evidence = StandingVerdicts(feed, trust)
        self._suspended = SuspendedWorkloads(workloads, len(feed.lasts), outcome)
        self._watched = np.full(len(feed.lasts), _NOTHING, np.uint8)
        """What of each series makes its workload due."""
        self._sharing: dict[int, list[int]] = {}
        """The workloads one of whose GPUs a series of another pod is about, by that series."""
        self._due: list[tuple[float, int]] = []
        self._running: dict[int, _Running] = {}
        for position, (workload, policy) in enumerate(zip(workloads, policies, strict=True)):
            if policy is not None:
                for series in (n for each in workload.pods for n in each.series_of_others):
                    self._sharing.setdefault(series, []).append(position)
                by = ReplayedPolicy(
                    floor=policy.active_above_ratio,
                    window_s=judged_length(policy=policy, trust=trust).total_seconds(),
                    needs_all=policy.gpus.share == 1.0,
                )
                running = _Running(position=position, workload=workload, policy=policy, judged_by=by)
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
            for series in each.series[each.is_after_hole].tolist() if self._sharing else ():
                for position in self._sharing.get(series, ()):
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
        busy_until_s = self._evidence.busy_until_s(pods, running.judged_by, now_s)
        if (early_s := max(ready_s, busy_until_s) - running.lead_s) > now_s:
            self._is_known(running, now_s)
            self._watch(running, _HOLES if any(len(each.devices) > each.gpus for each in pods) else _NOTHING)
            self._look_at(running, early_s, now_s)
        elif running.watches == _ANY_SIGN and self._evidence.still_stands(running.standing, now_s):
            self._look_at(running, self._evidence.due_s(running.standing), now_s)
        else:
            self._judge(running, pods, now_s)

    def _judge(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> None:
        self._watch(running, _NOTHING)
        decision = self._decided(running, pods, now_s)
        match decision.answer:
            case Unknown(reason=reason):
                self._is_unknown(running, now_s, str(reason))
                self._keep_watch(running, pods, decision, now_s)
            case answer if row_of(answer.reason).frees:
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
            notified_by=("owner",),
            notified_at=running.warned_at,
            grant="a gang that always waits",
        )
        decision = decide(target, verdict, policy=policy, now=now, quiet=running.quiet)
        running.quiet = decision.quiet_until(now)
        if policy.warning is not None and decision.warning_at is not None and decision.warning_at <= now:
            running.warned_at = valid_warning(decision, running.warned_at) or now
        return decision

    def _suspend(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> None:
        self._suspended.suspend(
            running.position, running.judged_by.floor, at_s=now_s, ran_since_s=running.since_s(pods)
        )
        wake_at = running.policy.wake_at
        next_wake = following(wake_at, datetime.fromtimestamp(now_s, UTC)) if wake_at else None
        running.due_s = inf
        if next_wake is not None:
            running.due_s = next_wake.timestamp()
            heappush(self._due, (running.due_s, running.position))

    def _wake(self, running: _Running, now_s: float) -> None:
        if now_s <= running.workload.end_s:
            self._suspended.end(running.position, running.judged_by.floor, at_s=now_s, has_returned=False)
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

    def _keep_watch(self, running: _Running, pods: Sequence[RecordedPod], decision: Decision, now_s: float) -> None:
        """Let the answer stand until a sample or a hole may change it, where that can be told; else for a tick."""
        changes = [each for each in running.workload.changes if each > now_s]
        standing = self._evidence.standing(pods, running.judged_by, decision.verdict, now_s)
        if standing is None:
            self._look_at(running, now_s + self._tick_s, now_s)
            return
        running.standing = standing._replace(until_s=min([standing.until_s, *changes]))
        self._watch(running, _ANY_SIGN)
        self._look_at(running, self._evidence.due_s(running.standing), now_s)

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
