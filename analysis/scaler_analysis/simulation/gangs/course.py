"""What would a policy have given the gangs of a recorded week? The jobs of a trace in virtual time, event by event.

| policy        | an idle workload is suspended                                              |
|---------------|----------------------------------------------------------------------------|
| `none`        | never                                                                      |
| `always`      | once it was idle for `idleAfter`, and KEDA has polled and cooled down      |
| `on-pressure` | only by a plan that lets a waiting Workload in                             |

A job goes through

    Waiting → Working ⇄ Idle → Ended
       ↑                  ↓
       └─────────────  Suspended        (then Waiting → Resuming → Working)

and while it is Working, Idle or Resuming it holds its GPUs.

Laws:

* Work is never lost or made: a session goes through the same spans under every policy, and only the pauses between
  them differ. While it is suspended its pause goes on. It comes back when the pause is over, at the next poll of KEDA,
  and waits for its quota like any other Workload, at the place that its age gives it.
* A pause begins to count once the warm-up after the last start is over.
* A session whose last pause it spends suspended ends there.
* Equal input gives equal output.

Worked example: quota 4, `idleAfter` 30m, warm-up 10m, polls every 30 s and cooldown 5m from 0:00. A session of 4 GPUs
works from 0:00 to 1:00 and is idle until 3:00; a gang of 4 GPUs is created at 0:30. With `none` it waits until 3:00.
With `always` the session is idle by its verdict at 1:30; the last active poll was at 1:29:30, so it is suspended at
1:35:00, and the gang has waited for 65 min. With `on-pressure` the plan is granted at 1:30: the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush
from typing import NamedTuple

from scaler_analysis.simulation.gangs.outcomes import GangPolicy, GangRun, GpuCount, JobOutcome, SessionSuspension
from scaler_analysis.simulation.gangs.pressure_plans import GangTimes, PressurePlans, next_poll, scaled_to_zero_at
from scaler_analysis.simulation.gangs.progress import HOLDING, JobProgress, JobStage
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob
from scaler_analysis.simulation.gangs.virtual_queues import VirtualQueues


def simulate_gangs(
    jobs: Iterable[SimulatedJob], quota: Mapping[str, int], policy: GangPolicy, times: GangTimes
) -> GangRun:
    """The run of a policy until its last job has ended. `quota`: GPUs by ClusterQueue; each job fits into all of it."""
    return _Course(jobs, quota, policy, times).run()


Act = Callable[[JobProgress, datetime], None]


class _Due(NamedTuple):
    at: datetime
    number: int
    """The place in the order of their making; no two have the same."""
    act: Callable[[datetime], None]


class _Course:
    """The course of things under one policy."""

    def __init__(
        self, jobs: Iterable[SimulatedJob], quota: Mapping[str, int], policy: GangPolicy, times: GangTimes
    ) -> None:
        self._policy = policy
        self._times = times
        self._window = times.window_under_pressure if policy is GangPolicy.ON_PRESSURE else times.idle_after
        self._quota = sum(quota.values())
        self._queues = VirtualQueues(quota)
        self._jobs = {job.name: JobProgress(job) for job in jobs}
        self._agenda: list[_Due] = []
        self._number = 0
        self._gpus: Counter[JobStage] = Counter()
        self._counts: list[GpuCount] = []
        self._suspensions: list[SessionSuspension] = []
        self._idle: dict[str, JobProgress] = {}
        """The jobs that are idle by their verdict."""
        self._looks: set[datetime] = set()
        self._plans = PressurePlans(queues=self._queues, times=times)

    def run(self) -> GangRun:
        for progress in self._jobs.values():
            self._due(progress.job.created, self._create, progress)
        while self._agenda:
            now = self._agenda[0].at
            while self._agenda and self._agenda[0].at == now:
                heappop(self._agenda).act(now)
            self._settle(now)
        return GangRun(
            policy=self._policy,
            quota=self._quota,
            outcomes=tuple(_outcome(each) for each in self._jobs.values()),
            suspensions=tuple(self._suspensions),
            counts=tuple(self._counts),
            plans=self._plans.made,
            plans_ended=dict(Counter(map(str, self._plans.ended))),
        )

    def _at(self, at: datetime, act: Callable[[datetime], None]) -> None:
        heappush(self._agenda, _Due(at, self._number, act))
        self._number += 1

    def _due(self, at: datetime, act: Act, progress: JobProgress) -> None:
        """Do it then, if the job is still in the stage in which it is now."""
        stages = progress.stages

        def if_unchanged(now: datetime) -> None:
            if progress.stages == stages:
                act(progress, now)

        self._at(at, if_unchanged)

    def _move(self, progress: JobProgress, stage: JobStage) -> None:
        self._gpus[progress.stage] -= progress.job.gpus
        self._gpus[stage] += progress.job.gpus
        progress.stage = stage
        progress.stages += 1

    # ------------------------------------------------------------------------------------------- the stages of one job

    def _create(self, progress: JobProgress, _now: datetime) -> None:
        self._move(progress, JobStage.WAITING)
        self._queues.enqueue(progress.job)

    def _start(self, progress: JobProgress, now: datetime) -> None:
        progress.running_since = now
        if progress.admitted_at is None:
            progress.admitted_at = now
            self._go_on(progress, now)
        else:
            self._note(progress, resumed_at=now)
            self._move(progress, JobStage.RESUMING)
            self._due(now + self._times.resume, self._go_on, progress)

    def _go_on(self, progress: JobProgress, now: datetime) -> None:
        """Continue with its next span, or end."""
        self._idle.pop(progress.job.name, None)
        if progress.has_no_span_left:
            self._end(progress, now)
            return
        is_idle = progress.next_span % 2 == 1
        self._move(progress, JobStage.IDLE if is_idle else JobStage.WORKING)
        progress.span_ends = now + progress.job.spans[progress.next_span]
        progress.next_span += 1
        self._due(progress.span_ends, self._go_on, progress)
        if is_idle and self._policy is not GangPolicy.NONE:
            progress.idle_since = max(now, progress.running_since + self._times.warm_up)
            self._due_in_span(progress.idle_since + self._window, self._judge_idle, progress)

    def _due_in_span(self, at: datetime, act: Act, progress: JobProgress) -> None:
        if at < progress.span_ends:
            self._due(at, act, progress)

    def _judge_idle(self, progress: JobProgress, now: datetime) -> None:
        if self._policy is GangPolicy.ALWAYS:
            zero_at = scaled_to_zero_at(progress.job.created, now, self._times)
            self._due_in_span(zero_at, self._suspend, progress)
        else:
            self._idle[progress.job.name] = progress

    def _suspend(self, progress: JobProgress, now: datetime, beneficiary: str = "") -> None:
        self._idle.pop(progress.job.name, None)
        self._queues.release(progress.job.name)
        self._move(progress, JobStage.SUSPENDED)
        progress.suspension = len(self._suspensions)
        self._suspensions.append(
            SessionSuspension(
                job=progress.job.name,
                gpus=progress.job.gpus,
                at=now,
                beneficiary=beneficiary,
                wanted_at=None if progress.has_no_span_left else progress.span_ends,
            )
        )
        self._due(progress.span_ends, self._end if progress.has_no_span_left else self._want, progress)

    def _want(self, progress: JobProgress, now: datetime) -> None:
        """Its pause is over: it asks for its quota as soon as KEDA has seen that."""
        self._move(progress, JobStage.WAITING)
        self._due(next_poll(progress.job.created, now, self._times), self._wake, progress)

    def _wake(self, progress: JobProgress, _now: datetime) -> None:
        self._queues.enqueue(progress.job)

    def _end(self, progress: JobProgress, now: datetime) -> None:
        self._queues.release(progress.job.name)
        self._move(progress, JobStage.ENDED)
        progress.ended_at = now

    def _note(self, progress: JobProgress, *, resumed_at: datetime) -> None:
        known = self._suspensions[progress.suspension]
        self._suspensions[progress.suspension] = replace(known, resumed_at=resumed_at)

    # ------------------------------------------------------------------------------------------------ quota and plans

    def _settle(self, now: datetime) -> None:
        """Let Kueue admit, and plans suspend, until nothing changes any more at this instant."""
        self._admit(now)
        if self._policy is GangPolicy.ON_PRESSURE:
            if self._gpus[JobStage.WAITING] or self._plans.is_active:
                self._follow_plans(now)
            self._look_again(now)
        self._count(now)

    def _follow_plans(self, now: datetime) -> None:
        gang, victims = self._plans.victims(now, self._idle)
        while victims:
            self._reclaim(gang, victims, now)
            gang, victims = self._plans.victims(now, self._idle)

    def _admit(self, now: datetime) -> None:
        for name in self._queues.admit(now):
            self._start(self._jobs[name], now)

    def _reclaim(self, gang: str, victims: Iterable[str], now: datetime) -> None:
        for victim in victims:
            progress = self._jobs[victim]
            progress.times_reclaimed += 1
            self._suspend(progress, now, gang)
        self._admit(now)

    def _look_again(self, now: datetime) -> None:
        at = self._plans.next_look(now)
        if at is not None and at not in self._looks:
            self._looks.add(at)
            self._at(at, self._looks.remove)

    def _count(self, now: datetime) -> None:
        gpus = self._gpus
        held = sum(gpus[stage] for stage in HOLDING)
        worked, freed, waiting = (gpus[stage] for stage in (JobStage.WORKING, JobStage.SUSPENDED, JobStage.WAITING))
        self._counts.append(GpuCount(now, held, worked, freed, waiting))


def _outcome(progress: JobProgress) -> JobOutcome:
    if progress.admitted_at is None:
        raise ValueError(f"{progress.job.name} asks for {progress.job.gpus} GPUs, and was never admitted")
    return JobOutcome(job=progress.job, admitted_at=progress.admitted_at, ended_at=progress.ended_at)
