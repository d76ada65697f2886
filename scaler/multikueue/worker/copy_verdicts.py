"""Are the GPUs of what a hub has dispatched here idle? Judged by the policy that the hub gives, and nothing is done.

| of the Workload                                               | verdict                                  |
|---------------------------------------------------------------|------------------------------------------|
| its policy cannot be used, or asks for more than is kept      | Unknown: InvalidPolicy                   |
| no remote copy of that name is here                           | Unknown: WorkloadMissing                 |
| the copies of the API's objects are stale                     | Unknown: StaleClusterView                |
| not all of its GPU pods run                                   | Unknown: MissingGPUs                     |
| all of them run                                               | as of any workload with that policy here |

Laws:

* The same code judges that judges the workloads of this cluster: samples, pods, what is doubted about either.
* Idle is said only while all of the GPU pods run that the Workload was admitted with.
* `idleSince` is never before work that may have gone unseen: the hub counts a warning only if it was given since.
* `judgedBy` is the policy as the hub wrote it, so that a verdict by another one is not taken for that.
* Entries are written by another cluster: what is wrong with one is its verdict, and the others are judged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
import structlog

from scaler.clock import Turns
from scaler.decision.decision import Decision, Quiet
from scaler.decision.describe import EVIDENCE_LIMIT, evidence
from scaler.decision.judge import Judge
from scaler.decision.scale_targets import ScaleTarget
from scaler.decision.trigger_metadata import parse_metadata, resolve_policy
from scaler.errors import MetadataError
from scaler.idleness.policy import Overrides, Policy
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Idle, Unknown, verdict_name
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.multikueue import OfferedWorkload, OfferPolicy, WorkloadOffer
from scaler.multikueue.worker.fit_answers import EntryKey, entry_key
from scaler.targets.cluster_state import ClusterState
from scaler.targets.target_state import ObservedTarget, state_of
from scaler.targets.workloads import observe

log = structlog.get_logger(__name__)

_MOST_EVIDENCE = 1_000
"""GPUs listed in one status: some 300 bytes each, and an object may have 1.5 MB."""


def policy_of(asked: OfferPolicy, *, longest: timedelta, shortest: timedelta) -> Policy:
    """The policy that the hub gives; what it leaves out is the built-in default. Raises: MetadataError."""
    words = {"idleAfter": asked.idle_after, "warmUp": asked.warm_up, "gpus": asked.gpus}
    if not asked.idle_after:
        raise MetadataError("idleAfter is missing; write for example '30m'")
    ratio = asked.active_above
    if ratio is not None and not 0 < ratio <= 1:
        raise MetadataError(f"activeAbove is {ratio:g}; write a ratio above 0 and up to 1")
    overrides = parse_metadata({key: text for key, text in words.items() if text})
    given = [("the hub", overrides), ("the hub", Overrides(active_above_ratio=ratio))]
    return resolve_policy(given, (), defaults=Overrides(), longest=longest, shortest=shortest)


def longest_window(entries: Iterable[OfferedWorkload], *, longest: timedelta, shortest: timedelta) -> timedelta:
    """The longest window that samples have to be kept for; of policies that cannot be used nothing is kept."""
    found = timedelta(0)
    for asked in {msgspec.json.encode(each.policy): each.policy for each in entries if each.policy}.values():
        try:
            found = max(found, policy_of(asked, longest=longest, shortest=shortest).window)
        except MetadataError:
            continue
    return found


@dataclass(kw_only=True)
class CopyVerdicts:
    judge: Judge
    cluster: ClusterState
    max_window: timedelta
    _quiet: dict[EntryKey, Quiet | None] = field(default_factory=dict, init=False)
    """What the last verdicts leave to know of their quiet."""

    async def verdicts(self, entries: Iterable[OfferedWorkload], at: datetime) -> Mapping[EntryKey, WorkloadOffer]:
        """The verdicts on all that have a policy, as of the evaluation of that instant."""
        asked, turns, found = [each for each in entries if each.policy is not None], Turns(), {}
        shown = min(EVIDENCE_LIMIT, max(1, _MOST_EVIDENCE // max(1, len(asked))))
        for each in asked:
            found[entry_key(each)] = self._judged(each, at, shown)
            await turns.give_way()
        self._quiet = {key: self._quiet.get(key) for key in found}
        return found

    def _judged(self, entry: OfferedWorkload, at: datetime, shown: int) -> WorkloadOffer:
        try:
            return self._judge(entry, entry.policy or OfferPolicy(), at, shown)
        except MetadataError as error:
            return _unknown(entry, UnknownReason.INVALID_POLICY, str(error))
        except Exception as error:
            log.exception("a remote copy could not be judged", workload="/".join(entry.key))
            return _unknown(entry, UnknownReason.INVALID_POLICY, f"internal error: {error!r}")

    def _judge(self, entry: OfferedWorkload, asked: OfferPolicy, at: datetime, shown: int) -> WorkloadOffer:
        """Raises: MetadataError."""
        policy = policy_of(asked, longest=self.max_window, shortest=self.judge.trust.interval)
        workload = self.cluster.workloads.get(*entry.key)
        if workload is None or not workload.is_remote_copy:
            return _unknown(entry, UnknownReason.WORKLOAD_MISSING, "no remote copy of that name is here")
        decision, gpus = self._decided(workload, policy, at, self._quiet.get(entry_key(entry)))
        self._quiet[entry_key(entry)] = decision.quiet_until(at)
        return _shown(entry, decision, gpus, shown)

    def _decided(self, workload: Workload, policy: Policy, at: datetime, quiet: Quiet | None) -> tuple[Decision, int]:
        """What would be decided about it if it was no remote copy, and the GPUs that it holds."""
        pods = self.cluster.pods_of_workload(workload)
        observed = replace(observe(workload, self.cluster.gpus), is_remote_copy=False)
        state = state_of(ObservedTarget(desired_replicas=1, workload=observed, pods=pods))
        target = ScaleTarget(state=state, pods=pods, quiet=quiet)
        decision = self.judge.decide_on(workload.metadata.namespace, target, policy, at)
        return decision, sum(pod.gpus for pod in pods if pod.holds_gpus)


def _shown(entry: OfferedWorkload, decision: Decision, gpus: int, shown: int) -> WorkloadOffer:
    target = decision.target
    if isinstance(decision.answer, Unknown) and decision.verdict is None:
        found = _unknown(entry, decision.answer.reason, decision.answer.message)
    elif decision.verdict is None or target.running_since is None:
        found = _unknown(entry, UnknownReason.MISSING_GPUS, target.message or decision.answer.message)
    elif decision.policy.observed_because and isinstance(decision.verdict.verdict, Idle):
        found = _unknown(entry, UnknownReason.NO_SAMPLES, decision.policy.observed_because)
    else:
        verdict = decision.verdict.verdict
        doubt = verdict if isinstance(verdict, Unknown) else None
        found = WorkloadOffer(
            namespace=entry.namespace,
            name=entry.name,
            uid=entry.uid,
            verdict=verdict_name(verdict),
            reason=str(doubt.reason) if doubt is not None else "",
            verdict_message=doubt.message[:1024] if doubt is not None else "",
            judged_by=entry.policy,
            idle_since=decision.idle_since,
            idle_at_least=decision.idle_at_least,
            running_since=target.running_since,
            evidence=tuple(msgspec.Raw(msgspec.json.encode(each)) for each in evidence(decision.verdict)[:shown]),
        )
    return msgspec.structs.replace(found, gpus=gpus)


def _unknown(entry: OfferedWorkload, reason: UnknownReason, message: str) -> WorkloadOffer:
    return WorkloadOffer(
        namespace=entry.namespace,
        name=entry.name,
        uid=entry.uid,
        verdict="Unknown",
        reason=str(reason),
        verdict_message=message[:1024],
        judged_by=entry.policy,
    )
