from typing import Any

import msgspec
import pytest
from builders import GPUS, at

from scaler.idleness.pods import PodPhase
from scaler.kube.objects.core import Pod, decode
from scaler.kube.objects.gpu_pods import GpuResources, gpu_pod

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
