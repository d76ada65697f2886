"""A case of `exporter_cases` judged by the product itself, in virtual time: settings and samples in, verdicts out.

    run = judged("a18-frozen-page", "default")
    run.verdicts["busy"]       # one Judged for each collection in which the pod runs

What Prometheus would have stored is computed from the pages. The settings are read by the product's loader, the samples
by its Sampler; its Evaluator judges the pods, and decides what KEDA would be answered.
"""

import asyncio
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import yaml
from builders import LONG_AGO, NOON, a_target
from case_timelines import ALWAYS, Life
from exporter_cases import COLLECTIONS, Case, CasePod, Labels, Sample, Scrape, load, stored_labels, stretched_settings
from loops_builders import MemoryCluster, stamp
from scripted_metrics import EXPORTER_INTERVAL_S, Metrics, ScriptedSource, Series

from scaler.app.settings.load import load as load_settings
from scaler.app.settings.model import Settings
from scaler.decision.decision import Decision, Inactive
from scaler.decision.decision_cache import DecisionCache
from scaler.decision.evaluation import EvaluationConfig, Evaluator
from scaler.decision.sampling import Sampler
from scaler.decision.scale_targets import ScaleTarget
from scaler.idleness.policy import Trust
from scaler.idleness.relabel import DEFAULT_RULES, parse_rules
from scaler.idleness.verdict import Idle, Unknown, verdict_name
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.gpu_pods import GpuResources, gpu_pod
from scaler.kube.objects.nodes import Node
from scaler.samples.source import SignalSource
from scaler.targets.cluster_state import ClusterState

_PHASE_S = 7.0
"""When in its interval a collection takes place."""
JUDGED_S = 15.0
"""When in its interval it is judged."""


def instant(collection: float) -> datetime:
    """When the interval of that collection begins."""
    return LONG_AGO if collection == -inf else NOON + timedelta(seconds=collection * EXPORTER_INTERVAL_S)


# -------------------------------------------------------------------------------------------------- what is stored


def _nothing(at_s: float) -> float:
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSeries(Series):
    """A series of which each sample is known."""

    at_s: Sequence[float]
    values: Sequence[float]
    value: Any = _nothing

    def samples(self, after_s: float, until_s: float) -> Iterator[tuple[float, float]]:
        for n in range(bisect_right(self.at_s, after_s), bisect_right(self.at_s, until_s)):
            yield self.at_s[n], self.values[n]


Stored = dict[tuple[str, frozenset[tuple[str, str]]], dict[float, float]]
"""By name and labels: values by Unix time."""


def stored(case: Case) -> list[StoredSeries]:
    """What is in Prometheus in the end."""
    found: Stored = defaultdict(dict)
    for number, scrape in enumerate(case.scrapes):
        for collection, lines in _scraped(case, scrape, number):
            at_s = instant(collection).timestamp() + _PHASE_S
            for line in lines:
                found[line.metric, frozenset(line.labels.items())][at_s] = line.value
    if case.rules:
        found = _recorded(case.rules, found)
    return [
        StoredSeries(metric=metric, labels=dict(labels), at_s=[*samples], values=[*samples.values()])
        for (metric, labels), samples in found.items()
    ]


def _scraped(case: Case, scrape: Scrape, number: int) -> Iterator[tuple[float, Iterable[Sample]]]:
    """(collection, what was taken in)"""
    timeline = case.timeline
    target = {"job": f"gpus-{number}", "instance": "10.0.0.7:9400", **scrape.target_labels}
    labelled = {state: [_as_stored(each, target, scrape) for each in lines] for state, lines in scrape.shown.items()}
    for n in range(1, int(COLLECTIONS / timeline.every) + 1):
        collection = n * timeline.every
        state = timeline.shown(collection, scrape.page)
        yield collection, (_valued(case, each, collection) for each in (labelled[state] if state is not None else ()))


