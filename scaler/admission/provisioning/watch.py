"""Our ProvisioningRequests, watched in the version that the API serves, or why they are not known.

`autoscaling.x-k8s.io/v1` is preferred; where only v1beta1 is served that one is used (their schemas are the same). The
definition may be installed, or replaced by one of another version, while this runs.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from scaler.admission.provisioning.requests import MANAGED_LABEL, workload_uid_of
from scaler.errors import KubeError
from scaler.kube.discovery import Discovery
from scaler.kube.object_cache import Change
from scaler.kube.objects.nodes import ProvisioningRequest
from scaler.kube.objects.resources import PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA, Resource
from scaler.kube.reflector import Absent, Denied, Disconnected, Reflector
from scaler.kube.transport import KubeTransport
from scaler.kube.watch_backoff import WatchTiming

log = structlog.get_logger(__name__)

_NOT_SERVED = (
    "the API server serves no ProvisioningRequests (autoscaling.x-k8s.io); install the CustomResourceDefinition of "
    "Cluster Autoscaler, or remove spec.provisioning from the ReclaimPolicy"
)
_LOOK_AGAIN_SECONDS = 30.0
"""How often discovery is repeated while the API serves no version."""
_NOTICE_SECONDS = 5.0
"""How soon it is detected that the version in use is not served any more."""


@dataclass(kw_only=True)
class RequestWatch:
    """The watch. Every replica may run it."""

    transport: KubeTransport
    discovery: Discovery
    timing: WatchTiming = WatchTiming()  # noqa: RUF009 - frozen
    look_again_seconds: float = _LOOK_AGAIN_SECONDS
    notice_seconds: float = _NOTICE_SECONDS
    _reflector: Reflector[ProvisioningRequest] | None = field(default=None, init=False)
    _trouble: str = field(default="ProvisioningRequests are not listed yet", init=False)
    _decided: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once it is known whether ProvisioningRequests are served."""
    _subscribers: list[Callable[[Change[ProvisioningRequest]], None]] = field(default_factory=list, init=False)

    # ----------------------------------------------------------------------------------------------------- reading

    @property
    def resource(self) -> Resource | None:
        """The resource in the version that is served; None while there is none."""
        return None if self._reflector is None else self._reflector.resource

    @property
    def trouble(self) -> str:
        """Why requests are not known; empty while they are.

        A watch that was synced and is disconnected for the moment is no trouble: requests are read again before writes.
        """
        if self._reflector is None:
            return self._trouble
        match self._reflector.state:
            case Absent() | Denied() as state:
                return state.message
            case Disconnected(message=message) if not self._reflector.is_synced:
                return f"ProvisioningRequests are not listed yet: {message}"
        return ""

    async def wait_known(self) -> None:
        """Returns once all requests are listed, or it is known why they are not."""
        await self._decided.wait()
        if self._reflector is not None:
            await self._reflector.wait_synced()

    def of_workload(self, uid: str) -> Sequence[ProvisioningRequest]:
        """Our requests for the Workload, in no particular order."""
        return () if self._reflector is None else self._reflector.by_index("workload", uid)

    def items(self) -> Sequence[ProvisioningRequest]:
        return () if self._reflector is None else self._reflector.items()

    def subscribe(self, callback: Callable[[Change[ProvisioningRequest]], None]) -> Callable[[], None]:
        """The function that ends the subscription. Callbacks must not raise or block."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            resource = await self._served()
            if resource is None:
                self._decided.set()
                await asyncio.sleep(self.look_again_seconds)
            else:
                await self._watch(resource)

    async def _served(self) -> Resource | None:
        """The resource in the best version that is served; None, and the trouble, where there is none."""
        for wanted in (PROVISIONING_REQUEST, PROVISIONING_REQUEST_BETA):
            try:
                return await self.discovery.resolve_kind(wanted.api_version, wanted.kind)
            except KubeError as error:
                if not error.is_absent:
                    self._trouble = f"discovery of ProvisioningRequests failed: {error}"
                    return None
        self._trouble = _NOT_SERVED
        return None

    async def _watch(self, resource: Resource) -> None:
        """Returns when that version is not served any more."""
        log.info("ProvisioningRequests are served", version=resource.version)
        reflector = Reflector(
            self.transport,
            resource,
            ProvisioningRequest,
            label_selector=f"{MANAGED_LABEL}=true",
            indexes={"workload": workload_uid_of},
            timing=self.timing,
        )
        reflector.subscribe(self._tell)
        self._reflector = reflector
        self._decided.set()
        running = asyncio.create_task(reflector.run(), name="provisioning-requests")
        try:
            while not isinstance(reflector.state, Absent):
                await asyncio.wait([running], timeout=self.notice_seconds)
                if running.done():
                    return running.result()
        finally:
            self._reflector, self._trouble = None, _NOT_SERVED
            running.cancel()
            # `await running` would take a cancellation of this task for one of its own.
            await asyncio.wait([running])

    def _tell(self, change: Change[ProvisioningRequest]) -> None:
        for callback in list(self._subscribers):
            callback(change)
