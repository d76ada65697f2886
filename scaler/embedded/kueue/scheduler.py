"""Who is looked at next, and gets quota? Priority, then time; and Kueue's habit of looking again only in batches.

| queueing strategy | a gang that does not fit            | when capacity is freed                                   |
|-------------------|-------------------------------------|----------------------------------------------------------|
| StrictFIFO        | blocks everybody behind it          | it is looked at at once                                  |
| BestEffortFIFO    | is put aside, others are looked at  | those put aside are looked at together, a second later   |

So with BestEffortFIFO whoever arrives within that second is looked at before the gang that has been waiting: freed
quota can be taken by a newcomer. Seen on a running Kueue, and reproduced here because a reclaimer has to live with it.

In memory are only who was put aside and when to look again. Anew after a restart, everybody is looked at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scaler.embedded.conditions import condition, has
from scaler.embedded.controller import soonest
from scaler.embedded.kinds import Json
from scaler.embedded.kueue.queues import Queue, is_pending
from scaler.embedded.kueue.quota import Assignment, Shortage, Usage, add_usage, assign, holds_quota, reserved_in, used


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """The whole gang fits."""

    queue: str
    assignment: Assignment
    is_admitted: bool
    """Whether that is all it needs, there being no checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on one Workload."""

    workload: Json
    outcome: Reserve | Shortage


class Scheduler:
    """Decides over snapshots. Acts on nothing."""

    def __init__(self, *, batch: timedelta) -> None:
        self._batch = batch
        self._arrivals: dict[str, int] = {}
        self._aside: dict[str, str] = {}
        """Workloads (uid) that were looked at and did not fit, with their ClusterQueue."""
        self._holders: dict[str, str] = {}
        self._queues: Mapping[str, Queue] = {}
        self._look_again: dict[str, datetime] = {}

    @property
    def due(self) -> datetime | None:
        """When those put aside are to be looked at again."""
        return soonest(self._look_again.values())

    def cycle(
        self,
        workloads: Sequence[Json],
        *,
        local_queues: Mapping[tuple[str, str], Json],
        queues: Mapping[str, Queue],
        now: datetime,
    ) -> list[Decision]:
        """Every decision that can be made now, in order, each on the sums that the earlier ones leave."""
        self._notice(workloads, queues, now)
        usage = {name: used(self._of(workloads, name)) for name in queues}
        decisions: list[Decision] = []
        blocked: set[str] = set()
        for workload in self._in_order(workloads):
            queue = _queue_for(workload, local_queues, queues)
            outcome = queue if isinstance(queue, Shortage) else self._try(workload, queue, usage[queue.name], blocked)
            if outcome:
                decisions.append(Decision(workload=workload, outcome=outcome))
        return decisions

    def _try(self, workload: Json, queue: Queue, usage: Usage, blocked: set[str]) -> Reserve | Shortage | None:
        """What comes of looking at one Workload; None where it is not its turn. Adds what it reserves to the usage."""
        uid = workload["metadata"]["uid"]
        if queue.name in blocked or uid in self._aside:
            return None
        found = assign(workload["spec"].get("podSets") or (), queue.groups, usage)
        if isinstance(found, Assignment):
            add_usage(usage, found.usage)
            return Reserve(queue=queue.name, assignment=found, is_admitted=not queue.checks)
        if queue.is_strict:
            blocked.add(queue.name)
        else:
            self._aside[uid] = queue.name
        return found

    def forget(self, workload: Json) -> None:
        """The decision could not be carried out: look at the Workload again."""
        self._aside.pop(workload["metadata"]["uid"], None)

    # ----------------------------------------------------------------------------------------------- what has changed

    def _notice(self, workloads: Sequence[Json], queues: Mapping[str, Queue], now: datetime) -> None:
        pending = {w["metadata"]["uid"] for w in workloads if is_queued(w)}
        self._arrivals = {uid: at for uid, at in self._arrivals.items() if uid in pending}
        self._aside = {uid: queue for uid, queue in self._aside.items() if uid in pending}
        holders = {w["metadata"]["uid"]: reserved_in(w) for w in workloads if holds_quota(w)}
        freed = {queue for uid, queue in self._holders.items() if uid not in holders}
        changed = {name for name, queue in queues.items() if self._queues.get(name) != queue}
        self._holders, self._queues = holders, queues
        for name in (freed | changed) & set(self._aside.values()):
            self._look_again.setdefault(name, now + self._batch)
        for name in [name for name, at in self._look_again.items() if at <= now]:
            del self._look_again[name]
            self._aside = {uid: queue for uid, queue in self._aside.items() if queue != name}

    def _in_order(self, workloads: Iterable[Json]) -> list[Json]:
        queued = [workload for workload in workloads if is_queued(workload)]
        for workload in queued:
            self._arrivals.setdefault(workload["metadata"]["uid"], len(self._arrivals) + 1)
        return sorted(queued, key=self._rank)

    def _rank(self, workload: Json) -> tuple[int, datetime, int]:
        """Among those of the same second, for which Kueue would draw lots by uid, who was seen first goes first."""
        priority = workload["spec"].get("priority", 0)
        return -priority, _queued_since(workload), self._arrivals[workload["metadata"]["uid"]]

    @staticmethod
    def _of(workloads: Iterable[Json], queue: str) -> list[Json]:
        return [workload for workload in workloads if holds_quota(workload) and reserved_in(workload) == queue]


def is_queued(workload: Json) -> bool:
    """Whether the Workload may be looked at: pending, and not held back since an eviction."""
    return is_pending(workload) and not has(workload, "Requeued", "False")


def _queued_since(workload: Json) -> datetime:
    """What time counts for its place: its creation, or its eviction by a check, for which it goes to the back."""
    evicted = condition(workload, "Evicted") if has(workload, "Evicted", "True", "AdmissionCheck") else None
    written = evicted["lastTransitionTime"] if evicted else workload["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(written)


def _queue_for(
    workload: Json, local_queues: Mapping[tuple[str, str], Json], queues: Mapping[str, Queue]
) -> Queue | Shortage:
    """The ClusterQueue that the Workload was submitted to, or why nothing can be admitted there now."""
    namespace, name = workload["metadata"]["namespace"], workload["spec"].get("queueName", "")
    local_queue = local_queues.get((namespace, name))
    if local_queue is None:
        return Shortage(reason="Misconfigured", message=f"LocalQueue {name} doesn't exist")
    cluster_queue = local_queue["spec"].get("clusterQueue", "")
    queue = queues.get(cluster_queue)
    if queue is None:
        return Shortage(reason="Misconfigured", message=f"ClusterQueue {cluster_queue} doesn't exist")
    if local_queue["spec"].get("stopPolicy", "None") != "None":
        return Shortage(reason="Suspended", message=f"LocalQueue {name} is stopped")
    if queue.closed:
        return Shortage(reason="Suspended", message=f"ClusterQueue {queue.name} is inactive")
    if not _selects(queue.namespaces, namespace):
        return Shortage(reason="Misconfigured", message="Workload namespace doesn't match ClusterQueue selector")
    return queue


def _selects(selector: Json | None, namespace: str) -> bool:
    """Whether the selector matches the namespace, of whose labels only the one with its name is known here.

    None matches nothing and {} everything, as in Kueue.
    """
    if selector is None or selector.get("matchExpressions"):
        return False
    labels = {"kubernetes.io/metadata.name": namespace}
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
