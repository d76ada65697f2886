"""The latest evaluation of every ScaledObject. RPCs, controllers and views read it; only the Evaluator computes it.

Laws:

* An evaluation is published whole and replaces the one before.
* An answer of 0 is good until its successor is due and no longer: meanwhile work, or a wake-up, may have come unseen.
* A DecisionCache that was not renewed in time gives no answer: after a pause of this process (a stopped container, a
  blocked loop) the old answers describe a state that has passed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scaler.decision.decision import Active, Answer, Decision, Inactive, Quiet
from scaler.idleness.durations import format_duration
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Overrides, Policy
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.keda import ScaleTargetRef

Key = tuple[str, str]
"""(namespace, name) of a ScaledObject."""

TargetKey = tuple[str, ScaleTargetRef]
"""(namespace, target)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedScaledObject:
    target: ScaleTargetRef
    triggers: Mapping[Overrides, Decision]
    """Decisions by the policy fields that the trigger's metadata sets: the caller of an RPC says no more of a
    trigger."""
    problems: tuple[str, ...] = ()
    """Why triggers are left out: metadata that cannot be used."""
    ignored: tuple[str, ...] = ()
    """Keys of the triggers' metadata that mean nothing to this scaler, nor to KEDA."""
    decided_on: ObjectMeta | None = field(default=None, repr=False, compare=False)
    """A ScalableWorkload that is scaled directly, as it was when this was decided."""
    pods: Sequence[GpuPod] = field(default=(), repr=False, compare=False)
    """The target's pods as they were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    at: datetime
    """The instant that was looked at: a multiple of the evaluation interval."""
    entries: Mapping[Key, EvaluatedScaledObject]

    keys_by_target: Mapping[TargetKey, tuple[Key, ...]]
    """The ScaledObjects of each target."""

    @classmethod
    def of(cls, entries: Mapping[Key, EvaluatedScaledObject], *, at: datetime) -> "Evaluation":
        found: dict[TargetKey, tuple[Key, ...]] = {}
        for key, entry in entries.items():
            target = key[0], entry.target
            found[target] = (*found.get(target, ()), key)
        return cls(at=at, entries=entries, keys_by_target=found)

    def decisions_on(self, namespace: str, target: ScaleTargetRef) -> tuple[Decision, ...]:
        """The decisions of all triggers of all ScaledObjects of the target."""
        keys = self.keys_by_target.get((namespace, target), ())
        return tuple(decision for key in keys for decision in self.entries[key].triggers.values())

    def renewed(
        self, entries: Mapping[Key, EvaluatedScaledObject], *, only: Collection[Key] | None = None, at: datetime
    ) -> "Evaluation":
        """The evaluation with these entries; of all others those stay that are among `only`."""
        kept, before = {**self.entries, **entries}, self.entries
        if only is not None and len(kept) > len(only):
            kept = {key: entry for key, entry in kept.items() if key in only}
        is_same = all(key in before and before[key].target == entry.target for key, entry in entries.items())
        return replace(self, entries=kept, at=at) if is_same and len(kept) == len(before) else self.of(kept, at=at)


@dataclass(slots=True, eq=False)
class _Listener:
    """One open stream."""

    trigger: Overrides
    answers: asyncio.Queue[Answer | None] = field(default_factory=asyncio.Queue)
    was_active: bool | None = None


def since_boot() -> float:
    """Seconds on a clock that cannot be set, and that goes on while the machine is suspended where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


_FEW = 1_000


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
        self._listeners: dict[Key, set[_Listener]] = {}
        self._unanswered: dict[_Listener, Key] = {}
        """Listeners that had no usable answer yet."""
        self._changes: list[set[Key]] = []
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

    def quiet_before(self, key: Key, target: ScaleTargetRef, policy: Policy) -> Quiet | None:
        """What the last decision on the target that judges its GPUs alike leaves to know of its quiet."""
        evaluation, judged_by = self._evaluation, (policy.active_above_ratio, policy.gpus)
        entry = evaluation.entries.get(key) if evaluation is not None else None
        if evaluation is None or entry is None or entry.target != target:
            return None
        alike = (x for x in entry.triggers.values() if (x.policy.active_above_ratio, x.policy.gpus) == judged_by)
        return next((each.quiet_until(evaluation.at) for each in alike), None)

    def publish(self, evaluation: Evaluation) -> None:
        """Replace the evaluation, and tell the listeners whose answer changed to active."""
        before = self._evaluation.entries if self._evaluation is not None else {}
        self._evaluation, self._published_s = evaluation, self._clock()
        self._tell({*before, *evaluation.entries})

    def renew(self, entries: Mapping[Key, EvaluatedScaledObject], *, only: Collection[Key], at: datetime) -> Evaluation:
        """Publish an evaluation with these entries; of all others those stay that are among `only`."""
        before = self._evaluation or Evaluation.of({}, at=at)
        self._evaluation, self._published_s = before.renewed(entries, only=only, at=at), self._clock()
        self._tell({*entries, *(before.entries.keys() - self._evaluation.entries.keys())})
        return self._evaluation

    def amend(self, entries: Mapping[Key, EvaluatedScaledObject]) -> None:
        """Replace single entries of the latest evaluation. It does not get younger by that."""
        if self._evaluation is not None:
            self._evaluation = self._evaluation.renewed(entries, at=self._evaluation.at)
            self._tell(entries)

    def changes(self) -> set[Key]:
        """A set of the keys of all entries, to which that of every one is added that changes. Its reader empties it.

        Where nobody does, as on a replica that does not lead, keys of entries that are gone are left out in time.
        """
        self._changes.append(found := {*(self._evaluation.entries if self._evaluation is not None else ())})
        return found

    def _tell(self, keys: Collection[Key]) -> None:
        """Tell the listeners whose answer changed to active, or that have none yet."""
        entries = self._evaluation.entries if self._evaluation is not None else {}
        for each in self._changes:
            each.update(keys)
            if len(each) > 2 * len(entries) + _FEW:
                each.intersection_update(entries)
        for key in [key for key in keys if key in self._listeners]:
            for listener in self._listeners[key]:
                self._notify(key, listener)
        for listener, key in list(self._unanswered.items()):
            self._notify(key, listener)

    def _notify(self, key: Key, listener: _Listener) -> None:
        """Queue the first usable answer, then every change to active. An unusable answer changes nothing."""
        answer = self.answer(*key, listener.trigger)
        if isinstance(answer, Unknown):
            return
        is_first, is_active = listener.was_active is None, isinstance(answer, Active)
        if is_first or (is_active and not listener.was_active):
            listener.answers.put_nowait(answer)
        listener.was_active = is_active
        self._unanswered.pop(listener, None)

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
        listener, key = _Listener(trigger), (namespace, name)
        self._listeners.setdefault(key, set()).add(listener)
        self._unanswered[listener] = key
        try:
            if self._closed:
                return
            self._notify(key, listener)
            while (answer := await listener.answers.get()) is not None:
                yield answer
        finally:
            self._drop(key, listener)

    def _drop(self, key: Key, listener: _Listener) -> None:
        listeners = self._listeners.get(key, set())
        listeners.discard(listener)
        self._unanswered.pop(listener, None)
        if not listeners:
            self._listeners.pop(key, None)

    def close(self) -> None:
        """End every stream of activations."""
        self._closed = True
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.answers.put_nowait(None)
