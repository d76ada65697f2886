"""What `docs/metrics.md` shows of the program itself: every declared metric, and what the labels mean.

`uv run python tests/metrics_page.py` writes it anew.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from marked_page import MarkedPage

from scaler.reporting.metric_declarations import LABELS, MetricDeclaration
from scaler.reporting.metrics import Metrics


def metrics() -> str:
    """A table for each section."""
    declared = Metrics().declared
    return "\n".join(
        line for title, group in groupby(declared, lambda each: each.section) for line in _table(title, group)
    )


def _table(title: str, group: Iterator[MetricDeclaration[Any]]) -> Iterator[str]:
    yield f"### {title}\n"
    yield "| name | type | unit | labels | shown by | meaning |"
    yield "|---|---|---|---|---|---|"
    for each in group:
        labels = " ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.type} | {each.unit} | {labels} | {each.shown} | {each.meaning} |"
    yield ""


def labels() -> str:
    """A line for each label."""
    lines = (f"| `{label}` | {meaning} |" for label, meaning in LABELS.items())
    return "\n".join(["| label | values |", "|---|---|", *lines, ""])


PAGE = MarkedPage(
    path=Path(__file__).parent.parent / "docs" / "metrics.md", sections={"metrics": metrics, "labels": labels}
)


if __name__ == "__main__":
    PAGE.rewrite()
