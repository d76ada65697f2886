"""How does the operator want idle quota handed to the gangs that wait? Set once, the same for every queue.

Laws:

* A grant has to outlive KEDA: a ScaledObject is polled every `pollingInterval` and scaled to 0 only `cooldownPeriod`
  after it was last active. A grant that ends before suspends nobody, and the gang waits for the next plan in vain.
* What Kueue does not tell about itself (fair sharing) has to be told here, or what is predicted is another Kueue's.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from scaler.core.budgets import Budget
from scaler.core.costs import Weights
from scaler.core.quota.fair_preemption import DEFAULT_STRATEGIES, Strategy
from scaler.core.victims import Limits


class OnTheft(StrEnum):
    """What happens when a third Workload takes a piece of the freed quota before the gang reserves it."""

    REPLAN = "Replan"
    """A new plan is made for what is missing now."""
    YIELD = "Yield"
    """Where our AdmissionCheck guards the queue, the newcomer yields once; elsewhere as above."""


class Unprotected(StrEnum):
    """What becomes of a plan whose freed quota newcomers may take, in a BestEffortFIFO queue or from the cohort."""

    WARN = "Warn"
    """It is carried out, and says what may go wrong."""
    REFUSE = "Refuse"


class Switch(StrEnum):
    """Whether something is used that may or may not be there."""

    AUTO = "auto"
    """Where it is found to be there."""
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityBoost:
    """The boost of idle workloads whose policy is `reclaim: PriorityBoost`."""

    enabled: Switch = Switch.AUTO
    """Kueue reads the annotation only with its feature gate `PriorityBoost`, which is off by default."""
    value: int = -1000
    """Added to the Workload's priority while it is idle; below 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimPolicy:
    """Everything that operators decide about plans."""

    pressure: bool = True
    """Whether plans are made at all. Without them `reclaim: OnPressure` suspends nobody."""
    grant_for: timedelta = timedelta(minutes=10)
    """How long a plan's victims may be taken. KEDA's own defaults need 30 s + 5 min."""
    limits: Limits = Limits(steps=20_000, questions=60, members=64)  # noqa: RUF009 - frozen
    consider_nodes: bool = True
    """Whether the gang's pods must fit the nodes as they are. Off where somebody else adds nodes as they are needed: of
    AdmissionChecks of ours that ask for nodes plans know."""
    weights: Weights = Weights()  # noqa: RUF009 - frozen
    on_theft: OnTheft = OnTheft.REPLAN
    unprotected: Unprotected = Unprotected.WARN
    fair_sharing: bool = False
    strategies: tuple[Strategy, ...] = DEFAULT_STRATEGIES
    """Kueue's preemption strategies; of no effect without fair sharing."""
    boost: PriorityBoost = PriorityBoost()
    replan_backoff: timedelta = timedelta(minutes=1)
    """Least time between two plans for the same gang, so that one that fails does not wear out every idle workload."""
    budgets: tuple[Budget, ...] = ()
    """None: only `limits` bounds what is suspended."""
