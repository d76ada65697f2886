"""Does anything grow in days of work? Virtual time: ticks follow each other as fast as they can be computed.

    uv run python -m benchmarks.soak [--hours 72] [--targets 5000] [--json]

A fleet in which workloads come and go: at every tick some end with their pods, Workload, ScalableWorkload and
ScaledObject, and others begin on the same GPUs, under new names; a tenth of all GPUs begins or ends work every quarter
of an hour. Evaluation, decision cache and fleet metrics run as in the process that leads. Each virtual hour shows the
resident memory, the objects that the parts hold, tasks, threads and file descriptors. The program exits with 1 where
memory after the first hour leaves a band of 3 %, or anything else grows.
"""

import argparse
import asyncio
import gc
import json
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.scale import (
    COLLECTED_EVERY_S,
    FIRST_TICK,
    INTERVAL,
    Fleet,
    cluster_of,
    evaluator_of,
    is_gang,
    name_of,
    namespace_of,
    pod,
    resident_mb,
    scalable_workload,
    scaled_object,
    workload,
)
from scaler import clock
from scaler.app.process import tune_process
from scaler.decision.evaluation import Evaluator
from scaler.idleness.gpu import Signal, Unit
from scaler.reporting.usage.gpu_usage import GpuUsageReader
from scaler.samples.source import SeriesBatch, SeriesColumns, SignalReading
from scaler.targets.cluster_state import ClusterState

BAND = 0.03
AT_ONCE = 1_000
"""Series in a batch."""


class Holders:
    """Which target has which GPUs, and the samples that these show."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.targets = fleet, list(range(fleet.targets))
        """The target of each place: a place is the GPUs of one target."""
        self._keys: dict[int, dict[str, list[bytes]]] = {}
        """The keys by place and signal."""

    def replace(self, place: int, target: int) -> None:
        self.targets[place] = target
        self._keys.pop(place, None)

    def keys(self, signal: Signal, place: int) -> list[bytes]:
        target, per = self.targets[place], self.fleet.pods_per_target
        known = self._keys.setdefault(place, {})
        if signal.name not in known:
            known[signal.name] = [
                msgspec.json.encode(
                    {
                        "__name__": signal.metrics[0],
                        "UUID": f"GPU-{place * per + ordinal:08x}",
                        "exported_namespace": namespace_of(target),
                        "exported_pod": f"{name_of(target)}-{ordinal}",
                        "Hostname": f"gpu-node-{place * per // 8}",
                        "modelName": "NVIDIA A100-SXM4-80GB",
                    }
                )
                for ordinal in range(per)
            ]
        return known[signal.name]

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        first = int(start.timestamp()) // COLLECTED_EVERY_S * COLLECTED_EVERY_S + COLLECTED_EVERY_S
        times = np.arange(first, end.timestamp() + 0.5, COLLECTED_EVERY_S)
        scale = 100.0 if signal.unit is Unit.PERCENT else 1.0

        def batches() -> Iterator[SeriesBatch]:
            per = self.fleet.pods_per_target
            for begin in range(0, len(self.targets), AT_ONCE // per):
                places = range(begin, min(begin + AT_ONCE // per, len(self.targets)))
                keys = [key for place in places for key in self.keys(signal, place)]
                works = np.repeat(_works(np.arange(begin, places.stop), times), per, axis=0)
                energy = np.tile(60_000 * times, len(keys))  # mJ, at 60 W
                yield SeriesBatch(
                    keys=keys,
                    counts=[len(times)] * len(keys),
                    at_s=np.tile(times, len(keys)),
                    values=energy if signal.unit is Unit.COUNT else works.reshape(-1) * 0.7 * scale,
                    labels_of=lambda n, keys=keys: msgspec.json.decode(keys[n]),  # type: ignore[misc]
                )

        return SignalReading(SeriesColumns(batches), None)


def _works(places: NDArray[np.int64], times: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the GPUs of each place work at each time: half of them do, a tenth by turns of a quarter of an hour."""
    by_turns = times.astype(np.int64) // 900 % 2 == 0
    return np.where((places % 10 == 3)[:, None], by_turns[None, :], (places % 2 == 0)[:, None])


@dataclass(frozen=True, kw_only=True)
class Hour:
    hour: int
    resident_mb: float
    devices: int
    decisions: int
    outdated: int
    due: int
    tasks: int
    threads: int
    file_descriptors: int
    cpu_seconds: float


