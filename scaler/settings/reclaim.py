"""Settings on reclaiming: plans for gangs that wait, what they may cost, and the budgets that bound them."""

import re
from datetime import time
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from scaler.core.budgets import Budget, Limit, Rate
from scaler.core.costs import Weights
from scaler.core.hours import Hours, Weekday, read_zone
from scaler.core.quota.fair_preemption import Strategy
from scaler.core.reclaim_policy import OnTheft, PriorityBoost, ReclaimPolicy, Switch, Unprotected
from scaler.core.scopes import Each, Scope
from scaler.core.selectors import parse_selector
from scaler.core.victims import Limits
from scaler.settings.fields import Duration, Ratio, Section

_DEFAULT = ReclaimPolicy()
_MOST_NEGATIVE = -(2**31)
"""Kueue keeps priorities in 32 bits."""


# ------------------------------------------------------------------------------------------------------------- budgets


_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def _time_of_day(value: Any) -> Any:
    """`09:00`. YAML reads some of them as numbers, 22:00 as 1320, and a number could as well mean an hour."""
    if isinstance(value, time):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        meant = f"{value // 60:02}:{value % 60:02}" if 60 <= value <= 24 * 60 else "22:00"
        raise ValueError(f"{value} is how YAML reads a time of day without quotes; write '{meant}', with quotes")
    found = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found:
        raise ValueError(f"{value!r} is not a time of day; write for example '22:00', with quotes")
    return time(int(found[1]), int(found[2]))


def _end(value: Any) -> Any:
    return time(0) if isinstance(value, str) and value.strip() == "24:00" else _time_of_day(value)


_shown = PlainSerializer(lambda of_day: f"{of_day:%H:%M}", return_type=str)
Begin = Annotated[time, BeforeValidator(_time_of_day), _shown]
End = Annotated[time, BeforeValidator(_end), _shown]


class HoursSetting(Section):
    """Hours of some days of the week."""

    days: tuple[Weekday, ...] = ()
    """On which they begin; empty: every day."""
    begin: Begin = Field(default=time(0), alias="from")
    """In quotes, or YAML reads it as a number."""
    to: End = time(0)
    """Not included. At or before `from` it is the next day's; 24:00 is the end of the day."""
    time_zone: str
    """IANA name, such as Europe/Berlin. There is no default: the hours of this program's machine are nobody's."""

    @field_validator("time_zone")
    @classmethod
    def _can_be_read(cls, name: str) -> str:
        read_zone(name)
        return name

    @model_validator(mode="after")
    def _lasts(self) -> "HoursSetting":
        if self.begin == self.to != time(0):
            raise ValueError(f"from and to are both {self.to:%H:%M}; for whole days leave both out")
        return self

    def hours(self) -> Hours:
        days = frozenset(self.days or Weekday)
        return Hours(days=days, begin=self.begin, end=self.to, zone=self.time_zone)


class LimitSetting(Section):
    """How many workloads: a count, a share, or the smaller one of both."""

    count: int | None = Field(default=None, ge=0)
    """So many."""
    share: Ratio | None = None
    """Of the GPU workloads in the scope, suspended ones included; rounded down, to none if need be."""

    @model_validator(mode="after")
    def _says_something(self) -> "LimitSetting":
        if self.count is None and self.share is None:
            raise ValueError("there is no limit; write count, share, or both")
        return self

    def limit(self) -> Limit:
        return Limit(count=self.count, share_ratio=self.share)


class RateSetting(LimitSetting):
    """How many workloads within any stretch of that length."""

    period: Duration
    """How long the stretch is."""

    def rate(self) -> Rate:
        return Rate(limit=self.limit(), period=self.period)


