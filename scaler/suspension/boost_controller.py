"""Keeps the priority boosts of idle workloads whose policy is `reclaim: PriorityBoost`, so that Kueue preempts them
before others. Leader only.

Laws:

* Read → desire (pure, `priority_boost`) → act → observe. A tick reads every ScalableWorkload and every Workload
  with a boost of this scaler; whatever was missed is seen at the next one. A boost whose ScaledObject or
  ScalableWorkload is gone is found by its annotation and removed.
* Where Kueue does not read boosts none is written, and those that are there are removed: if the feature
  gate is switched on later, Kueue must not find boosts on workloads that have long been busy. Where that is unknown,
  nothing new is written.
* The annotation that says this scaler owns the boost is written in the same patch, with its value. A boost of another
  value, or without that annotation, is another client's.
* A remote copy of MultiKueue is never boosted. And no workload is while such a copy waits in its quota tree for which
  this cluster is not nominated: Kueue would preempt for a gang that may start on another cluster.
* Every patch names the uid and the resourceVersion that was decided upon: what another client writes meanwhile wins.
* Nothing is announced that did not happen, and a problem that persists is one Event.

What Kueue needs, apart from its feature gate: a ClusterQueue that may preempt lower priorities (`withinClusterQueue` or
`reclaimWithinCohort`), and a boost large enough to get below the priority of the Workloads that wait.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import msgspec
import structlog

from scaler.clock import every
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache, Evaluation, Key
from scaler.decision.describe import timestamp
from scaler.decision.reasons import SuspensionEventReason
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.api_requests import NO_ANSWER
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.object_cache import Index
from scaler.kube.objects import kueue_workloads as kube
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import is_scalable_workload, scalable_workload_ref
from scaler.kube.objects.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kube.writes import PatchApi, log_refusal
from scaler.quota.from_objects.workloads import BOOST_ANNOTATION
from scaler.suspension.boost_gate import FeatureGate, FeatureGateProbe, FeatureGateStatus
from scaler.suspension.priority_boost import (
    Boost,
    BoostIntent,
    BoostOwner,
    BoostStep,
    DesiredBoost,
    PriorityBoost,
    desire,
    is_unknown,
    step,
    uses_priority_boost,
)
from scaler.suspension.reconciler import record_on_both
from scaler.targets.cluster_state import ClusterState
from scaler.targets.target_state import ObservedWorkload
from scaler.targets.workloads import observe

log = structlog.get_logger(__name__)

_INTERVAL = timedelta(seconds=15)

BOOST_OWNER_ANNOTATION = "idlegpu.io/priority-boost"
"""An annotation of a Workload: that this scaler owns the boost, its value, and when and why it was written."""
BOOSTED = True
"""Key of the Workloads with a priority boost of this scaler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostCandidate:
    workload: ObservedWorkload
    boost: Boost
    desire: DesiredBoost
    scalable: ScalableWorkload | None = None
    """The ScalableWorkload; None where it is gone."""
    idle_since: datetime | None = None
    hint: str = ""
    """What else has to happen before Kueue acts on the boost."""


