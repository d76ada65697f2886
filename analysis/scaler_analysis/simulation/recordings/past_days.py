"""What does a source say of each day of the past? Instant queries about a day at a time; answers are kept in files.

Laws of this file:

* What is kept of a day is not asked for again, except by other queries. A day that is not over is asked for anew.
* A day ends at midnight in UTC, and the last one at the end that is asked for.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from scaler.documents import read_json
from scaler.samples.prometheus import PrometheusSource
from scaler.samples.promql import range_duration
from scaler_analysis.report.periods import DAY
from scaler_analysis.simulation.recordings.past_samples import write_whole

Elements = Mapping[str, Sequence[Mapping[str, str]]]
"""The labels of the elements that each query gave, by its name, and their value as `value`."""

Queries = Callable[[str], Mapping[str, str]]
"""The queries by name, for a span such as `86400s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDays:
    source: PrometheusSource
    folder: Path
    gpu_resources: Sequence[str]
    """The names of the settings; a trailing * matches any ending."""
    matchers: Mapping[str, str] = field(default_factory=dict)

    async def answers(
        self, topic: str, queries: Queries, begin: datetime, end: datetime
    ) -> AsyncIterator[tuple[datetime, Elements]]:
        """The begin of each day, and what is said of it. With `topic` begins the name of the queries' folder.

        Raises: SourceError.
        """
        # Other queries have another folder.
        digest = hashlib.blake2b(json.dumps(queries("")).encode(), digest_size=4).hexdigest()
        folder, end = self.folder / f"{topic}-{digest}", end.replace(microsecond=0)
        at = begin.replace(hour=0, minute=0, second=0, microsecond=0)
        while at < end:
            yield at, await self._day(folder, queries, at, min(at + DAY, end))
            at += DAY

    async def _day(self, folder: Path, queries: Queries, begin: datetime, end: datetime) -> Elements:
        path = folder / f"{int(begin.timestamp())}-{int(end.timestamp())}.json"
        if path.exists():
            return read_json(path, dict[str, list[dict[str, str]]])
        said = {}
        for name, promql in queries(range_duration(end - begin)).items():
            elements = await self.source.demand(promql, at=end)
            said[name] = [{**each.labels, "value": f"{each.value:.15g}"} for each in elements]
        await asyncio.to_thread(_keep, path, said)
        return said


def _keep(path: Path, said: object) -> None:
    """Keep it in place of what was kept of the day while it was shorter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(said).encode())
    for each in path.parent.glob(f"{path.stem.partition('-')[0]}-*.json"):
        if each != path:
            each.unlink(missing_ok=True)
