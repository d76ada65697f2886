from typing import Any

import msgspec
import pytest
from builders import GPUS, at

from scaler.idleness.pods import PodPhase
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.gpu_pods import GpuResources, gpu_pod, is_extended

STARTED = "2026-12-01T12:00:00Z"


def container(name: str = "main", gpus: Any = "1", **more: Any) -> dict[str, Any]:
    amounts = {"cpu": "500m"} | ({"nvidia.com/gpu": gpus} if gpus is not None else {})
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}, **more}


def running(name: str = "main", since: str = STARTED) -> dict[str, Any]:
    return {"name": name, "ready": True, "state": {"running": {"startedAt": since}}}


def waiting(name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


def ended(name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": 0, "finishedAt": STARTED}}}


def decoded(spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    document = {
        "metadata": {"name": "worker-0", "namespace": "demo", **metadata},
        "spec": {"nodeName": "node-a", **spec},
        "status": {"phase": "Running", **(status or {})},
    }
    return decode(Pod, msgspec.json.encode(document))


def gpus_of(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None) -> int:
    return GPUS.of_pod(decoded({"containers": list(containers), "initContainers": init or []}).spec)


@pytest.mark.parametrize(
    ("resource", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/gpu.shared", False),
        ("amd.com/gpu", False),
        ("nvidia.com/mi", False),
        ("cpu", False),
    ],
)
def test_a_resource_counts_as_gpu_by_its_whole_name_or_its_beginning(resource: str, counts: bool) -> None:
    assert GPUS.matches(resource) is counts
    assert not GpuResources(patterns=()).matches(resource)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param("4", 4, id="a whole number as text"),
        pytest.param(4, 4, id="a bare number"),
        pytest.param("1k", 1000, id="a thousand as the API server writes it"),
        pytest.param("2.0", 2, id="a decimal"),
        pytest.param("2e0", 2, id="with an exponent"),
        pytest.param("1Ki", 1024, id="a binary suffix"),
        pytest.param("500m", 1, id="a part of a GPU holds one, rounded up"),
        pytest.param("0", 0, id="none"),
        pytest.param("several", 1, id="unreadable: it asks for some"),
        pytest.param("", 1, id="empty: it asks for some"),
        pytest.param("1e999999999", 1, id="absurd: it asks for some, and no time is lost on it"),
    ],
)
def test_an_amount_is_a_whole_number_of_gpus_however_it_is_written(amount: Any, expected: int) -> None:
    """Custom resources hold whatever their owners write; one of them must not end the evaluation of all."""
    assert gpus_of(container(gpus=amount)) == expected


def test_a_pod_holds_the_gpus_of_its_containers_and_sidecars_and_not_of_what_ran_before_them() -> None:
    containers = [container("a", "2"), container("b", "1"), container("c", None)]
    before = container("fetch", "4")
    sidecar = container("watch", "1", restartPolicy="Always")
    assert gpus_of(*containers, init=[before, sidecar]) == 2 + 1 + 1


# --------------------------------------------------------------------------------------------------- since when it runs


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        pytest.param([running("a"), running("b", "2026-12-01T12:05:00Z")], at(300), id="the newest"),
        pytest.param([running("a"), waiting("b")], None, id="one waits"),
        pytest.param([running("a"), ended("b")], None, id="one ended"),
        pytest.param([running("a")], None, id="one is not heard of"),
        pytest.param([running("a"), {"name": "b", "state": {"running": {}}}], None, id="one did not say since when"),
        pytest.param([], None, id="none is heard of"),
    ],
)
def test_a_pod_runs_since_the_newest_of_its_gpu_containers_started(statuses: list[Any], expected: Any) -> None:
    pod = decoded({"containers": [container("a"), container("b")]}, {"containerStatuses": statuses})
    found = gpu_pod(pod, GPUS)
    assert found.running_since == expected
    assert found.is_running is (expected is not None)


