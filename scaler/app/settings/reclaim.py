"""Settings of reclaim plans for pending Workloads: their costs, and the budgets that limit them."""

from datetime import time
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from scaler.app.settings.fields import Duration, Ratio, Section
from scaler.idleness.hours import Hours, Weekday, parse_time, read_zone
from scaler.kube.scheduling import parse_selector
from scaler.quota.preemption.fair_sharing import PreemptionStrategy
from scaler.reclaim.budgets.budget import Budget, Limit, Rate
from scaler.reclaim.budgets.scopes import Each, Scope
from scaler.reclaim.costs import CostWeights
from scaler.reclaim.planner import ReclaimConfig, Unprotected
from scaler.reclaim.search.problem import SearchLimits
from scaler.suspension.priority_boost import BoostSwitch, PriorityBoost

_DEFAULT = ReclaimConfig()
_MOST_NEGATIVE = -(2**31)
"""Kueue keeps priorities in 32 bits."""


# ------------------------------------------------------------------------------------------------------------- budgets


def _time_of_day(value: Any) -> Any:
    """`09:00`. YAML reads some of them as numbers, 22:00 as 1320, and a number could as well mean an hour."""
    if isinstance(value, time):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        meant = f"{value // 60:02}:{value % 60:02}" if 60 <= value <= 24 * 60 else "22:00"
        raise ValueError(f"{value} is how YAML reads a time of day without quotes; write '{meant}', with quotes")
    return parse_time(value.strip() if isinstance(value, str) else repr(value))


def _end(value: Any) -> Any:
    return time(0) if isinstance(value, str) and value.strip() == "24:00" else _time_of_day(value)


_shown = PlainSerializer(lambda of_day: f"{of_day:%H:%M}", return_type=str)
Begin = Annotated[time, BeforeValidator(_time_of_day), _shown]
End = Annotated[time, BeforeValidator(_end), _shown]


class HoursSettings(Section):
    """Hours on some days of the week."""

    days: tuple[Weekday, ...] = ()
    """Days on which the hours begin. Empty: every day."""
    begin: Begin = Field(default=time(0), alias="from")
    """Begin, in quotes, or YAML reads it as a number."""
    end: End = Field(default=time(0), alias="to")
    """End, exclusive. At or before `from` it is on the next day; 24:00 is the end of the day."""
    zone: str = Field(alias="timeZone")
    """IANA name, such as Europe/Berlin. There is no default: the local time of a container is arbitrary."""

    @field_validator("zone")
    @classmethod
    def _can_be_read(cls, name: str) -> str:
        read_zone(name)
        return name

    @model_validator(mode="after")
    def _lasts(self) -> "HoursSettings":
        if self.begin == self.end != time(0):
            raise ValueError(f"from and to are both {self.end:%H:%M}; for whole days leave both out")
        return self

    def hours(self) -> Hours:
        return self.into(Hours, days=frozenset(self.days or Weekday))


class LimitSettings(Section):
    """How many workloads: a count, a share, or the smaller of both."""

    count: int | None = Field(default=None, ge=0)
    """Number of workloads."""
    share_ratio: Ratio | None = Field(default=None, alias="share")
    """Share of the GPU workloads in the scope, including suspended ones; rounded down, possibly to 0."""

    @model_validator(mode="after")
    def _says_something(self) -> "LimitSettings":
        if self.count is None and self.share_ratio is None:
            raise ValueError("there is no limit; write count, share, or both")
        return self


class RateSettings(LimitSettings):
    """How many workloads within any period of this length."""

    period: Duration
    """Length of the period."""


class ScopeSettings(Section):
    """Which workloads a budget covers. All conditions must hold. Without conditions: the whole cluster."""

    namespaces: tuple[str, ...] = ()
    """Names. Empty: any."""
    namespace_selector: str = ""
    """Label selector for namespaces, as in kubectl: `team=a,stage in (dev, test)`."""
    cluster_queues: tuple[str, ...] = ()
    """Names. Empty: any."""
    each: Each | None = None
    """Namespace or ClusterQueue: the limit applies to each of them separately. Left out: to all together."""

    @field_validator("namespace_selector")
    @classmethod
    def _can_be_read(cls, text: str) -> str:
        parse_selector(text)
        return text

    def scope(self) -> Scope:
        return self.into(Scope, namespaces=frozenset(self.namespaces), cluster_queues=frozenset(self.cluster_queues))


