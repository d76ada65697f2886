"""Keeps the priority boosts of idle workloads whose policy is `reclaim: PriorityBoost`, so that Kueue preempts them
before others. Leader only.

Laws:

* Read → desire (pure, `core/boosting.py`) → act → observe. One look at every ScalableWorkload and at every Workload
  with a boost of ours; whatever was missed is seen at the next one. A boost whose ScaledObject or ScalableWorkload is
  gone is found by its note and removed.
* Where Kueue does not read boosts none is written, and those that are there are removed: switched on later, the gate
  would find workloads boosted that have long been busy. Where nobody knows whether it does, nothing new is written.
* Nothing is announced that did not happen, and what stays as it is is told once.

What Kueue needs, apart from its gate: a ClusterQueue that may preempt lower priorities (`withinClusterQueue` or
`reclaimWithinCohort`), and a boost large enough to get below the priority of whoever waits.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from scaler.core.boosting import (
    Boost,
    Desire,
    Gate,
    GateFinding,
    Holder,
    Step,
    Wish,
    cannot_be_boosted,
    desire,
    is_any_left_to_kueue,
    is_left_to_kueue,
    is_unknown,
    step,
)
from scaler.core.reclaim_policy import PriorityBoost
from scaler.core.replicas import Decision
from scaler.core.suspension import Workload
from scaler.errors import KubeError
from scaler.kube import kueue_objects as kube
from scaler.kube.calls import NO_ANSWER
from scaler.kube.events import ObjectReference
from scaler.kube.objects import ObjectMeta, ScalableWorkload
from scaler.kube.resources import SCALABLE_WORKLOAD, SCALED_OBJECT, WORKLOAD
from scaler.kueue.boosts import boost_of, is_reconsidered, note, patch
from scaler.kueue.workloads import observe
from scaler.loops.board import Board, Evaluation, Key
from scaler.loops.boost_gate import BoostGate
from scaler.loops.cluster import BOOSTED, Cluster
from scaler.loops.leadership import Api
from scaler.loops.projection import timestamp
from scaler.loops.reconciliation import Announcer, is_conflict
from scaler.loops.scales import is_scalable_workload, scalable_target

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A Workload that is to be boosted or has a boost of ours."""

    workload: Workload
    boost: Boost
    desire: Desire
    scalable: ScalableWorkload | None = None
    """None where no ScalableWorkload is left to speak for it."""
    idle_since: datetime | None = None
    hint: str = ""
    """What else has to happen before Kueue acts on the boost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boosts:
    """What one tick found and did, for telemetry."""

    at: datetime
    gate: GateFinding | None = None
    """None where it was not asked for."""
    standing: int = 0
    """Workloads that had a boost of ours when it began."""
    steps: tuple[Step, ...] = ()
    """What was done then."""


class Boosting:
    """`max_age` is how old verdicts may be that somebody is boosted for."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        board: Board,
        announcer: Announcer,
        policy: PriorityBoost,
        *,
        max_age: timedelta,
        interval: timedelta = timedelta(seconds=15),
        observe: Callable[[Boosts], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._board = board
        self._announcer = announcer
        self._policy = policy
        self._max_age = max_age
        self._interval = interval
        self._observe = observe
        self._clock = clock
        self._wake = asyncio.Event()
        self._gate = BoostGate(api, policy)
        self._warnings = _Warnings(announcer)
        self._unknown_since: dict[str, datetime] = {}
        """By uid of the Workload."""

    async def run(self) -> None:
        """Tick until cancelled: at every interval, and whenever there are new verdicts."""
        self._unknown_since = {}
        while True:
            self._wake.clear()
            try:
                await self.tick(self._clock())
            except KubeError as error:
                log.warning("priority boosts could not be looked after; tried again", error=str(error))
            except Exception:
                log.exception("boosting broke")
            try:
                async with asyncio.timeout(self._interval.total_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """There are new verdicts."""
        self._wake.set()

    async def tick(self, now: datetime) -> Boosts:
        """One look at everything. Raises: KubeError where the API does not answer; try again later."""
        evaluation = self._board.evaluation
        if evaluation is None:
            return Boosts(at=now)
        self._warnings.begin()
        self._tell_unboostable(evaluation)
        cases = self._cases(evaluation, now)
        idle = next((case.workload for case in cases if case.desire.wish is Wish.SET), None)
        gate = await self._gate.find(idle, now)
        steps = [taken for case in cases if (taken := await self._act(self._judged(case, gate), now))]
        standing = sum(case.boost.holder is Holder.US for case in cases)
        boosts = Boosts(at=now, gate=gate, standing=standing, steps=tuple(steps))
        self._observe(boosts)
        return boosts

    # -------------------------------------------------------------------------------------------------------- looking

    def _cases(self, evaluation: Evaluation, now: datetime) -> list[Case]:
        """Every Workload that is left to Kueue, and every other one that has a note of ours."""
        doubt = self._doubt()
        claimed: dict[Key, Case] = {}
        for scalable, decisions in self._left_to_kueue(evaluation):
            if case := self._case(scalable, decisions, doubt, now):
                claimed[case.workload.namespace, case.workload.name] = case
        left_behind = (
            Case(workload=observe(each, self._cluster.gpus), boost=boost_of(each), desire=_LEFT_BEHIND)
            for each in self._cluster.workloads.by_index("boost", BOOSTED)
            if each.metadata.key not in claimed
        )
        cases = [*claimed.values(), *left_behind]
        seen = {case.workload.uid for case in cases}
        self._unknown_since = {uid: since for uid, since in self._unknown_since.items() if uid in seen}
        return cases

    def _left_to_kueue(self, evaluation: Evaluation) -> Iterator[tuple[ScalableWorkload, Sequence[Decision]]]:
        for scalable in self._cluster.scalable_workloads.items():
            decisions = evaluation.decisions_on(scalable.metadata.namespace, scalable_target(scalable.metadata.name))
            if scalable.metadata.deletion_timestamp is None and is_left_to_kueue(decisions):
                yield scalable, decisions

    def _case(
        self, scalable: ScalableWorkload, decisions: Sequence[Decision], doubt: str, now: datetime
    ) -> Case | None:
        """None where it has no Workload, or another ScalableWorkload acts for that."""
        found, situation = self._cluster.workload_of(scalable), self._cluster.situation(scalable)
        workload = situation.workload
        if found is None or workload is None or situation.taken_by:
            return None
        unknown_for = self._unknown_for(workload.uid, is_in_doubt=bool(doubt) or is_unknown(decisions), now=now)
        return Case(
            workload=workload,
            boost=boost_of(found),
            desire=desire(workload, decisions, doubt=doubt, unknown_for=unknown_for),
            scalable=scalable,
            idle_since=max((each.idle_since for each in decisions if each.idle_since), default=None),
            hint=_hint(found),
        )

    def _unknown_for(self, uid: str, *, is_in_doubt: bool, now: datetime) -> timedelta:
        if is_in_doubt:
            return now - self._unknown_since.setdefault(uid, now)
        self._unknown_since.pop(uid, None)
        return timedelta(0)

    def _doubt(self) -> str:
        age = self._board.age or timedelta(0)
        return f"the latest verdicts are {int(age.total_seconds())} s old" if age > self._max_age else ""

    def _judged(self, case: Case, gate: GateFinding) -> Case:
        """The case, with what is wanted where Kueue does (not) read boosts. Tells why an idle one is not boosted."""
        is_idle = case.desire.wish is Wish.SET
        if is_idle and case.scalable is not None:
            self._tell_obstacle(case, ObjectReference.of(SCALABLE_WORKLOAD, case.scalable.metadata), gate)
        if gate.gate is Gate.OFF and case.desire.wish is not Wish.CLEAR:
            return replace(case, desire=Desire(wish=Wish.CLEAR, why=gate.message))
        if gate.gate is Gate.UNKNOWN and is_idle:
            return replace(case, desire=Desire(wish=Wish.LEAVE, why=gate.message))
        return case

    def _tell_obstacle(self, case: Case, about: ObjectReference, gate: GateFinding) -> None:
        if case.boost.holder is Holder.OTHER:
            theirs = f"somebody else has given Workload {case.workload.name} the priority boost {case.boost.value}"
            self._warnings.tell(about, "BoostedByOther", f"idle, but {theirs}; it is left alone")
        if gate.gate is not Gate.ON:
            self._warnings.tell(about, f"PriorityBoost{gate.gate}", f"idle, but not boosted: {gate.message}")

    # --------------------------------------------------------------------------------------------------------- acting

    async def _act(self, case: Case, now: datetime) -> Step | None:
        """The step that was taken; None where there is none, or the API refuses it.

        Raises: KubeError where the API does not answer.
        """
        workload, taken = case.workload, step(case.boost, case.desire.wish, value=self._policy.value)
        if taken is None:
            return None
        body = patch(taken, workload, value=self._policy.value, cause=self._cause(case, now))
        try:
            await self._api.patch(WORKLOAD.path(workload.namespace, workload.name), body)
        except KubeError as error:
            if error.status == NO_ANSWER:
                raise
            tell = log.debug if is_conflict(error) else log.warning
            tell("a priority boost was not changed", step=str(taken), workload=workload.name, error=str(error))
            return None
        self._announce(taken, case)
        return taken

    def _cause(self, case: Case, now: datetime) -> str:
        by = f"ScalableWorkload/{case.scalable.metadata.name}" if case.scalable else ""
        since = timestamp(case.idle_since)
        return note(value=self._policy.value, at=timestamp(now), by=by, message=case.desire.why, idleSince=since)

    def _announce(self, taken: Step, case: Case) -> None:
        reason, message = {
            Step.WRITE: ("PriorityBoosted", f"priority boost {self._policy.value}: {case.desire.why}{case.hint}"),
            Step.REMOVE: ("PriorityBoostRemoved", f"its priority boost is removed because {case.desire.why}"),
            Step.DISOWN: ("PriorityBoostDisowned", "somebody else has changed its priority boost, and it is left so"),
        }[taken]
        workload = case.workload
        observed = ObjectMeta(name=workload.name, namespace=workload.namespace, uid=workload.uid)
        self._announcer.record(ObjectReference.of(WORKLOAD, observed), reason, message)
        if case.scalable is not None:
            self._announcer.record(ObjectReference.of(SCALABLE_WORKLOAD, case.scalable.metadata), reason, message)

    def _tell_unboostable(self, evaluation: Evaluation) -> None:
        for key, entry in evaluation.entries.items():
            decisions = (each.decision for each in entry.triggers.values())
            if is_scalable_workload(entry.target) or not is_any_left_to_kueue(decisions):
                continue
            scaled_object = self._cluster.scaled_objects.get(*key)
            if scaled_object is not None:
                about = ObjectReference.of(SCALED_OBJECT, scaled_object.metadata)
                self._warnings.tell(about, "CannotBeBoosted", cannot_be_boosted(str(entry.target)))


class _Warnings:
    """Tells of what stays as it is, once for as long as it does."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._told: dict[tuple[str, str], str] = {}
        """By uid and reason."""
        self._told_before: dict[tuple[str, str], str] = {}

    def begin(self) -> None:
        """A new look at everything begins. What is not told in it does not hold any more."""
        self._told, self._told_before = {}, self._told

    def tell(self, about: ObjectReference, reason: str, message: str) -> None:
        self._told[about.uid, reason] = message
        if self._told_before.get((about.uid, reason)) != message:
            self._announcer.record(about, reason, message, warning=True)


_LEFT_BEHIND = Desire(wish=Wish.CLEAR, why="no ScaledObject leaves it to Kueue (any more) what becomes of it")


def _hint(workload: kube.Workload) -> str:
    if is_reconsidered(workload):
        return ""
    return (
        "; it has no WorkloadPriorityClass, so that Kueue looks at gangs that wait in a BestEffortFIFO queue already "
        "only when something else changes there"
    )
