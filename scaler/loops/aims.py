"""What can a plan free for a gang, and what differs by it? Everything else about plans is the same for all.

| aim   | the gang                                               | module       |
|-------|--------------------------------------------------------|--------------|
| Quota | waits for quota, and gets in when Kueue admits it      | `quota_aim`  |
| Nodes | has quota, and gets in when our check finds it a place | `nodes_aim`  |
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from scaler.core.quota.model import Workload
from scaler.core.reclaim import Candidate, NoPlan, Plan
from scaler.loops.planning import Sight
from scaler.loops.standing_plans import StandingPlan


class Aim(Protocol):
    """How plans with this aim are made, and looked at again before anything is done about them."""

    def gangs(self, sight: Sight, /) -> Sequence[Workload]:
        """Those that lack it, in the order in which plans are made for them."""

    def arena(self, sight: Sight, gang: str, /) -> str:
        """Where no second plan is made while one for the gang of that key stands: it would count on the same."""

    def basis(self, sight: Sight, gang: Workload, /) -> object:
        """What an answer for the gang rests on, beside the candidates: equal only while it is to be the same."""

    async def plan(self, sight: Sight, gang: Workload, candidates: Collection[Candidate], /) -> Plan | NoPlan:
        """The cheapest set of these that does, or why none does."""

    def is_foreseeable(self, sight: Sight, gang: Workload, /) -> bool:
        """Whether enough is seen to tell what becomes of it. Where it is not, what was begun stays as it is."""

    async def why_not(self, plan: StandingPlan, sight: Sight, gang: Workload, victims: Sequence[Candidate], /) -> str:
        """Why just these are not to be suspended for it, with everything as it is now; empty where they are."""

    async def thief(self, plan: StandingPlan, sight: Sight, /) -> str:
        """Key of a third Workload that got a piece of what the plan has freed; empty where nobody did."""

    async def is_lost(self, plan: StandingPlan, sight: Sight, /) -> bool:
        """Whether what was freed does not serve the gang any more, though nobody is to be named who has taken it."""

    def is_being_served(self, plan: StandingPlan, sight: Sight, /) -> bool:
        """Whether the gang has all that the plan can give it, and only what passes keeps it waiting."""

    def forget_others(self, plans: Collection[str], /) -> None:
        """Forget what was remembered of plans that stand no more; these do, by id."""
