"""Does a gang fit the nodes' free GPUs, whole? And if not: what is short, and would it fit without some workloads?

`capacity_of` takes nodes and the pods on them, `place` and `fits` ask, `Rooms` counts along while a search over victims
asks for thousands of sets. Everything a caller needs is named here; how it is done is in the modules:

| module      | question                                                                    |
|-------------|-----------------------------------------------------------------------------|
| `index`     | which nodes may a pod run on?                                               |
| `demand`    | what does a PodSet need, with the flavors that it is assigned?              |
| `occupancy` | who holds what on which node, and what goes when workloads go?              |
| `capacity`  | what is free on every node, now or were some workloads gone or pods placed? |
| `search`    | does a gang fit, and where?                                                 |
| `packing`   | the same for PodSets that compete for nodes, in plain numbers               |
| `shortage`  | why does it not fit?                                                        |
| `rooms`     | could it fit, after each step of a search over victims?                     |
"""

from scaler.core.placement.capacity import Capacity, Freed, Hole, Seat, capacity_of
from scaler.core.placement.demand import Demand, bearing, beside, demand_of, on_flavors
from scaler.core.placement.index import Exclusions, Node, NodeIndex, is_device
from scaler.core.placement.occupancy import Occupant
from scaler.core.placement.rooms import Rooms
from scaler.core.placement.search import STEPS, Placement, fits, place, upper_bound
from scaler.core.placement.shortage import Misfit, Shortage, Unproven

__all__ = [
    "STEPS",
    "Capacity",
    "Demand",
    "Exclusions",
    "Freed",
    "Hole",
    "Misfit",
    "Node",
    "NodeIndex",
    "Occupant",
    "Placement",
    "Rooms",
    "Seat",
    "Shortage",
    "Unproven",
    "bearing",
    "beside",
    "capacity_of",
    "demand_of",
    "fits",
    "is_device",
    "on_flavors",
    "place",
    "upper_bound",
]
