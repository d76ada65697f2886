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
    usage = GpuUsageReader(cluster=world.cluster.read(), evaluator=world.evaluator, queues=queues)
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


async def test_every_gpu_is_counted_by_queue_state_and_reason() -> None:
    usage = await usage_of(
        gang("idle", gpus=2),
        gang("half", gpus=2),
        gang("kept", gpus=1, metadata={"idleAfter": "10m", "warmUp": "1m", "mode": "observe"}),
        deployment("serve", gpus=1),
        shown={"idle-pod": [QUIET] * 2, "half-pod": [BUSY, QUIET], "kept-pod": [QUIET], "serve-pod": [BUSY]},
    )
    assert states_in(usage) == {
        ("cluster-queue", "Idle", "GPUsIdle"): 2,
        ("cluster-queue", "Busy", ""): 1,
        ("cluster-queue", "HeldIdle", "GPUsBusy"): 1,
        ("cluster-queue", "HeldIdle", "ObserveOnly"): 1,
        ("", "Busy", ""): 1,
    }


async def test_pods_that_no_scaled_object_scales_are_judged_by_the_defaults() -> None:
    usage = await usage_of(
        lone("forgotten", gpus=2),
        lone("working"),
        lone("silent"),
        lone("coming", started=None, phase="Pending"),
        lone("nowhere yet", started=None, phase="Pending", node=""),
        shown={"forgotten": [QUIET] * 2, "working": [BUSY]},
    )
    assert states_in(usage) == {
        ("", "HeldIdle", "NoScaledObject"): 2,
        ("", "Busy", ""): 1,
        ("", "WithoutMetrics", "NoSamples"): 1,
        ("", "Starting", ""): 1,
    }
    assert not usage.workloads


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


async def test_a_doubt_about_a_pod_outweighs_who_keeps_its_workload() -> None:
    """It is not judged, as it does not run whole: of its 2 GPUs only one reports."""

    def settle(cluster: MemoryCluster) -> None:
        gang("half")(cluster)
        cluster.workloads.put(WorkloadJson("half-workload", pods=2, gpus_per_pod=2).admitted().decoded())

    usage = await usage_of(settle, shown={"half-pod": [QUIET]})
    assert states_in(usage) == {
        ("cluster-queue", "Unknown", "MissingGPUs"): 1,
        ("cluster-queue", "WithoutMetrics", "MissingGPUs"): 1,
    }


def test_nothing_comes_of_verdicts_on_pods_that_no_scaled_object_scales() -> None:
    """Who hears of them only counts. Whoever else is to hear of them might act on what nobody has asked for."""
    assert who_names("judge_by_default") == {"decision/evaluation.py", "reporting/usage/gpu_usage.py"}
    assert who_names("from scaler.reporting.usage.gpu_usage import") == {
        "app/fleet_controller.py",
        "reporting/usage/fleet_metrics.py",
        "reporting/usage/fleet_collector.py",
        "reporting/usage/suspensions.py",
    }


def who_names(text: str) -> set[str]:
    """Files of the program."""
    files = Path(scaler.__file__).parent
    found = (each for each in files.rglob("*.py") if text in each.read_text(encoding="utf-8"))
    return {each.relative_to(files).as_posix() for each in found}


async def test_a_pod_that_requests_no_gpu_and_has_one_counts_as_its_workloads() -> None:
    """By a claim, or by a resource that is not configured."""

    def settle(cluster: MemoryCluster) -> None:
        gang("train", gpus=1)(cluster)
        cluster.pods.put(pod("claims", gpus=0, workload="train-workload"))

    usage = await usage_of(settle, shown={"train-pod": [BUSY], "claims": [BUSY]})
    assert states_in(usage) == {("cluster-queue", "Busy", ""): 1, ("cluster-queue", "Unknown", "UnexpectedGPUs"): 1}


async def test_of_two_scaled_objects_of_a_pod_the_one_that_looks_at_it_tells_its_state() -> None:
    """One scales the gang, the other a Deployment that is at 0 and whose selector names its pod, too."""

    def settle(cluster: MemoryCluster) -> None:
        deployment("a-parent", replicas=0)(cluster)
        gang("train")(cluster)
        cluster.pods.put(pod("train-pod", gpus=2, workload="train-workload", labels={"app": "a-parent"}))

    usage = await usage_of(settle, shown={"train-pod": [QUIET] * 2})
    assert states_in(usage) == {("cluster-queue", "Idle", "GPUsIdle"): 2}


async def test_a_pod_of_a_finished_workload_is_of_no_queue() -> None:
    def settle(cluster: MemoryCluster) -> None:
        done = WorkloadJson("done", pods=1, gpus_per_pod=1).admitted().condition("Finished", True)
        cluster.workloads.put(done.decoded())
        cluster.pods.put(pod("left", workload="done"))

    assert states_in(await usage_of(settle, shown={"left": [BUSY]})) == {("", "Busy", ""): 1}


