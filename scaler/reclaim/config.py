"""How does the operator want idle quota handed to the gangs that wait? Set once, the same for every queue.

Laws:

* A grant has to outlive KEDA: a ScaledObject is polled every `pollingInterval` and scaled to 0 only `cooldownPeriod`
  after it was last active. A grant that ends before suspends no workload, and the gang waits for the next plan in vain.
* What cannot be read from Kueue (fair sharing) has to be set here, or predictions are wrong.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from scaler.quota.preemption.fair_sharing import DEFAULT_STRATEGIES, PreemptionStrategy
from scaler.reclaim.budgets.budget import Budget
from scaler.reclaim.costs import CostWeights
from scaler.reclaim.search.problem import DEFAULT_LIMITS, SearchLimits
from scaler.suspension.priority_boost import PriorityBoost


class Unprotected(StrEnum):
    """What becomes of a plan whose freed quota newcomers may take, in a BestEffortFIFO queue or from the cohort."""

    WARN = "Warn"
    """It is carried out, and says what may go wrong."""
    REFUSE = "Refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimConfig:
    """Everything that operators decide about plans."""

    pressure: bool = True
    """Whether plans are made at all. Without them `reclaim: OnPressure` suspends no workload."""
    grant_for: timedelta = timedelta(minutes=10)
    """How long a plan's victims may be taken. KEDA's own defaults need 30 s + 5 min."""
    limits: SearchLimits = DEFAULT_LIMITS
    consider_nodes: bool = True
    """Whether the gang's pods must fit the nodes as they are. Off where somebody else adds nodes as they are needed: of
    AdmissionChecks of ours that ask for nodes plans know."""
    weights: CostWeights = CostWeights()  # noqa: RUF009 - frozen
    unprotected: Unprotected = Unprotected.WARN
    fair_sharing: bool = False
    strategies: tuple[PreemptionStrategy, ...] = DEFAULT_STRATEGIES
    """Kueue's preemption strategies; of no effect without fair sharing."""
    boost: PriorityBoost = PriorityBoost()  # noqa: RUF009 - frozen
    replan_backoff: timedelta = timedelta(minutes=1)
    """Least time between two plans for the same gang, so that one that fails does not wear out every idle workload."""
    budgets: tuple[Budget, ...] = ()
    """None: only `limits` bounds what is suspended."""