@dataclass(eq=False)
class PriorityBoostController:
    name: ClassVar[str] = "priority boost"
    api: PatchApi
    cluster: ClusterState
    decision_cache: DecisionCache
    announcer: EventSink
    policy: PriorityBoost
    _: KW_ONLY
    max_age: timedelta
    """How old the verdicts may be for which a Workload is boosted."""
    spares: Callable[[], Mapping[str, str]] = dict
    """Why idle workloads are not boosted, as far as other Workloads decide on that, by ClusterQueue; under the empty
    name of all of them."""
    observe: Callable[[int], None] = lambda _: None
    """Takes the number of Workloads that had a boost of this scaler when a tick began."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _gate: FeatureGateProbe = field(init=False)
    _warnings: "_Warnings" = field(init=False)
    _unknown_since: dict[str, datetime] = field(default_factory=dict, init=False)
    """When the state of each Workload became unknown, by uid."""

    def __post_init__(self) -> None:
        self._gate, self._warnings = FeatureGateProbe(self.api, self.policy), _Warnings(self.announcer)

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and after every evaluation."""
        self._unknown_since = {}
        await every(_INTERVAL, self.tick, self._wake, name=self.name)

    def wake(self) -> None:
        """There is a new evaluation."""
        self._wake.set()

    async def tick(self, now: datetime) -> tuple[BoostStep, ...]:
        """The steps that were taken. Raises: KubeError where the API does not answer; try again later."""
        evaluation = self.decision_cache.evaluation
        if evaluation is None:
            return ()
        self._warnings.begin()
        self._tell_unboostable(evaluation)
        cases = self._cases(evaluation, now)
        idle = next((case.workload for case in cases if case.desire.intent is BoostIntent.SET), None)
        gate = await self._gate.find(idle, now)
        steps = [taken for case in cases if (taken := await self._act(self._judged(case, gate), now))]
        self.observe(sum(case.boost.holder is BoostOwner.US for case in cases))
        return tuple(steps)

    # -------------------------------------------------------------------------------------------------------- looking

    def _cases(self, evaluation: Evaluation, now: datetime) -> list[BoostCandidate]:
        """Every Workload that is left to Kueue, and every other one with this scaler's boost annotation."""
        doubt, spared = self._doubt(), self.spares()
        claimed: dict[Key, BoostCandidate] = {}
        for scalable, decisions in self._left_to_kueue(evaluation):
            if case := self._case(scalable, decisions, doubt, now):
                claimed[case.workload.namespace, case.workload.name] = _spared(case, spared)
        left_behind = (
            BoostCandidate(workload=observe(each, self.cluster.gpus), boost=boost_of(each), desire=_LEFT_BEHIND)
            for each in self.cluster.workloads.by_index("boost", BOOSTED)
            if each.metadata.key not in claimed
        )
        cases = [*claimed.values(), *left_behind]
        seen = {case.workload.uid for case in cases}
        self._unknown_since = {uid: since for uid, since in self._unknown_since.items() if uid in seen}
        return cases

    def _left_to_kueue(self, evaluation: Evaluation) -> Iterator[tuple[ScalableWorkload, Sequence[Decision]]]:
        for scalable in self.cluster.scalable_workloads.items():
            decisions = evaluation.decisions_on(
                scalable.metadata.namespace, scalable_workload_ref(scalable.metadata.name)
            )
            if scalable.metadata.deletion_timestamp is None and uses_priority_boost(decisions):
                yield scalable, decisions

    def _case(
        self, scalable: ScalableWorkload, decisions: Sequence[Decision], doubt: str, now: datetime
    ) -> BoostCandidate | None:
        """The candidate; None without a Workload, with a remote copy, or where another ScalableWorkload acts for it."""
        found, situation = self.cluster.workload_of(scalable), self.cluster.situation(scalable)
        workload = situation.workload
        if found is None or workload is None or situation.taken_by or workload.is_remote_copy:
            return None
        unknown_for = self._unknown_for(workload.uid, is_in_doubt=bool(doubt) or is_unknown(decisions), now=now)
        return BoostCandidate(
            workload=workload,
            boost=boost_of(found),
            desire=desire(workload, decisions, doubt=doubt, unknown_for=unknown_for),
            scalable=scalable,
            idle_since=max((each.idle_since for each in decisions if each.idle_since), default=None),
            hint="" if is_reconsidered(found) else _NO_PRIORITY_CLASS,
        )

    def _unknown_for(self, uid: str, *, is_in_doubt: bool, now: datetime) -> timedelta:
        if is_in_doubt:
            return now - self._unknown_since.setdefault(uid, now)
        self._unknown_since.pop(uid, None)
        return timedelta(0)

    def _doubt(self) -> str:
        age = self.decision_cache.age or timedelta(0)
        return f"the latest verdicts are {int(age.total_seconds())} s old" if age > self.max_age else ""

    def _judged(self, case: BoostCandidate, gate: FeatureGateStatus) -> BoostCandidate:
        """The case, with what is wanted where Kueue does (not) read boosts. Records why an idle one is not boosted."""
        is_idle = case.desire.intent is BoostIntent.SET
        if is_idle and case.scalable is not None:
            self._tell_obstacle(case, ObjectReference.of(SCALABLE_WORKLOAD, case.scalable.metadata), gate)
        if gate.gate is FeatureGate.OFF and case.desire.intent is not BoostIntent.CLEAR:
            return replace(case, desire=DesiredBoost(intent=BoostIntent.CLEAR, why=gate.message))
        if gate.gate is FeatureGate.UNKNOWN and is_idle:
            return replace(case, desire=DesiredBoost(intent=BoostIntent.LEAVE, why=gate.message))
        return case

    def _tell_obstacle(self, case: BoostCandidate, about: ObjectReference, gate: FeatureGateStatus) -> None:
        if case.boost.holder is BoostOwner.OTHER:
            theirs = f"another client has given Workload {case.workload.name} the priority boost {case.boost.value}"
            self._warnings.tell(about, SuspensionEventReason.BOOSTED_BY_OTHER, f"idle, but {theirs}; it is not changed")
        if gate.gate is not FeatureGate.ON:
            self._warnings.tell(about, _NOT_BOOSTED[gate.gate], f"idle, but not boosted: {gate.message}")

    # --------------------------------------------------------------------------------------------------------- acting

    async def _act(self, case: BoostCandidate, now: datetime) -> BoostStep | None:
        """The step that was taken; None where there is none, or the API refuses it.

        Raises: KubeError where the API does not answer.
        """
        workload, taken = case.workload, step(case.boost, case.desire.intent, value=self.policy.value)
        if taken is None:
            return None
        body = patch(taken, workload, value=self.policy.value, cause=self._cause(case, now))
        try:
            await self.api.patch(WORKLOAD.path(workload.namespace, workload.name), body)
        except KubeError as error:
            if error.status == NO_ANSWER:
                raise
            log_refusal(log, "a priority boost was not changed", error, step=str(taken), workload=workload.name)
            return None
        self._announce(taken, case)
        return taken

    def _cause(self, case: BoostCandidate, now: datetime) -> str:
        by = f"ScalableWorkload/{case.scalable.metadata.name}" if case.scalable else ""
        since = timestamp(case.idle_since)
        return note(value=self.policy.value, at=timestamp(now), by=by, message=case.desire.why, idleSince=since)

    def _announce(self, taken: BoostStep, case: BoostCandidate) -> None:
        reason, message = {
            BoostStep.WRITE: (
                SuspensionEventReason.PRIORITY_BOOSTED,
                f"priority boost {self.policy.value}: {case.desire.why}{case.hint}",
            ),
            BoostStep.REMOVE: (
                SuspensionEventReason.PRIORITY_BOOST_REMOVED,
                f"its priority boost is removed because {case.desire.why}",
            ),
            BoostStep.RELEASE_OWNERSHIP: (
                SuspensionEventReason.PRIORITY_BOOST_RELEASED,
                "another client has changed its priority boost; it is not changed back",
            ),
        }[taken]
        record_on_both(self.announcer, case.scalable, case.workload, reason, message)

    def _tell_unboostable(self, evaluation: Evaluation) -> None:
        for key, entry in evaluation.entries.items():
            is_used = any(uses_priority_boost([each]) for each in entry.triggers.values())
            scaled_object = self.cluster.scaled_objects.get(*key)
            if is_used and scaled_object is not None and not is_scalable_workload(entry.target):
                about = ObjectReference.of(SCALED_OBJECT, scaled_object.metadata)
                message = _CANNOT_BE_BOOSTED.format(target=entry.target)
                self._warnings.tell(about, SuspensionEventReason.CANNOT_BE_BOOSTED, message)


