"""How are the scaler's own metrics read back from Prometheus? PromQL for them, and nothing else. Pure.

Laws:

* Every selector has the matchers of the settings (`prometheus.matchers`), so that clusters in one Thanos are not added
  up.
* Counters are summed over replicas: only the leader counts, and another leader continues with counters of its own.
* A counter whose labels appear with its first event begins at that event in a new series, and `increase` never sees it.
  What such a series begins with is added, where it is known to be new: its process was scraped before the time in
  question, or started within it. A series that only looks new, because Prometheus has nothing of the time before, adds
  nothing: else all that its process had ever counted would be.

Worked example, of the suspensions of a day: a replica that ran the day before suspends three workloads of team-a. Its
series begins at 1 and ends at 3. `increase` gives 2, what it began with 1, together 3.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from scaler.samples.promql import any_of, quoted, range_duration

PREFIX = "idle_gpu_scaler_"
NAMESPACE, QUEUE, MODEL, STATE = "workload_namespace", "cluster_queue", "model", "state"
_BEFORE = "1h"
"""How far back a series is looked for that is not new."""
_PROCESS_STEP = "5m"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetrics:
    matchers: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str, *conditions: str) -> str:
        """The selector of one of our own metrics."""
        return self.selector(PREFIX + name, *conditions)

    def selector(self, metric: str, *conditions: str) -> str:
        matching = [*(f"{name}={quoted(value)}" for name, value in self.matchers.items()), *conditions]
        return f"{metric}{{{','.join(matching)}}}" if matching else metric

    def gained(self, name: str, by: Iterable[str], *, begin: datetime, end: datetime, jobs: Collection[str]) -> str:
        """What a counter gained. `by`: the labels that it is declared with, and `le` of a histogram's buckets; `jobs`:
        under which the scaler is scraped."""
        labels, span, selector = ", ".join(by), range_duration(end - begin), self.of(name)
        new = f"min_over_time({selector}[{span}]) unless last_over_time({selector}[{_BEFORE}] offset {span})"
        started = self.selector("process_start_time_seconds", f"job=~{any_of(sorted(jobs))}")
        watched = (
            f"max_over_time({started}[{span}:{_PROCESS_STEP}]) >= {begin.timestamp():.0f} "
            f"or last_over_time({started}[{_BEFORE}] offset {span})"
        )
        parts = {"rise": f"increase({selector}[{span}])", "begin": f"({new}) and ignoring ({labels}) ({watched})"}
        # A label of their own keeps `or` from dropping one of the two.
        both = " or ".join(f'label_replace({each}, "part", "{name}", "", "")' for name, each in parts.items())
        return f"sum by ({labels}) ({both})"

    @property
    def led(self) -> str:
        """1 while a replica would show what there is: one leads, or there is no Lease to hold."""
        leader = self.of("leader")
        return f"max({self.of('build_info')}) and on () (sum({leader}) > 0 or absent({leader}))"
