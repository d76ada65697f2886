"""Events and counts of ProvisioningRequests: each change once.

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

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from scaler.admission.policy import ProvisioningPolicy
from scaler.admission.provisioning.lifecycle import (
    LOST,
    ObservedRequest,
    ProvisioningStep,
    RequestState,
    ReservationStage,
    StepKind,
)
from scaler.admission.provisioning.manifests import RequestManifests
from scaler.kube.events import ObjectReference
from scaler.kube.objects.kueue_workloads import Workload
from scaler.kube.objects.resources import WORKLOAD
from scaler.suspension.reconciler import EventSink

log = structlog.get_logger(__name__)

_NEWS_FOR = timedelta(minutes=5)
"""How long a state is new to a process that has just started."""
_LIMIT = "AtLimit"
_NEWS = LOST | {RequestState.ACCEPTED, RequestState.PROVISIONED}
_NEWS_OF_STARTED = frozenset({RequestState.CAPACITY_REVOKED})
"""For a gang that has started the other states do not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningCount:
    """A change that is counted in metrics."""

    what: str
    """Created, Removed, Provisioned, Failed, BookingExpired or CapacityRevoked."""
    provisioning_class: str
    reason: str = ""
    pods: int = 0


class ProvisioningEvents:
    """Remembers what was recorded. `observe` is called with what is counted."""

    def __init__(self, announcer: EventSink, observe: Callable[[ProvisioningCount], None]) -> None:
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
        self._record(workload, "ProvisioningRequestCreated", message)
        log.info("ProvisioningRequest created", workload="/".join(workload.metadata.key), request=order.name)
        self._observe(ProvisioningCount(what="Created", provisioning_class=of, pods=order.pods))

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
            self._record(workload, f"Nodes{each.state}", message, warning=each.state in LOST)
            if each.state is not RequestState.ACCEPTED:
                self._observe(
                    ProvisioningCount(
                        what=each.state, provisioning_class=each.spec.provisioning_class, reason=each.reason
                    )
                )

    def at_limit(self, workload: Workload, step: ProvisioningStep, now: datetime) -> None:
        """No more nodes are requested, if that is the step. Once for the last request."""
        if step.kind is StepKind.AT_LIMIT and step.request is not None and self._is_news(step.request, _LIMIT, now):
            self._record(workload, "NodesLimitReached", step.message, warning=True)

    def not_requested(self, workload: Workload, why: str) -> None:
        self._record(workload, "NodesNotAsked", why, warning=True)
        log.warning("nodes cannot be requested", workload="/".join(workload.metadata.key), why=why)

    def removed(self, workload: Workload, step: ProvisioningStep) -> None:
        self._record(workload, "ProvisioningRequestRemoved", step.message)

    def cleared(self, request: str, provisioning_class: str) -> None:
        """A request is deleted."""
        log.info("ProvisioningRequest removed", request=request)
        self._observe(ProvisioningCount(what="Removed", provisioning_class=provisioning_class))

    def _is_news(self, request: ObservedRequest, what: str, now: datetime) -> bool:
        """Whether this is the first time, and the state is recent."""
        is_first = (request.uid, what) not in self._recorded
        self._recorded.add((request.uid, what))
        return is_first and now - request.since <= _NEWS_FOR

    def _record(self, workload: Workload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(WORKLOAD, workload.metadata)
        self._announcer.record(about, reason, message, warning=warning)
