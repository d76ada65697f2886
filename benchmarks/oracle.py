"""Does the quota engine decide what Kueue's own scheduler decided?

    uv run python -m benchmarks.oracle FILE.jsonl.gz … [--tag fairSharing:on] [--strict] [--jobs 2]
    uv run python -m benchmarks.oracle FILE.jsonl.gz --show hand-07

Every line of a file holds a scenario (plain manifests, and Workloads to deactivate) and the result of running Kueue's
scheduler on it. A scenario is equal if the same Workloads are admitted with the same flavors and counts, the same ones
were preempted and drained, and the same ones wait at the end. Of one that never settles (`converged: false`) the listed
cycles are compared instead. Of one that is sensitive to the timing of requeues either ending counts; where heads of
different queues tie exactly, which Kueue leaves to chance, a difference is shown and forgiven.

`--strict` compares more, one by one: every cycle with its trace, the numbers of the quota tree at both ends, why
Workloads wait, what would have been without the deactivation, and the ending with late requeues.

The last line says how many are equal. The exit code is 1 if any differs.
"""

import argparse
import gzip
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import msgspec
from rich.console import Console
from rich.table import Table

from scaler.kube.objects import kueue_queues as kube
from scaler.kube.objects.kueue_workloads import Workload
from scaler.quota.cycle import Considered, SchedulingCycle
from scaler.quota.from_objects.snapshot_updater import QuotaObject, SnapshotUpdater
from scaler.quota.model import QuotaWorkload, StopPolicy
from scaler.quota.node import TreeNode
from scaler.quota.preemption.fair_sharing import dominant_resource_share
from scaler.quota.queues import CycleOutcome
from scaler.quota.simulation import QUIET_CYCLES, Simulation, SimulationLimits
from scaler.quota.snapshot import Snapshot
from scaler.quota.workload_index import SchedulingContext

Json = dict[str, Any]
Assignments = tuple[tuple[str, int, tuple[tuple[str, str], ...]], ...]
"""(PodSet, pods, flavors by resource)."""


# ------------------------------------------------------------------------------------------------------- the replay


@dataclass(kw_only=True)
class Replay:
    """What the engine makes of a scenario."""

    drained: dict[str, str]
    admitted: dict[str, tuple[str, Assignments]]
    pending: set[str]
    cycles: list[list[SchedulingCycle]]
    """One of every tree."""
    converged: bool
    reasons: dict[str, str]
    quota_before: Json
    quota_after: Json

    @property
    def preempted(self) -> set[str]:
        return {each.workload.key for cycle in self.cycles for part in cycle for each in part.preempted}


def simulations(snapshot: Snapshot, now: datetime) -> list[Simulation]:
    world = SchedulingContext.of(snapshot)
    return [
        Simulation(tree, snapshot.pending_in(tree), world, now=now, fair_sharing=snapshot.fair_sharing)
        for tree in snapshot.trees
    ]


_KINDS = (
    kube.ResourceFlavor,
    kube.AdmissionCheck,
    kube.Cohort,
    kube.ClusterQueue,
    kube.LocalQueue,
    kube.Namespace,
    Workload,
)
"""The kinds in the order in which filing all of them costs least."""


def snapshot_of(manifests: Iterable[Json], *, fair_sharing: bool, now: datetime) -> Snapshot:
    """A snapshot of plain manifests; those of other kinds are left out. Raises: ValueError where one cannot be read."""
    updater = SnapshotUpdater(Snapshot(fair_sharing=fair_sharing))
    kinds = {kind.__name__: kind for kind in _KINDS}
    for manifest in manifests:
        if (kind := kinds.get(manifest["kind"])) is not None:
            updater.put(cast(QuotaObject, msgspec.convert(manifest, kind)), now=now)
    if updater.unreadable:
        raise ValueError(f"cannot be read: {updater.unreadable}")
    return updater.snapshot