def test_a_container_without_gpus_may_come_and_go() -> None:
    spec = {"containers": [container("main"), container("logs", None)]}
    for logs in (running("logs", "2026-12-01T13:00:00Z"), waiting("logs"), ended("logs")):
        pod = decoded(spec, {"containerStatuses": [running("main"), logs]})
        assert gpu_pod(pod, GPUS).running_since == at(0)


def test_a_sidecar_with_a_gpu_counts_like_a_container() -> None:
    spec = {"containers": [container("main")], "initContainers": [container("side", restartPolicy="Always")]}
    status = {
        "containerStatuses": [running("main")],
        "initContainerStatuses": [running("side", "2026-12-01T12:10:00Z")],
    }
    assert gpu_pod(decoded(spec, status), GPUS).running_since == at(600)


# ------------------------------------------------------------------------------------------- what has ended for good

OVER: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "it is never started again": ({"restartPolicy": "Never"}, {"exitCode": 1}, True),
    "it has completed, and only failures are started again": ({"restartPolicy": "OnFailure"}, {"exitCode": 0}, True),
    "it has failed, and is started again": ({"restartPolicy": "OnFailure"}, {"exitCode": 1}, False),
    "it is always started again": ({"restartPolicy": "Always"}, {"exitCode": 0}, False),
    "the pod does not say, which means always": ({}, {"exitCode": 0}, False),
}


@pytest.mark.parametrize(("spec", "state", "is_over"), OVER.values(), ids=OVER.keys())
def test_gpus_of_a_container_that_has_ended_are_judged_from_then_on_if_nothing_starts_it_again(
    spec: dict[str, Any], state: dict[str, Any], is_over: bool
) -> None:
    main = {"name": "main", "state": {"terminated": {"finishedAt": STARTED, **state}}}
    containers = {"containers": [container(), container("proxy", None)]}
    found = gpu_pod(decoded(containers | spec, {"containerStatuses": [main, running("proxy")]}), GPUS)
    assert found.running_since == (at(0) if is_over else None)
    assert (found.is_running, found.cause == "") == (is_over, is_over)
    words = f"container main has ended: no reason is given, exit code {state['exitCode']}"
    assert found.ended == (words if is_over else "")


@pytest.mark.parametrize(
    ("more", "is_over"),
    [({"restartPolicy": "Always"}, False), ({"restartPolicyRules": [{"action": "Restart"}]}, False), ({}, True)],
    ids=str,
)
def test_the_restart_policy_of_a_container_is_in_place_of_its_pods(more: dict[str, Any], is_over: bool) -> None:
    spec = {"restartPolicy": "Never", "containers": [container(**more)]}
    assert gpu_pod(decoded(spec, {"containerStatuses": [ended()]}), GPUS).is_running is is_over


def test_one_that_has_ended_without_a_time_is_not_judged() -> None:
    spec = {"restartPolicy": "Never", "containers": [container()]}
    status = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}
    assert not gpu_pod(decoded(spec, status), GPUS).is_running


# ------------------------------------------------------------------------------------------------ why it is not judged

