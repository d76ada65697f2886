"""What one pod asks for, as Kueue and the scheduler of Kubernetes count it. Pure.

Laws:

* A limit stands in for a request that is missing.
* Containers and sidecars add up. An init container runs beside the sidecars that were started before it; what it needs
  together with them counts where it is more than what runs later.
* Resources of the pod as a whole (CPU, memory, huge pages) replace the sum. Overhead comes on top.
* Quantities are added as they are written and the sum is rounded up.

Worked example: init containers a (4 CPU), b (sidecar, 1 CPU), c (3 CPU), and one container of 2 CPU. While a runs: 4;
while c runs: 1 + 3 = 4; afterwards: 1 + 2 = 3. The pod asks for 4.

What the namespace's LimitRanges and the RuntimeClass add is not in the Workload and not known here; Kueue's own count
in `status.resourceRequests` is (`quota_workloads.py`).

Source: k8s.io/component-helpers/resource, PodRequests; Kueue, pkg/workload/resources.go.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from scaler.kube.objects.core import Container, PodSpec, Quantity, ResourceRequirements
from scaler.kube.objects.quantity import amount, exact, rounded

_OF_PODS = ("cpu", "memory")
_HUGE_PAGES = "hugepages-"

Sums = dict[str, Fraction]


def pod_requests(spec: PodSpec) -> dict[str, int]:
    """Amounts of one pod by resource. Raises: ValueError for a quantity that is none."""
    if len(spec.containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources):
        requests = effective(spec.containers[0].resources)
        return {resource: max(0, amount(resource, quantity)) for resource, quantity in requests.items()}
    sums = _of_containers(spec)
    if spec.resources is not None:
        whole = effective(spec.resources)
        sums |= {name: exact(quantity) for name, quantity in whole.items() if _is_of_pods(name)}
    _add(sums, spec.overhead)
    return {resource: max(0, rounded(resource, value)) for resource, value in sums.items()}


def over_limits(spec: PodSpec) -> str:
    """The part of the pod that asks for more than its own limits allow; empty where none does.

    Kueue leaves such a Workload out of the nomination, and Kubernetes would refuse its pods.
    Raises: ValueError for a quantity that is none.
    Source: Kueue, pkg/workload/resources.go (ValidateResources).
    """
    parts = [(f"container {each.name}", each.resources) for each in (*spec.init_containers, *spec.containers)]
    if spec.resources is not None:
        parts.append(("the pod as a whole", spec.resources))
    for part, resources in parts:
        for resource, limit in resources.limits.items():
            if amount(resource, resources.requests.get(resource, 0)) > amount(resource, limit):
                return f"{part} requests more {resource} than its limit of {limit}"
    return ""


def effective(resources: ResourceRequirements) -> Mapping[str, Quantity]:
    """Requests, completed by limits."""
    return resources.limits | resources.requests if resources.limits else resources.requests


def _of_containers(spec: PodSpec) -> Sums:
    lasting, peak = _of_init_containers(spec.init_containers)
    for container in spec.containers:
        _add(lasting, effective(container.resources))
    return _highest(lasting, peak)


def _of_init_containers(containers: Iterable[Container]) -> tuple[Sums, Sums]:
    """The sidecars together, and the most that is needed while init containers run."""
    sidecars: Sums = {}
    peak: Sums = {}
    for container in containers:
        running = dict(sidecars)
        _add(running, effective(container.resources))
        if container.restart_policy == "Always":
            sidecars = running
        peak = _highest(peak, running)
    return dict(sidecars), peak


def _highest(one: Sums, other: Sums) -> Sums:
    return one | {name: max(value, one.get(name, value)) for name, value in other.items()}


def _add(sums: Sums, quantities: Mapping[str, Quantity]) -> None:
    for resource, quantity in quantities.items():
        sums[resource] = sums.get(resource, Fraction(0)) + exact(quantity)


def _is_of_pods(resource: str) -> bool:
    return resource in _OF_PODS or resource.startswith(_HUGE_PAGES)
