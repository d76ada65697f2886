"""One question about a recording, answered: the policies that are compared, published rules, and the curve of windows.

The curve is `idleAfter` against what it frees and how often that is regretted, for every floor that is asked for, with
today's setting among its points.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from typing import Any

from scaler.idleness.durations import format_duration
from scaler.idleness.policy import Policy
from scaler_analysis.simulation.cases import window_case, with_window
from scaler_analysis.simulation.outcome import CaseOutcome, Totals
from scaler_analysis.simulation.processes import replay_in_parallel
from scaler_analysis.simulation.published_rules import RULES
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.replay import PolicyCase, ReplayConfig, ReplayResult, resolved
from scaler_analysis.simulation.report.answer import outcome_json, policy_json, span_json, totals_json

Json = dict[str, Any]

CURVE = tuple(timedelta(minutes=each) for each in (10, 15, 20, 30, 45, 60, 90, 120, 180, 240))
"""Windows from one that a long pause in training would survive to one that few forget for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConfig:
    replay: ReplayConfig
    today: Policy
    """What the settings say, with the flags that go for all."""
    windows: Mapping[str, timedelta] = field(default_factory=dict)
    """Values of `idleAfter` that are compared, by how they are written."""
    files: Sequence[PolicyCase] = ()
    """Policies from files."""
    curve: Sequence[timedelta] = ()
    floors: Sequence[float] = ()
    """Values of `activeAbove` of the curve; empty: today's only."""
    accepted_regret: float | None = None
    """The share of suspensions that may be followed by a return within 15 minutes."""
    has_rules: bool = True


def study(recording: Recording, config: StudyConfig, *, progress: Callable[[float], None] = lambda _: None) -> Json:
    asked = {written: with_window(config.today, each) for written, each in config.windows.items()}
    curve = [
        replace(with_window(config.today, window), active_above_ratio=floor)
        for floor, window in product(config.floors or (config.today.active_above_ratio,), config.curve)
    ]
    policies = [*dict.fromkeys((*asked.values(), *curve, *((config.today,) if config.curve else ())))]
    cases = [window_case(_name(each), each) for each in policies] + [*config.files]
    rules = RULES if config.has_rules and config.replay.rule_signal else ()
    concrete = resolved(recording, cases, config.replay)
    found = replay_in_parallel(recording, concrete, config.replay, rules=rules, progress=progress)
    by_name = {each.name: each for each in found.cases}
    ours = [
        {**outcome_json(by_name[_name(policy)], found.workloads, policy), "name": written, "idleAfter": written}
        for written, policy in asked.items()
    ]
    answer: Json = {
        "policies": ours + [outcome_json(by_name[each.name], found.workloads) for each in config.files],
        "published": [{"name": each.name, **totals_json(each.total(found.workloads))} for each in found.rules],
        "today": policy_json(config.today),
        "trace": _trace(recording, found, config.replay),
    }
    if curve:
        answer |= _curve(by_name, found, config, curve)
    return answer


def _name(policy: Policy) -> str:
    """One that no other policy of the study has; as people write it, 1h30m30s is 1h30m."""
    return f"idleAfter {policy.idle_after!r}, activeAbove {policy.active_above_ratio!r}"


def _trace(recording: Recording, found: ReplayResult, config: ReplayConfig) -> Json:
    return {
        **span_json(recording.begin_s, recording.end_s),
        "outages": [span_json(*each) for each in recording.outages],
        "samples": recording.samples,
        "blanks": recording.blanks,
        "pods": sum(len(each.pods) for each in found.workloads),
        "workloads": len(found.workloads),
        "collectionInterval": format_duration(config.trust.interval),
        "currency": config.prices.currency if config.prices else None,
    }


# ---- the curve


def _curve(
    by_name: Mapping[str, CaseOutcome], found: ReplayResult, config: StudyConfig, curve: Iterable[Policy]
) -> Json:
    points = [(each, by_name[_name(each)].total(found.workloads)) for each in dict.fromkeys((*curve, config.today))]
    points.sort(key=lambda each: (each[0].active_above_ratio, each[0].idle_after))
    answer: Json = {
        "curve": [
            {**policy_json(policy), **totals_json(totals), "isToday": policy == config.today}
            for policy, totals in points
        ]
    }
    if config.accepted_regret is not None:
        best = recommended(points, config.accepted_regret)
        answer["recommendation"] = {
            "acceptedRegret": config.accepted_regret,
            **({**policy_json(best[0]), **totals_json(best[1])} if best is not None else {"idleAfter": None}),
        }
    return answer


def recommended(points: Sequence[tuple[Policy, Totals]], accepted: float) -> tuple[Policy, Totals] | None:
    """The point that frees most of those whose regret is accepted; of equals the longest window. None without one."""
    fit = [each for each in points if each[1].regret_ratio <= accepted and each[1].suspensions]
    return max(fit, key=lambda each: (each[1].freed_gpu_hours, each[0].idle_after), default=None)
