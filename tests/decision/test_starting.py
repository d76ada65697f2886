"""A start that does not end says why, and after a while has a reason of its own; nothing is suspended for it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest
from builders import IDLE, NOON, a_target, minutes, observed, pending_pod, pod, policy, situation, verdict
from hypothesis import given
from hypothesis import strategies as st
from loops_builders import World, deployment, gang, record, stamp
from msgspec import structs
from scripted_metrics import Metrics, ScriptedSource, gpu

from scaler.decision.candidate import HistoryLine, waking_since
from scaler.decision.gates import decide
from scaler.idleness.pods import GpuPod, PodPhase
from scaler.kube.objects.core import Pod, PodSpec, PodStatus, decode
from scaler.kube.objects.idlegpu import ScalableWorkload
from scaler.targets.target_state import Phase, TargetState, state_of, state_of_scale

LIMIT = minutes(40)
"""`warmUp` + `idleAfter` of the policy of the builders."""


def answered(target: TargetState, now: datetime = NOON) -> str:
    answer = decide(target, verdict(IDLE), policy=policy(), now=now).answer
    return f"{type(answer).__name__} {answer.reason}"


# ----------------------------------------------------------------------------------------------------- when it is late


@pytest.mark.parametrize(
    ("target", "late"),
    [
        pytest.param(a_target(phase=Phase.STARTING), "Active PodsNotRunning", id="a pod does not run"),
        pytest.param(a_target(phase=Phase.STARTING, has_gpu_pods=False), "Unknown NoGPUPods", id="no GPUs are known"),
    ],
)
def test_a_start_may_take_as_long_as_it_takes_until_gpus_that_run_are_idle(target: TargetState, late: str) -> None:
    starting, before = replace(target, starting_since=NOON - LIMIT), NOON - minutes(1)
    assert (answered(starting, before), answered(starting)) == ("Active Starting", late)
    assert answered(target) == "Active Starting", "it is not known since when"
    assert decide(starting, None, policy=policy(), now=before).holds_until() == NOON, "it is decided again then"


MEMBERS = st.lists(
    st.builds(
        GpuPod,
        namespace=st.just("demo"),
        name=st.sampled_from("abc"),
        phase=st.sampled_from(PodPhase),
        gpus=st.integers(0, 2),
        running_since=st.sampled_from([None, NOON - minutes(500)]),
        terminating=st.booleans(),
        cause=st.sampled_from(["", "container main waits: CrashLoopBackOff"]),
        started_at=st.sampled_from([None, NOON - minutes(500)]),
    ),
    max_size=4,
)


@given(members=MEMBERS, replicas=st.integers(1, 3), expected=st.integers(0, 3))
def test_no_start_whose_begin_is_known_lasts_for_ever_and_none_is_suspended(
    members: Sequence[GpuPod], replicas: int, expected: int
) -> None:
    admitted = observed(admitted=True, quota_reserved=True, expected_gpu_pods=expected)
    for found in (state_of_scale(replicas=replicas, pods=members), state_of(situation(admitted, pods=members))):
        if found.phase is Phase.STARTING and found.starting_since is not None:
            assert answered(found) in ("Active PodsNotRunning", "Unknown NoGPUPods")
        elif found.phase is Phase.STARTING:
            assert answered(found) == "Active Starting"
        else:
            assert found.starting_since is None


# ------------------------------------------------------------------------------------------------------------- in words


def stuck(name: str = "b", cause: str = "container main waits: ImagePullBackOff", **changes: Any) -> GpuPod:
    return replace(pending_pod(name), cause=cause, started_at=NOON - minutes(5), **changes)


ODD = "requests nvidia.com/a100, not among gpuResources of the settings"
WORDS: dict[str, tuple[list[GpuPod], int, str]] = {
    "one of two waits": ([pod("a"), stuck()], 1, "1 of 2 GPU pods run: pod b container main waits: ImagePullBackOff"),
    "a pod that ends says nothing beside others": ([pod("a"), stuck(terminating=True)], 2, "1 of 2 GPU pods run"),
    "it is all there is": ([stuck(cause="is being deleted", terminating=True)], 1, "0 of 1 GPU pods run"),
    "no pod is there": ([], 2, "0 of 2 GPU pods run"),
    "three of many are named": (
        [stuck(each, "is not scheduled") for each in "edcba"],
        5,
        "0 of 5 GPU pods run: pod a is not scheduled; pod b is not scheduled; pod c is not scheduled; and 2 more",
    ),
}


@pytest.mark.parametrize(("members", "replicas", "message"), WORDS.values(), ids=WORDS.keys())
def test_the_pods_that_do_not_run_are_named_with_what_they_wait_for(
    members: list[GpuPod], replicas: int, message: str
) -> None:
    admitted = observed(admitted=True, quota_reserved=True, expected_gpu_pods=replicas)
    assert state_of(situation(admitted, pods=members)).message.removesuffix(": pod b is being deleted") == message
    if any(each.is_member for each in members):
        assert state_of_scale(replicas=replicas, pods=members).message == message


def test_a_target_whose_gpus_are_not_known_says_which_resource_is_not_counted() -> None:
    odd = [pod("a", gpus=0, running_since=None)]
    found = state_of_scale(replicas=1, pods=[replace(odd[0], cause=ODD)])
    assert (found.message, found.has_gpu_pods) == (f"no pod of it requests a GPU: pod a {ODD}", False)
    admitted = observed(admitted=True, quota_reserved=True, expected_gpu_pods=0)
    doubt = state_of(situation(admitted, pods=[replace(odd[0], cause=ODD)])).doubt
    assert doubt is not None
    assert (str(doubt.reason), doubt.message) == ("NoGPUPods", f"no pod of the Workload requests a GPU: pod a {ODD}")


@pytest.mark.parametrize(
    ("states", "since"),
    [
        ("Waking", 0),
        ("Suspended Waking", 1),
        ("Busy Waking Unknown Waking", 1),
        ("Busy Unknown", 1),
        ("Waking Busy", None),
        ("", None),
    ],
)
def test_where_there_is_no_pod_its_history_says_since_when_it_starts(states: str, since: int | None) -> None:
    lines = [HistoryLine(at=NOON + minutes(number), state=state) for number, state in enumerate(states.split())]
    assert waking_since(lines) == (None if since is None else NOON + minutes(since))


# ------------------------------------------------------------------------------------------------------ a whole cluster


def world_of(*inhabitants: Any, ratio: float = 0.0, silent: bool = False) -> World:
    """Each inhabitant's first pod shows one GPU, which works as `ratio` says, or none."""

    def source(world: World) -> ScriptedSource:
        pods = [] if silent else [each.metadata.name for each in world.cluster.pods.items()]
        shown = [each for name in pods for each in gpu(f"GPU-{name}", pod=name, ratio=lambda _: ratio)]
        return ScriptedSource(metrics=Metrics(series=shown), clock=lambda: world.now)

    return World(inhabitants, source)


