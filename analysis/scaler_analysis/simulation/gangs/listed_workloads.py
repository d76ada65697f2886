"""How long did the Workloads of a cluster run? From what `kubectl get workloads.kueue.x-k8s.io -A -o json` prints.

Laws:

* A Workload ran from when it was last admitted until it finished. What it ran before an eviction is not known any more.
* One that has not finished ran until the latest instant that the list knows of: it will have run longer. One that is
  not admitted is left out, and so is one without GPUs.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from scaler.kube.objects.core import ListPage, condition, decode, is_true
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_workloads import PodSetAssignment, Workload
from scaler.kube.objects.quantity import amount
from scaler_analysis.simulation.gangs.simulated_job import SimulatedJob, ran_between


def listed_jobs(text: str, gpus: GpuResources) -> Iterator[SimulatedJob]:
    """Raises: one of UNREADABLE, or ValueError."""
    workloads = [decode(Workload, item) for item in decode(ListPage, text.encode()).items or ()]
    latest = max((at for each in workloads for at in _instants(each)), default=None)
    for workload in workloads:
        job = _job(workload, gpus, latest) if latest is not None else None
        if job is not None:
            yield job


def _instants(workload: Workload) -> Iterable[datetime]:
    times = (each.last_transition_time for each in workload.status.conditions)
    return [at for at in (workload.metadata.creation_timestamp, *times) if at is not None]


def _job(workload: Workload, gpus: GpuResources, latest: datetime) -> SimulatedJob | None:
    admission, created = workload.status.admission, workload.metadata.creation_timestamp
    admitted = _since(workload, "Admitted")
    if admission is None or created is None or admitted is None:
        return None
    held = _held(admission.pod_set_assignments, gpus)
    if held == 0:
        return None
    ended = _since(workload, "Finished") or latest
    owner = workload.metadata.controller_owner
    return SimulatedJob(
        name="/".join(workload.metadata.key),
        created=created,
        gpus=held,
        spans=(ran_between(admitted, ended),),
        queue=admission.cluster_queue,
        priority=workload.spec.priority or 0,
        owner="" if owner is None else f"{workload.metadata.namespace}/{owner.name}",
    )


def _since(workload: Workload, kind: str) -> datetime | None:
    """The time since which that condition is True; None where it is not."""
    found = condition(workload.status.conditions, kind)
    return found.last_transition_time if found is not None and is_true(workload.status.conditions, kind) else None


def _held(assignments: Sequence[PodSetAssignment], gpus: GpuResources) -> int:
    return sum(
        amount(resource, quantity)
        for each in assignments
        for resource, quantity in each.resource_usage.items()
        if gpus.matches(resource)
    )
