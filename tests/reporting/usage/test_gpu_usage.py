"""What GPUs do, from the decisions of a small cluster in virtual time."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import NOON, WorkloadJson, minutes
from loops_builders import (
    NAMESPACE,
    Inhabitant,
    MemoryCluster,
    World,
    deployment,
    gang,
    pod,
    scalable_workload,
    scaled_object,
)
from scripted_metrics import Metrics, ScriptedSource, gpu

import scaler
from scaler.decision.reasons import CandidateState
from scaler.errors import SourceError
from scaler.idleness.policy import Overrides
from scaler.kube.reflector import NotWatched
from scaler.quota.watch import NotSynced
from scaler.reporting.pending_workloads import QueueNames
from scaler.reporting.usage.gpu_states import GpuState
from scaler.reporting.usage.gpu_usage import FleetUsage, GpuOwner, GpuUsageReader

BUSY: Callable[[float], float] = lambda _: 0.9  # noqa: E731
QUIET: Callable[[float], float] = lambda _: 0.0  # noqa: E731
MODEL = "NVIDIA-A100"


def world_of(*inhabitants: Inhabitant, shown: Mapping[str, Sequence[Callable[[float], float]]], **config: Any) -> World:
    """`shown`: by pod, what each of its GPUs does."""

    def source(world: World) -> ScriptedSource:
        series = [
            each
            for name, gpus in shown.items()
            for number, ratio in enumerate(gpus)
            for each in gpu(f"GPU-{name}-{number}", pod=name, ratio=ratio)
        ]
        return ScriptedSource(metrics=Metrics(series=series), clock=lambda: world.now)

    return World(inhabitants, source, **config)


async def usage_in(world: World, *, now: timedelta = timedelta(0)) -> FleetUsage:
    evaluation = await world.tick(NOON + now)
    assert evaluation is not None
    queues = QueueNames(quota=lambda: NotSynced("not watched"))
    usage = GpuUsageReader(cluster=world.cluster.read(), judge=world.evaluator.judge, queues=queues)
    return await usage.take(evaluation)


async def usage_of(
    *inhabitants: Inhabitant,
    shown: Mapping[str, Sequence[Callable[[float], float]]],
    now: timedelta = timedelta(0),
) -> FleetUsage:
    """As `world_of`, at once."""
    return await usage_in(world_of(*inhabitants, shown=shown), now=now)


def states_in(usage: FleetUsage) -> dict[tuple[str, str, str], int]:
    """By ClusterQueue, state and reason."""
    found: Counter[tuple[str, str, str]] = Counter()
    for (place, each), count in usage.gpus.items():
        assert (place.namespace, place.model) in (("demo", MODEL), ("demo", ""))
        found[place.cluster_queue, str(each.state), each.reason] += count
    return dict(found)


def lone(name: str, *, gpus: int = 1, **changes: Any) -> Inhabitant:
    """A pod without a ScaledObject."""

    def settle(cluster: MemoryCluster) -> None:
        cluster.pods.put(pod(name, gpus=gpus, **changes))

    return settle


def both(*settle: Inhabitant) -> Inhabitant:
    def settled(cluster: MemoryCluster) -> None:
        for each in settle:
            each(cluster)

    return settled


def objects(**of_kind: Any) -> Inhabitant:
    """Objects by the name of their store."""

    def settle(cluster: MemoryCluster) -> None:
        for store, given in of_kind.items():
            getattr(cluster, store).put(given)

    return settle


OBSERVED = {"idleAfter": "10m", "warmUp": "1m", "mode": "observe"}
HALF = both(gang("half"), objects(workloads=WorkloadJson("half-workload", pods=2, gpus_per_pod=2).admitted().decoded()))
"""A gang of two pods of which one does not run."""
FINISHED = WorkloadJson("done", pods=1, gpus_per_pod=1).admitted().condition("Finished", True)
QUEUE = "cluster-queue"
STATES: dict[str, tuple[Inhabitant, dict[str, list[Callable[[float], float]]], dict[tuple[str, str, str], int]]] = {
    "of workloads with a ScaledObject": (
        both(gang("idle"), gang("half"), gang("kept", gpus=1, metadata=OBSERVED), deployment("serve", gpus=1)),
        {"idle-pod": [QUIET] * 2, "half-pod": [BUSY, QUIET], "kept-pod": [QUIET], "serve-pod": [BUSY]},
        {
            (QUEUE, "Idle", "GPUsIdle"): 2,
            (QUEUE, "Busy", ""): 1,
            (QUEUE, "HeldIdle", "GPUsBusy"): 1,
            (QUEUE, "HeldIdle", "ObserveOnly"): 1,
            ("", "Busy", ""): 1,
        },
    ),
    "of pods without one, by the defaults": (
        both(
            lone("forgotten", gpus=2),
            lone("working"),
            lone("silent"),
            lone("coming", started=None, phase="Pending"),
            lone("without a node", started=None, phase="Pending", node=""),
        ),
        {"forgotten": [QUIET] * 2, "working": [BUSY]},
        {
            ("", "HeldIdle", "NoScaledObject"): 2,
            ("", "Busy", ""): 1,
            ("", "WithoutMetrics", "NoSamples"): 1,
            ("", "Starting", ""): 1,
        },
    ),
    "of a workload that has not started whole, which is not judged": (
        HALF,
        {"half-pod": [QUIET] * 2},
        {(QUEUE, "HeldIdle", "Starting"): 2},
    ),
    "and a doubt about its pod outweighs that": (
        HALF,
        {"half-pod": [QUIET]},
        {(QUEUE, "Unknown", "MissingGPUs"): 1, (QUEUE, "WithoutMetrics", "MissingGPUs"): 1},
    ),
    "of a workload whose trigger cannot be used": (
        gang("typo", metadata={"idleAfter": "soon"}),
        {"typo-pod": [QUIET] * 2},
        {(QUEUE, "Unknown", "InvalidPolicy"): 2},
    ),
    "of a pod that requests none, by a claim or a resource that is not configured": (
        both(gang("train", gpus=1), lone("claims", gpus=0, workload="train-workload")),
        {"train-pod": [BUSY], "claims": [BUSY]},
        {(QUEUE, "Busy", ""): 1, (QUEUE, "Unknown", "UnexpectedGPUs"): 1},
    ),
    # One scales the gang, the other a Deployment that is at 0 and whose selector selects its pod, too.
    "of a pod of two ScaledObjects, by the one that judges it": (
        both(
            deployment("a-parent", replicas=0),
            gang("train"),
            lone("train-pod", gpus=2, workload="train-workload", labels={"app": "a-parent"}),
        ),
        {"train-pod": [QUIET] * 2},
        {(QUEUE, "Idle", "GPUsIdle"): 2},
    ),
    "of a pod of a finished Workload, in no queue": (
        both(objects(workloads=FINISHED.decoded()), lone("left", workload="done")),
        {"left": [BUSY]},
        {("", "Busy", ""): 1},
    ),
}


@pytest.mark.parametrize(("settle", "shown", "states"), STATES.values(), ids=STATES)
async def test_gpus_are_counted(settle: Inhabitant, shown: Any, states: dict[tuple[str, str, str], int]) -> None:
    assert states_in(await usage_of(settle, shown=shown)) == states


@pytest.mark.parametrize(
    ("doubtful", "reason"),
    [
        pytest.param(lambda world: fail(world), "SourceUnavailable", id="the source does not answer"),
        pytest.param(lambda world: hide(world), "StaleClusterView", id="its namespace is not seen whole"),
    ],
)
async def test_the_quiet_of_pods_that_no_scaled_object_scales_is_not_believed_when(
    doubtful: Callable[[World], None], reason: str
) -> None:
    world = world_of(lone("quiet"), lone("working"), shown={"quiet": [QUIET], "working": [BUSY]})
    believed = await usage_in(world)
    assert states_in(believed) == {("", "HeldIdle", "NoScaledObject"): 1, ("", "Busy", ""): 1}
    doubtful(world)
    usage = await usage_in(world, now=timedelta(seconds=30))
    assert states_in(usage) == {("", "Unknown", reason): 1, ("", "Busy", ""): 1}


def fail(world: World) -> None:
    assert isinstance(world.source, ScriptedSource)
    world.source.failing = {"gpu_util": SourceError("503", transient=True)}


def hide(world: World) -> None:
    world.cluster.pods.hidden[NAMESPACE] = NotWatched(NAMESPACE)


async def test_the_quiet_of_pods_that_no_scaled_object_scales_is_not_believed_before_the_window_is_read_back() -> None:
    """An hour is read at a time. The minute before it is no hole in what was seen; it was not read."""
    longer = Overrides(idle_after=minutes(61))
    world = world_of(lone("quiet"), shown={"quiet": [QUIET]}, defaults=longer)
    assert states_in(await usage_in(world)) == {("", "Unknown", "ColdStart"): 1}
    assert states_in(await usage_in(world, now=timedelta(seconds=30))) == {("", "HeldIdle", "NoScaledObject"): 1}


def test_nothing_comes_of_verdicts_on_pods_that_no_scaled_object_scales() -> None:
    """They are only counted. Another reader might act on what no ScaledObject asks for."""
    files = Path(scaler.__file__).parent
    naming = (each for each in files.rglob("*.py") if "verdict_by_default" in each.read_text(encoding="utf-8"))
    found = {each.relative_to(files).as_posix() for each in naming}
    assert found == {"decision/judge.py", "reporting/usage/gpu_usage.py"}


async def test_a_gpu_without_metrics_is_of_the_model_of_its_node() -> None:
    usage = await usage_of(lone("seen"), lone("silent"), lone("far", node="node-z"), shown={"seen": [BUSY]})
    models = {place.model: found.state for place, found in usage.gpus if found.state is GpuState.WITHOUT_METRICS}
    assert models == {MODEL: GpuState.WITHOUT_METRICS, "": GpuState.WITHOUT_METRICS}
    assert {node: sum(found.values()) for node, found in usage.nodes.items()} == {"node-a": 2, "node-z": 1}
    assert {place for place, found in usage.gpus if found.state is GpuState.BUSY} == {GpuOwner("demo", "", MODEL)}


async def test_the_models_of_nodes_that_are_gone_are_forgotten() -> None:
    world = world_of(lone("seen"), shown={"seen": [BUSY]})
    evaluation = await world.tick(NOON)
    assert evaluation is not None
    queues = QueueNames(quota=lambda: NotSynced("not watched"))
    usage = GpuUsageReader(cluster=world.cluster.read(), judge=world.evaluator.judge, queues=queues)
    usage._models.update({f"node-{number}": MODEL for number in range(5_000)})
    await usage.take(evaluation)
    assert usage._models["node-a"] == MODEL
    assert "node-4999" in usage._models, "one that has no pod for a moment"
    assert len(usage._models) < 300


async def test_the_states_of_single_workloads_are_those_of_their_pods() -> None:
    paused = gang("paused", annotations={"autoscaling.keda.sh/paused": "true"})
    shown = {"idle-pod": [QUIET] * 2, "paused-pod": [QUIET] * 2, "serve-pod": [BUSY]}
    usage = await usage_of(gang("idle", gpus=2), paused, deployment("serve"), shown=shown)
    found = {each.title.name: each for each in usage.workloads}
    assert found["idle"].title == ("demo", "cluster-queue", "ScalableWorkload", "idle")
    assert found["idle"].states == {GpuState.IDLE: 2}
    # Quiet as far as samples go back, which is an hour; before that it may have worked.
    assert found["idle"].idle_seconds == 60 * 60
    assert found["idle"].peaks == {"gr_engine_active": 0.0, "gpu_util": 0.0}
    assert found["paused"].states == {GpuState.HELD_IDLE: 2}
    assert [name for name, each in found.items() if each.is_paused] == ["paused"]
    assert usage.paused_scaled_objects == 1
    assert found["serve"].states == {GpuState.BUSY: 1}
    assert found["serve"].idle_seconds is None
    assert found["serve"].peaks["gpu_util"] > 0.89


async def test_a_target_is_shown_once_and_one_at_zero_without_gpus() -> None:
    suspended = WorkloadJson("w").with_annotations({"idlegpu.io/suspended": "{}"}).deactivated().decoded()
    asleep = scalable_workload("asleep", replicas=0, workload="w")
    settle = both(
        gang("train"),
        objects(scaled_objects=scaled_object("other", target="train")),
        objects(scaled_objects=scaled_object("asleep"), scalable_workloads=asleep, workloads=suspended),
    )
    usage = await usage_of(settle, shown={"train-pod": [QUIET] * 2})
    assert {each.title.name: each.states for each in usage.workloads} == {"train": {GpuState.IDLE: 2}, "asleep": {}}
    assert (len(usage.workloads), sum(usage.gpus.values())) == (2, 2)


async def test_coverage_is_the_share_of_intervals_with_a_sample_of_pods_that_are_old_enough() -> None:
    young = NOON - minutes(2)

    def since(instant: datetime) -> Callable[[float], float]:
        return lambda at_s: 0.9 if at_s > instant.timestamp() else math.nan

    shown = {"whole": [BUSY], "half": [since(NOON - minutes(30))], "young": [since(young)]}
    usage = await usage_of(lone("whole"), lone("half"), lone("young", started=young), shown=shown)
    # 60 of 60 minutes, and 30 of 60.
    assert usage.coverage == {"gr_engine_active": 0.75, "gpu_util": 0.75}


async def test_a_workload_has_its_state_and_its_owner() -> None:
    usage = await usage_of(gang("train", gpus=1), shown={"train-pod": [BUSY]})
    [found] = usage.workloads
    assert (found.state, found.owner) == (CandidateState.BUSY, "demo")
