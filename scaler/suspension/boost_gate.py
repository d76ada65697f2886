"""Does Kueue read priority boosts? As the settings say, as was found lately, or as the API is asked now.

What is asked, and what an answer means, is in `boost_annotations`. Nothing is written by asking.
"""

from datetime import datetime, timedelta

import structlog

from scaler.decision.target_state import ObservedWorkload
from scaler.errors import KubeError
from scaler.kube.api_requests import NO_ANSWER
from scaler.kube.objects.resources import WORKLOAD
from scaler.suspension.boost_annotations import INVALID_BOOST, REFUSED, probe
from scaler.suspension.leader_api import PatchApi
from scaler.suspension.priority_boost import HOW_TO_SWITCH_ON, FeatureGate, FeatureGateStatus, PriorityBoost, Switch
from scaler.suspension.reconciler import is_conflict

log = structlog.get_logger(__name__)

ASK_AGAIN = {
    FeatureGate.ON: timedelta(minutes=5),
    FeatureGate.OFF: timedelta(minutes=5),
    FeatureGate.UNKNOWN: timedelta(minutes=1),
}
"""How long a finding is good. It changes when Kueue is started anew, and no sooner."""


class FeatureGateProbe:
    """Kueue's feature gate PriorityBoost, as far as it can be seen."""

    def __init__(self, api: PatchApi, policy: PriorityBoost) -> None:
        self._api = api
        self._policy = policy
        self._found: tuple[FeatureGateStatus, datetime] | None = None

    async def find(self, idle: ObservedWorkload | None, now: datetime) -> FeatureGateStatus:
        """Whether boosts are read. `idle` is a Workload that would be boosted now; without one the API is not asked.

        Raises: KubeError where the API does not answer.
        """
        if self._policy.enabled is not Switch.AUTO:
            return _SET_BY_OPERATOR[self._policy.enabled]
        before = self._found[0] if self._found else _NOT_ASKED
        is_good = self._found is not None and now - self._found[1] < ASK_AGAIN[before.gate]
        if idle is None or is_good:
            return before
        found = await self._ask(idle)
        if found is None:
            return before
        if found != before:
            log.info("Kueue's feature gate PriorityBoost", gate=str(found.gate), message=found.message)
        self._found = found, now
        return found

    async def _ask(self, workload: ObservedWorkload) -> FeatureGateStatus | None:
        """None where the Workload has changed meanwhile, so that it could not be asked."""
        refusal = await self._refusal(workload, INVALID_BOOST)
        if refusal is None:
            return _FOUND_OFF
        if refusal.status in REFUSED:
            refusal = await self._refusal(workload, str(self._policy.value))
        if refusal is None:
            return FeatureGateStatus(gate=FeatureGate.ON, message="Kueue refuses a priority boost that is no number")
        if is_conflict(refusal):
            return None
        return FeatureGateStatus(
            gate=FeatureGate.UNKNOWN, message=f"whether Kueue reads priority boosts is unknown: {refusal}"
        )

    async def _refusal(self, workload: ObservedWorkload, value: str) -> KubeError | None:
        """What the API has against this boost."""
        path = WORKLOAD.path(workload.namespace, workload.name)
        try:
            await self._api.patch(path, probe(workload, value), dry_run=True)
        except KubeError as error:
            if error.status == NO_ANSWER:
                raise
            return error
        return None


_NOT_ASKED = FeatureGateStatus(gate=FeatureGate.UNKNOWN, message="no Workload is idle, so it was not checked")
_FOUND_OFF = FeatureGateStatus(
    gate=FeatureGate.OFF,
    message=f"Kueue does not read priority boosts; {HOW_TO_SWITCH_ON}. Where Kueue runs without its webhooks the gate "
    "cannot be seen: set reclaim.priorityBoost.enabled to on there",
)
_SET_BY_OPERATOR = {
    Switch.ON: FeatureGateStatus(gate=FeatureGate.ON, message="reclaim.priorityBoost.enabled is on in the settings"),
    Switch.OFF: FeatureGateStatus(gate=FeatureGate.OFF, message="reclaim.priorityBoost.enabled is off in the settings"),
}
