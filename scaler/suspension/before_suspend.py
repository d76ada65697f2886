"""Runs the hooks of idle workloads, which end before these are suspended. Leader only.

| the decision, and the last run of its hook                   | what is done                           |
|--------------------------------------------------------------|----------------------------------------|
| BeforeSuspend, and none is in progress or has ended          | a run is written down, and begins      |
| a run has not ended                                          | it goes on, until its time is over     |
| a run has ended, as was found since                          | its outcome is written down            |
| work was seen, or may have been, since the run began         | it is Outdated; it is not waited for   |

Laws:

* A run is written down before its first call. A process that ends in the middle leaves it to the next leader, which
  makes the same calls again (`hooks`), within the same time.
* Hooks are waited for by tasks of their own, so many at the same time and no more, which end with the leadership.
* Victims of plans come first: gangs wait for them.
* Every write names the version of the object that was decided upon.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

import structlog

from scaler.clock import SYSTEM_CLOCK, Clock, Turns, every
from scaler.decision.decision import Decision, hook_stage, is_outdated
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation, Key
from scaler.decision.describe import evidence, hook_run_status, prevailing
from scaler.decision.reasons import DecisionReason, SuspensionEventReason
from scaler.errors import KubeError
from scaler.idleness.durations import format_duration
from scaler.idleness.hooks import HookOutcome, HookRun, HookStage, words
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT
from scaler.kube.writes import PatchApi, is_written
from scaler.suspension.hooks import Hook, HookCall, HookConfig, HookProgress, run_id
from scaler.targets.cluster_state import ClusterState
from scaler.targets.workloads import hook_run_of

log = structlog.get_logger(__name__)

_INTERVAL = timedelta(seconds=5)
_AT_ONCE = 32
"""Runs that may be in progress. Those that wait for a place have not begun, so their time does not run."""
_EVIDENCE_GPUS = 8
_LONGEST_MESSAGE = 200
_EVENTS = {
    HookOutcome.SUCCEEDED: (SuspensionEventReason.HOOK_SUCCEEDED, False),
    HookOutcome.FAILED: (SuspensionEventReason.HOOK_FAILED, True),
    HookOutcome.TIMED_OUT: (SuspensionEventReason.HOOK_TIMED_OUT, True),
    HookOutcome.OUTDATED: (SuspensionEventReason.HOOK_OUTDATED, False),
}
"""(reason, whether a warning) by outcome."""


class HookStep(StrEnum):
    START = "Start"
    CONTINUE = "Continue"
    OUTDATE = "Outdate"


def next_step(decision: Decision, run: HookRun | None, *, is_due: bool) -> HookStep | None:
    """What is done about the run of a workload; None where nothing is.

    `decision` is that of the trigger with the hook; `is_due`: nothing but the hook keeps it from being suspended.
    """
    if run is not None and run.outcome is not HookOutcome.OUTDATED and is_outdated(decision, run):
        return HookStep.OUTDATE
    if run is not None and run.outcome is None and run.hook == decision.policy.before_suspend:
        return HookStep.CONTINUE
    may_start = is_due and decision.idle_since is not None  # a run counts only while the begin of the quiet is known
    return HookStep.START if may_start and hook_stage(decision, run) is HookStage.DUE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A workload with a hook, and the decision of the trigger that names it."""

    scaled_object: ScaledObject
    record: ScalableWorkload
    decision: Decision
    is_due: bool
    pod: str

    @property
    def uid(self) -> str:
        return self.scaled_object.metadata.uid

    @property
    def about(self) -> ObjectReference:
        """What its Events are on."""
        if self.record.is_record:
            return ObjectReference.of(SCALED_OBJECT, self.scaled_object.metadata)
        return ObjectReference.of(SCALABLE_WORKLOAD, self.record.metadata)

    @property
    def run(self) -> HookRun | None:
        return hook_run_of(self.record.status.before_suspend)