def replay(scenario: Json, *, deactivate: bool = True, late: bool = False) -> Replay:
    now = datetime.fromisoformat(scenario["now"])
    snapshot = snapshot_of(scenario["objects"], fair_sharing=scenario["fairSharing"], now=now)
    drained = drain(snapshot)
    trees = simulations(snapshot, now)
    inactive = set(scenario.get("deactivate", ())) if deactivate else set()
    for tree in trees:
        tree.deactivate(key for key in inactive if key in tree)
    before = quota_of(trees)
    workloads = [each for each in scenario["objects"] if each["kind"] == "Workload"]
    cycles, converged = run_in_step(trees, SimulationLimits.of(len(workloads)), late=late)
    admitted = {each.key: (each.held.cluster_queue, assignments_of(each)) for tree in trees for each in tree.holders}
    waiting = {f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in workloads}
    pending = waiting - inactive - admitted.keys()
    evicted = drained.keys() | {each.workload.key for cycle in cycles for part in cycle for each in part.preempted}
    return Replay(
        drained=drained,
        admitted=admitted,
        pending=pending,
        cycles=cycles,
        converged=converged,
        reasons={key: reason_of(snapshot.workloads[key], trees, evicted) for key in pending},
        quota_before=before,
        quota_after=quota_of(trees),
    )


def drain(snapshot: Snapshot) -> dict[str, str]:
    """Evict the Workloads that Kueue evicts from stopped queues, and the reasons. They wait, and cannot be admitted."""
    drained = {each: reason for each in snapshot.reserved if (reason := why_drained(each, snapshot))}
    for each in drained:
        snapshot.put(replace(each, reservation=None, admitted=False, may_queue=False))
    return {each.key: reason for each, reason in drained.items()}


def why_drained(workload: QuotaWorkload, snapshot: Snapshot) -> str:
    """The reason to drain it: of a stopped LocalQueue alone, but an eviction under way keeps its own."""
    local = snapshot.local_queue(workload.namespace, workload.queue)
    if workload.evicted or local is None:
        return ""
    stops = {StopPolicy.HOLD_AND_DRAIN} if workload.admitted else {StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN}
    if local.stop_policy is not StopPolicy.NONE:
        return "LocalQueueStopped" if local.stop_policy in stops else ""
    queue = snapshot.cluster_queues.get(local.cluster_queue)
    return "ClusterQueueStopped" if queue is not None and queue.stop_policy in stops else ""


def reason_of(workload: QuotaWorkload, trees: Sequence[Simulation], evicted: Collection[str]) -> str:
    known = next((reason for tree in trees if workload.key in tree and (reason := tree.reason(workload))), None)
    return known or ("PendingEvaluation" if workload.key in evicted else "")


def run_in_step(
    trees: Sequence[Simulation], limits: SimulationLimits, *, late: bool
) -> tuple[list[list[SchedulingCycle]], bool]:
    """Run all trees side by side, as the one scheduler of a cluster does; whether they settle."""
    cycles: list[list[SchedulingCycle]] = []
    preemptions = quiet = 0
    decided = False
    while True:
        if not (late and decided and any(tree.has_heads for tree in trees)):
            for tree in trees:
                tree.retry()
        if not any(tree.has_heads for tree in trees):
            return cycles, True
        cycle = [tree.step(len(cycles)) for tree in trees]
        cycles.append(cycle)
        decided = any(part.decided for part in cycle)
        preemptions += sum(len(part.preempted) for part in cycle)
        quiet = 0 if decided or any(part.moved for part in cycle) else quiet + 1
        settled = quiet >= QUIET_CYCLES or all(part.will_repeat for part in cycle)
        if quiet and settled and not any(tree.asks_for_retry for tree in trees):
            return cycles, True
        if preemptions >= limits.preemptions or len(cycles) >= limits.cycles:
            return cycles, False


def assignments_of(workload: QuotaWorkload) -> Assignments:
    return tuple((each.name, each.count, tuple(sorted(each.flavors.items()))) for each in workload.held.assignments)


def quota_of(trees: Iterable[Simulation]) -> Json:
    """The numbers of all nodes as the files give them."""
    return {
        "clusterQueues": {queue.name: numbers(queue) for each in trees for queue in each.tree.scheduling},
        "cohorts": {cohort.name: numbers(cohort) for each in trees for cohort in each.tree.cohorts.values()},
    }


