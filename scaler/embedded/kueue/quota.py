"""Does a gang fit into what is left of a ClusterQueue? Quota without cohorts: nominal amounts, taken or free.

Laws:

* All or nothing: the pod sets of a Workload are placed one after the other on the same sums, and either all of them
  find a flavor or none gets anything.
* A resource that the ClusterQueue has no quota for is not counted (Kueue's `quotaCheckStrategy: IgnoreUndeclared`).
* **A deactivated Workload holds nothing**, from the moment on at which `spec.active` is false, although its status says
  that quota is reserved and its pods still run. That is how Kueue's scheduler counts, and why a gang can be admitted
  onto GPUs that are not free yet.

Worked example: nominal 2 GPUs, 1 used. A head and a worker with 1 GPU each: the head fits (1 + 1 <= 2), the worker
does not (1 + 1 + 1 > 2): "1 more needed", and the head gets nothing either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaler.embedded.conditions import has
from scaler.embedded.kinds import Json
from scaler.embedded.quantities import as_quantity, requests_of, thousandths

Usage = dict[tuple[str, str], int]
"""Thousandths by (flavor, resource)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """One flavor's quota within a resource group."""

    name: str
    nominal: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Resources that come from one flavor together."""

    resources: frozenset[str]
    flavors: tuple[Flavor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A gang's place: the status's podSetAssignments, and what they take."""

    pod_sets: tuple[Json, ...]
    usage: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a gang does not fit."""

    reason: str
    message: str


def groups_of(cluster_queue: Json) -> tuple[Group, ...]:
    """The ClusterQueue's resource groups."""
    return tuple(
        Group(
            resources=frozenset(group["coveredResources"]),
            flavors=tuple(_flavor(flavor) for flavor in group["flavors"]),
        )
        for group in cluster_queue["spec"].get("resourceGroups") or ()
    )


def _flavor(flavor: Json) -> Flavor:
    nominal = {each["name"]: thousandths(each["nominalQuota"]) for each in flavor["resources"]}
    return Flavor(name=flavor["name"], nominal=nominal)


def holds_quota(workload: Json) -> bool:
    """Whether the scheduler counts the Workload's reservation."""
    return has(workload, "QuotaReserved") and is_active(workload) and not has(workload, "Finished")


def is_active(workload: Json) -> bool:
    """Whether its owner wants it to run."""
    return bool(workload["spec"].get("active", True))


def _admission(workload: Json) -> Json:
    return (workload.get("status") or {}).get("admission") or {}


def reserved_in(workload: Json) -> str:
    """The ClusterQueue whose quota the Workload has; empty where it has none."""
    return str(_admission(workload).get("clusterQueue", ""))


def reservation(workload: Json) -> Usage:
    """What the Workload's admission takes."""
    usage: Usage = {}
    for assignment in _admission(workload).get("podSetAssignments") or ():
        flavors = assignment.get("flavors") or {}
        for resource, quantity in (assignment.get("resourceUsage") or {}).items():
            if resource in flavors:
                _add(usage, (flavors[resource], resource), thousandths(quantity))
    return usage


def used(workloads: Iterable[Json]) -> Usage:
    """The sum of all reservations that count."""
    usage: Usage = {}
    for workload in workloads:
        if holds_quota(workload):
            add_usage(usage, reservation(workload))
    return usage


def add_usage(usage: Usage, more: Mapping[tuple[str, str], int]) -> None:
    """Adds to the usage in place."""
    for key, amount in more.items():
        _add(usage, key, amount)


def _add(usage: Usage, key: tuple[str, str], amount: int) -> None:
    usage[key] = usage.get(key, 0) + amount


def assign(
    pod_sets: Sequence[Json], groups: Sequence[Group], taken: Mapping[tuple[str, str], int]
) -> Assignment | Shortage:
    """The gang's place in the quota that is left, or why there is none."""
    usage: Usage = dict(taken)
    assignments = []
    for pod_set in pod_sets:
        placed = _place(pod_set, groups, usage)
        if isinstance(placed, Shortage):
            return placed
        assignments.append(placed)
    gained = {key: amount - taken.get(key, 0) for key, amount in usage.items() if amount != taken.get(key, 0)}
    return Assignment(pod_sets=tuple(assignments), usage=gained)


def _place(pod_set: Json, groups: Sequence[Group], usage: Usage) -> Json | Shortage:
    """The assignment of one pod set; takes it from the usage."""
    per_pod = requests_of(pod_set["template"].get("spec") or {})
    wanted = {resource: amount * pod_set["count"] for resource, amount in per_pod.items()}
    flavors: dict[str, str] = {}
    for group in groups:
        share = {resource: amount for resource, amount in wanted.items() if resource in group.resources and amount}
        chosen = _choose(pod_set["name"], share, group, usage) if share else None
        if isinstance(chosen, Shortage):
            return chosen
        if chosen is not None:
            flavors |= dict.fromkeys(share, chosen.name)
            add_usage(usage, {(chosen.name, resource): amount for resource, amount in share.items()})
    return {
        "name": pod_set["name"],
        "count": pod_set["count"],
        "flavors": flavors,
        "resourceUsage": {resource: as_quantity(wanted[resource]) for resource in flavors},
    }


def _choose(pod_set: str, share: Mapping[str, int], group: Group, usage: Usage) -> Flavor | Shortage:
    """The first flavor of the group that has enough of everything, or what the first of them lacks."""
    shortages = [_lack(flavor, share, usage) for flavor in group.flavors]
    for flavor, lacks in zip(group.flavors, shortages, strict=True):
        if lacks is None:
            return flavor
    first = next((lacks for lacks in shortages if lacks), Shortage(reason="NoMatchingFlavor", message="no flavor"))
    message = f"couldn't assign flavors to pod set {pod_set}: {first.message}"
    return Shortage(reason=first.reason, message=message)


def _lack(flavor: Flavor, share: Mapping[str, int], usage: Usage) -> Shortage | None:
    for resource, amount in sorted(share.items()):
        nominal = flavor.nominal.get(resource, 0)
        if amount > nominal:
            numbers = f"{as_quantity(amount)} > {as_quantity(nominal)}"
            message = (
                f"insufficient quota for {resource} in flavor {flavor.name}, request > maximum capacity ({numbers})"
            )
            return Shortage(reason="ExceedsMaxQuota", message=message)
        missing = usage.get((flavor.name, resource), 0) + amount - nominal
        if missing > 0:
            lacks = (
                f"insufficient unused quota for {resource} in flavor {flavor.name}, {as_quantity(missing)} more needed"
            )
            return Shortage(reason="WaitingForQuota", message=lacks)
    return None
