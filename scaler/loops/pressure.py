"""Makes plans for gangs that wait, and sees them through. Leader only.

Laws:

* Read → plan (pure) → re-check → act → observe. Nothing is decided on copies that are behind what was written here.
* One plan per quota tree at a time, and one for nodes: two would each count on what the other frees.
* Where quota or verdicts cannot be seen nothing new is begun.
* What fails for one plan does not keep the others from being followed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import structlog

from scaler.core.grants import Seeks
from scaler.core.reclaim import NoPlan, Plan
from scaler.errors import KubeError
from scaler.loops.aims import Aim
from scaler.loops.board import Board
from scaler.loops.following import Following, StandBack
from scaler.loops.granted import grant_by
from scaler.loops.nodes_aim import Door, NodesAim
from scaler.loops.planning import Planning, Sight
from scaler.loops.proposals import Proposals
from scaler.loops.quota_aim import QuotaAim
from scaler.loops.quota_view import Blind
from scaler.loops.reallocation import Reallocation
from scaler.loops.reconciliation import Reconciler, is_conflict
from scaler.loops.settling import Settling
from scaler.loops.standing_plans import StandingPlan

log = structlog.get_logger(__name__)

_GANGS_AT_ONCE = 4
"""Gangs that are planned for in one tick and one arena (a quota tree, or all nodes): those whose turn comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What one tick found, for telemetry and the status pages."""

    at: datetime
    blind: str = ""
    """Why nothing could be planned; empty where it could."""
    standing: tuple[StandingPlan, ...] = ()
    made: tuple[Plan, ...] = ()
    refused: tuple[NoPlan, ...] = ()
    reclaimable_gpus: int = 0
    """Of all candidates."""


@dataclass
class Pressure:
    """The loop's parts. `observe` is told of every tick."""

    planning: Planning
    board: Board
    reconciler: Reconciler
    reallocation: Reallocation
    gate: Door | None = None
    """Where our AdmissionCheck holds gangs back that lack nodes."""
    stand_back: StandBack | None = None
    interval: timedelta = timedelta(seconds=5)
    observe: Callable[[Outlook], None] = lambda _: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    outlook: Outlook | None = field(default=None, init=False)
    """Of the latest tick."""
    aims: Mapping[Seeks, Aim] = field(init=False)
    nodes: NodesAim = field(init=False)
    proposals: Proposals = field(init=False)
    following: Following = field(init=False)
    settling: Settling = field(init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.nodes = NodesAim(planning=self.planning, gate=self.gate)
        self.aims = {Seeks.QUOTA: QuotaAim(planning=self.planning), Seeks.NODES: self.nodes}
        self.proposals = Proposals(self.planning.policy)
        self.following = Following(
            planning=self.planning,
            aims=self.aims,
            board=self.board,
            reconciler=self.reconciler,
            reallocation=self.reallocation,
            proposals=self.proposals,
            stand_back=self.stand_back,
        )
        self.settling = Settling(cluster=self.planning.cluster, writer=self.reallocation.writer)

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and as soon as something is heard that a plan waits for."""
        while True:
            self._wake.clear()
            try:
                await self.tick(self.clock())
            except KubeError as error:
                tell = log.debug if is_conflict(error) else log.warning
                tell("a plan could not be carried on", error=str(error))
            except Exception:
                log.exception("planning broke")
            try:
                async with asyncio.timeout(self.interval.total_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """Something has changed that a plan may wait for."""
        self._wake.set()

    async def tick(self, now: datetime) -> Outlook:
        """See the standing plans through, then make new ones."""
        if not await self.reallocation.writer.catch_up():
            return self._report(Outlook(at=now, blind="what was written last is not seen yet"))
        standing, sight = self.following.standing(), self.planning.look(now)
        due = self.settling.due()
        self.settling.forget_others(due)
        for scalable in due:
            await self._try(self.settling.settle(scalable, now), about=scalable.metadata.name)
        for plan in standing:
            await self._try(self.following.follow(plan, standing, sight, now), about=plan.grant.plan)
        found = await self._new_plans(sight, standing) if isinstance(sight, Sight) else []
        return self._report(
            Outlook(
                at=now,
                blind=sight.reason if isinstance(sight, Blind) else "",
                standing=tuple(standing),
                made=tuple(each for each in found if isinstance(each, Plan)),
                refused=tuple(each for each in found if isinstance(each, NoPlan)),
                reclaimable_gpus=sum(each.gpus for each in sight.idlers.candidates) if isinstance(sight, Sight) else 0,
            )
        )

    def _report(self, outlook: Outlook) -> Outlook:
        self.outlook = outlook
        self.observe(outlook)
        return outlook

    async def _try(self, work: Awaitable[None], *, about: str) -> None:
        """Do it, and go on with the next one where it fails: the next tick finds what is left to do."""
        try:
            await work
        except KubeError as error:
            tell = log.debug if is_conflict(error) else log.warning
            tell("a plan could not be carried on", about=about, error=str(error))
        except Exception:
            log.exception("a plan broke", about=about)

    # ------------------------------------------------------------------------------------------------------ new plans

    async def _new_plans(self, sight: Sight, standing: Sequence[StandingPlan]) -> list[Plan | NoPlan]:
        """For gangs that have quota and lack nodes, then for those that wait for quota: who has quota wastes it."""
        if not self.planning.policy.pressure:
            return []
        waiting = frozenset(gang.uid for aim in self.aims.values() for gang in aim.gangs(sight))
        self.reallocation.events.forget_others(waiting)
        self.proposals.forget_others(waiting | {plan.grant.gang_uid for plan in standing})
        answers: list[Plan | NoPlan] = []
        for seeks in (Seeks.NODES, Seeks.QUOTA):
            busy = {self.aims[seeks].arena(sight, each.grant.gang) for each in standing if each.grant.seeks is seeks}
            found, sight = await self._new_plans_for(seeks, busy, sight)
            answers += found
        return answers

    async def _new_plans_for(self, seeks: Seeks, busy: set[str], sight: Sight) -> tuple[list[Plan | NoPlan], Sight]:
        """In every arena without a plan, one for the first gang that has one; and what was found for those before."""
        aim = self.aims[seeks]
        answers: list[Plan | NoPlan] = []
        looked_at: Counter[str] = Counter()
        for gang in aim.gangs(sight):
            arena = aim.arena(sight, gang.key)
            is_its_turn = self.proposals.is_turn_of(gang.uid, seeks, sight.now)
            if arena in busy or looked_at[arena] >= _GANGS_AT_ONCE or not is_its_turn:
                continue
            looked_at[arena] += 1
            found = await self.proposals.propose(aim, sight, gang, sight.idlers.candidates)
            answers.append(found)
            if isinstance(found, Plan):
                busy.add(arena)
                await self._try(self._grant(found, sight.now), about=found.id)
                sight = _after(sight, found)
            else:
                self.reallocation.events.refused(gang, found)
        return answers, sight

    def considers(self, gang_uid: str, now: datetime) -> str:
        """For the gate, until it is known whether idle GPUs can serve a gang that lacks nodes; empty after that."""
        is_its_turn = self.proposals.is_turn_of(gang_uid, Seeks.NODES, now)
        return self.nodes.considers(gang_uid, now) if self.planning.policy.pressure and is_its_turn else ""

    async def _grant(self, plan: Plan, now: datetime) -> None:
        """Offer the plan to its victims. Where one of them has changed meanwhile, the next tick calls it off."""
        self.proposals.rest(plan.gang_uid, plan.seeks, now)
        await self.reallocation.grant(grant_by(plan, at=now, until=now + self.planning.policy.grant_for), plan)


def _after(sight: Sight, plan: Plan) -> Sight:
    """What there is to plan with once the plan is granted: who has a grant is no candidate, and budgets count it as
    suspended."""
    victims = {victim.workload for victim in plan.victims}
    idlers = replace(sight.idlers, candidates=tuple(c for c in sight.idlers.candidates if c.workload not in victims))
    spending = sight.spending.after([victim.member for victim in plan.victims], sight.now)
    return replace(sight, idlers=idlers, spending=spending)
