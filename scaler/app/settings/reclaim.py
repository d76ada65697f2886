"""Settings of reclaim plans for pending Workloads, and of what victims cost."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, field_validator

from scaler.app.settings.fields import Duration, Section
from scaler.quota.preemption.fair_sharing import PreemptionStrategy
from scaler.reclaim.costs import CostWeights
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.reclaim.search.problem import SearchLimits
from scaler.suspension.priority_boost import BoostSwitch, PriorityBoost

_DEFAULT = ReclaimConfig()
_MOST_NEGATIVE = -(2**31)
"""Kueue keeps priorities in 32 bits."""


Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostSettings(Section):
    """Weights of the cost of a victim; the cheapest victims are suspended. 0 ignores a part."""

    gpu_hours_lost: Weight = _DEFAULT.weights.gpu_hours_lost
    """The weight of a GPU-hour of work since its start, which is lost."""
    idle_time: Weight = _DEFAULT.weights.idle_time
    """The weight of an idle hour: makes it *cheaper*, by dividing the sum of the other parts."""
    priority: Weight = _DEFAULT.weights.priority
    """The weight of a GPU and 1000 of its priority in Kueue."""
    reclaimed_before: Weight = _DEFAULT.weights.reclaimed_before
    """The weight of a GPU and previous suspension by a plan."""
    time_to_resume: Weight = _DEFAULT.weights.time_to_resume
    """The weight of a GPU and hour that it takes to resume."""


class SearchSettings(Section):
    """Limits of the search for one plan. In steps and not in seconds, so that the same state gives the same plan.

    A search that ends early returns the best plan that it found, and reports that a cheaper one may exist.
    """

    steps: int = Field(default=_DEFAULT.limits.steps, ge=1)
    """Maximum number of sets of victims that are considered."""
    questions: int = Field(default=_DEFAULT.limits.questions, ge=1)
    """Maximum number of sets of victims for which Kueue's cycles are simulated, which takes most of the time."""


_VALID_STRATEGIES = (
    (PreemptionStrategy.FINAL_SHARE,),
    (PreemptionStrategy.INITIAL_SHARE,),
    (PreemptionStrategy.FINAL_SHARE, PreemptionStrategy.INITIAL_SHARE),
)


class FairSharingSettings(Section):
    """`fairSharing` of Kueue's configuration, which its API does not show: repeat it here."""

    enabled: bool = _DEFAULT.fair_sharing
    """Whether `fairSharing` is enabled in Kueue's configuration."""
    preemption_strategies: tuple[PreemptionStrategy, ...] = _DEFAULT.strategies
    """`preemptionStrategies` of Kueue's configuration."""

    @field_validator("preemption_strategies")
    @classmethod
    def _kueue_takes_them(cls, strategies: tuple[PreemptionStrategy, ...]) -> tuple[PreemptionStrategy, ...]:
        if strategies not in _VALID_STRATEGIES:
            allowed = " or ".join(f"[{', '.join(each)}]" for each in _VALID_STRATEGIES)
            raise ValueError(f"Kueue does not take this list; write {allowed}")
        return strategies


def _switch(value: Any) -> Any:
    """YAML reads a bare `on` and `off` as truths."""
    return {True: BoostSwitch.ON, False: BoostSwitch.OFF}[value] if isinstance(value, bool) else value


class PriorityBoostSettings(Section):
    """The boost of workloads with `reclaim: PriorityBoost`."""

    enabled: Annotated[BoostSwitch, BeforeValidator(_switch)] = _DEFAULT.boost.enabled
    """`auto`: if Kueue's feature gate PriorityBoost is detected to be on."""
    value: int = Field(default=_DEFAULT.boost.value, lt=0, ge=_MOST_NEGATIVE)
    """Added to the priority of the Workload while it is idle."""


class ReclaimSettings(Section):
    """Reclaim plans: idle workloads are suspended for pending Workloads. Which workloads may be suspended is policy:
    see `defaults`."""

    gone: ClassVar[Mapping[str, str]] = {
        "budgets": "write budget.atOnce, budget.perPeriod and allowedDuring into the spec of a ClusterIdlePolicy; a "
        "trigger has suspendedAtOnce, suspendedPerPeriod, allowedDuring"
    }

    pressure: bool = _DEFAULT.pressure
    """Whether plans are made. If off, workloads with `reclaim: OnPressure` are never suspended."""
    grant_for: Duration = _DEFAULT.grant_for
    """How long a plan may suspend its victims. Must exceed pollingInterval + cooldownPeriod of all their ScaledObjects
    (30 s + 5 min by default), or the plan expires before KEDA scales them."""
    max_victims: int = Field(default=_DEFAULT.limits.members, ge=1)
    """Maximum number of victims of one plan."""
    search: SearchSettings = SearchSettings()
    cost: CostSettings = CostSettings()
    consider_nodes: bool = _DEFAULT.consider_nodes
    """Whether the pods must fit the existing nodes, unless our AdmissionCheck requests missing nodes. Turn it off where
    another component adds nodes on demand."""
    unprotected: Unprotected = _DEFAULT.unprotected
    """Plans into whose freed quota another Workload may be admitted: in a BestEffortFIFO ClusterQueue, or in another
    ClusterQueue of the cohort."""
    fair_sharing: FairSharingSettings = FairSharingSettings()
    priority_boost: PriorityBoostSettings = PriorityBoostSettings()
    replan_backoff: Duration = _DEFAULT.replan_backoff
    """Minimum time between two plans for the same Workload."""

    def policy(self) -> ReclaimConfig:
        return self.into(
            ReclaimConfig,
            limits=self.search.into(SearchLimits, members=self.max_victims),
            weights=self.cost.into(CostWeights),
            fair_sharing=self.fair_sharing.enabled,
            strategies=self.fair_sharing.preemption_strategies,
            boost=self.priority_boost.into(PriorityBoost),
        )