def _spared(case: BoostCandidate, why_not: Mapping[str, str]) -> BoostCandidate:
    """The case, without a boost where other Workloads of its ClusterQueue's tree decide so."""
    why = why_not.get(case.workload.cluster_queue) or why_not.get("", "")
    if case.desire.intent is BoostIntent.CLEAR:
        return case
    return replace(case, desire=DesiredBoost(intent=BoostIntent.CLEAR, why=why)) if why else case


class _Warnings:
    """Records a warning Event once for as long as its problem persists."""

    def __init__(self, announcer: EventSink) -> None:
        self._announcer = announcer
        self._recorded: dict[tuple[str, str], str] = {}
        """What was recorded last, by uid and reason."""
        self._previous: dict[tuple[str, str], str] = {}

    def begin(self) -> None:
        """A new tick begins. A warning that is not repeated in it does not hold any more."""
        self._recorded, self._previous = {}, self._recorded

    def tell(self, about: ObjectReference, reason: str, message: str) -> None:
        self._recorded[about.uid, reason] = message
        if self._previous.get((about.uid, reason)) != message:
            self._announcer.record(about, reason, message, warning=True)


_NOT_BOOSTED = {
    FeatureGate.OFF: SuspensionEventReason.PRIORITY_BOOST_OFF,
    FeatureGate.UNKNOWN: SuspensionEventReason.PRIORITY_BOOST_UNKNOWN,
}
"""The reason of the Event by what is known of Kueue's feature gate."""
_CANNOT_BE_BOOSTED = (
    "'reclaim: PriorityBoost' does nothing for {target}: what is boosted is the Kueue Workload of a ScalableWorkload, "
    "and it is none; scale a ScalableWorkload, or write 'reclaim: Always'"
)

