"""Does Kueue read priority boosts? As the settings say, as was found lately, or as the API is asked now.

What is asked, and what an answer means, is in `kueue/boosts.py`. Nothing is written by asking.
"""

from datetime import datetime, timedelta

import structlog

from scaler.core.boosting import HOW_TO_SWITCH_ON, Gate, GateFinding
from scaler.core.reclaim_policy import PriorityBoost, Switch
from scaler.core.suspension import Workload
from scaler.errors import KubeError
from scaler.kube.calls import NO_ANSWER
from scaler.kube.resources import WORKLOAD
from scaler.kueue.boosts import NO_NUMBER, REFUSED, probe
from scaler.loops.leadership import Api
from scaler.loops.reconciliation import is_conflict

log = structlog.get_logger(__name__)

ASK_AGAIN = {Gate.ON: timedelta(minutes=5), Gate.OFF: timedelta(minutes=5), Gate.UNKNOWN: timedelta(minutes=1)}
"""How long a finding is good. It changes when Kueue is started anew, and no sooner."""


class BoostGate:
    """Kueue's feature gate PriorityBoost, as far as it can be seen."""

    def __init__(self, api: Api, policy: PriorityBoost) -> None:
        self._api = api
        self._policy = policy
        self._found: tuple[GateFinding, datetime] | None = None

    async def find(self, idle: Workload | None, now: datetime) -> GateFinding:
        """Whether boosts are read. `idle` is a Workload that would be boosted now; without one nobody is asked.

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

    async def _ask(self, workload: Workload) -> GateFinding | None:
        """None where the Workload has changed meanwhile, so that it could not be asked."""
        refusal = await self._refusal(workload, NO_NUMBER)
        if refusal is None:
            return _FOUND_OFF
        if refusal.status in REFUSED:
            refusal = await self._refusal(workload, str(self._policy.value))
        if refusal is None:
            return GateFinding(gate=Gate.ON, message="Kueue refuses a priority boost that is no number")
        if is_conflict(refusal):
            return None
        return GateFinding(gate=Gate.UNKNOWN, message=f"nobody knows whether Kueue reads priority boosts: {refusal}")

    async def _refusal(self, workload: Workload, value: str) -> KubeError | None:
        """What the API has against this boost."""
        path = WORKLOAD.path(workload.namespace, workload.name)
        try:
            await self._api.patch(path, probe(workload, value), dry_run=True)
        except KubeError as error:
            if error.status == NO_ANSWER:
                raise
            return error
        return None


_NOT_ASKED = GateFinding(gate=Gate.UNKNOWN, message="nobody is idle, so nobody has asked")
_FOUND_OFF = GateFinding(
    gate=Gate.OFF,
    message=f"Kueue does not read priority boosts; {HOW_TO_SWITCH_ON}. Where Kueue runs without its webhooks the gate "
    "cannot be seen: set reclaim.priorityBoost.enabled to on there",
)
_SET_BY_OPERATOR = {
    Switch.ON: GateFinding(gate=Gate.ON, message="reclaim.priorityBoost.enabled is on in the settings"),
    Switch.OFF: GateFinding(gate=Gate.OFF, message="reclaim.priorityBoost.enabled is off in the settings"),
}
