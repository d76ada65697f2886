"""What counts as idle and for how long: the policy of one trigger, and where each of its values came from.

The nearest source wins, field by field: workload annotation > trigger metadata > settings > built-in default. But for
keeping: there the latest time wins, because an annotation that was left behind and has passed does not take back
what was requested since.

`idleAfterUnderPressure` makes sense only up to `idleAfter`. Longer is an error of its source; but where the
longer one is a default from farther away (settings) and the owner wrote the shorter `idleAfter`, both are `idleAfter`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil, floor
from typing import Any

from scaler.errors import MetadataError
from scaler.idleness.durations import format_duration
from scaler.idleness.hooks import OnFailure
from scaler.idleness.hours import DayTime, Hours
from scaler.idleness.policy_fields import (
    DAY_TIMES,
    DURATION,
    HOOK,
    HOURS,
    INSTANT,
    LASTING,
    NAMES,
    NUMBER,
    PERCENTAGE,
    YES_OR_NO,
    Kind,
    PolicyField,
    number,
    percentage,
    positive_duration,
    words,
    written,
)

BUILT_IN = "built-in default"
"""Source of a value that nobody has set."""


class EnforcementMode(StrEnum):
    OBSERVE = "observe"
    ENFORCE = "enforce"


class Reclaim(StrEnum):
    """What takes an idle workload's quota away."""

    ALWAYS = "Always"
    """Time alone: the answer is 0 once it was idle for `idleAfter`, whether a Workload waits or not."""
    ON_PRESSURE = "OnPressure"
    """A plan alone that lets a waiting gang in, which may take it after `idleAfterUnderPressure`."""
    PRIORITY_BOOST = "PriorityBoost"
    """Kueue itself: the answer is never 0, but while idle it has a negative priority boost, so that it is preempted."""


class WakeRule(StrEnum):
    """When a workload that was suspended for being idle comes back."""

    ON_REQUEST = "OnRequest"
    """When its owner, demand or a schedule asks for it."""
    WHEN_FREE = "WhenFree"
    """When one of these asks for it, or its quota and nodes are free and no Workload waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRule:
    """The share of a workload's GPUs that must be idle before the workload is.

    `all` is 1.0. `any` asks for at least one idle GPU; `quorum:0.8` for 80 % of them, rounded up.
    """

    share: float

    @classmethod
    def parse(cls, text: str) -> "GpuRule":
        """Raises: ValueError saying what may be written."""
        word, _, number = text.strip().partition(":")
        if word == "all" and not number:
            return cls(share=1.0)
        if word == "any" and not number:
            return cls(share=0.0)
        if word == "quorum":
            try:
                share = float(number)
            except ValueError:
                share = -1.0
            if 0 < share <= 1:
                return cls(share=share)
        raise ValueError(f"{text!r} is not a GPU rule; write 'all', 'any' or 'quorum:0.8' (a share above 0, up to 1)")

    def idle_gpus_needed(self, total: int) -> int:
        """How many of `total` GPUs must be idle: at least one, at most all."""
        # Rounded first: 0.07 × 100 is 7.000000000000001 in floating point, and 8 GPUs were never meant.
        return max(1, ceil(round(total * self.share, 9)))

    def __str__(self) -> str:
        return {1.0: "all", 0.0: "any"}.get(self.share, f"quorum:{self.share:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number of workloads, or a share of those that have the budget in common. Written `2` or `20%`."""

    count: int = 0
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """Raises: ValueError saying what may be written."""
        return cls(share=percentage(text)) if text.endswith("%") else cls(count=number(text))

    def of(self, population: int) -> int:
        """How many that is; a share is rounded down, to 0 if need be: 10 % of 9 workloads is none."""
        # Rounded first: 0.29 × 100 is 28.999999999999996 in floating point, and 29 were allowed.
        return self.count if self.share is None else floor(round(population * self.share, 9))

    def __str__(self) -> str:
        return f"{self.count}" if self.share is None else f"{100 * self.share:g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerPeriod:
    """A limit per period, written `5 per 24h` or `20% per 24h`."""

    limit: Limit
    period: timedelta

    @classmethod
    def parse(cls, text: str) -> "PerPeriod":
        """Raises: ValueError saying what may be written."""
        limit, separator, period = text.partition(" per ")
        if not separator:
            raise ValueError(f"{text!r} is not a number in a period; write for example '5 per 24h'")
        return cls(limit=Limit.parse(limit.strip()), period=positive_duration(period.strip()))

    def __str__(self) -> str:
        return f"{self.limit} per {format_duration(self.period)}"