_LEFT_BEHIND = DesiredBoost(
    intent=BoostIntent.CLEAR, why="no ScaledObject has the policy reclaim: PriorityBoost for it any more"
)


_NO_PRIORITY_CLASS = (
    "; it has no WorkloadPriorityClass, so that Kueue looks at gangs that wait in a BestEffortFIFO queue already only "
    "when something else changes there"
)


# ---- the boost on a Workload, and the patches that write it. Source: Kueue, pkg/util/priority, KEP-7990


class _Mark(msgspec.Struct):
    value: int


def boost_indexes() -> dict[str, Index[kube.Workload]]:
    """Index of the Workload store: those with our note."""
    return {"boost": lambda workload: (BOOSTED,) if BOOST_OWNER_ANNOTATION in workload.metadata.annotations else ()}


def boost_of(workload: kube.Workload) -> Boost:
    """The Workload's boost, and whose it is."""
    annotations = workload.metadata.annotations
    value, mark = annotations.get(BOOST_ANNOTATION, ""), annotations.get(BOOST_OWNER_ANNOTATION)
    if mark is None:
        return Boost(holder=BoostOwner.OTHER if value else BoostOwner.NONE, value=value)
    if not value:
        return Boost(holder=BoostOwner.TAKEN_OFF)
    return Boost(holder=BoostOwner.US if value == _noted(mark) else BoostOwner.REPLACED, value=value)


def _noted(mark: str) -> str:
    """The value in this scaler's annotation; empty where it cannot be read."""
    try:
        return str(msgspec.json.decode(mark, type=_Mark).value)
    except UNREADABLE:
        return ""


def note(*, value: int, **why: Any) -> str:
    """The text of our note: JSON for people and for a later reader. What is empty is left out."""
    return msgspec.json.encode({"value": value, **{name: each for name, each in why.items() if each}}).decode()


def patch(step: BoostStep, workload: ObservedWorkload, *, value: int, cause: str) -> Mapping[str, Any]:
    """The patch that takes the step; `cause` is our note."""
    annotations: dict[BoostStep, dict[str, str | None]] = {
        BoostStep.WRITE: {BOOST_ANNOTATION: str(value), BOOST_OWNER_ANNOTATION: cause},
        BoostStep.REMOVE: {BOOST_ANNOTATION: None, BOOST_OWNER_ANNOTATION: None},
        BoostStep.RELEASE_OWNERSHIP: {BOOST_OWNER_ANNOTATION: None},
    }
    guard = {"uid": workload.uid, "resourceVersion": workload.resource_version}
    return {"metadata": {**guard, "annotations": annotations[step]}}


def is_reconsidered(workload: kube.Workload) -> bool:
    """Whether Kueue looks again at gangs that wait in a BestEffortFIFO queue when the Workload's boost changes.

    Seen on a running Kueue: without a WorkloadPriorityClass they wait on, until something else changes in the cohort.
    Source: Kueue, pkg/workload/workload.go (PriorityChanged).
    """
    reference = workload.spec.priority_class_ref
    return reference is not None and reference.kind == "WorkloadPriorityClass"
