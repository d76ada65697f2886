"""The report on the page, which `idle-gpu-scaler-analysis` brings where it is installed.

It is an entry point of the group `idle_gpu_scaler.pages`, called `report`: what makes a `ReportPage` of a source and of
the matchers of our own metrics there. Without it `/report` says how to install it.
"""

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from scaler.reporting.page.answers import Context
from scaler.samples.prometheus import PrometheusSource


class ReportPage(Protocol):
    @property
    def templates(self) -> Path:
        """The folder of its templates, of which `report/page.html` is what the page includes."""

    async def context(
        self, query: Mapping[str, str], namespace: str, at: datetime, namespaces: frozenset[str] | None
    ) -> Context:
        """What its template shows of a namespace, or of all if that is empty, to one who may see these namespaces,
        None: all. Raises: QueryError."""


def installed_report(source: PrometheusSource | None, matchers: Mapping[str, str]) -> ReportPage | None:
    """The report of this source, None where no distribution brings one."""
    for each in entry_points(group="idle_gpu_scaler.pages", name="report"):
        made: ReportPage = each.load()(source=source, matchers=matchers)
        return made
    return None