def _as_stored(line: Sample, target: Labels, scrape: Scrape) -> Sample:
    return line._replace(labels=stored_labels(line.labels, target, honor_labels=scrape.honor_labels))


def _valued(case: Case, line: Sample, collection: float) -> Sample:
    """Pages are those of one instant: a counter of energy grows as long as its exporter measures."""
    grows = "energy" in line.metric.lower() and not case.timeline.is_frozen
    value = line.value + 2_000 * collection if grows else line.value
    return line._replace(value=case.timeline.value(collection, line.metric, value))


_RULE = re.compile(r"avg by \((?P<by>[^)]*)\) \(avg_over_time\((?P<metric>\w+)\{[^}]*\}\[20s\]\)\)")
_RULE_SPAN_S = 300.0
"""20 s of the cases' own time."""


def _recorded(rules: Sequence[tuple[str, str]], raw: Stored) -> Stored:
    """What the rules have recorded of the series that name a pod."""
    found: Stored = defaultdict(dict)
    for name, promql in rules:
        rule = _RULE.fullmatch(promql)
        assert rule is not None, f"a rule of another form: {promql}"
        by = [label.strip() for label in rule["by"].split(",")]
        for collection in range(1, COLLECTIONS + 1):
            at_s = instant(collection).timestamp() + _PHASE_S + 1
            groups: dict[frozenset[tuple[str, str]], list[float]] = defaultdict(list)
            for (metric, labels), samples in raw.items():
                span = [value for taken_s, value in samples.items() if at_s - _RULE_SPAN_S < taken_s <= at_s]
                if metric == rule["metric"] and dict(labels).get("pod") and span:
                    groups[frozenset(x for x in labels if x[0] in by)].append(sum(span) / len(span))
            for labels, values in groups.items():
                found[name, labels][at_s] = sum(values) / len(values)
    return found


# -------------------------------------------------------------------------------------------------- who holds GPUs


def _pod(case: Case, pod: CasePod, life: Life, now: float) -> Pod:
    running = {"running": {"startedAt": stamp(instant(life.runs))}} if life.runs <= now else {"waiting": {}}
    requests = {pod.resource: str(pod.gpus)} if pod.gpus else {}
    claims = [{"name": "gpu", "resourceClaimName": f"{pod.name}-gpu"}] if case.uses_claims else []
    document = {
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": f"uid-{pod.name}"},
        "spec": {
            "nodeName": pod.node,
            "containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}],
            "resourceClaims": claims,
        },
        "status": {
            "phase": "Running" if life.runs <= now else "Pending",
            "startTime": stamp(instant(life.runs if life.created is None else life.created)),
            "containerStatuses": [{"name": "main", "ready": life.runs <= now, "state": running}],
        },
    }
    return decode(Pod, msgspec.json.encode(document))


def _exporter_pods(case: Case) -> Iterator[Pod]:
    """The pods that the targets' labels name; they hold no GPU."""
    for target in (each.target_labels for each in case.scrapes):
        if target.get("pod"):
            pod = CasePod(
                name=target["pod"],
                gpus=0,
                truth="idle",
                node=case.pods[0].node,
                resource="",
                namespace=target["namespace"],
            )
            yield _pod(case, pod, ALWAYS[0], 0)


def _node(case: Case, name: str) -> Node:
    document = {"metadata": {"name": name, "labels": dict(case.timeline.node_labels)}}
    return decode(Node, msgspec.json.encode(document))


