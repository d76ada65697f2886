"""`reclaim: OnPressure` in virtual time: which idle workloads are suspended for which waiting gang, and when?

Plans are the planner's (`plan_reclaim`), a granted plan follows the table of `scaler/reclaim/transitions.py`, and it is
revalidated before its victims are suspended, as in a cluster:

* One plan at a time. It is made for the first of the Workloads that wait for which there is one. The controller looks
  at four in a tick and at those after them in the next ticks, so within seconds at all of them.
* It becomes a grant. KEDA brings its victims to 0 after a poll and the cooldown (`scaled_to_zero_at`); when all of them
  are at 0 they are suspended together, and the gang is admitted.
* A victim that works again before that ends the plan, and nothing was lost. Gang and victim are left alone for a while.

Left out: the seconds that controllers take, hooks, warnings, budgets and nodes: plans count quota alone.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.quota.model import QuotaWorkload
from scaler.reclaim.costs import CostWeights, cost_of
from scaler.reclaim.search.problem import DEFAULT_LIMITS, SearchLimits
from scaler.reclaim.search.quota_problem import plan_reclaim, revalidate
from scaler.reclaim.search.values import Candidate, PlanRequest, ReclaimPlan
from scaler.reclaim.transitions import GangState, PlanAction, PlanEndReason, PlanTransition, Victim, next_transition
from scaler.targets.target_state import Grant
from scaler_analysis.simulation.gangs.progress import JobProgress
from scaler_analysis.simulation.gangs.virtual_queues import VirtualQueues, gpus_of, workload_key


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTimes:
    """The settings that decide when an idle workload is suspended. Defaults are those of the program and of KEDA."""

    idle_after: timedelta = timedelta(hours=1)
    idle_after_under_pressure: timedelta | None = None
    """The time before a plan may suspend it; None: as long as `idle_after`."""
    warm_up: timedelta = timedelta(minutes=10)
    polling_interval: timedelta = timedelta(seconds=30)
    cooldown_period: timedelta = timedelta(minutes=5)
    grant_for: timedelta = timedelta(minutes=10)
    replan_backoff: timedelta = timedelta(minutes=1)
    resume: timedelta = timedelta(minutes=2)
    """How long a workload that is admitted again takes until its GPUs work: images, weights, data."""
    weights: CostWeights = CostWeights()  # noqa: RUF009 - frozen
    limits: SearchLimits = DEFAULT_LIMITS

    @property
    def window_under_pressure(self) -> timedelta:
        return self.idle_after if self.idle_after_under_pressure is None else self.idle_after_under_pressure


def scaled_to_zero_at(created: datetime, inactive_from: datetime, times: GangTimes) -> datetime:
    """When KEDA brings a target to 0 whose scaler answers inactive from that instant on.

    KEDA polls at every interval from the creation of the ScaledObject on. The last answer that was active was given at
    the poll before; the target goes to 0 at the first poll that lies more than the cooldown after that one.

    Worked example: polls every 30 s from 0 s, inactive from 65 s, cooldown 300 s: last active at 60 s, at 0 at 390 s.
    """
    polls = (inactive_from - created) // times.polling_interval
    last_active = created + polls * times.polling_interval
    if last_active == inactive_from:
        last_active -= times.polling_interval
    waits = times.cooldown_period // times.polling_interval + 1
    return last_active + waits * times.polling_interval


def next_poll(created: datetime, at: datetime, times: GangTimes) -> datetime:
    """The first poll of KEDA not before that instant."""
    return at + (created - at) % times.polling_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedPlan:
    plan: ReclaimPlan
    grant: Grant
    zero_at: Mapping[str, datetime]
    """When each victim is at 0, by its name."""


@dataclass(kw_only=True)
class PressurePlans:
    """What the controller of plans does, instant by instant."""

    queues: VirtualQueues
    times: GangTimes
    made: int = 0
    ended: list[PlanEndReason] = field(default_factory=list)
    """Why plans ended by which no workload was suspended."""
    _active: GrantedPlan | None = None
    _not_before: dict[str, datetime] = field(default_factory=dict)
    """When a gang or victim may be part of a plan again, by its name."""
    _no_plan_of: object = None
    """What it was found on that no gang has a plan."""

    @property
    def is_active(self) -> bool:
        """Whether there is a plan whose victims have not been suspended yet."""
        return self._active is not None

    def victims(self, now: datetime, idle: Mapping[str, JobProgress]) -> tuple[str, tuple[str, ...]]:
        """The gang and those to suspend for it now, all together; none where nothing is to be suspended.

        `idle` are the jobs that are idle by their verdict.
        """
        if self._active is not None:
            committed = self._follow(self._active, now, idle)
            if committed is not None:
                return committed
        if self._active is None and idle:
            self._active = self._new_plan(now, idle)
        return "", ()

    def next_look(self, now: datetime) -> datetime | None:
        """When something changes though nothing else happens."""
        due = [at for at in self._not_before.values() if at > now]
        if self._active is not None:
            due += [at for at in (self._active.grant.expires_at, *self._active.zero_at.values()) if at > now]
        return min(due, default=None)

    # ------------------------------------------------------------------------------------------------------- new plans

    def _new_plan(self, now: datetime, idle: Mapping[str, JobProgress]) -> GrantedPlan | None:
        """The plan for the first gang that has one."""
        self._not_before = {name: at for name, at in self._not_before.items() if at > now}
        found_on = self.queues.version, tuple(idle), tuple(self._not_before)
        if found_on == self._no_plan_of:
            return None
        given = {name: each for name, each in idle.items() if name not in self._not_before}
        gangs = self._could_fit(self.queues.free + sum(each.job.gpus for each in given.values()))
        for gang, request in self._requests(gangs, given, now) if gangs else ():
            found = plan_reclaim(request, is_explained=False)
            if isinstance(found, ReclaimPlan):
                zero_at = {each.name: self._zero_at(idle[each.name], now) for each in found.victims}
                return self._granted(found, gang, now, zero_at)
        self._no_plan_of = found_on
        return None

    def _requests(
        self, gangs: Sequence[QuotaWorkload], given: Mapping[str, JobProgress], now: datetime
    ) -> Iterator[tuple[QuotaWorkload, PlanRequest]]:
        tree = self.queues.planning_tree(now, given)
        candidates = tuple(self._candidate(each, now) for each in given.values())
        for gang in gangs:
            yield gang, PlanRequest(gang=gang, planning_tree=tree, candidates=candidates, limits=self.times.limits)

    def _could_fit(self, gpus: int) -> list[QuotaWorkload]:
        """The Workloads that wait, in order, and need no more. Of any other the planner would say No, but later."""
        return [each for each in self.queues.waiting if gpus_of(each) <= gpus and each.name not in self._not_before]

    def _candidate(self, progress: JobProgress, now: datetime) -> Candidate:
        job = progress.job
        cost = cost_of(
            self.times.weights,
            gpus=job.gpus,
            worked=max(timedelta(0), progress.idle_since - progress.running_since),
            idle=now - progress.idle_since,
            priority=job.priority,
            times_reclaimed=progress.times_reclaimed,
        )
        return Candidate(
            workload=workload_key(job.name), name=job.name, gpus=job.gpus, cost=cost, cluster_queue=job.queue
        )

    def _zero_at(self, progress: JobProgress, now: datetime) -> datetime:
        return scaled_to_zero_at(progress.job.created, now, self.times)

    def _granted(
        self, plan: ReclaimPlan, gang: QuotaWorkload, now: datetime, zero_at: Mapping[str, datetime]
    ) -> GrantedPlan:
        self.made += 1
        self._not_before[gang.name] = now + self.times.replan_backoff
        until = now + self.times.grant_for
        names = tuple(zero_at)
        grant = Grant(plan=plan.id, gang=gang.name, gang_uid=gang.uid, victims=names, granted_at=now, expires_at=until)
        return GrantedPlan(plan=plan, grant=grant, zero_at=zero_at)

    # ---------------------------------------------------------------------------------------------------- granted plans

    def _follow(self, active: GrantedPlan, now: datetime, idle: Container[str]) -> tuple[str, tuple[str, ...]] | None:
        """What to suspend for the plan now; None where nothing is."""
        victims = [_observed(name, at, now, is_idle=name in idle) for name, at in active.zero_at.items()]
        step = next_transition(active.grant, self._state_of(active.grant.gang), victims, now=now)
        if step.action is PlanAction.COMMIT:
            return self._commit(active, now)
        if step.action is PlanAction.RELEASE:
            self._release(active, step, now)
        return None

    def _state_of(self, gang: str) -> GangState:
        workload = self.queues.workload(gang)
        if workload is None:
            return GangState.GONE
        return GangState.WAITING if workload.reservation is None else GangState.ADMITTED

    def _commit(self, active: GrantedPlan, now: datetime) -> tuple[str, tuple[str, ...]] | None:
        gang, victims = self.queues.workload(active.grant.gang), active.grant.victims
        tree = self.queues.planning_tree(now, victims)
        if gang is None or revalidate(PlanRequest(gang=gang, planning_tree=tree), active.plan.victims):
            self._release(active, PlanTransition(action=PlanAction.RELEASE, ending=PlanEndReason.NO_LONGER_HOLDS), now)
            return None
        self._active = None
        return gang.name, victims

    def _release(self, active: GrantedPlan, step: PlanTransition, now: datetime) -> None:
        is_late = step.ending is PlanEndReason.GRANT_EXPIRED
        rest = self.times.grant_for if is_late else self.times.replan_backoff
        self._not_before[active.grant.gang] = now + self.times.replan_backoff
        self._not_before |= dict.fromkeys(step.about, now + rest)
        self.ended.append(step.ending)
        self._active = None


def _observed(name: str, zero_at: datetime, now: datetime, *, is_idle: bool) -> Victim:
    return Victim(name=name, desired_replicas=0 if now >= zero_at else 1, is_idle=is_idle, is_deactivated=False)