GPU = {"containers": [container()]}
INIT = {"containers": [container("main", None)], "initContainers": [container("warm")]}
UNPLACED = {"type": "PodScheduled", "status": "False", "message": "0/5 nodes are available: 5 Insufficient cpu. " * 9}
DEVICES = {"resources": {"limits": {"nvidia.com/a100": "1", "devices.kubevirt.io/kvm": "1", "cpu": "1"}}}
CAUSES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "it runs": (GPU, {"containerStatuses": [running()]}, ""),
    "an image cannot be pulled": (
        GPU,
        {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
        "container main waits: ImagePullBackOff",
    ),
    "it crashes": (GPU, {"containerStatuses": [waiting()]}, "container main waits: CrashLoopBackOff"),
    "it waits without a reason": (
        GPU,
        {"containerStatuses": [{"name": "main", "state": {"waiting": {}}}]},
        "container main waits: no reason is given",
    ),
    "it has ended, and is about to start again": (
        GPU,
        {"containerStatuses": [ended()]},
        "container main has ended: no reason is given, exit code 0",
    ),
    "its kubelet has not begun": (GPU, {"phase": "Pending"}, "container main has not been created"),
    "an init container crashes": (
        {"containers": [container()], "initContainers": [container("warm", None)]},
        {"containerStatuses": [waiting()], "initContainerStatuses": [waiting("warm")]},
        "container warm waits: CrashLoopBackOff",
    ),
    "no node takes it": (GPU | {"nodeName": ""}, {"phase": "Pending"}, "is not scheduled"),
    "its node is lost": (GPU, {"phase": "Unknown", "containerStatuses": [running()]}, "is Unknown"),
    "its GPUs have another name": (
        {"containers": [{"name": "main", **DEVICES}]},
        {"containerStatuses": [running()]},
        "requests devices.kubevirt.io/kvm, nvidia.com/a100, not among gpuResources of the settings",
    ),
    "its GPUs are claimed": (
        {"containers": [container(gpus=None)], "resourceClaims": [{"name": "one"}, {"name": "two"}]},
        {},
        "claims devices (one, two) by resourceClaims, which are not judged",
    ),
    "only an init container has GPUs": (INIT, {}, "requests GPUs for init container warm, which are not judged"),
    "it holds no device": ({"containers": [container(gpus=None)]}, {}, ""),
}


@pytest.mark.parametrize(("spec", "status", "cause"), CAUSES.values(), ids=CAUSES.keys())
def test_a_pod_says_why_its_gpus_are_not_judged(spec: dict[str, Any], status: dict[str, Any], cause: str) -> None:
    pod = decoded(spec, status)
    assert gpu_pod(pod, GPUS).cause == cause
    assert GPUS.may_be_held_by(pod.spec) is (spec is not CAUSES["it holds no device"][0])


def test_the_schedulers_words_are_cut() -> None:
    found = gpu_pod(decoded(GPU | {"nodeName": ""}, {"phase": "Pending", "conditions": [UNPLACED]}), GPUS)
    assert found.cause.startswith("is not scheduled: 0/5 nodes are available: 5 Insufficient cpu.")
    assert len(found.cause) <= 200


def test_a_pod_that_does_not_run_has_waited_since_its_kubelet_or_the_api_knows_it() -> None:
    later, created = "2026-12-01T12:00:30Z", {"creationTimestamp": STARTED}
    assert gpu_pod(
        decoded(GPU, {"containerStatuses": [waiting()], "startTime": later}, **created), GPUS
    ).starting_since == at(30)
    assert gpu_pod(decoded(GPU, {"phase": "Pending"}, **created), GPUS).starting_since == at(0)
    assert gpu_pod(decoded(GPU, {"containerStatuses": [running()], "startTime": later}), GPUS).starting_since is None


@pytest.mark.parametrize(
    ("resource", "is_one"),
    [("nvidia.com/a100", True), ("rdma/hca", True), ("cpu", False), ("hugepages-2Mi", False), ("requests.x/y", False)],
)
def test_which_resources_are_devices(resource: str, is_one: bool) -> None:
    assert is_extended(resource) is is_one
    assert not is_extended("pod.alpha.kubernetes.io/opaque")


# ---------------------------------------------------------------------------------------------------------- the rest


def test_a_pod_with_a_deletion_time_is_terminating() -> None:
    found = gpu_pod(decoded({"containers": [container()]}, deletionTimestamp=STARTED), GPUS)
    assert found.terminating


@pytest.mark.parametrize(
    ("text", "phase"),
    [("", PodPhase.PENDING), ("Running", PodPhase.RUNNING), ("Unknown", PodPhase.UNKNOWN), ("Odd", PodPhase.PENDING)],
)
def test_an_unknown_phase_is_not_running(text: str, phase: PodPhase) -> None:
    assert gpu_pod(decoded({"containers": [container()]}, {"phase": text}), GPUS).phase is phase
