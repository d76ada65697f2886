"""What does every GPU do that a pod holds, as of the latest evaluation? Writes nothing.

Laws:

* What a decision rests on is what is shown: a pod's GPUs are judged by the policy of its ScaledObject.
* Only pods of which something has changed are judged anew.
* Pods without a ScaledObject are judged by the defaults of the settings, so that what is idle is shown before there is
  a ScaledObject. Nothing is decided by that verdict.
* It is done beside the event loop's other work, a few pods at a time: KEDA gets its answers meanwhile.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import chain, islice
from typing import NamedTuple, TypeVar

import numpy as np

from scaler.clock import Turns
from scaler.decision.candidate import candidate_state
from scaler.decision.decision import Decision
from scaler.decision.decision_cache import Evaluation, Key
from scaler.decision.describe import prevailing
from scaler.decision.inputs import JudgedRows
from scaler.decision.judge import Judge, Looked
from scaler.decision.reasons import CandidateState
from scaler.idleness.pods import TERMINAL, GpuPod, PodPhase
from scaler.idleness.policy import Policy
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, Unknown, judged_length
from scaler.kube.objects.core import is_true
from scaler.kube.objects.keda import ScaleTargetRef
from scaler.reclaim.candidates import is_scaling_paused
from scaler.reporting.pending_workloads import QueueNames
from scaler.reporting.usage.gpu_states import (
    UNSCALED,
    GpuState,
    GpuStatus,
    StartupLimits,
    doubt_of,
    doubted,
    idle_status,
    states_of,
)
from scaler.reporting.usage.prices import normalized_model
from scaler.targets.cluster_state import ClusterState
from scaler.targets.owners import Owners
from scaler.targets.switches import switch_of

T = TypeVar("T")

_PODS_AT_ONCE = 512
_AT_ONCE = 32
"""Objects read before the time is."""


class GpuOwner(NamedTuple):
    namespace: str
    cluster_queue: str
    model: str


class TargetLabels(NamedTuple):
    namespace: str
    cluster_queue: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetUsage:
    title: TargetLabels
    decision: Decision
    states: Mapping[GpuState, int]
    peaks: Mapping[str, float]
    """Highest sample in the window by signal; 0..1."""
    at: datetime
    state: CandidateState | None = None
    """The state of the workload; None where it has finished."""
    owner: str = ""
    is_paused: bool = False
    """Whether KEDA does not scale it to 0, whatever the answer is."""
    is_switched: bool = False
    """Whether it is stopped by a switch of its own, and no Kueue Workload shows that."""

    @property
    def idle_seconds(self) -> float | None:
        """How long its GPUs have been quiet."""
        since = self.decision.idle_since
        return None if since is None else (self.at - since).total_seconds()


@dataclass(slots=True, kw_only=True)
class FleetUsage:
    at: datetime
    gpus: Counter[tuple[GpuOwner, GpuStatus]] = field(default_factory=Counter)
    nodes: dict[str, Counter[GpuStatus]] = field(default_factory=dict)
    """The states of GPUs by node, as far as these are judged on their own."""
    workloads: list[TargetUsage] = field(default_factory=list)
    paused_scaled_objects: int = 0
    coverage: Mapping[str, float] = field(default_factory=dict)
    """The coverage by signal."""


_NODES = 256
"""Nodes without pods whose model is remembered, and as many more as have some."""


class _Decided(NamedTuple):
    """What a ScaledObject says about one of its pods."""

    pod: GpuPod
    decision: Decision | None
    """The decision; None where it has not judged the pod's GPUs."""
    when_idle: GpuStatus


