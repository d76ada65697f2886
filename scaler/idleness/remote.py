"""What another cluster says of the GPUs of a workload that runs there → the verdict here, or why there is none.

Laws:

* An answer counts only if it was judged by the very policy that is asked about.
* Idle has to be for as long as the policy asks, by the clock of the cluster itself.
* No answer, and one that cannot be used, is Unknown: it never shrinks.

| the answer                                           | the verdict here              |
|------------------------------------------------------|-------------------------------|
| judged by another policy                             | Unknown: RemoteVerdictMissing |
| Idle, for less than the window, or not for how long  | Unknown: RemoteVerdictMissing |
| Idle, Busy, Unknown                                  | the same, with its reason     |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from scaler.idleness.policy import Policy
from scaler.idleness.reasons import UnknownReason
from scaler.idleness.verdict import Idle, Unknown, Verdict, WorkloadVerdict


class JudgedBy(NamedTuple):
    """What of a policy a verdict depends on."""

    window: timedelta
    warm_up: timedelta
    active_above_ratio: float
    gpus: str


def judged_by(policy: Policy) -> JudgedBy:
    return JudgedBy(policy.window, policy.warm_up, policy.active_above_ratio, str(policy.gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAnswer:
    """What the cluster says, with times by the clock of this process."""

    cluster: str
    verdict: Verdict
    by: JudgedBy | None = None
    """The trigger that it is judged by; None where that cannot be read."""
    message: str = ""
    """Why it cannot be judged, or does not run, in words."""
    idle_since: datetime | None = None
    idle_at_least: bool = False
    """Whether that is a bound."""
    idle_for: timedelta | None = field(default=None, compare=False)
    """When it was said, by the clock of that cluster; it grows with each status."""
    running_since: datetime | None = None
    """When the newest of its GPU pods' containers started running; None where not all run."""
    gpus: int = 0
    evidence: Sequence[Mapping[str, Any]] = field(default=(), compare=False, repr=False)
    """What each GPU shows, as in the status of a ScalableWorkload."""

    def verdict_by(self, policy: Policy) -> WorkloadVerdict:
        return WorkloadVerdict(verdict=self._verdict(policy), remote=self)

    def _verdict(self, policy: Policy) -> Verdict:
        if self.by != judged_by(policy):
            return self._missing("has not judged it by this policy yet")
        is_long_enough = self.idle_since and self.idle_for is not None and self.idle_for >= policy.window
        if isinstance(self.verdict, Idle) and not is_long_enough:
            return self._missing("says that it is idle, and not for as long as its policy asks")
        return self.verdict

    def _missing(self, why: str) -> Unknown:
        return Unknown(reason=UnknownReason.REMOTE_VERDICT_MISSING, message=f"cluster {self.cluster} {why}")
