"""Whether it is decided if idle workloads are suspended for a Workload that lacks nodes.

Nodes are not requested before that, but for no longer than it takes. Admission says which Workloads lack nodes, reclaim
writes what it has decided; both hold the same object.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

DECIDED_WITHIN = timedelta(seconds=15)
"""Plans for all that lack nodes are made within one tick or two, five seconds apart; where verdicts are missing, or
another plan is being executed, none may come for long."""


class ReclaimAnswers:
    """Of the leader. Subscribers are called when one is decided."""

    def __init__(self, *, is_planning: bool = True) -> None:
        """Not `is_planning`: reclaim plans are off, and no decision is waited for."""
        self._is_planning = is_planning
        self._subscribers: list[Callable[[], None]] = []
        self._since: dict[str, datetime] = {}
        """By uid of a Workload, since when it lacks nodes."""
        self._decided: set[str] = set()

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._subscribers.append(callback)

    def lacking(self, uids: Collection[str], now: datetime) -> None:
        """These lack nodes now. What was decided for others does not hold for the next time that they do."""
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        self._decided &= self._since.keys()

    def decided(self, uid: str) -> None:
        """It is known whether idle workloads are suspended for that Workload."""
        if uid in self._since and uid not in self._decided:
            self._decided.add(uid)
            for callback in self._subscribers:
                callback()

    def is_pending(self, uid: str, now: datetime) -> bool:
        """Whether it is not decided yet."""
        return self._is_planning and uid not in self._decided and now - self._since.get(uid, now) < DECIDED_WITHIN
