"""Does a plan still hold, now that it is to be carried out?"""

from collections.abc import Sequence

from scaler.core.reclaim.refusals import hindrance
from scaler.core.reclaim.trial import Trials
from scaler.core.reclaim.values import Candidate, Request


def still_holds(request: Request, victims: Sequence[Candidate]) -> str:
    """Why suspending just these is not to be done any more; empty where it is.

    Budgets are not asked again: what was granted is spent already. A victim without which it would do by now is reason
    enough: the next plan does without it.
    """
    in_the_way = hindrance(request)
    if in_the_way is not None:
        return f"{in_the_way.why}: {in_the_way.message}"
    trials = Trials(request)
    if trials.nobody.why is None:
        return "the gang fits without anybody's being suspended"
    holding = {key for queue in request.scene.tree.queues.values() for key in queue.workloads} - request.leaving
    names = {each.workload: each.name for each in victims if each.workload in holding}
    keys = frozenset(names)
    outcome = trials.of(keys)
    if outcome.why is not None:
        return f"{outcome.why}: {outcome.message}"
    needless = [names[key] for key in sorted(keys) if trials.of(keys - {key}).why is None]
    return f"the gang fits without {needless[0]}, too" if needless else ""
