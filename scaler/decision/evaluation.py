"""Decides about every ScaledObject, once per interval, and publishes the decisions in the DecisionCache.

Laws:

* Ticks fall on multiples of the interval and judge what was true at that instant, so that replicas of the scaler that
  see the same data decide the same.
* Nothing is published before the window was rebuilt from the source once.
* What cannot be known becomes a decision without an answer, with its reason; one bad ScaledObject harms no other.
* Only what may have changed is decided again; all other decisions stand. What they rest on is in `inputs`.
* Between ticks a ScaledObject whose objects changed is decided again at once, from the samples of the last tick:
  after a client sets replicas to 1, the next poll of KEDA's must not get the answer from before. Nor does a tick that
  was reading meanwhile bring it back: it decides on the objects as they are when it decides.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import NamedTuple

import structlog

from scaler.clock import Turns
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation, Key
from scaler.decision.gates import needs_verdict
from scaler.decision.inputs import DecisionInputs, OwnTriggers
from scaler.decision.judge import Judge, Looked
from scaler.decision.sampling import RefreshResult, Sampler
from scaler.decision.scale_targets import ScaleTarget, ScaleTargets
from scaler.decision.trigger_metadata import (
    SOURCES_ANNOTATION,
    TriggerPolicies,
    longest_asked_for,
    own_triggers,
    policies_of,
)
from scaler.idleness.pods import GpuPod
from scaler.idleness.policy import Overrides, Trust
from scaler.kube.discovery import Scale
from scaler.kube.objects.direct_scaling import DirectScaling
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, Trigger
from scaler.samples.wake_queries import WakeQueries
from scaler.targets.cluster_state import ClusterState
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.workloads import NO_TARGETS, NotifyTargets

log = structlog.get_logger(__name__)

_SETTLE = timedelta(milliseconds=10)
"""Changes that come together are taken up together."""
_AT_ONCE = 32
"""ScaledObjects whose GPUs are looked at together: some milliseconds with all that is decided about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    interval: timedelta
    trust: Trust
    defaults: Overrides = field(default_factory=Overrides)
    limits: tuple[tuple[str, Overrides], ...] = ()
    """What goes before triggers and annotations, by where it is from."""
    max_window: timedelta = timedelta(hours=24)
    max_view_age: timedelta = timedelta(minutes=3)
    scaler_addresses: frozenset[str] = frozenset()
    """`scalerAddress` values that mean this scaler; empty: all."""
    notified_by: NotifyTargets = NO_TARGETS
    """The targets that notify owners."""
    hooks: Mapping[str, timedelta] = field(default_factory=dict)
    """How long each hook may take that has to end before a workload is suspended, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTick:
    at: datetime
    seconds: float
    intake: RefreshResult
    evaluation: Evaluation | None
    """The evaluation that was published; None where nothing was."""


def aligned(now: datetime, interval: timedelta) -> datetime:
    """The newest multiple of the interval that is not after `now`, counted from the Unix epoch."""
    seconds = interval.total_seconds()
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)


class _Asked(NamedTuple):
    """What is asked of a ScaledObject, before its GPUs are looked at."""

    scaled_object: ScaledObject
    target: ScaleTarget
    triggers: TriggerPolicies

    @property
    def judged(self) -> Sequence[GpuPod]:
        """The pods whose GPUs have to be looked at."""
        return self.target.pods if needs_verdict(self.target.state) and self.target.remote is None else ()


class ChangedScaledObjects:
    """Keys of ScaledObjects to evaluate again before the next tick."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._has_keys = asyncio.Event()

    def add(self, key: Key) -> None:
        """Request that it is evaluated again: it, or what it scales, has changed."""
        self._keys.add(key)
        self._has_keys.set()

    async def take(self) -> set[Key]:
        """Wait for keys, and for those that come together with them."""
        await self._has_keys.wait()
        await asyncio.sleep(_SETTLE.total_seconds())
        self._has_keys.clear()
        keys, self._keys = self._keys, set()
        return keys


