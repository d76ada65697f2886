"""Executes the provisioning steps of an admission plan: creates and removes ProvisioningRequests. Leader only.

Laws:

* Nothing is kept in memory that matters but the pause after a refusal of the API server: a restart, at
  whatever moment, only makes the next plan contain what is left to do.
* Before a request is created, the Workload and the request's name are read from the API server, not from a watch.
* A refusal of the API server is a step of its own (Stuck) in the next plan; only the end of leadership is raised.
* One write after the other, and each can be the last: a restart finds what is half done, and does the same again. A
  PodTemplate that exists already and is right is used; one that is not is deleted first.
* Deletes name the uid: a later object of the same name is never deleted. Objects that are not ours are not touched.

What is needed of RBAC: workloads get; podtemplates get, create, delete; provisioningrequests get, list, watch, create,
delete.

Events and counts, each change once:

| change                                              | Event on the Workload        | counted              |
|-----------------------------------------------------|------------------------------|----------------------|
| nodes are requested                                 | ProvisioningRequestCreated   | Created              |
| an autoscaler has accepted the request              | NodesAccepted                | –                    |
| capacity is provisioned                             | NodesProvisioned             | Provisioned          |
| the request is lost (a warning)                     | Nodes… and the condition     | the same             |
| no more nodes are requested (a warning)             | NodesLimitReached            | –                    |
| nodes are missing, cannot be requested (a warning)  | NodesNotAsked                | –                    |
| a request is removed                                | ProvisioningRequestRemoved   | Removed, by request  |

The Event of a condition older than a few minutes was recorded by the leader before: a new one does not repeat it.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from scaler.admission.plan import AdmissionPlan, CheckedWorkload, CheckKey
from scaler.admission.policy import ProvisioningPolicy, Unusable
from scaler.admission.provisioning.lifecycle import (
    LOST,
    ObservedRequest,
    ProvisioningStep,
    RequestState,
    ReservationStage,
    StepKind,
)
from scaler.admission.provisioning.manifests import CONTENT_ANNOTATION, Json, RequestManifests, request_manifests_of
from scaler.admission.provisioning.requests import (
    MANAGED_LABEL,
    WORKLOAD_ANNOTATION,
    WORKLOAD_UID_LABEL,
    Flavors,
    check_of,
    request_spec_of,
)
from scaler.admission.provisioning.watch import RequestWatch
from scaler.admission.workload import reserved_workload_of
from scaler.documents import UNREADABLE
from scaler.errors import KubeError
from scaler.kube.events import EventSink, ObjectReference
from scaler.kube.objects.core import PartialObjectMetadata, decode
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.nodes import ProvisioningRequest
from scaler.kube.objects.resources import POD_TEMPLATE, WORKLOAD, Resource
from scaler.kube.watch_backoff import Backoff
from scaler.kube.writes import WriteApi, is_written

log = structlog.get_logger(__name__)

_SECONDS = 5.0
"""What one tick may take. Steps for which there is no time are in the next plan."""
_UNOWNED_FOR = timedelta(seconds=30)
"""How long a request may be without a Workload before it is removed. Watches of two kinds are never quite in step."""
_PAUSES = Backoff(base=5.0, cap=300.0)
"""The pauses after refusals."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    count: int
    until: datetime
    message: str


class _StuckError(Exception):
    """The step cannot be done; why."""


_NEWS_FOR = timedelta(minutes=5)
"""How long a state is new to a process that has just started."""
_LIMIT = "AtLimit"
_NEWS = LOST | {RequestState.ACCEPTED, RequestState.PROVISIONED}
_NEWS_OF_STARTED = frozenset({RequestState.CAPACITY_REVOKED})
"""The states that matter for a gang that has started."""


CountRequest = Callable[[str, str, str], None]
"""Gets what is counted of a request: Created, Removed, Provisioned, Failed, BookingExpired or CapacityRevoked; its
class, and the reason, where there is one."""


