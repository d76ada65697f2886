"""The first act of the demo decides about its gang while it runs; its samples, replayed, make the same decisions."""

import asyncio
import csv
import time
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scaler_analysis.simulation.outcome import SimulatedSuspension
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.recordings.trace import read_trace
from scaler_analysis.simulation.replay import PolicyCase, ReplayConfig, replay, resolved
from scaler_sandbox.demo import ACTS, start_act
from simulation_builders import decided_at_every_tick

from scaler.decision.decision import Decision, Inactive
from scaler.decision.decision_cache import DecisionCache, Evaluation
from scaler.decision.reasons import DecisionReason
from scaler.decision.sampling import Sampler
from scaler.idleness.gpu import Signal
from scaler.samples.source import SignalReading
from scaler.targets.target_state import Phase

GANG = "first-raycluster"
_NOTHING_RECORDED = {
    DecisionReason.WAKING,
    DecisionReason.WAITING_FOR_QUOTA,
    DecisionReason.STARTING,
    DecisionReason.WARMING_UP,
}
"""A recording knows of a pod from its first sample on, which comes a moment after its containers run."""


class RecordingSource:
    """Passes on what a source reads, and keeps the samples of pods as lines of a trace."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self._source = sampler, sampler._source
        self.lines: dict[tuple[Any, ...], None] = {}

    async def read(self, signal: Signal, *, start: datetime, end: datetime) -> SignalReading:
        reading = await self._source.read(signal, start=start, end=end)
        series = list(reading.series)
        for each in series if signal in self._sampler.history.signals else ():
            found = self._sampler.identify(each.labels())
            for at_s, value in each.samples() if found is not None and found.pod else ():
                line = (repr(at_s), found.namespace, found.pod, found.gpu.device, signal.name, value)
                owner = f"RayCluster/{GANG}" if found.pod.startswith(GANG) else ""
                self.lines.setdefault((*line, owner))
        return reading._replace(series=series)

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["time", "namespace", "pod", "gpu", "signal", "value", "owner"])
            rows.writerows(self.lines)


async def followed(cache: DecisionCache, evaluations: dict[float, Evaluation]) -> None:
    """The last evaluation of every instant."""
    while True:
        if (found := cache.evaluation) is not None:
            evaluations[found.at.timestamp()] = found
        await asyncio.sleep(0.01)


def of_gang(evaluation: Evaluation) -> Decision | None:
    decisions = [each for entry in evaluation.entries.values() for each in entry.triggers.values()]
    return decisions[0] if decisions else None


@pytest.fixture
async def live(tmp_path: Path) -> Any:
    """The decisions by the instants that they are about, and what was recorded."""
    folder, evaluations = tmp_path, dict[float, Evaluation]()
    async with AsyncExitStack() as end:
        stage = await start_act(end, ACTS["first"], "dcgm")
        evaluator, cache = stage.runtime._wiring.evaluator, stage.runtime._wiring.decision_cache
        sampler = evaluator.sampler
        source = sampler._source = RecordingSource(sampler)
        following = asyncio.create_task(followed(cache, evaluations))
        outcome = await ACTS["first"].story(stage, lambda _: None, time.monotonic()).run()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert outcome.ok
    source.write(folder / "trace.csv")
    recording, signals = Recording(folder=folder), sampler.history.signals
    read_trace(folder / "trace.csv", recording, signals)
    decisions = {at_s: found for at_s, each in sorted(evaluations.items()) if (found := of_gang(each)) is not None}
    return (
        decisions,
        recording,
        ReplayConfig(signals=signals, trust=evaluator.config.trust, tick=evaluator.config.interval),
    )


@pytest.mark.slow
async def test_every_decision_about_gpus_is_the_same_when_it_is_replayed(live: Any) -> None:
    decisions, recording, config = live
    policy = next(iter(decisions.values())).policy
    given = {"signals": config.signals, "trust": config.trust}
    replayed = decided_at_every_tick(recording, policy, **given, tick=config.tick)
    [(_, down_s, back_s, has_returned)] = [each for each in replayed.suspensions if each[0] == f"demo/{GANG}"]
    assert has_returned
    compared: set[str] = set()
    for at_s, decision in decisions.items():
        if decision.answer.reason in _NOTHING_RECORDED:
            continue
        is_down = isinstance(decision.answer, Inactive) or decision.target.phase is Phase.SUSPENDING
        assert is_down == (down_s <= at_s < back_s), decision
        found = replayed.answers.get((at_s, f"demo/{GANG}"))
        if found is not None and found.reason is not DecisionReason.WARMING_UP:
            assert found == decision.answer
            compared.add(str(found.reason))
    assert compared == {"GPUsBusy", "GPUsIdle"}

    seen: list[SimulatedSuspension] = []
    case = resolved(recording, [PolicyCase(name="case", policy_of=lambda _: policy)], config)
    replay(recording, case, config, observe=lambda _, each: seen.append(each))
    first = next(at_s for at_s, each in decisions.items() if isinstance(each.answer, Inactive))
    assert [each.at_s for each in seen if str(each.workload) == f"demo/{GANG}"] == [first]
