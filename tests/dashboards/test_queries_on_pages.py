"""Queries that pages and runbooks tell people to ask are well typed, and name metrics and labels that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
from dashboards.promql_names import OF_TARGETS, declared, names_of, not_there, selectors

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy" / "runbooks").glob("*.md")])


def queries() -> Iterator[tuple[str, str]]:
    """The page and the query: what is written as code, names a metric of ours, and does more than that."""
    for page in PAGES:
        for code in re.findall(r"`([^`\n]*idle_gpu_scaler_[^`\n]*)`", page.read_text(encoding="utf-8")):
            query = code.replace("\\|", "|").replace("…", "")
            if re.search(r"[({]", query):
                yield page.name, query


QUERIES = list(queries())


def unknown(query: str) -> set[str]:
    """Metrics that do not exist, and labels that none of them has, in what the query chooses and groups by."""
    known = declared()
    found = not_there(query)
    for selector in selectors(promql_parser.parse(query)):
        for name in names_of(selector):
            asked = {each.name for each in selector.matchers.matchers} - {"__name__"}
            found |= {name} - known.keys() | (asked - known.get(name, set()) - OF_TARGETS)
    return found


@pytest.mark.parametrize(("page", "query"), QUERIES)
def test_queries_on_pages_name_what_there_is(page: str, query: str) -> None:
    assert unknown(query) == set()


def test_queries_are_found_where_they_stand() -> None:
    assert {"metrics.md", "dashboards.md", "SuspensionsRegretted.md", "NoLeader.md"} <= {page for page, _ in QUERIES}
    assert len(QUERIES) > 20


@pytest.mark.parametrize(
    ("query", "label"),
    [
        ("sum by (namespace) (idle_gpu_scaler_gpus)", "namespace"),
        ('idle_gpu_scaler_gpus{namespace="a"}', "namespace"),
        ("sum(idle_gpu_scaler_gpu)", "idle_gpu_scaler_gpu"),
    ],
)
def test_a_label_or_a_metric_that_is_not_there_is_found(query: str, label: str) -> None:
    assert unknown(query) == {label}
