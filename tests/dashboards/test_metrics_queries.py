"""The queries of docs/metrics.md ask for metrics and labels that there are."""

import re

import metrics_page
import promql_parser
import pytest
from promql_names import declared, names_of, not_there, selectors

TABLE = metrics_page.PAGE.read_text(encoding="utf-8").partition("## Questions and queries")[2]
QUERIES = [found.replace(r"\|", "|") for found in re.findall(r"\| `([^`]+)`", TABLE)]


def test_the_page_has_queries() -> None:
    assert len(QUERIES) == TABLE.count("\n| ") - 1, "one in every line but the heading"


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_what_is_declared(query: str) -> None:
    asked = {name for each in selectors(promql_parser.parse(query)) for name in names_of(each)}
    assert asked, query
    assert asked <= declared().keys()
    assert not_there(query) == set()
