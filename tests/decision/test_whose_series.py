"""The evaluation asks the cluster whose a series is, and boards whether their exporter still measures."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from builders import NOON, TRUST
from loops_builders import World, deployment, gang, pod
from scripted_metrics import GPU_UTIL, Metrics, ScriptedSource, Series, gpu

from scaler.decision.decision import Active, Answer
from scaler.decision.reasons import DecisionReason
from scaler.idleness.gpu import DEFAULT_SIGNALS, ENERGY
from scaler.idleness.reasons import UnknownReason
from scaler.kube.objects.core import ObjectMeta, OwnerReference
from scaler.kube.objects.nodes import Node

IDLE = f"Inactive {DecisionReason.GPUS_IDLE}"


def world_of(series: list[Series], *, gpus: int = 1, **config: object) -> World:
    def source(world: World) -> ScriptedSource:
        return ScriptedSource(metrics=Metrics(series=series), clock=lambda: world.now)

    made = World([gang("train", gpus=gpus)], source, **config)
    for name in ("node-a", "node-b"):
        made.cluster.nodes.put(Node(metadata=ObjectMeta(name=name)))
    return made


def energy(value: Callable[[float], float], *, of: str = "GPU-0") -> Series:
    labels = gpu(of, pod="train-pod")[0].labels
    return Series(metric=ENERGY.metrics[0], labels=labels, value=value, phase_s=7.0)


def word(answer: Answer) -> str:
    return f"{type(answer).__name__} {answer.reason}"


async def decided(world: World) -> str:
    await world.tick(NOON)
    return word(world.answer("train"))


async def test_a_series_of_another_node_is_no_proof_while_the_own_exporter_is_silent() -> None:
    world = world_of(gpu("GPU-9", pod="train-pod", node="node-b"))
    assert await decided(world) == f"Unknown {UnknownReason.NO_SAMPLES}"


@pytest.mark.parametrize(
    "label", ["hostname", "node", "exported_node", "kubernetes_node", "k8s_node_name", "host_name"]
)
async def test_a_host_is_known_by_whatever_label_names_it(label: str) -> None:
    def named(host: str) -> list[Series]:
        series = gpu("GPU-9", pod="train-pod")
        plain = [{key: value for key, value in each.labels.items() if key != "Hostname"} for each in series]
        return [replace(each, labels={**found, label: host}) for each, found in zip(series, plain, strict=True)]

    assert await decided(world_of(named("node-b"))) == f"Unknown {UnknownReason.NO_SAMPLES}"
    assert await decided(world_of(named("node-a"))) == IDLE


@pytest.mark.parametrize("label", ["node", "kubernetes_node", "node_name"])
@pytest.mark.parametrize(
    ("host", "other", "expected"),
    [
        ("dcgm-exporter-x7k2", "node-a", IDLE),
        ("dcgm-exporter-x7k2", "node-b", f"Unknown {UnknownReason.NO_SAMPLES}"),
        ("dcgm-exporter-x7k2", "another", f"Unknown {UnknownReason.UNEXPECTED_GPUS}"),
        ("node-b", "node-a", f"Unknown {UnknownReason.NO_SAMPLES}"),
        ("node-a", "node-b", IDLE),
        ("node-a.example.com", "node-b", IDLE),
    ],
)
async def test_of_several_hosts_that_a_series_names_the_first_that_is_a_node_counts(
    host: str, other: str, expected: str, label: str
) -> None:
    """An exporter may call itself by its pod's name, and the scrape names the Node."""
    series = gpu("GPU-9", pod="train-pod", node=host)
    assert await decided(world_of([replace(x, labels={**x.labels, label: other}) for x in series])) == expected


@pytest.mark.parametrize(
    ("ratio", "is_alone", "expected"),
    [
        (0.0, True, f"Unknown {UnknownReason.NO_SAMPLES}"),
        (0.0, False, IDLE),
        (0.9, False, f"Unknown {UnknownReason.SIGNALS_DISAGREE}"),
    ],
)
async def test_a_series_with_a_label_without_end_proves_no_idleness(
    ratio: float, is_alone: bool, expected: str
) -> None:
    """And hides no work. Other series of its page are read as ever."""
    odd = [
        replace(each, labels={**each.labels, "x": "a" * 2**17})
        for each in gpu("GPU-0", pod="train-pod", ratio=lambda _: ratio)
    ]
    assert await decided(world_of(odd if is_alone else [*odd, *gpu("GPU-0", pod="train-pod")])) == expected


async def test_the_same_series_of_the_pods_own_node_is_proof() -> None:
    assert await decided(world_of(gpu("GPU-0", pod="train-pod", node="node-a"))) == IDLE


