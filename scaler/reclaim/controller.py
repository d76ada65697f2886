"""Makes plans for gangs that wait, and sees them through. Leader only.

Laws:

* Read → plan (pure) → re-check → act → observe. Nothing is decided on copies that are behind what was written here.
* One plan per quota tree at a time, and one for nodes: two would each count on what the other frees.
* Where quota or verdicts cannot be seen nothing new is begun.
* What fails for one plan does not keep the others from being carried out.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

import structlog

from scaler.admission.planner import AdmissionPlanner, ReclaimAnswers
from scaler.clock import Turns, every
from scaler.errors import KubeError
from scaler.kube.writes import log_refusal
from scaler.quota.watch import NotSynced
from scaler.reclaim.active_plans import ActivePlan
from scaler.reclaim.executor import PlanExecutor
from scaler.reclaim.grant_writer import GrantCleanup
from scaler.reclaim.planner import Planner, PlanningSnapshot
from scaler.reclaim.search.values import NoPlan, ReclaimPlan
from scaler.reclaim.targets import NodeShortage, PlanTarget, QuotaShortage
from scaler.reclaim.writer import PlanWriter, grant_by
from scaler.suspension.reconciler import SuspensionReconciler
from scaler.targets.target_state import Seeks

log = structlog.get_logger(__name__)
T = TypeVar("T")

_INTERVAL = timedelta(seconds=5)
_GANGS_AT_ONCE = 4
"""Gangs that are planned for in one tick and one arena (a quota tree, or all nodes): those whose turn comes first.

One that was refused on the same state is not computed again and does not count, so that those after it have their turn.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimReport:
    at: datetime
    blind: str = ""
    """Why nothing could be planned; empty where it could."""
    active: tuple[ActivePlan, ...] = ()
    made: tuple[ReclaimPlan, ...] = ()
    refused: tuple[NoPlan, ...] = ()
    reclaimable_gpus: int = 0
    """GPUs of all candidates."""