@dataclass(kw_only=True)
class Evaluator:
    """The loop's parts. `observe` is called after every tick, `published` with every evaluation that is published."""

    config: EvaluationConfig
    cluster: ClusterState
    scales: ScaleSubresources
    sampler: Sampler
    decision_cache: DecisionCache
    demands: WakeQueries = field(default_factory=WakeQueries)
    changed: ChangedScaledObjects = field(default_factory=ChangedScaledObjects)
    observe: Callable[[EvaluationTick], None] = lambda _: None
    published: Callable[[Evaluation], None] = lambda _: None
    led_until: Callable[[], datetime | None] = lambda: None
    """The time up to which there was a leader before this process ran, which kept records."""
    longest_asked: Callable[[], timedelta] = timedelta
    """The longest window that others than triggers ask for."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    last_tick_at: float = field(default=float("-inf"), init=False)
    """Monotonic time at which the last tick ended, well or not: the loop's heartbeat."""
    judge: Judge = field(init=False)
    _inputs: DecisionInputs = field(init=False)
    _targets: ScaleTargets = field(init=False)
    _since: datetime = field(default=datetime.max.replace(tzinfo=UTC), init=False)
    """The time from which samples were read without a break at the last tick."""
    _breaks: int = field(default=0, init=False)
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """A change that comes during a tick is taken up after it, or the tick would publish what was before."""

    def __post_init__(self) -> None:
        self._inputs = DecisionInputs(self._own)
        config = self.config
        self.judge = Judge(
            sampler=self.sampler,
            cluster=self.cluster,
            trust=config.trust,
            defaults=config.defaults,
            max_view_age=config.max_view_age,
        )
        self._targets = ScaleTargets(
            cluster=self.cluster,
            scales=self.scales,
            demands=self.demands,
            notified_by=config.notified_by,
            max_view_age=config.max_view_age,
            max_gap=config.trust.max_gap_intervals * config.trust.interval,
            led_until=lambda: self.led_until(),  # noqa: PLW0108 it is set later
        )

    async def run(self) -> None:
        """Tick for ever. An internal error is logged; the answers in the DecisionCache then expire."""
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

    async def redecide_changes(self) -> None:
        """Evaluate changed ScaledObjects again, for ever."""
        while True:
            keys = await self.changed.take()
            try:
                async with self._deciding:
                    await self.redecide(keys)
            except Exception:
                log.exception("a change could not be taken up; the next tick will")

    async def redecide(self, keys: Iterable[Key]) -> None:
        """Decide these again as of the last tick, from the objects as they are now."""
        evaluation, inputs, own = self.decision_cache.evaluation, self._inputs, self._present(keys)
        if evaluation is None or not own:
            return
        await self.scales.refresh([each.scaled_object for each in own])
        entries = await self._decided(own, evaluation.at)
        # A tick may be about to take in samples, so these are decided again.
        inputs.outdated |= entries.keys() & inputs.own.keys()
        self.decision_cache.amend(entries)
        self.published(self.decision_cache.evaluation or evaluation)

    # ---- the tick

    async def tick(self, now: datetime) -> Evaluation | None:
        """Read, decide, publish. Returns what was published."""
        started = asyncio.get_running_loop().time()
        at, inputs = aligned(now, self.config.interval), self._inputs
        is_other = await inputs.update(self.cluster.scaled_objects.items())
        intake = await self.sampler.refresh(end=at, span=self._span())
        self.judge.doubt = intake.doubt
        await self.demands.ask(at)
        await self.cluster.switched.wait_listed()
        own = [each.scaled_object for each in inputs.own.values()]
        await self.scales.refresh(own)
        if is_other:
            self.scales.forget_others(own)
        await self.cluster.forget_gone()
        evaluation = None
        missing = self._why_not_yet(intake)
        if missing:
            self.decision_cache.explain_cold_start(missing)
        else:
            async with self._deciding:
                evaluation = await self._evaluate(at)
            self.published(evaluation)
        seconds = asyncio.get_running_loop().time() - started
        self.observe(EvaluationTick(at=at, seconds=seconds, intake=intake, evaluation=evaluation))
        return evaluation

    def _why_not_yet(self, intake: RefreshResult) -> str:
        """What is missing for the first evaluation; empty where nothing is, or where there was one before."""
        if not isfinite(self.cluster.view_age_s()):
            return f"the Kubernetes API has not listed everything yet ({self.cluster.unlisted()})"
        if self.sampler.is_backfilled or self.decision_cache.is_ready:
            return ""
        return intake.doubt.message if intake.doubt else "the window is being rebuilt from the metrics source"

    def _span(self) -> timedelta:
        """The longest window that is asked for by anybody, so that all are judged from one history."""
        default = self.judge.default_policy.idle_after
        longest = max((each.longest for each in self._inputs.own.values()), default=default)
        return min(max(longest, default, self.longest_asked()), self.config.max_window)

    def _own(self, scaled_object: ScaledObject) -> OwnTriggers | None:
        triggers = self._own_triggers(scaled_object)
        return (
            OwnTriggers(scaled_object, triggers, longest_asked_for(triggers, self.config.hooks)) if triggers else None
        )

    def _present(self, keys: Iterable[Key]) -> list[OwnTriggers]:
        """The ScaledObjects of these keys that are there and ask this scaler, as they are now: what DecisionInputs has
        is from before the tick's reads, and may have been decided again meanwhile."""
        found = (self.cluster.scaled_objects.get(*key) for key in keys)
        return [own for each in found if each is not None and (own := self._own(each)) is not None]

    async def _evaluate(self, at: datetime) -> Evaluation:
        """Decide again what has to be, and publish."""
        inputs = self._inputs
        await self._compare(at)
        outdated = sorted(inputs.outdated)
        entries = await self._decided(self._present(key for key in outdated if key in inputs.own), at)
        evaluation = self.decision_cache.renew(entries, only=inputs.own.keys(), at=at)
        self.judge.at = at
        await inputs.published(outdated, self.sampler.history, trust=self.config.trust, end=at)
        return evaluation

    async def _compare(self, at: datetime) -> None:
        """What do decisions rest on that is not as it was?"""
        inputs, history = self._inputs, self.sampler.history
        if self.sampler.since > self._since:
            self._breaks += 1
        self._since = self.sampler.since
        history.mark_holders(lambda pod: self.cluster.node_of(*pod) is not None)
        inputs.compare_common((self.judge.doubt, history, self._breaks, self.cluster.shared_nodes()))
        await inputs.compare_namespaces(self._revision)
        inputs.compare_demand(self.demands.shown)
        await inputs.compare_gpus(history, trust=self.config.trust, end=at)
        inputs.compare_clock(at)

    def _revision(self, namespace: str) -> tuple[Hashable, ...]:
        cluster = self.cluster
        stores = cluster.scalable_workloads, cluster.workloads, cluster.pods, self.scales
        doubts = (
            self.judge.unseen(namespace),
            self.demands.doubt_in(namespace),
            cluster.unserved_workloads(namespace),
        )
        others = cluster.switched.revision(namespace), cluster.remote_answers(namespace)
        return *(each.revision(namespace) for each in stores), *others, *doubts

    async def _decided(self, own: Sequence[OwnTriggers], at: datetime) -> dict[Key, EvaluatedScaledObject]:
        found, turns = dict[Key, EvaluatedScaledObject](), Turns()
        for start in range(0, len(own), _AT_ONCE):
            found |= self._decided_together(own[start : start + _AT_ONCE], at)
            await turns.give_way()
        return found

    def _decided_together(self, some: Iterable[OwnTriggers], at: datetime) -> dict[Key, EvaluatedScaledObject]:
        found, asked = dict[Key, EvaluatedScaledObject](), list[_Asked]()
        for scaled_object, triggers, _ in some:
            with self._harmless(scaled_object, found, at):
                asked.append(self._asked(scaled_object, triggers, self._targets.of(scaled_object, at)))
        judged = [(each.judged, policy) for each in asked for policy in each.triggers.policies.values()]
        looked = self.judge.look_at(judged, at)
        for one in asked:
            with self._harmless(one.scaled_object, found, at):
                key, entry = one.scaled_object.metadata.key, self._entry(one, at, looked)
                doubt = self.judge.doubt or one.target.demand_doubt
                self._inputs.decided(key, one.target, entry, doubt, self.sampler.history, trust=self.config.trust)
                found[key] = entry
        return found

    @contextmanager
    def _harmless(
        self, scaled_object: ScaledObject, found: dict[Key, EvaluatedScaledObject], at: datetime
    ) -> Iterator[None]:
        """Objects are written by tenants. What one of them provokes must not take the answers from all others."""
        try:
            yield
        except Exception as error:
            key, reference = scaled_object.metadata.key, scaled_object.spec.scale_target_ref
            log.exception("a ScaledObject could not be decided", scaled_object="/".join(key))
            problem = f"internal error while it was decided ({error!r}); please report it with the scaler's log"
            self._inputs.rests_on(key, gpus={}, until=at)
            found[key] = EvaluatedScaledObject(target=reference, triggers={}, problems=(problem,))

    def try_out(self, scaled_object: ScaledObject, target: ScalableWorkload | Scale) -> EvaluatedScaledObject | None:
        """What would be decided now about a ScaledObject that is not there, or not so. Nothing is done about it."""
        triggers, at = self._own_triggers(scaled_object), aligned(self.clock(), self.config.interval)
        if not triggers:
            return None
        return self._entry(self._asked(scaled_object, triggers, self._targets.of(scaled_object, at, target)), at)

    def _own_triggers(self, scaled_object: ScaledObject) -> list[Trigger]:
        if isinstance(scaled_object, DirectScaling):
            return [*scaled_object.spec.triggers]
        return own_triggers(scaled_object.spec.triggers, self.config.scaler_addresses)

    def _asked(self, scaled_object: ScaledObject, triggers: Sequence[Trigger], target: ScaleTarget) -> _Asked:
        config = self.config
        policies = policies_of(
            triggers,
            sources=scaled_object.metadata.annotations.get(SOURCES_ANNOTATION, ""),
            annotations=(*target.annotations, *config.limits),
            defaults=config.defaults,
            longest=config.max_window,
            shortest=config.trust.interval,
            hooks=config.hooks,
        )
        return _Asked(scaled_object, target, policies)

    def _entry(self, asked: _Asked, at: datetime, looked: Looked | None = None) -> EvaluatedScaledObject:
        decisions, (scaled_object, target, triggers) = dict[Overrides, Decision](), asked
        metadata, reference = scaled_object.metadata, scaled_object.spec.scale_target_ref
        for overrides, policy in triggers.policies.items():
            quiet = self.decision_cache.quiet_before(metadata.key, reference, policy) or target.quiet
            decisions[overrides] = self.judge.decide(replace(target, quiet=quiet), policy, at, looked)
        return EvaluatedScaledObject(
            target=reference,
            triggers=decisions,
            problems=triggers.problems,
            ignored=triggers.ignored,
            decided_on=metadata if isinstance(scaled_object, DirectScaling) else None,
            pods=target.pods,
        )
