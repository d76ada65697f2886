"""Kueue's own controller for ProvisioningRequests: keeps its checks Active, makes requests, and says what came of them.

It runs wherever the API serves ProvisioningRequests, whether a check of its is used or not. Of the requests that name a
Workload as their owner it deletes all that are not the newest one of a check of its own: so nobody else can own theirs
that way.

By the newest request of the Workload and the check:

| request         | of a Workload that waits                                  | of one that is admitted |
|-----------------|-----------------------------------------------------------|-------------------------|
| none            | one is made: attempt `retryCount` + 1                     | the same                |
| new             | Pending, no message                                       | Pending                 |
| accepted        | Pending, with what Provisioned=False says (the ETA)       | Pending                 |
| provisioned     | Ready, with annotations and node labels for its pods      | as it is                |
| failed          | Retry with a delay, or Rejected past the limit            | the same                |
| booking expired | the same                                                  | as it is                |
| revoked         | Rejected, which deactivates the Workload                  | the same                |

It waits for no other check: its request is made as soon as quota is reserved, and Retry takes the quota from all of
them. The delay counts from when the entry last became Pending, since Kueue leaves its `lastTransitionTime` alone.

Source: Kueue, pkg/controller/admissionchecks/provisioning/controller.go; recordings of a running one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from scaler_sandbox.actions import Action, Create, Delete, Patch, RecordEvent, status_patch
from scaler_sandbox.conditions import condition, has, make, message_of, with_conditions
from scaler_sandbox.controller import Controller
from scaler_sandbox.kinds import PROVISIONING_REQUEST_CONFIG, Json
from scaler_sandbox.kueue import workload_status
from scaler_sandbox.kueue.jobs import REQUEST_PARAMETER
from scaler_sandbox.kueue.templates import Injection, injected

from scaler.kube.objects.resources import (
    ADMISSION_CHECK,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Resource,
)

CONTROLLER = "kueue.x-k8s.io/provisioning-request"
_CONSUME = "autoscaling.x-k8s.io/consume-provisioning-request"
_CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
_MANAGED = {"kueue.x-k8s.io/managed": "true"}
_BASE, _LONGEST, _LIMIT = timedelta(seconds=60), timedelta(seconds=1800), 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredRequest:
    """The objects of one request: first the PodTemplates, then it."""

    templates: Sequence[Json]
    request: Json


def request_name(workload: str, check: str, attempt: int) -> str:
    return f"{workload}-{check}-{attempt}"


def attempt_of(request: Json, workload: str, check: str) -> int:
    """The attempt, which Kueue reads out of the name; 0 where it is a request of something else."""
    found = re.fullmatch(re.escape(f"{workload}-{check}-") + r"([0-9]+)", request["metadata"]["name"])
    return int(found[1]) if found else 0


def newest(requests: Iterable[Json], workload: Json, check: str, config: Json) -> Json | None:
    """The request with the highest attempt that is for this check, and as its config has it now."""
    name = workload["metadata"]["name"]
    mine = [each for each in requests if attempt_of(each, name, check) and _is_in_step(each, config)]
    return max(mine, key=lambda each: attempt_of(each, name, check), default=None)


def _is_in_step(request: Json, config: Json) -> bool:
    spec, wanted = request["spec"], config["spec"]
    given = spec.get("parameters") or {}
    same_class = spec.get("provisioningClassName") == wanted.get("provisioningClassName")
    return same_class and all(given.get(key) == value for key, value in (wanted.get("parameters") or {}).items())


def is_needed(workload: Json, config: Json) -> bool:
    """Whether any of its pods asks for what the config manages."""
    return bool(_covered(workload, config))


def _covered(workload: Json, config: Json) -> list[tuple[Json, int]]:
    """The PodSets that are asked for, with their counts as they were admitted."""
    managed = set(config["spec"].get("managedResources") or ())
    counts = {
        each["name"]: each.get("count") for each in workload["status"]["admission"].get("podSetAssignments") or ()
    }
    found = [(each, counts.get(each["name"]) or each["count"]) for each in workload["spec"]["podSets"]]
    return [(each, count) for each, count in found if count > 0 and (not managed or managed & _asked(each))]


def _asked(pod_set: Json) -> set[str]:
    spec = (pod_set.get("template") or {}).get("spec") or {}
    resources = [each.get("resources") or {} for each in (*spec.get("initContainers", ()), *spec.get("containers", ()))]
    return {name for each in resources for kind in ("requests", "limits") for name in each.get(kind) or ()}


# --------------------------------------------------------------------------------------------------------- what it says


def answered(entry: Json, workload: Json, config: Json | None, request: Json | None) -> Json:
    """The entry as the check has it now."""
    if config is None:
        return {**entry, "state": workload_status.PENDING, "message": "the check is not active"}
    if not is_needed(workload, config):
        return {**entry, "state": workload_status.READY, "message": "the provisioning request is not needed"}
    return entry if request is None else _by_request(entry, workload, config, request)


def _by_request(entry: Json, workload: Json, config: Json, request: Json) -> Json:
    if has(request, "Failed"):
        return _lost(entry, workload, config, request, "Failed")
    if has(request, "CapacityRevoked"):
        return {**entry, "state": workload_status.REJECTED, "message": message_of(request, "CapacityRevoked")}
    if has(request, "BookingExpired"):
        is_admitted = has(workload, "Admitted")
        return entry if is_admitted else _lost(entry, workload, config, request, "BookingExpired")
    return _open(entry, workload, config, request)


def _open(entry: Json, workload: Json, config: Json, request: Json) -> Json:
    if has(request, "Provisioned"):
        if entry["state"] == workload_status.READY:
            return entry
        updates = [_update(each, config, request) for each, _ in _covered(workload, config)]
        message = message_of(request, "Provisioned")
        return {**entry, "state": workload_status.READY, "message": message, "podSetUpdates": updates}
    if has(request, "Accepted"):
        told = condition(request, "Provisioned")
        return {**entry, "state": workload_status.PENDING, "message": told["message"]} if told else entry
    return {**entry, "state": workload_status.PENDING, "message": ""}


_RETRYING = {"Failed": "Retrying after failure", "BookingExpired": "Retrying after booking expired"}


def _lost(entry: Json, workload: Json, config: Json, request: Json, kind: str) -> Json:
    attempt = attempt_of(request, workload["metadata"]["name"], entry["name"])
    base, longest, limit = _retries(config)
    if attempt > limit:
        return {**entry, "state": workload_status.REJECTED, "message": message_of(request, kind)}
    told = {**entry, "message": f"{_RETRYING[kind]}: {message_of(request, kind)}"}
    if attempt <= entry.get("retryCount", 0):
        return told
    pause = min(base * 2 ** entry.get("retryCount", 0), longest)
    return {**told, "state": workload_status.RETRY, "requeueAfterSeconds": int(pause.total_seconds())}


def _retries(config: Json) -> tuple[timedelta, timedelta, int]:
    found = config["spec"].get("retryStrategy") or {}
    base, longest = found.get("backoffBaseSeconds"), found.get("backoffMaxSeconds")
    return (
        _BASE if base is None else timedelta(seconds=base),
        _LONGEST if longest is None else timedelta(seconds=longest),
        found.get("backoffLimitCount", _LIMIT),
    )


def _update(pod_set: Json, config: Json, request: Json) -> Json:
    annotations = {_CONSUME: request["metadata"]["name"], _CLASS: request["spec"]["provisioningClassName"]}
    details = (request.get("status") or {}).get("provisioningClassDetails") or {}
    rules = (config["spec"].get("podSetUpdates") or {}).get("nodeSelector") or ()
    selector = {
        each["key"]: details[each["valueFromProvisioningClassDetail"]]
        for each in rules
        if each["valueFromProvisioningClassDetail"] in details
    }
    return {"name": pod_set["name"], "annotations": annotations, **({"nodeSelector": selector} if selector else {})}


# --------------------------------------------------------------------------------------------------------- what it asks


def attempt_due(entry: Json, workload: Json, request: Json | None) -> int:
    """Which attempt is to be made now; 0 where none is."""
    if entry["state"] == workload_status.READY:
        return 0
    if request is None:
        return int(entry.get("retryCount", 0)) + 1
    is_lost = has(request, "Failed") or (has(request, "BookingExpired") and not has(workload, "Admitted"))
    if not is_lost or entry["state"] != workload_status.PENDING:
        return 0
    return attempt_of(request, workload["metadata"]["name"], entry["name"]) + 1


def order_of(
    workload: Json, check: str, config: Json, attempt: int, node_labels: Mapping[str, Mapping[str, str]]
) -> DesiredRequest:
    """The request with its PodTemplates. PodSets are asked for one by one; none are merged here."""
    metadata, spec = workload["metadata"], config["spec"]
    name = request_name(metadata["name"], check, attempt)
    covered = _covered(workload, config)
    own = {
        key.removeprefix(REQUEST_PARAMETER): value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(REQUEST_PARAMETER)
    }
    common = {"namespace": metadata["namespace"], "labels": dict(_MANAGED), "ownerReferences": [_owner(workload)]}
    templates = [
        {
            "metadata": {**common, "name": f"ppt-{name}-{each['name']}"},
            "template": _template(each, workload, node_labels),
        }
        for each, _ in covered
    ]
    request = {
        "metadata": {**common, "name": name},
        "spec": {
            "provisioningClassName": spec["provisioningClassName"],
            "parameters": {**(spec.get("parameters") or {}), **own},
            "podSets": [
                {"podTemplateRef": {"name": template["metadata"]["name"]}, "count": count}
                for template, (_, count) in zip(templates, covered, strict=True)
            ],
        },
    }
    return DesiredRequest(templates=templates, request=request)


def _template(pod_set: Json, workload: Json, node_labels: Mapping[str, Mapping[str, str]]) -> Json:
    """The template with the labels of the flavors that it was given."""
    assignments = workload["status"]["admission"].get("podSetAssignments") or ()
    flavors = {name for each in assignments if each["name"] == pod_set["name"] for name in each["flavors"].values()}
    selector = {key: value for name in sorted(flavors) for key, value in node_labels.get(name, {}).items()}
    return injected(pod_set.get("template") or {}, Injection(labels={}, node_selector=selector))


def _owner(workload: Json) -> Json:
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": workload["metadata"]["name"],
        "uid": workload["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned_by_request(template: Json, request: Json) -> Json | None:
    """The change by which the PodTemplate is the request's; None where it is so already."""
    metadata = request["metadata"]
    owner = {
        "apiVersion": request["apiVersion"],
        "kind": request["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    owners = template["metadata"].get("ownerReferences") or []
    return (
        None if any(each["uid"] == metadata["uid"] for each in owners) else {"metadata": {"ownerReferences": [owner]}}
    )


# ------------------------------------------------------------------------------------------------------ its controller


class ProvisioningCheck(Controller):
    """Watches Workloads and requests; writes both, and its AdmissionChecks."""

    name: ClassVar[str] = "kueue-provisioning"
    watched: ClassVar[tuple[Resource, ...]] = (
        WORKLOAD,
        ADMISSION_CHECK,
        PROVISIONING_REQUEST_CONFIG,
        PROVISIONING_REQUEST,
        POD_TEMPLATE,
        RESOURCE_FLAVOR,
    )

    async def tick(self, now: datetime) -> datetime | None:
        done = await self.act(action for check in self._checks() for action in self._activity(check, now))
        for workload in self.client.all(WORKLOAD):
            done += await self.act([*self._plan(workload)])
        return now if done else None

    # ------------------------------------------------------------------------------------------------------- its checks

    def _checks(self) -> list[Json]:
        return [each for each in self.client.all(ADMISSION_CHECK) if each["spec"]["controllerName"] == CONTROLLER]

    def _activity(self, check: Json, now: datetime) -> Iterator[Patch]:
        is_there = self._config(check) is not None
        if has(check, "Active", str(is_there)):
            return
        told = ("Active", "The admission check is active") if is_there else ("BadParametersRef", "no such config")
        status = dict(check.get("status") or {})
        status["conditions"] = with_conditions(status.get("conditions"), make("Active", str(is_there), *told, now=now))
        patch = status_patch(ADMISSION_CHECK, check, status)
        if patch:
            yield patch

    def _config(self, check: Json) -> Json | None:
        named = check["spec"].get("parameters") or {}
        if named.get("kind") != PROVISIONING_REQUEST_CONFIG.kind:
            return None
        return self.client.find(PROVISIONING_REQUEST_CONFIG, "", named.get("name", ""))

    # ---------------------------------------------------------------------------------------------------- its Workloads

    def _plan(self, workload: Json) -> Iterator[Action]:
        is_over = has(workload, "Finished") or has(workload, "Evicted")
        if not (is_over or has(workload, "QuotaReserved")):
            return
        owned = self._owned(workload)
        if is_over:
            yield from (Delete(resource=PROVISIONING_REQUEST, observed=each) for each in owned)
            return
        configs = {each["metadata"]["name"]: self._config(each) for each in self._checks()}
        entries: list[Json] = workload["status"].get("admissionChecks") or []
        kept = {
            name: found
            for each in entries
            if (name := each["name"]) in configs
            and (config := configs[name]) is not None
            and is_needed(workload, config)
            and (found := newest(owned, workload, name, config))
        }
        told = [
            answered(each, workload, configs[each["name"]], kept.get(each["name"])) if each["name"] in configs else each
            for each in entries
        ]
        if patch := status_patch(WORKLOAD, workload, {**workload["status"], "admissionChecks": told}):
            yield patch
        names = {each["metadata"]["name"] for each in kept.values()}
        unused = (each for each in owned if each["metadata"]["name"] not in names)
        yield from (Delete(resource=PROVISIONING_REQUEST, observed=each) for each in unused)
        for entry in told:
            config = configs.get(entry["name"])
            if config is not None and is_needed(workload, config):
                yield from self._ask(workload, entry, config, kept.get(entry["name"]))

    def _ask(self, workload: Json, entry: Json, config: Json, request: Json | None) -> Iterator[Action]:
        if request is not None:
            yield from self._hand_over(request)
        attempt = attempt_due(entry, workload, request)
        if not attempt:
            return
        order = order_of(workload, entry["name"], config, attempt, self._node_labels())
        yield from (Create(resource=POD_TEMPLATE, body=each) for each in order.templates)
        name = order.request["metadata"]["name"]
        note = RecordEvent(
            reason="ProvisioningRequestCreated", message=f'Created ProvisioningRequest: "{name}"', about=workload
        )
        yield Create(resource=PROVISIONING_REQUEST, body=order.request, notes=(note,))

    def _hand_over(self, request: Json) -> Iterator[Action]:
        """Its PodTemplates become the request's, and go with it."""
        namespace = request["metadata"]["namespace"]
        for pod_set in request["spec"]["podSets"]:
            template = self.client.find(POD_TEMPLATE, namespace, pod_set["podTemplateRef"]["name"])
            change = owned_by_request(template, request) if template is not None else None
            if template is not None and change is not None:
                yield Patch(resource=POD_TEMPLATE, observed=template, body=change)

    def _owned(self, workload: Json) -> Sequence[Json]:
        """All requests that name the Workload as an owner, whoever made them."""
        metadata = workload["metadata"]
        return [
            each
            for each in self.client.all(PROVISIONING_REQUEST)
            if each["metadata"]["namespace"] == metadata["namespace"]
            and any(
                (owner["kind"], owner["name"]) == (WORKLOAD.kind, metadata["name"])
                for owner in each["metadata"].get("ownerReferences") or ()
            )
            and not each["metadata"].get("deletionTimestamp")
        ]

    def _node_labels(self) -> dict[str, Json]:
        flavors = self.client.all(RESOURCE_FLAVOR)
        return {each["metadata"]["name"]: each.get("spec", {}).get("nodeLabels") or {} for each in flavors}
