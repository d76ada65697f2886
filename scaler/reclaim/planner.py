"""Which workloads would be suspended for which gang in the current state? Reads and computes, and writes nothing.

The leader executes its plans; the CLI and the HTTP pages show them. Plans take up to a second of computing, so they are
made on copies, in a thread, while KEDA goes on getting its answers; and what they are made from is found in steps.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from scaler.admission.remote_copies import NominatedCopies, words
from scaler.decision.decision_cache import DecisionCache, Evaluation
from scaler.idleness.verdict import Unknown
from scaler.placement.capacity import Capacity
from scaler.quota.model import QuotaWorkload
from scaler.quota.preemption.fair_sharing import DEFAULT_STRATEGIES, PreemptionStrategy
from scaler.quota.snapshot import LocalQueueKey, Snapshot
from scaler.quota.tree import Tree
from scaler.quota.watch import NotSynced, QuotaWatch
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.budget import Key, Spending, budget_check
from scaler.reclaim.candidates import (
    anti_affinity_nodes,
    find_candidates,
    gpus_of,
    waits_for_gpus,
)
from scaler.reclaim.costs import CostWeights, cost_of
from scaler.reclaim.policy_budgets import PolicyBudgets
from scaler.reclaim.search.problem import DEFAULT_LIMITS, SearchLimits
from scaler.reclaim.search.quota_problem import plan_reclaim
from scaler.reclaim.search.values import (
    AntiAffinityNodes,
    Candidate,
    NoPlan,
    NoPlanReason,
    PlanningTree,
    PlanRequest,
    ReclaimPlan,
)
from scaler.suspension.priority_boost import PriorityBoost
from scaler.targets.cluster_state import ClusterState
from scaler.targets.workloads import grant_of


class Unprotected(StrEnum):
    """What becomes of a plan whose freed quota newcomers may take, in a BestEffortFIFO queue or from the cohort."""

    WARN = "Warn"
    REFUSE = "Refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimConfig:
    pressure: bool = True
    """Whether plans are made at all. Without them `reclaim: OnPressure` suspends no workload."""
    grant_for: timedelta = timedelta(minutes=10)
    """How long a plan's victims may be taken: longer than `pollingInterval` and `cooldownPeriod`, until which KEDA does
    not scale to 0. Its own defaults need 30 s + 5 min."""
    limits: SearchLimits = DEFAULT_LIMITS
    consider_nodes: bool = True
    """Whether the gang's pods must fit the nodes as they are. Off where an autoscaler adds nodes as they are needed: of
    AdmissionChecks of ours that ask for nodes plans know."""
    weights: CostWeights = CostWeights()  # noqa: RUF009 - frozen
    unprotected: Unprotected = Unprotected.WARN
    fair_sharing: bool = False
    """Whether Kueue shares fairly. It cannot be read from Kueue, and without it predictions are wrong."""
    strategies: tuple[PreemptionStrategy, ...] = DEFAULT_STRATEGIES
    """Kueue's preemption strategies; of no effect without fair sharing."""
    boost: PriorityBoost = PriorityBoost()  # noqa: RUF009 - frozen
    replan_backoff: timedelta = timedelta(minutes=1)
    """Least time between two plans for the same gang, so that one that fails does not wear out every idle workload."""
    hooks: Mapping[str, timedelta] = field(default_factory=dict)
    """How long each hook may take that has to end before a workload is suspended, by name."""


@dataclass(frozen=True, kw_only=True)
class PlanningSnapshot:
    snapshot: Snapshot
    evaluation: Evaluation
    candidates: tuple[Candidate, ...]
    leaving: frozenset[str]
    spending: Spending
    capacity: Capacity | None
    """What nodes have free; None where that is not known, or does not matter."""
    now: datetime
    nodes_unseen: str = ""
    """Why it is not known where pods fit, although plans depend on it; empty where it is."""
    waiting: Mapping[LocalQueueKey, Sequence[QuotaWorkload]] = field(default_factory=dict)
    """All Workloads without quota, by LocalQueue, in the order of queues."""
    marked: AntiAffinityNodes = field(default_factory=dict)
    """Which nodes have pods that others keep away from, where it is known what nodes have free."""
    remote_copies: Mapping[str, str | Unknown] = field(default_factory=dict)
    """Why nothing may be suspended for a remote copy, or why that is not known, by its key."""

    def why_not(self, gang: QuotaWorkload) -> NoPlan | None:
        """Why nothing is suspended for it, of a remote copy; None where something may be."""
        match self.remote_copies.get(gang.key, ""):
            case Unknown(message=message):
                return NoPlan(gang=gang.key, why=NoPlanReason.UNFORESEEABLE, message=message)
            case "":
                return None
            case why:
                return NoPlan(gang=gang.key, why=NoPlanReason.REMOTE_COPY, message=why)

    def dispatches(self, gang: QuotaWorkload) -> bool:
        """Whether MultiKueue runs it on another cluster: then it needs no nodes of this one."""
        return self.snapshot.dispatches(self.snapshot.cluster_queue_of(gang))

    def tree_of(self, gang: QuotaWorkload) -> Tree | None:
        return self.snapshot.tree_of(self.snapshot.cluster_queue_of(gang))