def put(world: World, name: str, *, restart: str = "Always", created: datetime | None = None, **state: Any) -> None:
    """A pod of the Deployment `serve` with a container `main` in that state, beside a sidecar that runs."""
    amounts = {"nvidia.com/gpu": "1"}
    document = {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "labels": {"app": "serve"},
            "creationTimestamp": stamp(created or NOON - minutes(600)),
        },
        "spec": {
            "nodeName": "node-a",
            "restartPolicy": restart,
            "containers": [{"name": "main", "resources": {"limits": amounts}}, {"name": "proxy"}],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "state": state},
                {"name": "proxy", "state": {"running": {"startedAt": stamp(NOON - minutes(600))}}},
            ],
        },
    }
    world.cluster.pods.put(decode(Pod, msgspec.json.encode(document)))


async def word(world: World) -> str:
    await world.tick(NOON)
    answer = world.answer("serve")
    return f"{type(answer).__name__} {answer.reason}"


ENDED = {"exitCode": 0, "reason": "Completed", "finishedAt": stamp(NOON - minutes(500))}


@pytest.mark.parametrize(
    ("restart", "more", "expected"),
    [
        pytest.param("Never", {}, "Inactive GPUsIdle", id="its GPUs are quiet"),
        pytest.param("OnFailure", {}, "Inactive GPUsIdle", id="it has completed"),
        pytest.param("Never", {"ratio": 0.9}, "Active GPUsBusy", id="its GPUs work all the same"),
        pytest.param("Never", {"silent": True}, "Unknown NoSamples", id="its GPUs are not seen"),
        pytest.param("Always", {}, "Active PodsNotRunning", id="it is started again"),
    ],
)
async def test_gpus_of_a_container_that_has_ended_beside_a_sidecar_are_idle_if_they_are_quiet(
    restart: str, more: dict[str, Any], expected: str
) -> None:
    world = world_of(deployment("serve"), **more)
    put(world, "serve-pod", restart=restart, terminated=ENDED)
    assert await word(world) == expected


