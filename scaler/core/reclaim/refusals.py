"""Why is there no plan for a gang? In words, with the numbers.

First what stands in the way of planning at all (`hindrance`). Then, with no set of victims accepted and budgets not to
blame, the first of these that holds even if everybody idle were gone is the answer: too little quota; no room on the
nodes; those before the gang take it; what a trial says.
"""

from collections.abc import Iterator, Mapping

from scaler.core.placement import Placement, place
from scaler.core.quota.amounts import FlavorResource, as_text
from scaler.core.quota.model import Strategy
from scaler.core.quota.tree import Tree
from scaler.core.reclaim.count import usage_text
from scaler.core.reclaim.field import Field
from scaler.core.reclaim.forecast import without
from scaler.core.reclaim.trial import named
from scaler.core.reclaim.values import NoPlan, Request, Why


def hindrance(request: Request) -> NoPlan | None:
    """Why nothing can be planned at all."""
    return next((NoPlan(gang=request.gang.key, why=why, message=text) for why, text in _hindrances(request)), None)


def _hindrances(request: Request) -> Iterator[tuple[Why, str]]:
    gang, scene = request.gang, request.scene
    if gang.opaque_because:
        yield Why.UNFORESEEABLE, f"cannot be foreseen: {gang.opaque_because}"
    if gang.reservation is not None:
        yield Why.FITS_ALREADY, f"it holds quota in ClusterQueue {gang.reservation.cluster_queue} already"
    if not gang.may_queue:
        yield Why.UNFORESEEABLE, "it is not in line: a backoff runs, or its eviction has not been followed by a requeue"
    queue = scene.tree.queues.get(scene.world.home(gang))
    if queue is None:
        yield Why.QUEUE_STOPPED, f"LocalQueue {gang.queue} is stopped, or leads nowhere"
    elif not queue.spec.schedules:
        why = queue.spec.inactive_because or f"stopPolicy is {queue.spec.stop_policy}"
        yield Why.QUEUE_STOPPED, f"ClusterQueue {queue.name} admits nothing: {why}"
    elif not scene.world.admits_namespace(queue.spec, gang.namespace):
        yield Why.QUEUE_STOPPED, f"ClusterQueue {queue.name} does not select namespace {gang.namespace}"
    elif all(each.key != gang.key for each in scene.pending.get(queue.name, ())):
        yield Why.UNFORESEEABLE, f"it does not wait in ClusterQueue {queue.name} any more"


def why_nobody(field: Field) -> tuple[Why, str]:
    """Why no set of candidates will do."""
    after = without(field.forecast.roomiest, field.everybody)
    if not field.count.fits(after):
        return Why.NOT_ENOUGH_IDLE, _shortage(field)
    scattered = _scattered(field)
    if scattered:
        return Why.PLACEMENT_IMPOSSIBLE, scattered
    if not field.wanted.fits(after):
        return _behind(field, after)
    trial = field.trials.of(field.everybody)
    if trial.why is None:
        return Why.NOT_FOUND, "no set of victims was found in as many steps as a search may take"
    return trial.why, trial.message


def why_never(field: Field) -> str:
    """Why no flavor of the queue could hold the gang, were nothing used."""
    queue, count = field.queue, field.count
    if not count.is_possible:
        return (
            f"no flavor of ClusterQueue {queue.name} is open to the pods of {field.gang.key}: a resource that it has "
            "no quota for, a taint that they do not tolerate, or a node selector that no flavor matches"
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


def _scattered(field: Field) -> str:
    """Why nodes have no room for it with everybody idle gone; empty where they have."""
    if field.nodes is None or not field.choices:
        return ""
    emptier = field.nodes.without(field.everybody)
    found = [place(demands, emptier) for demands in field.choices]
    misfits = [each.message for each in found if not isinstance(each, Placement)]
    return misfits[0] if len(misfits) == len(found) else ""


def _behind(field: Field, after: Tree) -> tuple[Why, str]:
    """It would fit alone, but not with those who are before it for certain."""
    ahead = [each.key for each in field.request.scene.before(field.gang)]
    needs = ", ".join(f"{as_text(r, amount)} {r}" for r, amount in sorted(field.wanted.total.items()))
    most = _words(_available(field, after))
    queue = field.queue.name
    who = f"Workloads {named(ahead)} stand" if len(ahead) > 1 else f"Workload {named(ahead)} stands"
    if field.queue.spec.strategy is Strategy.STRICT_FIFO:
        return Why.HEAD_OF_LINE_BLOCKED, (
            f"ClusterQueue {queue} is StrictFIFO and {who} before the gang: together they need {needs}; "
            f"available with every idle workload gone: {most}"
        )
    return Why.WOULD_BE_TAKEN_BY_OTHER, (
        f"Workloads like it stand before it in ClusterQueue {queue}: together they need {needs}; "
        f"available with every idle workload gone: {most}"
    )


def _shortage(field: Field) -> str:
    """What is needed, free and idle, in words."""
    short = frozenset(field.count.missing(field.tree)) or frozenset(field.count.total)
    now = _available(field, field.tree, short)
    most = _available(field, without(field.tree, field.everybody), short)
    needs = ", ".join(f"{as_text(r, a)} {r}" for r, a in sorted(field.count.total.items()) if r in short)
    idle = f"with every idle workload gone: {_words(most)}" if field.everybody else "nobody is idle"
    return f"it needs {needs}; available to ClusterQueue {field.queue.name}: {_words(now)}; {idle}"


def _available(field: Field, tree: Tree, resources: frozenset[str] = frozenset()) -> dict[FlavorResource, int]:
    """What the gang's queue has of all that it might take; of these resources only, where any are named."""
    queue = tree.queues[field.queue.name]
    keys = [key for key in sorted(field.count.keys) if not resources or key.resource in resources]
    return {key: queue.available(key) for key in keys}


def _words(amounts: Mapping[FlavorResource, int]) -> str:
    return usage_text(amounts) or "nothing"
