"""What people and telemetry are told of ProvisioningRequests: every turn, once.

| turn                                                | Event on the Workload        | for telemetry        |
|-----------------------------------------------------|------------------------------|----------------------|
| nodes are asked for                                 | ProvisioningRequestCreated   | Created              |
| an autoscaler has taken the request on              | NodesAccepted                | –                    |
| there is capacity                                   | NodesProvisioned             | Provisioned          |
| the request is lost (a warning)                     | Nodes… and what became of it | the same             |
| no more is asked for (a warning)                    | NodesLimitReached            | –                    |
| nodes are lacking and cannot be asked for (warning) | NodesNotAsked                | –                    |
| a request is withdrawn, or cleared away             | ProvisioningRequestRemoved   | Removed, by request  |

What a request says for longer than a few minutes was told by whoever led before: a new leader does not tell it again.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from scaler.core.gate_policy import ProvisioningPolicy
from scaler.core.provisioning import LOST, Kind, Request, Stage, State, Step
from scaler.kube.events import ObjectReference
from scaler.kube.kueue_objects import Workload
from scaler.kube.resources import WORKLOAD
from scaler.kueue.provisioning_manifests import Order
from scaler.loops.reconciliation import Announcer

log = structlog.get_logger(__name__)

_NEWS_FOR = timedelta(minutes=5)
"""How long a state is news to a process that has just begun."""
_LIMIT = "AtLimit"
_NEWS = LOST | {State.ACCEPTED, State.PROVISIONED}
_NEWS_OF_STARTED = frozenset({State.CAPACITY_REVOKED})
"""To a gang that has started the rest means nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that was done or was seen for the first time, for telemetry."""

    what: str
    """Created, Removed, Provisioned, Failed, BookingExpired or CapacityRevoked."""
    provisioning_class: str
    reason: str = ""
    pods: int = 0


class RequestNews:
    """Remembers what it has told. `observe` is told of what counts."""

    def __init__(self, announcer: Announcer, observe: Callable[[Happening], None]) -> None:
        self._announcer = announcer
        self._observe = observe
        self._told: set[tuple[str, str]] = set()
        """(uid of the request, what was told of it)."""

    def forget_others(self, uids: Collection[str]) -> None:
        """Forget what was told of all requests but these."""
        self._told = {each for each in self._told if each[0] in uids}

    def created(self, workload: Workload, order: Order, policy: ProvisioningPolicy, attempt: int) -> None:
        of = policy.provisioning_class
        message = f"asked {of} for nodes for {order.pods} pod(s), attempt {attempt}: {order.name}"
        self._tell(workload, "ProvisioningRequestCreated", message)
        log.info("ProvisioningRequest created", workload="/".join(workload.metadata.key), request=order.name)
        self._observe(Happening(what="Created", provisioning_class=of, pods=order.pods))

    def heard(self, workload: Workload, requests: Collection[Request], stage: Stage, now: datetime) -> None:
        """What has become of the requests. Told of each once."""
        for each in requests:
            if each.state not in (_NEWS if stage is Stage.WAITING else _NEWS_OF_STARTED):
                continue
            if not self._is_news(each, each.state, now):
                continue
            message = f"ProvisioningRequest {each.name}, attempt {each.attempt}: {each.message or each.state}"
            self._tell(workload, f"Nodes{each.state}", message, warning=each.state in LOST)
            if each.state is not State.ACCEPTED:
                self._observe(
                    Happening(what=each.state, provisioning_class=each.ask.provisioning_class, reason=each.reason)
                )

    def at_limit(self, workload: Workload, step: Step, now: datetime) -> None:
        """No more is asked for, where the step says so. Told once of the last request."""
        if step.kind is Kind.AT_LIMIT and step.request is not None and self._is_news(step.request, _LIMIT, now):
            self._tell(workload, "NodesLimitReached", step.message, warning=True)

    def not_asked(self, workload: Workload, why: str) -> None:
        self._tell(workload, "NodesNotAsked", why, warning=True)
        log.warning("nodes cannot be asked for", workload="/".join(workload.metadata.key), why=why)

    def removed(self, workload: Workload, step: Step) -> None:
        self._tell(workload, "ProvisioningRequestRemoved", step.message)

    def cleared(self, request: str, provisioning_class: str) -> None:
        """One request is gone, or going."""
        log.info("ProvisioningRequest removed", request=request)
        self._observe(Happening(what="Removed", provisioning_class=provisioning_class))

    def _is_news(self, request: Request, what: str, now: datetime) -> bool:
        """Whether it is told for the first time, and is so since not long ago."""
        is_first = (request.uid, what) not in self._told
        self._told.add((request.uid, what))
        return is_first and now - request.since <= _NEWS_FOR

    def _tell(self, workload: Workload, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference.of(WORKLOAD, workload.metadata)
        self._announcer.record(about, reason, message, warning=warning)