GPU_RULE = Kind(GpuRule.parse, "`all`, `any`, `quorum:0.8`")
LIMIT = Kind(Limit.parse, "a number up to 99, or a share: `20%`")
PER_PERIOD = Kind(PerPeriod.parse, "`5 per 24h`, `20% per 24h`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Each field that owners write says how (`written`) and what it means; no other code changes for a new one."""

    idle_after: timedelta = field(default=timedelta(hours=1), metadata=written("idleAfter", LASTING, "30m"))
    """Every required GPU must be quiet this long, warm-up not counted, before the answer is 0."""
    warm_up: timedelta = field(default=timedelta(minutes=10), metadata=written("warmUp", DURATION, "10m"))
    """The answer is 1 for this long after the containers *started running*, and quiet time does not count yet."""
    active_above_ratio: float = field(default=0.01, metadata=written("activeAbove", PERCENTAGE, "1%"))
    """A signal whose peak in the window reaches this share shows work; below it is quiet."""
    gpus: GpuRule = field(default=GpuRule(share=1.0), metadata=written("gpus", GPU_RULE, "all"))
    """The share of GPUs that must be idle."""
    mode: EnforcementMode = field(
        default=EnforcementMode.ENFORCE, metadata=written("mode", words(EnforcementMode), "observe")
    )
    """`observe`: nothing is suspended, only reported."""
    reclaim: Reclaim = field(default=Reclaim.ALWAYS, metadata=written("reclaim", words(Reclaim), "OnPressure"))
    """What [suspends an idle workload](policies.md#what-suspends-an-idle-workload)."""
    idle_after_under_pressure: timedelta | None = field(
        default=None, metadata=written("idleAfterUnderPressure", LASTING, "5m")
    )
    """How long it must be idle before a plan may take it for a gang that waits, up to `idleAfter`. None: as long as
    that."""
    warning: timedelta | None = field(default=None, metadata=written("warning", LASTING, "30m"))
    """How long its owner must have been [warned](policies.md#warnings) before it may be suspended, by time alone or
    by a plan. None: a warning is no condition."""
    require_delivery: bool = field(default=False, metadata=written("requireDelivery", YES_OR_NO, "true"))
    """Whether that time counts from when a [message of the warning](policies.md#warnings) was accepted, and not
    without one."""
    before_suspend: str = field(default="", metadata=written("beforeSuspend", HOOK, "checkpoint", "beforeSuspend.hook"))
    """The [hook](policies.md#hooks) of the settings that has to end before it is suspended."""
    before_suspend_on_failure: OnFailure = field(
        default=OnFailure.HOLD,
        metadata=written("beforeSuspendOnFailure", words(OnFailure), "Hold", "beforeSuspend.onFailure"),
    )
    """If the hook fails or takes too long: it keeps running, and the hook runs again after `idleAfter`; or it is
    suspended all the same."""
    allowed_during: tuple[Hours, ...] = field(
        default=(), metadata=written("allowedDuring", HOURS, "Mon-Fri 19:00-07:00 Europe/Berlin")
    )
    """The [hours](idle-policies.md#hours) at which it may be suspended. None: at any time."""
    wake_at: tuple[DayTime, ...] = field(
        default=(), metadata=written("wakeAt", DAY_TIMES, "Mon-Fri 08:00 Europe/Berlin")
    )
    """The [times](idle-policies.md#hours) at which it is resumed, if it is suspended then."""
    wake: WakeRule = field(default=WakeRule.ON_REQUEST, metadata=written("wake", words(WakeRule), "WhenFree"))
    """`WhenFree`: a workload that a plan suspended comes back [when its quota and nodes are
    free](policies.md#coming-back-when-free) and no Workload waits for them; only with `reclaim: OnPressure`."""
    longest_keep: timedelta | None = field(default=None, metadata=written("longestKeep", LASTING, "8h", "keep.longest"))
    """How long annotations may [keep or exclude](idle-policies.md#limits-of-keeps) it, from when that is asked.
    None: as long as its owner likes."""
    keeps_per_week: int | None = field(default=None, metadata=written("keepsPerWeek", NUMBER, "3", "keep.perWeek"))
    """How often within seven days; each change of an end counts."""
    keep_users: tuple[str, ...] = field(
        default=(), metadata=written("keepUsers", NAMES, "*@example.com, alice", "keep.users")
    )
    """Who may, as annotation `idlegpu.io/asked-by` names them. None: everybody who may write the annotations."""
    suspended_at_once: Limit | None = field(
        default=None, metadata=written("suspendedAtOnce", LIMIT, "2", "budget.atOnce")
    )
    """How many workloads that have this from the same policy, or without one in the namespace, may be [suspended at
    once](idle-policies.md#budgets); a share is of these, rounded down. None: as many as there are."""
    suspended_per_period: PerPeriod | None = field(
        default=None, metadata=written("suspendedPerPeriod", PER_PERIOD, "5 per 24h", "budget.perPeriod")
    )
    """How many of them within any such period; one that has been resumed still counts, once."""
    keep_until: datetime | None = field(
        default=None, metadata=written("keepUntil", INSTANT, "2026-12-01T18:00:00Z", "")
    )
    """The answer is 1 until then, whatever the GPUs do."""
    exclude_until: datetime | None = None
    """Likewise, by an annotation alone: for good where that is as late as can be."""
    observed_because: str = ""
    """Why it is only observed, where that is not what was asked for."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The origin of every value that is not the built-in default, by the name of its field."""

    def source_of(self, name: str) -> str:
        return self.sources.get(name, BUILT_IN)

    @property
    def has_budget(self) -> bool:
        return self.suspended_at_once is not None or self.suspended_per_period is not None

    @property
    def limits_keeps(self) -> bool:
        return self.longest_keep is not None or self.keeps_per_week is not None or bool(self.keep_users)

    @property
    def idle_after_if_pressed(self) -> timedelta:
        """How long it must be idle before a plan may take it; never longer than `idle_after`."""
        return min(self.idle_after_under_pressure or self.idle_after, self.idle_after)

    @property
    def window(self) -> timedelta:
        """How long its GPUs must be quiet before anything may be done to it; what its verdict is about."""
        return self.idle_after if self.reclaim is Reclaim.ALWAYS else self.idle_after_if_pressed


FIELDS: Mapping[str, PolicyField] = {each.name: each.metadata["written"] for each in fields(Policy) if each.metadata}
"""How each field is written, by its name."""
NAME_OF_KEY: Mapping[str, str] = {each.key: name for name, each in FIELDS.items()}


class Overrides:
    """The policy fields that one source sets; None where it is silent. Hashable: a key of the DecisionCache."""

    __slots__ = ("_given", "_hash")

    def __init__(self, **given: Any) -> None:
        if unknown := given.keys() - _SET.keys():
            raise TypeError(f"a policy has no field {', '.join(sorted(unknown))}")
        self._given = {name: value for name in _SET if (value := given.get(name)) is not None}
        self._hash = hash((*self._given.items(),))

    def given(self) -> dict[str, Any]:
        return {**self._given}

    def __getattr__(self, name: str) -> Any:
        if name not in _SET:
            raise AttributeError(f"a policy has no field {name}")
        return self._given.get(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Overrides) and self._given == other._given

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Overrides({', '.join(f'{name}={self._given.get(name)!r}' for name in _SET)})"


_SET = dict.fromkeys((*FIELDS, "exclude_until"))
"""The fields that a source may set, in their order."""


def only_observed(policy: Policy, because: str) -> Policy:
    """The policy in mode observe, and why that is."""
    if policy.mode is EnforcementMode.OBSERVE:
        return policy
    sources = {**policy.sources, "mode": because}
    return replace(policy, mode=EnforcementMode.OBSERVE, observed_because=because, sources=sources)


def resolve(*layers: tuple[str, Overrides]) -> Policy:
    """The policy that results from the layers, given from the farthest (settings) to the nearest (annotation).

    Raises: MetadataError where a layer has an `idleAfterUnderPressure` longer than the `idleAfter` it goes with, and
    where it is woken when free although time alone suspends it.
    """
    policy = Policy()
    for source, overrides in layers:
        given = overrides.given()
        for name in ("keep_until", "exclude_until"):
            known, asked = getattr(policy, name), given.get(name)
            if known and asked and asked <= known:
                del given[name]
        policy = replace(policy, **given, sources={**policy.sources, **dict.fromkeys(given, source)})
    if policy.warning is None and (policy.require_delivery or (policy.has_budget and policy.reclaim is Reclaim.ALWAYS)):
        # With a warning of no length its owner is notified, or its budget has room, before it is suspended.
        policy = replace(policy, warning=timedelta(0))
    if problem := wake_problem(policy.wake, policy.reclaim):
        raise MetadataError(
            f"{policy.source_of('wake')} 'wake': {problem}; reclaim is from: {policy.source_of('reclaim')}"
        )
    problem = under_pressure_problem(policy.idle_after, policy.idle_after_under_pressure)
    return _settled(policy, problem, [source for source, _ in layers]) if problem else policy


def under_pressure_problem(idle_after: timedelta | None, under_pressure: timedelta | None) -> str:
    """What is wrong with the two of them, and what to write; empty where nothing is."""
    if idle_after is None or under_pressure is None or under_pressure <= idle_after:
        return ""
    longest = format_duration(idle_after)
    return f"{format_duration(under_pressure)} is longer than idleAfter ({longest}); write at most '{longest}'"


def wake_problem(wake: WakeRule | None, reclaim: Reclaim | None) -> str:
    """What is wrong with the two of them, and what to write; empty where nothing is."""
    if wake is not WakeRule.WHEN_FREE or reclaim in (None, Reclaim.ON_PRESSURE):
        return ""
    return (
        f"WhenFree needs reclaim: OnPressure, and it is {reclaim}: what is idle would be suspended and resumed for ever"
    )


def _settled(policy: Policy, problem: str, sources: Sequence[str]) -> Policy:
    """The policy without an `idleAfterUnderPressure` that a nearer `idleAfter` has undercut; any other is an error."""
    under_pressure, idle_after = policy.source_of("idle_after_under_pressure"), policy.source_of("idle_after")
    is_undercut = idle_after in sources and sources.index(under_pressure) < sources.index(idle_after)
    if not is_undercut:
        raise MetadataError(f"{under_pressure} 'idleAfterUnderPressure': {problem}; idleAfter is from: {idle_after}")
    left = {name: source for name, source in policy.sources.items() if name != "idle_after_under_pressure"}
    return replace(policy, idle_after_under_pressure=None, sources=left)


def describe(name: str, policy: Policy) -> str:
    """A policy field's value as its owner would write it, and as it applies."""
    return _shown(policy.idle_after_if_pressed if name == "idle_after_under_pressure" else getattr(policy, name))


def _shown(value: Any) -> str:
    match value:
        case timedelta() as duration:
            return format_duration(duration)
        case float() as ratio:
            return f"{ratio * 100:g} %"
        case datetime() as instant:
            return instant.isoformat()
        case None | () | "":
            return "-"
        case tuple() as several:
            return ("; " if isinstance(several[0], Hours | DayTime) else ", ").join(map(str, several))
        case other:
            return str(other).lower() if isinstance(other, bool) else str(other)


def is_any_of(name: str, patterns: Iterable[str]) -> bool:
    """Whether it is one of the names, in which `*` stands for any text.

    Names and patterns are a tenant's, and a regular expression of several `.*` takes a time that grows with a power of
    the name's length. Here each part is looked for once, after the one before: the first place where it is leaves the
    most text for the others.
    """
    return any(_is_like(name, each) for each in patterns)


def _is_like(name: str, pattern: str) -> bool:
    first, *parts = pattern.split("*")
    if not parts:
        return name == first
    *inner, last = parts
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for part in inner:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """When readings are good enough to judge by. Set by the operator, the same for every workload.

    Counts are collection intervals, because an exporter that collects every 30 s says nothing new in between.
    """

    interval: timedelta = timedelta(seconds=30)
    """How often the exporter collects. Default: dcgm-exporter's own."""
    min_coverage_ratio: float = 0.8
    """Share of the window's intervals that must hold a sample."""
    max_age_intervals: int = 3
    """Age of the newest sample beyond which it is stale: one lost scrape and a late one are tolerated."""
    max_gap_intervals: int = 6
    """Longest tolerated hole: 3 min at 30 s. A longer one is a collector fault in which work could hide."""
    max_clock_skew: timedelta = timedelta(seconds=15)
    """Tolerated difference between the clocks: half an interval. Beyond it windows are misplaced."""
    single_witness: bool = False
    """Whether one signal alone may suspend, where no counter shows that its exporter still measures."""

    @property
    def max_age(self) -> timedelta:
        return self.max_age_intervals * self.interval
