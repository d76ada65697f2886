"""Recordings for tests of the simulation, made of what each GPU does over time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path

import numpy as np
from scaler_analysis.simulation.outcome import CaseOutcome, SimulatedSuspension
from scaler_analysis.simulation.recordings.recorded import PodFacts, workloads_of
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.replay import PolicyCase, ReplayConfig, replay, resolved

from scaler.decision.decision import Answer, Inactive
from scaler.decision.gates import decide
from scaler.idleness.gpu import GpuId, GpuSeries, Signal, Unit
from scaler.idleness.history import History
from scaler.idleness.pods import GpuPod, PodPhase, judge
from scaler.idleness.policy import Policy, Trust
from scaler.idleness.verdict import Unknown, judged_length
from scaler.idleness.window import as_stored
from scaler.targets.target_state import Phase, TargetState

BEGIN_S = 1_700_000_400.0
"""A multiple of ten minutes."""
UTIL = Signal(name="gpu_util", metrics=("U",), unit=Unit.PERCENT)
ENGINE = Signal(name="gr_engine_active", metrics=("E",), unit=Unit.RATIO)
TRUST = Trust(interval=timedelta(seconds=30))
TICK = timedelta(seconds=15)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A series: its samples as (seconds after the begin, ratio)."""

    pod: str
    samples: Sequence[tuple[float, float]]
    gpu: str = ""
    signal: Signal = UTIL
    namespace: str = "team"


def spans(*parts: tuple[float, float], every: float = 30.0, start: float = 0.0) -> list[tuple[float, float]]:
    """Samples of (minutes, ratio) after each other, the last one at the very end."""
    samples, at = [], start
    for minutes, ratio in parts:
        count = round(minutes * 60 / every)
        samples += [(at + n * every, ratio) for n in range(count)]
        at += count * every
    return samples


def recorded(folder: Path, series: Iterable[Sampled], facts: Mapping[str, PodFacts] | None = None) -> Recording:
    """`facts` by the name of the pod."""
    recording = Recording(folder=folder)
    for each in series:
        gpu = GpuSeries(gpu=GpuId(device=each.gpu or f"GPU-{each.pod}"), namespace=each.namespace, pod=each.pod)
        position = recording.position(each.signal.name, gpu, each.signal.unit)
        at_s, ratios = np.array(each.samples, np.float64).reshape(-1, 2).T
        scale = 100.0 if each.signal.unit is Unit.PERCENT else 1.0
        recording.add(each.signal, np.full(len(at_s), position), BEGIN_S + at_s, ratios * scale)
        if facts and each.pod in facts:
            recording.facts[each.namespace, each.pod] = facts[each.pod]
    recording.flush()
    return recording


def config(signals: Sequence[Signal] = (UTIL,), trust: Trust = TRUST, **more) -> ReplayConfig:
    return ReplayConfig(signals=signals, trust=trust, tick=TICK, **more)


def outcome(recording: Recording, policy: Policy, **more) -> tuple[CaseOutcome, list[SimulatedSuspension]]:
    """What came of the policy, and its suspensions in the order of time."""
    seen: list[SimulatedSuspension] = []
    case = PolicyCase(name="case", policy_of=lambda _: policy)
    found = replay(
        recording,
        resolved(recording, [case], config(**more)),
        config(**more),
        observe=lambda _, each: seen.append(each),
    )
    return found.cases[0], sorted(seen, key=lambda each: (each.at_s, str(each.workload)))


@dataclass(kw_only=True)
class Decided:
    """What deciding at every tick comes to."""

    suspensions: list[tuple[str, float, float, bool]]
    """Workload, when, until when, and whether it had returned."""
    unknown: dict[str, float]
    """GPU-hours by reason."""
    answers: dict[tuple[float, str], Answer] = field(default_factory=dict)
    """By instant and workload, while it is not suspended."""


def decided_at_every_tick(
    recording: Recording,
    policy: Policy,
    *,
    signals: Sequence[Signal] = (UTIL,),
    trust: Trust = TRUST,
    tick: timedelta = TICK,
) -> Decided:
    """The same question answered without any short cut: each workload is judged at each tick."""
    series = recording.series
    workloads = workloads_of(series, recording.facts, margin_s=trust.max_age.total_seconds())
    ratio_signals = {each.name: replace(each, unit=Unit.RATIO) for each in signals}
    history = History(
        signals=[*ratio_signals.values()], interval=trust.interval, span=judged_length(policy=policy, trust=trust)
    )
    samples = sorted(
        (at_s, int(position), float(ratio))
        for _, step in recording.steps()
        for part in step.values()
        for position, at_s, ratio in zip(part.series, part.at_s, part.ratios, strict=True)
    )
    found = Decided(suspensions=[], unknown={})
    since: dict[int, float] = {}
    came_back = dict.fromkeys(range(len(workloads)), float("-inf"))
    tick_s = tick.total_seconds()
    number, taken = ceil(recording.begin_s / tick_s), 0
    while number * tick_s <= recording.end_s + tick_s:
        now_s = number * tick_s
        while taken < len(samples) and samples[taken][0] <= now_s:
            at_s, position, ratio = samples[taken]
            taken += 1
            signal = ratio_signals[series[position].signal]
            if series[position].is_percent:
                history.device(replace(signal, unit=Unit.PERCENT), series[position].gpu)
            history.record(signal, series[position].gpu, [(at_s, ratio)])
            owner = next(n for n, each in enumerate(workloads) if position in each.series)
            if owner in since and at_s > since[owner] and ratio >= as_stored(policy.active_above_ratio):
                found.suspensions.append((str(workloads[owner]), since.pop(owner), at_s, True))
                came_back[owner] = at_s
        for n, workload in enumerate(workloads):
            pods = workload.pods_at(now_s)
            if n in since or not pods:
                continue
            running_s = max(came_back[n], *(each.start_s for each in pods))
            answer = found.answers[now_s, str(workload)] = _answer(pods, history, policy, trust, now_s, running_s)
            match answer:
                case Unknown(reason=reason):
                    hours = workload.gpu_hours(now_s, now_s + tick_s)
                    found.unknown[str(reason)] = found.unknown.get(str(reason), 0.0) + hours
                case Inactive():
                    since[n] = now_s
        number += 1
    found.suspensions += [(str(workloads[n]), at_s, workloads[n].end_s, False) for n, at_s in since.items()]
    found.suspensions.sort(key=lambda each: (each[1], each[0]))
    return found


def _answer(pods, history: History, policy: Policy, trust: Trust, now_s: float, running_s: float):
    now, running_since = (datetime.fromtimestamp(each, UTC) for each in (now_s, running_s))
    gpu_pods = [
        GpuPod(
            namespace=each.namespace,
            name=each.name,
            phase=PodPhase.RUNNING,
            gpus=each.gpus,
            running_since=running_since,
        )
        for each in pods
    ]
    verdict = judge(gpu_pods, history, policy=policy, trust=trust, end=now)
    target = TargetState(desired_replicas=1, phase=Phase.RUNNING, running_since=running_since)
    return decide(target, verdict, policy=policy, now=now).answer
