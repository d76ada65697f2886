"""Says in the status of every ReclaimPolicy whether it can be followed: condition `Usable`. Leader only.

The definition of the kind refuses most of what nobody could follow. What it cannot refuse (a duration too long for any
clock, an object from before the definition was installed) is found when the policy is read, and said where its author
looks. Whether AdmissionChecks are `Active` follows from the same reading (`gate_checks.py`).

Laws:

* Level-triggered: what is to be said depends on the object alone, and is found again by whoever leads next.
* Nothing is written that stands there already. Before a write the object is read from the API, and judged again.
* Every write names the uid and the resourceVersion that was judged: what somebody else writes meanwhile wins.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
import structlog

from scaler.core.gate_policy import GatePolicy, Unusable
from scaler.errors import KubeError
from scaler.kube.conditions import condition_patch
from scaler.kube.copies import Change
from scaler.kube.decoding import UNREADABLE, decode
from scaler.kube.objects import condition
from scaler.kube.reclaim_policy_objects import ReclaimPolicy
from scaler.kube.resources import RECLAIM_POLICY
from scaler.kueue.gate_policy import gate_policy_of
from scaler.loops.leadership import NOT_LEADING, Api
from scaler.loops.reconciliation import is_conflict

log = structlog.get_logger(__name__)

Json = Mapping[str, Any]

USABLE = "Usable"


class Policies(Protocol):
    """The ReclaimPolicies. A Reflector keeps them."""

    def items(self) -> list[ReclaimPolicy]: ...

    @property
    def undecodable(self) -> Any:
        """Reasons by (namespace, name)."""

    def subscribe(self, callback: Callable[[Change[ReclaimPolicy]], None]) -> Callable[[], None]: ...


class PolicyStatus:
    """The loop. It looks whenever a policy has changed, and at every interval."""

    def __init__(
        self,
        api: Api,
        policies: Policies,
        *,
        interval: timedelta = timedelta(minutes=1),
        rest: timedelta = timedelta(seconds=0.2),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`rest` is the least time between two looks."""
        self._api = api
        self._policies = policies
        self._interval = interval
        self._rest = rest
        self._clock = clock
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        unsubscribe = self._policies.subscribe(lambda _: self._wake.set())
        try:
            while True:
                self._wake.clear()
                await self._look()
                await asyncio.sleep(self._rest.total_seconds())
                await self._changed()
        finally:
            unsubscribe()

    async def _look(self) -> None:
        """A broken look is told, and followed by another one."""
        try:
            await self.tick(self._clock())
        except KubeError as error:
            log.debug("ReclaimPolicies not looked after", error=str(error))
        except Exception:
            log.exception("looking after ReclaimPolicies broke")

    async def _changed(self) -> None:
        try:
            async with asyncio.timeout(self._interval.total_seconds()):
                await self._wake.wait()
        except TimeoutError:
            return

    async def tick(self, now: datetime) -> None:
        """Let every policy say of itself what is true. Raises: KubeError with the reason NotLeading."""
        due = [each.metadata.name for each in self._policies.items() if not _is_said(each, gate_policy_of(each))]
        due += [name for _, name in self._policies.undecodable]
        for name in sorted(set(due)):
            try:
                await self._say(name, now)
            except KubeError as error:
                if error.reason == NOT_LEADING:
                    raise
                tell = log.debug if is_conflict(error) or error.status == _GONE else log.warning
                tell("ReclaimPolicy's status not written; tried again", policy=name, error=str(error))

    async def _say(self, name: str, now: datetime) -> None:
        """Raises: KubeError."""
        body = await self._api.get(RECLAIM_POLICY.path("", name))
        patch = usable_patch(msgspec.json.decode(body), _judged(name, body), now)
        if patch is not None:
            await self._api.patch(RECLAIM_POLICY.path("", name, "status"), patch)


_GONE = 404


def _judged(name: str, body: bytes) -> GatePolicy | Unusable:
    try:
        return gate_policy_of(decode(ReclaimPolicy, body))
    except UNREADABLE as error:
        return Unusable(f"ReclaimPolicy {name!r} cannot be read: {error}")


def _is_said(policy: ReclaimPolicy, judged: GatePolicy | Unusable) -> bool:
    """Whether its status says so already."""
    known = condition(policy.status.conditions, USABLE)
    if known is None or known.observed_generation != policy.metadata.generation:
        return False
    return (known.status, known.reason, known.message) == _words(judged)


# ------------------------------------------------------------------------------------------------------ what is said


def usable_patch(policy: Json, judged: GatePolicy | Unusable, now: datetime) -> Json | None:
    """The patch of the status that says so; None where it says so already. Conditions of others are kept."""
    status, reason, message = _words(judged)
    return condition_patch(policy, USABLE, status=status, reason=reason, message=message, now=now)


def _words(judged: GatePolicy | Unusable) -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    if isinstance(judged, Unusable):
        return "False", "Unusable", judged.reason
    return "True", "Usable", judged.words
