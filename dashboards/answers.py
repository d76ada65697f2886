"""Asks Prometheus what a panel shows, with the dashboard's variables filled in."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_SECONDS = 20.0
EVERYTHING = {"cluster": ".*", "namespace": ".*", "queue": ".*", "workload": ".*"}


@dataclass(frozen=True, slots=True)
class Series:
    """One series as it is drawn."""

    name: str
    points: tuple[tuple[float, float], ...]
    """Time in seconds since 1970, value."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A Prometheus, and the time that is looked at."""

    url: str
    start: float
    end: float
    variables: Mapping[str, str] = field(default_factory=lambda: dict(EVERYTHING))
    rate_interval: str = "4m"

    @property
    def step(self) -> float:
        return max(0.5, (self.end - self.start) / 240)

    def filled(self, expr: str) -> str:
        """The query with every variable in its place."""
        builtin = {"__rate_interval": self.rate_interval, "__range": f"{max(1, round(self.end - self.start))}s"}
        values = {**self.variables, **builtin}
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)

    def ask(self, target: Mapping[str, Any]) -> list[Series]:
        """What the query returns, named by its legend. Raises: OSError, ValueError for what Prometheus refuses."""
        query, legend = self.filled(target["expr"]), target.get("legendFormat", "")
        if target.get("instant"):
            found = self._get("query", {"query": query, "time": self.end})
            return [Series(_named(each["metric"], legend), _points([each["value"]]), each["metric"]) for each in found]
        times = {"start": self.start, "end": self.end, "step": self.step}
        found = self._get("query_range", {"query": query, **times})
        return [Series(_named(each["metric"], legend), _points(each["values"]), each["metric"]) for each in found]

    def _get(self, endpoint: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        url = f"{self.url.rstrip('/')}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}"
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{self.url}: write http://… or https://…")
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
            answer = json.load(response)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


def _points(values: list[list[Any]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), float(value)) for at, value in values)


def _named(labels: Mapping[str, str], legend: str) -> str:
    if legend and legend != "__auto":
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend).strip()
    shown = [f"{key}={value}" for key, value in sorted(labels.items()) if key != "__name__"]
    return ", ".join(shown) or labels.get("__name__", "value")
