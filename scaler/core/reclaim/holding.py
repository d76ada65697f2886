"""Does a plan still hold, now that it is to be carried out?"""

from collections.abc import Sequence
from dataclasses import replace

from scaler.core.reclaim.trial import Trials
from scaler.core.reclaim.values import Candidate, Request


def still_holds(request: Request, victims: Sequence[Candidate]) -> str:
    """Why suspending just these is not to be done any more; empty where it is.

    Budgets are not asked again: what was granted is spent already.
    """
    trials = Trials(replace(request, candidates=tuple(victims), refuse=lambda _: ""))
    if trials.nobody.why is None:
        return "the gang fits without anybody's being suspended"
    outcome = trials.of(frozenset(each.workload for each in victims))
    return f"{outcome.why}: {outcome.message}" if outcome.why is not None else ""
