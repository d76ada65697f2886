"""Does Kueue read priority boosts? As the settings say, as was found lately, or as the API is asked now.

Whether Kueue's feature gate PriorityBoost is on is not part of any API object, and without it Kueue ignores the
annotation. But only with it does Kueue's webhook validate the annotation, and refuse what is no number: so two patches
are sent as a dry run, one with a boost that is no number, and one with a valid boost.

| no number  | valid      | the feature gate                                                         |
|------------|------------|--------------------------------------------------------------------------|
| taken      | not asked  | off (or Kueue runs without its webhooks: then only the settings can say) |
| refused    | taken      | on                                                                       |
| refused    | refused    | unknown: it is not the number that is refused                            |
| no verdict | not asked  | unknown                                                                  |

Seen on Kueue 0.20.0-devel, gate on and off: 403 `metadata.annotations[kueue.x-k8s.io/priority-boost]: Invalid value`
and 200. The same 403 comes from RBAC or from another policy, which is why a valid one is sent as well.

Source: Kueue, pkg/webhooks/workload_webhook.go (ValidateWorkload).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import structlog

from scaler.errors import KubeError
from scaler.kube.api_requests import NO_ANSWER
from scaler.kube.objects.resources import WORKLOAD
from scaler.kube.writes import PatchApi
from scaler.quota.from_objects.workloads import BOOST_ANNOTATION
from scaler.suspension.priority_boost import BoostSwitch, PriorityBoost
from scaler.targets.target_state import ObservedWorkload

log = structlog.get_logger(__name__)

INVALID_BOOST = "is-this-read"
"""A boost that Kueue refuses if it reads it."""
_REFUSED = frozenset({400, 403, 422})
"""What the API answers for a patch that a webhook refuses: 403 for Kueue's."""


class FeatureGate(StrEnum):
    """Whether Kueue reads the annotation."""

    ON = "On"
    OFF = "Off"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGateStatus:
    """What was found about Kueue's feature gate, and what to do where it is not on."""

    gate: FeatureGate
    message: str = ""


ASK_AGAIN = {
    FeatureGate.ON: timedelta(minutes=5),
    FeatureGate.OFF: timedelta(minutes=5),
    FeatureGate.UNKNOWN: timedelta(minutes=1),
}
"""How long a finding is valid. It changes only when Kueue is restarted."""
HOW_TO_SWITCH_ON = (
    "start Kueue's manager with the feature gate PriorityBoost=true (--feature-gates, or featureGates of its "
    "configuration; alpha since 0.17), or choose another reclaim policy"
)


class FeatureGateProbe:
    """Finds out and remembers. Writes nothing."""

    def __init__(self, api: PatchApi, policy: PriorityBoost) -> None:
        self._api = api
        self._policy = policy
        self._found: tuple[FeatureGateStatus, datetime] | None = None

    async def find(self, idle: ObservedWorkload | None, now: datetime) -> FeatureGateStatus:
        """Whether boosts are read. `idle` is a Workload that would be boosted now; without one the API is not asked.

        Raises: KubeError where the API does not answer.
        """
        if self._policy.enabled is not BoostSwitch.AUTO:
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
        """The status of the gate; None where the Workload has changed meanwhile, so that it could not be asked."""
        refusal = await self._refusal(workload, INVALID_BOOST)
        if refusal is None:
            return _FOUND_OFF
        if refusal.status in _REFUSED:
            refusal = await self._refusal(workload, str(self._policy.value))
        if refusal is None:
            return FeatureGateStatus(gate=FeatureGate.ON, message="Kueue refuses a priority boost that is no number")
        if refusal.is_outdated:
            return None
        return FeatureGateStatus(
            gate=FeatureGate.UNKNOWN, message=f"whether Kueue reads priority boosts is unknown: {refusal}"
        )

    async def _refusal(self, workload: ObservedWorkload, value: str) -> KubeError | None:
        """What the API has against this boost."""
        body = {"metadata": {"uid": workload.uid, "annotations": {BOOST_ANNOTATION: value}}}
        try:
            await self._api.patch(WORKLOAD.path(workload.namespace, workload.name), body, dry_run=True)
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
    BoostSwitch.ON: FeatureGateStatus(
        gate=FeatureGate.ON, message="reclaim.priorityBoost.enabled is on in the settings"
    ),
    BoostSwitch.OFF: FeatureGateStatus(
        gate=FeatureGate.OFF, message="reclaim.priorityBoost.enabled is off in the settings"
    ),
}
