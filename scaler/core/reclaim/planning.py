"""Which idle workloads to suspend so that a waiting gang really gets in: the least costly set, or nobody and why.

Laws:

* Sufficient: with the victims gone, the whole sequence of Kueue's cycles admits the gang, and its pods fit the nodes.
* Necessary: no victim can be left out.
* Whole or nothing: there is no plan for a part of a gang.
* Idempotent: the same request gives the same plan, with the same id.
* Nobody is touched who is not a candidate; nobody outside the plan is preempted on its account; budgets hold.
* What is free already counts, and so does what is on its way out.

Worked example, the one that greedy counting gets wrong: 4 GPUs are free, idle are a (4), b (8) and c (1), and the gang
needs 8. Counting idle GPUs alone finds too little in a, and takes b for the whole; here a makes up what is missing.

How: what is missing at least is counted from the sums. `core/victims.py` searches the cheapest set that could do by the
sums and by the nodes; each such set is put on trial (`trial.py`), which simulates the cycles. Exact for what occurs;
where the search ends before everything was looked at, the plan says that it is not exact, or the answer is NotFound.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from scaler.core.quota.model import Strategy
from scaler.core.quota.tree import QueueNode
from scaler.core.reclaim.count import Count
from scaler.core.reclaim.ground import VictimGround, options_of
from scaler.core.reclaim.refusals import View, why_never, why_nobody, without
from scaler.core.reclaim.trial import Trial, Trials, free_capacity
from scaler.core.reclaim.values import Alternative, Caution, NoPlan, Plan, Request, Why
from scaler.core.victims import Found, Option, cheapest

_SEEDED_NODES = 8
_SHOWN = 5


def plan_reclaim(request: Request) -> Plan | NoPlan:
    """The plan for the gang, or why there is none."""
    hindrance = _hindrance(request)
    return hindrance if hindrance is not None else _Planner(request).plan()


def _hindrance(request: Request) -> NoPlan | None:
    """Why nothing can be planned at all."""
    gang, scene = request.gang, request.scene
    if gang.opaque_because:
        return NoPlan(gang=gang.key, why=Why.UNFORESEEABLE, message=f"cannot be foreseen: {gang.opaque_because}")
    queue = scene.tree.queues.get(scene.world.home(gang))
    if queue is None:
        return NoPlan(
            gang=gang.key, why=Why.QUEUE_STOPPED, message=f"LocalQueue {gang.queue} is stopped, or leads nowhere"
        )
    if not queue.spec.schedules:
        why = queue.spec.inactive_because or f"stopPolicy is {queue.spec.stop_policy}"
        return NoPlan(gang=gang.key, why=Why.QUEUE_STOPPED, message=f"ClusterQueue {queue.name} admits nothing: {why}")
    if not scene.world.admits_namespace(queue.spec, gang.namespace):
        return NoPlan(
            gang=gang.key,
            why=Why.QUEUE_STOPPED,
            message=f"ClusterQueue {queue.name} does not select namespace {gang.namespace}",
        )
    return None


class _Planner:
    """One request, with all that is found on the way."""

    def __init__(self, request: Request) -> None:
        scene = request.scene
        self.tree = without(scene.tree, request.leaving)
        held = {key for queue in self.tree.queues.values() for key in queue.workloads}
        self.candidates = [each for each in request.candidates if each.workload in held]
        self.request = replace(request, candidates=tuple(self.candidates))
        self.queue = self.tree.queues[scene.world.home(request.gang)]
        self.count = Count.of(request.gang, self.queue, scene.world.market)
        self.trials = Trials(self.request)
        self.names = {each.workload: each for each in self.candidates}

    def plan(self) -> Plan | NoPlan:
        if self.trials.nobody.why is None:
            return self._no(Why.FITS_ALREADY, "it fits into what is free, or will be once those under way have gone")
        if not self.count.could_ever_fit(self.tree):
            return self._no(Why.NEVER_FITS, why_never(self.request.gang, self.queue, self.count))
        found = self._search()
        if found.keys is not None:
            return self._planned(found.keys, found)
        return self._refused(found)

    # --------------------------------------------------------------------------------------------------------- search

    def _search(self) -> Found:
        capacity = free_capacity(self.request)
        missing = self.count.missing(self.tree)
        # The scarcest first: it is the one by which options are ranked.
        missing = dict(sorted(missing.items(), key=lambda each: (-each[1] / self.count.total[each[0]], each[0])))
        options = options_of(self.candidates, self.count, self.tree, missing, capacity)
        ground = VictimGround(self.request, self.count, self.tree, self.trials)
        if not ground.could_fit():
            return Found(keys=None, cost=0, is_exact=True)
        return cheapest(
            options, tuple(missing.values()), ground, limits=self.request.limits, seeds=self._seeds(options)
        )

    def _seeds(self, options: Sequence[Option]) -> list[list[str]]:
        """Orders for greedy that empty one node after the other, for gangs with pods that need most of a node."""
        capacity = free_capacity(self.request)
        if capacity is None:
            return []
        on_node: dict[int, list[Option]] = {}
        for option in options:
            for node in capacity.held_by((option.key,)):
                on_node.setdefault(node, []).append(option)
        cheap = sorted(on_node.values(), key=lambda each: (sum(one.cost for one in each) / len(each), each[0].key))
        rest = sorted(options, key=lambda each: (each.cost, each.key))
        orders = []
        for first in range(min(_SEEDED_NODES, len(cheap))):
            ahead = [option.key for node in (*cheap[first:], *cheap[:first]) for option in node]
            orders.append(list(dict.fromkeys([*ahead, *(option.key for option in rest)])))
        return orders

    # -------------------------------------------------------------------------------------------------------- answers

    def _planned(self, keys: frozenset[str], found: Found) -> Plan:
        trial = self.trials.of(keys)
        victims = tuple(sorted((self.names[key] for key in keys), key=lambda each: each.name))
        after = without(self.tree, keys)
        gang = trial.gang
        assert_held = gang.held if gang is not None else None
        takes = dict(assert_held.usage) if assert_held is not None else {}
        return Plan(
            id=plan_id(self.request.gang.uid, [each.name for each in victims]),
            gang=self.request.gang.key,
            gang_uid=self.request.gang.uid,
            cluster_queue=self.queue.name,
            victims=victims,
            cost=found.cost,
            free_before={key: self.queue.available(key) for key in sorted(takes)},
            free_after={key: after.queues[self.queue.name].available(key) for key in sorted(takes)},
            takes=takes,
            assignments=assert_held.assignments if assert_held is not None else (),
            placement=trial.placement,
            others=trial.others,
            is_exact=found.is_exact,
            alternatives=self._alternatives(keys),
            cautions=tuple(self._cautions(trial)),
        )

    def _alternatives(self, chosen: frozenset[str] | None) -> tuple[Alternative, ...]:
        """Other sets that were on trial: first what would cost less and does not do, then what would do for more."""
        # What holds the plan and more besides is no other way of doing it.
        tried = [
            (keys, trial)
            for keys, trial in self.trials.made.items()
            if keys and not (chosen is not None and keys >= chosen)
        ]
        shown = [self._alternative(keys, trial) for keys, trial in tried]
        shown.sort(key=lambda each: (each.why_not is None, each.cost, each.victims))
        short = [each for each in shown if each.why_not is not None]
        enough = [each for each in shown if each.why_not is None]
        return tuple(short[-_SHOWN:] + enough[:_SHOWN])

    def _alternative(self, keys: frozenset[str], trial: Trial) -> Alternative:
        return Alternative(
            victims=tuple(sorted(self.names[key].name for key in keys)),
            cost=sum(self.names[key].cost.total for key in keys),
            why_not=trial.why,
            message=trial.message,
        )

    def _cautions(self, trial: Trial) -> list[Caution]:
        found = []
        if self.request.scene.capacity is None:
            found.append(Caution(reason="NodesNotCounted", message="only quota was planned for, not where pods fit"))
        if trial.others:
            found.append(Caution(reason="OthersFirst", message=f"{', '.join(trial.others)} get in before it"))
        rivals = self._rivals()
        if rivals:
            found.append(
                Caution(
                    reason=str(Why.UNPROTECTED),
                    message="freed quota is anybody's until the gang holds it: a Workload that is created "
                    f"meanwhile in {rivals} may take a piece",
                )
            )
        return found

    def _rivals(self) -> str:
        """The queues from which a newcomer could take what is freed, in words."""
        queues = [queue.name for queue in self.tree.scheduling if self._could_take(queue)]
        shown = ", ".join(sorted(queues)[:3])
        return f"{shown} and {len(queues) - 3} more" if len(queues) > 3 else shown

    def _could_take(self, queue: QueueNode) -> bool:
        if queue is self.queue and queue.spec.strategy is Strategy.STRICT_FIFO:
            return False
        return any(queue.potential(key) > 0 for key in self.count.keys)

    def _refused(self, found: Found) -> NoPlan:
        view = View(request=self.request, queue=self.queue, tree=self.tree, count=self.count, trials=self.trials)
        return self._no(*why_nobody(view, is_exact=found.is_exact), exact=found.is_exact)

    def _no(self, why: Why, message: str, *, exact: bool = True) -> NoPlan:
        return NoPlan(
            gang=self.request.gang.key,
            why=why,
            message=message,
            alternatives=self._alternatives(None),
            is_exact=exact,
        )


def plan_id(gang_uid: str, victims: Sequence[str]) -> str:
    """Ten characters that are equal for equal victims of the same gang, whoever plans."""
    return sha256("\n".join((gang_uid, *sorted(victims))).encode()).hexdigest()[:10]