class ScopeSetting(Section):
    """Which workloads a budget covers. All conditions must hold; none of them: the whole cluster."""

    namespaces: tuple[str, ...] = ()
    """By name. Empty: any."""
    namespace_selector: str = ""
    """Labels of the namespace, as kubectl takes them: `team=a,stage in (dev, test)`."""
    cluster_queues: tuple[str, ...] = ()
    """By name. Empty: any."""
    each: Each | None = None
    """Namespace or ClusterQueue: each has the limit for itself. Left out: all together."""

    @field_validator("namespace_selector")
    @classmethod
    def _can_be_read(cls, text: str) -> str:
        parse_selector(text)
        return text

    def scope(self) -> Scope:
        return Scope(
            namespaces=frozenset(self.namespaces),
            namespace_selector=self.namespace_selector,
            cluster_queues=frozenset(self.cluster_queues),
            each=self.each,
        )


class BudgetSetting(Section):
    """One bound on what plans may suspend. Every budget must have room for a plan's victims, or none is suspended."""

    name: str = Field(min_length=1)
    """Named by Events and by `plan` where it is exhausted."""
    scope: ScopeSetting = ScopeSetting()
    at_once: LimitSetting | None = None
    """How many may be suspended at the same time."""
    per_period: RateSetting | None = None
    """How many may be suspended within a period that slides. One that came back still counts in it, but only once."""
    applies_during: tuple[HoursSetting, ...] = ()
    """When its limits hold; empty: always."""
    allowed_during: tuple[HoursSetting, ...] = ()
    """When any workload in its scope may be suspended at all; empty: at any time."""

    @model_validator(mode="after")
    def _bounds_something(self) -> "BudgetSetting":
        has_limit = self.at_once or self.per_period
        if not has_limit and self.applies_during:
            raise ValueError("appliesDuring needs a limit that applies then; write atOnce or perPeriod")
        if not has_limit and not self.allowed_during:
            raise ValueError("it bounds nothing; write atOnce, perPeriod or allowedDuring")
        return self

    def budget(self) -> Budget:
        return Budget(
            name=self.name,
            scope=self.scope.scope(),
            at_once=self.at_once.limit() if self.at_once else None,
            rate=self.per_period.rate() if self.per_period else None,
            applies_during=tuple(each.hours() for each in self.applies_during),
            allowed_during=tuple(each.hours() for each in self.allowed_during),
        )


# --------------------------------------------------------------------------------------------------------------- plans


Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostSetting(Section):
    """Weights of what makes a victim dear; the cheapest victims go. 0 leaves a part out; see `core/costs.py`."""

    gpu_hours_lost: Weight = _DEFAULT.weights.gpu_hours_lost
    """Per GPU-hour that it worked since its start, which its owner has to spend again."""
    idle_time: Weight = _DEFAULT.weights.idle_time
    """Per hour idle: what makes it *cheaper*, by dividing all else."""
    priority: Weight = _DEFAULT.weights.priority
    """Per GPU and 1000 of its Kueue priority."""
    reclaimed_before: Weight = _DEFAULT.weights.reclaimed_before
    """Per GPU and time that a plan has suspended it already."""
    time_to_resume: Weight = _DEFAULT.weights.time_to_resume
    """Per GPU and hour that it takes to come back."""

    def weights(self) -> Weights:
        return Weights(
            gpu_hours_lost=self.gpu_hours_lost,
            idle_time=self.idle_time,
            priority=self.priority,
            reclaimed_before=self.reclaimed_before,
            time_to_resume=self.time_to_resume,
        )


class SearchSetting(Section):
    """How much is searched for one plan. In steps and not in seconds, so that the same state has the same plan.

    A search that ends early takes the best plan that it has found, and says that a cheaper one may exist.
    """

    steps: int = Field(default=_DEFAULT.limits.steps, ge=1)
    """Sets of victims that are looked at."""
    questions: int = Field(default=_DEFAULT.limits.questions, ge=1)
    """Sets of victims for which Kueue's cycles are simulated: what takes the time."""


_VALID_STRATEGIES = ((Strategy.FINAL_SHARE,), (Strategy.INITIAL_SHARE,), (Strategy.FINAL_SHARE, Strategy.INITIAL_SHARE))