class _Basis(NamedTuple):
    """What the usage of a pod rests on, samples apart."""

    pod: GpuPod
    queue: str
    decision: Decision | None
    when_idle: GpuStatus
    doubt: UnknownReason | None
    rows: tuple[int, ...]
    """Rows of the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodUsage:
    basis: _Basis
    found: Sequence[tuple[GpuOwner, GpuStatus, str]]
    """The owner of each GPU, what it does, and its node."""
    length: timedelta
    """Length of the window that its GPUs are judged by."""
    ripe: timedelta
    """The age from which on all of that must be covered."""
    stands: bool
    """Whether it stays as it is until what it rests on changes, or what its GPUs show."""

    @property
    def states(self) -> Counter[GpuState]:
        return Counter(each.state for _, each, _ in self.found)


@dataclass(kw_only=True)
class _Tally:
    usage: FleetUsage
    models: dict[str, str]
    """Models of the GPUs of each node, as far as any has ever reported."""
    pods: dict[Key, _PodUsage] = field(default_factory=dict)
    peaks: dict[Key, dict[str, float]] = field(default_factory=dict)
    """Highest sample in the window by signal, of each pod that is known to have a GPU."""

    def add(self, key: Key, pod: _PodUsage) -> None:
        self.pods[key] = pod
        for place, found, node in pod.found:
            if place.model:
                self.models[node] = place.model
                self.usage.gpus[place, found] += 1
            self.usage.nodes.setdefault(node, Counter())[found] += 1

    def add_nameless(self) -> None:
        """GPUs that do not report are of the model of their node."""
        for place, found, node in (each for pod in self.pods.values() for each in pod.found):
            if not place.model:
                self.usage.gpus[place._replace(model=self.models.get(node, "")), found] += 1


@dataclass(frozen=True, kw_only=True)
class GpuUsageReader:
    cluster: ClusterState
    judge: Judge
    queues: QueueNames
    owners: Owners = field(default_factory=Owners)
    _models: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """The models by node. They are remembered while no pod reports there: the model of a node does not change. Nodes do
    come and go."""
    _before: dict[Key, _PodUsage] = field(default_factory=dict, init=False, repr=False)
    """The usage at the evaluation before."""
    _undecided: JudgedRows = field(default_factory=JudgedRows, init=False, repr=False)
    """GPUs of pods whose usage stands, and that no decision has judged."""

    async def take(self, evaluation: Evaluation) -> FleetUsage:
        """What the GPUs are doing as of the evaluation, with the pods that are there now.

        Only pods of which something has changed are judged anew.
        """
        tally = _Tally(usage=FleetUsage(at=evaluation.at), models=self._models)
        changed = await self._undecided.changed(self.judge.look(self._default, evaluation.at))
        queues, decided = await self._queues(), await self._decided(evaluation)
        bases, turns = self._bases(queues, decided, evaluation.at), Turns()
        while some := dict(islice(bases, _AT_ONCE)):
            stand = {key: before for key in some.keys() - changed if (before := self._unchanged(key, some[key]))}
            anew = [([basis.pod], self._policy_of(basis)) for key, basis in some.items() if key not in stand]
            looked = self.judge.look_at(anew, evaluation.at)
            for key, basis in some.items():
                tally.add(key, stand.get(key) or self._used(basis, evaluation.at, looked))
            await turns.give_way()
        tally.add_nameless()
        for node in [*self._models][: max(0, len(self._models) - 2 * len(tally.usage.nodes) - _NODES)]:
            if node not in tally.usage.nodes:
                del self._models[node]
        await self._remember(tally.pods, evaluation.at)
        await self._add_windows(tally)
        tally.usage.workloads = await self._workloads(evaluation, tally)
        tally.usage.paused_scaled_objects = sum(self._is_paused(key) for key in evaluation.entries)
        return tally.usage

    def _unchanged(self, key: Key, basis: _Basis) -> _PodUsage | None:
        """What was found of the pod before, where it rests on the same."""
        before = self._before.get(key)
        return before if before is not None and before.stands and before.basis == basis else None

    def _holders(self, decided: Mapping[Key, _Decided]) -> Iterator[tuple[Key, GpuPod]]:
        """All pods with GPUs, those included that request none: by a claim, or a resource that is not configured."""
        for pod in self.cluster.gpu_pods():
            yield (pod.namespace, pod.name), pod
        for key, found in decided.items():
            if found.decision is not None and not found.pod.gpus:
                yield key, found.pod

    async def _remember(self, pods: Mapping[Key, _PodUsage], at: datetime) -> None:
        for key in self._before.keys() - pods.keys():
            self._undecided.forget(key)
        for key, pod in pods.items():
            if pod is not self._before.get(key):
                stands = pod.stands and pod.basis.decision is None
                self._undecided.put(key, pod.basis.rows) if stands else self._undecided.forget(key)
        self._before.clear()
        self._before.update(pods)
        await self._undecided.look_at_new(self.judge.look(self._default, at))

    # -------------------------------------------------------------------------------------------------- what is known

    async def _queues(self) -> dict[Key, str]:
        """The ClusterQueue of every pod of a Workload, also while it ends after Kueue has taken its quota back."""
        found: dict[Key, str] = {}
        async for workload in in_steps(self.cluster.workloads.items()):
            pods = () if is_true(workload.status.conditions, "Finished") else self.cluster.pods_of_workload(workload)
            queue = self.queues.of(workload) if pods else ""
            for pod in pods:
                found[pod.namespace, pod.name] = queue
        return found

    async def _decided(self, evaluation: Evaluation) -> dict[Key, _Decided]:
        """The decisions by pod. Of several ScaledObjects of one pod it is the one that judges its GPUs."""
        found: dict[Key, _Decided] = {}
        async for key, entry in in_steps(evaluation.entries.items()):
            decision, when_idle = prevailing(list(entry.triggers.values())), doubted(UnknownReason.INVALID_POLICY)
            if decision is not None:
                when_idle = idle_status(decision, is_paused=self._is_paused(key))
            has_judged = decision is not None and decision.verdict is not None
            for pod in entry.pods:
                is_judged = has_judged and self._has_gpus(pod)
                if is_judged or (pod.namespace, pod.name) not in found:
                    found[pod.namespace, pod.name] = _Decided(pod, decision if is_judged else None, when_idle)
        return found

    def _has_gpus(self, pod: GpuPod) -> bool:
        """Whether a decision that rests on the pod has judged any GPU of it."""
        is_there = pod.phase not in TERMINAL and not pod.terminating
        return is_there and (pod.gpus > 0 or bool(self._rows_of(pod)))

    def _rows_of(self, pod: GpuPod) -> tuple[int, ...]:
        return self.judge.sampler.history.rows_of(pod.namespace, pod.name)

    def _is_paused(self, key: Key) -> bool:
        scaled_object = self.cluster.scaled_objects.get(*key)
        return scaled_object is not None and is_scaling_paused(scaled_object)

    @property
    def _default(self) -> Policy:
        return self.judge.default_policy

    def _bases(
        self, queues: Mapping[Key, str], decided: Mapping[Key, _Decided], at: datetime
    ) -> Iterator[tuple[Key, _Basis]]:
        doubt_in = cache(lambda namespace: self.judge.doubt_by_default(namespace, at))
        for key, pod in self._holders(decided):
            found, doubt = decided.get(key), None
            decision, when_idle = (found.decision, found.when_idle) if found is not None else (None, UNSCALED)
            if decision is None and (of_namespace := doubt_in(pod.namespace)) is not None:
                doubt = of_namespace.reason
            yield key, _Basis(pod, queues.get(key, ""), decision, when_idle, doubt, self._rows_of(pod))

    def _policy_of(self, basis: _Basis) -> Policy:
        return self._default if basis.decision is None else basis.decision.policy

    def _used(self, basis: _Basis, at: datetime, looked: Looked) -> _PodUsage:
        pod, when_idle, policy = basis.pod, basis.when_idle, self._policy_of(basis)
        gpus: Sequence[GpuEvidence] = ()
        if basis.decision is not None:
            gpus = self.judge.evidence([pod], policy, at, looked)
        elif pod.is_running:
            verdict = self.judge.verdict_by_default(pod, at, looked)
            gpus, doubt = verdict.gpus, doubt_of(verdict)
            when_idle = doubted(doubt) if doubt is not None else when_idle
        startup = self._startup(policy)
        found = [
            (GpuOwner(pod.namespace, basis.queue, normalized_model(gpu.model) if gpu else ""), each, node)
            for number, each in enumerate(states_of(pod, gpus, when_idle, startup=startup, now=at))
            for gpu in [gpus[number] if number < len(gpus) else None]
            for node in [pod.node or (gpu.node if gpu else "")]
        ]
        is_certain = len(gpus) >= max(1, pod.gpus) and not any(isinstance(gpu.verdict, Unknown) for gpu in gpus)
        has_begun = pod.phase is PodPhase.RUNNING and not (pod.gpus and pod.running_since is None)
        return _PodUsage(
            basis=basis,
            found=found,
            length=judged_length(policy=policy, trust=self.judge.trust),
            ripe=startup.ripe,
            stands=is_certain or pod.terminating or not has_begun,
        )

    def _startup(self, policy: Policy) -> StartupLimits:
        trust = self.judge.trust
        late = 2 * trust.interval
        return StartupLimits(ripe=judged_length(policy=policy, trust=trust) + late, shown=trust.max_age + late)

    # -------------------------------------------------------------------------------------------------------- windows

    async def _add_windows(self, tally: _Tally) -> None:
        """Highest samples, and what part of all windows is covered."""
        by_length: dict[timedelta, list[Key]] = {}
        for key, pod in tally.pods.items():
            if pod.basis.rows:
                by_length.setdefault(pod.length, []).append(key)
        covered, slots, turns = Counter[str](), Counter[str](), Turns()
        for length, keys in by_length.items():
            for start in range(0, len(keys), _PODS_AT_ONCE):
                self._add_windows_of(keys[start : start + _PODS_AT_ONCE], length, tally, covered, slots)
                await turns.give_way()
        tally.usage.coverage = {signal: covered[signal] / count for signal, count in slots.items() if count}

    def _add_windows_of(
        self, keys: Sequence[Key], length: timedelta, tally: _Tally, covered: Counter[str], slots: Counter[str]
    ) -> None:
        pods, at, history = [tally.pods[key] for key in keys], tally.usage.at, self.judge.sampler.history
        counts = [len(pod.basis.rows) for pod in pods]
        rows = np.fromiter(chain.from_iterable(pod.basis.rows for pod in pods), np.intp)
        since = [pod.basis.pod.running_since for pod in pods]
        ages = [at - each if each is not None else timedelta(0) for each in since]
        is_ripe = np.repeat([age >= pod.ripe for pod, age in zip(pods, ages, strict=True)], counts)
        starts = np.cumsum([0, *counts[:-1]])
        for signal, (peaks, within, of) in history.windows(rows, length=length, end=at):
            covered[signal] += int(within[is_ripe].sum())
            slots[signal] += int(of[is_ripe].sum())
            for key, peak in zip(keys, np.maximum.reduceat(peaks, starts).tolist(), strict=True):
                if peak >= 0:
                    tally.peaks.setdefault(key, {})[signal] = peak

    # ------------------------------------------------------------------------------------------------------ workloads

    async def _workloads(self, evaluation: Evaluation, tally: _Tally) -> list[TargetUsage]:
        """One for each scale target, whichever of its ScaledObjects prevails."""
        found: dict[tuple[str, ScaleTargetRef], TargetUsage] = {}
        async for key, entry in in_steps(evaluation.entries.items()):
            namespace = key[0]
            decision = prevailing(evaluation.decisions_on(namespace, entry.target))
            if decision is not None and (namespace, entry.target) not in found:
                queue, kind, name = self._queue_of(namespace, entry.target), entry.target.kind, entry.target.name
                keys = [(pod.namespace, pod.name) for pod in entry.pods]
                judged = keys if decision.verdict is not None else []
                pods = (tally.pods[each].states for each in keys if each in tally.pods)
                found[namespace, entry.target] = TargetUsage(
                    title=TargetLabels(namespace, queue, kind, name),
                    decision=decision,
                    states=sum(pods, Counter[GpuState]()),
                    peaks=_highest(tally.peaks.get(each, {}) for each in judged),
                    at=evaluation.at,
                    state=candidate_state(decision, warned_at=decision.target.warned_at),
                    owner=self._owner_of(key, entry.target),
                    is_paused=self._is_paused(key),
                    is_switched=self._is_switched(namespace, entry.target),
                )
        return [*found.values()]

    def _owner_of(self, key: Key, target: ScaleTargetRef) -> str:
        scaled_object, scalable = self.cluster.scaled_objects.get(*key), self.cluster.target_of(key[0], target)
        objects = [each.metadata for each in (scaled_object, scalable) if each is not None]
        return self.owners.of(*objects) if objects else self.owners.of_namespace(key[0])

    def _is_switched(self, namespace: str, target: ScaleTargetRef) -> bool:
        scalable = self.cluster.target_of(namespace, target)
        return scalable is not None and switch_of(scalable.spec.job_ref) is not None

    def _queue_of(self, namespace: str, target: ScaleTargetRef) -> str:
        """Whether or not it runs; empty for what Kueue does not manage, or not as one Workload."""
        scalable = self.cluster.target_of(namespace, target)
        workload = self.cluster.workload_of(scalable) if scalable is not None else None
        return self.queues.of(workload) if workload is not None else ""


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; other tasks get the event loop now and then."""
    turns = Turns()
    for count, each in enumerate(items):
        yield each
        if count % _AT_ONCE == 0:
            await turns.give_way()


def _highest(peaks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in peaks:
        for signal, peak in each.items():
            found[signal] = max(peak, found.get(signal, 0.0))
    return found