@dataclass(eq=False)
class BeforeSuspendController:
    name: ClassVar[str] = "before suspend"
    api: PatchApi
    cluster: ClusterState
    decision_cache: DecisionCache
    announcer: EventSink
    hooks: Mapping[str, HookConfig]
    _: KW_ONLY
    make: Callable[[HookConfig], Hook]
    """What makes the attempts of one run."""
    max_age: timedelta
    """How old decisions may be that are acted on."""
    ended: Callable[[str, str], None] = lambda _hook, _outcome: None
    """Takes the hook's name and the outcome of each run."""
    clock: Clock = SYSTEM_CLOCK
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    """What waits for the run in progress, by uid of the ScaledObject."""
    _found: dict[str, tuple[datetime, HookProgress]] = field(default_factory=dict, init=False)
    """When a run began that has ended, and how; not written down yet."""

    async def run(self) -> None:
        """Tick until cancelled. Where no hooks are there is nothing to do."""
        if not self.hooks:
            return
        try:
            await every(_INTERVAL, self.tick, self._wake, name=self.name, clock=self.clock)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End what is in progress here; it goes on where another leads."""
        tasks = [*self._tasks.values()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._found = {}, {}

    def wake(self) -> None:
        """There is a new evaluation."""
        self._wake.set()

    async def tick(self, now: datetime) -> None:
        evaluation, age = self.decision_cache.evaluation, self.decision_cache.age
        if evaluation is None or age is None or age > self.max_age:
            return
        subjects = await self._subjects(evaluation)
        for gone in self._tasks.keys() - {each.uid for each in subjects}:
            self._tasks.pop(gone).cancel()
        for each in sorted(subjects, key=lambda each: not each.decision.target.grant):
            key = each.scaled_object.metadata.key
            await is_written(self._attend(each, now), log, "hook not run; retried", scaled_object=key)

    # ------------------------------------------------------------------------------------------------------- looking

    async def _subjects(self, evaluation: Evaluation) -> list[_Subject]:
        found, turns = list[_Subject](), Turns()
        for key, entry in evaluation.entries.items():
            if (subject := self._subject(key, entry)) is not None:
                found.append(subject)
            await turns.give_way()
        return found

    def _subject(self, key: Key, entry: EvaluatedScaledObject) -> _Subject | None:
        """What its hook is run for; None where it has no hook, or is not there, or has no record yet."""
        decision = next((each for each in entry.triggers.values() if each.policy.before_suspend), None)
        scaled_object = self.cluster.scaled_objects.get(*key) if decision is not None else None
        if decision is None or scaled_object is None:
            return None
        if (record := self.cluster.record_of(scaled_object)) is None:
            return None
        prevails = prevailing(list(entry.triggers.values())) or decision
        return _Subject(
            scaled_object=scaled_object,
            record=record,
            decision=prevails if prevails.policy.before_suspend else decision,
            is_due=prevails.answer.reason == DecisionReason.BEFORE_SUSPEND,
            pod=min((each.name for each in entry.pods if each.is_member), default=""),
        )

    # -------------------------------------------------------------------------------------------------------- acting

    async def _attend(self, subject: _Subject, now: datetime) -> None:
        """Raises: KubeError; try again later."""
        run = subject.run
        if run is None or run.outcome is not None:
            self._found.pop(subject.uid, None)
        match next_step(subject.decision, run, is_due=subject.is_due):
            case HookStep.START if len(self._tasks) < _AT_ONCE:
                await self._start(subject, run, now)
            case HookStep.OUTDATE if run is not None:
                await self._outdate(subject, run, now)
            case HookStep.CONTINUE if run is not None:
                await self._continue(subject, run, now)

    async def _start(self, subject: _Subject, before: HookRun | None, now: datetime) -> None:
        saved_at = before.saved_at if before is not None else None
        hook = subject.decision.policy.before_suspend
        run = HookRun(hook=hook, started_at=now.replace(microsecond=0), saved_at=saved_at)
        await self._write(subject, run)
        self._call(subject, run)

    async def _outdate(self, subject: _Subject, run: HookRun, now: datetime) -> None:
        self._forget(subject)
        message = "work was seen, or may have been, since it began"
        await self._end(subject, run, HookProgress(outcome=HookOutcome.OUTDATED, message=message), now)

    async def _continue(self, subject: _Subject, run: HookRun, now: datetime) -> None:
        started_at, progress = self._found.get(subject.uid, (None, None))
        if progress is not None and started_at == run.started_at:
            await self._end(subject, run, progress, now)
            self._forget(subject)
        elif subject.uid not in self._tasks and run.hook in self.hooks:
            self._call(subject, run)

    def _forget(self, subject: _Subject) -> None:
        self._found.pop(subject.uid, None)
        if (task := self._tasks.pop(subject.uid, None)) is not None:
            task.cancel()

    async def _end(self, subject: _Subject, run: HookRun, progress: HookProgress, now: datetime) -> None:
        """Write down how it has ended. One that had ended before keeps its time, and no Event is recorded again."""
        is_news, outcome = run.outcome is None, progress.outcome or HookOutcome.FAILED
        saved_at = run.started_at if outcome is HookOutcome.SUCCEEDED else run.saved_at
        ended_at = run.ended_at or now.replace(microsecond=0)
        message = progress.message[:_LONGEST_MESSAGE]
        run = replace(run, ended_at=ended_at, outcome=outcome, message=message, saved_at=saved_at)
        await self._write(subject, run)
        if is_news:
            log.info("hook ended", scaled_object=subject.scaled_object.metadata.key, because=words(run))
            reason, is_warning = _EVENTS[outcome]
            self.announcer.record(subject.about, reason, words(run), warning=is_warning)
            self.ended(run.hook, str(outcome))

    async def _write(self, subject: _Subject, run: HookRun) -> None:
        """Raises: KubeError; 409 where the object is not the one that was decided upon."""
        record = subject.record.metadata
        body = {
            "metadata": {"uid": record.uid, "resourceVersion": record.resource_version},
            "status": {"beforeSuspend": hook_run_status(run)},
        }
        await self.api.patch(SCALABLE_WORKLOAD.path(*record.key, "status"), body)

    # --------------------------------------------------------------------------------------------------------- calls

    def _call(self, subject: _Subject, run: HookRun) -> None:
        config = self.hooks[run.hook]
        call, work = self._described(subject, run, config), self.make(config)
        self._tasks[subject.uid] = asyncio.create_task(self._finish(work, call), name=f"hook {call.id}")

    async def _finish(self, hook: Hook, call: HookCall) -> None:
        try:
            progress = await self._progress(hook, call)
        except KubeError as error:
            log.info("hook left to the next leader", hook=call.hook, error=str(error))
            return
        except Exception as error:
            log.exception("hook broke", hook=call.hook)
            progress = HookProgress(outcome=HookOutcome.FAILED, message=f"internal error: {type(error).__name__}")
        finally:
            if self._tasks.get(call.uid) is asyncio.current_task():
                del self._tasks[call.uid]
        self._found[call.uid] = call.started_at, progress
        self._wake.set()

    async def _progress(self, hook: Hook, call: HookCall) -> HookProgress:
        """How it has ended. Raises: KubeError where this replica leads no more."""
        last = ""
        while (now := self.clock.now()) < call.deadline:
            progress = await hook.attempt(call, now)
            if progress.outcome is not None:
                return progress
            last = progress.message
            wait = min(progress.again_after, call.deadline - self.clock.now())
            await self.clock.sleep(wait.total_seconds())
        took = format_duration(call.deadline - call.started_at)
        message = f"not done within {took}{f': {last}' if last else ''}"
        return HookProgress(outcome=HookOutcome.TIMED_OUT, message=message)

    def _described(self, subject: _Subject, run: HookRun, config: HookConfig) -> HookCall:
        metadata, workload = subject.scaled_object.metadata, subject.record.status.workload_name
        job, target = subject.record.spec.job_ref, subject.scaled_object.spec.scale_target_ref
        kind, name = (job.kind, job.name) if job is not None else ("Workload", workload)
        if subject.record.is_record:
            kind, name = target.kind, target.name
        return HookCall(
            id=run_id(metadata.uid, run),
            hook=run.hook,
            namespace=metadata.namespace,
            kind=kind,
            name=name,
            scaled_object=metadata.name,
            uid=metadata.uid,
            owner=subject.scaled_object.resource,
            workload=workload,
            pod=subject.pod,
            idle_since=subject.decision.idle_since,
            started_at=run.started_at,
            deadline=run.started_at + config.timeout,
            evidence=evidence(subject.decision.verdict)[:_EVIDENCE_GPUS],
        )