async def test_a_gpu_without_metrics_is_of_the_model_of_its_node() -> None:
    usage = await usage_of(lone("seen"), lone("silent"), lone("far", node="node-z"), shown={"seen": [BUSY]})
    models = {place.model: found.state for place, found in usage.gpus if found.state is GpuState.WITHOUT_METRICS}
    assert models == {MODEL: GpuState.WITHOUT_METRICS, "": GpuState.WITHOUT_METRICS}
    assert {place for place, found in usage.gpus if found.state is GpuState.BUSY} == {GpuOwner("demo", "", MODEL)}


async def test_a_paused_scaled_object_holds_idle_gpus() -> None:
    paused = {"autoscaling.keda.sh/paused": "true"}
    shown = {"idle-pod": [QUIET] * 2, "other-pod": [QUIET] * 2}
    usage = await usage_of(gang("idle", annotations=paused), gang("other"), shown=shown)
    assert states_in(usage) == {
        ("cluster-queue", "HeldIdle", "PausedInKEDA"): 2,
        ("cluster-queue", "Idle", "GPUsIdle"): 2,
    }
    assert usage.paused_scaled_objects == 1
    assert {each.title.name: each.is_paused for each in usage.workloads} == {"idle": True, "other": False}


async def test_a_workload_that_has_not_come_up_whole_keeps_its_own_reason() -> None:
    """A gang of two pods of which one does not run: its GPUs are looked at all the same."""

    def settle(cluster: MemoryCluster) -> None:
        gang("half")(cluster)
        cluster.workloads.put(WorkloadJson("half-workload", pods=2, gpus_per_pod=2).admitted().decoded())

    usage = await usage_of(settle, shown={"half-pod": [QUIET] * 2})
    assert states_in(usage) == {("cluster-queue", "HeldIdle", "Starting"): 2}


async def test_a_workload_whose_trigger_cannot_be_used_is_known_to_be_somebodys() -> None:
    usage = await usage_of(gang("typo", metadata={"idleAfter": "soon"}), shown={"typo-pod": [QUIET] * 2})
    assert states_in(usage) == {("cluster-queue", "Unknown", "InvalidPolicy"): 2}


async def test_the_states_of_single_workloads_are_those_of_their_pods() -> None:
    usage = await usage_of(
        gang("idle", gpus=2), deployment("serve"), shown={"idle-pod": [QUIET, QUIET], "serve-pod": [BUSY]}
    )
    found = {each.title.name: each for each in usage.workloads}
    assert found["idle"].title == ("demo", "cluster-queue", "ScalableWorkload", "idle")
    assert found["idle"].states == {GpuState.IDLE: 2}
    # Quiet from the beginning, and so since its warm-up of 1 min ended, 119 min ago.
    assert found["idle"].idle_seconds == 119 * 60
    assert found["idle"].peaks == {"gr_engine_active": 0.0, "gpu_util": 0.0}
    assert found["serve"].states == {GpuState.BUSY: 1}
    assert found["serve"].idle_seconds is None
    assert found["serve"].peaks["gpu_util"] > 0.89


async def test_one_target_of_two_scaled_objects_is_one_workload() -> None:
    def settle(cluster: MemoryCluster) -> None:
        gang("train")(cluster)
        cluster.scaled_objects.put(scaled_object("other", target="train"))

    usage = await usage_of(settle, shown={"train-pod": [QUIET] * 2})
    assert [each.title.name for each in usage.workloads] == ["train"]
    assert sum(usage.gpus.values()) == 2


async def test_one_that_sleeps_is_shown_with_no_gpus() -> None:
    def settle(cluster: MemoryCluster) -> None:
        cluster.scaled_objects.put(scaled_object("asleep"))
        cluster.scalable_workloads.put(scalable_workload("asleep", replicas=0, workload="w"))
        suspended = WorkloadJson("w").with_annotations({"idlegpu.io/suspended": "{}"}).deactivated()
        cluster.workloads.put(suspended.decoded())

    usage = await usage_of(settle, shown={})
    [asleep] = usage.workloads
    assert (asleep.states, asleep.idle_seconds) == ({}, None)


async def test_nodes_and_coverage_say_what_is_trusted() -> None:
    usage = await usage_of(
        lone("seen", gpus=2), lone("silent", node="node-z"), shown={"seen": [BUSY, QUIET]}, now=minutes(5)
    )
    assert {node: sum(found.values()) for node, found in usage.nodes.items()} == {"node-a": 2, "node-z": 1}
    assert usage.coverage == {"gr_engine_active": 1.0, "gpu_util": 1.0}


async def test_coverage_is_the_share_of_intervals_with_a_sample_of_pods_that_are_old_enough() -> None:
    young = NOON - minutes(2)

    def since(instant: datetime) -> Callable[[float], float]:
        return lambda at_s: 0.9 if at_s > instant.timestamp() else math.nan

    shown = {"whole": [BUSY], "half": [since(NOON - minutes(15))], "young": [since(young)]}
    usage = await usage_of(lone("whole"), lone("half"), lone("young", started=young), shown=shown)
    # 30 of 30 minutes, and 15 of 30.
    assert usage.coverage == {"gr_engine_active": 0.75, "gpu_util": 0.75}
