"""Who waits for GPUs, and since when? From the watch of Workloads, on every replica.

Laws:

* A Workload waits from when it asks for quota until it is admitted: while its admission checks are not ready, too.
* One that lost its quota, or was suspended and is asked for again, begins anew. What Kueue's order of queues is based
  on (its creation) would count the nights for which nobody wanted it.
* Of what waited before this process was there its own conditions tell since when.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scaler.kube.accelerators import GpuResources
from scaler.kube.copies import Change
from scaler.kube.kueue_objects import Workload
from scaler.kube.objects import condition, is_true
from scaler.loops.board import Key
from scaler.loops.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One that waits now."""

    workload: Workload
    since: datetime
    gpus: int

    @property
    def has_quota(self) -> bool:
        """Whether nothing but admission checks keeps it."""
        return is_true(self.workload.status.conditions, "QuotaReserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """One that was admitted just now."""

    workload: Workload
    gpus: int
    waited: timedelta | None
    """None where nobody saw it wait."""
    at: datetime


class Waits:
    """`admitted` is told of everybody with GPUs who is admitted. Subscribe `heard` to the Workloads."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        admitted: Callable[[Admitted], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._admitted = admitted
        self._clock = clock
        self._since: dict[Key, datetime] = {}

    def heard(self, change: Change[Workload]) -> None:
        """Never raises."""
        workload = change.new
        if workload is None:
            self._since.pop(change.key, None)
            return
        if is_waiting(workload):
            begin = self._clock() if change.old is not None else _began(workload) or self._clock()
            self._since.setdefault(change.key, begin)
        else:
            since = self._since.pop(change.key, None)
            if change.old is not None and is_admitted(workload) and not is_admitted(change.old):
                self._tell(workload, since)

    def _tell(self, workload: Workload, since: datetime | None) -> None:
        gpus = gpus_asked(workload, self._cluster.gpus)
        now = self._clock()
        waited = None if since is None else max(timedelta(0), now - since)
        if gpus:
            self._admitted(Admitted(workload=workload, gpus=gpus, waited=waited, at=now))

    def pending(self) -> Iterator[Waiting]:
        """All that wait for GPUs now."""
        for key, since in self._since.items():
            workload = self._cluster.workloads.get(*key)
            gpus = gpus_asked(workload, self._cluster.gpus) if workload is not None else 0
            if workload is not None and gpus:
                yield Waiting(workload=workload, since=since, gpus=gpus)


def is_admitted(workload: Workload) -> bool:
    """Whether it may run, and has not finished."""
    conditions = workload.status.conditions
    return is_true(conditions, "Admitted") and not is_true(conditions, "Finished")


def is_waiting(workload: Workload) -> bool:
    """Whether it asks for quota, or for its checks."""
    conditions = workload.status.conditions
    is_over = is_true(conditions, "Finished") or is_true(conditions, "Admitted")
    return workload.spec.active and workload.metadata.deletion_timestamp is None and not is_over


def _began(workload: Workload) -> datetime | None:
    """Since when it has no quota, or since it was created."""
    lost = condition(workload.status.conditions, "QuotaReserved")
    lost_at = lost.last_transition_time if lost is not None and lost.status != "True" else None
    return lost_at or workload.metadata.creation_timestamp


def gpus_asked(workload: Workload, gpus: GpuResources) -> int:
    """GPUs of all its pods, as admitted where it is, and as it asks for them where not."""
    assigned = workload.status.admission.pod_set_assignments if workload.status.admission is not None else ()
    counts = {each.name: each.count for each in assigned if each.count is not None}
    return sum(counts.get(each.name, each.count) * gpus.of_pod(each.template.spec) for each in workload.spec.pod_sets)
