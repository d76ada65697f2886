"""Has somebody else got a piece of what a plan has freed, so that its gang does not fit any more? Reads only.

Freed quota is anybody's until the gang holds it. Not everybody who got in meanwhile has done harm: the answer is yes
only if the gang would not get in as things stand, and would if the newcomers were not there.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from scaler.core.quota.model import Workload
from scaler.core.reclaim import NoPlan, Why
from scaler.loops.candidates import gpus_of
from scaler.loops.planning import Planning, Sight
from scaler.loops.standing_plans import StandingPlan

_SKEW = timedelta(seconds=2)
"""By which Kueue's clock may be behind ours, whole seconds being all that the API keeps of either."""


async def find_thief(
    plan: StandingPlan, sight: Sight, planning: Planning, *, known: Collection[str] | None = None
) -> str:
    """Key of the Workload that got a piece, of several the one that is to be named first; empty where nobody did.

    `known` are the uids of all that held quota when the plan was last put on trial; None where nobody remembers.
    """
    gang, newcomers = sight.snapshot.workload(plan.grant.gang), newcomers_of(plan, sight, known=known)
    if gang is None or not newcomers or await _fits(gang, sight, planning):
        return ""
    leaving = sight.idlers.leaving | {each.key for each in newcomers}
    without_them = replace(sight, idlers=replace(sight.idlers, leaving=leaving))
    if not await _fits(gang, without_them, planning):
        return ""
    return min(newcomers, key=lambda each: (not gpus_of(each, planning.cluster), each.held.at, each.key)).key


def newcomers_of(plan: StandingPlan, sight: Sight, *, known: Collection[str] | None = None) -> Sequence[Workload]:
    """Workloads of the gang's tree that came to hold quota since the plan was last put on trial.

    After a restart these are the ones since its victims were last deactivated, or a moment before.
    """
    gang, since = sight.snapshot.workload(plan.grant.gang), max(plan.deactivated_at, default=None)
    if since is None or gang is None:
        return ()
    holders = [each for each in holders_beside(gang, sight) if each.key != gang.key]
    if known is not None:
        return [each for each in holders if each.uid not in known]
    return [each for each in holders if each.held.at >= since - _SKEW]


def holders_beside(gang: Workload, sight: Sight) -> Sequence[Workload]:
    """All that hold quota in the gang's tree."""
    tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang))
    return [each for queue in tree.queues.values() for each in queue.workloads.values()] if tree else []


async def _fits(gang: Workload, sight: Sight, planning: Planning) -> bool:
    found = await planning.plan(sight, gang, ())
    return isinstance(found, NoPlan) and found.why is Why.FITS_ALREADY