@dataclass
class Planner:
    cluster: ClusterState
    decisions: DecisionCache
    view: QuotaWatch
    policy: ReclaimConfig
    max_age: timedelta = field(kw_only=True)
    """How old verdicts may be on which workloads are suspended."""
    capacity: Callable[[], Capacity | NotSynced] = field(
        kw_only=True, default=lambda: NotSynced("nodes are not watched")
    )
    """What nodes have free; where that is not known nothing is planned."""
    checks_with_provisioning: Callable[[], Collection[str]] = field(kw_only=True, default=frozenset)
    """The AdmissionChecks that hold gangs back until they fit, and request the nodes that are missing."""
    nominations: Callable[[], NominatedCopies] = field(kw_only=True, default=NominatedCopies)
    """What says which remote copies of MultiKueue workloads may be suspended."""
    policy_budgets: PolicyBudgets = field(init=False)
    _planning_trees: dict[tuple[str, bool], tuple[PlanningTree, object]] = field(init=False, default_factory=dict)
    """The PlanningTree, and what it was made from, by the root of the tree and whether nodes count."""

    def __post_init__(self) -> None:
        self.policy_budgets = PolicyBudgets(self.decisions, is_granted=self._is_granted)

    def _is_granted(self, key: Key) -> bool:
        scalable = self.cluster.scalable_workloads.get(*key)
        return scalable is not None and grant_of(scalable) is not None

    async def look(self, now: datetime, *, judged: bool = True) -> PlanningSnapshot | NotSynced:
        """What there is to plan with, or why nothing can be planned. Others have their turns while it is found.

        Not `judged`: without verdicts no workload counts as idle. That is for questions which assume some to be.
        """
        snapshot, evaluation, doubt = self.view.look(), self.decisions.evaluation, self.unjudged
        if isinstance(snapshot, NotSynced):
            return snapshot
        if evaluation is None or doubt:
            if judged:
                return NotSynced(doubt)
            evaluation = Evaluation.of({}, at=now)
        spending = self.policy_budgets.spending(now)
        policy, free = self.policy, self.capacity() if self.policy.consider_nodes else None
        candidates, leaving = await find_candidates(
            evaluation,
            self.cluster,
            snapshot,
            weights=policy.weights,
            patience=policy.grant_for,
            hooks=policy.hooks,
            now=now,
        )
        return PlanningSnapshot(
            snapshot=snapshot,
            evaluation=evaluation,
            candidates=candidates,
            leaving=leaving,
            spending=spending,
            capacity=free if isinstance(free, Capacity) else None,
            nodes_unseen=free.reason if isinstance(free, NotSynced) else "",
            now=now,
            waiting=snapshot.waiting(),
            marked=anti_affinity_nodes(snapshot, self.cluster) if isinstance(free, Capacity) else {},
            remote_copies=self.remote_copies(),
        )

    def remote_copies(self) -> Mapping[str, str | Unknown]:
        """The remote copies of `PlanningSnapshot`."""
        nominations = self.nominations()
        found = {"/".join(each.metadata.key): nominations.why_not(each) for each in self.cluster.remote_copies()}
        return {key: why for key, why in found.items() if why}

    def spared_queues(self) -> Mapping[str, str]:
        """The remote copy, in words, that waits in the tree of a ClusterQueue and for which nothing may be suspended.

        Under the empty name one that may wait in any: where quota is not known.
        """
        snapshot, found = self.view.look(), dict[str, str]()
        for key, why in self.remote_copies().items():
            queues: Iterable[str] = ("",)
            if not isinstance(snapshot, NotSynced):
                workload = snapshot.workload(key)
                is_waiting = workload is not None and waits_for_gpus(workload, self.cluster)
                tree = snapshot.tree_of(snapshot.cluster_queue_of(workload)) if workload and is_waiting else None
                queues = tree.queues if tree is not None else ()
            found |= {queue: f"Workload {key} waits, and {words(why)}" for queue in queues if queue not in found}
        return found

    @property
    def unjudged(self) -> str:
        """Why it is not known which workloads are idle; empty where it is."""
        if self.decisions.evaluation is None:
            return f"no workload has been evaluated yet: {self.decisions.why_cold}"
        age = self.decisions.age or timedelta(0)
        return f"the latest verdicts are {int(age.total_seconds())} s old" if age > self.max_age else ""

    async def plan(
        self, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Iterable[Candidate] | None = None
    ) -> ReclaimPlan | NoPlan:
        """The plan for the gang; of other candidates than all that are idle, where these are given."""
        made = self.request(state, gang, candidates)
        return made if isinstance(made, NoPlan) else await asyncio.to_thread(plan_reclaim, made)

    def request(
        self, state: PlanningSnapshot, gang: QuotaWorkload, candidates: Iterable[Candidate] | None = None
    ) -> PlanRequest | NoPlan:
        """What a plan for the gang is made from, independent of what changes afterwards."""
        if (refused := state.why_not(gang)) is not None:
            return refused
        tree = state.tree_of(gang)
        if tree is None:
            message = f"LocalQueue {gang.namespace}/{gang.queue} leads to no ClusterQueue that can be scheduled"
            return NoPlan(gang=gang.key, why=NoPlanReason.QUEUE_STOPPED, message=message)
        needs_nodes = not (self._is_provisioned(gang, tree, state) or state.dispatches(gang))
        message = ""
        if state.nodes_unseen and needs_nodes:
            hint = "with reclaim.considerNodes: false plans count quota alone"
            message = f"it is not known where its pods fit: {state.nodes_unseen}; {hint}"
        elif doubts := state.snapshot.doubts(tree):
            message = f"cannot be read: {'; '.join(doubts)}"
        if message:
            return NoPlan(gang=gang.key, why=NoPlanReason.UNFORESEEABLE, message=message)
        members = {key for queue in tree.queues.values() for key in queue.workloads}
        given = state.candidates if candidates is None else tuple(candidates)
        return PlanRequest(
            gang=gang,
            planning_tree=self._planning_tree(state, tree, with_nodes=needs_nodes),
            candidates=tuple(each for each in given if each.workload in members),
            leaving=state.leaving & members,
            copies=frozenset(state.remote_copies),
            refuse=budget_check(state.spending, state.now),
            limits=self.policy.limits,
        )

    def _is_provisioned(self, gang: QuotaWorkload, tree: Tree, state: PlanningSnapshot) -> bool:
        """Whether nodes are asked for where the gang lacks some, on whatever flavor: then they stand in no plan's way.

        The check does not release the gang before it fits, so that only the quota it holds meanwhile is at stake.
        """
        queue = tree.queues[state.snapshot.cluster_queue_of(gang)].spec
        checks = frozenset(self.checks_with_provisioning())
        flavors = {flavor for group in queue.groups for flavor in group.flavors}
        return bool(checks & queue.checks) and all(checks & queue.checks_on({flavor}) for flavor in flavors)

    def _planning_tree(self, state: PlanningSnapshot, tree: Tree, *, with_nodes: bool) -> PlanningTree:
        """The tree for plans, made anew only when something in it has changed: most ticks look at the same tree."""
        capacity = state.capacity if with_nodes else None
        made_from = state.snapshot.version(tree), id(capacity), state.now
        known = self._planning_trees.get((tree.root.name, with_nodes))
        if known is not None and known[1] == made_from:
            return known[0]
        planning_tree = PlanningTree(
            tree=tree.clone(),
            pending=state.snapshot.pending_in(tree),
            world=SchedulingContext.of(state.snapshot, strategies=self.policy.strategies),
            fair_sharing=self.policy.fair_sharing,
            now=state.now,
            capacity=capacity,
            marked=state.marked,
        )
        self._planning_trees[tree.root.name, with_nodes] = planning_tree, made_from
        return planning_tree

    def victim(self, state: PlanningSnapshot, workload_key: str, name: str) -> Candidate | None:
        """A victim of a plan that stands, as a candidate again; None for one that holds no quota any more."""
        workload = state.snapshot.workload(workload_key)
        if workload is None or workload.reservation is None:
            return None
        return replace(self._as_if_idle(workload), name=name)

    def all_candidates(self, state: PlanningSnapshot, gang: QuotaWorkload) -> Sequence[Candidate]:
        """Every Workload that holds GPUs which the gang could get, as if all of them were idle: for what-if questions.

        Those of its tree while it waits for quota; of the whole cluster, itself excepted, once it has that.
        """
        tree = state.tree_of(gang)
        known = {each.workload: each for each in state.candidates}
        if gang.reservation is not None:
            holders = [each for each in state.snapshot.reserved if each.key != gang.key]
        else:
            holders = [each for queue in tree.queues.values() for each in queue.workloads.values()] if tree else []
        return [known.get(each.key) or self._as_if_idle(each) for each in holders if gpus_of(each, self.cluster)]

    def _as_if_idle(self, workload: QuotaWorkload) -> Candidate:
        gpus, none = gpus_of(workload, self.cluster), timedelta(0)
        return Candidate(
            workload=workload.key,
            name=workload.key,
            gpus=gpus,
            cost=cost_of(self.policy.weights, gpus=gpus, worked=none, idle=none, priority=workload.priority),
            cluster_queue=workload.held.cluster_queue,
        )