class ProvisioningEvents:
    """Remembers what was recorded. `observe` is called with what is counted."""

    def __init__(self, announcer: EventSink, observe: CountRequest) -> None:
        self._announcer = announcer
        self._observe = observe
        self._recorded: set[tuple[str, str]] = set()
        """(uid of the request, state)."""

    def forget_others(self, uids: Collection[str]) -> None:
        """Forget all requests but these."""
        self._recorded = {each for each in self._recorded if each[0] in uids}

    def created(self, workload: Workload, order: RequestManifests, policy: ProvisioningPolicy, attempt: int) -> None:
        of = policy.provisioning_class
        message = f"requested nodes of class {of} for {order.pods} pod(s), attempt {attempt}: {order.name}"
        self.record(workload, "ProvisioningRequestCreated", message)
        log.info("ProvisioningRequest created", workload="/".join(workload.metadata.key), request=order.name)
        self._observe("Created", of, "")

    def observed(
        self, workload: Workload, requests: Collection[ObservedRequest], stage: ReservationStage, now: datetime
    ) -> None:
        """The states of the requests, each once."""
        for each in requests:
            if each.state not in (_NEWS if stage is ReservationStage.WAITING else _NEWS_OF_STARTED):
                continue
            if not self._is_news(each, each.state, now):
                continue
            message = f"ProvisioningRequest {each.name}, attempt {each.attempt}: {each.message or each.state}"
            self.record(workload, f"Nodes{each.state}", message, warning=each.state in LOST)
            if each.state is not RequestState.ACCEPTED:
                self._observe(each.state, each.spec.provisioning_class, each.reason)

    def at_limit(self, workload: Workload, step: ProvisioningStep, now: datetime) -> None:
        """No more nodes are requested, if that is the step. Once for the last request."""
        if step.kind is StepKind.AT_LIMIT and step.request is not None and self._is_news(step.request, _LIMIT, now):
            self.record(workload, "NodesLimitReached", step.message, warning=True)

    def cleared(self, request: str, provisioning_class: str) -> None:
        """A request is deleted."""
        log.info("ProvisioningRequest removed", request=request)
        self._observe("Removed", provisioning_class, "")

    def _is_news(self, request: ObservedRequest, what: str, now: datetime) -> bool:
        """Whether this is the first time, and the state is recent."""
        is_first = (request.uid, what) not in self._recorded
        self._recorded.add((request.uid, what))
        return is_first and now - request.since <= _NEWS_FOR

    def record(self, workload: Workload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(WORKLOAD, workload.metadata)
        self._announcer.record(about, reason, message, warning=warning)


class ProvisioningController:
    """Creates and removes ProvisioningRequests."""

    def __init__(
        self,
        api: WriteApi,
        requests: RequestWatch,
        flavors: Flavors,
        announcer: EventSink,
        *,
        observe: CountRequest = lambda *_: None,
    ) -> None:
        self._api = api
        self._requests = requests
        self._flavors = flavors
        self._events = ProvisioningEvents(announcer, observe)
        self._refusals: dict[str, _Refusal] = {}
        self._unowned: dict[str, datetime] = {}
        """When requests were first seen without a Workload, by uid."""

    def refusals(self, now: datetime) -> dict[str, str]:
        """Why a Workload's requests are not written until the pause after a refusal is over, by its uid."""
        return {uid: each.message for uid, each in self._refusals.items() if now < each.until}

    async def execute(self, plan: AdmissionPlan, now: datetime) -> set[CheckKey]:
        """Do the provisioning steps. Those that were not done, or not as planned, are returned.

        Raises: KubeError with the reason NotLeading.
        """
        for each in plan.workloads:
            self._announce(each, now)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SECONDS
        failed = set()
        for each in plan.provisioning_steps:
            if loop.time() > deadline or not await self._do(each, now):
                failed.add(each.name)
        await self.remove_unowned({each.uid for each in (*plan.workloads, *plan.without_quota)}, now)
        return failed

    def _announce(self, each: CheckedWorkload, now: datetime) -> None:
        if each.provisioning is not None:
            self._events.observed(each.workload, each.observed, each.provisioning.stage, now)
            self._events.at_limit(each.workload, each.step, now)

    async def _do(self, each: CheckedWorkload, now: datetime) -> bool:
        """Whether the step was done as planned. Raises: KubeError with the reason NotLeading."""
        try:
            is_done = await (self._create(each) if each.step.kind is StepKind.CREATE else self._remove(each))
        except (_StuckError, KubeError) as error:
            if isinstance(error, KubeError) and error.is_not_leading:
                raise
            self._back_off(each.workload, str(error), now)
            return False
        self._refusals.pop(each.uid, None)
        return is_done

    async def _create(self, each: CheckedWorkload) -> bool:
        """Raises: KubeError, _StuckError."""
        policy, resource = each.provisioning_policy, self._requests.resource
        if policy is None or resource is None:
            return False
        body = await self._api.get(WORKLOAD.path(*each.workload.metadata.key))
        try:
            live = decode(Workload, body)
        except UNREADABLE as error:
            raise _StuckError(f"its Workload cannot be read: {error}") from error
        if not _still_waits(each, live):
            return False
        attempt, missing = each.step.attempt, each.missing
        found = request_manifests_of(
            live, body, policy, check=each.check, attempt=attempt, missing=missing, flavors=self._flavors
        )
        if isinstance(found, Unusable):
            raise _StuckError(found.reason)
        is_made = await self._make(found, resource)
        if is_made:
            self._events.created(live, found, policy, attempt)
        return is_made

    async def _remove(self, each: CheckedWorkload) -> bool:
        """Raises: KubeError."""
        for request in each.step.remove:
            await self._delete(each.requests[request.name])
        self._events.record(each.workload, "ProvisioningRequestRemoved", each.step.message)
        return True

    async def _delete(self, request: ProvisioningRequest) -> None:
        """Raises: KubeError."""
        resource = self._requests.resource
        if resource is None:
            return
        await self._delete_with_templates(request, resource)
        self._events.cleared("/".join(request.metadata.key), request.spec.provisioning_class_name)

    def _back_off(self, workload: Workload, why: str, now: datetime) -> None:
        """Retry with a growing delay."""
        before = self._refusals.get(workload.metadata.uid)
        count = before.count + 1 if before else 1
        if before is None or before.message != why:
            self._events.record(workload, "NodesNotAsked", why, warning=True)
            log.warning("nodes cannot be requested", workload="/".join(workload.metadata.key), why=why)
        until = now + timedelta(seconds=_PAUSES.ceiling(count))
        self._refusals[workload.metadata.uid] = _Refusal(count=count, until=until, message=why)

    # --------------------------------------------------------------------------------------- requests and PodTemplates

    async def _make(self, order: RequestManifests, resource: Resource) -> bool:
        """Whether the request was created: the PodTemplates first. Raises: KubeError, _StuckError."""
        metadata = order.request["metadata"]
        namespace, uid = metadata["namespace"], metadata["labels"][WORKLOAD_UID_LABEL]
        present = await self._find(ProvisioningRequest, resource.path(namespace, order.name))
        if present is not None:
            _raise_if_foreign(present)
            return False
        owners = []
        for template in order.templates:
            owner = await self._template(template, uid)
            if owner is None:
                return False
            owners.append(owner)
        try:
            await self._api.create(resource.path(namespace), order.owned_by(owners, resource))
        except KubeError as error:
            if not error.is_conflict:
                raise
            return False
        return True

    async def _template(self, manifest: Json, workload_uid: str) -> str | None:
        """The uid of the PodTemplate, created now or by an attempt that failed half way; None: retry later.

        Raises: KubeError, _StuckError.
        """
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        try:
            made = await self._api.create(POD_TEMPLATE.path(namespace), manifest)
            return decode(PartialObjectMetadata, made).metadata.uid
        except KubeError as error:
            if not error.is_conflict:
                raise
        path = POD_TEMPLATE.path(namespace, name)
        found = await self._find(PartialObjectMetadata, path)
        if found is None:
            return None
        if found.metadata.labels.get(MANAGED_LABEL) != "true":
            raise _StuckError(f"PodTemplate {namespace}/{name} is not managed by this scaler; rename or delete it")
        if _is_as_wanted(found, manifest, workload_uid):
            return found.metadata.uid
        if found.metadata.deletion_timestamp is None:
            await self._delete_object(path, found.metadata.uid)
        return None

    async def _delete_with_templates(self, found: ProvisioningRequest, resource: Resource) -> None:
        """Delete the PodTemplates and the request, as far as they are there. Raises: KubeError.

        The request last: the PodTemplates are found by it if this process dies in between. A later request of the same
        name may use the same PodTemplates, so it is looked up first.
        """
        namespace, name = found.metadata.key
        path = resource.path(namespace, name)
        present = await self._find(ProvisioningRequest, path)
        if present is not None and present.metadata.uid != found.metadata.uid:
            return
        workload_uid = found.metadata.labels.get(WORKLOAD_UID_LABEL, "")
        for owner in found.metadata.owner_references:
            if owner.kind == POD_TEMPLATE.kind:
                await self._remove_template(POD_TEMPLATE.path(namespace, owner.name), owner.uid, workload_uid)
        if present is not None:
            await self._delete_object(path, found.metadata.uid)

    async def _remove_template(self, path: str, uid: str, workload_uid: str) -> None:
        """Any client may write owner references into a request: only a template that is ours is deleted.

        Raises: KubeError.
        """
        template = await self._find(PartialObjectMetadata, path)
        if template is not None and template.metadata.uid == uid and _is_of(template, workload_uid):
            await self._delete_object(path, uid)

    async def _delete_object(self, path: str, uid: str) -> None:
        """An object of that name with another uid is not deleted. Raises: KubeError."""
        try:
            await self._api.delete(path, uid=uid)
        except KubeError as error:
            if not error.is_outdated:
                raise

    async def _find(self, kind: type[T], path: str) -> T | None:
        """The object as the API has it; None where there is none. Raises: KubeError."""
        try:
            return decode(kind, await self._api.get(path))
        except KubeError as error:
            if not error.is_absent:
                raise
            return None
        except UNREADABLE as error:
            raise KubeError(f"get {path}: the object cannot be read: {error}", reason="Unreadable") from error

    # ------------------------------------------------------------------------------------- requests without a Workload

    async def remove_unowned(self, known: Collection[str], now: datetime) -> None:
        """Remove requests whose Workload is none of these, by uid. Raises: KubeError with the reason NotLeading."""
        ours = [each for each in self._requests.items() if WORKLOAD_UID_LABEL in each.metadata.labels]
        self._events.forget_others({each.metadata.uid for each in ours})
        self._refusals = {uid: each for uid, each in self._refusals.items() if uid in known}
        since, self._unowned = self._unowned, {}
        for each in ours:
            uid = each.metadata.uid
            if each.metadata.labels[WORKLOAD_UID_LABEL] in known:
                continue
            self._unowned[uid] = since.get(uid, now)
            if each.metadata.deletion_timestamp is None and await self._is_unowned(each, since.get(uid), now):
                await self._delete_unowned(each)

    async def _is_unowned(self, request: ProvisioningRequest, since: datetime | None, now: datetime) -> bool:
        """Whether it has been without a Workload for long or, if it is new here, its Workload is gone or has no quota.

        So a new leader removes at once what an evicted Workload has requested.
        """
        if since is not None:
            return now - since >= _UNOWNED_FOR
        name = request.metadata.annotations.get(WORKLOAD_ANNOTATION, "")
        if not name:
            return False
        try:
            live = decode(Workload, await self._api.get(WORKLOAD.path(request.metadata.namespace, name)))
        except KubeError as error:
            return error.is_absent
        except UNREADABLE:
            return False
        is_another = live.metadata.uid != request.metadata.labels[WORKLOAD_UID_LABEL]
        return is_another or not reserved_workload_of(live, check_of(request)).is_held

    async def _delete_unowned(self, request: ProvisioningRequest) -> None:
        """Raises: KubeError with the reason NotLeading."""
        what = "ProvisioningRequest without a Workload not removed"
        await is_written(self._delete(request), log, what, request=request.metadata.key)


def _still_waits(each: CheckedWorkload, live: Workload) -> bool:
    """Whether what was planned still holds: the same reservation, and our check state is there and Pending."""
    policy = each.provisioning_policy
    return (
        live.metadata.uid == each.uid
        and reserved_workload_of(live, each.check).waits
        and policy is not None
        and request_spec_of(live, policy) == request_spec_of(each.workload, policy)
    )


def _raise_if_foreign(present: ProvisioningRequest) -> None:
    """Raises: _StuckError for a request that is not ours. One of ours is there already, or is about to be removed."""
    if present.metadata.labels.get(MANAGED_LABEL) != "true":
        where = "/".join(present.metadata.key)
        raise _StuckError(f"ProvisioningRequest {where} is not managed by this scaler; rename or delete it")


def _is_of(template: PartialObjectMetadata, workload_uid: str) -> bool:
    labels = template.metadata.labels
    return labels.get(MANAGED_LABEL) == "true" and labels.get(WORKLOAD_UID_LABEL) == workload_uid


def _is_as_wanted(found: PartialObjectMetadata, manifest: Json, workload_uid: str) -> bool:
    metadata = found.metadata
    return (
        metadata.deletion_timestamp is None
        and _is_of(found, workload_uid)
        and metadata.annotations.get(CONTENT_ANNOTATION) == manifest["metadata"]["annotations"][CONTENT_ANNOTATION]
        and any(owner.uid == workload_uid for owner in metadata.owner_references)
    )
