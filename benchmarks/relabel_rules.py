"""Do random relabel rules give what a real Prometheus makes of them? Those of tests/idleness/random_rules.py.

    uv run python -m benchmarks.relabel_rules [--rules 60000] [--seed 0] [--at-once 20000]

Needs the program `prometheus`. It scrapes series whose `metric_relabel_configs` are the rules, `--at-once` of them by
one process; whatever becomes of a series there has to become of it here.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
JOBS_A_SECOND = 100


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=20_000)
    asked = parser.parse_args()
    random_rules = import_module("idleness.random_rules")
    different = 0
    for part, begin in enumerate(range(0, asked.rules, asked.at_once)):
        started, count = perf_counter(), min(asked.at_once, asked.rules - begin)
        jobs = list(random_rules.random_jobs(count, seed=1000 * asked.seed + part))
        found = random_rules.differences(jobs, seconds=max(5, len(jobs) // JOBS_A_SECOND))
        print(
            f"{sum(len(job.rules) for job in jobs)} rules, {len(found)} series differ, {perf_counter() - started:.0f} s"
        )
        print(*found[:10], sep="\n")
        different += len(found)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