async def test_what_has_just_ended_is_not_idle_yet() -> None:
    world = world_of(deployment("serve"))
    put(world, "serve-pod", restart="Never", terminated=ENDED | {"finishedAt": stamp(NOON - minutes(1))})
    assert (await word(world)).startswith("Active")


async def test_a_crash_loop_says_so_and_names_the_pod() -> None:
    world = world_of(deployment("serve"))
    put(world, "serve-pod", waiting={"reason": "CrashLoopBackOff"})
    assert await word(world) == "Active PodsNotRunning"
    assert "pod serve-pod container main waits: CrashLoopBackOff" in world.answer("serve").message


async def test_a_rollout_that_is_stuck_names_the_new_pod_and_suspends_nothing() -> None:
    world = world_of(deployment("serve"))
    put(world, "serve-new", waiting={"reason": "ImagePullBackOff"}, created=NOON - minutes(1))
    assert await word(world) == "Active Starting"
    put(world, "serve-new", waiting={"reason": "ImagePullBackOff"}, created=NOON - minutes(100))
    assert await word(world) == "Active PodsNotRunning"
    assert world.answer("serve").message.startswith("1 of 2 GPU pods run: pod serve-new container main waits: Image")


def waking(ago: int) -> ScalableWorkload:
    """The record of one that was asked to run so many minutes ago."""
    return record("serve", history=[{"at": stamp(NOON - minutes(ago)), "state": "Waking", "reason": "Starting"}])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"containers": [{"resources": {"limits": {"nvidia.com/a100": "1"}}}]}, "nvidia.com/a100"),
        ({"resourceClaims": [{"name": "gpu"}]}, "claims devices (gpu)"),
        ({"initContainers": [{"name": "warm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, "container warm"),
    ],
    ids=["another name", "a claim", "an init container"],
)
async def test_pods_whose_gpus_are_not_counted_are_found_and_named(spec: dict[str, Any], words: str) -> None:
    world = world_of(deployment("serve", gpus=0))
    world.cluster.scalable_workloads.put(waking(500))
    [found] = world.cluster.pods.items()
    status = PodStatus(phase="Running")
    world.cluster.pods.put(structs.replace(found, spec=decode(PodSpec, msgspec.json.encode(spec)), status=status))
    assert await word(world) == "Unknown NoGPUPods"
    assert words in world.answer("serve").message


async def test_a_deployment_without_pods_is_late_by_its_history() -> None:
    for ago, expected in ((1, "Active Starting"), (500, "Unknown NoGPUPods")):
        world = world_of(deployment("serve"))
        world.cluster.scalable_workloads.put(waking(ago))
        world.cluster.pods.drop("serve-pod")
        assert await word(world) == expected


async def test_a_gang_without_pods_is_late_by_its_history() -> None:
    world = world_of(gang("serve"))
    world.cluster.pods.drop("serve-pod")
    [scalable] = world.cluster.scalable_workloads.items()
    line = msgspec.Raw(msgspec.json.encode({"at": stamp(NOON - minutes(500)), "state": "Waking"}))
    status = structs.replace(scalable.status, history=(line,))
    world.cluster.scalable_workloads.put(structs.replace(scalable, status=status))
    assert await word(world) == "Active PodsNotRunning"
