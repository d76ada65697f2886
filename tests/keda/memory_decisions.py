"""A DecisionCache that holds what a test puts into it, and the ways in which one can misbehave."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from scaler.decision.decision import Active, Answer, Inactive
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import DecisionReason, UnknownReason
from scaler.idleness.verdict import Unknown

BUSY = Active(reason=DecisionReason.GPUS_BUSY, message="work seen within the last 30m")
IDLE = Inactive(reason=DecisionReason.GPUS_IDLE, message="every required GPU stayed below 1 % for 30m")
STALE = Unknown(reason=UnknownReason.STALE_SAMPLES, message="the newest sample is 5m old")
COLD = Unknown(reason=UnknownReason.COLD_START, message="the window is being rebuilt")

Key = tuple[str, str]


class MemoryDecisions:
    """A `DecisionCache` over a dict. What was not put into it has no answer."""

    def __init__(self, answers: dict[Key, Answer] | None = None, *, is_ready: bool = True) -> None:
        self._answers: dict[Key, Answer] = dict(answers or {})
        self._listeners: defaultdict[Key, set[asyncio.Queue[Answer | None]]] = defaultdict(set)
        self._ready = is_ready
        self.asked: list[tuple[str, str, Overrides]] = []

    @property
    def is_ready(self) -> bool:
        return self._ready

    @property
    def listeners(self) -> int:
        return sum(len(queues) for queues in self._listeners.values())

    def put(self, namespace: str, name: str, answer: Answer) -> None:
        was_active = isinstance(self._answers.get((namespace, name)), Active)
        self._answers[namespace, name] = answer
        if isinstance(answer, Active) and not was_active:
            for queue in self._listeners[namespace, name]:
                queue.put_nowait(answer)

    def close(self) -> None:
        for queues in self._listeners.values():
            for queue in queues:
                queue.put_nowait(None)

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        self.asked.append((namespace, name, trigger))
        return self._answers.get((namespace, name), COLD)

    async def activations(self, namespace: str, name: str, trigger: Overrides) -> AsyncIterator[Answer]:
        queue: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._listeners[namespace, name].add(queue)
        try:
            current = self.answer(namespace, name, trigger)
            if not isinstance(current, Unknown):
                yield current
            while (activation := await queue.get()) is not None:
                yield activation
        finally:
            self._listeners[namespace, name].discard(queue)


class BrokenDecisions(MemoryDecisions):
    """A DecisionCache with a programming error."""

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        raise RuntimeError("the cache is broken")


class EmptyHandedDecisions(MemoryDecisions):
    """A DecisionCache that breaks its contract: it returns nothing, which must not be read as "inactive"."""

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        return None  # type: ignore[return-value]
