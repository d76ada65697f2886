"""How long does a reclaim plan take in a large cluster, what memory does the process need, and how do both grow?

    uv run python benchmarks/reclaim.py [--gangs 3] [--world fleet --world teams …]

Workloads are of the classes of Kueue's own performance harness: small (1 GPU, priority 50), medium (5, 100) and large
(20, 200; here five pods of 4), ten times as many small as large ones, in queues with 20 GPUs each that may borrow 100.
All quota is held, in pieces of 1 to 8 GPUs on nodes of 8 that are full; some who hold it are idle, all others wait.

* teams, fleet: Kueue's two configurations, 30 ClusterQueues in 5 cohorts and 1,000 in 10. Nobody may be preempted.
* one tree: all of the fleet in one cohort, so that every plan has to do with all queues and all who are idle.
* reclaiming: the fleet with the harness's own preemption policies: owners take back what they lent, so that hardly any
  borrower can be helped, and a plan is mostly the knowledge that there is none.
* mixed GPUs: the fleet with three flavors, and every second gang bound to one of them.
* ⅛, ¼, ½: parts of the fleet, in ten cohorts each.

The first plan in a tree includes everything that is made anew when the tree has changed: a copy, the forecast of what
Kueue does by itself, and all that the search starts from. Further plans in the same tree share that. Planned for are
the first gangs in line of every tree, as the scaler does it. Each world has a process of its own.

The longest step is that of a single change, in processor time, or of making its trees anew: of a Workload, LocalQueue,
Namespace, a ClusterQueue or ResourceFlavor (changed, gone or back) or a Cohort. For as long as one takes, the event
loop is held. Not among them: a ResourceFlavor that gains or loses its Topology.

Greedy is what the nearest peer does: the longest idle first, until their GPUs add up to the gang's.
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

from scaler.kube.scheduling import ANYWHERE, NodeSelection, Selector
from scaler.placement.capacity import BoundPod, Capacity, capacity_of
from scaler.placement.node_index import NodeInfo
from scaler.quota.demands import FlavorOptions
from scaler.quota.model import (
    Flavor,
    FlavorResource,
    Preemption,
    PreemptionPolicy,
    Quota,
    QuotaClusterQueue,
    QuotaCohort,
    QuotaLocalQueue,
    QuotaPodSet,
    QuotaPodSetAssignment,
    QuotaResourceGroup,
    QuotaWorkload,
    Reservation,
    StopPolicy,
)
from scaler.quota.snapshot import Snapshot
from scaler.quota.tree import Tree
from scaler.quota.workload_index import SchedulingContext
from scaler.reclaim.costs import CostWeights, cost_of
from scaler.reclaim.search.quota_problem import plan_reclaim, revalidate
from scaler.reclaim.search.values import Candidate, NoPlan, PlanningTree, PlanRequest, ReclaimPlan

Change = Callable[[], None]
GPU = "nvidia.com/gpu"
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
NAMESPACE = "team"
NOMINAL = 20
NODE = 8
TARGET_STEP_S = 0.005
"""The longest time for which the event loop may be held, whatever changes."""
TARGET_MB = 1_000.0

NEVER = Preemption()
RECLAIMING = Preemption(
    within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY, reclaim_within_cohort=PreemptionPolicy.ANY
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One world. Workloads and idle ones are those of all queues together."""

    cohorts: int
    queues: int
    """The ClusterQueues of a cohort."""
    workloads: int
    idle: int
    target_s: float
    """The processor time that a plan may take."""
    target_further_s: float | None = None
    """The time that further plans in a tree may take; None where it is as long."""
    preemption: Preemption = NEVER
    flavors: tuple[str, ...] = ("h100",)

    def part(self, share: float) -> "Size":
        """The size with fewer queues in every cohort."""
        return replace(
            self,
            queues=round(self.queues * share),
            workloads=round(self.workloads * share),
            idle=round(self.idle * share),
        )


FLEET = Size(cohorts=10, queues=100, workloads=50_000, idle=2_000, target_s=1.0)
WORLDS = {
    "teams": Size(cohorts=5, queues=6, workloads=15_000, idle=60, target_s=0.2),
    "fleet": FLEET,
    "one tree": replace(FLEET, cohorts=1, queues=1_000, target_s=0.3, target_further_s=0.15),
    "reclaiming": replace(FLEET, preemption=RECLAIMING),
    "mixed GPUs": replace(FLEET, flavors=("a100", "h100", "l4")),
    "fleet ⅛": FLEET.part(1 / 8),
    "fleet ¼": FLEET.part(1 / 4),
    "fleet ½": FLEET.part(1 / 2),
}