async def test_a_deployment_is_up_while_pods_of_jobs_that_its_pods_have_made_work() -> None:
    """Scaled to 0 its pods would be deleted, and with them the Jobs. Once they are quiet, all of it is."""
    worked = NOON.timestamp() - 60
    series = [*gpu("GPU-0", pod="serve-pod"), *gpu("GPU-1", pod="executor", ratio=lambda at_s: 0.9 * (at_s < worked))]
    world = World(
        [deployment("serve")],
        lambda world: ScriptedSource(metrics=Metrics(series=series), clock=lambda: world.now),
    )
    own = pod("serve-pod", labels={"app": "serve"})
    world.cluster.pods.put(msgspec.structs.replace(own, metadata=msgspec.structs.replace(own.metadata, uid="uid-own")))
    world.cluster.pods.put(pod("executor", owner="uid-any"))
    maker = OwnerReference(api_version="v1", kind="Pod", name="serve-pod", uid="uid-own")
    await world.tick(NOON)
    assert word(world.answer("serve")) == f"Unknown {UnknownReason.STALE_CLUSTER_VIEW}"
    world.cluster.scales.put(("batch/v1", "Job"), "any", maker)
    await world.tick(NOON + timedelta(seconds=30))
    assert word(world.answer("serve")) == f"Active {DecisionReason.GPUS_BUSY}"
    await world.tick(NOON + timedelta(hours=1))
    assert word(world.answer("serve")) == IDLE


async def test_an_exporters_own_pod_is_no_holder() -> None:
    plain = gpu("GPU-0", pod="exporter", namespace="gpu-operator")
    assert await decided(world_of([*gpu("GPU-0", pod="train-pod"), *plain])) == IDLE
    works = gpu("GPU-0", pod="exporter", namespace="gpu-operator", ratio=lambda _: 0.97)
    world = world_of([*gpu("GPU-0", pod="train-pod"), *works])
    assert await decided(world) == f"Unknown {UnknownReason.SIGNALS_DISAGREE}"


async def test_a_second_pod_that_comes_makes_the_device_shared_and_none_when_it_goes() -> None:
    """Nothing of the first pod changes meanwhile, nor do its samples."""
    world = world_of([*gpu("GPU-0", pod="train-pod"), *gpu("GPU-0", pod="other-pod", namespace="second")])
    assert await decided(world) == IDLE
    other = pod("other-pod")
    elsewhere = msgspec.structs.replace(other.metadata, namespace="second")
    world.cluster.pods.put(msgspec.structs.replace(other, metadata=elsewhere))
    assert await decided(world) == f"Unknown {UnknownReason.SHARED_GPU}"
    world.cluster.pods.drop("other-pod", "second")
    assert await decided(world) == IDLE


async def test_a_node_that_comes_to_share_its_gpus_is_noticed() -> None:
    world = world_of(gpu("GPU-0", pod="train-pod"))
    assert await decided(world) == IDLE
    world.cluster.nodes.put(Node(metadata=ObjectMeta(name="node-a", labels={"nvidia.com/gpu.replicas": "4"})))
    assert await decided(world) == f"Unknown {UnknownReason.SHARED_GPU}"


async def test_a_page_that_stands_still_is_noticed() -> None:
    stop = NOON.timestamp() - 200
    series = [*gpu("GPU-0", pod="train-pod"), energy(lambda at_s: 1e9 + min(at_s, stop))]
    assert await decided(world_of(series)) == f"Unknown {UnknownReason.FROZEN_EXPORTER}"
    series = [*gpu("GPU-0", pod="train-pod"), energy(lambda at_s: 1e9 + at_s)]
    assert await decided(world_of(series)) == IDLE


@pytest.mark.parametrize(("stop", "expected"), [(-200.0, f"Unknown {UnknownReason.FROZEN_EXPORTER}"), (0.0, IDLE)])
async def test_another_exporters_counter_does_not_hide_a_page_that_stands_still(stop: float, expected: str) -> None:
    """It is of the same GPU, and grows; the page's own stands still from `stop` on."""
    now = NOON.timestamp()

    def at_target(each: Series, instance: str) -> Series:
        return replace(each, labels={**each.labels, "job": "gpus", "instance": instance})

    page = [*gpu("GPU-0", pod="train-pod"), energy(lambda at_s: 1e9 + (min(at_s, now + stop) if stop else at_s))]
    other = energy(lambda at_s: 3e9 + at_s)
    world = world_of([*(at_target(each, "10.0.0.1:9400") for each in page), at_target(other, "10.0.0.1:9835")])
    assert await decided(world) == expected


@pytest.mark.parametrize(
    ("grows", "single_witness", "expected"),
    [
        (False, False, f"Active {DecisionReason.OBSERVE_ONLY}"),
        (True, False, IDLE),
        (False, True, IDLE),
    ],
)
async def test_one_signal_alone_suspends_only_with_a_counter_that_grows_or_where_that_is_allowed(
    grows: bool, single_witness: bool, expected: str
) -> None:
    series = [each for each in gpu("GPU-0", pod="train-pod") if each.metric == GPU_UTIL]
    if grows:
        series.append(energy(lambda at_s: 1e9 + at_s))
    world = world_of(series, signals=DEFAULT_SIGNALS[1:], trust=replace(TRUST, single_witness=single_witness))
    assert await decided(world) == expected
    answer = world.answer("train")
    assert not isinstance(answer, Active) or "trust.singleWitness" in answer.message


@pytest.mark.parametrize("series", [[], [energy(lambda _: 1e9)]])
async def test_a_counter_alone_makes_nothing_idle(series: list[Series]) -> None:
    assert await decided(world_of(series)) == f"Unknown {UnknownReason.NO_SAMPLES}"
