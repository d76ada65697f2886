"""Decides about every ScaledObject, once per interval, and puts the decisions on the board.

Laws:

* Ticks fall on multiples of the interval and judge what was true at that instant, so that replicas of the scaler that
  see the same data decide the same.
* Nothing is published before the window was rebuilt from the source once.
* What cannot be known becomes a decision without an answer, with its reason; one bad ScaledObject harms no other.
* Between ticks a ScaledObject whose objects changed is decided again at once, from the samples of the last tick:
  somebody who sets replicas to 1 by hand must not meet a poll of KEDA's that is answered from before.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite

import structlog

from scaler.core.durations import format_duration
from scaler.core.idleness import Unknown, WorkloadVerdict, distrust, judged_length
from scaler.core.pods import Pod, judge
from scaler.core.policy import Overrides, Policy, ResolvedPolicy, Trust, resolve
from scaler.core.reasons import Unknowable
from scaler.core.replicas import Decision, decide, needs_verdict
from scaler.errors import MetadataError
from scaler.keda.metadata import foreign_keys, parse_metadata
from scaler.kube.objects import ScaledObject, Trigger
from scaler.loops.board import Board, BoardEntry, Evaluation, Key, TriggerEntry
from scaler.loops.cluster import Cluster, target_of
from scaler.loops.demand import Demands
from scaler.loops.sampling import Intake, Sampler
from scaler.loops.scales import Scales
from scaler.loops.subjects import Subject, Subjects

log = structlog.get_logger(__name__)

_YIELD_EVERY = 16
"""ScaledObjects evaluated before other tasks get the event loop again: about a millisecond."""

_SETTLE = timedelta(milliseconds=10)
"""Changes that come together are taken up together."""

_SILENT = Overrides()
_resolve = lru_cache(maxsize=1024)(resolve)
"""Most triggers are set alike, and what is alike is one object."""

_UNDER_PRESSURE = "idleAfterUnderPressure"
_EXTERNAL_TRIGGERS = frozenset({"external", "external-push"})


def own_triggers(triggers: Iterable[Trigger], addresses: Collection[str]) -> list[Trigger]:
    """Those that ask this scaler: external ones with one of these `scalerAddress` values; without values, all."""
    return [
        each
        for each in triggers
        if each.type in _EXTERNAL_TRIGGERS and (not addresses or each.metadata.get("scalerAddress") in addresses)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    interval: timedelta
    trust: Trust
    defaults: Overrides = field(default_factory=Overrides)
    max_window: timedelta = timedelta(hours=24)
    max_view_age: timedelta = timedelta(minutes=3)
    scaler_addresses: frozenset[str] = frozenset()
    """`scalerAddress` values that mean this scaler; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one tick did, for telemetry."""

    at: datetime
    seconds: float
    intake: Intake
    evaluation: Evaluation | None
    """None where nothing was published."""


def aligned(now: datetime, interval: timedelta) -> datetime:
    """The newest multiple of the interval that is not after `now`, counted from the Unix epoch."""
    seconds = interval.total_seconds()
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)


@dataclass(kw_only=True)
class Evaluator:
    """The loop's parts. `observe` is told of every tick, `published` of everything that the board shows anew."""

    config: EvaluationConfig
    cluster: Cluster
    scales: Scales
    sampler: Sampler
    board: Board
    demands: Demands = field(default_factory=Demands)
    observe: Callable[[Tick], None] = lambda _: None
    published: Callable[[Evaluation], None] = lambda _: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    last_tick_at: float = field(default=float("-inf"), init=False)
    """Monotonic time at which the last tick ended, well or not: the loop's heartbeat."""
    _doubt: Unknown | None = field(default=None, init=False)
    """What the last tick's samples are not trusted for."""
    _touched: set[Key] = field(default_factory=set, init=False)
    _has_touched: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """A change that comes during a tick is taken up after it, or the tick would publish what was before."""

    async def run(self) -> None:
        """Tick for ever. An error that is nobody's fault but ours is logged, and the board goes stale by itself."""
        while True:
            try:
                await self.tick(self.clock())
            except Exception:
                log.exception("evaluation failed; its answers expire")
            self.last_tick_at = asyncio.get_running_loop().time()
            await self._sleep_until_due()

    async def _sleep_until_due(self) -> None:
        """Sleep to the next multiple of the interval and never short of it: a tick before would repeat the last one."""
        interval = self.config.interval
        now = self.clock()
        due = aligned(now, interval) + interval
        while timedelta(0) < (left := due - now) <= interval:
            await asyncio.sleep(left.total_seconds())
            now = self.clock()

    # ---- between ticks

    def touch(self, key: Key) -> None:
        """Have a ScaledObject decided again soon: it, or what it scales, has changed."""
        self._touched.add(key)
        self._has_touched.set()

    async def follow(self) -> None:
        """Decide touched ScaledObjects again, for ever."""
        while True:
            await self._has_touched.wait()
            await asyncio.sleep(_SETTLE.total_seconds())
            self._has_touched.clear()
            touched, self._touched = self._touched, set()
            try:
                async with self._deciding:
                    await self.redecide(touched)
            except Exception:
                log.exception("a change could not be taken up; the next tick will")

    async def redecide(self, keys: Iterable[Key]) -> None:
        """Decide these again as of the last tick, from the objects as they are now."""
        evaluation = self.board.evaluation
        found = [each for key in keys if (each := self.cluster.scaled_objects.get(*key))]
        if evaluation is None or not found:
            return
        await self.scales.refresh(self._ours(found))
        doubts = self._view_doubts(found)
        entries = {each.metadata.key: self._decided(each, evaluation.at, doubts) for each in found}
        self.board.amend({key: entry for key, entry in entries.items() if entry is not None})
        self.published(self.board.evaluation or evaluation)

    # ---- the tick

    async def tick(self, now: datetime) -> Evaluation | None:
        """Read, decide, publish. Returns what was published."""
        started = asyncio.get_running_loop().time()
        at = aligned(now, self.config.interval)
        scaled_objects = sorted(self.cluster.scaled_objects.items(), key=lambda each: each.metadata.key)
        intake = await self.sampler.refresh(end=at, span=self._span(scaled_objects))
        self._doubt = intake.doubt
        await self.demands.ask(at)
        ours = self._ours(scaled_objects)
        await self.scales.refresh(ours)
        self.scales.forget_others(ours)
        evaluation = None
        missing = self._why_not_yet(intake)
        if missing:
            self.board.explain_cold_start(missing)
        else:
            async with self._deciding:
                evaluation = await self._evaluate(scaled_objects, at)
                self.board.publish(evaluation)
            self.published(evaluation)
        seconds = asyncio.get_running_loop().time() - started
        self.observe(Tick(at=at, seconds=seconds, intake=intake, evaluation=evaluation))
        return evaluation

    def _why_not_yet(self, intake: Intake) -> str:
        """What is missing for the first evaluation; empty where nothing is, or where there was one before."""
        if not isfinite(self.cluster.view_age_s):
            return f"the Kubernetes API has not listed everything yet ({self.cluster.unlisted})"
        if self.sampler.is_backfilled or self.board.is_ready:
            return ""
        return intake.doubt.message if intake.doubt else "the window is being rebuilt from the metrics source"

    def _view_doubts(self, scaled_objects: Iterable[ScaledObject]) -> dict[str, Unknown | None]:
        """Why the copies are not to be believed, by namespace."""
        namespaces = {each.metadata.namespace for each in scaled_objects}
        return {namespace: self._view_doubt(namespace) for namespace in namespaces}

    def _view_doubt(self, namespace: str) -> Unknown | None:
        age_s, limit = self.cluster.view_age_in(namespace), self.config.max_view_age
        if age_s <= limit.total_seconds():
            return None
        if unlisted := self.cluster.unlisted_in(namespace):
            message = f"namespace {namespace} cannot be seen whole ({unlisted}); pods may run unseen"
            return Unknown(reason=Unknowable.STALE_CLUSTER_VIEW, message=message)
        since = f"for {int(age_s)} s"
        return Unknown(
            reason=Unknowable.STALE_CLUSTER_VIEW,
            message=f"the Kubernetes API has not been heard of {since}; pods may have changed unseen",
        )

    def _span(self, scaled_objects: Sequence[ScaledObject]) -> timedelta:
        """The longest window that any trigger asks for, so that all are judged from one history."""
        longest = resolve(("settings", self.config.defaults)).policy.idle_after
        for trigger in (trigger for each in scaled_objects for trigger in self._own_triggers(each)):
            try:
                longest = max(longest, parse_metadata(trigger.metadata).idle_after or timedelta(0))
            except MetadataError:
                continue  # reported where the trigger is evaluated
        return min(longest, self.config.max_window)

    async def _evaluate(self, scaled_objects: Sequence[ScaledObject], at: datetime) -> Evaluation:
        doubts = self._view_doubts(scaled_objects)
        entries: dict[Key, BoardEntry] = {}
        for count, each in enumerate(scaled_objects):
            entry = self._decided(each, at, doubts)
            if entry is not None:
                entries[each.metadata.key] = entry
            if count % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return Evaluation.of(entries, at=at)

    def _decided(
        self, scaled_object: ScaledObject, at: datetime, view_doubts: Mapping[str, Unknown | None]
    ) -> BoardEntry | None:
        """The ScaledObject's entry; None where none of its triggers is ours."""
        triggers = self._own_triggers(scaled_object)
        if not triggers:
            return None
        key = scaled_object.metadata.key
        try:
            subjects = Subjects(cluster=self.cluster, scales=self.scales)
            doubt = view_doubts[key[0]]
            subject = subjects.of(scaled_object, demand=self.demands.of(key), view_doubt=doubt, at=at)
            return self._entry(subject, triggers, at, self._doubt or self.demands.doubt_in(key[0]))
        except Exception as error:
            # Objects are written by tenants. What one of them provokes must not take the answers from all others.
            log.exception("a ScaledObject could not be decided", scaled_object="/".join(key))
            problem = f"internal error while it was decided ({error!r}); please report it with the scaler's log"
            return BoardEntry(target=target_of(scaled_object), triggers={}, problems=(problem,))

    def _ours(self, scaled_objects: Iterable[ScaledObject]) -> list[ScaledObject]:
        """Those with a trigger of ours; what others scale is none of our business."""
        return [each for each in scaled_objects if self._own_triggers(each)]

    def _own_triggers(self, scaled_object: ScaledObject) -> list[Trigger]:
        return own_triggers(scaled_object.spec.triggers, self.config.scaler_addresses)

    def _entry(self, subject: Subject, triggers: Sequence[Trigger], at: datetime, doubt: Unknown | None) -> BoardEntry:
        found: dict[Overrides, TriggerEntry] = {}
        problems: list[str] = []
        for trigger in triggers:
            try:
                overrides = parse_metadata(trigger.metadata)
                policy = self._policy(overrides, subject)
            except MetadataError as error:
                problems.append(str(error))
            else:
                found[overrides] = TriggerEntry(decision=self._decide(subject, policy, at, doubt), policy=policy)
        ignored = sorted({key for trigger in triggers for key in foreign_keys(trigger.metadata)})
        return BoardEntry(
            target=subject.target,
            triggers=found,
            problems=tuple(problems),
            ignored=tuple(ignored),
            pods=subject.pods,
        )

    def _policy(self, trigger: Overrides, subject: Subject) -> ResolvedPolicy:
        wishes = (each for each in subject.wishes if each[1] != _SILENT)
        resolved = _resolve(("settings", self.config.defaults), ("trigger metadata", trigger), *wishes)
        if resolved.policy.idle_after > self.config.max_window:
            raise MetadataError(
                f"trigger metadata 'idleAfter': {format_duration(resolved.policy.idle_after)} is longer than the "
                f"operator allows ({format_duration(self.config.max_window)}, evaluation.maxWindow of the settings)"
            )
        if resolved.policy.idle_after_if_pressed < self.config.trust.interval:
            key = "idleAfter" if resolved.policy.idle_after < self.config.trust.interval else _UNDER_PRESSURE
            short = format_duration(resolved.policy.idle_after_if_pressed)
            raise MetadataError(
                f"trigger metadata '{key}': {short} is shorter than the time "
                f"between two samples ({format_duration(self.config.trust.interval)}, trust.collectionInterval of the "
                "settings); nothing could be seen in it"
            )
        return resolved

    def _decide(self, subject: Subject, policy: ResolvedPolicy, at: datetime, doubt: Unknown | None) -> Decision:
        verdict = None
        if needs_verdict(subject.standing):
            history, trust = self.sampler.history, self.config.trust
            judged = judge(subject.pods, history, policy=policy.policy, trust=trust, end=at)
            verdict = distrust(judged, doubt or self._unread(policy.policy, at))
        return decide(subject.standing, verdict, policy=policy.policy, now=at)

    def judge_by_default(self, pod: Pod, at: datetime) -> WorkloadVerdict:
        """The verdict on a pod that nobody scales, by the policy of the settings. Nothing is done about it."""
        policy, trust = _resolve(("settings", self.config.defaults)).policy, self.config.trust
        judged = judge([pod], self.sampler.history, policy=policy, trust=trust, end=at)
        return distrust(judged, self._doubt or self._view_doubt(pod.namespace) or self._unread(policy, at))

    def _unread(self, policy: Policy, at: datetime) -> Unknown | None:
        """Why the window cannot be judged yet: a part of it was not read back since the start, or since it grew."""
        begin, since = at - judged_length(policy=policy, trust=self.config.trust), self.sampler.since
        if since <= begin:
            return None
        back_to = f"{since:%H:%M:%S} UTC; the window begins at {begin:%H:%M:%S}"
        return Unknown(reason=Unknowable.COLD_START, message=f"samples were read back to {back_to}")