# The cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """A class of Workloads in Kueue's harness."""

    name: str
    priority: int
    pods: int
    gpus: int
    """The GPUs of one pod."""


SMALL = Class(name="small", priority=50, pods=1, gpus=1)
MEDIUM = Class(name="medium", priority=100, pods=1, gpus=5)
LARGE = Class(name="large", priority=200, pods=5, gpus=4)
CLASSES = (LARGE, MEDIUM, MEDIUM, *[SMALL] * 7)
"""The classes of every ten that wait."""


@dataclass
class Cluster:
    """Objects as the scaler would have read them."""

    size: Size
    rng: random.Random = field(default_factory=lambda: random.Random(2_026))
    queues: list[QuotaClusterQueue] = field(default_factory=list)
    workloads: list[QuotaWorkload] = field(default_factory=list)
    idle: list[tuple[QuotaWorkload, int]] = field(default_factory=list)
    """The idle Workloads with their GPUs."""
    pod_sets: dict[tuple[Class, str], tuple[QuotaPodSet, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.size
        count = size.cohorts * size.queues
        for index in range(count):
            queue = self._queue(f"cq-{index:04}", f"cohort-{index % size.cohorts}")
            held = self._holders(queue)
            idle = size.idle * (index + 1) // count - size.idle * index // count
            self.idle += held[:idle]
            waiting = size.workloads * (index + 1) // count - size.workloads * index // count - len(held)
            self.workloads += [each for each, _ in held]
            self.workloads += [self._waiting(queue, CLASSES[i % len(CLASSES)]) for i in range(waiting)]

    def _queue(self, name: str, cohort: str) -> QuotaClusterQueue:
        flavors = self.size.flavors
        group = QuotaResourceGroup(resources=frozenset({GPU}), flavors=flavors)
        shares = [NOMINAL // len(flavors) + (i < NOMINAL % len(flavors)) for i in range(len(flavors))]
        self.queues.append(
            QuotaClusterQueue(
                name=name,
                cohort=cohort,
                groups=(group,),
                quotas={
                    FlavorResource(flavor, GPU): Quota(nominal=share, borrowing_limit=100)
                    for flavor, share in zip(flavors, shares, strict=True)
                },
                preemption=self.size.preemption,
                namespace_selector=Selector(()),
            )
        )
        return self.queues[-1]

    def _holders(self, queue: QuotaClusterQueue) -> list[tuple[QuotaWorkload, int]]:
        """Workloads that hold all of the queue's quota, in pieces, in any order."""
        held = []
        for key, quota in queue.quotas.items():
            left = quota.nominal
            while left:
                gpus = self.rng.choice([each for each in (1, 2, 4, 8) if each <= left])
                held.append((self._holding(queue, key, gpus), gpus))
                left -= gpus
        self.rng.shuffle(held)
        return held

    def _holding(self, queue: QuotaClusterQueue, key: FlavorResource, gpus: int) -> QuotaWorkload:
        assignment = QuotaPodSetAssignment(name="main", count=1, flavors={GPU: key.flavor}, usage={GPU: gpus})
        at = NOW - timedelta(hours=5) + timedelta(seconds=self.rng.randrange(7_200))
        reservation = Reservation(cluster_queue=queue.name, at=at, assignments=(assignment,), usage={key: gpus})
        return replace(
            self._workload("holds", queue, LARGE.priority, (QuotaPodSet(name="main", count=1, requests={GPU: gpus}),)),
            reservation=reservation,
            admitted=True,
        )

    def _waiting(self, queue: QuotaClusterQueue, kind: Class) -> QuotaWorkload:
        bound = self.rng.choice(self.size.flavors) if len(self.size.flavors) > 1 and self.rng.random() < 0.5 else ""
        if (kind, bound) not in self.pod_sets:
            nodes = NodeSelection(labels={"gpu": bound}) if bound else ANYWHERE
            self.pod_sets[kind, bound] = (
                QuotaPodSet(name="main", count=kind.pods, requests={GPU: kind.gpus}, nodes=nodes),
            )
        return self._workload(kind.name, queue, kind.priority, self.pod_sets[kind, bound])

    def _workload(
        self, name: str, queue: QuotaClusterQueue, priority: int, pod_sets: tuple[QuotaPodSet, ...]
    ) -> QuotaWorkload:
        number = len(self.workloads) + self.rng.randrange(10**9)
        return QuotaWorkload(
            namespace=NAMESPACE,
            name=f"{name}-{number:010}",
            uid=f"{number:032}",
            queue=queue.name,
            priority=priority,
            queued_at=NOW - timedelta(seconds=self.rng.randrange(60, 3_600)),
            pod_sets=pod_sets,
        )

    def capacity(self) -> Capacity:
        """Nodes of every flavor that are just full: the large pieces first, and whose they are is chance."""
        holders = [each for each in self.workloads if each.reservation]
        self.rng.shuffle(holders)
        holders.sort(key=lambda each: -sum(each.held.usage.values()))
        nodes: list[NodeInfo] = []
        pods, room = [], dict.fromkeys(self.size.flavors, 0)
        for each in holders:
            ((key, gpus),) = each.held.usage.items()
            if not room[key.flavor]:
                name = f"{key.flavor}-{len(nodes):05}"
                nodes.append(NodeInfo(name=name, labels={"gpu": key.flavor}, allocatable={GPU: NODE, "pods": 110}))
                room[key.flavor] = NODE
            room[key.flavor] -= gpus
            node = next(each.name for each in reversed(nodes) if each.labels["gpu"] == key.flavor)
            pods.append(BoundPod(pod=each.key, node=node, workload=each.key, requests={GPU: gpus, "pods": 1}))
        return capacity_of(nodes, pods)

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot()
        for name in self.size.flavors:
            snapshot.put(Flavor(name=name, node_labels={"gpu": name}))
        snapshot.put_namespace(NAMESPACE, {})
        for queue in self.queues:
            snapshot.put(queue)
            snapshot.put(QuotaLocalQueue(namespace=NAMESPACE, name=queue.name, cluster_queue=queue.name))
        for workload in self.workloads:
            snapshot.put(workload)
        return snapshot

    def candidates(self) -> Mapping[str, Candidate]:
        return {workload.key: self._candidate(workload, gpus) for workload, gpus in self.idle}

    def _candidate(self, workload: QuotaWorkload, gpus: int) -> Candidate:
        worked, idle = timedelta(hours=self.rng.random() * 8), timedelta(hours=self.rng.random() * 3)
        return Candidate(
            workload=workload.key,
            name=f"{NAMESPACE}/scale-{workload.name}",
            gpus=gpus,
            cost=cost_of(CostWeights(), gpus=gpus, worked=worked, idle=idle),
            cluster_queue=workload.queue,
        )


# What is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The seconds that it took, and how much of that was this process."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    steps: dict[str, list[float]]
    """The longest steps of the snapshot to take in a change, in seconds, by what was changed."""
    first: list[Timing]
    """Plans for the first gang of a tree."""
    further: list[Timing]
    plans: int
    exact: int
    victims: int
    """The victims of all plans."""
    refusals: dict[str, int]
    greedy_fails: int
    """Plans where greedy's victims do not get the gang in."""
    greedy_cost: float
    """The cost of greedy's victims, where they do, in terms of the plan's."""
    resident_mb: float


def measure(world: str, gangs: int) -> Result:
    cluster = Cluster(WORLDS[world])
    snapshot, capacity, candidates = cluster.snapshot(), cluster.capacity(), cluster.candidates()
    gc.collect()
    gc.freeze()  # as the program does it once it has read the cluster
    gc.set_threshold(2_000, 10, 1_000)
    _ = snapshot.trees
    steps = {what: timed_steps(snapshot, changes) for what, changes in updates(snapshot, cluster).items()}
    trees = list(snapshot.trees)
    first, further = list[Timing](), list[Timing]()
    found = list[tuple[PlanRequest, ReclaimPlan | NoPlan]]()
    resident_mb = 0.0
    for tree in trees:
        shared: list[PlanningTree] = []
        for place, gang in enumerate(line_of(snapshot, tree)[:gangs]):
            request, timing, plan = timed_plan(snapshot, tree, capacity, candidates, gang, shared)
            (further if place else first).append(timing)
            found.append((request, plan))
        resident_mb = max(resident_mb, resident())
    plans = [(request, plan) for request, plan in found if isinstance(plan, ReclaimPlan)]
    greedy = [ratio for request, plan in plans if (ratio := greedy_ratio(request, plan)) is not None]
    return Result(
        steps=steps,
        first=first,
        further=further,
        plans=len(plans),
        exact=sum(plan.is_exact for _, plan in plans),
        victims=sum(len(plan.victims) for _, plan in plans),
        refusals=dict(Counter(str(plan.why) for _, plan in found if isinstance(plan, NoPlan))),
        greedy_fails=len(plans) - len(greedy),
        greedy_cost=statistics.median(greedy) if greedy else 0.0,
        resident_mb=resident_mb,
    )


def updates(snapshot: Snapshot, cluster: Cluster) -> dict[str, list[Change]]:
    """The updates of two thousand Workloads and some of all else, by what they change; in the end all is as it was."""
    queues, flavors = cluster.rng.sample(cluster.queues, 5), list(snapshot.flavors.values())
    locals_ = [QuotaLocalQueue(namespace=NAMESPACE, name=each.name, cluster_queue=each.name) for each in queues]
    cohorts = [QuotaCohort(name=name, quotas=queues[0].quotas) for name in {each.cohort for each in queues}]
    return {
        "a Workload": [
            partial(snapshot.put, replace(each, generation=2)) for each in cluster.rng.sample(cluster.workloads, 2_000)
        ],
        "a LocalQueue": [
            partial(snapshot.put, replace(each, stop_policy=policy))
            for each in locals_
            for policy in (StopPolicy.HOLD, StopPolicy.NONE)
        ],
        "a ClusterQueue": [
            partial(snapshot.put, each) for queue in queues for each in (replace(queue, quotas=less(queue)), queue)
        ],
        "a ClusterQueue that comes and goes": [
            change
            for queue in queues
            for change in (
                partial(snapshot.put, replace(queue, name="another")),
                partial(snapshot.drop, QuotaClusterQueue, "another"),
            )
        ],
        "a Cohort": [
            change
            for each in cohorts
            for change in (partial(snapshot.put, each), partial(snapshot.drop, QuotaCohort, each.name))
        ],
        "a ResourceFlavor": [
            partial(snapshot.put, each)
            for flavor in flavors
            for each in (replace(flavor, node_labels={"gpu": flavor.name, "zone": "a"}), flavor)
        ],
        "a ResourceFlavor that goes and comes back": [
            change
            for flavor in flavors
            for change in (partial(snapshot.drop, Flavor, flavor.name), partial(snapshot.put, flavor))
        ],
        "a Namespace": [partial(snapshot.put_namespace, NAMESPACE, labels) for labels in ({"team": "a"}, {})],
    }


def less(queue: QuotaClusterQueue) -> dict[FlavorResource, Quota]:
    return {key: replace(quota, nominal=quota.nominal - 1) for key, quota in queue.quotas.items()}


def timed_steps(snapshot: Snapshot, changes: Iterable[Change]) -> list[float]:
    """The processor time of each change, or of making its trees anew, whichever is longer: the one is a step of the
    watch, the other of whoever looks at the snapshot next."""
    return [max(timed(change), timed(lambda: snapshot.trees)) for change in changes]


def timed(step: Callable[[], object]) -> float:
    started = process_time()
    step()
    return process_time() - started


def line_of(snapshot: Snapshot, tree: Tree) -> list[QuotaWorkload]:
    """Who waits in the tree, in the order in which plans are made."""
    waiting = [each for workloads in snapshot.pending_in(tree).values() for each in workloads]
    return sorted(waiting, key=lambda each: (-each.priority, each.queued_at, each.uid))


def timed_plan(
    snapshot: Snapshot,
    tree: Tree,
    capacity: Capacity,
    candidates: Mapping[str, Candidate],
    gang: QuotaWorkload,
    shared: list[PlanningTree],
) -> tuple[PlanRequest, Timing, ReclaimPlan | NoPlan]:
    """A plan, with all that it takes to make it; `shared` keeps the planning_tree for further plans in the tree."""
    wall, cpu = perf_counter(), process_time()
    if not shared:
        shared.append(planning_tree_of(snapshot, tree, capacity))
    there = [
        each for queue in tree.queues.values() for key in queue.workloads if (each := candidates.get(key)) is not None
    ]
    request = PlanRequest(gang=gang, planning_tree=shared[0], candidates=there)
    plan = plan_reclaim(request)
    return request, Timing(wall=perf_counter() - wall, cpu=process_time() - cpu), plan


def planning_tree_of(snapshot: Snapshot, tree: Tree, capacity: Capacity) -> PlanningTree:
    return PlanningTree(
        tree=tree.clone(),
        pending=snapshot.pending_in(tree),
        world=SchedulingContext(
            flavor_options=FlavorOptions(flavors=dict(snapshot.flavors)),
            namespaces=dict(snapshot.namespaces),
            local_queue=snapshot.local_queue,
        ),
        fair_sharing=False,
        now=NOW,
        capacity=capacity,
    )


def greedy_ratio(request: PlanRequest, plan: ReclaimPlan) -> float | None:
    """What greedy's victims cost in terms of the plan's; None where they do not get the gang in."""
    wanted = sum(amount for each in request.gang.requests for amount in each.values())
    taken: list[Candidate] = []
    for each in sorted(request.candidates, key=lambda each: -each.cost.idle_divisor):
        if sum(one.gpus for one in taken) >= wanted:
            break
        taken.append(each)
    why_not = revalidate(request, taken)
    if why_not and "fits without" not in why_not:
        return None
    return sum(each.cost.total for each in taken) / plan.cost


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# The report


def headroom(value: float) -> str:
    return f"[{'green' if value >= 1 else 'red'}]{value:.1f}× headroom[/]"


def two(seconds: Sequence[float]) -> str:
    """Median and slowest, in ms."""
    return f"{1000 * statistics.median(seconds):.0f} / {1000 * max(seconds):.0f}" if seconds else "-"


def micros(seconds: Sequence[float]) -> str:
    return f"{1e6 * statistics.median(seconds):.0f} / {1e6 * max(seconds):.0f}"


def longest_step(result: Result) -> str:
    longest, what = max((max(taken), what) for what, taken in result.steps.items())
    return f"{1000 * longest:.1f}\n{what}"


def targets(world: str) -> tuple[float, float]:
    size = WORLDS[world]
    return size.target_s, size.target_further_s or size.target_s


def least_headroom(world: str, result: Result) -> float:
    timings = zip(targets(world), (result.first, result.further), strict=True)
    return min(target / max(each.cpu for each in taken) for target, taken in timings if taken)


def rows() -> Iterator[tuple[str, Callable[[str, Result], str]]]:
    yield "ClusterQueues", lambda world, _: f"{WORLDS[world].cohorts * WORLDS[world].queues:,}"
    yield "Workloads", lambda world, _: f"{WORLDS[world].workloads:,}"
    yield "idle ones", lambda world, _: f"{WORLDS[world].idle:,}"
    yield "a Workload changes: µs", lambda _, r: micros(r.steps["a Workload"])
    yield "longest step: ms", lambda _, r: longest_step(r)
    yield "", lambda _, r: headroom(TARGET_STEP_S / max(map(max, r.steps.values())))
    yield "first plan: ms", lambda _, r: two([each.wall for each in r.first])
    yield "  processor time", lambda _, r: two([each.cpu for each in r.first])
    yield "further plans: ms", lambda _, r: two([each.wall for each in r.further])
    yield "  processor time", lambda _, r: two([each.cpu for each in r.further])
    yield "target: ms", lambda world, _: " / ".join(f"< {1000 * each:.0f}" for each in dict.fromkeys(targets(world)))
    yield "", lambda world, r: headroom(least_headroom(world, r))
    yield "resident: MB", lambda _, r: f"{r.resident_mb:.0f}"
    yield "", lambda _, r: headroom(TARGET_MB / r.resident_mb)
    yield "plans", lambda _, r: f"{r.plans}"
    yield "  proven optimal", lambda _, r: f"{r.exact / r.plans:.0%}" if r.plans else "-"
    yield "victims of a plan", lambda _, r: f"{r.victims / r.plans:.1f}" if r.plans else "-"
    yield "refusals", lambda _, r: "\n".join(f"{count} {why}" for why, count in sorted(r.refusals.items())) or "-"
    yield "greedy: gang stays out", lambda _, r: f"{r.greedy_fails} of {r.plans}" if r.plans else "-"
    yield "greedy: costs", lambda _, r: f"{r.greedy_cost:.1f}×" if r.greedy_cost else "-"


def report(results: Mapping[str, Result]) -> Table:
    table = Table(title="Reclaim plans: median / slowest", title_justify="left")
    table.add_column("")
    for world in results:
        table.add_column(world, justify="right")
    for label, cell in rows():
        table.add_row(label, *(cell(world, result) for world, result in results.items()))
    return table


def machine() -> str:
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


def measured_apart(world: str, gangs: int) -> Result:
    """The result of a process of its own."""
    command = [sys.executable, __file__, "--measure", world, "--gangs", str(gangs)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(printed)
    for name in ("first", "further"):
        found[name] = [Timing(**each) for each in found[name]]
    return Result(**found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=3, help="how many are planned for in every tree")
    parser.add_argument("--world", action="append", choices=list(WORLDS), help="only this one; may be repeated")
    parser.add_argument("--measure", choices=list(WORLDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(asdict(measure(arguments.measure, arguments.gangs))))
        return
    results = {world: measured_apart(world, arguments.gangs) for world in arguments.world or WORLDS}
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(report(results))
    console.print(machine(), highlight=False)


if __name__ == "__main__":
    main()
