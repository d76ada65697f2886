"""A replay by two processes: each feeds all samples, and looks at half of the cases.

What is fed costs as much as one or two cases do, so this pays where many are compared.
"""

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from scaler_analysis.simulation.outcome import CaseOutcome, Totals
from scaler_analysis.simulation.published_rules import PublishedRule
from scaler_analysis.simulation.recordings.recording import Recording
from scaler_analysis.simulation.replay import ReplayConfig, ReplayResult, ResolvedCases, replay

FEWEST_SAMPLES = 2_000_000
_FEWEST_CASES = 4


def replay_in_parallel(
    recording: Recording,
    cases: ResolvedCases,
    config: ReplayConfig,
    *,
    rules: Sequence[PublishedRule] = (),
    progress: Callable[[float], None] = lambda _: None,
    fewest_samples: int = FEWEST_SAMPLES,
) -> ReplayResult:
    """What `replay` says, by two processes where that is quicker: for so many samples at least."""
    if len(cases) + len(rules) < _FEWEST_CASES or recording.samples < fewest_samples or (os.cpu_count() or 1) < 2:
        return replay(recording, cases, config, rules=rules, progress=progress)
    listed = [*cases.items()]  # neighbours are alike, and so is what they cost
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        other = pool.submit(_totals, recording, dict(listed[1::2]), config, rules[1::2])
        ours = replay(recording, dict(listed[::2]), config, rules=rules[::2], progress=progress)
        theirs = other.result()
    found = {each.name: each.by_workload for each in (*ours.cases, *ours.rules)} | {**theirs}
    return ReplayResult(
        workloads=ours.workloads,
        cases=[CaseOutcome(name=each, by_workload=found[each]) for each in cases],
        rules=[CaseOutcome(name=each.name, by_workload=found[each.name]) for each in rules],
    )


def _totals(
    recording: Recording, cases: ResolvedCases, config: ReplayConfig, rules: Sequence[PublishedRule]
) -> Mapping[str, dict[int, Totals]]:
    found = replay(recording, cases, config, rules=rules)
    return {each.name: each.by_workload for each in (*found.cases, *found.rules)}
