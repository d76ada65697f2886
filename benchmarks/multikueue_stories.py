"""Do a hub of MultiKueue and its workers keep their laws in 2,000 random stories? See tests/sim/multikueue_story.py.

    uv run python -m benchmarks.multikueue_stories [--runs 2000] [--seed 0] [--jobs 2]

A story is a hub and two to four workers in virtual time, each with the sandbox's Kueue and Job controller; on the hub
MultiKueue and our dispatcher, on every worker our evaluation, plans, suspension and offer, and KEDA. Gangs come to the
hub, jobs to the workers, some of which idle. Workers are lost, slow, evict and start anew, and so does the hub's
leader, in the middle of whatever it writes; API calls are refused or their answers lost; clocks are apart. The laws are
in tests/sim/multikueue_laws.py. A story that breaks one is told; `--seed N --runs 1` tells it again.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from benchmarks.random_runs import play_all


def counted(outcomes: Iterable[Any]) -> Counter[str]:
    """What happened in them, by what it is called in the report."""
    counts: Counter[str] = Counter()
    for each in outcomes:
        counts["runs"] += 1
        counts["gangs"] += each.gangs
        counts["gangs that started"] += each.started
        counts["jobs that were suspended for a gang"] += each.suspensions
        counts["deaths of a process in the middle of what it wrote"] += each.deaths
        counts["minutes of virtual time"] += round(each.seconds / 60)
        counts["broken laws"] += bool(each.broken)
    return counts


if __name__ == "__main__":
    play_all(__doc__ or "", runs=2_000, laws="MultiKueue", count=counted, module="sim.multikueue_story", at_once=10)
