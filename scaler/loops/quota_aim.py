"""Plans for gangs that wait for quota. Freed quota is anybody's until the gang holds it."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from scaler.core.quota.model import Workload
from scaler.core.reclaim import Candidate, NoPlan, Plan, Why, still_holds
from scaler.loops.planning import Planning, Sight
from scaler.loops.standing_plans import StandingPlan
from scaler.loops.theft import find_thief, holders_beside


@dataclass(kw_only=True, eq=False)
class QuotaAim:
    """An `Aim`. One plan per quota tree: two would each count on what the other frees."""

    planning: Planning
    _held: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    """By plan, who held quota beside its gang when it was last put on trial."""

    def gangs(self, sight: Sight) -> Sequence[Workload]:
        """All that wait for GPUs, those with highest priority first."""
        return sight.gangs

    def arena(self, sight: Sight, gang: str) -> str:
        """The root of its tree."""
        workload = sight.snapshot.workload(gang)
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(workload)) if workload is not None else None
        return tree.root.name if tree is not None else ""

    def basis(self, sight: Sight, gang: Workload) -> object:
        """Everything in its tree."""
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang))
        return sight.snapshot.version(tree) if tree is not None else 0

    async def plan(self, sight: Sight, gang: Workload, candidates: Collection[Candidate]) -> Plan | NoPlan:
        """By which Kueue admits it."""
        return await self.planning.plan(sight, gang, candidates)

    def is_foreseeable(self, sight: Sight, gang: Workload) -> bool:
        """Whether quota can be read, and nodes where they matter."""
        found = self.planning.request(sight, gang, ())
        return not isinstance(found, NoPlan) or found.why is not Why.UNFORESEEABLE

    async def why_not(self, plan: StandingPlan, sight: Sight, gang: Workload, victims: Sequence[Candidate]) -> str:
        """What a trial says."""
        request = self.planning.request(sight, gang, ())
        if isinstance(request, NoPlan):
            return request.message
        self._held[plan.grant.plan] = frozenset(each.uid for each in holders_beside(gang, sight))
        return await asyncio.to_thread(still_holds, request, victims)

    async def thief(self, plan: StandingPlan, sight: Sight) -> str:
        """Whoever came since the plan was last put on trial, if the gang does not fit beside it."""
        return await find_thief(plan, sight, self.planning, known=self._held.get(plan.grant.plan))

    async def is_lost(self, _plan: StandingPlan, _sight: Sight) -> bool:
        """Whoever has taken it has quota, and a name."""
        return False

    def is_being_served(self, _plan: StandingPlan, _sight: Sight) -> bool:
        """Kueue gives quota at once: whoever has not got it in time does not get it."""
        return False

    def forget_others(self, plans: Collection[str]) -> None:
        """Who held quota beside gangs whose plans have ended is of no use any more."""
        self._held = {plan: held for plan, held in self._held.items() if plan in plans}