@dataclass(kw_only=True)
class CaseCluster:
    """The pods of a case, as they come and go."""

    case: Case
    memory: MemoryCluster = field(default_factory=MemoryCluster)

    def __post_init__(self) -> None:
        self.memory.pods.put(*_exporter_pods(self.case))
        self.memory.nodes.put(*(_node(self.case, name) for name in sorted({pod.node for pod in self.case.pods})))

    def read(self, gpus: GpuResources) -> ClusterState:
        return replace(self.memory.read(), gpus=gpus)

    def advance(self, collection: int) -> Iterator[tuple[Life, Pod]]:
        """The pods that run now."""
        for pod in self.case.pods:
            life = self._life(pod, collection)
            if life is None:
                self.memory.pods.drop(pod.name, pod.namespace)
                continue
            found = _pod(self.case, pod, life, collection)
            if found != self.memory.pods.get(pod.namespace, pod.name):
                self.memory.pods.put(found)
            if life.runs <= collection:
                yield life, found

    def _life(self, pod: CasePod, now: int) -> Life | None:
        lives = self.case.timeline.lives.get(pod.name, ALWAYS)
        created = ((life, life.runs if life.created is None else life.created) for life in lives)
        return next((life for life, since in created if since <= now < life.until), None)


# ------------------------------------------------------------------------------------------------------- judging


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One pod after one collection."""

    collection: int
    has_worked: bool
    """Whether it worked within the window, as far as it was there and this could have been seen."""
    is_young: bool
    """Whether it runs for less than the window."""
    decision: Decision
    windows: Sequence[str] = ()
    """The evidence in words, where it was asked for."""

    @property
    def is_idle(self) -> bool:
        return self.decision.verdict is not None and isinstance(self.decision.verdict.verdict, Idle)

    @property
    def is_answered_0(self) -> bool:
        return isinstance(self.decision.answer, Inactive)

    @property
    def word(self) -> str:
        """`Idle` where it would be suspended, `Busy`, or why neither."""
        verdict, answer = self.decision.verdict, self.decision.answer
        if verdict is None:
            return str(answer.reason)
        if isinstance(verdict.verdict, Unknown):
            return str(verdict.verdict.reason)
        held = "" if not self.is_idle or self.is_answered_0 else f" ({answer.reason})"
        return verdict_name(verdict.verdict) + held


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    case: Case = field(repr=False)
    verdicts: Mapping[str, Sequence[Judged]] = field(repr=False)

    def words(self, *, worked: bool) -> Counter[str]:
        """How often each was said of pods that have worked within their window, or have not, once it was full."""
        judged = (each for of_pod in self.verdicts.values() for each in of_pod)
        return Counter(
            each.word for each in judged if each.has_worked is worked and each.collection >= self.case.window
        )

    def wrong(self) -> Iterator[str]:
        """In words: where a pod is judged idle that works."""
        for pod, judged in self.verdicts.items():
            yield from (
                f"{pod} after {each.collection} collections: {each.word}"
                for each in judged
                if each.is_idle and each.has_worked
            )

    def answered_0(self) -> Iterator[str]:
        """In words: where a pod would be suspended that works, or runs for less than the window."""
        for pod, judged in self.verdicts.items():
            yield from (
                f"{pod} after {each.collection} collections: {each.decision.answer.message}"
                for each in judged
                if each.is_answered_0 and (each.has_worked or each.is_young)
            )

    @property
    def idle_in_the_end(self) -> Mapping[str, bool]:
        """Of pods that are idle in the end: whether that is found."""
        last = {pod: judged[-1] for pod, judged in self.verdicts.items() if judged}
        return {
            pod: each.is_idle for pod, each in last.items() if each.collection == COLLECTIONS and not each.has_worked
        }


@lru_cache(maxsize=8)
def judged(name: str, settings: str) -> Run:
    case = load(name)
    return asyncio.run(judge(case, settings_of(case, settings)))


def settings_of(case: Case, name: str) -> Settings:
    """What the product makes of what an operator wrote, with the window of the case."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "settings.yaml"
        path.write_text(yaml.safe_dump(stretched_settings(case.settings[name])), "utf-8")
        window = f"{case.window * EXPORTER_INTERVAL_S:.0f}s"
        flags = {"defaults.idleAfter": window, "defaults.warmUp": "0s", "mode": "enforce"}
        return load_settings(path, environ={}, flags=flags)


Clock = Callable[[], datetime]


