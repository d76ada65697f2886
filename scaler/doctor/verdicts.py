"""What keeps GPUs from being judged: of pods as they are judged here, of workloads as the leader has written it last.

Laws of this file:

* Pods are judged by the code that decides, on what the source shows of the last minutes, so that nothing is in order
  here that is Unknown there. What only a longer window or a look at the whole source shows is not repeated.
* A reason is one finding, with the first names, however many have it. It fails where nothing that could be judged is.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from scaler.decision.reasons import REASONS, DecisionReason
from scaler.doctor.findings import Finding, Severity, Subject, Topic, some
from scaler.idleness.gpu import GpuId, GpuSeries, Signal, Unit
from scaler.idleness.history import History, PodKey
from scaler.idleness.pods import GpuPod, expected, judge
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.reasons import DOUBTS, About, UnknownReason
from scaler.idleness.verdict import Unknown
from scaler.kube.objects.nodes import Node, offers_shared

SPAN = timedelta(minutes=10)
"""How far back samples are read: enough to see at which intervals they come, and whether counters grow."""

Samples = Sequence[tuple[float, float]]
IdentifiedSeries = tuple[GpuSeries, Samples, Unit]

_ENDED = "ContainerEnded"
_ADVICE: Mapping[str, str] = {
    **{reason: row.advice for reason, row in DOUBTS.items() if row.advice},
    **{reason: row.advice for reason, row in REASONS.items() if row.advice},
    _ENDED: "delete the pod, or make what still runs in it a sidecar (an init container with restartPolicy: Always), "
    "which ends with it",
}
"""What helps, by reason."""


class Doubted(NamedTuple):
    reason: str
    where: str
    """The object, as `Kind namespace/name`."""
    message: str


def by_reason(
    topic: Topic, doubted: Iterable[Doubted], *, of: int = 0, also: Sequence[Doubted] = ()
) -> Iterator[Finding]:
    """A finding for each reason that has advice. `of`: how many should be judged; 0 where that is not known.

    `also`: objects that are none of these, and may be parts of them.
    """
    found: dict[str, list[Doubted]] = defaultdict(list)
    for each in sorted((*doubted, *also), key=lambda each: each.where):
        if each.reason in _ADVICE:
            found[each.reason].append(each)
    for reason, several in found.items():
        number, first = len(several), several[0]
        of_all = f" of {of}" if of and not any(each.reason == reason for each in also) else ""
        what = first.message if number == 1 else f"{number}{of_all}; the first: {first.message}"
        severity = Severity.FAIL if 1 < number == of and _may_fail(reason) else Severity.WARN
        yield Subject(topic, some(each.where for each in several)).finding(severity, reason, what, _ADVICE[reason])


def _may_fail(reason: str) -> bool:
    """Whether owners cannot mend it, nor does it end once the window is full."""
    return reason in DOUBTS and not DOUBTS[reason].ends_with_window


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The pods that may hold GPUs, and the Nodes. Implements PodPlaces."""

    allocatable: int | None = 0
    """GPUs of all nodes that are ready, shared ones counted as often as they are offered. None: nodes are not read."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    pods: Mapping[PodKey, GpuPod] = field(default_factory=dict)
    """The pods that have not ended and hold GPUs, or devices of which it is not known what they are."""

    @property
    def running(self) -> frozenset[PodKey]:
        """Pods that hold GPUs and run."""
        return frozenset(key for key, pod in self.pods.items() if pod.holds_gpus and pod.is_running)

    @property
    def shared_nodes(self) -> list[str]:
        """Nodes whose GPUs are offered more than once (time-slicing, MPS)."""
        return [
            name for name, node in self.nodes.items() if any(offers_shared(node, is_mig=mig) for mig in (False, True))
        ]

    def node_of(self, namespace: str, pod: str) -> str | None:
        found = self.pods.get((namespace, pod))
        if found is None:
            return "" if self.allocatable is None else None
        return found.node if found.holds_gpus else None

    def is_node(self, host: str) -> bool:
        return host in self.nodes

    def offers_shared(self, gpu: GpuId, node: str) -> bool:
        found = self.nodes.get(node)
        return found is not None and offers_shared(found, is_mig=gpu.is_mig)


def without_parents(devices: Iterable[GpuId]) -> set[GpuId]:
    """What pods may hold: MIG instances instead of their boards."""
    found = {*devices}
    return found - {GpuId(device=each.device) for each in found if each.is_mig}


def unused(gpus: Gpus, policy: Policy, now: datetime) -> list[Doubted]:
    """Pods that keep GPUs which nothing uses, whatever scales them: their containers do not run, or have ended."""
    late = now - policy.warm_up - policy.idle_after
    holders = [(f"pod {'/'.join(key)}", pod) for key, pod in gpus.pods.items() if pod.holds_gpus and pod.node]
    return [Doubted(_ENDED, name, pod.ended) for name, pod in holders if pod.ended] + [
        Doubted(DecisionReason.PODS_NOT_RUNNING, name, pod.cause)
        for name, pod in holders
        if pod.cause and pod.starting_since is not None and pod.starting_since <= late
    ]


def history_of(
    signals: Mapping[Signal, Sequence[IdentifiedSeries]],
    boards: Mapping[Signal, Sequence[IdentifiedSeries]],
    *,
    gpus: Gpus,
    trust: Trust,
    now: datetime,
) -> History:
    """What the source shows, as the scaler keeps it; without samples that are yet to come."""
    history, latest = History(signals=[*signals], interval=trust.interval, span=SPAN), now + trust.max_clock_skew
    for signal, found in signals.items():
        for series, samples, unit in found:
            history.record(
                replace(signal, unit=unit), series, [each for each in samples if each[0] <= latest.timestamp()]
            )
    for signal, found in boards.items():
        for series, samples, _ in found:
            taken = np.array([*samples], np.float64).reshape(-1, 2)
            rows = np.full(len(taken), history.board_row(signal, series))
            history.extend_boards(signal, rows, taken[:, 0], taken[:, 1])
    history.mark_holders(lambda pod: gpus.node_of(*pod) is not None)
    return history


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is judged, as it is now."""

    history: History
    gpus: Gpus
    trust: Trust
    policy: Policy
    now: datetime

    def findings(self, *, of_time: bool) -> Iterator[Finding]:
        """`of_time`: also what pods lack, where the source shows more than the present and nothing else is wrong."""
        about, doubted = Subject(Topic.METRICS), [*self._doubted({About.GPU, About.TIME} if of_time else {About.GPU})]
        yield from by_reason(Topic.METRICS, doubted, of=len(self.gpus.running))
        if (nodes := self.gpus.shared_nodes) and not any(x.reason == UnknownReason.SHARED_GPU for x in doubted):
            what = (
                f"nodes offer their GPUs more than once ({some(nodes)}): what is quiet there is never suspended, even "
            )
            what += "alone on a GPU, because a pod's own series can be 0 while it works"
            yield about.warn(UnknownReason.SHARED_GPU, what, _ADVICE[UnknownReason.SHARED_GPU])
        yield from self._of_lone_witnesses(about)
        yield from self._of_other_clusters(about)

    def _doubted(self, wanted: Set[About]) -> Iterator[Doubted]:
        """Each pod once for each reason; those that are younger than the window not for what needs time."""
        policy = replace(self.policy, idle_after=min(self.policy.window, SPAN), idle_after_under_pressure=None)
        begin = self.now - policy.window - 2 * self.trust.interval
        for key, pod in sorted(self.gpus.pods.items()):
            name, is_young = f"pod {'/'.join(key)}", (pod.running_since or self.now) > begin
            if not pod.gpus and pod.cause and self.history.devices_of(*key):
                yield Doubted(UnknownReason.NO_GPU_PODS, name, f"GPUs report for it, and it {pod.cause}")
            for reason, message in self._doubts_of(pod, policy).items() if pod.gpus else ():
                about = DOUBTS[reason].about
                if about in wanted and not (is_young and about is About.TIME):
                    yield Doubted(reason, name, message)

    def _doubts_of(self, pod: GpuPod, policy: Policy) -> dict[UnknownReason, str]:
        judged = judge([pod], self.history, policy=policy, trust=self.trust, end=self.now, places=self.gpus)
        doubts = [(each.gpu, each.verdict) for each in judged.gpus if isinstance(each.verdict, Unknown)]
        return {doubt.reason: f"GPU {gpu}: {doubt.message}" for gpu, doubt in doubts}

    def _of_lone_witnesses(self, about: Subject) -> Iterator[Finding]:
        history, gpus = self.history, without_parents(each.series.gpu for each in self.history)
        alone = (x for x in history if not history.has_counter(x) and len(expected(history.signals, x.series.gpu)) == 1)
        lone, may_suspend = {each.series.gpu for each in alone} & gpus, self.trust.single_witness
        if not lone:
            return
        what = (
            f"one signal alone decides about {len(lone)} of {len(gpus)} GPUs ({some(map(str, lone))}), and no counter "
        )
        what += "of energy shows that it is still measured: "
        what += "by trust.singleWitness they are suspended all the same" if may_suspend else "they are only observed"
        do = "add a second signal, or DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION to the exporter, or set trust.singleWitness"
        severity = Severity.FAIL if lone == gpus and not may_suspend else Severity.WARN
        yield about.finding(severity, "SingleWitness", what, do)

    def _of_other_clusters(self, about: Subject) -> Iterator[Finding]:
        """Hosts that are no Nodes here, and of whose pods none is here, but for names that Nodes here show, too."""
        since_s, by_host = (self.now - self.trust.max_age).timestamp(), defaultdict[str, set[PodKey]](set)
        for each in self.history:
            if each.series.node and each.series.pod and each.last_sample_s >= since_s:
                by_host[each.series.node].add(each.pod)
        here = {pod for host, pods in by_host.items() if self.gpus.is_node(host) for pod in pods}
        others = {host: pods - here for host, pods in by_host.items() if not self.gpus.is_node(host)}
        names = [host for host, pods in others.items() if pods and not pods & self.gpus.pods.keys()]
        if names and self.gpus.nodes:
            what = f"{len(names)} hosts are no Nodes here, and none of their pods is here ({some(names)}): the source "
            what += "shows another cluster, too, and pods of both that have one name are mixed up, or Unknown"
            yield about.warn("OtherCluster", what, "name this cluster in prometheus.matchers, as in {cluster: prod-1}")
