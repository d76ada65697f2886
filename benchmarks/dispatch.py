"""What does a round of the dispatcher cost, and what does it write?

    uv run python -m benchmarks.dispatch [--workloads 5000] [--clusters 50] [--json]

A hub on which so many Workloads wait for a cluster, and so many workers that answer all they are asked about. Nothing
goes over a network: rounds of the dispatcher, and what it would send made into JSON, are measured in processor time.
After each round the workers answer; rounds follow until every Workload is nominated, then some at the same moment, and
one when every patience is over.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from time import process_time
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from scaler.clock import Clock
from scaler.errors import KubeError
from scaler.kube.objects.core import Condition, ConditionedStatus, ObjectMeta, ResourceRequirements, without_defaults
from scaler.kube.objects.gpu_pods import GpuResources
from scaler.kube.objects.kueue_queues import AdmissionCheck, AdmissionCheckSpec, CheckParameters, LocalQueue
from scaler.kube.objects.kueue_workloads import (
    Admission,
    AdmissionCheckState,
    PodSet,
    PodTemplate,
    TemplateContainer,
    TemplateSpec,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)
from scaler.kube.objects.multikueue import (
    ClusterOffer,
    ClusterOfferSpec,
    ClusterOfferStatus,
    MultiKueueCluster,
    MultiKueueConfig,
    MultiKueueConfigSpec,
    OfferedWorkload,
    PlacementDecision,
    WorkloadOffer,
)
from scaler.kube.reflector import Reflecting
from scaler.multikueue.hub.dispatch.controller import Dispatcher, DispatchReport
from scaler.multikueue.hub.dispatch.plan import DispatchPlanner
from scaler.multikueue.hub.dispatch.waiting import MULTIKUEUE_CONTROLLER, HubObjects
from scaler.multikueue.hub.worker_offer import WorkerOffer

_NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
_ROUND = timedelta(seconds=15)
_PATIENCE = timedelta(minutes=5)
_QUEUES = 20
_MOST_ROUNDS = 2000
T = TypeVar("T")


class BenchClock(Clock):
    def __init__(self) -> None:
        self.passed = timedelta(0)

    def now(self) -> datetime:
        return _NOW + self.passed

    def monotonic(self) -> float:
        return self.passed.total_seconds()


class Store(Generic[T]):
    """The objects of a kind, by key."""

    state, age = Reflecting(), 0.0

    def __init__(self, objects: Iterable[Any]) -> None:
        self.objects: dict[tuple[str, str], Any] = {each.metadata.key: each for each in objects}

    def get(self, namespace: str, name: str) -> T | None:
        return self.objects.get((namespace, name))

    def items(self) -> Sequence[T]:
        return tuple(self.objects.values())

    def by_index(self, _name: str, _key: object) -> Sequence[T]:
        return self.items()

    def revision(self, _namespace: str) -> int:
        return 0

    def within(self, _namespace: str) -> "Store[T]":
        return self


def workload(number: int) -> Workload:
    container = TemplateContainer(name="main", resources=ResourceRequirements(requests={"nvidia.com/gpu": "1"}))
    pods = PodSet(count=4, template=PodTemplate(spec=TemplateSpec(containers=(container,))))
    metadata = ObjectMeta(
        namespace=f"team-{number % _QUEUES}",
        name=f"job-{number}",
        uid=f"uid-{number}",
        resource_version="1",
        creation_timestamp=_NOW - timedelta(seconds=number),
    )
    return Workload(
        metadata=metadata,
        spec=WorkloadSpec(queue_name="lq", priority=number % 3, pod_sets=(pods,)),
        status=WorkloadStatus(
            conditions=(Condition(type="QuotaReserved", status="True"),),
            admission=Admission(cluster_queue=f"cq-{number % _QUEUES}"),
            admission_checks=(AdmissionCheckState(name="multikueue", state="Pending"),),
        ),
    )


@dataclass
class BenchWorker:
    """A connection whose writes are done at once."""

    name: str
    clock: Clock
    chance: Random
    problem: str = ""
    write_problem: str = ""
    is_settled: bool = True
    writes: int = 0
    size: int = 0
    """Bytes that were written."""
    offer: WorkerOffer = field(init=False)

    def __post_init__(self) -> None:
        self.offer = WorkerOffer(clock=self.clock)
        self.offer.heard(ClusterOffer(metadata=ObjectMeta(name="hub", uid=self.name, generation=1)))

    def want(self, workloads: Iterable[OfferedWorkload]) -> None:
        self.offer.wanted = tuple(workloads)
        if self.offer.is_written or self.offer.offer is None:
            return
        self.size += len(msgspec.json.encode([without_defaults(each) for each in self.offer.wanted]))
        self.writes += 1
        self.offer.writes(self.offer.wanted)
        metadata = self.offer.offer.metadata
        generation = msgspec.structs.replace(metadata, generation=metadata.generation + 1)
        spec = ClusterOfferSpec(workloads=self.offer.wanted)
        self.offer.confirmed(ClusterOffer(metadata=generation, spec=spec, status=self.offer.offer.status))

    def forget_wanted(self) -> None:
        self.offer.wanted = None

    def publishes(self) -> None:
        """Answers to everything that it is asked about; one in five fits now."""
        if self.offer.offer is None:
            return
        fits = ("Free", "Reclaim", "Nodes", "Wait", "Wait")
        answers = tuple(
            WorkloadOffer(
                namespace=each.namespace,
                name=each.name,
                uid=each.uid,
                fit=self.chance.choice(fits),
                cost=self.chance.randrange(10_000),
                free_after=self.chance.randrange(64),
            )
            for each in self.offer.entries
            if each.request is not None
        )
        now = self.clock.now()
        status = ClusterOfferStatus(observed_at=now, valid_until=now + 3 * _ROUND, workloads=answers)
        self.offer.heard(msgspec.structs.replace(self.offer.offer, status=status))


class BenchWorkers:
    def __init__(self, names: Collection[str], clock: Clock) -> None:
        self.connections = {name: BenchWorker(name, clock, Random(name)) for name in names}

    def get(self, name: str) -> BenchWorker | None:
        return self.connections.get(name)

    def __iter__(self) -> Iterator[BenchWorker]:
        return iter(self.connections.values())


class BenchApi:
    """Writes nominations into the store. Its preflight is passed."""

    def __init__(self, workloads: Store[Workload]) -> None:
        self._workloads = workloads
        self.writes = 0

    async def get(self, _path: str) -> bytes:
        return b'{"metadata": {}}'

    async def patch(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> bytes:
        if dry_run:
            raise KubeError("it must be one of the nominatedClusterNames", status=403)
        self.writes += 1
        msgspec.json.encode(body)
        namespace, name = path.split("/")[5], path.split("/")[7]
        found = self._workloads.objects[namespace, name]
        version = str(int(found.metadata.resource_version) + 1)
        self._workloads.objects[namespace, name] = msgspec.structs.replace(
            found,
            metadata=msgspec.structs.replace(found.metadata, resource_version=version),
            status=msgspec.structs.replace(
                found.status, nominated_cluster_names=tuple(body["status"]["nominatedClusterNames"])
            ),
        )
        return b"{}"


class BenchEvents:
    def __init__(self) -> None:
        self.count = 0

    def record(self, *_: Any, **__: Any) -> None:
        self.count += 1


class Hub:
    def __init__(self, workloads: int, clusters: int) -> None:
        names = [f"w{number:02}" for number in range(clusters)]
        self.clock = BenchClock()
        self.workloads: Store[Workload] = Store(map(workload, range(workloads)))
        parameters = CheckParameters(kind="MultiKueueConfig", name="gpus")
        spec = AdmissionCheckSpec(controller_name=MULTIKUEUE_CONTROLLER, parameters=parameters)
        active = ConditionedStatus(conditions=(Condition(type="Active", status="True"),))
        objects = HubObjects(
            workloads=self.workloads,
            checks=Store[AdmissionCheck]([AdmissionCheck(metadata=ObjectMeta(name="multikueue"), spec=spec)]),
            configs=Store[MultiKueueConfig](
                [MultiKueueConfig(metadata=ObjectMeta(name="gpus"), spec=MultiKueueConfigSpec(clusters=tuple(names)))]
            ),
            clusters=Store[MultiKueueCluster](
                MultiKueueCluster(metadata=ObjectMeta(name=name), status=active) for name in names
            ),
            decisions=(Store[PlacementDecision](()),),
            local_queues=Store[LocalQueue](()),
        )
        self.workers = BenchWorkers(names, self.clock)
        self.api, self.events = BenchApi(self.workloads), BenchEvents()
        gpus = GpuResources(patterns=("nvidia.com/gpu",))
        self.dispatcher = Dispatcher(
            api=self.api,  # type: ignore[arg-type]
            objects=objects,
            connections=self.workers,  # type: ignore[arg-type]
            planner=DispatchPlanner(patience=_PATIENCE, requests=64, gpus=gpus),
            recorder=self.events,  # type: ignore[arg-type]
            clock=self.clock,
        )

    async def round(self, *, passes: bool = True) -> dict[str, Any]:
        """Processor time of one tick and what it wrote; then time passes, and the workers answer."""
        before = self.api.writes, sum(each.writes for each in self.workers), sum(each.size for each in self.workers)
        began = process_time()
        report = await self.dispatcher.tick(self.clock.now())
        seconds = process_time() - began
        after = self.api.writes, sum(each.writes for each in self.workers), sum(each.size for each in self.workers)
        if passes:
            self.clock.passed += _ROUND
            for each in self.workers:
                each.publishes()
        nominations, offers, size = (now - then for now, then in zip(after, before, strict=True))
        return {
            "seconds": round(seconds, 3),
            "nominations": nominations,
            "offers": offers,
            "kilobytes": size // 1000,
            "undecided": _undecided(report),
        }


def _undecided(report: DispatchReport) -> int:
    assert report.plan is not None, report.problem
    return sum(not each.state.nominated for each in report.plan.workloads)


async def measure(workloads: int, clusters: int) -> dict[str, Any]:
    hub = Hub(workloads, clusters)
    rounds = [await hub.round()]
    while rounds[-1]["undecided"] and len(rounds) < _MOST_ROUNDS:
        rounds.append(await hub.round())
    await hub.round(passes=False)
    await hub.round(passes=False)  # what was nominated is seen
    unchanged = await hub.round(passes=False)
    hub.clock.passed += _PATIENCE
    for each in hub.workers:
        each.publishes()
    afterwards = await hub.round()
    return {
        "workloads": workloads,
        "clusters": clusters,
        "first": rounds[0],
        "rounds": len(rounds),
        "longest": max(each["seconds"] for each in rounds),
        "nominations": sum(each["nominations"] for each in rounds),
        "offers": sum(each["offers"] for each in rounds),
        "mostOffersInARound": max(each["offers"] for each in rounds),
        "unchanged": unchanged,
        "afterThePatience": afterwards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=5000)
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    found = asyncio.run(measure(given.workloads, given.clusters))
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    sys.exit(main())