class Soak:
    def __init__(self, fleet: Fleet, churn: int) -> None:
        self.fleet, self.churn = fleet, churn
        self.cluster: ClusterState = cluster_of(fleet)
        self.holders = Holders(fleet)
        self.evaluator: Evaluator = evaluator_of(self.cluster, self.holders, fleet)
        self.usage = GpuUsageReader(cluster=self.cluster, judge=self.evaluator.judge, queues=_NoQueues())
        self._oldest = deque(sorted(range(fleet.targets), key=namespace_of))
        """Places, by how long their target has been there. Those of a namespace go together, as a team's do."""

    def turn_over(self) -> None:
        for _ in range(self.churn):
            place = self._oldest.popleft()
            self._oldest.append(place)
            self._put(self.holders.targets[place], is_there=False)
            target = self.holders.targets[place] + self.fleet.targets
            self.holders.replace(place, target)
            self._put(target, is_there=True)

    def _put(self, target: int, *, is_there: bool) -> None:
        per, cluster = self.fleet.pods_per_target, self.cluster
        documents: list[tuple[Any, dict[str, Any]]] = [(cluster.pods, pod(target, ordinal)) for ordinal in range(per)]
        documents.append((cluster.scaled_objects, scaled_object(target)))
        if is_gang(target):
            documents += [(cluster.workloads, workload(target, per))]
            documents += [(cluster.scalable_workloads, scalable_workload(target))]
        for store, document in documents:
            raw = msgspec.Raw(msgspec.json.encode(document))
            store.put(raw) if is_there else store.remove(raw)

    async def run(self, hours: int) -> list[Hour]:
        tune_process()
        clock._PAUSE_S = 0.0  # there is nobody else on the event loop to give way to
        found, now = list[Hour](), FIRST_TICK
        await self.evaluator.tick(now)
        gc.freeze()
        for hour in range(1, hours + 1):
            started, until = process_time(), FIRST_TICK + timedelta(hours=hour)
            while now < until:
                now += INTERVAL
                self.turn_over()
                evaluation = await self.evaluator.tick(now)
                if evaluation is not None and now.minute % 5 == now.second == 0:
                    await self.usage.take(evaluation)
            found.append(self._hour(hour, process_time() - started))
            print(found[-1], file=sys.stderr, flush=True)
        return found

    def _hour(self, hour: int, cpu_seconds: float) -> Hour:
        inputs, evaluation = self.evaluator._inputs, self.evaluator.decision_cache.evaluation
        return Hour(
            hour=hour,
            resident_mb=round(resident_mb(), 1),
            devices=len(self.evaluator.sampler.history),
            decisions=len(evaluation.entries) if evaluation else 0,
            outdated=len(inputs.outdated),
            due=len(inputs._due),
            tasks=len(asyncio.all_tasks()),
            threads=threading.active_count(),
            file_descriptors=len([*Path("/proc/self/fd").iterdir()]),
            cpu_seconds=round(cpu_seconds, 1),
        )


class _NoQueues:
    """Implements what the usage asks of QueueNames."""

    def of(self, _workload: object) -> str:
        return "cluster-queue"


def problems(hours: Sequence[Hour]) -> Iterator[str]:
    """What has grown since the first hour."""
    first = hours[0]
    for each in hours[1:]:
        if abs(each.resident_mb - first.resident_mb) > BAND * first.resident_mb:
            yield f"hour {each.hour}: {each.resident_mb} MB, {first.resident_mb} MB after the first"
        for name in ("devices", "decisions", "outdated", "due", "tasks", "threads", "file_descriptors"):
            if getattr(each, name) > 1.1 * getattr(first, name) + 10:
                yield f"hour {each.hour}: {name} {getattr(each, name)}, {getattr(first, name)} after the first"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=72)
    parser.add_argument("--targets", type=int, default=5_000, help="ScaledObjects, of two GPUs each")
    parser.add_argument("--churn", type=int, default=25, help="workloads that end and begin at every tick")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    hours = asyncio.run(Soak(Fleet(2 * arguments.targets, arguments.targets), arguments.churn).run(arguments.hours))
    found = [*problems(hours)]
    print(json.dumps({"hours": [asdict(each) for each in hours], "problems": found}) if arguments.json else found)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