@dataclass
class ReclaimController:
    """The controller and its parts. `observe` is called with every tick's report."""

    name: ClassVar[str] = "reclaim"
    planning: Planner
    reconciler: SuspensionReconciler
    writer: PlanWriter
    admission: AdmissionPlanner | None = None
    answers: ReclaimAnswers | None = None
    observe: Callable[[ReclaimReport], None] = lambda _: None
    targets: Mapping[Seeks, PlanTarget] = field(init=False)
    """The targets in the order in which plans are made."""
    nodes: NodeShortage = field(init=False)
    executor: PlanExecutor = field(init=False)
    grant_cleanup: GrantCleanup = field(init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.nodes = NodeShortage(planning=self.planning, admission=self.admission, answers=self.answers)
        self.targets = {Seeks.NODES: self.nodes, Seeks.QUOTA: QuotaShortage(planning=self.planning)}
        self.executor = PlanExecutor(
            planning=self.planning, targets=self.targets, reconciler=self.reconciler, writer=self.writer
        )
        self.grant_cleanup = GrantCleanup(cluster=self.planning.cluster, writer=self.writer.grants)

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and as soon as something is heard that a plan waits for."""
        await every(_INTERVAL, self.tick, self._wake, name=self.name)

    def wake(self) -> None:
        self._wake.set()

    async def tick(self, now: datetime) -> ReclaimReport:
        report = await self._tick(now)
        self.observe(report)
        return report

    async def _tick(self, now: datetime) -> ReclaimReport:
        state = await self.planning.look(now)
        active = self.executor.active()
        for scalable in self.grant_cleanup.due():
            await self._try(self.grant_cleanup.settle(scalable, now), about=scalable.metadata.name)
        for plan in active:
            made = await self._try(self.executor.carry_out(plan, active, state, now), about=plan.grant.plan)
            if made is not None and not isinstance(state, NotSynced):
                state = _after(state, made)
        if isinstance(state, NotSynced):
            return ReclaimReport(at=now, blind=state.reason, active=tuple(active))
        found = await self._new_plans(state, active)
        return ReclaimReport(
            at=now,
            active=tuple(active),
            made=tuple(each for each in found if isinstance(each, ReclaimPlan)),
            refused=tuple(each for each in found if isinstance(each, NoPlan)),
            reclaimable_gpus=sum(each.gpus for each in state.candidates),
        )

    async def _try(self, work: Awaitable[T], *, about: str) -> T | None:
        """Do it, and go on with the next one where it fails: the next tick finds what is left to do."""
        try:
            return await work
        except KubeError as error:
            log_refusal(log, "plan not executed; retried", error, about=about)
        except Exception:
            log.exception("plan execution failed", about=about)
        return None

    # ------------------------------------------------------------------------------------------------------ new plans

    async def _new_plans(self, state: PlanningSnapshot, active: Sequence[ActivePlan]) -> list[ReclaimPlan | NoPlan]:
        """Plans for gangs with quota that lack nodes first, as their quota is unused; then for those without quota."""
        if not self.planning.policy.pressure:
            return []
        known = self.executor.backoff.gangs | self.writer.events.gangs
        waiting = frozenset(uid for target in self.targets.values() for uid in target.waiting(state, known))
        self.writer.events.forget_others(waiting)
        self.executor.backoff.forget_others(waiting | {plan.grant.gang_uid for plan in active})
        answers: list[ReclaimPlan | NoPlan] = []
        for seeks, target in self.targets.items():
            busy = {target.plan_scope(state, each.grant.gang) for each in active if each.grant.seeks is seeks}
            found, state = await self._new_plans_for(seeks, busy, state)
            answers += found
        return answers

    async def _new_plans_for(
        self, seeks: Seeks, busy: set[str], state: PlanningSnapshot
    ) -> tuple[list[ReclaimPlan | NoPlan], PlanningSnapshot]:
        """One plan in every arena without one, for the first gang that has one; and what was found for those before."""
        target = self.targets[seeks]
        answers: list[ReclaimPlan | NoPlan] = []
        looked_at: Counter[str] = Counter()
        closed, turns = set(busy), Turns()
        for gang in target.gangs(state, closed):
            plan_scope = target.plan_scope(state, gang.key)
            if not self.executor.backoff.is_due((gang.uid, seeks), state.now):
                target.skip(gang)
                continue
            if plan_scope in closed:
                continue
            if (refused := state.why_not(gang)) is not None:
                answers.append(refused)
                self.writer.events.refused(gang, refused)
                await turns.give_way()
                continue
            if (known := self.executor.backoff.refusal(target, state, gang, state.candidates)) is not None:
                answers.append(known)
                self.writer.events.refused(gang, known)
                await turns.give_way()
                continue
            looked_at[plan_scope] += 1
            if looked_at[plan_scope] >= _GANGS_AT_ONCE:
                closed.add(plan_scope)
            found = self.executor.permitted(await self.executor.backoff.propose(target, state, gang, state.candidates))
            answers.append(found)
            if isinstance(found, ReclaimPlan):
                closed.add(plan_scope)
                self.executor.backoff.back_off(gang.uid, seeks, state.now)
                until = state.now + found.hooks_take + self.planning.policy.grant_for
                grant = grant_by(found, at=state.now, until=until)
                await self._try(self.writer.grant(grant, found), about=found.id)
                state = _after(state, found)
            else:
                self.writer.events.refused(gang, found)
        return answers, state


def _after(state: PlanningSnapshot, plan: ReclaimPlan) -> PlanningSnapshot:
    """The snapshot once the plan is granted: its victims are no candidates any more, and budgets count them as
    suspended."""
    victims = {victim.workload for victim in plan.victims}
    return replace(
        state,
        candidates=tuple(each for each in state.candidates if each.workload not in victims),
        spending=state.spending.after([victim.member for victim in plan.victims], state.now),
    )
