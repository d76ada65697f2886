"""Reclaim plans: which idle workloads to suspend so that a waiting gang gets in.

| module     | question                                                         |
|------------|------------------------------------------------------------------|
| `values`   | what is a plan made from, and what comes of it?                   |
| `forecast` | what will Kueue do if nobody more is suspended?                   |
| `count`    | could the gang fit, by the sums alone?                            |
| `needs`    | what has to be gained at least, and who adds how much to it?      |
| `trial`    | would it really get in, and stay, if exactly these were suspended? |
| `twins`    | who can stand for whom?                                           |
| `ground`   | the world in which `core/victims` searches                        |
| `refusals` | why is there no plan, with the numbers?                           |
| `holding`  | does a plan still hold, now that it is to be carried out?         |
| `planning` | the cheapest set, or why there is none                            |
| `seating`  | the same for a gang that has its quota, and lacks nodes           |
"""

from scaler.core.reclaim.holding import still_holds
from scaler.core.reclaim.planning import plan_id, plan_reclaim
from scaler.core.reclaim.seating import SeatRequest, plan_seats, still_seats
from scaler.core.reclaim.values import Alternative, Candidate, Caution, NoPlan, Plan, Request, Scene, Why

__all__ = [
    "Alternative",
    "Candidate",
    "Caution",
    "NoPlan",
    "Plan",
    "Request",
    "Scene",
    "SeatRequest",
    "Why",
    "plan_id",
    "plan_reclaim",
    "plan_seats",
    "still_holds",
    "still_seats",
]
