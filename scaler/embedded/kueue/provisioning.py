"""Kueue's own controller for ProvisioningRequests: keeps its checks Active, makes requests, and says what came of them.

It runs wherever the API serves ProvisioningRequests, whether a check of its is used or not. Of the requests that name a
Workload as their owner it deletes all that are not the newest one of a check of its own: so nobody else can own theirs
that way.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from scaler.embedded.actions import Action, Create, Delete, Note, Patch, status_patch
from scaler.embedded.conditions import has, make, with_conditions
from scaler.embedded.controller import Controller
from scaler.embedded.kinds import (
    ADMISSION_CHECK,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    PROVISIONING_REQUEST_CONFIG,
    RESOURCE_FLAVOR,
    WORKLOAD,
    Json,
    Resource,
)
from scaler.embedded.kueue import provisioning_plans as plans


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
        return [each for each in self.client.all(ADMISSION_CHECK) if each["spec"]["controllerName"] == plans.CONTROLLER]

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
            and plans.is_needed(workload, config)
            and (found := plans.newest(owned, workload, name, config))
        }
        told = [
            plans.answered(each, workload, configs[each["name"]], kept.get(each["name"]))
            if each["name"] in configs
            else each
            for each in entries
        ]
        if patch := status_patch(WORKLOAD, workload, {**workload["status"], "admissionChecks": told}):
            yield patch
        names = {each["metadata"]["name"] for each in kept.values()}
        unused = (each for each in owned if each["metadata"]["name"] not in names)
        yield from (Delete(resource=PROVISIONING_REQUEST, observed=each) for each in unused)
        for entry in told:
            config = configs.get(entry["name"])
            if config is not None and plans.is_needed(workload, config):
                yield from self._ask(workload, entry, config, kept.get(entry["name"]))

    def _ask(self, workload: Json, entry: Json, config: Json, request: Json | None) -> Iterator[Action]:
        if request is not None:
            yield from self._hand_over(request)
        attempt = plans.attempt_due(entry, workload, request)
        if not attempt:
            return
        order = plans.order_of(workload, entry["name"], config, attempt, self._node_labels())
        yield from (Create(resource=POD_TEMPLATE, body=each) for each in order.templates)
        name = order.request["metadata"]["name"]
        note = Note(
            reason="ProvisioningRequestCreated", message=f'Created ProvisioningRequest: "{name}"', about=workload
        )
        yield Create(resource=PROVISIONING_REQUEST, body=order.request, notes=(note,))

    def _hand_over(self, request: Json) -> Iterator[Action]:
        """Its PodTemplates become the request's, and go with it."""
        namespace = request["metadata"]["namespace"]
        for pod_set in request["spec"]["podSets"]:
            template = self.client.find(POD_TEMPLATE, namespace, pod_set["podTemplateRef"]["name"])
            change = plans.owned_by_request(template, request) if template is not None else None
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
