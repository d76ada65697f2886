"""Carries out what `core/provisioning.py` decides about the ProvisioningRequests of gangs. Leader only.

Whoever holds gangs back calls `follow` for every Workload that has the check, in whatever state it is, every time it
looks at it, and `sweep` once afterwards; what comes back says how the gang stands with autoscalers:

| Progress.kind | what it means for the gang                                                       |
|---------------|----------------------------------------------------------------------------------|
| NOTHING       | provisioning has no say: it fits, or nobody is to be asked                       |
| WAIT          | hold it; asked, to be asked later, or cleaning up                                |
| BACK_OFF      | hold it; asks again at `until`                                                   |
| PROVISIONED   | it may start, with `updates`                                                     |
| AT_LIMIT      | hold it and alert or, where `is_yielding`, give its quota back                   |
| REVOKED       | it has started and loses its nodes: evict it                                     |
| STUCK         | hold it and alert: nodes are missing and cannot be asked for, the message says why |

Laws:

* Nothing is kept in memory that matters but how long to leave the API alone after a refusal: a restart, at whatever
  moment, only makes the next look do what is left to do.
* Before nodes are asked for, the Workload and the request's name are read from the API itself, not from a copy.
* The API's refusals are a reason to hold the gang, and rare; only the end of leadership is raised.

What is needed of RBAC: workloads get; podtemplates get, create, delete; provisioningrequests get, list, watch, create,
delete.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from scaler.core.gate_policy import ProvisioningPolicy, Unusable
from scaler.core.provisioning import Gang, Kind, Need, PodSetUpdate, Request, Stage, Step, next_step
from scaler.errors import KubeError
from scaler.kube.decoding import UNREADABLE, decode
from scaler.kube.kueue_objects import Workload
from scaler.kube.provisioning_objects import ProvisioningRequest
from scaler.kube.resources import WORKLOAD, Resource
from scaler.kueue.provisioning_manifests import Order, order_of
from scaler.kueue.provisioning_requests import (
    WORKLOAD_ANNOTATION,
    WORKLOAD_UID_LABEL,
    Flavors,
    ask_of,
    check_of,
    entry_of,
    gang_of,
    ready_updates,
    request_of,
    stage_of,
)
from scaler.loops.leadership import NOT_LEADING, MakingApi
from scaler.loops.reconciliation import Announcer
from scaler.loops.request_news import Happening, RequestNews
from scaler.loops.request_writer import Made, RequestWriter

__all__ = ["Case", "Happening", "Progress", "Provisioning", "Requests"]

log = structlog.get_logger(__name__)

_ABSENT = 404
_ORPHANED_FOR = timedelta(seconds=30)
"""How long a request may be nobody's before it is removed. Copies of two kinds of objects are never quite in step."""
_REFUSED_FOR = timedelta(seconds=5)
_REFUSED_AT_MOST = timedelta(minutes=5)
"""How long the API is left alone after the first refusal and after the tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A gang, and what is known of its lack of nodes."""

    workload: Workload
    check: str
    """Name of the AdmissionCheck that holds it."""
    policy: ProvisioningPolicy | None
    """None: nodes are not asked for, and what was asked for before is withdrawn. Of a gang whose policy cannot be
    followed just now nothing is asked: `follow` is not to be called."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Pods by PodSet for which no node has room; empty where the gang fits."""
    reuse: str = ""
    """The plan that is being carried out to free GPUs for it, in words; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How the gang stands with autoscalers."""

    kind: Kind
    message: str = ""
    attempt: int = 0
    """Of the newest request; 0 where there is none."""
    request: str = ""
    """The newest request, by name."""
    reason: str = ""
    """The reason that the autoscaler gave last (`NoCapacity`), for counting."""
    until: datetime | None = None
    """When a pause ends, or when nodes are expected."""
    is_yielding: bool = False
    is_late: bool = False
    """Whether nodes that were asked for should be there by now, and are not counted on any more."""
    open_since: datetime | None = None
    """When the request was made by which capacity may still be booked; None where there is none."""
    updates: tuple[PodSetUpdate, ...] = ()
    """What the gang's pods are given when it starts. Only of PROVISIONED."""


class Requests(Protocol):
    """The ProvisioningRequests that are ours. A RequestWatch is one."""

    @property
    def resource(self) -> Resource | None:
        """None while they are not served."""

    @property
    def trouble(self) -> str:
        """Why nothing can be said of them; empty while something can."""

    def of_workload(self, uid: str) -> list[ProvisioningRequest]: ...

    def items(self) -> list[ProvisioningRequest]: ...


@dataclass(slots=True)
class _Refusal:
    count: int
    until: datetime
    message: str


