"""Histories, notices, and what tells and is told in tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from builders import NOON

from scaler.decision.candidate import HistoryLine
from scaler.kube.objects.idlegpu import Mark
from scaler.notifications.notice import Notice, NotifiedWorkload
from scaler.notifications.schedule import DeliveryLimits
from scaler.notifications.senders import Content
from scaler.webhook import SendError

TARGET = "chat"
LIMITS = DeliveryLimits(
    group_for=timedelta(minutes=1),
    per_owner_per_hour=3,
    retry_base=timedelta(seconds=30),
    retry_max=timedelta(minutes=8),
    give_up_after=timedelta(hours=6),
)


def line(state: str, *, after_s: float = 0) -> HistoryLine:
    return HistoryLine(at=NOON + timedelta(seconds=after_s), state=state, reason="GPUsIdle", message="quiet")


def lines(*entries: tuple[str, float]) -> tuple[HistoryLine, ...]:
    """(state, seconds after noon)"""
    return tuple(line(state, after_s=after) for state, after in entries)


def workload(
    *history: tuple[str, float], name: str = "train", owner: str = "team-a", marks: dict[str, Mark] | None = None
) -> NotifiedWorkload:
    return NotifiedWorkload(
        namespace="demo",
        name=name,
        uid=f"uid-of-{name}",
        kind="ScalableWorkload",
        target_name=name,
        owner=owner,
        targets=(TARGET,),
        lines=lines(*history),
        marks=marks or {},
    )


def notice(state: str = "Warned", *, after_s: float = 0, name: str = "train", owner: str = "team-a") -> Notice:
    one = workload((state, after_s), name=name, owner=owner)
    return Notice(workload=one, line=one.lines[-1], target=TARGET)


def told(*entries: tuple[str, float], delivered_s: float = 0) -> dict[str, Mark]:
    """The mark of what was told up to the last of these."""
    state, after = entries[-1]
    at, delivered = (NOON + timedelta(seconds=each) for each in (after, delivered_s))
    return {TARGET: Mark(at=at, state=state, delivered_at=delivered)}


@dataclass
class Receiver:
    """A sender that remembers, and fails when told to."""

    got: list[Content] = field(default_factory=list)
    failures: list[SendError] = field(default_factory=list)

    async def send(self, content: Content, now: datetime) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.got.append(content)

    @property
    def states(self) -> list[list[str]]:
        """Of the notices of each message."""
        return [states_of(each.json) for each in self.got]


def states_of(json: object) -> list[str]:
    assert isinstance(json, dict)
    notices: Sequence[dict[str, str]] = json["notices"]
    return [each["state"] for each in notices]
