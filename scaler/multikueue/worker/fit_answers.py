"""How would the Workloads of the hub fit that this cluster is asked about? Asks the planner, writes nothing.

| the Workload is                       | asked is about                                                               |
|---------------------------------------|------------------------------------------------------------------------------|
| not here                              | the copy that the hub would create: the newest in its queue                  |
| here as a remote copy, without quota  | that copy; a plan that is active for it is its answer                        |
| here as a remote copy, with quota     | its nodes, as far as our AdmissionCheck waits for them                       |
| here, and no remote copy              | nothing: another Workload has its name                                       |

Laws:

* Answers are of the present: one that rests on another state than the present one is never given again. What there was
  no time for is Unknown, and is the first to be asked the next time.
* KEDA comes first: each answer is computed in a thread, on copies, and others have their turns in between.
* Entries are written by another cluster: what is wrong with one is its answer, and the others are answered.

A copy is the newest in its queue because the API server dates it: Kueue keeps labels, annotations and the spec of the
hub's Workload, and not its age. Source: Kueue, multikueue/workload.go (cloneForCreate).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import monotonic

import structlog

from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.kueue_workloads import MULTIKUEUE_ORIGIN, Workload, WorkloadSpec
from scaler.kube.objects.multikueue import OfferedWorkload, OfferRequest
from scaler.multikueue.cluster_offer import Fit
from scaler.multikueue.worker.fit import FitAnswer, FitQuestion, answer, queued, refusal
from scaler.multikueue.worker.unplaced_pods import with_unplaced_pods
from scaler.placement.capacity import Capacity
from scaler.quota.model import PROVISIONING, QuotaWorkload
from scaler.reclaim.active_plans import ActivePlan, active_plans
from scaler.reclaim.candidates import gpus_of
from scaler.reclaim.executor import fingerprint
from scaler.reclaim.planner import Planner, PlanningSnapshot, Unprotected
from scaler.reclaim.search.values import Candidate, NoPlan, NoPlanReason, ReclaimPlan
from scaler.reclaim.targets import NodeShortage
from scaler.reclaim.transitions import GangState

log = structlog.get_logger(__name__)

LONGEST_PATIENCE = timedelta(seconds=4)
_MOST_PODS = 100_000
"""Pods of one PodSet: far more than any cluster runs."""
_NOT_YET = FitAnswer(fit=Fit.UNKNOWN, message="not computed yet for the present state")
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

EntryKey = tuple[str, str, str]
"""Namespace, name and uid of a Workload of the hub."""


def entry_key(entry: OfferedWorkload) -> EntryKey:
    return entry.namespace, entry.name, entry.uid


@dataclass(frozen=True, kw_only=True)
class _Present:
    """What all answers of one tick are made from."""

    state: PlanningSnapshot
    candidates: Sequence[Candidate]
    """The workloads that plans may take; none where no plans are made."""
    plans: Sequence[ActivePlan]
    capacity: Capacity | None
    """What nodes have free, also where plans do not ask; None where that is not known."""
    left: Capacity | None
    """What is left once all pods run that have quota; None where they do already, or it is not known."""

    def plan_for(self, gang: QuotaWorkload | None) -> ActivePlan | None:
        return next((each for each in self.plans if gang is not None and each.grant.gang_uid == gang.uid), None)

    def of_tree(self, cluster_queue: str) -> object:
        """Equal only while answers about Workloads of that ClusterQueue are to be the same."""
        tree = self.state.snapshot.tree_of(cluster_queue)
        version = self.state.snapshot.version(tree) if tree is not None else 0
        left = self.left.free if self.left is not None else None
        others = frozenset(self.state.remote_copies), fingerprint(self.state, self.candidates)
        return version, id(self.capacity), self.capacity, left, others  # a capacity is equal to itself only

    def as_if_nominated(self, key: str) -> PlanningSnapshot:
        """The snapshot if the hub had nominated this cluster for that copy: idle workloads may be suspended for it."""
        others = {name: why for name, why in self.state.remote_copies.items() if name != key}
        return replace(self.state, remote_copies=others)


@dataclass(kw_only=True)
class FitAnswers:
    """`patience` is how long it asks in one tick; one is asked about in any case."""

    planning: Planner
    nodes: NodeShortage
    """The target for copies that have quota and wait for our AdmissionCheck."""
    checks_with_reuse: Callable[[], Collection[str]] = frozenset
    """The AdmissionChecks for which idle workloads are suspended where a gang with quota lacks nodes."""
    is_due: Callable[[str, datetime], bool] = lambda _name, _now: True
    """Whether the ScalableWorkload of that name may be part of a plan at that moment."""
    patience: timedelta = LONGEST_PATIENCE
    _known: dict[EntryKey, tuple[object, FitAnswer]] = field(default_factory=dict, init=False)
    """The answers with what each rests on."""
    _alike: list[tuple[object, FitAnswer]] = field(default_factory=list, init=False)
    """Answers of this tick, which are the same for copies that are alike."""
    _answered_at: dict[EntryKey, datetime] = field(default_factory=dict, init=False)

    async def answers(
        self, state: PlanningSnapshot, entries: Iterable[OfferedWorkload]
    ) -> Mapping[EntryKey, FitAnswer]:
        """The answers by entry, for all that have a request."""
        asked = {entry_key(each): each for each in entries if each.request is not None}
        self._forget_others(asked)
        if not asked:
            return {}
        present = await self._present(state)
        found, ends, is_first = dict.fromkeys(asked, _NOT_YET), monotonic() + self.patience.total_seconds(), True
        for key in sorted(asked, key=lambda each: self._turn(asked[each])):
            seen = self._rests_on(present, asked[key])
            known = self._known.get(key)
            if known is not None and known[0] == seen:
                found[key] = known[1]
            elif is_first or monotonic() < ends:
                is_first = False
                found[key] = await self._asked(present, asked[key])
                self._known[key], self._answered_at[key] = (seen, found[key]), state.now
        return found

    def _forget_others(self, keys: Collection[EntryKey]) -> None:
        self._alike = []
        self._known = {key: known for key, known in self._known.items() if key in keys}
        self._answered_at = {key: at for key, at in self._answered_at.items() if key in keys}

    def _turn(self, entry: OfferedWorkload) -> tuple[datetime, int, str]:
        """The key of its turn: those that were answered longest ago come first, and of these the highest priority."""
        key, request = entry_key(entry), entry.request or OfferRequest()
        return self._answered_at.get(key, _LONG_AGO), -request.priority, "/".join(key)

    async def _present(self, state: PlanningSnapshot) -> _Present:
        found = state.capacity or self.planning.capacity()
        capacity = found if isinstance(found, Capacity) else None
        nominations = self.planning.nominations()
        plans = active_plans(self.planning.cluster, state.evaluation, nominations=nominations)
        candidates = state.candidates if self.planning.policy.pressure else ()
        return _Present(
            state=state,
            candidates=[each for each in candidates if self.is_due(each.name, state.now)],
            plans=[each for each in plans if each.gang_state is not GangState.GONE],
            capacity=capacity,
            left=await self._left_of(capacity, state) if capacity is not None else None,
        )

    async def _left_of(self, capacity: Capacity, state: PlanningSnapshot) -> Capacity | None:
        holders, flavors = [*state.snapshot.reserved], dict(state.snapshot.flavors)
        is_gpu = self.planning.cluster.gpus.matches
        left = await asyncio.to_thread(with_unplaced_pods, capacity, holders, flavors, is_gpu)
        return left if left is not capacity else None

    def _rests_on(self, present: _Present, entry: OfferedWorkload) -> object:
        """Equal only while the answer is to be the same. A Workload is equal to itself only."""
        state = present.state
        here = state.snapshot.workload("/".join(entry.key))
        plan = present.plan_for(here)
        nodes = self.nodes.inputs(state, here) if here is not None and here.reservation is not None else None
        of_tree = present.of_tree(_queue_of(state, entry, here))
        return entry.request, here, plan.grant.plan if plan is not None else "", nodes, of_tree

    # ------------------------------------------------------------------------------------------------------- one entry

    async def _asked(self, present: _Present, entry: OfferedWorkload) -> FitAnswer:
        try:
            return await self._answer(present, entry)
        except Exception as error:
            log.exception("a Workload of the hub could not be answered", workload="/".join(entry.key))
            return FitAnswer(fit=Fit.UNKNOWN, message=f"internal error: {error!r}"[:200])

    async def _answer(self, present: _Present, entry: OfferedWorkload) -> FitAnswer:
        key, observed = "/".join(entry.key), self.planning.cluster.workloads.get(*entry.key)
        if observed is not None and not observed.is_remote_copy:
            return FitAnswer(fit=Fit.UNKNOWN, message="another Workload of that name is here, which no hub created")
        here = present.state.snapshot.workload(key) if observed is not None else None
        if here is None:
            return await self._answer_absent(present, entry)
        if (plan := present.plan_for(here)) is not None:
            message = f"plan {plan.grant.plan} for it is carried out"
            return FitAnswer(fit=Fit.RECLAIM, message=message, cost=0, victims=plan.grant.victims)
        present = replace(present, state=present.as_if_nominated(key))
        if here.reservation is not None:
            return await self._answer_reserved(present, here)
        return await self._computed(present, here)

    async def _answer_absent(self, present: _Present, entry: OfferedWorkload) -> FitAnswer:
        gang = self._as_copy(entry, present.state.now)
        if isinstance(gang, str):
            return FitAnswer(fit=Fit.UNKNOWN, message=gang)
        of_tree = present.of_tree(_queue_of(present.state, entry, None))
        alike = gang.namespace, gang.queue, gang.shape, gang.invalid_because, of_tree
        found = next((known for seen, known in self._alike if seen == alike), None)
        if found is None:
            found = await self._computed(present, gang)
            self._alike.append((alike, found))
        return found

    async def _computed(self, present: _Present, gang: QuotaWorkload) -> FitAnswer:
        """The answer for one without quota, as the planner gives it."""
        # Plans are made only for Workloads that wait for GPUs.
        candidates = present.candidates if gpus_of(gang, self.planning.cluster) else ()
        request = self.planning.request(present.state, gang, candidates)
        if isinstance(request, NoPlan):
            return refusal(request)
        question = FitQuestion(
            request=queued(request),
            is_gpu=self.planning.cluster.gpus.matches,
            capacity=present.capacity,
            left=present.left,
            adds_nodes=self._adds_nodes(present.state, gang),
            reuses_nodes=bool(self._on_all_flavors(present.state, gang, frozenset(self.checks_with_reuse()))),
            refuses_unprotected=self.planning.policy.unprotected is Unprotected.REFUSE,
        )
        return await asyncio.to_thread(answer, question)

    def _as_copy(self, entry: OfferedWorkload, now: datetime) -> QuotaWorkload | str:
        """The copy that the hub would create, or why it cannot be known."""
        request = entry.request or OfferRequest()
        if not request.pod_sets or not all(0 < each.count <= _MOST_PODS for each in request.pod_sets):
            return f"every PodSet of a request has 1 to {_MOST_PODS} pods, and there is one at least"
        found = self.planning.view.if_active(
            Workload(
                metadata=ObjectMeta(
                    namespace=entry.namespace,
                    name=entry.name,
                    uid=entry.uid,
                    generation=1,
                    creation_timestamp=now,
                    labels={MULTIKUEUE_ORIGIN: "hub"},
                ),
                spec=WorkloadSpec(queue_name=request.queue_name, priority=request.priority, pod_sets=request.pod_sets),
            )
        )
        return found if found is not None else "it cannot be read"

    async def _answer_reserved(self, present: _Present, gang: QuotaWorkload) -> FitAnswer:
        """It has its quota. Where our AdmissionCheck waits for nodes, these are what it lacks."""
        state = present.state
        if gang.admitted or gang.uid not in self.nodes.lacking(state.now):
            return FitAnswer(fit=Fit.FREE, message="it holds quota here", free_after=self._free_of(state, gang))
        found = await self.nodes.plan(state, gang, present.candidates)
        if isinstance(found, ReclaimPlan):
            victims = tuple(each.name for each in found.victims)
            return FitAnswer(fit=Fit.RECLAIM, message="a plan frees nodes for it", cost=found.cost, victims=victims)
        if found.why is NoPlanReason.FITS_ALREADY:
            return FitAnswer(fit=Fit.RECLAIM, message=found.message, cost=0)
        adds_nodes = self._adds_nodes(state, gang)
        return FitAnswer(fit=Fit.NODES, message=adds_nodes) if adds_nodes else refusal(found)

    def _free_of(self, state: PlanningSnapshot, gang: QuotaWorkload) -> int | None:
        tree = state.tree_of(gang)
        queue = tree.queues.get(gang.held.cluster_queue) if tree is not None else None
        matches = self.planning.cluster.gpus.matches
        return sum(queue.available(key) for key in queue.quotas if matches(key.resource)) if queue is not None else None

    # ------------------------------------------------------------------------------------------------------- new nodes

    def _adds_nodes(self, state: PlanningSnapshot, gang: QuotaWorkload) -> str:
        """What adds nodes for it on whatever flavor, in words; empty where nothing does."""
        if not self.planning.policy.consider_nodes:
            return "an autoscaler adds nodes (reclaim.considerNodes is off)"
        ours = self._on_all_flavors(state, gang, frozenset(self.planning.checks_with_provisioning()))
        kueues = self._on_all_flavors(state, gang, state.snapshot.checks_of(PROVISIONING))
        return f"AdmissionCheck {min(ours or kueues)} requests nodes" if ours or kueues else ""

    def _on_all_flavors(self, state: PlanningSnapshot, gang: QuotaWorkload, checks: frozenset[str]) -> Collection[str]:
        """The checks among these that its ClusterQueue has; none where a flavor of it has none of them."""
        queue = state.snapshot.cluster_queues.get(state.snapshot.cluster_queue_of(gang))
        if queue is None or not all(checks & queue.checks_on({flavor}) for flavor in queue.flavors):
            return ()
        return checks & queue.checks


def _queue_of(state: PlanningSnapshot, entry: OfferedWorkload, here: QuotaWorkload | None) -> str:
    if here is not None:
        return state.snapshot.cluster_queue_of(here)
    local = state.snapshot.local_queue(entry.namespace, entry.request.queue_name if entry.request else "")
    return local.cluster_queue if local is not None else ""
