"""Our AdmissionCheck: a Workload with reserved quota starts once all its pods can. Leader only.

Laws:

* Read → plan (pure, `plan.py`) → execute: provisioning steps, then check states, each read again before it is written.
  Level-triggered: what was missed, or was being written when the process died, is in the next plan.
* All that matters is in the API. In memory are what was written a moment ago, and what the API server has refused.
* A new leader first lets its watches catch up with what its predecessor wrote last, and lists everything: it neither
  releases a Workload by an old state, nor writes to all of them that nothing is known yet.
* Where a provisioning step was not done the check state that was planned with it is not written.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from scaler.admission.check import CheckChange, CheckReason, CheckState
from scaler.admission.checks import AdmissionChecks
from scaler.admission.plan import AdmissionPlan, CheckedWorkload, CheckKey
from scaler.admission.planner import AdmissionPlanner
from scaler.admission.provisioning.controller import ProvisioningController
from scaler.admission.reclaim_answers import ReclaimAnswers
from scaler.admission.writer import CheckStateWriter
from scaler.clock import SYSTEM_CLOCK, Clock, every
from scaler.errors import KubeError
from scaler.placement.requests import Fits
from scaler.suspension.leader_api import PatchApi
from scaler.suspension.reconciler import EventSink

log = structlog.get_logger(__name__)

_AT_ONCE = 8
"""Workloads that are written to at the same time."""
_LISTING_FOR = timedelta(seconds=30)
"""How long a new leader waits until everything is listed before it writes that it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A Workload whose check became Ready, for telemetry."""

    key: str
    because: CheckReason
    waited: timedelta
    """Since its quota was reserved."""
    reused_gpus: int = 0
    """On nodes that were there before."""
    provisioned_gpus: int = 0
    """On nodes that have come since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionReport:
    """What one tick found and did."""

    plan: AdmissionPlan
    released: tuple[Released, ...] = ()

    @property
    def reasons(self) -> Counter[CheckReason]:
        """How many Workloads wait, by reason."""
        return self.plan.reasons


class AdmissionCheckController:
    """The loop. `observe` gets the report of every tick."""

    name = "AdmissionCheck"

    def __init__(
        self,
        api: PatchApi,
        planner: AdmissionPlanner,
        checks: AdmissionChecks,
        provisioning: ProvisioningController,
        announcer: EventSink,
        *,
        answers: ReclaimAnswers | None = None,
        interval: timedelta = timedelta(seconds=5),
        rest: timedelta = timedelta(seconds=0.3),
        settle: timedelta = timedelta(seconds=2),
        observe: Callable[[AdmissionReport], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`rest` is the least time between two ticks, `settle` how long a new leader lets its watches catch up.

        `answers` are reclaim's; None where nothing is reclaimed for Workloads that lack nodes.
        """
        self.planner = planner
        self._watch = planner.watch
        self._checks = checks
        self._provisioning = provisioning
        self._writer = CheckStateWriter(api, announcer, remember=planner.watch.remember)
        self._answers = answers
        self._interval = interval
        self._rest = rest
        self._settle = settle
        self._observe = observe
        self._clock = clock
        self._wake = asyncio.Event()
        self._patient_until: datetime | None = None
        planner.watch.subscribe(self.wake)
        if answers is not None:
            answers.subscribe(self.wake)

    # ------------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and as soon as something changes that a Workload may wait for."""
        self.planner.leader.answers = self._answers
        try:
            await self._begin()
            await every(self._interval, self.tick, self._wake, name=self.name, rest=self._rest, clock=self._clock)
        finally:
            self.planner.leader.clear()

    async def _begin(self) -> None:
        """What comes before the first plan. AdmissionChecks are Active from the first moment on."""
        self._patient_until = self._clock.now() + _LISTING_FOR
        try:
            await self._checks.keep(self._watch.checks(), self._clock.now())
        except KubeError as error:
            log.warning("AdmissionChecks not updated; retried", error=str(error))
        await self._clock.sleep(self._settle.total_seconds())

    def wake(self) -> None:
        """Something has changed that a Workload may wait for."""
        self._wake.set()

    async def tick(self, now: datetime) -> AdmissionReport:
        """One plan, executed. Raises: KubeError where this replica does not lead any more."""
        await self._checks.keep(self._watch.checks(), now)
        if self._watch.unlisted and self._patient_until is not None and now < self._patient_until:
            return self._report(AdmissionPlan(at=now, unknown=f"not listed yet: {self._watch.unlisted}"))
        self.planner.leader.doubt = await self._writer.clear_doubts()
        plan = await self.planner.plan(now)
        if self._answers is not None:
            self._answers.lacking({each.uid for each in plan.workloads if each.lacks_nodes}, now)
        failed = await self._provisioning.execute(plan, now)
        self.planner.leader.refusals = self._provisioning.refusals(now)
        return self._report(plan, await self._write(plan, failed, now))

    def _report(self, plan: AdmissionPlan, released: Collection[Released] = ()) -> AdmissionReport:
        report = AdmissionReport(plan=plan, released=tuple(released))
        self._observe(report)
        return report

    # ------------------------------------------------------------------------------------------------------- writing

    async def _write(self, plan: AdmissionPlan, failed: Collection[CheckKey], now: datetime) -> list[Released]:
        """Write the check states that have changed. Raises: KubeError with the reason NotLeading."""
        self._writer.forget_others(each.name for each in plan.workloads)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def write(each: CheckedWorkload, change: CheckChange) -> Released | None:
            async with limit:
                written = await self._writer.write(each, change, now)
            if not written and self._writer.may_write(each.name, now):
                self.wake()
            return self._released(each, change, now) if written and change.state is CheckState.READY else None

        if failed:
            self.wake()
        due = self._writer.due([each for each in plan.changes if each[0].name not in failed], now)
        outcomes = await asyncio.gather(*(write(each, change) for each, change in due), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Released)]

    def _released(self, each: CheckedWorkload, change: CheckChange, now: datetime) -> Released | None:
        """For telemetry; None of one that was running already."""
        reserved_at = each.reserved_at
        if change.because is CheckReason.ADMITTED_BEFORE or reserved_at is None:
            return None
        placements = each.placement.placements if isinstance(each.placement, Fits) else ()
        reused, provisioned = self._watch.gpus_on(each.workload, placements, since=reserved_at)
        return Released(
            key=each.key,
            because=change.because,
            waited=max(timedelta(0), now - reserved_at),
            reused_gpus=reused,
            provisioned_gpus=provisioned,
        )