def numbers(node: TreeNode) -> Json:
    return {
        "usage": {f"{key}": value for key, value in node.usage.items()},
        "subtreeQuota": {f"{key}": value for key, value in node.subtree.items()},
        "available": {f"{key}": node.available(key) for key in node.subtree},
        "potentialAvailable": {f"{key}": node.potential(key) for key in node.subtree},
        "weightedShare": dominant_resource_share(node).weighted,
    }


# --------------------------------------------------------------------------------------------------- the comparison


def given_assignments(assignments: Iterable[Json]) -> Assignments:
    return tuple((each["podSet"], each["count"], tuple(sorted(each["flavors"].items()))) for each in assignments)


def given_admitted(final: Json) -> dict[str, tuple[str, Assignments]]:
    return {
        key: (each["clusterQueue"], given_assignments(each["assignments"])) for key, each in final["admitted"].items()
    }


def difference_of_sets(what: str, expected: Iterable[Any], found: Iterable[Any]) -> Iterator[str]:
    expected, found = set(expected), set(found)
    if expected != found:
        yield f"{what}: missing {sorted(expected - found)}, unexpected {sorted(found - expected)}"


def difference_of_endings(final: Json, found: Replay) -> Iterator[str]:
    expected = given_admitted(final)
    yield from difference_of_sets("admitted", expected, found.admitted)
    for key in expected.keys() & found.admitted.keys():
        if expected[key] != found.admitted[key]:
            yield f"{key}: {found.admitted[key]} instead of {expected[key]}"
    yield from difference_of_sets("pending", final["pending"], found.pending)


def difference_of_decisions(expected: Json, parts: Sequence[SchedulingCycle]) -> Iterator[str]:
    """The differences of one cycle."""
    where = f"cycle {expected['cycle']}"
    admitted = {
        (each["workload"], each["clusterQueue"], given_assignments(each["assignments"]))
        for each in expected["admitted"]
    }
    found = {(each.key, each.held.cluster_queue, assignments_of(each)) for part in parts for each in part.admitted}
    yield from difference_of_sets(f"{where} admitted", admitted, found)
    preempted = {(each["workload"], each["reason"], each["by"]) for each in expected["preempted"]}
    gone = {(each.workload.key, str(each.reason), each.by) for part in parts for each in part.preempted}
    yield from difference_of_sets(f"{where} preempted", preempted, gone)


def difference_of_cycles(expected: Sequence[Json], found: Sequence[Sequence[SchedulingCycle]]) -> Iterator[str]:
    for listed, parts in zip_longest(expected, found[: len(expected)], fillvalue=()):
        yield from difference_of_decisions(listed, parts)  # type: ignore[arg-type]


def differences(result: Json, found: Replay) -> Iterator[str]:
    """What makes the scenario unequal."""
    drained = {each["workload"]: each["reason"] for each in result.get("drained", ())}
    yield from difference_of_sets("drained", drained.items(), found.drained.items())
    if not result["converged"]:
        yield from difference_of_cycles(result["cycles"], found.cycles)
        return
    if not found.converged:
        yield "does not settle"
    ending = list(difference_of_endings(result["final"], found))
    if ending and "lateRequeue" in result and not any(difference_of_endings(result["lateRequeue"], found)):
        return
    yield from ending
    preempted = {each["workload"] for cycle in result["cycles"] for each in cycle["preempted"]}
    yield from difference_of_sets("preempted", preempted, found.preempted)


def strict_differences(scenario: Json, result: Json, found: Replay) -> Iterator[str]:
    """What else differs, which nobody promised to be equal."""
    yield from difference_of_cycles(result["cycles"], found.cycles)
    for listed, parts in zip(result["cycles"], found.cycles, strict=False):
        yield from difference_of_traces(listed, parts)
    if not result["converged"]:
        return
    yield from difference_of_quota("quotaInitial", result["quotaInitial"], found.quota_before)
    yield from difference_of_quota("quotaFinal", result["quotaFinal"], found.quota_after)
    reasons = {key: reason for key, reason in result["final"].get("pendingReasons", {}).items() if reason}
    for key, reason in reasons.items():
        if (ours := found.reasons.get(key, "")) != reason:
            yield f"reason of {key}: {ours!r} instead of {reason!r}"
    if result.get("withoutDeactivateConverged"):
        found = replay(scenario, deactivate=False)
        yield from prefixed("without deactivation", difference_of_endings(result["withoutDeactivate"], found))
    late: Json = result["lateRequeue"] if "lateRequeue" in result else result["final"]
    yield from prefixed("late", difference_of_endings(late, replay(scenario, late=True)))


