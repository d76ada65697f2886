"""A DecisionCache with one answer per ScaledObject, whatever its trigger, and the ways in which one can misbehave."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from builders import NOON, decision, entry

from scaler.decision.decision import Active, Answer, Inactive
from scaler.decision.decision_cache import DecisionCache, Evaluation, Key
from scaler.decision.reasons import DecisionReason
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown

BUSY = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")
IDLE = Inactive(reason=DecisionReason.GPUS_IDLE, message="every required GPU stayed below 1 % for 30m")
COLD = Unknown(reason=UnknownReason.COLD_START, message="the window is being rebuilt")
STALE = Unknown(reason=UnknownReason.STALE_SAMPLES, message="the newest sample is 5m old")


class _AnyTrigger(dict[Overrides, Any]):
    def get(self, _trigger: object, _default: object = None) -> Any:
        return self[Overrides()]


class MemoryDecisions(DecisionCache):
    """What was not put into it has no answer."""

    def __init__(self, answers: dict[Key, Answer] | None = None, *, is_ready: bool = True) -> None:
        super().__init__(max_age=timedelta(days=1))
        self.asked: list[tuple[str, str, Overrides]] = []
        if is_ready:
            self.publish(Evaluation.of({}, at=NOON))
        for key, answer in (answers or {}).items():
            self.put(*key, answer)

    @property
    def listeners(self) -> int:
        return sum(map(len, self._listeners.values()))

    def put(self, namespace: str, name: str, answer: Answer) -> None:
        triggers = _AnyTrigger({Overrides(): decision(answer)})
        self.amend({(namespace, name): replace(entry(answer), triggers=triggers)})

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        self.asked.append((namespace, name, trigger))
        return super().answer(namespace, name, trigger)


class BrokenDecisions(MemoryDecisions):
    """A DecisionCache with a programming error."""

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        raise RuntimeError("the cache is broken")


class EmptyHandedDecisions(MemoryDecisions):
    """A DecisionCache that breaks its contract: it returns nothing, which must not be read as "inactive"."""

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        return None  # type: ignore[return-value]
