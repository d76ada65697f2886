"""What a pod asks for, in the arithmetic of Kubernetes. The numbers stand beside the sums."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from scaler.kube.objects.kueue_workloads import TemplateSpec
from scaler.quota.from_objects.pod_requests import over_limits, pod_requests

GPU = "nvidia.com/gpu"


def container(requests: Mapping[str, Any] | None = None, *, limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


def sidecar(requests: Mapping[str, Any]) -> dict[str, Any]:
    return container(requests) | {"restartPolicy": "Always"}


def asked(*containers: Mapping[str, Any], init: tuple[Mapping[str, Any], ...] = (), **fields: Any) -> dict[str, int]:
    spec = {"containers": list(containers), "initContainers": list(init), **fields}
    return pod_requests(msgspec.convert(spec, TemplateSpec))


CASES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "one container: cpu in thousandths, the rest in its own unit": (
        asked(container({"cpu": "1500m", "memory": "1Ki", GPU: 8})),
        {"cpu": 1500, "memory": 1024, GPU: 8},
    ),
    "a limit stands in for a request that is missing, and only for that": (
        asked(container({"cpu": "1"}, limits={"cpu": "4", GPU: "2"})),
        {"cpu": 1000, GPU: 2},
    ),
    "containers add up": (asked(container({GPU: 1}), container({GPU: 2, "cpu": 1})), {GPU: 3, "cpu": 1000}),
    "an init container counts where it needs more": (
        asked(container({"cpu": 2}), init=(container({"cpu": 3, GPU: 1}),)),
        {"cpu": 3000, GPU: 1},
    ),
    "an init container that needs less does not count": (
        asked(container({"cpu": 2}), init=(container({"cpu": 1}),)),
        {"cpu": 2000},
    ),
    "init containers run one after the other": (
        asked(container({"cpu": 1}), init=(container({"cpu": 2}), container({"cpu": 2}))),
        {"cpu": 2000},
    ),
    "a sidecar runs beside the containers": (asked(container({"cpu": 2}), init=(sidecar({"cpu": 1}),)), {"cpu": 3000}),
    "a sidecar runs beside the init containers after it: 1 + 3 over 1 + 2": (
        asked(container({"cpu": 2}), init=(sidecar({"cpu": 1}), container({"cpu": 3}))),
        {"cpu": 4000},
    ),
    "and not beside those before it: 4 alone over 1 + 2": (
        asked(container({"cpu": 2}), init=(container({"cpu": 4}), sidecar({"cpu": 1}))),
        {"cpu": 4000},
    ),
    "the pod as a whole replaces the sum, overhead comes on top: 8 + 0.25": (
        asked(
            container({"cpu": 2, GPU: 1}),
            container({"cpu": 3}),
            resources={"limits": {"cpu": 8, GPU: 4}},
            overhead={"cpu": "250m"},
        ),
        {"cpu": 8250, GPU: 1},
    ),
    "huge pages are the pod's, too": (
        asked(container({"hugepages-2Mi": "2Mi"}), resources={"requests": {"hugepages-2Mi": "4Mi"}}),
        {"hugepages-2Mi": 4 * 1024**2},
    ),
    "sums are rounded, not their parts: twice 107374182.4 bytes are 214748365": (
        asked(container({"memory": "0.1Gi"}), container({"memory": "0.1Gi"})),
        {"memory": 214748365},
    ),
    "less than nothing is nothing": (asked(container({"cpu": "-1"})), {"cpu": 0}),
    "no containers ask for nothing": (asked(), {}),
}


@pytest.mark.parametrize(("found", "expected"), CASES.values(), ids=CASES)
def test_a_pod_asks_for(found: dict[str, int], expected: dict[str, int]) -> None:
    assert found == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [container({"cpu": "1"}, limits={"cpu": "1000m"})]}, "", id="just as much"),
        pytest.param({"containers": [container({"cpu": "1"}, limits={GPU: 1})]}, "", id="the limit is of another"),
        pytest.param(
            {"containers": [container(), {"name": "c", **container({GPU: 2}, limits={GPU: 1})}]},
            f"container c requests more {GPU} than its limit of 1",
            id="a container",
        ),
        pytest.param(
            {"initContainers": [{"name": "i", **container({"cpu": "1001m"}, limits={"cpu": "1"})}]},
            "container i requests more cpu than its limit of 1",
            id="an init container",
        ),
        pytest.param(
            {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}}},
            "the pod as a whole requests more memory than its limit of 1G",
            id="the pod as a whole",
        ),
    ],
)
def test_no_request_may_exceed_its_limit(spec: dict[str, Any], expected: str) -> None:
    assert over_limits(msgspec.convert(spec, TemplateSpec)) == expected


@pytest.mark.parametrize(
    "unreadable",
    [
        pytest.param((container({"cpu": "lots"}),), id="of the only container"),
        pytest.param((container({"cpu": 1}), container(limits={GPU: "1 GPU"})), id="of one of two"),
    ],
)
def test_a_quantity_that_is_none_is_refused(unreadable: tuple[Mapping[str, Any], ...]) -> None:
    with pytest.raises(ValueError, match="is not a resource quantity"):
        asked(*unreadable)