class BudgetSettings(Section):
    """A limit on what plans may suspend. A plan is executed only if every budget allows all of its victims."""

    name: str = Field(min_length=1)
    """Shown in Events and by `plan` when it is exhausted."""
    scope: ScopeSettings = ScopeSettings()
    at_once: LimitSettings | None = None
    """How many workloads may be suspended at the same time."""
    rate: RateSettings | None = Field(default=None, alias="perPeriod")
    """How many workloads may be suspended within a sliding period. A resumed workload still counts, but only once."""
    applies_during: tuple[HoursSettings, ...] = ()
    """When the limits apply. Empty: always."""
    allowed_during: tuple[HoursSettings, ...] = ()
    """When workloads in the scope may be suspended at all. Empty: at any time."""

    @model_validator(mode="after")
    def _bounds_something(self) -> "BudgetSettings":
        has_limit = self.at_once or self.rate
        if not has_limit and self.applies_during:
            raise ValueError("appliesDuring needs a limit that applies then; write atOnce or perPeriod")
        if not has_limit and not self.allowed_during:
            raise ValueError("it bounds nothing; write atOnce, perPeriod or allowedDuring")
        return self

    def budget(self) -> Budget:
        return self.into(
            Budget,
            scope=self.scope.scope(),
            at_once=self.at_once.into(Limit) if self.at_once else None,
            rate=Rate(limit=self.rate.into(Limit), period=self.rate.period) if self.rate else None,
            applies_during=tuple(each.hours() for each in self.applies_during),
            allowed_during=tuple(each.hours() for each in self.allowed_during),
        )


# --------------------------------------------------------------------------------------------------------------- plans


Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostSettings(Section):
    """Weights of the cost of a victim; the cheapest victims are suspended. 0 ignores a part."""

    gpu_hours_lost: Weight = _DEFAULT.weights.gpu_hours_lost
    """Per GPU-hour of work since its start, which is lost."""
    idle_time: Weight = _DEFAULT.weights.idle_time
    """Per idle hour: makes it *cheaper*, by dividing the sum of the other parts."""
    priority: Weight = _DEFAULT.weights.priority
    """Per GPU and 1000 of its priority in Kueue."""
    reclaimed_before: Weight = _DEFAULT.weights.reclaimed_before
    """Per GPU and previous suspension by a plan."""
    time_to_resume: Weight = _DEFAULT.weights.time_to_resume
    """Per GPU and hour that it takes to resume."""


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
    """For workloads with `reclaim: PriorityBoost`."""

    enabled: Annotated[BoostSwitch, BeforeValidator(_switch)] = _DEFAULT.boost.enabled
    """`auto`: if Kueue's feature gate PriorityBoost is detected to be on."""
    value: int = Field(default=_DEFAULT.boost.value, lt=0, ge=_MOST_NEGATIVE)
    """Added to the priority of the Workload while it is idle."""


class ReclaimSettings(Section):
    """Reclaim plans: idle workloads are suspended for pending Workloads. Which workloads may be suspended is policy:
    see `defaults`."""

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
    budgets: tuple[BudgetSettings, ...] = ()
    """Limits on what plans may suspend; all of them must allow a plan. Empty: no limits."""

    @field_validator("budgets")
    @classmethod
    def _names_differ(cls, budgets: tuple[BudgetSettings, ...]) -> tuple[BudgetSettings, ...]:
        names = [budget.name for budget in budgets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two budgets have the name {twice[0]!r}; an Event that names one must mean one")
        return budgets

    def policy(self) -> ReclaimConfig:
        return self.into(
            ReclaimConfig,
            limits=self.search.into(SearchLimits, members=self.max_victims),
            weights=self.cost.into(CostWeights),
            fair_sharing=self.fair_sharing.enabled,
            strategies=self.fair_sharing.preemption_strategies,
            boost=self.priority_boost.into(PriorityBoost),
            budgets=tuple(budget.budget() for budget in self.budgets),
        )
