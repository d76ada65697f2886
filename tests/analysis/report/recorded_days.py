"""Days of a scaler's metrics for a real Prometheus, minute by minute.

days = RecordedDays(begin)
replica = days.process("a")
replica.counts("gpu_seconds_total", {"state": "Idle"}, lambda minute: 60.0 * minute, minutes=range(1440))
prometheus.backfill(days.openmetrics)
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

PREFIX = "idle_gpu_scaler_"


@dataclass
class RecordedDays:
    begin: datetime
    matchers: Mapping[str, str] = field(default_factory=dict)
    """Labels that Prometheus adds to all of it."""
    lines: "defaultdict[str, list[str]]" = field(default_factory=lambda: defaultdict(list))

    def process(
        self, name: str, minutes: Iterable[int], *, leads: Iterable[int] = (), started: int = -10_000
    ) -> "Process":
        """A replica that is scraped at these minutes, and leads in some of them; `started`: minute of its start."""
        found, leading = Process(self, {"job": "scaler", "pod": name, **self.matchers}), set(leads)
        start = self.begin.timestamp() + 60 * started
        for minute in minutes:
            found.shows("build_info", {"version": "1"}, minute, 1)
            found.shows("leader", {}, minute, 1 if minute in leading else 0)
            self.sample("process_start_time_seconds", found.target, minute, start)
        return found

    def sample(self, metric: str, labels: Mapping[str, str], minute: int, value: float) -> None:
        shown = ",".join(f'{name}="{text}"' for name, text in labels.items())
        self.lines[metric].append(f"{metric}{{{shown}}} {value} {self.begin.timestamp() + 60 * minute:.0f}")

    @property
    def openmetrics(self) -> str:
        return "\n".join(f"# TYPE {name} unknown\n" + "\n".join(lines) for name, lines in self.lines.items())


@dataclass
class Process:
    days: RecordedDays
    target: Mapping[str, str]

    def shows(self, name: str, labels: Mapping[str, str], minute: int, value: float) -> None:
        self.days.sample(PREFIX + name, {**self.target, **labels}, minute, value)

    def counts(
        self, name: str, labels: Mapping[str, str], value: Callable[[int], float], *, minutes: Iterable[int]
    ) -> None:
        for minute in minutes:
            self.shows(name, labels, minute, value(minute))
