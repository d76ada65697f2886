"""Looks after our AdmissionChecks: says that they are Active, or why they cannot be, and by which policy each goes.

Laws:

* A check stays Active, also while nobody leads: a ClusterQueue with one that is not gives quota to nobody.
* It is said to be inactive only on knowledge: the ReclaimPolicy that it names is not there, or nobody can follow it.
  Not to have listed them yet, or to have lost sight of them, changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, Protocol

import msgspec
import structlog

from scaler.core.gate_policy import GatePolicy, Unusable
from scaler.errors import KubeError
from scaler.kube.events import ObjectReference
from scaler.kube.objects import condition
from scaler.kube.quota_objects import AdmissionCheck
from scaler.kube.reclaim_policy_objects import ReclaimPolicy
from scaler.kube.reflector import Absent, Reflecting, State
from scaler.kube.resources import ADMISSION_CHECK
from scaler.kueue.admission_checks import ACTIVE, POLICY_GROUP, POLICY_KIND, active_patch
from scaler.kueue.gate_policy import gate_policy_of
from scaler.loops.leadership import NOT_LEADING, Api
from scaler.loops.reconciliation import Announcer, is_conflict

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unseen:
    """Nobody knows what the policy says just now."""

    reason: str


Policy = GatePolicy | Unusable | Unseen


class Policies(Protocol):
    """The ReclaimPolicies. A Reflector keeps them."""

    def get(self, namespace: str, name: str) -> ReclaimPolicy | None: ...

    @property
    def undecodable(self) -> Any:
        """Reasons by (namespace, name)."""

    @property
    def state(self) -> State: ...

    @property
    def age(self) -> float: ...


class Checks:
    """Our AdmissionChecks and their policies."""

    def __init__(self, api: Api, policies: Policies, announcer: Announcer) -> None:
        self._api = api
        self._policies = policies
        self._announcer = announcer

    def policy(self, check: AdmissionCheck) -> Policy:
        """By what the check goes. One without parameters goes by the defaults."""
        parameters = check.spec.parameters
        if parameters is None:
            return GatePolicy()
        where = f"AdmissionCheck {check.metadata.name}: spec.parameters"
        if (parameters.api_group, parameters.kind) != (POLICY_GROUP, POLICY_KIND):
            named = f"{parameters.kind or 'nothing'} of {parameters.api_group or 'no group'}"
            return Unusable(f"{where}: names {named}; name a {POLICY_KIND} of {POLICY_GROUP}")
        return self._named(parameters.name, where)

    def _named(self, name: str, where: str) -> Policy:
        found, why = self._policies.get("", name), self._policies.undecodable.get(("", name))
        if why is not None:
            return Unusable(f"{where}: ReclaimPolicy {name!r} cannot be read: {why}")
        if found is not None:
            return gate_policy_of(found)
        state = self._policies.state
        if isinstance(state, Absent):
            return Unusable(
                f"{where}: the API knows no ReclaimPolicies; install the CustomResourceDefinition of {POLICY_GROUP}"
            )
        if not (isinstance(state, Reflecting) and isfinite(self._policies.age)):
            reason = "" if isinstance(state, Reflecting) else f": {state.message}"
            return Unseen(f"ReclaimPolicies are not seen{reason}")
        return Unusable(f"{where}: there is no ReclaimPolicy {name!r}; create it, or name another one")

    async def keep(self, checks: Sequence[AdmissionCheck], now: datetime) -> None:
        """Let every check say of itself what is true. Raises: KubeError with the reason NotLeading."""
        for check in checks:
            policy = self.policy(check)
            if isinstance(policy, Unseen) or check.metadata.deletion_timestamp is not None:
                continue
            try:
                await self._say(check, policy, now)
            except KubeError as error:
                if error.reason == NOT_LEADING:
                    raise
                tell = log.debug if is_conflict(error) else log.warning
                tell("AdmissionCheck not updated", check=check.metadata.name, error=str(error))

    async def _say(self, check: AdmissionCheck, policy: GatePolicy | Unusable, now: datetime) -> None:
        """Raises: KubeError."""
        reason, message = ("Unusable", policy.reason) if isinstance(policy, Unusable) else ("Active", _DOES)
        known = condition(check.status.conditions, ACTIVE)
        wanted = (str(isinstance(policy, GatePolicy)), reason, message, check.metadata.generation)
        if known and (known.status, known.reason, known.message, known.observed_generation) == wanted:
            return
        path = ADMISSION_CHECK.path("", check.metadata.name)
        fresh: dict[str, Any] = msgspec.json.decode(await self._api.get(path))
        if fresh["metadata"]["uid"] != check.metadata.uid:
            return
        is_active = isinstance(policy, GatePolicy)
        body = active_patch(fresh, is_active=is_active, reason=reason, message=message, now=now)
        if body is None:
            return
        await self._api.patch(ADMISSION_CHECK.path("", check.metadata.name, "status"), body)
        about = ObjectReference.of(ADMISSION_CHECK, check.metadata)
        if known is None or known.status != str(is_active):
            event = "CheckActive" if is_active else "CheckInactive"
            self._announcer.record(about, event, message, warning=not is_active)


_DOES = "holds gangs until they can start whole"
