"""One pass over a recording for all cases at once: feed, and let each case look at what is due, tick by tick.

Ticks fall on multiples of the evaluation's interval, as in production. Where nothing is due for a while, the samples of
that time are fed together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import ceil, inf

from scaler.idleness.gpu import Signal
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.verdict import judged_length
from scaler.reporting.usage.prices import Prices
from scaler_analysis.simulation.case_replay import CaseReplay, simulated
from scaler_analysis.simulation.feed import SampleFeed
from scaler_analysis.simulation.outcome import CaseOutcome, SimulatedSuspension
from scaler_analysis.simulation.published_rules import PublishedRule, RuleReplay
from scaler_analysis.simulation.recordings.recorded import RecordedWorkload, workloads_of
from scaler_analysis.simulation.recordings.recording import Recording

_LONGEST_STEP_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    signals: Sequence[Signal]
    trust: Trust
    tick: timedelta
    """The time between two evaluations."""
    prices: Prices = field(default_factory=lambda: Prices(by_model={}))
    rule_signal: str = ""
    """The signal that published rules are about; empty: none are compared."""
    rule_floor: float = 0.01
    rule_warm_up: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCase:
    """What is compared: a policy for every workload, or for those that it is about."""

    name: str
    policy_of: Callable[[RecordedWorkload], Policy | None]
    """The policy of the case; None where the workload is not concerned."""


_Case = CaseReplay | RuleReplay

ResolvedCases = Mapping[str, Sequence[Policy | None]]
"""The policy of every workload by the name of the case; None of those that it is not about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    workloads: Sequence[RecordedWorkload]
    cases: Sequence[CaseOutcome]
    rules: Sequence[CaseOutcome]


def resolved(recording: Recording, cases: Sequence[PolicyCase], config: ReplayConfig) -> ResolvedCases:
    workloads = _workloads(recording, config)
    return {each.name: [simulated(each.policy_of(workload)) for workload in workloads] for each in cases}


def replay(
    recording: Recording,
    cases: ResolvedCases,
    config: ReplayConfig,
    *,
    rules: Sequence[PublishedRule] = (),
    progress: Callable[[float], None] = lambda _: None,
    observe: Callable[[str, SimulatedSuspension], None] = lambda *_: None,
) -> ReplayResult:
    """What came of each case. `progress` is told the share that is done, `observe` of each suspension of a case."""
    workloads, prices = _workloads(recording, config), config.prices
    feed = _feed(recording, cases, config, rules)
    outcomes = [CaseOutcome(name=name, prices=prices, observe=partial(observe, name)) for name in cases]
    compared = [CaseOutcome(name=each.name, prices=prices) for each in rules]
    tick_s = config.tick.total_seconds()
    running: list[_Case] = [
        CaseReplay(workloads, policies, feed, outcome, trust=config.trust, tick_s=tick_s)
        for policies, outcome in zip(cases.values(), outcomes, strict=True)
    ]
    running += [
        RuleReplay(
            rule,
            workloads,
            feed,
            outcome,
            signal=config.rule_signal,
            floor=config.rule_floor,
            warm_up=config.rule_warm_up,
            interval_s=config.trust.interval.total_seconds(),
        )
        for rule, outcome in zip(rules, compared, strict=True)
    ]
    for now_s in _ticks(running, recording.begin_s, recording.end_s, tick_s):
        fed = [*feed.advance(now_s)]
        for each in running:
            each.take(fed)
            each.tick(now_s)
        progress((now_s - recording.begin_s) / max(1.0, recording.end_s - recording.begin_s))
    for each in running:
        each.finish()
    return ReplayResult(workloads=workloads, cases=outcomes, rules=compared)


def _workloads(recording: Recording, config: ReplayConfig) -> list[RecordedWorkload]:
    margin_s = config.trust.max_age.total_seconds()
    return workloads_of(recording.series, recording.facts, margin_s=margin_s, outages=recording.outages)


def _feed(
    recording: Recording,
    cases: ResolvedCases,
    config: ReplayConfig,
    rules: Sequence[PublishedRule],
) -> SampleFeed:
    known = {policy for policies in cases.values() for policy in policies if policy is not None}
    lengths = [judged_length(policy=each, trust=config.trust) for each in known] + [each.length for each in rules]
    return SampleFeed(
        recording.steps(),
        recording.series,
        signals=config.signals,
        trust=config.trust,
        span=max(lengths, default=config.trust.interval),
        floors={each.active_above_ratio for each in known} | ({config.rule_floor} if rules else set()),
    )


def _ticks(cases: Sequence[_Case], begin_s: float, end_s: float, tick_s: float) -> Iterator[float]:
    """The instants at which anything may be due, up to the last sample; asked for one after the other."""
    longest = max(1, int(min([_LONGEST_STEP_S, *(each.shortest_s for each in cases)]) // tick_s))
    number, last = ceil(begin_s / tick_s), ceil(end_s / tick_s)
    while number < last:
        yield number * tick_s
        due_s = min([each.next_due_s for each in cases], default=inf)
        steps = longest if due_s == inf else ceil(due_s / tick_s) - number
        number = min(last, number + max(1, min(steps, longest)))
    yield last * tick_s
