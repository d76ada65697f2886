"""Who gets quota now, who goes for it, and why do the others wait? What the quota engine decides, as `decisions`.

| queueing strategy | a gang that does not fit            | when capacity is freed                                   |
|-------------------|-------------------------------------|----------------------------------------------------------|
| StrictFIFO        | blocks everybody behind it          | it is looked at at once                                  |
| BestEffortFIFO    | is put aside, others are looked at  | those put aside are looked at together, a second later   |

So with BestEffortFIFO whoever arrives within that second is looked at before the gang that has been waiting: freed
quota can be taken by a newcomer. Seen on a running Kueue, and reproduced here because a reclaimer has to live with it.

In memory is only what Kueue keeps there, too (`core.quota.live`). Anew after a restart, everybody is looked at once.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from scaler.core.quota.cycle import Considered, Cycle
from scaler.core.quota.live import LiveScheduler
from scaler.core.quota.model import PodSetAssignment, Workload
from scaler.core.quota.node import QueueNode
from scaler.core.quota.queues import Outcome
from scaler.core.quota.turns import Preempted
from scaler.embedded.kinds import Json
from scaler.embedded.kueue.amounts import as_quantities
from scaler.embedded.kueue.decisions import Decision, Postpone, Preempt, Reserve
from scaler.embedded.kueue.messages import path, wait
from scaler.embedded.kueue.mirror import Mirror


class Scheduler:
    """Decides over what the mirror shows. Acts on nothing."""

    def __init__(self, mirror: Mirror, *, batch: timedelta, ignore_undeclared: bool) -> None:
        self._snapshot = mirror.snapshot
        self._live = LiveScheduler(mirror.snapshot, batch=batch, ignore_undeclared=ignore_undeclared)

    @property
    def due(self) -> datetime | None:
        """When those put aside are to be looked at again."""
        return self._live.due

    @property
    def is_busy(self) -> bool:
        """Whether there is more to decide although nothing changes."""
        return self._live.is_busy

    def notice(self, now: datetime) -> None:
        """Take in what has changed in the mirror."""
        self._live.notice(now)

    def decide(self, now: datetime) -> list[Decision]:
        """What follows from one cycle, in the order in which it is to be written."""
        return [decision for cycle in self._live.cycle(now) for decision in self._of(cycle)]

    def forget(self, decision: Decision) -> None:
        """The decision could not be carried out."""
        if isinstance(decision, Reserve):
            self._live.forget(decision.workload)

    def bypassed(self, workload: Json) -> str:
        """The reason why the Workload is not looked at, where that was found for one that is alike."""
        metadata = workload["metadata"]
        waiting = self._snapshot.workload(f"{metadata['namespace']}/{metadata['name']}")
        if waiting is None or waiting.reservation is not None:
            return ""
        found = self._live.held_because(self._snapshot.cluster_queue_of(waiting), waiting.key)
        return found.value if found is not None else ""

    # ------------------------------------------------------------------------------------------------------ wording

    def _of(self, cycle: Cycle) -> Iterator[Decision]:
        for gone in cycle.preempted:
            yield self._preempt(gone)
        for admitted in cycle.admitted:
            yield _reserve(admitted)
        for considered in cycle.considered:
            if considered.outcome is not Outcome.ADMITTED:
                yield self._postpone(considered)

    def _preempt(self, gone: Preempted) -> Preempt:
        victim, preemptor = gone.workload, self._snapshot.workloads[gone.by]
        queues = self._snapshot.cluster_queue_of(preemptor), victim.held.cluster_queue
        to, out_of = (path(self._node(name)) for name in queues)
        return Preempt(
            workload=victim.key,
            by=gone.by,
            reason=gone.reason,
            paths=(to, out_of),
            priorities=(preemptor.priority, victim.priority),
        )

    def _postpone(self, considered: Considered) -> Postpone:
        workload = self._snapshot.workloads[considered.workload]
        queue = self._node(considered.cluster_queue)
        requests = zip(workload.pod_sets, workload.requests, strict=True)
        return Postpone(
            workload=workload.key,
            why=wait(considered, workload, queue.spec, self._snapshot.flavors),
            requests={pods.name: as_quantities(amounts) for pods, amounts in requests},
        )

    def _node(self, queue: str) -> QueueNode:
        tree = self._snapshot.tree_of(queue)
        if tree is None:
            raise ValueError(f"ClusterQueue {queue} is in no tree although a cycle has looked at it")
        return tree.queues[queue]


def _reserve(workload: Workload) -> Reserve:
    return Reserve(
        workload=workload.key,
        queue=workload.held.cluster_queue,
        assignments=tuple(_assignment(each) for each in workload.held.assignments),
        is_admitted=workload.admitted,
    )


def _assignment(assignment: PodSetAssignment) -> Json:
    return {
        "name": assignment.name,
        "count": assignment.count,
        "flavors": dict(assignment.flavors),
        "resourceUsage": as_quantities(assignment.usage),
    }
