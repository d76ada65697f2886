"""How long did Kueue's Workloads of the past run? From what kube-state-metrics said of them, where it is told to.

| series `kube_kueue_workload_...` | says                                                                              |
|----------------------------------|-----------------------------------------------------------------------------------|
| `created`                        | when it was created, and its owner                                                |
| `status_admitted_time`           | since when it is admitted, or no longer is (`status`); its ClusterQueue, priority |
| `status_finished_time`           | when it finished                                                                  |
| `podset_info`                    | what each of its pod sets holds, for as long as it has quota                      |

Laws, beyond those of a list (`listed_workloads.py`):

* A Workload ran from when it was last admitted until it finished, or was evicted and not admitted again; one that did
  neither, as it runs still or was deleted, until it was last seen with quota, to five minutes.
* What ended before `begin` is left out; what was before then counts from `begin` on.
* A name that is used again is another Workload: its uid tells.
* Several replicas of kube-state-metrics say the same. Of what changed within a day counts what was there last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import NamedTuple

from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.quantity import amount
from scaler.samples.promql import selector
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob, ran_between, with_names_of_their_own
from scaler_analysis.simulation.recordings.past_days import Elements, PastDays
from scaler_analysis.simulation.recordings.past_pods import as_label

_STEP = "5m"
"""How often a day is looked at for what was there last. Each time Prometheus looks back as far, by default."""
_RESOURCE = "resource_"
"""What a label of `podset_info` begins with that says how much of a resource is held."""

WorkloadKey = tuple[str, str, str]
"""(namespace, name, uid)"""


class PastJobs(NamedTuple):
    jobs: list[SimulatedJob]
    """The jobs in the order of their creation."""
    known_since: datetime | None
    """The first day of which anything is said of Workloads; None where nothing is."""


async def past_jobs(days: PastDays, begin: datetime, end: datetime) -> PastJobs:
    """The jobs that were Workloads with GPUs between these instants. Raises: SourceError."""
    history, known_since = WorkloadHistory(days.gpu_resources), None
    async for day, said in days.answers("workloads", partial(_queries, days), begin, end):
        history.include(said)
        if said["created"]:
            known_since = known_since or day
    return PastJobs(history.jobs(begin), known_since)


def _queries(days: PastDays, span: str) -> dict[str, str]:
    every = selector(days.matchers)
    podsets = f"kube_kueue_workload_podset_info{every}"
    return {
        "created": "max by (namespace, workload, uid, owner_name) "
        f"(max_over_time(kube_kueue_workload_created{every}[{span}]))",
        "admitted": "max by (namespace, workload, uid, status, cluster_queue, priority) "
        f"(max_over_time(kube_kueue_workload_status_admitted_time{every}[{span}]))",
        "finished": "max by (namespace, workload, uid) "
        f"(max_over_time(kube_kueue_workload_status_finished_time{every}[{span}]))",
        # When it was last there, as the value is 1; it stays 1 of what was there between two steps only.
        # timestamp() of it would tell the same, and took Prometheus 20 times as long.
        "podsets": f"max_over_time(({podsets} * time())[{span}:{_STEP}]) or max_over_time({podsets}[{span}])",
    }


class WorkloadHistory:
    """What is said day by day."""

    def __init__(self, gpu_resources: Sequence[str]) -> None:
        self._gpus = GpuResources(patterns=tuple(f"{_RESOURCE}{as_label(each)}" for each in gpu_resources))
        self._workloads: dict[WorkloadKey, _PastWorkload] = {}

    def include(self, said: Elements) -> None:
        for each in said["created"]:
            found = self._of(each)
            found.created_s, found.owner = _value(each), each.get("owner_name", "")
        for each in said["admitted"]:
            self._of(each).note_admission(each)
        for each in said["finished"]:
            self._of(each).finished_s = _value(each)
        for each in said["podsets"]:
            self._of(each).note_podset(each.get("podset", ""), _value(each), self._held(each))

    def jobs(self, begin: datetime) -> list[SimulatedJob]:
        """The jobs in the order of their creation."""
        found = [job for key, each in self._workloads.items() if (job := each.job(key, begin)) is not None]
        return [*with_names_of_their_own(sorted(found, key=lambda job: (job.created, job.name)))]

    def _of(self, labels: Mapping[str, str]) -> "_PastWorkload":
        key = labels.get("namespace", ""), labels.get("workload", ""), labels.get("uid", "")
        return self._workloads.setdefault(key, _PastWorkload())

    def _held(self, labels: Mapping[str, str]) -> int:
        return sum(amount(name, quantity) for name, quantity in labels.items() if self._gpus.matches(name))


@dataclass(slots=True)
class _PastWorkload:
    """Instants are in Unix seconds, and 0 where nothing is known."""

    created_s: float = 0.0
    owner: str = ""
    admission: tuple[float, str, int] = (0.0, "", 0)
    """The last one: since when, ClusterQueue, priority."""
    evicted_s: float = 0.0
    """When it was last no longer admitted."""
    finished_s: float = inf
    podsets: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When each was last seen with quota, and its GPUs then."""

    def note_admission(self, labels: Mapping[str, str]) -> None:
        if labels.get("status") == "True":
            found = _value(labels), labels.get("cluster_queue", ""), int(labels.get("priority") or 0)
            self.admission = max(self.admission, found)
        else:
            self.evicted_s = max(self.evicted_s, _value(labels))

    def note_podset(self, name: str, seen_s: float, gpus: int) -> None:
        self.podsets[name] = max(self.podsets.get(name, (0.0, 0)), (seen_s, gpus))

    def job(self, key: WorkloadKey, begin: datetime) -> SimulatedJob | None:
        admitted_s, queue, priority = self.admission
        gpus = sum(gpus for _, gpus in self.podsets.values())
        if not (self.created_s and admitted_s and gpus):
            return None
        ended = _instant(self._ended_s(admitted_s))
        if ended <= begin:
            return None
        namespace, name, _ = key
        return SimulatedJob(
            name=f"{namespace}/{name}",
            created=max(begin, _instant(self.created_s)),
            gpus=gpus,
            spans=(ran_between(max(begin, _instant(admitted_s)), ended),),
            queue=queue,
            priority=priority,
            owner=f"{namespace}/{self.owner}" if self.owner else "",
        )

    def _ended_s(self, admitted_s: float) -> float:
        is_evicted = self.evicted_s > admitted_s
        ended_s = min(self.finished_s, self.evicted_s) if is_evicted else self.finished_s
        return ended_s if ended_s < inf else max(admitted_s, *(seen_s for seen_s, _ in self.podsets.values()))


def _value(labels: Mapping[str, str]) -> float:
    return float(labels["value"])


def _instant(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
