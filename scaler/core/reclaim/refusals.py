"""Why is there no plan for a gang? In words, with the numbers.

The first of these that holds is the answer: a budget forbids what would do; too little is idle; the nodes do not have
it where it is needed; the search ended early; Kueue would preempt others; somebody stands before the gang; somebody
else would get what is freed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scaler.core.quota.amounts import FlavorResource, as_text
from scaler.core.quota.model import Strategy, Workload
from scaler.core.quota.tree import QueueNode, Tree
from scaler.core.reclaim.count import Count, usage_text
from scaler.core.reclaim.trial import Trial, Trials
from scaler.core.reclaim.values import Request, Why

_TAKERS = 3


@dataclass(frozen=True, kw_only=True)
class View:
    """What a planner has found."""

    request: Request
    queue: QueueNode
    """The gang's, in `tree`."""
    tree: Tree
    """Without those who leave anyway."""
    count: Count
    trials: Trials

    @property
    def everybody(self) -> frozenset[str]:
        return frozenset(each.workload for each in self.request.candidates)


def why_nobody(view: View, *, is_exact: bool) -> tuple[Why, str]:
    """Why no set of candidates will do. `is_exact`: whether all of them were considered."""
    refused, scattered = _largest(view, Why.BUDGET_EXHAUSTED), _largest(view, Why.PLACEMENT_IMPOSSIBLE)
    if refused is not None:
        return Why.BUDGET_EXHAUSTED, refused.message
    after = without(view.tree, view.everybody)
    if not view.count.fits(after):
        return Why.NOT_ENOUGH_IDLE, _shortage(view, after)
    trial = view.trials.of(view.everybody)
    if scattered is not None or trial.why is Why.PLACEMENT_IMPOSSIBLE:
        return Why.PLACEMENT_IMPOSSIBLE, (scattered or trial).message
    if trial.why is None or not is_exact:
        return Why.NOT_FOUND, "no set of victims was found in as many steps as a search may take"
    if trial.why is Why.WOULD_PREEMPT_OTHERS:
        return trial.why, trial.message
    return _blocked(view, trial)


def why_never(gang: Workload, queue: QueueNode, count: Count) -> str:
    """Why no flavor of the queue could hold the gang, were nothing used."""
    if not count.is_possible:
        return (
            f"no flavor of ClusterQueue {queue.name} is open to the pods of {gang.key}: a resource that it has no "
            "quota for, a taint that they do not tolerate, or a node selector that no flavor matches"
        )
    most: dict[str, int] = {}
    for key in count.keys:
        most[key.resource] = most.get(key.resource, 0) + max(0, queue.potential(key))
    short = [resource for resource, amount in count.total.items() if amount > most.get(resource, 0)]
    shown = [
        f"{as_text(r, count.total[r])} {r} of at most {as_text(r, most.get(r, 0))}"
        for r in short or sorted(count.total)
    ]
    split = "" if short else ", and a PodSet takes each resource from one flavor"
    return f"it needs {', '.join(shown)} that ClusterQueue {queue.name} could ever get, borrowing included{split}"


def _largest(view: View, why: Why) -> Trial | None:
    """Of the trials that ended so, that of the largest set."""
    ended = [(len(keys), trial) for keys, trial in view.trials.made.items() if trial.why is why]
    return max(ended, key=lambda each: each[0])[1] if ended else None


def _blocked(view: View, trial: Trial) -> tuple[Why, str]:
    """The sums would do with everybody gone, and still the gang does not get in: who is in its way?"""
    ahead = _ahead(view)
    if ahead:
        strict = f"ClusterQueue {view.queue.name} is StrictFIFO and {ahead} stands before it"
        return Why.HEAD_OF_LINE_BLOCKED, f"{strict}, which would not get in even with every idle workload gone"
    takers = ", ".join(_takers(view)) or "others that wait"
    return Why.WOULD_BE_TAKEN_BY_OTHER, f"what is freed would go to {takers} first; {trial.message}"


def _ahead(view: View) -> str:
    """Who stands before the gang in a StrictFIFO queue; empty where nobody does."""
    if view.queue.spec.strategy is not Strategy.STRICT_FIFO:
        return ""
    gang = view.request.gang
    waiting = [each for each in view.request.scene.pending.get(view.queue.name, ()) if each.may_queue]
    first = min(waiting, key=lambda each: (-each.priority, each.queued_at, each.uid), default=gang)
    return "" if first.key == gang.key else f"Workload {first.key}"


def _takers(view: View) -> list[str]:
    """Who gets in when everybody idle is gone."""
    simulation = view.request.scene.simulation.fork()
    simulation.deactivate(sorted(view.request.leaving | view.everybody))
    run = simulation.run(until=lambda cycle: cycle.number >= _TAKERS)
    return [each.key for cycle in run.cycles for each in cycle.admitted][:_TAKERS]


def _shortage(view: View, after: Tree) -> str:
    """What is needed, free and idle, in words."""
    short = frozenset(view.count.missing(view.tree)) or frozenset(view.count.total)
    keys = sorted(key for key in view.count.keys if key.resource in short)
    now = {key: view.queue.available(key) for key in keys}
    most = {key: after.queues[view.queue.name].available(key) for key in keys}
    needs = ", ".join(f"{as_text(r, a)} {r}" for r, a in sorted(view.count.total.items()) if r in short)
    idle = f"with every idle workload gone: {_words(most)}" if view.everybody else "nobody is idle"
    return f"it needs {needs}; available to ClusterQueue {view.queue.name}: {_words(now)}; {idle}"


def _words(amounts: Mapping[FlavorResource, int]) -> str:
    return usage_text(amounts) or "nothing"


def without(tree: Tree, keys: frozenset[str]) -> Tree:
    """The tree with these Workloads gone."""
    after = tree.clone()
    for queue in after.queues.values():
        for key in [each for each in queue.workloads if each in keys]:
            queue.release(queue.workloads[key])
    return after