def prefixed(prefix: str, texts: Iterable[str]) -> Iterator[str]:
    return (f"{prefix}: {text}" for text in texts)


def traced(considered: Considered) -> str:
    skipped = "skipped:" if considered.outcome is CycleOutcome.SKIPPED else ""
    return f"{considered.workload}={skipped}{considered.outcome}"


def difference_of_traces(expected: Json, parts: Sequence[SchedulingCycle]) -> Iterator[str]:
    """The order counts inside a tree only, and of heads that are not nominated not at all."""
    for part in parts:
        ours = [traced(each) for each in part.considered]
        names = {each.workload for each in part.considered}
        theirs = [each for each in expected["trace"] if each.partition("=")[0] in names]
        if ours != theirs and sorted(ours) != sorted(theirs):
            yield f"cycle {part.number} trace: {ours} instead of {theirs}"
        elif ours != theirs and not any("Mismatch" in each for each in ours):
            yield f"cycle {part.number} order: {ours} instead of {theirs}"
    known = {each.workload for part in parts for each in part.considered}
    if forgotten := [each for each in expected["trace"] if each.partition("=")[0] not in known]:
        yield f"cycle {expected['cycle']} trace: nothing of {forgotten}"


def difference_of_quota(what: str, expected: Json, found: Json) -> Iterator[str]:
    for kind in ("clusterQueues", "cohorts"):
        for name, given in expected.get(kind, {}).items():
            ours = found[kind].get(name)
            if ours is None:
                yield f"{what}: nothing of {name}"
                continue
            for measure, values in given.items():
                if measure == "weightedShare":
                    share = math.inf if values == "+Inf" else float(values)
                    if not math.isclose(share, ours[measure], rel_tol=1e-9):
                        yield f"{what} {name} {measure}: {ours[measure]} instead of {values}"
                    continue
                for key, value in values.items():
                    if ours[measure].get(key, 0) != value:
                        yield f"{what} {name} {measure} {key}: {ours[measure].get(key, 0)} instead of {value}"


# ------------------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True, kw_only=True)
class Verdict:
    id: str
    tags: tuple[str, ...]
    differences: tuple[str, ...]
    is_forgiven: bool
    """Whether Kueue might have decided differently itself."""
    remarks: tuple[str, ...]
    """Differences beyond what was promised."""
    seconds: float

    @property
    def is_equal(self) -> bool:
        return not self.differences or self.is_forgiven


def judge(line: bytes, *, strict: bool) -> Verdict:
    entry = json.loads(line)
    scenario, result = entry["scenario"], entry["result"]
    tags = (*scenario["features"], *result.get("tags", ()))
    started = perf_counter()
    try:
        found = replay(scenario)
        seconds = perf_counter() - started
        differing = tuple(differences(result, found))
        remarks = tuple(strict_differences(scenario, result, found)) if strict else ()
        forgiven = bool(differing) and has_tie(scenario, found)
    except ValueError as error:
        seconds, differing, remarks, forgiven = perf_counter() - started, (f"cannot be replayed: {error}",), (), False
    return Verdict(
        id=scenario["id"], tags=tags, differences=differing, is_forgiven=forgiven, remarks=remarks, seconds=seconds
    )


def has_tie(scenario: Json, found: Replay) -> bool:
    """Whether heads of different queues met that are equal in priority and age: Kueue takes them in any order."""
    places = {
        f"{each['metadata']['namespace']}/{each['metadata']['name']}": (
            each["spec"]["priority"],
            each["metadata"]["creationTimestamp"],
        )
        for each in scenario["objects"]
        if each["kind"] == "Workload"
    }
    met = ([places[each.workload] for each in part.considered] for cycle in found.cycles for part in cycle)
    return any(len(set(heads)) < len(heads) for heads in met)


def lines_of(files: Iterable[Path]) -> Iterator[bytes]:
    for file in files:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            yield from lines


