"""A ProvisioningRequest as an autoscaler reads it, and what it writes into its status. Pure.

| stage       | ends with                                              | because                                 |
|-------------|--------------------------------------------------------|-----------------------------------------|
| new         | Accepted, and Provisioned=False while it looks         | `accepted_after` is over                |
| accepted    | Provisioned, or Failed                                 | the pods fit, or it is to fail          |
| provisioned | BookingExpired                                         | all its pods are there, or time is up   |
| any of it   | CapacityRevoked                                        | another client writes it                |

Reasons and messages are Cluster Autoscaler's where it has such a condition.
Source: cluster-autoscaler/provisioningrequest/conditions, cluster-autoscaler/processors/provreq.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from scaler.kube.objects.resources import PROVISIONING_REQUEST
from scaler_sandbox.actions import Action, status_patch
from scaler_sandbox.conditions import has, make, timestamp, with_conditions
from scaler_sandbox.kinds import Json

CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"
"""Annotation of a pod: the request whose booking it uses."""


class RequestStage(StrEnum):
    NEW = "New"
    ACCEPTED = "Accepted"
    PROVISIONED = "Provisioned"
    OVER = "Over"
    """The request has failed or is revoked."""


def request_stage_of(request: Json) -> RequestStage:
    """The stage of the request."""
    if has(request, "Failed") or has(request, "CapacityRevoked"):
        return RequestStage.OVER
    if has(request, "Provisioned"):
        return RequestStage.PROVISIONED
    return RequestStage.ACCEPTED if has(request, "Accepted") else RequestStage.NEW


def name_of(request: Json) -> str:
    """`namespace/name`."""
    return f"{request['metadata']['namespace']}/{request['metadata']['name']}"


def class_of(request: Json) -> str:
    return str(request["spec"].get("provisioningClassName", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingTemplate:
    """A PodTemplate that the request names and that is not there."""

    name: str


def pods_of(request: Json, template: Callable[[str, str], Json | None]) -> list[Json] | MissingTemplate:
    """The specs of all pods that nodes are asked for."""
    specs: list[Json] = []
    for pod_set in request["spec"].get("podSets") or ():
        name = pod_set["podTemplateRef"]["name"]
        found = template(request["metadata"]["namespace"], name)
        if found is None:
            return MissingTemplate(name=name)
        specs += [(found.get("template") or {}).get("spec") or {}] * pod_set["count"]
    return specs


def consumers(request: Json, pods: Iterable[Json]) -> int:
    """How many pods that use the request's booking have found their node."""
    namespace, name = request["metadata"]["namespace"], request["metadata"]["name"]
    return sum(
        1
        for pod in pods
        if pod["metadata"]["namespace"] == namespace
        and (pod["metadata"].get("annotations") or {}).get(CONSUME) == name
        and (pod.get("spec") or {}).get("nodeName")
    )


def is_booked(request: Json) -> bool:
    """Whether capacity is kept for it."""
    return request_stage_of(request) is RequestStage.PROVISIONED and not has(request, "BookingExpired")


# ------------------------------------------------------------------------------------------------------------ answers


def accepted(request: Json, *, eta: datetime | None, now: datetime) -> list[Action]:
    """Sets Accepted; `eta` is part of the message where it is given."""
    conditions = [("Accepted", "True", "Accepted", "ProvisioningRequest is accepted by ClusterAutoscaler")]
    if eta is not None:
        conditions.append(("Provisioned", "False", _NOT_FOUND, f"Waiting for resources. ETA: {timestamp(eta)}"))
    return _with_condition(request, *conditions, now=now)


_NOT_FOUND = "CapacityIsNotFound"


def not_found(request: Json, *, now: datetime) -> list[Action]:
    """The status after a look for capacity, which is looked for again."""
    message = "Capacity is not found, CA will try to find it later."
    return _with_condition(request, ("Provisioned", "False", _NOT_FOUND, message), now=now)


def provisioned(request: Json, *, added: bool, details: Mapping[str, str], now: datetime) -> list[Action]:
    """There is capacity for all its pods; `added` where nodes were added for it."""
    reason = "CapacityIsProvisioned" if added else "CapacityIsFound"
    found = ("Provisioned", "True", reason, "Capacity is found in the cluster")
    return _with_condition(request, found, now=now, details=details)


def failed(request: Json, reason: str, message: str, *, now: datetime) -> list[Action]:
    return _with_condition(request, ("Failed", "True", reason, message), now=now)


def expired(request: Json, *, now: datetime) -> list[Action]:
    """Its capacity is kept no longer, although not all its pods came."""
    message = "Capacity reservation time is expired"
    return _with_condition(request, ("BookingExpired", "True", "CapacityReservationTimeExpired", message), now=now)


def consumed(request: Json, *, now: datetime) -> list[Action]:
    """Its capacity is kept no longer, since all its pods are there. Newer releases of Cluster Autoscaler say so."""
    message = "All pods of the ProvisioningRequest are scheduled"
    return _with_condition(request, ("BookingExpired", "True", "CapacityBookingConsumed", message), now=now)


def revoked(request: Json, *, now: datetime) -> list[Action]:
    """What it was given is taken away."""
    return _with_condition(
        request, ("CapacityRevoked", "True", "CapacityRevoked", "The cloud has taken the nodes back"), now=now
    )


def _with_condition(
    request: Json,
    *conditions: tuple[str, str, str, str],
    now: datetime,
    details: Mapping[str, str] = MappingProxyType({}),
) -> list[Action]:
    status = dict(request.get("status") or {})
    generation = request["metadata"].get("generation", 1)
    made = [make(*each, now=now, generation=generation) for each in conditions]
    status["conditions"] = with_conditions(status.get("conditions"), *made)
    if details:
        status["provisioningClassDetails"] = dict(details)
    patch = status_patch(PROVISIONING_REQUEST, request, status)
    return [patch] if patch else []
