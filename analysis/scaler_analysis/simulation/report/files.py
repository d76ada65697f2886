"""The answer as a file for people: one HTML page that needs nothing else, or CSV."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import IO, Any

from scaler_analysis.document import document
from scaler_analysis.report.formats import csv_of
from scaler_analysis.simulation.report import drawing

Json = Mapping[str, Any]

_NUMBERS = (
    "gpuHours",
    "freedGpuHours",
    "freedCost",
    "suspensions",
    "returnsWithin15m",
    "returnsWithin60m",
    "interruptedGpuHours",
    "unknownGpuHours",
)
SHOWN_WORKLOADS = 40
"""The workloads that freed most; all of them are in JSON and CSV."""


def html_of(answer: Json, *, at: datetime) -> str:
    """`at`: when it was made."""
    context = {
        "answer": answer,
        "begin": datetime.fromisoformat(answer["trace"]["begin"]),
        "end": datetime.fromisoformat(answer["trace"]["end"]),
        "plot": drawing.plot_of(answer),
        "drawing": drawing,
        "has_floors": len({each["activeAbove"] for each in answer.get("curve", ())}) > 1,
        "shown_workloads": SHOWN_WORKLOADS,
    }
    return document("document/simulation.html", context, at=at)


def write_csv(answer: Json, file: IO[str]) -> None:
    """A line for each case, in all and by team, queue and workload."""
    lines = [
        {"case": case["name"], "of": kind, "name": name, **{each: totals.get(each) for each in _NUMBERS}}
        for case in (*answer["policies"], *answer["published"])
        for kind, name, totals in _parts(case)
    ]
    file.write(csv_of(lines, ["case", "of", "name", *_NUMBERS]))


def _parts(case: Json) -> Iterator[tuple[str, str, Json]]:
    yield "all", "", case
    for kind in ("teams", "queues"):
        for part in case.get(kind, ()):
            yield kind.removesuffix("s"), part["name"], part
    for part in case.get("workloads", ()):
        yield "workload", f"{part['namespace']}/{part['name']}", part
