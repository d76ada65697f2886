"""Has somebody else got a piece of what a plan has freed, so that its gang does not fit any more? Reads only.

Freed quota is anybody's until the gang holds it. Not everybody who got in meanwhile has done harm: the answer is yes
only if the gang would not get in as things stand, and would if the newcomers were not there.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from scaler.core.quota.model import Workload
from scaler.core.reclaim import NoPlan, Why
from scaler.loops.candidates import gpus_of
from scaler.loops.planning import Planning, Sight
from scaler.loops.standing_plans import StandingPlan

_SKEW = timedelta(seconds=2)
"""By which Kueue's clock may be behind ours, whole seconds being all that the API keeps of either."""


async def find_thief(plan: StandingPlan, sight: Sight, planning: Planning) -> str:
    """Key of the Workload that got a piece, of several the one that is to be named first; empty where nobody did."""
    gang, newcomers = sight.snapshot.workload(plan.grant.gang), newcomers_of(plan, sight)
    if gang is None or not newcomers or await _fits(gang, sight, planning):
        return ""
    leaving = sight.idlers.leaving | {each.key for each in newcomers}
    without_them = replace(sight, idlers=replace(sight.idlers, leaving=leaving))
    if not await _fits(gang, without_them, planning):
        return ""
    return min(newcomers, key=lambda each: (not gpus_of(each, planning.cluster), each.held.at, each.key)).key


def newcomers_of(plan: StandingPlan, sight: Sight) -> Sequence[Workload]:
    """Workloads of the gang's tree that came to hold quota since the plan's first victim was deactivated."""
    gang, since = sight.snapshot.workload(plan.grant.gang), min(plan.deactivated_at, default=None)
    tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang)) if gang is not None else None
    if since is None or tree is None:
        return ()
    holders = [each for queue in tree.queues.values() for each in queue.workloads.values()]
    return [each for each in holders if each.held.at >= since - _SKEW and each.key != plan.grant.gang]


async def _fits(gang: Workload, sight: Sight, planning: Planning) -> bool:
    found = await planning.plan(sight, gang, ())
    return isinstance(found, NoPlan) and found.why is Why.FITS_ALREADY
