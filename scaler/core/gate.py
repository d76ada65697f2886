"""A gang with quota × what it waits for → what our admission check says of it now.

Kueue gives quota away while the pods that had it before still end, and never looks whether nodes have room. The check
holds the gang until it can start whole.

Laws:

* Rejected is never said: it deactivates the Workload for good.
* Nothing is said without a reservation, or of one that is evicted, deactivated or finished. Retry said then is never
  taken back by Kueue, and the Workload is never looked at again.
* An entry that is not there is waited for: Kueue makes it, up to a second after it reserved the quota.
* Ready is final. What has started is not held any more, whatever becomes of nodes and policies; only one whose nodes
  the provider takes away is told to go.
* Whoever waits stays Pending, and keeps its quota. Retry is said in order to yield to somebody who can use the quota,
  and ever more rarely: with nobody there Kueue reserves the quota again four times a second.
* A pod of a victim that should have ended long ago may never end. Where the gang has to fit it is not waited for: what
  it holds is no room. Where it need not fit nothing else stands for that pod, and it is.
* Nodes that come while its request is open are most likely those that were asked for, though some register before the
  autoscaler says so. The gang waits for its word, so that its pods consume what is booked for them; after a minute
  without it the nodes are used as any others.
* Not to know is no yes: where nodes cannot be seen, or nobody can follow the policy, the gang waits and says why.

The first line that holds:

| the Workload                                  | its entry       | what is seen                      | says           |
|-----------------------------------------------|-----------------|-----------------------------------|----------------|
| finished, deactivated, evicted, without quota | any             | –                                 | nothing        |
| with quota                                    | none            | –                                 | nothing        |
| with quota                                    | Retry, Rejected | Kueue acts on it                  | nothing        |
| with quota                                    | Pending         | another check sends it back       | nothing        |
| with quota                                    | Ready           | its nodes are taken away          | Retry          |
| with quota                                    | Ready           | –                                 | nothing        |
| admitted                                      | Pending         | –                                 | Ready          |
| with quota                                    | Pending         | nobody can follow the policy      | Pending        |
| with quota                                    | Pending         | pods of its victims are left      | Pending        |
| with quota                                    | Pending         | it runs on another cluster        | Ready          |
| with quota                                    | Pending         | it need not fit                   | Ready          |
| with quota                                    | Pending         | nobody sees the nodes             | Pending        |
| with quota                                    | Pending         | its places may be booked yet      | Pending        |
| with quota                                    | Pending         | it has places for all of its pods | Ready          |
| with quota                                    | Pending         | it is to yield, and may           | Retry          |
| with quota                                    | Pending         | –                                 | Pending        |

That a check is added to a live queue gives every running Workload an entry: hence "admitted".
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from scaler.core.claims import Lacks, Seated, Waits
from scaler.core.gate_values import Answer, Because, Ending, Gang, Nodes, Nothing, Outlook, State
from scaler.core.provisioning import PodSetUpdate

LONGEST_MESSAGE = 32_768
"""Characters that Kueue's definition allows."""
_SHOWN = 3
"""Workloads that a message names."""
_BOOKED_WITHIN = timedelta(minutes=1)
"""How long after nodes have come it is waited for the request that they were most likely added for: autoscalers look
every ten seconds or so."""


def decide(gang: Gang, outlook: Outlook, now: datetime) -> Answer | Nothing:
    """What the check says of the gang now."""
    silence = _silence(gang)
    if silence:
        return Nothing(silence)
    if gang.was_let_go:
        return _of_one_let_go(gang, outlook)
    if gang.is_sent_back:
        return Nothing("another check gives its quota back")
    return _fitted(_of_one_that_waits(gang, outlook, now))


def _silence(gang: Gang) -> str:
    """Why nothing may be said; empty where something may."""
    if not gang.is_held:
        return "it is finished" if gang.finished else "it holds no quota that it may use"
    if gang.entry is None:
        return "Kueue has not added the entry yet"
    if gang.entry.state not in (State.PENDING, State.READY):
        return f"Kueue acts on {gang.entry.state}"
    return ""


def _of_one_let_go(gang: Gang, outlook: Outlook) -> Answer | Nothing:
    if gang.entry is not None and gang.entry.state == State.PENDING:
        return Answer(state=State.READY, because=Because.ADMITTED_BEFORE, message="was admitted before the check was")
    if outlook.nodes.is_revoked:
        message = outlook.nodes.message or "its nodes are taken away"
        return Answer(state=State.RETRY, because=Because.NODES_REVOKED, message=message)
    return Nothing("it was let go")


def _of_one_that_waits(gang: Gang, outlook: Outlook, now: datetime) -> Answer:
    if outlook.problem:
        return _waits(Because.POLICY_UNUSABLE, outlook.problem)
    if outlook.awaited:
        return _waits(Because.PODS_ENDING, f"waits for {_listed(outlook.awaited)}")
    if outlook.runs_elsewhere:
        return _ready(Because.RUNS_ELSEWHERE, "nothing ends for it here, and it runs on another cluster")
    if not outlook.requires_fit:
        return _ready(Because.PODS_GONE, "no pod is left of those that gave up their quota for it")
    answer = _of_one_that_needs_nodes(gang, outlook, now)
    is_judged = outlook.note and answer.because not in (Because.NODES_UNSEEN, Because.YIELDS)
    return replace(answer, message=f"{answer.message}; {outlook.note}") if is_judged else answer