class FairSharing(Section):
    """`fairSharing` of Kueue's configuration, which its API does not show: it has to say here what it says there."""

    enabled: bool = _DEFAULT.fair_sharing
    """Whether Kueue's configuration has `fairSharing`."""
    preemption_strategies: tuple[Strategy, ...] = _DEFAULT.strategies
    """As they stand there."""

    @field_validator("preemption_strategies")
    @classmethod
    def _kueue_takes_them(cls, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        if strategies not in _VALID_STRATEGIES:
            allowed = " or ".join(f"[{', '.join(each)}]" for each in _VALID_STRATEGIES)
            raise ValueError(f"Kueue does not take this list; write {allowed}")
        return strategies


def _switch(value: Any) -> Any:
    """YAML reads a bare `on` and `off` as truths."""
    return {True: Switch.ON, False: Switch.OFF}[value] if isinstance(value, bool) else value


class PriorityBoostSetting(Section):
    """For workloads whose policy is `reclaim: PriorityBoost`."""

    enabled: Annotated[Switch, BeforeValidator(_switch)] = _DEFAULT.boost.enabled
    """`auto`: where Kueue's feature gate PriorityBoost is found to be on."""
    value: int = Field(default=_DEFAULT.boost.value, lt=0, ge=_MOST_NEGATIVE)
    """Added to the Workload's priority while it is idle."""

    def boost(self) -> PriorityBoost:
        return PriorityBoost(enabled=self.enabled, value=self.value)


class ReclaimSetting(Section):
    """How idle quota is handed to the gangs that wait. Which workloads may be taken is policy: see `defaults`."""

    pressure: bool = _DEFAULT.pressure
    """Whether plans are made. Off, `reclaim: OnPressure` suspends nobody."""
    grant_for: Duration = _DEFAULT.grant_for
    """How long a plan may take its victims. Longer than KEDA's pollingInterval + cooldownPeriod of all of them (30 s +
    5 min by default), or it ends before KEDA has acted on it."""
    max_victims: int = Field(default=_DEFAULT.limits.members, ge=1)
    """In one plan."""
    search: SearchSetting = SearchSetting()
    cost: CostSetting = CostSetting()
    consider_nodes: bool = _DEFAULT.consider_nodes
    """Whether the gang's pods must fit the nodes as they are, unless an AdmissionCheck of ours asks for missing ones.
    Off where somebody else adds nodes as they are needed."""
    on_theft: OnTheft = _DEFAULT.on_theft
    """When a third Workload takes a piece of what was freed: `Replan`, or `Yield`, by which it has to stand back once
    where our AdmissionCheck guards the queue."""
    unprotected: Unprotected = _DEFAULT.unprotected
    """Plans whose freed quota a newcomer may take: in a BestEffortFIFO queue, or from a neighbour in the cohort."""
    fair_sharing: FairSharing = FairSharing()
    priority_boost: PriorityBoostSetting = PriorityBoostSetting()
    replan_backoff: Duration = _DEFAULT.replan_backoff
    """Least time between two plans for the same gang."""
    budgets: tuple[BudgetSetting, ...] = ()
    """Bounds on what plans may suspend; every one of them must have room. Empty: none."""

    @field_validator("budgets")
    @classmethod
    def _names_differ(cls, budgets: tuple[BudgetSetting, ...]) -> tuple[BudgetSetting, ...]:
        names = [budget.name for budget in budgets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two budgets have the name {twice[0]!r}; an Event that names one must mean one")
        return budgets

    def policy(self) -> ReclaimPolicy:
        return ReclaimPolicy(
            pressure=self.pressure,
            grant_for=self.grant_for,
            limits=Limits(steps=self.search.steps, questions=self.search.questions, members=self.max_victims),
            consider_nodes=self.consider_nodes,
            weights=self.cost.weights(),
            on_theft=self.on_theft,
            unprotected=self.unprotected,
            fair_sharing=self.fair_sharing.enabled,
            strategies=self.fair_sharing.preemption_strategies,
            boost=self.priority_boost.boost(),
            replan_backoff=self.replan_backoff,
            budgets=tuple(budget.budget() for budget in self.budgets),
        )
