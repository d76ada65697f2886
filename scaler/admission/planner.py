"""Reads what an admission plan depends on, and makes the plan. Any replica can: nothing is written here."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scaler.admission.check import ReservedWorkload, TerminatingPods
from scaler.admission.checks import ReclaimPolicies, policy_of
from scaler.admission.next_admittable import QuotaTree, quota_tree_of
from scaler.admission.plan import AdmissionInputs, AdmissionPlan, CheckedWorkload, CheckKey, plan
from scaler.admission.policy import CheckPolicy
from scaler.admission.provisioning.lifecycle import ObservedRequest, RequestState
from scaler.admission.provisioning.requests import (
    WORKLOAD_ANNOTATION,
    WORKLOAD_UID_LABEL,
    Flavors,
    check_of,
    provisioning_inputs_of,
    ready_updates,
    request_of,
)
from scaler.admission.provisioning.watch import RequestWatch
from scaler.admission.remote_copies import NominatedCopies
from scaler.admission.terminating_pods import Donor, TerminatingPodIndex
from scaler.admission.watch import AdmissionWatch
from scaler.admission.workload import reserved_workload_of
from scaler.kube.objects.kueue_queues import AdmissionCheck
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import ProvisioningRequest
from scaler.placement.capacity import Capacity
from scaler.placement.requests import ReservationQueue
from scaler.quota.snapshot import Snapshot
from scaler.quota.watch import NotSynced

DECIDED_WITHIN = timedelta(seconds=15)
"""Plans for all that lack nodes are made within one tick or two, five seconds apart; where verdicts are missing, or
another plan is being executed, none may come for long."""


class ReclaimAnswers:
    """Whether it is decided if idle workloads are suspended for a Workload that lacks nodes.

    Nodes are not requested before that, but for no longer than it takes. Admission says which Workloads lack nodes,
    reclaim writes what it has decided; both hold the same object. Subscribers are called when one is decided.
    """

    def __init__(self, *, is_planning: bool = True) -> None:
        """`is_planning` is False where reclaim plans are off: no decision is waited for."""
        self._is_planning = is_planning
        self._subscribers: list[Callable[[], None]] = []
        self._since: dict[str, datetime] = {}
        """When each Workload began to lack nodes, by its uid."""
        self._decided: set[str] = set()

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._subscribers.append(callback)

    def lacking(self, uids: Collection[str], now: datetime) -> None:
        """These lack nodes now. What was decided for others does not hold for the next time that they do."""
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        self._decided &= self._since.keys()

    def decided(self, uid: str) -> None:
        """It is known whether idle workloads are suspended for that Workload."""
        if uid in self._since and uid not in self._decided:
            self._decided.add(uid)
            for callback in self._subscribers:
                callback()

    def is_pending(self, uid: str, now: datetime) -> bool:
        """Whether it is not decided yet."""
        return self._is_planning and uid not in self._decided and now - self._since.get(uid, now) < DECIDED_WITHIN


@dataclass(slots=True)
class LeaderState:
    """What only the leader knows. Empty on other replicas."""

    doubt: str = ""
    """Why it is not known which Workloads were released; empty where it is."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why a Workload's ProvisioningRequests are not written for a while, by its uid."""
    answers: ReclaimAnswers | None = None
    """The decisions of reclaim plans; None where nothing is reclaimed for Workloads that lack nodes."""

    def clear(self) -> None:
        """Another replica leads."""
        self.doubt, self.refusals, self.answers = "", {}, None