def selected(lines: Iterable[bytes], arguments: argparse.Namespace) -> Iterator[bytes]:
    """The scenarios that are asked for."""
    left = arguments.limit
    for line in lines:
        if arguments.tag and not all(f'"{tag}"'.encode() in line for tag in arguments.tag):
            continue
        if left == 0:
            return
        left -= 1
        yield line


def report(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Equal to Kueue, by feature", title_justify="left")
    for column in ("feature", "equal", "of", ""):
        table.add_column(column, justify="left" if column == "feature" else "right")
    total = Counter(tag for verdict in verdicts for tag in verdict.tags)
    equal = Counter(tag for verdict in verdicts if verdict.is_equal for tag in verdict.tags)
    for tag in sorted(total):
        share = f"{equal[tag] / total[tag]:.1%}" if equal[tag] < total[tag] else ""
        table.add_row(tag, f"{equal[tag]}", f"{total[tag]}", share)
    return table


def show(line: bytes, console: Console) -> None:
    """Both sides of one scenario, cycle by cycle."""
    entry = json.loads(line)
    scenario, result = entry["scenario"], entry["result"]
    found = replay(scenario)
    console.print(f"{scenario['id']}: {', '.join(scenario['features'])}", highlight=False)
    table = Table("cycle", "Kueue", "here", show_lines=True)
    listed = {each["cycle"]: each for each in result["cycles"]}
    for number in range(max(len(found.cycles), len(listed))):
        parts = found.cycles[number] if number < len(found.cycles) else []
        ours = [told(each, part) for part in parts for each in part.considered]
        theirs = [*listed.get(number, {}).get("trace", ())]
        theirs += [
            f"  {each['workload']} preempted by {each['by']}: {each['reason']}"
            for each in listed.get(number, {}).get("preempted", ())
        ]
        ours += [
            f"  {each.workload.key} preempted by {each.by}: {each.reason}" for part in parts for each in part.preempted
        ]
        table.add_row(str(number), "\n".join(theirs), "\n".join(ours))
    console.print(table, highlight=False)
    for each in (*differences(result, found), *strict_differences(scenario, result, found)):
        console.print(f"* {each}", highlight=False)


def told(considered: Considered, cycle: SchedulingCycle) -> str:
    where = next((each for each in cycle.admitted if each.key == considered.workload), None)
    return traced(considered) + (f" {assignments_of(where)}" if where else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.jsonl.gz")
    parser.add_argument("--limit", type=int, default=-1, help="replay only the first so many")
    parser.add_argument("--tag", action="append", help="replay only scenarios with this tag; may be repeated")
    parser.add_argument("--show", metavar="ID", help="print both sides of this scenario, cycle by cycle")
    parser.add_argument("--strict", action="store_true", help="compare traces, quota numbers and other endings too")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if arguments.show:
        wanted = f'"id":"{arguments.show}"'.encode()
        for line in lines_of(arguments.files):
            if wanted in line[:200].replace(b" ", b""):
                show(line, console)
        return
    started = perf_counter()
    verdicts = judged(
        selected(lines_of(arguments.files), arguments), partial(judge, strict=arguments.strict), arguments.jobs
    )
    for verdict in verdicts:
        for each in verdict.differences:
            console.print(
                f"{verdict.id}: {'forgiven: ' if verdict.is_forgiven else ''}{each}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        for each in verdict.remarks:
            console.print(f"{verdict.id}: besides: {each}", highlight=False, markup=False, soft_wrap=True)
    console.print(report(verdicts))
    equal = sum(verdict.is_equal for verdict in verdicts)
    seconds = perf_counter() - started
    console.print(f"{sum(v.seconds for v in verdicts):.1f} s of replaying, {seconds:.1f} s in all", highlight=False)
    print(f"equal: {equal}/{len(verdicts)} ({100 * equal / max(1, len(verdicts)):.2f}%)")
    sys.exit(equal < len(verdicts))


def judged(lines: Iterable[bytes], judge: Callable[[bytes], Verdict], jobs: int) -> list[Verdict]:
    if jobs == 1:
        return [judge(line) for line in lines]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(judge, lines, chunksize=16))


if __name__ == "__main__":
    main()