class Provisioning:
    """Asks autoscalers for the nodes that gangs lack."""

    def __init__(
        self,
        api: MakingApi,
        requests: Requests,
        flavors: Flavors,
        announcer: Announcer,
        *,
        observe: Callable[[Happening], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._writer = RequestWriter(api)
        self._requests = requests
        self._flavors = flavors
        self._news = RequestNews(announcer, observe)
        self._refusals: dict[str, _Refusal] = {}
        self._orphans: dict[str, datetime] = {}
        """Since when requests have been nobody's, by uid."""

    # ------------------------------------------------------------------------------------------------- what is called

    async def follow(self, case: Case, now: datetime) -> Progress:
        """Take the next step for the gang, if any, and tell how it stands.

        Raises: KubeError with the reason NotLeading; anything else is a Progress.
        """
        situation = situation_of(case, self._requests, now)
        if isinstance(situation, Progress):
            return situation
        self._news.heard(case.workload, situation.requests, situation.gang.stage, now)
        step = next_step(situation.gang, situation.requests, case.policy, now)
        self._news.at_limit(case.workload, step, now)
        if step.kind not in (Kind.CREATE, Kind.REMOVE):
            return progress_of(case, step, situation.found, self._flavors)
        return await self._act(case, step, situation.found, now)

    async def sweep(self, followed: Collection[str], now: datetime) -> None:
        """Remove requests whose Workload is none of these, by uid: it has vanished, or has our check no more.

        Raises: KubeError with the reason NotLeading.
        """
        ours = [each for each in self._requests.items() if WORKLOAD_UID_LABEL in each.metadata.labels]
        orphans = [each for each in ours if each.metadata.labels[WORKLOAD_UID_LABEL] not in followed]
        self._news.forget_others({each.metadata.uid for each in ours})
        self._refusals = {uid: each for uid, each in self._refusals.items() if uid in followed}
        since, self._orphans = self._orphans, {}
        for each in orphans:
            uid = each.metadata.uid
            self._orphans[uid] = since.get(uid, now)
            if each.metadata.deletion_timestamp is None and await self._is_nobodys(each, since.get(uid), now):
                await self._clear_away(each)

    async def _is_nobodys(self, orphan: ProvisioningRequest, since: datetime | None, now: datetime) -> bool:
        """Whether it has been nobody's for long or, of one that has just been found, its Workload is truly gone.

        So the leader that comes after one that died withdraws what an evicted gang has asked for, at once.
        """
        if since is not None:
            return now - since >= _ORPHANED_FOR
        name = orphan.metadata.annotations.get(WORKLOAD_ANNOTATION, "")
        if not name:
            return False
        try:
            live = decode(Workload, await self._api.get(WORKLOAD.path(orphan.metadata.namespace, name)))
        except KubeError as error:
            return error.status == _ABSENT
        except UNREADABLE:
            return False
        is_another = live.metadata.uid != orphan.metadata.labels[WORKLOAD_UID_LABEL]
        return is_another or stage_of(live, check_of(orphan)) is Stage.GONE

    async def _clear_away(self, orphan: ProvisioningRequest) -> None:
        """Raises: KubeError with the reason NotLeading."""
        try:
            await self._delete(orphan)
        except KubeError as error:
            if error.reason == NOT_LEADING:
                raise
            log.warning("ProvisioningRequest of nobody not removed", request=orphan.metadata.key, error=str(error))

    # ---------------------------------------------------------------------------------------------------- what is done

    async def _act(self, case: Case, step: Step, found: Mapping[str, ProvisioningRequest], now: datetime) -> Progress:
        """Raises: KubeError with the reason NotLeading."""
        uid = case.workload.metadata.uid
        refusal = self._refusals.get(uid)
        if refusal and now < refusal.until:
            return Progress(kind=Kind.STUCK, message=refusal.message)
        try:
            progress = await (self._create(case, step) if step.kind is Kind.CREATE else self._remove(case, step, found))
        except KubeError as error:
            if error.reason == NOT_LEADING:
                raise
            progress = Progress(kind=Kind.STUCK, message=str(error))
        if progress.kind is Kind.STUCK:
            self._leave_alone(case.workload, progress.message, now)
        else:
            self._refusals.pop(uid, None)
        return progress

    async def _create(self, case: Case, step: Step) -> Progress:
        """Raises: KubeError."""
        workload, policy, resource = case.workload, case.policy, self._requests.resource
        if policy is None or resource is None:
            return Progress(kind=Kind.WAIT, message="ProvisioningRequests are not served at the moment")
        body = await self._api.get(WORKLOAD.path(*workload.metadata.key))
        try:
            live = decode(Workload, body)
        except UNREADABLE as error:
            return Progress(kind=Kind.STUCK, message=f"its Workload cannot be read: {error}")
        if not _still_waits(case, policy, live):
            return Progress(kind=Kind.WAIT, message="its Workload has just changed; looking again")
        order = order_of(
            live,
            body,
            policy,
            check=case.check,
            attempt=step.attempt,
            missing=case.missing,
            flavors=self._flavors,
        )
        made = order if isinstance(order, Unusable) else await self._writer.make(order, resource)
        if isinstance(made, Unusable):
            return Progress(kind=Kind.STUCK, message=made.reason, attempt=step.attempt)
        if isinstance(order, Order) and isinstance(made, Made):
            self._news.created(live, order, policy, step.attempt)
        name = order.name if isinstance(order, Order) else ""
        message = step.message if isinstance(made, Made) else made.why
        return Progress(kind=Kind.WAIT, message=message, attempt=step.attempt, request=name)

    async def _remove(self, case: Case, step: Step, found: Mapping[str, ProvisioningRequest]) -> Progress:
        """Raises: KubeError."""
        for each in step.remove:
            await self._delete(found[each.name])
        self._news.removed(case.workload, step)
        return Progress(kind=Kind.WAIT, message=step.message)

    async def _delete(self, request: ProvisioningRequest) -> None:
        """Raises: KubeError."""
        resource = self._requests.resource
        if resource is None:
            return
        await self._writer.remove(request, resource)
        self._news.cleared("/".join(request.metadata.key), request.spec.provisioning_class_name)

    def _leave_alone(self, workload: Workload, why: str, now: datetime) -> None:
        """Remember the refusal, so that the API is not asked the same at once and for ever."""
        uid = workload.metadata.uid
        before = self._refusals.get(uid)
        count = before.count + 1 if before else 1
        pause = min(_REFUSED_FOR * 2 ** min(count - 1, 10), _REFUSED_AT_MOST)
        if before is None or before.message != why:
            self._news.not_asked(workload, why)
        self._refusals[uid] = _Refusal(count=count, until=now + pause, message=why)


_NOTHING = Progress(kind=Kind.NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that the next step depends on, and the policy."""

    gang: Gang
    found: Mapping[str, ProvisioningRequest]
    """The gang's requests by name."""
    requests: Sequence[Request]
    """The same as the core sees them."""


def situation_of(case: Case, requests: Requests, now: datetime) -> Situation | Progress:
    """How the gang stands before a step is taken or, where none can be, what that means for it."""
    found = requests_of(requests, case.workload, case.check)
    if case.policy is None and not found:
        return _NOTHING
    gang = gang_of(case.workload, case.check, case.policy, missing=case.missing, reuse=case.reuse)
    if requests.trouble:
        is_lacking = case.policy and gang.stage is Stage.WAITING and gang.need(case.policy, now) is Need.NODES
        return Progress(kind=Kind.STUCK, message=requests.trouble) if is_lacking else _NOTHING
    return Situation(gang=gang, found=found, requests=[request_of(each) for each in found.values()])


def requests_of(requests: Requests, workload: Workload, check: str) -> dict[str, ProvisioningRequest]:
    """The requests that were made for the Workload because of the check, by name."""
    found = requests.of_workload(workload.metadata.uid)
    namespace = workload.metadata.namespace
    return {
        each.metadata.name: each for each in found if check_of(each) == check and each.metadata.namespace == namespace
    }


def progress_of(case: Case, step: Step, found: Mapping[str, ProvisioningRequest], flavors: Flavors) -> Progress:
    """What the step says, where nothing has to be done for it. `found`: the gang's requests by name."""
    request = step.request
    progress = Progress(
        kind=step.kind,
        message=step.message,
        attempt=step.attempt,
        request=request.name if request else "",
        reason=request.reason if request else "",
        until=step.until,
        is_yielding=step.is_yielding,
        is_late=step.is_late,
        open_since=found[request.name].metadata.creation_timestamp if request and request.may_book else None,
    )
    if step.kind is not Kind.PROVISIONED or request is None or case.policy is None:
        return progress
    given = ready_updates(found[request.name], case.workload, case.policy, flavors)
    message = "; ".join((step.message, *(f"left out: {each}" for each in given.left_out)))
    return replace(progress, message=message, updates=given.updates)


def _still_waits(case: Case, policy: ProvisioningPolicy, live: Workload) -> bool:
    """Whether what was decided upon still holds: the same reservation, and our entry is there and Pending."""
    entry = entry_of(live, case.check)
    return (
        live.metadata.uid == case.workload.metadata.uid
        and stage_of(live, case.check) is Stage.WAITING
        and entry is not None
        and entry.state == "Pending"
        and ask_of(live, policy) == ask_of(case.workload, policy)
    )
