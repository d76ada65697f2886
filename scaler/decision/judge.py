"""What do the GPUs of these pods show, and what is decided from that? The samples with all that is doubted about them.

Whoever asks gets the same answer: ScaledObjects, remote copies of MultiKueue, and pods that nothing scales.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from scaler.decision.decision import Decision
from scaler.decision.gates import decide, needs_verdict
from scaler.decision.inputs import Look, look_at
from scaler.decision.sampling import Sampler
from scaler.decision.scale_targets import ScaleTarget, unknown_target
from scaler.idleness.pods import GpuPod, JudgedBy, judge, judged_by, look
from scaler.idleness.policy import Overrides, Policy, Trust, only_observed, resolve
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import GpuEvidence, GpuVerdicts, Unknown, WorkloadVerdict, distrust, judged_length
from scaler.targets.cluster_state import ClusterState

SINGLE_WITNESS = (
    "one signal alone decides, and no energy counter shows that its exporter still measures; add a second signal or "
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION to the exporter, or set trust.singleWitness in the settings"
)

Looked = Mapping[JudgedBy, GpuVerdicts]
"""The verdicts on GPUs that were looked at together."""


@dataclass(kw_only=True)
class Judge:
    sampler: Sampler
    cluster: ClusterState
    trust: Trust
    defaults: Overrides
    max_view_age: timedelta
    at: datetime | None = field(default=None, init=False)
    """The instant of the last evaluation; None before the first."""
    doubt: Unknown | None = field(default=None, init=False)
    """What the samples of the last tick are not trusted for."""

    @property
    def default_policy(self) -> Policy:
        """The policy of the settings."""
        return resolve(("settings", self.defaults))

    def unseen(self, namespace: str) -> Unknown | None:
        """Why the objects of the namespace are not known."""
        return self.cluster.doubt_in(namespace, self.max_view_age)

    # ---- decisions

    def decide(self, target: ScaleTarget, policy: Policy, at: datetime, looked: Looked | None = None) -> Decision:
        """`looked`: of a look at the pods of several targets, if there was one."""
        if not needs_verdict(target.state):
            return decide(target.state, None, policy=policy, now=at, quiet=target.quiet)
        if target.remote is not None:
            return decide(target.state, target.remote.verdict_by(policy), policy=policy, now=at)
        verdict = self._verdict(target.pods, policy, at, self.doubt or target.demand_doubt, looked)
        if verdict.is_single_witness and not self.trust.single_witness:
            policy = only_observed(policy, SINGLE_WITNESS)
        decision = decide(target.state, verdict, policy=policy, now=at, quiet=target.quiet)
        gpus = _EvidenceNow(self, target.pods, policy, at, len(verdict.gpus))
        return replace(decision, verdict=WorkloadVerdict(verdict=verdict.verdict, gpus=gpus))

    def decide_on(self, namespace: str, target: ScaleTarget, policy: Policy, at: datetime) -> Decision:
        """The decision on a target in that state which no ScaledObject scales. Nothing is done about it."""
        unseen = self.unseen(namespace)
        found = target if unseen is None else replace(unknown_target(unseen), quiet=target.quiet)
        return self.decide(found, policy, at)

    # ---- verdicts

    def look_at(self, asked: Iterable[tuple[Iterable[GpuPod], Policy]], at: datetime) -> Looked:
        """The verdicts on the GPUs of all these pods by these policies, for what judges them one by one."""
        return look(asked, self.sampler.history, trust=self.trust, end=at)

    def look(self, policy: Policy, at: datetime) -> Look:
        """What tells of GPUs that are judged by the policy whether the verdict on them may have changed."""
        return look_at(self.sampler.history, judged_by(policy, self.trust), self.trust, at)

    def evidence(
        self, pods: Sequence[GpuPod], policy: Policy, at: datetime, looked: Looked | None = None
    ) -> Sequence[GpuEvidence]:
        """What the GPUs of these pods show."""
        return self._judge(pods, policy, at, looked).gpus

    def verdict_by_default(self, pod: GpuPod, at: datetime, looked: Looked | None = None) -> WorkloadVerdict:
        """The verdict on a pod that no ScaledObject scales, by the policy of the settings. Nothing is done about it."""
        return self._verdict([pod], self.default_policy, at, self.doubt or self.unseen(pod.namespace), looked)

    def doubt_by_default(self, namespace: str, at: datetime) -> Unknown | None:
        """Why such a verdict on a pod of the namespace is not to be believed, whatever its GPUs show."""
        return self.doubt or self.unseen(namespace) or self._unread(self.default_policy, at)

    def _verdict(
        self, pods: Sequence[GpuPod], policy: Policy, at: datetime, doubt: Unknown | None, looked: Looked | None
    ) -> WorkloadVerdict:
        return distrust(self._judge(pods, policy, at, looked), doubt or self._unread(policy, at))

    def _judge(self, pods: Sequence[GpuPod], policy: Policy, at: datetime, looked: Looked | None) -> WorkloadVerdict:
        """`looked` counts if it was of that instant."""
        found = (looked or {}).get(judged_by(policy, self.trust))
        if found is not None and found.end != at:
            found = None
        history, trust = self.sampler.history, self.trust
        return judge(pods, history, policy=policy, trust=trust, end=at, places=self.cluster, found=found)

    def _unread(self, policy: Policy, at: datetime) -> Unknown | None:
        """Why the window cannot be judged yet: a part of it was not read back since the start, or since it grew."""
        begin, since = at - judged_length(policy=policy, trust=self.trust), self.sampler.since
        if since <= begin:
            return None
        back_to = f"{since:%H:%M:%S} UTC; the window begins at {begin:%H:%M:%S}"
        return Unknown(reason=UnknownReason.COLD_START, message=f"samples were read back to {back_to}")


class _EvidenceNow(Sequence[GpuEvidence]):
    """The GPUs that a decision rests on, which stands while they go on reporting: they are looked up when asked for."""

    __slots__ = ("_at", "_count", "_judge", "_pods", "_policy")

    def __init__(self, judge: Judge, pods: Sequence[GpuPod], policy: Policy, at: datetime, count: int) -> None:
        self._judge, self._pods, self._policy, self._at, self._count = judge, pods, policy, at, count

    def _now(self) -> Sequence[GpuEvidence]:
        return self._judge.evidence(self._pods, self._policy, self._judge.at or self._at)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]

    def __iter__(self) -> Iterator[GpuEvidence]:
        return iter(self._now())
