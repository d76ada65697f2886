"""How long does a worker take to answer a hub of MultiKueue, and how long does it block the event loop meanwhile?

    uv run python -m benchmarks.offer [--requests 64] [--queues 100] [--workloads 1000] [--json]

The state is in memory (tests/multikueue/worker/offer_world.py): ClusterQueues of 32 GPUs in cohorts of ten, Workloads
of 1 to 8 GPUs on full nodes of 8, of which every third is idle; requests of 4 to 32 GPUs. Ticks: the first one, one in
which nothing has changed, one after a Workload of one cohort has come, and one after a node has changed, by which all
have to be answered anew. Writes go to an API in memory.

A stall is how much later than asked a task came back that slept for a millisecond at a time: what a KEDA call that came
in meanwhile would have waited for.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.page import Stalls
from benchmarks.scale import machine
from scaler.app.process import tune_process
from scaler.decision.decision_cache import Evaluation
from scaler.kube.objects.core import ObjectMeta
from scaler.kube.objects.multikueue import ClusterOffer, ClusterOfferSpec
from scaler.multikueue.worker.copy_verdicts import CopyVerdicts
from scaler.multikueue.worker.offer_controller import OfferController

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
Json = dict[str, Any]


class OfferInMemory:
    """A ClusterOffer and the API that it is in."""

    def __init__(self, offer: ClusterOffer) -> None:
        self.offer = offer
        self.written = b""

    undecodable: Mapping[tuple[str, str], str] = {}

    def items(self) -> tuple[ClusterOffer, ...]:
        return (self.offer,)

    def get(self, _namespace: str, _name: str) -> ClusterOffer:
        return self.offer

    async def patch(self, _path: str, body: Mapping[str, Any], **_: Any) -> bytes:
        self.written = msgspec.json.encode(body)
        return self.written


class Worker:
    """The leader of a worker cluster."""

    def __init__(self, *, requests: int, queues: int, workloads: int) -> None:
        from loops_builders import World
        from multikueue.worker.offer_world import OfferWorld, asks
        from quota_builders import cluster_queue, cohort, holding
        from reclaim_builders import nodes_with
        from scripted_metrics import Metrics, ScriptedSource

        self._numbers = random.Random(12)
        names = [f"q{number}" for number in range(queues)]
        given = [cluster_queue(name, gpus=32, cohort=f"c{number // 10}") for number, name in enumerate(names)]
        cohorts = [cohort(f"c{number}") for number in range((queues + 9) // 10)]
        self._holding = holding
        holders = [
            holding(f"w{number}", gpus=self._numbers.choice((1, 2, 4, 8)), queue=names[number % queues])
            for number in range(workloads)
        ]
        self._nodes = nodes_with({}, {})
        placed: dict[str, dict[Any, int]] = {}
        room: dict[str, int] = {}
        for each in holders:
            gpus = sum(each.held.usage.values())
            node = next((name for name in list(room)[-8:] if room[name] >= gpus), f"n{len(room):05}")
            room[node] = room.get(node, 8) - gpus
            placed.setdefault(node, {})[each] = gpus
        self._nodes = nodes_with(dict.fromkeys(placed, 8), placed)
        self.world = OfferWorld(given, holders, cohorts=cohorts, capacity=lambda: self._nodes)
        self.world.quota.idle(*(each.name for each in holders[::3]))
        self.world.fits.patience = timedelta(seconds=60)
        entries = [
            asks(f"gang-{n}", pods=self._numbers.choice((4, 8, 16, 32)), queue=names[n % queues], priority=n % 3)
            for n in range(requests)
        ]
        offer = ClusterOffer(
            metadata=ObjectMeta(name="hub", uid="hub", resource_version="1", generation=1),
            spec=ClusterOfferSpec(workloads=tuple(entries)),
        )
        self.memory = OfferInMemory(offer)
        samples = World((), lambda made: ScriptedSource(metrics=Metrics(series=[]), clock=lambda: made.now))
        api: Any = self.memory
        self.controller = OfferController(
            api=api,
            offers=self.memory,
            planning=self.world.quota.planning,
            doubt=lambda: None,
            fits=self.world.fits,
            verdicts=CopyVerdicts(
                judge=samples.evaluator.judge,
                cluster=self.world.quota.planning.cluster,
                max_window=samples.evaluator.config.max_window,
            ),
            interval=timedelta(seconds=15),
            models=lambda _: (),
        )
        self._seconds = 0

    async def tick(self) -> None:
        from builders import at

        self._seconds += 15
        cache = self.world.quota.decision_cache
        assert cache.evaluation is not None
        cache.publish(Evaluation.of(cache.evaluation.entries, at=at(self._seconds)))
        await self.controller.tick(at(self._seconds % 60))

    def workload_came(self) -> None:
        self.world.quota.put(self._holding(f"came-{self._seconds}", queue="q0"))

    def node_changed(self) -> None:
        self._nodes = replace(self._nodes, free=self._nodes.free.copy())


async def measured(**size: int) -> list[Json]:
    tune_process()
    worker, stalls, rows = Worker(**size), Stalls(), []
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    changes = {
        "first": nothing,
        "nothing has changed": nothing,
        "a Workload came": worker.workload_came,
        "a node has changed": worker.node_changed,
    }
    watching = asyncio.create_task(stalls.watch())
    try:
        for name, change in changes.items():
            change()
            await asyncio.sleep(0.05)
            stalls.worst, began, worked = 0.0, perf_counter(), process_time()
            await worker.tick()
            wall, cpu = perf_counter() - began, process_time() - worked
            written: Json = json.loads(worker.memory.written)["status"]
            rows.append(
                {
                    "tick": name,
                    "ms": round(1000 * wall, 1),
                    "cpu_ms": round(1000 * cpu, 1),
                    "stall_ms": round(1000 * stalls.worst, 1),
                    "kb": round(len(worker.memory.written) / 1000, 1),
                    "fits": dict(Counter(each["fit"] for each in written["workloads"])),
                }
            )
    finally:
        watching.cancel()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--workloads", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    size = {"requests": arguments.requests, "queues": arguments.queues, "workloads": arguments.workloads}
    rows = asyncio.run(measured(**size))
    if arguments.json:
        print(json.dumps({**size, "rows": rows}))
        return
    title = f"{size['requests']} requests, {size['queues']} ClusterQueues, {size['workloads']:,} Workloads; {machine()}"
    table = Table("tick", "ms", "cpu ms", "stall ms", "kB", "answers", title=title)
    for row in rows:
        answers = ", ".join(f"{count} {fit}" for fit, count in sorted(row.pop("fits").items()))
        table.add_row(*map(str, row.values()), answers)
    Console().print(table)


if __name__ == "__main__":
    main()
