"""Decides about every ScaledObject, once per interval, and publishes the decisions in the DecisionCache.

Laws:

* Ticks fall on multiples of the interval and judge what was true at that instant, so that replicas of the scaler that
  see the same data decide the same.
* Nothing is published before the window was rebuilt from the source once.
* What cannot be known becomes a decision without an answer, with its reason; one bad ScaledObject harms no other.
* Only what may have changed is decided again; all other decisions stand. What they rest on is in `inputs`.
* Between ticks a ScaledObject whose objects changed is decided again at once, from the samples of the last tick:
  after a client sets replicas to 1, the next poll of KEDA's must not get the answer from before.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Any

import structlog

from scaler.clock import Turns
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import DecisionCache, EvaluatedScaledObject, Evaluation, Key
from scaler.decision.gates import decide, needs_verdict
from scaler.decision.inputs import DecisionInputs, Look, OwnTriggers, look_at
from scaler.decision.sampling import RefreshResult, Sampler
from scaler.decision.scale_targets import ScaleTarget, ScaleTargets, unknown_target
from scaler.decision.trigger_metadata import (
    SOURCES_ANNOTATION,
    by_source,
    foreign_keys,
    parse_metadata,
    resolve_policy,
    sources_of,
)
from scaler.errors import MetadataError
from scaler.idleness.pods import GpuPod, JudgedBy, judge, judged_by, look
from scaler.idleness.policy import Overrides, Policy, Trust, only_observed, resolve
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, GpuVerdicts, Unknown, WorkloadVerdict, distrust, judged_length
from scaler.kube.discovery import Scale
from scaler.kube.objects.direct_scaling import DirectScaling
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.kube.objects.keda import ScaledObject, Trigger
from scaler.samples.wake_queries import WakeQueries
from scaler.targets.cluster_state import ClusterState
from scaler.targets.scale_subresources import ScaleSubresources
from scaler.targets.workloads import (
    NO_TARGETS,
    NotifyTargets,
)

log = structlog.get_logger(__name__)

_SETTLE = timedelta(milliseconds=10)
"""Changes that come together are taken up together."""

SINGLE_WITNESS = (
    "one signal alone decides, and no energy counter shows that its exporter still measures; add a second signal or "
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION to the exporter, or set trust.singleWitness in the settings"
)

_EXTERNAL_TRIGGERS = frozenset({"external", "external-push"})
_MOST_TRIGGERS = 16
"""Triggers of one ScaledObject that ask this scaler: each is a decision of its own."""
_AT_ONCE = 32
"""ScaledObjects whose GPUs are looked at together: some milliseconds with all that is decided about them."""

Looked = Mapping[JudgedBy, GpuVerdicts]
"""The verdicts on GPUs that were looked at together."""


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
    """None where nothing was published."""


def aligned(now: datetime, interval: timedelta) -> datetime:
    """The newest multiple of the interval that is not after `now`, counted from the Unix epoch."""
    seconds = interval.total_seconds()
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked of a ScaledObject, before its GPUs are looked at."""

    scaled_object: ScaledObject
    target: ScaleTarget
    policies: Mapping[Overrides, Policy]
    """The policies by trigger."""
    problems: tuple[str, ...]
    ignored: tuple[str, ...]

    @property
    def key(self) -> Key:
        return self.scaled_object.metadata.key

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
    """Up to when there was a leader before this process ran, which kept records."""
    longest_asked: Callable[[], timedelta] = timedelta
    """The longest window that others than triggers ask for."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    last_tick_at: float = field(default=float("-inf"), init=False)
    """Monotonic time at which the last tick ended, well or not: the loop's heartbeat."""
    _doubt: Unknown | None = field(default=None, init=False)
    """What the last tick's samples are not trusted for."""
    _inputs: DecisionInputs = field(init=False)
    _targets: ScaleTargets = field(init=False)
    _policy: Callable[..., Policy] = field(init=False)
    _since: datetime = field(default=datetime.max.replace(tzinfo=UTC), init=False)
    """From when on samples were read without a break at the last tick."""
    _breaks: int = field(default=0, init=False)
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """A change that comes during a tick is taken up after it, or the tick would publish what was before."""

    def __post_init__(self) -> None:
        self._inputs = DecisionInputs(self._own)
        config = self.config
        self._policy = partial(
            resolve_policy,
            defaults=config.defaults,
            longest=config.max_window,
            shortest=config.trust.interval,
            hooks=config.hooks,
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
        evaluation, inputs = self.decision_cache.evaluation, self._inputs
        found = [each for key in keys if (each := self.cluster.scaled_objects.get(*key))]
        if evaluation is None or not found:
            return
        await self.scales.refresh([each for each in found if self._own_triggers(each)])
        entries = await self._decided(found, evaluation.at)
        # Samples may be about to be taken in.
        inputs.outdated |= entries.keys() & inputs.own.keys()
        self.decision_cache.amend(entries)
        self.published(self.decision_cache.evaluation or evaluation)

    # ---- the tick

    async def tick(self, now: datetime) -> Evaluation | None:
        """Read, decide, publish. Returns what was published."""
        started = asyncio.get_running_loop().time()
        at, inputs = aligned(now, self.config.interval), self._inputs
        is_other = await inputs.follow(self.cluster.scaled_objects.items())
        intake = await self.sampler.refresh(end=at, span=self._span())
        self._doubt = intake.doubt
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

    def _unseen(self, namespace: str) -> Unknown | None:
        return self.cluster.doubt_in(namespace, self.config.max_view_age)

    def _span(self) -> timedelta:
        """The longest window that is asked for by anybody, so that all are judged from one history."""
        default = self.default_policy.idle_after
        longest = max((each.longest for each in self._inputs.own.values()), default=default)
        return min(max(longest, default, self.longest_asked()), self.config.max_window)

    def _own(self, scaled_object: ScaledObject) -> OwnTriggers | None:
        triggers = self._own_triggers(scaled_object)
        return OwnTriggers(scaled_object, triggers, max(map(self._window_of, triggers))) if triggers else None

    async def _evaluate(self, at: datetime) -> Evaluation:
        """Decide again what has to be, and publish."""
        inputs = self._inputs
        await self._compare(at)
        outdated = sorted(inputs.outdated)
        found = [self.cluster.scaled_objects.get(*key) for key in outdated if key in inputs.own]
        entries = await self._decided([each for each in found if each is not None], at)
        evaluation = self.decision_cache.renew(entries, only=inputs.own.keys(), at=at)
        await inputs.published(outdated, self.sampler.history, trust=self.config.trust, end=at)
        return evaluation

    async def _compare(self, at: datetime) -> None:
        """What do decisions rest on that is not as it was?"""
        inputs, history = self._inputs, self.sampler.history
        if self.sampler.since > self._since:
            self._breaks += 1
        self._since = self.sampler.since
        history.mark_holders(lambda pod: self.cluster.node_of(*pod) is not None)
        inputs.compare_common((self._doubt, history, self._breaks, self.cluster.shared_nodes()))
        await inputs.compare_namespaces(self._revision)
        inputs.compare_demand(self.demands.shown)
        await inputs.compare_gpus(history, trust=self.config.trust, end=at)
        inputs.compare_clock(at)

    def _revision(self, namespace: str) -> tuple[Hashable, ...]:
        cluster = self.cluster
        stores = cluster.scalable_workloads, cluster.workloads, cluster.pods, self.scales
        doubts = (
            self._unseen(namespace),
            self.demands.doubt_in(namespace),
            cluster.unserved_workloads(namespace),
        )
        others = cluster.switched.revision(namespace), cluster.remote_answers(namespace)
        return *(each.revision(namespace) for each in stores), *others, *doubts

    async def _decided(self, scaled_objects: Sequence[ScaledObject], at: datetime) -> dict[Key, EvaluatedScaledObject]:
        """The entries of those that have a trigger which names this scaler."""
        found, turns = dict[Key, EvaluatedScaledObject](), Turns()
        for start in range(0, len(scaled_objects), _AT_ONCE):
            found |= self._decided_together(scaled_objects[start : start + _AT_ONCE], at)
            await turns.give_way()
        return found

    def _decided_together(self, some: Iterable[ScaledObject], at: datetime) -> dict[Key, EvaluatedScaledObject]:
        found, asked = dict[Key, EvaluatedScaledObject](), list[_Asked]()
        for each in some:
            with self._harmless(each, found, at):
                if triggers := self._own_triggers(each):
                    asked.append(self._asked(each, triggers, self._targets.of(each, at)))
        looked = self.look_at([(each.judged, policy) for each in asked for policy in each.policies.values()], at)
        for one in asked:
            with self._harmless(one.scaled_object, found, at):
                entry = self._entry(one, at, looked)
                self._rests_on(one.key, one.target, entry)
                found[one.key] = entry
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

    def _doubt_of(self, key: Key) -> Unknown | None:
        """Why samples, or the demand for the ScaledObject, are not known."""
        return self._doubt or self.demands.doubt_of(key)

    def _rests_on(self, key: Key, target: ScaleTarget, entry: EvaluatedScaledObject) -> None:
        decisions, doubt = entry.triggers.values(), self._doubt_of(key)
        instants = [target.until, *(each.holds_until(doubt) for each in decisions)]
        until = min((each for each in instants if each is not None), default=None)
        judged = [judged_by(each.policy, self.config.trust) for each in decisions if each.verdict is not None]
        history = self.sampler.history
        rows = tuple(row for pod in (target.pods if judged else ()) for row in history.rows_of(pod.namespace, pod.name))
        gpus = dict.fromkeys(judged, rows)
        self._inputs.rests_on(key, gpus=gpus, until=until)

    def try_out(self, scaled_object: ScaledObject, target: ScalableWorkload | Scale) -> EvaluatedScaledObject | None:
        """What would be decided now about a ScaledObject that is not there, or not so. Nothing is done about it."""
        triggers, at = self._own_triggers(scaled_object), aligned(self.clock(), self.config.interval)
        if not triggers:
            return None
        return self._entry(self._asked(scaled_object, triggers, self._targets.of(scaled_object, at, target)), at)

    def _own_triggers(self, scaled_object: ScaledObject) -> list[Trigger]:
        if isinstance(scaled_object, DirectScaling):
            return [*scaled_object.spec.triggers]
        return own_triggers(scaled_object.spec.triggers, self.config.scaler_addresses)[: _MOST_TRIGGERS + 1]

    def _asked(self, scaled_object: ScaledObject, triggers: Sequence[Trigger], target: ScaleTarget) -> _Asked:
        policies: dict[Overrides, Policy] = {}
        problems: list[str] = []
        sources = sources_of(scaled_object.metadata.annotations.get(SOURCES_ANNOTATION, ""))
        if len(triggers) > _MOST_TRIGGERS:
            problems.append(f"more than {_MOST_TRIGGERS} triggers of one ScaledObject ask this scaler; leave one")
            triggers = ()
        ignored = tuple(sorted({each for trigger in triggers for each in foreign_keys(trigger.metadata)}))
        for trigger in triggers:
            try:
                overrides = parse_metadata(trigger.metadata)
                layers = (*target.annotations, *self.config.limits)
                policies[overrides] = self._policy(by_source(overrides, sources), layers)
            except MetadataError as error:
                problems.append(str(error))
        if len(hooks := {each.before_suspend for each in policies.values()} - {""}) > 1:
            several = f"triggers of one ScaledObject name several hooks ({', '.join(sorted(hooks))}); name one"
            policies, problems = {}, [*problems, f"trigger metadata 'beforeSuspend': {several}"]
        return _Asked(
            scaled_object=scaled_object, target=target, policies=policies, problems=tuple(problems), ignored=ignored
        )

    def _entry(self, asked: _Asked, at: datetime, looked: Looked | None = None) -> EvaluatedScaledObject:
        found: dict[Overrides, Decision] = {}
        scaled_object, target = asked.scaled_object, asked.target
        doubt, scale_target = self._doubt_of(asked.key), scaled_object.spec.scale_target_ref
        for overrides, policy in asked.policies.items():
            quiet = self.decision_cache.quiet_before(asked.key, scale_target, policy) or target.quiet
            found[overrides] = self._decide(replace(target, quiet=quiet), policy, at, doubt, looked)
        return EvaluatedScaledObject(
            target=scale_target,
            triggers=found,
            problems=asked.problems,
            ignored=asked.ignored,
            decided_on=scaled_object.metadata if isinstance(scaled_object, DirectScaling) else None,
            pods=target.pods,
        )

    def _window_of(self, trigger: Trigger) -> timedelta:
        """The window that it asks for, and as much before it as it may have been warned in, or its hook may take.

        0 where that cannot be read, which is reported where it is evaluated.
        """
        none = timedelta(0)
        try:
            asked = parse_metadata(trigger.metadata)
        except MetadataError:
            return none
        hook = self.config.hooks.get(asked.before_suspend or "", none)
        return (asked.idle_after or none) + (asked.warning or none) + hook

    def _decide(
        self, target: ScaleTarget, policy: Policy, at: datetime, doubt: Unknown | None, looked: Looked | None = None
    ) -> Decision:
        if not needs_verdict(target.state):
            return decide(target.state, None, policy=policy, now=at, quiet=target.quiet)
        if target.remote is not None:
            return decide(target.state, target.remote.verdict_by(policy), policy=policy, now=at)
        verdict = self._verdict(target.pods, policy, at, doubt, looked)
        if verdict.is_single_witness and not self.config.trust.single_witness:
            policy = only_observed(policy, SINGLE_WITNESS)
        decision = decide(target.state, verdict, policy=policy, now=at, quiet=target.quiet)
        gpus = _EvidenceNow(self, target.pods, policy, len(verdict.gpus))
        return replace(decision, verdict=WorkloadVerdict(verdict=verdict.verdict, gpus=gpus))

    def look_at(self, asked: Iterable[tuple[Iterable[GpuPod], Policy]], at: datetime) -> Looked:
        """The verdicts on the GPUs of all these pods by these policies, for what judges them one by one."""
        return look(asked, self.sampler.history, trust=self.config.trust, end=at)

    def evidence(self, pods: Sequence[GpuPod], policy: Policy, looked: Looked | None = None) -> Sequence[GpuEvidence]:
        """What the GPUs of these pods show as of the last evaluation."""
        evaluation = self.decision_cache.evaluation
        at = aligned(self.clock(), self.config.interval) if evaluation is None else evaluation.at
        return self._judge(pods, policy, at, looked).gpus

    def judge_by_default(self, pod: GpuPod, at: datetime, looked: Looked | None = None) -> WorkloadVerdict:
        """The verdict on a pod that no ScaledObject scales, by the policy of the settings. Nothing is done about it."""
        return self._verdict([pod], self.default_policy, at, self._doubt or self._unseen(pod.namespace), looked)

    def decide_on(self, namespace: str, target: ScaleTarget, policy: Policy, at: datetime) -> Decision:
        """The decision on a target in that state which no ScaledObject scales. Nothing is done about it."""
        view_doubt = self._unseen(namespace)
        found = target if view_doubt is None else replace(unknown_target(view_doubt), quiet=target.quiet)
        return self._decide(found, policy, at, self._doubt)

    @property
    def doubt(self) -> Unknown | None:
        """What the samples of the last evaluation are not trusted for."""
        return self._doubt

    def doubt_by_default(self, namespace: str, at: datetime) -> Unknown | None:
        """Why such a verdict on a pod of the namespace is not to be believed, whatever its GPUs show."""
        return self._doubt or self._unseen(namespace) or self._unread(self.default_policy, at)

    @property
    def default_policy(self) -> Policy:
        return resolve(("settings", self.config.defaults))

    def look(self, policy: Policy, at: datetime) -> Look:
        """What tells of GPUs that are judged by the policy whether the verdict on them may have changed."""
        return look_at(self.sampler.history, judged_by(policy, self.config.trust), self.config.trust, at)

    def _verdict(
        self,
        pods: Sequence[GpuPod],
        policy: Policy,
        at: datetime,
        doubt: Unknown | None,
        looked: Looked | None = None,
    ) -> WorkloadVerdict:
        doubt = doubt or self._unread(policy, at)
        return distrust(self._judge(pods, policy, at, looked), doubt)

    def _judge(self, pods: Sequence[GpuPod], policy: Policy, at: datetime, looked: Looked | None) -> WorkloadVerdict:
        """`looked`: of a look at more pods than these, if there was one; it counts if it was of that instant."""
        history, trust = self.sampler.history, self.config.trust
        found = (looked or {}).get(judged_by(policy, trust))
        if found is not None and found.end != at:
            found = None
        return judge(pods, history, policy=policy, trust=trust, end=at, places=self.cluster, found=found)

    def _unread(self, policy: Policy, at: datetime) -> Unknown | None:
        """Why the window cannot be judged yet: a part of it was not read back since the start, or since it grew."""
        begin, since = at - judged_length(policy=policy, trust=self.config.trust), self.sampler.since
        if since <= begin:
            return None
        back_to = f"{since:%H:%M:%S} UTC; the window begins at {begin:%H:%M:%S}"
        return Unknown(reason=UnknownReason.COLD_START, message=f"samples were read back to {back_to}")


class _EvidenceNow(Sequence[GpuEvidence]):
    """The GPUs that a decision rests on, which stands while they go on reporting: they are looked up when asked for."""

    __slots__ = ("_count", "_evaluator", "_pods", "_policy")

    def __init__(self, evaluator: Evaluator, pods: Sequence[GpuPod], policy: Policy, count: int) -> None:
        self._evaluator, self._pods, self._policy, self._count = evaluator, pods, policy, count

    def _now(self) -> Sequence[GpuEvidence]:
        return self._evaluator.evidence(self._pods, self._policy)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]

    def __iter__(self) -> Iterator[GpuEvidence]:
        return iter(self._now())
