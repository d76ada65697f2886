"""What would be suspended for whom, as things stand? Reads and computes, and writes nothing.

The leader makes grants of it; the CLI and the HTTP pages show it. Plans take up to a second of computing, so they are
made on copies, in a thread, while KEDA goes on getting its answers.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scaler.core.budgets import Books, Exhausted
from scaler.core.costs import Stake, cost_of
from scaler.core.placement import Capacity
from scaler.core.quota.demands import Market
from scaler.core.quota.model import Workload
from scaler.core.quota.roster import World
from scaler.core.quota.snapshot import Snapshot
from scaler.core.quota.tree import Tree
from scaler.core.reclaim import Candidate, NoPlan, Plan, Request, Scene, Why, plan_reclaim
from scaler.core.reclaim.values import Marked, Refusal, nothing_refused
from scaler.core.reclaim_policy import ReclaimPolicy
from scaler.core.scopes import Member
from scaler.core.spending import Spending
from scaler.loops.board import Board, Evaluation
from scaler.loops.candidates import Idlers, find_idlers, gpus_of, waiting_gangs
from scaler.loops.cluster import Cluster
from scaler.loops.neighbours import marked_nodes
from scaler.loops.quota_view import Blind, QuotaView
from scaler.loops.spending import spending_of


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Everything that plans are made from, at one instant."""

    snapshot: Snapshot
    evaluation: Evaluation
    idlers: Idlers
    spending: Spending
    capacity: Capacity | None
    """What nodes have free; None where that is not seen, or does not matter."""
    now: datetime
    nodes_unseen: str = ""
    """Why it is not known where pods fit, although plans depend on it; empty where it is."""
    gangs: Sequence[Workload] = ()
    """All that wait for GPUs, in the order in which plans are made."""
    marked: Marked = field(default_factory=dict)
    """Which nodes have pods that others keep away from, where it is known what nodes have free."""