class AdmissionPlanner:
    """`capacity` gives what nodes have free, `quota` what Kueue has, `nominations` for which remote copies nodes may be
    requested."""

    def __init__(
        self,
        watch: AdmissionWatch,
        terminating: TerminatingPodIndex,
        policies: ReclaimPolicies,
        requests: RequestWatch,
        flavors: Flavors,
        *,
        capacity: Callable[[], Capacity | NotSynced],
        quota: Callable[[], Snapshot | NotSynced],
        nominations: Callable[[], NominatedCopies] = NominatedCopies,
    ) -> None:
        self.watch = watch
        self._terminating = terminating
        self._policies = policies
        self.requests = requests
        self.flavors = flavors
        self._capacity = capacity
        self._quota = quota
        self._nominations = nominations
        self._trees: dict[str, QuotaTree] = {}
        """The trees as they were last observed, by their roots."""
        self.leader = LeaderState()
        self.latest: AdmissionPlan | None = None

    async def plan(self, now: datetime) -> AdmissionPlan:
        """What is to be written now. Computed in a thread: the event loop serves KEDA meanwhile."""
        self.latest = await asyncio.to_thread(plan, self.inputs(now))
        return self.latest

    def reservation_queue(self, now: datetime) -> ReservationQueue | NotSynced:
        """All Workloads that need nodes at this moment, and what these have free; or why that is not known."""
        inputs = self.inputs(now)
        steps = {each.name: each.step for each in self.latest.workloads} if self.latest is not None else {}
        return inputs.reservation_queue(
            replace(each, step=steps.get(each.name, each.step)) for each in inputs.workloads
        )

    # -------------------------------------------------------------------------------------------------------- reading

    def inputs(self, now: datetime) -> AdmissionInputs:
        """All that the plan depends on, as it is at this moment."""
        donors = self._terminating.donors(now)
        unclaimed = self._terminating.of_unknown_preemptor(now)
        nominations = self._nominations()
        found = tuple(
            self._checked(*each, donors, unclaimed, now, nominations=nominations) for each in self.watch.reserved()
        )
        return AdmissionInputs(
            at=now,
            capacity=self._known_capacity(),
            workloads=found,
            without_quota=tuple(self._without_quota({each.name for each in found}, now)),
            released=tuple(self.watch.released()),
            stuck=tuple(self._terminating.stuck(now)),
            terminating_on=self._terminating.by_node(),
            nodes=self.watch.nodes() if any(each.requests for each in found) else {},
            unknown_requests=self.requests.trouble,
        )

    def _without_quota(self, known: Collection[CheckKey], now: datetime) -> Iterator[CheckedWorkload]:
        """Workloads that have requests for a check of ours, and not quota and that check."""
        requested = {
            (
                f"{each.metadata.namespace}/{each.metadata.annotations.get(WORKLOAD_ANNOTATION, '')}",
                check_of(each),
            ): each
            for each in self.requests.items()
        }
        for (key, check), request in requested.items():
            workload = self.watch.workload(key) if (key, check) not in known else None
            if workload is not None and workload.metadata.uid == request.metadata.labels.get(WORKLOAD_UID_LABEL):
                reserved = reserved_workload_of(workload, check)
                found = CheckedWorkload(workload=workload, check=check, policy=CheckPolicy(), reserved=reserved)
                yield self.with_requests(found, now)

    def _known_capacity(self) -> Capacity | NotSynced:
        """What nodes have free, where it is also known which Workloads have quota and which were released."""
        capacity, reason = self._capacity(), self.watch.unseen or self.leader.doubt
        return NotSynced(reason) if reason and isinstance(capacity, Capacity) else capacity

    def _checked(
        self,
        workload: Workload,
        check: AdmissionCheck,
        donors: Mapping[str, Sequence[Donor]],
        unclaimed: Sequence[TerminatingPods],
        now: datetime,
        *,
        nominations: NominatedCopies,
    ) -> CheckedWorkload:
        policy, reserved = policy_of(check, self._policies), reserved_workload_of(workload, check.metadata.name)
        found = CheckedWorkload(
            workload=workload,
            check=check.metadata.name,
            policy=policy,
            policy_name=check.spec.parameters.name if check.spec.parameters is not None else "",
            reserved=reserved,
            runs_elsewhere=self.watch.runs_elsewhere(workload),
            remote_copy=nominations.why_not(workload),
        )
        found = self.with_requests(found, now)
        return self._with_needs(found, donors.get(reserved.key, ()), unclaimed, now) if reserved.waits else found

    def _with_needs(
        self, each: CheckedWorkload, donors: Sequence[Donor], unclaimed: Sequence[TerminatingPods], now: datetime
    ) -> CheckedWorkload:
        """The waiting Workload with what it needs, and what happens for it."""
        waits_for_pods = isinstance(each.policy, CheckPolicy) and each.policy.wait_for_pods_gone
        answers = self.leader.answers
        return replace(
            each,
            demands=self.watch.needs(each.workload),
            terminating=self._pods_left(each.reserved, donors, unclaimed, now) if waits_for_pods else (),
            has_earlier_run=self.watch.has_earlier_run(each.workload),
            reclaim=_plan_message(donors),
            is_reclaim_pending=answers is not None and answers.is_pending(each.uid, now),
        )

    def _pods_left(
        self,
        reserved: ReservedWorkload,
        donors: Sequence[Donor],
        unclaimed: Sequence[TerminatingPods],
        now: datetime,
    ) -> tuple[TerminatingPods, ...]:
        """Pods of Workloads that released quota for it: suspended by a reclaim plan, or preempted by Kueue."""
        left = [each.left for each in donors if each.left is not None]
        left += [*self._terminating.terminating_preempted_for(reserved.uid, now), *unclaimed]
        return tuple({each.owner: each for each in left}.values())

    def with_requests(self, each: CheckedWorkload, now: datetime) -> CheckedWorkload:
        """The Workload with its ProvisioningRequests, and what can follow from them."""
        requests = requests_of(self.requests, each.workload, each.check)
        if each.provisioning_policy is None and not requests:
            return each
        observed = tuple(self._observed(each, request) for request in requests.values())
        return replace(
            each,
            provisioning=provisioning_inputs_of(each.workload, each.reserved, each.provisioning_policy),
            requests=requests,
            observed=observed,
            refused=self.leader.refusals.get(each.uid, ""),
            quota_tree=self._quota_tree(each, now) if requests else None,
        )

    def _observed(self, each: CheckedWorkload, request: ProvisioningRequest) -> ObservedRequest:
        """The request; where it is provisioned, with the updates of its pods that let them use it."""
        found, policy = request_of(request), each.provisioning_policy
        if policy is None or found.state is not RequestState.PROVISIONED:
            return found
        updates, left_out = ready_updates(request, each.workload, policy, self.flavors)
        return replace(found, updates=updates, left_out=left_out)

    def _quota_tree(self, each: CheckedWorkload, now: datetime) -> QuotaTree | None:
        """The tree that its quota is in; None where it may not return that."""
        policy, quota = each.provisioning_policy, self._quota()
        if policy is None or not policy.yields_at_limit or isinstance(quota, NotSynced):
            return None
        if not (each.reserved.waits and each.reserved.may_yield(now)):
            return None
        return quota_tree_of(each.key, quota, self._trees, now)


def requests_of(requests: RequestWatch, workload: Workload, check: str) -> dict[str, ProvisioningRequest]:
    """The requests that were made for the Workload because of the check, by name."""
    found = requests.of_workload(workload.metadata.uid)
    namespace = workload.metadata.namespace
    return {
        each.metadata.name: each for each in found if check_of(each) == check and each.metadata.namespace == namespace
    }


def _plan_message(donors: Sequence[Donor]) -> str:
    """The plan that is being executed, in words; empty where there is none, or it is done."""
    working = [each for each in donors if not each.is_done]
    if not working:
        return ""
    return f"plan {working[0].plan} frees GPUs of {', '.join(each.name for each in working)}"