def _of_one_that_needs_nodes(gang: Gang, outlook: Outlook, now: datetime) -> Answer:
    if outlook.blind or outlook.verdict is None:
        return _waits(Because.NODES_UNSEEN, f"nobody sees what nodes have free: {outlook.blind or 'not asked yet'}")
    if isinstance(outlook.verdict, Seated):
        return _to_be_booked(outlook.verdict, outlook, now) or _seated(outlook.verdict, outlook.nodes)
    if _may_yield(gang, outlook, now):
        to = f"gives its quota to {outlook.wanted_by}: {outlook.nodes.message}"
        return Answer(state=State.RETRY, because=Because.YIELDS, message=to)
    return _unseated(outlook, outlook.verdict)


def _may_yield(gang: Gang, outlook: Outlook, now: datetime) -> bool:
    return outlook.nodes.is_yielding and bool(outlook.wanted_by) and gang.may_yield(now)


def _to_be_booked(verdict: Seated, outlook: Outlook, now: datetime) -> Answer | None:
    """That its request may book its places yet; None where it does not wait for that."""
    if outlook.came_at is None or outlook.nodes.is_booked or now >= outlook.came_at + _BOOKED_WITHIN:
        return None
    until = f"until {outlook.came_at + _BOOKED_WITHIN:%H:%M:%S} UTC waits for new ones of them to be booked for it"
    return _waits(Because.NODES_COMING, f"{verdict.message}; {until}: {outlook.nodes.message}")


def _seated(verdict: Seated, nodes: Nodes) -> Answer:
    updates = _with_pins(nodes.updates, verdict)
    if nodes.is_booked:
        return _ready(Because.PROVISIONED, f"{verdict.message}; {nodes.message or 'provisioned'}", updates)
    return _ready(Because.FITS, verdict.message, updates)


def _unseated(outlook: Outlook, verdict: Waits | Lacks) -> Answer:
    message = verdict.message
    if outlook.in_the_way:
        message += f": {_listed(outlook.in_the_way)}"
    if outlook.plan:
        message += f"; {outlook.plan}"
    if outlook.nodes.message and isinstance(verdict, Lacks):
        message += f"; {outlook.nodes.message}"
    if isinstance(verdict, Waits):
        return _waits(Because(verdict.why), message)
    if outlook.endings:
        message += f"; does not count on {_listed(outlook.endings)}"
    return _waits(_why_lacking(outlook.nodes), message)


def _why_lacking(nodes: Nodes) -> Because:
    if nodes.is_coming:
        return Because.NODES_COMING
    return Because.NODES_LIMIT_REACHED if nodes.is_at_limit else Because.NODES_LACKING


def _waits(because: Because, message: str) -> Answer:
    return Answer(state=State.PENDING, because=because, message=message)


def _ready(because: Because, message: str, updates: tuple[PodSetUpdate, ...] = ()) -> Answer:
    return Answer(state=State.READY, because=because, message=message, updates=updates)


def _fitted(answer: Answer) -> Answer:
    """The answer with a message that is not too long for the API."""
    if len(answer.message) <= LONGEST_MESSAGE:
        return answer
    return replace(answer, message=answer.message[: LONGEST_MESSAGE - 1] + "…")


def _with_pins(updates: Iterable[PodSetUpdate], verdict: Seated) -> tuple[PodSetUpdate, ...]:
    """What pods are given, and the labels that tie them to their places. What is selected already is not changed."""
    found = {each.name: each for each in updates}
    for pod_set, pin in verdict.pins.items():
        given = found.get(pod_set, PodSetUpdate(name=pod_set))
        found[pod_set] = replace(given, node_selector={pin.label: pin.value, **given.node_selector})
    return tuple(found[name] for name in sorted(found))


def _listed(endings: Sequence[Ending]) -> str:
    more = len(endings) - _SHOWN
    listed = ", ".join(each.words for each in endings[:_SHOWN])
    return f"{listed} and {sum(each.pods for each in endings[_SHOWN:])} more" if more > 0 else listed


# ------------------------------------------------------------------------------------------------------ standing back


def stand_back(gang: Gang, plan: str) -> Answer | Nothing:
    """Whether a newcomer gives back what a plan had freed for another: once, and only before it was let go."""
    silence = _silence(gang)
    if silence:
        return Nothing(silence)
    if gang.was_let_go:
        return Nothing("it was let go, and is not stopped any more")
    if gang.yielded is not None and not gang.is_yielding:
        return Nothing(f"it has yielded before, to {gang.yielded.to}")
    return Answer(
        state=State.RETRY, because=Because.YIELDS, message=f"gives back what plan {plan} has freed for others"
    )
