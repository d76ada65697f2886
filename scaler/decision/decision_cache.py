"""The latest evaluation of every ScaledObject. RPCs, controllers and views read it; only the Evaluator computes it.

Laws:

* An evaluation is published whole and replaces the one before.
* An answer of 0 is good until its successor is due and no longer: meanwhile work, or a wake-up, may have come unseen.
* A DecisionCache that was not renewed in time gives no answer: after a pause of this process (a stopped container, a
  blocked loop) the old answers describe a state that has passed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scaler.decision.decision import Active, Answer, Decision, Inactive
from scaler.idleness.durations import format_duration
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Overrides
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.keda import ScaleTargetRef

Key = tuple[str, str]
"""(namespace, name) of a ScaledObject."""

ListenerKey = tuple[str, str, Overrides]
"""A trigger of a ScaledObject that an open stream listens to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedScaledObject:
    target: ScaleTargetRef
    triggers: Mapping[Overrides, Decision]
    """By the policy fields that the trigger's metadata sets: that is all the caller of an RPC tells of a trigger."""
    problems: tuple[str, ...] = ()
    """Why triggers are left out: metadata that cannot be used."""
    ignored: tuple[str, ...] = ()
    """Keys of the triggers' metadata that mean nothing to this scaler, nor to KEDA."""
    pods: Sequence[GpuPod] = field(default=(), repr=False, compare=False)
    """The target's pods as they were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    at: datetime
    """The instant that was looked at: a multiple of the evaluation interval."""
    entries: Mapping[Key, EvaluatedScaledObject]

    by_target: Mapping[tuple[str, ScaleTargetRef], tuple[Decision, ...]]
    """The decisions of all triggers by (namespace, target)."""

    @classmethod
    def of(cls, entries: Mapping[Key, EvaluatedScaledObject], *, at: datetime) -> "Evaluation":
        found: dict[tuple[str, ScaleTargetRef], tuple[Decision, ...]] = {}
        for (namespace, _), entry in entries.items():
            key = namespace, entry.target
            found[key] = (*found.get(key, ()), *entry.triggers.values())
        return cls(at=at, entries=entries, by_target=found)

    def decisions_on(self, namespace: str, target: ScaleTargetRef) -> tuple[Decision, ...]:
        return self.by_target.get((namespace, target), ())


@dataclass(slots=True, eq=False)
class _Listener:
    answers: asyncio.Queue[Answer | None] = field(default_factory=asyncio.Queue)
    was_active: bool | None = None


def since_boot() -> float:
    """Seconds on a clock that cannot be set, and that goes on while the machine is suspended where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class DecisionCache:
    """`max_age` is how long an evaluation may be answered from after it was published, `max_zero_age` how long its
    answers of 0 may be; both are the same where only one is given."""

    def __init__(
        self,
        *,
        max_age: timedelta,
        max_zero_age: timedelta | None = None,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        self._max_age_s = max_age.total_seconds()
        self._max_zero_age_s = (max_zero_age or max_age).total_seconds()
        self._clock = clock
        self._evaluation: Evaluation | None = None
        self._published_s = float("-inf")
        self._cold_because = "the window is being rebuilt from the metrics source"
        self._listeners: dict[ListenerKey, set[_Listener]] = {}
        self._closed = False

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest evaluation, however old."""
        return self._evaluation

    @property
    def age(self) -> timedelta | None:
        """Time since the latest evaluation was published; None before the first."""
        return None if self._evaluation is None else timedelta(seconds=self._clock() - self._published_s)

    @property
    def is_ready(self) -> bool:
        return self._evaluation is not None

    def publish(self, evaluation: Evaluation) -> None:
        """Replace the evaluation, and tell the listeners whose answer changed to active."""
        self._evaluation, self._published_s = evaluation, self._clock()
        self._notify(self._listeners)

    def amend(self, entries: Mapping[Key, EvaluatedScaledObject]) -> None:
        """Replace single entries of the standing evaluation. It does not get younger by that."""
        if self._evaluation is not None:
            self._evaluation = Evaluation.of({**self._evaluation.entries, **entries}, at=self._evaluation.at)
            self._notify(key for key in list(self._listeners) if key[:2] in entries)

    def _notify(self, keys: Iterable[ListenerKey]) -> None:
        """Tell the listeners whose answer changed to active."""
        for key in keys:
            answer = self.answer(*key)
            for listener in self._listeners[key]:
                _notify(listener, answer)

    @property
    def why_cold(self) -> str:
        return f"the first evaluation is not complete: {self._cold_because}"

    def explain_cold_start(self, message: str) -> None:
        self._cold_because = message

    def answer(self, namespace: str, name: str, trigger: Overrides) -> Answer:
        stale = self._why_unusable()
        if stale or self._evaluation is None:
            return Unknown(reason=UnknownReason.COLD_START, message=stale)
        entry = self._evaluation.entries.get((namespace, name))
        if entry is None:
            return Unknown(
                reason=UnknownReason.TARGET_NOT_FOUND,
                message=f"ScaledObject {namespace}/{name} is not evaluated (yet): it was not there at the last "
                "evaluation, or its scalerAddress is not among keda.scalerAddresses of the settings",
            )
        found = entry.triggers.get(trigger)
        if found is None:
            message = "; ".join(entry.problems) or "the trigger's metadata changed since the last evaluation"
            return Unknown(reason=UnknownReason.INVALID_POLICY, message=message)
        return self._still_good(found.answer)

    def _still_good(self, answer: Answer) -> Answer:
        """KEDA acts on every 0 alike: one that says "suspended" suspends what was resumed since."""
        age_s = self._clock() - self._published_s
        if not isinstance(answer, Inactive) or age_s <= self._max_zero_age_s:
            return answer
        age = format_duration(timedelta(seconds=int(age_s)))
        overdue = f"{answer.reason} as of {age} ago; the next evaluation is overdue"
        return Unknown(reason=UnknownReason.SOURCE_UNAVAILABLE, message=overdue)

    def _why_unusable(self) -> str:
        if self._evaluation is None:
            return self.why_cold
        age_s = self._clock() - self._published_s
        if age_s > self._max_age_s:
            return f"the last evaluation is {format_duration(timedelta(seconds=int(age_s)))} old; the next one is due"
        return ""

    async def activations(self, namespace: str, name: str, trigger: Overrides) -> AsyncIterator[Answer]:
        listener = _Listener()
        key = (namespace, name, trigger)
        self._listeners.setdefault(key, set()).add(listener)
        try:
            if self._closed:
                return
            _notify(listener, self.answer(namespace, name, trigger))
            while (answer := await listener.answers.get()) is not None:
                yield answer
        finally:
            self._drop(key, listener)

    def _drop(self, key: ListenerKey, listener: _Listener) -> None:
        listeners = self._listeners.get(key, set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop(key, None)

    def close(self) -> None:
        """End every stream of activations."""
        self._closed = True
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.answers.put_nowait(None)


def _notify(listener: _Listener, answer: Answer) -> None:
    """Queue the first usable answer, then every change to active. An unusable answer changes nothing."""
    if isinstance(answer, Unknown):
        return
    is_first, is_active = listener.was_active is None, isinstance(answer, Active)
    if is_first or (is_active and not listener.was_active):
        listener.answers.put_nowait(answer)
    listener.was_active = is_active
