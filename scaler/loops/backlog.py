"""Which gangs wait for GPUs, where, and why? Their reasons are those of the loops that look after them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from scaler.core.reasons import Because
from scaler.loops.gate import GateReport
from scaler.loops.pressure import Outlook
from scaler.loops.queue_names import QueueNames
from scaler.loops.waits import Waiting, Waits

PLANNED = "Planned"
"""A plan for it is being carried out."""


class Stage(StrEnum):
    """What a gang waits for."""

    QUOTA = "Quota"
    CHECKS = "AdmissionCheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A gang that waits."""

    cluster_queue: str
    stage: Stage
    reason: str
    gpus: int
    since: datetime


@dataclass(kw_only=True)
class Backlog:
    """Tell it what the loops have found; ask it for all that wait."""

    waits: Waits
    queues: QueueNames
    _planned: dict[str, str] = field(default_factory=dict, init=False)
    """Why there is no plan for a gang, by `namespace/name`, as of the last look at it: not every look is at all."""
    _gated: dict[str, str] = field(default_factory=dict, init=False)

    def planned(self, outlook: Outlook) -> None:
        """Of those that are under way only the latest look counts."""
        self._planned = {gang: why for gang, why in self._planned.items() if why != PLANNED}
        self._planned |= {each.gang: str(each.why) for each in outlook.refused}
        self._planned |= {plan.grant.gang: PLANNED for plan in outlook.standing}
        self._planned |= {plan.gang: PLANNED for plan in outlook.made}

    def gated(self, report: GateReport) -> None:
        self._gated = {each.key: str(each.answer.because) for each in report.waiting}

    def forget(self) -> None:
        """Somebody else looks after gangs now."""
        self._planned, self._gated = {}, {}

    def take(self) -> Iterator[Pending]:
        """All that wait now."""
        waiting = {"/".join(each.workload.metadata.key): each for each in self.waits.pending()}
        self._planned = {gang: why for gang, why in self._planned.items() if gang in waiting}
        for key, each in waiting.items():
            yield Pending(
                cluster_queue=self.queues.of(each.workload),
                stage=Stage.CHECKS if each.has_quota else Stage.QUOTA,
                reason=self._reason(key, each),
                gpus=each.gpus,
                since=each.since,
            )

    def _reason(self, key: str, waiting: Waiting) -> str:
        if waiting.has_quota:
            return self._gated.get(key, Because.WAITING_FOR_CHECKS)
        return self._planned.get(key, Because.WAITING_FOR_QUOTA)
