"""Which IdlePolicy does a job follow, and what does it say? Pure.

| among the policies whose selector matches the job | the job follows                                       |
|---------------------------------------------------|-------------------------------------------------------|
| none                                              | none                                                  |
| IdlePolicies of its namespace                     | the one of the highest precedence, then by name       |
| ClusterIdlePolicies only                          | the same among these                                  |

Laws:

* One job follows one policy. Where that policy excludes the job, no other one attaches it.
* A field that the IdlePolicy leaves out is the one of the ClusterIdlePolicy that the job would follow without it, then
  the one of the settings. Where neither says anything `mode` is Observe and `actuator` is KEDA.
* What is not known never widens a policy: a selector that asks for GPU models does not match a job whose models are
  unknown, and an exclusion that asks for them does.
* A policy that is not valid attaches nothing, and keeps policies after it from attaching what it might select; what is
  attached by it stays attached in mode Observe.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from scaler.idleness.durations import parse_duration
from scaler.idleness.policy import Reclaim, WakeRule, is_any_of, under_pressure_problem, wake_problem
from scaler.kube.scheduling import Selector

DEFAULT_MODE = "observe"
"""The mode of a job of whose policies none names one, as trigger metadata writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What may be attached: the owner of a Kueue Workload with GPUs, or what scales its own pods with GPUs."""

    namespace: str
    api_version: str
    kind: str
    name: str
    uid: str
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations by which its owner asks for something."""
    queue: str = ""
    """The LocalQueue; empty without Kueue."""
    priority_class: str = ""
    gpu_models: frozenset[str] | None = None
    """The models of its GPUs; None while none of them has shown its model."""
    workloads: tuple[str, ...] = ()
    """Names of its Kueue Workloads."""
    problem: str = ""
    """Why it cannot be scaled between 1 and 0, in words; empty where it can."""
    is_remote_copy: bool = False
    """Whether a hub of MultiKueue has created it here: only the hub can suspend it."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """(namespace, API group, kind, name)."""
        return self.namespace, self.api_version.rpartition("/")[0], self.kind, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """All that is given must match; without any every job does. Names are patterns such as `team-*`."""

    namespaces: Selector | None = None
    kinds: tuple[str, ...] = ()
    labels: Selector | None = None
    queues: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()

    def matches(self, job: Job, *, if_unknown: bool) -> bool:
        """`if_unknown` is what a criterion is taken for of which the job's side is not known."""
        return (
            (self.namespaces is None or self.namespaces.matches(job.namespace_labels))
            and (self.labels is None or self.labels.matches(job.labels))
            and _matches(job.kind, self.kinds)
            and _matches(job.queue, self.queues)
            and _matches(job.priority_class, self.priority_classes)
            and self._matches_models(job.gpu_models, if_unknown=if_unknown)
        )

    def _matches_models(self, models: Collection[str] | None, *, if_unknown: bool) -> bool:
        if not self.gpu_models:
            return True
        return if_unknown if models is None else any(is_any_of(each, self.gpu_models) for each in models)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or is_any_of(name, patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    criteria: Criteria
    until: datetime | None = None
    """The end of the exclusion; None: for good."""
    reason: str = ""


class PolicyKind(StrEnum):
    """The nearest first."""

    NAMESPACED = "IdlePolicy"
    CLUSTER = "ClusterIdlePolicy"


PolicyKey = tuple[str, str]
"""(namespace, name); the namespace of a ClusterIdlePolicy is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentPolicy:
    """An IdlePolicy or a ClusterIdlePolicy."""

    namespace: str
    name: str
    precedence: int = 0
    selector: Criteria = Criteria()
    exclude: tuple[Exclusion, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The trigger metadata that it sets."""
    notify: tuple[str, ...] = ()
    """Targets that tell owners. Empty: the policy does not say."""
    actuator: str = ""
    """KEDA or Direct. Empty: the policy does not say."""
    problem: str = ""
    """Why it is not valid, in words; empty where it is. Its selector is then what of it can be read."""

    @property
    def kind(self) -> PolicyKind:
        return PolicyKind.NAMESPACED if self.namespace else PolicyKind.CLUSTER

    @property
    def key(self) -> PolicyKey:
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def asks_for_models(self) -> bool:
        """Whether it depends on the models of a job's GPUs."""
        return any(each.gpu_models for each in (self.selector, *(x.criteria for x in self.exclude)))

    def matches(self, job: Job) -> bool:
        return self.namespace in ("", job.namespace) and self.selector.matches(job, if_unknown=bool(self.problem))

    def exclusion(self, job: Job, now: datetime) -> Exclusion | None:
        return next(
            (
                each
                for each in self.exclude
                if (each.until is None or now < each.until) and each.criteria.matches(job, if_unknown=True)
            ),
            None,
        )


def in_order(policies: Iterable[AttachmentPolicy]) -> list[AttachmentPolicy]:
    """The policies as jobs follow them: those of namespaces first, then by precedence, then by name."""
    return sorted(policies, key=lambda each: (not each.namespace, -each.precedence, each.namespace, each.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a job's policy says of it."""

    policy: AttachmentPolicy
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The trigger metadata of its ScaledObject. Empty where it is excluded."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Which policy each key of the metadata is from."""
    notify: tuple[str, ...] = ()
    actuator: str = "KEDA"
    excluded: Exclusion | None = None
    problem: str = ""
    """Why it must not be attached, in words: the policy is not valid, or what it and the cluster's say together."""

    @property
    def attaches(self) -> bool:
        return self.excluded is None and not self.problem


def followed_policy(job: Job, ordered: Sequence[AttachmentPolicy], now: datetime) -> Followed | None:
    """What the job follows of the policies, which come `in_order`; None where none matches."""
    matching = [each for each in ordered if each.matches(job)]
    if not matching:
        return None
    policy = matching[0]
    if job.is_remote_copy:
        return Followed(policy=policy, excluded=_REMOTE)
    if policy.problem:
        return _observed(policy, policy.problem)
    excluded = policy.exclusion(job, now)
    if excluded is not None:
        return Followed(policy=policy, excluded=excluded)
    return _completed(policy, _completing(job, matching, now))


_REMOTE = Exclusion(criteria=Criteria(), reason="RemoteCopy: a hub of MultiKueue runs it here; suspend it on the hub")


def _completed(policy: AttachmentPolicy, farther: AttachmentPolicy | None) -> Followed:
    metadata, sources = {"mode": DEFAULT_MODE}, {"mode": f"{policy} (default)"}
    for each in (farther, policy):
        if each is not None:
            metadata |= each.metadata
            sources |= dict.fromkeys(each.metadata, str(each))
    for key, other, problem in _problems_of(metadata):
        if sources[key] == str(policy):
            return _observed(policy, f"{key}, with the {other} of {farther}: {problem}")
        del metadata[key], sources[key]  # the policy says otherwise by itself
    notify = policy.notify or (farther.notify if farther is not None else ())
    actuator = policy.actuator or (farther.actuator if farther is not None else "") or "KEDA"
    return Followed(policy=policy, metadata=metadata, sources=sources, notify=notify, actuator=actuator)


def _problems_of(metadata: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Keys whose values, which are valid each, do not go with that of another key: both keys, and what is wrong."""
    idle_after, under_pressure = (metadata.get(each) for each in ("idleAfter", "idleAfterUnderPressure"))
    wake, reclaim = metadata.get("wake"), metadata.get("reclaim")
    found = []
    if idle_after and under_pressure:
        problem = under_pressure_problem(parse_duration(idle_after), parse_duration(under_pressure))
        found.append(("idleAfterUnderPressure", "idleAfter", problem))
    if wake and reclaim:
        found.append(("wake", "reclaim", wake_problem(WakeRule(wake), Reclaim(reclaim))))
    return [each for each in found if each[2]]


def _observed(policy: AttachmentPolicy, problem: str) -> Followed:
    """What has been attached by the policy stays so, without being suspended."""
    return Followed(
        policy=policy,
        metadata={"mode": DEFAULT_MODE},
        sources={"mode": f"{policy} (not valid)"},
        problem=problem,
    )


def _completing(job: Job, matching: Sequence[AttachmentPolicy], now: datetime) -> AttachmentPolicy | None:
    """The ClusterIdlePolicy that fills in what the IdlePolicy leaves out."""
    if not matching[0].namespace:
        return None
    first = next((each for each in matching if not each.namespace), None)
    return first if first and not first.problem and first.exclusion(job, now) is None else None


def next_end(policies: Iterable[AttachmentPolicy], now: datetime) -> datetime | None:
    """When the next exclusion ends."""
    return min((x.until for each in policies for x in each.exclude if x.until and x.until > now), default=None)