class Planning:
    """Makes plans. `capacity` gives the nodes' free amounts, or why they are not known: then nothing is planned."""

    def __init__(
        self,
        cluster: Cluster,
        board: Board,
        view: QuotaView,
        policy: ReclaimPolicy,
        *,
        max_age: timedelta,
        capacity: Callable[[], Capacity | Blind] = lambda: Blind("nodes are not watched"),
    ) -> None:
        """`max_age` is how old verdicts may be that somebody is suspended for."""
        self._cluster = cluster
        self._board = board
        self._view = view
        self._policy = policy
        self._max_age = max_age
        self._capacity = capacity
        self._scenes: dict[tuple[str, bool], tuple[int, object, datetime, Scene]] = {}
        """By root of the tree, and whether nodes count."""
        self.asking: Callable[[], Collection[str]] = frozenset
        """Names of the AdmissionChecks that hold gangs back until they fit, and ask for the nodes that are missing."""

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def policy(self) -> ReclaimPolicy:
        return self._policy

    def look(self, now: datetime, *, judged: bool = True) -> Sight | Blind:
        """What there is to plan with, or why nothing can be planned.

        Not `judged`: where nobody knows who is idle, nobody is. That is for questions which assume somebody to be.
        """
        snapshot, evaluation, doubt = self._view.look(), self._board.evaluation, self.unjudged
        if isinstance(snapshot, Blind):
            return snapshot
        if evaluation is None or doubt:
            if judged:
                return Blind(doubt)
            evaluation = Evaluation.of({}, at=now)
        policy, free = self._policy, self._free()
        idlers = find_idlers(
            evaluation, self._cluster, snapshot, weights=policy.weights, patience=policy.grant_for, now=now
        )
        return Sight(
            snapshot=snapshot,
            evaluation=evaluation,
            idlers=idlers,
            spending=spending_of(self._cluster, snapshot),
            capacity=free if isinstance(free, Capacity) else None,
            nodes_unseen=free.reason if isinstance(free, Blind) else "",
            now=now,
            gangs=waiting_gangs(snapshot.workloads.values(), self._cluster),
            marked=marked_nodes(snapshot, self._cluster) if isinstance(free, Capacity) else {},
        )

    def quota(self) -> Snapshot | Blind:
        """Kueue's quota alone, whatever is known about who is idle."""
        return self._view.look()

    @property
    def unjudged(self) -> str:
        """Why nobody knows who is idle; empty where it is known."""
        if self._board.evaluation is None:
            return f"nothing has been judged yet: {self._board.why_cold}"
        age = self._board.age or timedelta(0)
        return f"the latest verdicts are {int(age.total_seconds())} s old" if age > self._max_age else ""

    def _free(self) -> Capacity | Blind | None:
        """What nodes have free, or why that is not seen; None where it does not matter."""
        return self._capacity() if self._policy.consider_nodes else None

    async def plan(self, sight: Sight, gang: Workload, candidates: Iterable[Candidate] | None = None) -> Plan | NoPlan:
        """The plan for the gang; of other candidates than all that are idle, where these are given."""
        made = self.request(sight, gang, candidates)
        return made if isinstance(made, NoPlan) else await asyncio.to_thread(plan_reclaim, made)

    def request(self, sight: Sight, gang: Workload, candidates: Iterable[Candidate] | None = None) -> Request | NoPlan:
        """What a plan for the gang is made from, independent of what changes afterwards."""
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang))
        if tree is None:
            message = f"LocalQueue {gang.namespace}/{gang.queue} leads to no ClusterQueue that can be scheduled"
            return NoPlan(gang=gang.key, why=Why.QUEUE_STOPPED, message=message)
        is_provisioned = self._is_provisioned(gang, tree, sight)
        if sight.nodes_unseen and not is_provisioned:
            message = f"{sight.nodes_unseen}; with reclaim.considerNodes: false plans count quota alone"
            return NoPlan(gang=gang.key, why=Why.UNFORESEEABLE, message=f"nobody knows where its pods fit: {message}")
        doubts = sight.snapshot.doubts(tree)
        if doubts:
            return NoPlan(gang=gang.key, why=Why.UNFORESEEABLE, message=f"cannot be read: {'; '.join(doubts)}")
        members = {key for queue in tree.queues.values() for key in queue.workloads}
        given = sight.idlers.candidates if candidates is None else tuple(candidates)
        return Request(
            gang=gang,
            scene=self._scene(sight, tree, with_nodes=not is_provisioned),
            candidates=tuple(each for each in given if each.workload in members),
            leaving=sight.idlers.leaving & members,
            refuse=self.refusal(sight),
            limits=self._policy.limits,
        )

    def _is_provisioned(self, gang: Workload, tree: Tree, sight: Sight) -> bool:
        """Whether nodes are asked for where the gang lacks some, on whatever flavor: then they stand in no plan's way.

        The gang is not let go before it fits, so that the quota it holds meanwhile is all that is at stake.
        """
        queue = tree.queues[sight.snapshot.cluster_queue_of(gang)].spec
        asking, flavors = frozenset(self.asking()), {flavor for group in queue.groups for flavor in group.flavors}
        return bool(asking & queue.checks) and all(asking & queue.checks_on({flavor}) for flavor in flavors)

    def _scene(self, sight: Sight, tree: Tree, *, with_nodes: bool) -> Scene:
        """Made anew only when something in the tree has changed: most ticks look at the same thing again."""
        version, capacity = sight.snapshot.version(tree), sight.capacity if with_nodes else None
        known = self._scenes.get((tree.root.name, with_nodes))
        if known is not None and known[:3] == (version, id(capacity), sight.now):
            return known[3]
        scene = Scene(
            tree=tree.clone(),
            pending=sight.snapshot.pending_in(tree),
            world=World(
                market=Market(flavors=dict(sight.snapshot.flavors)),
                namespaces=dict(sight.snapshot.namespaces),
                local_queue=sight.snapshot.local_queue,
                strategies=self._policy.strategies,
            ),
            fair_sharing=self._policy.fair_sharing,
            now=sight.now,
            capacity=capacity,
            marked=sight.marked,
        )
        self._scenes[tree.root.name, with_nodes] = (version, id(capacity), sight.now, scene)
        return scene

    def refusal(self, sight: Sight) -> Refusal:
        """Which budget does not let these be suspended, as a question that is asked often."""
        if not self._policy.budgets:
            return nothing_refused
        books = Books(self._policy.budgets, sight.spending, sight.now)

        def refuse(victims: Collection[Member]) -> Exhausted | None:
            outcome = books.admits(victims)
            return outcome if isinstance(outcome, Exhausted) else None

        return refuse

    def victim(self, sight: Sight, workload_key: str, name: str) -> Candidate | None:
        """A victim of a plan that stands, as a candidate again; None for one that holds no quota any more."""
        workload = sight.snapshot.workload(workload_key)
        if workload is None or workload.reservation is None:
            return None
        found = self._as_if_idle(workload)
        return replace(found, name=name, member=replace(found.member, name=name.partition("/")[2]))

    def everybody(self, sight: Sight, gang: Workload) -> Sequence[Candidate]:
        """Every Workload that holds GPUs which the gang could get, as if all of them were idle: for what-if questions.

        Those of its tree while it waits for quota; of the whole cluster, itself excepted, once it has that.
        """
        tree = sight.snapshot.tree_of(sight.snapshot.cluster_queue_of(gang))
        known = {each.workload: each for each in sight.idlers.candidates}
        if gang.reservation is not None:
            holders = [each for each in sight.snapshot.reserved if each.key != gang.key]
        else:
            holders = [each for queue in tree.queues.values() for each in queue.workloads.values()] if tree else []
        return [known.get(each.key) or self._as_if_idle(each) for each in holders if gpus_of(each, self._cluster)]

    def _as_if_idle(self, workload: Workload) -> Candidate:
        gpus = gpus_of(workload, self._cluster)
        stake = Stake(gpus=gpus, worked=timedelta(0), idle=timedelta(0), priority=workload.priority)
        return Candidate(
            workload=workload.key,
            name=workload.key,
            gpus=gpus,
            cost=cost_of(stake, self._policy.weights),
            member=Member(namespace=workload.namespace, name=workload.name, cluster_queue=workload.held.cluster_queue),
        )
