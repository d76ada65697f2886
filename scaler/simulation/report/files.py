"""The answer as a file for people: one HTML page that needs nothing else, or CSV."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from scaler import __version__
from scaler.reporting.report.formats import csv_of
from scaler.simulation.report import drawing

Json = Mapping[str, Any]

_FOLDER = Path(__file__).parent / "templates"
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
"""That freed most; all of them are in JSON and CSV."""


def html_of(answer: Json) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"amount": amount, "share": share, "day": day}
    return environment.get_template("report.html").render(
        answer=answer,
        plot=drawing.plot_of(answer),
        drawing=drawing,
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        first=answer["policies"][0],
        has_floors=len({each["activeAbove"] for each in answer.get("curve", ())}) > 1,
        shown_workloads=SHOWN_WORKLOADS,
        version=__version__,
    )


def amount(number: float) -> str:
    return f"{number:,.1f}" if number % 1 and abs(number) < 100 else f"{number:,.0f}"


def share(ratio: float) -> str:
    return f"{round(100 * ratio, 1):g} %"


def day(timestamp: str) -> str:
    """`2026-11-24T12:00:00Z` for people."""
    return datetime.fromisoformat(timestamp).strftime("%d %b %Y %H:%M")


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
