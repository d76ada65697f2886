"""What a policy would have decided about every workload, tick by tick: `judge` and `decide` over the recorded samples.

Looking at every workload at every tick would take days of a month of recording. So each has a time before which its
answer cannot be another one, and is looked at when that has come:

| the answer is …                       | it is looked at                                                             |
|---------------------------------------|-----------------------------------------------------------------------------|
| 1, warming up, or not long enough     | when its warm-up and its window have passed                                 |
| 1, kept, excluded or outside hours    | when that ends                                                              |
| 1, busy on all signals                | when the work of one of them has left the window                            |
| unknown, as no GPU reports            | when a sample comes                                                         |
| 0                                     | when work is seen, or at a time of `wakeAt`                                 |
| any other                             | at the next tick                                                            |

The time of work moves on while it waits; it is asked again when its time has come. All that are looked at in one tick
are judged together, and decided again as in production: where their GPUs show something else (`GpuVerdicts.compared`),
or an instant has come that the last decision has named.

What is not in a recording is taken as follows: a plan always waits for what is reclaimed on pressure, a warning is
delivered when it is given, a hook ends at once, and no budget is spent. Mode observe is taken for enforce.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import inf

import numpy as np

from scaler.decision.decision import Decision, Quiet, valid_warning
from scaler.decision.gates import decide
from scaler.decision.reasons import DecisionReason, row_of
from scaler.idleness.hours import following, next_change
from scaler.idleness.pods import GpuPod, PodPhase, judge, judged_by, look
from scaler.idleness.policy import EnforcementMode, Policy, Trust
from scaler.idleness.verdict import Unknown, WorkloadVerdict
from scaler.targets.target_state import Phase, TargetState
from scaler_analysis.simulation.certain_work import CertainWork
from scaler_analysis.simulation.feed import FedSamples, SampleFeed
from scaler_analysis.simulation.outcome import CaseOutcome
from scaler_analysis.simulation.recordings.recorded import RecordedPod, RecordedWorkload
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
    came_back_s: float = -inf
    due_s: float = inf
    """When it is looked at next."""
    warned_at: datetime | None = None
    quiet: Quiet | None = None
    """The quiet that its last decision knew."""
    unknown_since_s: float = inf
    unknown_reason: str = ""
    shown: object = None
    """What its GPUs showed when it was decided last."""
    is_silent: bool = False
    """Whether none of its GPUs reports."""
    holds_until: datetime | None = None
    """The next instant at which that decision may be another one though they show the same; None where there is none.
    """

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
        self._certain_work = CertainWork(feed, trust)
        self._suspended = SuspendedWorkloads(workloads, len(feed.firsts), outcome)
        self._is_silent = np.zeros(len(feed.firsts), np.bool_)
        """Whether each series is of a workload that is looked at when a sample comes."""
        self._due: list[tuple[float, int]] = []
        self._running: dict[int, _Running] = {}
        for position, (workload, policy) in enumerate(zip(workloads, policies, strict=True)):
            if policy is not None:
                running = _Running(position=position, workload=workload, policy=policy)
                self._running[position] = running
                self._look_at(running, running.ready_s(workload.start_s) - running.lead_s, workload.start_s)

    @property
    def next_due_s(self) -> float:
        """When something is looked at; before any time where that may be at the next sample."""
        if self._is_silent.any():
            return 0.0
        return self._due[0][0] if self._due else inf

    @property
    def shortest_s(self) -> float:
        """The shortest time in which anything that comes back could be suspended again."""
        ready = (each.ready_s(0.0) - each.lead_s for each in self._running.values())
        return min(ready, default=inf)

    def take(self, fed: Sequence[FedSamples]) -> None:
        for position, at_s in self._suspended.returned(fed):
            self._come_back(self._running[position], at_s)
        for each in fed if self._is_silent.any() else ():
            hits = self._is_silent[each.series]
            for series, at_s in zip(each.series[hits].tolist(), each.at_s[hits].tolist(), strict=True):
                self._look_at(self._running[self._suspended.workload_of(series)], at_s, at_s)

    def tick(self, now_s: float) -> None:
        looked_at = [(running, pods) for running in self._take_due(now_s) if (pods := self._judgeable(running, now_s))]
        if not looked_at:
            return
        now, history, trust = datetime.fromtimestamp(now_s, UTC), self._feed.history, self._trust
        asked = [(running, pods, _gpu_pods(running, pods)) for running, pods in looked_at]
        found = look([(each, running.policy) for running, _, each in asked], history, trust=trust, end=now)
        compared = {by: verdicts.compared() for by, verdicts in found.items()}
        for running, pods, gpu_pods in asked:
            by = judged_by(running.policy, trust)
            rows = [row for each in pods for row in history.rows_of(each.namespace, each.name)]
            shown = pods, compared[by][[found[by].positions[row] for row in rows]].tolist()
            if shown == running.shown and (running.holds_until is None or now < running.holds_until):
                self._look_at(running, now_s + self._tick_s, now_s)
            else:
                running.shown = shown
                verdict = judge(gpu_pods, history, policy=running.policy, trust=trust, end=now, found=found[by])
                self._decide(running, pods, verdict, now)

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
        running.came_back_s, running.warned_at, running.shown, running.due_s = at_s, None, None, inf
        self._look_at(running, running.ready_s(at_s) - running.lead_s, at_s)

    def _take_due(self, now_s: float) -> Iterator[_Running]:
        while self._due and self._due[0][0] <= now_s:
            due_s, position = heappop(self._due)
            running = self._running[position]
            if due_s == running.due_s:
                running.due_s = inf
                self._be_silent(running, is_silent=False)
                yield running

    def _judgeable(self, running: _Running, now_s: float) -> list[RecordedPod]:
        """Its pods, where its answer cannot be told without judging them."""
        if running.position in self._suspended:
            self._wake(running, now_s)
            return []
        pods = running.workload.pods_at(now_s)
        if not pods:
            self._is_known(running, now_s)
            self._look_at(running, inf, now_s)
            return []
        ready_s = running.ready_s(running.since_s(pods))
        busy_until_s = self._certain_work.until_s(pods, running.policy, now_s)
        if (early_s := max(ready_s, busy_until_s) - running.lead_s) > now_s:
            self._is_known(running, now_s)
            running.shown = None
            self._look_at(running, early_s, now_s)
            return []
        return pods

    def _decide(self, running: _Running, pods: Sequence[RecordedPod], verdict: WorkloadVerdict, now: datetime) -> None:
        decision, now_s = self._decided(running, pods, verdict, now), now.timestamp()
        match decision.answer:
            case Unknown(reason=reason):
                self._is_unknown(running, now_s, str(reason))
                is_silent = not any(each.windows for each in verdict.gpus)
                self._be_silent(running, is_silent=is_silent)
                self._look_at(running, inf if is_silent else now_s + self._tick_s, now_s)
            case answer if row_of(answer.reason).frees:
                self._is_known(running, now_s)
                self._suspend(running, pods, now_s)
            case answer:
                self._is_known(running, now_s)
                self._look_again(running, decision, now_s)

    def _decided(
        self, running: _Running, pods: Sequence[RecordedPod], verdict: WorkloadVerdict, now: datetime
    ) -> Decision:
        policy = running.policy
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
        # Nobody reads its words, so it is no other one where only these tell a time.
        running.holds_until = decision.holds_until(verdict.verdict if isinstance(verdict.verdict, Unknown) else None)
        if policy.warning is not None and decision.warning_at is not None and decision.warning_at <= now:
            running.warned_at, running.shown = valid_warning(decision, running.warned_at) or now, None
        return decision

    def _be_silent(self, running: _Running, *, is_silent: bool) -> None:
        if running.is_silent is not is_silent:
            running.is_silent = is_silent
            self._is_silent[list(running.workload.series)] = is_silent

    def _suspend(self, running: _Running, pods: Sequence[RecordedPod], now_s: float) -> None:
        self._suspended.suspend(
            running.position, running.policy.active_above_ratio, at_s=now_s, ran_since_s=running.since_s(pods)
        )
        wake_at = running.policy.wake_at
        next_wake = following(wake_at, datetime.fromtimestamp(now_s, UTC)) if wake_at else None
        running.due_s = inf
        if next_wake is not None:
            running.due_s = next_wake.timestamp()
            heappush(self._due, (running.due_s, running.position))

    def _wake(self, running: _Running, now_s: float) -> None:
        if now_s <= running.workload.end_s:
            self._suspended.end(running.position, running.policy.active_above_ratio, at_s=now_s, has_returned=False)
            self._come_back(running, now_s)

    def _look_again(self, running: _Running, decision: Decision, now_s: float) -> None:
        """When an answer of 1 may be another one."""
        policy, ends = running.policy, None
        match decision.answer.reason:
            case DecisionReason.KEPT | DecisionReason.EXCLUDED:
                ends = max(each for each in (policy.keep_until, policy.exclude_until) if each is not None)
            case DecisionReason.OUTSIDE_HOURS:
                ends = next_change(policy.allowed_during, decision.decided_at)
        self._look_at(running, now_s + self._tick_s if ends is None else ends.timestamp(), now_s)

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


def _gpu_pods(running: _Running, pods: Sequence[RecordedPod]) -> list[GpuPod]:
    return [
        GpuPod(
            namespace=each.namespace,
            name=each.name,
            phase=PodPhase.RUNNING,
            gpus=each.gpus,
            running_since=datetime.fromtimestamp(max(each.start_s, running.came_back_s), UTC),
        )
        for each in pods
    ]
