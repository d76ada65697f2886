"""Who got the GPUs that suspended workloads gave up?

Of what a plan took the ledger says who got it. Of what was suspended by its own policy nobody does, and then it goes by
order: the next gang that is admitted in the same cohort has it, from whoever gave first.

Laws:

* No more is given than was given up, and a gang is given no more than it was admitted with.
* Who comes back takes what is left of its own, and ends what others had of it: two cannot have the same GPU.
* What a plan took is for its gang alone.

Worked example: a gives 4 GPUs at 0 s, b gives 2 at 10 s. A gang of 5 that is admitted at 30 s has 4 of a, after 30 s,
and 1 of b, after 20 s. One GPU of b's is left for the next.

The tempting alternative, to count all GPUs that are admitted after a suspension, credits us with what was free anyway.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple


class Through(StrEnum):
    """How GPUs came to a gang."""

    PLAN = "Plan"
    QUEUE = "Queue"


class Flow(NamedTuple):
    """From whom to whom, as it is shown."""

    from_namespace: str
    namespace: str
    cluster_queue: str
    through: Through


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A gang that was admitted."""

    key: str
    """`namespace/name` of its Workload."""
    namespace: str
    cluster_queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gift:
    """GPUs of one workload that one gang got."""

    giver: str
    receiver: str
    flow: Flow
    gpus: int
    after: timedelta
    """Since the giver was suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Supply:
    """What is left of what one workload gave up."""

    giver: str
    namespace: str
    cohort: str
    gpus: int
    at: datetime


class Handovers:
    """The supplies that are left, and the gifts that are in use."""

    def __init__(self) -> None:
        self._supplies: dict[str, _Supply] = {}
        self._gifts: list[Gift] = []

    def give_up(self, giver: str, *, namespace: str, cohort: str, gpus: int, at: datetime) -> None:
        """The workload was suspended, and not for a plan. What others have of it already is given."""
        left = gpus - sum(gift.gpus for gift in self._gifts if gift.giver == giver)
        self._supplies.pop(giver, None)
        if left > 0:
            self._supplies[giver] = _Supply(giver=giver, namespace=namespace, cohort=cohort, gpus=left, at=at)

    def take_back(self, giver: str) -> None:
        """The workload runs again, or will never."""
        self._supplies.pop(giver, None)
        self._gifts = [gift for gift in self._gifts if gift.giver != giver]

    def admit(self, receiver: Receiver, *, cohort: str, gpus: int, at: datetime) -> list[Gift]:
        """What the gang has of what was given up in its cohort, from whoever gave first."""
        found: list[Gift] = []
        for supply in sorted(self._supplies.values(), key=lambda each: (each.at, each.giver)):
            if supply.cohort != cohort or supply.giver == receiver.key:
                continue
            taken = min(supply.gpus, gpus)
            if taken <= 0:
                break
            gpus -= taken
            found.append(self._given(supply, receiver, taken, at))
        self._gifts += found
        return found

    def _given(self, supply: _Supply, receiver: Receiver, gpus: int, at: datetime) -> Gift:
        left = supply.gpus - gpus
        if left:
            self._supplies[supply.giver] = replace(supply, gpus=left)
        else:
            del self._supplies[supply.giver]
        flow = Flow(supply.namespace, receiver.namespace, receiver.cluster_queue, Through.QUEUE)
        return Gift(giver=supply.giver, receiver=receiver.key, flow=flow, gpus=gpus, after=at - supply.at)

    def hand(self, gift: Gift) -> None:
        """A plan has given them."""
        self._supplies.pop(gift.giver, None)
        self._gifts = [each for each in self._gifts if each.giver != gift.giver]
        self._gifts.append(gift)

    def end(self, receiver: str) -> None:
        """The gang has no GPUs any more."""
        self._gifts = [gift for gift in self._gifts if gift.receiver != receiver]

    def in_use(self) -> Mapping[Flow, int]:
        """GPUs that gangs have now of workloads that are suspended."""
        found: Counter[Flow] = Counter()
        for gift in self._gifts:
            found[gift.flow] += gift.gpus
        return found