def in_memory(case: Case, clock: Clock) -> SignalSource:
    return ScriptedSource(metrics=metrics_of(case), clock=clock)


async def judge(
    case: Case,
    settings: Settings,
    *,
    source_of: Callable[[Case, Clock], SignalSource] = in_memory,
    with_windows: bool = False,
) -> Run:
    """All pods of the case after each collection."""
    now = NOON

    def clock() -> datetime:
        return now

    cluster, gpus = CaseCluster(case=case), GpuResources(patterns=settings.gpu_resources)
    evaluator = evaluator_of(settings, cluster.read(gpus), cluster.memory, source_of(case, clock), clock)
    verdicts: dict[str, list[Judged]] = {pod.name: [] for pod in case.pods}
    for collection in range(1, COLLECTIONS + 1):
        now = instant(collection) + timedelta(seconds=JUDGED_S)
        running = [*cluster.advance(collection)]
        await evaluator.tick(now)
        for life, pod in running:
            seen = gpu_pod(pod, gpus)
            target = ScaleTarget(state=a_target(running_since=seen.running_since), pods=[seen])
            decision = evaluator.judge.decide_on(pod.metadata.namespace, target, evaluator.judge.default_policy, now)
            verdicts[pod.metadata.name].append(
                Judged(
                    collection=collection,
                    has_worked=_has_worked(case, pod.metadata.name, life, collection),
                    is_young=life.runs > collection - case.window,
                    decision=decision,
                    windows=[*_windows(decision)] if with_windows else (),
                )
            )
    return Run(case=case, verdicts=verdicts)


def metrics_of(case: Case) -> Metrics:
    late = (lambda point: point.at_s + case.delay_s) if case.delay_s else None
    return Metrics(series=[*stored(case)], arrives_at_s=late)


_SEEN_LATE = 4
"""Collections after which samples that stay away are noticed (`trust.maxAgeIntervals`)."""


def _has_worked(case: Case, pod: str, life: Life, now: int) -> bool:
    first = max(1, now - case.window + 1, life.runs)
    window = (each for each in range(now - case.window + 1, now + 1) if each >= first)
    return any(case.works(pod, each) for each in window if now - each >= _SEEN_LATE or not _is_dark(case, each))


def _is_dark(case: Case, collection: int) -> bool:
    """Whether nothing was scraped at that collection."""
    return all(case.timeline.shown(collection, each.page) is None for each in case.scrapes)


def evaluator_of(
    settings: Settings, state: ClusterState, memory: MemoryCluster, source: SignalSource, clock: Clock
) -> Evaluator:
    """As the program wires it."""
    trust = settings.trust.into(Trust)
    sampler = Sampler(
        source,
        signals=[signal.signal() for signal in settings.signals],
        rules=DEFAULT_RULES if settings.relabel is None else parse_rules(settings.relabel),
        trust=trust,
        overlap=settings.evaluation.overlap,
        clock=clock,
    )
    return Evaluator(
        config=settings.evaluation.into(EvaluationConfig, trust=trust, defaults=settings.defaults.overrides()),
        cluster=state,
        scales=memory.scales,
        sampler=sampler,
        decision_cache=DecisionCache(max_age=timedelta(minutes=5), clock=lambda: clock().timestamp()),
        clock=clock,
    )


def _windows(decision: Decision) -> Iterator[str]:
    for gpu in decision.verdict.gpus if decision.verdict is not None else ():
        doubt = f" ({gpu.verdict.message})" if isinstance(gpu.verdict, Unknown) else ""
        yield f"    {gpu.gpu} of {gpu.pod} on {gpu.node}: {verdict_name(gpu.verdict)}{doubt}"
        for name, window in gpu.windows.items():
            last = "never" if window.last_sample_at is None else f"{window.last_sample_at:%H:%M:%S}"
            yield (
                f"      {name}: {window.covered} of {window.slots} intervals, longest gap {window.longest_gap}, "
                f"peak {window.peak_ratio}, newest {last}"
            )
